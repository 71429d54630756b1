"""While the gate is closed, nothing that servers send is taken; when it opens, nothing is missing."""

import asyncio
import os
from collections.abc import AsyncIterator

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, inside
from support.raw_client import text_of
from support.servers import Workshop, tool

from mcp_context_proxy.downstream.stdio import LAST_WORDS_SECONDS
from mcp_context_proxy.protocol import framing
from mcp_context_proxy.protocol.framing import Backpressure, PipeReader

LAST = '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"last"}]}}'


class Pipe:
    """A pipe, and the bytes read from it."""

    def __init__(self) -> None:
        self.received = b""
        self._news = anyio.Event()
        self._read, self.write_end = os.pipe()

    async def open(self) -> asyncio.ReadTransport:
        reader = PipeReader(self._take)
        loop = asyncio.get_running_loop()
        self.transport, _ = await loop.connect_read_pipe(lambda: reader, os.fdopen(self._read, "rb", 0))
        return self.transport

    def _take(self, data: bytes) -> None:
        self.received += data
        self._news.set()

    async def until(self, wanted: bytes) -> None:
        with anyio.fail_after(20):
            while self.received != wanted:
                await self._news.wait()
                self._news = anyio.Event()


@pytest.fixture
async def pipes() -> AsyncIterator[tuple[Pipe, Pipe]]:
    made = Pipe(), Pipe()
    yield made
    for pipe in made:
        pipe.transport.close()
        os.close(pipe.write_end)


@pytest.mark.parametrize("comes_later", [False, True])
async def test_a_paused_pipe_is_read_again_after_backpressure_ends(
    pipes: tuple[Pipe, Pipe], comes_later: bool
) -> None:
    held, free = pipes
    gate = Backpressure()
    if comes_later:
        gate.close()
    gate.pass_through(await held.open())
    await free.open()
    gate.close()
    os.write(held.write_end, b"held")
    os.write(free.write_end, b"free")
    # Both could be read at the same moment.
    await free.until(b"free")
    assert held.received == b""

    gate.open()

    await held.until(b"held")


async def test_a_pipe_that_closed_while_paused_is_ignored(pipes: tuple[Pipe, Pipe]) -> None:
    held, free = pipes
    gate = Backpressure()
    gate.pass_through(await held.open())
    await free.open()
    gate.close()
    held.transport.close()

    gate.open()
    gate.open()


async def test_a_waiting_task_goes_on_when_the_gate_opens() -> None:
    gate = Backpressure()
    await gate.wait()
    gate.close()
    passed = []

    async def wait() -> None:
        await gate.wait()
        passed.append(True)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert not passed
        gate.open()

    assert passed


async def test_output_from_before_an_exit_is_not_lost_behind_a_closed_gate(
    workshop: Workshop,
) -> None:
    server = workshop.server("work", tools=[tool("go")], calls={"go": [{"raw": LAST}, {"exit": 0}]})
    told: list[str] = []
    async with inside(workshop.config()) as proxy, anyio.create_task_group() as group:
        host = Host(proxy, "modern")

        async def call() -> None:
            told.append(text_of(await host.call("work__go")))

        framing.gate.close()
        try:
            # Its start was read; of the call nothing will be.
            group.start_soon(call)
            await until(lambda: server.ledger.calls("go"))
            with anyio.move_on_after(2 * LAST_WORDS_SECONDS):
                await until(lambda: told)
        finally:
            framing.gate.open()

    assert told == ["last"]
