"""Forwards a request to its downstream server and returns the result, changing only what the hop demands.

Knows neither the SDK nor the fronts: method and raw params in, encoded result out. While the request is under
way, its progress and log messages are relayed to the client that made it, and so are the server's own
requests (sampling, elicitation, roots), in each of the four pairs of eras:

- handshake client, handshake server: the request is passed on as it came;
- handshake client, modern server: the server asks by its result; the client is asked, and the call repeated;
- modern client, modern server: the result passes as it is, and the client repeats the call;
- modern client, handshake server: the call waits in `PendingInput` while the client answers its result.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from mcp_context_proxy import __version__
from mcp_context_proxy.context.session import DEFAULT_LOG_LEVEL
from mcp_context_proxy.downstream.backpressure import Bucket
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.inbound import CAPABILITY_OF
from mcp_context_proxy.downstream.link import Ask, Notify, Outgoing, Party
from mcp_context_proxy.errors import BadAnswerError, DownstreamError, InputMissingError, RemoteError
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Members,
    RequestError,
)
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.validation import reaches
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.pending_input import PendingInput

if TYPE_CHECKING:
    from mcp_context_proxy.server.tracing import Tracing

SERVER_INFO = envelope.raw(
    {"name": "mcp-context-proxy", "title": "MCP Context Proxy", "version": __version__}
)

INPUT_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Methods whose modern results may ask for input."""

INPUT_ROUNDS = 10
"""Times that a modern server may ask a handshake-era client during one request; the SDK's number."""

QUESTIONS_PER_CALL = 100
"""Requests that one call may make of its client: each costs a person's patience or a model's tokens."""

PROGRESS_PER_SECOND = 10
"""Progress relayed for one call a second, and as many at once: more shows nobody anything."""

HOP_ERRORS = frozenset({-32000, -32001, -32020, -32022})
"""Codes about the connection to the server; a client would take them to be about its own."""


@dataclass(slots=True, eq=False)
class _Request:
    """One request on its way to a server."""

    client: DownstreamClient
    method: str
    params: Members
    """Params with names as the server knows them."""
    caller: Caller
    subject: str
    """Names the request in error messages, such as ``tool 'create_issue'``."""


class Forwarder:
    """Forwards requests on behalf of callers."""

    def __init__(self, pending: PendingInput) -> None:
        self._pending = pending
        self.tracing: Tracing | None = None
        """Makes spans of requests; None while nobody collects them."""

    async def forward(
        self, client: DownstreamClient, method: str, params: Members, caller: Caller, subject: str
    ) -> bytes:
        """Send a request to a downstream server and return the result, fitted to the caller's era.

        The names in `params` are those that the server knows; `subject` names the request in error messages,
        such as ``tool 'create_issue'``.

        Raises:
            DownstreamError: see `Link.request`.
            RequestError: the client refused a request of the server, or continues an unknown call.
        """
        with ProgressRelay(caller, params) as relay:
            result = await self._result(_Request(client, method, params, caller, subject), relay)
        if caller.era is Era.HANDSHAKE and client.era is not Era.MODERN:
            # Nothing to fit, so nothing is parsed: the bytes pass as they came.
            return result
        return fit_to_caller(method, result, caller)

    async def _result(self, request: _Request, notify: Notify) -> bytes:
        """Return the server's result; its questions on the way are relayed as the caller's era allows."""
        client, caller = request.client, request.caller
        if caller.era is Era.HANDSHAKE:
            outgoing = _outgoing(request, notify, limited_ask(caller, caller.ask))
            result = await self._send(request, request.params, outgoing)
            if client.era is Era.MODERN:
                return await self._resolve_input_required(request, outgoing, result)
            return result
        if client.era is not Era.HANDSHAKE or request.method not in INPUT_METHODS:
            return await self._send(request, request.params, _outgoing(request, notify))
        try:
            if "requestState" in request.params or client_capabilities(caller):
                return await self._send_pending(request, notify)
            return await self._send(request, request.params, _outgoing(request, notify))
        except RemoteError as error:
            asks = url_elicitation(error, request.params, caller)
            if asks is None:
                raise
            return asks

    async def _send_pending(self, request: _Request, notify: Notify) -> bytes:
        """Send a modern client's call to a server that may make requests of the client meanwhile."""

        async def work(ask: Ask, notify: Notify) -> bytes:
            outgoing = _outgoing(request, notify, limited_ask(request.caller, ask))
            return await self._send(request, request.params, outgoing)

        subject = f"{request.client.name} {request.method}"
        return await self._pending.call(request.caller.principal, subject, request.params, notify, work)

    async def _resolve_input_required(self, request: _Request, outgoing: Outgoing, result: bytes) -> bytes:
        """Ask a handshake-era client for the input that a modern server requires, until it has enough."""
        server = request.client.name
        for _ in range(INPUT_ROUNDS):
            parts = envelope.members(result)
            kind = eras.result_type(parts)
            if kind == "complete":
                return result
            if kind != "input_required":
                raise BadAnswerError(server, f"with a result of type {kind[:40]!r}, which is not known")
            required = envelope.members(parts.get("inputRequests", Raw(b"{}")))
            try:
                answers = {
                    key: Raw(await _ask_for_input(outgoing.ask, envelope.members(each)))
                    for key, each in required.items()
                }
            except RequestError as error:
                raise InputMissingError(server, error.message) from error
            retry = {**request.params, "inputResponses": envelope.raw(answers)}
            retry.pop("requestState", None)
            if "requestState" in parts:
                retry["requestState"] = parts["requestState"]
            result = await self._send(request, retry, outgoing)
        raise InputMissingError(server, f"it asked more than {INPUT_ROUNDS} times")

    async def _send(self, request: _Request, params: Members, outgoing: Outgoing) -> bytes:
        if self.tracing is None:
            return await request.client.call(request.method, params, outgoing)
        with self.tracing.downstream(request.client.name, request.method, params) as traced:
            result = await request.client.call(request.method, traced.params, outgoing)
            traced.answered(result)
            return result


def _outgoing(request: _Request, notify: Notify, ask: Ask | None = None) -> Outgoing:
    client, caller, session = request.client, request.caller, request.caller.session
    meta = eras.meta_of(request.params)
    level = meta.get(eras.LOG_LEVEL_KEY)
    if session is None and client.era is Era.HANDSHAKE and level is not None:
        client.subscriptions.include_log_level(envelope.text(level) or "")
    if session is not None:
        # A handshake-era server is told once, not with each request, and only a level that a client set.
        name = session.log_level or (DEFAULT_LOG_LEVEL if client.era is Era.MODERN else None)
        level = None if name is None else envelope.raw(name)
    return Outgoing(
        subject=request.subject,
        capabilities=caller.capabilities,
        client_info=caller.client_info,
        log_level=level,
        on_notification=notify,
        wants_progress="progressToken" in meta,
        party=Party(caller.principal) if session is None else session.party,
        ask=ask,
        on_counted=caller.release,
    )


def fit_to_caller(method: str, result: bytes, caller: Caller) -> bytes:
    """Fit a result to the era of the caller."""
    return eras.fit_result_to_client(method, result, caller.era, SERVER_INFO)


@contextmanager
def downstream_errors(era: Era) -> Iterator[None]:
    """Turn errors of downstream servers into errors of the caller's era."""
    try:
        yield
    except RemoteError as error:
        raise request_error(error, era) from error
    except DownstreamError as error:
        raise RequestError(INTERNAL_ERROR, str(error), {"server": error.server}) from error


def request_error(error: RemoteError, era: Era) -> RequestError:
    """Return the error that a client of `era` gets for a server's error.

    It passes as it came, unless its code belongs to another hop or era.
    """
    if error.code in HOP_ERRORS:
        return RequestError(INTERNAL_ERROR, str(error))
    return RequestError(eras.error_code(error.code, era), error.remote_message, error.data)


class ProgressRelay:
    """Relays progress and log messages of one request to its caller. Leave it when the result is there.

    Progress is thinned out: what comes too fast waits, and the newest replaces what waited. The last is never
    lost: it is sent on leaving, before the result. Progress that goes backwards is dropped; progress that
    stands still is relayed, as a sign of life by which a client may extend its timeout.
    """

    def __init__(self, caller: Caller, params: Members) -> None:
        """Relay for a request, by its params as the client sent them."""
        meta = eras.meta_of(params)
        self._caller = caller
        self._token, self._level = meta.get("progressToken"), envelope.text(meta.get(eras.LOG_LEVEL_KEY))
        self._rate: Bucket | None = None
        self._waiting: Members | None = None
        self._reached = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def __call__(self, method: str, params: Members) -> None:
        """Take a notification of the server."""
        if self._over:
            return
        if method == "notifications/progress" and self._token is not None:
            progress = envelope.number(params.get("progress"))
            if progress is None or progress < self._reached:
                return
            self._reached = progress
            self._waiting = {**params, "progressToken": self._token}
            if self._timer is None:
                self._send_when_due()
        elif method == "notifications/message":
            level, session = envelope.text(params.get("level")), self._caller.session
            if session.wants_level(level) if session is not None else reaches(level, self._level):
                self._caller.notify(method, params)

    def _send_when_due(self) -> None:
        self._timer = None
        if self._waiting is None:
            return
        if self._rate is None:
            self._rate = Bucket(PROGRESS_PER_SECOND, PROGRESS_PER_SECOND)
        if self._rate.take():
            self._send()
        else:
            later = 1 / PROGRESS_PER_SECOND
            self._timer = asyncio.get_running_loop().call_later(later, self._send_when_due)

    def _send(self) -> None:
        if self._waiting is not None:
            self._caller.notify("notifications/progress", self._waiting)
            self._waiting = None

    def __enter__(self) -> ProgressRelay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        # Nobody waits for the progress of a cancelled request.
        if kind is None or issubclass(kind, Exception):
            self._send()


def client_capabilities(caller: Caller) -> Mapping[str, Any]:
    """Return the declared capabilities that let servers make requests of the client, by name."""
    declared = envelope.value(caller.capabilities) if caller.capabilities is not None else {}
    if not isinstance(declared, dict):
        return {}
    return {name: declared[name] for name in CAPABILITY_OF.values() if isinstance(declared.get(name), dict)}


def limited_ask(caller: Caller, ask: Ask) -> Ask | None:
    """Return the way to ask the client during one call, by `ask`; None if it can be asked nothing."""
    if not client_capabilities(caller):
        return None
    asked = 0

    async def limited(method: str, params: Members) -> bytes:
        nonlocal asked
        if asked >= QUESTIONS_PER_CALL:
            raise RequestError(INTERNAL_ERROR, f"the client was asked {asked} times during this call")
        asked += 1
        return await ask_client(caller, ask, method, params)

    return limited


async def ask_client(caller: Caller, ask: Ask, method: str, params: Members) -> bytes:
    """Make a request of the client by `ask`, within the capabilities that it declared.

    Raises:
        RequestError: the client did not declare the capability, or refuses.
    """
    declared = client_capabilities(caller)
    name = CAPABILITY_OF.get(method, "")
    if name not in declared:
        raise RequestError(METHOD_NOT_FOUND, f"the client does not support {method}")
    part = _undeclared_part(method, params, declared[name])
    if part is not None:
        raise RequestError(INVALID_PARAMS, f"the client does not support {method} with {part}")
    meta = eras.meta_of(params)
    if meta.pop("progressToken", None) is not None:
        # A progress token belongs to one hop: to the client the server's own would mean something else.
        params = {key: raw for key, raw in params.items() if key != "_meta"}
        if meta:
            params["_meta"] = envelope.raw(meta)
    return await ask(method, params)


def _undeclared_part(method: str, params: Members, declared: Mapping[str, Any]) -> str | None:
    """Return the part of a capability that a request needs and that the client did not declare."""
    if method == "elicitation/create":
        mode = envelope.text(params.get("mode")) or "form"
        # Declared without parts, as before there were any, it means forms.
        modes = declared if {"form", "url"} & set(declared) else {"form": {}}
        return None if mode in modes else f"mode {mode!r}"
    if method == "sampling/createMessage":
        return "tools" if {"tools", "toolChoice"} & set(params) and "tools" not in declared else None
    return None


async def _ask_for_input(ask: Ask | None, required: Members) -> bytes:
    """Make one of the requests in an ``input_required`` result of a handshake-era client."""
    if ask is None:
        raise RequestError(INTERNAL_ERROR, "this client cannot be asked for anything")
    params = envelope.members(required["params"]) if "params" in required else {}
    if envelope.text(params.get("mode")) == "url" and eras.ELICITATION_ID not in params:
        # Only the handshake era gives each an id; nobody refers to this one again.
        params[eras.ELICITATION_ID] = envelope.raw(secrets.token_hex(8))
    return await ask(envelope.text(required.get("method")) or "", params)


def url_elicitation(error: RemoteError, params: Members, caller: Caller) -> bytes | None:
    """Turn the error by which a handshake-era server sends a person to a URL into a modern result.

    The call has not run, so the client repeats it when the person has been there; nothing waits meanwhile.
    Returns None if the error is another one, or if the person has declined.

    Raises:
        RequestError: the client did not declare that it can be asked so.
    """
    wanted = _elicited_urls(error)
    if not wanted or _declined(params):
        return None
    if "url" not in client_capabilities(caller).get("elicitation", {}):
        needed: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"url": {}}}}
        raise RequestError(eras.MISSING_CAPABILITY, error.remote_message, needed)
    requests = {key: {"method": "elicitation/create", "params": asked} for key, asked in wanted.items()}
    return envelope.encode({"resultType": "input_required", "inputRequests": requests})


def _elicited_urls(error: RemoteError) -> Mapping[str, Any]:
    """Return the params of each elicitation in an error by the id that the server gave it.

    The modern era gives no ids, so they become the keys of the input requests.
    """
    if error.code != eras.URL_ELICITATION_REQUIRED or not isinstance(error.data, Raw):
        return {}
    data = envelope.value(error.data)
    entries = data.get("elicitations") if isinstance(data, dict) else None
    found = {}
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict) and isinstance(entry.get("url"), str):
            params = {"mode": "url", **entry}
            found[str(params.pop(eras.ELICITATION_ID, number))] = params
    return found


def _declined(params: Members) -> bool:
    answers = envelope.value(params["inputResponses"]) if "inputResponses" in params else None
    given = answers.values() if isinstance(answers, dict) else ()
    return any(isinstance(answer, dict) and answer.get("action") != "accept" for answer in given)
