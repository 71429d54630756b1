"""Requests without a task of their own: a reply resumes them at once, anything else gives them a task."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import anyio
import pytest
from support.raw_client import PATIENCE
from support.tables import each

from mcp_context_proxy.system.threads import Cancellable, Flight, Reply, Workers, in_task


async def test_a_reply_resumes_a_flight_in_the_step_in_which_it_comes() -> None:
    reply, got = Reply[str](), list[str]()

    async def ask() -> None:
        got.append(await reply)

    async with anyio.create_task_group() as group:
        Flight(group).start(ask())
        reply.answer("now")
        assert got == ["now"]


async def test_an_error_is_raised_where_the_reply_is_awaited() -> None:
    reply, got = Reply[str](), list[str]()

    async def ask() -> None:
        try:
            await reply
        except ValueError as error:
            got.append(str(error))

    async with anyio.create_task_group() as group:
        Flight(group).start(ask())
        reply.fail(ValueError("lost"))
        assert got == ["lost"]


async def test_a_reply_that_has_come_is_taken_without_a_wait() -> None:
    reply, got = Reply[int](), list[int]()
    reply.answer(1)

    async def ask() -> None:
        got.append(await reply)

    async with anyio.create_task_group() as group:
        Flight(group).start(ask())
        assert got == [1]


async def test_a_task_can_await_a_reply_too() -> None:
    reply = Reply[int]()
    async with anyio.create_task_group() as group:
        group.start_soon(_later, reply.answer, 2)
        assert await reply == 2


async def test_a_flight_that_awaits_anything_else_goes_on_in_a_task_where_scopes_work() -> None:
    got = list[str]()

    async def wait() -> None:
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        with anyio.move_on_after(0):
            await anyio.sleep_forever()
        got.append("after")

    async with anyio.create_task_group() as group:
        Flight(group).start(wait())
    assert got == ["after"]


async def test_a_flight_has_a_task_after_asking_for_one() -> None:
    with_task = list[bool]()

    async def move() -> None:
        with_task.append(Flight.current() is None)
        await in_task()
        with_task.append(Flight.current() is None)
        await in_task()
        async with anyio.create_task_group() as inner:
            inner.start_soon(anyio.sleep, 0)

    async with anyio.create_task_group() as group:
        Flight(group).start(move())
    assert with_task == [False, True]


async def _reply() -> None:
    await Reply[int]()


@each("wait", [_reply, anyio.sleep_forever])
@each("begun", [False, True])
async def test_a_cancelled_flight_ends_wherever_it_waits(
    wait: Callable[[], Awaitable[None]], begun: bool
) -> None:
    got = list[str]()

    async def work() -> None:
        try:
            await wait()
        except asyncio.CancelledError:
            got.append("cancelled")
            raise

    async with anyio.create_task_group() as group:
        flight = Flight(group)
        flight.start(work())
        if begun:
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
        flight.cancel()
        flight.cancel()
    assert got == ["cancelled"]


@each("wait", [_reply, anyio.sleep_forever])
@each("chosen", [0, 1])
async def test_what_is_cancelled_in_a_flight_ends_there_and_what_is_around_it_goes_on(
    wait: Callable[[], Awaitable[None]], chosen: int
) -> None:
    scopes, ended = [Cancellable(), Cancellable()], list[str]()

    async def work() -> None:
        with scopes[0]:
            with scopes[1]:
                await wait()
            ended.append("inner")
        ended.append("outer")

    async with anyio.create_task_group() as group:
        Flight(group).start(work())
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        scopes[chosen].cancel()

    assert ended == (["outer"], ["inner", "outer"])[chosen]
    assert [scope.caught for scope in scopes] == [chosen == 0, chosen == 1]


async def test_a_flight_that_is_cancelled_while_it_runs_ends_at_its_next_wait() -> None:
    scope, ended = Cancellable(), list[str]()

    async def work() -> None:
        with scope:
            scope.cancel()
            ended.append("still running")
            await _reply()
            ended.append("never")

    async with anyio.create_task_group() as group:
        Flight(group).start(work())

    assert (ended, scope.caught) == (["still running"], True)


async def test_an_error_that_nobody_takes_ends_the_group() -> None:
    async def break_down() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        async with anyio.create_task_group() as group:
            Flight(group).start(break_down())
    assert raised.group_contains(ZeroDivisionError)


async def test_a_flight_waits_for_workers_without_a_task_and_takes_what_they_return_or_raise() -> None:
    workers, got, done = Workers(1), list[object](), anyio.Event()

    async def work(function: Callable[[], object]) -> None:
        try:
            got.append(await workers.run(function))
        except ZeroDivisionError as error:
            got.append(str(error))
        got.append(Flight.current() is not None)
        if got[-2] == 2:
            done.set()

    async with anyio.create_task_group() as group:
        for function in (lambda: 1, lambda: 1 // 0, lambda: 2):
            Flight(group).start(work(function))
        with anyio.fail_after(PATIENCE):
            await done.wait()
    assert got == [1, True, "integer division or modulo by zero", True, 2, True]


async def test_work_is_abandoned_with_its_flight_and_not_begun_where_it_waits_for_a_thread() -> None:
    workers, begun, over, ran = Workers(1), threading.Event(), threading.Event(), list[int]()

    def held() -> None:
        begun.set()
        over.wait()

    async with anyio.create_task_group() as group:
        flights = [Flight(group), Flight(group)]
        flights[0].start(workers.run(held))
        flights[1].start(workers.run(lambda: ran.append(1)))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        for flight in flights:
            flight.cancel()
        over.set()
        await workers.run(lambda: ran.append(2))
    assert ran == [2]


async def _later(function: Callable[[int], None], value: int) -> None:
    await anyio.lowlevel.checkpoint()
    function(value)
