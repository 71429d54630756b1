"""The audit file: lines of JSON in the state folder, which several proxies append to and which is rotated.

Each batch of lines is one write at the end of the file, so that the lines of several proxies do not mix. A
file that has grown to its largest size is renamed, under a lock, and a new one begun. A proxy that is killed,
or a full disk, may leave half of a line: the next batch begins on a line of its own, and readers skip it.

The oldest file of the audit is never deleted: the file that comes to its place is merged with it. What is
too much is taken from whoever has most, and of that from the tool and the day that has most, so that nobody
pushes out the entries of others, or their own of another tool or day, by many calls. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import stat
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from mcp_context_proxy.system import lock_file, make_private, make_private_folder, write_private
from mcp_context_proxy.system.process import date_of, open_regular, read_own
from mcp_context_proxy.trust import person_in

NAME: Final = "audit"

KEY_BYTES: Final = 32
"""Bytes of the key of hashes: nobody finds it by trying."""

READ_BYTES: Final = 1024 * 1024
"""Bytes that are read at a time."""

LINE_BYTES: Final = 64 * 1024
"""Longest line that a reader takes; no proxy writes a tenth of it."""

READ_OF_FILE: Final = 256 * 1024 * 1024
"""Bytes at the end of a file that are read, where its largest size is less than half of that."""

MERGED_BYTES: Final = 4_000_000
"""Largest size of the oldest file of the audit; up to twice of it is in memory while it is merged."""

MERGED_LINES: Final = 4_000
"""Lines that are merged at a time."""

COUNTED_BYTES: Final = 1_000
"""Bytes of the oldest file for each principal whose dropped entries are counted for themselves."""

_WRITE: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)


class AuditFile:
    """The audit file of a state folder, with the older ones beside it."""

    def __init__(
        self, folder: Path, max_bytes: int, files: int, *, name: str = NAME, fair: bool = False
    ) -> None:
        """Name the files; nothing is read or written. `files` of up to `max_bytes` each are kept.

        Kept logs are files of the same form with another `name`. With `fair`, the oldest is merged with the
        next one and not deleted, which takes two files at least.
        """
        self.folder, self._max_bytes, self._name, self._fair = folder, max_bytes, name, fair
        self._files = max(files, 2) if fair else files
        self.path = self._numbered(0)

    def _numbered(self, number: int) -> Path:
        """Return the path of the current file, or of the one that was it so many rotations ago."""
        return self.folder / (f"{self._name}.{number}.jsonl" if number else f"{self._name}.jsonl")

    def append(self, lines: Sequence[bytes]) -> int:
        """Append lines, each without its end; return how many of them were written whole.

        That may be fewer than were given, one at least; the others are to be given again, and so is a line
        that was torn. Raises `OSError` if not even the first line could be written whole.
        """
        length, taken = 0, list[bytes]()
        for line in lines:
            length += len(line) + 1
            if taken and length > self._max_bytes:
                break
            taken.append(line + b"\n")
        block = b"".join(taken)
        with os.fdopen(self._open(), "r+b", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not status.st_size or status.st_size + len(block) <= self._max_bytes:
                return _append(file, block, status.st_size)
        self._rotate(_id(status))  # now that it is closed: Windows renames no open file
        with os.fdopen(self._open(), "r+b", buffering=0) as file:
            return _append(file, block, os.fstat(file.fileno()).st_size)

    def _open(self) -> int:
        make_private_folder(self.folder)
        descriptor = os.open(self.path, _WRITE, stat.S_IRUSR | stat.S_IWUSR)
        if sys.platform != "win32":
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(None, "it is not a regular file", str(self.path))
            os.fchmod(descriptor, stat.S_IRUSR | stat.S_IWUSR)
        return descriptor

    def _rotate(self, identity: tuple[int, int]) -> None:
        """Begin a new file after this one, unless another process does that."""
        path = self.folder / f"{self._name}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, stat.S_IRUSR | stat.S_IWUSR)
        with os.fdopen(descriptor, "r+b") as lock:
            if lock_file(lock) and self._is_current(identity):
                self._drop_oldest()  # as a killed process, or a time when more were kept, has left them
                for number in range(self._files, 0, -1):
                    with contextlib.suppress(FileNotFoundError):
                        self._numbered(number - 1).replace(self._numbered(number))
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Delete the files beyond the number that is kept; of the audit, merge them into the oldest before.

        Raises `OSError` if there is no room for the merged file; all others are still there.
        """
        number = self._files
        while self._numbered(number).exists():
            number += 1
        older = [self._numbered(each) for each in range(number - 1, self._files - 1, -1)]
        if older and self._fair:
            most = min(self._max_bytes, MERGED_BYTES)
            kept: Sequence[_Line] = ()
            for path in (*older, oldest := self._numbered(self._files - 1)):
                with contextlib.suppress(FileNotFoundError), open_regular(path) as file:
                    while lines := list(itertools.islice(_lines(file), MERGED_LINES)):
                        # A killed rotation leaves a line in two files.
                        unique = {line.text: line for line in (*kept, *lines)}
                        kept = _fair_share(list(unique.values()), most)
            write_private(oldest, b"".join(line.text for line in kept))
        for path in older:
            path.unlink(missing_ok=True)

    def _is_current(self, identity: tuple[int, int]) -> bool:
        try:
            return _id(self.path.stat()) == identity
        except FileNotFoundError:
            return False

    def fault(self) -> str | None:
        """Return why nothing can be written, in words for a person; None if something can."""
        try:
            os.close(self._open())
        except OSError as error:
            return f"{self.path} cannot be written: {error.strerror or error}"
        return None

    def key(self) -> bytes:
        """Return the key of the hashes in this folder; it is made at the first use.

        Raises `OSError` if it cannot be read or made.
        """
        path = self.folder / f"{self._name}.key"
        with contextlib.suppress(FileNotFoundError):
            return self._read_key(path)
        write_private(path, secrets.token_bytes(KEY_BYTES), new=True)
        return self._read_key(path)

    def _read_key(self, path: Path) -> bytes:
        make_private(path)
        key = read_own(path)
        if len(key) != KEY_BYTES:
            raise OSError(None, f"it does not have {KEY_BYTES} bytes; delete it for a new one", str(path))
        return key

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of the files, oldest first; a line that is torn or no entry is skipped.

        Of a file that no proxy has let grow so, only the end is read.
        """
        with contextlib.ExitStack() as stack:
            for file in reversed([stack.enter_context(file) for file in self._opened()]):
                file.seek(max(0, os.fstat(file.fileno()).st_size - max(READ_OF_FILE, 2 * self._max_bytes)))
                while line := file.readline(LINE_BYTES):
                    if line.endswith(b"\n") and (entry := _entry(line)) is not None:
                        yield entry

    def _opened(self, last: IO[bytes] | None = None) -> list[IO[bytes]]:
        """Open the files, the newest first, as far as one that is open already and still there, or all."""
        opened: dict[tuple[int, int], IO[bytes]] = {}
        known = None if last is None else _id(os.fstat(last.fileno()))
        with contextlib.ExitStack() as stack:
            # The newest first: a file that is renamed meanwhile is met a second time, and none is missed.
            for number in itertools.count():
                try:
                    file = stack.enter_context(open_regular(self._numbered(number)))
                except FileNotFoundError:
                    if number:
                        break
                    continue
                if (identity := _id(os.fstat(file.fileno()))) in opened:
                    file.close()
                    continue
                opened[identity] = file
                if identity == known:
                    break
            stack.pop_all()
        return [*opened.values()]

    def follow(self) -> Iterator[dict[str, Any] | None]:
        """Yield all entries, oldest first, and None whenever there is no further one yet; never ends."""
        files = self._opened()  # the newest first
        since, shown = -inf, -inf
        while True:
            if not files:
                yield None
                with contextlib.suppress(FileNotFoundError):
                    files.append(open_regular(self.path))
                continue
            with files.pop() as file:
                for entry in self._until_ended(file, is_newest=not files):
                    if entry is None:
                        yield None
                    elif entry["time"] > since:
                        shown = entry["time"]
                        yield entry
                since = -inf
                if not files:
                    files = self._opened(file)
                    if files and os.path.sameopenfile(files[-1].fileno(), file.fileno()):
                        files.pop().close()
                    else:
                        since = shown  # it was merged with the oldest of the others

    def _until_ended(self, file: IO[bytes], *, is_newest: bool) -> Iterator[dict[str, Any] | None]:
        """Yield the entries of a file until another one is written, and None if it has to be waited for."""
        rest = b""
        while True:
            # Looked at before the reading: no entry falls between the two.
            is_written = is_newest and self._is_current(_id(os.fstat(file.fileno())))
            *lines, rest = (rest + file.read(READ_BYTES)).split(b"\n")
            rest = rest[-LINE_BYTES:]
            yield from filter(None, map(_entry, lines))
            if not lines:
                if not is_written:
                    return
                yield None


def _id(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _append(file: IO[bytes], block: bytes, size: int) -> int:
    """Write lines at the end of a file of some size; return the number of those that are there whole.

    Raises `OSError` if there is none.
    """
    if size:
        file.seek(size - 1)
        if file.read(1) != b"\n":
            block = b"\n" + block
    written = 0
    try:
        while written < len(block):
            written += file.write(block[written:])
    except OSError:
        if not block[:written].removeprefix(b"\n").count(b"\n"):
            raise
    return block[:written].removeprefix(b"\n").count(b"\n")


class _Line(msgspec.Struct, frozen=True):
    """An entry and its subject."""

    text: bytes
    principal: str | None
    about: tuple[str, ...]
    """Everything by which entries are told apart, but for their day."""
    time: float
    since: float
    """Time of the oldest entry that is counted in this one, or its own."""
    count: int
    """Entries that are counted in this one; 0 for one that stands for itself."""


_LEVELS: Final[tuple[Callable[[_Line], Hashable], ...]] = (
    lambda line: person_in(line.principal),
    lambda line: line.about,
    lambda line: line.time // 86_400,
)
"""Holders of a share of the oldest file: each person, in that each tool, in that each day."""


def _lines(file: IO[bytes]) -> Iterator[_Line]:
    while text := file.readline(LINE_BYTES):
        if text.endswith(b"\n") and (line := _line_of(text)) is not None:
            yield line


def _line_of(text: bytes) -> _Line | None:
    if (entry := _entry(text)) is None:
        return None
    about = tuple(str(entry.get(name)) for name in ("kind", "server", "tool", "decision", "event"))
    time, principal = entry["time"], entry.get("principal")
    # Whatever a damaged disk has made of the rest costs its own meaning alone.
    count, since = entry.get("count") if entry["kind"] == "dropped" else 0, entry.get("since")
    return _Line(
        text,
        principal if isinstance(principal, str) else None,
        about,
        time,
        since if isinstance(since, int | float) else time,
        count if isinstance(count, int) else 0,
    )


def thinned(lines: Sequence[bytes], most: int) -> list[bytes]:
    """Return lines that wait to be appended, or as many as some bytes take, chosen as for the oldest file."""
    found = [line for text in lines if (line := _line_of(text + b"\n")) is not None]
    return [line.text.removesuffix(b"\n") for line in _fair_share(found, most)]


def _fair_share(lines: Sequence[_Line], most: int) -> Sequence[_Line]:
    """Return the lines, or as many of them as some bytes take, with the number of those that are missing."""
    if sum(len(line.text) for line in lines) <= most:
        return lines
    # A fifth is for the numbers, of the principals that lost most.
    kept = _shared([line for line in lines if not line.count], most * 4 // 5, _LEVELS)
    chosen = {id(line) for line in kept}
    left_out = [line for line in lines if id(line) not in chosen]
    missing = Counter[str | None]()
    for line in left_out:
        missing[line.principal] += line.count or 1
    named = {name for name, _ in missing.most_common(most // COUNTED_BYTES)}
    lost: dict[str | None, list[_Line]] = {}
    for line in left_out:
        lost.setdefault(line.principal if line.principal in named else None, []).append(line)
    return sorted([*kept, *itertools.starmap(_counted, lost.items())], key=lambda line: line.time)


def _counted(principal: str | None, lost: list[_Line]) -> _Line:
    count, since = sum(line.count or 1 for line in lost), min(line.since for line in lost)
    until = max(line.time for line in lost)
    facts = {"time": until, "kind": "dropped", "principal": principal, "count": count, "since": since}
    text = msgspec.json.encode({name: fact for name, fact in facts.items() if fact is not None})
    return _Line(text + b"\n", principal, (), until, since, count)


def _shared(lines: list[_Line], most: int, levels: Sequence[Callable[[_Line], Hashable]]) -> list[_Line]:
    """Take lines from the largest groups until the others fit; of the last level, from the middle."""
    left = most
    if sum(len(line.text) for line in lines) <= most:
        return lines
    kept: list[_Line] = []
    if not levels:
        ends = (line for pair in zip(lines, reversed(lines), strict=True) for line in pair)
        for line in itertools.islice(ends, len(lines)):
            left -= len(line.text)
            if left < 0:
                break
            kept.append(line)
        return kept
    groups: dict[Hashable, list[_Line]] = {}
    for line in lines:
        groups.setdefault(levels[0](line), []).append(line)
    smallest_first = sorted(groups.values(), key=lambda group: sum(len(line.text) for line in group))
    for number, group in enumerate(smallest_first):
        some = _shared(group, left // (len(groups) - number), levels[1:])
        left -= sum(len(line.text) for line in some)
        kept += some
    return kept


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    fits = isinstance(entry, dict) and isinstance(entry.get("time"), int | float)
    return entry if fits and isinstance(entry.get("kind"), str) else None


def selecting(
    since: float, server: str | None, tool: str | None, kind: str | None
) -> Callable[[dict[str, Any]], bool]:
    """Return whether an entry is wanted: from a time on, and about a server, a tool, of a kind if given."""
    facts = {"server": server, "tool": tool, "kind": kind}
    wanted = {name: fact for name, fact in facts.items() if fact is not None}
    return lambda entry: entry["time"] >= since and all(entry.get(name) == wanted[name] for name in wanted)


VERBS: Final = ("event", "order")
"""Facts that say what was done, and stand behind the kind of their entry: ``token  added``."""

TIMES: Final = ("expires", "since")
"""Facts that are times, in seconds since 1970."""


def summary(entry: Mapping[str, Any]) -> str:
    """Return an entry on one line for a person, without its time and kind."""
    named = ".".join(str(entry[key]) for key in ("server", "tool") if key in entry)
    if entry["kind"] == "call":
        outcome = f"{entry.get('decision')}, {entry.get('outcome')}"
        parts = [named, outcome, "ms" in entry and f"{entry['ms']:,.1f} ms"]
        parts += ["result_bytes" in entry and f"{entry['result_bytes']:,} bytes"]
        parts += ["rule" in entry and f"by {entry['rule']}", "class" in entry and f"class {entry['class']}"]
    else:
        left_out = ("time", "kind", "server", "tool", "principal", "subject", "client", "session")
        parts = [named, *(_fact(key, value) for key, value in entry.items() if key not in left_out)]
    parts += [key in entry and f"{key} {entry[key]}" for key in ("subject", "principal", "client")]
    return "; ".join(str(part) for part in parts if part)


def _fact(key: str, value: object) -> str:
    """Return a fact of an entry for a person; empty if it says nothing."""
    if isinstance(value, bool):
        return key if value else ""
    if key in TIMES and isinstance(value, int | float):
        value = date_of(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return _in_words(value) if key in VERBS else f"{key} {_in_words(value)}"


def _in_words(value: object) -> str:
    """Return a fact of an entry for a person: a list as its members."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
