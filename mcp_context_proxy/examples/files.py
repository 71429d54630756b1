"""Files of one folder: list, read, write, move and search them; nothing outside it can be reached."""

import re
import shutil
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.storage import (
    MAX_BYTES,
    existing,
    locate,
    read_text,
    relative,
    shared_files,
    shared_folder,
)


class Entry(TypedDict):
    path: str
    kind: str
    bytes: int
    modified: str


class Match(TypedDict):
    path: str
    line: int
    text: str


server = Server("files", "Files in one folder. Every path is relative to it; nothing outside can be reached.")

FilePath = Annotated[str, "Path of the file, relative to the folder, such as 'reports/may.md'"]
Limit = Annotated[int, "How many at most", Between(1, 1000)]


@server.tool(read_only=True)
def list_folder(path: Annotated[str, "Folder; '.' is the top one"] = ".", limit: Limit = 200) -> list[Entry]:
    """List the files and folders directly in a folder, with size and date of change."""
    children = sorted(locate(path).iterdir())
    return [_entry(child) for child in children if not child.is_symlink()][:limit]


@server.tool(read_only=True)
def find_files(
    pattern: Annotated[str, "Pattern of the file name with * and ?, such as '*.csv'"], limit: Limit = 100
) -> list[Entry]:
    """Find files by name anywhere below the folder. To look inside files use search_in_files."""
    return [_entry(file) for file in shared_files() if fnmatch(file.name.lower(), pattern.lower())][:limit]


@server.tool(read_only=True)
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


@server.tool(read_only=True)
def read_file(
    path: FilePath,
    first_line: Annotated[int, "Line to begin at, from 1", Between(1, 10_000_000)] = 1,
    max_lines: Annotated[int, "How many lines at most", Between(1, 10_000)] = 1000,
) -> str:
    """Read a text file, or some of its lines."""
    lines = read_text(path).splitlines(keepends=True)
    return "".join(lines[first_line - 1 :][:max_lines])


@server.tool(read_only=True)
def file_information(path: Annotated[str, "Path of the file or folder"]) -> Entry:
    """Tell the kind, size and date of change of a file or folder without reading it."""
    return _entry(existing(path))


@server.tool(destructive=True, idempotent=True)
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


@server.tool()
def append_to_file(path: FilePath, content: Annotated[str, "Text to add, put on a line of its own"]) -> Entry:
    """Add text to the end of an existing text file, for logs and lists."""
    text = read_text(path)
    separator = "" if not text or text.endswith("\n") else "\n"
    return write_file(path, f"{text}{separator}{content}\n", overwrite=True)


@server.tool(destructive=True)
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


@server.tool(idempotent=True)
def create_folder(path: Annotated[str, "Path of the new folder"]) -> Entry:
    """Create an empty folder, with its parents."""
    place = locate(path)
    place.mkdir(parents=True, exist_ok=True)
    return _entry(place)


@server.tool()
def copy_file(source: FilePath, target: Annotated[str, "Path of the copy; must not exist"]) -> Entry:
    """Copy a file within the folder."""
    origin, place = existing(source), locate(target, new=True)
    shutil.copyfile(origin, place)
    return _entry(place)


@server.tool()
def move_file(
    source: Annotated[str, "Path of the file or folder"], target: Annotated[str, "New path; must not exist"]
) -> Entry:
    """Move or rename a file or folder within the folder."""
    origin, place = existing(source), locate(target, new=True)
    origin.rename(place)
    return _entry(place)


@server.tool(destructive=True, idempotent=True)
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


if __name__ == "__main__":
    server.run()
