"""Runs a downstream server as a child process and carries frames over its pipes (POSIX).

The child gets its own process group and a short list of environment variables. Its stdout is framed and
bounded; its stderr is always drained. On the way out the group is ended: end of input, then SIGTERM, then
SIGKILL, each after a bounded wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import IO, TypeAlias, cast

import anyio

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream.backpressure import gate
from mcp_context_proxy.downstream.output import Output
from mcp_context_proxy.protocol.framing import FlowControl, LineFramer, Oversized, PipeReader, write_line
from mcp_context_proxy.system import process_groups
from mcp_context_proxy.system.process import descriptor_shortage
from mcp_context_proxy.system.threads import in_thread

INHERITED_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""Variables that a child inherits, the SDK's list; others are named in its ``env``."""

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

DEAF = "closed its input"

ENDLESS_MESSAGES = 16
"""Size of output without a line end, in largest messages, from which the server is given up."""

PUSHED_BYTES = 1 << 20
"""Bytes sent without waiting while a child does not read: thousands of cancellations."""

FIRST_LOOK_SECONDS = 0.0025
"""Wait before a child is first polled for its exit; it doubles up to the bound of the caller."""

Receive: TypeAlias = Callable[[bytes | Oversized], None]


@asynccontextmanager
async def open_stdio(
    config: ServerConfig, limits: Limits, output: Output, receive: Receive
) -> AsyncIterator[StdioChannel]:
    """Start the server as a child process; end it on the way out.

    Raises:
        ConnectionError: it cannot be started; the message says why and what to do.
    """
    process = await in_thread(_spawn, config)
    channel = StdioChannel(process, output)
    try:
        await channel.connect(receive, limits.message_bytes)
        yield channel
    finally:
        with anyio.CancelScope(shield=True):
            await channel.aclose(limits.stop_seconds)


def _spawn(config: ServerConfig) -> subprocess.Popen[bytes]:
    environment = child_environment(config)
    command = config.command or ""
    program = shutil.which(command, path=environment.get("PATH"))
    if program is None:
        raise ConnectionError(
            f"cannot start: no program {command!r} on its PATH; install it or give its full path as 'command'"
        )
    if refusal := descriptor_shortage():
        raise ConnectionError(f"cannot start {program}: {refusal}")
    process_groups.guard()
    try:
        process = subprocess.Popen(
            [program, *config.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=config.cwd,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        raise ConnectionError(f"cannot start {program}: {error.strerror or error}") from error
    process_groups.started(process.pid)
    return process


def child_environment(config: ServerConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a child: the few inherited variables, then those of its configuration."""
    inherited = {name: environ[name] for name in INHERITED_VARIABLES if name in environ}
    return {**inherited, **config.env}


class StdioChannel:
    """The pipes of a running child process. Implements `Channel`."""

    def __init__(self, process: subprocess.Popen[bytes], output: Output) -> None:
        self._process = process
        self._output = output
        self._writer = FlowControl()
        self._reader: PipeReader | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._unframed = 0
        """Bytes since the last complete line."""
        self._pushed = 0
        """Bytes sent without waiting since the child last read."""
        self._given_up = ""
        self._over = anyio.Event()
        """Set when the end of the child is known."""
        self.version: str | None = None
        self._framer: LineFramer | None = None

    async def connect(self, receive: Receive, message_bytes: int) -> None:
        """Attach the pipes to the event loop; frames are passed to `receive` from now on."""
        loop = asyncio.get_running_loop()
        framer = self._framer = LineFramer(message_bytes)

        def feed(data: bytes) -> None:
            self._unframed += len(data)
            for frame in framer.feed(data):
                self._unframed = 0
                receive(frame)
            if self._unframed > ENDLESS_MESSAGES * message_bytes:
                self.give_up(f"sent {self._unframed:,} bytes without a line end")

        process = self._process
        stdin, stdout, stderr = (
            cast("IO[bytes]", pipe) for pipe in (process.stdin, process.stdout, process.stderr)
        )
        reader = self._reader = PipeReader(feed)
        out, _ = await loop.connect_read_pipe(lambda: reader, stdout)
        self._transports.append(out)
        gate.pass_through(out)
        err, _ = await loop.connect_read_pipe(lambda: PipeReader(self._output.stderr.feed), stderr)
        self._transports.append(err)
        into, _ = await loop.connect_write_pipe(lambda: self._writer, stdin)
        self._transports.append(into)
        self._stdin = into

    async def send(self, frame: bytes) -> None:
        """Write one frame; waits while the child does not read.

        Raises:
            ConnectionError: the child has exited or closed its input, and nothing of the frame was sent.
        """
        if not self._writer.writable.is_set():
            await self._writer.writable.wait()
        try:
            self._write(frame)
        except ConnectionError:
            # A closed input is the first sign of an exit; the exit code comes a moment later.
            await self._over.wait()
            raise ConnectionError(self.describe_exit()) from None

    def send_nowait(self, frame: bytes) -> None:
        """Write one frame, buffered when the pipe is full; dropped when too much is buffered.

        Raises:
            ConnectionError: the child has closed its input.
        """
        self._pushed = 0 if self._writer.writable.is_set() else self._pushed + len(frame)
        if self._pushed <= PUSHED_BYTES:
            self._write(frame)

    @property
    def _useless(self) -> bool:
        """True when the child cannot read, or cannot answer."""
        reader = cast("PipeReader", self._reader)
        return self._stdin is None or self._stdin.is_closing() or reader.ended.is_set()

    def _write(self, frame: bytes) -> None:
        if not self._useless:
            write_line(cast("asyncio.WriteTransport", self._stdin), frame)
        # If only since the write: the pipe refused the first byte. A frame that is taken in part is buffered.
        if self._useless:
            raise ConnectionError(self.describe_exit())

    def give_up(self, cause: str) -> None:
        """Treat the child as lost."""
        self._given_up = cause
        cast("PipeReader", self._reader).ended.set()

    @property
    def killed(self) -> bool:
        """True when the child was ended by a signal."""
        code = self._process.poll()
        return code is not None and code < 0

    async def until_ended(self) -> None:
        """Wait until the child is gone, or has closed its output or its input."""
        reader = cast("PipeReader", self._reader)
        async with anyio.create_task_group() as group:

            async def until_exited() -> None:
                await exited(self._process, DEATH_POLL_SECONDS)
                # While the gate is closed, the output of the child is not read either.
                await gate.wait()
                with anyio.move_on_after(LAST_WORDS_SECONDS):
                    await reader.ended.wait()
                reader.ended.set()

            async def until_deaf() -> None:
                await self._writer.closed.wait()
                await anyio.sleep(EXIT_SECONDS)
                if self._process.poll() is None:
                    self.give_up(DEAF)

            group.start_soon(until_exited)
            group.start_soon(until_deaf)
            await reader.ended.wait()
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
        if not (unended := cast("LineFramer", self._framer).unended).startswith(b"{"):
            self._output.strays.add(unended)
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
        """End the child and its process group: end of input, SIGTERM, SIGKILL, each after `grace_seconds`."""
        self._over.set()
        if self._reader is not None and self._reader.ended.is_set():
            grace_seconds = min(grace_seconds, LOST_SECONDS)
        if self._stdin is not None and not self._stdin.is_closing():
            # At once, whatever is unwritten: the child need not read it any more. Not if the child has closed
            # the pipe: asyncio would report the end twice, and fail over the second.
            self._stdin.abort()
        with anyio.move_on_after(grace_seconds):
            await exited(self._process, EXIT_POLL_SECONDS)
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(grace_seconds):
                await exited(self._process, EXIT_POLL_SECONDS)
        # Also when the child has gone: processes that it left behind in its group would live on.
        self._signal(signal.SIGKILL)
        process_groups.ended(self._process.pid)
        await exited(self._process, EXIT_POLL_SECONDS)
        for transport in self._transports:
            transport.close()
        # A client that was cancelled while connecting has not given all of them to the loop.
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            cast("IO[bytes]", pipe).close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def exited(process: subprocess.Popen[bytes], look_seconds: float) -> None:
    """Wait until a child has exited: reported by the kernel where that is possible, else by polling.

    Polling hundreds of idle children twice a second would take percents of a core.

    Args:
        process: The child.
        look_seconds: Longest time between two polls.
    """
    if process.poll() is not None:
        return
    descriptor = _descriptor(process.pid)
    if descriptor is None:
        delay = FIRST_LOOK_SECONDS
        while process.poll() is None:
            await anyio.sleep(delay)
            delay = min(2 * delay, look_seconds)
        return
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    process.wait()


def _descriptor(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the child exits; None if there cannot be one."""
    if sys.platform != "linux" or descriptor_shortage():
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
