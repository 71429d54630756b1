"""The lifecycle of one server: connects, lists, reconnects with backoff, and sleeps while nobody calls.

One task owns the shared connection and alone opens and closes it. Every failure becomes part of the state of
the server, which error messages report.

A server of which enough is known sleeps until it is called: from the start if it is lazy, and later if it has
an idle timeout. What the store remembers of any server is listed and searched until it is connected.
Callers wait for the first attempt to connect, for the one that their call began, and for the one that follows
the loss of a connection, and get its error if it fails.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial

import anyio
import anyio.lowlevel
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.programs import broken_npx_cache, downloads, package_version
from mcp_context_proxy.config.secrets import Redactor, secrets_of
from mcp_context_proxy.downstream import describe, fault_of, remedy_for_output, without_credentials
from mcp_context_proxy.downstream.connections import Connected, EraMemory, Introduction, ServerMemory, connect
from mcp_context_proxy.downstream.inbound import ClientSubscriptions, OnEvent
from mcp_context_proxy.downstream.jsonrpc import Inbound
from mcp_context_proxy.downstream.listing import CachedListing, ListingCache, Lists
from mcp_context_proxy.downstream.stdio import QUOTED_LINES, KeepLine, Output
from mcp_context_proxy.errors import (
    BadAnswerError,
    Fault,
    LoginRequiredError,
    ServerUnavailableError,
    innermost,
)
from mcp_context_proxy.items import Encoded
from mcp_context_proxy.oauth import Logins
from mcp_context_proxy.protocol.strangers import LINE_CHARACTERS, one_line, stranger_text
from mcp_context_proxy.store.tables import ListingStore
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust.guard import KnownSecrets

logger = logging.getLogger(__name__)

LEAST_SHARE = 0.1
"""Least share of a backoff that jitter leaves."""

DOWNLOAD_TOLD_SECONDS = 15.0
"""Time between two log lines about a server that is being downloaded."""

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


class Shared(Struct, kw_only=True, eq=False):
    """Everything that the clients of all servers have in common."""

    on_change: Callable[[], None]
    """Called, without blocking, whenever a listing has changed."""
    on_state: Callable[[], None]
    """Called after each change of a state."""
    on_event: OnEvent
    """Takes notifications that belong to no request, such as an updated resource."""
    store: ListingStore
    """Remembers listings."""
    unprobed: ServerMemory
    late: ServerMemory
    """Servers for which searches have waited in vain."""
    known: KnownSecrets
    """Secrets of all servers, none of which another one is told."""
    logins: Logins
    """Tokens of the servers that want one."""
    keep_line: KeepLine | None
    """Takes each line of a server's stderr."""
    take_place: Callable[[str, bool], Awaitable[Callable[[], None]]]
    """Waits for a place among servers that start, or are downloaded; see `fleet.StartLimiter.take`."""
    changed: set[Lists] = field(default_factory=set)
    """Lists of servers that have said that they changed, until they are fetched."""
    catch_up: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
    """Waits until the catalog has all lists so far; set before any server starts."""
    read_ahead: Callable[[ServerConfig, tuple[Encoded, ...]], None] = lambda _config, _tools: None
    """Takes a long list of tools apart, in a thread; set before any server starts."""


class ServerLifecycle:
    """State of one server, and the task that owns its shared connection."""

    def __init__(self, config: ServerConfig, limits: Limits, shared: Shared, inbound: Inbound) -> None:
        """Prepare; nothing is opened until `keep_connected`."""
        self.config, self.name, self.limits = config, config.name, limits
        self.state = ServerState.WAITING
        self.connected: Connected | None = None
        """The open connection that all share; None while there is none. Changes with the state alone."""
        self.cause = ""
        """Cause of the latest failure; empty once the server is ready."""
        self.fault: Fault | None = None
        """The kind of that failure."""
        self.introduction: Introduction | None = None
        """Latest introduction of the server, also a remembered one; None before it was ever connected."""
        self.remembered = False
        """True while the listing is the one that the store remembers."""
        self._has_started = False
        """True once a start with these settings has succeeded, also one of an earlier proxy."""
        self.restarts = 0
        """Number of times that the server was connected again."""
        self.retry_at: float | None = None
        """Time of the next attempt to connect, in seconds since 1970; None while none is due."""
        self.subscriptions = ClientSubscriptions()
        """Log level and resource subscriptions requested by clients."""
        self.redact = Redactor(secrets_of(config), server=config.name)
        """Removes the secrets that the server was given; a connection adds its own, such as a token."""
        self.output = Output(
            server=config.name, limits=limits, redact=self.redact, keep_line=shared.keep_line
        )
        self.lists = Lists(
            config.name,
            limits,
            self.redact,
            on_change=shared.on_change,
            read_ahead=lambda tools: shared.read_ahead(self.config, tools),
            changed=shared.changed,
        )
        self._shared, self._inbound = shared, inbound
        self._has_answered = False
        """True once the server has answered a client since it was connected."""
        self._idle = IdleTimer(config)
        self._cache = ListingCache(config, shared.store)
        self._era_memory = EraMemory(config, shared.unprobed)
        self._backoff = Backoff(limits)
        self._first_attempt_over, self._state_changed = anyio.Event(), anyio.Event()
        self._stderr_at_failure: tuple[str, ...] | None = None
        self._called = anyio.Event()
        """Set when a caller wants a sleeping server, or it is no longer to sleep."""
        self._began = 0.0
        """Time at which the latest attempt to connect began."""
        self._attempt_over: anyio.Event | None = anyio.Event()
        """Set at the end of the attempt that callers may wait for; None while there is none."""
        self._loaded, self._login_wanted = False, False

    @property
    def in_use(self) -> bool:
        """True while the server must not be put to sleep."""
        return bool(self.subscriptions.watched)

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration with the same connection settings; an open connection stays open."""
        self.config, self.limits = config, limits
        self.lists.limits = self._backoff.limits = limits
        self._idle.configure(config)
        if config.start == "eager" and config.idle_timeout is None:
            self._called.set()

    def _transition(
        self,
        state: ServerState,
        *,
        connected: Connected | None = None,
        cause: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Enter a state, and wake everybody who waits for it.

        This is the only place where the state, the connection and the cause of a failure change. A cause that
        is repeated is logged once.
        """
        self.connected = connected
        if connected is not None:
            self.introduction, self.cause, self.fault = connected.introduction, "", None
            self.remembered, self._has_started = False, True
        if cause is not None:
            cause = one_line(stranger_text(cause, self.redact, LINE_CHARACTERS))
            if cause != self.cause:
                logger.warning("server %s: %s", self.name, cause)
            self.cause, self.fault = cause, fault
            self._stderr_at_failure = self.output.stderr_lines()
        self.state = state
        self._shared.on_state()
        self._state_changed.set()
        self._state_changed = anyio.Event()
        if state is not ServerState.STARTING:
            self._first_attempt_over.set()
        if state is ServerState.ASLEEP:
            self._idle.last_used = None
            self._expect_callers()
        elif state is not ServerState.STARTING and self._attempt_over is not None:
            self._attempt_over.set()
            self._attempt_over = None
        self.lists.publish()

    async def load_listing(self) -> None:
        """Restore the cached listing: a server need not be connected to be listed and searched."""
        if not self._loaded:
            self.restore(await in_thread(self.cached_listing))

    def cached_listing(self) -> CachedListing | None:
        """Return the listing that the store remembers, for `restore`. Blocks."""
        return self._cache.load()

    @property
    def known(self) -> CachedListing | None:
        """Everything that is known of the server, for `restore`; None before it was ever connected."""
        if self.introduction is None:
            return None
        return CachedListing(self.introduction, self.lists.current, started=self._has_started)

    def restore(self, cached: CachedListing | None) -> None:
        """Begin with a listing that is known from before; the first time only."""
        loaded, self._loaded = self._loaded, True
        if cached is None or loaded:
            return
        self.introduction, self.remembered = cached.introduction, True
        self._has_started = cached.started
        self.lists.current = cached.listing
        if self.config.start != "lazy":
            self._shared.on_state()
            self.lists.publish()
        else:
            self._transition(ServerState.ASLEEP)
            if cached.stale:
                # Connect once although nobody calls, to fetch the listing again.
                self._called.set()

    async def keep_connected(self) -> None:
        """Connect, serve, and reconnect after a loss, until cancelled."""
        self._era_memory.load()
        while True:
            if self.introduction is not None:
                # It has been ready before and will be again: callers wait for it instead of failing.
                self._expect_callers()
                if self.config.start == "lazy" or self.state is ServerState.ASLEEP:
                    await self._called.wait()
            backoff_seconds = await self._connect_once()
            if self.state is ServerState.ASLEEP:
                continue
            if backoff_seconds:
                # Without a backoff, callers that waited for the old connection go on waiting for the next.
                if self._backoff.is_open:
                    logger.info("server %s: failed %d times in a row", self.name, self._backoff.failures)
                self.retry_at = time_of_day() + backoff_seconds
                with anyio.move_on_after(backoff_seconds):
                    if self._login_wanted:
                        # A login ends the wait at once.
                        await self._shared.logins.of(self.config).replaced()
                    else:
                        await anyio.sleep_forever()
                self.retry_at = None
            self.restarts += 1

    async def _connect_once(self) -> float:
        """Connect and serve until the connection ends; return the seconds to wait before the next attempt."""
        ready_at: float | None = None
        wanted, while_idle = 0.0, False
        self._login_wanted = False
        seconds = self._start_seconds
        free_place = await self._shared.take_place(self.name, self._may_download)
        try:
            self._has_answered = False
            self._began = time.monotonic()
            self.output.begin()
            self._transition(ServerState.STARTING)
            self._log_download(self._began)
            # One scope with a movable deadline: a time limit must not end inside the contexts it guards.
            with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
                self.output.on_address = partial(self._hurry, scope)
                patient = replace(self.config, connect_timeout=seconds)
                config = self._era_memory.applied_to(patient)
                async with connect(
                    config, self.limits, self.output, self.redact, self._inbound, self._shared.logins
                ) as connected:
                    await self._era_memory.succeeded(connected.introduction)
                    await self._shared.late.discard(self.config)
                    version = await in_thread(package_version, config, connected.process_group)
                    connected = replace(connected, version=version)  # noqa: PLW2901 - the same connection
                    await self.lists.fetch_first(connected)
                    if self.introduction is not None and self.lists.publish():
                        # Calls wait for a server that is known, and a tool may not be what it was.
                        await self._shared.catch_up()
                    if self.config.start == "lazy":
                        await self._save(connected)
                    scope.deadline = float("inf")
                    free_place()
                    self.output.on_address = None
                    ready_at = self._idle.ready_at = anyio.current_time()
                    self._transition(ServerState.READY, connected=connected)
                    tools = len(self.lists.current.tools)
                    logger.info("server %s ready: %d tool%s", self.name, tools, "" if tools == 1 else "s")
                    await self._serve(connected)
                    while_idle = connected.loss.while_idle
            if scope.cancelled_caught and (address := self.output.address):
                patience = min(seconds, self.config.connect_timeout)
                cause = f"it serves HTTP at {address}, and has not answered over stdio within {patience:g} s"
                await self._fail(cause, Fault.SERVES_HTTP)
            elif scope.cancelled_caught:
                await self._fail(f"it was not ready within {seconds:g} s", Fault.SILENT)
            elif self.state is not ServerState.ASLEEP:
                await self._fail(f"it {connected.loss.cause}", Fault.EXITED)
        except Exception as error:
            # boundary: a downstream server and its transport can raise anything, which stays with this server
            inner = innermost(error)
            self._login_wanted = isinstance(inner, LoginRequiredError)
            wanted = inner.wait_seconds if isinstance(inner, BadAnswerError) else 0.0
            self._era_memory.failed(inner)
            await self._fail(describe(error), fault_of(error))
        finally:
            free_place()
        if self.state is ServerState.ASLEEP:
            return 0.0
        lasted = 0.0 if ready_at is None else anyio.current_time() - ready_at
        seconds = self._backoff.seconds(lasted, useful=self._has_answered, left=while_idle)
        return max(seconds, min(wanted, self.limits.breaker_seconds))

    def _hurry(self, scope: anyio.CancelScope) -> None:
        """Wait no longer than usual for a program that is downloaded: it says that it serves HTTP."""
        if self.state is ServerState.STARTING:
            scope.deadline = min(scope.deadline, anyio.current_time() + self.config.connect_timeout)

    async def _fail(self, cause: str, fault: Fault) -> None:
        """Enter the failed state; the cause also names a broken cache, which would fail every start."""
        broken = None
        if downloads(self.config):
            broken = await in_thread(broken_npx_cache, self.config, self.output.stderr_lines())
        if broken is not None:
            fault = Fault.BROKEN_CACHE
            cause = (
                f"{cause}; the npx cache is broken, as after an interrupted download: delete the folder "
                f"{broken}, and the next start downloads the package again"
            )
        if fault is Fault.UNREACHABLE and self.config.url and "://" not in cause:
            cause = f"{without_credentials(self.config.url)}: {cause}"
        self._transition(ServerState.FAILED, cause=cause, fault=fault)

    @property
    def _may_download(self) -> bool:
        """True if a start may have to download the server: none has succeeded, or the latest took too long.

        A server without a pinned version is downloaded again whenever there is a newer one.
        """
        if self.config.first_connect_timeout is None:
            return False
        return not self._has_started or self.fault is Fault.SILENT

    @property
    def _start_seconds(self) -> float:
        """Time limit of a start: longer if the server may be downloaded first."""
        first = self.config.first_connect_timeout if self._may_download else None
        return self.config.connect_timeout if first is None else first

    @property
    def failures(self) -> int:
        """Number of failed attempts in a row."""
        return self._backoff.failures

    async def stopped(self) -> None:
        """Wait until the server is stopped for good."""
        while self.state is not ServerState.STOPPED:
            await self._state_changed.wait()

    @property
    def standing(self) -> str:
        """State of the server for a person; with the seconds since a download has begun."""
        seconds = self.downloading
        return str(self.state) if seconds is None else f"downloading for {seconds:.0f} s"

    @property
    def downloading(self) -> float | None:
        """Seconds for which a package runner has been downloading the server; None while it does not.

        One that has ended the attempt before was through with its download, or cannot make it.
        """
        through = self.fault is Fault.EXITED or not self._may_download
        if self.state is not ServerState.STARTING or through:
            return None
        return time.monotonic() - self._began

    def _log_download(self, began: float) -> None:
        """Log the progress of the download that began at a time, as long as it lasts."""
        if self._began == began and self.downloading is not None:
            logger.info("server %s: %s, up to %g s", self.name, self.standing, self._start_seconds)
            loop = asyncio.get_running_loop()
            loop.call_later(DOWNLOAD_TOLD_SECONDS, self._log_download, began)

    async def _serve(self, connected: Connected) -> None:
        """Keep lists and subscriptions current until the connection is lost or the server goes to sleep."""

        async def sleep_when_idle() -> None:
            await self._idle.wait()
            while self.in_use:
                self._idle.last_used = anyio.current_time()
                await self._idle.wait()
            # From now on callers wait for the next connection.
            self._transition(ServerState.ASLEEP)
            connected.loss.happened.set()

        async with anyio.create_task_group() as group:
            group.start_soon(self.lists.refresh, connected, partial(self._save, connected))
            group.start_soon(sleep_when_idle)
            if self.config.start != "lazy":
                # Nobody waits for the store. A lazy server, which may go to sleep at once, was saved before.
                group.start_soon(self._save, connected)
            group.start_soon(
                self.subscriptions.keep_sent,
                connected,
                self.limits,
                self._inbound.on_notification,
                self.lists.mark_stale,
            )
            await connected.loss.happened.wait()
            group.cancel_scope.cancel()

    async def _save(self, connected: Connected) -> None:
        await in_thread(self._cache.save, connected.introduction, self.lists.current)

    def _expect_callers(self) -> None:
        """Have callers wait for the next attempt from now on."""
        if self._attempt_over is None:
            self._attempt_over, self._called = anyio.Event(), anyio.Event()

    async def wake(self, seconds: float = 0.0) -> None:
        """Have a sleeping server connected, and wait for the attempt to end, no longer than `seconds`.

        Returns at once if there is no attempt to wait for.
        """
        attempt_over = self._attempt_over
        if attempt_over is not None:
            self._idle.last_used = anyio.current_time()
            self._called.set()
            with anyio.move_on_after(seconds):
                await attempt_over.wait()

    async def wait_first_connect(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed, or is not made."""
        await self._first_attempt_over.wait()

    @property
    def was_late(self) -> bool:
        """True if searches have waited for the server in vain, also those of an earlier proxy."""
        return self._shared.late.get(self.config) is not None

    async def note_late(self) -> None:
        """Remember, unless the server has been ready, that a search has waited for it in vain."""
        if self.introduction is None:
            await self._shared.late.put(self.config)

    async def _wait_lost(self, connected: Connected) -> None:
        """Wait until this connection is no longer the current one."""
        while self.connected is connected:
            await self._state_changed.wait()

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines on stderr; while the server is down, those from before it failed.

        The output of the next start would hide the reason otherwise.
        """
        if self._stderr_at_failure is None or self.state is ServerState.READY:
            return self.output.stderr_lines()
        return self._stderr_at_failure

    @property
    def remedy(self) -> str:
        """Remedy for a program that has ended, by its output; empty if that says nothing known."""
        has_ended = self.fault is Fault.EXITED and self.config.command is not None
        return remedy_for_output(self.stderr, self.config) if has_ended else ""

    def unavailable(self) -> ServerUnavailableError:
        """Return the error of a call while there is no connection: state, cause and last output."""
        state = self.standing
        if self.state is ServerState.FAILED and self._backoff.is_open:
            state = (
                f"{state} {self._backoff.failures} times in a row, tried again every "
                f"{self.limits.breaker_seconds:g} s"
            )
        elif self.state is ServerState.STARTING and self.cause:
            # The cause is that of the attempt before.
            state = f"{'starting' if self.downloading is None else state} again; before that"
        if self.remedy:
            return ServerUnavailableError(self.name, state, f"{self.cause}; {self.remedy}")
        if self.state is ServerState.STARTING and not self.cause:
            # What it writes meanwhile, such as warnings of a package runner, explains nothing.
            return ServerUnavailableError(self.name, state, "call again in a while")
        last_output = self.stderr[-QUOTED_LINES:] or self.output.strays
        return ServerUnavailableError(self.name, state, self.cause, last_output)


class IdleTimer:
    """Measures for how long a server has not been used."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._configured = anyio.Event()
        self.last_used: float | None = None
        """Time of the latest use; None if it has not been used since it fell asleep."""
        self.ready_at = 0.0

    def configure(self, config: ServerConfig) -> None:
        """Follow other settings, also in a wait that has begun."""
        self._config = config
        self._configured.set()

    async def wait(self) -> None:
        """Wait until the server has been idle for its timeout; returns at once for one never called."""
        while self.last_used is not None or self._config.start != "lazy":
            end = float("inf")
            if self._config.idle_timeout is not None:
                end = max(self.last_used or 0.0, self.ready_at) + self._config.idle_timeout
            if end <= anyio.current_time():
                break
            self._configured = anyio.Event()
            with anyio.CancelScope(deadline=end):
                await self._configured.wait()


class Backoff:
    """Decides how long to wait before a server is connected again; knows neither clock nor server.

    A server that worked and died is restarted at once, as often as it has answered a call meanwhile, unless
    it exits by itself soon after each start. Otherwise the wait doubles each time, with jitter, so that many
    servers do not come back together. After many failures in a row the circuit breaker opens: the server is
    only tried once in a while.
    """

    def __init__(self, limits: Limits, jitter: Callable[[float, float], float] = random.uniform) -> None:
        self.limits, self._jitter = limits, jitter
        self.failures = 0
        """Failures in a row, since the server was last healthy for long enough."""

    @property
    def is_open(self) -> bool:
        """True while the circuit breaker is open."""
        return self.failures >= self.limits.breaker_failures

    def seconds(self, lasted: float, *, useful: bool = False, left: bool = False) -> float:
        """Count the end of a connection, and return the seconds to wait before the next one.

        `lasted` is the number of seconds for which the connection was ready. `useful` is True if the server
        has answered a client, `left` if it went by itself: it was not killed, and no call was pending.
        """
        quick = left and lasted < QUICK_SECONDS
        if (useful and not quick) or lasted >= self.limits.backoff_reset_seconds:
            self.failures = 0
            return 0.0
        self.failures += 1
        if self.is_open:
            return self.limits.breaker_seconds
        if lasted > 0 and self.failures == 1:
            return 0.0
        ceiling = self.limits.backoff_first_seconds * 2.0 ** (self.failures - 1)
        return self._jitter(LEAST_SHARE, 1.0) * min(ceiling, self.limits.backoff_max_seconds)
