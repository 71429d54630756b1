"""Cuts long text where a reader would: into an excerpt, into pages, and into the places that match a pattern.

Text is UTF-8. A cut is at the end of a paragraph or a line, else after an element of JSON or a word, and
never inside a character. All of it takes time in proportion to the text, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from mcp_context_proxy.protocol.envelope import PIECE_BYTES

_PARAGRAPH: Final = b"\n\n"
_BREAKS: Final = (b"\n", b"},", b"],", b">", b", ", b",", b" ")
"""Ends of a line, an element of JSON or markup, and a word; the first that is found near the end counts."""

TAIL: Final = 3
"""Of an excerpt one part in so many is the end of the text, because logs and traces end with what matters."""

PLACES: Final = 1_000
"""Places that match a pattern, of which a search tells; a longer pattern finds fewer."""

PATTERN_CHARACTERS: Final = 200
"""Longest pattern: a line that somebody looks for."""

CONTEXT_LINES: Final = 2
"""Lines before and after a match that are shown with it."""

LINE_CHARACTERS: Final = 300
"""Longest line that is shown whole; of a longer one, what surrounds the match."""


def cut(text: bytes, start: int, most: int) -> int:
    """Return where a piece of at most `most` bytes that begins at `start` ends best."""
    end = start + most
    if end >= len(text):
        return len(text)
    at = text.rfind(_PARAGRAPH, end - most // 4, end)
    if at >= 0:
        return at + len(_PARAGRAPH)
    for mark in _BREAKS:
        at = text.rfind(mark, end - most // 2, end)
        if at >= 0:
            return at + len(mark)
    return _character_start(text, end)


def _character_start(text: bytes, at: int) -> int:
    """Return the start of the character at a position."""
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


def line_count(text: bytes, start: int = 0, end: int | None = None) -> int:
    """Return the number of lines in a part of a text; the last needs no line end."""
    end = len(text) if end is None else end
    return text.count(b"\n", start, end) + (end > start and text[end - 1 : end] != b"\n")


def excerpt(text: bytes, most: int) -> bytes:
    """Return the beginning and the end of a text, in about `most` bytes, and the size of the rest."""
    if len(text) <= most:
        return text
    tail = most // TAIL
    head_end = cut(text, 0, most - tail)
    start = _character_start(text, len(text) - tail)
    at = text.find(b"\n", start, start + tail // 2)
    tail_start = at + 1 if at >= 0 else start
    lines, size = line_count(text, head_end, tail_start), tail_start - head_end
    left_out = f"[... {lines:,} lines, {size:,} bytes left out here ...]"
    return text[:head_end].rstrip(b"\n") + f"\n{left_out}\n".encode() + text[tail_start:]


class TextPage(Struct, frozen=True):
    """One page of a text: its bytes, and its place among the others."""

    text: bytes
    number: int
    """From 1."""
    pages: int
    first_line: int
    """Number of the line on which the page begins, from 1."""
    last_line: int


def page(text: bytes, number: int, most: int) -> TextPage | None:
    """Return a page of at most `most` bytes; None if there are fewer pages. All pages joined are the text."""
    found = None
    pages = lines = 0
    for start, end in _pages(text, most):
        pages += 1
        ends = text.count(b"\n", start, end)
        if pages == number:
            last = lines + ends + (text[end - 1 : end] != b"\n")
            found = (start, end, lines + 1, max(last, lines + 1))
        lines += ends
    if found is None:
        return None
    start, end, first_line, last_line = found
    return TextPage(text[start:end], number, pages, first_line, last_line)


def _pages(text: bytes, most: int) -> Iterator[tuple[int, int]]:
    start = 0
    while True:
        end = cut(text, start, most)
        yield start, end
        if end >= len(text):
            return
        start = end


class Search(Struct, frozen=True):
    """Places in a text that match a pattern, as lines with their numbers."""

    shown: bytes
    """Matching lines as ``12: text``, those around them as ``13- text``, groups divided by ``--``."""
    places: int
    more: bool
    """True if there are further places, which were not looked for."""


def search(text: bytes, pattern: str) -> Search:
    """Find a pattern in the lines of a text, in capital or small letters.

    A ``*`` in it stands for anything within a line. No text and no pattern can make it slow: what was found
    of a pattern is never looked for again.
    """
    lines = _Lines(text.decode())
    parts = [part for part in _lowered(pattern).split("*") if part]
    shown: list[str] = []
    places, told = 0, 0
    """The number of the last line that is shown; 0 before the first."""
    for begin, end in lines.matches(parts):
        if places == PLACES:
            return Search("\n".join(shown).encode(), places, more=True)
        places += 1
        number, (start, stop) = lines.number(begin), lines.bounds(begin)
        if stop - start > LINE_CHARACTERS:
            if shown and told < number:
                shown.append("--")
            shown.append(lines.around(number, start, stop, begin, end))
            told = number
            continue
        group = [*lines.before(start, number, told), (number, start, stop, True), *lines.after(stop, number)]
        if told and group[0][0] > told + 1:
            shown.append("--")
        for at, first, last, matches in group:
            if at > told:
                shown.append(f"{at}{':' if matches else '-'} {lines.text[first:last][:LINE_CHARACTERS]}")
            elif matches:
                lines.mark(shown, at)
            told = max(told, at)
    return Search("\n".join(shown).encode(), places, more=False)


class _Lines:
    """A decoded text whose lines are numbered from the start as they are asked for."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lowered = _lowered(text)
        self._at, self._number = 0, 1
        self._line = (0, -1)
        """Start and end of the line looked at last: the ends of a long one are searched for once."""

    def matches(self, parts: list[str]) -> Iterator[tuple[int, int]]:
        """Yield start and end of each match: in a long line each place once, else each line once."""
        at, is_in = 0, _in_one_line(parts)
        while parts and (begin := self._lowered.find(parts[0], at)) >= 0:
            start, stop = self.bounds(begin)
            end = begin + len(parts[0])
            for part in parts[1:]:
                found = self._lowered.find(part, end, stop)
                end = found + len(part) if found >= 0 else -1
                if end < 0:
                    break
            if end < 0:
                # What is not in the rest of the line is not in any shorter rest of it either.
                at = self._line_with(is_in, stop + 1)
                continue
            yield begin, end
            at = stop + 1 if stop - start <= LINE_CHARACTERS else max(end, begin + LINE_CHARACTERS // 2)

    def _line_with(self, is_in: re.Pattern[str], at: int) -> int:
        """Return the start of the next line that has a match or is long; millions may have none."""
        text = self._lowered
        while at < len(text):
            end = text.rfind("\n", at, at + PIECE_BYTES) if at + PIECE_BYTES < len(text) else len(text)
            if end < 0:
                return at
            if found := is_in.search(text, at, end):
                return found.start()
            at = end + 1
        return at

    def number(self, at: int) -> int:
        """Return the number of the line at a position, which never goes back."""
        self._number += self.text.count("\n", self._at, at)
        self._at = at
        return self._number

    def bounds(self, at: int) -> tuple[int, int]:
        """Return start and end of the line at a position, which never goes back by more than a line."""
        start, stop = self._line
        if not start <= at <= stop:
            start = self.text.rfind("\n", max(0, stop), at) + 1
            stop = self.text.find("\n", at)
            self._line = start, len(self.text) if stop < 0 else stop
        return self._line

    def around(self, number: int, start: int, stop: int, begin: int, end: int) -> str:
        """Return a match in a long line with the text around it, and its position in the line."""
        room = LINE_CHARACTERS // 2
        first, last = max(start, begin - room), min(stop, max(end, begin) + room)
        before, after = "..." if first > start else "", "..." if last < stop else ""
        last = min(last, first + 2 * LINE_CHARACTERS)
        return f"{number}: (at {begin - start:,}) {before}{self.text[first:last]}{after}"

    def before(self, start: int, number: int, told: int) -> list[tuple[int, int, int, bool]]:
        """Return the lines before one that were not told yet."""
        lines: list[tuple[int, int, int, bool]] = []
        while start > 0 and len(lines) < CONTEXT_LINES and number - 1 > told:
            stop, number = start - 1, number - 1
            # Only as far as a line is shown: a longer one is cut at its end, where the match is near.
            start = self.text.rfind("\n", max(0, stop - LINE_CHARACTERS), stop) + 1
            start = start or max(0, stop - LINE_CHARACTERS)
            lines.append((number, start, stop, False))
            if start > 0 and self.text[start - 1] != "\n":
                break
        return lines[::-1]

    def after(self, stop: int, number: int) -> list[tuple[int, int, int, bool]]:
        """Return the lines after one."""
        lines: list[tuple[int, int, int, bool]] = []
        while stop < len(self.text) and len(lines) < CONTEXT_LINES:
            start, number = stop + 1, number + 1
            if start >= len(self.text):
                break
            found = self.text.find("\n", start, start + LINE_CHARACTERS)
            stop = found if found >= 0 else min(len(self.text), start + LINE_CHARACTERS)
            lines.append((number, start, stop, False))
            if found < 0:
                break
        return lines

    @staticmethod
    def mark(shown: list[str], number: int) -> None:
        """Mark a line that was shown as surrounding another match as one that matches itself."""
        prefix = f"{number}- "
        for at in range(len(shown) - 1, max(-1, len(shown) - 2 * CONTEXT_LINES - 2), -1):
            if shown[at].startswith(prefix):
                shown[at] = f"{number}: {shown[at][len(prefix) :]}"


def _in_one_line(parts: list[str]) -> re.Pattern[str]:
    """Return an expression for a line that has all parts, one after the other. It takes nothing back."""
    return re.compile("(?m)^" + "".join(f"(?>[^\n]*?{re.escape(part)})" for part in parts))


def _lowered(text: str) -> str:
    """Return a text in small letters, in pieces, and with every character in its place."""
    pieces = []
    for start in range(0, len(text), PIECE_BYTES):
        piece = text[start : start + PIECE_BYTES]
        lowered = piece.lower()
        pieces.append(lowered if len(lowered) == len(piece) else piece)
    return "".join(pieces)
