"""REST operations on usage statistics: how tools and searches did, and the tokens that were saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.items import IncludeMode, Snapshot
from mcp_context_proxy.statistics import figures
from mcp_context_proxy.statistics.figures import seconds_of
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.statistics.report import (
    UNUSED_AFTER_DAYS,
    DocumentStatistics,
    NeverUsed,
    Reports,
    SearchCounted,
    SearchFigures,
    Stretch,
    ToolStatistics,
    Trial,
)
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust.tokens import Role
from mcp_context_proxy.web.api import LISTED_MOST, Api, BadRequestError, Given, Operation, answer_form

Period = Annotated[str, Meta(pattern=figures.PATTERN, description="Hours or days, such as 24h or 30d.")]


class PeriodWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The period of a report."""

    period: Period = figures.DEFAULT


class SearchesWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Length of the list of searches."""

    limit: Annotated[int, Meta(ge=1, le=LISTED_MOST)] = 50


class UnusedTool(Struct, frozen=True):
    """A tool of which no call is remembered."""

    name: str
    server: str
    exposed_name: str
    tokens: int
    first_seen: float
    """Seconds since 1970."""


class Unused(Struct, frozen=True):
    """Tools that nobody has called, and their cost."""

    known: int
    """Number of tools whose cost is known, used or not."""
    count: int
    """Number of tools that were never called, and are known for at least ``days``."""
    newer: int
    """Number of tools that were not called yet, but are not known for so long."""
    days: int
    tokens: int
    """Tokens of these together."""
    since: float | None
    """Time since which all of them could have been used; null if there are none."""
    listed: bool
    """True if every host reads them with every request; else they cost only in searches that find them."""
    tools: list[UnusedTool]
    """The most expensive ones."""


_OF_PERIOD: Final[dict[str, Any]] = {"enabled": bool, "period": str, "since": float}
"""Facts of every report: whether anything is counted now, the period, and its start in seconds since 1970."""

SearchMetrics: Final = answer_form("SearchMetrics", "How searches did.", SearchFigures, **_OF_PERIOD)

ToolsAnswer: Final = answer_form(
    "ToolsAnswer",
    "How tools did, the most called first.",
    **_OF_PERIOD,
    tools=list[ToolStatistics],
    unused=Unused,
)

DocumentsAnswer: Final = answer_form(
    "DocumentsAnswer",
    "How rules and references were used, the most used first.",
    **_OF_PERIOD,
    documents=list[DocumentStatistics],
    unused=list[NeverUsed],
)
"""``unused``: those that were never found, given to a model or read, the longest first."""

SearchesAnswer: Final = answer_form(
    "SearchesAnswer", "The latest searches, newest first.", searches=list[SearchCounted]
)

TimelineAnswer: Final = answer_form(
    "TimelineAnswer", "Usage over time, oldest first.", **_OF_PERIOD, seconds=int, stretches=list[Stretch]
)

TrialAnswer: Final = answer_form(
    "TrialAnswer",
    "Requests that were answered with learned pairs and without, compared.",
    Trial,
    **_OF_PERIOD,
)

UNUSED_SHOWN: Final = 200
"""Unused tools in one response: more than a person turns off."""

_PROBLEMS: Final = (HTTPStatus.SERVICE_UNAVAILABLE,)

T = TypeVar("T")


class UsageApi(Api):
    """Operations on usage statistics."""

    def __init__(
        self,
        *,
        reports: Reports,
        usage: UsageRecorder | None,
        catalog: Catalog,
        listed_whole: Callable[[Snapshot], bool],
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Connect the parts.

        Without ``usage`` nothing is counted. ``listed_whole`` returns whether every host reads all of a
        snapshot.
        """
        self._reports, self._usage, self._catalog = reports, usage, catalog
        self._listed_whole, self._clock = listed_whole, clock

    @Operation(
        "GET",
        "/metrics/search",
        "How searches did over a period.",
        query=PeriodWanted,
        answer=SearchMetrics,
        problems=_PROBLEMS,
        role=Role.VIEW,
    )
    async def _get_search_metrics(self, given: Given) -> dict[str, Any]:
        period = self._period(given)
        report = await self._read(partial(self._reports.searches, period["since"]))
        return {**period, **msgspec.structs.asdict(report)}

    @Operation(
        "GET",
        "/statistics/tools",
        "How each tool did over a period, and which were never called.",
        query=PeriodWanted,
        answer=ToolsAnswer,
        problems=_PROBLEMS,
        role=Role.VIEW,
    )
    async def _get_tool_statistics(self, given: Given) -> dict[str, Any]:
        period, snapshot = self._period(given), self._catalog.snapshot
        exposed = {tool.key: name for name, tool in snapshot.tools.items()}
        tools = await self._read(partial(self._reports.tools, period["since"], exposed))
        return {**period, "tools": tools, "unused": await self._read(partial(self._unused, snapshot))}

    @Operation(
        "GET",
        "/statistics/documents",
        "How each rule and reference was used over a period, and which never were.",
        query=PeriodWanted,
        answer=DocumentsAnswer,
        problems=_PROBLEMS,
        role=Role.VIEW,
    )
    async def _get_document_statistics(self, given: Given) -> dict[str, Any]:
        period = self._period(given)
        documents = await self._read(partial(self._reports.documents, period["since"]))
        unused = await self._read(partial(self._reports.unused_documents, self._clock()))
        return {**period, "documents": documents, "unused": unused}

    @Operation(
        "GET",
        "/statistics/searches",
        "The latest searches and what was used of them, newest first.",
        query=SearchesWanted,
        answer=SearchesAnswer,
        problems=_PROBLEMS,
        role=Role.VIEW,
    )
    async def _list_searches(self, given: Given) -> dict[str, Any]:
        return {"searches": await self._read(partial(self._reports.latest, given.query.limit))}

    @Operation(
        "GET",
        "/statistics/timeline",
        "Calls, searches and tokens over a period, by hour or by day.",
        query=PeriodWanted,
        answer=TimelineAnswer,
        problems=_PROBLEMS,
        role=Role.VIEW,
    )
    async def _get_timeline(self, given: Given) -> dict[str, Any]:
        period = self._period(given)
        read = partial(self._reports.timeline, period["since"], self._clock())
        seconds, stretches = await self._read(read)
        return {**period, "seconds": seconds, "stretches": stretches}

    @Operation(
        "GET",
        "/statistics/learning",
        "Comparison over a period of the requests that were answered with learned pairs and without.",
        query=PeriodWanted,
        answer=TrialAnswer,
        problems=_PROBLEMS,
        role=Role.VIEW,
    )
    async def _compare_learning(self, given: Given) -> dict[str, Any]:
        period = self._period(given)
        trial = await self._read(partial(self._reports.trial, period["since"], self._clock()))
        return {**period, **msgspec.structs.asdict(trial)}

    def _period(self, given: Given) -> dict[str, Any]:
        period: str = given.query.period
        try:
            since = self._clock() - seconds_of(period)
        except ValueError as error:
            raise BadRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}.") from None
        return {"enabled": self._usage is not None, "period": period, "since": since}

    async def _read(self, read: Callable[[], T]) -> T:
        """Read the store, once everything that was counted is in it."""
        if self._usage is not None:
            self._usage.looked_at()
            await self._usage.flush()
        return await in_thread(read)

    def _unused(self, snapshot: Snapshot) -> Unused:
        tools = {
            tool.key: name for name, tool in snapshot.tools.items() if tool.include is not IncludeMode.MANUAL
        }
        known = self._reports.known(lambda server, tool: (server, tool) in tools)
        never = self._reports.unused(known, self._clock())
        unused = never.tools
        shown = [
            UnusedTool(one.tool, one.server, tools[one.key], one.tokens, one.first)
            for one in unused[:UNUSED_SHOWN]
        ]
        return Unused(
            known=len(known),
            count=len(unused),
            newer=never.newer,
            days=UNUSED_AFTER_DAYS,
            tokens=sum(one.tokens for one in unused),
            since=max((one.first for one in unused), default=None),
            listed=self._listed_whole(snapshot),
            tools=shown,
        )
