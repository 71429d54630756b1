"""The one folder the example servers may touch files in, and the only place that decides what is inside it.

A path is relative, has no ``..`` and passes through no link; what it leads to must still be inside after the
operating system has resolved it.
"""

from pathlib import Path, PurePath

from mcp_context_proxy.examples.data import data_folder
from mcp_context_proxy.examples.kit import ToolError


def shared_folder() -> Path:
    """The folder that holds files for people and models to work on."""
    folder = data_folder() / "files"
    folder.mkdir(exist_ok=True)
    return folder


def locate(path: str) -> Path:
    """The place of ``path`` in the shared folder, whether or not anything is there.

    Raises:
        ToolError: The path leaves the folder or passes through a link.
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
    return place


def existing_file(path: str) -> Path:
    """The file at ``path``.

    Raises:
        ToolError: There is none, or the path leaves the folder.
    """
    place = locate(path)
    if not place.is_file():
        what = "is a folder, not a file" if place.is_dir() else "does not exist"
        raise ToolError(f"{path!r} {what}; list_folder and find_files show what is there")
    return place


def relative(place: Path) -> str:
    """The path of ``place`` as tools show and accept it."""
    return place.relative_to(shared_folder()).as_posix()
