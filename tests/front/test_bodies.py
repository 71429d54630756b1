"""Bodies of requests together: large ones wait for room, in turn, and who waits too long is told."""

import json
from contextlib import AsyncExitStack

import anyio
import httpx2
import pytest
from support.ledger import until
from support.proxies import http_proxy
from support.raw_client import MODERN, PREFIX
from support.servers import Workshop, tool

from mcp_context_proxy.front.bodies import SMALL_BYTES, TOGETHER_BYTES, Room

pytestmark = pytest.mark.anyio


async def test_who_came_first_is_let_in_first_also_where_there_is_room_for_who_came_later() -> None:
    room, let_in = Room(10), list[int]()

    async def enter(size: int, leave: anyio.Event) -> None:
        async with room.taken(size):
            let_in.append(size)
            await leave.wait()

    leave = anyio.Event()
    async with anyio.create_task_group() as group:
        for size in (6, 5, 1):
            group.start_soon(enter, size, leave)
            await anyio.wait_all_tasks_blocked()
        assert let_in == [6]
        leave.set()

    assert let_in == [6, 5, 1]


async def test_who_gives_up_waiting_keeps_nobody_behind_him_out() -> None:
    room = Room(10)
    async with room.taken(6), anyio.create_task_group() as group:

        async def give_up(scope: anyio.CancelScope) -> None:
            with scope:
                async with room.taken(5):
                    raise AssertionError

        scope, entered = anyio.CancelScope(), anyio.Event()

        async def behind() -> None:
            async with room.taken(4):
                entered.set()

        group.start_soon(give_up, scope)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(behind)
        await anyio.wait_all_tasks_blocked()
        assert not entered.is_set()
        scope.cancel()
        with anyio.fail_after(5):
            await entered.wait()

    async with room.taken(10):
        pass


async def test_only_so_much_of_large_bodies_is_under_way_and_small_ones_pass(workshop: Workshop) -> None:
    fitting, size = TOGETHER_BYTES // (4 << 20), (4 << 20) - 1000
    hanging = [
        # One server by itself takes only so much at a time.
        workshop.server(f"hangs{number}", tools=[tool("work")], calls={"work": [{"wait_cancelled": True}]})
        for number in range(fitting)
    ]
    workshop.server("echoes", tools=[tool("work")])

    def call(server: str, text: str) -> tuple[str, dict[str, str]]:
        meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}
        params = {"name": f"{server}__work", "arguments": {"text": text}, "_meta": meta}
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        headers |= {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": f"{server}__work"}
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}), headers

    with http_proxy(workshop.config(limits={"http_body_seconds": 3.0})) as proxy:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(httpx2.AsyncClient(base_url=proxy.base, timeout=60))
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)

            async def post(server: str, text: str) -> httpx2.Response:
                content, headers = call(server, text)
                return await client.post("/mcp", content=content, headers=headers)

            while "unknown tool" in (await post("echoes", "")).text:
                continue
            for server in hanging:
                group.start_soon(post, server.name, "x" * size)
                await until(lambda server=server: server.ledger.calls("work"))

            refused, small = await post("echoes", "x" * size), await post("echoes", "x" * (SMALL_BYTES // 2))

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert (small.status_code, "isError" in small.json()["result"]) == (200, False)
