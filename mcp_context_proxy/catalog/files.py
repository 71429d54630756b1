"""Reading a folder that may hold anything: its own regular markdown files, and nothing a link leads to.

The configured path itself may be a link: the person who configured it chose it.

A folder that is open, and its entries, none of which is reached through a link.

Each is opened relative to the descriptor of the folder above it, so that what is swapped between listing and
reading is refused as well. Where descriptors cannot be walked (Windows), real paths are compared instead,
before a file is opened and after.

Something a person should mend in a file of theirs: it is told, and the rest goes on.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO without a writer must not hold us
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
CAN_WALK_DESCRIPTORS: Final = (
    bool(_NO_FOLLOW) and os.open in os.supports_dir_fd and os.scandir in os.supports_fd
)


class Place(Protocol):
    """A folder that is open, and through which alone its entries are reached."""

    def scan(self) -> Iterator[os.DirEntry[str]]:
        """Its entries."""
        ...

    def folder(self, name: str) -> Place:
        """One below it, which the caller closes."""
        ...

    def file(self, name: str) -> int:
        """A descriptor, which the caller closes."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class DescriptorPlace:
    """By descriptors: an entry is one of the folder that was opened, wherever that is by now."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def root(cls, path: Path) -> DescriptorPlace:
        """Open the configured folder."""
        return cls(os.open(path, FLAGS | os.O_DIRECTORY))

    def scan(self) -> Iterator[os.DirEntry[str]]:
        """Its entries."""
        with os.scandir(self._descriptor) as entries:
            yield from entries

    def folder(self, name: str) -> DescriptorPlace:
        """One below it, which the caller closes."""
        flags = FLAGS | os.O_DIRECTORY | _NO_FOLLOW
        return DescriptorPlace(os.open(name, flags, dir_fd=self._descriptor))

    def file(self, name: str) -> int:
        """A descriptor, which the caller closes."""
        return os.open(name, FLAGS | _NO_FOLLOW, dir_fd=self._descriptor)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


class PathPlace:
    """Without descriptors: an entry counts only where its real path is the one it is listed under."""

    def __init__(self, real: Path) -> None:
        self._real = real

    @classmethod
    def root(cls, path: Path) -> PathPlace:
        """Open the configured folder."""
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return cls(Path(os.path.realpath(path)))

    def scan(self) -> Iterator[os.DirEntry[str]]:
        """Its entries."""
        with os.scandir(self._real) as entries:
            yield from entries

    def folder(self, name: str) -> PathPlace:
        """One below it, which the caller closes."""
        return PathPlace(self._confined(name))

    def file(self, name: str) -> int:
        """A descriptor, which the caller closes."""
        path = self._confined(name)
        if not stat.S_ISREG(path.lstat().st_mode):
            raise UnsafePathError("it is not a regular file")
        descriptor = os.open(path, FLAGS)
        try:
            self._compare(name, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _compare(self, name: str, descriptor: int) -> None:
        """What was opened must be what is found here, and no link above it, before and after the look."""
        found = self._confined(name).lstat()
        self._confined(name)
        if not os.path.samestat(found, os.fstat(descriptor)):
            raise UnsafePathError("it was replaced while it was read")

    def close(self) -> None:
        """Nothing is held."""

    def _confined(self, name: str) -> Path:
        path = self._real / name
        if os.path.normcase(os.path.realpath(path)) != os.path.normcase(path):
            raise UnsafePathError("links are not followed")
        return path


class UnsafePathError(Exception):
    """An entry is not read; says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a file or folder; never a failure."""

    file: Path
    line: int | None
    """1-based; None when it is about the file as a whole."""
    message: str
    """What is wrong, what became of the file, and what is allowed."""

    def __str__(self) -> str:
        # A file name may hold a newline or half a character: it must not write lines of its own in a log.
        place = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(self.file))
        return f"{place}: {self.message}" if self.line is None else f"{place}:{self.line}: {self.message}"


SUFFIXES: Final = (".md", ".markdown", ".mdc")

DEPTH_LIMIT: Final = 32
"""Folders below the configured one: more is a mistake, and each costs an open descriptor."""

ENTRY_LIMIT: Final = 100_000
"""Entries looked at, of any kind, over all folders: ends the walk of a home folder given by mistake."""

TOTAL_LIMIT: Final = 128 * 1024 * 1024
"""Bytes of all files together: they are all held in memory."""


@dataclass(frozen=True, slots=True)
class MarkdownFile:
    """One file as it was read."""

    path: Path
    relative: str
    """Path from the configured folder, with ``/``."""
    data: bytes


@dataclass(slots=True)
class Allowance:
    """What may still be read; shared by all folders that are read together."""

    files: int
    file_bytes: int
    """Of one file."""
    entries: int = ENTRY_LIMIT
    total_bytes: int = TOTAL_LIMIT


class _Sort(Enum):
    FILE = auto()
    FOLDER = auto()
    LINK = auto()
    OTHER = auto()


class _ExhaustedError(Exception):
    """The allowance is used up; says which part."""


class FolderReader:
    """Reads one configured folder, or one configured file, and remembers what it met."""

    def __init__(
        self, root: Path, allowance: Allowance, *, by_descriptor: bool = CAN_WALK_DESCRIPTORS
    ) -> None:
        """Read nothing yet.

        Args:
            root: The configured path.
            allowance: What may be read; it is used up.
            by_descriptor: Whether to walk descriptors or to compare real paths.
        """
        self._root, self._allowance = root, allowance
        self._open: Callable[[Path], Place] = DescriptorPlace.root if by_descriptor else PathPlace.root
        self.findings: list[Finding] = []
        self.folders: list[Path] = []
        """Every folder that was read, the configured one first."""

    def files(self) -> Iterator[MarkdownFile]:
        """Every markdown file below the root, sorted by its path. What cannot be read becomes a finding."""
        try:
            yield from self._configured()
        except _ExhaustedError as error:
            self._find(self._root, f"{error}; the rest of this folder and of those after it is left out")

    def _configured(self) -> Iterator[MarkdownFile]:
        try:
            if stat.S_ISREG(self._root.stat().st_mode):
                yield self._taken(self._root, self._root.name, os.open(self._root, FLAGS))
                return
            place = self._open(self._root)
        except UnsafePathError as error:
            self._find(self._root, f"left out: {error}")
        except FileNotFoundError:
            self._find(self._root, "there is no such folder; it is read as soon as there is one")
        except OSError as error:
            self._find(self._root, f"cannot be read: {_words(error)}")
        else:
            with self._explained(self._root), closing(place):
                yield from self._walk(place, ())

    def _walk(self, place: Place, parts: tuple[str, ...]) -> Iterator[MarkdownFile]:
        self.folders.append(self._root.joinpath(*parts))
        for name, sort in self._listed(place):
            below = (*parts, name)
            if not _is_utf8(name):  # not even opened: a watcher of this folder could not tell of it
                if sort is _Sort.FOLDER or name.lower().endswith(SUFFIXES):
                    self._find(self._root.joinpath(*below), "left out: its name is not UTF-8; rename it")
            elif sort is _Sort.FOLDER:
                yield from self._descend(place, below)
            elif name.lower().endswith(SUFFIXES):
                yield from self._read(place, below, sort)
            elif sort is _Sort.LINK and "." not in name:
                self._find(self._root.joinpath(*below), "left out: links are not followed")

    def _listed(self, place: Place) -> list[tuple[str, _Sort]]:
        """Names and sorts, sorted by name, without hidden ones."""
        listed: list[tuple[str, _Sort]] = []
        for entry in islice(place.scan(), self._allowance.entries + 1):
            self._allowance.entries -= 1
            if not entry.name.startswith("."):
                listed.append((entry.name, _sort(entry)))
        if self._allowance.entries < 0:
            raise _ExhaustedError(f"there are over {ENTRY_LIMIT:,} entries")
        return sorted(listed, key=lambda pair: pair[0])

    def _descend(self, place: Place, parts: tuple[str, ...]) -> Iterator[MarkdownFile]:
        path = self._root.joinpath(*parts)
        if len(parts) > DEPTH_LIMIT:
            self._find(path, f"left out: it is more than {DEPTH_LIMIT} folders deep")
            return
        with self._explained(path):
            below = place.folder(parts[-1])
            with closing(below):
                yield from self._walk(below, parts)

    def _read(self, place: Place, parts: tuple[str, ...], sort: _Sort) -> Iterator[MarkdownFile]:
        path = self._root.joinpath(*parts)
        with self._explained(path):
            if sort is _Sort.LINK:
                raise UnsafePathError("links are not followed")
            if sort is _Sort.OTHER:  # not even opened: opening a device can have effects
                raise UnsafePathError("it is not a regular file")
            yield self._taken(path, "/".join(parts), place.file(parts[-1]))

    def _taken(self, path: Path, relative: str, descriptor: int) -> MarkdownFile:
        data = _read_regular(descriptor, self._allowance.file_bytes)
        self._allowance.files -= 1
        self._allowance.total_bytes -= len(data)
        if self._allowance.files < 0:
            raise _ExhaustedError("there are more files than the limit 'documents' allows")
        if self._allowance.total_bytes < 0:
            raise _ExhaustedError(f"the files are over {TOTAL_LIMIT:,} bytes together")
        return MarkdownFile(path, relative, data)

    @contextmanager
    def _explained(self, path: Path) -> Iterator[None]:
        """What cannot be read becomes a finding; what has just gone was never there."""
        try:
            yield
        except FileNotFoundError:
            pass
        except UnsafePathError as error:
            self._find(path, f"left out: {error}")
        except OSError as error:
            self._find(path, f"cannot be read: {_words(error)}")

    def _find(self, path: Path, message: str) -> None:
        self.findings.append(Finding(path, None, message))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sort(entry: os.DirEntry[str]) -> _Sort:
    if entry.is_symlink():
        return _Sort.LINK
    if entry.is_dir(follow_symlinks=False):
        return _Sort.FOLDER
    return _Sort.FILE if entry.is_file(follow_symlinks=False) else _Sort.OTHER


def _read_regular(descriptor: int, limit: int) -> bytes:
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePathError("it is not a regular file")
        # Read one byte more than allowed: a size can be wrong by the time of the read.
        data = file.read(limit + 1) if status.st_size <= limit else None
    if data is None or len(data) > limit:
        raise UnsafePathError(f"it is over {limit:,} bytes; divide it or raise the limit 'document_bytes'")
    return data


def _words(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "links are not followed"
    return error.strerror or type(error).__name__
