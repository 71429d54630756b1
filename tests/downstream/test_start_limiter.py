"""The number of servers that start at a time, and before the proxy itself is ready."""

import math
from collections.abc import Callable

import anyio
from support.ledger import until
from support.proxies import inside
from support.servers import Workshop, tool

from mcp_context_proxy.downstream.fleet import DOWNLOADS_AT_ONCE, StartLimiter


class Starting:
    """Servers that want to start, and those that may."""

    def __init__(self, starts: StartLimiter) -> None:
        self.starts = starts
        self.free: dict[int, Callable[[], None]] = {}

    @property
    def may(self) -> list[int]:
        return list(self.free)

    async def start(self, number: int, downloads: bool = False) -> None:
        self.free[number] = await self.starts.take(str(number), downloads)


async def test_a_server_waits_for_a_place_to_start() -> None:
    starting = Starting(StartLimiter(2))
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(starting.start, number)
        await anyio.wait_all_tasks_blocked()
        assert starting.may == [0, 1]
        starting.free[1]()
        starting.free[1]()
        await anyio.wait_all_tasks_blocked()

    assert starting.may == [0, 1, 2]


async def test_a_download_waits_for_others_and_holds_up_only_downloads() -> None:
    starting = Starting(StartLimiter(2 * DOWNLOADS_AT_ONCE))
    async with anyio.create_task_group() as group:
        for number in range(DOWNLOADS_AT_ONCE + 1):
            group.start_soon(starting.start, number, True)
        group.start_soon(starting.start, 99)
        await anyio.wait_all_tasks_blocked()
        assert {*starting.may} == {*range(DOWNLOADS_AT_ONCE), 99}
        starting.free[1]()
        starting.free[1]()
        await anyio.wait_all_tasks_blocked()

    assert {*starting.may} == {*range(DOWNLOADS_AT_ONCE + 1), 99}


async def test_servers_that_are_wanted_start_before_others_and_one_at_a_time_beyond_the_bound() -> None:
    starting = Starting(StartLimiter(DOWNLOADS_AT_ONCE))
    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(starting.start, number, True)
        await anyio.wait_all_tasks_blocked()
        assert starting.may == [0, 1, 2, 3]
        for wanted in (7, 6, 2):
            starting.starts.hurry(str(wanted))
        await anyio.wait_all_tasks_blocked()
        assert starting.may == [0, 1, 2, 3, 7]
        starting.free[0]()
        await anyio.wait_all_tasks_blocked()
        assert starting.may == [0, 1, 2, 3, 7, 6]
        starting.free[1]()
        await anyio.wait_all_tasks_blocked()
        assert starting.may == [0, 1, 2, 3, 7, 6]
        starting.free[2]()
        await anyio.wait_all_tasks_blocked()
        assert starting.may == [0, 1, 2, 3, 7, 6, 4]
        starting.free[3]()

    assert {*starting.may} == {*range(8)}


async def test_a_server_that_is_stopped_while_it_waits_keeps_no_place() -> None:
    starting = Starting(StartLimiter(1))
    async with anyio.create_task_group() as group:
        await starting.start(0)
        with anyio.move_on_after(0):
            await starting.start(1)
        group.start_soon(starting.start, 2)
        await anyio.wait_all_tasks_blocked()
        starting.free[0]()

    assert starting.may == [0, 2]


async def test_until_the_front_serves_only_a_first_group_is_started() -> None:
    starts = StartLimiter(2)
    starts.hold_back(2)
    starting = Starting(starts)
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(starting.start, number)
        await anyio.wait_all_tasks_blocked()
        for number in range(2):
            starting.free[number]()
        await anyio.wait_all_tasks_blocked()
        assert starting.may == [0, 1]
        await starts.let_all(math.inf)
        await anyio.wait_all_tasks_blocked()

    assert starting.may == [0, 1, 2, 3]


async def test_the_others_follow_when_the_first_group_is_ready() -> None:
    starts = StartLimiter(4)
    starts.hold_back(2)
    starting = Starting(starts)
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(starting.start, number)
        group.start_soon(starts.let_all, math.inf)
        await anyio.wait_all_tasks_blocked()
        starting.free[1]()
        await anyio.wait_all_tasks_blocked()
        assert starting.may == [0, 1]
        starting.free[0]()
        await anyio.wait_all_tasks_blocked()

    assert starting.may == [0, 1, 2]


async def test_the_others_wait_until_the_lists_of_the_first_group_are_served() -> None:
    starts, served = StartLimiter(4), anyio.Event()
    starts.hold_back(1)
    starting = Starting(starts)
    async with anyio.create_task_group() as group:
        for number in range(2):
            group.start_soon(starting.start, number)
        group.start_soon(starts.let_all, math.inf, served.wait)
        await anyio.wait_all_tasks_blocked()
        starting.free[0]()
        await anyio.wait_all_tasks_blocked()
        assert starting.may == [0]
        served.set()
        await anyio.wait_all_tasks_blocked()

    assert starting.may == [0, 1]


async def test_a_first_group_that_hangs_holds_up_nobody_for_long() -> None:
    starts = StartLimiter(4)
    starts.hold_back(1)
    starting = Starting(starts)
    async with anyio.create_task_group() as group:
        for number in range(2):
            group.start_soon(starting.start, number)
        await anyio.wait_all_tasks_blocked()
        await starts.let_all(0.0)
        await anyio.wait_all_tasks_blocked()

    assert starting.may == [0, 1]


async def test_without_a_front_all_servers_are_started(workshop: Workshop) -> None:
    for number in range(5):
        workshop.server(f"s{number}", tools=[tool("work")])
    async with inside(workshop.config(limits={"starts_at_once": 2})) as proxy:
        await until(lambda: all(client.link is not None for client in proxy.fleet.serving()))
