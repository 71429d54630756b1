"""The fronts for hosts of this machine: several over a Unix socket, or one over the standard streams.

Each host's session at the socket has a bridge, a process that passes lines between the host's pipes and the
socket, and a conversation of its own. The socket lies in a folder of the user, and only the user's own
processes are served. At a port instead of a socket, those are served who know the key in a file of that
folder.

At the standard streams hosts connect pipes. A file, a terminal or the null device, which an event loop cannot
wait for, is copied from or to a socket by a thread, so that a person can try the proxy from a shell. So is
every stream on Windows, where an event loop cannot wait for pipes either. While they are served, file
descriptor 0 reads nothing and 1 writes to stderr: neither a stray print nor a child process can touch the
protocol.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeAlias, cast

import anyio
import msgspec
from anyio.abc import TaskGroup

from mcp_context_proxy.bridge import CONNECT_SECONDS
from mcp_context_proxy.bridge.meeting import LOG_BYTES, NONCE_BYTES, PROOF_BYTES, beside, proof, proves
from mcp_context_proxy.config import Limits
from mcp_context_proxy.front.conversation import Conversation, HostStream, converse
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.framing import READ_BYTES, Oversized, gate
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, one_line
from mcp_context_proxy.server import ConnectedHost
from mcp_context_proxy.server.negotiation import Negotiation
from mcp_context_proxy.system import CLOSE_ON_EXEC, locked
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import THE_USER, Principal

if TYPE_CHECKING:
    from mcp_context_proxy.front.http import LocalApi

logger = logging.getLogger(__name__)

MOST_HOSTS: Final = 256
"""Hosts at a time; each takes a descriptor and some memory."""

ACCEPT_PAUSE_SECONDS: Final = 0.2
"""Pause before the next attempt to accept a host, where there was no descriptor for it."""

LOG_SECONDS: Final = 10.0
"""Time between two looks at the size of the log."""

REMOVE_SECONDS: Final = 1.0
"""Time to wait for a session that is about to start another proxy, before the socket is left to it."""

COPY_SECONDS: Final = 2.0
"""Time at the end for output to be copied to a file or a terminal."""

MakeApi: TypeAlias = Callable[[], "LocalApi"]
"""Makes the REST API; called in a thread, at the first request for it."""


async def serve(hosts: Hosts, listening: socket.socket, path: str, linger_seconds: float) -> None:
    """Serve the hosts that connect to a listening socket, until none has been there for `linger_seconds`."""
    listening.setblocking(False)
    ours = os.stat(path).st_ino  # noqa: PTH116
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(hosts.accept, listening)
            group.start_soon(_bound_log, beside(path, ".log"))
            await hosts.none_for(linger_seconds)
            group.cancel_scope.cancel()
    finally:
        listening.close()
        _remove(path, ours)


async def serve_commands(
    limits: Limits, path: str, listening: socket.socket, key: bytes | None, make_api: MakeApi
) -> None:
    """Answer the commands that ask over a listening socket, until cancelled."""
    listening.setblocking(False)
    try:
        await Hosts(None, limits, make_api, key).accept(listening)
    finally:
        listening.close()
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - one call, without a thread
            os.rmdir(os.path.dirname(path))  # noqa: PTH106, PTH120 - only where it is empty


def _remove(path: str, inode: int) -> None:
    """Remove the socket from its folder, unless another proxy has been started there meanwhile."""
    with suppress(OSError), locked(beside(path, ".lock"), REMOVE_SECONDS):
        if os.stat(path).st_ino == inode:  # noqa: PTH116
            os.unlink(path)  # noqa: PTH108


async def _bound_log(path: str) -> None:
    """Begin the log anew whenever it is large, and keep the one before it, until cancelled."""
    while True:
        await anyio.sleep(LOG_SECONDS)
        await in_thread(_rotate, path)


def _rotate(path: str) -> None:
    with suppress(OSError):
        written = os.fstat(2)
        # Only the log that a bridge has opened for us, and not what anybody else gave as standard error.
        if written.st_size > LOG_BYTES and os.path.samestat(written, Path(path).stat()):
            Path(path).replace(f"{path}.1")
            new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | CLOSE_ON_EXEC, 0o600)
            os.dup2(new, 2, inheritable=True)
            os.close(new)


class Hosts:
    """The hosts that are connected, and those who ask the REST API over the same socket.

    Their first byte tells them apart: a message of a host is a JSON object, and a request begins with the
    name of a method.
    """

    def __init__(
        self,
        negotiation: Negotiation | None,
        limits: Limits,
        make_api: MakeApi,
        key: bytes | None = None,
        *,
        problems: Callable[[Iterable[str]], Sequence[str]] = lambda _presets: (),
    ) -> None:
        """Serve hosts by a negotiation; without one, only those who ask the REST API.

        With a `key`, whoever connects has to prove first that it knows it: anybody can connect to a port.
        `problems` returns messages for a person, also of presets that a host names; it gets them for its log.
        """
        self._negotiation, self._limits = negotiation, limits
        self._make_api, self._key, self._problems = make_api, key, problems
        self._api: LocalApi | None = None
        self._api_made = anyio.Lock()
        self._connected = 0
        self._changed = anyio.Event()
        self._open: dict[Conversation, SocketChannel] = {}

    def __call__(self) -> list[ConnectedHost]:
        """Return the hosts that are connected, those that came first ahead."""
        return [_host(conversation, channel) for conversation, channel in self._open.items()]

    async def accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        told = False
        async with anyio.create_task_group() as group:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:
                    # Such as no free descriptors: the hosts that are there go on, and the new one waits.
                    if not told:
                        logger.warning("no host can be accepted: %s", error.strerror or error)
                    told = True
                    await anyio.sleep(ACCEPT_PAUSE_SECONDS)
                    continue
                told = False
                ours = self._key is not None or _is_ours(connection)
                if not ours or self._connected >= MOST_HOSTS:
                    logger.warning("a connection of another user, or one too many, was refused")
                    connection.close()
                    continue
                self._note(1)
                group.start_soon(self._serve, connection, group)

    async def none_for(self, seconds: float) -> None:
        """Wait until no host has been connected for some seconds."""
        while True:
            changed = self._changed
            with anyio.move_on_after(seconds if self._connected == 0 else None) as waiting:
                await changed.wait()
            if waiting.cancelled_caught:
                return

    def _note(self, change: int) -> None:
        self._connected += change
        self._changed.set()
        self._changed = anyio.Event()

    async def _serve(self, connection: socket.socket, group: TaskGroup) -> None:
        try:
            connection.setblocking(False)
            if self._key is not None and not await _knows(self._key, connection):
                connection.close()
                return
            await anyio.wait_readable(connection)
            try:
                first = connection.recv(1, socket.MSG_PEEK)
            except OSError:
                first = b""
            if not first:
                connection.close()
            elif first.isalpha():
                await (await self._opened_api(group)).serve(connection)
            elif self._negotiation is None:
                connection.close()
            else:
                await self._converse(self._negotiation, connection, await greeting_of(connection))
        except GreetingError as error:
            logger.warning("a connection was refused: %s", error)
            connection.close()
        except Exception:
            # boundary: a bug of the proxy ends one connection, and its details are for the log
            logger.exception("a connection of the shared proxy has failed")
            connection.close()
        finally:
            self._note(-1)

    async def _opened_api(self, group: TaskGroup) -> LocalApi:
        async with self._api_made:
            if self._api is None:
                self._api = await in_thread(self._make_api)
                group.start_soon(self._api.run)
        return self._api

    async def _converse(
        self, negotiation: Negotiation, connection: socket.socket, greeting: Greeting
    ) -> None:
        started = negotiation.gateway.profiles.started
        channel = await SocketChannel.open(connection, self._limits.message_bytes)
        # By it the hook of a host finds its session.
        channel.greeting = greeting
        if greeting.logs and (problems := self._problems(greeting.presets)):
            await channel.send(msgspec.json.encode({"bridge": {"problems": problems}}))
        conversation = Conversation(
            negotiation=negotiation,
            limits=self._limits,
            channel=channel,
            rights=started(greeting.profile, greeting.presets, greeting.folder),
            has_successor=greeting.logs,
        )
        self._open[conversation] = channel
        try:
            await converse(conversation, channel, self._limits.stalled_seconds)
        finally:
            del self._open[conversation]
            if conversation.leaves_requests:
                channel.tell_taken()
            channel.close()


class Greeting(msgspec.Struct, frozen=True):
    """Facts about itself that a bridge tells ahead of its host's lines."""

    pid: int | None = None
    folder: str | None = None
    session: str | None = None
    profile: str | None = None
    """Profile that the host has chosen by ``serve --profile``."""
    presets: tuple[str, ...] = ()
    """Presets that it has named."""
    logs: bool = False
    """True for a bridge that takes lines for itself: problems for its host's log, and how much was taken."""


class _Greeted(msgspec.Struct, frozen=True):
    bridge: Greeting


TURN_MARK: Final = b'"x-codex-turn-metadata"'
"""Member of the ``_meta`` of a call in which Codex tells its session: the programs that it starts get no
variable with it."""


class _Turn(msgspec.Struct, frozen=True):
    session_id: str


class _Meta(msgspec.Struct, frozen=True):
    turn: _Turn = msgspec.field(name="x-codex-turn-metadata")


class _Params(msgspec.Struct, frozen=True):
    meta: _Meta = msgspec.field(name="_meta")


class _Called(msgspec.Struct, frozen=True):
    params: _Params


GREETING_BYTES: Final = 16_384
"""Longest greeting: a folder has at most 4,096 bytes, which JSON may write as three times as many."""

GREETING_START: Final = b'{"bridge":'
"""Beginning of the line with them. No message of a host begins so."""

GREETING_SECONDS: Final = 5.0
"""Time for a greeting that has begun; a bridge writes it at once."""


class GreetingError(Exception):
    """A greeting that cannot be read: its host may have limits, and is not served without them."""


async def greeting_of(connection: socket.socket) -> Greeting:
    """Return the greeting of a bridge, which it writes ahead of everything; nothing is taken away.

    Raises `GreetingError` if there is one, and it cannot be read.
    """
    with anyio.move_on_after(GREETING_SECONDS):
        while True:
            try:
                said = connection.recv(GREETING_BYTES, socket.MSG_PEEK)
            except OSError:
                said = b""
            line, end, _ = said.partition(b"\n")
            if not line.startswith(GREETING_START[: len(line)]) or (end and len(line) < len(GREETING_START)):
                return Greeting()
            if end:
                try:
                    return msgspec.json.decode(line, type=_Greeted).bridge
                except (msgspec.DecodeError, RecursionError) as error:
                    raise GreetingError(f"its greeting cannot be read ({error})") from None
            if not said or len(said) == GREETING_BYTES:
                break
            await anyio.sleep(ACCEPT_PAUSE_SECONDS / 10)
    raise GreetingError("its greeting is too long, or does not end")


def _host(conversation: Conversation, channel: SocketChannel) -> ConnectedHost:
    told = {}
    if conversation.client_info is not None:
        with suppress(msgspec.DecodeError):
            told = envelope.members(conversation.client_info)
    greeting = channel.greeting
    return ConnectedHost(
        name=one_line(envelope.text(told.get("name")) or "", NAME_CHARACTERS),
        version=one_line(envelope.text(told.get("version")) or "", NAME_CHARACTERS),
        since=channel.since,
        pid=greeting.pid,
        folder=greeting.folder,
        host_session=greeting.session,
        session=conversation.session,
        rights=conversation.rights,
    )


async def _knows(key: bytes, connection: socket.socket) -> bool:
    """Return whether the other side proves that it knows the key, after it has seen that we do."""
    loop = asyncio.get_running_loop()

    async def received(size: int) -> bytes:
        data = b""
        while len(data) < size and (more := await loop.sock_recv(connection, size - len(data))):
            data += more
        return data

    with anyio.move_on_after(CONNECT_SECONDS), suppress(OSError):
        nonce = os.urandom(NONCE_BYTES // 2).hex().encode()
        asked = await received(NONCE_BYTES)
        await loop.sock_sendall(connection, proof(key, b"proxy", asked) + nonce)
        return proves(await received(PROOF_BYTES), key, b"host", nonce)
    return False


def _is_ours(connection: socket.socket) -> bool:
    """Return whether the other side is a process of the same user, or of the system's."""
    if sys.platform != "linux":
        return True  # only this user can enter the folder of the socket
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", said)[1] in (os.geteuid(), 0)


class SocketChannel(HostStream):
    """Reads and writes frames over a connected socket."""

    def __init__(self, message_bytes: int) -> None:
        super().__init__(message_bytes)
        self.greeting = Greeting()
        """The greeting of the bridge."""
        self._is_first = True
        """True until the first line has come."""
        self._taken = 0
        """Bytes that have come before the proxy began to stop."""
        self.since = time_of_day()

    @classmethod
    async def open(cls, connection: socket.socket, message_bytes: int) -> SocketChannel:
        """Take a connection over. Nothing is read before `read`."""
        connection.setblocking(False)
        channel = cls(message_bytes)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: channel, connection)
        return channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._out = cast("asyncio.Transport", transport)
        self.pause_reading()
        self._writer.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._writer.connection_lost(exc)

    def eof_received(self) -> bool:
        """Record that the host sends nothing more; its pending requests are still answered."""
        super().connection_lost(None)
        return True

    def pause_writing(self) -> None:
        self._writer.pause_writing()

    def resume_writing(self) -> None:
        self._writer.resume_writing()

    async def read(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.resume_reading()
        await super().read(conversation)

    def data_received(self, data: bytes) -> None:
        """Pass on the messages that are complete now; bytes that come once the proxy stops do not count."""
        assert self._conversation is not None
        if not self._conversation.leaves_requests:
            self._taken += len(data)
        super().data_received(data)

    def _take_frame(self, frame: bytes | Oversized) -> None:
        is_first, self._is_first = self._is_first, False
        if isinstance(frame, bytes):
            if is_first and frame.startswith(GREETING_START):
                return  # of `greeting`; no later line makes another one of it
            if TURN_MARK in frame:
                with suppress(msgspec.DecodeError, RecursionError):
                    told = msgspec.json.decode(frame, type=_Called).params.meta.turn.session_id
                    self.greeting = msgspec.structs.replace(self.greeting, session=told)
        super()._take_frame(frame)

    def tell_taken(self) -> None:
        """Tell the bridge how much was taken: it gives the requests that came later to the next proxy."""
        self.send_nowait(b'{"bridge":{"taken":%d}}' % self._taken)


async def serve_streams(negotiation: Negotiation, limits: Limits, rights: Principal = THE_USER) -> None:
    """Serve the host at the standard streams, with its rights, until it closes its end."""
    read_fd, write_fd = _taken_over()
    pipes = sys.platform != "win32" and _is_pipe(read_fd) and _is_pipe(write_fd)
    opened = _open_pipes if pipes else _open_copies
    async with opened(read_fd, write_fd, limits) as stream:
        conversation = Conversation(negotiation=negotiation, limits=limits, channel=stream, rights=rights)
        await converse(conversation, stream, limits.stalled_seconds)


def _taken_over() -> tuple[int, int]:
    """Return copies of the standard streams, of which the originals lead to nothing and to stderr."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return read_fd, write_fd


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class StandardPipes(HostStream):
    """Reads and writes frames over the process's standard streams."""

    def __init__(self, source: IO[bytes], limits: Limits) -> None:
        super().__init__(limits.message_bytes)
        self._source, self._most, self._unread = source, limits.unread_bytes, 0
        """The pipe that is read, and the bytes that may wait, and that do wait, for the host."""

    @classmethod
    async def open(cls, read_fd: int, write_fd: int, limits: Limits) -> StandardPipes:
        """Take both pipes over."""
        pipes, loop = cls(os.fdopen(read_fd, "rb", 0), limits), asyncio.get_running_loop()
        pipes._out, _ = await loop.connect_write_pipe(lambda: pipes._writer, os.fdopen(write_fd, "wb", 0))
        return pipes

    async def send(self, frame: bytes) -> None:
        """Write one frame; while too many bytes wait for the host, the servers are not read."""
        if self.sent_at_once(frame):
            return
        self._unread += len(frame)
        if self._unread > self._most:
            gate.close()
        try:
            await super().send(frame)
        finally:
            was_over = self._unread > self._most
            self._unread -= len(frame)
            if was_over and self._unread <= self._most:
                gate.open()

    async def read(self, conversation: Conversation) -> None:
        await asyncio.get_running_loop().connect_read_pipe(lambda: self, self._source)
        await super().read(conversation)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        else:  # also where a stop has come while the loop took the pipe, and has closed it
            self._source.close()
        super().close()


@asynccontextmanager
async def _open_pipes(read_fd: int, write_fd: int, limits: Limits) -> AsyncIterator[HostStream]:
    """Write to one pipe, and read the other from `StandardPipes.read` on."""
    pipes = await StandardPipes.open(read_fd, write_fd, limits)
    try:
        yield pipes
    finally:
        pipes.close()


@asynccontextmanager
async def _open_copies(read_fd: int, write_fd: int, limits: Limits) -> AsyncIterator[HostStream]:
    """Copy both streams in threads, from and to a socket that the event loop can wait for."""
    near, far = socket.socketpair()

    def copy_in() -> None:
        with suppress(OSError):
            while data := os.read(read_fd, READ_BYTES):
                far.sendall(data)
        with suppress(OSError):
            far.shutdown(socket.SHUT_WR)

    def copy_out() -> None:
        with suppress(OSError), far:
            while data := far.recv(READ_BYTES):
                while data:
                    data = data[os.write(write_fd, data) :]

    channel = await SocketChannel.open(near, limits.message_bytes)
    _start(copy_in)
    copying = _start(copy_out)
    try:
        yield channel
    finally:
        channel.close()
        with anyio.CancelScope(shield=True):
            await in_thread(copying.join, COPY_SECONDS)


def _start(copy: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread
