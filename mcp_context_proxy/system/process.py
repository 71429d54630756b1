"""The process as a whole: signals, memory, open files, child processes, the time of day, bounds on rates.

Importing this module is cheap, because a signal may arrive while the rest is still being imported.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import logging
import mmap
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, lru_cache
from math import inf
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, NoReturn, cast

import anyio

from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import in_thread

if sys.platform != "win32":
    import resource

logger = logging.getLogger(__name__)

HANGUP = getattr(signal, "SIGHUP", None)
"""Asks to read the configuration again; Windows has no such signal."""

SIGNALS = () if HANGUP is None else (signal.SIGINT, signal.SIGTERM, HANGUP)
"""The signals that are listened for. An event loop of Windows cannot: there, Ctrl-C cancels what runs.
Elsewhere it is among them because asyncio cancels only once, and some code swallows that."""

SWITCH_SECONDS = 0.0005
"""How long a thread may hold the interpreter while others wait. With Python's default of 5 ms, each step of a
request waits that long for the thread that reads a catalog: the event loop woke up 10 ms late in the median,
now 4 ms, for the same processor time."""

GARBAGE_SEARCHES = (2_000, 5, 20)
"""New objects until they are searched for garbage, such searches until those that they left are searched,
and those until all objects are, which stops every thread: eight times, while 100,000 tools are indexed with
Python's defaults, now twice, for up to 60 ms. With 100 instead of 20, what failing connections had left took
0.3 s to search and to free after a quarter of an hour on a busy machine. A burst of calls has a thousand
objects under way. With 5,000, five searches leave so many that looking at them takes 23 ms, now 12."""

OPEN_FILES_WANTED = 65_536
"""Enough for 1,000 servers and their clients, ten times over."""

GROWN_BYTES = 32 * 1024 * 1024
"""Growth above the smallest size seen that makes trimming worthwhile."""

USEFUL_BYTES = 4 * 1024 * 1024
"""Memory that one trim must return; with less, the growth is in use and the next attempt waits longer."""

MAPS, SMAPS = Path("/proc/self/maps"), Path("/proc/self/smaps")
"""Memory of this process by mapping, on Linux; the second looks at each page: 14 ms for 500 MB."""

TRIM_SECONDS, TRIM_MAX_SECONDS = 5.0, 600.0
"""Shortest and longest wait between two looks at the memory of the process."""

LARGE_BYTES = 1024 * 1024
"""Size from which an allocation is returned to the system as soon as it is freed: large messages."""

KEPT_BYTES = 4 * LARGE_BYTES
"""Free memory at the end of the heap that is kept for the next request. By default it is 128 KiB: a search of
100,000 tools then gives megabytes back page by page, and the next one takes them again."""

MALLOC_TRIM_THRESHOLD, MALLOC_MMAP_THRESHOLD, MALLOC_ARENA_MAX = -1, -3, -8
"""``M_TRIM_THRESHOLD``, ``M_MMAP_THRESHOLD`` and ``M_ARENA_MAX`` of malloc.h."""

PR_SET_DUMPABLE = 4
"""An option of prctl(2)."""

DEBUG_VARIABLE = "MCP_CONTEXT_PROXY_DEBUGGABLE"
"""Environment variable that leaves the process open to debuggers and profilers of the same user."""

STATM = Path("/proc/self/statm")
OPEN_FILES = "/dev/fd"
"""A folder with one entry for each open file of the process."""

SERVERS_SHARE = 2 / 3
"""Share of the file descriptors that servers may use; above it, no further server is started."""

HOSTS_SHARE = 1 / 6
"""Share for connections at the HTTP front. The rest is for files, and for servers that start meanwhile."""


def ignore_sighup() -> None:
    """Ignore ``SIGHUP`` until `listen_for_signals` takes over, unless the terminal was closed."""
    if HANGUP is None:
        return
    in_terminal = has_terminal()

    def on_hangup(number: int, frame: FrameType | None) -> None:
        del frame
        if in_terminal and not has_terminal():
            if _held is not None:
                _held.append(signal.SIGTERM)
                return
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(HANGUP, on_hangup)


_held: list[int] | None = None
"""Signals that came before somebody listens for them; None before they are held."""


def hold_signals() -> None:
    """Hold signals that ask to stop for `listen_for_signals`: servers are started, and must be ended."""
    global _held  # noqa: PLW0603 - one for the whole process, like its signals
    _held = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: _held.append(number))


def has_terminal() -> bool:
    try:
        return os.isatty(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False


async def listen_for_signals(
    signals: AsyncIterator[signal.Signals], stop: anyio.Event, reload: Callable[[], None]
) -> None:
    """Set `stop` on the first SIGINT or SIGTERM, and kill everything on the second.

    ``SIGHUP`` calls `reload`, or stops the proxy if the terminal was closed.
    """
    in_terminal = has_terminal()
    for number in _held or ():
        os.kill(os.getpid(), number)
    async for number in signals:
        if number is HANGUP:
            if in_terminal and not has_terminal():
                stop.set()
            elif not stop.is_set():
                reload()
            continue
        if stop.is_set():
            kill_groups()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        logger.info("stopping on %s", number.name)
        stop.set()


def close_to_others() -> None:
    """Keep other processes of the same user out of this one: its memory, its environment and its open files.

    Servers run as the same user. By default they could read the secrets of each other in the environment of
    the process that started them. Linux only; programs that this process starts are open as usual.
    """
    control = _from_c_library("prctl")
    if control is not None and not os.environ.get(DEBUG_VARIABLE):
        control(PR_SET_DUMPABLE, 0, 0, 0, 0)


def raise_file_limit() -> None:
    """Allow as many open files as the system permits: each server takes four, each connection one."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_shortage() -> str:
    """Return why no further server may be started, in words for a person; empty if one may.

    Servers leave some descriptors to hosts and to files: a host that finds none left gets no error at all.
    """
    allowed = _allowed_files()
    if allowed is None:
        return ""
    try:
        used = len(os.listdir(OPEN_FILES))  # noqa: PTH208 - names alone, without a path object for each
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    if used < allowed * SERVERS_SHARE:
        return ""
    return (
        f"Too many open files: the process may have {allowed}, and some of them are kept for hosts; "
        "allow more (ulimit -n)"
    )


def connections_for_hosts(wanted: int) -> int:
    """Return how many host connections the descriptors allow, at most the number that is configured."""
    allowed = _allowed_files()
    return wanted if allowed is None else max(1, min(wanted, int(allowed * HOSTS_SHARE)))


def _allowed_files() -> int | None:
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


OWN_BYTES: Final = 64 * 1024 * 1024
"""Size of the largest file of its own that the proxy reads whole."""


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read. A pipe in its place keeps nobody waiting for its other end.

    Raises `OSError` if it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_own(path: Path) -> bytes:
    """Return the content of a file that the proxy keeps.

    Raises `OSError` if it cannot be read, is no regular file, or is larger than the proxy writes any.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > OWN_BYTES:
            raise OSError(None, f"it is over {OWN_BYTES:,} bytes", str(path))
        return file.read(OWN_BYTES)


def limit_malloc_arenas() -> None:
    """Make glibc keep little of the memory that is freed.

    By default it takes the first large block that is freed as a sign to keep such blocks: they get split,
    small parts stay in use, and the process grows each time. It also gives threads heaps of their own, eight
    for each core, each of which keeps its free memory: 12 MiB after ten minutes of many calls, 2 MiB with one
    heap. The threads wait for the interpreter far more than for a heap.
    """
    configure = _from_c_library("mallopt")
    if configure is not None:
        configure(MALLOC_MMAP_THRESHOLD, LARGE_BYTES)
        configure(MALLOC_TRIM_THRESHOLD, KEPT_BYTES)
        configure(MALLOC_ARENA_MAX, 1)


def collect_garbage_seldom() -> None:
    """Have the garbage collector search new objects, and all of them, less often than by default."""
    gc.set_threshold(*GARBAGE_SEARCHES)


def trim_now() -> None:
    """Return free memory to the system. Takes some milliseconds, in which other threads go on."""
    trim = _from_c_library("malloc_trim")
    if trim is not None:
        trim(0)


_FILE = pattern(rb"^[0-9a-f]+-[0-9a-f]+ r-[x-][ps] \S+ \S+ [1-9]\d* .*\n", re.MULTILINE)
_CLEAN = pattern(
    rb"^([0-9a-f]+)-([0-9a-f]+) r-[x-][ps] \S+ \S+ [1-9]\d* .*\n"
    rb"(?:[A-Z].*\n)*?Anonymous: +0 kB\n(?:[A-Z].*\n)*?Swap: +0 kB\n",
    re.MULTILINE,
)
"""A mapping of a file that cannot be written to, and never was: relocated addresses would be lost."""


def unmap_files() -> None:
    """Give pages of files back that can be read again, mostly those of libraries. Takes milliseconds.

    To load a library touches most of its pages, and to use it a third of them. The system keeps the files,
    and maps a page again as soon as it is needed.
    """
    advise = _from_c_library("madvise")
    if advise is None:
        return
    with contextlib.suppress(OSError):
        for begin, end in _clean_among(frozenset(_FILE.findall(MAPS.read_bytes()))):
            start = int(begin, 16)
            advise(ctypes.c_void_p(start), ctypes.c_size_t(int(end, 16) - start), mmap.MADV_DONTNEED)


@lru_cache(maxsize=1)
def _clean_among(files: frozenset[bytes]) -> frozenset[tuple[bytes, bytes]]:
    """Return the mappings that were never written to; they stay so while the mapped files are the same."""
    del files
    mappings = frozenset(_CLEAN.findall(SMAPS.read_bytes()))
    # A library that another thread is just loading is not yet mapped as it will be.
    return mappings.intersection(_CLEAN.findall(SMAPS.read_bytes()))


async def trim_periodically() -> None:
    """Return free memory to the system whenever the process has grown, until cancelled.

    glibc keeps free memory that lies between blocks in use: without this, the process would stay as large as
    it was after a thousand large requests, or after it read thousands of tools.
    """
    if _from_c_library("malloc_trim") is None:
        return
    least, wait, unmapped = resident() or inf, TRIM_SECONDS, 0
    while True:
        await anyio.sleep(wait)
        before = resident()
        if before is None:
            continue
        if before - unmapped >= GROWN_BYTES:
            # After the start, and where much is new; not at each look, for what is used has come back.
            await in_thread(unmap_files)
            unmapped = before = resident() or before
        least = min(least, before)
        if before - least < GROWN_BYTES:
            wait = TRIM_SECONDS
            continue
        # The call releases the interpreter; a thread that allocates meanwhile waits some milliseconds.
        await in_thread(trim_now)
        returned = before - (resident() or before)
        wait = TRIM_SECONDS if returned >= USEFUL_BYTES else min(2 * wait, TRIM_MAX_SECONDS)


@cache
def _from_c_library(name: str) -> Any:
    """Return a function of the C library on Linux; None if it has no such function, or on other systems."""
    if sys.platform != "linux":
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None


def resident() -> int | None:
    try:
        return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no such file, or no free descriptor to read it with
        return None


# Servers are the leaders of process groups. The guardian, a small process, is told of each group, and ends
# those that are left if this process is killed. Without it, they would only see the end of their input, and
# some ignore that.

GUARDIAN = Path(__file__).with_name("guardian.py")

LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Environment variables that Python itself may need to start."""

DISMISSAL_SECONDS, REPLACEMENT_SECONDS = 0.5, 1.0
"""Time for the guardian to exit when no group is left, and until one that was killed is replaced."""

_running: set[int] = set()
_installing: set[int] = set()
"""Those of them that may be installing a package, which must not be killed halfway."""
_lock = threading.Lock()
_guardian: subprocess.Popen[bytes] | None = None


def guard_groups() -> None:
    """Start the guardian unless it runs. Call this before a server starts; blocks until it is started."""
    with _lock:
        if _guardian is None or _guardian.poll() is not None:
            _start_guardian()


def _start_guardian() -> None:
    global _guardian  # noqa: PLW0603 - one for the whole process, like what it guards
    try:
        _guardian = subprocess.Popen(
            # Neither the user's environment nor site packages: it starts in a moment and runs for long.
            [sys.executable, "-I", "-S", str(GUARDIAN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: os.environ[name] for name in LIBRARIES if name in os.environ},
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        logger.debug("servers have no guardian: %s", error)
        _guardian = None
    else:
        os.set_blocking(_pipe(_guardian).fileno(), False)
        threading.Thread(target=_replace, args=(_guardian,), name="guardian-watch", daemon=True).start()
        _tell(b"".join(b"+%d\n" % group for group in _running))
        _tell(b"".join(b"~%d\n" % group for group in _installing))


def _replace(guardian: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a guardian, and start another one for the servers that it leaves."""
    guardian.wait()
    time.sleep(REPLACEMENT_SECONDS)
    with _lock:
        if _running and _guardian in (None, guardian):
            _start_guardian()


@contextmanager
def starting_group(stdin: int) -> Iterator[None]:
    """Name the standard input, a pipe, of a process that is about to start; call `group_started` inside.

    A proxy that is killed in between cannot tell the id of the process; the guardian finds it by the pipe.
    """
    pipe = os.fstat(stdin).st_ino
    with _lock:
        _tell(b"?%d\n" % pipe)
    try:
        yield
    finally:
        with _lock:
            _tell(b"!%d\n" % pipe)


def group_started(group: int) -> None:
    with _lock:
        _running.add(group)
        _tell(b"+%d\n" % group)


def group_installs(group: int) -> None:
    """Record that a group may be installing a package, until `group_installed` or `group_ended`."""
    with _lock:
        _installing.add(group)
        _tell(b"~%d\n" % group)


def group_installed(group: int) -> None:
    """Record that a group is done with it."""
    with _lock:
        if group in _installing:
            _installing.discard(group)
            _tell(b"=%d\n" % group)


def group_ended(group: int) -> None:
    group_installed(group)
    with _lock:
        _running.discard(group)
        _tell(b"-%d\n" % group)


def kill_groups() -> None:
    """Kill every group now; those that install a package are asked to end, and left to the guardian."""
    if sys.platform == "win32":
        return
    for group in tuple(_running):
        polite = group in _installing and _guardian is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM if polite else signal.SIGKILL)


@atexit.register
def dismiss_guardian() -> None:
    """Close the guardian's input, so that it ends the groups that are left and exits."""
    global _guardian  # noqa: PLW0603 - as above
    with _lock:
        if _guardian is not None:
            _running.clear()  # they are the guardian's now
            _pipe(_guardian).close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                _guardian.wait(DISMISSAL_SECONDS)
            _guardian = None


def leave(status: int) -> NoReturn:
    """End the process, and wait for no thread whose result nobody takes any more.

    The interpreter would wait for each. A first search reads a model and embeds tools, which takes seconds on
    a busy machine, and its host may be gone. Whatever has to be written is written by now.
    """
    main = threading.main_thread()
    if any(not one.daemon and one is not main for one in threading.enumerate()):
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


def _tell(lines: bytes) -> None:
    """Write to the guardian; one that does not read is ended, and replaced (`_replace`)."""
    global _guardian  # noqa: PLW0603 - as above
    if _guardian is None:
        return
    try:
        heard = _pipe(_guardian).write(lines) == len(lines)
    except OSError as error:
        logger.debug("the guardian of the servers is gone: %s", error)
        heard = False
    if not heard:
        _guardian.kill()
        _guardian.wait()
        _pipe(_guardian).close()
        _guardian = None


def _pipe(guardian: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", guardian.stdin)


LEAP_SECONDS: Final = 24 * 3600.0
"""A smaller jump is accepted: a machine whose clock is off gets corrected by some hours at most."""

PLAUSIBLE: Final = 1_735_689_600.0
"""The start of 2025. A machine without a battery starts in the past, and jumps once it has a network."""


def _passed() -> float:
    """Return seconds that only increase, also while the machine sleeps."""
    if not hasattr(time, "clock_gettime"):
        return time.monotonic()
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class TimeOfDay:
    """Seconds since 1970 for stored data; jumps of the machine's clock are ignored until the next start.

    Durations and deadlines never come from here. But stored data is deleted by its age, and learned pairs
    decay: a clock that is wrong for a minute must not make all of it a year old.
    """

    def __init__(self, wall: Callable[[], float] = time.time, passed: Callable[[], float] = _passed) -> None:
        """Trust the present time of `wall`, which somebody may set; nobody can set the seconds `passed`."""
        self._wall, self._passed = wall, passed
        self._offset = wall() - passed()

    def __call__(self) -> float:
        """Return the time of day; after a jump, the time that it would be without it."""
        wall = self._wall()
        steady = self._offset + self._passed()
        if steady < PLAUSIBLE <= wall:
            self._offset += wall - steady
            return wall
        return wall if abs(wall - steady) <= LEAP_SECONDS else steady


time_of_day: Final = TimeOfDay()
"""The clock of this process."""

LAST_DATE: Final = 4_102_444_800.0
"""The year 2100, in seconds since 1970: no time that anybody recorded is later."""


def date_of(seconds: float) -> datetime:
    """Return the date of a time in seconds since 1970; the nearest possible one for a damaged number."""
    return datetime.fromtimestamp(min(max(0.0, seconds), LAST_DATE), UTC)


class Bucket:
    """A token bucket: lets `burst` events pass at once and `rate` a second after that."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left, self._at = float(burst), clock()
        self.refused = 0

    def take(self, cost: float = 1.0) -> bool:
        """Return whether one more event may pass now; it counts as `cost` events, at most as all at once."""
        cost = min(cost, self._burst)
        if self.is_empty or self._left < cost:
            self.refused += 1
            return False
        self._left -= cost
        return True

    @property
    def is_empty(self) -> bool:
        """True if no event may pass now."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return self._left < 1
