"""Companions of a search: its filters, the documents that it means, and the index that it waits for.

An item that does not meet the filters is not found, however well it fits the query. Filters on latency and
success rate let tools through that were hardly ever called, unless the search is strict.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

import anyio
from anyio.from_thread import check_cancelled
from anyio.from_thread import run_sync as on_loop
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config import ServerConfig, ToolConfig
from mcp_context_proxy.context import key_of
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError, UnknownFilterError, nearest_names
from mcp_context_proxy.items import DOCUMENT_KINDS, Document, Item, ItemKey, SearchFilters, Snapshot, Tool
from mcp_context_proxy.retrieval import Ranking, Result, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.item_metadata import (
    DESTRUCTIVE,
    LANGUAGES,
    OPEN_WORLD,
    READ_ONLY,
    category_label,
    folded,
    metadata_of,
    tag_label,
)
from mcp_context_proxy.retrieval.links import files_named, is_about_files, is_for, namesakes, without_files
from mcp_context_proxy.retrieval.scoring import LEXICAL_FACTOR
from mcp_context_proxy.statistics import ToolFigures
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

Figures: TypeAlias = Mapping[tuple[str, str], ToolFigures]
"""How earlier calls went, by server and the tool's own name."""


def engine_filters(wanted: SearchFilters, figures: Figures) -> Filters:
    """Translate search filters into those of the engine."""
    tags = (*wanted.tags, *(() if wanted.language is None else (wanted.language,)))
    labels = [tag_label(folded(tag)) for tag in tags]
    if wanted.category is not None:
        labels.append(category_label(folded(wanted.category)))
    if wanted.read_only:
        labels.append(READ_ONLY)
    if wanted.open_world:
        labels.append(OPEN_WORLD)
    forbidden = [DESTRUCTIVE] if wanted.exclude_destructive else []
    if wanted.open_world is False:
        forbidden.append(OPEN_WORLD)
    unfit, proven = frozenset[tuple[str, str]](), None
    if wanted.needs_figures:
        verdicts = {tool: _meets(wanted, known) for tool, known in figures.items()}
        if wanted.strict:
            proven = frozenset(tool for tool, verdict in verdicts.items() if verdict)
        else:
            unfit = frozenset(tool for tool, verdict in verdicts.items() if verdict is False)
    return Filters(
        servers=None if wanted.server is None else frozenset({wanted.server}),
        labels=frozenset(labels),
        any_labels=frozenset(tag_label(folded(tag)) for tag in wanted.any_tags),
        no_labels=frozenset(forbidden),
        unfit=unfit,
        proven=proven,
    )


def _meets(wanted: SearchFilters, figures: ToolFigures) -> bool | None:
    """Return whether a tool's earlier calls went well enough; None with too few calls to tell."""
    if wanted.max_latency_ms is not None and figures.p95_ms > wanted.max_latency_ms:
        return False
    if wanted.min_success_rate is None:
        return True
    if figures.calls < wanted.min_calls:
        return None
    return figures.success_rate >= wanted.min_success_rate


def failed_by(item: Item, wanted: SearchFilters, figures: Figures) -> list[str]:
    """Return the names of the filters that an item does not meet."""
    return [name for name, one in wanted.each() if not engine_filters(one, figures).allow(item)]


def filter_text(value: object) -> str:
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


EXCLUDED_NAMED = 3
"""Items named in the note about those that the filters left out."""


class Excluded(Struct, frozen=True):
    """An item that only the filters keep out of the results."""

    result: Result
    failed: tuple[str, ...]
    """Names of the filters that it does not meet."""

    @property
    def text(self) -> str:
        item = self.result.item
        name = item.uri if isinstance(item, Document) else item.exposed_name
        return f"{name} (by {', '.join(self.failed)})"


def excluded(results: Iterable[Result], wanted: SearchFilters, figures: Figures) -> tuple[Excluded, ...]:
    """Return the best of the results that filters leave out."""
    failed = ((result, failed_by(result.item, wanted, figures)) for result in results)
    return tuple(
        islice((Excluded(result, tuple(names)) for result, names in failed if names), EXCLUDED_NAMED)
    )


def may_have_documents(snapshot: Snapshot, filters: Filters) -> bool:
    """Return whether documents may meet a filter by server: only the skills of that server do."""
    servers = filters.servers
    return servers is None or any(skill.owner in servers for skill in snapshot.skills.values())


NAME_CHARACTERS: Final = 100
"""Length to which an unknown value is cut in the error about it."""


def check(
    wanted: SearchFilters,
    snapshot: Snapshot,
    servers: Mapping[str, ServerConfig],
    off: Collection[str],
    has_label: Callable[[str], bool],
) -> None:
    """Check that every name in the filters exists: a typing mistake must not look like an empty catalog.

    The settings of ``servers`` count even while they are not connected, and a note says why those that are
    ``off`` were not searched. ``has_label`` tells quickly whether an indexed item has a label; all items are
    read only if none has.

    Raises:
        UnknownFilterError: a server, category or tag does not exist; names the nearest ones.
    """
    if wanted.server is not None and wanted.server not in servers:
        with_tools = (one.key for one in snapshot.sources if one.items and isinstance(one.items[0], Tool))
        known = dict.fromkeys([*servers, *off, *with_tools])
        if wanted.server not in known:
            raise _unknown("server", wanted.server, known)
    if wanted.category is not None and not has_label(category_label(folded(wanted.category))):
        categories = {folded(one.category) for one in _settings(servers) if one.category is not None}
        categories |= {metadata_of(item).category for source in snapshot.sources for item in source.items}
        if folded(wanted.category) not in categories:
            raise _unknown("category", wanted.category, sorted(categories))
    named = [("tag", tag) for tag in (*wanted.tags, *wanted.any_tags)]
    if wanted.language is not None:
        named.append(("language", wanted.language))
    missing = [(kind, tag) for kind, tag in named if not has_label(tag_label(folded(tag)))]
    if not missing:
        return
    tags = {folded(tag) for one in _settings(servers) for tag in one.tags}
    for source in snapshot.sources:
        for item in source.items:
            tags |= set(metadata_of(item).all_tags)
    for kind, tag in missing:
        if folded(tag) not in tags:
            raise _unknown(kind, tag, sorted(tags & LANGUAGES if kind == "language" else tags))


def _unknown(kind: str, value: str, known: Iterable[str]) -> UnknownFilterError:
    value, known = value[:NAME_CHARACTERS], list(known)
    return UnknownFilterError(kind, value, nearest_names(folded(value), known), known)


def _settings(servers: Mapping[str, ServerConfig]) -> Iterator[ServerConfig | ToolConfig]:
    for server in servers.values():
        yield server
        yield from server.tools.values()


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

DocumentJudge: TypeAlias = Callable[[Result], str | None]
"""Tells why a request does not mean a document; None for one that it means."""


class DocumentsMeant:
    """Decides which documents a request means."""

    def __init__(self, engine: Engine, expander: Expander | None) -> None:
        self._engine, self._expander = engine, expander

    def meant(self, query: str, snapshot: Snapshot, documents: Ranking, tools: Ranking) -> Ranking:
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


def _plain_score(result: Result) -> float:
    return (result.cosine or 0.0) + float(LEXICAL_FACTOR) * result.lexical


OnProgress = Callable[[int, int], None]
"""Called on the event loop with the number of indexed texts and of all texts. Must not block."""

OnWait = Callable[[float, str], None]
"""Called on the event loop, once a second, while a request waits for servers: with the seconds that it has
waited for, and the servers in words. Must not block."""

Enough: TypeAlias = Callable[[str], Awaitable[bool]]
"""Tells whether a search needs none of the servers that are starting, given by names and addresses."""

WaitForServers: TypeAlias = Callable[[float, OnWait | None, Enough | None], Awaitable[None]]
"""Waits some seconds for servers that are starting, or until what has come is enough."""


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
