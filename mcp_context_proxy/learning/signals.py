"""What a call says about the query it was made for, and how much that weighs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


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
