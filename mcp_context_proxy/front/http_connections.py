"""HTTP connections with bounds: on time for headers and bodies, on their number, and on unsent bytes.

Uvicorn has a timeout for kept-alive connections only. Here a client that sends slowly is disconnected; when
all places are taken, a connection on which nothing is being answered makes room (`BoundedConnection`). A
client that has read nothing of its response for a while is disconnected, too; while too many bytes wait on
all connections, such clients go early, those first that have read nothing for longest (`WriteBacklog`).

Nearly all requests are alike: a POST with a small body, whose head comes in one piece. Those are answered in
a flight (`_PlainCycle`); uvicorn's parser and its task would take as much time as all else. Whatever is in
any way unusual is left to them.
"""

from __future__ import annotations

import array
import asyncio
import logging
import re
import socket
import struct
import sys
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import anyio
import h11
from anyio.abc import TaskGroup
from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front.auth import is_proven
from mcp_context_proxy.front.http_requests import WAITING_KEY
from mcp_context_proxy.system.threads import Flight, Reply

if sys.platform != "win32":
    import fcntl
    import termios

logger = logging.getLogger(__name__)

HEADER_BYTES = 64 * 1024
"""Bytes of one request's headers: many times those that proxies and browsers send."""

HEADER_STEP = 4096
"""Bytes given to the parser at a time: it looks at the size of headers only when it needs more."""

BODY_STEP = 16 * 1024
"""Bytes received at a time, and before anybody asks for them: each connection may have sent as many."""

CHUNKS_STEP = 1024
"""Bytes of a body in chunks given to the parser at a time; of chunks of one byte, 16 KiB take it 20 ms."""

EVENT_BYTES = 64 * 1024
"""Bytes beyond `limits.message_bytes` that the largest response may have around a message of a server."""

LARGEST_RESPONSES = 16
"""Responses of the largest size that may wait for clients that do read, if slowly."""

STALLED_SECONDS = 0.25
"""Time without reading after which a client may go early: many round trips, but too little for much more to
pile up."""

NOTEWORTHY_BYTES = 64 * 1024
"""Bytes that wait outside of one connection from which all connections are counted."""


class _PlainRequest(Struct, frozen=True, eq=False):
    """A request that has nothing unusual about it."""

    head_bytes: int
    target: bytes
    headers: list[tuple[bytes, bytes]]
    """With names in lower case."""
    body_bytes: int


_PLAIN_HEAD: Final = re.compile(
    rb"POST (/[!-~]*) HTTP/1\.1\r\n((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[ -~]*\r\n)+)\r\n"
)
"""The whole head of a request, without anything that two readers may read differently."""

_UNUSUAL: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"})
"""Headers of requests that are left to the parser."""


def _plain_request(data: bytes) -> _PlainRequest | None:
    """Return the request that begins here; None if all of its head is not here, or anything is unusual."""
    head = _PLAIN_HEAD.match(data)
    if head is None:
        return None
    headers, size, hosts = list[tuple[bytes, bytes]](), -1, 0
    for line in head[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" ")
        if name == b"content-length":
            if size >= 0 or not value.isdigit() or len(value) > len(b"%d" % BODY_STEP):
                return None
            size = int(value)
        elif name in _UNUSUAL or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
        hosts += name == b"host"
        headers.append((name, value))
    if hosts != 1 or not 0 <= size <= BODY_STEP:
        return None
    return _PlainRequest(head.end(), head[1], headers, size)


class _PlainCycle(RequestResponseCycle):
    """A plain request and its response, without the parser."""

    def __init__(self, connection: BoundedConnection, scope: Scope, body_bytes: int) -> None:
        super().__init__(
            scope=scope,  # type: ignore[arg-type]
            conn=connection.conn,
            transport=connection.transport,
            flow=connection.flow,
            logger=connection.logger,
            access_logger=connection.access_logger,
            access_log=False,
            default_headers=connection.server_state.default_headers,
            message_event=asyncio.Event(),
            on_response=connection.on_response_complete,
        )
        self.missing = body_bytes
        """Bytes of the body that have not come."""
        self.flight: Flight | None = None
        self._whole_body, self._taken = Reply[bytes](), False
        self._head, self._chunked = b"", False

    def feed(self, data: bytes) -> None:
        self.body += data
        self.missing -= len(data)
        if not self.missing and not self._whole_body.done:
            body, self.body = bytes(self.body), bytearray()
            self._whole_body.answer(body)

    def cancel(self, msg: object = None) -> None:
        """Give the request up, as a task is."""
        if self.flight is not None:
            self.flight.cancel()

    def broken_off(self) -> None:
        """Note that the rest of the body will not come."""
        if not self._whole_body.done:
            self._whole_body.answer(b"")

    async def receive(self) -> Any:
        """Return the whole body, and later that the client has gone."""
        if not self._taken:
            self._taken = True
            body = await self._whole_body
            if not self.disconnected:
                return {"type": "http.request", "body": body, "more_body": False}
        return await super().receive()

    async def send(self, message: Any) -> None:
        """Write the response; its head goes with its body, unless that may be long in coming."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self.response_started = True
            self._begin(message)
            return
        if self.response_complete:
            raise RuntimeError("a response is complete already")
        head, self._head = self._head, b""
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._chunked:
            parts = [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
            parts += () if more else (b"0\r\n\r\n",)
            body = b"".join(parts)
        # A copy, because a view of a larger body is released after this.
        self.transport.write(head + body if head else bytes(body))
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _begin(self, message: Message) -> None:
        status, headers = message["status"], [*self.default_headers, *message.get("headers", ())]
        sized = any(name == b"content-length" for name, _ in headers)
        self._chunked = not sized and status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
        if self._chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        if CLOSE_HEADER in headers:
            self.keep_alive = False
        lines = [b"%b: %b\r\n" % header for header in headers]
        head = b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, STATUS_PHRASES[status], b"".join(lines))
        if head.count(b"\n") != len(lines) + 2 or head.count(b"\r") != len(lines) + 2:
            raise RuntimeError("a header of a response has a line end in it")
        if self._chunked:
            self.transport.write(head)
        else:
            self._head = head


class _Phase(Enum):
    """Phases of a connection, by the part of a request that it is waiting for."""

    HEADERS = auto()
    BODY = auto()
    """Also of a request that was refused before its body had come."""
    RESPONSE = auto()
    """It waits for nothing: the request is being answered."""
    IDLE = auto()
    """It is answered, and the next request has not begun."""


class BoundedConnection(H11Protocol):
    """One connection with deadlines. `connection_class` makes the class that knows the limits."""

    limits: Limits
    backlog: WriteBacklog
    group: TaskGroup | None
    """Has the tasks of plain requests that need one; None where none are answered without the parser."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        app = self.app

        async def app_with_waiting(scope: Scope, receive: Receive, send: Send) -> None:
            if self._bounded is not None:
                scope[WAITING_KEY] = self._bounded.wait
            try:
                await app(scope, receive, send)
            finally:
                self._proven = is_proven(scope)

        self.app: ASGIApp = app_with_waiting
        self._phase = _Phase.RESPONSE
        self._since = 0.0
        """Time at which the phase began."""
        self._proven = False
        """Whether its last request had a token that is known."""
        self._seconds = {
            _Phase.HEADERS: self.limits.http_header_seconds,
            _Phase.BODY: self.limits.http_body_seconds,
            _Phase.IDLE: self.limits.http_idle_seconds,
        }
        """Time that each phase may take."""
        self._deadline: asyncio.TimerHandle | None = None
        """The next look at the time that the phase has taken; phases that end before it leave it alone."""
        self._bounded: BoundedTransport | None = None
        self._plain: _PlainCycle | None = None
        """The plain request that is under way, or whose body is."""
        self._ahead = b""
        """Bytes that came before it was answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the connection a place; if there is none, one that is not being answered makes room."""
        if len(self.connections) >= self.limits.http_connections:
            self._make_room()
        # Asyncio's own number is 256 KiB; other event loops may not know it.
        if hasattr(transport, "max_size"):
            transport.max_size = BODY_STEP
        self._bounded = BoundedTransport(transport, self.backlog)
        super().connection_made(self._bounded)  # type: ignore[arg-type]
        self._enter(_Phase.HEADERS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline, and let go of the application, which holds the connection."""
        self._enter(_Phase.RESPONSE)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._bounded is not None:
            self.backlog.unread.discard(self._bounded)
        super().connection_lost(exc)
        if self._plain is not None:
            self._plain.broken_off()
        del self.app

    def data_received(self, data: bytes) -> None:
        """Take received bytes, and start the deadline of the part that is still missing."""
        if self._plain is None and not self._ahead:
            request = _plain_request(data) if self._takes_plain else None
            if request is not None:
                self._serve(request, data[request.head_bytes :])
            else:
                self._parse(data)
            return
        missing = 0 if self._plain is None else self._plain.missing
        if len(data) > missing:
            self._ahead += data[missing:]
            self.flow.pause_reading()
        if self._plain is not None and missing:
            self._plain.feed(data[:missing])
            self._settle()

    @property
    def _takes_plain(self) -> bool:
        """True if the parser has nothing of a request, and there is a place for one."""
        conn, most = self.conn, self.limit_concurrency
        free = most is None or (len(self.connections) < most and len(self.tasks) < most)
        between = conn.our_state is h11.IDLE and conn.their_state is h11.IDLE and not conn.trailing_data[0]
        return free and between and self.group is not None

    def _serve(self, request: _PlainRequest, data: bytes) -> None:
        """Answer a plain request, of whose body some data has come."""
        assert self.group is not None
        path, _, query = request.target.partition(b"?")
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": "POST",
            "root_path": "",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": request.headers,
            "state": self.app_state.copy(),
        }
        self._plain = self.cycle = cycle = _PlainCycle(self, scope, request.body_bytes)
        self._ahead = data[cycle.missing :]
        cycle.feed(data[: cycle.missing])
        if self._ahead:
            self.flow.pause_reading()
        self._enter(self._missing())
        # Uvicorn waits for what is in this set when it stops, and cancels what is left at last.
        self.tasks.add(cycle)  # type: ignore[arg-type]
        cycle.flight = Flight(self.group)
        cycle.flight.start(self._answer(cycle))

    async def _answer(self, cycle: _PlainCycle) -> None:
        try:
            await cycle.run_asgi(self.app)  # type: ignore[arg-type]
        except Exception:
            # boundary: a bug in answering costs one connection
            logger.exception("a request could not be answered")
            self.transport.abort()
        finally:
            self.tasks.discard(cycle)

    def _settle(self) -> None:
        """Enter the phase after a part of a request; after a plain one, turn to the bytes read ahead."""
        if self._plain is not None and self._plain.response_complete and not self._plain.missing:
            self._plain = None
            if self._ahead:
                self.flow.pause_reading()
                # Not here: a thousand requests that came at once would be as many calls within calls.
                self.loop.call_soon(self._take_ahead)
        # A request that was sent before this one was answered is under way by now.
        missing = self._missing()
        self._enter(_Phase.IDLE if missing is _Phase.HEADERS else missing)

    def _take_ahead(self) -> None:
        data, self._ahead = self._ahead, b""
        if not self.transport.is_closing():
            self.data_received(data)
            if not self._ahead and not self._has_enough:
                self.flow.resume_reading()

    def _parse(self, data: bytes) -> None:
        while data and self._missing() is _Phase.HEADERS:
            part, data = data[:HEADER_STEP], data[HEADER_STEP:]
            super().data_received(part)
        if len(data) > CHUNKS_STEP and any(name == b"transfer-encoding" for name, _ in self.headers or ()):
            data, self._ahead = data[:CHUNKS_STEP], data[CHUNKS_STEP:]
            self.flow.pause_reading()
            self.loop.call_soon(self._take_ahead)
        if data and not self.transport.is_closing():
            super().data_received(data)
        self._enter(self._missing())
        if self._has_enough:
            self.flow.pause_reading()

    @property
    def _has_enough(self) -> bool:
        """True if as much of a body waits to be read as may have come before anybody asks for it."""
        unread = self._phase is _Phase.BODY and not self.cycle.response_complete
        return unread and len(self.cycle.body) > BODY_STEP

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP; a request whose body it should be gets no other answer."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n" + msg.encode())
        self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the rest of the body as long as before, or for the next request as long as it may idle."""
        # As uvicorn does, without its timer of idle connections, which is set and unset for each request.
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.conn.our_state is h11.DONE and self.conn.their_state is h11.DONE:
                self.conn.start_next_cycle()
                self.handle_events()
        self._settle()

    def pause_writing(self) -> None:
        """Count the unsent bytes: the client does not read as fast as it is answered."""
        super().pause_writing()
        self.backlog.reduce()

    def _missing(self) -> _Phase:
        if self.transport.is_closing():
            return _Phase.RESPONSE
        if self._plain is not None:
            return _Phase.BODY if self._plain.missing else _Phase.RESPONSE
        if self.conn.their_state is h11.IDLE:
            return _Phase.HEADERS
        return _Phase.BODY if self.conn.their_state is h11.SEND_BODY else _Phase.RESPONSE

    def _enter(self, phase: _Phase) -> None:
        """Start the deadline of a phase, unless it is running already."""
        if phase is self._phase:
            return
        self._phase, self._since = phase, self.loop.time()
        if phase is not _Phase.RESPONSE:
            self._look_at(self._since + self._seconds[phase])

    def _look_at(self, due: float) -> None:
        """Look at the phase at a time, unless that is done earlier in any case."""
        if self._deadline is not None:
            if self._deadline.when() <= due:
                return
            self._deadline.cancel()
        self._deadline = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        phase, self._deadline = self._phase, None
        if phase is _Phase.RESPONSE or self.transport.is_closing():
            return
        if self.loop.time() < (due := self._since + self._seconds[phase]):
            self._look_at(due)
        elif phase is _Phase.BODY and self.flow.read_paused:
            # It is the proxy that does not read the body: the time starts again.
            self._phase = _Phase.RESPONSE
            self._enter(_Phase.BODY)
        elif phase is _Phase.IDLE:
            self.timeout_keep_alive_handler()
        else:
            logger.info("closed a connection that took too long to send its %s", phase.name.lower())
            self.transport.abort()

    @property
    def _is_answered(self) -> bool:
        """True if nothing would be lost but the connection: no request on it waits for its response."""
        unread = self._phase is _Phase.BODY and self.cycle.response_complete
        return unread or self._phase in (_Phase.HEADERS, _Phase.IDLE)

    def _make_room(self) -> None:
        """Close a connection without a request, or else one that sends a body.

        Those go first whose client has not proven who it is, then those that have waited for longest.
        """
        others = [other for other in self.connections if isinstance(other, BoundedConnection)]
        waiting = [other for other in others if other._is_answered]
        waiting = waiting or [other for other in others if other._phase is _Phase.BODY]
        if waiting:
            chosen = min(waiting, key=lambda each: (each._proven, each._since))
            self.connections.discard(chosen)
            chosen.transport.abort()


def connection_class(
    limits: Limits, backlog: WriteBacklog, group: TaskGroup | None = None
) -> type[BoundedConnection]:
    """Return the class of connections within `limits`, as uvicorn wants it; see `BoundedConnection.group`."""
    known = {"limits": limits, "backlog": backlog, "group": group}
    return type("Connection", (BoundedConnection,), known)


class BoundedTransport:
    """Transport of one connection that knows its unsent bytes, and the time since its client has read any."""

    def __init__(self, transport: asyncio.Transport, backlog: WriteBacklog) -> None:
        self._transport, self._backlog = transport, backlog
        self._socket = transport.get_extra_info("socket")
        self._written = self._waiting = 0
        self._read = 0
        """Bytes that the client had read at the last look."""
        self.since = 0.0
        """Time at which the client last read something, or was given something to read."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._backlog.note(self)
        self._transport.write(data)

    @property
    def size(self) -> int:
        """Bytes that this process holds for the client."""
        return self._transport.get_write_buffer_size() + self._waiting

    def wait(self, more: int) -> None:
        """Note that so many bytes more (or less) wait outside of the connection; a `Waiting`."""
        self._waiting += more
        if more > 0:
            self._backlog.note(self)
            if self._waiting > NOTEWORTHY_BYTES:
                self._backlog.reduce()

    def look(self, now: float) -> bool:
        """Note whether the client has read something since the last look; return whether it has all."""
        # Bytes in the system's buffer have left this process, but the client has not read them.
        unread = self._transport.get_write_buffer_size() + _in_kernel(self._socket.fileno())
        if (read := self._written - unread) > self._read:
            self._read, self.since = read, now
        return not unread and not self._waiting

    def disconnect(self, why: str) -> None:
        """Close the connection at once, and free all that waits for it."""
        logger.info("closed a connection that did not read its answer%s", why)
        # Otherwise the system keeps offering the bytes in its buffer for minutes.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


def _in_kernel(fd: int) -> int:
    """Return the bytes that the system holds until the client reads them; zero where it does not tell."""
    if fd < 0 or sys.platform == "win32":
        return 0
    held = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.TIOCOUTQ, held)
    except OSError:
        return 0
    return held[0]


class WriteBacklog:
    """Unsent bytes on all connections of a front."""

    def __init__(self, limits: Limits) -> None:
        """Disconnect a client that reads nothing for `limits.stalled_seconds`."""
        self._stalled_seconds = limits.stalled_seconds
        self._largest = limits.message_bytes + EVENT_BYTES
        """Unsent bytes beyond which stalled clients go early: one of the largest responses."""
        self.unread: set[BoundedTransport] = set()
        """The open connections whose clients may have something to read."""
        self._noted = asyncio.Event()

    def note(self, connection: BoundedTransport) -> None:
        """Note that a client is given something to read."""
        if connection not in self.unread and not connection.is_closing():
            connection.since = asyncio.get_running_loop().time()
            self.unread.add(connection)
            self._noted.set()

    async def watch(self) -> None:
        """Look at these connections in turn, until cancelled; sleep while there are none."""
        loop = asyncio.get_running_loop()
        while True:
            await self._noted.wait()
            await anyio.sleep(min(STALLED_SECONDS, self._stalled_seconds / 4))
            now = loop.time()
            for connection in list(self.unread):
                if connection.look(now):
                    self.unread.discard(connection)
                elif now - connection.since >= self._stalled_seconds:
                    self._close(connection, "")
            self.reduce()
            if not self.unread:
                self._noted.clear()

    def reduce(self) -> None:
        """Close connections while too many bytes wait, those first whose clients have stalled for longest."""
        sizes = {connection: size for connection in self.unread if (size := connection.size)}
        waiting = sum(sizes.values())
        if waiting <= self._largest:
            return
        now = asyncio.get_running_loop().time()
        for connection in sorted(sizes, key=lambda each: each.since):
            stalled = now - connection.since >= STALLED_SECONDS
            if waiting <= self._largest or (not stalled and waiting <= LARGEST_RESPONSES * self._largest):
                return
            waiting -= sizes[connection]
            self._close(connection, ": too much waits to be read")

    def _close(self, connection: BoundedTransport, why: str) -> None:
        self.unread.discard(connection)
        connection.disconnect(why)
