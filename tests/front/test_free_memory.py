"""Memory that is free goes back to the system: seen in processes of their own, for it is not undone."""

import subprocess
import sys

import pytest

# Allocates a large piece, frees it, allocates another: how much of that lies outside of the heap.
LARGE = """
import ctypes, sys

class Figures(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    _fields_ = [(name, ctypes.c_size_t) for name in names]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Figures
if sys.argv[1] == "told":
    from mcp_context_proxy.system.process import limit_malloc_arenas
    limit_malloc_arenas()
piece = bytes(bytearray(8 << 20))
del piece
before = libc.mallinfo2().hblkhd
piece = bytearray(4 << 20)
print(libc.mallinfo2().hblkhd - before)
"""

# Allocates in eight threads at the same time; prints how much address space their heaps took.
THREADS = """
import sys, threading

def reserved():
    with open("/proc/self/statm") as figures:
        return int(figures.read().split()[0]) * 4096

if sys.argv[1] == "told":
    from mcp_context_proxy.system.process import limit_malloc_arenas
    limit_malloc_arenas()
threading.stack_size(256 << 10)
begin, end = threading.Barrier(9), threading.Barrier(9)

def work():
    begin.wait()
    pieces = [bytes(1_000) for _ in range(1_000)]
    end.wait()

before = reserved()
for _ in range(8):
    threading.Thread(target=work).start()
begin.wait()
end.wait()
print(reserved() - before)
"""

# Frees 49 of 50 small pieces; prints how many bytes less the process has then, and after it was told.
SMALL = """
from mcp_context_proxy.system.process import trim_now

def resident():
    with open("/proc/self/statm") as figures:
        return int(figures.read().split()[1]) * 4096

pieces = [bytes(1_000) for _ in range(100_000)]
before = resident()
pieces = pieces[::50]
freed = before - resident()
trim_now()
print(freed, before - resident())
"""

# Frees what lies below a piece that stays; prints how many bytes less the process has after a while.
BURST = """
import anyio
from mcp_context_proxy.system.process import trim_periodically

def resident():
    with open("/proc/self/statm") as figures:
        return int(figures.read().split()[1]) * 4096

async def main():
    async with anyio.create_task_group() as group:
        group.start_soon(trim_periodically)
        await anyio.sleep(0)
        burst = [bytes(20_000) for _ in range(5_000)]
        last = burst[-1]
        del burst
        before = resident()
        with anyio.move_on_after(30):
            while resident() > before - 50_000_000:
                await anyio.sleep(0.05)
        print(before - resident())
        group.cancel_scope.cancel()

anyio.run(main)
"""

# Frees memory while no file can be opened; prints 1 if that goes on.
SHORT = """
import resource
import anyio
from mcp_context_proxy.system.process import TRIM_SECONDS, resident, trim_periodically

async def main():
    async with anyio.create_task_group() as group:
        group.start_soon(trim_periodically)
        await anyio.sleep(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        assert resident() is None
        await anyio.sleep(1.5 * TRIM_SECONDS)
        print(1)
        group.cancel_scope.cancel()

anyio.run(main)
"""

# Touches every page of its libraries; prints the MB of files that are mapped then, and after it was told, and
# 1 if a library does what it did before.
FILES = """
import hashlib, re, sqlite3, ssl
from mcp_context_proxy.system.process import unmap_files

def mapped():
    with open("/proc/self/status") as figures:
        return int(re.search(r"RssFile:\\s+(\\d+)", figures.read())[1]) // 1_000

def digest():
    return hashlib.blake2s(b"anything").digest(), sqlite3.connect(":memory:").execute("select 1").fetchone()

first = digest()
for line in open("/proc/self/maps"):
    span, mode, _, _, _, *path = line.split()
    if mode.startswith("r") and path and ".so" in path[0]:
        begin, end = (int(edge, 16) for edge in span.split("-"))
        with open("/proc/self/mem", "rb") as memory:
            memory.seek(begin)
            memory.read(end - begin)
before = mapped()
unmap_files()
print(before, mapped(), int(digest() == first))
"""

# Gives pages of files back three times, with much other memory; prints the processor time of each, in us.
AGAIN = """
import time
from mcp_context_proxy.system.process import unmap_files

def took():
    began = time.thread_time()
    unmap_files()
    return round(1e6 * (time.thread_time() - began))

kept = [bytearray(1000) for _ in range(200_000)]
print(took(), took(), took())
"""

# Takes and frees as much as a search of a large catalog, again and again; prints how many pages were new.
SEARCHES = """
import resource, sys

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "told":
    from mcp_context_proxy.system.process import limit_malloc_arenas
    limit_malloc_arenas()
else:
    import ctypes
    ctypes.CDLL(None).mallopt(-3, 1 << 20)
for turn in range(20):
    pieces = [bytearray(400_000) for _ in range(5)]
    del pieces
    if turn == 9:
        before = faults()
print(faults() - before)
"""

# Makes lists that stay, as an index does; prints how often all objects were searched for garbage meanwhile.
LISTS = """
import gc, sys

def seen(phase, about):
    global whole
    whole += phase == "start" and about["generation"] == 2

whole = 0
gc.callbacks.append(seen)
if sys.argv[1] == "told":
    from mcp_context_proxy.system.process import collect_garbage_seldom
    collect_garbage_seldom()
whole = 0
kept = [[] for _ in range(500_000)]
print(whole)
"""


def printed(program: str, *arguments: str) -> list[int]:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(number) for number in done.stdout.split()]


def has_figures() -> bool:
    command = [sys.executable, "-c", "import ctypes; ctypes.CDLL(None).mallinfo2"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not has_figures(), reason="another C library than glibc")


def test_memory_of_a_large_message_is_mapped_on_its_own() -> None:
    (by_itself,), (told,) = printed(LARGE, "untold"), printed(LARGE, "told")

    assert by_itself < 1 << 20
    assert told >= 4 << 20


def test_a_search_uses_the_memory_of_the_one_before() -> None:
    (by_itself,), (told,) = printed(SEARCHES, "untold"), printed(SEARCHES, "told")

    assert told < 100
    assert by_itself > 1_000


def test_memory_is_given_back_although_no_descriptor_is_free_to_read_how_much_there_is() -> None:
    assert printed(SHORT) == [1]


def test_pages_of_libraries_are_given_back_and_come_back_when_they_are_used() -> None:
    before, after, is_as_before = printed(FILES)

    assert after < before / 2
    assert is_as_before


def test_pages_of_other_memory_are_looked_at_once_while_no_library_comes() -> None:
    first, *others = printed(AGAIN)

    assert 3 * min(others) < first


def test_threads_share_one_heap() -> None:
    (by_itself,), (told,) = printed(THREADS, "untold"), printed(THREADS, "told")

    assert told < 32 << 20 < by_itself


def test_fragmented_free_memory_is_returned_to_the_system() -> None:
    by_itself, told = printed(SMALL)

    assert by_itself < 40e6 < told


def test_objects_that_stay_are_not_searched_for_garbage_again_and_again() -> None:
    (by_itself,), (told,) = printed(LISTS, "untold"), printed(LISTS, "told")

    assert told < 2
    assert told < by_itself or sys.version_info >= (3, 13), "which searches seldom by itself"


@pytest.mark.slow
def test_after_a_burst_the_process_shrinks_to_its_former_size() -> None:
    (given_back,) = printed(BURST)

    assert given_back > 50e6
