"""What the process is told about itself holds: seen from another one, as some of it cannot be taken back."""

import subprocess
import sys

import pytest

# Allocates a large piece, frees it, allocates another: how much of that lies outside of the heap.
PROGRAM = """
import ctypes, sys

class Figures(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    _fields_ = [(name, ctypes.c_size_t) for name in names]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Figures
if sys.argv[1] == "told":
    from mcp_context_proxy.front.process import give_back_large_memory
    give_back_large_memory()
piece = bytes(bytearray(8 << 20))
del piece
before = libc.mallinfo2().hblkhd
piece = bytearray(4 << 20)
print(libc.mallinfo2().hblkhd - before)
"""


def outside(how: str) -> int:
    command = [sys.executable, "-c", PROGRAM, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def has_figures() -> bool:
    command = [sys.executable, "-c", "import ctypes; ctypes.CDLL(None).mallinfo2"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_figures(), reason="another C library than glibc")
def test_memory_of_a_large_message_lies_where_it_can_be_given_back() -> None:
    assert outside("untold") < 1 << 20
    assert outside("told") >= 4 << 20
