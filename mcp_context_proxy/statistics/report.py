"""Reports on a period from the store, and the comparison of requests with learned pairs and without.

A session is in one arm from its first request to its last, because its requests depend on each other: a list
that only grows, items that stay, queries in other words. So the unit that is drawn is the session, by a hash
of its id. A request without a session is drawn by a hash of its words and of the day: who asks the same twice
on one day gets the same, and no query is in one arm for ever.

Requests of one session are not independent, so intervals are those of ratios over units (Cochran, "Sampling
Techniques", 1977, chapter 2.11), with two further units of mean size in each arm, one that succeeds and one
that fails (Agresti and Caffo, The American Statistician, 2000): without them, arms in which nothing differs
would have intervals of no width.

A period is reported by whole hours, and beyond the hours that are kept by whole days (UTC).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from mcp_context_proxy.items import ToolKey
from mcp_context_proxy.protocol.strangers import clean
from mcp_context_proxy.statistics import ToolFigures, percentile
from mcp_context_proxy.store.statistics import (
    DAY,
    DOCUMENTS,
    HOUR,
    SearchRow,
    SearchUsage,
    StatisticsStore,
    UsageSlot,
)

Arm: TypeAlias = Literal["learned", "plain"]
"""``learned``: answered as configured; ``plain``: answered without learned pairs."""

Z: Final = 1.959964
"""Quantile of the normal distribution for intervals of 95 %."""

FEWEST_UNITS: Final = 20
"""Sessions in an arm below which there is no interval: a handful of them says nothing."""

DAILY_AT_MOST: Final = 14 * DAY
"""Periods up to this are divided into days, and longer ones into weeks."""


def arm_of(share: float, session: str | None, query: str, now: float) -> Arm | None:
    """Return the arm of a request; None where nothing is compared.

    ``share`` is that of the sessions in the arm without learned pairs; 0 compares nothing.
    """
    if share <= 0:
        return None
    if session is not None:
        unit = f"session {session}"
    else:
        unit = f"{datetime.fromtimestamp(now, UTC).date().isoformat()} {query}"
    drawn = int.from_bytes(hashlib.sha256(unit.encode("utf-8", "replace")).digest()[:8], "big")
    return "plain" if drawn < share * 2**64 else "learned"


class Measured(Struct, frozen=True):
    """A figure with its interval of 95 %."""

    value: float
    low: float | None
    """None where there are too few sessions to tell, or no two of them differ."""
    high: float | None


class ArmFigures(Struct, frozen=True, kw_only=True):
    """Figures of the requests in one arm; a figure is None without anything to count."""

    requests: int
    units: int
    """Number of sessions; a request without a session counts with the same one on the same day."""
    precision: Measured | None
    """Share of the tools shown that were called."""
    acceptance: Measured | None
    """Share of the requests after which the first tool was called."""
    rank: Measured | None
    """Mean place of the tool that was called."""


class Differences(Struct, frozen=True, kw_only=True):
    """Figures with learned pairs minus those without."""

    precision: Measured | None
    acceptance: Measured | None
    rank: Measured | None
    """Below 0 where learned pairs bring the tool that is called further up."""


class TrialStretch(Struct, frozen=True, kw_only=True):
    """A day or a week of a comparison."""

    start: float
    """Seconds since 1970."""
    learned: ArmFigures
    plain: ArmFigures


class Trial(Struct, frozen=True, kw_only=True):
    """A comparison of requests with and without learned pairs over a period."""

    learned: ArmFigures
    plain: ArmFigures
    difference: Differences
    seconds: int
    """Length of a stretch."""
    stretches: list[TrialStretch]
    """Oldest first; those without a request are left out."""


def compared(rows: Sequence[SearchRow], seconds: float) -> Trial:
    """Return the comparison of requests, oldest first, out of a period of some seconds."""
    length = DAY if seconds <= DAILY_AT_MOST else 7 * DAY
    by_start: dict[int, list[SearchRow]] = defaultdict(list)
    for row in rows:
        by_start[UsageSlot.of(row.time, length).start].append(row)
    learned, plain = _ArmSums(rows, "learned"), _ArmSums(rows, "plain")
    return Trial(
        learned=learned.figures(),
        plain=plain.figures(),
        difference=Differences(
            precision=_difference(learned.precision, plain.precision),
            acceptance=_difference(learned.acceptance, plain.acceptance),
            rank=_difference(learned.rank, plain.rank, math.inf),
        ),
        seconds=length,
        stretches=[
            TrialStretch(
                start=start,
                learned=_ArmSums(of_stretch, "learned").figures(),
                plain=_ArmSums(of_stretch, "plain").figures(),
            )
            for start, of_stretch in sorted(by_start.items())
        ],
    )


class _Ratio:
    """A ratio of sums over the units of an arm: of tools used to tools shown, for example."""

    def __init__(self, units: Iterable[tuple[float, float]], is_share: bool) -> None:
        """Sum up; each unit has its part of the numerator and of the denominator."""
        pairs = [(part, whole) for part, whole in units if whole > 0]
        self.wholes = sum(whole for _, whole in pairs)
        self.value = sum(part for part, _ in pairs) / self.wholes if pairs else 0.0
        self.middle, self.variance = self.value, math.inf
        if len(pairs) < FEWEST_UNITS:
            return
        if is_share:
            size = self.wholes / len(pairs)
            pairs += [(size, size), (0.0, size)]
        wholes, count = sum(whole for _, whole in pairs), len(pairs)
        self.middle = sum(part for part, _ in pairs) / wholes
        squares = sum((part - self.middle * whole) ** 2 for part, whole in pairs)
        self.variance = count / (count - 1) * squares / wholes**2

    def estimate(self, least: float, most: float) -> Measured | None:
        """Return the ratio with its interval, within the values that it can have; None of nothing."""
        if not self.wholes:
            return None
        return _estimate(self.value, self.middle, self.variance, least, most)


def _difference(one: _Ratio, other: _Ratio, most: float = 1.0) -> Measured | None:
    if not one.wholes or not other.wholes:
        return None
    middle, variance = one.middle - other.middle, one.variance + other.variance
    return _estimate(one.value - other.value, middle, variance, -most, most)


def _estimate(value: float, middle: float, variance: float, least: float, most: float) -> Measured:
    if not 0 < variance < math.inf:
        return Measured(value, None, None)
    half = Z * math.sqrt(variance)
    return Measured(value, max(least, min(middle - half, value)), min(most, max(middle + half, value)))


class _ArmSums:
    """The requests of one arm, summed up by unit."""

    def __init__(self, rows: Iterable[SearchRow], arm: Arm) -> None:
        units: dict[object, list[SearchRow]] = defaultdict(list)
        for row in rows:
            if row.arm == arm:
                units[row.session or (row.key, UsageSlot.of(row.time, DAY).start)].append(row)
        self._units = units
        self.precision = self._ratio(lambda row: min(row.uses, row.results), lambda row: row.results)
        self.acceptance = self._ratio(lambda row: row.rank == 1, lambda _: 1)
        self.rank = self._ratio(lambda row: row.rank or 0, lambda row: row.rank is not None, is_share=False)

    def _ratio(
        self,
        part: Callable[[SearchRow], float],
        whole: Callable[[SearchRow], float],
        is_share: bool = True,
    ) -> _Ratio:
        units = self._units.values()
        return _Ratio(((sum(map(part, rows)), sum(map(whole, rows))) for rows in units), is_share)

    def figures(self) -> ArmFigures:
        return ArmFigures(
            requests=sum(map(len, self._units.values())),
            units=len(self._units),
            precision=self.precision.estimate(0.0, 1.0),
            acceptance=self.acceptance.estimate(0.0, 1.0),
            rank=self.rank.estimate(1.0, math.inf),
        )


HOURLY_AT_MOST: Final = 2 * DAY
"""Longer periods are reported by the day: a person can see some fifty points."""

UNUSED_AFTER_DAYS: Final = 30
UNUSED_AFTER: Final = UNUSED_AFTER_DAYS * DAY
"""Time without a call after which a tool counts as unused, if it is known for so long: nobody may have
needed a newer one yet."""


class UnusedTool(Struct, frozen=True):
    """A tool without a call of late."""

    name: str
    server: str
    exposed_name: str
    tokens: int
    first_seen: float
    """Seconds since 1970."""


class Unused(Struct, frozen=True):
    """Tools that nobody has called of late, and their cost."""

    known: int
    """Number of tools whose cost is known, used or not."""
    count: int
    """Number of tools without a call in the last ``days``, and known for as long."""
    newer: int
    """Number of tools that were not called yet, but are not known for so long."""
    days: int
    tokens: int
    """Tokens of these together."""
    since: float | None
    """Time since which all of them could have been used; null if there are none."""
    tools: list[UnusedTool]
    """The most expensive ones first."""


class Latency(Struct, frozen=True):
    """In milliseconds; null where there was nothing to time."""

    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None


NOT_TIMED: Final = Latency(None, None, None)


class ToolStatistics(Struct, frozen=True, kw_only=True):
    """Usage of one tool."""

    name: str
    """The name the server itself uses."""
    server: str
    exposed_name: str | None
    """The name hosts see; None if it is not in the catalog any more."""
    calls: int
    errors: int
    success_rate: float
    latency: Latency
    last_used: float
    """Seconds since 1970."""
    result_bytes: float
    """Mean size of a result."""
    tokens: int | None
    """Tokens of its definition; None if it is not in the catalog any more."""


class DocumentStatistics(Struct, frozen=True, kw_only=True):
    """Use of one rule or reference."""

    kind: str
    name: str
    found: int
    """Requests that selected it."""
    delivered: int
    """Times that a model was given its text or outline, without having asked for it by name."""
    reads: int
    """Times that it was read by its name or URI."""
    last_used: float
    """Seconds since 1970."""
    tokens: int | None
    """Tokens of its text; None if no search can find it, or it is not in the catalog any more."""


class UnusedDocument(Struct, frozen=True):
    """A document that was not found, given to a model or read in the last 30 days."""

    kind: str
    name: str
    tokens: int
    first_seen: float
    """Seconds since 1970."""


class Tokens(Struct, frozen=True):
    """Estimated tokens, over the searches for which the cost of the whole catalog was known."""

    shown: int
    """Tokens of the selected items."""
    behind: int
    """Tokens of all items, as often."""
    saved: int


class SearchFigures(Struct, frozen=True, kw_only=True):
    """The figures of all searches in a period, counted as in `SearchUsage`; rates are None without any."""

    searches: int
    found: int
    used: int
    accepted: int
    """Searches after which the first tool was called."""
    acceptance_rate: float | None
    use_rate: float | None
    reranked: int
    latency: Latency
    tokens: Tokens


class SearchCounted(Struct, frozen=True, kw_only=True):
    """One search: a `SearchRow` with the names that the API gives its fields."""

    id: str
    time: float
    query: str | None
    query_sha256: str
    origin: str
    results: int
    top: str | None
    chosen: str | None
    rank: int | None
    accepted: bool
    """True if the first tool was called."""
    latency_ms: float
    reranked: bool


class Stretch(Struct, frozen=True, kw_only=True):
    """An hour or a day."""

    start: float
    """Seconds since 1970."""
    calls: int
    errors: int
    searches: int
    accepted: int
    shown: int
    behind: int


class Reports:
    """Reads the statistics of a store. Blocking; every method raises `StoreError` when the store fails."""

    def __init__(self, store: StatisticsStore) -> None:
        self._store = store

    def tools(self, since: float, exposed: Mapping[ToolKey, str] | None = None) -> list[ToolStatistics]:
        """Return every tool that was called, the most called first; `exposed` has the names hosts see."""
        exposed = exposed or {}
        tokens = {row.key: row.tokens for row in self._store.definitions()}
        reports = []
        for usage in self._store.tools(since):
            figures = ToolFigures.of(usage)
            timed = usage.timed > 0
            latency = Latency(figures.mean_ms, figures.p50_ms, figures.p95_ms) if timed else NOT_TIMED
            reports.append(
                ToolStatistics(
                    name=usage.tool,
                    server=usage.server,
                    exposed_name=exposed.get(usage.key),
                    calls=figures.calls,
                    errors=figures.errors,
                    success_rate=figures.success_rate,
                    latency=latency,
                    last_used=figures.last_used,
                    result_bytes=figures.result_bytes,
                    tokens=tokens.get(usage.key),
                )
            )
        return sorted(reports, key=lambda one: (-one.calls, one.server, one.name))

    def documents(self, since: float) -> list[DocumentStatistics]:
        tokens = {row.tool: row.tokens for row in self._store.definitions() if row.server == DOCUMENTS}
        reports = [
            DocumentStatistics(
                kind=one.kind,
                name=one.name,
                found=one.found,
                delivered=one.delivered,
                reads=one.reads,
                last_used=one.last,
                tokens=tokens.get(f"{one.kind}/{one.name}"),
            )
            for one in self._store.documents(since)
        ]
        return sorted(reports, key=lambda one: (-one.found - one.delivered - one.reads, one.kind, one.name))

    def unused_documents(self, now: float) -> list[UnusedDocument]:
        """Return the documents of the last count without a use of late, those with most tokens first.

        Those that are not known for long enough are left out.
        """
        used = {f"{one.kind}/{one.name}" for one in self._store.documents(now - UNUSED_AFTER)}
        rows = [
            row
            for row in self._store.definitions()
            if row.server == DOCUMENTS and row.tool not in used and row.first <= now - UNUSED_AFTER
        ]
        named = ((*row.tool.partition("/"), row) for row in sorted(rows, key=lambda row: -row.tokens))
        return [UnusedDocument(kind, name, row.tokens, row.first) for kind, _, name, row in named]

    def searches(self, since: float) -> SearchFigures:
        usage = reduce(SearchUsage.plus, self._store.searched(since).values(), SearchUsage())
        latency = NOT_TIMED
        if usage.searches:
            shares = [percentile(usage.latency, share) if usage.latency else None for share in (0.50, 0.95)]
            latency = Latency(usage.ms / usage.searches, *shares)

        def rate(count: int) -> float | None:
            # A use counts in the slot of its search, whose own count may have been forgotten since.
            return min(count / usage.searches, 1.0) if usage.searches else None

        return SearchFigures(
            searches=usage.searches,
            found=usage.found,
            used=usage.used,
            accepted=usage.top_used,
            acceptance_rate=rate(usage.top_used),
            use_rate=rate(usage.used),
            reranked=usage.reranked,
            latency=latency,
            tokens=Tokens(usage.shown, usage.behind, usage.behind - usage.shown),
        )

    def latest(self, limit: int) -> list[SearchCounted]:
        return [
            SearchCounted(
                id=row.id,
                time=row.time,
                query=None if row.query is None else clean(row.query),
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
            for row in self._store.searches(limit)
        ]

    def trial(self, since: float, until: float) -> Trial:
        return compared(self._store.compared(since), until - since)

    def timeline(self, since: float, until: float) -> tuple[int, list[Stretch]]:
        """Return the period by the hour or day, including stretches without calls and searches.

        The number is the length of a stretch in seconds.
        """
        seconds = HOUR if until - since <= HOURLY_AT_MOST else DAY
        calls, errors = Counter[int](), Counter[int]()
        for slot, (called, failed) in self._store.calls(since).items():
            start = UsageSlot.of(slot.start, seconds).start
            calls[start] += called
            errors[start] += failed
        searched: dict[int, SearchUsage] = defaultdict(SearchUsage)
        for slot, usage in self._store.searched(since).items():
            start = UsageSlot.of(slot.start, seconds).start
            searched[start] = searched[start].plus(usage)
        begin = max(since, min((*calls, *searched), default=math.inf))
        if not math.isfinite(begin):
            return seconds, []
        return seconds, [
            Stretch(
                start=start,
                calls=calls[start],
                errors=errors[start],
                searches=searched[start].searches,
                accepted=searched[start].top_used,
                shown=searched[start].shown,
                behind=searched[start].behind,
            )
            for start in range(UsageSlot.of(begin, seconds).start, math.ceil(until), seconds)
        ]

    def unused(self, exposed: Callable[[str, str], str | None], now: float) -> Unused:
        """Return the tools without a call of late, those with most tokens first.

        `exposed(server, tool)` is the name that hosts see; None for a tool that searches cannot find.
        """
        used = {one.key for one in self._store.tools(now - UNUSED_AFTER)}
        known = [
            UnusedTool(row.tool, row.server, name, row.tokens, row.first)
            for row in self._store.definitions()
            if row.server != DOCUMENTS and (name := exposed(row.server, row.tool)) is not None
        ]
        found = [one for one in known if (one.server, one.name) not in used]
        old = [one for one in found if one.first_seen <= now - UNUSED_AFTER]
        return Unused(
            known=len(known),
            count=len(old),
            newer=len(found) - len(old),
            days=UNUSED_AFTER_DAYS,
            tokens=sum(one.tokens for one in old),
            since=max((one.first_seen for one in old), default=None),
            tools=sorted(old, key=lambda one: (-one.tokens, one.server, one.name)),
        )
