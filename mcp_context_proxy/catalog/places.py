"""A folder that is open, and its entries, none of which is reached through a link.

Each is opened relative to the descriptor of the folder above it, so that what is swapped between listing and
reading is refused as well. Where descriptors cannot be walked (Windows), real paths are compared instead,
before a file is opened and after.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
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
            raise RefusedError("it is not a regular file")
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
            raise RefusedError("it was replaced while it was read")

    def close(self) -> None:
        """Nothing is held."""

    def _confined(self, name: str) -> Path:
        path = self._real / name
        if os.path.normcase(os.path.realpath(path)) != os.path.normcase(path):
            raise RefusedError("links are not followed")
        return path


class RefusedError(Exception):
    """An entry is not read; says why."""
