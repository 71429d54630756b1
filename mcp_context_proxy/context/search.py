"""Runs searches: off the event loop, a few at a time, with progress for whoever waits.

What a search found, in both domains, and what its constraints kept it from finding.

Answers that are given again: for the same question, as long as nothing has changed that they depend on.

One state of things at a time: with another one all is forgotten, so nothing here is ever outdated.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

import anyio

from mcp_context_proxy.config import Config
from mcp_context_proxy.context import constraints
from mcp_context_proxy.context.background_indexing import BackgroundIndexing, Indexed, OnProgress
from mcp_context_proxy.context.constraints import NO_CONSTRAINTS, Constraints, Figures
from mcp_context_proxy.context.options import ContextOptions, DomainOptions, configured
from mcp_context_proxy.context.session import ItemKey
from mcp_context_proxy.embedding.embeddings import Lookups
from mcp_context_proxy.items import DOCUMENT_KINDS, Document, Item, Kind, Snapshot
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.results import Ranking, Result, SearchOptions
from mcp_context_proxy.system.threads import in_thread

NO_FILTERS = Filters()


@dataclass(frozen=True, slots=True)
class Excluded:
    """Something that would have been found without the constraints."""

    result: Result
    failed: tuple[str, ...]
    """Names of the constraints that it does not meet."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found in both domains."""

    tools: Ranking
    documents: Ranking | None
    """None when no documents were searched."""
    snapshot: Snapshot
    """What was searched."""
    brought: tuple[Result, ...] = ()
    """What was not found itself, and comes with what was."""
    constraints: Constraints = NO_CONSTRAINTS
    filters: Filters = NO_FILTERS
    """What the constraints came to."""
    excluded: tuple[Excluded, ...] = ()
    """Where they leave nothing that fits: what would have, best first."""

    @property
    def known(self) -> int:
        """Items there are to search."""
        return len(self.snapshot.tools) + len(self.snapshot.documents)

    @property
    def considered(self) -> int:
        """Items that met the constraints."""
        return self.tools.considered + (self.documents.considered if self.documents else 0)

    @property
    def results(self) -> tuple[Result, ...]:
        """What was selected: tools, best first, then documents, then what comes with them."""
        return self.tools.results + (self.documents.results if self.documents else ()) + self.brought

    @property
    def near_misses(self) -> tuple[Result, ...]:
        """Where no tool fits: what comes nearest, tools, then documents if they do not fit either."""
        if self.tools.results:
            return ()
        documents = self.documents.near_misses if self.documents else ()
        return self.tools.near_misses + documents

    @property
    def note(self) -> str | None:
        """What a person should know about how this was found."""
        return self.tools.note or (self.documents.note if self.documents else None)

    @property
    def filter_note(self) -> str | None:
        """What the constraints left out, for who reads the answer; None where they left what fits."""
        if not self.constraints or self.results:
            return None
        asked = ", ".join(f"{name} {said(value)}" for name, value in self.constraints.applied().items())
        if self.considered:
            items = "1 item" if self.considered == 1 else f"{self.considered:,} items"
            note = f"Nothing fits among the {items} that the filters leave ({asked})."
        else:
            note = f"No item meets the filters ({asked})."
        if not self.excluded:
            return note
        named = (f"{_name(one.result.item)} (by {', '.join(one.failed)})" for one in self.excluded)
        return f"{note} Left out by them: {'; '.join(named)}."


def said(value: object) -> str:
    """The value of a filter, for a person."""
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name(item: Item) -> str:
    return item.uri if isinstance(item, Document) else item.exposed_name


ANSWERS: Final = 256
"""Some 10 kB each; between two changes nobody asks more."""

SECONDS: Final = 3600.0
"""What use has taught fades with time; in an hour by a five-hundredth."""

Answer = TypeVar("Answer")


class ResultCache(Generic[Answer]):
    """Answers by question. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._state: object = None
        self._answers: OrderedDict[Hashable, tuple[float, Answer]] = OrderedDict()
        self.lookups = Lookups()

    def get(self, state: object, question: Hashable) -> Answer | None:
        """The answer to a question in a state of things; None where there is none."""
        with self._lock:
            if state != self._state:
                self._state = state
                self._answers.clear()
            since, answer = self._answers.get(question, (-SECONDS, None))
            if answer is not None and self._clock() - since >= SECONDS:
                del self._answers[question]
                answer = None
            self.lookups.count(hits=0 if answer is None else 1, of=1)
            if answer is not None:
                self._answers.move_to_end(question)
            return answer

    def put(self, state: object, question: Hashable, answer: Answer) -> None:
        """Remember the answer to a question in a state of things, unless there is another one by now."""
        with self._lock:
            if state != self._state:
                return
            self._answers[question] = self._clock(), answer
            self._answers.move_to_end(question)
            if len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)


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
        self._engine, self._caught_up, self._figures = engine, caught_up, figures
        self.remembered = ResultCache[Found]()
        self.configure(config)
        self._limiter = anyio.CapacityLimiter(SEARCHES_AT_ONCE)
        self._indexing = BackgroundIndexing(engine, open_model)

    def configure(self, config: Config) -> None:
        """Search with these options from now on."""
        self._options = configured(config)
        self._patience = config.limits.indexing_wait_seconds
        self._servers = {name: server for name, server in config.servers.items() if server.enabled}

    async def run(self) -> None:
        """Index what searches want, in a thread, until cancelled; a newer snapshot goes first."""
        await self._indexing.run()

    def prepare(self, snapshot: Snapshot) -> None:
        """Have a snapshot indexed in the background."""
        self._indexing.prepare(snapshot)

    async def search(
        self,
        query: str,
        catalog: Snapshots,
        options: ContextOptions | None = None,
        scope: Scope | None = None,
        depth: int = 0,
    ) -> Found:
        """Search what the catalog holds: `ready`, `check` and `find` in one."""
        snapshot, scope = await self.ready(catalog), scope or EVERYTHING
        await self.check(scope, snapshot)
        wanted = options or self._options
        found = partial(self.find, query, snapshot, wanted, scope, depth=depth, explore=True)
        return await self.off_loop(found)

    async def check(self, scope: Scope, snapshot: Snapshot) -> None:
        """Check that something could meet the filters of a search.

        Raises:
            UnknownFilterError: there cannot.
        """
        if scope.constraints:
            await self.off_loop(partial(self._check, scope.constraints, snapshot))

    def _check(self, wanted: Constraints, snapshot: Snapshot) -> None:
        constraints.check(wanted, snapshot, self._servers, self._engine.index_of(snapshot).has_label)

    async def ready(self, catalog: Snapshots, on_progress: OnProgress | None = None) -> Snapshot:
        """What to search: servers that are still starting, and indexing, are waited for a moment."""
        self._indexing.begin()
        until = anyio.current_time() + self._patience
        await self._caught_up(STARTING_PATIENCE_SECONDS)
        snapshot = catalog.snapshot
        await self._indexing.wait(snapshot, until, self._patience, on_progress)
        return snapshot

    async def off_loop(self, function: Callable[[], T]) -> T:
        """What a function that searches returns, a few of them at a time."""
        return await in_thread(function, abandon_on_cancel=True, limiter=self._limiter)

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
        await self._indexing.index(snapshot, on_progress, self._limiter)


def tool_search(options: DomainOptions) -> SearchOptions:
    """How the engine is asked for tools."""
    include_score = math.inf if options.include_score is None else options.include_score
    return SearchOptions(top_k=options.top_k, top_n=options.top_n, include_score=include_score)


def document_search(options: DomainOptions) -> SearchOptions:
    """How the engine is asked for rules and references."""
    # A document that hardly fits costs a model more than a tool that does: it is read, not skipped.
    return replace(tool_search(options), share_of_best=DOCUMENT_SHARE, at_least=1, at_most=options.top_n)
