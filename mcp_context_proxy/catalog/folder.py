"""Reading a folder that may hold anything: its own regular markdown files, and nothing a link leads to.

The configured path itself may be a link: the person who configured it chose it.
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
from typing import Final

from mcp_context_proxy.catalog.finding import Finding
from mcp_context_proxy.catalog.places import (
    CAN_WALK_DESCRIPTORS,
    FLAGS,
    DescriptorPlace,
    PathPlace,
    Place,
    RefusedError,
)

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
        except RefusedError as error:
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
                raise RefusedError("links are not followed")
            if sort is _Sort.OTHER:  # not even opened: opening a device can have effects
                raise RefusedError("it is not a regular file")
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
        except RefusedError as error:
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
            raise RefusedError("it is not a regular file")
        # Read one byte more than allowed: a size can be wrong by the time of the read.
        data = file.read(limit + 1) if status.st_size <= limit else None
    if data is None or len(data) > limit:
        raise RefusedError(f"it is over {limit:,} bytes; divide it or raise the limit 'document_bytes'")
    return data


def _words(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "links are not followed"
    return error.strerror or type(error).__name__
