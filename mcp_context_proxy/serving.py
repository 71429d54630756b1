"""The program that serves hosts: its log, its configuration, the first servers, then the proxy itself.

Each session of a host waits for this start, so nothing here imports what parses and prints commands;
`mcp_context_proxy.cli` has the command with all its options. All commands share the beginning and the end,
so the rest is imported when it is needed.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcp_context_proxy.bridge.session import unread
from mcp_context_proxy.errors import ContextProxyError, innermost
from mcp_context_proxy.protocol.strangers import LogFormatter, clean

if TYPE_CHECKING:
    from mcp_context_proxy.config import Config

NUMPY_THREADS: Final = "OPENBLAS_NUM_THREADS"
"""The environment variable that NumPy's library reads when it is loaded. By itself it starts a thread for
each processor, and interrupts a process that it can give none; searches take as long with one."""

LEVELS: Final = ("debug", "info", "warning", "error")
SERVING_LEVEL: Final = "warning"

UNAVAILABLE: Final = -32_000
"""Code of the error that a host gets from a proxy that does not start."""
FIRST_REQUEST_SECONDS: Final = 3.0
"""Time for a host to send its first request. Hosts send it at once."""

EXIT_FAILURE: Final = 1
EXIT_INTERRUPTED: Final = 130
"""As a shell reports a program that Ctrl-C ended."""
EXIT_BROKEN_PIPE: Final = 141
"""As a shell reports a program whose reader has gone, such as ``| head``."""

LOG_SECONDS: Final = 0.05
"""Time for which a message waits for a reader of stderr that is only busy."""

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a file that cannot grow, such as the one that the output goes to."""

ENDINGS: Final = (ContextProxyError, KeyboardInterrupt, BrokenPipeError)
"""Errors that end a program in order; all others are bugs."""


def main(file: str | None, log_level: str, listen_on: str | None) -> int:
    """Serve one host over stdio, or those that meet at a socket; return the exit status."""
    from mcp_context_proxy.system.later import importing

    prepare(log_level, serving=True)
    path = None if file is None else Path(file)
    with importing():
        from mcp_context_proxy.config import load
        from mcp_context_proxy.config.secrets import Redactor, all_secrets_of

    redact: Callable[[str], str] | None = None
    try:
        with telling_the_host(over_stdio=listen_on is None):
            message = begin_if_new(path)
            if message is not None:
                print(message, file=sys.stderr)  # noqa: T201 - stderr is for people
            config = load(path)
        redact = Redactor(all_secrets_of(config))
        serve(config, listen_on=listen_on)
    except ENDINGS as error:
        return ended_by(error, redact)
    return 0


def prepare(log_level: str, *, serving: bool) -> None:
    """Close the process to others, and log to stderr, before anything is started or read."""
    os.environ.setdefault(NUMPY_THREADS, "1")
    from mcp_context_proxy.system.process import close_to_others, ignore_sighup

    close_to_others()
    if serving:
        ignore_sighup()
    # Other commands have a person before them, who reads.
    may_be_unread = serving and sys.platform != "win32"
    handler: logging.Handler = HostLog() if may_be_unread else logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    # Of a failed login, which is reported as a sentence, and of each stray line the SDK logs a traceback.
    for name in ("mcp.client.auth", "mcp.client.stdio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # In detail it logs whole messages, with arguments and results.
    logging.getLogger("mcp").setLevel(logging.INFO)
    if log_level.lower() != "debug":
        # The libraries' own messages explain nothing to a user.
        for name in ("mcp", "httpx2", "httpcore2", "asyncio"):
            logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def telling_the_host(*, over_stdio: bool) -> Iterator[None]:
    """Answer the first request of a host with the fault that keeps a proxy from serving it.

    Most hosts show nothing but "disconnected" where a program ends without an answer.
    """
    try:
        yield
    except Exception as error:
        # A person at a terminal reads stderr.
        if over_stdio and sys.stdin is not None and not sys.stdin.isatty():
            asking = threading.Thread(target=_answer_first_request, args=(clean(str(error)),), daemon=True)
            asking.start()
            asking.join(FIRST_REQUEST_SECONDS)
        raise


def _answer_first_request(fault: str) -> None:
    from mcp_context_proxy.protocol import envelope

    # A descriptor, and no buffer: at its end the interpreter would wait for the lock of a reader.
    data = b""
    while b"\n" not in data and (more := os.read(0, envelope.TAKEN_APART_BYTES)):
        data += more
    with suppress(ValueError, OSError):
        request = envelope.decode_from_client(data.partition(b"\n")[0])
        if isinstance(request.method, str) and isinstance(request.id, int | str):
            text = " ".join(f"the proxy does not start: {fault}".split())
            os.write(1, envelope.error_reply(request.id, UNAVAILABLE, text) + b"\n")


class HostLog(logging.Handler):
    """Writes to stderr while somebody reads it; whoever started the proxy may not, and a full pipe blocks.

    Messages without room are counted, and their number is told when there is room again.
    """

    def __init__(self) -> None:
        """Write to the stderr of each moment."""
        super().__init__()
        self._rest = b""
        """The end of a message that has begun."""
        self._missing = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message, or count it."""
        message = f"{self.format(record)}\n".encode(errors="backslashreplace")
        try:
            descriptor = sys.stderr.fileno()
            patience = 0 if self._rest or self._missing else LOG_SECONDS
            self._rest = unread(descriptor, self._rest, patience)
            if self._rest:
                self._missing += 1
                return
            if self._missing:
                message = b"mcp-context-proxy: %d messages that nobody read are missing here\n%b" % (
                    self._missing,
                    message,
                )
            left = unread(descriptor, message, patience)
            self._missing, self._rest = (self._missing + 1, b"") if left == message else (0, left)
        except (OSError, ValueError, AttributeError):
            return  # it is closed, and `mcp-context-proxy logs` has the message


def begin_if_new(path: Path | None) -> str | None:
    """Write a first configuration where none is named and none is there; return a message about it."""
    from mcp_context_proxy.bridge import CONFIG_VARIABLE
    from mcp_context_proxy.system import begin

    return None if path is not None or os.environ.get(CONFIG_VARIABLE) else begin(os.environ)


def serve(
    config: Config,
    *,
    overrides: Mapping[str, Any] | None = None,
    http: bool = False,
    profile: str | None = None,
    presets: tuple[str, ...] = (),
    listen_on: str | None = None,
) -> None:
    """Serve hosts until the last one has gone or a signal comes; the log has what is wrong with `config`.

    `overrides` changed the configuration, and do so again when its file is read again. Over stdio the host
    has a `profile`, its session begins with `presets`, or hosts meet at a socket (`listen_on`). Raises
    `ServeError` if the address is in use or not available.
    """
    import anyio

    from mcp_context_proxy.config import load
    from mcp_context_proxy.config.programs import start_ahead
    from mcp_context_proxy.system.later import importing

    # The first reading of the file gave its warnings.
    load_again = partial(load, config.path, overrides=overrides or {}, warn=lambda _message: None)
    if sys.stdin.isatty() and listen_on is None:
        # Beside it, a host or a service manager would only have a line more in its log.
        how = "HTTP" if http else "stdio; normally a host starts this command"
        print(f"Serving over {how}. Ctrl-C stops it.", file=sys.stderr)  # noqa: T201 - the same
    if not http:
        start_ahead(config)
    with importing():
        from mcp_context_proxy.app import serve as app

    front = app.http_front if http else partial(app.stdio_front, profile=profile, presets=presets)
    if listen_on is not None:
        front = partial(app.shared_front, listening=listen_on)
    try:
        anyio.run(app.serve, config, front, load_again)
    except BaseExceptionGroup as group:
        raise innermost(group) from None


def ended_by(error: BaseException, redact: Callable[[str], str] | None) -> int:
    """Report one of the `ENDINGS` as a sentence, without a traceback; return the exit status."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, OSError) and not isinstance(error, ContextProxyError):
        # Buffered output goes nowhere: at exit Python would complain that it cannot be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        where = "" if error.filename is None else f" ({error.filename})"
        error = ContextProxyError(f"{error.strerror}{where}: the output, or a file, is not complete")
    text = clean(str(error))
    text = text if redact is None else clean(redact(text))
    print(f"mcp-context-proxy: {text}", file=sys.stderr)  # noqa: T201 - the same
    return EXIT_FAILURE
