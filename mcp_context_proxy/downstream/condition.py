"""How one server is doing: its state and why, its connection while there is one, what it said of itself.

Holds what the owner of the connection finds out and callers want to know; it acts on nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum

import anyio

from mcp_context_proxy.config import Limits
from mcp_context_proxy.downstream.connect import Connected
from mcp_context_proxy.downstream.negotiation import Introduction
from mcp_context_proxy.downstream.output import Output
from mcp_context_proxy.downstream.restarts import Restarts
from mcp_context_proxy.errors import ServerUnavailableError

logger = logging.getLogger(__name__)

QUOTED_LINES = 5
"""Lines of a server's output that an error message quotes."""


class State(StrEnum):
    """Where a connection stands."""

    WAITING = "waiting to start"
    ASLEEP = "asleep"
    STARTING = "still starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class Condition:
    """The condition of one server."""

    def __init__(self, server: str, limits: Limits, output: Output, on_change: Callable[[], None]) -> None:
        """Begin as a server that nobody has started.

        Args:
            server: Its name, for messages.
            limits: Bounds on restarts.
            output: Its last words.
            on_change: Called, without blocking, whenever the state changed.
        """
        self.state = State.WAITING
        self.connected: Connected | None = None
        """The open connection that all share; None while there is none."""
        self.introduction: Introduction | None = None
        self.cause = ""
        """Why the connection failed last; empty while there is nothing to say."""
        self._last_words: tuple[str, ...] | None = None
        """On stderr when the connection failed last."""
        self.useful = False
        """It has answered a request of a client since it was connected."""
        self.left = False
        """It went of itself, when it was lost last."""
        self.restarts = Restarts(limits)
        self._changed = anyio.Event()
        self.settled = anyio.Event()
        """The first attempt to connect has succeeded or failed."""
        self._server, self._limits, self._output, self._on_change = server, limits, output, on_change

    def configure(self, limits: Limits) -> None:
        """Follow other limits."""
        self._limits = limits
        self.restarts.configure(limits)

    def start(self) -> None:
        """The server is being connected."""
        self.useful = self.left = False
        self.enter(State.STARTING)

    def enter(self, state: State) -> None:
        """Be in a state, and tell if that is another one."""
        if state is not self.state:
            self.state = state
            self._on_change()
            self._changed.set()
            self._changed = anyio.Event()

    def become_ready(self, connected: Connected) -> None:
        """The connection is open and the lists are known."""
        self.introduction, self.connected, self.cause = connected.introduction, connected, ""
        self.settled.set()
        self.enter(State.READY)

    def fall_asleep(self) -> None:
        """There is no connection because nobody needs one."""
        self.connected = None
        self.settled.set()
        self.enter(State.ASLEEP)

    def fail(self, cause: str) -> None:
        """The connection was lost, or never was; told once for each cause."""
        if cause != self.cause:
            logger.warning("server %s: %s", self._server, cause)
        self.cause, self.connected = cause, None
        self._last_words = self._output.stderr.lines()
        self.enter(State.FAILED)

    async def lost(self, connected: Connected) -> None:
        """Wait until a connection is no more."""
        while self.connected is connected:
            await self._changed.wait()

    @property
    def stderr(self) -> tuple[str, ...]:
        """Its last words on stderr; what it says as it is started again hides none of them."""
        if self._last_words is None or self.state is State.READY:
            return self._output.stderr.lines()
        return self._last_words

    def unavailable(self) -> ServerUnavailableError:
        """The error of a call while there is no connection: the state, the cause, the server's last words."""
        state: str = self.state
        if self.state is State.FAILED and self.restarts.left_alone:
            state = (
                f"{state} {self.restarts.failures} times in a row, tried again every "
                f"{self._limits.breaker_seconds:g} s"
            )
        return ServerUnavailableError(
            self._server, state, self.cause, self.stderr[-QUOTED_LINES:] or self._output.strays.lines
        )
