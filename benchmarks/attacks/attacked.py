"""One version of the proxy under attack, and the parts that all attacks share."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from support.raw_client import RawClient, RpcError
from support.servers import Workshop
from support.wires import stdio

PATIENCE = 90
"""Seconds after which an attack is given up: then the proxy hangs."""

HIDDEN = "\x1b[2J\u202e\u200b\U000e0041"
"""A terminal escape, a character that turns the text around, an invisible one, and a tag."""

PLACES = "\u2800\ue000\u0378" + "\ufe0f" * 5
"""Further places to hide: braille without dots, a private and an unassigned character, selectors."""

TOKEN = "a-token-for-the-attacks"


class Attacked:
    """One version of the proxy, and a folder for one attack on it."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.workshop = Workshop(folder)
        self.before: list[str] = []
        """Begins the command line of the proxy that a client starts."""
        own = {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), "MCP_CONTEXT_PROXY_OWN": "1"}
        self.environment = {**os.environ, **own}
        """Each start is that of a proxy of its own: one that hosts share goes on after its client."""

    def command(self, config: Path, *more: str) -> list[str]:
        """Return the command line of the program that is installed beside the interpreter."""
        return [str(Path(self.python).parent / "mcp-context-proxy"), "--config", str(config), *more]

    def client(self, era: str = "handshake", **tables: Any) -> Any:
        """Start the proxy as a host does; `tables` are of its configuration."""
        answers = tables.pop("answers", None)
        capabilities = tables.pop("capabilities", None)
        command = [*self.before, *self.command(self.workshop.config(**tables), "--log-level", "error")]
        return stdio(command, era, capabilities=capabilities, answers=answers, env=self.environment)

    def run(self, *arguments: str, config: Path | None = None) -> str:
        """Run a command to its end; return all that it prints."""
        command = self.command(config or self.workshop.config(), *arguments)
        done = subprocess.run(
            command, env=self.environment, capture_output=True, timeout=PATIENCE, check=False
        )
        return (done.stdout + done.stderr).decode()

    @contextmanager
    def serving(self, *more: str, token: str | None = None, **tables: Any) -> Iterator[str]:
        """Serve over HTTP; gives the address, without a path."""
        config = self.workshop.config(**tables)
        access = {} if token is None else {"MCP_CONTEXT_PROXY_TOKEN": token}
        words = [*(["--no-auth"] if token is None else []), *more]
        self.log = self.folder / "log"
        with (
            self.log.open("wb") as stderr,
            subprocess.Popen(
                self.command(config, "--log-level", "info", "serve", "--http", "--port", "0", *words),
                env={**self.environment, **access},
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            ) as self.process,
        ):
            try:
                yield self._address()
            finally:
                self.process.terminate()
                try:
                    self.process.wait(PATIENCE)
                finally:
                    self.process.kill()

    def _address(self) -> str:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.poll() is None:
            if found := re.search(r"serving (http://[^\s/]+)", self.log.read_text(errors="replace")):
                return found[1]
            time.sleep(0.02)
        raise AssertionError("it does not serve: " + self.log.read_text(errors="replace")[-300:].strip())


Attack = Callable[[Attacked], Awaitable[str]]
ATTACKS: dict[str, Attack] = {}


def attack(sentence: str) -> Callable[[Attack], Attack]:
    """Add a function that carries out the sentence, and returns the outcome."""

    def add(function: Attack) -> Attack:
        ATTACKS[sentence] = function
        return function

    return add


def ran(result: Any) -> str:
    """Return the outcome of a call: `tests/support` answers with the params that it got."""
    text = result["content"][0]["text"]
    return f"refused: {text[:110]}" if result.get("isError") else "the call ran"


def hides(text: str) -> str:
    left = sorted({f"U+{ord(one):04X}" for one in text if one in HIDDEN + PLACES and one not in "[2J"})
    return f"passed: {' '.join(left)}" if left else "nothing hidden passed"


async def tried(request: Awaitable[Any], done: Callable[[Any], str]) -> str:
    try:
        return done(await request)
    except RpcError as error:
        return f"refused: {str(error)[:110]}"


@asynccontextmanager
async def watched(client: RawClient) -> AsyncIterator[list[float]]:
    """Measure the longest wait for the answer to a ping, in seconds."""
    longest = [0.0]

    async def ping() -> None:
        while True:
            began = time.monotonic()
            await client.request("ping")
            longest[0] = max(longest[0], time.monotonic() - began)
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as group:
        group.start_soon(ping)
        try:
            yield longest
        finally:
            group.cancel_scope.cancel()
