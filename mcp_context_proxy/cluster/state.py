"""The state of a session or handle as it is kept for other replicas, and the merge of two changes of it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.context.options import NO_OVERRIDES, Overrides
from mcp_context_proxy.context.records import Delivery
from mcp_context_proxy.context.session import HISTORY_KEPT, Session, SessionContext
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol.eras import Hello


class ContextState(Struct, omit_defaults=True):
    """The state of a session or handle that goes with it to another replica."""

    id: str
    """Its public id, by which requests belong to it."""
    created: float
    query: str | None = None
    shown: list[str] = []
    added: list[tuple[Kind, str]] = []
    removed: list[tuple[Kind, str]] = []
    by_person: list[tuple[Kind, str]] = []
    overrides: Overrides = NO_OVERRIDES
    latest_request: str | None = None
    requests: int = 0
    used: list[tuple[str, int]] = []
    history: list[str] = []
    answer: tuple[str, str] | None = None
    meant: list[tuple[str, str, str]] = []
    delivered: list[tuple[Kind, str, str, Delivery]] = []
    noted: list[tuple[str, list[str]]] = []
    log_level: str | None = None
    introduced: list[str] = []
    subscriptions: list[str] = []


class _Terms(Struct):
    """The terms of a session: `Hello` as it is kept."""

    version: str
    capabilities: Raw
    client_info: Raw


WRITTEN_THROUGH: Final = ("added", "removed", "by_person", "overrides", "log_level", "subscriptions")
"""Parts that somebody has set: whoever was told that they are set finds them so at every replica."""

_decode = msgspec.json.Decoder(ContextState).decode
_encode = msgspec.json.Encoder().encode


def encoded(state: ContextState) -> bytes:
    """Return a state as it is kept."""
    return _encode(state)


def decoded(data: bytes) -> ContextState:
    """Return the state in a row.

    Raises:
        msgspec.DecodeError: the row is damaged.
    """
    return _decode(data)


def state_of(context: SessionContext) -> ContextState:
    """Return the state of a session or handle as it is now."""
    state = ContextState(
        id=context.id,
        created=context.created,
        query=context.query,
        shown=list(context.shown),
        added=list(context.added),
        removed=sorted(context.removed),
        by_person=sorted(context.by_person),
        overrides=context.overrides,
        latest_request=context.latest_request,
        requests=context.requests,
        used=list(context.used.items()),
        history=list(context.history),
        answer=context.answer,
        meant=[(*key, server) for key, server in context.meant.items()],
        delivered=[(*key, *given) for key, given in context.delivered.items()],
        noted=[(note, sorted(servers)) for note, servers in context.noted.items()],
    )
    if isinstance(context, Session):
        state.log_level = context.log_level
        state.introduced = sorted(context.introduced)
        state.subscriptions = sorted(context.subscriptions)
    return state


def restore(state: ContextState, context: SessionContext) -> None:
    """Give a session or handle a state. The subscriptions of a session are made anew by whoever adopts it."""
    context.id, context.created = state.id, state.created
    context.query, context.latest_request = state.query, state.latest_request
    context.requests, context.answer, context.overrides = state.requests, state.answer, state.overrides
    context.shown = dict.fromkeys(state.shown)
    context.added = dict.fromkeys(state.added)
    context.removed, context.by_person = set(state.removed), set(state.by_person)
    context.used = dict(state.used)
    context.history.clear()
    context.history.extend(state.history)
    context.meant = {(kind, name): server for kind, name, server in state.meant}
    context.delivered = {(kind, name): (print_, form) for kind, name, print_, form in state.delivered}
    context.noted = {note: frozenset(servers) for note, servers in state.noted}
    if isinstance(context, Session):
        context.log_level, context.introduced = state.log_level, set(state.introduced)


def terms_of(hello: Hello | None) -> bytes:
    """Return the terms of a session as they are kept."""
    return b"" if hello is None else _encode(_Terms(hello.version, hello.capabilities, hello.client_info))


def hello_of(terms: bytes) -> Hello | None:
    """Return the terms of a session that `terms_of` has encoded."""
    if not terms:
        return None
    found = msgspec.json.decode(terms, type=_Terms)
    return Hello(found.version, Raw(bytes(found.capabilities)), Raw(bytes(found.client_info)))


def merged(base: ContextState, mine: ContextState, theirs: ContextState) -> ContextState:
    """Return a state with the changes of both since `base`; where both set one value, mine counts."""
    values: dict[str, Any] = {}
    for name in ContextState.__struct_fields__:
        before, here, there = (getattr(each, name) for each in (base, mine, theirs))
        if name == "requests":
            values[name] = there + max(here - before, 0)
        elif name == "used":
            values[name] = list((dict(there) | dict(here)).items())
        elif name == "history":
            new = here[: max(mine.requests - base.requests, 0)] if here != before else []
            values[name] = [*new, *there][:HISTORY_KEPT]
        elif isinstance(here, list):
            kept = [each for each in there if each in here or each not in before]
            values[name] = kept + [each for each in here if each not in before and each not in there]
        else:
            values[name] = here if here != before else there
    return ContextState(**values)
