"""Runs searches for the server: off the event loop, a few at a time, with progress for whoever waits.

The first search of a snapshot has it indexed in the background, and waits for that a moment only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
import anyio.to_thread
from anyio.from_thread import check_cancelled
from anyio.from_thread import run_sync as on_loop

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.config import Config
from mcp_context_proxy.errors import EmbeddingCancelledError
from mcp_context_proxy.items import Kind, Snapshot
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.ranking import Filters, Ranking, SearchOptions

logger = logging.getLogger(__name__)

STARTING_PATIENCE_SECONDS = 1.0
"""How long a search waits for servers that are still starting: a host's first question should not miss
half of what there is, and nobody should wait for a server that hangs."""

SEARCHES_AT_ONCE = 4
"""Worker threads that search at a time; more would only share the same processors."""

DOCUMENT_SHARE = 0.65
"""Documents that score less than this share of the best one are not shown."""

DOCUMENT_KINDS = frozenset({Kind.RULE, Kind.REFERENCE})

OnProgress = Callable[[int, int], None]
"""Takes how many texts are indexed, of how many. Called on the event loop; must not block."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found in both domains."""

    tools: Ranking
    documents: Ranking | None
    """None when no documents were searched."""
    known: int
    """Items there are to search."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """A snapshot that searches want indexed."""

    snapshot: Snapshot
    since: float = field(default_factory=anyio.current_time)
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Indexed, or given up."""


class Searcher:
    """The engine as the server uses it: asynchronous, with the configured options."""

    def __init__(self, engine: Engine, config: Config, caught_up: Callable[[float], Awaitable[None]]) -> None:
        """Prepare to search.

        Args:
            engine: Finds and ranks.
            config: Has the search options.
            caught_up: Waits, no longer than it is told, for servers that are still starting.
        """
        self._engine, self._caught_up = engine, caught_up
        self._options = {domain: _options(config, domain) for domain in ("tools", "documents")}
        self._limiter = anyio.CapacityLimiter(SEARCHES_AT_ONCE)
        self._patience = config.limits.indexing_wait_seconds
        self._wanted: _Wanted | None = None
        self._asked = anyio.Event()
        self._listeners: list[OnProgress] = []

    async def run(self) -> None:
        """Index what searches want, in a thread, until cancelled; a newer snapshot goes first."""
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            if self._wanted is not None:
                await self._index_wanted(self._wanted)

    async def _index_wanted(self, wanted: _Wanted) -> None:
        def superseded() -> bool:
            return _stopped() or self._wanted is not wanted

        indexed = partial(self._engine.index, wanted.snapshot, _from_thread(self._tell), superseded)
        try:
            await anyio.to_thread.run_sync(indexed)
        except EmbeddingCancelledError as stopped:
            logger.debug("%s", stopped)
        except Exception:
            # boundary: after a fault in indexing, search goes on by what is ready
            logger.exception("indexing failed")
        finally:
            wanted.ended.set()

    def _tell(self, done: int, total: int) -> None:
        for listener in self._listeners:
            listener(done, total)

    def prepare(self, snapshot: Snapshot) -> None:
        """Have a snapshot indexed in the background."""
        if self._engine.indexed(snapshot):
            return
        if self._wanted is None or self._wanted.snapshot is not snapshot or self._wanted.ended.is_set():
            self._wanted = _Wanted(snapshot)
        self._asked.set()

    async def _indexed(self, snapshot: Snapshot, until: float, on_progress: OnProgress | None) -> None:
        """Wait until a snapshot is indexed, but not for ever."""
        self.prepare(snapshot)
        if self._engine.indexed(snapshot) or self._wanted is None:
            return
        listeners = [on_progress] if on_progress is not None else []
        self._listeners += listeners
        try:
            with anyio.move_on_at(min(until, self._wanted.since + self._patience)):
                await self._wanted.ended.wait()
        finally:
            for listener in listeners:
                self._listeners.remove(listener)

    async def search(
        self,
        query: str,
        catalog: Catalog,
        *,
        kinds: frozenset[Kind] | None = None,
        server: str | None = None,
        top_n: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Found:
        """Search what the catalog holds, giving servers that are still starting a moment to be in it.

        Args:
            query: In the user's or model's words.
            catalog: Of everything.
            kinds: To search for; None for all.
            server: Only its tools; None for all.
            top_n: How many items of each domain; None for the configured number.
            on_progress: Told how far indexing is, when the search has to wait for it.
        """
        until = anyio.current_time() + self._patience
        await self._caught_up(STARTING_PATIENCE_SECONDS)
        snapshot = catalog.snapshot
        await self._indexed(snapshot, until, on_progress)
        searched = partial(self._search, query, snapshot, kinds, server, top_n)
        return await anyio.to_thread.run_sync(searched, abandon_on_cancel=True, limiter=self._limiter)

    async def index(self, snapshot: Snapshot, on_progress: OnProgress | None = None) -> None:
        """Index a snapshot ahead of the first search, to the end."""
        indexed = partial(self._engine.index, snapshot, _from_thread(on_progress), _stopped)
        await anyio.to_thread.run_sync(indexed, limiter=self._limiter)

    def _search(
        self,
        query: str,
        snapshot: Snapshot,
        kinds: frozenset[Kind] | None,
        server: str | None,
        top_n: int | None,
    ) -> Found:
        servers = None if server is None else frozenset({server})
        wanted_documents = DOCUMENT_KINDS & (kinds or DOCUMENT_KINDS)
        with_documents = bool(snapshot.documents) and bool(wanted_documents) and server is None
        wanted_tools = frozenset({Kind.TOOL}) & (kinds or frozenset({Kind.TOOL}))

        def ranked(filters: Filters, domain: str) -> Ranking:
            return self._engine.search(query, snapshot, filters, self._with(domain, top_n), wait=False)

        return Found(
            tools=ranked(Filters(servers, wanted_tools), "tools"),
            documents=ranked(Filters(None, wanted_documents), "documents") if with_documents else None,
            known=len(snapshot.tools) + len(snapshot.documents),
        )

    def _with(self, domain: str, top_n: int | None) -> SearchOptions:
        options = self._options[domain]
        if top_n is None:
            return options
        # A number that was asked for is a promise: no score adds to it.
        return replace(options, top_n=top_n, top_k=max(options.top_k, top_n), include_score=math.inf)


def _options(config: Config, domain: str) -> SearchOptions:
    resolved = config.search.resolved("tools" if domain == "tools" else "documents")
    options = SearchOptions(top_k=resolved.top_k, top_n=resolved.top_n, include_score=resolved.include_score)
    if domain == "tools":
        return options
    # A document that hardly fits costs a model more than a tool that does: it is read, not skipped.
    return replace(options, share_of_best=DOCUMENT_SHARE, at_least=1, at_most=options.top_n)


def _stopped() -> bool:
    """Never true: raises what ends the thread, when the task that waits for it is cancelled."""
    check_cancelled()
    return False


def _from_thread(on_progress: OnProgress | None) -> OnProgress | None:
    return None if on_progress is None else lambda done, total: on_loop(on_progress, done, total)
