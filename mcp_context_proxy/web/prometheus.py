"""The ``/metrics`` endpoint for Prometheus, made from the counters when it is read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

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
from mcp_context_proxy.front.auth import rights_of
from mcp_context_proxy.front.http import HEADERS
from mcp_context_proxy.statistics.recorder import TIMING_BOUNDS, Counters, Timings
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import Role
from mcp_context_proxy.web import needs, refused

PATH: Final = "/metrics"

if TYPE_CHECKING:
    from mcp_context_proxy.cluster.replicas import ClusterCounts  # most proxies are alone

_PREFIX: Final = "mcp_context_proxy"


def route(
    counters: Counters,
    cluster: ClusterCounts | None = None,
    within: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> Route:
    """Return the route of the metrics, with those of a replica where there are several.

    Its requests are served `within` the limits of their clients.
    """
    registry = CollectorRegistry()
    registry.register(ProxyCollector(counters))
    if cluster is not None:
        registry.register(ClusterCollector(cluster))
    ProcessCollector(registry=registry)

    async def endpoint(request: Request) -> Response:
        if not rights_of(request.scope).may(Role.VIEW):
            return refused(HTTPStatus.FORBIDDEN, needs(Role.VIEW))
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        text = await in_thread(encode, registry)
        return Response(text, headers={**HEADERS, "Content-Type": media_type})

    made = Route(PATH, endpoint, methods=["GET"])
    made.app = within(made.app)
    return made


class ProxyCollector(Collector):
    """Collects the counters.

    Labels are servers, origins of searches, and caches: the configuration bounds their number.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        counters = self._counters
        yield InfoMetricFamily(_PREFIX, "The proxy.", {"version": __version__})

        calls = _by("server", "calls", "Tool calls that have ended.")
        errors = _by("server", "call_errors", "Tool calls that failed.")
        seconds = _timings("server", "call_duration_seconds", "Duration of calls that reached their server.")
        for server, counts in dict(counters.servers).items():
            calls.add_metric([server], counts.calls)
            errors.add_metric([server], counts.errors)
            _add(seconds, server, counts.latency)
        yield from (calls, errors, seconds)

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
                yield GaugeMetricFamily(f"{_PREFIX}_learned_pairs", meaning, pairs)
        yield _count("loop_stalls", "Times that the event loop was late by 0.1 s.", counters.stalls.count)
        yield _count("loop_stall_seconds", "Sum of these delays.", counters.stalls.seconds)


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
        for name, meaning, count in (
            (
                "relays_refused",
                "Requests of others that were not signed for this replica.",
                counts.relays_refused,
            ),
            ("adoptions", "Sessions taken over from a replica that was gone.", counts.adoptions),
            ("sessions_lost", "Sessions that another replica has taken over.", counts.sessions_lost),
            ("replicas_lost", "Replicas that could not be reached any more.", counts.replicas_lost),
            ("stale_contexts", "Contexts that another replica had changed meanwhile.", counts.stale),
        ):
            yield _count(f"cluster_{name}", meaning, count)
        for name, meaning, value in (
            ("cluster_sessions", "Sessions whose home is this replica.", counts.sessions()),
            ("cluster_replicas", "Replicas that can be reached, this one among them.", counts.replicas()),
            ("cluster_upkeep", "1 if this replica deletes old rows.", counts.does_upkeep()),
            ("store_up", "1 if the store can be used.", counts.store_up()),
        ):
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", meaning, float(value))


def _count(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}_{name}", meaning, value)


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
