"""Memory that indexing left free is given back: seen in another process, where nobody else takes any."""

import ctypes
import subprocess
import sys

import pytest

# Frees 49 of 50 small pieces; prints how many bytes less the process has then, and after it was told.
PROGRAM = """
from mcp_context_proxy.retrieval.leftovers import give_back

def resident():
    with open("/proc/self/statm") as figures:
        return int(figures.read().split()[1]) * 4096

pieces = [bytes(1_000) for _ in range(100_000)]
before = resident()
pieces = pieces[::50]
freed = before - resident()
give_back()
print(freed, before - resident())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not with glibc"
)
def test_memory_in_pieces_between_what_stays_goes_back_to_the_system() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    by_itself, told = map(int, done.stdout.split())

    assert by_itself < 40e6 < told
