"""What a connection to a downstream server can do, whatever transport carries it.

A link sends requests and hands their raw results back. It does not list, retry, reconnect or interpret.

What carries frames to a server, whatever the transport; what comes back is handed to a `Peer`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import anyio
from msgspec import Raw

from mcp_context_proxy.protocol.envelope import NO_PARAMS, Members
from mcp_context_proxy.protocol.eras import Era

Notify = Callable[[str, Members], None]
"""Takes a notification's method and params. Must not block."""

Ask = Callable[[str, Members], Awaitable[bytes]]
"""Answers a request that a server makes of the client: method and params in, encoded result out.

Raises:
    RequestError: the client refuses, or cannot be asked.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Party:
    """Whom requests are made for: one handshake-era session, or one request of the modern era.

    Requests belong together if their party is the same object.
    """

    principal: str | None = None
    """Who it is, as far as the front can tell: what is kept for one must not be had by another."""
    lasting: bool = False
    """A session: it can have a connection of its own for as long as it lasts."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Everything that goes with one request beside its method and params."""

    subject: str = ""
    """For error messages: what was asked, such as ``tool 'create_issue'``."""
    timeout: float | None = None
    """Seconds until the request is given up; progress starts it anew. None: the connection's default."""
    capabilities: Raw | None = None
    """Of the client that calls; travels with each modern request."""
    client_info: Raw | None = None
    log_level: Raw | None = None
    """The client's opt-in to log messages about this request."""
    on_notification: Notify | None = None
    """Takes progress and log notifications that belong to this request."""
    wants_progress: bool = False
    party: Party | None = None
    """Whom the request is made for; None for what the proxy wants to know itself."""
    ask: Ask | None = None
    """Answers what the server asks of the client meanwhile; None when the client cannot be asked."""
    on_counted: Callable[[], None] | None = None
    """Is called once the request is one of those under way, which are bounded here."""


PLAIN = Outgoing()


class Link(Protocol):
    """An open connection to one downstream server."""

    server: str
    """Name of the server in the configuration."""
    era: Era

    async def request(self, method: str, params: Members = NO_PARAMS, outgoing: Outgoing = PLAIN) -> bytes:
        """Send a request and return its result as it came.

        Cancelling the caller tells the server to cancel.

        Raises:
            RemoteError: the server answered with an error.
            CallTimeoutError: no answer in time.
            CallInterruptedError: the connection was lost meanwhile.
            ServerUnavailableError: it could not be sent.
        """
        ...

    async def notify(self, method: str, params: Members = NO_PARAMS) -> None:
        """Send a notification; it is dropped when the connection is lost."""
        ...


class FrameChannel(Protocol):
    """Carries frames to the other side."""

    async def send(self, frame: bytes) -> None:
        """Send one frame; waits while the other side does not read.

        Raises:
            ConnectionError: the channel is closed, and nothing of the frame was sent.
        """
        ...

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame without waiting; it may be dropped when the other side does not read."""
        ...

    def give_up(self, cause: str) -> None:
        """Treat the channel as lost."""
        ...


class OpenChannel(FrameChannel, Protocol):
    """One that is open until it ends."""

    @property
    def killed(self) -> bool:
        """Whether the other side was ended from outside."""
        ...

    async def until_ended(self) -> None:
        """Wait until it has ended."""
        ...

    async def wait_closed(self) -> str:
        """Wait until it has ended; say how, as the verb of a sentence."""
        ...


class Ending:
    """How a channel ends to where nothing is known of a process: the part that all such have in common."""

    killed = False

    def __init__(self) -> None:
        """It is open."""
        self._cause = "closed the connection"
        self._ended = anyio.Event()

    def give_up(self, cause: str) -> None:
        """Treat the channel as lost: what comes over it is of no use."""
        self._cause = cause
        self._end()

    async def until_ended(self) -> None:
        """See `OpenChannel`."""
        await self._ended.wait()

    async def wait_closed(self) -> str:
        """See `OpenChannel`."""
        await self.until_ended()
        return self._cause

    def _end(self) -> None:
        self._ended.set()


class NoChannel:
    """Stands in until a peer is attached."""

    async def send(self, frame: bytes) -> None:
        """Refuse."""
        raise ConnectionError("is not connected yet")

    def send_nowait(self, frame: bytes) -> None:
        """Drop one frame."""
        del frame

    def give_up(self, cause: str) -> None:
        """Do nothing: there is nothing to lose."""
        del cause
