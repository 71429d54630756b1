"""Stalls of the event loop are noticed by whoever waits in it."""

import time

import anyio
import anyio.lowlevel
import pytest

from mcp_context_proxy.statistics.recorder import STALL_SECONDS, TICK_SECONDS, LoopStalls


async def test_only_delays_beyond_those_of_a_busy_machine_are_stalls() -> None:
    stalls = LoopStalls()
    stalls.late(STALL_SECONDS / 2)
    stalls.late(STALL_SECONDS * 3)

    assert (stalls.count, stalls.seconds) == (1, pytest.approx(STALL_SECONDS * 3))


async def test_a_blocked_event_loop_is_noticed() -> None:
    stalls = LoopStalls()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(stalls.run)
            await anyio.wait_all_tasks_blocked()
            time.sleep(TICK_SECONDS + 2 * STALL_SECONDS)  # noqa: ASYNC251 - the fault itself
            while not stalls.count:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    assert stalls.seconds >= STALL_SECONDS
