"""A changed file is served without a restart, even if its folders are moved or replaced meanwhile."""

import errno
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import watchfiles
from anyio.streams.memory import MemoryObjectReceiveStream

from mcp_context_proxy.catalog.documents import DocumentChanges, DocumentLibrary, watch
from mcp_context_proxy.config import DocumentsConfig, Limits
from mcp_context_proxy.config.reload import Looks
from mcp_context_proxy.items import Kind

Write = Callable[[dict[str, str | bytes]], Path]

PATIENCE = 30
"""Seconds; a change is told after about one."""


def library_of(folder: Path) -> DocumentLibrary:
    library = DocumentLibrary([DocumentsConfig(kind=Kind.RULE, path=folder)], Limits())
    library.reload()
    return library


@asynccontextmanager
async def watching(
    library: DocumentLibrary, **seams: Any
) -> AsyncIterator[MemoryObjectReceiveStream[DocumentChanges]]:
    send, receive = anyio.create_memory_object_stream[DocumentChanges](100)
    with anyio.fail_after(PATIENCE):
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: watch(library, send.send, **seams))
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

    assert "polled" not in caplog.text
    assert "its name is not UTF-8" in caplog.text


async def test_if_watching_fails_folders_are_polled_and_one_warning_is_logged(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    """The system's limit on watches is a usual one to meet."""

    async def exhausted(
        *paths: str, force_polling: bool | None, poll_delay_ms: int, **options: Any
    ) -> AsyncGenerator[set[tuple[watchfiles.Change, str]], None]:
        if not force_polling:
            raise OSError(errno.ENOSPC, "no space left on device")
        async for found in watchfiles.awatch(*paths, force_polling=True, poll_delay_ms=50, **options):
            yield found

    with caplog.at_level(logging.WARNING):
        async with watching(library_of(write({"a.md": "one"})), watch_paths=exhausted) as changes:
            write({"a.md": "a longer two"})
            assert await changes.receive() == DocumentChanges(changed=("rule://a",))
            write({"a.md": "an even longer three"})
            assert await changes.receive() == DocumentChanges(changed=("rule://a",))

    assert [message.split(" (")[0] for message in caplog.messages] == [
        "folders of documents cannot be watched"
    ]


async def test_if_polling_fails_too_changes_are_still_noticed(write: Write) -> None:
    async def broken(*_: str, **__: Any) -> AsyncGenerator[set[tuple[watchfiles.Change, str]], None]:
        raise OSError("no watcher of any kind")
        yield set()

    async with watching(library_of(write({"a.md": "one"})), watch_paths=broken) as changes:
        write({"a.md": "two"})
        assert await changes.receive() == DocumentChanges(changed=("rule://a",))


async def test_a_folder_that_is_replaced_unreported_is_noticed_by_the_watching_thread(
    write: Write, docs: Path
) -> None:
    """It looks itself, so the event loop sleeps for as long as nothing is different."""

    async def deaf(
        *_: str, stop_event: Looks, **__: Any
    ) -> AsyncGenerator[set[tuple[watchfiles.Change, str]], None]:
        while not await anyio.to_thread.run_sync(stop_event.is_set):  # noqa: ASYNC110 - as a thread does
            await anyio.sleep(0.01)
        return
        yield set()

    async with watching(library_of(write({"a.md": "one"})), watch_paths=deaf) as changes:
        await anyio.Path(docs).rename(docs.with_name("old"))
        write({"a.md": "two"})
        assert await changes.receive()
        await anyio.Path(docs).rename(docs.with_name("older"))
        write({"a.md": "three"})
        assert await changes.receive()


def test_a_watching_thread_looks_once_a_second_however_often_it_asks() -> None:
    looked = list[int]()
    looks = Looks(anyio.Event(), lambda: bool(looked.append(1)))
    assert not any(looks.is_set() for _ in range(1_000))
    assert len(looked) < 10


async def test_a_reload_that_waits_for_others_does_not_put_off_the_next_one(write: Write) -> None:
    waits = 0.5

    class Waiting(DocumentLibrary):
        def reload(self) -> DocumentChanges:
            threading.Event().wait(waits)  # as beside programs that take all processors, or on a slow disk
            return DocumentChanges(changed=("rule://a",))

    async def twice(
        *_paths: str, **_options: Any
    ) -> AsyncGenerator[set[tuple[watchfiles.Change, str]], None]:
        for _ in range(2):
            yield {(watchfiles.Change.modified, "a.md")}
        await anyio.sleep_forever()

    folder = write({"a.md": "one"})
    library = Waiting([DocumentsConfig(kind=Kind.RULE, path=folder)], Limits())
    async with watching(library, watch_paths=twice) as changes:
        await changes.receive()
        first = time.monotonic()
        await changes.receive()

    assert time.monotonic() - first < 3 * waits


async def test_without_folders_nothing_is_watched() -> None:
    async def never(changes: DocumentChanges) -> None:
        raise AssertionError(changes)

    with anyio.fail_after(PATIENCE):
        await watch(DocumentLibrary([], Limits()), never)
