"""HTTP/1.1 over plain sockets, in the few words of `httpx2` that `wires` uses.

For crowds of clients: a call takes a fraction of the processor time that it takes with a whole HTTP library,
and what the clients take is missing to the proxy beside them. It understands what the proxy sends, answers
with a length or in chunks, and fails on anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class PlainResponse:
    """An answer whose head has come."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self.status_code, self.headers = status, headers
        self._reader = reader
        self.text = ""
        self.read = False
        """True once all of the body has come, so that the connection can be used again."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            assert await self._reader.readexactly(2) == b"\r\n"
        elif self.status_code != 204:
            yield await self._reader.readexactly(int(self.headers["content-length"]))
        self.read = True

    async def aread(self) -> bytes:
        return b"".join([part async for part in self.aiter_bytes()])


@dataclass
class PlainHttp:
    """Connections to one host; as many as there are requests at a time, and each used again."""

    timeout: float

    def __post_init__(self) -> None:
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> PlainHttp:
        return self

    async def __aexit__(self, *error: object) -> None:
        for _, writer in self._idle:
            writer.transport.abort()

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: dict[str, str], content: str = "", timeout: Any = None
    ) -> AsyncIterator[PlainResponse]:
        """Ask, and have the answer as long as it is not left. `timeout` is for the head alone."""
        del timeout
        address = urlsplit(url)
        body = content.encode()
        lines = [f"{method} {address.path} HTTP/1.1", f"host: {address.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"content-length: {len(body)}", "", ""]
        reader, writer = await self._connection(address.hostname, address.port)
        answered = None
        try:
            writer.write("\r\n".join(lines).encode() + body)
            async with asyncio.timeout(self.timeout):
                answered = await _head(reader)
            yield answered
        finally:
            if answered is not None and answered.read and answered.headers.get("connection") != "close":
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()

    async def post(self, url: str, *, content: str, headers: dict[str, str]) -> PlainResponse:
        return await self._whole("POST", url, content, headers)

    async def delete(self, url: str, *, headers: dict[str, str]) -> PlainResponse:
        return await self._whole("DELETE", url, "", headers)

    async def _whole(self, method: str, url: str, content: str, headers: dict[str, str]) -> PlainResponse:
        async with self.stream(method, url, content=content, headers=headers) as response:
            response.text = (await response.aread()).decode()
        return response

    async def _connection(
        self, host: str | None, port: int | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
        return await asyncio.open_connection(host, port)


async def _head(reader: asyncio.StreamReader) -> PlainResponse:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = [line.partition(":") for line in lines if line]
    version, status, *_ = first.split(" ")
    assert version == "HTTP/1.1", first
    return PlainResponse(reader, int(status), {name.lower(): value.strip() for name, _, value in fields})
