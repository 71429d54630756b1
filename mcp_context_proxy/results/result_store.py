"""Keeps shortened results whole, within bounds and for a while, for those who were given them to read parts.

Results that do not fit in memory are in files without a name: the system deletes them with the process,
however it ends, so that nothing of a result outlives the proxy. A result belongs to the session that had it,
or in the modern era to the principal; nobody else learns that it exists.

A part of a text, which is UTF-8, is a page of it, or the places that match a pattern. Both take time in
proportion to the text, whatever the text is.
"""

from __future__ import annotations

import errno
import re
import secrets
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice, permutations
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Raw, Struct, field

from mcp_context_proxy.protocol.envelope import PIECE_BYTES
from mcp_context_proxy.results import json_values
from mcp_context_proxy.results.json_values import PathError, cut
from mcp_context_proxy.system import make_private_folder
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import ACTING

PLACES: Final = 1_000
"""Places that match a pattern, which a search shows; a longer pattern finds fewer."""

COUNTED: Final = 100_000
"""Places up to which it counts them: a tenth of a second."""

PATTERN_CHARACTERS: Final = 200
"""Longest pattern: a line that somebody looks for."""

OTHERS: Final = 9
"""Alternatives beside the first one of a pattern; the text is gone through for each."""

ORDERED_WORDS: Final = 3
"""Words of a pattern that are looked for in any order; the text is gone through for each order."""

COMPARED_CHARACTERS: Final = 16
"""Beginning of a part of a pattern by which lines without it are passed over."""

CONTEXT_LINES: Final = 2
"""Lines before and after a match that are shown with it."""

SURROUNDED: Final = 10
"""Places up to which they are shown: of many, such as the errors of a log, the matches are what is wanted."""

LINE_CHARACTERS: Final = 300
"""Longest line that is shown whole; of a longer one, what surrounds the match."""


def line_count(text: bytes, start: int = 0, end: int | None = None) -> int:
    """Return the number of lines in a part of a text; the last needs no line end."""
    end = len(text) if end is None else end
    return text.count(b"\n", start, end) + (end > start and text[end - 1 : end] != b"\n")


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
    """Matching lines as ``12: text``, and of few those around as ``13- text``, groups divided by ``--``."""
    places: int
    """Number of the places, shown or not, up to `COUNTED`."""


def search(text: bytes, patterns: Sequence[str], surrounded: int = SURROUNDED) -> Search:
    """Find patterns in the lines of a text, in capital or small letters.

    A ``*`` in one stands for anything within a line. Up to ``surrounded`` places are shown with the lines
    around them. No text and no pattern can make it slow: what was found of a pattern is never looked for
    again.
    """
    decoded, places = text.decode(), 0
    shown: dict[int, list[str]] = {}
    """Lines by number: those of matches, and those around them; a long one once for each place in it."""
    whole, matched = set[int](), set[int]()
    found = (
        (lines, *match)
        for lines, pattern in ((_Lines(decoded), pattern) for pattern in patterns)
        for match in lines.matches([part for part in _lowered(pattern).split("*") if part])
    )
    for lines, begin, end in found:
        if places == COUNTED:
            break
        number, (start, stop) = lines.number(begin), lines.bounds(begin)
        if number in whole:
            continue
        places += 1
        is_whole = stop - start <= LINE_CHARACTERS
        if is_whole:
            whole.add(number)
        if places > PLACES:
            continue
        if is_whole:
            for at, line in (*lines.before(start, number), *lines.after(stop, number)):
                shown.setdefault(at, [f"{at}- {line}"])
            shown[number] = [f"{number}: {lines.text[start:stop]}"]
        else:
            before = shown[number] if number in matched else []
            shown[number] = [*before, lines.around(number, start, stop, begin, end)]
        matched.add(number)
    told = list[str]()
    alone = places > surrounded
    for number in sorted(matched if alone else shown):
        told += ["--"] if told and not alone and number - 1 not in shown else []
        told += shown[number]
    return Search("\n".join(told).encode(), places)


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
        at = 0
        # A line that has all parts, one after the other. The expression takes nothing back, and compares few
        # characters with each place of the text: they may be the same again and again.
        begun = (re.escape(part[:COMPARED_CHARACTERS]) for part in parts)
        is_in = re.compile("(?m)^" + "".join(f"(?>[^\n]*?{part})" for part in begun))
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
                if (elsewhere := self._lowered.find(part, stop)) < 0:
                    return
                at = self._line_with(is_in, self._lowered.rfind("\n", stop, elsewhere) + 1)
                continue
            yield begin, end
            at = stop + 1
            if stop - start > LINE_CHARACTERS:
                at = min(at, max(end, begin + LINE_CHARACTERS // 2))

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

    def before(self, start: int, number: int) -> Iterator[tuple[int, str]]:
        """Yield the lines before one, the nearest first."""
        for back in range(1, CONTEXT_LINES + 1):
            if not start:
                return
            # Only as far as a line is shown: a longer one is cut at its end, where the match is near.
            stop, least = start - 1, max(0, start - 1 - LINE_CHARACTERS)
            start = self.text.rfind("\n", least, stop) + 1 or least
            yield number - back, self.text[start:stop]
            if start and self.text[start - 1] != "\n":
                return

    def after(self, stop: int, number: int) -> Iterator[tuple[int, str]]:
        for on in range(1, CONTEXT_LINES + 1):
            start = stop + 1
            if start >= len(self.text):
                return
            found = self.text.find("\n", start, start + LINE_CHARACTERS)
            stop = found if found >= 0 else start + LINE_CHARACTERS
            yield number + on, self.text[start:stop]
            if found < 0:
                return


def _patterns(text: str) -> list[str]:
    """Return the patterns that a regular expression comes near to, since models write them all the same."""
    return [_ESCAPED.sub(r"\1", _ANYTHING.sub("*", _NOTHING.sub("", one))) for one in text.split("|", OTHERS)]


def _in_any_order(text: str) -> list[str]:
    """Return the patterns by which the words of one are found wherever they stand in a line."""
    words = text.replace("*", " ").split()
    return ["*".join(order) for order in permutations(words)] if len(words) <= ORDERED_WORDS else []


_NOTHING: Final = re.compile(r"^(?:\((?:\?[a-z]*[:)])?)*\^?|\\b|(?<!\\)[$)]+$")
_ANYTHING: Final = re.compile(r"(?:\.|\\[dsw])[*+]\??|\\[dsw]")
_ESCAPED: Final = re.compile(r"\\(.)")


def _lowered(text: str) -> str:
    """Return a text in small letters, in pieces, and with every character in its place."""
    pieces = []
    for start in range(0, len(text), PIECE_BYTES):
        piece = text[start : start + PIECE_BYTES]
        lowered = piece.lower()
        pieces.append(lowered if len(lowered) == len(piece) else piece)
    return "".join(pieces)


RESULTS_KEPT: Final = 256
"""Results that are kept for all sessions together, one at least for each of a team; each may take a file
descriptor."""

RESULTS_KEPT_PER_SESSION: Final = 32
"""Results that are kept for one session: more than a model returns to."""

RESULTS_KEPT_BYTES: Final = 256 * 1024 * 1024
"""Size of all kept results."""

RESULTS_KEPT_SESSION_BYTES: Final = 64 * 1024 * 1024
"""Size of those of one session: four of the largest messages."""

TOLD: Final = 5
"""Results whose ids are told instead of one that is not known."""

RESULTS_MEMORY_BYTES: Final = 16 * 1024 * 1024
"""Size of those in memory; without a data folder all are."""

ID_BYTES: Final = 16
"""Random bytes of an id: where callers have no sessions and no names, nothing else identifies the owner."""


def new_id() -> str:
    return secrets.token_urlsafe(ID_BYTES)


class KeptText(Struct, frozen=True):
    """The whole text of a result."""

    text: bytes
    server: str
    """Server whose tool it came from."""


class _KeptResult(Struct, eq=False):
    owner: str
    person: str | None
    server: str
    size: int
    text: bytes | None
    """The text; None if it is in the file."""
    file: BinaryIO | None
    touched: float
    readers: int = 0
    """Threads that read the file; it is closed once there are none."""
    dropped: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that reads."""

    def read(self) -> bytes:
        assert self.file is not None
        with self.turn:
            self.file.seek(0)
            return self.file.read()

    def close_if_unused(self) -> None:
        """Delete the file once nobody reads it any more and it has been forgotten."""
        if self.file is not None and self.dropped and not self.readers:
            self.file.close()


class KeptResults:
    """Kept results by id. Only the event loop may use it."""

    def __init__(
        self, folder: Path | None, idle_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Keep results; those that do not fit in memory in `folder`, if there is one.

        The results of a session that uses none of them for `idle_seconds` are forgotten.
        """
        self._folder, self._idle_seconds, self._clock = folder, idle_seconds, clock
        self.by_id: OrderedDict[str, _KeptResult] = OrderedDict()
        self.prefix = ""
        """Beginning of each id: the replica that keeps the result, where there are several."""
        self.listed_for_all = False
        """True where all clients without a session are told of `read_result`: of several replicas, the one
        that lists it need not be the one that keeps something."""
        self.left: Callable[[str, str], Awaitable[KeptText | None]] | None = None
        """Returns what a replica that has ended has left of an owner under an id, where there are several."""

    def new_id(self) -> str:
        return self.prefix + new_id()

    def is_elsewhere(self, result_id: str) -> bool:
        """Return whether an id is one that another replica has made."""
        return bool(self.prefix) and "." in result_id and not result_id.startswith(self.prefix)

    def owns(self, owner: str) -> bool:
        return any(entry.owner == owner for entry in self.by_id.values())

    async def put(self, owner: str, result_id: str, kept: KeptText) -> None:
        """Keep a text under an id; the oldest are forgotten where there are too many.

        Raises `OSError` if there is no room for it.
        """
        self._forget_idle()
        size = len(kept.text)
        whole = RESULTS_MEMORY_BYTES if self._folder is None else RESULTS_KEPT_BYTES
        if size > min(whole, RESULTS_KEPT_SESSION_BYTES):
            raise OSError(errno.EFBIG, "the result is larger than what is kept for a session")
        self._make_room(size, RESULTS_KEPT_PER_SESSION, RESULTS_KEPT_SESSION_BYTES, owner)
        self._make_room_for_all(size, whole)
        in_memory = sum(entry.size for entry in self.by_id.values() if entry.file is None)
        person = ACTING.get().person
        entry = _KeptResult(owner, person, kept.server, size, kept.text, None, self._clock())
        # It has its place before it is written: of many that come at once, none is kept beyond the bounds.
        self.by_id[result_id] = entry
        if self._folder is not None and in_memory + size > RESULTS_MEMORY_BYTES:
            try:
                entry.file = await in_thread(nameless_file, self._folder, kept.text)
            except BaseException:
                if not entry.dropped:
                    self._drop(result_id)
                raise
            entry.text = None
            entry.close_if_unused()

    async def get(self, owner: str, result_id: str) -> KeptText | None:
        """Return a kept text; None if there is none with this id, or not for this owner."""
        self._forget_idle()
        entry = self.by_id.get(result_id)
        if entry is None and self.left is not None and "." in result_id:
            return await self.left(owner, result_id)
        if entry is None or entry.owner != owner:
            return None
        entry.touched = self._clock()
        if entry.text is not None:
            return KeptText(entry.text, entry.server)
        entry.readers += 1
        try:
            return KeptText(await in_thread(entry.read), entry.server)
        finally:
            entry.readers -= 1
            entry.close_if_unused()

    def told(self, owner: str) -> str:
        """Name the latest results of an owner, for a model that no longer knows their ids."""
        own = (one for one in reversed(self.by_id.items()) if one[1].owner == owner)
        return ", ".join(f"{key} ({kept.size:,} bytes of {kept.server})" for key, kept in islice(own, TOLD))

    def all(self) -> list[tuple[str, str]]:
        """Return owner and id of each, the latest first."""
        return [(entry.owner, result_id) for result_id, entry in reversed(self.by_id.items())]

    def forget(self, owner: str) -> None:
        for result_id in [each for each, entry in self.by_id.items() if entry.owner == owner]:
            self._drop(result_id)

    def close(self) -> None:
        for result_id in list(self.by_id):
            self._drop(result_id)

    def _make_room_for_all(self, size: int, most: int) -> None:
        """Forget the oldest of the person with most, so that nobody's are lost for those of another."""
        while self.by_id:
            bytes_of = Counter[str | None]()
            for entry in self.by_id.values():
                # A small one takes a place as well.
                bytes_of[entry.person] += entry.size + most // RESULTS_KEPT
            if len(self.by_id) < RESULTS_KEPT and sum(e.size for e in self.by_id.values()) + size <= most:
                return
            ((person, _),) = bytes_of.most_common(1)
            self._drop(next(each for each, entry in self.by_id.items() if entry.person == person))

    def _make_room(self, size: int, number: int, most: int, owner: str) -> None:
        mine = {result_id: entry.size for result_id, entry in self.by_id.items() if entry.owner == owner}
        total, left = sum(mine.values()), len(mine)
        for result_id, freed in mine.items():
            if left < number and total + size <= most:
                return
            self._drop(result_id)
            total, left = total - freed, left - 1

    def _forget_idle(self) -> None:
        since = self._clock() - self._idle_seconds
        latest: dict[str, float] = {}
        for entry in self.by_id.values():
            latest[entry.owner] = max(entry.touched, latest.get(entry.owner, entry.touched))
        for owner, touched in latest.items():
            if touched < since:
                self.forget(owner)

    def _drop(self, result_id: str) -> None:
        entry = self.by_id.pop(result_id)
        entry.dropped = True
        entry.close_if_unused()


def nameless_file(folder: Path | None, text: bytes) -> BinaryIO:
    """Return a new file without a name, readable only by this user, that has the text. Blocks.

    Without a folder, it is in that for temporary files.
    """
    if folder is not None:
        make_private_folder(folder)
    file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open as long as it is kept
    try:
        view = memoryview(text)
        while view:
            view = view[file.write(view) :]
    except OSError:
        file.close()
        raise
    return file


PAGE_BYTES: Final = 20_000
"""Largest page: some 5,000 tokens, so that a few fit beside everything else that a model reads."""

NOTE_BYTES: Final = 400
"""Room for the note under a page."""


class ReadError(Exception):
    """A part that does not exist; the text names to a model those that do."""


class ReadPage(Struct, frozen=True):
    """A page of the requested part."""

    text: bytes
    """Exactly the bytes of the result, or of what was found in it."""
    note: str
    """Place of the page, and how to read on, in the words of the proxy."""


def read(
    whole: bytes, number: int, path: str | None, pattern: str | None, most: int = PAGE_BYTES
) -> ReadPage:
    """Return one page of a result, of the part that a path leads to, or of the lines that match a pattern.

    With both a path and a pattern, the part is searched. A page and its note have at most `most` bytes.
    Blocks. Raises `ReadError` if there is no such part.
    """
    found, said, surrounded = whole, "", SURROUNDED
    if path is not None and path.strip():
        found, values = _projected(whole, path)
        said, surrounded = json_values.summed(values), 0 if len(values) > 1 else SURROUNDED
    if pattern is not None and pattern.strip("* "):
        if len(pattern) > PATTERN_CHARACTERS:
            raise ReadError(f"a pattern has at most {PATTERN_CHARACTERS} characters")
        tried = ([pattern], _patterns(pattern), _in_any_order(pattern))
        results = (search(found, patterns, surrounded) for patterns in tried)
        result = next((each for each in results if each.places), None)
        if result is None:
            rule = "* stands for anything in a line, | for or, and nothing else is special"
            raise ReadError(f"nothing matches {pattern!r} in {_lines_of(line_count(found))}; {rule}")
        found = result.shown
        places = "1 place matches" if result.places == 1 else f"{result.places:,} places match"
        alone = ", shown without the text around them" if result.places > SURROUNDED else ""
        alone = f", of which the first {PLACES:,} are shown" if result.places > PLACES else alone
        # Each line has its own number, and those of the page would be others.
        said = f"{'at least ' if result.places == COUNTED else ''}{places}{alone}"
    one = page(found, number, most - NOTE_BYTES)
    if one is None:
        last = page(found, 1, most - NOTE_BYTES)
        raise ReadError(f"there is no page {number:,}; the last one is {last.pages if last else 1:,}")
    total = line_count(found)
    if one.pages == 1:
        return ReadPage(one.text, f"[{said or _lines_of(total)}; this is all]")
    lines = said or f"lines {one.first_line:,} to {one.last_line:,} of {total:,}"
    following = f". The next is page={number + 1}" if number < one.pages else ". It is the last"
    return ReadPage(one.text, f"[page {number:,} of {one.pages:,}, {lines}{following}]")


def _lines_of(number: int) -> str:
    return "1 line" if number == 1 else f"{number:,} lines"


def _projected(whole: bytes, path: str) -> tuple[bytes, list[Raw]]:
    value = json_values.parsed(whole) or json_values.parsed_rows(whole)
    if value is None:
        raise ReadError(
            "this result is no JSON or table, so there is no path in it; read it by page or pattern"
        )
    try:
        return json_values.project(value, path)
    except PathError as error:
        raise ReadError(f"path: {error}") from None
