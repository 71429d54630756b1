"""Clients over the bridge: hosts that share one proxy, and the rest when the last one has gone."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.harness import runs
from support.commands import real_command
from support.raw_client import RawClient
from support.wires import http, stdio

from mcp_context_proxy.bridge import ask, running

GONE_SECONDS = 30.0
"""For the proxy to end, with all of its servers."""

BRIDGED = "bridged:"
"""Begins an address that is no URL: the folder of the socket and the configuration follow."""


@dataclass(frozen=True)
class Meeting:
    """A folder for sockets, and the configuration whose hosts meet there."""

    folder: Path
    config: Path

    @property
    def address(self) -> str:
        return f"{BRIDGED}{self.folder}:{self.config}"

    @property
    def sockets(self) -> list[str]:
        return running(self.config, {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)})

    def proxies(self) -> list[int]:
        """The process ids of the proxies that run."""
        return [ask(socket, "GET", "/status", seconds=30)["pid"] for socket in self.sockets]

    def host(self, era: str, **told: Any) -> AbstractAsyncContextManager[RawClient]:
        """A client of ``serve``, which joins the proxy or starts it."""
        command = real_command("--config", self.config, "serve", shared=True)
        return stdio(command, era, env={"XDG_RUNTIME_DIR": str(self.folder)}, **told)

    def stop(self) -> None:
        """Stop the proxies, and wait until each has ended."""
        for pid in self.proxies():
            os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + GONE_SECONDS
            while runs(pid) and time.monotonic() < until:
                time.sleep(0.05)
            assert not runs(pid), "a shared proxy does not end"

    def log(self) -> str:
        """The messages of the proxies."""
        return "".join(path.read_text(encoding="utf-8") for path in self.folder.rglob("*.log"))


@contextmanager
def meeting(config: Path) -> Iterator[Meeting]:
    """A place where hosts meet; at the end no proxy is left."""
    # The path of a socket must be short.
    met = Meeting(Path(tempfile.mkdtemp(dir="/tmp", prefix="mcp-")), config)
    try:
        yield met
        met.stop()
    finally:
        shutil.rmtree(met.folder, ignore_errors=True)


@asynccontextmanager
async def shared(config: Path, era: str) -> AsyncIterator[RawClient]:
    """A client over the bridge, alone with a proxy of its own."""
    with meeting(config) as met:
        async with met.host(era) as client:
            yield client


def door(address: str, era: str) -> AbstractAsyncContextManager[RawClient]:
    """A client at an address: over HTTP, or over the bridge."""
    if not address.startswith(BRIDGED):
        return http(address, era, plain=True)
    folder, _, config = address.removeprefix(BRIDGED).partition(":")
    return Meeting(Path(folder), Path(config)).host(era)
