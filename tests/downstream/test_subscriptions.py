"""Log levels and subscriptions that clients ask of a server, which miss no change."""

import json
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.servers import Server, Workshop, tool

UPDATED = "notifications/resources/updated"
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}


def levels(server: Server) -> list[str]:
    return [message["params"]["level"] for message in server.ledger.messages("logging/setLevel")]


async def until_level(server: Server, *told: str) -> None:
    await server.ledger.until(lambda ledger: levels(server) == list(told))


async def set_level(host: Host, level: str) -> None:
    await host.request("logging/setLevel", {"level": level})


async def test_a_server_logs_at_the_most_verbose_level_of_its_sessions(workshop: Workshop) -> None:
    server = workshop.server("chatty", tools=[tool("work")], capabilities=CAPABILITIES)
    async with inside(workshop.config()) as proxy:
        quiet, curious = Host(proxy, "handshake"), Host(proxy, "handshake")
        await set_level(quiet, "error")
        await until_level(server, "error")
        await set_level(curious, "debug")
        await until_level(server, "error", "debug")
        await set_level(quiet, "critical")
        curious.leave()
        await until_level(server, "error", "debug", "critical")


async def test_each_session_gets_the_log_messages_of_its_own_level(workshop: Workshop) -> None:
    said = [
        {"announce": {"method": "notifications/message", "params": {"level": level, "data": level}}}
        for level in ("debug", "warning", "error")
    ]
    server = workshop.server("chatty", tools=[tool("work")], calls={"work": said}, capabilities=CAPABILITIES)
    async with inside(workshop.config()) as proxy:
        quiet, curious, caller = (Host(proxy, "handshake") for _ in range(3))
        await set_level(quiet, "error")
        await set_level(curious, "debug")
        await server.ledger.until(lambda _: levels(server)[-1:] == ["debug"])
        await caller.call("chatty__work")
        await quiet.call("chatty__work")
        await curious.call("chatty__work")

        def heard(host: Host) -> list[str]:
            notes = [*host.notifications, *host.told]
            return [params["data"] for method, params in notes if method == "notifications/message"]

        await until(lambda: heard(curious) == ["debug", "warning", "error"])
        assert heard(quiet) == ["error"]


async def test_a_restarted_server_is_sent_log_level_and_subscriptions_again(workshop: Workshop) -> None:
    server = workshop.server(
        "frail", tools=[tool("work"), tool("die")], calls={"die": [{"exit": 1}]}, capabilities=CAPABILITIES
    )
    async with host_of(workshop.config(), "handshake") as host:
        await set_level(host, "notice")
        await until_level(server, "notice")
        await host.call("frail__die")
        await until_level(server, "notice", "notice")


async def test_changes_before_the_first_subscription_to_a_modern_server_are_noticed(
    workshop: Workshop,
) -> None:
    later = [tool("first"), tool("second")]
    workshop.server(
        "new",
        era="modern",
        tools=[tool("first")],
        capabilities=CAPABILITIES,
        on={"subscriptions/listen": [{"set": {"tools": later}}]},
    )
    async with inside(workshop.config()) as proxy:
        await until(lambda: "new__second" in proxy.catalog.snapshot.tools)


@pytest.mark.parametrize("asker", ["session", "subscription"])
async def test_a_subscriber_is_answered_once_the_server_has_confirmed(workshop: Workshop, asker: str) -> None:
    held, go = workshop.flag("held"), workshop.flag("go")
    uri = "note://1"
    server = workshop.server(
        "new",
        era="modern",
        capabilities=CAPABILITIES,
        resources=[{"uri": uri, "name": uri}],
        on={"subscriptions/listen": [{"if": [str(held), [{"wait": str(go)}]]}]},
    )
    async with inside(workshop.config(limits={"probe_seconds": 600.0})) as proxy:
        await server.ledger.until(lambda ledger: ledger.entries("listening"))
        held.touch()
        answered_before: list[bool] = []

        async def subscribe() -> None:
            if asker == "session":
                await Host(proxy, "handshake").request("resources/subscribe", {"uri": uri})
            else:
                async with proxy.gateway.resources.watching([uri]):
                    pass
            answered_before.append(not go.exists())

        async with anyio.create_task_group() as group:
            group.start_soon(subscribe)
            await server.ledger.until(lambda ledger: listens_to(server, uri))
            go.touch()

    assert answered_before == [False]


async def test_a_new_subscription_replaces_the_old_one_only_when_acknowledged(
    workshop: Workshop,
) -> None:
    held, go = workshop.flag("held"), workshop.flag("go")
    uris = ["note://1", "note://2"]
    touched = {"method": UPDATED, "params": {"uri": uris[0]}}
    server = workshop.server(
        "new",
        era="modern",
        tools=[tool("touch")],
        calls={"touch": [{"announce": touched}]},
        capabilities=CAPABILITIES,
        resources=[{"uri": uri, "name": uri} for uri in uris],
        on={"subscriptions/listen": [{"if": [str(held), [{"wait": str(go)}]]}]},
    )
    async with host_of(workshop.config(limits={"probe_seconds": 600.0}), "handshake") as host:
        await host.request("resources/subscribe", {"uri": uris[0]})
        await server.ledger.until(lambda ledger: listens_to(server, uris[0]) and quiet(server))
        held.touch()
        # Answered after a while though the server has not acknowledged it.
        await host.request("resources/subscribe", {"uri": uris[1]})
        await server.ledger.until(lambda ledger: listens_to(server, uris[1]))
        await host.call("new__touch")
        await until(lambda: (UPDATED, {"uri": uris[0]}) in host.told)
        assert not server.ledger.lines("notifications/cancelled")[1:]

        go.touch()
        await server.ledger.until(lambda ledger: quiet(server))
        host.told.clear()
        await host.call("new__touch")
        await until(lambda: (UPDATED, {"uri": uris[0]}) in host.told)


def listens_to(server: Server, uri: str) -> bool:
    asked: list[Any] = [json.loads(line)["params"] for line in server.ledger.lines("subscriptions/listen")]
    return any(uri in params["notifications"].get("resourceSubscriptions", []) for params in asked)


def quiet(server: Server) -> bool:
    """Return whether the server has acknowledged every subscription."""
    return len(server.ledger.entries("listening")) == len(server.ledger.lines("subscriptions/listen"))
