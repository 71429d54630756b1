"""The store keeps its rows, and whatever happens to its file, it opens."""

import os
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.commands import forked_program

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import Vector
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.tables import LISTINGS_KEPT

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "store.sqlite3"


def vector(seed: int) -> Vector:
    values = np.random.default_rng(seed).normal(size=384)
    return (values / np.linalg.norm(values)).astype(np.float32)


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def fill(path: Path, count: int = 200) -> None:
    with open_store(path) as store:
        store.vectors.put("model", {key(n): vector(n) for n in range(count)})


def usable(store: Store) -> bool:
    store.vectors.put("other model", {key(1): vector(1)})
    return np.array_equal(store.vectors.get("other model", [key(1)])[key(1)], vector(1))


def test_stored_vectors_are_found_after_a_restart(path: Path) -> None:
    fill(path, 1200)
    with open_store(path) as store:
        found = store.vectors.get("model", [key(n) for n in range(1500)])

        assert (store.path, store.warning) == (path, None)
    assert len(found) == 1200
    assert found[key(7)].dtype == np.float32
    np.testing.assert_array_equal(found[key(7)], vector(7))


def test_a_store_in_memory_writes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("memory") as store:
        assert usable(store)
        assert (store.path, store.warning) == (None, None)
    with open_store("memory") as store:
        assert store.vectors.get("other model", [key(1)]) == {}

    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_DATA_HOME is a convention of Linux")
def test_without_a_path_the_store_is_in_the_users_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    with open_store() as store:
        assert store.path == tmp_path / "mcp-context-proxy" / "store.sqlite3"
        assert store.path.exists()


def test_two_stores_of_one_process_share_a_file(path: Path) -> None:
    """During a reload the old one may still be open."""
    with open_store(path) as old, open_store(path) as new:
        old.vectors.put("model", {key(1): vector(1)})
        new.vectors.put("model", {key(2): vector(2)})

        assert len(old.vectors.get("model", [key(1), key(2)])) == 2
        assert old.warning is new.warning is None


@posix_only
def test_only_the_owner_may_read_the_store(path: Path) -> None:
    with open_store(path) as store:
        store.vectors.put("model", {key(1): vector(1)})
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}

    assert modes == {"store.sqlite3": 0o600, "store.sqlite3-wal": 0o600, "store.sqlite3-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@posix_only
def test_new_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    """A user who may write in a parent folder may replace the folder itself."""
    before = os.umask(0)
    try:
        with open_store(tmp_path / "home" / "data" / "store.sqlite3") as store:
            store.vectors.put("model", {key(1): vector(1)})
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.rglob("*")}
    finally:
        os.umask(before)

    assert {modes.pop("home"), modes.pop("data")} == {0o700}
    assert set(modes.values()) == {0o600}


def test_threads_share_a_store(path: Path) -> None:
    with open_store(path) as store, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.vectors.put("model", {key(n): vector(n)}), range(200)))
        found = list(pool.map(lambda n: store.vectors.get("model", [key(n)]), range(200)))

    assert all(len(one) == 1 for one in found)


def test_a_put_is_all_or_nothing(path: Path) -> None:
    with open_store(path) as store:
        with pytest.raises(StoreError, match="NOT NULL"):
            store.vectors.put("model", {key(1): vector(1), None: vector(2)})  # type: ignore[dict-item]

        assert store.vectors.get("model", [key(1)]) == {}
        assert usable(store)


WRITER = """
import os
import sys
from pathlib import Path
import numpy as np
from mcp_context_proxy.store.opening import open_store
others = [] if len(sys.argv) < 3 else range(int(sys.argv[2]) - 1)
first = all(os.fork() for _ in others)
with open_store(Path(sys.argv[1])) as store:
    assert store.warning is None, store.warning
    for n in range(200):
        store.vectors.put("model", {n.to_bytes(32, "big"): np.full(384, n, np.float32)})
        assert len(store.vectors.get("model", [n.to_bytes(32, "big")])) == 1
if first:
    assert all(os.wait()[1] == 0 for _ in others)
"""


def test_processes_share_a_store(path: Path) -> None:
    """All of them create it at the same moment and write the same rows; nobody sees a lock."""
    command = forked_program(WRITER, path, "4")
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    with open_store(path) as store:
        assert len(store.vectors.get("model", [key(n) for n in range(300)])) == 200


def test_a_killed_process_leaves_a_sound_store(path: Path) -> None:
    """Everything written before the kill is there, and nothing is half there."""
    code = WRITER + "\n    print('written', flush=True)\n    sys.stdin.read()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.kill()
    process.communicate()

    with open_store(path) as store:
        assert store.warning is None
        assert len(store.vectors.get("model", [key(n) for n in range(200)])) == 200


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"this is no database at all, but somebody's notes" * 100, id="another file"),
        pytest.param(b"SQLite format 3\x00" + b"\xff" * 8176, id="damaged header"),
    ],
)
def test_a_damaged_store_is_moved_aside_and_replaced_by_an_empty_one(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)

    with open_store(path) as store:
        assert usable(store)
        assert store.path == path
        assert store.warning is not None

    (aside,) = path.parent.glob("store.corrupt-*")
    assert aside.read_bytes() == content
    assert aside.name in store.warning
    assert [record.getMessage() for record in caplog.records] == [f"{store.warning}."]


def test_a_truncated_store_is_moved_aside(path: Path) -> None:
    fill(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 // 4096 * 4096])

    with open_store(path) as store:
        assert usable(store)
        assert store.warning is not None
        assert "was damaged" in store.warning
    with open_store(path) as store:
        assert store.warning is None


def test_a_store_that_does_not_match_its_version_is_moved_aside(path: Path) -> None:
    """Such a store could never be migrated, and nothing would ever be kept again."""
    fill(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()

    with open_store(path) as store:
        assert usable(store)
        assert store.path == path
        assert store.warning is not None
        assert "its tables are not those of schema 1" in store.warning


def test_a_store_of_a_newer_version_is_left_alone(path: Path) -> None:
    """After a downgrade: the rows of the newer version must survive."""
    fill(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()

    with open_store(path) as store:
        assert usable(store)
        assert store.path is None
        assert store.warning is not None
        assert "a newer version wrote it" in store.warning
    assert [file.name for file in path.parent.iterdir()] == ["store.sqlite3"]


def test_without_a_writable_folder_the_store_is_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    with open_store(tmp_path / "file" / "store.sqlite3") as store:
        assert usable(store)
        assert store.path is None
        assert store.warning is not None
        assert "Nothing is kept after this run" in store.warning
    assert len(caplog.records) == 1


def test_a_folder_in_place_of_the_store_is_refused(path: Path) -> None:
    path.mkdir(parents=True)

    with open_store(path) as store:
        assert usable(store)
        assert store.path is None


def test_what_a_store_has_that_cannot_be_written_is_used_from_memory(path: Path) -> None:
    fill(path)
    path.with_name(f"{path.name}-wal").mkdir()

    with open_store(path) as store:
        assert store.path is None
        assert len(store.vectors.get("model", [key(n) for n in range(200)])) == 200
        assert usable(store)


@posix_only
def test_a_read_only_store_is_replaced_by_one_in_memory(path: Path) -> None:
    fill(path)
    path.chmod(0o400)
    writable_all_the_same = not _refuses_writing(path)
    if writable_all_the_same:
        pytest.skip("this user may write everything")

    with open_store(path) as store:
        assert usable(store)
        assert store.path is None
        assert store.warning is not None


def _refuses_writing(path: Path) -> bool:
    try:
        path.open("ab").close()
    except PermissionError:
        return True
    return False


def test_the_listings_that_are_kept_are_bounded_and_the_oldest_go() -> None:
    with open_store("memory") as store:
        for number in range(LISTINGS_KEPT + 5):
            store.listings.put(f"server {number}", float(number), b"listing")

        kept = [number for number in range(LISTINGS_KEPT + 5) if store.listings.get(f"server {number}")]
    assert kept == [*range(5, LISTINGS_KEPT + 5)]
