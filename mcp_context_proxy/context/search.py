"""Searches: what they ask for, their results, and the service that runs them in threads."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.config import Config, DomainOptions
from mcp_context_proxy.context import ContextOptions, key_of, search_filters
from mcp_context_proxy.context.search_filters import (
    BackgroundIndexing,
    Enough,
    Excluded,
    Figures,
    Indexed,
    OnProgress,
    OnWait,
    WaitForServers,
)
from mcp_context_proxy.embedding.embeddings import Lookups
from mcp_context_proxy.items import (
    DOCUMENT_KINDS,
    NO_FILTERS,
    Document,
    ItemKey,
    Kind,
    SearchFilters,
    Snapshot,
    Snapshots,
)
from mcp_context_proxy.retrieval import FITTING, Ranking, Result, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.links import files_named, is_about_files, is_for, namesakes, without_files
from mcp_context_proxy.retrieval.scoring import LEXICAL_FACTOR
from mcp_context_proxy.system.threads import Workers, in_task, keep_latest
from mcp_context_proxy.trust import ACTING, reaches

ENGINE_DEFAULTS: Final = Filters()


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

DOCUMENT_SHARE = 0.65
"""Share of the best score that a document needs to be shown."""

FEW: Final = 50
"""Items that filters may leave so that the nearest of them are shown, where none fits: all of one server."""

BEHIND_TOOL = 0.18
"""Distance in score behind the best tool up to which a document is meant: a request for a tool is nearer to
it than to any document, a question about a rule is not. benchmarks/contexts.md has both for other numbers."""

FOR_TOOL = 0.1
"""Distance by which a document may be further behind that leads to the best tool: it says how to use it."""

REPEATED = 0.75
"""Score that the best tool counts as at most for such a document: a request that repeats a tool's description
is nearer to it than any short rule can be."""

WORDS_ELSEWHERE = 0.08
"""Score that the words of a request would add to the nearest tool of other catalogs, with which a document is
compared where no tool here is as near."""

FEW_PASSAGES = 75
"""Chunks of documents up to which the best is not near by chance: those of fifty short rules."""

NEARER_BY_PASSAGES = 0.04
"""Distance that a document has to be nearer where there are e times as many chunks; its share of the best
document as well. benchmarks/contexts.md has figures for the long documents of this project."""

TOOLS_COMPARED = 3
"""Best tools whose scores are looked at."""

TOOL_ONLY = frozenset({Kind.TOOL})

T = TypeVar("T")

DocumentJudge: TypeAlias = Callable[[Result], str | None]
"""Tells why a request does not mean a document; None for one that it means."""


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
        self._engine, self._figures, self._expander = engine, figures, expander
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
        if not (snapshot.tools and has_scale) or search_filters.may_mean(query, starting):
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
            meant = self._meant(query, snapshot, meant, compared)
        return Found(tools=found, documents=meant, snapshot=snapshot, filters=filters)

    def _meant(self, query: str, snapshot: Snapshot, documents: Ranking, tools: Ranking) -> Ranking:
        """Return the documents that a request means, rather than a tool; the others are near misses."""
        candidates = documents.results or documents.near_misses
        against = self.judge(query, snapshot, documents, tools)
        if against is None:
            return documents
        results = tuple(one for one in candidates if against(one) is None)
        return replace(
            documents, results=results, fits=bool(results), near_misses=() if results else candidates
        )

    def judge(
        self, query: str, snapshot: Snapshot, documents: Ranking, tools: Ranking
    ) -> DocumentJudge | None:
        """Return what tells why a request does not mean a document, or None where it does. Blocks.

        A document must be as near to the request as the best tool, or not far behind. Where it leads to that
        tool itself, it may be further behind. The nearest tools of other catalogs count as well, so that a
        request for something else finds no document where there are few tools. Nobody judges where nothing
        is meant at all.
        """
        candidates = documents.results or documents.near_misses
        rivals = (*tools.results, *tools.near_misses)[:TOOLS_COMPARED]
        by_words = any(one.considered and one.indexed and not one.likely for one in (documents, tools))
        if documents.best_cosine is None or by_words:
            most = max((one.lexical for one in rivals), default=0.0)
            return lambda one: (
                None
                if documents.fits and (one.exact or one.lexical >= most)
                else "by words, which alone are compared now, tools fit better"
            )
        if not candidates or documents.evidence is None or not (documents.fits or tools.fits):
            return None
        best = max(rivals, key=_plain_score, default=None)
        here = -math.inf if best is None else _plain_score(best)
        nearest = self._engine.elsewhere(query, snapshot)
        elsewhere = -math.inf if nearest is None else nearest + WORDS_ELSEWHERE
        nearer = NEARER_BY_PASSAGES * math.log(max(self._engine.passages(snapshot) / FEW_PASSAGES, 1.0))
        least, about = max(here, elsewhere) + nearer, max(min(here, REPEATED), elsewhere) + nearer
        files = files_named(query)
        by_name = self._near_by_name(files, query, snapshot, candidates) if files else set[ItemKey]()
        share = (DOCUMENT_SHARE + nearer) * max(one.score for one in candidates)
        others = namesakes((one.item for one in candidates if isinstance(one.item, Document)), query)

        def against(one: Result) -> str | None:
            assert isinstance(one.item, Document)
            if one.exact:
                return None
            if files and one.item.patterns and not any(is_for(one.item.patterns, file) for file in files):
                return "it is for other files than those named"
            if one.item.uri in others:
                return "it is of another folder than the one that is named, which has one of this name"
            if key_of(one.item) in by_name:
                return "only the name of a file brings it near, and it is not about such files"
            if one.score < share:
                return f"its score is {one.score:.2f}, and beside the best document {share:.2f} are needed"
            score = _plain_score(one)
            if score >= least - BEHIND_TOOL:
                return None
            rival = "a tool of other catalogs" if best is None or elsewhere > here else key_of(best.item)[1]
            too_far = (
                f"{rival} is nearer to the query: its own score, {score:.2f}, is more than {BEHIND_TOOL} "
                f"below {least:.2f}, so that a tool is meant"
            )
            if score < about - BEHIND_TOOL - FOR_TOOL or best is None or self._expander is None:
                return too_far
            return None if self._expander.is_about(one.item, best.item, snapshot, query) else too_far

        return against

    def _near_by_name(
        self, files: list[str], query: str, snapshot: Snapshot, found: Iterable[Result]
    ) -> set[ItemKey]:
        """Return the documents that a query would be less near to without its files."""
        led = {key_of(one.item): _plain_score(one) for one in found if not is_about_files(one.item, files)}
        if led and (rest := without_files(query)):
            documents, many = Filters(kinds=DOCUMENT_KINDS), SearchOptions(depth=FEW)
            ranked = self._engine.search(rest, snapshot, documents, many, wait=False)
            for one in (*ranked.results, *ranked.near_misses, *ranked.others):
                if _plain_score(one) >= led.get(key_of(one.item), math.inf):
                    del led[key_of(one.item)]
        return set(led)

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


def _plain_score(result: Result) -> float:
    return (result.cosine or 0.0) + float(LEXICAL_FACTOR) * result.lexical
