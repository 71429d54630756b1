"""A changed file is served without a restart, even if its folders are moved or replaced meanwhile."""

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream
from support.documents import Write

from mcp_context_proxy.catalog.documents import DocumentChanges, DocumentLibrary, watch
from mcp_context_proxy.config import DocumentsConfig, Limits
from mcp_context_proxy.config.reload import MISSING_LOOKS, SETTLE_SECONDS
from mcp_context_proxy.config.reload import changes as changes_of
from mcp_context_proxy.items import Kind

PATIENCE = 30
"""Seconds; a change is told after about one."""


def library_of(folder: Path) -> DocumentLibrary:
    library = DocumentLibrary([DocumentsConfig(kind=Kind.RULE, path=folder)], Limits())
    library.reload()
    return library


@asynccontextmanager
async def watching(
    library: DocumentLibrary,
) -> AsyncIterator[MemoryObjectReceiveStream[DocumentChanges]]:
    send, receive = anyio.create_memory_object_stream[DocumentChanges](100)
    with anyio.fail_after(PATIENCE):
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(watch, library, send.send)
            yield receive
            tasks.cancel_scope.cancel()


async def test_changed_new_and_removed_files_are_noticed(write: Write) -> None:
    root = write({"a.md": "one", "sub/b.md": "one"})
    async with watching(library := library_of(root)) as changes:
        write({"sub/b.md": "two"})
        assert await changes.receive() == DocumentChanges(changed=("rule://sub%2Fb",))
        write({"c.md": "three"})
        assert await changes.receive() == DocumentChanges(added=("rule://c",))
        (root / "a.md").unlink()
        assert await changes.receive() == DocumentChanges(removed=("rule://a",))

    assert {document.name: document.text for document in library.loaded.documents} == {
        "sub/b": "two",
        "c": "three",
    }


async def test_a_file_in_a_new_folder_is_noticed(write: Write) -> None:
    async with watching(library_of(write({"a.md": "one"}))) as changes:
        write({"new/deep/b.md": "two"})
        assert await changes.receive() == DocumentChanges(added=("rule://new%2Fdeep%2Fb",))
        write({"new/deep/b.md": "three"})
        assert await changes.receive() == DocumentChanges(changed=("rule://new%2Fdeep%2Fb",))


async def test_a_folder_that_is_deleted_and_made_again_is_watched_again(write: Write, docs: Path) -> None:
    async with watching(library_of(write({"a.md": "one"}))) as changes:
        shutil.rmtree(docs)
        assert await changes.receive() == DocumentChanges(removed=("rule://a",))
        write({"a.md": "two"})
        assert await changes.receive() == DocumentChanges(added=("rule://a",))
        write({"a.md": "three"})
        assert await changes.receive() == DocumentChanges(changed=("rule://a",))


async def test_a_folder_that_is_replaced_at_once_is_watched_again(write: Write, docs: Path) -> None:
    async with watching(library_of(write({"a.md": "one"}))) as changes:
        await anyio.Path(docs).rename(docs.with_name("old"))
        write({"a.md": "two"})
        assert await changes.receive()
        write({"a.md": "three"})
        assert await changes.receive() == DocumentChanges(changed=("rule://a",))


async def test_a_folder_that_does_not_exist_yet_is_watched_once_it_does(write: Write, docs: Path) -> None:
    async with watching(library_of(docs / "not" / "yet")) as changes:
        write({"not/yet/a.md": "one"})
        assert await changes.receive() == DocumentChanges(added=("rule://a",))


async def test_a_single_configured_file_is_watched_whatever_its_name(write: Write) -> None:
    root = write({".windsurfrules": "one"})
    async with watching(library_of(root / ".windsurfrules")) as changes:
        write({".windsurfrules": "two"})
        assert await changes.receive() == DocumentChanges(changed=("rule://windsurfrules",))


async def test_a_change_before_the_watcher_is_ready_is_noticed(write: Write) -> None:
    library = library_of(write({"a.md": "one"}))
    write({"a.md": "two"})
    async with watching(library) as changes:
        assert await changes.receive() == DocumentChanges(changed=("rule://a",))


async def test_changes_to_other_files_are_ignored(write: Write) -> None:
    async with watching(library_of(write({"a.md": "one"}))) as changes:
        write({"a.md": "one", "notes.txt": "x", ".hidden.md": "x"})
        write({"b.md": "two"})
        assert await changes.receive() == DocumentChanges(added=("rule://b",))
        assert changes.statistics().current_buffer_used == 0


async def test_a_failing_callback_does_not_end_the_watch(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[DocumentChanges] = []
    second = anyio.Event()

    async def on_change(changes: DocumentChanges) -> None:
        told.append(changes)
        if len(told) == 1:
            write({"a.md": "three"})
            raise RuntimeError("broken callback")
        second.set()

    library = library_of(write({"a.md": "one"}))
    with anyio.fail_after(PATIENCE), caplog.at_level(logging.ERROR):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, library, on_change)
            write({"a.md": "two"})
            await second.wait()
            tasks.cancel_scope.cancel()

    assert caplog.messages == ["rules and references could not be reloaded"]


def not_utf8(folder: Path, name: bytes) -> Path:
    return Path(os.fsdecode(os.fsencode(folder) + b"/" + name))


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode there")
async def test_names_that_are_not_utf8_do_not_end_the_watching(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    root = write({"a.md": "one"})
    inside = anyio.Path(not_utf8(root, b"folder\xff"))
    await inside.mkdir()
    await (inside / "b.md").write_text("inside", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        async with watching(library_of(root)) as changes:
            await anyio.Path(not_utf8(root, b"file\xff.md")).write_text("x", encoding="utf-8")
            write({"a.md": "two"})
            assert await changes.receive() == DocumentChanges(changed=("rule://a",))

    assert "its name is not UTF-8" in caplog.text


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="every file can be read")
async def test_a_file_that_may_be_read_from_now_on_is_noticed(write: Write) -> None:
    root = write({"a.md": "one", "b.md": "two"})
    (root / "b.md").chmod(0)
    async with watching(library_of(root)) as changes:
        (root / "b.md").chmod(0o600)
        assert await changes.receive() == DocumentChanges(added=("rule://b",))


async def test_a_link_that_leads_to_another_folder_is_noticed(write: Write, tmp_path: Path) -> None:
    """As mounted configurations change: the files themselves stay as they are."""
    write({"old/a.md": "one"})
    root = write({"new/a.md": "two"})
    link, turned = tmp_path / "link", tmp_path / "turned"
    link.symlink_to(root / "old")
    async with watching(library_of(link)) as changes:
        turned.symlink_to(root / "new")
        turned.replace(link)
        assert await changes.receive() == DocumentChanges(changed=("rule://a",))


async def test_many_files_are_looked_at_less_often() -> None:
    """A look at some thousand files takes 20 ms of processor, so there are 4 s between two of them."""
    looked = list[float]()

    def look() -> None:
        looked.append(time.thread_time())
        while time.thread_time() - looked[-1] < 0.02:
            pass

    with anyio.move_on_after(3 + MISSING_LOOKS * SETTLE_SECONDS):
        async for _ in changes_of(look):
            pass
    assert len(looked) <= 1 + MISSING_LOOKS


async def test_looks_take_no_thread_from_other_work_and_end_with_the_watch() -> None:
    pool, more, looks = anyio.to_thread.current_default_thread_limiter(), 3, list[int]()
    looked = anyio.Event()

    def look() -> bool:
        looks.append(threading.get_ident())
        return True

    async def watch_for_ever(*, first: bool) -> None:
        async for _ in changes_of(look, 0.01):
            if first:
                looked.set()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for number in range(int(pool.total_tokens) + more):
                tasks.start_soon(partial(watch_for_ever, first=number == 0))
            await looked.wait()
            while len(set(looks)) < pool.total_tokens + more:
                await anyio.to_thread.run_sync(time.sleep, 0.01)
            assert pool.borrowed_tokens == 0
            tasks.cancel_scope.cancel()
        before = -1
        while before < len(looks):
            before = len(looks)
            await anyio.sleep(0.1)


async def test_a_reload_that_waits_for_others_does_not_put_off_the_next_one(write: Write) -> None:
    waits = 1.0

    class Waiting(DocumentLibrary):
        def reload(self) -> DocumentChanges:
            write({f"{time.monotonic_ns()}.md": "one"})
            threading.Event().wait(waits)  # as beside programs that take all processors, or on a slow disk
            return DocumentChanges(changed=("rule://a",))

    folder = write({"a.md": "one"})
    library = Waiting([DocumentsConfig(kind=Kind.RULE, path=folder)], Limits())
    async with watching(library) as changes:
        await changes.receive()
        first = time.monotonic()
        await changes.receive()

    assert time.monotonic() - first < 3.5 * waits


async def test_without_folders_nothing_is_watched() -> None:
    async def never(changes: DocumentChanges) -> None:
        raise AssertionError(changes)

    with anyio.fail_after(PATIENCE):
        await watch(DocumentLibrary([], Limits()), never)
