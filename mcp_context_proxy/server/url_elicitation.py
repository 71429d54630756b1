"""Turns the refusal by which a handshake-era server sends a person to a URL into what modern clients know.

There a server asks by its result. The call has not run, so the client makes it again when the person has
been there; nothing is parked meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from mcp_context_proxy.errors import RemoteError
from mcp_context_proxy.server import declared
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import Members, RequestError

METHOD = "elicitation/create"


def question(error: RemoteError, params: Members, caller: Caller) -> bytes | None:
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
    if "url" not in declared.capabilities(caller).get("elicitation", {}):
        needed: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"url": {}}}}
        raise RequestError(era.MISSING_CAPABILITY, error.remote_message, needed)
    requests = {key: {"method": METHOD, "params": asked} for key, asked in wanted.items()}
    return envelope.encode({"resultType": "input_required", "inputRequests": requests})


def _wanted(error: RemoteError) -> Mapping[str, Any]:
    """The URLs that the person is sent to, by the id the server gave each; the modern era gives none."""
    if error.code != era.URL_ELICITATION_REQUIRED or not isinstance(error.data, Raw):
        return {}
    data = envelope.value(error.data)
    entries = data.get("elicitations") if isinstance(data, dict) else None
    found = {}
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict) and isinstance(entry.get("url"), str):
            rest = {"mode": "url", **entry}
            found[str(rest.pop(era.ELICITATION_ID, number))] = rest
    return found


def _declined(params: Members) -> bool:
    """Whether the person was asked before and declined."""
    answers = envelope.value(params["inputResponses"]) if "inputResponses" in params else None
    given = answers.values() if isinstance(answers, dict) else ()
    return any(isinstance(answer, dict) and answer.get("action") != "accept" for answer in given)
