"""Runs a downstream server as a child process and carries frames over its pipes (POSIX).

The child gets its own process group and a short list of environment variables; its stdout is framed and
bounded; its stderr is always drained and its end kept for diagnosis. On the way out the group is ended:
end of input, then SIGTERM, then SIGKILL, each after a bounded wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import IO, cast

import anyio
import anyio.to_thread

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.wire.framing import LineFramer, Oversized
from mcp_context_proxy.wire.pipes import FlowControl, PipeReader

logger = logging.getLogger(__name__)

INHERITED_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""All that a child inherits; anything else it needs is named in its ``env``. The SDK's list."""

STDERR_LINES = 20
"""Lines of a server's stderr that an error message may quote."""

EXIT_POLL_SECONDS = 0.02
"""How often an exit is looked for once it is expected."""

DEATH_POLL_SECONDS = 0.5
"""How often a child is checked that should be running: its pipe may outlive it in a grandchild."""

EXIT_CODE_SECONDS = 0.08
"""How long an end of output waits for the exit code that explains it; callers wait no longer either."""

Receive = Callable[[bytes | Oversized], None]


class StderrTail:
    """The last lines a server wrote to stderr, bounded in bytes and lines."""

    def __init__(self, server: str, limits: Limits, redact: Callable[[str], str] = str) -> None:
        self._server, self._limit, self._redact = server, limits.stderr_kept_bytes, redact
        self._lines: deque[str] = deque(maxlen=STDERR_LINES)
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        *lines, self._partial = (self._partial + data[-self._limit :]).split(b"\n")
        self._partial = self._partial[-self._limit :]
        for line in lines[-STDERR_LINES:]:
            self._add(line)

    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first, including one that is not ended yet."""
        partial = self._redact(_printable(self._partial))
        return (*self._lines, partial) if partial else tuple(self._lines)

    def _add(self, line: bytes) -> None:
        if text := self._redact(_printable(line)):
            self._lines.append(text)
            logger.debug("%s: %s", self._server, text)


def _printable(line: bytes, width: int = 300) -> str:
    text = line[-4 * width :].decode("utf-8", "replace").strip()
    return "".join(char if char.isprintable() else " " for char in text)[-width:]


def child_environment(config: ServerConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child: the inherited few, then what its configuration names."""
    inherited = {name: environ[name] for name in INHERITED_VARIABLES if name in environ}
    return {**inherited, **config.env}


class StdioChannel:
    """The pipes of a running child. Implements `Channel`."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: StderrTail) -> None:
        self._process = process
        self.stderr = stderr
        self._writer = FlowControl()
        self._reader: PipeReader | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._transports: list[asyncio.BaseTransport] = []

    async def connect(self, receive: Receive, message_bytes: int) -> None:
        """Attach the pipes to the event loop; frames go to `receive` from now on."""
        loop = asyncio.get_running_loop()
        framer = LineFramer(message_bytes)

        def feed(data: bytes) -> None:
            for frame in framer.feed(data):
                receive(frame)

        process = self._process
        stdin, stdout, stderr = (
            cast("IO[bytes]", pipe) for pipe in (process.stdin, process.stdout, process.stderr)
        )
        out, self._reader = await loop.connect_read_pipe(lambda: PipeReader(feed), stdout)
        err, _ = await loop.connect_read_pipe(lambda: PipeReader(self.stderr.feed), stderr)
        into, _ = await loop.connect_write_pipe(lambda: self._writer, stdin)
        self._stdin = into
        self._transports += [out, err, into]

    async def send(self, frame: bytes) -> None:
        """Write one frame; waits while the child does not read.

        Raises:
            ConnectionError: the child has closed its input.
        """
        if not self._writer.writable.is_set():
            await self._writer.writable.wait()
        self.send_nowait(frame)

    def send_nowait(self, frame: bytes) -> None:
        """Write one frame, buffering it when the pipe is full.

        Raises:
            ConnectionError: the child has closed its input.
        """
        if self._stdin is None or self._writer.closed or self._stdin.is_closing():
            raise ConnectionError("closed its input")
        self._stdin.write(frame + b"\n")

    async def wait_closed(self) -> str:
        """Wait until the child is gone or has closed its output; say which, for a person."""
        reader = cast("PipeReader", self._reader)
        while not reader.ended.is_set() and self._process.poll() is None:
            with anyio.move_on_after(DEATH_POLL_SECONDS):
                await reader.ended.wait()
        with anyio.move_on_after(EXIT_CODE_SECONDS):
            await self._exited()
        return self.describe_exit()

    def describe_exit(self) -> str:
        """How the child ended, as the verb of a sentence."""
        code = self._process.poll()
        if code is None:
            return "closed its output"
        if code >= 0:
            return f"exited (code {code})"
        hint = ", possibly out of memory" if -code == signal.SIGKILL else ""
        return f"was killed by signal {-code}{hint}"

    async def aclose(self, grace_seconds: float) -> None:
        """End the child and its process group: end of input, SIGTERM, SIGKILL, each after `grace_seconds`."""
        if self._stdin is not None and not self._writer.closed:
            # At once, whatever is still unwritten: what the child has not read by now it need not read.
            self._stdin.abort()
        with anyio.move_on_after(grace_seconds):
            await self._exited()
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(grace_seconds):
                await self._exited()
        # Also when the child has gone: whoever it left behind in its group would live on.
        self._signal(signal.SIGKILL)
        await self._exited()
        for transport in self._transports:
            transport.close()

    async def _exited(self) -> None:
        delay = EXIT_POLL_SECONDS / 8
        while self._process.poll() is None:
            await anyio.sleep(delay)
            delay = min(delay * 2, EXIT_POLL_SECONDS)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@asynccontextmanager
async def open_stdio(
    config: ServerConfig, limits: Limits, stderr: StderrTail, receive: Receive
) -> AsyncIterator[StdioChannel]:
    """Start the server as a child process; end it on the way out.

    Raises:
        ConnectionError: it cannot be started; the message says why and what to do.
    """
    process = await anyio.to_thread.run_sync(_spawn, config)
    channel = StdioChannel(process, stderr)
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
    try:
        return subprocess.Popen(
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
