"""Requests that wait for their answer: who waits, until when, and while what no time passes for them.

Ids are minted here, from a counter: a foreign, late or doubled reply finds nobody waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import anyio

from mcp_context_proxy.downstream.link import Outgoing, Party
from mcp_context_proxy.errors import CallTimeoutError, DownstreamError


class Pending:
    """One request under way: its caller's future, its deadline, and where its notifications go."""

    __slots__ = (
        "_result",
        "future",
        "give_up_at",
        "held_since",
        "holds",
        "id",
        "method",
        "outgoing",
        "sending",
        "timeout",
        "timer",
    )

    def __init__(
        self,
        request_id: int,
        method: str,
        future: asyncio.Future[None],
        outgoing: Outgoing,
        timeout: float,
        give_up_at: float,
    ) -> None:
        self.id, self.method, self.future, self.outgoing = request_id, method, future, outgoing
        self.timeout, self.give_up_at = timeout, give_up_at
        self.timer: asyncio.TimerHandle | None = None
        self.holds = 0
        """Questions of the server that are open: while there are any, no time passes for the request."""
        self.held_since = 0.0
        self.sending: anyio.CancelScope | None = None
        """While the request waits for the channel to take it."""
        self._result = b""

    @property
    def subject(self) -> str:
        """What it is, for a person."""
        return self.outgoing.subject or "a request"

    def fail(self, error: DownstreamError) -> None:
        """Tell its caller."""
        self.future.set_exception(error)

    def answer(self, result: bytes) -> None:
        """Hand its caller the result."""
        self._result = result
        self.future.set_result(None)

    async def result(self) -> bytes:
        """What it is answered with, which is kept nowhere then.

        Not in the future either: the event loop holds on to that while its waiter goes on.

        Raises:
            DownstreamError: it failed.
        """
        await self.future
        result, self._result = self._result, b""
        return result


class PendingRequests:
    """All requests under way with one peer."""

    def __init__(self, server: str, call_seconds: float, call_max_seconds: float) -> None:
        """Hold none.

        Args:
            server: Name of the server, for messages.
            call_seconds: Default time limit of a request.
            call_max_seconds: Upper bound that progress cannot extend.
        """
        self._server = server
        self._call_seconds, self._call_max_seconds = call_seconds, call_max_seconds
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._by_id: dict[int, Pending] = {}

    @property
    def sent(self) -> list[Outgoing]:
        """What goes with each request."""
        return [pending.outgoing for pending in self._by_id.values()]

    def waiting(self) -> list[Pending]:
        """All whose callers have no answer yet."""
        return [pending for pending in self._by_id.values() if not pending.future.done()]

    def find(self, request_id: object) -> Pending | None:
        """The one by that id, if its caller still waits; a number in a string is how some servers echo it."""
        if isinstance(request_id, str) and request_id.isdecimal():
            request_id = int(request_id)
        if isinstance(request_id, float) and request_id.is_integer():
            request_id = int(request_id)
        pending = self._by_id.get(request_id) if isinstance(request_id, int) else None
        return None if pending is None or pending.future.done() else pending

    def add(self, method: str, outgoing: Outgoing) -> Pending:
        """Begin one: it has an id now, and a deadline."""
        self._last_id += 1
        timeout = outgoing.timeout if outgoing.timeout is not None else self._call_seconds
        give_up_at = self._loop.time() + max(timeout, self._call_max_seconds)
        pending = Pending(self._last_id, method, self._loop.create_future(), outgoing, timeout, give_up_at)
        pending.timer = self._loop.call_later(timeout, self._expire, pending)
        self._by_id[pending.id] = pending
        return pending

    def remove(self, pending: Pending) -> None:
        """End one, however it came out."""
        del self._by_id[pending.id]
        if pending.timer is not None:
            pending.timer.cancel()
        if pending.future.done() and not pending.future.cancelled():
            pending.future.exception()  # retrieved, so that nothing is logged for an abandoned caller

    def extend(self, pending: Pending) -> None:
        """Give one its time limit anew, up to the bound that nothing extends."""
        if pending.timer is not None:
            pending.timer.cancel()
        if pending.holds:
            return
        when = min(self._loop.time() + pending.timeout, pending.give_up_at)
        pending.timer = self._loop.call_at(when, self._expire, pending)

    @contextlib.contextmanager
    def held(self, party: Party | None) -> Iterator[None]:
        """Let no time pass for the requests of one party: somebody is being asked on their behalf."""
        held = [each for each in self._by_id.values() if party is not None and each.outgoing.party is party]
        for pending in held:
            self._hold(pending)
        try:
            yield
        finally:
            for pending in held:
                self._release(pending)

    def _hold(self, pending: Pending) -> None:
        if pending.holds == 0:
            pending.held_since = self._loop.time()
        pending.holds += 1
        if pending.timer is not None:
            pending.timer.cancel()

    def _release(self, pending: Pending) -> None:
        pending.holds -= 1
        if pending.holds == 0 and not pending.future.done():
            pending.give_up_at += self._loop.time() - pending.held_since
            self.extend(pending)

    def _expire(self, pending: Pending) -> None:
        if not pending.future.done():
            pending.fail(CallTimeoutError(self._server, pending.subject, pending.timeout))
            if pending.sending is not None:
                pending.sending.cancel()
