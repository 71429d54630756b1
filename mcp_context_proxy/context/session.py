"""Sessions: the state of a client beyond one request, and the items that belong to its context.

A handshake-era client has the session of its connection. The modern era has no sessions, so a client carries
a handle there: an id that nobody can guess, bound to the principal that created it. Nothing here is ever
keyed to a modern connection.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Self, TypeAlias
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct, field

from mcp_context_proxy.catalog import names
from mcp_context_proxy.catalog.document_reading import near_documents, uris_meant
from mcp_context_proxy.config import Config
from mcp_context_proxy.context import NO_OVERRIDES, ContextItem, Delivery, Mode, Overrides
from mcp_context_proxy.downstream import Party
from mcp_context_proxy.errors import (
    AwaitedServersError,
    ChangedMeaningError,
    NotForModelsError,
    UnknownItemError,
)
from mcp_context_proxy.items import IncludeMode, Item, ItemKey, Kind, Snapshot, Tool, item_by, key_of
from mcp_context_proxy.learning import WorkingSet
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.protocol.eras import Hello, covers, reaches
from mcp_context_proxy.retrieval.text import identifier_words
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import keep_latest
from mcp_context_proxy.trust import THE_USER, Principal, Role

ID_BYTES = 8
"""Length of a session's public id: it is shown in lists, records and logs, and grants nothing."""

HISTORY_KEPT = 20
"""Remembered queries and calls: each step back has half the weight, so more would change nothing."""

HISTORY_CHARACTERS = 500
"""Length to which a remembered query is cut: one chunk."""

USED_KEPT = 100
"""Called tools that are remembered."""

NAMES_KEPT = 1000
"""Own names whose server is remembered; nobody calls more."""

DEFAULT_LOG_LEVEL = "debug"
"""Log level of a client that never set one: it gets every message, as if there were no proxy."""

Delivered: TypeAlias = tuple[str, Delivery]
"""Fingerprint of a document that a model was given, and the form."""

Given: TypeAlias = dict[ItemKey, Delivered]


class SessionView(Struct, frozen=True):
    """Immutable copy of a session's state, for work in another thread."""

    id: str | None = None
    added: tuple[ItemKey, ...] = ()
    removed: frozenset[ItemKey] = frozenset()
    used: tuple[str, ...] = ()
    """Exposed names of recently called tools, latest first."""
    history: tuple[str, ...] = ()
    """Recent queries and calls, latest first."""
    answer: tuple[str, str] | None = None
    """Exposed name of the tool called last, and the text of its result."""
    delivered: Mapping[ItemKey, Delivered] | None = None
    """Documents that the model was given before; None where that is not known."""
    meant: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Servers of own names; see `SessionContext.meant`."""
    client: str | None = None
    """Name by which its client introduced itself."""


NO_SESSION = SessionView()
"""View for a request without a session: its context has the ``always`` items only."""


class SessionContext(Struct, eq=False, weakref=True):
    """State of a session: items added and removed by hand, queries and calls.

    Only the event loop may change it.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(ID_BYTES))
    created: float = field(default_factory=time_of_day)
    """Seconds since 1970."""
    query: str | None = None
    """Latest query; None before the first one."""
    shown: dict[str, None] = field(default_factory=dict)
    """Exposed names of all tools selected so far. It only grows, so that the tools that a model has seen keep
    their place in the list."""
    added: dict[ItemKey, None] = field(default_factory=dict)
    """Items added by hand, in that order."""
    removed: set[ItemKey] = field(default_factory=set)
    """Items removed by hand: part of no context of this session until they are added again."""
    by_person: set[ItemKey] = field(default_factory=set)
    """Items that a person has added or removed: a model changes nothing about them."""
    overrides: Overrides = NO_OVERRIDES
    latest_request: str | None = None
    """Id of the latest request context."""
    requests: int = 0
    used: dict[str, int] = field(default_factory=dict)
    """Value of ``requests`` at the last call of each tool, by exposed name."""
    history: deque[str] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    """Queries and calls, latest first."""
    answer: tuple[str, str] | None = None
    """Exposed name of the tool called last, and the text of its result; None where results are not read."""

    meant: dict[tuple[str, str], str] = field(default_factory=dict)
    """Server that each kind of item and own name meant when the client first used it."""
    delivered: Given = field(default_factory=dict)
    """Documents that the model was given in this session. One that changes is given again."""
    noted: dict[str, frozenset[str]] = field(default_factory=dict)
    """Servers of which the latest answer to a search could have said something, by the note about them."""
    principal: str | None = None
    """Principal that created it and alone may use it; None where callers have no names."""
    rights: Principal = THE_USER
    """The rights of its client."""

    @property
    def kind(self) -> str:
        """The owner of the session: a ``connection`` or a ``handle``."""
        return "connection"

    @property
    def client(self) -> str | None:
        """The name under which its client introduced itself; None where that is not known."""
        return None

    def asked(self, request_id: str, query: str) -> None:
        """Note that a request context was built for a query."""
        self.query, self.latest_request = query, request_id
        self.requests += 1
        self.history.appendleft(query[:HISTORY_CHARACTERS])

    def means(self, kind: str, name: str, server: str) -> None:
        """Note the server that a name leads to, unless the name states its server.

        Raises `ChangedMeaningError` if the name led to another server before.
        """
        if names.is_full(name):
            return
        before = self.meant.setdefault((kind, name), server)
        if before != server:
            raise ChangedMeaningError(kind, name, before, server)
        if len(self.meant) > NAMES_KEPT:
            del self.meant[next(iter(self.meant))]

    def called(self, tool: Tool, result: bytes, reading: ResultReading) -> None:
        """Note a call: the tool stays selected for a while, and its result may bring others.

        `reading` tells whether the result is read, unless the session has a setting of its own.
        """
        keep_latest(self.used, tool.exposed_name, self.requests, USED_KEPT)
        self.history.appendleft(identifier_words(tool.name))
        own, text = self.overrides.expand_results, None
        if (own or reading.enabled) and reading.covers(tool.exposed_name, own):
            text = result_text(result, reading.characters)
        self.answer = None if text is None else (tool.exposed_name, text)

    def view(self, retained: int = 0, history: int = 0) -> SessionView:
        """Return the state now, with the tools called in the latest ``retained`` requests."""
        since = self.requests - retained
        return SessionView(
            id=self.id,
            added=tuple(self.added),
            removed=frozenset(self.removed),
            used=tuple(name for name, at in reversed(self.used.items()) if at > since),
            history=tuple(islice(self.history, history)),
            answer=self.answer,
            delivered=dict(self.delivered),
            meant=dict(self.meant) if self.added else {},
            client=self.client,
        )


class RemovedItem(Struct, frozen=True):
    """An item that was removed from a session by hand."""

    type: Kind
    name: str


class SessionState(Struct, frozen=True):
    """Current context of a session; see `SessionContext`."""

    id: str
    kind: str
    created: float
    query: str | None
    items: tuple[ContextItem, ...]
    removed: tuple[RemovedItem, ...]
    options: Overrides
    latest_request: str | None
    profile: str | None = None
    """Profile of its client; None without one."""
    by_person: tuple[RemovedItem, ...] = ()
    """Items that a person has added or removed, about which a model changes nothing."""
    client: str | None = None
    """Name under which its client introduced itself; None where it gave none, and for a handle."""
    presets: tuple[str, ...] = ()
    """Presets with which it began, of its profile and of its host. One of them may not be saved any more."""
    preset_options: Overrides = NO_OVERRIDES
    """Changes of options by these, before its own."""


class ResultReading(Struct, frozen=True):
    """Tools whose results are read for the tools that fit next, and how much of each result."""

    enabled: bool = False
    """Whether results are read in sessions without a setting of their own."""
    tools: tuple[str, ...] = ("*",)
    """Patterns of exposed names."""
    characters: int = 2000
    """Length to which the text of a result is cut."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Take the settings of the configuration."""
        wanted = config.context.expand_results
        tools = ("*",) if isinstance(wanted, bool) else wanted
        return cls(bool(wanted), tools, config.context.expand_results_characters)

    def covers(self, exposed_name: str, own: bool | None) -> bool:
        """Return whether the result of a tool is read in a session, given that session's own setting."""
        enabled = self.enabled if own is None else own
        return enabled and any(fnmatchcase(exposed_name, pattern) for pattern in self.tools)


NO_RESULTS = ResultReading()
"""Reading of no results at all."""

RESULT_BYTES = 1_000_000
"""Size from which a result is not read: decoding it would hold up the event loop."""


class _Content(msgspec.Struct):
    text: str = ""


class _ToolResult(msgspec.Struct):
    content: list[_Content] = []


def result_text(result: bytes, characters: int) -> str | None:
    """Return the text of a call's result, cut; None if it has none.

    An error is read as well: it often names the step that has to come first.
    """
    if len(result) > RESULT_BYTES:
        return None
    try:
        decoded = msgspec.json.decode(result, type=_ToolResult)
    except msgspec.DecodeError:
        return None
    text = "\n".join(content.text for content in decoded.content)[:characters]
    return text if text.strip() else None


class Session(SessionContext, eq=False):
    """Session of a handshake-era connection; it ends with the connection."""

    hello: Hello | None = None
    """The terms on which its client opened it."""
    folders: tuple[str, ...] | None = None
    """Folders of the projects that its client has open; None until that is known, or matters."""
    log_level: str | None = None
    """Least severe log level that the client asked for; None until it does."""
    introduced: set[str] = field(default_factory=set)
    """Servers of whose instructions the client was told."""
    subscriptions: set[str] = field(default_factory=set)
    """URIs of resources whose updates the client asked for."""
    party: Party = field(default_factory=Party)
    """Identity of the client at the downstream connections."""

    def __post_init__(self) -> None:
        """Make the party, whose principal is that of the session."""
        self.party = Party(self.principal, lasting=True, sees_all=self.rights.may(Role.VIEW))

    @property
    def client(self) -> str | None:
        """The name under which its client introduced itself; None where it gave none."""
        return eras.name_of(None if self.hello is None else self.hello.client_info)

    def subscribes(self, uri: str) -> bool:
        """Return whether the client subscribed to this resource, or to one that contains it."""
        return covers(self.subscriptions, uri)

    def wants_level(self, level: str | None) -> bool:
        """Return whether a log message of that level is for the client."""
        return reaches(level, self.log_level or DEFAULT_LOG_LEVEL)


class Sessions:
    """All current sessions by public id. References are weak: a handle ends with its owner."""

    def __init__(self) -> None:
        self._sessions: WeakValueDictionary[str, SessionContext] = WeakValueDictionary()

    def register(self, session: SessionContext) -> None:
        """List a session until it is ended, or its owner drops it."""
        self._sessions[session.id] = session

    def end(self, session: SessionContext) -> None:
        """List a session no longer, though something may still hold it for a while."""
        self._sessions.pop(session.id, None)

    def get(self, session_id: str) -> SessionContext | None:
        """Return the session with a public id; None if it has ended."""
        return self._sessions.get(session_id)

    def __iter__(self) -> Iterator[SessionContext]:
        """Iterate over the sessions, oldest first."""
        return iter(sorted(self._sessions.values(), key=lambda session: (session.created, session.id)))


HANDLE_BYTES = 24
"""192 random bits: the protocol asks for 128 if nothing but the handle identifies its owner."""


class Handle(SessionContext, eq=False):
    """Session that a client carries by a secret id."""

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(HANDLE_BYTES))
    """The ``context_id`` of the client."""

    def __repr__(self) -> str:
        """Return the public id: whoever has the secret has the session."""
        return f"{type(self).__name__}(id={self.id!r})"

    @property
    def kind(self) -> str:
        return "handle"


PRINCIPALS = 100
"""Principals with handles of their own; beyond it, those of the one that has used none for longest are
forgotten. A principal is a credential that a person has given out."""


class Handles:
    """Handles by secret: at most `limit` of each principal, each forgotten after `idle_seconds` without use.

    Whoever creates too many loses handles of their own: those of others stay.
    """

    def __init__(
        self,
        limit: int,
        idle_seconds: float,
        sessions: Sessions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._idle_seconds, self._sessions, self._clock = limit, idle_seconds, sessions, clock
        self._of: OrderedDict[str | None, OrderedDict[str, tuple[float, Handle]]] = OrderedDict()
        """Time of the last use and handle by secret, by principal; those idle for longest first."""
        self.created: list[Handle] | None = None
        """Handles that were created and that whoever keeps them elsewhere has not taken yet; None if nobody
        does."""

    def create(self, principal: str | None = None) -> Handle:
        """Create a handle; if its principal has too many, the one idle for longest is forgotten."""
        handle = Handle(principal=principal)
        self.take(handle)
        if self.created is not None:
            self.created.append(handle)
        return handle

    def take(self, handle: Handle) -> None:
        """Add a handle, which may be one that another replica has created."""
        self._forget_idle()
        handles = self._of.setdefault(handle.principal, OrderedDict())
        if len(handles) >= self._limit:
            handles.popitem(last=False)
        handles[handle.secret] = (self._clock(), handle)
        self._of.move_to_end(handle.principal)
        if len(self._of) > PRINCIPALS:
            self._of.popitem(last=False)
        self._sessions.register(handle)

    def get(self, context_id: str, principal: str | None = None) -> Handle | None:
        """Return the handle with an id; None if it is unknown, forgotten, or another principal's."""
        self._forget_idle()
        handles = self._of.get(principal, OrderedDict())
        found = handles.get(context_id)
        if found is None:
            return None
        handles[context_id] = (self._clock(), found[1])
        handles.move_to_end(context_id)
        self._of.move_to_end(principal)
        return found[1]

    def _forget_idle(self) -> None:
        horizon = self._clock() - self._idle_seconds
        for principal in list(self._of):
            handles = self._of[principal]
            while handles and next(iter(handles.values()))[0] < horizon:
                handles.popitem(last=False)
            if not handles:
                del self._of[principal]


NOTED_SECONDS = 600.0
"""Time after which a client without a session is told of the same servers again."""

NOTED_CLIENTS = 200
"""Clients without a session whose notes are remembered; beyond it, the first one is forgotten."""

AGENT_CHARACTERS = 64
"""Length to which the name of such a client is cut."""


class NotedClients:
    """Servers that notes for clients without a session named: see `SessionContext.noted`.

    Each of their requests stands alone, and one client may hold several conversations. So they are told
    again after `NOTED_SECONDS`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: OrderedDict[tuple[str | None, str], tuple[float, dict[str, frozenset[str]]]] = OrderedDict()
        """Time of the first note, and servers by note, by principal and name of the client."""

    def of(self, principal: str | None, agent: str | None) -> dict[str, frozenset[str]]:
        """Return the servers by note of one client, to be kept up to date by the caller."""
        key, now = (principal, (agent or "")[:AGENT_CHARACTERS]), self._clock()
        begun, noted = self._of.get(key, (-math.inf, {}))
        if now - begun < NOTED_SECONDS:
            return noted
        return keep_latest(self._of, key, (now, {}), NOTED_CLIENTS)[1]


QUERY_CHARACTERS = 4000
"""Length to which a query is cut: the model reads 256 word pieces of each sentence, and people type less."""


def handle_of(meta: Members, handles: Handles, principal: str | None = None) -> Handle | None:
    """Return the context handle that the ``_meta`` of a request names; None if it names none.

    Raises `RequestError` if the handle is unknown, was forgotten, or belongs to another principal.
    """
    wanted = envelope.text(meta.get(eras.CONTEXT_KEY))
    if wanted is None:
        return None
    handle = handles.get(wanted, principal)
    if handle is None:
        raise RequestError(INVALID_PARAMS, "unknown or expired context; call set_context for a new one")
    return handle


def standing_items(snapshot: Snapshot, working_set: WorkingSet) -> Iterator[tuple[Item, Mode]]:
    """Yield the items of every session: rules and references by priority, then tools by name."""
    documents = (one for one in snapshot.documents.values() if one.include is IncludeMode.ALWAYS)
    for document in sorted(documents, key=lambda document: (document.priority, document.kind != Kind.RULE)):
        yield document, Mode.ALWAYS
    for tool in snapshot.tools.values():
        if tool.include is IncludeMode.ALWAYS:
            yield tool, Mode.ALWAYS
        elif working_set.why(tool) is not None:
            yield tool, Mode.WORKING_SET


def resolve(snapshot: Snapshot, kind: Kind, name: str, server: str | None = None) -> Item:
    """Return an item by name; see `catalog.names` for the names that a tool has.

    The URI of a document names it whatever the kind is, because answers and lists write it so; its own name
    does, too, where no tool has that name. Raises `UnknownItemError` if no item has that name, or it cannot
    be told which is meant.
    """
    kind = Kind(kind)
    own = None if kind is Kind.TOOL else item_by(snapshot, (kind, name))
    document = own or snapshot.document(name)
    if document is not None and server is None:
        return document
    if kind is not Kind.TOOL:
        known = [document.name for document in snapshot.documents.values() if document.kind is kind]
        raise UnknownItemError(str(kind), name, names.nearest(name, known))
    try:
        return names.tool_named(snapshot, name, server)
    except UnknownItemError as error:
        # Several tools have that name, or one that is withheld or turned off.
        if server is not None or type(error) not in {UnknownItemError, AwaitedServersError}:
            raise
        found = [one for uri in uris_meant(name) if (one := snapshot.document(uri)) is not None]
        if len(found) == 1:
            return found[0]
        suggested = [one.uri for one in found] or near_documents(snapshot, name)
        if suggested and (found or not error.nearest):
            raise UnknownItemError(str(kind), name, suggested) from None
        if snapshot.documents and not error.nearest and type(error) is UnknownItemError:
            raise UnknownItemError(f"{kind} or document", name) from None
        raise


def resolve_in(
    session: SessionContext, snapshot: Snapshot, kind: Kind, name: str, server: str | None = None
) -> Item:
    """Return an item by name as `resolve` does, and let its own name mean the same server from now on.

    Raises:
        UnknownItemError: see `resolve`; or the name meant another server before.
    """
    item = resolve(snapshot, kind, name, server)
    if isinstance(item, Tool) and server is None:
        session.means(Kind.TOOL, name, item.server)
    return item


def check_model_may(session: SessionContext, item: Item) -> None:
    """Raise `NotForModelsError` unless a model may add and remove an item.

    It may those that a search can find, whose include mode is ``agent``, and that no person has decided on.
    """
    kind, name = key = key_of(item)
    if key in session.by_person:
        raise NotForModelsError(kind, name, "a person has decided on it in this session")
    if item.include is not IncludeMode.AGENT:
        raise NotForModelsError(kind, name, f'its include mode is "{item.include}"')


def decided(session: SessionContext, item: Item) -> None:
    """Note that a person has decided on an item."""
    session.by_person.add(key_of(item))


def add(session: SessionContext, item: Item) -> None:
    """Add an item by hand; an ``always`` item that was not removed is there already and stays ``always``.

    Raises `ChangedMeaningError` if the name under which a tool is exposed meant another server before.
    """
    key = key_of(item)
    if isinstance(item, Tool):
        session.means(Kind.TOOL, item.exposed_name, item.server)
    if item.include is IncludeMode.ALWAYS and key not in session.removed:
        return
    session.removed.discard(key)
    session.added[key] = None


def remove(session: SessionContext, item: Item) -> None:
    """Remove an item by hand: no query of this session selects it until it is added again."""
    key = key_of(item)
    session.added.pop(key, None)
    session.removed.add(key)
