"""The host is answered at once, whatever the servers do; late tools are announced once."""

import json
from typing import Any

import anyio
import pytest
from support.proxies import command, http_proxy
from support.raw_client import RawClient
from support.servers import Workshop, tool
from support.wires import HttpWire, http, sse, stdio

CHANGED = "notifications/tools/list_changed"
SOON = 20
"""Seconds within which a host must be answered: ten times what it takes, a fraction of what a server may."""


def late_server(workshop: Workshop, **more: Any) -> Any:
    """Make a server that is not ready before its flag exists."""
    steps = [{"wait": str(workshop.flag("ready"))}]
    brew = [tool("brew", "Brew a cup of coffee"), tool("grind", "Grind coffee beans")]
    return workshop.server("late", tools=brew, on={"tools/list": steps}, **more)


async def test_a_host_is_answered_although_servers_hang_or_are_slow_or_dead(
    workshop: Workshop, era: str
) -> None:
    workshop.server("good", tools=[tool("fine")])
    workshop.server("hung", on={"initialize": [{"silent": True}], "server/discover": [{"silent": True}]})
    workshop.server("dead", at_start=[{"exit": 1}])
    late_server(workshop)
    limits = {"stop_seconds": 0.3, "first_list_seconds": 0.2}
    async with stdio(command(workshop.config(limits=limits)), era, opened=False) as client:
        with anyio.fail_after(SOON):
            await client.open()
            names = await client.names()
            await client.until_listed("good__fine")

    assert names[:3] == ["search_available_tools", "call_tool", "call_read_only_tool"]


async def test_a_late_server_is_announced_once_listed_found_and_called(workshop: Workshop) -> None:
    late_server(workshop)
    config = workshop.config(expose={"mode": "all"}, limits={"first_list_seconds": 0})
    async with stdio(command(config)) as client:
        assert "late__brew" not in await client.names()

        workshop.flag("ready").touch()
        await client.until(lambda client: client.notified(CHANGED))

        assert {"late__brew", "late__grind"} <= set(await client.names())
        found = await client.data("search_available_tools", {"query": "brew coffee"})
        assert found["results"][0]["name"] == "late__brew"
        called = await client.call("late__brew", {"text": "x"})
        assert json.loads(called["content"][0]["text"])["name"] == "brew"
        assert len(client.notified(CHANGED)) == 1


async def test_a_session_is_notified_of_a_late_server_before_its_first_request(workshop: Workshop) -> None:
    late_server(workshop)
    with http_proxy(workshop.config(expose={"mode": "all"})) as served:
        async with http(served.base) as client:
            assert isinstance(client.wire, HttpWire)
            await client.wire.listening.wait()
            workshop.flag("ready").touch()

            await client.until(lambda client: client.notified(CHANGED))


@pytest.mark.parametrize("front", ["stdio", "http", "sse"])
async def test_a_modern_client_is_notified_of_a_late_server_through_its_subscription(
    workshop: Workshop, front: str
) -> None:
    late_server(workshop)
    config = workshop.config(expose={"mode": "all"})
    if front == "stdio":
        async with stdio(command(config), "modern") as client:
            await hears_of_it(client, workshop)
        return
    with http_proxy(config) as proxy:
        async with (http if front == "http" else sse)(proxy.base, "modern") as client:
            await hears_of_it(client, workshop)


async def hears_of_it(client: RawClient, workshop: Workshop) -> None:
    wanted = {"toolsListChanged": True}
    number, _ = await client.start("subscriptions/listen", {"notifications": wanted})
    await client.until(lambda client: client.notified("notifications/subscriptions/acknowledged"))
    workshop.flag("ready").touch()

    (told,) = await client.until(lambda client: client.notified(CHANGED))

    assert told["_meta"]["io.modelcontextprotocol/subscriptionId"] in {number, str(number)}
    assert "late__brew" in await client.names()
    await client.abandon(number)


async def test_a_modern_client_without_a_subscription_is_not_notified(workshop: Workshop) -> None:
    late_server(workshop)
    async with stdio(command(workshop.config(expose={"mode": "all"})), "modern") as client:
        workshop.flag("ready").touch()
        await client.until_listed("late__brew")
        await client.call("search_available_tools", {"query": "coffee"})

        assert client.notifications == []


async def test_a_search_in_a_session_adds_to_its_list_with_one_notification(
    workshop: Workshop,
) -> None:
    workshop.server("work", tools=[tool("brew", "Brew a cup of coffee"), tool("sing", "Sing a song")])
    async with stdio(command(workshop.config(expose={"list_all_below": 0}))) as client:
        before = await client.names()
        while not (await client.data("search_available_tools", {"query": "coffee", "top_n": 1}))["results"]:
            pass
        await client.until(lambda client: client.notified(CHANGED))
        after = await client.names()

        await client.call("search_available_tools", {"query": "coffee", "top_n": 1})
        await client.call("work__brew")

        assert after == [*before, "work__brew"]
        assert len(client.notified(CHANGED)) == 1


async def test_if_everything_is_listed_a_search_sends_no_notification(workshop: Workshop) -> None:
    late_server(workshop)
    async with stdio(command(workshop.config())) as client:
        workshop.flag("ready").touch()
        await client.until(lambda client: client.notified(CHANGED))
        client.notifications.clear()

        found = await client.data("search_available_tools", {"query": "coffee"})
        await client.call("late__brew")
        assert found["results"]

        assert client.notified(CHANGED) == []


async def test_a_search_in_one_http_session_does_not_change_another(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("brew", "Brew a cup of coffee")])
    with http_proxy(workshop.config(expose={"list_all_below": 0})) as proxy:
        async with http(proxy.base) as one, http(proxy.base) as two, http(proxy.base, "modern") as three:
            before = await two.names()
            while "work__brew" not in await one.names():
                await one.call("search_available_tools", {"query": "coffee"})
            await one.until(lambda client: client.notified(CHANGED))

            assert await two.names() == await three.names() == before
            assert two.notifications == three.notifications == []


async def test_resources_and_prompts_that_change_are_announced_too(workshop: Workshop) -> None:
    resources = [{"uri": "note://1", "name": "one"}]
    prompts = [{"name": "greet"}]
    grow = [
        {"set": {"resources": [*resources, {"uri": "note://2", "name": "two"}]}},
        {"set": {"prompts": [*prompts, {"name": "part"}]}},
        {"announce": {"method": "notifications/resources/updated", "params": {"uri": "note://1"}}},
    ]
    server = workshop.server(
        "work", tools=[tool("grow")], resources=resources, prompts=prompts, calls={"grow": grow}
    )
    async with stdio(command(workshop.config())) as client:
        await client.until_listed("work__grow")
        await client.request("resources/subscribe", {"uri": "note://1"})
        assert server.ledger.messages("resources/subscribe")
        client.notifications.clear()
        await client.call("work__grow")

        listed: list[str] = []
        # That the server was ready may be announced only now.
        while "note://2" not in listed:
            await client.until(lambda client: client.notified("notifications/resources/list_changed"))
            client.notifications[:] = [
                note for note in client.notifications if "resources/list" not in str(note)
            ]
            listed = [entry["uri"] for entry in (await client.request("resources/list"))["resources"]]
        await client.until(lambda client: client.notified("notifications/prompts/list_changed"))
        (updated,) = await client.until(lambda client: client.notified("notifications/resources/updated"))
        assert updated == {"uri": "note://1"}
        assert listed == [
            "context://current",
            "context://requests",
            "note://1",
            "note://2",
        ]
        prompts = (await client.request("prompts/list"))["prompts"]
        assert [entry["name"] for entry in prompts] == ["work__greet", "work__part", "with_context"]
