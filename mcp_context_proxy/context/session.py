"""What lasts beyond one request: handshake-era sessions, and the handles that stand in for them elsewhere.

The modern era knows no sessions, on no transport: there, what outlives a request is a handle that the
client carries itself. Nothing here is ever keyed to a modern connection.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias
from weakref import WeakValueDictionary

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.context.options import NO_OVERRIDES, Overrides
from mcp_context_proxy.downstream.link import Party
from mcp_context_proxy.items import Document, Item, Kind, Tool
from mcp_context_proxy.retrieval.terms import identifier_words
from mcp_context_proxy.wire.levels import reaches

ID_BYTES = 8
"""Of a session's public id: it is shown in lists and opens nothing by itself."""

HISTORY_KEPT = 20
"""What was asked and called that is remembered: with half the weight a step, more would say nothing."""

HISTORY_CHARACTERS = 500
"""Of a query that is remembered: a chunk."""

USED_KEPT = 100
"""Tools called that are remembered."""

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
    used: tuple[str, ...] = ()
    """Exposed names of tools that were called lately, the latest first."""
    history: tuple[str, ...] = ()
    """What was asked and called lately, the latest first."""
    answer: tuple[str, str] | None = None
    """Exposed name of the tool called last, and what its answer says."""


NO_SESSION = SessionView()
"""Of a request that belongs to none: its session level is the ``always`` items."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class SessionContext:
    """What a session has in its context beside the ``always`` items, changed by hand only.

    It is changed on the event loop; nobody else may.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(ID_BYTES))
    """Public: in lists, records and logs."""
    created: float = field(default_factory=time_of_day)
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
    requests: int = 0
    """How many request contexts it has had."""
    used: dict[str, int] = field(default_factory=dict)
    """By exposed name of a tool: how many requests there had been when it was last called."""
    history: deque[str] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    """What was asked and called, the latest first."""
    answer: tuple[str, str] | None = None
    """Exposed name of the tool called last, and what its answer says; None where none was looked at."""

    @property
    def kind(self) -> str:
        """What keeps it: a ``connection`` or a ``handle``."""
        return "connection"

    @property
    def changed(self) -> bool:
        """Whether its list can differ from everybody's."""
        return bool(self.shown or self.added or self.removed)

    def asked(self, request_id: str, query: str) -> None:
        """A request context was built for a query."""
        self.query, self.latest_request = query, request_id
        self.requests += 1
        self.history.appendleft(query[:HISTORY_CHARACTERS])

    def called(self, tool: Tool, answer: str | None) -> None:
        """A tool was called; its answer where that is to be looked at."""
        self.used.pop(tool.exposed_name, None)
        self.used[tool.exposed_name] = self.requests
        if len(self.used) > USED_KEPT:
            del self.used[next(iter(self.used))]
        self.history.appendleft(identifier_words(tool.name))
        self.answer = None if answer is None else (tool.exposed_name, answer)

    def view(self, retained: int = 0, history: int = 0) -> SessionView:
        """What it has now, with the tools called in as many requests and as much of its history."""
        since = self.requests - retained
        used = [name for name, at in reversed(self.used.items()) if at > since]
        return SessionView(
            id=self.id,
            added=tuple(self.added),
            removed=frozenset(self.removed),
            used=tuple(used),
            history=tuple(islice(self.history, history)),
            answer=self.answer,
        )


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
