"""A machine whose hosts meet in one shared proxy."""

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.commands import real_command
from support.raw_client import RawClient
from support.servers import Workshop
from support.wires import stdio


class Machine:
    """A machine with a folder for sockets, and hosts that start ``serve``."""

    def __init__(self, folder: Path, workshop: Workshop) -> None:
        self.folder, self.workshop = folder, workshop
        self.config = workshop.folder / "config.toml"
        self.told = {"XDG_RUNTIME_DIR": str(folder)}
        """Variables that differ from those of the tests."""

    @property
    def command(self) -> list[str]:
        """The command line of a bridge, as hosts start it."""
        return real_command("--config", self.config, "serve", shared=True)

    @property
    def environ(self) -> dict[str, str]:
        """All variables of a process on the machine."""
        return {**os.environ, **self.told}

    def write(self, **tables: Any) -> None:
        """Write the configuration again."""
        self.workshop.config(**tables)

    @asynccontextmanager
    async def host(
        self, era: str = "handshake", *, answers: Any = None, **env: str
    ) -> AsyncIterator[RawClient]:
        """A host of the machine."""
        able = {"elicitation": {}} if answers else None
        told = {**self.told, **env}
        async with stdio(self.command, era, env=told, answers=answers, capabilities=able) as client:
            yield client

    def bridge(self) -> subprocess.Popen[bytes]:
        """Start a bridge without a host."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(self.command, env=self.environ, **pipes)

    def proxies(self) -> list[int]:
        """The process ids of the shared proxies."""
        found: dict[int, int] = {}
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    parent = int((process / "stat").read_text("ascii").rpartition(")")[2].split()[1])
                except OSError:
                    continue
                if b"--listen-on" in words and os.fsencode(self.config) in words:
                    found[int(process.name)] = parent
        # A process that a proxy is about to start has its command line for a moment.
        return [process for process, parent in found.items() if parent not in found]

    def sockets(self) -> list[Path]:
        return list(self.folder.rglob("*.sock"))
