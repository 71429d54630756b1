"""Searches: what they ask for, their results, and the service that runs them in threads."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Set
from functools import lru_cache, partial
from typing import Final, Generic, TypeAlias, TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.config import Config, DomainOptions
from mcp_context_proxy.context import ContextOptions, search_filters
from mcp_context_proxy.context.indexing import BackgroundIndexing, Indexed, OnProgress
from mcp_context_proxy.context.search_filters import Excluded, Figures
from mcp_context_proxy.embedding.embeddings import Lookups
from mcp_context_proxy.items import (
    DOCUMENT_KINDS,
    NO_FILTERS,
    ItemKey,
    Kind,
    SearchFilters,
    Snapshot,
    Snapshots,
    Tool,
)
from mcp_context_proxy.retrieval import FITTING, Ranking, Result, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import DOCUMENT_SHARE, DocumentsMeant, Expander
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.text import content_words, identifier_words, stem
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import Workers, in_task, keep_latest
from mcp_context_proxy.trust import ACTING, reaches

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

    async def check(self, wanted: SearchFilters, snapshot: Snapshot) -> SearchFilters:
        """Return filters with the server as it is named, once all servers, categories and tags exist.

        Raises `UnknownFilterError` if one does not.
        """

        def checked() -> SearchFilters:
            settings = self.config.servers.items()
            servers = {name: one for name, one in settings if one.enabled and reaches(name)}
            # The labels of the index are those of all servers.
            index = self._engine.index_of(snapshot)
            has_label = index.has_label if snapshot.part_of is None else lambda _label: False
            off = [*filter(reaches, self.config.off)]
            return search_filters.check(wanted, snapshot, servers, off, has_label)

        return wanted if wanted == NO_FILTERS else await self.off_loop(checked)

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
        # Of a server, only its skills are documents.
        with_documents = bool(snapshot.documents and documents) and (
            filters.servers is None or any(one.owner in filters.servers for one in snapshot.skills.values())
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


_OF_ALL: Final = frozenset(("tool", "tools", "everything", "all", "capabilities", "help", "mcp", "*"))
"""Words of which a query for the whole catalog has at least one."""

_OF_NO_NEED = """
a about accessible an any are available by call can connected could display do does each enumerate every exist
existing for from get give has have here how i in is know like list many me my name names of offer offers on
please possible provide provides re s see server servers show tell the there to us use view we what which with
would you your
"""
_GENERAL: Final = _OF_ALL | frozenset(_OF_NO_NEED.split())
"""Words that say nothing about a need."""

_OF_SERVERS: Final = frozenset(("servers", "mcp"))
_STATE_WORDS = """
active broken configured disconnected down failed failing healthy installed not off offline online running
status unavailable up why work working
"""
_STATES: Final = frozenset(_STATE_WORDS.split())
_ABOUT_SERVERS: Final = _GENERAL | _STATES
"""Words of a question about the servers, which has one of `_OF_SERVERS`."""

_WHAT_CAN_YOU_DO: Final = frozenset(("what", "can", "do"))
LEAST_LETTERS: Final = 3
"""Letters of a word by which a query may mean a server."""

_WORD: Final = pattern(r"[^\W_]+")


def asks_for_all(
    query: str, servers: Iterable[str], failed: Iterable[str], tools: Iterable[Tool] = ()
) -> bool:
    """Return whether a query, such as "list all tools" or "which servers work", asks for the whole catalog.

    So does one for the state of a server ("is the git server up"), and the name of one that failed. A query
    asks for a tool instead if it spells the name of one, such as ``list_all``, or if a tool is there for
    other servers, such as machines of a cloud.
    """
    asked = _query_words(query)
    of_state = "server" in asked and not asked.isdisjoint(_STATES)
    of_servers = of_state or not asked.isdisjoint(_OF_SERVERS)
    if not of_state and narrowed(SearchFilters(), query, filter(reaches, failed)).server is not None:
        return False  # it is answered for that server alone
    named = _in_question(query, servers if of_state else (), failed)
    if named is None:
        of_all = not asked or asked & _OF_ALL or of_servers or asked >= _WHAT_CAN_YOU_DO
        if not (of_all and asked <= (_ABOUT_SERVERS if of_servers else _GENERAL)):
            return False
    of_any = of_state or "servers" in asked

    def is_meant(tool: Tool) -> bool:
        name = set(identifier_words(tool.name).split())
        # "The servers" are not the one machine of a tool, nor is a named server that of another one's tools.
        about = "servers" in tool.description.casefold() or "servers" in name
        about |= "server" in name and ("servers" not in asked or "list" in name)
        spelled = name <= asked and (len(name) > 1 or name == asked)
        return named in (None, tool.server) and ((of_any and about) or spelled)

    return not any(map(is_meant, tools))


def asks_which_work(query: str) -> bool:
    """Return whether a query for an overview asks which servers work, and not for tools."""
    asked = _query_words(query)
    return not asked.isdisjoint(_STATES) and asked & _OF_ALL <= {"mcp"}


def overviewed(scope: Scope, query: str, servers: Iterable[str], failed: Iterable[str]) -> Scope:
    """Return the scope of an overview: one server alone where a query asks for the state of that one."""
    named = _in_question(query, servers, failed)
    if named is None or scope.filters.server is not None:
        return scope
    return replace(scope, filters=replace(scope.filters, server=named))


def _in_question(query: str, servers: Iterable[str], failed: Iterable[str]) -> str | None:
    """Return the server that a query such as "is the git server up" names; None if it names none."""
    return server_asked_for(query, filter(reaches, [*failed, *servers]), _ABOUT_SERVERS)


def server_asked_for(query: str, servers: Iterable[str], beside: Set[str] = _GENERAL) -> str | None:
    """Return the server whose tools a query such as "all tools of git" asks for; None if it does not."""
    asked = _query_words(query)
    telling = next(iter(asked - beside), "")  # by which most of many servers need no look
    for server in (server for server in servers if telling in server.casefold()):
        name = _query_words(server)
        if name == asked or (name <= asked and asked - name <= beside and not name <= beside):
            return server
    return None


def narrowed(wanted: SearchFilters, query: str, servers: Iterable[str]) -> SearchFilters:
    """Return the filters of a search, for one server alone if the query asks for "all tools of git"."""
    asked = _query_words(query)
    if wanted.server is not None or not (asked & _OF_ALL or asked >= _WHAT_CAN_YOU_DO):
        return wanted
    server = server_asked_for(query, servers)
    return wanted if server is None else replace(wanted, server=server)


def may_mean(query: str, servers: str) -> bool:
    """Return whether names and addresses of servers have a word of a query, as "github" has "git"."""
    said, known = map(stem, content_words(query.casefold()).split()), servers.casefold()
    return any(len(word) >= LEAST_LETTERS and word in known for word in said)


@lru_cache(maxsize=8)
def _query_words(query: str) -> frozenset[str]:
    # A first search begins here, on the event loop, where the expressions of `identifier_words` take 50 ms.
    return frozenset(_WORD.findall(query.casefold()) or query.split())
