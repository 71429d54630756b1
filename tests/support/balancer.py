"""A balancer that gives each HTTP request to the next replica, without any affinity."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CONNECTION = re.compile(rb"(?i)\r\nconnection:[^\r]*")


@dataclass
class Balancer:
    """Takes connections of clients, one request each, and passes them on in turn."""

    replicas: list[str] = field(default_factory=list)
    """Their URLs without a path."""
    port: int = 0
    turn: int = 0
    open: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken = asyncio.ensure_future(self._take(reader, writer))
        self.open.add(taken)
        taken.add_done_callback(self.open.discard)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._pass_on(reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        from_replica, to_replica = await self._connected()
        gone = asyncio.ensure_future(reader.read(1))
        gone.add_done_callback(lambda _: to_replica.transport.abort())
        try:
            to_replica.write(_CONNECTION.sub(b"", head[:-4]) + b"\r\nconnection: close\r\n\r\n" + body)
            while part := await from_replica.read(65536):
                writer.write(part)
                await writer.drain()
        finally:
            gone.cancel()
            to_replica.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the next replica, or to one after it: a connection that fails is tried elsewhere."""
        for _ in self.replicas:
            address = urlsplit(self.replicas[self.turn % len(self.replicas)])
            self.turn += 1
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(address.hostname, address.port)
        raise ConnectionRefusedError


@asynccontextmanager
async def balancing(balancer: Balancer) -> AsyncIterator[Balancer]:
    """Balance meanwhile, on the port that the balancer has, or on a free one."""
    server = await asyncio.start_server(balancer.accept, "127.0.0.1", balancer.port, reuse_port=True)
    balancer.port = server.sockets[0].getsockname()[1]
    try:
        yield balancer
    finally:
        server.close()
        for taken in list(balancer.open):
            taken.cancel()
        await asyncio.gather(*balancer.open, return_exceptions=True)
        await server.wait_closed()
