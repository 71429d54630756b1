"""The largest lists of hostile texts, each of which delays neither other requests nor a search."""

import json
import time
from typing import Any

import anyio
import pytest
from faults.harness import rss
from support.raw_client import RawClient
from support.servers import Workshop, tool
from trust.test_adversarial_text import UNITS
from trust.test_event_loop import LIMITS, PATIENCE, hostile_tools, text_of, units, watched

pytestmark = pytest.mark.slow(times=30)

SEARCH = "search_available_tools"

WAIT_SECONDS = 0.3
"""Time for which a search waits for indexing, which goes on meanwhile and would take all of a minute."""

MARGIN = 10
"""Times as long as a search for as many plain words, with its wait for indexing, as a search may take."""

FEW_MEGABYTES, MORE_MEGABYTES = 300, 1_200
"""Memory of a proxy, and of three lists of the largest size, 72 MB of hostile definitions, in its index."""

PARTS = [pytest.param(5, id="a fifth", marks=pytest.mark.full_cross)]
PARTS += [pytest.param(1, id="whole", marks=pytest.mark.nightly)]
FRACTIONS = [pytest.param(60, id="a sixtieth", marks=pytest.mark.smaller), *PARTS]
"""Of the numbers and sizes that the bounds allow; the whole takes most of a minute."""

COSTLY = ["capitals", "marks of servers", "single quotes"]
"""Queries whose searches take longest. Each night has all."""

QUERY_CHARACTERS = 60_000
"""Length of a query: as much as the arguments of a search may have."""


async def searched(client: RawClient, query: str) -> float:
    """Search, and return the seconds that it took."""
    began = time.monotonic()
    await client.call(SEARCH, {"query": f"x {query}"})
    return time.monotonic() - began


def with_header(definition: dict[str, Any]) -> dict[str, Any]:
    """The same tool with an argument that a server at a URL wants in a header, too."""
    schema = definition["inputSchema"]
    argument = {"type": "string", "x-mcp-header": "Place"}
    return definition | {"inputSchema": schema | {"properties": {"place": argument} | schema["properties"]}}


@pytest.mark.parametrize("fraction", FRACTIONS)
async def test_the_largest_lists_of_hostile_texts_delay_neither_the_loop_nor_a_search(
    workshop: Workshop, fraction: int
) -> None:
    number = LIMITS.tools_per_server // fraction
    parts = [part for part, _ in zip(units(), range(number), strict=False)]
    rules = workshop.folder / "rules"
    rules.mkdir()
    for at, part in enumerate(UNITS.values()):
        whole = text_of(part, (LIMITS.document_bytes - 10_000) // fraction)
        (rules / f"r{at}.md").write_bytes(f"---\ndescription: a{part * 500}\n---\n{whole}".encode())
    workshop.server(
        "evil",
        page_size=2_500,
        tools=hostile_tools(number, LIMITS.listing_bytes // LIMITS.tools_per_server * 3 // 4),
        prompts=[{"name": f"{'p' * 200}_{at}", "description": part * 50} for at, part in enumerate(parts)],
        resources=[
            {"uri": f"a:{'b' * 200}{at}", "name": "n", "description": part * 50}
            for at, part in enumerate(parts)
        ],
        templates=[{"uriTemplate": f"a:{'b' * 20}{{x}}b{{y}}c{at}", "name": "n"} for at in range(number)],
    )
    workshop.server("calm", tools=[tool("add", "Adds two numbers")])
    documents = [{"kind": "rule", "path": str(rules)}]
    last = f"evil__{'t' * 50}_{number - 1}"
    plain, hostile = list[float](), dict[str, float]()
    async with watched(workshop, wait=WAIT_SECONDS, expose={"mode": "all"}, documents=documents) as proxy:
        client = proxy.client

        await searched(client, "add two numbers")
        with anyio.fail_after(PATIENCE):
            # Not by its list: reading that over and over is what would take the time of this test.
            while (await client.call(last)).get("isError"):  # noqa: ASYNC110 - another process
                await anyio.sleep(0.2)
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            await client.request(method)
        plain.append(await searched(client, text_of("two numbers ", QUERY_CHARACTERS)))
        for name in COSTLY if fraction > 1 else [name for name in UNITS if name != "one letter"]:
            hostile[name] = await searched(client, text_of(UNITS[name], QUERY_CHARACTERS))
        plain.append(await searched(client, text_of("two letters ", QUERY_CHARACTERS)))
        await proxy.ask("prompts/get", f'{{"name":"{"p" * 60_000}"}}')
        await proxy.ask("resources/read", f'{{"uri":"a:{"b" * 8_000}"}}')
        result = await client.call("calm__add", {})

    assert result["content"]
    assert not proxy.slow_steps, proxy.slow_steps
    longest = MARGIN * (WAIT_SECONDS + max(plain))
    assert {name: seconds for name, seconds in hostile.items() if seconds > longest} == {}


@pytest.mark.parametrize("fraction", PARTS)
async def test_several_lists_of_the_largest_size_delay_neither_the_loop_nor_a_search(
    workshop: Workshop, fraction: int
) -> None:
    number, servers = LIMITS.tools_per_server // fraction, ("one", "two")
    tools = hostile_tools(number, LIMITS.listing_bytes // LIMITS.tools_per_server * 3 // 4)
    for name in servers:
        workshop.server(name, page_size=2_500, tools=tools)
    workshop.http_server("far", era="modern", page_size=2_500, tools=[with_header(one) for one in tools])
    workshop.server("calm", tools=[tool("add", "Adds two numbers")])
    last = f"{'t' * 50}_{number - 1}"
    async with watched(workshop, wait=WAIT_SECONDS, expose={"mode": "all"}) as proxy:
        client = proxy.client
        with anyio.fail_after(2 * PATIENCE):
            for name in (*servers, "far"):
                # Not by its list: reading that over and over is what would take the time of this test.
                while (await client.call(f"{name}__{last}")).get("isError"):  # noqa: ASYNC110
                    await anyio.sleep(0.2)
        found = await client.call(SEARCH, {"query": "add two numbers"})
        listed = await client.request("tools/list")
        result = await client.call("calm__add", {})
        assert client.process is not None
        megabytes = rss(client.process.pid) >> 20

    assert result["content"]
    assert len(listed["tools"]) > len(servers) * number
    assert not proxy.slow_steps, proxy.slow_steps
    assert "calm__add" in json.dumps(found)
    assert megabytes < FEW_MEGABYTES + MORE_MEGABYTES // fraction
