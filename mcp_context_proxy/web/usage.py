"""REST operations on usage statistics, and ``/metrics`` for Prometheus."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mcp_context_proxy import __version__
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.front.auth import METRICS_PATH, rights_of
from mcp_context_proxy.front.http import HEADERS
from mcp_context_proxy.items import IncludeMode, Snapshot
from mcp_context_proxy.statistics import DEFAULT_PERIOD, seconds_of
from mcp_context_proxy.statistics.recorder import TIMING_BOUNDS, Counters, Timings
from mcp_context_proxy.statistics.report import (
    DocumentStatistics,
    Reports,
    SearchCounted,
    SearchFigures,
    Stretch,
    ToolStatistics,
    Trial,
    Unused,
    UnusedDocument,
)
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import ACTING, Role
from mcp_context_proxy.web import (
    LISTED_MOST,
    Api,
    BadRequestError,
    Given,
    Operation,
    Period,
    answer_form,
    needs,
    refused,
)
from mcp_context_proxy.web.search import Served

if TYPE_CHECKING:
    from mcp_context_proxy.cluster.replicas import ClusterCounts  # most proxies are alone


_PREFIX: Final = "mcp_context_proxy"


class PeriodWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The period of a report."""

    period: Period = DEFAULT_PERIOD


class SearchesWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Length of the list of searches."""

    limit: Annotated[int, Meta(ge=1, le=LISTED_MOST)] = 50


UnusedAnswer: Final = answer_form(
    "Unused", "Tools that nobody has called of late, and their cost.", Unused, listed=bool
)
"""``listed``: whether every host reads them with every request; else they cost only in searches that find
them. ``tools`` has the most expensive ones."""

_OF_PERIOD: Final[dict[str, Any]] = {"enabled": bool, "period": str, "since": float}
"""Facts of every report: whether anything is counted now, the period, and its start in seconds since 1970."""

SearchMetrics: Final = answer_form("SearchMetrics", "How searches did.", SearchFigures, **_OF_PERIOD)

ToolsAnswer: Final = answer_form(
    "ToolsAnswer",
    "How tools did, the most called first.",
    **_OF_PERIOD,
    tools=list[ToolStatistics],
    unused=UnusedAnswer,
)

DocumentsAnswer: Final = answer_form(
    "DocumentsAnswer",
    "How rules and references were used, the most used first.",
    **_OF_PERIOD,
    documents=list[DocumentStatistics],
    unused=list[UnusedDocument],
)
"""``unused``: those that were not found, given to a model or read in 30 days, the longest first."""

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
_Report: Final = partial(Operation, "GET", problems=_PROBLEMS, role=Role.VIEW)

T = TypeVar("T")


class UsageApi(Api):
    """Operations on usage statistics."""

    def __init__(self, proxy: Served, reports: Reports) -> None:
        """Report on a proxy that serves; where it counts nothing, on earlier ones."""
        self._reports, self._usage, self._catalog = reports, proxy.usage, proxy.catalog
        self._listed_whole = proxy.tool_list.lists_all

    @_Report("/metrics/search", answer=SearchMetrics)
    async def _get_search_metrics(self, given: Given, wanted: PeriodWanted) -> dict[str, Any]:
        """Outcome of searches over a period."""
        period = self._period(wanted.period)
        report = await self._read(partial(self._reports.searches, period["since"]))
        return {**period, **msgspec.structs.asdict(report)}

    @_Report("/statistics/tools", answer=ToolsAnswer)
    async def _get_tool_statistics(self, given: Given, wanted: PeriodWanted) -> dict[str, Any]:
        """Outcome of each tool's calls over a period, and tools that were not called in 30 days."""
        period, snapshot = self._period(wanted.period), self._catalog.snapshot
        exposed = {tool.key: name for name, tool in snapshot.tools.items()}
        tools = await self._read(partial(self._reports.tools, period["since"], exposed))
        return {**period, "tools": tools, "unused": await self._read(partial(self._unused, snapshot))}

    @_Report("/statistics/documents", answer=DocumentsAnswer)
    async def _get_document_statistics(self, given: Given, wanted: PeriodWanted) -> dict[str, Any]:
        """Use of each rule and reference over a period, and those that were not used in 30 days."""
        period = self._period(wanted.period)
        documents = await self._read(partial(self._reports.documents, period["since"]))
        unused = await self._read(partial(self._reports.unused_documents, time_of_day()))
        hidden = self._catalog.snapshot.hidden
        return {
            **period,
            "documents": [one for one in documents if (one.kind, one.name) not in hidden],
            "unused": [one for one in unused if (one.kind, one.name) not in hidden],
        }

    @_Report("/statistics/searches", answer=SearchesAnswer)
    async def _list_searches(self, given: Given, wanted: SearchesWanted) -> dict[str, Any]:
        """The latest searches and what was used of them, newest first."""
        searches = await self._read(partial(self._reports.latest, wanted.limit))
        if not given.principal.sees_all:
            tools = self._catalog.snapshot.tools
            shown = {
                name: name if name in tools else None for one in searches for name in (one.top, one.chosen)
            }
            searches = [replace(one, top=shown[one.top], chosen=shown[one.chosen]) for one in searches]
        return {"searches": searches}

    @_Report("/statistics/timeline", answer=TimelineAnswer)
    async def _get_timeline(self, given: Given, wanted: PeriodWanted) -> dict[str, Any]:
        """Calls, searches and tokens over a period, by hour or by day."""
        period = self._period(wanted.period)
        read = partial(self._reports.timeline, period["since"], time_of_day())
        seconds, stretches = await self._read(read)
        return {**period, "seconds": seconds, "stretches": stretches}

    @_Report("/statistics/learning", answer=TrialAnswer)
    async def _compare_learning(self, given: Given, wanted: PeriodWanted) -> dict[str, Any]:
        """Comparison over a period of the requests that were answered with learned pairs and without."""
        period = self._period(wanted.period)
        trial = await self._read(partial(self._reports.trial, period["since"], time_of_day()))
        return {**period, **msgspec.structs.asdict(trial)}

    def _period(self, period: str) -> dict[str, Any]:
        try:
            since = time_of_day() - seconds_of(period)
        except ValueError as error:
            raise BadRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}.") from None
        return {"enabled": self._usage is not None, "period": period, "since": since}

    async def _read(self, read: Callable[[], T]) -> T:
        """Read the store, once everything that was counted is in it."""
        if self._usage is not None:
            self._usage.looked_at()
            await self._usage.flush()
        return await in_thread(read)

    def _unused(self, snapshot: Snapshot) -> dict[str, Any]:
        tools = {
            tool.key: name for name, tool in snapshot.tools.items() if tool.include is not IncludeMode.MANUAL
        }
        unused = self._reports.unused(lambda *key: tools.get(key), time_of_day())
        shown, listed = unused.tools[:UNUSED_SHOWN], self._listed_whole(snapshot)
        return {**msgspec.structs.asdict(unused), "tools": shown, "listed": listed}


def metrics_route(
    proxy: Served,
    counters: Counters,
    cluster: ClusterCounts | None = None,
    within: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> Route:
    """Return the route of the metrics, with those of a replica where there are several.

    Its requests are served `within` the limits of their clients.
    """
    registry = CollectorRegistry()
    registry.register(ProxyCollector(proxy, counters))
    if cluster is not None:
        registry.register(ClusterCollector(cluster))
    ProcessCollector(registry=registry)

    async def endpoint(request: Request) -> Response:
        if rights_of(request.scope).role is Role.USE:
            return refused(HTTPStatus.FORBIDDEN, needs(Role.VIEW))
        # The library fails at versions that it cannot compare; all clients of the format read the latest.
        _, wanted, _ = request.headers.get("accept", "").partition("application/openmetrics-text")
        encode, media_type = choose_encoder(wanted)
        text = await in_thread(encode, registry)
        return Response(text, headers={**HEADERS, "Content-Type": media_type})

    made = Route(METRICS_PATH, endpoint, methods=["GET"])
    made.app = within(made.app)
    return made


class ProxyCollector(Collector):
    """Collects the counters, and the present state.

    Labels are servers, origins of searches, and caches: the configuration bounds their number.
    """

    def __init__(self, proxy: Served, counters: Counters) -> None:
        self._proxy, self._counters = proxy, counters

    def collect(self) -> Iterator[Metric]:
        counters = self._counters
        yield InfoMetricFamily(_PREFIX, "The proxy.", {"version": __version__})

        calls = _by("server", "calls", "Tool calls that have ended.")
        errors = _by("server", "call_errors", "Tool calls that failed.")
        seconds = _timings("server", "call_duration_seconds", "Duration of calls that reached their server.")
        for server, counts in filter(_is_shown, dict(counters.servers).items()):
            calls.add_metric([server], counts.calls)
            errors.add_metric([server], counts.errors)
            _add(seconds, server, counts.latency)
        yield from (calls, errors, seconds)
        yield from self._state()

        searches = _by("origin", "searches", "Searches, by their cause.")
        seconds = _timings("origin", "search_duration_seconds", "Duration of a search.")
        for origin, timings in dict(counters.searches).items():
            searches.add_metric([origin], sum(timings.counts))
            _add(seconds, origin, timings)
        yield from (searches, seconds)
        yield _count("searches_found", "Searches that found a tool.", counters.found)
        yield _count("searches_used", "Searches after which a tool they found was called.", counters.used)
        yield _count("searches_accepted", "Searches after which the first of them was.", counters.top_used)
        yield _count("searches_reranked", "Searches whose results were reranked.", counters.reranked)

        hits = _by("cache", "cache_hits", "Lookups that a cache answered.")
        misses = _by("cache", "cache_misses", "Lookups that a cache did not answer.")
        for name, found in counters.caches.items():
            hits.add_metric([name], found.hits)
            misses.add_metric([name], found.misses)
        yield from (hits, misses)

        yield _count("tokens_shown", "Estimated tokens of selected items.", counters.shown)
        yield _count("tokens_saved", "Estimated tokens of items not selected.", counters.saved)
        if counters.learned_pairs is not None:
            # If the store fails, the other metrics are still there.
            with contextlib.suppress(StoreError):
                pairs = float(counters.learned_pairs())
                meaning = "Pairs of query and tool that are known."
                yield _gauge("learned_pairs", meaning, pairs)
        yield _count("loop_stalls", "Times that the event loop was late by 0.1 s.", counters.stalls.count)
        yield _count("loop_stall_seconds", "Sum of these delays.", counters.stalls.seconds)

    def _state(self) -> Iterator[Metric]:
        proxy = self._proxy
        states = {client.name: not client.cause for client in list(proxy.fleet.clients.values())}
        up = _gauges("server", "server_up", "0 if the server has failed.")
        for server, state in filter(_is_shown, {**states, **dict.fromkeys(proxy.config.off, False)}.items()):
            up.add_metric([server], state)
        held = _gauges("server", "tools_withheld", "Tools withheld, mostly until a person approves them.")
        counts = Counter(one.server for one in proxy.catalog.snapshot.withheld.values())
        for server, count in filter(_is_shown, counts.items()):
            held.add_metric([server], count)
        mistakes = 0 if proxy.reloader is None else len(proxy.reloader.standing.problems)
        yield from (up, held)
        yield _gauge("store_up", "1 if the store can be used.", proxy.store.warning is None)
        yield _gauge("audit_up", "1 if the audit can be written.", proxy.audit.warning is None)
        yield _gauge("configuration_problems", "Mistakes in the present configuration file.", mistakes)


def _is_shown(of_server: tuple[str, Any]) -> bool:
    reader = ACTING.get()
    return reader.role is Role.METRICS or reader.reaches(of_server[0])


class ClusterCollector(Collector):
    """Collects the counts of a replica. No label names a replica, a session or a person."""

    def __init__(self, counts: ClusterCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        meaning = "Requests passed on to the replica that they belong to."
        relays = CounterMetricFamily(f"{_PREFIX}_cluster_relays", meaning, labels=["reason", "result"])
        for (reason, result), count in dict(counts.relays).items():
            relays.add_metric([reason.value, result.name.lower()], count)
        yield relays
        yield _count(
            "cluster_relays_refused", "Requests that no replica signed for this.", counts.relays_refused
        )
        yield _count("cluster_adoptions", "Sessions taken over from a lost replica.", counts.adoptions)
        yield _count(
            "cluster_sessions_lost", "Sessions that another replica took over.", counts.sessions_lost
        )
        yield _count("cluster_replicas_lost", "Replicas that were out of reach.", counts.replicas_lost)
        yield _count("cluster_stale_contexts", "Contexts that another replica had changed.", counts.stale)
        yield _gauge("cluster_sessions", "Sessions whose home is this replica.", counts.sessions())
        yield _gauge("cluster_replicas", "Replicas in reach, this one among them.", counts.replicas())
        yield _gauge("cluster_upkeep", "1 if this replica deletes old rows.", counts.does_upkeep())


def _count(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}_{name}", meaning, value)


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", meaning, float(value))


def _gauges(label: str, name: str, meaning: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", meaning, labels=[label])


def _by(label: str, name: str, meaning: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{_PREFIX}_{name}", meaning, labels=[label])


def _timings(label: str, name: str, meaning: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"{_PREFIX}_{name}", meaning, labels=[label])


def _add(family: HistogramMetricFamily, label: str, timings: Timings) -> None:
    buckets, total = [], 0
    for bound, count in zip([*map(str, TIMING_BOUNDS), "+Inf"], list(timings.counts), strict=True):
        total += count
        buckets.append((bound, float(total)))
    family.add_metric([label], buckets, timings.sum)
