"""Comparison of requests that are answered with learned pairs and without, while both kinds are served.

A session is in one arm from its first request to its last, because its requests depend on each other: a list
that only grows, items that stay, queries in other words. So the unit that is drawn is the session, by a hash
of its id. A request without a session is drawn by a hash of its words and of the day: who asks the same twice
on one day gets the same, and no query is in one arm for ever.

Requests of one session are not independent, so intervals are those of ratios over units (Cochran, "Sampling
Techniques", 1977, chapter 2.11), with two further units of mean size in each arm, one that succeeds and one
that fails (Agresti and Caffo, The American Statistician, 2000): without them, arms in which nothing differs
would have intervals of no width.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from mcp_context_proxy.store import DAY, SearchRow, UsageSlot

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

    Args:
        share: Share of the sessions in the arm without learned pairs; 0 compares nothing.
        session: Public id of the session of the request, if it has one.
        query: Words of the request.
        now: Seconds since 1970.
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
        """Return the figures of the arm."""
        return ArmFigures(
            requests=sum(map(len, self._units.values())),
            units=len(self._units),
            precision=self.precision.estimate(0.0, 1.0),
            acceptance=self.acceptance.estimate(0.0, 1.0),
            rank=self.rank.estimate(1.0, math.inf),
        )
