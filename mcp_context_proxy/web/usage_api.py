"""The part of the API that tells of usage: how tools and searches did, and what was saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import IncludeMode, Snapshot
from mcp_context_proxy.statistics.figures import ToolFigures
from mcp_context_proxy.statistics.period import seconds_of
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.statistics.report import HOURLY_AT_MOST, Reports, SearchReport, ToolReport, tokens_of
from mcp_context_proxy.store.usage import DAY, HOUR, SearchRow
from mcp_context_proxy.threads import in_thread
from mcp_context_proxy.web import usage_forms as forms
from mcp_context_proxy.web.operation import Given, Operation, RefusedError

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
                query=forms.PeriodWanted,
                answer=forms.SearchMetrics,
                problems=_PROBLEMS,
            ),
            Operation(
                method="GET",
                path="/statistics/tools",
                name="getToolStatistics",
                summary="How each tool did over a period, and which were never called.",
                handler=self._tools,
                query=forms.PeriodWanted,
                answer=forms.ToolsAnswer,
                problems=_PROBLEMS,
            ),
            Operation(
                method="GET",
                path="/statistics/searches",
                name="listSearches",
                summary="The latest searches and what was used of them, newest first.",
                handler=self._searches,
                query=forms.SearchesWanted,
                answer=forms.SearchesAnswer,
                problems=_PROBLEMS,
            ),
            Operation(
                method="GET",
                path="/statistics/timeline",
                name="getTimeline",
                summary="Calls, searches and tokens over a period, by hour or by day.",
                handler=self._timeline,
                query=forms.PeriodWanted,
                answer=forms.TimelineAnswer,
                problems=_PROBLEMS,
            ),
        )

    async def _search_metrics(self, given: Given) -> forms.SearchMetrics:
        period, since = self._since(given)
        report = await self._read(partial(self._reports.searches, since))
        return _metrics(report, self._usage is not None, period, since)

    async def _tools(self, given: Given) -> forms.ToolsAnswer:
        period, since = self._since(given)
        snapshot = self._catalog.snapshot
        found = await self._read(partial(self._reports.tools, since))
        unused = await self._read(partial(self._unused, snapshot))
        exposed = {(tool.server, tool.name): name for name, tool in snapshot.tools.items()}
        tools = [_tool(one, exposed.get((one.server, one.tool))) for one in found]
        return forms.ToolsAnswer(self._usage is not None, period, since, tools, unused)

    async def _searches(self, given: Given) -> forms.SearchesAnswer:
        rows = await self._read(partial(self._reports.latest, given.query.limit))
        return forms.SearchesAnswer([_search(row) for row in rows])

    async def _timeline(self, given: Given) -> forms.TimelineAnswer:
        period, since = self._since(given)
        until = self._clock()
        found = await self._read(partial(self._reports.timeline, since, until))
        stretches = [
            forms.Stretch(
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
        return forms.TimelineAnswer(self._usage is not None, period, since, seconds, stretches)

    def _since(self, given: Given) -> tuple[str, float]:
        period: str = given.query.period
        try:
            return period, self._clock() - seconds_of(period)
        except ValueError as error:
            raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}.") from None

    async def _read(self, read: Callable[[], T]) -> T:
        """What was counted up to now."""
        if self._usage is not None:
            self._usage.looked_at()
            await self._usage.flush()
        try:
            return await in_thread(read)
        except StoreError as error:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}.") from None

    def _unused(self, snapshot: Snapshot) -> forms.Unused:
        tools = {
            (tool.server, tool.name): name
            for name, tool in snapshot.tools.items()
            if tool.include is not IncludeMode.MANUAL
        }
        known = self._reports.known(lambda server, tool: (server, tool) in tools)
        unused = self._reports.unused(known)
        shown = [
            forms.UnusedTool(one.tool, one.server, tools[one.server, one.tool], one.tokens, one.first)
            for one in unused[:UNUSED_SHOWN]
        ]
        since = max((one.first for one in unused), default=None)
        return forms.Unused(
            len(known), len(unused), tokens_of(unused), since, self._listed_whole(snapshot), shown
        )


def _metrics(report: SearchReport, enabled: bool, period: str, since: float) -> forms.SearchMetrics:
    usage = report.usage
    return forms.SearchMetrics(
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
        latency=forms.Latency(report.mean_ms, report.percentile_ms(0.50), report.percentile_ms(0.95)),
        tokens=forms.Tokens(usage.shown, usage.behind, usage.behind - usage.shown),
    )


def _tool(report: ToolReport, exposed_name: str | None) -> forms.ToolStatistics:
    figures = report.figures
    return forms.ToolStatistics(
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


def _latency(figures: ToolFigures) -> forms.Latency:
    if not figures.p95_ms:
        return forms.Latency(None, None, None)
    return forms.Latency(figures.mean_ms, figures.p50_ms, figures.p95_ms)


def _search(row: SearchRow) -> forms.SearchCounted:
    return forms.SearchCounted(
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
