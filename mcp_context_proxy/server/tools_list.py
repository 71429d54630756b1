"""Tools as hosts see them.

The list is short, deterministic and the same for everyone: the proxy's own tools, then the ``always``
items and the working set, then, where the request or the session has a query, what was selected for it. A
small catalog is listed whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import Raw

from mcp_context_proxy.catalog import definitions
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.config import ExposeConfig
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.records import SESSION_MODES
from mcp_context_proxy.context.search import Scope
from mcp_context_proxy.context.session import Handles, Query, Session, SessionContext, query_of
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.items import IncludeMode, Kind, Snapshot
from mcp_context_proxy.learning.working_set import WorkingSet
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.server.caller import Caller

BYTES_PER_TOKEN = 4
"""Of JSON, about: only to tell small lists from large before anything else is loaded. What a person is told
is counted by a tokenizer (`TokenCounter`)."""

BASE_TTL_MS = 60_000
"""How long a client may keep the base list. It changes only when a server's tools do, which is announced."""

TOOL_ONLY = frozenset({Kind.TOOL})


class ToolList:
    """Answers ``tools/list``."""

    def __init__(
        self,
        expose: ExposeConfig,
        catalog: Catalog,
        fleet: Fleet,
        contexts: ContextEngine,
        handles: Handles,
        own: list[Raw],
        working_set: WorkingSet,
    ) -> None:
        """Prepare the list.

        Args:
            expose: What is to be listed.
            catalog: Of everything.
            fleet: The downstream servers; while some are starting, the list may soon change.
            contexts: Selects tools for a query; knows what sessions have.
            handles: Of contexts that clients carry themselves.
            own: Definitions of the proxy's own tools.
            working_set: Is listed like the ``always`` tools.
        """
        self.working_set = working_set
        self._expose, self._catalog, self._fleet = expose, catalog, fleet
        self._contexts, self._handles, self._own = contexts, handles, own
        self._base: _Base | None = None
        self._cached: tuple[int, tuple[str, ...], bytes] = (-1, (), b"")

    def configure(self, expose: ExposeConfig, own: list[Raw]) -> None:
        """List by other settings, and other definitions of the proxy's own tools."""
        self._expose, self._own = expose, own
        self._base, self._cached = None, (-1, (), b"")

    @property
    def own(self) -> tuple[Raw, ...]:
        """Definitions of the proxy's own tools."""
        return tuple(self._own)

    async def answer(self, params: Members, caller: Caller) -> bytes:
        """The result of ``tools/list``.

        Raises:
            RequestError: the cursor or the context handle is not one of ours.
        """
        if envelope.text(params.get("cursor")):
            raise RequestError(INVALID_PARAMS, "invalid cursor: the list has one page")
        query = query_of(params, caller.session, self._handles, caller.principal)
        snapshot, names = await self._names(query, caller.principal)
        tools = self._encoded(snapshot, names)
        if query is None and not self._fleet.starting:
            return b'{"tools":%b,"ttlMs":%d,"cacheScope":"private"}' % (tools, BASE_TTL_MS)
        return b'{"tools":%b,"ttlMs":0,"cacheScope":"private"}' % tools

    def base_names(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Exposed names that are listed without a query."""
        return self._base_of(snapshot).names

    def lists_all(self, snapshot: Snapshot) -> bool:
        """Whether everything is listed anyway: configured, or because hiding would save nothing."""
        return self._base_of(snapshot).everything

    def _base_of(self, snapshot: Snapshot) -> _Base:
        """Of each catalog once: it is asked for twice with every search of a session."""
        base = self._base
        if base is None or base.generation != snapshot.generation:
            self._base = base = self._base_in(snapshot)
        return base

    def _base_in(self, snapshot: Snapshot) -> _Base:
        size = sum(len(tool.definition) for tool in snapshot.tools.values())
        small = size // BYTES_PER_TOKEN < self._expose.list_all_below
        standing = tuple(self._standing(snapshot))
        if self._expose.mode == "all":
            return _Base(snapshot.generation, True, tuple(snapshot.tools), standing)
        if self._expose.mode == "auto" and small:
            shown = (name for name, tool in snapshot.tools.items() if tool.include is not IncludeMode.MANUAL)
            return _Base(snapshot.generation, True, tuple(shown), standing)
        return _Base(snapshot.generation, False, standing, standing)

    def _standing(self, snapshot: Snapshot) -> Iterable[str]:
        """What is listed for everybody: the ``always`` tools, and the working set."""
        chosen = bool(self.working_set.reasons)
        return (
            name
            for name, tool in snapshot.tools.items()
            if tool.include is IncludeMode.ALWAYS or (chosen and self.working_set.why(tool) is not None)
        )

    def header_schema(self, name: str) -> dict[str, Any] | None:
        """The input schema of a tool whose calls repeat arguments in HTTP headers; None for any other.

        Only of a tool in the base list: a client that was never shown a tool cannot know its headers.
        """
        snapshot = self._catalog.snapshot
        tool = snapshot.tools.get(name)
        if tool is None or b"x-mcp-header" not in tool.definition or name not in self.base_names(snapshot):
            return None
        schema: dict[str, Any] = envelope.value(envelope.members(tool.definition)["inputSchema"])
        return schema

    def definitions(self, snapshot: Snapshot, names: Iterable[str]) -> list[Raw]:
        """Definitions as they are listed: the proxy's own tools, then those named."""
        return [*self._own, *(definitions.tool_definition(snapshot.tools[name]) for name in names)]

    def visible(self, session: Session | None) -> tuple[str, ...]:
        """Exposed names that a session's list shows now, beside the proxy's own tools."""
        snapshot = self._catalog.snapshot
        base = self.base_names(snapshot)
        if session is None or not session.changed:
            return base
        return self._of_session(snapshot, session)

    def grows(self, session: Session, more: Iterable[str]) -> bool:
        """Whether a session's list shows something new when it shows these as well.

        The same as comparing `visible` before and after, without going through all that it was ever shown.
        """
        snapshot = self._catalog.snapshot
        base = self._base_of(snapshot)
        if base.everything:
            return False
        return any(
            name in snapshot.tools
            and name not in base.standing
            and (Kind.TOOL, name) not in session.added
            and (Kind.TOOL, name) not in session.removed
            for name in more
        )

    async def _names(self, query: Query | None, owner: str | None) -> tuple[Snapshot, tuple[str, ...]]:
        """The snapshot that is listed, and the exposed names out of it."""
        snapshot = self._catalog.snapshot
        if query is None or self._expose.mode == "all":
            return snapshot, self.base_names(snapshot)
        if not query.text:
            assert query.session is not None
            return snapshot, self._of_session(snapshot, query.session, query.explicit)
        selected = await self._contexts.select(
            query.text,
            query.session,
            origin="list",
            scope=Scope(kinds=TOOL_ONLY),
            listed=() if isinstance(query.session, Session) else None,
            owner=owner,
        )
        context = selected.context
        if context.failure is not None:
            session = query.session
            return snapshot, self._of_session(snapshot, session) if session else self.base_names(snapshot)
        tools = (*context.of(Kind.TOOL), *(item for item in context.near_misses if item.type is Kind.TOOL))
        first = [item.name for item in tools if item.include_mode in SESSION_MODES]
        # By name, never by score.
        more = sorted(item.name for item in tools if item.include_mode not in SESSION_MODES)
        return selected.snapshot, _known(selected.snapshot, first, more)

    def _of_session(
        self, snapshot: Snapshot, session: SessionContext, explicit: bool = False
    ) -> tuple[str, ...]:
        """What a session has and was shown: what is in its own list only grows at its end."""
        whole = self.lists_all(snapshot) and not explicit
        base = self.base_names(snapshot) if whole else self._base_of(snapshot).standing
        added = [name for kind, name in session.added if kind is Kind.TOOL]
        shown = [] if whole else sorted(session.shown) if explicit else session.shown
        names = _known(snapshot, base, (*added, *shown))
        if not session.removed:
            return names
        return tuple(name for name in names if (Kind.TOOL, name) not in session.removed)

    def _encoded(self, snapshot: Snapshot, names: tuple[str, ...]) -> bytes:
        generation, cached_names, encoded = self._cached
        if generation != snapshot.generation or cached_names != names:
            encoded = envelope.encode(self.definitions(snapshot, names))
            self._cached = (snapshot.generation, names, encoded)
        return encoded


@dataclass(frozen=True, slots=True)
class _Base:
    """What is listed of one catalog without a query."""

    generation: int
    everything: bool
    """Configured, or because hiding would save nothing."""
    names: tuple[str, ...]
    """The exposed names listed."""
    standing: tuple[str, ...]
    """Those that are listed for everybody, however much else is."""


def _known(snapshot: Snapshot, first: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """The first ones, then the others, in the order given; those that have gone are left out."""
    return tuple(name for name in dict.fromkeys((*first, *more)) if name in snapshot.tools)
