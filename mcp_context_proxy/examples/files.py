"""Files of one folder: list, read, write, move and search them; nothing outside it can be reached."""

import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.storage import existing_file, locate, relative, shared_folder

MAX_BYTES = 1 << 20
"""Largest file that is read or searched: a model cannot use more, and memory stays bounded."""


class Entry(TypedDict):
    path: str
    kind: str
    bytes: int
    modified: str


class Listing(TypedDict):
    entries: list[Entry]
    complete: bool


class Match(TypedDict):
    path: str
    line: int
    text: str


server = Server("files", "Files in one folder. Every path is relative to it; nothing outside can be reached.")

FilePath = Annotated[str, "Path of the file, relative to the folder, such as 'reports/may.md'"]
Limit = Annotated[int, "How many at most", Between(1, 1000)]


@server.tool(read_only=True)
def list_folder(path: Annotated[str, "Folder; '.' is the top one"] = ".", limit: Limit = 200) -> Listing:
    """List the files and folders directly in a folder, with size and date of change."""
    folder = locate(path)
    if not folder.is_dir():
        raise ToolError(f"{path!r} is not a folder")
    children = sorted(child for child in folder.iterdir() if not child.is_symlink())
    return {"entries": [_entry(child) for child in children[:limit]], "complete": len(children) <= limit}


@server.tool(read_only=True)
def find_files(
    pattern: Annotated[str, "Pattern of the file name with * and ?, such as '*.csv'"], limit: Limit = 100
) -> Listing:
    """Find files by name anywhere below the folder. To look inside files use search_in_files."""
    found = [file for file in _walk() if fnmatch(file.name.lower(), pattern.lower())]
    return {"entries": [_entry(file) for file in found[:limit]], "complete": len(found) <= limit}


@server.tool(read_only=True)
def search_in_files(
    pattern: Annotated[str, "Regular expression, searched line by line"],
    files: Annotated[str, "Pattern of the names of the files to search"] = "*",
    ignore_case: Annotated[bool, "Treat upper and lower case as equal"] = True,
    limit: Limit = 100,
) -> list[Match]:
    """Search the contents of text files for a regular expression and return the matching lines, like grep."""
    try:
        expression = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as e:
        raise ToolError(f"pattern is not a regular expression: {e}") from e
    matches: list[Match] = []
    for file in _walk():
        if not fnmatch(file.name, files) or file.stat().st_size > MAX_BYTES:
            continue
        for number, line in enumerate(file.read_text("utf-8", errors="replace").splitlines(), 1):
            if expression.search(line):
                matches.append({"path": relative(file), "line": number, "text": line.strip()[:300]})
            if len(matches) >= limit:
                return matches
    return matches


@server.tool(read_only=True)
def read_file(
    path: FilePath,
    first_line: Annotated[int, "Line to begin at, from 1", Between(1, 10_000_000)] = 1,
    max_lines: Annotated[int, "How many lines at most", Between(1, 10_000)] = 1000,
) -> str:
    """Read a text file, or some of its lines."""
    lines = _read(path).splitlines(keepends=True)
    if first_line > max(len(lines), 1):
        raise ToolError(f"{path!r} has only {len(lines)} lines")
    return "".join(lines[first_line - 1 :][:max_lines])


@server.tool(read_only=True)
def file_information(path: Annotated[str, "Path of the file or folder"]) -> Entry:
    """Tell the kind, size and date of change of a file or folder without reading it."""
    return _entry(_existing(path))


@server.tool(destructive=True, idempotent=True)
def write_file(
    path: FilePath,
    content: Annotated[str, "The whole text of the file"],
    overwrite: Annotated[bool, "Replace a file that is there already"] = False,
) -> Entry:
    """Create a text file, with the folders it needs; replaces an existing one only when told to."""
    place = locate(path)
    if place.is_dir():
        raise ToolError(f"{path!r} is a folder")
    if place.exists() and not overwrite:
        raise ToolError(f"{path!r} exists already; set overwrite to true to replace it")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content, "utf-8", newline="")
    return _entry(place)


@server.tool()
def append_to_file(path: FilePath, content: Annotated[str, "Text to add, put on a line of its own"]) -> Entry:
    """Add text to the end of an existing text file, for logs and lists."""
    old = _read(path)
    separator = "" if not old or old.endswith("\n") else "\n"
    place = locate(path)
    with place.open("a", encoding="utf-8", newline="") as stream:
        stream.write(f"{separator}{content}\n")
    return _entry(place)


@server.tool(destructive=True)
def replace_in_file(
    path: FilePath,
    old: Annotated[str, "Exact text to replace; must occur exactly once"],
    new: Annotated[str, "Text to put in its place"],
) -> Entry:
    """Edit a text file by replacing one passage and leaving the rest as it is."""
    text = _read(path)
    count = text.count(old) if old else 0
    if count != 1:
        raise ToolError(f"old must occur exactly once in {path!r}; it occurs {count} times")
    locate(path).write_text(text.replace(old, new), "utf-8", newline="")
    return _entry(locate(path))


@server.tool(idempotent=True)
def create_folder(path: Annotated[str, "Path of the new folder"]) -> Entry:
    """Create an empty folder, with its parents."""
    place = locate(path)
    if place.is_file():
        raise ToolError(f"{path!r} is a file")
    place.mkdir(parents=True, exist_ok=True)
    return _entry(place)


@server.tool()
def copy_file(source: FilePath, target: Annotated[str, "Path of the copy; must not exist"]) -> Entry:
    """Copy a file within the folder."""
    origin, place = existing_file(source), _vacant(target)
    shutil.copyfile(origin, place)
    return _entry(place)


@server.tool()
def move_file(
    source: Annotated[str, "Path of the file or folder"], target: Annotated[str, "New path; must not exist"]
) -> Entry:
    """Move or rename a file or folder within the folder."""
    origin, place = _existing(source), _vacant(target)
    if place.is_relative_to(origin):
        raise ToolError(f"{source!r} cannot be moved into itself")
    origin.rename(place)
    return _entry(place)


@server.tool(destructive=True, idempotent=True)
def delete_file(path: Annotated[str, "Path of the file or of an empty folder"]) -> str:
    """Delete a file, or a folder that is empty, for good."""
    place = _existing(path)
    if place == shared_folder():
        raise ToolError("the top folder cannot be deleted")
    if place.is_dir() and any(place.iterdir()):
        raise ToolError(f"{path!r} is a folder that is not empty; delete what is in it first")
    place.rmdir() if place.is_dir() else place.unlink()
    return f"Deleted {path}"


def _read(path: str) -> str:
    place = existing_file(path)
    if (size := place.stat().st_size) > MAX_BYTES:
        raise ToolError(f"{path!r} has {size} bytes; at most {MAX_BYTES} can be read")
    try:
        return place.read_bytes().decode("utf-8")
    except UnicodeDecodeError as e:
        raise ToolError(f"{path!r} is not UTF-8 text") from e


def _walk() -> Iterator[Path]:
    for folder, folders, names in os.walk(shared_folder()):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_file() and not file.is_symlink():
                yield file


def _existing(path: str) -> Path:
    place = locate(path)
    if not place.exists():
        raise ToolError(f"{path!r} does not exist; list_folder and find_files show what is there")
    return place


def _vacant(path: str) -> Path:
    place = locate(path)
    if place.exists():
        raise ToolError(f"{path!r} exists already; delete it first or choose another path")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _entry(place: Path) -> Entry:
    status = place.stat()
    return {
        "path": relative(place),
        "kind": "folder" if place.is_dir() else "file",
        "bytes": 0 if place.is_dir() else status.st_size,
        "modified": datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    server.run()
