"""Who is calling: all that the server needs to know of a client, whatever front it came through.

What a client may be asked: that which it declared, and nothing else.

A capability can have parts, such as elicitation by form or by URL; what is asked must be within them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Raw

from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream.inbound import CAPABILITY_OF
from mcp_context_proxy.downstream.link import Ask
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Members,
    RequestError,
)
from mcp_context_proxy.protocol.eras import Era

PASSED_ON_KEY = "mcp-context-proxy/passed-on"
"""Of an ASGI scope: `Caller.passed_on`."""


class Caller(Protocol):
    """One request's client."""

    era: Era
    session: Session | None
    """Of the handshake era; None in the modern era, which has none."""
    capabilities: Raw | None
    """What the client declared it can do; None when it declared nothing."""
    client_info: Raw | None
    principal: str | None
    """Who it is, where the front knows; what one principal creates, no other may use."""

    def notify(self, method: str, params: Members) -> None:
        """Send a notification that belongs to this request. Does not block."""
        ...

    def passed_on(self) -> None:
        """The request counts as one of a server's: nobody else need count what it takes any more."""
        ...

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the client and return its encoded result.

        Raises:
            RequestError: the client refuses, or cannot be asked in this era.
        """
        ...


def capabilities(caller: Caller) -> Mapping[str, Any]:
    """Of those that let a client be asked, the ones it declared."""
    declared = envelope.value(caller.capabilities) if caller.capabilities is not None else {}
    if not isinstance(declared, dict):
        return {}
    return {name: declared[name] for name in CAPABILITY_OF.values() if isinstance(declared.get(name), dict)}


QUESTIONS_PER_CALL = 100
"""What one call may ask its client: each costs a person's patience or a model's tokens."""


def asker(caller: Caller, ask: Ask | None = None) -> Ask | None:
    """How the client of one call is asked, by `ask` or as its era does; None when it can be asked nothing."""
    if not capabilities(caller):
        return None
    asked = 0

    async def limited(method: str, params: Members) -> bytes:
        nonlocal asked
        if asked >= QUESTIONS_PER_CALL:
            raise RequestError(INTERNAL_ERROR, f"the client was asked {asked} times during this call")
        asked += 1
        return await ask_declared(caller, ask or caller.ask, method, params)

    return limited


async def ask_declared(caller: Caller, ask: Ask, method: str, params: Members) -> bytes:
    """Ask a client by `ask`.

    Raises:
        RequestError: it did not declare that it can be asked this, or refuses.
    """
    declared = capabilities(caller)
    name = CAPABILITY_OF.get(method, "")
    if name not in declared:
        raise RequestError(METHOD_NOT_FOUND, f"the client does not support {method}")
    part = _part_needed(method, params, declared[name])
    if part is not None:
        raise RequestError(INVALID_PARAMS, f"the client does not support {method} with {part}")
    return await ask(method, _without_token(params))


def _part_needed(method: str, params: Members, declared: Mapping[str, Any]) -> str | None:
    """The part of a capability that a question needs and that was not declared."""
    if method == "elicitation/create":
        mode = envelope.text(params.get("mode")) or "form"
        # Declared without parts, as before there were any, it means forms.
        known = declared if {"form", "url"} & set(declared) else {"form": {}}
        return None if mode in known else f"mode {mode!r}"
    if method == "sampling/createMessage":
        return "tools" if {"tools", "toolChoice"} & set(params) and "tools" not in declared else None
    return None


def _without_token(params: Members) -> Members:
    """A progress token belongs to one hop; the server's own would mean nothing, or something else, here."""
    meta = eras.meta_of(params)
    if meta.pop("progressToken", None) is None:
        return params
    rest = {key: raw for key, raw in params.items() if key != "_meta"}
    return {**rest, "_meta": envelope.raw(meta)} if meta else rest
