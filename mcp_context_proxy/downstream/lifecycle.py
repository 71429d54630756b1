"""Owns the connection to one server that all share: opens it, keeps its lists, and opens it again when lost.

It alone opens and closes it, in one task. Whatever goes wrong there ends in the server's condition.

How one server is doing: its state and why, its connection while there is one, what it said of itself.

Holds what the owner of the connection finds out and callers want to know; it acts on nothing.

When a server may sleep, and who wakes it. Knows neither connections nor processes.

A server of which enough is known sleeps until it is called: from the start if it is lazy, later if it has an
idle time. Callers wait for the attempt that their call began, or that follows the loss of a connection, and
hear of its failure.

Decides when a server whose connection was lost is connected again. Knows no clock and no server.

One that worked and died is wanted back at once, as often as it has answered something meanwhile; not one that
soon leaves of itself each time. Else waiting begins, twice as long each time, with jitter, so that many do
not come back together. One that fails again and again is left alone, and tried once in a while.

Bounds how many servers are being started at a time, and how many before the proxy itself is ready.

Programs that start take the processor from a host that waits for the proxy's first answer. So a first wave
starts beside the proxy, and the rest follows when it serves. A place is held for a bounded time, freed once.
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
from mcp_context_proxy.downstream.connect import Connected, Inbound, connect, describe, innermost
from mcp_context_proxy.downstream.era_negotiation import Introduction
from mcp_context_proxy.downstream.listing import Lists
from mcp_context_proxy.downstream.listing_cache import EraProbe, ListingCache
from mcp_context_proxy.downstream.output import Output
from mcp_context_proxy.downstream.subscriptions import ClientSubscriptions, Subscription
from mcp_context_proxy.errors import LoginRequiredError, ServerUnavailableError
from mcp_context_proxy.oauth.credentials import CredentialFile
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.text import clean
from mcp_context_proxy.system.threads import in_thread

LEAST_SHARE = 0.1
"""Of a wait: jitter never makes it shorter."""


QUICK_SECONDS = 5.0
"""A server that leaves of itself sooner would be started more than twelve times a minute."""


class Restarts:
    """Counts the failures of one server in a row."""

    def __init__(self, limits: Limits, jitter: Callable[[float, float], float] = random.uniform) -> None:
        self._limits, self._jitter = limits, jitter
        self.failures = 0
        """In a row, since it was last healthy for long enough."""

    def configure(self, limits: Limits) -> None:
        """Wait by other limits from the next failure on."""
        self._limits = limits

    @property
    def left_alone(self) -> bool:
        """Whether the breaker is open."""
        return self.failures >= self._limits.breaker_failures

    def wait_seconds(self, lasted: float, useful: bool = False, left: bool = False) -> float:
        """How long to wait, now that a connection was lost that had been ready for `lasted` seconds.

        0 for `lasted` means that it never was; `useful`, that it has answered a request of a client; `left`,
        that it went of itself: nobody killed it, and no call was under way that it could have died of.
        """
        quick = left and lasted < QUICK_SECONDS
        if (useful and not quick) or lasted >= self._limits.backoff_reset_seconds:
            self.failures = 0
            return 0.0
        self.failures += 1
        if self.left_alone:
            return self._limits.breaker_seconds
        if lasted > 0 and self.failures == 1:
            return 0.0
        ceiling = self._limits.backoff_first_seconds * 2.0 ** (self.failures - 1)
        return self._jitter(LEAST_SHARE, 1.0) * min(ceiling, self._limits.backoff_max_seconds)


QUOTED_LINES = 5
"""Lines of a server's output that an error message quotes."""


class ServerState(StrEnum):
    """Where a connection stands."""

    WAITING = "waiting to start"
    ASLEEP = "asleep"
    STARTING = "still starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class ServerStatus:
    """The condition of one server."""

    def __init__(self, server: str, limits: Limits, output: Output, on_change: Callable[[], None]) -> None:
        """Begin as a server that nobody has started.

        Args:
            server: Its name, for messages.
            limits: Bounds on restarts.
            output: Its last words.
            on_change: Called, without blocking, whenever the state changed.
        """
        self.state = ServerState.WAITING
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
        self.enter(ServerState.STARTING)

    def enter(self, state: ServerState) -> None:
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
        self.enter(ServerState.READY)

    def fall_asleep(self) -> None:
        """There is no connection because nobody needs one."""
        self.connected = None
        self.settled.set()
        self.enter(ServerState.ASLEEP)

    def fail(self, cause: str) -> None:
        """The connection was lost, or never was; told once for each cause."""
        if cause != self.cause:
            logger.warning("server %s: %s", self._server, cause)
        self.cause, self.connected = cause, None
        self._last_words = self._output.stderr.lines()
        self.enter(ServerState.FAILED)

    async def lost(self, connected: Connected) -> None:
        """Wait until a connection is no more."""
        while self.connected is connected:
            await self._changed.wait()

    @property
    def stderr(self) -> tuple[str, ...]:
        """Its last words on stderr; what it says as it is started again hides none of them."""
        if self._last_words is None or self.state is ServerState.READY:
            return self._output.stderr.lines()
        return self._last_words

    def unavailable(self) -> ServerUnavailableError:
        """The error of a call while there is no connection: the state, the cause, the server's last words."""
        state: str = self.state
        if self.state is ServerState.FAILED and self.restarts.left_alone:
            state = (
                f"{state} {self.restarts.failures} times in a row, tried again every "
                f"{self._limits.breaker_seconds:g} s"
            )
        return ServerUnavailableError(
            self._server, state, self.cause, self.stderr[-QUOTED_LINES:] or self._output.strays.lines
        )


class Idling:
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


SLOT_SECONDS = 5.0
"""How long a server that is being started keeps others waiting: one that hangs must not hold them up."""


class StartLimiter:
    """The places for servers that are being started."""

    def __init__(self, at_once: int) -> None:
        """Have so many places, also in the first wave."""
        self._places = anyio.Semaphore(at_once)
        self._first = at_once
        self._all = anyio.Event()
        self._all.set()

    def hold_back(self) -> None:
        """Start no more than the first wave for now."""
        self._all = anyio.Event()

    def let_all(self) -> None:
        """Start all there are, as there are places."""
        self._all.set()

    async def take(self) -> None:
        """Wait for a place."""
        if not self._all.is_set():
            if self._first == 0:
                await self._all.wait()
            else:
                self._first -= 1
        await self._places.acquire()

    def free(self) -> None:
        """Give a place back."""
        self._places.release()


class StartSlot:
    """One place; freed by whoever comes first."""

    def __init__(self, starts: StartLimiter) -> None:
        self._starts = starts
        self._taken = False

    async def take(self) -> None:
        """Wait for a place."""
        await self._starts.take()
        self._taken = True
        asyncio.get_running_loop().call_later(SLOT_SECONDS, self.free)

    def free(self) -> None:
        """Leave the place to another server."""
        if self._taken:
            self._taken = False
            self._starts.free()


logger = logging.getLogger(__name__)


class ServerLifecycle:
    """The life of one server's connection."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        condition: ServerStatus,
        lists: Lists,
        rest: Idling,
        wishes: ClientSubscriptions,
        output: Output,
        memory: ListingCache | None,
        redact: Redactor,
        inbound: Inbound,
        in_use: Callable[[], bool],
    ) -> None:
        """Open nothing yet.

        Args:
            config: Of the server.
            limits: Bounds on time and size.
            condition: Told of all that happens.
            lists: Kept current while there is a connection.
            rest: Says when there need not be one.
            wishes: What clients want of the server beside answers.
            output: Takes the server's last words.
            memory: Remembers what a lazy server lists.
            redact: Takes secrets out of a cause, and learns those of the connection.
            inbound: What becomes of what the server sends on its own accord.
            in_use: Whether anybody needs the connection.
        """
        self.restarts = 0
        self._config, self._limits = config, limits
        self._condition, self._lists, self._rest, self._wishes = condition, lists, rest, wishes
        self._output, self._memory, self._redact = output, memory, redact
        self._inbound, self._in_use = inbound, in_use
        self._subscription = Subscription(limits, wishes, inbound.on_notification, lists.suspect_all)
        self._greeting = EraProbe(memory)
        self._recalled, self._login_wanted = False, False

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration whose connection is the same; what is open stays open."""
        self._config, self._limits = config, limits

    async def recall(self) -> None:
        """Begin with what is remembered of a lazy server, so that it need not be started to be searched."""
        if self._recalled or self._memory is None or self._config.start != "lazy":
            return
        self._recalled = True
        known = await in_thread(self._memory.recall, self._config)
        if known is not None:
            self._condition.introduction = known.introduction
            self._lists.recall(known.listing)
            self._rest.refresh_first = known.stale
            self._sleep()

    async def keep(self, starts: StartLimiter) -> None:
        """Connect, list, watch, and connect again after a failure, until cancelled.

        Args:
            starts: Bounds how many servers are being started at a time.
        """
        restarts = self._condition.restarts
        await self._greeting.recall(self._config)
        while True:
            if self._condition.introduction is not None:
                # It has been there, so it will be: who calls waits for it rather than be told to try again.
                self._rest.begin()
                if self._rest.allowed:
                    await self._rest.until_called()
            lasted = await self._connect_once(starts)
            if self._condition.state is ServerState.ASLEEP:
                continue
            seconds = restarts.wait_seconds(lasted, self._condition.useful, self._condition.left)
            if restarts.left_alone:
                logger.info("server %s: failed %d times in a row", self._config.name, restarts.failures)
            if seconds:
                # Else who waited for the old connection waits on, for the next one.
                await self._pause(seconds)
            self.restarts += 1

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; no longer than it takes to log in, where that is what is missing."""
        with anyio.move_on_after(seconds):
            if self._login_wanted:
                await CredentialFile(self._config).replaced()
            else:
                await anyio.sleep_forever()

    async def _connect_once(self, starts: StartLimiter) -> float:
        """Connect and stay so until the connection is lost; return for how many seconds it was ready."""
        ready_at: float | None = None
        slot, seconds = StartSlot(starts), self._config.connect_timeout
        self._login_wanted = False
        try:
            await slot.take()
            self._condition.start()
            # One scope with a movable deadline: a time limit must not end inside the contexts it guards.
            with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
                config = self._greeting.applied_to(self._config)
                async with connect(
                    config, self._limits, self._output, self._redact, self._inbound
                ) as connected:
                    await self._greeting.succeeded(self._config, connected.introduction)
                    await self._list(connected)
                    scope.deadline = float("inf")
                    slot.free()
                    ready_at = anyio.current_time()
                    self._become_ready(connected)
                    await self._serve(connected)
                    self._condition.left = connected.loss.of_itself
            if scope.cancelled_caught:
                self._fail(f"it was not ready within {seconds:g} s")
            elif self._condition.state is not ServerState.ASLEEP:
                self._fail(f"it {connected.loss.cause}")
        except Exception as error:
            # boundary: whatever a downstream server or its transport does stays with this server
            self._note(innermost(error))
            self._fail(describe(error))
        finally:
            slot.free()
            self._condition.connected = None
            self._condition.settled.set()
            if self._condition.state is not ServerState.ASLEEP:
                self._rest.end()
        return 0.0 if ready_at is None else anyio.current_time() - ready_at

    def _note(self, error: BaseException) -> None:
        """What a failure teaches for the next attempt."""
        self._login_wanted = isinstance(error, LoginRequiredError)
        self._greeting.failed(error)

    async def _list(self, connected: Connected) -> None:
        """Know what there is; a caller who waits need not wait for lists that were known before."""
        if self._rest.awaited and self._condition.introduction is not None:
            self._lists.resume(connected)
        else:
            await self._lists.begin(connected)
            await self._remember(connected)

    async def _remember(self, connected: Connected) -> None:
        if self._memory is not None and self._config.start == "lazy":
            facts = (self._config, connected.introduction, self._lists.current)
            await in_thread(self._memory.keep, *facts)

    def _become_ready(self, connected: Connected) -> None:
        self._condition.become_ready(connected)
        self._rest.end()

    async def _serve(self, connected: Connected) -> None:
        """Keep the lists current until the connection is lost."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._lists.refresh, connected, partial(self._remember, connected))
            group.start_soon(self._sleep_when_idle, connected)
            group.start_soon(self._wishes.tell, connected)
            if connected.introduction.era is Era.MODERN:
                group.start_soon(self._subscription.keep, connected)
            await connected.loss.happened.wait()
            group.cancel_scope.cancel()

    async def _sleep_when_idle(self, connected: Connected) -> None:
        """End the connection once nobody needs it. From then on callers wait for the next one."""
        while True:
            await self._rest.until_idle()
            if not self._in_use():
                break
            self._rest.used()
        self._sleep()
        connected.loss.happened.set()

    def _sleep(self) -> None:
        self._rest.fall_asleep()
        self._condition.fall_asleep()

    def _fail(self, cause: str) -> None:
        self._condition.fail(clean(self._redact(cause)))
