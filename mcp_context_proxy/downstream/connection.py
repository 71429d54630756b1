"""Owns the connection to one server that all share: opens it, keeps its lists, and opens it again when lost.

It alone opens and closes it, in one task. Whatever goes wrong there ends in the server's condition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import anyio

from mcp_context_proxy.authorization.credentials import CredentialFile
from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.redaction import Redactor
from mcp_context_proxy.downstream.condition import Condition, State
from mcp_context_proxy.downstream.connect import Connected, Inbound, connect, describe, innermost
from mcp_context_proxy.downstream.greeting import Greeting
from mcp_context_proxy.downstream.lists import Lists
from mcp_context_proxy.downstream.memory import Memory
from mcp_context_proxy.downstream.output import Output
from mcp_context_proxy.downstream.rest import Rest
from mcp_context_proxy.downstream.starts import Slot, Starts
from mcp_context_proxy.downstream.subscription import Subscription
from mcp_context_proxy.downstream.wishes import Wishes
from mcp_context_proxy.errors import LoginRequiredError
from mcp_context_proxy.threads import in_thread
from mcp_context_proxy.wire.era import Era
from mcp_context_proxy.wire.text import clean

logger = logging.getLogger(__name__)


class Connection:
    """The life of one server's connection."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        condition: Condition,
        lists: Lists,
        rest: Rest,
        wishes: Wishes,
        output: Output,
        memory: Memory | None,
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
        self._greeting = Greeting(memory)
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

    async def keep(self, starts: Starts) -> None:
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
            if self._condition.state is State.ASLEEP:
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

    async def _connect_once(self, starts: Starts) -> float:
        """Connect and stay so until the connection is lost; return for how many seconds it was ready."""
        ready_at: float | None = None
        slot, seconds = Slot(starts), self._config.connect_timeout
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
            elif self._condition.state is not State.ASLEEP:
                self._fail(f"it {connected.loss.cause}")
        except Exception as error:
            # boundary: whatever a downstream server or its transport does stays with this server
            self._note(innermost(error))
            self._fail(describe(error))
        finally:
            slot.free()
            self._condition.connected = None
            self._condition.settled.set()
            if self._condition.state is not State.ASLEEP:
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
