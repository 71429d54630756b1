"""Consent of a person to a call; and calls of modern clients that wait for input meanwhile.

The modern era has no requests to clients: the server's request goes back as the call's result
(`input_required`), and the client calls again with the response. Meanwhile the call goes on: it waits under
an unguessable handle, for a limited time, for the principal that made it and for nobody else, and is resumed
by the handle once.

Two things demand it: ``"ask"`` in the configuration, for a tool or its danger class, and a tool that wants
its user asked. Of the second a host takes care where it calls the tool by the name that it listed, because
the definition says so. Through one of the proxy's own tools the host sees no such thing, so the proxy asks.

The client is asked by elicitation: a handshake-era client by a request, a modern one by the result of the
call, which it makes again with the answer. A call is asked about once, however often its server asks for
input afterwards. Without an answer nothing is sent, and the result of the call says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw, Struct, field

from mcp_context_proxy.context.session import Session, SessionContext
from mcp_context_proxy.downstream import Ask, Notify
from mcp_context_proxy.items import Tool, ToolClass
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Members,
    RequestError,
    nests_deeper,
)
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, clean, one_line, quoted
from mcp_context_proxy.server import Caller
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.server.questions import (
    BLOCKING_BYTES,
    ELICITATION,
    ask_client,
    input_required,
    names_secret,
)
from mcp_context_proxy.system.threads import in_thread, in_thread_if
from mcp_context_proxy.trust import ACTING, person_in

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

    Raises `RequestError` if they are no object.
    """
    given = params.get("inputResponses", Raw(b"{}"))
    try:
        # They may carry images, and have as many members as the client likes.
        return await in_thread_if(len(given) > envelope.TAKEN_APART_BYTES, envelope.members, given)
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
        returns; `work` makes the call, and may raise anything. Raises `RequestError` if the handle is
        unknown, or that of another caller or call, or an answer is unusable.
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
        rights = ACTING.get()
        own = sum(person_in(each.purpose[0]) == rights.person for each in self.waiting.values())
        if len(self.waiting) >= self._limit or own >= rights.share(self._limit):
            raise RequestError(
                INTERNAL_ERROR, f"busy: {len(self.waiting)} calls wait for input, {own} of yours"
            )
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


ARGUMENTS_SHOWN = 20
"""Arguments that a question names, and entries of a list or an object in one; it counts the others."""

ARGUMENT_CHARACTERS = 400
"""Characters of one argument that a question shows, and of a text in it; it says how many there are."""

VALUES_SHOWN = 40
"""Values inside one argument that a question shows: more than fit into its characters."""

NESTING_SHOWN = 64
"""Levels of nested arguments that a question shows; no honest call has more."""

HIDDEN: Final = "[hidden]"
"""Stands for the value of an argument whose name says that it is a secret."""

_FORM: Final = envelope.raw({"type": "object", "properties": {}})
"""A form without fields: the person only accepts or declines."""

_ACCEPTED: Final = b"accept"


class Consent(Struct, frozen=True, kw_only=True, eq=False):
    """Asks the person at the client whether a call may be made."""

    pending: PendingInput
    changes: ChangeNotifier
    redact: Callable[[str], str]
    """Removes the secrets that the proxy knows from a text."""
    seconds: float
    """Time for a person to answer."""
    most: int
    """Calls with consent whose servers ask for input, of which is known that nobody is asked again."""
    _agreed: dict[bytes, float] = field(default_factory=dict)
    """Such calls, each with the time at which it is forgotten."""

    async def obtain(
        self, tool: Tool, params: Members, caller: Caller, session: SessionContext | None, through: str | None
    ) -> Members | bytes:
        """Return the params to go on with, or the result of the call if it must not or cannot yet be made.

        The list of `session` gets the tool where the host has to call it itself; `through` is the name that
        was called, if it is not the listed one. Raises `RequestError` if the call continues one that nobody
        knows; it was not sent.
        """
        raw = params.get("arguments", Raw(b"{}"))
        if (name := await in_thread_if(len(raw) > BLOCKING_BYTES, repeated_name, raw)) is not None:
            shown = quoted(one_line(self.redact(clean(name)), NAME_CHARACTERS))
            why = (
                f"its arguments name {shown} twice, so a person would be shown one value, and another may run"
            )
            return _not_run(caller.name_of(tool), why)
        if caller.era is Era.MODERN and self._continues(tool, params, caller):
            return params
        try:
            question = await self._question(tool, params)
            if caller.era is Era.MODERN:
                verdict = await self._ask_by_result(tool, params, caller, question)
            else:
                verdict = f"nobody answered within {self.seconds:g} s".encode()
                with anyio.move_on_after(self.seconds):
                    verdict = await _verdict(caller, caller.ask, question)
        except RequestError as error:
            if "requestState" in params:
                raise RequestError(
                    error.code, f"{caller.name_of(tool)} was not run: {error.message}"
                ) from error
            why = one_line(error.message, NAME_CHARACTERS)
            return self._cannot_ask(tool, caller, session, through, why)
        if verdict == _ACCEPTED:
            return {key: raw for key, raw in params.items() if key not in eras.RETRY_KEYS}
        if envelope.starts_with(verdict, b"{"):
            return verdict
        return _not_run(caller.name_of(tool), verdict.decode())

    async def remember(self, tool: Tool, params: Members, caller: Caller, result: bytes) -> None:
        """Note that a call with consent goes on if its result asks for input: nobody is asked again."""
        if caller.era is not Era.MODERN or (parts := await input_required(result)) is None:
            return
        now = anyio.current_time()
        for key in [key for key, until in self._agreed.items() if until <= now]:
            del self._agreed[key]
        if len(self._agreed) >= self.most:
            del self._agreed[next(iter(self._agreed))]
        self._agreed[_digest(tool, params, caller, parts.get("requestState"))] = now + self.seconds

    def _continues(self, tool: Tool, params: Members, caller: Caller) -> bool:
        """Return whether a call is the next request of one that has consent; each can be continued once."""
        if not any(key in params for key in eras.RETRY_KEYS):
            return False
        until = self._agreed.pop(_digest(tool, params, caller, params.get("requestState")), 0.0)
        return until > anyio.current_time()

    async def _question(self, tool: Tool, params: Members) -> Members:
        raw = params.get("arguments", Raw(b"{}"))
        lines = await in_thread_if(len(raw) > BLOCKING_BYTES, described_arguments, raw, self.redact)
        name = one_line(self.redact(clean(tool.name)), NAME_CHARACTERS)
        destroys = tool.tool_class is ToolClass.DESTRUCTIVE
        harm = f" It may delete or overwrite something: {tool.class_reason}." if destroys else ""
        arguments = f"Arguments:\n{lines}" if lines else "It gets no arguments."
        message = f"May tool {name!r} of server {tool.server!r} be called?{harm}\n{arguments}"
        return {"message": envelope.raw(message), "requestedSchema": _FORM}

    async def _ask_by_result(self, tool: Tool, params: Members, caller: Caller, question: Members) -> bytes:
        async def work(ask: Ask, notify: Notify) -> bytes:
            return await _verdict(caller, ask, question)

        subject = f"consent {tool.server} {tool.name}"
        return await self.pending.call(caller.principal, subject, params, caller.notify, work)

    def _cannot_ask(
        self, tool: Tool, caller: Caller, session: SessionContext | None, through: str | None, why: str
    ) -> bytes:
        name = caller.name_of(tool)
        if tool.asked_by:
            return _not_run(
                name,
                f"a person has to confirm it, by {tool.asked_by}, and cannot be asked: {why}. Tell the user, "
                "who can use a client that supports elicitation, or change that setting",
            )
        listed = ""
        if session is not None:
            if isinstance(session, Session):
                self.changes.show(session, [tool.exposed_name])
            else:
                session.shown[tool.exposed_name] = None
            listed = ", which the list of tools has from now on"
        return _not_run(
            name,
            f"it demands that the user is asked, and through {through} that is not possible here: {why}. "
            f"Call {name} itself{listed}, so that the host asks. If the host does not list it, "
            'tell the user, who can set include = "always" for it',
        )


async def _verdict(caller: Caller, ask: Ask, question: Members) -> bytes:
    """Ask, and return ``accept`` or the reason why not."""
    answer = await ask_client(caller, ask, ELICITATION, question)
    action = envelope.text(envelope.members_of(answer).get("action"))
    if action == "accept":
        return _ACCEPTED
    if action == "decline":
        return b"the user declined; do not try again unless the user says so"
    return b"the question was closed without an answer"


def _not_run(name: str, why: str) -> bytes:
    text = f"{name} was not run: {why}."
    return envelope.encode({"content": [{"type": "text", "text": text}], "isError": True})


def _digest(tool: Tool, params: Members, caller: Caller, state: Raw | None) -> bytes:
    """Return a digest of a call: who makes it, the tool, the arguments in any order of members, the state."""
    raw = bytes(params.get("arguments", b"{}"))
    try:
        arguments = json.dumps(json.loads(raw), sort_keys=True)  # not msgspec: its numbers end at 64 bits
    except (ValueError, RecursionError):
        arguments = raw.hex()
    call = json.dumps([caller.principal, tool.server, tool.name, arguments, envelope.text(state)])
    return hashlib.sha256(call.encode()).digest()


def repeated_name(raw: bytes | Raw) -> str | None:
    """Return a name that an object in the arguments of a call has twice; None if there is none.

    Servers differ in which of the two they take. What cannot be shown in any case is not looked at.
    """
    encoded = bytes(raw)
    if nests_deeper(encoded, NESTING_SHOWN):
        return None
    found: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> None:
        if len({name for name, _ in pairs}) < len(pairs):
            found.append(Counter(name for name, _ in pairs).most_common(1)[0][0])

    try:
        json.loads(encoded, object_pairs_hook=members)
    except ValueError:
        return None
    return found[0] if found else None


def described_arguments(raw: bytes | Raw, redact: Callable[[str], str]) -> str:
    """Return the arguments of a call for a person: clean, bounded, without secrets, one on each line."""
    encoded = bytes(raw)
    if nests_deeper(encoded, NESTING_SHOWN):
        return f"({len(encoded):,} bytes, nested too deeply to be shown)"
    try:
        arguments = json.loads(encoded)  # not msgspec: its numbers end at 64 bits
    except ValueError:
        return f"({len(encoded):,} bytes that cannot be read)"
    return "\n".join(_lines(arguments, redact))


def _lines(arguments: Any, redact: Callable[[str], str]) -> Iterator[str]:
    if not isinstance(arguments, dict):
        arguments = {"(not an object)": arguments}
    for name, value in islice(arguments.items(), ARGUMENTS_SHOWN):
        label = one_line(redact(clean(name[: 10 * NAME_CHARACTERS])), NAME_CHARACTERS)
        shown = _printable_member(name, value, redact, [VALUES_SHOWN])
        yield f"- {label}: {_cut(one_line(json.dumps(shown, ensure_ascii=False)))}"
    if (more := len(arguments) - ARGUMENTS_SHOWN) > 0:
        yield f"- … and {more:,} more arguments"


def _printable_member(name: str, value: Any, redact: Callable[[str], str], left: list[int]) -> Any:
    secret = value not in (None, "", True, False) and names_secret(name[:NAME_CHARACTERS])
    return HIDDEN if secret else _printable(value, redact, left)


def _printable(value: Any, redact: Callable[[str], str], left: list[int]) -> Any:
    """Return a value as it may be shown; recursion is bounded by the depth that was checked before.

    ``left`` has the number of values that may still be shown, and is counted down.
    """
    left[0] -= 1
    if left[0] < 0:
        return "…"
    if isinstance(value, str):
        # A secret is found only where nothing hides in it, and where it is whole.
        return _cut(redact(clean(value[: 10 * ARGUMENT_CHARACTERS])), len(value))
    if isinstance(value, list):
        more = [f"… and {len(value) - ARGUMENTS_SHOWN:,} more"] * (len(value) > ARGUMENTS_SHOWN)
        return [*(_printable(each, redact, left) for each in value[:ARGUMENTS_SHOWN]), *more]
    if isinstance(value, dict):
        shown: dict[str, Any] = {}
        for name, each in islice(value.items(), ARGUMENTS_SHOWN):
            if left[0] <= 0:
                shown["…"] = "…"
                break
            label = one_line(redact(clean(name[: 10 * NAME_CHARACTERS])), NAME_CHARACTERS)
            while label in shown:  # no member hides another
                label += "′"
            shown[label] = _printable_member(name, each, redact, left)
        if len(value) > ARGUMENTS_SHOWN:
            shown["…"] = f"and {len(value) - ARGUMENTS_SHOWN:,} more"
        return shown
    return value


def _cut(text: str, length: int | None = None) -> str:
    length = max(length or 0, len(text))
    if len(text) <= ARGUMENT_CHARACTERS and length <= 10 * ARGUMENT_CHARACTERS:
        return text
    return f"{text[:ARGUMENT_CHARACTERS]} … [cut here: {ARGUMENT_CHARACTERS:,} of {length:,} characters]"
