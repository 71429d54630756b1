"""How often and how well tools and searches did, as values that add up: of a second, an hour or a year."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

HOUR: Final = 3600
DAY: Final = 24 * HOUR
"""Seconds of a slot: there are these two. Slots begin at multiples of them since 1970, so days are UTC's."""

Counts = Mapping[int, int]
"""Of a histogram, by bucket; what a bucket stands for is not the store's to know."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A stretch of time that is counted as one."""

    seconds: int
    """`HOUR` or `DAY`."""
    start: int
    """Seconds since 1970."""

    @classmethod
    def of(cls, time: float, seconds: int = HOUR) -> Slot:
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
