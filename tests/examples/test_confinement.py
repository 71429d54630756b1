"""No path reaches a file outside the folder, whatever it looks like and whatever lies in the folder."""

import os
import sys
from pathlib import Path

import pytest
from support.tables import each

OUTSIDE = ["../secret.txt", "a/../../secret.txt", "/etc/hostname", "nul\0byte"]


@pytest.fixture
async def files(connect):
    """A client of one server for all rows of a table."""
    async with connect("files") as client:
        yield client


@each("path", OUTSIDE)
@each("tool", ["read_file", "file_information", "delete_file", "create_folder", "list_folder"])
async def test_a_path_that_leaves_the_folder_is_refused(files, tmp_path: Path, tool, path):
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    result = await files.call_tool(tool, {"path": path})

    assert result.is_error
    assert "outside the folder" in result.content[0].text
    assert (tmp_path / "secret.txt").read_text(encoding="utf-8") == "secret"


@each("path", OUTSIDE)
async def test_nothing_is_written_copied_or_moved_outside(files, tmp_path: Path, path):
    await files.call_tool("write_file", {"path": "in.txt", "content": "x", "overwrite": True})
    results = [
        await files.call_tool("write_file", {"path": path, "content": "x"}),
        await files.call_tool("copy_file", {"source": "in.txt", "target": path}),
        await files.call_tool("move_file", {"source": "in.txt", "target": path}),
    ]

    assert all(result.is_error for result in results)
    assert names_in(tmp_path) == ["files"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
async def test_links_are_neither_followed_nor_listed(connect, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret", encoding="utf-8")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "folder").symlink_to(outside)
    (tmp_path / "files" / "file.csv").symlink_to(outside / "secret.txt")

    async with connect("files") as client:
        through_folder = await client.call_tool("read_file", {"path": "folder/secret.txt"})
        through_file = await client.call_tool(
            "write_file", {"path": "file.csv", "content": "", "overwrite": True}
        )
        listing = await client.call_tool("list_folder", {})
        found = await client.call_tool("search_in_files", {"pattern": "secret"})

    assert all("links are not followed" in r.content[0].text for r in (through_folder, through_file))
    for empty in (listing, found):
        assert empty.structured_content == {"result": []}
    assert (outside / "secret.txt").read_text(encoding="utf-8") == "secret"


async def test_the_top_folder_cannot_be_deleted_or_moved_into_itself(connect, tmp_path: Path):
    async with connect("files") as client:
        deleted = await client.call_tool("delete_file", {"path": "."})
        moved = await client.call_tool("move_file", {"source": ".", "target": "below"})

    assert deleted.is_error
    assert moved.is_error
    assert (tmp_path / "files").is_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="the temporary folder is private to the user there")
async def test_without_a_folder_of_its_own_data_is_kept_where_nobody_else_can_read_it(
    connect, tmp_path: Path
):
    async with connect("notes", MCP_EXAMPLE_DATA="", TMPDIR=str(tmp_path)) as client:
        result = await client.call_tool("create_note", {"title": "private"})

    [name] = names_in(tmp_path)
    assert not result.is_error
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
async def test_a_default_folder_that_somebody_else_has_put_there_is_not_used(connect, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    trap = tmp_path / f"mcp-context-proxy-examples-{os.getuid()}"
    trap.symlink_to(tmp_path / "elsewhere")
    async with connect("notes", MCP_EXAMPLE_DATA="", TMPDIR=str(tmp_path)) as client:
        result = await client.call_tool("create_note", {"title": "private"})

    assert result.is_error
    assert "set MCP_EXAMPLE_DATA" in result.content[0].text
    assert names_in(tmp_path / "elsewhere") == []


def names_in(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())
