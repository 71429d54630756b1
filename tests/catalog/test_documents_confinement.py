"""Folders with hostile content: nothing outside is read, nothing hangs, and good files are served."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import Write, by_both_ways

from mcp_context_proxy.catalog.documents import Loaded, load_documents
from mcp_context_proxy.catalog.files import DEPTH_LIMIT, Allowance, Finding, FolderReader, MarkdownFile
from mcp_context_proxy.config import DocumentsConfig, Limits
from mcp_context_proxy.items import Kind

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and FIFOs need rights or do not exist")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A sibling whose path begins like that of the folder."""
    folder = tmp_path / "docs-secret"
    folder.mkdir()
    (folder / "secret.md").write_text("SECRET", encoding="utf-8")
    return folder


def read(
    root: Path, by_descriptor: bool = True, allowance: Allowance | None = None
) -> tuple[list[MarkdownFile], list[Finding]]:
    reader = FolderReader(root, allowance or Allowance(100, 1000), by_descriptor=by_descriptor)
    return list(reader.files()), reader.findings


def load(root: Path, **limits: int) -> Loaded:
    return load_documents([DocumentsConfig(kind=Kind.RULE, path=root)], Limits(**limits))


def about(findings: list[Finding], root: Path) -> dict[str, str]:
    return {finding.file.relative_to(root).as_posix(): finding.message for finding in findings}


@by_both_ways
def test_symbolic_links_are_reported_and_not_followed(
    write: Write, secret: Path, by_descriptor: bool
) -> None:
    root = write({"fine.md": "fine", "target.md": "fine"})
    (root / "file.md").symlink_to(secret / "secret.md")
    (root / "relative.md").symlink_to("../docs-secret/secret.md")
    (root / "inside.md").symlink_to("target.md")
    (root / "dangling.md").symlink_to("nowhere")
    (root / "folder").symlink_to(secret)
    (root / "parent").symlink_to("..")
    (root / "loop").symlink_to(".")
    (root / "zero.md").symlink_to("/dev/zero")

    files, findings = read(root, by_descriptor)

    assert [file.relative for file in files] == ["fine.md", "target.md"]
    told = about(findings, root)
    assert set(told) == {"file.md", "relative.md", "dangling.md", "zero.md", "folder", "parent"}
    remedy = "left out: links are not followed; give what it leads to an entry of its own"
    assert set(told.values()) == {remedy}
    # What these lead to is read under its own name, so nothing is missing: `inside.md` and `loop`.


@by_both_ways
def test_a_fifo_and_a_socket_are_reported_and_never_opened(write: Write, by_descriptor: bool) -> None:
    root = write({"fine.md": "fine"})
    os.mkfifo(root / "fifo.md")
    with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)  # the path of a socket may be no longer than some 100 bytes
        listener.bind("socket.md")

        files, findings = read(root, by_descriptor)

    assert [file.relative for file in files] == ["fine.md"]
    assert about(findings, root) == dict.fromkeys(
        ["fifo.md", "socket.md"], "left out: it is not a regular file"
    )


@by_both_ways
def test_a_file_over_the_size_limit_is_reported_and_not_read(write: Write, by_descriptor: bool) -> None:
    root = write({"exact.md": "x" * 1000, "over.md": "x" * 1001})
    with (root / "sparse.md").open("wb") as file:
        file.truncate(2 * 1024**3)

    files, findings = read(root, by_descriptor)

    assert [file.relative for file in files] == ["exact.md"]
    assert set(about(findings, root)) == {"over.md", "sparse.md"}
    assert findings[0].message == (
        "left out: it is over 1,000 bytes; divide it or raise the limit 'document_bytes'"
    )


def test_a_limit_of_any_size_takes_no_room_of_its_own(write: Write) -> None:
    root = write({"short.md": "Short."})
    assert [each.name for each in load(root, document_bytes=10**15).documents] == ["short"]


@by_both_ways
@pytest.mark.parametrize("is_fifo", [False, True])
def test_a_file_swapped_for_a_link_or_a_fifo_after_listing_is_not_read_and_blocks_nothing(
    write: Write, secret: Path, by_descriptor: bool, is_fifo: bool
) -> None:
    root = write({"a.md": "first", "b.md": "second", "c.md": "third"})
    files = FolderReader(root, Allowance(100, 1000), by_descriptor=by_descriptor).files()

    assert next(files).relative == "a.md"
    (root / "b.md").unlink()
    os.mkfifo(root / "b.md") if is_fifo else (root / "b.md").symlink_to(secret / "secret.md")

    assert [file.data for file in files] == [b"third"]


SWAPPED = """
import sys
from pathlib import Path
from mcp_context_proxy.catalog.files import Allowance, FolderReader

root, name, secret, opened = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
place = root / name

def swap(event, args):
    if event == "open" and args[0] == str(root / opened) and not place.is_symlink():
        place.rename(root / "away")
        place.symlink_to(secret)

sys.addaudithook(swap)
reader = FolderReader(root, Allowance(100, 1000), by_descriptor=False)
print([file.data.decode() for file in reader.files()], [finding.message for finding in reader.findings])
"""
"""Swaps something for a link the moment before it is opened; audit hooks are for the rest of a process."""


@pytest.mark.parametrize(("name", "opened"), [("b.md", "b.md"), ("sub", "sub/secret.md")])
def test_a_file_swapped_for_a_link_while_it_is_opened_by_path_is_not_read(
    write: Write, secret: Path, name: str, opened: str
) -> None:
    root = write({"b.md": "honest", "sub/secret.md": "honest"})
    target = secret / "secret.md" if name == "b.md" else secret
    command = [sys.executable, "-c", SWAPPED, str(root), name, str(target), opened]

    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert found == "['honest'] ['left out: links are not followed']\n"


@by_both_ways
def test_a_folder_swapped_for_a_link_is_not_entered(write: Write, secret: Path, by_descriptor: bool) -> None:
    root = write({"a.md": "first", "sub/secret.md": "honest"})
    files = FolderReader(root, Allowance(100, 1000), by_descriptor=by_descriptor).files()

    assert next(files).relative == "a.md"
    (root / "sub").rename(root / "away")
    (root / "sub").symlink_to(secret)

    assert list(files) == []


def test_a_folder_swapped_while_it_is_read_is_read_to_its_end(write: Write, secret: Path) -> None:
    root = write({"sub/a.md": "first", "sub/secret.md": "honest"})
    files = FolderReader(root, Allowance(100, 1000), by_descriptor=True).files()

    assert next(files).relative == "sub/a.md"
    (root / "sub").rename(root / "away")
    (root / "sub").symlink_to(secret)

    assert [file.data for file in files] == [b"honest"]


@by_both_ways
def test_a_file_deleted_after_listing_is_left_out_without_a_finding(
    write: Write, by_descriptor: bool
) -> None:
    root = write({"a.md": "first", "b.md": "second"})
    reader = FolderReader(root, Allowance(100, 1000), by_descriptor=by_descriptor)
    files = reader.files()

    assert next(files).relative == "a.md"
    (root / "b.md").unlink()

    assert list(files) == []
    assert reader.findings == []


@by_both_ways
def test_the_configured_folder_itself_may_be_a_link(
    write: Write, tmp_path: Path, by_descriptor: bool
) -> None:
    (tmp_path / "link").symlink_to(write({"sub/a.md": "x"}))

    assert [file.relative for file in read(tmp_path / "link", by_descriptor)[0]] == ["sub/a.md"]


@pytest.mark.parametrize("bound", ["cwd", "roots"])
def test_a_project_leads_out_of_itself_by_no_link(
    write: Write, secret: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Whoever wrote the repository has put the link there, and not the person who configured the path."""
    root = write({"fine.md": "fine"})
    (root / "AGENTS.md").symlink_to(secret / "secret.md")
    (root / "rules").symlink_to(secret)
    (root / "CLAUDE.md").symlink_to("fine.md")
    monkeypatch.chdir(root)
    settings = {"cwd": "launch"} if bound == "cwd" else {"roots": (root,)}
    paths = ("AGENTS.md", "rules", "CLAUDE.md", "../docs-secret/secret.md")
    loaded = load_documents([DocumentsConfig(path=root / path, **settings) for path in paths], Limits())

    # The last is what the person has written.
    assert sorted(document.text for document in loaded.documents) == ["SECRET", "fine"]
    assert [finding.message for finding in loaded.findings] == [f"left out: a link leads out of {root}"] * 2


@by_both_ways
def test_a_configured_path_with_dots_is_read(write: Write, by_descriptor: bool) -> None:
    root = write({"sub/b.md": "x", "a.md": "x"})

    assert [file.relative for file in read(root / "sub" / "..", by_descriptor)[0]] == ["a.md", "sub/b.md"]


@by_both_ways
@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("missing", "there is no such folder; it is read as soon as there is one", id="missing"),
        pytest.param("fifo", "cannot be read: Not a directory", id="a FIFO"),
    ],
)
def test_a_configured_path_that_is_no_file_or_folder_is_reported(
    docs: Path, by_descriptor: bool, name: str, message: str
) -> None:
    os.mkfifo(docs / "fifo")

    assert read(docs / name, by_descriptor) == ([], [Finding(docs / name, None, message)])


@pytest.mark.skipif(os.name != "nt" and os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_is_reported(write: Write) -> None:
    root = write({"fine.md": "x", "closed.md": "x", "folder/a.md": "x"})
    (root / "closed.md").chmod(0)
    (root / "folder").chmod(0)
    try:
        files, findings = read(root)
    finally:
        (root / "folder").chmod(0o700)

    assert [file.relative for file in files] == ["fine.md"]
    assert about(findings, root) == dict.fromkeys(
        ["closed.md", "folder"], "cannot be read: Permission denied"
    )


def test_files_beyond_the_limit_are_left_out_and_reported(write: Write) -> None:
    loaded = load(write({f"{n}.md": "x" for n in range(5)}), documents=3)

    assert [document.name for document in loaded.documents] == ["0", "1", "2"]
    assert "more files than the limit 'documents' allows" in str(loaded.findings[0])


@pytest.mark.parametrize(
    ("allowance", "message"),
    [
        pytest.param(Allowance(100, 1000, entries=3), "entries; the rest", id="entries"),
        pytest.param(Allowance(100, 1000, total_bytes=3), "bytes together; the rest", id="bytes"),
    ],
)
def test_reading_folders_ends_at_the_limit_of_entries(
    write: Write, allowance: Allowance, message: str
) -> None:
    root = write({f"{n}.md": "x" for n in range(5)})
    files, findings = read(root, allowance=allowance)

    assert len(files) <= 3
    assert message in findings[0].message


@by_both_ways
def test_folders_that_are_too_deep_are_reported_and_not_entered(write: Write, by_descriptor: bool) -> None:
    deepest = "/".join(["d"] * DEPTH_LIMIT)
    root = write({f"{deepest}/a.md": "x", f"{deepest}/d/b.md": "x"})

    files, findings = read(root, by_descriptor)

    assert [file.relative for file in files] == [f"{deepest}/a.md"]
    assert findings[0].message == f"left out: it is more than {DEPTH_LIMIT} folders deep"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are UTF-8")
def test_a_file_name_that_is_not_utf8_is_reported(docs: Path) -> None:
    (docs / os.fsdecode(b"\xff.md")).write_text("x", encoding="utf-8")
    loaded = load(docs)

    assert loaded.documents == ()
    assert str(loaded.findings[0]) == f"{docs}/\\udcff.md: left out: its name is not UTF-8; rename it"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs a list of open descriptors")
def test_no_file_descriptor_stays_open(write: Write) -> None:
    root = write({"a/b/c.md": "x", "d.md": b"\xff", "e.md": "x" * 2000})
    before = open_descriptors()
    read(root)
    reader = FolderReader(root, Allowance(100, 1000))
    unfinished = reader.files()
    next(unfinished)
    unfinished.close()

    assert open_descriptors() == before
