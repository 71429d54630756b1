"""What lasts beyond one request: handshake-era sessions, and the handles that stand in for them elsewhere.

The modern era knows no sessions, on no transport: there, what outlives a request is a handle that the
client carries itself. Nothing here is ever keyed to a modern connection.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakValueDictionary

from mcp_context_proxy.context.options import NO_OVERRIDES, Overrides
from mcp_context_proxy.downstream.link import Party
from mcp_context_proxy.items import Document, Item, Kind
from mcp_context_proxy.wire.levels import reaches

ID_BYTES = 8
"""Of a session's public id: it is shown in lists and opens nothing by itself."""

DEFAULT_LOG_LEVEL = "debug"
"""Of a client that never said: whatever the servers choose to tell, as if there were no proxy."""

ItemKey: TypeAlias = tuple[Kind, str]
"""What an item is known by in contexts: its type, and its exposed name or its name as a document."""


def key_of(item: Item) -> ItemKey:
    """What an item is known by in contexts."""
    return item.kind, item.name if isinstance(item, Document) else item.exposed_name


@dataclass(frozen=True, slots=True)
class SessionView:
    """What a session has at one moment, for work in another thread."""

    id: str | None = None
    added: tuple[ItemKey, ...] = ()
    removed: frozenset[ItemKey] = frozenset()


NO_SESSION = SessionView()
"""Of a request that belongs to none: its session level is the ``always`` items."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class SessionContext:
    """What a session has in its context beside the ``always`` items, changed by hand only.

    It is changed on the event loop; nobody else may.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(ID_BYTES))
    """Public: in lists, records and logs."""
    created: float = field(default_factory=time.time)
    """Seconds since 1970."""
    query: str | None = None
    """The latest query; None until there was one."""
    shown: dict[str, None] = field(default_factory=dict)
    """Exposed names of the tools that were selected so far. Only grows, so that what a model has seen keeps
    its place in the list."""
    added: dict[ItemKey, None] = field(default_factory=dict)
    """Items added by hand, in that order."""
    removed: set[ItemKey] = field(default_factory=set)
    """Items removed by hand: in no context of this session until they are added again."""
    overrides: Overrides = NO_OVERRIDES
    latest_request: str | None = None
    """Id of its latest request context."""

    @property
    def kind(self) -> str:
        """What keeps it: a ``connection`` or a ``handle``."""
        return "connection"

    @property
    def changed(self) -> bool:
        """Whether its list can differ from everybody's."""
        return bool(self.shown or self.added or self.removed)

    def view(self) -> SessionView:
        """What it has now."""
        return SessionView(self.id, tuple(self.added), frozenset(self.removed))


@dataclass(slots=True, eq=False)
class Session(SessionContext):
    """One handshake-era session; it ends with its connection."""

    party: Party = field(default_factory=lambda: Party(lasting=True))
    """As the downstream servers' connections know it."""
    log_level: str | None = None
    """The least severe level the client wants to hear of; None until it says so."""
    subscriptions: set[str] = field(default_factory=set)
    """URIs of resources whose updates the client wants to hear of."""

    def subscribes(self, uri: str) -> bool:
        """Whether the client wants to hear of this resource, or of one that it is a part of."""
        return any(uri == each or uri.startswith(each.rstrip("/") + "/") for each in self.subscriptions)

    def wants_level(self, level: str | None) -> bool:
        """Whether a log message of that level is to be passed on."""
        return reaches(level, self.log_level or DEFAULT_LOG_LEVEL)


class Sessions:
    """The sessions there are, by public id. Holds none of them: each ends with what keeps it."""

    def __init__(self) -> None:
        self._sessions: WeakValueDictionary[str, SessionContext] = WeakValueDictionary()

    def register(self, session: SessionContext) -> None:
        """Know a session for as long as somebody else keeps it."""
        self._sessions[session.id] = session

    def get(self, session_id: str) -> SessionContext | None:
        """The session by its public id; None when there is none, or none any more."""
        return self._sessions.get(session_id)

    def __iter__(self) -> Iterator[SessionContext]:
        """Oldest first."""
        return iter(sorted(self._sessions.values(), key=lambda session: (session.created, session.id)))
