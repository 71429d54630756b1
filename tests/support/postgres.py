"""A PostgreSQL server of the tests' own, in a folder of its own, reached over a socket in that folder."""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from support.nobody import NOBODY, as_nobody
from support.stores import MEMORY_DISK

PATIENCE = 60


@cache
def missing() -> str | None:
    """Why there is no server for tests; None if there is one."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        return f"needs the extra postgres: {error}"
    if sys.platform == "win32":
        return "the server is started over POSIX"
    return None if programs() is not None else "needs PostgreSQL: initdb and postgres were not found"


@cache
def programs() -> Path | None:
    """The folder of the server's programs: POSTGRES_BIN, or that of the newest installed version."""
    if chosen := os.environ.get("POSTGRES_BIN"):
        return Path(chosen)
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: -float(each.parent.name))
    for folder in (*folders, *map(Path, os.environ.get("PATH", "").split(os.pathsep))):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


def other_programs() -> Path | None:
    """The folder of the programs of another version, OTHER_POSTGRES_BIN; None if there is none."""
    chosen = os.environ.get("OTHER_POSTGRES_BIN")
    return Path(chosen) if chosen else None


class PostgresServer:
    """A server that tests may kill, pause and start again."""

    def __init__(self, folder: Path, found: Path) -> None:
        """Name a folder of the server's own, and that of its programs."""
        self.folder, self.data, self.programs = folder, folder / "data", found
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        quick = ("fsync=off", "full_page_writes=off", "listen_addresses=")
        settings = [
            part for each in (*quick, f"unix_socket_directories={self.folder}") for part in ("-c", each)
        ]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [*as_nobody, str(self.programs / "postgres"), "-D", str(self.data), *settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self._wait()

    def _wait(self) -> None:
        import psycopg

        until = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        """End all of its processes at once, as the machine's failure would."""
        if self._process is not None and self._process.poll() is None:
            self.pause()  # a server that is stopped starts no further process
            # One that lived on would write to the files that the next server has begun to repair.
            with ExitStack() as stack:
                ended = [os.pidfd_open(pid) for pid in self._children()]
                for descriptor in ended:
                    stack.callback(os.close, descriptor)
                self._signal(signal.SIGKILL)
                self._process.wait(PATIENCE)
                for descriptor in ended:
                    assert select.select([descriptor], [], [], PATIENCE)[0], (
                        "a process of the server lives on"
                    )
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for left in self.folder.glob(".s.PGSQL.*"):
            left.unlink()

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)  # now it starts no further process
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        # Its children have sessions of their own, and once it has ended it has none.
        for pid in (self._process.pid, *self._children()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _children(self) -> list[int]:
        assert self._process is not None
        found = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(pid) for pid in found.read_text().split()] if found.exists() else []

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.resume()
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def postgres_server(found: Path | None = None) -> Iterator[PostgresServer]:
    """Start a server with an empty database, as a user without rights, with these programs or the usual."""
    found = found or programs()
    assert found is not None
    parent = MEMORY_DISK if MEMORY_DISK.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir=parent))
    try:
        if as_nobody:
            os.chown(folder, NOBODY, NOBODY)
        server = PostgresServer(folder, found)
        initdb = [
            str(found / "initdb"),
            "-D",
            str(server.data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
        ]
        subprocess.run(
            [*as_nobody, *initdb, "--no-sync", "--locale=C"],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=PATIENCE,
            cwd=folder,
        )
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def standby_of(primary: PostgresServer, spare: PostgresServer) -> None:
    """Make a server the synchronous standby of another one."""
    shutil.rmtree(spare.folder, ignore_errors=True)
    spare.folder.mkdir()
    if as_nobody:
        os.chown(spare.folder, NOBODY, NOBODY)
    import psycopg

    with psycopg.connect(primary.url, autocommit=True) as connection:
        # Copied with it, the setting would have the standby wait for one of its own.
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
        # For so long a standby that has lost its primary sleeps, and it is promoted only then.
        connection.execute("ALTER SYSTEM SET wal_retrieve_retry_interval = '500ms'")
    copied = [str(primary.programs / "pg_basebackup"), "-h", str(primary.folder), "-U", "postgres"]
    copied += ["-D", str(spare.data), "-R", "--checkpoint=fast"]
    subprocess.run([*as_nobody, *copied], check=True, cwd=spare.folder)
    spare.start()
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
        while (
            connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone()
            is None
        ):
            time.sleep(0.05)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server of this session; one that is killed or paused by a test has one of its own."""
    if reason := missing():
        pytest.skip(reason)
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def other_postgres() -> Iterator[PostgresServer]:
    """A server of another version."""
    if (reason := missing()) or (found := other_programs()) is None:
        pytest.skip(reason or "needs another version of PostgreSQL: OTHER_POSTGRES_BIN")
    with postgres_server(found) as server:
        yield server
