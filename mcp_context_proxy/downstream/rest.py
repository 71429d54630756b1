"""When a server may sleep, and who wakes it. Knows neither connections nor processes.

A server of which enough is known sleeps until it is called: from the start if it is lazy, later if it has an
idle time. Callers wait for the attempt that their call began, or that follows the loss of a connection, and
hear of its failure.
"""

from __future__ import annotations

import anyio

from mcp_context_proxy.config import ServerConfig


class Rest:
    """The sleep of one server."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._wanted = anyio.Event()
        self._awake: anyio.Event | None = None
        """Set when the attempt ends that callers may wait for; None while there is none."""
        self._fell_asleep = False
        self.called = False
        """Whether somebody has used it since it last fell asleep."""
        self._used_at = 0.0
        self._settings_changed = anyio.Event()
        self.refresh_first = False
        """Connect once although nobody calls, because what is known is old."""

    @property
    def allowed(self) -> bool:
        """Whether the server is to wait for a call, provided that something is known of it."""
        return self._config.start == "lazy" or self._fell_asleep

    @property
    def awaited(self) -> bool:
        """Whether somebody has woken it and waits."""
        return self.allowed and self.called

    def configure(self, config: ServerConfig) -> None:
        """Follow other settings."""
        self._config = config
        self._settings_changed.set()
        if config.start == "eager" and config.idle_timeout is None:
            self._wanted.set()

    def used(self) -> None:
        """A call has begun or ended, or something else needs the connection."""
        self.called = True
        self._used_at = anyio.current_time()

    def begin(self) -> None:
        """From now on callers wait to be served."""
        if self._awake is None:
            self._awake, self._wanted = anyio.Event(), anyio.Event()

    async def until_called(self) -> None:
        """Wait for a caller."""
        if self.refresh_first:
            self.refresh_first = False
            return
        await self._wanted.wait()

    def end(self) -> None:
        """The attempt is over, well or badly: callers wait no more."""
        self._fell_asleep = False
        self._used_at = anyio.current_time()
        if self._awake is not None:
            self._awake.set()
            self._awake = None

    async def wake(self, seconds: float) -> None:
        """Call the server and wait for the end of the attempt, no longer than `seconds`; at once if awake."""
        awake = self._awake
        if awake is not None:
            self.called = True
            self._wanted.set()
            with anyio.move_on_after(seconds):
                await awake.wait()

    async def until_idle(self) -> None:
        """Wait until nobody has used the server for its idle time; one that was not called at all is idle."""
        while (left := self._left()) > 0:
            self._settings_changed = anyio.Event()
            with anyio.move_on_after(left):
                await self._settings_changed.wait()

    def fall_asleep(self) -> None:
        """The connection is being closed because nobody needs it."""
        self._fell_asleep, self.called = True, False
        self.begin()

    def _left(self) -> float:
        if self._config.start == "lazy" and not self.called:
            return 0.0
        if self._config.idle_timeout is None:
            return float("inf")
        return self._used_at + self._config.idle_timeout - anyio.current_time()
