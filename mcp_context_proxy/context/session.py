"""What lasts beyond one request: handshake-era sessions, and the handles that stand in for them elsewhere.

The modern era knows no sessions, on no transport: there, what outlives a request is a handle that the
client carries itself. Nothing here is ever keyed to a modern connection.

Context handles: sessions that a client carries itself, by an id that nobody can guess.

Bounded in number, forgotten when idle, and bound to the principal that created them, where there is one.

Where the query of a list request, and the session of any, come from. The only module that knows.

In order: the request's own ``_meta``, a context handle in it, the handshake-era session. A query in the
request is the one form that both eras and every cache along the way allow.

Which items a session has whatever the query is: ``always`` items, the working set, those added by hand.
"""

from __future__ import annotations

import difflib
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias
from weakref import WeakValueDictionary

import msgspec

from mcp_context_proxy.context.options import NO_OVERRIDES, Overrides
from mcp_context_proxy.context.records import Mode
from mcp_context_proxy.downstream.link import Party
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import Document, IncludeMode, Item, Kind, Snapshot, Tool, uri_of
from mcp_context_proxy.learning.working_set import WorkingSet
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.protocol.validation import reaches
from mcp_context_proxy.retrieval.text import identifier_words
from mcp_context_proxy.system.clock import time_of_day

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

    def called(self, tool: Tool, result: bytes, expand_results: bool) -> None:
        """Note a call: the tool stays selected for a while, and its answer may bring others.

        `expand_results` says whether the answer is looked at where the session has no setting of its own.
        """
        self.used.pop(tool.exposed_name, None)
        self.used[tool.exposed_name] = self.requests
        if len(self.used) > USED_KEPT:
            del self.used[next(iter(self.used))]
        self.history.appendleft(identifier_words(tool.name))
        own = self.overrides.expand_results
        text = text_of(result) if (expand_results if own is None else own) else None
        self.answer = None if text is None else (tool.exposed_name, text)

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


ANSWER_CHARACTERS = 2000
"""Characters of an answer that are used: four chunks, some 10 ms of embedding."""

ANSWER_BYTES = 1_000_000
"""A longer answer is not used: decoding it would hold up everybody."""


class _Content(msgspec.Struct):
    text: str = ""


class _ToolAnswer(msgspec.Struct):
    content: list[_Content] = []
    isError: bool = False  # noqa: N815 - the protocol's word


def text_of(result: bytes) -> str | None:
    """Return the texts of a result, cut; None if it has none, or failed. They are never learned from."""
    if len(result) > ANSWER_BYTES:
        return None
    try:
        answer = msgspec.json.decode(result, type=_ToolAnswer)
    except msgspec.DecodeError:
        return None
    text = "\n".join(content.text for content in answer.content)[:ANSWER_CHARACTERS]
    return None if answer.isError or not text.strip() else text


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


HANDLE_BYTES = 24
"""192 random bits: the protocol asks for 128 where a handle is all that identifies its owner."""


@dataclass(slots=True, eq=False)
class Handle(SessionContext):
    """The session that a handle stands for."""

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(HANDLE_BYTES), repr=False)
    """Its unguessable id, which the client carries."""
    principal: str | None = None
    """Who created it; None where callers have no names. Nobody else may use it."""

    @property
    def kind(self) -> str:
        """What keeps it."""
        return "handle"


class Handles:
    """Handles by their secret."""

    def __init__(
        self,
        limit: int,
        idle_seconds: float,
        sessions: Sessions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold at most `limit` handles, each until it was not used for `idle_seconds`."""
        self._limit, self._idle_seconds, self._sessions, self._clock = limit, idle_seconds, sessions, clock
        self._handles: OrderedDict[str, tuple[float, Handle]] = OrderedDict()

    def create(self, principal: str | None = None) -> Handle:
        """A new handle; the longest idle one makes room."""
        self._forget_idle()
        if len(self._handles) >= self._limit:
            self._handles.popitem(last=False)
        handle = Handle(principal=principal)
        self._handles[handle.secret] = (self._clock(), handle)
        self._sessions.register(handle)
        return handle

    def get(self, context_id: str, principal: str | None = None) -> Handle | None:
        """The handle by its id; None when it is unknown, forgotten, or somebody else's."""
        self._forget_idle()
        found = self._handles.get(context_id)
        if found is None or found[1].principal != principal:
            return None
        self._handles[context_id] = (self._clock(), found[1])
        self._handles.move_to_end(context_id)
        return found[1]

    def _forget_idle(self) -> None:
        horizon = self._clock() - self._idle_seconds
        while self._handles and next(iter(self._handles.values()))[0] < horizon:
            self._handles.popitem(last=False)


QUERY_CHARACTERS = 4000
"""A longer query is cut: the model reads 256 word pieces of each sentence, and a person types fewer."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a list is asked for."""

    text: str = ""
    """To search for; empty when what the session was shown before says it all."""
    session: SessionContext | None = None
    """Whose items are listed too."""
    explicit: bool = True
    """Whether the request itself carries it. A session's query only ever adds to what is listed anyway."""


def query_of(
    params: Members, session: Session | None, handles: Handles, principal: str | None = None
) -> Query | None:
    """The query that a list request is to be filtered by; None for the base list.

    Raises:
        RequestError: the context handle is unknown or was forgotten.
    """
    text = envelope.text(eras.meta_of(params).get(eras.QUERY_KEY))
    handle = handle_of(params, handles, principal)
    if text is not None and text.strip():
        return Query(text[:QUERY_CHARACTERS], handle or session)
    if handle is not None:
        return Query("", handle)
    if session is not None and session.changed:
        return Query("", session, explicit=False)
    return None


def handle_of(params: Members, handles: Handles, principal: str | None = None) -> Handle | None:
    """The context that a request names in its ``_meta``; None when it names none.

    Raises:
        RequestError: it is unknown, was forgotten, or is somebody else's.
    """
    wanted = envelope.text(eras.meta_of(params).get(eras.CONTEXT_KEY))
    if wanted is None:
        return None
    handle = handles.get(wanted, principal)
    if handle is None:
        raise RequestError(INVALID_PARAMS, "unknown or expired context; call set_context for a new one")
    return handle


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
