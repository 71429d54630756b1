"""Runs a downstream server as a child process and carries frames over its pipes.

On POSIX the child gets its own process group and a short list of environment variables. Its stdout is framed
and bounded. Its stderr is always drained; the end of it is kept for error messages, and a bounded share of it
is logged. Nothing of it is decoded, cleaned or redacted before it is read, so a flood costs no more than a
copy. On the way out the group is ended: end of input, then SIGTERM, then
SIGKILL, each after a bounded wait. A package runner that has not started its server yet may be installing
it, and gets much longer between the last two: killed halfway, it would leave a package that never works.

On Windows, whose pipes need other means, the SDK's transport is used. It exchanges parsed messages. Payloads
stay plain dicts in them, so nothing inside `params` and `result` is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from typing import IO, TypeAlias, cast

import anyio

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.programs import downloads, launch_of, spawn, take_started
from mcp_context_proxy.config.tables import KIB
from mcp_context_proxy.downstream import Channel, QueuedChannel
from mcp_context_proxy.downstream.jsonrpc import Peer
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.framing import (
    LineFramer,
    MessageReader,
    Oversized,
    PipeReader,
    PipeWriter,
    gate,
)
from mcp_context_proxy.protocol.strangers import clean, one_line, unmarked
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.process import descriptor_shortage, group_ended, group_installed
from mcp_context_proxy.system.threads import alongside, in_thread, load

logger = logging.getLogger(__name__)

EXIT_POLL_SECONDS = 0.02
"""Time between two polls of a child that is expected to exit, where the kernel does not report the exit."""

DEATH_POLL_SECONDS = 0.5
"""The same for a child that should be running: its pipe may outlive it in a grandchild."""

LAST_WORDS_SECONDS = 0.5
"""Time to read the output from before an exit; no longer, as a grandchild may hold the pipe open."""

EXIT_CODE_SECONDS = 0.08
"""Time that an end of output waits for the exit code that explains it; callers wait no longer either."""

EXIT_SECONDS = 0.5
"""Time that an end of input waits for the exit that explains it; a child that reads nothing is given up."""

LOST_SECONDS = 0.5
"""Time for a lost child to exit, and again after SIGTERM: its callers wait for the next one."""

INSTALL_SECONDS = 30.0
"""Time after SIGTERM for a package runner to undo or finish an installation."""

DEAF = "closed its input"

ENDLESS_MESSAGES = 16
"""Size of output without a line end, in largest messages, from which the server is given up."""

PUSHED_BYTES = 1 << 20
"""Bytes sent without waiting while a child does not read: thousands of cancellations."""

FIRST_LOOK_SECONDS = 0.0025
"""Wait before a child is first polled for its exit; it doubles up to the bound of the caller."""

ADVERTISEMENT = b"npm notice"
"""Beginning of the lines with which npm ends, such as that of a newer npm, after its errors."""

LINES_KEPT = 20
"""Lines of stderr that a command may quote."""

QUOTED_LINES = 5
"""Lines of stderr that an error message quotes."""

LINE_CHARACTERS = 300
"""Characters shown of each line, half of its beginning and half of its end: an exception has its name first,
and a log line its reason last."""

STRAYS_KEPT = 5
"""Stray lines that are kept. Banners and stray prints are common, and more than a few tell nothing new."""

STRAY_CHARACTERS = 120
"""Characters shown of the beginning of such a line, which identifies a help text or an error."""

STRAY_BYTES = 16 * KIB
"""Bytes that are decoded of a line of megabytes: enough for a secret to be recognized whole."""

KeepLine: TypeAlias = Callable[[str, str], None]
"""Takes the name of a server and a line of its stderr, without secrets."""


class Output:
    """Stderr and stray lines of one server, without secrets and without terminal control sequences."""

    def __init__(
        self,
        *,
        server: str,
        limits: Limits,
        redact: Callable[[str], str] = str,
        clock: Callable[[], float] = time.monotonic,
        keep_line: KeepLine | None = None,
    ) -> None:
        """Start empty; `redact` removes secrets, and `keep_line` takes each line that may be logged."""
        self._keep_line = keep_line
        self._server, self._limits, self._redact, self._clock = server, limits, redact, clock
        self.strays: list[str] = []
        """The first lines on stdout that are no messages, oldest first; a repeated line is kept once."""
        self.address = ""
        """URL or port at which the program says that it serves HTTP; empty if it says none."""
        self.on_address: Callable[[], None] | None = None
        """Called once, when it says so; None where nobody wants to know, as of a program that is ready."""
        self._kept = bytearray()
        self._second, self._logged, self._skipped = 0, 0, 0
        self._unlogged = bytearray()

    def begin(self) -> None:
        """Forget the stderr of the program before: it would be taken for that of the next one."""
        self._kept.clear()
        self.address, self.on_address = "", None

    def feed_stderr(self, data: bytes) -> None:
        limit = self._limits.stderr_kept_bytes
        self._kept += data
        if self.on_address is not None and (found := _served_at(self._kept, len(data))):
            self.address = self._readable(found)
            self.on_address()
            self.on_address = None
        # Twice the bound before anything is moved: each byte is then moved once at most.
        if len(self._kept) > 2 * limit:
            del self._kept[:-limit]
        if self._keep_line is not None or logger.isEnabledFor(logging.DEBUG):
            self._unlogged += data
            *lines, self._unlogged = self._unlogged.split(b"\n")
            del self._unlogged[:-limit]
            for line in lines:
                if self._may_log() and (text := self._readable(bytes(line))):
                    self._log(text)

    def _log(self, text: str) -> None:
        logger.debug("%s: %s", self._server, text)
        if self._keep_line is not None:
            self._keep_line(self._server, text)

    def _may_log(self) -> bool:
        """Return whether one more line may be logged in this second; the rest is counted."""
        second = int(self._clock())
        if second != self._second:
            if self._skipped:
                self._log(f"{self._skipped} more lines were not logged")
            self._second, self._logged, self._skipped = second, 0, 0
        if self._logged >= self._limits.stderr_lines_per_second:
            self._skipped += 1
            return False
        self._logged += 1
        return True

    def stderr_lines(self) -> tuple[str, ...]:
        """Return the last lines of stderr, oldest first, including one without a line end."""
        limit = self._limits.stderr_kept_bytes
        lines = bytes(self._kept[-limit:]).split(b"\n")
        if len(self._kept) > limit and len(lines) > 1:
            del lines[0]
        # From the end, so that no more lines are made readable than are shown.
        telling = (line for line in reversed(lines) if not line.startswith(ADVERTISEMENT))
        shown = filter(None, map(self._readable, telling))
        return tuple(islice(shown, LINES_KEPT))[::-1]

    def _readable(self, line: bytes) -> str:
        text = one_line(self._redact(clean(line.decode("utf-8", "replace"))))
        if len(text) > LINE_CHARACTERS:
            half = LINE_CHARACTERS // 2
            text = f"{text[:half].rstrip()} ... {text[-half:].lstrip()}"
        return unmarked(text.strip())

    def add_stray(self, line: bytes) -> None:
        """Keep a line that is no message if it is among the first."""
        if len(self.strays) >= STRAYS_KEPT:
            return
        shown = one_line(self._redact(clean(line[:STRAY_BYTES].decode("utf-8", "replace"))))
        shown = unmarked(shown[:STRAY_CHARACTERS])
        if shown and shown not in self.strays:
            self.strays.append(shown)
            logger.warning("%s: skipped a line that is not a message: %r", self._server, shown)


_SERVES_HTTP = pattern(
    rb"(?i)^(?!.*(?:auth|callback|dashboard|inspector|log-?in|metrics)).*"
    rb"\b(?:listening|running|serving|started|available|server)\b.{0,120}?"
    rb"(https?://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1?\])(?::\d+)?(?:/[\w./-]*)?"
    rb"|(?<=listening on )port \d{2,5}(?=\D))"
)
"""A line on stderr in which a program says where it serves HTTP; not one about a login or its pages."""
_URL_OR_PORT = pattern(rb"://|(?i: on port )")

URL_LINES, URL_LINE_BYTES = 50, 300
"""Lines with a URL or a port of one piece of output that are looked at, and bytes of one on either side of
it: the time that it takes grows with nothing else that a program writes."""


def _served_at(kept: bytearray, fresh: int) -> bytes:
    """Return where the last bytes of some output say that HTTP is served; empty if they do not."""
    at = max(len(kept) - fresh - len(b" on port 65535"), 0)
    for _ in range(URL_LINES):
        if (mark := _URL_OR_PORT.search(kept, at)) is None:
            break
        at = mark.start()
        begin = max(kept.rfind(b"\n", 0, at) + 1, at - URL_LINE_BYTES)
        end = kept.find(b"\n", at, at + URL_LINE_BYTES)
        end = end if end >= 0 else min(len(kept), at + URL_LINE_BYTES)
        if (found := _SERVES_HTTP.search(kept[begin : end + 1])) is not None:
            return bytes(found[1])
        at = end
    return b""


@asynccontextmanager
async def open_stdio(
    config: ServerConfig, limits: Limits, output: Output, peer: Peer
) -> AsyncIterator[StdioChannel]:
    """Start the server as a child process; end it on the way out.

    Raises `StartError`, which says why and names a remedy, if it cannot be started.
    """
    process = take_started(config)
    if process is None:
        process = await in_thread(spawn, config)
    channel = StdioChannel(
        process=process,
        output=output,
        peer=peer,
        message_bytes=limits.message_bytes,
        may_install=downloads(config),
    )
    try:
        await channel.connect()
        yield channel
    finally:
        with anyio.CancelScope(shield=True):
            await channel.aclose(limits.stop_seconds)


class StdioChannel(Channel):
    """The pipes of a running child process."""

    def __init__(
        self,
        *,
        process: subprocess.Popen[bytes],
        output: Output,
        peer: Peer,
        message_bytes: int,
        may_install: bool = False,
    ) -> None:
        """Take the pipes of a process; it `may_install` a package until it sends a first message."""
        self._process, self._output, self._peer = process, output, peer
        self.process_group = process.pid
        self._pipes = [cast("IO[bytes]", pipe) for pipe in (process.stdin, process.stdout, process.stderr)]
        self._message_bytes = message_bytes
        self._framer = LineFramer(message_bytes)
        self._reader = MessageReader(
            framer=self._framer,
            receive=self._receive_first if may_install else peer.receive,
            receive_large=peer.receive_large,
            resume=self._read_on,
            endless=self._give_up_endless,
        )
        self._writer = PipeWriter()
        self._stdin: asyncio.WriteTransport | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._pushed = 0
        """Bytes sent without waiting since the child last read."""
        self._given_up = ""
        self._may_install = may_install
        self._over = anyio.Event()

    async def connect(self) -> None:
        """Attach the pipes to the event loop; frames are passed to `receive` from now on."""
        loop = asyncio.get_running_loop()
        stdin, stdout, stderr = self._pipes
        out, _ = await loop.connect_read_pipe(lambda: self._reader, stdout)
        self._transports.append(out)
        gate.pass_through(out)
        err, _ = await loop.connect_read_pipe(lambda: PipeReader(self._output.feed_stderr), stderr)
        self._transports.append(err)
        self._stdin, _ = await loop.connect_write_pipe(lambda: self._writer, stdin)
        self._transports.append(self._stdin)

    def _receive_first(self, frame: bytes | Oversized) -> None:
        if isinstance(frame, bytes) and frame.startswith(b"{"):
            # The server itself speaks.
            self._may_install, self._reader.receive = False, self._peer.receive
            group_installed(self._process.pid)
        self._peer.receive(frame)

    def _read_on(self) -> None:
        # While the gate is closed, it has paused the pipe as well, and resumes it.
        if gate.is_open:
            self._reader.resume_reading()

    def _give_up_endless(self, unframed: int) -> None:
        if unframed > ENDLESS_MESSAGES * self._message_bytes:
            self.give_up(f"sent {unframed:,} bytes without a line end")

    async def send(self, frame: bytes) -> None:
        if not self._writer.writable.is_set():
            await self._writer.writable.wait()
        if not self._wrote(frame):
            # A closed input is the first sign of an exit; the exit code comes a moment later.
            await self._over.wait()
            raise ConnectionError(self.describe_exit())

    def sent_at_once(self, frame: bytes) -> bool:
        """Write one frame if the pipe has room and the child is there; return whether it was written."""
        return self._writer.writable.is_set() and self._wrote(frame)

    def send_nowait(self, frame: bytes) -> None:
        """Write one frame, buffered when the pipe is full; dropped when too much is buffered."""
        self._pushed = 0 if self._writer.writable.is_set() else self._pushed + len(frame)
        if self._pushed <= PUSHED_BYTES and not self._wrote(frame):
            raise ConnectionError(self.describe_exit())

    def _wrote(self, frame: bytes) -> bool:
        """Write one frame; return whether the child is there to read it, and to answer."""
        pipe = self._stdin
        if pipe is None or pipe.is_closing() or self._reader.ended.is_set():
            return False
        self._writer.write_line(frame)
        # Closed by the write: the pipe refused the first byte. A frame that is taken in part is buffered.
        return not pipe.is_closing()

    def give_up(self, cause: str) -> None:
        self._given_up = cause
        self._reader.ended.set()

    @property
    def killed(self) -> bool:
        code = self._process.poll()
        return code is not None and code < 0

    async def until_ended(self) -> None:
        """Wait until the child is gone, or has closed its output or its input."""

        async def until_exited() -> None:
            await exited(self._process, DEATH_POLL_SECONDS)
            # While the gate is closed, the output of the child is not read either.
            await gate.wait()
            with anyio.move_on_after(LAST_WORDS_SECONDS):
                await self._reader.ended.wait()
            self._reader.ended.set()

        async def until_deaf() -> None:
            await self._writer.closed.wait()
            await anyio.sleep(EXIT_SECONDS)
            if self._process.poll() is None:
                self.give_up(DEAF)

        async with alongside(until_exited, until_deaf, self._reader.run):
            await self._reader.ended.wait()

    async def wait_closed(self) -> str:
        """Wait until the child is gone, or has closed its output or its input; return which."""
        await self.until_ended()
        with anyio.move_on_after(EXIT_CODE_SECONDS):
            await exited(self._process, EXIT_POLL_SECONDS)
        if self._writer.closed.is_set() and not self._given_up:
            # Both pipes are closed, as by an exit, which a busy machine may report later.
            with anyio.move_on_after(EXIT_SECONDS):
                await exited(self._process, EXIT_POLL_SECONDS)
        self._over.set()
        if not self._framer.unended.startswith(b"{"):
            self._output.add_stray(self._framer.unended)
        return self.describe_exit()

    def describe_exit(self) -> str:
        """Return how the child ended, as the verb of a sentence."""
        code = self._process.poll()
        if code is None:
            return self._given_up or "closed its output"
        if code >= 0:
            return f"exited (code {code})"
        hint = ", possibly out of memory" if -code == signal.SIGKILL else ""
        return f"was killed by signal {-code}{hint}"

    async def aclose(self, grace_seconds: float) -> None:
        """End the child and its process group: end of input, SIGTERM, SIGKILL, each after `grace_seconds`.

        SIGKILL comes after `INSTALL_SECONDS` where a package may be half installed.
        """
        self._over.set()
        if self._reader.ended.is_set():
            grace_seconds = min(grace_seconds, LOST_SECONDS)
        if self._stdin is not None and not self._stdin.is_closing():
            # At once, whatever is unwritten: the child need not read it any more. Not if the child has closed
            # the pipe: asyncio would report the end twice, and fail over the second.
            self._stdin.abort()
        with anyio.move_on_after(grace_seconds):
            await exited(self._process, EXIT_POLL_SECONDS)
        if self._process.poll() is None or self._may_install:
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(INSTALL_SECONDS if self._may_install else grace_seconds):
                await exited(self._process, EXIT_POLL_SECONDS)
                # The runner may have gone before something that it started.
                while self._may_install and self._signal(0):  # noqa: ASYNC110 - other processes
                    await anyio.sleep(EXIT_POLL_SECONDS)
        # Also when the child has gone: processes that it left behind in its group would live on.
        self._signal(signal.SIGKILL)
        group_ended(self._process.pid)
        await exited(self._process, EXIT_POLL_SECONDS)
        for transport in self._transports:
            transport.close()
        # A client that was cancelled while connecting has not given all of them to the loop.
        for pipe in self._pipes:
            pipe.close()

    def _signal(self, number: int) -> bool:
        """Send a signal to the group of the child; return whether anything of it is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
            return True
        return False


async def exited(process: subprocess.Popen[bytes], poll_seconds: float) -> None:
    """Wait until a child has exited: reported by the kernel where that is possible, else by polling.

    Polling hundreds of idle children twice a second would take percents of a core. `poll_seconds` is the
    longest time between two polls.
    """
    if process.poll() is not None:
        return
    descriptor = None
    if sys.platform == "linux" and not descriptor_shortage():
        with contextlib.suppress(OSError):
            # It becomes readable when the child exits.
            descriptor = os.pidfd_open(process.pid)
    if descriptor is None:
        delay = FIRST_LOOK_SECONDS
        while process.poll() is None:
            await anyio.sleep(delay)
            delay = min(2 * delay, poll_seconds)
        return
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    process.wait()


@asynccontextmanager
async def open_sdk_channel(
    config: ServerConfig, receive: Callable[[bytes], None]
) -> AsyncIterator[QueuedChannel]:
    """Start the server as a child process of the SDK's transport, which raises any error, also in a group."""
    await load("mcp.client.stdio")
    from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415 - 1 s, nowhere else
    from mcp.shared.message import SessionMessage  # noqa: PLC0415
    from mcp_types import jsonrpc_message_adapter  # noqa: PLC0415

    program, folder, environment = await in_thread(launch_of, config)
    parameters = StdioServerParameters(command=program, args=list(config.args), env=environment, cwd=folder)
    channel = QueuedChannel()
    async with stdio_client(parameters) as (reader, writer):

        async def read() -> None:
            try:
                async for item in reader:
                    if isinstance(item, Exception):
                        logger.debug("transport: %s", item)
                    else:
                        message = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
                        receive(envelope.encode(message))
            finally:
                channel.give_up("closed the connection")

        async def write() -> None:
            async for frame in channel.frames:
                message = jsonrpc_message_adapter.validate_python(envelope.value(frame), by_name=False)
                await writer.send(SessionMessage(message))

        try:
            async with alongside(read, write):
                yield channel
        finally:
            channel.close()
