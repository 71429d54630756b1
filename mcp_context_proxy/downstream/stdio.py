"""Runs a downstream server as a child process and carries frames over its pipes.

On POSIX the child gets its own process group and a short list of environment variables. Its stdout is framed
and bounded; its stderr is always drained. On the way out the group is ended: end of input, then SIGTERM, then
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
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import IO, cast

import anyio

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.programs import downloads, environment_of, folder_of, spawn, take_started
from mcp_context_proxy.downstream import Channel, QueuedChannel
from mcp_context_proxy.downstream.inbound import Output
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
from mcp_context_proxy.system.process import descriptor_shortage, group_ended, group_installed
from mcp_context_proxy.system.threads import in_thread

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


@asynccontextmanager
async def open_stdio(
    config: ServerConfig, limits: Limits, output: Output, peer: Peer
) -> AsyncIterator[StdioChannel]:
    """Start the server as a child process; end it on the way out.

    Raises:
        StartError: it cannot be started; the message says why, and names a remedy.
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
        self._output_pipe: asyncio.ReadTransport | None = None
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
        self._output_pipe = out
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
        if gate.is_open and self._output_pipe is not None and not self._output_pipe.is_closing():
            self._output_pipe.resume_reading()

    def _give_up_endless(self, unframed: int) -> None:
        if unframed > ENDLESS_MESSAGES * self._message_bytes:
            self.give_up(f"sent {unframed:,} bytes without a line end")

    async def send(self, frame: bytes) -> None:
        """Write one frame; see `Channel.send`."""
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
        """Treat the child as lost."""
        self._given_up = cause
        self._reader.ended.set()

    @property
    def killed(self) -> bool:
        """True when the child was ended by a signal."""
        code = self._process.poll()
        return code is not None and code < 0

    async def until_ended(self) -> None:
        """Wait until the child is gone, or has closed its output or its input."""
        async with anyio.create_task_group() as group:

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

            group.start_soon(until_exited)
            group.start_soon(until_deaf)
            group.start_soon(self._reader.run)
            await self._reader.ended.wait()
            group.cancel_scope.cancel()

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
    """Start the server as a child process of the SDK's transport.

    Raises:
        Exception: any error of the transport, possibly in an exception group.
    """
    from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415 - 0.4 s, nowhere else
    from mcp.shared.message import SessionMessage  # noqa: PLC0415
    from mcp_types import jsonrpc_message_adapter  # noqa: PLC0415

    parameters = StdioServerParameters(
        command=config.command or "",
        args=list(config.args),
        env=environment_of(config, os.environ),
        cwd=folder_of(config),
    )
    channel = QueuedChannel()
    async with stdio_client(parameters) as (reader, writer), anyio.create_task_group() as group:

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

        group.start_soon(read)
        group.start_soon(write)
        try:
            yield channel
        finally:
            group.cancel_scope.cancel()
            channel.close()
