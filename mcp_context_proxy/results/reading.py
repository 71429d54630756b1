"""Reads parts of a kept result: a page of it, what a JSON path leads to, or what matches a pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mcp_context_proxy.results import json_values
from mcp_context_proxy.results.json_values import PathError
from mcp_context_proxy.results.texts import PATTERN_CHARACTERS, line_count, page, search

PAGE_BYTES: Final = 20_000
"""Largest page: some 5,000 tokens, so that a few fit beside everything else that a model reads."""

NOTE_BYTES: Final = 400
"""Room for the note under a page."""


class ReadError(Exception):
    """A part that does not exist; the text tells a model what does."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A page of what was asked for."""

    text: bytes
    """Exactly the bytes of the result, or of what was found in it."""
    note: str
    """Place of the page, and how to read on, in the words of the proxy."""


def read(whole: bytes, number: int, path: str | None, pattern: str | None, most: int = PAGE_BYTES) -> Reading:
    """Return one page of a result, of the part that a path leads to, or of the lines that match a pattern.

    With both a path and a pattern, the part is searched. A page and its note have at most `most` bytes.
    Blocks.

    Raises:
        ReadError: there is no such part.
    """
    found, said = whole, ""
    if path is not None and path.strip():
        found = _projected(whole, path)
    if pattern is not None and pattern.strip("* "):
        if len(pattern) > PATTERN_CHARACTERS:
            raise ReadError(f"a pattern has at most {PATTERN_CHARACTERS} characters")
        result = search(found, pattern)
        if not result.places:
            text = (
                f"nothing matches {pattern!r} in {line_count(found):,} lines; * stands for anything in a line"
            )
            raise ReadError(text)
        found = result.shown
        places = "1 place matches" if result.places == 1 else f"{result.places:,} places match"
        said = f"{'over ' if result.more else ''}{places}; "
    one = page(found, number, most - NOTE_BYTES)
    if one is None:
        last = page(found, 1, most - NOTE_BYTES)
        raise ReadError(f"there is no page {number:,}; the last one is {last.pages if last else 1:,}")
    lines = f"lines {one.first_line:,} to {one.last_line:,} of {line_count(found):,}"
    following = f". The next is page={number + 1}" if number < one.pages else ". It is the last"
    return Reading(one.text, f"[{said}page {number:,} of {one.pages:,}, {lines}{following}]")


def _projected(whole: bytes, path: str) -> bytes:
    value = json_values.parsed(whole)
    if value is None:
        raise ReadError("this result is no JSON, so there is no path in it; read it by page or pattern")
    try:
        return json_values.project(value, path)
    except PathError as error:
        raise ReadError(f"path: {error}") from None
