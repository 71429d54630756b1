"""What the API takes and answers about usage: the forms, with names and numbers as in the statistics."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mcp_context_proxy.statistics import period
from mcp_context_proxy.web.bounds import LISTED_MOST

Period = Annotated[str, Meta(pattern=period.PATTERN, description="Hours or days, such as 24h or 30d.")]


class PeriodWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """How far back."""

    period: Period = period.DEFAULT


class SearchesWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """How many searches are listed."""

    limit: Annotated[int, Meta(ge=1, le=LISTED_MOST)] = 50


class Latency(Struct, frozen=True):
    """In milliseconds; null where there was nothing to time."""

    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None


class Tokens(Struct, frozen=True):
    """Of searches where it was known what everything costs, estimated."""

    shown: int
    """Of what was selected."""
    behind: int
    """Of everything, as often."""
    saved: int


class SearchMetrics(Struct, frozen=True):
    """How searches did."""

    enabled: bool
    """Whether anything is counted now."""
    period: str
    since: float
    """Seconds since 1970."""
    searches: int
    found: int
    """That found a tool."""
    used: int
    """After which a tool that they had found was called."""
    accepted: int
    """After which the first one was."""
    acceptance_rate: float | None
    """Accepted among all; null without searches."""
    use_rate: float | None
    """Used among all."""
    reranked: int
    latency: Latency
    tokens: Tokens


class ToolStatistics(Struct, frozen=True):
    """How a tool did."""

    name: str
    """The one that the server uses."""
    server: str
    exposed_name: str | None
    """The one that hosts see; null where there is no such tool any more."""
    calls: int
    errors: int
    success_rate: float
    latency: Latency
    last_used: float
    """Seconds since 1970."""
    result_bytes: float
    """On average."""
    tokens: int | None
    """Of its definition, estimated."""


class UnusedTool(Struct, frozen=True):
    """A tool of which no call is remembered."""

    name: str
    server: str
    exposed_name: str
    tokens: int
    first_seen: float
    """Seconds since 1970."""


class Unused(Struct, frozen=True):
    """Tools that nobody has called, and what they cost."""

    known: int
    """Tools there are, used or not, whose cost is known."""
    count: int
    """Of those that were never called."""
    tokens: int
    """Of all of these."""
    since: float | None
    """Since when all of them could have been used; null where there are none."""
    listed: bool
    """Whether every host reads them with every request; otherwise they cost only searches that find them."""
    tools: list[UnusedTool]
    """The dearest."""


class ToolsAnswer(Struct, frozen=True):
    """How tools did, the most called first."""

    enabled: bool
    period: str
    since: float
    tools: list[ToolStatistics]
    unused: Unused


class SearchCounted(Struct, frozen=True):
    """One search."""

    id: str
    """Of its request context."""
    time: float
    query: str | None
    """Null where queries are not kept."""
    query_sha256: str
    origin: str
    results: int
    top: str | None
    chosen: str | None
    """The tool that was called for it."""
    rank: int | None
    """Of that, from 1."""
    accepted: bool
    latency_ms: float
    reranked: bool


class SearchesAnswer(Struct, frozen=True):
    """The latest searches, newest first."""

    searches: list[SearchCounted]


class Stretch(Struct, frozen=True):
    """An hour or a day."""

    start: float
    """Seconds since 1970."""
    calls: int
    errors: int
    searches: int
    accepted: int
    shown: int
    behind: int


class TimelineAnswer(Struct, frozen=True):
    """Usage over time, oldest first."""

    enabled: bool
    period: str
    since: float
    seconds: int
    """Of each stretch."""
    stretches: list[Stretch]
