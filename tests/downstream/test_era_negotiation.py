"""The era of a server is probed once, and not again if a probe is useless or harmful."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from support.ledger import until
from support.proxies import Host, inside
from support.servers import Server, Workshop, tool

from mcp_context_proxy.downstream.connections import REMEMBERED_SECONDS
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.protocol.eras import Era

SOON = {"backoff_first_seconds": 0.01, "backoff_max_seconds": 0.02}
QUICK = SOON | {"probe_seconds": 0.3}
"""Probe timeout in tests where the probe is not answered."""
PATIENT = SOON | {"probe_seconds": 30.0}
"""Probe timeout in tests where the probe is answered, however slow the machine is."""


async def test_an_old_server_that_ignores_the_modern_probe_gets_the_handshake(workshop: Workshop) -> None:
    workshop.server("old", tools=[tool("go")], on={"server/discover": [{"silent": True}]})
    async with inside(workshop.config(limits=QUICK)) as proxy:
        assert "old__go" in await Host(proxy, "modern").names()


async def test_a_server_that_crashes_on_the_modern_probe_is_not_probed_again(workshop: Workshop) -> None:
    server = workshop.server("old", tools=[tool("go")], on={"server/discover": [{"exit": 1}]})
    async with inside(workshop.config(limits=QUICK)) as proxy:
        await until(lambda: proxy.fleet.clients["old"].state is ServerState.READY)
        proxy.catalog.refresh()
        assert "old__go" in await Host(proxy, "modern").names()

    assert len(server.ledger.messages("server/discover")) == 1
    assert len(server.ledger.entries("start")) == 2


@pytest.fixture(params=["silent", "exit"])
def old(request: pytest.FixtureRequest, workshop: Workshop) -> Server:
    """A server of the handshake era that a probe is wasted on: it ignores it, or dies of it."""
    step = {request.param: 1 if request.param == "exit" else True}
    return workshop.server("old", tools=[tool("go")], on={"server/discover": [step]})


def probes(server: Server) -> int:
    return len(server.ledger.messages("server/discover"))


async def served(workshop: Workshop, server: Server, limits: dict[str, float] = PATIENT) -> Era:
    """One run of a proxy with a store that is kept, until the server is ready; in which era."""
    config = workshop.config(limits=limits, store={"path": "store.db"})
    async with inside(config) as proxy:
        client = proxy.fleet.clients[server.name]
        await until(lambda: client.state is ServerState.READY)
        assert client.introduction is not None
        return client.introduction.era


async def test_a_server_that_ignores_the_probe_is_not_probed_by_the_next_proxy(
    workshop: Workshop, old: Server
) -> None:
    assert [await served(workshop, old, limits) for limits in (QUICK, PATIENT, PATIENT)] == [
        Era.HANDSHAKE
    ] * 3

    assert probes(old) == 1


async def test_an_http_server_that_ignores_the_probe_is_not_probed_after_a_restart(
    workshop: Workshop,
) -> None:
    never = [{"wait": str(workshop.flag("never"))}]
    server = workshop.http_server("old", tools=[tool("go")], on={"server/discover": never})
    assert [await served(workshop, server, limits) for limits in (QUICK, PATIENT)] == [Era.HANDSHAKE] * 2

    # One more asks whether it was only slow; a machine that is busy may end one before it is sent.
    assert probes(server) <= 2


DISCOVERED = (
    '{"jsonrpc":"2.0","id":ID,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}}'
)


def late_once(workshop: Workshop) -> dict[str, Any]:
    """Steps of a stdio server that starts slowly once: it answers the probe after the handshake has come."""
    first, greeted, said = (str(workshop.flag(name)) for name in ("first", "greeted", "said"))
    late = [{"wait": greeted}, {"raw": DISCOVERED}, {"once": [said, []]}, {"answered": True}]
    return {
        "server/discover": [{"once": [first, late]}],
        "initialize": [{"once": [greeted, []]}, {"wait": said}],
    }


async def test_a_server_that_was_too_slow_for_the_probe_is_probed_after_a_restart(
    workshop: Workshop,
) -> None:
    """Such as one that is downloaded at its first start: it answers all requests in order."""
    server = workshop.server("slow", era="both", tools=[tool("go")], on=late_once(workshop))

    assert await served(workshop, server, QUICK) is Era.HANDSHAKE
    assert await served(workshop, server) is Era.MODERN


async def test_a_modern_server_that_answers_the_probe_late_is_used_as_modern_at_once(
    workshop: Workshop,
) -> None:
    """Its answer to the probe comes before its refusal of the handshake."""
    server = workshop.server("slow", era="modern", tools=[tool("go")], on=late_once(workshop))

    await is_ready_at_once(workshop, server)


async def test_a_modern_server_that_refuses_the_handshake_before_the_probe_is_waited_for(
    workshop: Workshop,
) -> None:
    """And need not know how a server that is modern refuses a handshake."""
    refused = str(workshop.flag("refused"))
    refusal = '{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"Method not found"}}'
    on = {
        "server/discover": [{"wait": refused}],
        "initialize": [{"raw": refusal}, {"once": [refused, []]}, {"answered": True}],
    }
    server = workshop.server("slow", era="modern", tools=[tool("go")], on=on)

    await is_ready_at_once(workshop, server)


async def is_ready_at_once(workshop: Workshop, server: Server) -> None:
    """The server can be called after its first start."""
    async with inside(workshop.config(limits=QUICK)) as proxy:
        client = proxy.fleet.clients[server.name]
        await client.wait_first_connect()
        assert (client.state, client.cause) == (ServerState.READY, "")
        proxy.catalog.refresh()
        result = await Host(proxy, "modern").call(f"{server.name}__go")

    assert not result.get("isError"), result
    assert len(server.ledger.entries("start")) <= 1


async def test_an_http_server_that_was_too_slow_for_the_probe_is_probed_after_a_restart(
    workshop: Workshop,
) -> None:
    late = [{"once": [str(workshop.flag("first")), [{"wait": str(workshop.flag("never"))}]]}]
    server = workshop.http_server("slow", era="both", tools=[tool("go")], on={"server/discover": late})

    # Its second answer comes as late as it may.
    assert await served(workshop, server, SOON | {"probe_seconds": 1.0}) is Era.HANDSHAKE
    assert await served(workshop, server) is Era.MODERN


async def test_a_slow_modern_server_at_a_url_is_probed_again_with_more_time(
    workshop: Workshop,
) -> None:
    """Such as one that wakes up for a request: its refusal of the handshake tells its era."""
    late = [{"once": [str(workshop.flag("first")), [{"wait": str(workshop.flag("never"))}]]}]
    server = workshop.http_server("slow", era="modern", tools=[tool("go")], on={"server/discover": late})

    await is_ready_at_once(workshop, server)


async def test_a_server_with_changed_connection_settings_is_probed_again(
    workshop: Workshop, old: Server
) -> None:
    await served(workshop, old, QUICK)
    old.settings["env"] = {"ACCOUNT": "another"}
    await served(workshop, old, QUICK)

    assert probes(old) == 2


async def test_a_server_that_ignores_the_probe_is_probed_again_after_a_day(
    workshop: Workshop, old: Server
) -> None:
    await served(workshop, old, QUICK)
    with closing(sqlite3.connect(workshop.folder / "store.db")) as database, database:
        database.execute("UPDATE listings SET time = time - ?", (REMEMBERED_SECONDS + 1,))
    await served(workshop, old, QUICK)

    assert probes(old) == 2


async def test_a_server_that_reports_another_version_is_probed_by_the_next_proxy(
    workshop: Workshop, old: Server
) -> None:
    await served(workshop, old, QUICK)
    old.respecify(era="both", on={}, version="2")
    eras = [await served(workshop, old) for _ in range(3)]

    assert eras == [Era.HANDSHAKE, Era.MODERN, Era.MODERN]


async def test_a_server_that_became_modern_is_recognized_although_it_is_remembered_as_old(
    workshop: Workshop, old: Server
) -> None:
    await served(workshop, old, QUICK)
    old.respecify(era="modern", on={})
    before = len(old.ledger.entries("start"))
    eras = [await served(workshop, old) for _ in range(2)]

    assert eras == [Era.MODERN, Era.MODERN]
    assert len(old.ledger.entries("start")) == before + 3


async def test_a_modern_server_that_died_during_the_probe_is_probed_again(workshop: Workshop) -> None:
    dies_once = [{"once": [str(workshop.flag("died")), [{"exit": 1}]]}]
    server = workshop.server("new", era="modern", tools=[tool("go")], on={"server/discover": dies_once})
    async with inside(workshop.config(limits=QUICK)) as proxy:
        await until(lambda: proxy.fleet.clients["new"].state is ServerState.READY)

    assert len(server.ledger.messages("server/discover")) == 2


async def test_the_era_can_be_named_to_skip_the_probe(workshop: Workshop) -> None:
    server = workshop.server("old", tools=[tool("go")], settings={"era": "handshake"})
    async with inside(workshop.config()):
        pass

    assert server.ledger.messages("server/discover") == []
