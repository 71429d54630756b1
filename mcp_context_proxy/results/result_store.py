"""Keeps shortened results whole, within bounds and for a while, for those who were given them to read parts.

Results that do not fit in memory are in files without a name: the system deletes them with the process,
however it ends, so that nothing of a result outlives the proxy. A result belongs to the session that had it,
or in the modern era to the principal; nobody else learns that it exists.
"""

from __future__ import annotations

import errno
import secrets
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct, field

from mcp_context_proxy.results import json_values
from mcp_context_proxy.results.json_values import PathError
from mcp_context_proxy.results.texts import PATTERN_CHARACTERS, line_count, page, search
from mcp_context_proxy.system.process import make_private_folder
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust.principals import ACTING

RESULTS_KEPT: Final = 64
"""Results that are kept for all sessions together; each may take a file descriptor."""

RESULTS_KEPT_PER_SESSION: Final = 32
"""Results that are kept for one session: more than a model returns to."""

RESULTS_KEPT_BYTES: Final = 256 * 1024 * 1024
"""Size of all kept results."""

RESULTS_KEPT_SESSION_BYTES: Final = 64 * 1024 * 1024
"""Size of those of one session: four of the largest messages."""

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
        """Read the file. Blocks."""
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

        Raises:
            OSError: there is no room for it.
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
        if self._folder is not None and in_memory + size > RESULTS_MEMORY_BYTES:
            entry.file = await in_thread(_written, self._folder, kept.text)
            entry.text = None
        self.by_id[result_id] = entry

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


def _written(folder: Path, text: bytes) -> BinaryIO:
    """Return a new file without a name, readable only by this user, that has the text. Blocks."""
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
            rule = "* stands for anything in a line, and nothing else is special"
            raise ReadError(f"nothing matches {pattern!r} in {line_count(found):,} lines; {rule}")
        found = result.shown
        places = "1 place matches" if result.places == 1 else f"{result.places:,} places match"
        # Each line has its own number, and those of the page would be others.
        said = f"{'over ' if result.more else ''}{places}"
    one = page(found, number, most - NOTE_BYTES)
    if one is None:
        last = page(found, 1, most - NOTE_BYTES)
        raise ReadError(f"there is no page {number:,}; the last one is {last.pages if last else 1:,}")
    total = line_count(found)
    if one.pages == 1:
        return ReadPage(
            one.text, f"[{said or ('1 line' if total == 1 else f'{total:,} lines')}; this is all]"
        )
    lines = said or f"lines {one.first_line:,} to {one.last_line:,} of {total:,}"
    following = f". The next is page={number + 1}" if number < one.pages else ". It is the last"
    return ReadPage(one.text, f"[page {number:,} of {one.pages:,}, {lines}{following}]")


def _projected(whole: bytes, path: str) -> bytes:
    value = json_values.parsed(whole)
    if value is None:
        raise ReadError("this result is no JSON, so there is no path in it; read it by page or pattern")
    try:
        return json_values.project(value, path)
    except PathError as error:
        raise ReadError(f"path: {error}") from None
