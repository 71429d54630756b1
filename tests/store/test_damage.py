"""Whatever is wrong with the bytes of a store, it opens, and each table answers or raises a `StoreError`."""

import contextlib
import logging
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stores import NOW, add, key, quick_folder, reads, vector

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.opening import open_store

pytestmark = pytest.mark.slow

FLIPS = [
    pytest.param(200, marks=pytest.mark.smaller),
    pytest.param(1_000, marks=pytest.mark.full_cross),
    pytest.param(2_000, marks=pytest.mark.nightly),
]
PAGE = 4096
SOME = (1, 7, 11)
STORE, LOG = "store.sqlite3", "store.sqlite3-wal"

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # Each damaged store is told of in the log.
    logging.disable(logging.WARNING)
    with quick_folder() as made:
        yield made
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def sound(folder: Path) -> Files:
    """The files of a store as a killed process leaves them, part of it still in the log."""
    path = folder / "sound" / STORE
    with open_store(path) as store:
        add(store, range(1, 10))
    with open_store(path) as store:
        add(store, range(10, 13))
        files = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert len(files[LOG]) > 10 * PAGE
    return files


@pytest.fixture(scope="module")
def other(folder: Path) -> Files:
    """The files of another store."""
    path = folder / "other" / STORE
    with open_store(path) as store:
        add(store, range(100, 140))
        return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def survive(folder: Path, files: Files) -> bool:
    """Open and use a store of these files, twice; whether it was set aside."""
    place = folder / "damaged"
    place.mkdir(exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content)
    with open_store(place / STORE) as store:
        for read in reads(store, SOME):
            with contextlib.suppress(StoreError):
                read()
        for number in SOME:
            with contextlib.suppress(StoreError):
                found = store.listings.get(f"server {number}")
                # What a server listed is never another than it was.
                assert found is None or found[1] == b"listing %d" % number
        with contextlib.suppress(StoreError):
            store.vectors.put("other", {key(1): vector(1)})
        aside = store.warning is not None
    for file in place.iterdir():
        file.unlink()
    return aside


def damaged(files: Files, name: str, content: bytes | None) -> Files:
    rest = {key: value for key, value in files.items() if key != name}
    return rest if content is None else rest | {name: content}


def checkpointed(files: Files) -> Files:
    """The store without its log, as a process leaves it that was not killed."""
    return {STORE: files[STORE]}


def flipped(content: bytes, at: int, bit: int) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]


@pytest.mark.parametrize("flips", FLIPS)
def test_with_any_of_many_bits_flipped_the_store_works(folder: Path, sound: Files, flips: int) -> None:
    chance = random.Random(1)
    aside = 0
    for flip in range(flips):
        files = checkpointed(sound) if flip % 3 == 0 else sound
        name = LOG if flip % 3 == 1 else STORE
        bit = chance.randrange(len(files[name])), chance.randrange(8)
        aside += survive(folder, damaged(files, name, flipped(files[name], *bit)))

    assert 0 < aside < flips / 2


@pytest.mark.parametrize("name", [STORE, LOG])
def test_truncated_at_any_page_the_store_works(folder: Path, sound: Files, name: str) -> None:
    for size in range(0, len(sound[name]), PAGE):
        survive(folder, damaged(sound, name, sound[name][:size]))
        survive(folder, damaged(checkpointed(sound), name, sound[name][:size]))


@pytest.mark.parametrize("name", [STORE, LOG])
def test_with_any_page_zeroed_the_store_works(folder: Path, sound: Files, name: str) -> None:
    for at in range(0, len(sound[name]), PAGE):
        zeroed = sound[name][:at] + bytes(PAGE) + sound[name][at + PAGE :]
        survive(folder, damaged(sound, name, zeroed[: len(sound[name])]))
        survive(folder, damaged(checkpointed(sound), name, zeroed[: len(sound[name])]))


@pytest.mark.parametrize("name", [LOG, "store.sqlite3-shm", STORE])
def test_with_a_file_missing_or_of_another_store_the_store_works(
    folder: Path, sound: Files, other: Files, name: str
) -> None:
    for content in (None, b"", other[name], bytes(len(sound[name]))):
        survive(folder, damaged(sound, name, content))


def test_undamaged_rows_survive(folder: Path, sound: Files) -> None:
    assert not survive(folder, sound)
    place = folder / "again"
    place.mkdir()
    for name, content in sound.items():
        (place / name).write_bytes(content)
    with open_store(place / STORE) as store:
        assert [row.id for row in store.requests.latest(100)] == [f"r{n}" for n in range(12, 0, -1)]
        assert store.listings.get("server 11") == (NOW, b"listing 11")


def test_a_store_that_has_lost_the_revision_of_an_area_is_read_and_written(tmp_path: Path) -> None:
    with open_store(tmp_path / STORE) as store:
        add(store, range(3))
        before = store.learned.all()
    with contextlib.closing(sqlite3.connect(tmp_path / STORE)) as database, database:
        database.execute("DELETE FROM areas")
    with open_store(tmp_path / STORE) as store:
        store.listings.put("another", NOW, b"listing")
        store.learned.put(before[:1])

        assert {pair.key for pair in store.learned.all()} == {pair.key for pair in before} != set()
        assert store.listings.get("another") == (NOW, b"listing")
