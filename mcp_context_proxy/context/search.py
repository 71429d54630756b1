"""Runs searches: off the event loop, a few at a time, with progress for whoever waits.

The first search of a snapshot has it indexed in the background, and waits for that a moment only.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import check_cancelled
from anyio.from_thread import run_sync as on_loop

from mcp_context_proxy.config import Config
from mcp_context_proxy.context import constraints, known_values
from mcp_context_proxy.context.constraints import NO_CONSTRAINTS, Constraints, Figures
from mcp_context_proxy.context.found import Excluded, Found
from mcp_context_proxy.context.options import ContextOptions, DomainOptions, configured
from mcp_context_proxy.context.remembered import RememberedAnswers
from mcp_context_proxy.context.session import ItemKey
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import DOCUMENT_KINDS, Kind, Snapshot
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.filters import Filters
from mcp_context_proxy.retrieval.ranking import Ranking, SearchOptions

logger = logging.getLogger(__name__)

STARTING_PATIENCE_SECONDS = 1.0
"""How long a search waits for servers that are still starting: a host's first question should not miss
half of what there is, and nobody should wait for a server that hangs."""

SEARCHES_AT_ONCE = 4
"""Worker threads that search at a time; more would only share the same processors."""

DOCUMENT_SHARE = 0.65
"""Documents that score less than this share of the best one are not shown."""

EXCLUDED_NAMED = 3
"""Items that are named where filters leave nothing that fits."""

TOOL_ONLY = frozenset({Kind.TOOL})

T = TypeVar("T")

OnProgress = Callable[[int, int], None]
"""Takes how many texts are indexed, of how many. Called on the event loop; must not block."""


class Snapshots(Protocol):
    """Whatever has a catalog of the moment."""

    @property
    def snapshot(self) -> Snapshot:
        """Everything there is now."""
        ...


@dataclass(frozen=True, slots=True)
class Scope:
    """What a search may find."""

    kinds: frozenset[Kind] | None = None
    """None for all."""
    constraints: Constraints = NO_CONSTRAINTS
    without: frozenset[ItemKey] = frozenset()
    """Items that it may not find."""


EVERYTHING = Scope()


@dataclass(frozen=True, slots=True)
class Indexed:
    """How far indexing is."""

    tools: int
    """All there are."""
    documents: int
    """All there are."""
    indexed: int
    total: int
    """Tools and documents that can be found."""
    complete: bool
    """Whether nothing more is to come: where there is no model, with nothing indexed."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """A snapshot that searches want indexed."""

    snapshot: Snapshot
    since: float = field(default_factory=anyio.current_time)
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Indexed, or given up."""


class Searcher:
    """The engine as the server uses it: asynchronous, with the configured options."""

    def __init__(
        self,
        engine: Engine,
        config: Config,
        caught_up: Callable[[float], Awaitable[None]],
        open_model: Callable[[], object],
        figures: Callable[[], Figures] = dict,
    ) -> None:
        """Prepare to search.

        Args:
            engine: Finds and ranks.
            config: Has the search options.
            caught_up: Waits, no longer than it is told, for servers that are still starting.
            open_model: Makes the model ready, in a thread, while servers are waited for and words are read.
            figures: What is known of tools from their calls, now.
        """
        self._open_model = open_model
        self._engine, self._caught_up, self._figures = engine, caught_up, figures
        self.remembered = RememberedAnswers[Found]()
        self.configure(config)
        self._limiter = anyio.CapacityLimiter(SEARCHES_AT_ONCE)
        self._wanted: _Wanted | None = None
        self._asked, self._begun = anyio.Event(), anyio.Event()
        self._listeners: list[OnProgress] = []

    def configure(self, config: Config) -> None:
        """Search with these options from now on."""
        self._options = configured(config)
        self._patience = config.limits.indexing_wait_seconds
        self._servers = {name: server for name, server in config.servers.items() if server.enabled}

    async def run(self) -> None:
        """Index what searches want, in a thread, until cancelled; a newer snapshot goes first."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._have_model)
            while True:
                await self._asked.wait()
                self._asked = anyio.Event()
                if self._wanted is not None:
                    await self._index_wanted(self._wanted)

    async def _have_model(self) -> None:
        await self._begun.wait()
        # Whoever needs it hears the same, and the log has it.
        with contextlib.suppress(ModelError):
            await anyio.to_thread.run_sync(self._open_model, abandon_on_cancel=True)

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
        self._begun.set()
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
        catalog: Snapshots,
        options: ContextOptions | None = None,
        scope: Scope | None = None,
        depth: int = 0,
    ) -> Found:
        """Search what the catalog holds; see `ready`, `check` and `find`."""
        snapshot, scope = await self.ready(catalog), scope or EVERYTHING
        await self.check(scope, snapshot)
        wanted = options or self._options
        found = partial(self.find, query, snapshot, wanted, scope, depth=depth, explore=True)
        return await self.off_loop(found)

    async def check(self, scope: Scope, snapshot: Snapshot) -> None:
        """See that there can be what a search is to keep to.

        Raises:
            UnknownFilterError: there cannot.
        """
        if scope.constraints:
            await self.off_loop(partial(self._check, scope.constraints, snapshot))

    def _check(self, wanted: Constraints, snapshot: Snapshot) -> None:
        known_values.check(wanted, snapshot, self._servers, self._engine.index_of(snapshot).has_label)

    async def ready(self, catalog: Snapshots, on_progress: OnProgress | None = None) -> Snapshot:
        """What to search: servers that are still starting, and indexing, are waited for a moment."""
        self._begun.set()
        until = anyio.current_time() + self._patience
        await self._caught_up(STARTING_PATIENCE_SECONDS)
        snapshot = catalog.snapshot
        await self._indexed(snapshot, until, on_progress)
        return snapshot

    async def off_loop(self, function: Callable[[], T]) -> T:
        """What a function that searches returns, a few of them at a time."""
        return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._limiter)

    def find(
        self,
        query: str,
        snapshot: Snapshot,
        options: ContextOptions,
        scope: Scope,
        history: tuple[str, ...] = (),
        depth: int = 0,
        explore: bool = False,
    ) -> Found:
        """Search a snapshot as far as it is indexed. Blocks.

        Args:
            query: In the user's or model's words.
            snapshot: What there is.
            options: How much is selected.
            scope: What may be found.
            history: What was asked before, the latest first.
            depth: How far tools are ranked at least, whether they are selected or not.
            explore: Whether tools that are new have a little more.
        """
        filters = self.filters(scope)
        question = (query, options, filters, scope.constraints, history, depth, explore)
        state = self._engine.state(snapshot)
        known = None if state is None else self.remembered.get(state, question)
        if known is not None:
            return known
        found = self._find(query, snapshot, options, filters, history, depth, explore)
        if scope.constraints:
            plain = Filters(kinds=scope.kinds, without=scope.without)
            found = replace(found, constraints=scope.constraints)
            if not found.results:
                without = self._find(query, snapshot, options, plain, history)
                found = replace(found, excluded=self._excluded(without, scope.constraints))
        # What may be better in a moment, or changed meanwhile, is not remembered.
        if state is not None and found.note is None and self._engine.state(snapshot) == state:
            self.remembered.put(state, question, found)
        return found

    def filters(self, scope: Scope) -> Filters:
        """What a scope comes to now."""
        filters = constraints.filters_of(scope.constraints, self._figures())
        return replace(filters, kinds=scope.kinds, without=scope.without)

    def _find(
        self,
        query: str,
        snapshot: Snapshot,
        options: ContextOptions,
        filters: Filters,
        history: tuple[str, ...],
        depth: int = 0,
        explore: bool = False,
    ) -> Found:
        documents = DOCUMENT_KINDS & (filters.kinds or DOCUMENT_KINDS)
        with_documents = bool(snapshot.documents) and bool(documents) and filters.servers is None
        tools = TOOL_ONLY & (filters.kinds or TOOL_ONLY)

        def ranked(kinds: frozenset[Kind], options: SearchOptions) -> Ranking:
            of_kinds = replace(filters, kinds=kinds)
            return self._engine.search(query, snapshot, of_kinds, options, wait=False, history=history)

        return Found(
            tools=ranked(tools, replace(tool_search(options.tools), depth=depth, explore=explore)),
            documents=ranked(documents, document_search(options.documents)) if with_documents else None,
            snapshot=snapshot,
            filters=filters,
        )

    def confidence(self, query: str, snapshot: Snapshot) -> float | None:
        """How much use has taught of requests like this one; None where that cannot be told. Blocks."""
        return self._engine.confidence(query, snapshot)

    def _excluded(self, found: Found, wanted: Constraints) -> tuple[Excluded, ...]:
        """What a search without constraints found, each with those that it does not meet."""
        figures = self._figures()
        judged = (
            Excluded(result, tuple(constraints.failed_by(result.item, wanted, figures)))
            for result in found.results
        )
        return tuple(islice((one for one in judged if one.failed), EXCLUDED_NAMED))

    def rank(self, query: str, kind: Kind, snapshot: Snapshot, options: ContextOptions) -> Ranking:
        """Everything of a kind's domain that has anything in common with a query. Blocks."""
        kinds = TOOL_ONLY if kind is Kind.TOOL else DOCUMENT_KINDS
        wanted = tool_search(options.tools) if kind is Kind.TOOL else document_search(options.documents)
        everything = len(snapshot.tools) + len(snapshot.documents)
        return self._engine.search(
            query, snapshot, Filters(kinds=kinds), replace(wanted, depth=everything), wait=False
        )

    async def indexed(self, catalog: Snapshots) -> Indexed:
        """Have what there is now indexed, and say how far that is after a moment."""
        snapshot = await self.ready(catalog)
        done, total = await self.off_loop(partial(self._engine.progress, snapshot))
        counts = len(snapshot.tools), len(snapshot.documents)
        return Indexed(*counts, done, total, self._engine.indexed(snapshot))

    async def index(self, snapshot: Snapshot, on_progress: OnProgress | None = None) -> None:
        """Index a snapshot ahead of the first search, to the end."""
        indexed = partial(self._engine.index, snapshot, _from_thread(on_progress), _stopped)
        await anyio.to_thread.run_sync(indexed, limiter=self._limiter)


def tool_search(options: DomainOptions) -> SearchOptions:
    """How the engine is asked for tools."""
    include_score = math.inf if options.include_score is None else options.include_score
    return SearchOptions(top_k=options.top_k, top_n=options.top_n, include_score=include_score)


def document_search(options: DomainOptions) -> SearchOptions:
    """How the engine is asked for rules and references."""
    # A document that hardly fits costs a model more than a tool that does: it is read, not skipped.
    return replace(tool_search(options), share_of_best=DOCUMENT_SHARE, at_least=1, at_most=options.top_n)


def _stopped() -> bool:
    """Never true: raises what ends the thread, when the task that waits for it is cancelled."""
    check_cancelled()
    return False


def _from_thread(on_progress: OnProgress | None) -> OnProgress | None:
    return None if on_progress is None else lambda done, total: on_loop(on_progress, done, total)
