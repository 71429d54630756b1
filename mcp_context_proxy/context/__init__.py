"""Request contexts: the items chosen for a request, how and why, and the records that are kept of them.

Here are the options, the contexts and their records. The options of a request are those of the configuration,
overridden by the session, overridden by the request.

A request context holds names and numbers, never the text of a tool or document, and what the store returns
is equal to what was served. Records are in memory at once and in the store a moment later, written by a task
of its own: nobody waits for the disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from mcp_context_proxy.config import Config, DomainOptions, Limits
from mcp_context_proxy.config.settings import PRESETS, Preset
from mcp_context_proxy.errors import StoreError, check_bounds
from mcp_context_proxy.items import DOCUMENT_KINDS, JSON, Kind, Share, Tool
from mcp_context_proxy.protocol.strangers import clean
from mcp_context_proxy.retrieval import USED_BEFORE
from mcp_context_proxy.retrieval.reranker import Reranking
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.statistics.report import Arm
from mcp_context_proxy.store.statistics import DocumentUsage, SearchRow
from mcp_context_proxy.store.tables import RequestRow, RequestStore
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import BatchWriter, in_thread
from mcp_context_proxy.trust import ACTING

Origin: TypeAlias = Literal["search", "set_context", "list", "context"]
"""Cause of a request: a search, ``set_context``, a list filtered by a query, or a host's hook, an agent or a
person that wants the context itself."""

Count = Annotated[int, Meta(ge=1)]
MOST_DEPTH: Final = 5
MOST_BEFORE: Final = 100
"""Earlier requests of a session that a context takes into account."""

Amount = Annotated[int, Meta(ge=0, le=MOST_BEFORE)]
Depth = Annotated[int, Meta(ge=0, le=MOST_DEPTH)]


class ContextOptions(Struct, frozen=True):
    """All options of one selection."""

    tools: DomainOptions
    documents: DomainOptions
    max_tokens: int | None = None
    """Budget for all items together; None for no limit."""
    expansion_depth: int = 1
    """Number of steps from selected items to those that come with them; 0 for none."""
    expansion_threshold: float | None = None
    """Cosine from which two items count as similar; None for the links of documents and tools."""
    expansion_top_n: int = 6
    """Items added in each step."""
    history: int = 0
    """Number of earlier queries of the session that influence this one."""
    retain_requests: int = 3
    """Number of requests for which a called tool stays selected."""
    expand_results: bool = False
    """True to let the result of the latest call add the tools that fit next."""
    calibrated: bool = True
    """False with another embedding model: its cosines differ, so presets have no ``include_score`` and do not
    select ``by_fit``."""
    document_tokens: int = 1500
    """Budget for the text of the rules and references in one answer."""
    interactions_top_n: int = 0
    """Remembered interactions in one context at most."""
    interaction_tokens: int = 300
    """Budget for the text of them."""
    list_tokens: int = 0
    """Budget, without ``max_tokens``, of a list that is filled because little is known about the request."""
    learned: bool = True
    """False to search without learned pairs, in a comparison (`statistics.report`)."""


class DomainOverrides(Struct, frozen=True):
    """Changes by a session or a request in one domain; numbers override the preset."""

    preset: Preset | None = None
    top_k: Count | None = None
    top_n: Count | None = None
    include_score: Share | None = None

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(f"preset is {self.preset!r}; it must be one of {', '.join(PRESETS)}")
        check_bounds("top_k", self.top_k, 1)
        check_bounds("top_n", self.top_n, 1)
        check_bounds("include_score", self.include_score, 0, 1, whole=False)


class Overrides(Struct, frozen=True):
    """Changes by a session or a request; None keeps the value of the level above."""

    tools: DomainOverrides = DomainOverrides()
    documents: DomainOverrides = DomainOverrides()
    max_tokens: Count | None = None
    expansion_depth: Depth | None = None
    expansion_threshold: Share | None = None
    expansion_top_n: Count | None = None
    history: Amount | None = None
    retain_requests: Amount | None = None
    expand_results: bool | None = None

    def __post_init__(self) -> None:
        check_bounds("max_tokens", self.max_tokens, 1)
        check_bounds("expansion_depth", self.expansion_depth, 0, MOST_DEPTH)
        check_bounds("expansion_threshold", self.expansion_threshold, 0, 1, whole=False)
        check_bounds("expansion_top_n", self.expansion_top_n, 1)
        check_bounds("history", self.history, 0, MOST_BEFORE)
        check_bounds("retain_requests", self.retain_requests, 0, MOST_BEFORE)


NO_OVERRIDES: Final[Overrides] = Overrides()


def configured(config: Config) -> ContextOptions:
    search, context, calibrated = config.search, config.context, config.embedding.packaged is not None
    return ContextOptions(
        tools=search.resolved("tools", calibrated),
        documents=search.resolved("documents", calibrated),
        max_tokens=context.max_tokens,
        expansion_depth=context.expansion_depth,
        expansion_threshold=context.expansion_threshold,
        expansion_top_n=context.expansion_top_n,
        history=context.history,
        retain_requests=context.retain_requests,
        expand_results=bool(context.expand_results),
        calibrated=calibrated,
        document_tokens=context.document_tokens,
        interactions_top_n=context.interactions_top_n,
        interaction_tokens=context.interaction_tokens,
        list_tokens=config.expose.list_all_below,
    )


def joined(levels: Iterable[Overrides]) -> Overrides:
    """Return the changes of several levels as one: those of a later level come before."""
    both = NO_OVERRIDES
    for level in levels:
        tools, documents = _joined(both.tools, level.tools), _joined(both.documents, level.documents)
        both = replace(both, tools=tools, documents=documents, **_changed(level))
    return both


def _changed(level: Overrides) -> dict[str, Any]:
    """Return the changes of a level that are those of no single domain."""
    own = {*Overrides.__struct_fields__} - {"tools", "documents"}
    return {name: value for name in own if (value := getattr(level, name)) is not None}


def _joined(before: DomainOverrides, level: DomainOverrides) -> DomainOverrides:
    if level.preset is not None:
        return level
    return replace(before, **{name: value for name, value in asdict(level).items() if value is not None})


def overridden(options: ContextOptions, *levels: Overrides) -> ContextOptions:
    """Return the options after each level, in order, has overridden the ones before it."""
    for level in levels:
        tools = _domain(options.tools, level.tools, options.calibrated)
        documents = _domain(options.documents, level.documents, options.calibrated)
        options = replace(options, tools=tools, documents=documents, **_changed(level))
    return options


def _domain(options: DomainOptions, level: DomainOverrides, calibrated: bool) -> DomainOptions:
    if level.preset is not None:
        options = PRESETS[level.preset]
        if not calibrated:
            options = replace(options, include_score=None, by_fit=False)
    given = {"top_k": level.top_k, "top_n": level.top_n, "include_score": level.include_score}
    numbers: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if level.top_n is not None:
        # An explicit number is a promise: no score adds to it or takes from it.
        options = replace(options, by_fit=False)
        numbers.setdefault("include_score", None)
    options = replace(options, **numbers)
    return replace(options, top_k=max(options.top_k, options.top_n))


class Mode(StrEnum):
    """Reason for which an item is in a request context."""

    ALWAYS = "always"
    """Part of every session."""
    MANUAL = "manual"
    """Added to the session by hand."""
    AGENT = "agent"
    """Selected by the query."""
    EXPANSION = "expansion"
    """Similar to a selected item, or named by a rule."""
    LEARNED = "learned"
    """Selected by the query with the support of earlier successful calls."""
    WORKING_SET = "working_set"
    """Used again and again, and listed from the start."""
    UNCERTAIN = "uncertain"
    """Listed because little is known about such requests, and there was room."""
    RETAINED = "retained"
    """Called recently in this session."""


SESSION_MODES = frozenset({Mode.ALWAYS, Mode.MANUAL, Mode.WORKING_SET})
"""Modes of items that do not depend on the query."""


class Delivery(StrEnum):
    """Form in which a model was given a rule or reference."""

    WHOLE = "whole"
    """With the answer to this request."""
    OUTLINE = "outline"
    """With the answer to this request: its headings, and the way to read on."""
    INSTRUCTIONS = "instructions"
    """Whole, in the instructions with which its session began."""
    EARLIER = "earlier"
    """With an earlier answer in its session, or as another document that has the same text."""


class ContextItem(Struct, frozen=True):
    """One item of a request context."""

    type: Kind
    name: str
    """Exposed name of a tool, name of a rule or reference."""
    server: str | None
    """Server of a tool; None for documents."""
    include_mode: Mode
    score: float | None
    """None where no search scored it."""
    tokens: int
    """Estimated cost for a model that reads it."""
    why: str
    """Short reason for a person."""
    delivered: Delivery | None = None
    """Form in which the model got a rule or reference; None if it did not, and for tools."""
    fingerprint: str | None = None
    """Digest of the definition or text; None in records of earlier versions."""


class RecalledInteraction(Struct, frozen=True):
    """A remembered interaction in a request context."""

    id: int
    agent_name: str
    interaction_type: str
    time: float
    """When it happened, in seconds since 1970."""
    score: float
    tokens: int
    """Estimated cost of its text for a model."""


class RequestContext(Struct, frozen=True):
    """Everything that a model was given for one request, by name."""

    id: str
    time: float
    """Seconds since 1970."""
    query: str
    origin: Origin
    session: str | None
    """Public id of its session."""
    items: tuple[ContextItem, ...]
    """The session's items first, then the selected ones, best first."""
    options: ContextOptions
    dropped: tuple[ContextItem, ...] = ()
    """Selected items that did not fit into `ContextOptions.max_tokens`."""
    near_misses: tuple[ContextItem, ...] = ()
    """Closest items if nothing fits; not part of the context."""
    interactions: tuple[RecalledInteraction, ...] = ()
    """Remembered interactions of the same owner that the query means."""
    failure: str | None = None
    """Reason why the selection failed; the session's items were served."""
    note: str | None = None
    """Note for a person, such as about a model that could not be loaded."""
    read_as: str | None = None
    """The query with its words corrected and written out; None where nothing was changed."""
    confidence: float | None = None
    """How much use has taught about such requests, 0 to 1; None if it is unknown or makes no difference."""
    rerank: Reranking | None = None
    """Outcome of reranking; None where it is not configured."""
    filters: dict[str, JSON] = field(default_factory=dict)
    """Search filters that were set, by name."""
    kinds: tuple[Kind, ...] | None = None
    """Kinds of items that were searched for; None for all."""
    arm: Arm | None = None
    """Arm of the comparison with and without learned pairs; None if none is under way."""
    searched: tuple[int, int] | None = None
    """Number of tools and of documents in the catalog that was searched; None if none was."""
    seconds: float = 0.0
    owner: str | None = None
    """Digest of the credentials of the MCP client; None without any, and for requests of others."""
    profile: str | None = None
    """Name of the client's profile; None without one."""
    client: str | None = None
    """Name by which the client introduced itself; None where none is known."""

    @property
    def tokens(self) -> int:
        """Estimated tokens of all items and interactions together."""
        return sum(item.tokens for item in self.items) + sum(one.tokens for one in self.interactions)

    def of(self, *types: Kind) -> tuple[ContextItem, ...]:
        return tuple(item for item in self.items if item.type in types)


def as_data(context: RequestContext) -> dict[str, JSON]:
    """Return a request context as JSON data, with its tokens and without its owner."""
    data: dict[str, JSON] = {**msgspec.to_builtins(context), "tokens": context.tokens}
    del data["owner"]
    return data


IN_MEMORY = 200
"""Request contexts held in memory: as many as a person looks at, usually under a megabyte."""

ITEMS_IN_MEMORY = 5_000
"""Items of all these together, 7 MB: a client of the API may ask for a thousand in each context."""

GATHERING_SECONDS = 0.5
"""Delay of a write: it goes into one transaction with its successors, and after the response."""

QUOTED = "used before for '"
"""Begins a reason of earlier versions that quotes a query of another session, up to its end."""

UNWRITTEN = 1_000
"""Request contexts that wait for the store, some megabytes; of more, the oldest are dropped."""

UNWRITTEN_ITEMS = 50_000
"""Items of those that wait from which on no further context waits."""


class RequestRecords:
    """The records of request contexts: in memory, and in the store if there is one."""

    def __init__(self, limits: Limits, store: RequestStore | None = None) -> None:
        self._store, self._keep, self._age = store, limits.requests_kept, limits.requests_age_seconds
        self._recent: OrderedDict[str, tuple[float, RequestContext]] = OrderedDict()
        """Each with the time at which it was added, on the clock that only goes forward."""
        self._items = 0
        """Items of all of these."""
        self._writer = BatchWriter(self._put, seconds=GATHERING_SECONDS, limit=UNWRITTEN)
        self._added: list[Callable[[RequestContext], None]] = []
        self.newest = -math.inf
        """Time at which the newest was added, on the same clock."""

    def when_added(self, callback: Callable[[RequestContext], None]) -> None:
        """Call with every request context soon after it is added; the callback must not block."""
        self._added.append(callback)

    def add(self, context: RequestContext) -> None:
        """Record a request context. Does not block."""
        self.newest = time.monotonic()
        self._recent[context.id] = self.newest, context
        self._items += size_of(context)
        most = min(IN_MEMORY, self._keep)
        while len(self._recent) > most or (self._items > ITEMS_IN_MEMORY and len(self._recent) > 1):
            _, (_, oldest) = self._recent.popitem(last=False)
            self._items -= size_of(oldest)
        waiting = self._writer.unwritten
        if self._store is not None and sum(map(size_of, waiting)) < UNWRITTEN_ITEMS:
            self._writer.add(context)
        for added in self._added:
            # In the next step of the loop: the answer is written before.
            asyncio.get_running_loop().call_soon(added, context)

    def recent(self, seconds: float = math.inf) -> Iterator[RequestContext]:
        """Iterate over the request contexts in memory that are not older, newest first."""
        since = time.monotonic() - seconds
        for added, context in reversed(self._recent.values()):
            if added < since:
                return
            yield context

    async def get(self, request_id: str) -> RequestContext | None:
        """Return the request context with an id; None if it is unknown or forgotten."""
        _, known = self._recent.get(request_id, (0.0, None))
        if known is None:
            known = next((one for one in self._writer.unwritten if one.id == request_id), None)
        if known is not None or self._store is None:
            return known
        try:
            row = await in_thread(self._store.get, request_id)
        except StoreError:
            return None
        return None if row is None else decoded(row)

    async def latest(self, limit: int, session: str | None = None) -> list[RequestContext]:
        """Return the latest request contexts, newest first, also of other proxies that share the store.

        ``session`` is the public id of one session; None for all sessions.
        """
        check_bounds("limit", limit, 0)
        recent = (one for one in self.recent() if session is None or one.session == session)
        return await self._with_stored(recent, limit, lambda store: store.latest(limit, session))

    async def latest_of(self, owner: str | None, limit: int) -> list[RequestContext]:
        """Return the latest request contexts of one owner, newest first."""
        recent = (one for one in self.recent() if one.owner == owner)
        return await self._with_stored(recent, limit, lambda store: store.latest_of(owner, limit))

    async def stored(
        self,
        since: float,
        moment: float,
        limit: int,
        session: str | None,
        owner: str | None,
        known: Container[str],
    ) -> list[RequestContext]:
        """Return the latest between two moments that only the store has, of a session, or of an owner.

        Those that are `known` are not read, nor are those in memory.
        """
        store = self._store
        if store is None:
            return []

        def read() -> list[RequestContext | None]:
            ids = store.ids_between(since, moment, limit, session, owner)
            return [decoded(row) for row in store.of_ids([each for each in ids if each not in known])]

        known_here = self._recent.keys()
        try:
            found = await in_thread(read)
        except StoreError:
            return []
        return [one for one in found if one is not None and one.id not in known_here]

    async def _with_stored(
        self,
        recent: Iterable[RequestContext],
        limit: int,
        read: Callable[[RequestStore], list[RequestRow]],
    ) -> list[RequestContext]:
        found = {one.id: one for one in recent}
        if (store := self._store) is not None:

            def stored() -> list[RequestContext | None]:
                return [decoded(row) for row in read(store) if row.id not in found]

            with suppress(StoreError):
                found |= {one.id: one for one in await in_thread(stored) if one is not None}
        return sorted(found.values(), key=lambda one: -one.time)[:limit]

    async def run(self) -> None:
        """Write until cancelled, and then the request contexts that are left."""
        await self._writer.run()

    def _put(self, contexts: Iterable[RequestContext]) -> None:
        assert self._store is not None
        encode = msgspec.json.encode
        rows = [RequestRow(one.id, one.time, one.session, encode(one), one.owner) for one in contexts]
        self._store.put(rows, self._keep, time_of_day() - self._age)


def size_of(context: RequestContext) -> int:
    """Return the number of items in a record, with those that are not part of the context."""
    return len(context.items) + len(context.dropped) + len(context.near_misses)


def decoded(row: RequestRow) -> RequestContext | None:
    """Decode a stored request context; None if another version wrote it and this one cannot read it."""
    try:
        context = msgspec.json.decode(row.context, type=RequestContext)
    except msgspec.DecodeError:
        return None
    return replace(
        context,
        query=clean(context.query),
        read_as=None if context.read_as is None else clean(context.read_as),
        items=tuple(map(_unquoted, context.items)),
        dropped=tuple(map(_unquoted, context.dropped)),
        near_misses=tuple(map(_unquoted, context.near_misses)),
    )


def _unquoted(item: ContextItem) -> ContextItem:
    """Return an item without the past query that earlier versions quoted as a reason; models read records."""
    before, quoted, _ = item.why.partition(QUOTED)
    return replace(item, why=before + USED_BEFORE) if quoted else item


STATISTICS_QUERY_CHARACTERS = 1_000
"""Length to which the statistics cut a query."""


class SearchStatistics:
    """Counts searches and the use of their results. Does not block."""

    def __init__(self, usage: UsageRecorder, keep_queries: bool) -> None:
        """Prepare to count; without ``keep_queries`` only the hash of a query is kept."""
        self._usage, self._keep_queries = usage, keep_queries

    def served(self, context: RequestContext) -> None:
        self._usage.searched(self._row(context, _found(context)), context.tokens)
        self._usage.documents(list(_documents(context)))

    def used(self, context: RequestContext, tool: Tool) -> None:
        """Count the call of a tool that a request had selected."""
        found = _found(context)
        names = [item.name for item in found]
        rank = names.index(tool.exposed_name) + 1 if tool.exposed_name in names else None
        self._usage.used(self._row(context, found, tool.exposed_name, rank))

    def _row(
        self,
        context: RequestContext,
        found: list[ContextItem],
        chosen: str | None = None,
        rank: int | None = None,
    ) -> SearchRow:
        return SearchRow(
            id=context.id,
            time=context.time,
            key=hashlib.sha256(context.query.encode()).digest(),
            query=context.query[:STATISTICS_QUERY_CHARACTERS] if self._keep_queries else None,
            origin=context.origin,
            results=len(found),
            top=found[0].name if found else None,
            chosen=chosen,
            rank=rank,
            ms=context.seconds * 1000,
            reranked=_is_reranked(context),
            owner=ACTING.get().owner,
            arm=context.arm,
            session=context.session,
        )


GIVEN_NOW: Final = (Delivery.WHOLE, Delivery.OUTLINE)
"""Forms in which an answer gives a document to a model itself."""


def _documents(context: RequestContext) -> Iterator[DocumentUsage]:
    """Yield the documents that a request has found, or given to a model."""
    for item in context.of(*DOCUMENT_KINDS):
        found, given = item.include_mode not in SESSION_MODES, item.delivered in GIVEN_NOW
        if found or given:
            yield DocumentUsage(item.type, item.name, int(found), int(given), last=context.time)


def _found(context: RequestContext) -> list[ContextItem]:
    """Return the tools selected by the query, best first, and after them those that others brought."""
    found = [item for item in context.of(Kind.TOOL) if item.score is not None]
    if not _is_reranked(context):
        found.sort(key=lambda item: -(item.score or 0.0))
    # The score of what was brought is that of a link, and says nothing about the query.
    return sorted(found, key=lambda item: item.include_mode is Mode.EXPANSION)


def _is_reranked(context: RequestContext) -> bool:
    return context.rerank is not None and context.rerank.used
