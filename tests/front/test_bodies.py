"""Bodies of requests together: large ones wait for room, in turn, and who waits too long is told."""

import json
from functools import partial
from typing import Any

import anyio
import httpx2
from support.proxies import http_proxy
from support.raw_client import MODERN, PATIENCE, PREFIX
from support.servers import Server, Workshop, tool
from support.wires import http, sse

from mcp_context_proxy.front.http_requests import SMALL_BYTES, TOGETHER_BYTES, BodyBudget

LARGE = (4 << 20) - 1000
"""Bytes of a body of almost the largest size."""


async def test_requests_are_admitted_in_order_even_if_a_later_one_would_fit() -> None:
    room, let_in = BodyBudget(10, 10), list[int]()

    async def enter(size: int) -> None:
        await room.enter(size)
        let_in.append(size)

    leave = await room.enter(6)
    async with anyio.create_task_group() as group:
        for size in (5, 1):
            group.start_soon(enter, size)
            await anyio.wait_all_tasks_blocked()
        assert let_in == []
        leave()

    assert let_in == [5, 1]


async def test_the_bodies_of_one_principal_leave_room_for_those_of_another() -> None:
    room = BodyBudget(10, 6)
    await room.enter(4, "mallory")
    async with anyio.create_task_group() as group:
        group.start_soon(room.enter, 4, "mallory")
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            leave = await room.enter(6, "alice")
        leave()
        group.cancel_scope.cancel()


async def test_a_waiting_request_that_is_cancelled_blocks_no_other() -> None:
    room = BodyBudget(10, 10)
    leave, entered = await room.enter(6), anyio.Event()

    async def give_up(scope: anyio.CancelScope) -> None:
        with scope:
            await room.enter(5)
            raise AssertionError

    async def behind() -> None:
        leave = await room.enter(4)
        entered.set()
        leave()

    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(give_up, scope)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(behind)
        await anyio.wait_all_tasks_blocked()
        assert not entered.is_set()
        scope.cancel()
        with anyio.fail_after(5):
            await entered.wait()

    leave()
    leave()
    await room.enter(10)


def posted(method: str, **params: Any) -> dict[str, Any]:
    """The arguments with which `httpx2` posts a call."""
    meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    headers |= {"mcp-protocol-version": MODERN, "mcp-method": method, "mcp-name": params["name"]}
    return {"content": json.dumps(message), "headers": headers}


async def echo(client: httpx2.AsyncClient, text: str) -> httpx2.Response:
    return await client.post("/mcp", **posted("tools/call", name="echoes__work", arguments={"text": text}))


async def test_large_bodies_share_a_memory_limit_and_small_ones_pass(workshop: Workshop) -> None:
    workshop.server("echoes", tools=[tool("work")])
    # A call waits for a server that is starting, and its body with it.
    never: dict[str, Any] = {"initialize": [{"wait": str(workshop.flag("never"))}]}
    workshop.server("starting", tools=[tool("work")], on={**never, "server/discover": [{"silent": True}]})
    waiting = posted("tools/call", name="starting__work", arguments={"text": "x" * LARGE})
    with http_proxy(workshop.config(limits={"http_body_seconds": 2.0})) as proxy:
        async with httpx2.AsyncClient(base_url=proxy.base, timeout=60) as client:
            while "unknown tool" in (await echo(client, "")).text:
                continue
            async with anyio.create_task_group() as group:
                for _ in range(TOGETHER_BYTES // LARGE):
                    group.start_soon(partial(client.post, "/mcp", **waiting))
                with anyio.fail_after(PATIENCE):
                    while (refused := await echo(client, "x" * LARGE)).status_code == 200:
                        continue  # not all of them have come yet
                small = await echo(client, "x" * (SMALL_BYTES // 2))
                group.cancel_scope.cancel()

            assert "isError" not in (await echo(client, "x" * LARGE)).json()["result"]

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert (small.status_code, "isError" in small.json()["result"]) == (200, False)


async def test_large_calls_to_hanging_servers_block_no_other_call(workshop: Workshop) -> None:
    hanging = [
        # One server by itself takes only so much at a time.
        workshop.server(f"hangs{number}", tools=[tool("work")], calls={"work": [{"wait_cancelled": True}]})
        for number in range(TOGETHER_BYTES // LARGE)
    ]
    workshop.server("echoes", tools=[tool("work")])
    with http_proxy(workshop.config()) as proxy:
        for count, opener in enumerate((partial(http, era="modern"), sse), 1):
            async with opener(proxy.base) as client:
                await client.until_listed("echoes__work", *(f"{server.name}__work" for server in hanging))
                for server in hanging:
                    arguments = {"text": "x" * LARGE}
                    await client.start("tools/call", {"name": f"{server.name}__work", "arguments": arguments})
                    await noted(server, "call", count)

                assert "isError" not in await client.call("echoes__work", {"text": "x" * LARGE})
            for server in hanging:
                await noted(server, "cancelled", count)


async def noted(server: Server, event: str, count: int) -> None:
    await server.ledger.until(lambda ledger: len(ledger.entries(event)) == count)
