"""Which items a session has whatever the query is: ``always`` items, the working set, those added by hand."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from mcp_context_proxy.context.request import Mode
from mcp_context_proxy.context.session import ItemKey, SessionContext, SessionView, key_of
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import IncludeMode, Item, Kind, Snapshot, Tool, uri_of
from mcp_context_proxy.learning.working_set import WorkingSet


def session_items(
    snapshot: Snapshot, standing: Iterable[tuple[Item, Mode]], session: SessionView
) -> Iterator[tuple[Item, Mode]]:
    """The items a session has whatever the query is; those whose server is away come back with it.

    Args:
        snapshot: What there is.
        standing: Its `standing_items`.
        session: What was added and removed by hand.
    """
    for item, mode in standing:
        if (key := key_of(item)) not in session.removed and key not in session.added:
            yield item, mode
    for key in session.added:
        if (found := item_by(snapshot, key)) is not None:
            yield found, Mode.MANUAL


def standing_items(snapshot: Snapshot, working_set: WorkingSet) -> Iterator[tuple[Item, Mode]]:
    """What everybody has: rules and references first, by priority; then tools, by name."""
    documents = (document for document in snapshot.documents.values() if _always(document))
    for document in sorted(documents, key=lambda document: (-document.priority, document.kind != Kind.RULE)):
        yield document, Mode.ALWAYS
    for tool in snapshot.tools.values():
        if _always(tool):
            yield tool, Mode.ALWAYS
        elif working_set.why(tool) is not None:
            yield tool, Mode.WORKING_SET


def item_by(snapshot: Snapshot, key: ItemKey) -> Item | None:
    """The item by what it is known by; None where it is not in the catalog."""
    kind, name = key
    if kind is Kind.TOOL:
        return snapshot.tools.get(name)
    return snapshot.documents.get(uri_of(kind, name))


def resolve(snapshot: Snapshot, kind: Kind, name: str, server: str | None = None) -> Item:
    """The item that a person or a model means: a tool by its exposed name, or by its own and its server's.

    Raises:
        UnknownItemError: nothing has that name, or several tools have.
    """
    exact = item_by(snapshot, (kind, name))
    if exact is not None and (server is None or (isinstance(exact, Tool) and exact.server == server)):
        return exact
    if kind is not Kind.TOOL:
        names = [document.name for document in snapshot.documents.values() if document.kind is kind]
        raise UnknownItemError(str(kind), name, difflib.get_close_matches(name, names, n=3))
    same = [tool for tool in snapshot.tools.values() if tool.name == name and server in (None, tool.server)]
    if len(same) == 1:
        return same[0]
    raise UnknownItemError(str(kind), name, [tool.exposed_name for tool in same] or _near(snapshot, name))


def _near(snapshot: Snapshot, name: str) -> list[str]:
    """Tools with nearly that name, whether it was meant to be the exposed one or the server's own."""
    exposed = {tool.name: tool.exposed_name for tool in snapshot.tools.values()}
    exposed |= {each: each for each in snapshot.tools}
    return list(dict.fromkeys(exposed[near] for near in difflib.get_close_matches(name, exposed, n=3)))


def add(session: SessionContext, item: Item) -> None:
    """Add an item by hand; an ``always`` item that was not removed is there already, and stays what it is."""
    key = key_of(item)
    if item.include is IncludeMode.ALWAYS and key not in session.removed:
        return
    session.removed.discard(key)
    session.added[key] = None


def remove(session: SessionContext, item: Item) -> None:
    """Remove an item by hand: no query of this session brings it back."""
    key = key_of(item)
    session.added.pop(key, None)
    session.removed.add(key)


def _always(item: Item) -> bool:
    return item.include is IncludeMode.ALWAYS
