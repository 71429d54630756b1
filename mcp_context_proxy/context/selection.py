"""Selection: the session's items, those that the query selects, those that come with them, within a budget.

A request never fails because its selection did: then the session's items are served, and the record has the
reason. Everything here blocks.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.catalog import names
from mcp_context_proxy.catalog.names import SEPARATOR
from mcp_context_proxy.context import SESSION_MODES, ContextItem, ContextOptions, Mode, Origin, RequestContext
from mcp_context_proxy.context.delivery import Deliver, ToldDocument, as_prompt, deliver
from mcp_context_proxy.context.search import EVERYTHING, Found, Scope, Searcher
from mcp_context_proxy.context.session import NO_SESSION, SessionView, standing_items
from mcp_context_proxy.embedding.embeddings import Costs
from mcp_context_proxy.errors import nearest_names
from mcp_context_proxy.items import (
    NO_FILTERS,
    Document,
    IncludeMode,
    Item,
    ItemKey,
    Kind,
    Snapshot,
    Tool,
    item_by,
    key_of,
)
from mcp_context_proxy.learning import WorkingSet
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.retrieval import FITTING, Ranking, Result
from mcp_context_proxy.retrieval.expansion import BEHIND_TOOL, Expanded, Expander, ExpansionOptions
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.links import NAMED, file_for, files_named
from mcp_context_proxy.retrieval.reranker import Reranking
from mcp_context_proxy.statistics.report import Arm
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.trust import ACTING

logger = logging.getLogger(__name__)

ID_BYTES = 8
"""Length of a request's id: it names a record and grants nothing; short enough to be typed."""

DOUBTED: Final = 0.3
"""Confidence below which a list is filled with everything that there is room for."""

RANKED: Final = 50
"""Tools that are ranked for that: more do not fit into a usual budget."""

NAME_CHARACTERS: Final = 100
"""Characters of a client's name that a record has."""

WHY: Final = {Mode.ALWAYS: "in every session", Mode.MANUAL: "added to this session by hand"}
SAME_TOOL: Final = "the same tool as "
"""Begins the reason of a tool that an answer names beside the same one of another server."""
WHY_FILLED: Final = "listed because little is known of such requests"


class Selection(Struct, kw_only=True):
    """One request while its context is put together: its query and options, and the items so far."""

    query: str
    origin: Origin
    options: ContextOptions
    session: SessionView = NO_SESSION
    scope: Scope = EVERYTHING
    listed: Collection[str] | None = None
    """Tools in the list of a handshake-era session that the request decides on; None for other requests."""
    items: dict[ItemKey, ContextItem] = field(default_factory=dict)
    brought_by: dict[ItemKey, ItemKey] = field(default_factory=dict)
    """The item that brought each of those that came with another one."""
    dropped: tuple[ContextItem, ...] = ()
    near_misses: tuple[ContextItem, ...] = ()
    failure: str | None = None
    note: str | None = None
    read_as: str | None = None
    confidence: float | None = None
    rerank: Reranking | None = None
    owner: str | None = None
    arm: Arm | None = None
    searched: tuple[int, int] | None = None
    deliver: Deliver = "nothing"
    """Amount that the answer tells of the documents."""
    write: Callable[[SearchAnswer], str] | None = None
    """Writes the answer as a text, in the thread of the search."""
    began: float = field(default_factory=time.perf_counter)

    def add(self, items: Iterable[ContextItem]) -> None:
        """Add items. One that is there already keeps its mode, and gains a score if it has none."""
        for item in items:
            known = self.items.setdefault((item.type, item.name), item)
            if known.score is None and item.score is not None:
                self.items[item.type, item.name] = replace(known, score=item.score)

    def fail(self, error: Exception) -> None:
        """Note that there is no selection, only the session's items."""
        logger.error("the selection for a request failed; the session's items are served", exc_info=error)
        self.failure = f"{type(error).__name__}: {error}"

    def drop_over_budget(self) -> None:
        """Drop items until the rest fits into ``max_tokens``.

        The session's items stay, because somebody wanted them. Of the others the best come first; one that
        is too expensive makes room for cheaper ones. What comes with another item comes after all of these,
        and never without that item.
        """
        if self.options.max_tokens is None:
            return
        others = [item for item in self.items.values() if item.include_mode not in SESSION_MODES]
        others.sort(key=lambda item: (self._steps((item.type, item.name)), -(item.score or 0.0)))
        left = self.left(self.options.max_tokens) + sum(item.tokens for item in others)
        dropped: list[ContextItem] = []
        for item in others:
            key = (item.type, item.name)
            source = self.brought_by.get(key)
            if item.tokens <= left and (source is None or source in self.items):
                left -= item.tokens
            else:
                dropped.append(item)
                del self.items[key]
        self.dropped = tuple(dropped)

    def _steps(self, key: ItemKey) -> int:
        """Return how many items lie between one and those that came by themselves."""
        source = self.brought_by.get(key)
        return 0 if source is None else 1 + self._steps(source)

    def left(self, budget: int) -> int:
        """Return how many tokens of a budget the items leave."""
        return budget - sum(item.tokens for item in self.items.values())

    def context(self) -> RequestContext:
        profile = ACTING.get().profile
        return RequestContext(
            id=secrets.token_hex(ID_BYTES),
            time=time_of_day(),
            query=self.query,
            origin=self.origin,
            session=self.session.id,
            items=tuple(self.items.values()),
            options=self.options,
            dropped=self.dropped,
            near_misses=self.near_misses,
            failure=self.failure,
            note=self.note,
            read_as=self.read_as,
            confidence=self.confidence,
            rerank=self.rerank,
            filters={} if self.scope.filters == NO_FILTERS else self.scope.filters.applied(),
            seconds=time.perf_counter() - self.began,
            owner=self.owner,
            profile=None if profile is None else profile.name,
            client=one_line(self.session.client or "", NAME_CHARACTERS) or None,
            arm=self.arm,
            searched=self.searched,
            kinds=None if self.scope.kinds is None else tuple(sorted(self.scope.kinds)),
        )


class SearchAnswer(Struct, frozen=True):
    """A request context with the search results behind it, for MCP, REST and the command line alike."""

    context: RequestContext
    found: Found
    """Results of the search, without those over budget; the session's items if the search failed."""
    told: tuple[ToldDocument, ...] = ()
    """Rules and references as the answer tells them; none where it tells only names."""
    recalled: tuple[str, ...] = ()
    """Remembered interactions in the context, a line each."""
    brought_by: Mapping[ItemKey, ItemKey] = field(default_factory=dict)
    """The item that brought each of those that came with another one."""
    text: str | None = None
    """The answer as the caller has it written; None where it asked for none."""

    @property
    def tool_names(self) -> list[str]:
        """Exposed names of the tools selected for the query, beside those of the session."""
        tools = self.context.of(Kind.TOOL)
        return [item.name for item in tools if item.include_mode not in SESSION_MODES]


class Selector:
    """Selects items for requests."""

    def __init__(
        self, searcher: Searcher, expander: ContextExpander, costs: Costs, working_set: WorkingSet
    ) -> None:
        self._searcher, self._expander, self._costs = searcher, expander, costs
        self._working_set = working_set
        self._standing: tuple[Snapshot | None, tuple[tuple[Item, Mode], ...]] = (None, ())
        """Items of every session, looked up once for each snapshot."""

    def select(self, selection: Selection, snapshot: Snapshot) -> SearchAnswer:
        """Search, and complete a selection with the results."""
        return self.complete(selection, snapshot, self.search(selection, snapshot))

    def search(self, selection: Selection, snapshot: Snapshot, depth: int = 0) -> Found | None:
        """Search for a selection, with at least `depth` tools ranked; None if the search fails."""
        if selection.failure is not None:
            return None
        try:
            if selection.listed is not None and selection.options.learned:
                selection.confidence = self._searcher.confidence(selection.query, snapshot)
                depth = RANKED if _is_doubted(selection) else depth
            if _fills(selection.options):
                depth = max(depth, RANKED)
            return self._searcher.find(
                selection.query,
                snapshot,
                selection.options,
                selection.scope,
                selection.session.history,
                depth,
                explore=selection.origin == "search",
            )
        except Exception as error:
            # boundary: a request must not fail because its selection did
            selection.fail(error)
            return None

    def complete(self, selection: Selection, snapshot: Snapshot, found: Found | None) -> SearchAnswer:
        """Complete a selection with the results of its search; None if that failed."""
        selection.add(self.session_items(snapshot, selection.session))
        if found is None:
            return self._delivered(selection, self._instead(selection, snapshot))
        selection.note = found.tools.note or found.filter_note
        selection.read_as = found.read_as
        selection.searched = len(found.snapshot.tools), len(found.snapshot.documents)
        selection.near_misses = tuple(self._selected(result) for result in found.near_misses)
        selection.add(self._selected(result) for result in found.results)
        for result in found.results:  # an answer names the same tools of other servers beside it
            score, why = round(result.score, 4), f"{SAME_TOOL}{key_of(result.item)[1]}"
            selection.add(self._item(twin, Mode.AGENT, score, why) for twin in result.twins)
        companions: list[Companion] = []
        try:
            items, of_session = [result.item for result in found.results], selection.session
            modes = self._of_session(snapshot, of_session)
            standing = [item for item, mode in modes if mode in (Mode.ALWAYS, Mode.MANUAL)]
            companions = self._expander.companions(items, standing, selection, snapshot, found.filters)
        except Exception as error:
            # boundary: a request must not fail because its expansion did
            selection.fail(error)
        for one in companions:
            key, via = key_of(one.item), None if one.via is None else key_of(one.via)
            if via in selection.items and key not in selection.items:
                selection.brought_by[key] = via
            selection.add([self._item(one.item, one.mode, one.score, one.why)])
        selection.drop_over_budget()
        found = self._filled_up(found, selection)
        if _is_doubted(selection):
            selection.add(self._fill(selection, snapshot, found.tools))
        return self._delivered(selection, _served(found, companions, selection))

    def _delivered(self, selection: Selection, found: Found) -> SearchAnswer:
        """Return the answer with the documents that it gives to a model."""
        context, session, told = selection.context(), selection.session, tuple[ToldDocument, ...]()
        if selection.deliver == "prompt" and found.snapshot.documents:
            context, told = as_prompt(context, found, self._costs.count)
        elif selection.deliver == "answer" and found.snapshot.documents:
            context, told = deliver(context, found, session.delivered, self._costs.count)
        answer = SearchAnswer(context, found, told, brought_by=selection.brought_by)
        return answer if selection.write is None else replace(answer, text=selection.write(answer))

    def session_items(self, snapshot: Snapshot, session: SessionView) -> Iterator[ContextItem]:
        for item, mode in self._of_session(snapshot, session):
            yield self._item(item, mode, None, self._why(item, mode))

    def related(self, item: Item, snapshot: Snapshot, limit: int) -> list[ContextItem]:
        """Return the items most similar to one, most similar first."""
        near = self._expander.related(item, snapshot, limit)
        return [self._item(one.item, one.mode, one.score, one.why) for one in near]

    def _of_session(self, snapshot: Snapshot, session: SessionView) -> Iterator[tuple[Item, Mode]]:
        """Yield the items of a session for any query; those of a server that is away return with it."""
        known, standing = self._standing
        if known is not snapshot:
            standing = tuple(standing_items(snapshot, self._working_set))
            self._standing = (snapshot, standing)
        for item, mode in standing:
            if (key := key_of(item)) not in session.removed and key not in session.added:
                yield item, mode
        for key in session.added:
            found = item_by(snapshot, key)
            if isinstance(found, Tool) and session.meant.get(key, found.server) != found.server:
                continue  # the name is another server's by now
            if found is not None:
                yield found, Mode.MANUAL

    def _fill(self, selection: Selection, snapshot: Snapshot, ranking: Ranking) -> Iterator[ContextItem]:
        """Yield tools for the rest of the budget: the best first, then by name.

        A handshake-era client does not see the tools that its list leaves out. Where use has taught too
        little to be sure of the selection, nothing is left out that there is room for: ``max_tokens``, or
        without it the size up to which a catalog is listed whole.
        """
        scope, options = selection.scope, selection.options
        if scope.filters.applied() or (scope.kinds is not None and Kind.TOOL not in scope.kinds):
            return
        left = options.list_tokens if options.max_tokens is None else options.max_tokens
        left -= sum(one.tokens for one in selection.items.values())
        # A list only ever grows, so the tools in it take their share of the room.
        others = {name for name in selection.listed or () if (Kind.TOOL, name) not in selection.items}
        left -= sum(self._costs.of(held) for name in others if (held := snapshot.tools.get(name)))
        dropped = {(one.type, one.name) for one in selection.dropped}
        ranked = [result.item for result in (*ranking.results, *ranking.near_misses, *ranking.others)]
        for tool in dict.fromkeys((*ranked, *snapshot.tools.values())):
            if not isinstance(tool, Tool) or tool.include is not IncludeMode.AGENT:
                continue
            key = (Kind.TOOL, tool.exposed_name)
            if key in selection.items or key in dropped or key in scope.without or key[1] in others:
                continue
            one = self._item(tool, Mode.UNCERTAIN, None, WHY_FILLED)
            left -= one.tokens
            if left < 0:
                return
            yield one

    def _filled_up(self, found: Found, selection: Selection) -> Found:
        """Return the results with more tools that fit, as many as ``max_tokens`` leaves room for."""
        if not found.tools.results or not found.tools.fits or not _fills(selection.options):
            return found
        assert selection.options.max_tokens is not None
        assert FITTING.share_of_best is not None
        best = max(result.proven for result in found.tools.results)
        least, more = FITTING.share_of_best * best - FITTING.leeway, list[Result]()
        left = selection.left(selection.options.max_tokens)
        for result in found.tools.others:
            one = self._selected(result)
            if result.score < least or (one.type, one.name) in selection.items or one.tokens > left:
                continue
            left -= one.tokens
            selection.add([one])
            more.append(result)
        return replace(found, tools=replace(found.tools, results=(*found.tools.results, *more)))

    def _instead(self, selection: Selection, snapshot: Snapshot) -> Found:
        """Return the session's items as results, for a search that failed."""
        filters = self._searcher.filters(selection.scope)
        results = tuple(
            Result(item, 0.0, None, 0.0, 0.0, item.description, (), self._why(item, mode))
            for item, mode in self._of_session(snapshot, selection.session)
            if filters.allow(item)
        )
        note = f"The search failed ({selection.failure}); these are the items of every request."
        tools = Ranking(selection.query, results, len(results), "lexical", note, bool(results), (), 0.0)
        return Found(tools, None, snapshot, wanted=selection.scope.filters, filters=filters)

    def _selected(self, result: Result) -> ContextItem:
        mode = Mode.LEARNED if result.learned > 0 else Mode.AGENT
        return self._item(result.item, mode, round(result.score, 4), result.why)

    def _why(self, item: Item, mode: Mode) -> str:
        used = self._working_set.why(item) if isinstance(item, Tool) else None
        return WHY.get(mode) or used or ""

    def _item(self, item: Item, mode: Mode, score: float | None, why: str) -> ContextItem:
        kind, name = key_of(item)
        server = item.server if isinstance(item, Tool) else None
        tokens = self._costs.of(item)
        return ContextItem(kind, name, server, mode, score, tokens, why, fingerprint=item.fingerprint)


def _fills(options: ContextOptions) -> bool:
    """Return whether a budget takes more tools than a search selects: not where their number is set."""
    return options.max_tokens is not None and options.tools.by_fit


def _is_doubted(selection: Selection) -> bool:
    """Return whether use has taught too little about such requests to hide the rest of the catalog."""
    return selection.confidence is not None and selection.confidence < DOUBTED


def _served(found: Found, companions: list[Companion], selection: Selection) -> Found:
    """Return the results of a search without those over budget, and with the ones that come with them."""
    dropped = {(item.type, item.name) for item in selection.dropped}
    known = {key_of(result.item) for result in found.results} | dropped

    def within(ranking: Ranking) -> Ranking:
        results = tuple(result for result in ranking.results if key_of(result.item) not in dropped)
        return replace(ranking, results=results)

    new = selection.items.keys() - known
    needed = max((one.score for one in found.tools.results), default=0.0) + BEHIND_TOOL
    # A document of the user's so far before any tool, such as a runbook, knows better which one to call.
    telling = {key_of(one.item) for one in found.results if one.score > needed and not one.item.server}
    coming = [one for one in companions if one.mode is Mode.EXPANSION and key_of(one.item) in new]
    named = ((key_of(one.item), one.via) for one in coming if one.score == NAMED)
    first = {key for key, via in named if via is not None and key_of(via) in telling}
    coming.sort(key=lambda one: key_of(one.item) not in first)
    before = {key for key, one in selection.items.items() if one.include_mode in SESSION_MODES} | first
    # The record has them in the order of the answer.
    selection.items = dict(sorted(selection.items.items(), key=lambda one: one[0] not in before))
    return replace(
        found,
        tools=within(found.tools),
        documents=None if found.documents is None else within(found.documents),
        brought=tuple(
            Result(one.item, one.score or 0.0, one.score, 0.0, 0.0, one.item.description, (), one.why)
            for one in coming
        ),
        foremost=sum(key_of(one.item) in first for one in coming),
    )


RELATED_COSINE = 0.5
"""Cosine from which items are listed as related: they are about the same thing, or do the same to another."""

RULES_FOR_FILES = 20
"""Documents that come with a request for the files that it names, those nearest to the rest of it: a cloned
repository may have thousands for every file, which would fill the context of a model."""

RULE_SCORE = 1.0
"""Score of an item that a configured rule brings."""


class Companion(Struct, frozen=True):
    """An item that comes with others."""

    item: Item
    mode: Mode
    score: float | None
    why: str
    via: Item | None = None
    """The item that brought it; None where no item did."""


class ContextExpander:
    """Finds the items that come with those of a context: selected, called a moment ago, or the session's.

    These are recently called tools, the documents for a file that the request names, the targets of
    configured rules, the tools that documents name or describe, the documents that name a tool in use, and
    the tools that fit after a result. Items that are ``manual`` or were removed by hand never come this way.
    """

    def __init__(self, expander: Expander, rules: Mapping[str, Sequence[str]]) -> None:
        """Prepare to expand; ``rules`` are names of items, each with the names of those that come with it."""
        self._expander, self.rules = expander, rules

    def related(self, item: Item, snapshot: Snapshot, limit: int) -> list[Companion]:
        """Return the items most similar to one, most similar first."""
        return [*map(_near, self._expander.related(item, snapshot, RELATED_COSINE, limit))]

    def companions(
        self,
        found: Sequence[Item],
        standing: Sequence[Item],
        selection: Selection,
        snapshot: Snapshot,
        filters: Filters,
    ) -> list[Companion]:
        """Return the items that come with those found and those of the session, without these themselves."""
        options, session = selection.options, selection.session
        expansion = ExpansionOptions(
            options.expansion_depth, options.expansion_threshold, options.expansion_top_n
        )

        def allowed(item: Item) -> bool:
            if item.include is IncludeMode.MANUAL or key_of(item) in session.removed:
                return False
            return filters.allow(item)

        used = [tool for name in session.used if (tool := snapshot.tools.get(name)) is not None]
        companions = [Companion(tool, Mode.RETAINED, None, "called a moment ago") for tool in used]
        files = _for_files(selection.query, snapshot)
        for_files = [document for document in files if allowed(document)]
        if len(for_files) > 1:
            for_files = self._expander.nearest_first(for_files, selection.query, snapshot)[:RULES_FOR_FILES]
        for document in for_files:
            why = f"for the file {files[document]}"
            companions.append(Companion(document, Mode.EXPANSION, RULE_SCORE, why))
        meant = [*found, *for_files]
        sources = list({key_of(item): item for item in (*meant, *filter(allowed, used), *standing)}.values())
        for item in sources if self.rules else ():
            name = key_of(item)[1]
            full = f"{item.server}{SEPARATOR}{item.name}" if isinstance(item, Tool) else name
            for target in next((self.rules[one] for one in (name, full, item.name) if one in self.rules), ()):
                for brought in _named(target, item, snapshot):
                    why = f"comes with {name}"
                    companions.append(Companion(brought, Mode.EXPANSION, RULE_SCORE, why, item))
        # Without a threshold items come by links, and every link begins or ends at a document.
        by_links = expansion.threshold is None
        if expansion.depth and (snapshot.documents or not by_links):
            not_meant = set(map(key_of, standing)) - {*map(key_of, meant), *session.added}
            near = self._expander.expand(sources, selection.query, snapshot, expansion, allowed, not_meant)
            companions += [_near(one) for one in near]
        if expansion.depth and by_links and snapshot.documents:
            by_hand = [item for item in standing if isinstance(item, Tool) and key_of(item) in session.added]
            naming = self._expander.documents_naming([*used, *by_hand], snapshot)
            companions += [_near(one) for one in naming[: expansion.top_n]]
        if options.expand_results and session.answer is not None:
            companions += self._after_result(session.answer, expansion, snapshot, allowed)
        known = {key_of(item) for item in (*found, *standing)}
        once: dict[ItemKey, Companion] = {}
        for companion in companions:
            key = key_of(companion.item)
            if key not in known and allowed(companion.item):
                once.setdefault(key, companion)  # the first reason counts
        return list(once.values())

    def _after_result(
        self,
        answer: tuple[str, str],
        expansion: ExpansionOptions,
        snapshot: Snapshot,
        allowed: Callable[[Item], bool],
    ) -> list[Companion]:
        """Return the tools that fit after a result, or, with a threshold, the items near to it."""
        called, text = answer
        tool = snapshot.tools.get(called)
        if expansion.threshold is not None or tool is None:
            near, why = self._expander.suggested(text, snapshot, expansion, allowed), "is about it"
        else:
            near, why = self._expander.following(tool, text, snapshot, allowed), "leads to it"
        companions = []
        for one in near:
            told = f"the result of {called} {why}: {one.cosine:.2f}"
            companions.append(Companion(one.item, Mode.EXPANSION, round(one.cosine, 4), told, tool))
        return companions


def unknown_names(rules: Mapping[str, Sequence[str]], snapshot: Snapshot) -> Iterator[tuple[str, list[str]]]:
    """Yield the names in expansion rules that no item has, each with the nearest that one has."""
    tools = snapshot.tools.values()
    known = {tool.name for tool in tools} | {document.name for document in snapshot.documents.values()}
    for name in dict.fromkeys((*rules, *chain.from_iterable(rules.values()))):
        if name not in known and names.by_full_name(snapshot.tools, name, snapshot.servers) is None:
            yield name, nearest_names(name, [*known, *snapshot.tools], 1)


def _for_files(query: str, snapshot: Snapshot) -> dict[Document, str]:
    """Return the documents whose patterns fit a file that a query names, each with that file."""
    if not snapshot.documents or not (files := files_named(query)):
        return {}
    documents = snapshot.documents.values()
    # The sections of a file have the same patterns.
    fitting = {patterns: file_for(patterns, files) for patterns in {one.patterns for one in documents}}
    return {one: file for one in documents if (file := fitting[one.patterns]) is not None}


def _near(one: Expanded) -> Companion:
    """Return an item that is near to another one, with the reason."""
    if one.via is None:
        why = f"{one.cosine:.2f}"
    elif one.why:
        evidence = "" if one.cosine == NAMED else f": {one.cosine:.2f}"
        why = f"{one.why} {key_of(one.via)[1]}{evidence}"
    else:
        why = f"near to {key_of(one.via)[1]}: {one.cosine:.2f}"
    return Companion(one.item, Mode.EXPANSION, round(one.cosine, 4), why, one.via)


def _named(name: str, beside: Item, snapshot: Snapshot) -> Iterator[Item]:
    """Yield the items that a rule names: by full name, or by own name, on the same server first."""
    if (exact := names.by_full_name(snapshot.tools, name, snapshot.servers)) is not None:
        yield exact
        return
    own = [tool for tool in snapshot.tools.values() if tool.name == name]
    if isinstance(beside, Tool) and (same := [tool for tool in own if tool.server == beside.server]):
        own = same
    yield from own
    yield from (document for document in snapshot.documents.values() if document.name == name)
