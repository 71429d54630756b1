"""The seams to the store: what other modules may ask of it, without knowing that it is SQLite.

All methods block and are thread-safe. All raise `StoreError` when the store fails; callers go on without it.

How often and how well tools and searches did, as values that add up: of a second, an hour or a year.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from mcp_context_proxy.items import Vector

HOUR: Final = 3600
DAY: Final = 24 * HOUR
"""Seconds of a slot: there are these two. Slots begin at multiples of them since 1970, so days are UTC's."""

Counts = Mapping[int, int]
"""Of a histogram, by bucket; what a bucket stands for is not the store's to know."""


@dataclass(frozen=True, slots=True)
class UsageSlot:
    """A stretch of time that is counted as one."""

    seconds: int
    """`HOUR` or `DAY`."""
    start: int
    """Seconds since 1970."""

    @classmethod
    def of(cls, time: float, seconds: int = HOUR) -> UsageSlot:
        """The one that a moment is in."""
        return cls(seconds, int(time // seconds) * seconds)


@dataclass(frozen=True, slots=True)
class ToolUsage:
    """Calls of one tool."""

    server: str
    tool: str
    """The name the server itself uses."""
    calls: int = 0
    errors: int = 0
    timed: int = 0
    """Calls that were sent, so that they took some time."""
    ms: float = 0.0
    """Of those together."""
    result_bytes: int = 0
    """Of all results together."""
    last: float = 0.0
    """Seconds since 1970."""
    latency: Counts = field(default_factory=dict)

    def plus(self, other: ToolUsage) -> ToolUsage:
        """Both together; the name is this one's."""
        return replace(
            self,
            calls=self.calls + other.calls,
            errors=self.errors + other.errors,
            timed=self.timed + other.timed,
            ms=self.ms + other.ms,
            result_bytes=self.result_bytes + other.result_bytes,
            last=max(self.last, other.last),
            latency=added(self.latency, other.latency),
        )


@dataclass(frozen=True, slots=True)
class SearchUsage:
    """Searches, and what came of them."""

    searches: int = 0
    found: int = 0
    """That found a tool."""
    used: int = 0
    """After which a tool that they had found was called."""
    top_used: int = 0
    """After which that was the first of them."""
    reranked: int = 0
    ms: float = 0.0
    latency: Counts = field(default_factory=dict)
    shown: int = 0
    """Tokens of what they selected, where those of everything were known."""
    behind: int = 0
    """Tokens of everything, as often."""

    def plus(self, other: SearchUsage) -> SearchUsage:
        """Both together."""
        return SearchUsage(
            self.searches + other.searches,
            self.found + other.found,
            self.used + other.used,
            self.top_used + other.top_used,
            self.reranked + other.reranked,
            self.ms + other.ms,
            added(self.latency, other.latency),
            self.shown + other.shown,
            self.behind + other.behind,
        )


@dataclass(frozen=True, slots=True)
class SearchRow:
    """One search as it is kept."""

    id: str
    """Of its request context."""
    time: float
    key: bytes
    """Hash of the query."""
    query: str | None
    """None where queries are not kept."""
    origin: str
    results: int
    """Tools that were found."""
    top: str | None
    """The first of them, by the name that hosts see."""
    chosen: str | None
    """The one that was called; None until one is."""
    rank: int | None
    """Its place among what was found, from 1."""
    ms: float
    reranked: bool


@dataclass(frozen=True, slots=True)
class DefinitionRow:
    """A tool that there is, and what its definition costs a model to read."""

    server: str
    tool: str
    fingerprint: str
    tokens: int
    first: float
    """When it was first seen, in seconds since 1970."""


def added(one: Counts, other: Counts) -> Counts:
    """Two histograms together."""
    if not other:
        return one
    total = Counter(one)
    total.update(other)
    return dict(total)


class VectorStore(Protocol):
    """Vectors by model and content hash."""

    def get(self, model_id: str, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Those of ``keys`` that are known, as stored; whether one is plausible is the caller's to judge."""

    def put(self, model_id: str, vectors: Mapping[bytes, Vector]) -> None:
        """Keep the vectors, all or none; another one under the same key is replaced."""

    def clear(self) -> None:
        """Forget all vectors."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A request context as it is kept."""

    id: str
    time: float
    """Seconds since 1970."""
    session: str | None
    """Public id of the session it belongs to."""
    context: bytes
    """Encoded; the store does not read it."""
    owner: str | None = None
    """Who asked, by a digest of the credentials; None without any."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedRow:
    """A learned pair as it is kept: a query, and a tool that was used for it."""

    key: bytes
    """Hash of the query."""
    server: str
    tool: str
    """The name the server itself uses."""
    query: str | None
    """None where queries are not kept."""
    model_id: str
    vector: Vector
    confidence: float
    """At the last use."""
    uses: int
    first: float
    """Seconds since 1970, as is ``last``."""
    last: float


class LearnedStore(Protocol):
    """Learned pairs, by key, server and tool."""

    def all(self) -> list[LearnedRow]:
        """Every pair, oldest first."""

    def count(self) -> int:
        """How many pairs there are."""

    def put(self, rows: Iterable[LearnedRow]) -> None:
        """Keep the pairs, all or none; one that is known is replaced."""

    def remove(self, keys: Sequence[tuple[bytes, str, str]]) -> None:
        """Forget pairs."""

    def version(self) -> int:
        """Changes whenever another process has changed the store."""


@dataclass(frozen=True, slots=True)
class ToolSession:
    """A session in which a tool was used."""

    server: str
    tool: str
    """The name the server itself uses."""
    session: str
    time: float
    """Of the first use that was written, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class ToolSessions:
    """In how many sessions a tool was used."""

    server: str
    tool: str
    sessions: int
    last: float
    """Seconds since 1970."""


class ToolSessionStore(Protocol):
    """In which sessions each tool was used."""

    def add(self, rows: Iterable[ToolSession], since: float, keep: int) -> None:
        """Keep uses, all or none, one a session; then forget those before ``since``, and all but ``keep``."""

    def counted(self, since: float) -> list[ToolSessions]:
        """In how many sessions each tool was used since then."""

    def tools(self) -> list[tuple[str, str]]:
        """Server and own name of all that are known."""

    def forget(self, tools: Iterable[tuple[str, str]]) -> None:
        """Forget what is known of tools, by server and own name."""


class RequestStore(Protocol):
    """Request contexts, by id and by time."""

    def put(self, rows: Iterable[RequestRow], keep: int, since: float) -> None:
        """Keep the rows, all or none; then forget all but the latest ``keep``, and all before ``since``."""

    def get(self, request_id: str) -> RequestRow | None:
        """The one by that id; None when it is unknown or forgotten."""

    def latest(self, limit: int, session: str | None = None) -> list[RequestRow]:
        """The latest, of one session or of all, newest first."""

    def latest_of(self, owner: str | None, limit: int) -> list[RequestRow]:
        """The latest of one who asked, newest first."""


class ListingStore(Protocol):
    """What servers listed, by a digest of how they are connected."""

    def get(self, key: str) -> tuple[float, bytes] | None:
        """When it was kept, in seconds since 1970, and what; None when it is unknown or damaged."""

    def put(self, key: str, time: float, listing: bytes) -> None:
        """Keep a listing in the place of the one before it."""

    def forget(self, key: str) -> None:
        """Keep nothing by that key."""


class StatisticsStore(Protocol):
    """How often and how well tools and searches did."""

    def add(
        self,
        tools: Iterable[tuple[UsageSlot, ToolUsage]],
        searches: Mapping[UsageSlot, SearchUsage],
        rows: Iterable[SearchRow],
    ) -> None:
        """Add to what is known, all or nothing; a search that is known is replaced."""

    def roll_up(self, hours_before: float, days_before: float) -> None:
        """Make days of the hours before one moment, and forget the days before another."""

    def forget(self, most_usage: int, most_searches: int, searches_before: float) -> None:
        """Forget the oldest of what is more than may be kept."""

    def tools(self, since: float = 0.0) -> list[ToolUsage]:
        """Usage of every tool in the slots that end after a moment, summed up."""

    def searched(self, since: float = 0.0) -> dict[UsageSlot, SearchUsage]:
        """Searches by slot, those that end after a moment, oldest first."""

    def calls(self, since: float = 0.0) -> dict[UsageSlot, tuple[int, int]]:
        """Calls and errors of all tools together by slot, those that end after a moment, oldest first."""

    def searches(self, limit: int) -> list[SearchRow]:
        """The latest, newest first."""

    def definitions(self) -> list[DefinitionRow]:
        """The tools that there were when they were last looked at."""

    def put_definitions(self, server: str, rows: Sequence[DefinitionRow]) -> None:
        """Know these tools of a server and no others; when one was first seen stays."""

    def version(self) -> int:
        """Changes whenever another process has changed the store."""


@dataclass(frozen=True, slots=True)
class InteractionRow:
    """An interaction as it is kept."""

    agent_name: str
    interaction_type: str
    content: str
    time: float
    """When it happened, in seconds since 1970."""
    id: int = 0
    """0 until the store has given it one."""


@dataclass(frozen=True, slots=True)
class InteractionScope:
    """Which interactions are meant; None for all."""

    agent_name: str | None = None
    interaction_type: str | None = None
    before: float | None = None
    """Only what happened before, in seconds since 1970."""


@dataclass(frozen=True, slots=True, eq=False)
class InteractionVector:
    """The embedding of an interaction, with what searches narrow it by."""

    seq: int
    """Greater than that of every earlier change."""
    interaction: int
    agent_name: str
    interaction_type: str
    time: float
    vector: Vector


class InteractionStore(Protocol):
    """Interactions, and their embeddings."""

    def put(
        self, rows: Sequence[InteractionRow], now: float, keep: int, since: float
    ) -> list[InteractionRow]:
        """Keep the rows, all or none, and return them with their ids.

        Then all but the latest ``keep`` to arrive, and what arrived before ``since``, are forgotten.
        """

    def put_vectors(self, model_id: str, vectors: Mapping[int, Vector]) -> None:
        """Keep embeddings by interaction, in the place of those there were; what is forgotten gets none."""

    def vectors(self, model_id: str, after: int, limit: int) -> list[InteractionVector]:
        """Embeddings of a model whose ``seq`` is greater, in its order."""

    def vector_count(self, model_id: str) -> int:
        """How many embeddings of a model there are."""

    def vector_seqs(self, model_id: str) -> list[int]:
        """The ``seq`` of each."""

    def unembedded(self, model_id: str, after: int, limit: int) -> list[InteractionRow]:
        """Interactions that have no embedding of a model and a greater id, in the order of ids."""

    def get(self, ids: Sequence[int]) -> list[InteractionRow]:
        """Those of some ids that are there, in any order."""

    def latest(self, limit: int, scope: InteractionScope) -> list[InteractionRow]:
        """The latest to happen, newest first."""

    def count(self, scope: InteractionScope) -> int:
        """How many there are."""

    def kinds(self) -> list[tuple[str, str, int, float]]:
        """Agents, types, how many of each, and when the latest happened."""

    def forget(self, scope: InteractionScope) -> int:
        """Forget for good what is meant; how many it were."""

    def forget_one(self, interaction: int) -> bool:
        """Forget one for good; whether it was there."""
