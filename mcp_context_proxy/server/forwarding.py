"""Passes a request to its downstream server and the result back, changing only what the hop demands.

Knows neither SDK nor front: method and raw params in, encoded result out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mcp_context_proxy import __version__
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.link import Ask, Notify, Outgoing
from mcp_context_proxy.errors import RemoteError
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import INTERNAL_ERROR, METHOD_NOT_FOUND, Members, RequestError
from mcp_context_proxy.wire.era import Era

SERVER_INFO = envelope.raw(
    {"name": "mcp-context-proxy", "title": "MCP Context Proxy", "version": __version__}
)

INPUT_ROUNDS = 10
"""How often a modern server may ask a handshake-era client during one request; the SDK's number."""

CAPABILITY_OF = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
"""What a client must have declared to be asked."""

HOP_ERRORS = frozenset({-32000, -32001, -32020, -32022})
"""Codes that speak of the connection between us and the server; to a client they would speak of ours."""


async def forward(
    client: DownstreamClient, method: str, params: Members, caller: Caller, subject: str
) -> bytes:
    """Send a request to a downstream server on behalf of a caller; the result, fitted to the caller's era.

    Args:
        client: Of the server.
        method: As the caller sent it.
        params: With names as the server knows them.
        caller: Who asked.
        subject: For error messages, such as ``tool 'create_issue'``.

    Raises:
        DownstreamError: see `Link.request`.
        RequestError: the client was asked something and refused.
    """
    meta = era.meta_of(params)
    token = meta.get("progressToken")
    level = meta.get(era.LOG_LEVEL_KEY)
    if caller.session is not None:
        level = envelope.raw(caller.session.log_level)
    outgoing = Outgoing(
        subject=subject,
        capabilities=caller.capabilities,
        client_info=caller.client_info,
        log_level=level,
        on_notification=_relay(caller, token, level is not None),
        wants_progress=token is not None,
        ask=_asker(caller),
    )
    result = await client.call(method, params, outgoing)
    if caller.era is Era.HANDSHAKE:
        if client.era is not Era.MODERN:
            # Nothing to fit, so nothing is parsed: what came is what goes.
            return bytes(result)
        result = await _gather_input(client, method, params, outgoing, result)
    return era.upward(method, result, caller.era, SERVER_INFO)


def request_error(error: RemoteError) -> RequestError:
    """A downstream JSON-RPC error as one of ours: as it came, unless its code speaks of another hop."""
    if error.code in HOP_ERRORS:
        return RequestError(INTERNAL_ERROR, str(error))
    return RequestError(error.code, error.remote_message, error.data)


def _relay(caller: Caller, token: msgspec.Raw | None, wants_logs: bool) -> Notify:
    def relay(method: str, params: Members) -> None:
        if method == "notifications/progress":
            if token is not None:
                caller.notify(method, {**params, "progressToken": token})
        elif method == "notifications/message" and wants_logs:
            session = caller.session
            if session is None or session.wants_level(envelope.text(params.get("level"))):
                caller.notify(method, params)

    return relay


def _asker(caller: Caller) -> Ask | None:
    """How a handshake-era server's requests reach the caller; None when it can be asked nothing."""
    if caller.era is Era.MODERN or caller.capabilities is None:
        return None
    declared = _declared(caller)
    if not any(capability in declared for capability in CAPABILITY_OF.values()):
        return None

    async def ask(method: str, params: Members) -> bytes:
        if CAPABILITY_OF.get(method) not in declared:
            raise RequestError(METHOD_NOT_FOUND, f"the client does not support {method}")
        return await caller.ask(method, params)

    return ask


def _declared(caller: Caller) -> Mapping[str, object]:
    declared = envelope.value(caller.capabilities) if caller.capabilities is not None else {}
    return declared if isinstance(declared, dict) else {}


async def _gather_input(
    client: DownstreamClient, method: str, params: Members, outgoing: Outgoing, result: msgspec.Raw
) -> msgspec.Raw:
    """Answer a modern server's ``input_required`` by asking a handshake-era client, until it has enough."""
    ask = outgoing.ask
    for _ in range(INPUT_ROUNDS):
        parts = envelope.members(result)
        if era.result_type(parts) != "input_required":
            return result
        if ask is None:
            raise RequestError(INTERNAL_ERROR, "the server needs input that this client cannot be asked for")
        answers = {}
        for key, raw in envelope.members(parts.get("inputRequests", msgspec.Raw(b"{}"))).items():
            wanted = envelope.members(raw)
            wanted_params = envelope.members(wanted["params"]) if "params" in wanted else {}
            answers[key] = msgspec.Raw(await ask(envelope.text(wanted.get("method")) or "", wanted_params))
        retry = {**params, "inputResponses": envelope.raw(answers)}
        retry.pop("requestState", None)
        if "requestState" in parts:
            retry["requestState"] = parts["requestState"]
        result = await client.call(method, retry, outgoing)
    raise RequestError(INTERNAL_ERROR, f"the server asked for input more than {INPUT_ROUNDS} times")
