"""Memory that is free goes back to the system, also where the C library by itself would keep it."""

import json
import subprocess
import sys

import pytest

MIB = 1024 * 1024
BURST = """
import json, os
import anyio
from mcp_context_proxy.front.free_memory import keep_giving_back

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def main():
    async with anyio.create_task_group() as group:
        group.start_soon(keep_giving_back)
        await anyio.sleep(0)
        burst = [b"x" * 20_000 for _ in range(5_000)]
        last = burst[-1]  # below it the library gives nothing back
        del burst
        free = resident()
        with anyio.move_on_after(30):
            while resident() > free - 50 * 1024 * 1024:
                await anyio.sleep(0.05)
        print(json.dumps([free, resident(), len(last)]))
        group.cancel_scope.cancel()

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux's C library")
def test_after_a_burst_of_small_pieces_the_process_is_as_small_as_before() -> None:
    run = subprocess.run([sys.executable, "-c", BURST], capture_output=True, text=True, check=True)

    after_the_burst, in_the_end, _ = json.loads(run.stdout)
    assert after_the_burst - in_the_end > 50 * MIB
