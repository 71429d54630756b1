"""``/metrics`` in the form that Prometheus collects: made from what is counted anyway, when somebody asks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

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

from mcp_context_proxy import __version__
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.statistics.recorder import TIMING_BOUNDS, Counters, Timings
from mcp_context_proxy.system.threads import in_thread

PATH: Final = "/metrics"

_PREFIX: Final = "mcp_context_proxy"


def route(counters: Counters) -> Route:
    """Serves the metrics."""
    registry = CollectorRegistry()
    registry.register(ProxyCollector(counters))
    ProcessCollector(registry=registry)

    async def endpoint(request: Request) -> Response:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        text = await in_thread(encode, registry)
        return Response(text, headers={"Cache-Control": "no-store", "Content-Type": media_type})

    return Route(PATH, endpoint, methods=["GET"])


class ProxyCollector(Collector):
    """Reads the counters. Labels are servers, origins of searches and caches: what a person configured."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must read nothing."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        yield InfoMetricFamily(_PREFIX, "The proxy.", {"version": __version__})
        yield from self._of_calls()
        yield from self._of_searches()
        yield from self._of_caches()
        yield from self._of_tokens()
        yield from self._of_learning()
        counters = self._counters
        yield _count("loop_stalls", "Times that the event loop was late by 0.1 s.", counters.stalls.count)
        yield _count("loop_stall_seconds", "How late it was then, together.", counters.stalls.seconds)

    def _of_calls(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(f"{_PREFIX}_calls", "Tool calls that have ended.", labels=["server"])
        errors = CounterMetricFamily(f"{_PREFIX}_call_errors", "Those that failed.", labels=["server"])
        latency = HistogramMetricFamily(
            f"{_PREFIX}_call_duration_seconds", "Of calls that reached their server.", labels=["server"]
        )
        for server, counts in dict(self._counters.servers).items():
            calls.add_metric([server], counts.calls)
            errors.add_metric([server], counts.errors)
            _add(latency, server, counts.latency)
        yield from (calls, errors, latency)

    def _of_searches(self) -> Iterator[Metric]:
        counters = self._counters
        searches = CounterMetricFamily(
            f"{_PREFIX}_searches", "Searches, by what asked for them.", labels=["origin"]
        )
        latency = HistogramMetricFamily(
            f"{_PREFIX}_search_duration_seconds", "Of a search.", labels=["origin"]
        )
        for origin, timings in dict(counters.searches).items():
            searches.add_metric([origin], sum(timings.counts))
            _add(latency, origin, timings)
        yield from (searches, latency)
        yield _count("searches_found", "Searches that found a tool.", counters.found)
        yield _count("searches_used", "Searches after which a tool they found was called.", counters.used)
        yield _count("searches_accepted", "Searches after which the first one was.", counters.top_used)
        yield _count("searches_reranked", "Searches whose results were reranked.", counters.reranked)

    def _of_caches(self) -> Iterator[Metric]:
        hits = CounterMetricFamily(f"{_PREFIX}_cache_hits", "What a cache had.", labels=["cache"])
        misses = CounterMetricFamily(f"{_PREFIX}_cache_misses", "What it had not.", labels=["cache"])
        for name, counts_of in self._counters.caches.items():
            counts = counts_of()
            hits.add_metric([name], counts.hits)
            misses.add_metric([name], counts.misses)
        yield from (hits, misses)

    def _of_tokens(self) -> Iterator[Metric]:
        yield _count("tokens_shown", "Tokens of what searches selected, estimated.", self._counters.shown)
        yield _count("tokens_saved", "Tokens of what they did not, estimated.", self._counters.saved)

    def _of_learning(self) -> Iterator[Metric]:
        count = self._counters.learned_pairs
        if count is None:
            return
        # A store that fails says nothing; the other metrics still do.
        with contextlib.suppress(StoreError):
            pairs = float(count())
            yield GaugeMetricFamily(
                f"{_PREFIX}_learned_pairs", "Pairs of query and tool that are known.", pairs
            )


def _count(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}_{name}", meaning, value)


def _add(family: HistogramMetricFamily, label: str, timings: Timings) -> None:
    buckets, total = [], 0
    for bound, count in zip([*map(str, TIMING_BOUNDS), "+Inf"], list(timings.counts), strict=True):
        total += count
        buckets.append((bound, float(total)))
    family.add_metric([label], buckets, timings.sum)
