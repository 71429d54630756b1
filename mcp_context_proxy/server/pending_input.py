"""Calls of modern clients that wait, while they run, for what their handshake-era server asks the client.

The modern era has no requests to clients: the question goes back as the call's result (`input_required`),
and the client calls again with the answer. Meanwhile the call goes on: it is parked under an unguessable
handle, for a limited time, for whoever made it and for nobody else, and resumed by the handle once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from mcp_context_proxy.downstream.link import Ask, Notify
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, Members, RequestError

HANDLE_BYTES = 24
"""192 random bits: a handle is all that a client shows to go on."""

UNKNOWN = "unknown or expired requestState; make the call anew, without it"

Work = Callable[[Ask, Notify], Awaitable[bytes]]
"""The call itself: how it asks the client and where its notifications go in, its encoded result out."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """What was called by whom; a handle is good for the same again and for nothing else."""

    principal: str | None
    method: str
    params: Any
    """Decoded, without what differs between a call and its continuation."""


@dataclass(slots=True, eq=False)
class _Question:
    request: dict[str, Any]
    answer: asyncio.Future[bytes]


@dataclass(slots=True, eq=False)
class _Call:
    purpose: Purpose
    listener: Notify | None
    """Of the request that waits for it; None while it is parked."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    questions: dict[str, _Question] = field(default_factory=dict)
    asked: int = 0
    news: anyio.Event = field(default_factory=anyio.Event)
    result: bytes | None = None
    failure: BaseException | None = None
    expiry: asyncio.TimerHandle | None = None

    @property
    def done(self) -> bool:
        return self.result is not None or self.failure is not None

    def notify(self, method: str, params: Members) -> None:
        """To the request that waits for the call; while it is parked nobody listens."""
        if self.listener is not None:
            self.listener(method, params)


class PendingInput:
    """The calls that may be, or are, parked."""

    def __init__(self, limit: int, seconds: float) -> None:
        """Park at most `limit` calls, each for `seconds`."""
        self._limit, self._seconds = limit, seconds
        self._parked: dict[str, _Call] = {}
        self._group: TaskGroup | None = None

    @property
    def waiting(self) -> int:
        """How many calls wait for their client to come back."""
        return len(self._parked)

    async def run(self) -> None:
        """Own the calls until cancelled."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                await anyio.sleep_forever()
        finally:
            self._group = None
            for call in self._parked.values():
                if call.expiry is not None:
                    call.expiry.cancel()

    async def call(
        self, principal: str | None, subject: str, params: Members, listener: Notify, work: Work
    ) -> bytes:
        """Make a call, or go on with the one its params name: its result, or what is to be answered first.

        Args:
            principal: Who calls.
            subject: What is called, beside the params.
            params: As they came.
            listener: Is told meanwhile.
            work: The call itself.

        Raises:
            RequestError: what the params name is not known, not this caller's, or not the same call.
            Exception: what `work` raises.
        """
        same = {key: raw for key, raw in params.items() if key not in eras.RETRY_KEYS and key != "_meta"}
        purpose = Purpose(principal, subject, envelope.value(envelope.encode(same)))
        if "requestState" not in params:
            return await self.begin(purpose, listener, work)
        state = envelope.text(params["requestState"]) or ""
        return await self.resume(state, _answers(params), purpose, listener)

    async def begin(self, purpose: Purpose, listener: Notify, work: Work) -> bytes:
        """Make a call: its result, or what the client has to answer first. `listener` is told meanwhile.

        Raises:
            Exception: what `work` raises.
        """
        if self._group is None:
            raise RequestError(INTERNAL_ERROR, "the proxy is stopping")
        call = _Call(purpose, listener)
        self._group.start_soon(self._do, call, work)
        return await self._outcome(call, listener)

    async def resume(self, state: str, answers: Members, purpose: Purpose, listener: Notify) -> bytes:
        """Go on with a parked call: its result, or what the client has to answer next.

        Raises:
            RequestError: it is not known, not this caller's, not the same call, or an answer is unusable.
            Exception: what its `work` raises.
        """
        call = self._parked.get(state)
        if call is None or call.purpose != purpose:
            raise RequestError(INVALID_PARAMS, UNKNOWN)
        for key in call.questions:
            if key in answers and not envelope.starts_with(answers[key], b"{"):
                raise RequestError(INVALID_PARAMS, f"the answer {key!r} in inputResponses must be an object")
        del self._parked[state]
        if call.expiry is not None:
            call.expiry.cancel()
        for key in list(call.questions):
            if key in answers:
                question = call.questions.pop(key)
                if not question.answer.done():
                    question.answer.set_result(bytes(answers[key]))
        return await self._outcome(call, listener)

    async def _do(self, call: _Call, work: Work) -> None:
        async def ask(method: str, params: Members) -> bytes:
            return await self._ask(call, method, params)

        with call.scope:
            try:
                call.result = await work(ask, call.notify)
            except Exception as error:  # boundary: it is raised where the call is waited for
                call.failure = error
        if call.scope.cancelled_caught:
            call.failure = RequestError(INVALID_PARAMS, UNKNOWN)
        call.news.set()

    async def _ask(self, call: _Call, method: str, params: Members) -> bytes:
        """Have the client asked, now or when it next waits for the call; its answer."""
        if len(self._parked) >= self._limit:
            raise RequestError(INTERNAL_ERROR, f"busy: {len(self._parked)} calls wait for input")
        call.asked += 1
        key = f"input-{call.asked}"
        asked = {name: raw for name, raw in params.items() if name != eras.ELICITATION_ID}
        request: dict[str, Any] = {"method": method, **({"params": asked} if asked else {})}
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        call.questions[key] = _Question(request, answer)
        call.news.set()
        try:
            return await answer
        finally:
            call.questions.pop(key, None)

    async def _outcome(self, call: _Call, listener: Notify) -> bytes:
        call.listener = listener
        try:
            while not call.done and not call.questions:
                call.news = anyio.Event()
                await call.news.wait()
        except BaseException:
            call.scope.cancel()
            raise
        finally:
            call.listener = None
        if call.failure is not None:
            raise call.failure
        return call.result if call.result is not None else self._park(call)

    def _park(self, call: _Call) -> bytes:
        state = secrets.token_urlsafe(HANDLE_BYTES)
        self._parked[state] = call
        call.expiry = asyncio.get_running_loop().call_later(self._seconds, self._expire, state)
        requests = {key: question.request for key, question in call.questions.items()}
        return envelope.encode(
            {"resultType": "input_required", "inputRequests": requests, "requestState": state}
        )

    def _expire(self, state: str) -> None:
        """Nobody came back: the call is cancelled, at its server too."""
        call = self._parked.pop(state, None)
        if call is not None:
            call.scope.cancel()


def _answers(params: Members) -> Members:
    try:
        return envelope.members(params.get("inputResponses", Raw(b"{}")))
    except msgspec.DecodeError:
        raise RequestError(INVALID_PARAMS, "inputResponses must be an object") from None
