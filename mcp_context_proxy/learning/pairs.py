"""Learned pairs, query and tool, and their arithmetic. Pure: the time is passed in.

Confidence is a moving average of what uses say, and halves in two weeks without one.

What a call says about the query it was made for, and how much that weighs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from mcp_context_proxy.items import Vector


class Signal(StrEnum):
    """How a tool came to be used, or not."""

    FOUND = "found"
    """A search found it, and it was used."""
    LISTED = "listed"
    """It was in the list, and it was used."""
    UNLISTED = "unlisted"
    """It was used though no search had found it and no list had it: search can learn most from it."""
    PASSED_OVER = "passed_over"
    """It was shown while another one was used."""


WEIGHTS: Final[Mapping[Signal, float]] = {
    Signal.FOUND: 1.5,
    Signal.LISTED: 1.0,
    Signal.UNLISTED: 0.5,
    Signal.PASSED_OVER: -0.2,
}
"""The proportions are what counts: the largest stands for full confidence."""

STRONGEST: Final = max(WEIGHTS.values())


@dataclass(frozen=True, slots=True)
class Use:
    """A successful call, and the query that it was made for."""

    query: str
    """In the words of whoever asked."""
    tool: tuple[str, str]
    """Server, and the tool's own name."""
    signal: Signal
    session: str
    """Who used it: within one session, a repetition says nothing new."""
    shown: tuple[tuple[str, str], ...] = ()
    """The tools that were shown for the query."""


ToolKey: TypeAlias = tuple[str, str]
"""Server, and the tool's own name."""

DECAY_PER_DAY: Final = 0.95
"""What is left of a confidence after a day: 0.21 after 30 days."""
FIRST: Final = 0.75
"""Of the weight of a first use that counts at once: one use may be a mistake."""
RATE: Final = 0.3
"""How far a further use moves the average."""
RATE_AGAINST: Final = 0.1
"""How far it is moved by having been passed over, which says little: one need can have several tools."""

FORGET_BELOW: Final = 0.1
"""A confidence that is no longer worth its place."""
FORGET_AFTER_DAYS: Final = 30.0
"""Without a use."""
MOST_PAIRS: Final = 5_000
"""Compared with every query in a fraction of a millisecond."""
KEPT_OF_TOO_MANY: Final = 0.9
"""The best of them, so that not every further pair makes a selection necessary."""
MOST_OF_A_TOOL: Final = 200
"""Pairs of one tool: however often it is used, it cannot drive out what was learned of others."""

SECONDS_A_DAY: Final = 86_400.0

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A query for which a tool was used."""

    key: bytes
    """SHA-256 of the query."""
    tool: ToolKey
    query: str | None
    """None where queries are not stored."""
    vector: Vector
    model_id: str
    """Whose vector it is."""
    confidence: float
    """When it was last used; see `confidence_at`."""
    uses: int
    first: float
    """Seconds since 1970, as is `last`."""
    last: float

    def confidence_at(self, now: float) -> float:
        """The confidence that is left of it."""
        return decayed(self.confidence, (now - self.last) / SECONDS_A_DAY)


def key_of(query: str) -> bytes:
    """What a query is known by where its text is not kept; case, spaces and punctuation do not matter."""
    words = " ".join(_WORD.findall(query.lower())) or query
    return hashlib.sha256(words.encode("utf-8", "replace")).digest()


def decayed(confidence: float, days: float) -> float:
    """What is left of a confidence after some days."""
    return float(confidence * DECAY_PER_DAY ** max(days, 0.0))


def first_confidence(signal: Signal) -> float:
    """Of a new pair."""
    return FIRST * WEIGHTS[signal] / STRONGEST


def moved(confidence: float, signal: Signal) -> float:
    """A confidence after one more signal; never below zero, where nothing is added to a search."""
    target = WEIGHTS[signal] / STRONGEST
    rate = RATE_AGAINST if target < 0 else RATE
    return max(confidence + rate * (target - confidence), 0.0)


def used_again(pair: Pair, signal: Signal, now: float) -> Pair:
    """A pair after another use."""
    return replace(
        pair, confidence=moved(pair.confidence_at(now), signal), uses=pair.uses + 1, last=max(now, pair.last)
    )


def passed_over(pair: Pair, now: float) -> Pair:
    """A pair after its tool was shown while another one was used; that is no use, so it ages on."""
    # The average is moved as it is now, and told as of the last use.
    left = moved(pair.confidence_at(now), Signal.PASSED_OVER)
    days = min((now - pair.last) / SECONDS_A_DAY, FORGET_AFTER_DAYS)
    return replace(pair, confidence=left / decayed(1.0, days))


def pruned(pairs: Iterable[Pair], now: float) -> list[Pair]:
    """Those worth keeping, in their order."""
    oldest = now - FORGET_AFTER_DAYS * SECONDS_A_DAY
    alive = [pair for pair in pairs if pair.last >= oldest and pair.confidence_at(now) >= FORGET_BELOW]
    best_first = sorted(alive, key=lambda pair: (-pair.confidence_at(now), -pair.last))
    kept: set[int] = set()
    of_tool: dict[ToolKey, int] = {}
    for pair in best_first:
        count = of_tool[pair.tool] = of_tool.get(pair.tool, 0) + 1
        if count <= MOST_OF_A_TOOL:
            kept.add(id(pair))
    if len(kept) > MOST_PAIRS:
        most = int(MOST_PAIRS * KEPT_OF_TOO_MANY)
        kept = {id(pair) for pair in [pair for pair in best_first if id(pair) in kept][:most]}
    return [pair for pair in alive if id(pair) in kept]
