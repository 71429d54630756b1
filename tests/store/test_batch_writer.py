"""Entries are written together in a thread; none is lost while the store refuses, or when the proxy stops."""

import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from support.ledger import until

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.system.threads import BatchWriter


class Table:
    """Keeps the batches that it is given, unless it refuses or is held."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.calls = 0
        self.refuses = False
        self.free = threading.Event()
        self.free.set()

    def write(self, entries: list[int]) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.calls += 1
        self.free.wait(60)
        if self.refuses:
            raise StoreError(Path("store.sqlite3"), "database or disk is full")
        self.batches.append(list(entries))


def writer_to(table: Table, limit: int = 100, at_once: int | None = None) -> BatchWriter[int]:
    return BatchWriter(table.write, seconds=0.01, limit=limit, at_once=at_once)


async def test_entries_that_come_during_a_write_are_written_together_by_the_next_one() -> None:
    table = Table()
    writer = writer_to(table)
    table.free.clear()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            writer.add(0)
            group.start_soon(writer.flush)
            await until(lambda: table.calls == 1)
            for entry in (1, 2, 3):
                writer.add(entry)
                group.start_soon(writer.flush)
            assert writer.unwritten == [0, 1, 2, 3]
            table.free.set()

    assert table.batches == [[0], [1, 2, 3]]
    assert writer.unwritten == []


async def test_refused_entries_are_written_with_the_next_ones_in_their_order() -> None:
    table = Table()
    writer = writer_to(table)
    table.refuses = True
    writer.add(1)
    await writer.flush()
    writer.add(2)
    await writer.flush()
    assert writer.unwritten == [1, 2]

    table.refuses = False
    writer.add(3)
    await writer.flush()
    assert table.batches == [[1, 2, 3]]


async def test_of_too_many_entries_the_oldest_are_dropped() -> None:
    table = Table()
    writer = writer_to(table, limit=3)
    table.refuses = True
    for entry in range(3):
        writer.add(entry)
    await writer.flush()
    for entry in (3, 4):
        writer.add(entry)

    assert writer.unwritten == [2, 3, 4]


async def test_a_write_gets_no_more_entries_than_it_takes_at_once() -> None:
    table = Table()
    writer = writer_to(table, at_once=2)
    for entry in range(5):
        writer.add(entry)
    await writer.flush()

    assert table.batches == [[0, 1], [2, 3], [4]]


async def test_entries_that_cannot_be_written_are_lost_and_do_not_end_the_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(entries: list[int]) -> None:
        raise ValueError("no such entries")

    writer = BatchWriter(broken, seconds=0.01, limit=10)
    writer.add(1)
    await writer.flush()

    assert writer.unwritten == []
    assert "1 entries could not be written to the store and are lost" in caplog.text


async def test_entries_are_written_soon_and_those_that_are_left_when_the_task_ends() -> None:
    table = Table()
    writer = writer_to(table)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(writer.run)
            writer.add(1)
            await until(lambda: table.batches == [[1]])
            writer.add(2)
            group.cancel_scope.cancel()

    assert table.batches == [[1], [2]]
