"""The shared folder and its files."""

import re
import shutil
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Annotated, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError, data_folder

MAX_BYTES = 8 << 20
"""Largest file that is read: it is read whole into memory."""


def shared_folder() -> Path:
    """The one folder in which the servers may touch files."""
    folder = data_folder() / "files"
    folder.mkdir(exist_ok=True)
    return folder


def shared_files() -> list[Path]:
    places = sorted(shared_folder().rglob("*"))
    return [place for place in places if place.is_file() and not place.is_symlink()]


def locate(path: str, *, new: bool = False) -> Path:
    """The place of ``path`` in the shared folder, where a file may be or not.

    A path is relative, has no ``..`` and passes through no link; its target must still be inside after the
    operating system has resolved it. Nothing may be at a ``new`` one, whose parent folder is created.
    """
    root, pure = shared_folder(), PurePath(path)
    if pure.anchor or ".." in pure.parts or "\0" in path:
        raise ToolError(f"{path!r} is outside the folder; give a path relative to it, without '..'")
    place = root
    for part in pure.parts:
        place /= part
        if place.is_symlink():
            raise ToolError(f"{path!r} passes through a link, and links are not followed")
    if not place.resolve().is_relative_to(root):
        raise ToolError(f"{path!r} is outside the folder")
    if new and place.exists():
        raise ToolError(f"{path!r} exists already; delete it first or choose another path")
    if new:
        place.parent.mkdir(parents=True, exist_ok=True)
    return place


def existing(path: str) -> Path:
    place = locate(path)
    if not place.exists():
        raise ToolError(f"{path!r} does not exist; list_folder and find_files show the paths that do")
    return place


def read_text(path: str) -> str:
    """The text of the file at ``path``; an error if it is too large or not UTF-8."""
    place = existing(path)
    if not place.is_file():
        raise ToolError(f"{path!r} is not a file")
    if place.stat().st_size > MAX_BYTES:
        raise ToolError(f"{path!r} is larger than {MAX_BYTES} bytes")
    try:
        return place.read_bytes().decode("utf-8")
    except UnicodeDecodeError as e:
        raise ToolError(f"{path!r} is not UTF-8 text") from e


def relative(place: Path) -> str:
    return place.relative_to(shared_folder()).as_posix()


class Entry(TypedDict):
    path: str
    kind: str
    bytes: int
    modified: str


class Match(TypedDict):
    path: str
    line: int
    text: str


files = Server("files", "Files in one folder. Every path is relative to it; nothing outside can be reached.")

FilePath = Annotated[str, "Path of the file, relative to the folder, such as 'reports/may.md'"]
Limit = Annotated[int, "How many at most", Between(1, 1000)]


@files.tool(read_only=True)
def list_folder(path: Annotated[str, "Folder; '.' is the top one"] = ".", limit: Limit = 200) -> list[Entry]:
    """List the files and folders directly in a folder, with size and date of change."""
    children = sorted(locate(path).iterdir())
    return [_entry(child) for child in children if not child.is_symlink()][:limit]


@files.tool(read_only=True)
def find_files(
    pattern: Annotated[str, "Pattern of the file name with * and ?, such as '*.csv'"], limit: Limit = 100
) -> list[Entry]:
    """Find files by name anywhere below the folder. To look inside files use search_in_files."""
    return [_entry(file) for file in shared_files() if fnmatch(file.name.lower(), pattern.lower())][:limit]


@files.tool(read_only=True)
def search_in_files(
    pattern: Annotated[str, "Regular expression, searched line by line, in upper and lower case"],
    files: Annotated[str, "Pattern of the names of the files to search"] = "*",
    limit: Limit = 100,
) -> list[Match]:
    """Search the contents of text files for a regular expression and return the matching lines, like grep."""
    try:
        expression = re.compile(pattern, re.IGNORECASE)
    except re.error as e:
        raise ToolError(f"pattern is not a regular expression: {e}") from e
    matches: list[Match] = []
    for file in shared_files():
        if not fnmatch(file.name, files) or file.stat().st_size > MAX_BYTES:
            continue
        for number, line in enumerate(file.read_text("utf-8", errors="replace").splitlines(), 1):
            if expression.search(line):
                matches.append({"path": relative(file), "line": number, "text": line.strip()[:300]})
    return matches[:limit]


@files.tool(read_only=True)
def read_file(
    path: FilePath,
    first_line: Annotated[int, "Line to begin at, from 1", Between(1, 10_000_000)] = 1,
    max_lines: Annotated[int, "How many lines at most", Between(1, 10_000)] = 1000,
) -> str:
    """Read a text file, or some of its lines."""
    lines = read_text(path).splitlines(keepends=True)
    return "".join(lines[first_line - 1 :][:max_lines])


@files.tool(read_only=True)
def file_information(path: Annotated[str, "Path of the file or folder"]) -> Entry:
    """Tell the kind, size and date of change of a file or folder without reading it."""
    return _entry(existing(path))


@files.tool(destructive=True, idempotent=True)
def write_file(
    path: FilePath,
    content: Annotated[str, "The whole text of the file"],
    overwrite: Annotated[bool, "Replace a file that is there already"] = False,
) -> Entry:
    """Create a text file, with the folders it needs; replaces an existing one only when told to."""
    place = locate(path)
    if place.exists() and not overwrite:
        raise ToolError(f"{path!r} exists already; set overwrite to true to replace it")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content, "utf-8", newline="")
    return _entry(place)


@files.tool()
def append_to_file(path: FilePath, content: Annotated[str, "Text to add, put on a line of its own"]) -> Entry:
    """Add text to the end of an existing text file, for logs and lists."""
    text = read_text(path)
    separator = "" if not text or text.endswith("\n") else "\n"
    return write_file(path, f"{text}{separator}{content}\n", overwrite=True)


@files.tool(destructive=True)
def replace_in_file(
    path: FilePath,
    old: Annotated[str, "Exact text to replace; must occur exactly once"],
    new: Annotated[str, "Text to put in its place"],
) -> Entry:
    """Edit a text file by replacing one passage and leaving the rest as it is."""
    text = read_text(path)
    count = text.count(old) if old else 0
    if count != 1:
        raise ToolError(f"old must occur exactly once in {path!r}; it occurs {count} times")
    return write_file(path, text.replace(old, new), overwrite=True)


@files.tool(idempotent=True)
def create_folder(path: Annotated[str, "Path of the new folder"]) -> Entry:
    """Create an empty folder, with its parents."""
    place = locate(path)
    place.mkdir(parents=True, exist_ok=True)
    return _entry(place)


@files.tool()
def copy_file(source: FilePath, target: Annotated[str, "Path of the copy; must not exist"]) -> Entry:
    """Copy a file within the folder."""
    origin, place = existing(source), locate(target, new=True)
    shutil.copyfile(origin, place)
    return _entry(place)


@files.tool()
def move_file(
    source: Annotated[str, "Path of the file or folder"], target: Annotated[str, "New path; must not exist"]
) -> Entry:
    """Move or rename a file or folder within the folder."""
    origin, place = existing(source), locate(target, new=True)
    origin.rename(place)
    return _entry(place)


@files.tool(destructive=True, idempotent=True)
def delete_file(path: Annotated[str, "Path of the file or of an empty folder"]) -> str:
    """Delete a file, or a folder that is empty, for good."""
    place = existing(path)
    if place == shared_folder():
        raise ToolError("the top folder cannot be deleted")
    place.rmdir() if place.is_dir() else place.unlink()
    return f"Deleted {path}"


def _entry(place: Path) -> Entry:
    status = place.stat()
    return {
        "path": relative(place),
        "kind": "folder" if place.is_dir() else "file",
        "bytes": 0 if place.is_dir() else status.st_size,
        "modified": datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds"),
    }
