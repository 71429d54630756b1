"""The state of a session or handle as it is kept for other replicas, and the merge of two changes of it.

A replica of a newer version may have written members, elements of lists and values that are not known here.
They stay in the row as they are, however often this replica writes it: `Unknown` holds them meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.context.records import NO_OVERRIDES, Delivery, Overrides
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
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_elements = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


class _Unknown(Struct, frozen=True):
    """A member of a row that holds more than is known here."""

    written: Raw
    """The member as it is in the row."""
    known: bytes | None
    """The member as this version would write it; None if it would leave it out."""
    elements: tuple[Raw, ...] = ()
    """Elements of a list that cannot be read here."""


Unknown: TypeAlias = Mapping[str, _Unknown]
"""Members of a row that hold more than is known here, by name."""


def encoded(state: ContextState, unknown: Unknown | None = None) -> bytes:
    """Return a state as it is kept, with all that a newer version has written and this one does not know."""
    data = _encode(state)
    if not unknown:
        return data
    members: dict[str, Raw] = _members(data)
    for name, found in unknown.items():
        mine = members.get(name)
        if (None if mine is None else bytes(mine)) == found.known:
            members[name] = found.written
        elif found.elements:
            members[name] = Raw(_encode([*(_elements(mine) if mine is not None else ()), *found.elements]))
        elif mine is not None:
            members[name] = _overlaid(found.written, mine)
    return _encode(members)


def decoded(data: bytes) -> tuple[ContextState, Unknown]:
    """Return the state in a row, and the members in which there is more than is known here.

    Raises:
        msgspec.DecodeError: the row is damaged.
    """
    try:
        state, elements = _decode(data), dict[str, tuple[Raw, ...]]()
    except msgspec.ValidationError:
        state, elements = _readable(_members(data))
    known = _encode(state)
    if known == data:
        return state, {}
    written, mine = _members(data), _members(known)
    own = {name: bytes(value) for name, value in mine.items()}
    return state, {
        name: _Unknown(value, own.get(name), elements.get(name, ()))
        for name, value in written.items()
        if own.get(name) != bytes(value)
    }


def _readable(members: Mapping[str, Raw]) -> tuple[ContextState, dict[str, tuple[Raw, ...]]]:
    """Return the part of a state that can be read here, and the elements of lists that cannot."""
    values, unreadable = dict[str, Any](), dict[str, tuple[Raw, ...]]()
    for field in msgspec.structs.fields(ContextState):
        if field.name not in members:
            continue
        written = members[field.name]
        try:
            values[field.name] = msgspec.json.decode(written, type=field.type)
        except msgspec.ValidationError:
            if get_origin(field.type) is not list:
                continue
            (kind,), readable, others = get_args(field.type), list[Any](), list[Raw]()
            for element in _elements(written):
                try:
                    readable.append(msgspec.json.decode(element, type=kind))
                except msgspec.ValidationError:
                    others.append(element)
            values[field.name], unreadable[field.name] = readable, tuple(others)
    return msgspec.convert(values, ContextState), unreadable


def _overlaid(written: Raw, mine: Raw) -> Raw:
    """Return a value of ours, with the members that only the value in the row has."""
    try:
        below, above = _members(written), _members(mine)
    except msgspec.DecodeError:
        return mine
    both = below.keys() & above.keys()
    return Raw(_encode({**below, **above, **{name: _overlaid(below[name], above[name]) for name in both}}))


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
