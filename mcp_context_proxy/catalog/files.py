"""Reads the files of a folder that anybody may have filled: regular files only, and through no link.

The configured path itself may be a link: the person who configured it chose it. Everything below is opened
relative to the descriptor of the folder above it, so that a file that is replaced by a link between listing
and reading is refused as well. Where descriptors cannot be walked (Windows), real paths are compared instead,
before a file is opened and after.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from msgspec import Struct

from mcp_context_proxy.items import SkillFolder

SUFFIXES: Final = (".md", ".markdown", ".mdc", ".mdx")
"""Of markdown."""

ANY: Final = ("",)
"""Suffix of all files."""

DEPTH_LIMIT: Final = 32
"""Folders below the configured one: more is a mistake, and each costs an open descriptor."""

ENTRY_LIMIT: Final = 100_000
"""Entries looked at, of any kind, over all folders: ends the walk of a home folder given by mistake."""

TOTAL_LIMIT: Final = 128 * 1024 * 1024
"""Bytes of all files together: they are all held in memory."""

SKILL_FILES: Final = 200
"""Files of a skill that are listed; the largest published ones have about 80."""

SKILL_DEPTH: Final = 6
"""Folders below that of a skill that are listed and read."""

SKILL_ENTRIES: Final = 5_000
"""Entries of a skill's folder that are looked at: more means that a package was installed there."""

INSTALLED: Final = frozenset({"node_modules", "bower_components", "site-packages"})
"""Folders of installed packages, each with documentation of its own: thousands of files that nobody means."""

HIDDEN_PLACES: Final = (
    *(".cursor/rules", ".claude/rules", ".claude/skills", ".agents/skills", ".github/instructions"),
    *(".github/copilot-instructions.md", ".github/skills", ".windsurf/rules", ".kiro/steering"),
    *(".continue/rules", ".clinerules", ".cursorrules", ".windsurfrules", ".kilocode/rules", ".roo/rules"),
)
"""Where agents and editors keep rules and skills in a project; hidden, and so not read with its folder."""

_LINK: Final = "links are not followed; give what it leads to an entry of its own"

_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO without a writer must not block the proxy
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_FOLDER_FLAGS: Final = _FLAGS | getattr(os, "O_DIRECTORY", 0)
CAN_WALK_DESCRIPTORS: Final = (
    bool(_NO_FOLLOW) and os.open in os.supports_dir_fd and os.scandir in os.supports_fd
)


class Finding(Struct, frozen=True):
    """A problem with a file or folder that a person should fix; never a failure."""

    file: Path
    line: int | None
    """1-based; None when it is about the file as a whole."""
    message: str
    """The problem, its effect on the file, and the allowed values."""

    def __str__(self) -> str:
        # A file name may hold a newline or half a character: it must not write lines of its own in a log.
        place = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(self.file))
        return f"{place}: {self.message}" if self.line is None else f"{place}:{self.line}: {self.message}"


class MarkdownFile(Struct, frozen=True):
    """One file as it was read."""

    path: Path
    relative: str
    """Path from the configured folder, with ``/``."""
    data: bytes


class Allowance(Struct):
    """The amount that may still be read; shared by all folders that are read together."""

    files: int
    file_bytes: int
    """Bytes of one file."""
    entries: int = ENTRY_LIMIT
    total_bytes: int = TOTAL_LIMIT


class UnsafePathError(Exception):
    """An entry that is not read; the text says why."""


class _ExhaustedError(Exception):
    """The allowance is used up; the text says which part."""


class FolderReader:
    """Reads one configured folder, or one configured file, and collects findings."""

    def __init__(
        self,
        root: Path,
        allowance: Allowance,
        *,
        below: tuple[str, ...] = (),
        suffixes: tuple[str, ...] = SUFFIXES,
        by_descriptor: bool = CAN_WALK_DESCRIPTORS,
    ) -> None:
        """Read nothing yet, and later no more than the allowance, which is used up.

        Only the folder ``below`` the root is read, one folder after the other, and of it the files with these
        ``suffixes``, in small letters. ``by_descriptor`` walks descriptors instead of comparing real paths.
        """
        self._root, self._allowance = root, allowance
        self._below, self._suffixes = below, suffixes
        self.exhausted = False
        """True once something was left out because the allowance was used up."""
        self._by_descriptor = by_descriptor
        self.findings: list[Finding] = []
        self.paths: list[Path] = []
        """Every folder that was read, and every file of a wanted suffix, also one that could not be read."""

    def files(self) -> Iterator[MarkdownFile]:
        """Yield every file of a wanted suffix below the root, sorted by path; others become findings."""
        try:
            missing = "there is no such folder; it is read as soon as there is one"
            with self._findings_of(self._root, missing):
                if stat.S_ISREG(self._root.stat().st_mode):
                    yield self._read(self._root, self._root.name, os.open(self._root, _FLAGS))
                else:
                    with ExitStack() as stack:
                        folder = _opened(self._root, self._below, stack, self._by_descriptor)
                        yield from self._walk(folder, self._below)
        except _ExhaustedError as error:
            self.exhausted = True
            self._find(self._root, f"{error}; the rest of this folder and of those after it is left out")

    def file(self, name: str) -> bytes:
        """Return the content of one file in the folder ``below``, or of the root itself if that is a file.

        Raises `OSError` if it cannot be read, and `UnsafePathError` if it is a link, no regular file, or too
        long.
        """
        if stat.S_ISREG(self._root.stat().st_mode) and name == self._root.name:
            return self._read(self._root, name, os.open(self._root, _FLAGS)).data
        with ExitStack() as stack:
            folder = _opened(self._root, self._below, stack, self._by_descriptor)
            return self._read(self._root.joinpath(*self._below, name), name, folder.file(name)).data

    def beside(self, path: Path) -> bytes | None:
        """Return the content of visible markdown below the folder of the root; None where that is no file.

        It and its folder count as read, so that a change of them is seen.
        """
        above = self._root.parent.absolute()
        if not self._root.is_file() or not path.is_relative_to(above):
            return None
        *parts, name = path.relative_to(above).parts
        if not name.lower().endswith(SUFFIXES) or not all(map(_may_be_read, (*parts, name))):
            return None
        reader = FolderReader(above, self._allowance, below=tuple(parts), by_descriptor=self._by_descriptor)
        try:
            data = reader.file(name)
        except (OSError, UnsafePathError, _ExhaustedError):
            return None
        self.paths += (path.parent, path)
        return data

    def _walk(self, folder: _OpenFolder, parts: tuple[str, ...]) -> Iterator[MarkdownFile]:
        self.paths.append(self._root.joinpath(*parts))
        for entry in self._entries(folder):
            name, is_folder = entry.name, entry.is_dir(follow_symlinks=False)
            below, path = (*parts, name), self._root.joinpath(*parts, name)
            is_wanted = name.lower().endswith(self._suffixes)
            if not is_utf8(name):  # not even opened: it can be no part of a URI
                if is_folder or is_wanted:
                    self._find(path, "left out: its name is not UTF-8; rename it")
            elif is_folder and len(below) > DEPTH_LIMIT:
                self._find(path, f"left out: it is more than {DEPTH_LIMIT} folders deep")
            elif is_folder:
                with self._findings_of(path), closing(folder.folder(name)) as inner:
                    yield from self._walk(inner, below)
            elif is_wanted:
                self.paths.append(path)
                with self._findings_of(path):
                    if entry.is_symlink():
                        if self._is_read_anyway(path):
                            continue
                        raise UnsafePathError(_LINK)
                    if not entry.is_file(follow_symlinks=False):  # opening a device can have effects
                        raise UnsafePathError("it is not a regular file")
                    yield self._read(path, "/".join(below), folder.file(name))
            elif entry.is_symlink() and "." not in name and not self._is_read_anyway(path):
                self._find(path, f"left out: {_LINK}")

    def _is_read_anyway(self, link: Path) -> bool:
        """Return whether a link leads to a file or folder that this reader reads under its own name."""
        root, target = Path(os.path.realpath(self._root)), Path(os.path.realpath(link))
        inside = target.is_relative_to(root.joinpath(*self._below))
        if not inside or any(map(_is_passed_over, target.relative_to(root).parts)):
            return False
        return target.is_dir() or (target.is_file() and target.name.lower().endswith(self._suffixes))

    def _entries(self, folder: _OpenFolder) -> list[os.DirEntry[str]]:
        """Return all entries that are neither hidden nor installed packages, sorted by name."""
        found = list(islice(folder.scan(), self._allowance.entries + 1))
        self._allowance.entries -= len(found)
        if self._allowance.entries < 0:
            raise _ExhaustedError(f"there are over {ENTRY_LIMIT:,} entries")
        shown = (entry for entry in found if not _is_passed_over(entry.name))
        return sorted(shown, key=lambda entry: entry.name)

    def _read(self, path: Path, relative: str, descriptor: int) -> MarkdownFile:
        advice = "; divide it or raise the limit 'document_bytes'"
        data = _content(descriptor, self._allowance.file_bytes, advice)
        self._allowance.files -= 1
        self._allowance.total_bytes -= len(data)
        if self._allowance.files < 0:
            raise _ExhaustedError("there are more files than the limit 'documents' allows")
        if self._allowance.total_bytes < 0:
            raise _ExhaustedError(f"the files are over {TOTAL_LIMIT:,} bytes together")
        return MarkdownFile(path, relative, data)

    @contextmanager
    def _findings_of(self, path: Path, missing: str = "") -> Iterator[None]:
        """Turn errors into findings about a path; an entry that has just been removed was never there."""
        try:
            yield
        except FileNotFoundError:
            if missing:
                self._find(path, missing)
        except UnsafePathError as error:
            self._find(path, f"left out: {error}")
        except OSError as error:
            self._find(path, f"cannot be read: {_reason(error)}")

    def _find(self, path: Path, message: str) -> None:
        self.findings.append(Finding(path, None, message))


def skill_files(
    skill: SkillFolder, *, by_descriptor: bool = CAN_WALK_DESCRIPTORS
) -> tuple[list[tuple[str, int]], bool]:
    """Return path and size of a skill's files beside its SKILL.md, and whether there are more. Blocks.

    Hidden files, links and everything that is no regular file are left out. Raises `UnsafePathError` if a
    link leads to the folder, and `OSError` if the folder cannot be read.
    """
    found: list[tuple[str, int]] = []
    looked_at = 0

    def walk(folder: _OpenFolder, parts: tuple[str, ...]) -> bool:
        nonlocal looked_at
        entries = list(islice(folder.scan(), SKILL_ENTRIES - looked_at + 1))
        looked_at += len(entries)
        more = looked_at > SKILL_ENTRIES
        for entry in sorted(entries, key=lambda entry: (entry.is_dir(follow_symlinks=False), entry.name)):
            path = (*parts, entry.name)
            if not _may_be_read(entry.name) or path == ("SKILL.md",):
                continue
            if entry.is_dir(follow_symlinks=False):
                if len(path) > SKILL_DEPTH or looked_at > SKILL_ENTRIES:
                    more = True
                    continue
                with closing(folder.folder(entry.name)) as inner:
                    more |= walk(inner, path)
            elif entry.is_file(follow_symlinks=False):
                if len(found) == SKILL_FILES:
                    return True
                found.append(("/".join(path), entry.stat(follow_symlinks=False).st_size))
        return more

    with ExitStack() as stack:
        return found, walk(_opened(skill.root, skill.parts, stack, by_descriptor), ())


def read_skill_file(
    skill: SkillFolder, relative: str, most: int, *, by_descriptor: bool = CAN_WALK_DESCRIPTORS
) -> bytes:
    """Return the content of a file in the folder of a skill, outside of which nothing is opened. Blocks.

    Raises `UnsafePathError` if the path leads out of the folder or through a link, or the file is hidden, has
    more than ``most`` bytes or is not a regular one, and `OSError` if it cannot be read.
    """
    *parts, name = PurePosixPath(relative).parts or ("",)
    if relative.startswith("/") or not all(map(_may_be_read, (*parts, name))):
        raise UnsafePathError(
            "the path must stay in the folder of the skill, and no part may begin with a dot"
        )
    if len(parts) > SKILL_DEPTH:
        raise UnsafePathError(f"it is more than {SKILL_DEPTH} folders deep")
    with ExitStack() as stack:
        folder = _opened(skill.root, (*skill.parts, *parts), stack, by_descriptor)
        if not folder.has_file(name):
            raise UnsafePathError("it is not a regular file; links are not followed")
        return _content(folder.file(name), most)


def hidden_places(folders: Iterable[Path]) -> list[Path]:
    """Return the places of `HIDDEN_PLACES` that exist in some folders and are read with none of them."""
    configured = {*folders}
    places = (folder / place for folder in sorted(configured) for place in HIDDEN_PLACES)
    return [place for place in places if place.exists() and not any(_reads(one, place) for one in configured)]


def _reads(folder: Path, path: Path) -> bool:
    return path.is_relative_to(folder) and not any(map(_is_passed_over, path.relative_to(folder).parts))


def _is_passed_over(name: str) -> bool:
    return name.startswith(".") or name in INSTALLED


def _may_be_read(name: str) -> bool:
    """Return whether a name is that of one visible entry; on some systems a colon or backslash is a path."""
    return bool(name) and not name.startswith(".") and not set(name) & set("/\\:\0") and is_utf8(name)


_PIECE: Final = 64 * 1024
"""Bytes of a file that are read at once."""


def _content(descriptor: int, most: int, advice: str = "") -> bytes:
    """Read a regular file of bounded size to its end, and close it; see `UnsafePathError`."""
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePathError("it is not a regular file")
        # In pieces, which takes room for the file and not for the limit. Its size can be wrong by now.
        data, size = bytearray(), status.st_size
        while size <= most and (piece := file.read(_PIECE)):
            data += piece
            size = len(data)
    if size > most:
        raise UnsafePathError(f"it is over {most:,} bytes{advice}")
    return bytes(data)


def _opened(root: Path, parts: Iterable[str], stack: ExitStack, by_descriptor: bool) -> _OpenFolder:
    """Open a folder below a configured one, one by one and through no link."""
    opener: Callable[[Path], _OpenFolder] = _DescriptorFolder if by_descriptor else _PathFolder
    folder = stack.enter_context(closing(opener(root)))
    for part in parts:
        folder = stack.enter_context(closing(folder.folder(part)))
    return folder


class _DescriptorFolder:
    """A folder by descriptor: its entries are those of the folder that was opened, wherever it is now."""

    def __init__(self, path: Path | str, flags: int = 0, above: int | None = None) -> None:
        self._descriptor = os.open(path, _FOLDER_FLAGS | flags, dir_fd=above)

    def scan(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self._descriptor) as entries:
            yield from entries

    def folder(self, name: str) -> _DescriptorFolder:
        return _DescriptorFolder(name, _NO_FOLLOW, self._descriptor)

    def has_file(self, name: str) -> bool:
        return stat.S_ISREG(os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode)

    def file(self, name: str) -> int:
        return os.open(name, _FLAGS | _NO_FOLLOW, dir_fd=self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class _PathFolder:
    """A folder by path: an entry counts only where its real path is the one it is listed under."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        self._real = Path(os.path.realpath(path))

    def scan(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self._real) as entries:
            yield from entries

    def folder(self, name: str) -> _PathFolder:
        return _PathFolder(self._confined(name))

    def has_file(self, name: str) -> bool:
        return stat.S_ISREG((self._real / name).lstat().st_mode)

    def file(self, name: str) -> int:
        path = self._confined(name)
        if not stat.S_ISREG(path.lstat().st_mode):
            raise UnsafePathError("it is not a regular file")
        descriptor = os.open(path, _FLAGS)
        try:
            # The open file must be the one found here, and no link above it, before and after the look.
            found = self._confined(name).lstat()
            self._confined(name)
            if not os.path.samestat(found, os.fstat(descriptor)):
                raise UnsafePathError("it was replaced while it was read")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def close(self) -> None:
        pass

    def _confined(self, name: str) -> Path:
        path = self._real / name
        if os.path.normcase(os.path.realpath(path)) != os.path.normcase(path):
            raise UnsafePathError("links are not followed")
        return path


_OpenFolder: TypeAlias = _DescriptorFolder | _PathFolder
"""An open folder whose entries are reached through it alone; callers close it and the files in it."""


def is_utf8(name: str) -> bool:
    """Return whether a file name can be written as UTF-8: those of other systems hold lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "links are not followed"
    return error.strerror or type(error).__name__
