"""Searches: their limits, their results, and the service that runs them in threads, once it has indexed."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

import anyio
from anyio.from_thread import check_cancelled
from anyio.from_thread import run_sync as on_loop
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config import Config, DomainOptions
from mcp_context_proxy.context import ContextOptions, search_filters
from mcp_context_proxy.context.search_filters import Excluded, Figures, may_mean
from mcp_context_proxy.embedding.embeddings import Lookups
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import (
    DOCUMENT_KINDS,
    NO_FILTERS,
    ItemKey,
    Kind,
    SearchFilters,
    Snapshot,
    Snapshots,
)
from mcp_context_proxy.retrieval import FITTING, Ranking, Result, SearchOptions
from mcp_context_proxy.retrieval.documents import DOCUMENT_SHARE, DocumentsMeant
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.system.threads import Workers, in_task, in_thread, keep_latest
from mcp_context_proxy.trust import ACTING, reaches

logger = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""Called on the event loop with the number of indexed texts and of all texts. Must not block."""

OnWait = Callable[[float, str], None]
"""Called on the event loop, once a second, while a request waits for servers: with the seconds that it has
waited for, and the servers in words. Must not block."""

Enough: TypeAlias = Callable[[str], Awaitable[bool]]
"""Tells whether a search needs none of the servers that are starting, given by names and addresses."""

WaitForServers: TypeAlias = Callable[[float, OnWait | None, Enough | None], Awaitable[None]]
"""Waits some seconds for servers that are starting, or until what has come is enough."""

ENGINE_DEFAULTS: Final = Filters()

FEW: Final = 50
"""Items that filters may leave so that the nearest of them are shown, where none fits: all of one server."""


class Found(Struct, frozen=True):
    """Results of a search in both domains."""

    tools: Ranking
    documents: Ranking | None
    """None if no documents were searched."""
    snapshot: Snapshot
    """The catalog that was searched."""
    brought: tuple[Result, ...] = ()
    """Items that were not found themselves, and come with those that were."""
    foremost: int = 0
    """Number of those that are first: tools that a document names which fits far better than any tool."""
    wanted: SearchFilters = NO_FILTERS
    filters: Filters = ENGINE_DEFAULTS
    """The engine's filters for ``wanted``."""
    excluded: tuple[Excluded, ...] = ()
    """Best items that the filters left out, if nothing fits among the rest."""

    @property
    def known(self) -> int:
        """Number of items in the catalog."""
        return len(self.snapshot.tools) + len(self.snapshot.documents)

    @property
    def results(self) -> tuple[Result, ...]:
        """Selected items: tools, best first, then documents, then most of the items that come with them."""
        documents = self.documents.results if self.documents else ()
        return self.brought[: self.foremost] + self.tools.results + documents + self.brought[self.foremost :]

    @property
    def near_misses(self) -> tuple[Result, ...]:
        """Closest items if no tool fits, in the budget or over it: tools, then documents if none fits."""
        if self.tools.results or self.tools.fits:
            return ()
        return self.tools.near_misses + (self.documents.near_misses if self.documents else ())

    @property
    def note(self) -> str | None:
        """Note for a person about how this was found."""
        return self.tools.note or (self.documents.note if self.documents else None)

    @property
    def read_as(self) -> str | None:
        """The query with its words corrected and written out; None where nothing was changed."""
        return self.tools.read_as or (self.documents.read_as if self.documents else None)

    @property
    def nearest(self) -> tuple[Result, ...]:
        """Closest items, if nothing fits among the few that the filters leave; otherwise empty.

        Who asks for the tools of one server wants to see the nearest of them.
        """
        few = 0 < self._considered <= FEW and self.wanted.applied()
        return self.near_misses if few and not self.results else ()

    @property
    def _considered(self) -> int:
        return self.tools.considered + (self.documents.considered if self.documents else 0)

    @property
    def filter_note(self) -> str | None:
        """Note about the filters, and the items that they left out; None if something fits among the rest."""
        return " ".join(filter(None, (self.leaves_note, self.excluded_note))) or None

    @property
    def leaves_note(self) -> str | None:
        """Note that nothing fits among the items that the filters leave; None if something does."""
        if self.wanted == NO_FILTERS or self.results or not (applied := self.wanted.applied()):
            return None
        asked = ", ".join(f"{name} {search_filters.filter_text(value)}" for name, value in applied.items())
        if considered := self._considered:
            items = "1 item" if considered == 1 else f"{considered:,} items"
            return f"Nothing fits among the {items} that the filters leave ({asked})."
        return f"No item meets the filters ({asked})."

    @property
    def excluded_note(self) -> str | None:
        """Note that names the best items that the filters left out; None without any."""
        if self.wanted == NO_FILTERS or self.results or not self.excluded:
            return None
        return f"Left out by them: {'; '.join(one.text for one in self.excluded)}."


ANSWERS: Final = 256
"""Cached responses, some 10 kB each; between two changes of the catalog nobody searches for more."""

SECONDS: Final = 3600.0
"""Life of a cached response: learned pairs fade by a five-hundredth in an hour."""

Answer = TypeVar("Answer")


class ResultCache(Generic[Answer]):
    """Cache of answers by question, valid for one state of catalog and learning at a time. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._state: object = None
        self._answers: OrderedDict[Hashable, tuple[float, Answer]] = OrderedDict()
        self.lookups = Lookups()

    def get(self, state: object, question: Hashable) -> Answer | None:
        """Return the cached answer in this state; another state empties the cache."""
        with self._lock:
            if state != self._state:
                self._state = state
                self._answers.clear()
            since, answer = self._answers.get(question, (-SECONDS, None))
            if answer is not None and self._clock() - since >= SECONDS:
                del self._answers[question]
                answer = None
            if answer is None:
                self.lookups.misses += 1
            else:
                self.lookups.hits += 1
                self._answers.move_to_end(question)
            return answer

    def put(self, state: object, question: Hashable, answer: Answer) -> None:
        """Cache an answer, unless the state has changed since."""
        with self._lock:
            if state != self._state:
                return
            keep_latest(self._answers, question, (self._clock(), answer), ANSWERS)


EMBEDDING_SECONDS: Final = 1.0
"""Time for which a search embeds what it is likely to find, while the whole is being indexed. With the
packaged model a fifth of it is enough; a larger model or a busy machine may need more."""

SURE_COSINE, SURE_SCORE = 0.5, 0.7
"""Cosine and score from which on no tool of another server is expected to be nearer. With half of the 33
recorded lists there, 53 of 100 people's requests whose right tool is among them reach both and have no word
of another server; of 161 that do, three have their right tool in the other half. With four fifths of the
lists there, none of 247."""

SEARCHES_AT_ONCE = 4
"""Worker threads for searches; more would only share the same processors."""

TOOL_ONLY = frozenset({Kind.TOOL})

T = TypeVar("T")


class Scope(Struct, frozen=True):
    """Limits of a search."""

    kinds: frozenset[Kind] | None = None
    """None for all kinds."""
    filters: SearchFilters = NO_FILTERS
    without: frozenset[ItemKey] = frozenset()
    """Items that are left out."""


EVERYTHING: Final[Scope] = Scope()


class Searcher:
    """The search engine for the event loop: waits for indexing, runs searches in threads, caches results."""

    def __init__(
        self,
        *,
        engine: Engine,
        config: Config,
        wait_for_starting_servers: WaitForServers,
        open_model: Callable[[], object],
        figures: Callable[[], Figures] = dict,
        expander: Expander | None = None,
    ) -> None:
        """Prepare to search; ``open_model`` is called in a thread, while a search waits for other things.

        The expander tells which tools a document leads to; without it, documents lead to none.
        """
        self._engine, self._figures = engine, figures
        self.documents = DocumentsMeant(engine, expander)
        self._wait_for_starting_servers = wait_for_starting_servers
        self._has_waited = False
        self.remembered = ResultCache[Found]()
        self.config = config
        """The configuration in force; a reload assigns another."""
        self._workers = Workers(SEARCHES_AT_ONCE)
        self._turns: dict[str | None, anyio.CapacityLimiter] = {}
        """Searches of persons that run at a time, while they do."""
        self.indexing = BackgroundIndexing(engine, open_model, None if expander is None else expander.prepare)

    async def ready(
        self,
        catalog: Snapshots,
        on_progress: OnProgress | None = None,
        on_wait: OnWait | None = None,
        within: float = math.inf,
        enough: Enough | None = None,
    ) -> Snapshot:
        """Return the snapshot to search, after a short wait for starting servers and for indexing.

        An agent that searches at once should not miss half of the catalog, nor wait for a server that hangs.
        Both waits take `within` seconds at most, and the first ends when what has come is `enough`.
        """
        patience, last = self.config.limits.indexing_wait_seconds, anyio.current_time() + within
        if not self._engine.indexed(catalog.snapshot):
            self.indexing.begin()
        if catalog.snapshot.unlisted or not self._has_waited:
            await in_task()
            with anyio.move_on_after(within):
                await self._wait_for_starting_servers(self.config.limits.start_wait_seconds, on_wait, enough)
                self._has_waited = True  # for documents, too, which a start reads beside it
        until = min(anyio.current_time() + patience, last)
        if not self._engine.indexed(snapshot := catalog.snapshot):
            await in_task()
            await self.indexing.wait(snapshot.part_of or snapshot, until, patience, on_progress)
        return snapshot

    async def is_sure(
        self, query: str, catalog: Snapshots, options: ContextOptions, scope: Scope, starting: str
    ) -> bool:
        """Return whether a tool is so near to a query that none of a server that is starting will be nearer.

        It is not sure where the names and addresses of these have a word of the query.
        """
        snapshot = catalog.snapshot
        has_scale = self.config.embedding.packaged is not None  # another model has another one
        if not (snapshot.tools and has_scale) or may_mean(query, starting):
            return False
        self.indexing.prepare(snapshot.part_of or snapshot)
        found = await self.off_loop(partial(self.find, query, snapshot, options, scope))
        best = found.tools.results[:1]
        return any((one.cosine or 0.0) >= SURE_COSINE and one.score >= SURE_SCORE for one in best)

    async def check(self, wanted: SearchFilters, snapshot: Snapshot) -> None:
        """Check that the servers, categories and tags in filters exist.

        Raises `UnknownFilterError` if one does not.
        """

        def checked() -> None:
            settings = self.config.servers.items()
            servers = {name: one for name, one in settings if one.enabled and reaches(name)}
            # The labels of the index are those of all servers.
            index = self._engine.index_of(snapshot)
            has_label = index.has_label if snapshot.part_of is None else lambda _label: False
            off = [*filter(reaches, self.config.off)]
            search_filters.check(wanted, snapshot, servers, off, has_label)

        if wanted != NO_FILTERS:
            await self.off_loop(checked)

    async def off_loop(self, function: Callable[[], T]) -> T:
        """Run a function that searches in one of a few threads; many of one person wait for one another."""
        rights = ACTING.get()
        if rights.is_admin:
            return await self._workers.run(function)
        await in_task()
        turns = self._turns.setdefault(rights.person, anyio.CapacityLimiter(rights.share(SEARCHES_AT_ONCE)))
        try:
            async with turns:
                return await self._workers.run(function)
        finally:
            if not turns.borrowed_tokens and not turns.statistics().tasks_waiting:
                self._turns.pop(rights.person, None)

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

        At least ``depth`` tools are ranked, whether they are selected or not. ``history`` has earlier
        queries, latest first; ``explore`` raises tools that are new.
        """
        filters = self.filters(scope)
        if snapshot.hidden:
            filters = replace(filters, without=filters.without | snapshot.hidden)
        question = (query, options, filters, scope.filters, history, depth, explore)
        state = self._engine.state(snapshot)
        known = None if state is None else self.remembered.get(state, question)
        if known is not None:
            return known
        found = self._find(query, snapshot, options, filters, history, depth, explore)
        if scope.filters != NO_FILTERS:
            found = replace(found, wanted=scope.filters)
            if not found.results and scope.filters.applied():
                plain = Filters(kinds=scope.kinds, without=scope.without)
                unfiltered, figures = self._find(query, snapshot, options, plain, history), self._figures()
                excluded = search_filters.excluded(unfiltered.results, scope.filters, figures)
                found = replace(found, excluded=excluded)
        # A response that may be better in a moment, or that a change has overtaken, is not cached.
        if state is not None and found.note is None and self._engine.state(snapshot) == state:
            self.remembered.put(state, question, found)
        return found

    def filters(self, scope: Scope) -> Filters:
        if scope.filters == NO_FILTERS:
            return Filters(kinds=scope.kinds, without=scope.without)
        figures = self._figures() if scope.filters.needs_figures else {}
        filters = search_filters.engine_filters(scope.filters, figures)
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
        with_documents = (
            bool(snapshot.documents)
            and bool(documents)
            and search_filters.may_have_documents(snapshot, filters)
        )
        tools = TOOL_ONLY & (filters.kinds or TOOL_ONLY)

        def ranked(kinds: frozenset[Kind], options: SearchOptions) -> Ranking:
            of_kinds = replace(filters, kinds=kinds)
            return self._engine.search(
                query, snapshot, of_kinds, options, wait=False, history=history, ahead=EMBEDDING_SECONDS
            )

        wanted = replace(tool_search(options.tools), depth=depth, explore=explore, learned=options.learned)
        found, meant = ranked(tools, wanted), None
        if with_documents:
            meant = ranked(documents, _document_search(options.documents))
            compared = found if tools else ranked(TOOL_ONLY, tool_search(options.tools))
            meant = self.documents.meant(query, snapshot, meant, compared)
        return Found(tools=found, documents=meant, snapshot=snapshot, filters=filters)

    def confidence(self, query: str, snapshot: Snapshot) -> float | None:
        """Return how much use has taught about such requests; None if it is unknown. Blocks."""
        return self._engine.confidence(query, snapshot)

    def rank(self, query: str, snapshot: Snapshot, options: ContextOptions, kind: Kind) -> Ranking:
        """Rank all items of a kind's domain that have anything in common with a query. Blocks."""
        kinds = TOOL_ONLY if kind is Kind.TOOL else DOCUMENT_KINDS
        wanted = tool_search(options.tools) if kind is Kind.TOOL else _document_search(options.documents)
        everything = len(snapshot.tools) + len(snapshot.documents)
        return self._engine.search(
            query, snapshot, Filters(kinds=kinds), replace(wanted, depth=everything), wait=False
        )

    async def indexed(self, catalog: Snapshots) -> Indexed:
        """Start indexing the catalog, and return how far it is after a short wait."""
        snapshot = await self.ready(catalog)
        done, total = await self.off_loop(partial(self._engine.progress, snapshot))
        counts = len(snapshot.tools), len(snapshot.documents)
        return Indexed(*counts, done, total, self._engine.indexed(snapshot))

    async def index(self, snapshot: Snapshot, on_progress: OnProgress | None = None) -> None:
        """Index a snapshot to the end, ahead of the first search."""
        await self.indexing.index(snapshot, on_progress)


def tool_search(options: DomainOptions) -> SearchOptions:
    include_score = math.inf if options.include_score is None else options.include_score
    wanted = FITTING if options.by_fit else SearchOptions()
    return replace(wanted, top_k=options.top_k, top_n=options.top_n, include_score=include_score)


def _document_search(options: DomainOptions) -> SearchOptions:
    # A document that hardly fits costs a model more than a tool that does: it is read, not skipped.
    wanted = tool_search(replace(options, by_fit=False))
    return replace(wanted, share_of_best=DOCUMENT_SHARE, at_least=1, at_most=options.top_n)


class Indexed(Struct, frozen=True):
    """Progress of indexing, which goes on in the background."""

    tools: int
    documents: int
    indexed: int
    total: int
    """Tools and documents that can be found."""
    complete: bool
    """True if nothing is left to index; without a model nothing ever is."""


class _Wanted(Struct, eq=False):
    """A snapshot that a search wants indexed."""

    snapshot: Snapshot
    since: float = field(default_factory=anyio.current_time)
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Set once it is indexed, or indexing was given up."""
    progress: list[tuple[float, int]] = field(default_factory=list)
    """Times of the latest two reports, each with the number of texts."""
    seconds_left: float = 0.0
    """Time that it takes from the latest report on, as far as that can be told."""
    told: anyio.Event = field(default_factory=anyio.Event)
    """Set at each report, and renewed."""

    def report(self, done: int, total: int) -> None:
        """Note how far indexing is."""
        self.progress[:] = [*self.progress[-1:], (anyio.current_time(), done)]
        (began, first), (now, latest) = self.progress[0], self.progress[-1]
        if latest > first:
            self.seconds_left = (now - began) / (latest - first) * (total - latest)
        self.told.set()
        self.told = anyio.Event()


class BackgroundIndexing:
    """Indexes the snapshots that searches want, one at a time."""

    def __init__(
        self,
        engine: Engine,
        open_model: Callable[[], object],
        after: Callable[[Snapshot], object] | None = None,
    ) -> None:
        """Index nothing yet.

        ``open_model`` is called in a thread, while words are indexed, and ``after`` with each snapshot that
        was indexed, when nobody waits for it any more.
        """
        self._engine, self._open_model, self._after = engine, open_model, after
        self._wanted: _Wanted | None = None
        self._asked, self._begun = anyio.Event(), anyio.Event()
        self._listeners: list[OnProgress] = []

    def begin(self) -> None:
        """Load the model, because a search is about to need it."""
        self._begun.set()

    async def run(self) -> None:
        """Index in a thread until cancelled; a newer snapshot cuts off an older one."""

        async def load_model() -> None:
            await self._begun.wait()
            # The search that needs the model gets the same error, and the log has it.
            with contextlib.suppress(ModelError):
                await in_thread(self._open_model, abandon_on_cancel=True)

        async with anyio.create_task_group() as group:
            group.start_soon(load_model)
            while True:
                await self._asked.wait()
                self._asked = anyio.Event()
                if self._wanted is not None:
                    await self._index_wanted(self._wanted)

    async def _index_wanted(self, wanted: _Wanted) -> None:
        def superseded() -> bool:
            check_cancelled()
            return self._wanted is not wanted

        def report(done: int, total: int) -> None:
            wanted.report(done, total)
            for listener in self._listeners:
                listener(done, total)

        index = partial(self._engine.index, wanted.snapshot, _from_thread(report), superseded)
        try:
            await in_thread(index)
        except EmbeddingCancelledError as stopped:
            logger.debug("%s", stopped)
        except Exception:
            # boundary: after a fault in indexing, searches use what is indexed
            logger.exception("indexing failed")
        finally:
            wanted.ended.set()
            wanted.told.set()
        if self._after is not None and self._engine.indexed(wanted.snapshot):
            try:
                await in_thread(partial(self._after, wanted.snapshot), abandon_on_cancel=True)
            except Exception:
                # boundary: what was not prepared is done by the first request that needs it
                logger.exception("preparing links of documents failed")

    def prepare(self, snapshot: Snapshot) -> None:
        self._begun.set()
        if self._engine.indexed(snapshot):
            return
        if self._wanted is None or self._wanted.snapshot is not snapshot or self._wanted.ended.is_set():
            self._wanted = _Wanted(snapshot)
        self._asked.set()

    async def wait(
        self, snapshot: Snapshot, until: float, patience: float, on_progress: OnProgress | None
    ) -> None:
        """Wait for the index of a snapshot, as long as it may be ready in time.

        The search waits ``until`` its deadline, by the clock of the event loop; after ``patience`` seconds no
        search waits for this snapshot any more.
        """
        self.prepare(snapshot)
        if self._engine.indexed(snapshot) or self._wanted is None:
            return
        if on_progress is not None:
            self._listeners.append(on_progress)
        wanted = self._wanted
        deadline = min(until, wanted.since + patience)
        try:
            with anyio.CancelScope(deadline=deadline):
                while not wanted.ended.is_set() and anyio.current_time() + wanted.seconds_left < deadline:
                    await wanted.told.wait()
        finally:
            if on_progress is not None:
                self._listeners.remove(on_progress)

    async def index(self, snapshot: Snapshot, on_progress: OnProgress | None) -> None:
        """Index a snapshot to the end, and wait for it."""

        def stopped() -> bool:
            check_cancelled()  # raises, which ends the thread
            return False

        report = None if on_progress is None else _from_thread(on_progress)
        await in_thread(partial(self._engine.index, snapshot, report, stopped))


def _from_thread(on_progress: OnProgress) -> OnProgress:
    return lambda done, total: on_loop(on_progress, done, total)
