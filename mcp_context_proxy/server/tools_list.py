"""Answers ``tools/list`` with a list that is short, deterministic and the same for everyone.

Only the length of the names follows the host of the client (`Caller.name_of`).
It has the proxy's own tools, then the ``always`` tools and the working set, then, where the request or the
session has a query, the tools that were selected for it. A small catalog is listed whole, and without search
and calls through the proxy, which then bring nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog import definitions
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.names import is_plain_name, tool_named
from mcp_context_proxy.config import ExposeConfig
from mcp_context_proxy.config.tables import ExposeMode
from mcp_context_proxy.context import SESSION_MODES
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.search import TOOL_ONLY, Scope
from mcp_context_proxy.context.session import QUERY_CHARACTERS, Handles, Session, SessionContext, handle_of
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import IncludeMode, Kind, Snapshot, Tool, ToolClass
from mcp_context_proxy.learning import WorkingSet
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.results.result_store import KeptResults
from mcp_context_proxy.server import Caller, meta_definitions
from mcp_context_proxy.server.meta_definitions import CALL, CALL_READ_ONLY, RECALL
from mcp_context_proxy.system.threads import assigned, in_thread_if, keep_latest
from mcp_context_proxy.trust import ACTING, Principal, Role, reaches

BYTES_PER_TOKEN = 4
"""Bytes of JSON in a token, about: only to tell small lists from large before anything else is loaded.
Numbers that people see are counted by a tokenizer (`TokenCounter`)."""

BASE_TTL_MS = 60_000
"""Time that a client may keep the base list. It changes only when a server's tools do, which is announced."""

LISTED_AT_ONCE = 1_000
"""Entries of a list that are encoded without a worker thread: a few milliseconds."""

BASES_KEPT = 32
"""Base lists that are kept: as many as parts of the catalog."""

MODEL, PAGES = "model", "app"
"""Those whom a tool is visible to, as MCP Apps call them."""


T = TypeVar("T")


async def encoded_list(
    first: Iterable[Any],
    define: Callable[[T], Any],
    items: Collection[T],
    last: Iterable[Any] = (),
    size: int = 0,
) -> Raw:
    """Encode a list of definitions: those that come first, one for each item, and those that come last.

    ``size`` is that of the items, where it takes long to define a large one.
    """

    def encoded() -> Raw:
        return envelope.raw([*first, *map(define, items), *last])

    return await in_thread_if(len(items) > LISTED_AT_ONCE or size > envelope.TAKEN_APART_BYTES, encoded)


class BaseList(Struct, frozen=True):
    """The tools of one catalog that are listed without a query, by exposed name."""

    everything: bool
    """True if everything is listed: by configuration, or because hiding would save nothing."""
    names: tuple[str, ...]
    standing: tuple[str, ...]
    """The ``always`` tools and the working set, which are listed whatever else is."""
    own: Mapping[bool, tuple[Raw, ...]]
    """Definitions of the proxy's own tools that are listed; by whether nothing else is hidden."""
    pages: tuple[str, ...] = ()
    """Tools with a page of an MCP App. A host shows it only for a tool that it has listed."""
    of_pages: tuple[str, ...] = ()
    """Tools that pages may call, by a name that no other tool has."""
    paged: frozenset[str] = frozenset()
    """Servers with a page."""


class _Query(Struct, frozen=True):
    text: str
    """Text to search for; empty if the list only has tools that the session was shown before."""
    session: SessionContext | None
    """Session whose items are listed too."""
    explicit: bool = True
    """True if the request itself names the query or the session. A session's own query only adds to the base
    list."""


class ToolList:
    """Answers ``tools/list``."""

    def __init__(
        self,
        *,
        expose: ExposeConfig,
        catalog: Catalog,
        fleet: Fleet,
        contexts: ContextEngine,
        handles: Handles,
        setup: meta_definitions.Setup,
        working_set: WorkingSet,
        results: KeptResults,
        wait_for_first_lists: Callable[[Callable[[], bool]], Awaitable[None]],
    ) -> None:
        """Prepare the list; the definitions of the proxy's own tools follow from `setup`.

        The owners of `results` get the tool that reads them. `wait_for_first_lists` waits a short time for
        servers of which nothing is known, or only for those that may have ``always`` tools while its argument
        returns True.
        """
        self._wait_for_first_lists = wait_for_first_lists
        self._results = results
        self.working_set = working_set
        self._catalog, self._fleet, self._contexts, self._handles = catalog, fleet, contexts, handles
        self.configure(expose, setup)

    def configure(self, expose: ExposeConfig, setup: meta_definitions.Setup) -> None:
        """Follow changed settings, and the definitions of the proxy's own tools that go with them."""
        self._expose, self._setup, self._has_documents = expose, setup, setup.has_documents
        self._found_bytes = expose.found_tokens * BYTES_PER_TOKEN
        """Room for the definitions of tools that a search has found, and as much for those with pages."""
        self._meta_tools = {whole: meta_definitions.definitions(setup, whole) for whole in (False, True)}
        self._bases: dict[int, BaseList] = {}
        """Base lists by generation: of the whole catalog, and of the parts of it that clients see."""
        self._cached: dict[tuple[int, Principal, bool], tuple[object, Raw]] = {}

    @property
    def _mode(self) -> ExposeMode:
        """Mode of the list for whom this is done: that of the client's profile, or the configured one."""
        profile = ACTING.get().profile
        return (None if profile is None else profile.settings.expose) or self._expose.mode

    async def answer(self, params: Members, caller: Caller) -> Members:
        query = self._query_of(params, caller)
        if query is None or not query.text:
            # Many clients never list again. A search waits by itself.
            await self._wait_for_first_lists(lambda: not self.lists_all(self._catalog.snapshot))
        snapshot, names, request_id = await self._names(query, caller)
        state = snapshot.generation, names, self.hides_nothing(snapshot, names)
        room = caller.name_room if snapshot.wider else 0
        base = self.base_of(snapshot)
        apps = bool(base.paged) and eras.shows_apps(caller.capabilities)
        known, tools = self._cached.get((room, caller.rights, apps), (None, Raw(b"")))
        if known != state:

            def define(tool: Tool) -> Raw:
                name = caller.name_of(tool) if tool.wider_names else tool.exposed_name
                defined = definitions.tool_definition(tool, name)
                # To a host all tools are those of one server, all of which its pages may call.
                closed = apps and tool.server not in base.paged
                return definitions.visible_to(defined, MODEL) if closed else defined

            first: Iterable[Raw] = self.meta_tools(snapshot, names)
            last: list[Raw] = []
            if apps:
                first = [definitions.visible_to(one, MODEL) for one in first]
                # The pages of a server know its tools by no name but their own.
                called = (snapshot.tools[name] for name in base.of_pages)
                named = (definitions.tool_definition(tool, tool.name) for tool in called)
                last = [definitions.visible_to(one, PAGES) for one in named]
            listed = [snapshot.tools[name] for name in names]
            size = sum(len(tool.written) for tool in listed)
            tools = await encoded_list(first, define, listed, last, size)
            keep_latest(self._cached, (room, caller.rights, apps), (state, tools), BASES_KEPT)
        told = caller.session is None and self._results.listed_for_all
        if told or (self._results.by_id and self._results.owns(caller.owner)):
            # At the end, so that what a prompt cache has of the list stays.
            before, own = bytes(tools)[:-1], bytes(meta_definitions.read_result())
            tools = Raw(before + (b"," if len(before) > len(b"[") else b"") + own + b"]")
        asked = query is not None and query.explicit
        ttl_ms = 0 if asked or self._fleet.starting else BASE_TTL_MS
        answer = {"tools": tools, "ttlMs": Raw(b"%d" % ttl_ms)}
        if request_id is not None:
            answer["_meta"] = envelope.raw({eras.REQUEST_KEY: request_id})
        return answer

    def _query_of(self, params: Members, caller: Caller) -> _Query | None:
        """Return the query by which the list is filtered; None for the base list.

        The query in ``_meta`` comes first, then the context handle in it, then the handshake-era session, or
        the presets of a client without one. A query in the request is the only form that both eras and every
        cache on the way allow.
        """
        meta, session = caller.meta, caller.session
        text = envelope.text(meta.get(eras.QUERY_KEY)) or ""
        handle = None
        if eras.CONTEXT_KEY in meta:
            handle = handle_of(meta, self._handles, caller.principal)
        if text.strip():
            return _Query(text[:QUERY_CHARACTERS], handle or session)
        if handle is not None:
            return _Query("", handle)
        if session is not None and (session.shown or session.added or session.removed):
            return _Query("", session, explicit=False)
        if session is None and (begun_with := caller.rights.all_presets):
            begun = self._contexts.presets.begun(begun_with)
            return _Query("", begun, explicit=False) if begun.added or begun.removed else None
        return None

    async def _names(
        self, query: _Query | None, caller: Caller
    ) -> tuple[Snapshot, tuple[str, ...], str | None]:
        """Return the snapshot that is listed, the exposed names out of it, and the id of the request.

        The id is None where no query has filtered the list.
        """
        snapshot, apps = self._catalog.snapshot, eras.shows_apps(caller.capabilities)
        if query is None or self._mode == "all":
            return snapshot, self._standing(snapshot, self.base_names(snapshot), apps), None
        if not query.text:
            assert query.session is not None
            return snapshot, self._of_session(snapshot, query.session, apps, query.explicit), None
        selected = await self._contexts.select(
            query.text,
            query.session,
            origin="list",
            scope=Scope(kinds=TOOL_ONLY),
            introduced=eras.name_of(caller.client_info),
            listed=() if isinstance(query.session, Session) else None,
            owner=caller.principal,
        )
        context = selected.context
        if context.failure is not None:
            session = query.session
            names = self._standing(snapshot, self.base_names(snapshot), apps)
            return snapshot, self._of_session(snapshot, session, apps) if session else names, context.id
        tools = (*context.of(Kind.TOOL), *(item for item in context.near_misses if item.type is Kind.TOOL))
        first = [item.name for item in tools if item.include_mode in SESSION_MODES]
        # The others by name, never by score: the same tools make the same list, which prompt caches need.
        more = sorted(item.name for item in tools if item.include_mode not in SESSION_MODES)
        snapshot = selected.found.snapshot
        return snapshot, _in_catalog(snapshot, self._standing(snapshot, first, apps), more), context.id

    def _standing(self, snapshot: Snapshot, names: Iterable[str], apps: bool) -> tuple[str, ...]:
        """Return the names that are listed in any case; for a host that shows pages also tools with one."""
        return tuple(dict.fromkeys((*names, *self.base_of(snapshot).pages))) if apps else tuple(names)

    def _of_session(
        self, snapshot: Snapshot, session: SessionContext, apps: bool, explicit: bool = False
    ) -> tuple[str, ...]:
        """Return the tools of a session; a connection's own list only grows at its end."""
        base = self.base_of(snapshot)
        whole = base.everything and not explicit
        added = [name for kind, name in session.added if kind is Kind.TOOL]
        shown = [] if whole else sorted(session.shown) if explicit else session.shown
        standing = self._standing(snapshot, base.names if whole else base.standing, apps)
        names = _in_catalog(snapshot, standing, (*added, *shown))
        if not session.removed:
            return names
        return tuple(name for name in names if (Kind.TOOL, name) not in session.removed)

    def base_of(self, snapshot: Snapshot) -> BaseList:
        """Return the base list, made once for each catalog: each search of a session needs it twice."""
        known = self._bases.get(snapshot.generation)
        if known is not None:
            return known
        chosen = bool(self.working_set.reasons)
        standing = tuple(
            name
            for name, tool in snapshot.tools.items()
            if tool.include is IncludeMode.ALWAYS or (chosen and self.working_set.why(tool) is not None)
        )
        everything, names = False, standing
        if self._mode == "all":
            everything, names = True, tuple(snapshot.tools)
        elif self._mode == "auto":
            size = sum(len(tool.written) for tool in snapshot.tools.values())
            if size // BYTES_PER_TOKEN < self._expose.list_all_below:
                everything = True
                names = tuple(
                    name for name, tool in snapshot.tools.items() if tool.include is not IncludeMode.MANUAL
                )
        meta_tools, setup = self._meta_tools, self._told(snapshot, everything and bool(names))
        if snapshot.part_of is not None or setup.lists_all:
            # They name servers, and say whether all tools are listed.
            meta_tools = {whole: meta_definitions.definitions(setup, whole) for whole in (False, True)}
        own = {whole: _with_result_size(tools, snapshot) for whole, tools in meta_tools.items()}
        base = BaseList(everything, names, standing, own, *self._for_apps(snapshot))
        return keep_latest(self._bases, snapshot.generation, base, BASES_KEPT)

    def _for_apps(
        self, snapshot: Snapshot
    ) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]] | tuple[()]:
        """Return the tools with pages, those that pages may call, and the servers with pages."""
        with_page = [tool for tool in snapshot.tools.values() if tool.page]
        if not with_page:
            return ()
        paged = frozenset(tool.server for tool in with_page)
        left, pages = self._found_bytes, []
        for tool in with_page:
            if tool.include is not IncludeMode.MANUAL and len(tool.written) <= left:
                left -= len(tool.written)
                pages.append(tool.exposed_name)
        shared = Counter(tool.name for tool in snapshot.tools.values())
        called = (
            name
            for name, tool in snapshot.tools.items()
            if tool.server in paged
            and shared[tool.name] == 1
            and tool.name not in snapshot.tools
            and tool.name not in meta_definitions.RESERVED
            and is_plain_name(tool.name)
            and definitions.is_for_apps(tool)
        )
        # An own name leads nowhere as long as a server is not known that may have it, too.
        return tuple(pages), () if snapshot.unlisted else tuple(called), paged

    def setup_of(self, snapshot: Snapshot) -> meta_definitions.Setup:
        """Return the facts of the configuration that a client is told with this catalog."""
        return self._told(snapshot, self.base_of(snapshot).everything and bool(snapshot.tools))

    def _told(self, snapshot: Snapshot, everything: bool) -> meta_definitions.Setup:
        setup = replace(self._setup, lists_all=everything and not snapshot.unlisted)
        if not ACTING.get().limited:
            return setup
        return replace(
            setup, servers=tuple(filter(reaches, setup.servers)), off=tuple(filter(reaches, setup.off))
        )

    def base_names(self, snapshot: Snapshot) -> tuple[str, ...]:
        return self.base_of(snapshot).names

    def lists_all(self, snapshot: Snapshot) -> bool:
        """Return whether everything is listed: by configuration, or because hiding would save nothing."""
        return self.base_of(snapshot).everything

    def definitions(self, snapshot: Snapshot, names: Collection[str]) -> list[Raw]:
        """Return definitions as they are listed: the proxy's own tools, then those named."""
        named = (definitions.tool_definition(snapshot.tools[name]) for name in names)
        return [*self.meta_tools(snapshot, names), *named]

    def meta_tools(self, snapshot: Snapshot, names: Collection[str]) -> tuple[Raw, ...]:
        """Return the definitions of the proxy's own tools that are listed beside those named."""
        own, rights = self.base_of(snapshot).own[self.hides_nothing(snapshot, names)], ACTING.get()
        if not self._setup.recall or rights.profile is not None or rights.may(Role.VIEW):
            return own
        # It would refuse every call of theirs.
        return tuple(tool for tool in own if envelope.text(envelope.members(tool)["name"]) != RECALL)

    def hides_nothing(self, snapshot: Snapshot, names: Collection[str]) -> bool:
        """Return whether a search could find nothing beside the tools named.

        A server whose tools are not known yet hides them: many clients never list again. So does a proxy
        without a single tool, which would look broken.
        """
        base = self.base_of(snapshot)
        complete = base.everything and len(base.names) <= len(names) and bool(names)
        has_documents = self._has_documents and snapshot.part_of is None
        return complete and not (has_documents or snapshot.documents or snapshot.unlisted)

    def header_schema(self, name: str, listed: bool) -> dict[str, Any] | None:
        """Return the input schema of a tool whose calls repeat arguments in HTTP headers; None for any other.

        If ``listed``, only names in the base list count: a client that was never shown a tool cannot know its
        headers.
        """
        snapshot = self._catalog.snapshot
        tool = snapshot.tools.get(name) or snapshot.wider.get(name)
        if tool is None and not listed:
            with suppress(UnknownItemError):
                tool = tool_named(snapshot, name, compared=0)
        if tool is None or b"x-mcp-header" not in tool.definition:
            return None
        if listed and tool.exposed_name not in self.base_names(snapshot):
            return None
        schema: dict[str, Any] = envelope.value(envelope.members(tool.definition)["inputSchema"])
        return schema

    def show_found(self, session: Session, names: Iterable[str]) -> bool:
        """Add the tools that a search found, the best first, to a session's list as far as it has room.

        Return whether that makes it longer.
        """
        tools = self._catalog.whole.snapshot.tools
        left = self._found_bytes
        left -= sum(len(tools[name].written) for name in session.shown if name in tools)
        taken = []
        for name in names:
            size = len(tools[name].written) if name in tools else 0
            if name not in session.shown and size <= left:
                taken.append(name)
                left -= size
        return self.show(session, taken)

    def show(self, session: Session, names: Iterable[str]) -> bool:
        """Add tools to a session's list; return whether that makes it longer.

        The same as comparing `visible` before and after, without going through all that was ever shown.
        """
        more = sorted(name for name in names if name not in session.shown)
        session.shown.update(dict.fromkeys(more))
        limited = session.rights.limited
        with assigned(ACTING, session.rights) if limited else nullcontext():
            snapshot = (self._catalog if limited else self._catalog.whole).snapshot
            base = self.base_of(snapshot)
        return not base.everything and any(
            name in snapshot.tools
            and name not in base.standing
            and (Kind.TOOL, name) not in session.added
            and (Kind.TOOL, name) not in session.removed
            for name in more
        )

    def with_pages(self, session: Session | None) -> tuple[str, ...]:
        """Return the exposed names listed for a host that shows MCP Apps, in a session or without one."""
        snapshot = self._catalog.snapshot
        if session is None:
            return self._standing(snapshot, self.base_names(snapshot), apps=True)
        return self._of_session(snapshot, session, apps=True)

    def visible(self, session: Session) -> tuple[str, ...]:
        """Return the exposed names that a session's list shows now, beside the proxy's own tools."""
        apps = session.hello is not None and eras.shows_apps(session.hello.capabilities)
        with assigned(ACTING, session.rights):
            return self._of_session(self._catalog.snapshot, session, apps)


def _in_catalog(snapshot: Snapshot, first: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """Join two lists of names in order, each name once, without those that are no longer in the catalog."""
    return tuple(name for name in dict.fromkeys((*first, *more)) if name in snapshot.tools)


def _with_result_size(own: Iterable[Raw], snapshot: Snapshot) -> tuple[Raw, ...]:
    """Return the definitions of the proxy's own tools with the length of results that hosts shall keep whole.

    A host knows a result by the tool that it called. So a call tool asks for the longest that any tool behind
    it asks for, and for nothing if none does. It stands in the ``_meta``, which is no part of a prompt.
    """
    wanting = [tool for tool in snapshot.tools.values() if tool.result_characters]
    longest = {
        CALL: max((tool.result_characters for tool in wanting), default=0),
        CALL_READ_ONLY: max(
            (tool.result_characters for tool in wanting if tool.tool_class is ToolClass.READ), default=0
        ),
    }
    marked = []
    for definition in own:
        members = envelope.members(definition)
        size = longest.get(envelope.text(members["name"]) or "", 0)
        if size:
            meta = {**eras.meta_of(members), definitions.RESULT_SIZE: envelope.raw(size)}
            definition = envelope.raw({**members, "_meta": envelope.raw(meta)})  # noqa: PLW2901
        marked.append(definition)
    return tuple(marked)
