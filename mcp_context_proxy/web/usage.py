"""The part of the API that tells of usage: how tools and searches did, and what was saved.

What the API takes and answers about usage: the forms, with names and numbers as in the statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final, TypeVar

from msgspec import Meta, Struct

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import IncludeMode, Snapshot
from mcp_context_proxy.statistics import figures
from mcp_context_proxy.statistics.figures import ToolFigures, seconds_of
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.statistics.report import HOURLY_AT_MOST, Reports, SearchReport, ToolReport, tokens_of
from mcp_context_proxy.store import DAY, HOUR, SearchRow
from mcp_context_proxy.system.clock import time_of_day
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.web.api import LISTED_MOST, BadRequestError, Given, Operation

Period = Annotated[str, Meta(pattern=figures.PATTERN, description="Hours or days, such as 24h or 30d.")]


class PeriodWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """How far back."""

    period: Period = figures.DEFAULT


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


UNUSED_SHOWN: Final = 200
"""Unused tools in one answer: more than a person turns off."""

_PROBLEMS: Final = (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE)

T = TypeVar("T")


class UsageApi:
    """What the operations do."""

    def __init__(
        self,
        reports: Reports,
        usage: UsageRecorder | None,
        catalog: Catalog,
        listed_whole: Callable[[Snapshot], bool],
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Prepare to answer.

        Args:
            reports: Read the store.
            usage: Counts; None where nothing is counted.
            catalog: Has the tools there are now.
            listed_whole: Whether every host reads all of them.
            clock: Seconds since 1970.
        """
        self._reports, self._usage, self._catalog = reports, usage, catalog
        self._listed_whole, self._clock = listed_whole, clock

    def operations(self) -> tuple[Operation, ...]:
        """Everything that can be asked."""
        return (
            Operation(
                method="GET",
                path="/metrics/search",
                name="getSearchMetrics",
                summary="How searches did over a period.",
                handler=self._search_metrics,
                query=PeriodWanted,
                answer=SearchMetrics,
                problems=_PROBLEMS,
            ),
            Operation(
                method="GET",
                path="/statistics/tools",
                name="getToolStatistics",
                summary="How each tool did over a period, and which were never called.",
                handler=self._tools,
                query=PeriodWanted,
                answer=ToolsAnswer,
                problems=_PROBLEMS,
            ),
            Operation(
                method="GET",
                path="/statistics/searches",
                name="listSearches",
                summary="The latest searches and what was used of them, newest first.",
                handler=self._searches,
                query=SearchesWanted,
                answer=SearchesAnswer,
                problems=_PROBLEMS,
            ),
            Operation(
                method="GET",
                path="/statistics/timeline",
                name="getTimeline",
                summary="Calls, searches and tokens over a period, by hour or by day.",
                handler=self._timeline,
                query=PeriodWanted,
                answer=TimelineAnswer,
                problems=_PROBLEMS,
            ),
        )

    async def _search_metrics(self, given: Given) -> SearchMetrics:
        period, since = self._since(given)
        report = await self._read(partial(self._reports.searches, since))
        return _metrics(report, self._usage is not None, period, since)

    async def _tools(self, given: Given) -> ToolsAnswer:
        period, since = self._since(given)
        snapshot = self._catalog.snapshot
        found = await self._read(partial(self._reports.tools, since))
        unused = await self._read(partial(self._unused, snapshot))
        exposed = {tool.key: name for name, tool in snapshot.tools.items()}
        tools = [_tool(one, exposed.get((one.server, one.tool))) for one in found]
        return ToolsAnswer(self._usage is not None, period, since, tools, unused)

    async def _searches(self, given: Given) -> SearchesAnswer:
        rows = await self._read(partial(self._reports.latest, given.query.limit))
        return SearchesAnswer([_search(row) for row in rows])

    async def _timeline(self, given: Given) -> TimelineAnswer:
        period, since = self._since(given)
        until = self._clock()
        found = await self._read(partial(self._reports.timeline, since, until))
        stretches = [
            Stretch(
                start=one.slot.start,
                calls=one.calls,
                errors=one.errors,
                searches=one.searches.searches,
                accepted=one.searches.top_used,
                shown=one.searches.shown,
                behind=one.searches.behind,
            )
            for one in found
        ]
        seconds = HOUR if until - since <= HOURLY_AT_MOST else DAY
        return TimelineAnswer(self._usage is not None, period, since, seconds, stretches)

    def _since(self, given: Given) -> tuple[str, float]:
        period: str = given.query.period
        try:
            return period, self._clock() - seconds_of(period)
        except ValueError as error:
            raise BadRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}.") from None

    async def _read(self, read: Callable[[], T]) -> T:
        """What was counted up to now."""
        if self._usage is not None:
            self._usage.looked_at()
            await self._usage.flush()
        try:
            return await in_thread(read)
        except StoreError as error:
            raise BadRequestError(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}.") from None

    def _unused(self, snapshot: Snapshot) -> Unused:
        tools = {
            tool.key: name for name, tool in snapshot.tools.items() if tool.include is not IncludeMode.MANUAL
        }
        known = self._reports.known(lambda server, tool: (server, tool) in tools)
        unused = self._reports.unused(known)
        shown = [
            UnusedTool(one.tool, one.server, tools[one.server, one.tool], one.tokens, one.first)
            for one in unused[:UNUSED_SHOWN]
        ]
        since = max((one.first for one in unused), default=None)
        return Unused(len(known), len(unused), tokens_of(unused), since, self._listed_whole(snapshot), shown)


def _metrics(report: SearchReport, enabled: bool, period: str, since: float) -> SearchMetrics:
    usage = report.usage
    return SearchMetrics(
        enabled=enabled,
        period=period,
        since=since,
        searches=usage.searches,
        found=usage.found,
        used=usage.used,
        accepted=usage.top_used,
        acceptance_rate=report.acceptance_rate,
        use_rate=report.use_rate,
        reranked=usage.reranked,
        latency=Latency(report.mean_ms, report.percentile_ms(0.50), report.percentile_ms(0.95)),
        tokens=Tokens(usage.shown, usage.behind, usage.behind - usage.shown),
    )


def _tool(report: ToolReport, exposed_name: str | None) -> ToolStatistics:
    figures = report.figures
    return ToolStatistics(
        name=report.tool,
        server=report.server,
        exposed_name=exposed_name,
        calls=figures.calls,
        errors=figures.errors,
        success_rate=figures.success_rate,
        latency=_latency(figures),
        last_used=figures.last_used,
        result_bytes=figures.result_bytes,
        tokens=report.tokens,
    )


def _latency(figures: ToolFigures) -> Latency:
    if not figures.p95_ms:
        return Latency(None, None, None)
    return Latency(figures.mean_ms, figures.p50_ms, figures.p95_ms)


def _search(row: SearchRow) -> SearchCounted:
    return SearchCounted(
        id=row.id,
        time=row.time,
        query=row.query,
        query_sha256=row.key.hex(),
        origin=row.origin,
        results=row.results,
        top=row.top,
        chosen=row.chosen,
        rank=row.rank,
        accepted=row.rank == 1,
        latency_ms=row.ms,
        reranked=row.reranked,
    )
