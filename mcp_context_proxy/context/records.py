"""Remembers request contexts: the latest in memory at once, all that are kept in the store, a moment later.

Nobody waits for the disk to be served. The store is written by one task, off the event loop.

What was chosen for one request, how and why: names and numbers, never the text of a tool or document.

Frozen values. What is written to the store and read back is equal to what was served.

A request context as statistics count it: a search, what it found, and which of that was used.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Literal, TypeAlias

import msgspec

from mcp_context_proxy.config import Limits
from mcp_context_proxy.context.options import ContextOptions
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import JSON, Kind, Tool
from mcp_context_proxy.rerank.reranker import Reranking
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.store import BatchWriter, RequestRow, RequestStore, SearchRow
from mcp_context_proxy.system.clock import time_of_day
from mcp_context_proxy.system.threads import in_thread

ID_BYTES = 8
"""Of a request's id: it names a record, it opens nothing; short enough to be typed."""

Origin: TypeAlias = Literal["search", "set_context", "list", "context"]
"""What asked: a search, ``set_context``, a list filtered by a query, or somebody who wants the context itself
(a host's hook, an agent, a person)."""


class Mode(StrEnum):
    """How an item came into a request context."""

    ALWAYS = "always"
    """It is in every session."""
    MANUAL = "manual"
    """It was added to the session by hand."""
    AGENT = "agent"
    """The query selected it."""
    EXPANSION = "expansion"
    """Something selected brought it."""
    LEARNED = "learned"
    """Successful calls speak for it."""
    WORKING_SET = "working_set"
    """It is used again and again, and was in the list from the start."""
    UNCERTAIN = "uncertain"
    """It is listed because little is known of such requests, and there was room."""
    RETAINED = "retained"
    """It was used a moment ago in this session."""


SESSION_MODES = frozenset({Mode.ALWAYS, Mode.MANUAL, Mode.WORKING_SET})
"""Of items that are there whatever the query is."""


@dataclass(frozen=True, slots=True)
class ContextItem:
    """One item of a request context."""

    type: Kind
    name: str
    """Exposed name of a tool, name of a rule or reference."""
    server: str | None
    """Of a tool; None for documents."""
    include_mode: Mode
    score: float | None
    """None where no search scored it."""
    tokens: int
    """What it costs a model to read, estimated."""
    why: str
    """One short sentence for a person."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Everything a model was given for one request, by name."""

    id: str
    time: float
    """Seconds since 1970."""
    query: str
    origin: Origin
    session: str | None
    """Public id of the session it belongs to."""
    items: tuple[ContextItem, ...]
    """The session's items first, then those selected, best first."""
    options: ContextOptions
    """What was in force."""
    dropped: tuple[ContextItem, ...] = ()
    """What was selected and did not fit into `ContextOptions.max_tokens`."""
    near_misses: tuple[ContextItem, ...] = ()
    """When nothing fits: what came nearest. Not part of the context."""
    failure: str | None = None
    """Why there was no selection; the session's items were served."""
    note: str | None = None
    """What a person should know about how this was found, such as a model that could not be loaded."""
    confidence: float | None = None
    """How much use has taught of such requests, 0 to 1; None where nothing hangs on it, or it is unknown."""
    rerank: Reranking | None = None
    """What became of asking another model for the order; None where that is not configured."""
    filters: dict[str, JSON] = field(default_factory=dict)
    """What the search was asked to keep to, by name."""
    seconds: float = 0.0
    """How long it took to build."""
    owner: str | None = None
    """Who asked over MCP, by a digest of the credentials; None without any, and where no host asked."""

    @property
    def tokens(self) -> int:
        """Of all items together, estimated."""
        return sum(item.tokens for item in self.items)

    def of(self, *types: Kind) -> tuple[ContextItem, ...]:
        """Its items of some types."""
        return tuple(item for item in self.items if item.type in types)


@dataclass(slots=True)
class Draft:
    """A request context that is being put together: each item once, the first mention decides how it came."""

    query: str
    origin: Origin
    session: str | None
    options: ContextOptions
    items: dict[tuple[Kind, str], ContextItem] = field(default_factory=dict)
    dropped: tuple[ContextItem, ...] = ()
    near_misses: tuple[ContextItem, ...] = ()
    failure: str | None = None
    note: str | None = None
    confidence: float | None = None
    rerank: Reranking | None = None
    filters: dict[str, JSON] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    owner: str | None = None

    def add(self, items: Iterable[ContextItem]) -> None:
        """Take items that are not in it yet; one that is keeps its mode and gains its score."""
        for item in items:
            known = self.items.setdefault((item.type, item.name), item)
            if known.score is None and item.score is not None:
                self.items[item.type, item.name] = replace(known, score=item.score)

    def fail(self, error: Exception) -> None:
        """There is no selection; what the session has is all."""
        logger.error("the selection for a request failed; the session's items are served", exc_info=error)
        self.failure = f"{type(error).__name__}: {error}"

    def finished(self) -> RequestContext:
        """The value."""
        return RequestContext(
            id=secrets.token_hex(ID_BYTES),
            time=time_of_day(),
            query=self.query,
            origin=self.origin,
            session=self.session,
            items=tuple(self.items.values()),
            options=self.options,
            dropped=self.dropped,
            near_misses=self.near_misses,
            failure=self.failure,
            note=self.note,
            confidence=self.confidence,
            rerank=self.rerank,
            filters=self.filters,
            seconds=time.perf_counter() - self.began,
            owner=self.owner,
        )


def as_data(context: RequestContext) -> dict[str, JSON]:
    """As JSON has it, with its tokens in all; whose it is stays here."""
    data: dict[str, JSON] = {**msgspec.to_builtins(context), "tokens": context.tokens}
    del data["owner"]
    return data


def encoded(context: RequestContext) -> bytes:
    """As JSON, complete."""
    return msgspec.json.encode(context)


def decoded(text: bytes) -> RequestContext:
    """What `encoded` was given.

    Raises:
        msgspec.DecodeError: it is not a request context of this version.
    """
    return msgspec.json.decode(text, type=RequestContext)


logger = logging.getLogger(__name__)

IN_MEMORY = 200
"""Request contexts that are at hand without the store: what a person looks at, under a megabyte."""

GATHERING_SECONDS = 0.5
"""How long request contexts are gathered before they are written, so that a response that is just being sent
does not share the processor with the disk."""

UNWRITTEN = 1_000
"""Request contexts that wait for the store, some megabytes; of more, the oldest are dropped."""


class RequestRecords:
    """The request contexts there were. Without a store those in memory are all."""

    def __init__(self, limits: Limits, store: RequestStore | None = None) -> None:
        self._store, self._keep, self._age = store, limits.requests_kept, limits.requests_age_seconds
        self._recent: OrderedDict[str, RequestContext] = OrderedDict()
        self._writer = BatchWriter(self._put, seconds=GATHERING_SECONDS, limit=UNWRITTEN)
        self._added: list[Callable[[RequestContext], None]] = []
        self.newest = 0.0
        """Time of the newest one, in seconds since 1970."""

    def when_added(self, callback: Callable[[RequestContext], None]) -> None:
        """Call with every request context that is added; it must not block."""
        self._added.append(callback)

    def add(self, context: RequestContext) -> None:
        """Remember one. Does not block."""
        self._recent[context.id] = context
        self.newest = context.time
        if len(self._recent) > min(IN_MEMORY, self._keep):
            self._recent.popitem(last=False)
        if self._store is not None:
            self._writer.add(context)
        for added in self._added:
            added(context)

    def recent(self) -> Iterator[RequestContext]:
        """Those in memory, newest first."""
        return reversed(self._recent.values())

    async def get(self, request_id: str) -> RequestContext | None:
        """The one by that id; None when it is unknown or forgotten."""
        known = self._recent.get(request_id)
        if known is None:
            known = next((one for one in self._writer.unwritten if one.id == request_id), None)
        if known is not None or self._store is None:
            return known
        row = await in_thread(self._get, request_id)
        return None if row is None else _read(row)

    async def latest(self, limit: int, session: str | None = None) -> list[RequestContext]:
        """The latest, of one session or of all, newest first; also those of other proxies on the store."""
        recent = (one for one in self.recent() if session is None or one.session == session)
        return await self._with_stored(recent, limit, lambda store: store.latest(limit, session))

    async def latest_of(self, owner: str | None, limit: int) -> list[RequestContext]:
        """The same, of one who asked."""
        recent = (one for one in self.recent() if one.owner == owner)
        return await self._with_stored(recent, limit, lambda store: store.latest_of(owner, limit))

    async def _with_stored(
        self,
        recent: Iterable[RequestContext],
        limit: int,
        read: Callable[[RequestStore], list[RequestRow]],
    ) -> list[RequestContext]:
        found = {one.id: one for one in recent}
        if self._store is not None:
            rows = await in_thread(self._rows, partial(read, self._store))
            stored = (_read(row) for row in rows if row.id not in found)
            found |= {one.id: one for one in stored if one is not None}
        return sorted(found.values(), key=lambda one: -one.time)[:limit]

    async def run(self) -> None:
        """Write until cancelled, and then the request contexts that are left."""
        await self._writer.run()

    def _put(self, contexts: Iterable[RequestContext]) -> None:
        assert self._store is not None
        rows = [RequestRow(one.id, one.time, one.session, encoded(one), one.owner) for one in contexts]
        self._store.put(rows, self._keep, time_of_day() - self._age)

    def _get(self, request_id: str) -> RequestRow | None:
        assert self._store is not None
        try:
            return self._store.get(request_id)
        except StoreError:
            return None

    def _rows(self, read: Callable[[], list[RequestRow]]) -> list[RequestRow]:
        try:
            return read()
        except StoreError:
            return []


def _read(row: RequestRow) -> RequestContext | None:
    """A stored one; None when another version wrote it and this one cannot read it."""
    try:
        return decoded(row.context)
    except msgspec.DecodeError:
        return None


QUERY_CHARACTERS = 1_000
"""Kept of a query."""


class SearchStatistics:
    """Tells the statistics of request contexts. Does not block."""

    def __init__(self, usage: UsageRecorder, keep_queries: bool) -> None:
        """Prepare to count.

        Args:
            usage: Counts.
            keep_queries: Whether the text of a query may be kept, or its hash only.
        """
        self._usage, self._keep_queries = usage, keep_queries

    def served(self, context: RequestContext) -> None:
        """A request was served."""
        self._usage.searched(self._row(context), context.tokens)

    def used(self, context: RequestContext, tool: Tool) -> None:
        """A tool that a request had selected was called for it."""
        names = [item.name for item in _found(context)]
        rank = names.index(tool.exposed_name) + 1 if tool.exposed_name in names else None
        self._usage.used(self._row(context, tool.exposed_name, rank))

    def _row(self, context: RequestContext, chosen: str | None = None, rank: int | None = None) -> SearchRow:
        found = _found(context)
        return SearchRow(
            id=context.id,
            time=context.time,
            key=hashlib.sha256(context.query.encode()).digest(),
            query=context.query[:QUERY_CHARACTERS] if self._keep_queries else None,
            origin=context.origin,
            results=len(found),
            top=found[0].name if found else None,
            chosen=chosen,
            rank=rank,
            ms=context.seconds * 1000,
            reranked=_is_reranked(context),
        )


def _found(context: RequestContext) -> list[ContextItem]:
    """The tools that the query selected, best first."""
    scored = [item for item in context.of(Kind.TOOL) if item.score is not None]
    if _is_reranked(context):
        return scored
    return sorted(scored, key=lambda item: -(item.score or 0.0))


def _is_reranked(context: RequestContext) -> bool:
    return context.rerank is not None and context.rerank.used
