"""What order the answer of a model says. Pure, and defensive: whatever it says, each candidate stays, once.

Numbers are taken from lines that hold nothing else. Prose has numbers too, and they mean something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_THOUGHTS: Final = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
"""What models that think aloud say before they answer; cut off, it is no answer."""

_NUMBERS: Final = re.compile(
    r"(?:\D{0,40}:)?[\s*_`#\[(]*(?P<numbers>\d{1,4}(?:[\s,;>#]+\d{1,4})*)[\s*_`.\])]*"
)
"""A line of numbers, in brackets or not, perhaps after a label such as ``Ranking:``. There are few ways to
match it, so that no answer takes long to be refused."""

ANSWER_CHARACTERS: Final = 4_000
"""Of an answer that are read, its end: a few numbers were asked for."""

LINE_CHARACTERS: Final = 200
"""A longer line is prose."""


def numbers_in(answer: str) -> list[int]:
    """The numbers an answer gives as its order; empty where it gives none."""
    said = _THOUGHTS.sub("", answer)[-ANSWER_CHARACTERS:]
    lines = [line.strip() for line in said.splitlines() if line.strip("`\t ")]
    lists = [_numbers(line) for line in lines]
    if lists and all(lists):
        return [number for numbers in lists for number in numbers]
    # Among prose one number alone may count something; the last list is the conclusion.
    return next((numbers for numbers in reversed(lists) if len(numbers) > 1), [])


def completed(positions: Sequence[int], count: int) -> list[int]:
    """An order of ``count`` candidates: those named first, once each, then the others as they were."""
    named = [position for position in dict.fromkeys(positions) if 0 <= position < count]
    return [*named, *(position for position in range(count) if position not in named)]


def _numbers(line: str) -> list[int]:
    found = _NUMBERS.fullmatch(line) if len(line) <= LINE_CHARACTERS else None
    return [int(number) for number in re.findall(r"\d+", found["numbers"])] if found else []
