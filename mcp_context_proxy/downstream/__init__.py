"""Connections to the servers behind the proxy: each owned by one task, each failure contained there.

Here are the interfaces of a connection. A link sends requests and returns their raw results. It does not
list, retry, reconnect or interpret. A channel carries frames over one transport; a `Peer` matches the frames
that come back with the requests. And here are the words for a connection that fails: the kind of failure, its
cause, and a remedy, where the output of a program shows one.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import anyio
import msgspec
from msgspec import Raw

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.programs import environment_of
from mcp_context_proxy.errors import (
    NAMED,
    AuthorizationError,
    BadAnswerError,
    CallInterruptedError,
    CallTimeoutError,
    DisconnectedError,
    Fault,
    RemoteError,
    ServerUnavailableError,
    StartError,
    innermost,
    some_of,
)
from mcp_context_proxy.protocol.envelope import NO_PARAMS, Members
from mcp_context_proxy.protocol.eras import Era, Sender
from mcp_context_proxy.system.later import pattern

logger = logging.getLogger(__name__)

Notify: TypeAlias = Callable[[str, Members], None]
"""Takes a notification's method and params. Must not block."""

Ask: TypeAlias = Callable[[str, Members], Awaitable[bytes]]
"""Answers a request that a server makes of the client: method and params in, encoded result out.

Raises `RequestError` if the client refuses, or cannot be asked."""

HeaderMap: TypeAlias = Mapping[tuple[str, ...], str]
"""Header for each argument (by path) that is repeated in one, from ``x-mcp-header`` in a tool's schema."""

QUEUE_FRAMES = 64
"""Frames that a queued channel holds before senders wait."""


class Party(msgspec.Struct, frozen=True, eq=False):
    """The side that requests are made for: one handshake-era session, or one request of the modern era.

    Requests belong together if their party is the same object.
    """

    principal: str | None = None
    """The authenticated user, as far as the front knows. State kept for one principal is never used for
    another."""
    lasting: bool = False
    """True for a session, which can have a connection of its own for as long as it lasts."""
    sees_all: bool = False
    """True if the user may see the calls of others."""


def allowed() -> None:
    """Judge a request that may be sent whatever has changed."""


@dataclass(eq=False)
class Outgoing(Sender):
    """Everything that goes with one request beside its method and params."""

    subject: str = ""
    """Name of the request in error messages, such as ``tool 'create_issue'``."""
    timeout: float | None = None
    """Seconds after which it is given up, restarted by progress; None for the connection's default."""
    # Of the class, because one is made for every call.
    capabilities: Raw | None = None
    client_info: Raw | None = None
    on_notification: Notify | None = None
    """Takes progress and log notifications that belong to this request."""
    wants_progress = False
    party: Party | None = None
    """The party that the request is made for; None for requests of the proxy itself."""
    ask: Ask | None = None
    """Answers requests that the server makes of the client meanwhile; None if the client cannot be asked."""
    on_counted: Callable[[], None] | None = None
    """Called once the request counts as pending, of which there is a bounded number."""
    judge: Callable[[], None] = allowed
    """Called before the request is sent over a connection that was opened meanwhile; raises if it may not be
    sent any more."""
    link: Link | None = None
    """The connection that is kept for it and those that belong to it; None if it goes over any."""
    lacked: str | None = None
    """Capability that its client lacks, for want of which the server was answered with an error meanwhile."""


PLAIN = Outgoing()


class Link(Protocol):
    """An open connection to one downstream server."""

    server: str
    era: Era
    header_maps: dict[str, HeaderMap] | None
    """By tool name, filled by whoever lists the tools. None for a transport that repeats no arguments in
    headers."""

    @property
    def in_flight(self) -> Sequence[Outgoing]:
        """Pending requests that a notification or request of the server may be about, oldest first.

        Empty where each request has a response stream of its own, which leaves no doubt.
        """
        ...

    def earlier_callers(self, seconds: float) -> Sequence[str | None]:
        """Return the principals of requests that ended at most so many seconds ago; see `in_flight`."""
        ...

    async def request(self, method: str, params: Members = NO_PARAMS, outgoing: Outgoing = PLAIN) -> bytes:
        """Send a request and return its encoded result unchanged.

        Cancelling the caller tells the server to cancel. Raises `RemoteError` if the server answered with an
        error, `CallTimeoutError` if no response in time, `CallInterruptedError` if the connection was lost
        meanwhile, and `ServerUnavailableError` if it could not be sent.
        """
        ...

    async def notify(self, method: str, params: Members = NO_PARAMS) -> None:
        """Send a notification; it is dropped when the connection is lost."""
        ...


class Channel(ABC):
    """Carries frames to the other side, until it ends; this part is for one that has no process behind it."""

    version: str | None = None
    """The negotiated protocol revision, once it is known; some transports name it in headers."""
    process_group: int | None = None
    """The process group of the server; None where this proxy did not start one."""
    _ended: anyio.Event
    _cause = "closed the connection"

    @abstractmethod
    async def send(self, frame: bytes) -> None:
        """Send one frame; waits while the other side does not read.

        Raises `ConnectionError` if the channel is closed, and nothing of the frame was sent.
        """

    @abstractmethod
    def send_nowait(self, frame: bytes) -> None:
        """Send one frame without waiting; it may be dropped when the other side does not read.

        Raises `ConnectionError` if the channel is closed.
        """

    def sent_at_once(self, frame: bytes) -> bool:
        """Send one frame if nothing has to be waited for; return whether it was sent."""
        del frame
        return False

    def give_up(self, cause: str) -> None:
        """Treat the channel as lost; the first cause counts."""
        if not self._ended.is_set():
            self._cause = cause
        self._end()

    @property
    def killed(self) -> bool:
        """True if the other side was ended from outside."""
        return False

    async def until_ended(self) -> None:
        await self._ended.wait()

    async def wait_closed(self) -> str:
        """Wait until the channel has ended; return how, as the verb of a sentence."""
        await self.until_ended()
        return self._cause

    def _end(self) -> None:
        self._ended.set()


class QueuedChannel(Channel):
    """A channel whose frames wait in a queue for the task that sends them."""

    def __init__(self) -> None:
        self._ended = anyio.Event()
        self._queue, self.frames = anyio.create_memory_object_stream[bytes](QUEUE_FRAMES)

    async def send(self, frame: bytes) -> None:
        if self._ended.is_set():
            raise ConnectionError(self._cause)
        try:
            await self._queue.send(frame)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ConnectionError(self._cause) from None

    def send_nowait(self, frame: bytes) -> None:
        """Queue one frame, or drop it when the queue is full or closed."""
        try:
            self._queue.send_nowait(frame)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            logger.debug("dropped a frame, the channel does not take it now")

    def close(self) -> None:
        """Drop the frames that are left."""
        self._queue.close()
        self.frames.close()


_NUMBERS: Final = pattern(r"^\[Errno -?\d+\] |\(_ssl\.c:\d+\)$|^\[SSL: [A-Z_]+\] ")

NO_ADDRESS: Final = "its host name leads to no address"
"""Reason why there is no connection, where a name cannot be resolved."""

_UNRESOLVED: Final = pattern(
    r"getaddrinfo failed|nodename nor servname|[Nn]ame or service not known|name resolution|No address assoc"
)
"""Words of several systems for such a name."""


_OUR_CERTIFICATE: Final = pattern(r"alert (?:[a-z ]*certificate|unknown ca|handshake failure|decrypt error)")
"""Words of OpenSSL where a server does not take our certificate, or that there is none."""


def in_words(reason: str) -> str:
    """Return the reason why there is no connection without the numbers and places of the system's code."""
    if _UNRESOLVED.search(reason):
        return NO_ADDRESS
    if "All connection attempts failed" in reason:
        return "nothing answers there"
    if "peer closed connection" in reason or "Server disconnected" in reason:
        return "the connection was closed before the end of the answer"
    if "WRONG_VERSION_NUMBER" in reason:
        return "what answers there speaks no TLS; the URL may have to begin with http://"
    words = _NUMBERS.sub("", reason).strip()
    if _OUR_CERTIFICATE.search(words):
        return f"it demands another certificate of this proxy (tls.certificate): {words}"
    return words


HIDDEN: Final = "***"
"""Replaces a secret."""

_REDACTED: Final = r"\[redacted [^\]]{0,200}+\]"
"""Text in place of a secret; it has a space."""
_USER_INFO: Final = pattern(rf"\A(?:{_REDACTED}|[^/?#\s@])++@")
_QUERY: Final = pattern(rf"\A((?:{_REDACTED}|[^\s?#])*+)\?(?:{_REDACTED}|[^\s#'\"])*+")


def without_credentials(text: str) -> str:
    """Return a text without the user and the query of each URL in it, which may be secrets of any length."""
    # Each is looked for only where a URL begins: anywhere else it would take the square of the length.
    first, *urls = text.split("://")
    urls = [_QUERY.sub(rf"\1?{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", url)) for url in urls]
    return "://".join((first, *urls))


def fault_of(error: BaseException) -> Fault:
    match innermost(error):
        case StartError(fault=fault):
            return fault
        case CallInterruptedError() | DisconnectedError():
            return Fault.EXITED
        case CallTimeoutError():
            return Fault.SILENT
        case AuthorizationError():
            return Fault.LOGIN
        case RemoteError():
            return Fault.REFUSED
        case BadAnswerError():
            return Fault.NO_MCP
    return Fault.UNREACHABLE


def describe(error: BaseException) -> str:
    """Describe the cause of a failed connection in one line."""
    error = innermost(error)
    if isinstance(error, CallInterruptedError):
        return f"it {error.cause}"
    if isinstance(error, ServerUnavailableError | AuthorizationError):
        return error.cause
    if isinstance(error, RemoteError):
        return f"it answered with error {error.code}: {error.remote_message}"
    if isinstance(error, BadAnswerError):
        return f"it answered {error.what}"
    if isinstance(error, OSError) and error.strerror:
        # Without its number, which tells a person nothing.
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return in_words(str(error)) or type(error).__name__


def remedy_for_output(lines: Sequence[str], config: ServerConfig) -> str:
    """Return the remedy for a program that has ended, by its output; empty if that says nothing known."""
    output = "\n".join(lines)
    known = next((remedy for said, remedy in _REMEDIES if said.search(output)), "")
    if known or not (missing := _missing_variables(lines, config)):
        return known or (_ARGUMENTS_REMEDY if _ARGUMENTS.search(output) else "")
    names, quoted = some_of(missing), ", ".join(f'"{name}"' for name in missing[:NAMED])
    if all(map(os.environ.get, missing)):
        return (
            f"it does not get {names} of this environment: write inherit = [{quoted}] under "
            f"servers.{config.name}"
        )
    return f"set {names} in env under servers.{config.name}"


def _missing_variables(lines: Sequence[str], config: ServerConfig) -> list[str]:
    """Return the names of variables that a program says it needs, and that it was not given."""
    given, found = environment_of(config, os.environ), list[str]()
    for number, line in enumerate(lines):
        if _MISSING.search(line):
            found += _VARIABLE.findall(line) or _LISTED.findall("\n".join(lines[number + 1 : number + 5]))
    return [name for name in dict.fromkeys(found) if not given.get(name)]


_MISSING: Final = pattern(
    r"(?i:env(?:ironment)?[ _-]?var|\b(?:required|missing|please set|must be set|must set)\b"
    r"|\b(?:not|isn't|un)[ ]?(?:set|defined|provided|configured)\b)|^KeyError: '"
)
_VARIABLE: Final = pattern(r"(?<![\w./-])(?!ERR_)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![\w/])")
_ARGUMENTS: Final = pattern(
    r"(?im)^(?:\[[^\]\n]{0,40}\] ?)?usage:|command[- ]line argument"
    r"|\b(?:unknown|missing|unrecognized|no such|required|too many|following) (?:required )?"
    r"(?:option|argument|parameter|flag)"
)
_ARGUMENTS_REMEDY: Final = "its args are wrong, or lack something that it needs: correct them by what it says"
_LISTED: Final = pattern(r"(?m)^\W{0,8}((?!ERR_)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b")
"""The variables that a program needs, each on a line of its own."""

_REMEDIES: Final = (
    (
        pattern(r"EADDRINUSE|[Aa]ddress already in use"),
        "a port that it wants is taken, perhaps by another copy of it. Behind the proxy it should speak over "
        "stdio: look for an option such as --stdio or --transport stdio",
    ),
    (
        pattern(r"'\w*Server' object has no attribute|No module named 'mcp\.|from 'mcp(?:\.\w+)*'"),
        "it seems to be written for version 1 of the Python SDK of MCP and to run with version 2: with uvx, "
        'begin its args with "--with", "mcp<2"',
    ),
    (
        pattern(r"does not satisfy Python|requires a different Python|Requires-Python"),
        'it needs another version of Python: with uvx, begin its args with "--python", "3.13"',
    ),
    (
        pattern(r"npm (?:ERR!|error) (?:404|notarget)|not found in the package registry"),
        "its registry does not have this package, or no such version: check the name, or pin another version",
    ),
    (
        pattern(r"An executable named .* is not provided by package"),
        'with uvx, begin its args with "--from", the package, and the executable that is named above',
    ),
    (pattern(r"Cannot connect to the Docker daemon|error during connect: .*docker"), "start Docker"),
    (
        pattern(r"ENOTFOUND|EAI_AGAIN|Temporary failure in name resolution|[Nn]ame or service not known"),
        "it does not reach the network: check the connection, and whether this network needs HTTPS_PROXY",
    ),
    (
        pattern(r"ECONNREFUSED|[Cc]onnection refused"),
        "what it connects to does not run, or has another address: start that, or correct its args or env",
    ),
)
"""Texts in the output of a program that has ended, with the remedies; the first that fits counts."""
