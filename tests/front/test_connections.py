"""Nothing is kept for a client of the HTTP front that has gone."""

from __future__ import annotations

import gc
import socket
import struct

import anyio
import anyio.abc
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front import http
from mcp_context_proxy.front.http_connections import BoundedConnection

pytestmark = pytest.mark.anyio

CLIENTS = 20
RESET = struct.pack("ii", 1, 0)
"""Have a socket say on closing that nothing more is of interest, as one does that leaves answers unread."""

ASKS = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def test_a_connection_that_its_client_reset_is_forgotten_at_once() -> None:
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("here"))])
    bound = http.listen("127.0.0.1", 0)
    port = bound.getsockname()[1]
    async with anyio.create_task_group() as group:
        group.start_soon(http.serve, app, bound, Limits())
        for _ in range(CLIENTS):
            async with await anyio.connect_tcp("127.0.0.1", port) as client:
                await client.send(ASKS)
                assert (await client.receive()).startswith(b"HTTP/1.1 200")
                plain = client.extra(anyio.abc.SocketAttribute.raw_socket)
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

        with anyio.fail_after(20):
            while connections():  # noqa: ASYNC110 - the collector's to say
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()


def connections() -> int:
    gc.collect()
    return sum(issubclass(type(known), BoundedConnection) for known in gc.get_objects())
