"""Calls of modern clients that wait, while they run, for input that their handshake-era server asked for.

The modern era has no requests to clients: the server's request goes back as the call's result
(`input_required`), and the client calls again with the response. Meanwhile the call goes on: it waits under
an unguessable handle, for a limited time, for the principal that made it and for nobody else, and is resumed
by the handle once.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw, Struct, field

from mcp_context_proxy.downstream.link import Ask, Notify
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.system.threads import in_thread

HANDLE_BYTES = 24
"""Random bytes of a handle: it is all that a client shows to resume a call."""

UNKNOWN = "unknown or expired requestState; make the call again, without it"

Work = Callable[[Ask, Notify], Awaitable[bytes]]
"""Makes the call: takes the ways to ask and to notify the client, returns the encoded result."""


class _Question(Struct, eq=False):
    request: dict[str, Any]
    answer: asyncio.Future[bytes]


class _ParkedCall(Struct, eq=False):
    purpose: tuple[str | None, str, Any]
    """Principal, subject and params of the call; a continuation must have the same."""
    listener: Notify | None
    """Takes notifications for the request that waits for the call; None while no request does."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    questions: dict[str, _Question] = field(default_factory=dict)
    asked: int = 0
    progressed: anyio.Event = field(default_factory=anyio.Event)
    result: bytes | None = None
    failure: BaseException | None = None
    expiry: asyncio.TimerHandle | None = None

    def notify(self, method: str, params: Members) -> None:
        if self.listener is not None:
            self.listener(method, params)


async def _identity(params: Members) -> Any:
    """Return a key that is equal for equal params; large ones are equal only byte for byte."""
    encoded = envelope.encode(params)
    if len(encoded) <= envelope.TAKEN_APART_BYTES and (known := envelope.value_or_none(encoded)) is not None:
        return known
    return await in_thread(lambda: hashlib.sha256(encoded).digest())


async def _answers(params: Members) -> Members:
    """Return the client's answers by the keys of the questions.

    Raises:
        RequestError: they are no object.
    """
    given = params.get("inputResponses", Raw(b"{}"))
    try:
        # They may carry images, and have as many members as the client likes.
        large = len(given) > envelope.TAKEN_APART_BYTES
        return await in_thread(envelope.members, given) if large else envelope.members(given)
    except msgspec.DecodeError:
        raise RequestError(INVALID_PARAMS, "inputResponses must be an object") from None


class PendingInput:
    """The calls that wait for input, by handle."""

    def __init__(self, limit: int, seconds: float) -> None:
        """Let at most `limit` calls wait, each for `seconds`."""
        self._limit, self._seconds = limit, seconds
        self.waiting: dict[str, _ParkedCall] = {}
        """Calls that wait for their client to come back, by handle."""
        self.prefix = ""
        """Beginning of each handle: the replica at which the call waits, where there are several."""
        self._group: TaskGroup | None = None

    async def run(self) -> None:
        """Own the calls until cancelled."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                await anyio.sleep_forever()
        finally:
            self._group = None
            for call in self.waiting.values():
                if call.expiry is not None:
                    call.expiry.cancel()

    async def call(
        self, principal: str | None, subject: str, params: Members, listener: Notify, work: Work
    ) -> bytes:
        """Make a call, or resume the one that its params name; return its result, or one that asks for input.

        A call is the same if principal, `subject` and params are. `listener` takes notifications until this
        returns; `work` makes the call.

        Raises:
            RequestError: the handle is unknown, another caller's or another call's, or an answer is unusable.
            Exception: any that `work` raises.
        """
        same = {key: raw for key, raw in params.items() if key not in eras.RETRY_KEYS and key != "_meta"}
        purpose = principal, subject, await _identity(same)
        if "requestState" in params:
            call = self._resume(params, await _answers(params), purpose)
        else:
            if self._group is None:
                raise RequestError(INTERNAL_ERROR, "the proxy is stopping")
            call = _ParkedCall(purpose, listener)
            self._group.start_soon(self._run, call, work)
        return await self._outcome(call, listener)

    def _resume(self, params: Members, answers: Members, purpose: tuple[str | None, str, Any]) -> _ParkedCall:
        """Hand the client's answers to the call that waits for them."""
        state = envelope.text(params["requestState"]) or ""
        call = self.waiting.get(state)
        if call is None or call.purpose != purpose:
            raise RequestError(INVALID_PARAMS, UNKNOWN)
        for key in call.questions:
            if key in answers and not envelope.starts_with(answers[key], b"{"):
                raise RequestError(INVALID_PARAMS, f"the answer {key!r} in inputResponses must be an object")
        del self.waiting[state]
        if call.expiry is not None:
            call.expiry.cancel()
        for key in list(call.questions):
            if key in answers:
                question = call.questions.pop(key)
                if not question.answer.done():
                    question.answer.set_result(bytes(answers[key]))
        return call

    async def _run(self, call: _ParkedCall, work: Work) -> None:
        async def ask(method: str, params: Members) -> bytes:
            return await self._ask(call, method, params)

        with call.scope:
            try:
                call.result = await work(ask, call.notify)
            except Exception as error:  # boundary: raised where the request waits for the call
                call.failure = error
        if call.scope.cancelled_caught:
            call.failure = RequestError(INVALID_PARAMS, UNKNOWN)
        call.progressed.set()

    async def _ask(self, call: _ParkedCall, method: str, params: Members) -> bytes:
        """Have the client asked, now or when it next waits for the call, and return its response."""
        if len(self.waiting) >= self._limit:
            raise RequestError(INTERNAL_ERROR, f"busy: {len(self.waiting)} calls wait for input")
        call.asked += 1
        key = f"input-{call.asked}"
        asked = {name: raw for name, raw in params.items() if name != eras.ELICITATION_ID}
        request: dict[str, Any] = {"method": method, **({"params": asked} if asked else {})}
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        call.questions[key] = _Question(request, answer)
        call.progressed.set()
        try:
            return await answer
        finally:
            call.questions.pop(key, None)

    async def _outcome(self, call: _ParkedCall, listener: Notify) -> bytes:
        """Wait until the call has ended or asks the client; if the request is cancelled, so is the call."""
        call.listener = listener
        try:
            while call.result is None and call.failure is None and not call.questions:
                call.progressed = anyio.Event()
                await call.progressed.wait()
        except BaseException:
            call.scope.cancel()
            raise
        finally:
            call.listener = None
        if call.failure is not None:
            raise call.failure
        if call.result is not None:
            return call.result
        state = self.prefix + secrets.token_urlsafe(HANDLE_BYTES)
        self.waiting[state] = call
        call.expiry = asyncio.get_running_loop().call_later(self._seconds, self._expire, state)
        requests = {key: question.request for key, question in call.questions.items()}
        return envelope.encode(
            {"resultType": "input_required", "inputRequests": requests, "requestState": state}
        )

    def _expire(self, state: str) -> None:
        """Cancel a call whose client has not come back, at its server too."""
        call = self.waiting.pop(state, None)
        if call is not None:
            call.scope.cancel()
