"""A store that is held, full, taken away or damaged while it is open: nobody waits long, and it recovers."""

import logging
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.stores import MODEL, NOW, key, vector

from mcp_context_proxy.errors import NOTICE, StoreError
from mcp_context_proxy.store.database import StoreUnavailableError
from mcp_context_proxy.store.opening import Store, open_store

PATIENCE = 60

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be taken away there")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "store.sqlite3"


@contextmanager
def held(path: Path, *statements: str) -> Iterator[None]:
    """Another process holds the store; SQLite treats another connection as one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        for statement in statements:
            other.execute(statement)
        yield


def keep(store: Store, number: int = 1) -> None:
    store.vectors.put(MODEL, {key(number): vector(number)})


def kept(store: Store, number: int = 1) -> bool:
    return bool(store.vectors.get(MODEL, [key(number)]))


@pytest.mark.slow
def test_readers_do_not_wait_for_blocked_writers_and_one_warning_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(path) as store:
        keep(store)
        begun, failed = threading.Event(), threading.Event()

        def write() -> None:
            begun.set()
            with pytest.raises(StoreUnavailableError, match="locked"):
                keep(store, 2)
            failed.set()

        with held(path, "BEGIN IMMEDIATE"):
            writer = threading.Thread(target=write)
            writer.start()
            assert begun.wait(PATIENCE)
            for _ in range(10):
                assert kept(store)
            assert not failed.is_set()
            # And whoever writes after one has waited in vain hardly waits.
            assert failed.wait(PATIENCE)
            for write in (keep, lambda store: store.listings.put("k", NOW, b""), keep):
                with pytest.raises(StoreUnavailableError):
                    write(store)
        writer.join()
        keep(store, 2)
        assert kept(store, 2)
    told = [record.levelno for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == [logging.WARNING, NOTICE]


def test_a_store_locked_at_the_start_is_used_once_it_is_free(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_store(path).close()
    # Nobody can even read it then.
    exclusively = "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "CREATE TABLE other (x)", "COMMIT"
    with held(path, *exclusively):
        store = open_store(path)
        with pytest.raises(StoreUnavailableError):
            keep(store)
        with pytest.raises(StoreUnavailableError):
            kept(store)
    with store:
        assert store.path == path
        assert store.warning is not None
        assert "tried again" in store.warning
        until_kept(store)
    with open_store(path) as store:
        assert kept(store)
    assert "in memory, the latest of it" in caplog.text


def until_kept(store: Store) -> None:
    """Try until it is time again to open the file."""
    for _ in range(100 * PATIENCE):
        try:
            keep(store)
            return
        except StoreUnavailableError:
            threading.Event().wait(0.01)
    raise AssertionError


@pytest.mark.parametrize("taken", ["folder", "file", "moved"])
def test_a_deleted_store_is_created_anew_with_a_warning(
    path: Path, taken: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(path) as store:
        keep(store)
        if taken == "folder":
            shutil.rmtree(path.parent)
        elif taken == "file":
            for file in path.parent.iterdir():
                file.unlink()
        else:
            path.parent.rename(path.parent.with_name("elsewhere"))
            path.parent.mkdir()
        assert not kept(store)
        keep(store, 2)
        with open_store(path) as again:
            assert kept(again, 2)
    assert caplog.text.count("was removed") == 1


def test_a_replaced_store_file_is_used(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite3"
    with open_store(other) as store:
        keep(store, 2)
    with open_store(path) as store:
        keep(store, 1)
        for file in path.parent.iterdir():
            file.unlink()
        other.replace(path)
        assert (kept(store, 1), kept(store, 2)) == (False, True)


def test_a_store_that_is_damaged_while_it_is_open_is_set_aside(path: Path) -> None:
    with open_store(path) as store:
        for number in range(200):
            keep(store, number)
        for file in path.parent.glob("store.sqlite3*"):
            os.truncate(file, 0 if file.name.endswith("-wal") else 4096)
            file.write_bytes(b"\xff" * 4096)
        for _ in range(3):
            try:
                keep(store, 300)
                break
            except StoreError:
                continue
        assert kept(store, 300)
    assert list(path.parent.glob("store.corrupt-*"))


def test_the_latest_three_damaged_stores_are_kept(path: Path) -> None:
    path.parent.mkdir()
    for number in range(5):
        path.write_bytes(b"damaged %d" % number * 1000)
        open_store(path).close()
    aside = sorted(path.parent.glob("store.corrupt-*"))
    assert [file.read_bytes()[:9] for file in aside] == [b"damaged 2", b"damaged 3", b"damaged 4"]


def test_files_that_others_could_read_are_made_private(path: Path) -> None:
    """A copy from elsewhere, made with the usual rights."""
    open_store(path).close()
    path.chmod(0o644)
    with open_store(path) as store:
        keep(store)
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}


def test_a_fifo_in_place_of_the_store_blocks_nothing(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    with open_store(path) as store:
        keep(store)
        assert store.path is None
        assert store.warning is not None
        assert "it is not a regular file" in store.warning
