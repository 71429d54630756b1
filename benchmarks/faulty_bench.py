"""Proxies in front of the misbehaving servers of `tests/faults`, and the system's figures of processes."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from raw_clients import FailureError, StdioClient, call_params, frame
from subjects import Workbench

FAULTY = Path(__file__).parents[1] / "tests" / "faults" / "faulty"


class FaultyBench(Workbench):
    """Writes configurations with servers that misbehave."""

    def faulty(self, modes: dict[str, dict[str, Any]], **limits: Any) -> Path:
        """Write a configuration with one server for each name, in its mode and with its options."""
        self._made += 1
        lines = ["[store]", 'path = "memory"', "[limits]"]
        lines += [f"{key} = {value}" for key, value in limits.items()]
        for name, options in modes.items():
            arguments = ["-S", str(FAULTY), json.dumps(options)]
            lines += [f"[servers.{name}]", f"command = {json.dumps(sys.executable)}"]
            lines += [f"args = {json.dumps(arguments)}"]
        path = self.folder / f"faulty-{self._made}.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path


def is_ready(client: StdioClient, tool: str) -> bool:
    with suppress(FailureError):
        client.result_of(
            client.exchange(frame(10**6, "tools/call", call_params(tool, nonce="n"), client.era))
        )
        return True
    return False


def children_of(pid: int) -> list[int]:
    """The server processes of a proxy, without the guardian that would end them."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for file in files for child in file.read_text(encoding="ascii").split()]
    return [child for child in found if str(FAULTY) in _command_line(child)]


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    return ""


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def terminate(client: StdioClient) -> None:
    client.process.terminate()
    client.process.wait(60)
