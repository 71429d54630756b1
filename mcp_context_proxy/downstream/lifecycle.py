"""The lifecycle of one server: connects, lists, reconnects with backoff, and sleeps while nobody calls.

One task owns the shared connection and alone opens and closes it. Every failure becomes part of the state of
the server, which error messages report.

A server of which enough is known sleeps until it is called: from the start if it is lazy, and later if it has
an idle timeout. Callers wait for the attempt to connect that their call began, or that follows the loss of a
connection, and get its error if it fails.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from enum import StrEnum
from functools import partial

import anyio

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.connect import Connected, connect, describe, innermost
from mcp_context_proxy.downstream.era_negotiation import EraMemory, Introduction
from mcp_context_proxy.downstream.inbound import Inbound
from mcp_context_proxy.downstream.listing import ListingCache, Lists
from mcp_context_proxy.downstream.output import Output
from mcp_context_proxy.downstream.subscriptions import ClientSubscriptions
from mcp_context_proxy.errors import LoginRequiredError, ServerUnavailableError
from mcp_context_proxy.oauth.credentials import CredentialFile
from mcp_context_proxy.protocol.text import clean
from mcp_context_proxy.store import ListingStore
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

QUOTED_LINES = 5
"""Lines of a server's stderr that an error message quotes."""

SLOT_SECONDS = 5.0
"""Time for which a starting server counts against the bound: one that hangs must not hold up the others."""

LEAST_SHARE = 0.1
"""Least share of a backoff that jitter leaves."""

QUICK_SECONDS = 5.0
"""A server that exits by itself sooner would be started more than twelve times a minute."""


class ServerState(StrEnum):
    """State of a server, in words for error messages."""

    WAITING = "waiting to start"
    ASLEEP = "asleep"
    STARTING = "still starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class ServerLifecycle:
    """State of one server, and the task that owns its shared connection."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        *,
        output: Output,
        redact: Redactor,
        lists: Lists,
        subscriptions: ClientSubscriptions,
        inbound: Inbound,
        in_use: Callable[[], bool],
        store: ListingStore | None,
    ) -> None:
        """Prepare; nothing is opened until `run`.

        Secrets of the connection are added to `redact`. The server is not put to sleep while `in_use` returns
        True. The store remembers the listings of lazy servers, and the servers not to be probed.
        """
        self.state = ServerState.WAITING
        self.connected: Connected | None = None
        """The open connection; None while there is none. Changes with the state alone."""
        self.cause = ""
        """Cause of the latest failure; empty once the server is ready."""
        self.introduction: Introduction | None = None
        """Latest introduction of the server; None before it was ever connected."""
        self.first_attempt_over = anyio.Event()
        """Set when the first attempt to connect has succeeded or failed, or is not made."""
        self.restarts = 0
        """Number of reconnections."""
        self.has_answered = False
        """True once the server has answered a client since it was connected; set by the client."""
        self.idle = IdleTimer(config)
        self._config, self._limits = config, limits
        self._output, self._redact, self._lists = output, redact, lists
        self._subscriptions, self._inbound, self._in_use = subscriptions, inbound, in_use
        self._cache = None if store is None else ListingCache(store)
        self._era_memory = EraMemory(config, store)
        self._backoff = Backoff(limits)
        self._state_changed = anyio.Event()
        self._stderr_at_failure: tuple[str, ...] | None = None
        self._called = anyio.Event()
        """Set when a caller wants a sleeping server, or it is no longer to sleep."""
        self._attempt_over: anyio.Event | None = None
        """Set at the end of the attempt that callers may wait for; None while there is none."""
        self._loaded, self._login_wanted = False, False

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration with the same connection settings; an open connection stays open."""
        self._config, self._limits = config, limits
        self._backoff.configure(limits)
        self.idle.configure(config)
        if config.start == "eager" and config.idle_timeout is None:
            self._called.set()

    def transition(
        self, state: ServerState, *, connected: Connected | None = None, cause: str | None = None
    ) -> None:
        """Enter a state, and wake everybody who waits for it.

        This is the only place where the state, the connection and the cause of a failure change.

        Args:
            state: The new state.
            connected: The open connection, for READY.
            cause: Cause of the failure, for FAILED; logged once if it is repeated.
        """
        self.connected = connected
        if connected is not None:
            self.introduction, self.cause = connected.introduction, ""
        if cause is not None:
            cause = clean(self._redact(cause))
            if cause != self.cause:
                logger.warning("server %s: %s", self._config.name, cause)
            self.cause = cause
            self._stderr_at_failure = self._output.stderr.lines()
        self.state = state
        self._state_changed.set()
        self._state_changed = anyio.Event()
        if state is not ServerState.STARTING:
            self.first_attempt_over.set()
        if state is ServerState.ASLEEP:
            self.idle.last_used = None
            self._expect_callers()
        elif state is not ServerState.STARTING and self._attempt_over is not None:
            self._attempt_over.set()
            self._attempt_over = None
        self._lists.publish()

    async def load(self) -> None:
        """Restore the cached listing of a lazy server, which then need not be started to be searched."""
        if self._loaded or self._cache is None or self._config.start != "lazy":
            return
        self._loaded = True
        cached = await in_thread(self._cache.load, self._config)
        if cached is not None:
            self.introduction = cached.introduction
            self._lists.restore(cached.listing)
            self.transition(ServerState.ASLEEP)
            if cached.stale:
                # Connect once although nobody calls, to fetch the listing again.
                self._called.set()

    async def run(self, starts: StartLimiter) -> None:
        """Connect, serve, and reconnect after a loss, until cancelled."""
        await self._era_memory.load()
        while True:
            may_sleep = False
            if self.introduction is not None:
                # It has been ready before and will be again: callers wait for it instead of failing.
                self._expect_callers()
                may_sleep = self._config.start == "lazy" or self.state is ServerState.ASLEEP
                if may_sleep:
                    await self._called.wait()
            backoff_seconds = await self._connect_once(starts, may_sleep)
            if self.state is ServerState.ASLEEP:
                continue
            if backoff_seconds:
                # Without a backoff, callers that waited for the old connection go on waiting for the next.
                await self._wait_before_retry(backoff_seconds)
            self.restarts += 1

    async def _connect_once(self, starts: StartLimiter, may_sleep: bool) -> float:
        """Connect and serve until the connection ends; return the seconds to wait before the next attempt.

        With `may_sleep` the server slept until now, so a caller may be waiting for it.
        """
        ready_at: float | None = None
        while_idle = self._login_wanted = False
        seconds = self._config.connect_timeout
        free_slot = await starts.take()
        try:
            self.has_answered = False
            self.transition(ServerState.STARTING)
            # One scope with a movable deadline: a time limit must not end inside the contexts it guards.
            with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
                config = self._era_memory.applied_to(self._config)
                async with connect(
                    config, self._limits, self._output, self._redact, self._inbound
                ) as connected:
                    await self._era_memory.succeeded(connected.introduction)
                    if may_sleep and self.idle.last_used is not None:
                        # A caller is waiting, and need not wait for lists that are known.
                        self._lists.resume(connected)
                    else:
                        await self._lists.fetch_first(connected)
                        await self._save(connected)
                    scope.deadline = float("inf")
                    free_slot()
                    ready_at = self.idle.ready_at = anyio.current_time()
                    self.transition(ServerState.READY, connected=connected)
                    await self._serve(connected)
                    while_idle = connected.loss.while_idle
            if scope.cancelled_caught:
                self.transition(ServerState.FAILED, cause=f"it was not ready within {seconds:g} s")
            elif self.state is not ServerState.ASLEEP:
                self.transition(ServerState.FAILED, cause=f"it {connected.loss.cause}")
        except Exception as error:
            # boundary: a downstream server and its transport can raise anything, which stays with this server
            self._login_wanted = isinstance(innermost(error), LoginRequiredError)
            self._era_memory.failed(innermost(error))
            self.transition(ServerState.FAILED, cause=describe(error))
        finally:
            free_slot()
        if self.state is ServerState.ASLEEP:
            return 0.0
        lasted = 0.0 if ready_at is None else anyio.current_time() - ready_at
        return self._backoff.seconds(lasted, useful=self.has_answered, left=while_idle)

    async def _serve(self, connected: Connected) -> None:
        """Keep lists and subscriptions current until the connection is lost or the server goes to sleep."""

        async def sleep_when_idle() -> None:
            await self.idle.wait()
            while self._in_use():
                self.idle.last_used = anyio.current_time()
                await self.idle.wait()
            # From now on callers wait for the next connection.
            self.transition(ServerState.ASLEEP)
            connected.loss.happened.set()

        async with anyio.create_task_group() as group:
            group.start_soon(self._lists.refresh, connected, partial(self._save, connected))
            group.start_soon(sleep_when_idle)
            group.start_soon(
                self._subscriptions.keep_sent,
                connected,
                self._limits,
                self._inbound.on_notification,
                self._lists.mark_all_stale,
            )
            await connected.loss.happened.wait()
            group.cancel_scope.cancel()

    async def _save(self, connected: Connected) -> None:
        if self._cache is not None and self._config.start == "lazy":
            await in_thread(self._cache.save, self._config, connected.introduction, self._lists.current)

    async def _wait_before_retry(self, seconds: float) -> None:
        if self._backoff.is_open:
            logger.info("server %s: failed %d times in a row", self._config.name, self._backoff.failures)
        with anyio.move_on_after(seconds):
            if self._login_wanted:
                # A login ends the wait at once.
                await CredentialFile(self._config).replaced()
            else:
                await anyio.sleep_forever()

    def _expect_callers(self) -> None:
        """Have callers wait for the next attempt from now on."""
        if self._attempt_over is None:
            self._attempt_over, self._called = anyio.Event(), anyio.Event()

    async def wake(self, seconds: float) -> None:
        """Have a sleeping server connected, and wait for the attempt to end, no longer than `seconds`.

        Returns at once if there is no attempt to wait for.
        """
        attempt_over = self._attempt_over
        if attempt_over is not None:
            self.idle.last_used = anyio.current_time()
            self._called.set()
            with anyio.move_on_after(seconds):
                await attempt_over.wait()

    async def wait_lost(self, connected: Connected) -> None:
        """Wait until this connection is no longer the current one."""
        while self.connected is connected:
            await self._state_changed.wait()

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines on stderr; while the server is down, those from before it failed.

        The output of the next start would hide the reason otherwise.
        """
        if self._stderr_at_failure is None or self.state is ServerState.READY:
            return self._output.stderr.lines()
        return self._stderr_at_failure

    def unavailable(self) -> ServerUnavailableError:
        """Return the error of a call while there is no connection: state, cause and last output."""
        state: str = self.state
        if self.state is ServerState.FAILED and self._backoff.is_open:
            state = (
                f"{state} {self._backoff.failures} times in a row, tried again every "
                f"{self._limits.breaker_seconds:g} s"
            )
        last_output = self.stderr[-QUOTED_LINES:] or self._output.strays.lines
        return ServerUnavailableError(self._config.name, state, self.cause, last_output)


class IdleTimer:
    """Measures for how long a server has not been used."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._configured = anyio.Event()
        self.last_used: float | None = None
        """Time of the latest use; None if it has not been used since it fell asleep."""
        self.ready_at = 0.0
        """Time at which it became ready."""

    def configure(self, config: ServerConfig) -> None:
        """Follow other settings, also in a wait that has begun."""
        self._config = config
        self._configured.set()

    async def wait(self) -> None:
        """Wait until the server has been idle for its timeout; returns at once for one never called."""
        while (left := self._seconds_left()) > 0:
            self._configured = anyio.Event()
            with anyio.move_on_after(left):
                await self._configured.wait()

    def _seconds_left(self) -> float:
        if self._config.start == "lazy" and self.last_used is None:
            return 0.0
        if self._config.idle_timeout is None:
            return float("inf")
        since = max(self.last_used or 0.0, self.ready_at)
        return since + self._config.idle_timeout - anyio.current_time()


class Backoff:
    """Decides how long to wait before a server is connected again; knows neither clock nor server.

    A server that worked and died is restarted at once, as often as it has answered a call meanwhile, unless
    it exits by itself soon after each start. Otherwise the wait doubles each time, with jitter, so that many
    servers do not come back together. After many failures in a row the circuit breaker opens: the server is
    only tried once in a while.
    """

    def __init__(self, limits: Limits, jitter: Callable[[float, float], float] = random.uniform) -> None:
        self._limits, self._jitter = limits, jitter
        self.failures = 0
        """Failures in a row, since the server was last healthy for long enough."""

    def configure(self, limits: Limits) -> None:
        """Wait by other limits from the next failure on."""
        self._limits = limits

    @property
    def is_open(self) -> bool:
        """True while the circuit breaker is open."""
        return self.failures >= self._limits.breaker_failures

    def seconds(self, lasted: float, *, useful: bool = False, left: bool = False) -> float:
        """Count the end of a connection, and return the seconds to wait before the next one.

        Args:
            lasted: Seconds for which the connection was ready; 0 if it never was.
            useful: Whether the server has answered a request of a client.
            left: Whether the server went by itself: it was not killed, and no call was pending.
        """
        quick = left and lasted < QUICK_SECONDS
        if (useful and not quick) or lasted >= self._limits.backoff_reset_seconds:
            self.failures = 0
            return 0.0
        self.failures += 1
        if self.is_open:
            return self._limits.breaker_seconds
        if lasted > 0 and self.failures == 1:
            return 0.0
        ceiling = self._limits.backoff_first_seconds * 2.0 ** (self.failures - 1)
        return self._jitter(LEAST_SHARE, 1.0) * min(ceiling, self._limits.backoff_max_seconds)


class StartLimiter:
    """Bounds how many servers are started at a time, and how many before the proxy itself is ready.

    Starting programs compete for the processor with the proxy's first response. So a first wave starts beside
    the proxy, and the rest follows when it serves.
    """

    def __init__(self, at_once: int) -> None:
        """Let so many servers start at a time, and as many in the first wave."""
        self._places = anyio.Semaphore(at_once)
        self._first = at_once
        self._all = anyio.Event()
        self._all.set()

    def hold_back(self) -> None:
        """Start no more than the first wave for now."""
        self._all = anyio.Event()

    def let_all(self) -> None:
        """Start all servers, within the bound."""
        self._all.set()

    async def take(self) -> Callable[[], None]:
        """Wait for a place.

        Returns:
            A function that gives the place back. It may be called more than once, and is called after
            `SLOT_SECONDS` at the latest.
        """
        if not self._all.is_set():
            if self._first == 0:
                await self._all.wait()
            else:
                self._first -= 1
        await self._places.acquire()
        freed = False

        def free() -> None:
            nonlocal freed
            if not freed:
                freed = True
                self._places.release()

        asyncio.get_running_loop().call_later(SLOT_SECONDS, free)
        return free
