"""Passes a request to its downstream server and the result back, changing only what the hop demands.

Knows neither SDK nor front: method and raw params in, encoded result out. What a server asks of the client
meanwhile is relayed in each of the four pairs of eras: as a request, as it came, by asking and calling
again, or by parking the call.

Turns the refusal by which a handshake-era server sends a person to a URL into what modern clients know.

There a server asks by its result. The call has not run, so the client makes it again when the person has
been there; nothing is parked meanwhile.

Passes on what a server tells about a request while it is under way, to a client that asked for it.

Progress is thinned: what comes too fast waits, and the newest replaces what waited. The last is never lost:
it goes out before the answer. Progress that goes backwards is left out. What stands still is passed on, as a
sign of life that a client may prolong its patience by.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from mcp_context_proxy import __version__
from mcp_context_proxy.context.session import DEFAULT_LOG_LEVEL
from mcp_context_proxy.downstream.backpressure import Bucket
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.link import Ask, Notify, Outgoing, Party
from mcp_context_proxy.errors import BadAnswerError, InputMissingError, RemoteError
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, Members, RequestError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.validation import reaches
from mcp_context_proxy.server import caller as server_caller
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.pending_input import PendingInput

if TYPE_CHECKING:
    from mcp_context_proxy.server.tracing import Tracing


METHOD = "elicitation/create"


def url_question(error: RemoteError, params: Members, caller: Caller) -> bytes | None:
    """The result that asks the client instead; None where the refusal is another one, or is final.

    Args:
        error: By which the server refused.
        params: Of the request; they may answer such a question already.
        caller: A client of the modern era.

    Raises:
        RequestError: the client did not declare that it can be asked so.
    """
    wanted = _wanted(error)
    if not wanted or _declined(params):
        return None
    if "url" not in server_caller.capabilities(caller).get("elicitation", {}):
        needed: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"url": {}}}}
        raise RequestError(eras.MISSING_CAPABILITY, error.remote_message, needed)
    requests = {key: {"method": METHOD, "params": asked} for key, asked in wanted.items()}
    return envelope.encode({"resultType": "input_required", "inputRequests": requests})


def _wanted(error: RemoteError) -> Mapping[str, Any]:
    """The URLs that the person is sent to, by the id the server gave each; the modern era gives none."""
    if error.code != eras.URL_ELICITATION_REQUIRED or not isinstance(error.data, Raw):
        return {}
    data = envelope.value(error.data)
    entries = data.get("elicitations") if isinstance(data, dict) else None
    found = {}
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict) and isinstance(entry.get("url"), str):
            rest = {"mode": "url", **entry}
            found[str(rest.pop(eras.ELICITATION_ID, number))] = rest
    return found


def _declined(params: Members) -> bool:
    """Whether the person was asked before and declined."""
    answers = envelope.value(params["inputResponses"]) if "inputResponses" in params else None
    given = answers.values() if isinstance(answers, dict) else ()
    return any(isinstance(answer, dict) and answer.get("action") != "accept" for answer in given)


PROGRESS_PER_SECOND = 10
"""Of one call, and as many at once, so 20 in any second: more shows nobody anything."""


class ProgressRelay:
    """Takes the notifications of one request. A context manager: leave it when the answer is there."""

    def __init__(self, caller: Caller, params: Members) -> None:
        """Listen for a request as its client sent it."""
        meta = eras.meta_of(params)
        self._caller = caller
        self._token, self._level = meta.get("progressToken"), envelope.text(meta.get(eras.LOG_LEVEL_KEY))
        self._rate = Bucket(PROGRESS_PER_SECOND, PROGRESS_PER_SECOND)
        self._waiting: Members | None = None
        self._reached = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def __call__(self, method: str, params: Members) -> None:
        """Take a notification."""
        if self._over:
            return
        if method == "notifications/progress" and self._token is not None and self._goes_on(params):
            self._waiting = {**params, "progressToken": self._token}
            if self._timer is None:
                self._tell_progress()
        elif method == "notifications/message":
            said, session = envelope.text(params.get("level")), self._caller.session
            if session.wants_level(said) if session is not None else reaches(said, self._level):
                self._caller.notify(method, params)

    def __enter__(self) -> ProgressRelay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        # Nobody waits for the progress of what was cancelled.
        if kind is None or issubclass(kind, Exception):
            self._deliver()

    def _goes_on(self, params: Members) -> bool:
        progress = envelope.number(params.get("progress"))
        if progress is None or progress < self._reached:
            return False
        self._reached = progress
        return True

    def _tell_progress(self) -> None:
        self._timer = None
        if self._waiting is None:
            return
        if self._rate.take():
            self._deliver()
        else:
            later = 1 / PROGRESS_PER_SECOND
            self._timer = asyncio.get_running_loop().call_later(later, self._tell_progress)

    def _deliver(self) -> None:
        if self._waiting is not None:
            self._caller.notify("notifications/progress", self._waiting)
            self._waiting = None


SERVER_INFO = envelope.raw(
    {"name": "mcp-context-proxy", "title": "MCP Context Proxy", "version": __version__}
)

INPUT_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Whose modern results may be a question."""

INPUT_ROUNDS = 10
"""How often a modern server may ask a handshake-era client during one request; the SDK's number."""

HOP_ERRORS = frozenset({-32000, -32001, -32020, -32022})
"""Codes about the connection between us and the server; a client would take them to be about its own."""


class Forwarder:
    """Forwards requests on behalf of callers."""

    def __init__(self, parked: PendingInput) -> None:
        self._parked = parked
        self.tracing: Tracing | None = None
        """Makes spans, where somebody collects them."""

    async def forward(
        self, client: DownstreamClient, method: str, params: Members, caller: Caller, subject: str
    ) -> bytes:
        """Send a request to a downstream server; the result, fitted to the caller's era.

        Args:
            client: Of the server.
            method: As the caller sent it.
            params: With names as the server knows them.
            caller: Who asked.
            subject: For error messages, such as ``tool 'create_issue'``.

        Raises:
            DownstreamError: see `Link.request`.
            RequestError: the client was asked something and refused, or goes on with what is not known.
        """
        with ProgressRelay(caller, params) as listener:
            result = await self._result(client, method, params, caller, subject, listener)
        if caller.era is Era.HANDSHAKE and client.era is not Era.MODERN:
            # Nothing to fit, so nothing is parsed: what came is what goes.
            return result
        return eras.fit_result_to_client(method, result, caller.era, SERVER_INFO)

    async def _result(
        self,
        client: DownstreamClient,
        method: str,
        params: Members,
        caller: Caller,
        subject: str,
        listener: Notify,
    ) -> bytes:
        """The result as the server means it, with what it asks on the way answered in the caller's manner."""
        if caller.era is Era.HANDSHAKE:
            outgoing = _outgoing(client, params, caller, subject, server_caller.asker(caller), listener)
            result = await self._call(client, method, params, outgoing)
            if client.era is Era.MODERN:
                return await self._gather_input(client, method, params, outgoing, result)
            return result
        if client.era is not Era.HANDSHAKE or method not in INPUT_METHODS:
            outgoing = _outgoing(client, params, caller, subject, None, listener)
            return await self._call(client, method, params, outgoing)
        try:
            if _may_ask(params, caller):
                return await self._park(client, method, params, caller, subject, listener)
            outgoing = _outgoing(client, params, caller, subject, None, listener)
            return await self._call(client, method, params, outgoing)
        except RemoteError as error:
            question = url_question(error, params, caller)
            if question is None:
                raise
            return question

    async def _park(
        self,
        client: DownstreamClient,
        method: str,
        params: Members,
        caller: Caller,
        subject: str,
        listener: Notify,
    ) -> bytes:
        """A call of a modern client at a server that may ask by a request of its own."""

        async def work(ask: Ask, notify: Notify) -> bytes:
            limited = server_caller.asker(caller, ask)
            outgoing = _outgoing(client, params, caller, subject, limited, notify)
            return await self._call(client, method, params, outgoing)

        return await self._parked.call(caller.principal, f"{client.name} {method}", params, listener, work)

    async def _gather_input(
        self, client: DownstreamClient, method: str, params: Members, outgoing: Outgoing, result: bytes
    ) -> bytes:
        """Answer what a modern server asks by asking a handshake-era client, until it has enough."""
        for _ in range(INPUT_ROUNDS):
            parts = envelope.members(result)
            kind = eras.result_type(parts)
            if kind == "complete":
                return result
            if kind != "input_required":
                raise BadAnswerError(client.name, f"with a result of type {kind[:40]!r}, which is not known")
            wanted = envelope.members(parts.get("inputRequests", Raw(b"{}")))
            try:
                answers = {
                    key: Raw(await _ask(outgoing.ask, envelope.members(each))) for key, each in wanted.items()
                }
            except RequestError as error:
                raise InputMissingError(client.name, error.message) from error
            retry = {**params, "inputResponses": envelope.raw(answers)}
            retry.pop("requestState", None)
            if "requestState" in parts:
                retry["requestState"] = parts["requestState"]
            result = await self._call(client, method, retry, outgoing)
        raise InputMissingError(client.name, f"it asked more than {INPUT_ROUNDS} times")

    async def _call(
        self, client: DownstreamClient, method: str, params: Members, outgoing: Outgoing
    ) -> bytes:
        if self.tracing is None:
            return await client.call(method, params, outgoing)
        with self.tracing.downstream(client.name, method, params) as traced:
            result = await client.call(method, traced.params, outgoing)
            traced.answered(result)
            return result


def request_error(error: RemoteError, spoken: Era) -> RequestError:
    """A downstream JSON-RPC error as one of ours: as it came, unless its code is of another hop or era."""
    if error.code in HOP_ERRORS:
        return RequestError(INTERNAL_ERROR, str(error))
    return RequestError(eras.error_code(error.code, spoken), error.remote_message, error.data)


def _outgoing(
    client: DownstreamClient,
    params: Members,
    caller: Caller,
    subject: str,
    ask: Ask | None,
    listener: Notify,
) -> Outgoing:
    meta = eras.meta_of(params)
    level = meta.get(eras.LOG_LEVEL_KEY)
    session = caller.session
    if session is None and client.era is Era.HANDSHAKE and level is not None:
        client.subscriptions.include_log_level(envelope.text(level) or "")
    if session is not None:
        # A handshake-era server is told once, not with each request, and only what a client asked for.
        said = session.log_level or (DEFAULT_LOG_LEVEL if client.era is Era.MODERN else None)
        level = None if said is None else envelope.raw(said)
    return Outgoing(
        subject=subject,
        capabilities=caller.capabilities,
        client_info=caller.client_info,
        log_level=level,
        on_notification=listener,
        wants_progress="progressToken" in meta,
        party=Party(caller.principal) if session is None else session.party,
        ask=ask,
        on_counted=caller.passed_on,
    )


def _may_ask(params: Members, caller: Caller) -> bool:
    return "requestState" in params or bool(server_caller.capabilities(caller))


async def _ask(ask: Ask | None, wanted: Members) -> bytes:
    if ask is None:
        raise RequestError(INTERNAL_ERROR, "this client cannot be asked for anything")
    params = envelope.members(wanted["params"]) if "params" in wanted else {}
    if envelope.text(params.get("mode")) == "url" and eras.ELICITATION_ID not in params:
        # Only the handshake era gives each an id; nobody refers to this one again.
        params[eras.ELICITATION_ID] = envelope.raw(secrets.token_hex(8))
    return await ask(envelope.text(wanted.get("method")) or "", params)
