"""Events of a fake server, read from its ledger file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

PATIENCE = 60
"""Seconds before a wait is given up; far more than any takes."""

LOOK_SECONDS = 0.01
"""Between two looks at the file, while waiting for something to be in it."""


async def until(condition: Callable[[], Any]) -> Any:
    """Wait until `condition` gives something true, and return it."""
    with anyio.fail_after(PATIENCE):
        while not (found := condition()):  # noqa: ASYNC110 - another process
            await anyio.sleep(LOOK_SECONDS)
    return found


class Ledger:
    """The entries of one ledger file, which only grows; no entry is read twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[dict[str, Any]] = []
        self._read = 0

    def entries(self, event: str | None = None) -> list[dict[str, Any]]:
        """The complete lines so far, oldest first."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                lines = file.read().split(b"\n")[:-1]
            self._entries += [json.loads(line) for line in lines]
            self._read += sum(len(line) + 1 for line in lines)
        return [entry for entry in self._entries if event is None or entry["event"] == event]

    def lines(self, method: str | None = None) -> list[str]:
        """The received messages as text, all or those of one method."""
        lines = [entry["line"] for entry in self.entries("received")]
        return [line for line in lines if method is None or json.loads(line).get("method") == method]

    def messages(self, method: str | None = None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines(method)]

    def calls(self, tool: str | None = None) -> list[dict[str, Any]]:
        """The params of the calls that were run."""
        return [entry["params"] for entry in self.entries("call") if tool is None or entry["tool"] == tool]

    async def until(self, condition: Callable[[Ledger], Any]) -> Any:
        """Wait until `condition` gives something true, and return it."""
        return await until(lambda: condition(self))
