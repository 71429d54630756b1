"""A lazy server is listed and found from its last listing; its process starts at the first call."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from support.ledger import until
from support.proxies import Host, command, host_of, inside
from support.servers import Server, Workshop, tool
from support.wires import stdio

from mcp_context_proxy.config import load
from mcp_context_proxy.config.reload import connection_key
from mcp_context_proxy.config.settings import ServerConfig
from mcp_context_proxy.downstream.connections import Introduction
from mcp_context_proxy.downstream.lifecycle import IdleTimer, ServerState
from mcp_context_proxy.downstream.listing import STALE_SECONDS, ListingCache, ServerListing
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.store.opening import open_store

LAZY = {"start": "lazy"}
CHANGED = "notifications/tools/list_changed"


def starts(server: Server) -> int:
    return len(server.ledger.entries("start"))


def stored(workshop: Workshop, **tables: Any) -> Path:
    """The configuration, with a store that is kept."""
    return workshop.config(**{"store": {"path": "store.db"}, **tables})


@pytest.fixture
def lazy(workshop: Workshop, era: str) -> Server:
    return workshop.server(
        "lazy",
        era=era,
        tools=[tool("brew", "Brew a cup of coffee")],
        resources=[{"uri": "note://1", "name": "one"}],
        prompts=[{"name": "greet"}],
        settings=dict(LAZY),
    )


async def learned(workshop: Workshop, server: Server, **tables: Any) -> Path:
    """The configuration, after a first run in which the server was learned and put to sleep."""
    config = stored(workshop, **tables)
    async with inside(config) as proxy:
        client = proxy.fleet.clients[server.name]
        await until(lambda: client.state is ServerState.ASLEEP)
        await until(lambda: server.ledger.entries("end of input"))
    assert starts(server) == 1
    return config


async def test_an_unknown_lazy_server_is_started_once_to_list_its_tools(
    workshop: Workshop, lazy: Server
) -> None:
    await learned(workshop, lazy)

    assert len(lazy.ledger.messages("tools/list")) == 1


async def test_remembered_tools_are_listed_and_found_without_starting_the_server(
    workshop: Workshop, lazy: Server
) -> None:
    config = await learned(workshop, lazy)
    async with inside(config, settled=False) as proxy:
        host = Host(proxy, "handshake")
        assert "lazy__brew" in await host.names()
        resources = (await host.request("resources/list"))["resources"]
        prompts = (await host.request("prompts/list"))["prompts"]
        found = await host.data("search_available_tools", {"query": "brew coffee"})
        await host.request("logging/setLevel", {"level": "debug"})

        assert [entry["uri"] for entry in resources] == [
            "context://current",
            "context://requests",
            "note://1",
        ]
        assert [entry["name"] for entry in prompts] == ["lazy__greet", "with_context"]
        assert found["results"][0]["name"] == "lazy__brew"
        assert proxy.fleet.clients["lazy"].state is ServerState.ASLEEP
    assert starts(lazy) == 1


async def test_no_search_waits_for_lists_of_a_server_that_sleeps(workshop: Workshop, lazy: Server) -> None:
    """A replica has missed hints: the lists of all its servers may have changed."""
    async with inside(await learned(workshop, lazy), settled=False) as proxy:
        proxy.fleet.clients["lazy"].lists.mark_stale()

        assert not proxy.fleet.shared.changed


async def test_concurrent_calls_start_a_lazy_server_once(workshop: Workshop, lazy: Server) -> None:
    config = await learned(workshop, lazy)
    async with inside(config) as proxy, anyio.create_task_group() as group:
        answers: list[Any] = []

        async def call(number: int) -> None:
            answers.append(await Host(proxy, "modern").call("lazy__brew", {"text": str(number)}))

        for number in range(10):
            group.start_soon(call, number)
        await until(lambda: len(answers) == 10)

        assert [answer for answer in answers if "isError" in answer] == []
        assert proxy.fleet.clients["lazy"].state is ServerState.READY
    assert starts(lazy) == 2
    assert len(lazy.ledger.calls()) == 10


async def test_a_tool_that_changed_while_its_server_slept_is_announced_after_the_first_call(
    workshop: Workshop,
) -> None:
    server = workshop.server("lazy", tools=[tool("brew"), tool("old")], settings=dict(LAZY))
    config = await learned(workshop, server)
    server.respecify(tools=[tool("brew"), tool("new")])
    async with stdio(command(config)) as client:
        assert {"lazy__brew", "lazy__old"} <= set(await client.names())
        assert "isError" not in await client.call("lazy__brew")
        await client.until(lambda client: client.notified(CHANGED))

        names = await client.names()
        assert "lazy__new" in names
        assert "lazy__old" not in names
    async with inside(config) as proxy:
        assert "lazy__new" in await Host(proxy, "modern").names()
    assert starts(server) == 2


async def test_changed_connection_settings_discard_the_remembered_lists(workshop: Workshop) -> None:
    server = workshop.server("lazy", tools=[tool("secret_tool")], settings=dict(LAZY))
    await learned(workshop, server)
    server.respecify(tools=[tool("other")])
    server.settings["env"] = {"ACCOUNT": "another"}
    async with inside(stored(workshop), settled=False) as proxy:
        assert "lazy__secret_tool" not in proxy.catalog.snapshot.tools
        await proxy.wait_first_connect()

        assert list(proxy.catalog.snapshot.tools) == ["lazy__other"]


async def test_what_a_server_listed_in_one_repository_is_not_remembered_in_another(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = workshop.server("lazy", tools=[tool("evil")], settings={**LAZY, "cwd": "launch"})
    for folder in ("opened", "other"):
        (workshop.folder / folder).mkdir()
    monkeypatch.chdir(workshop.folder / "opened")
    config = await learned(workshop, server)
    async with inside(config) as proxy:
        assert "lazy__evil" in proxy.catalog.snapshot.tools
    server.respecify(tools=[tool("good")])
    monkeypatch.chdir(workshop.folder / "other")
    async with inside(config, settled=False) as proxy:
        assert "lazy__evil" not in proxy.catalog.snapshot.tools
        await proxy.wait_first_connect()

        assert list(proxy.catalog.snapshot.tools) == ["lazy__good"]


async def test_a_damaged_listing_cache_is_ignored(workshop: Workshop, lazy: Server) -> None:
    config = await learned(workshop, lazy)
    with closing(sqlite3.connect(workshop.folder / "store.db")) as database, database:
        database.execute("UPDATE listings SET listing = replace(listing, x'62726577', x'62726578')")
    database.close()
    async with inside(config, settled=False) as proxy:
        assert "lazy__brex" not in proxy.catalog.snapshot.tools
        await proxy.wait_first_connect()

        assert "lazy__brew" in proxy.catalog.snapshot.tools
    assert starts(lazy) == 2


async def test_a_failing_lazy_server_is_reported_and_retried_by_a_later_call(
    workshop: Workshop,
) -> None:
    server = workshop.server("lazy", tools=[tool("brew")], settings=dict(LAZY))
    config = await learned(
        workshop, server, limits={"backoff_first_seconds": 0.01, "backoff_max_seconds": 0.02}
    )
    server.respecify(at_start=[{"stderr": "no licence"}, {"exit": 3}])
    async with host_of(config, "modern") as host:
        refused = await host.call("lazy__brew")
        assert refused["isError"]
        assert "exited (code 3)" in refused["content"][0]["text"]
        assert "no licence" in refused["content"][0]["text"]
        assert "lazy__brew" in await host.names()
        server.respecify(at_start=[])
        await anyio.sleep(0.1)  # longer than the back-off

        with anyio.fail_after(20):
            while "isError" in await host.call("lazy__brew"):  # noqa: ASYNC110 - another process
                await anyio.sleep(0.01)
    assert starts(server) >= 3


async def test_an_idle_server_is_stopped_and_started_for_the_next_call(workshop: Workshop, era: str) -> None:
    server = workshop.server("shy", era=era, tools=[tool("go")], settings={"idle_timeout": 0.2})
    async with inside(workshop.config()) as proxy:
        host, client = Host(proxy, "modern"), proxy.fleet.clients["shy"]
        for times in (1, 2, 3):
            await until(lambda: client.state is ServerState.ASLEEP)
            await server.ledger.until(
                lambda ledger, times=times: len(ledger.entries("end of input")) == times
            )
            assert "shy__go" in await host.names()
            assert "isError" not in await host.call("shy__go")
    assert starts(server) == 4


async def test_a_server_with_a_pending_call_is_not_stopped(workshop: Workshop) -> None:
    go = workshop.flag("go")
    server = workshop.server(
        "shy", tools=[tool("wait")], calls={"wait": [{"wait": str(go)}]}, settings={"idle_timeout": 0.05}
    )
    async with inside(workshop.config()) as proxy, anyio.create_task_group() as group:
        host, answers = Host(proxy, "modern"), []
        group.start_soon(lambda: _collect(host, answers))
        await server.ledger.until(lambda ledger: ledger.calls())
        ended = len(server.ledger.entries("end of input"))
        await anyio.sleep(0.3)  # six times its idle time

        assert len(server.ledger.entries("end of input")) == ended
        go.touch()
        await until(lambda: answers)
        assert "isError" not in answers[0]


async def test_a_server_is_not_stopped_while_a_client_is_subscribed_to_it(workshop: Workshop) -> None:
    server = workshop.server(
        "shy",
        tools=[tool("go")],
        resources=[{"uri": "note://1", "name": "one"}],
        settings={"idle_timeout": 0.05},
    )
    async with inside(workshop.config()) as proxy:
        host, client = Host(proxy, "handshake"), proxy.fleet.clients["shy"]
        await host.request("resources/subscribe", {"uri": "note://1"})
        await until(lambda: client.state is ServerState.READY)
        before = starts(server)
        await anyio.sleep(0.3)  # six times its idle time

        assert client.state is ServerState.READY
        await host.request("resources/unsubscribe", {"uri": "note://1"})
        await until(lambda: client.state is ServerState.ASLEEP)
    assert starts(server) == before


async def test_the_idle_check_does_not_run_in_a_busy_loop() -> None:
    idle = IdleTimer(ServerConfig(name="lazy", command="x", start="lazy"))
    idle.last_used = anyio.current_time()
    with anyio.move_on_after(0.05) as waited:
        await idle.wait()

    assert waited.cancelled_caught


async def _collect(host: Host, answers: list[Any]) -> None:
    answers.append(await host.call("shy__wait"))


async def test_a_server_reconfigured_as_eager_is_started(workshop: Workshop, lazy: Server) -> None:
    config = await learned(workshop, lazy)
    async with inside(config) as proxy:
        lazy.settings["start"] = "eager"
        await proxy.apply(load(stored(workshop), environ={}))
        await until(lambda: proxy.fleet.clients["lazy"].state is ServerState.READY)
    assert starts(lazy) == 2


async def test_an_old_listing_cache_is_used_at_once_and_refreshed_in_the_background(
    workshop: Workshop, lazy: Server
) -> None:
    config = await learned(workshop, lazy)
    with closing(sqlite3.connect(workshop.folder / "store.db")) as database, database:
        database.execute("UPDATE listings SET time = time - ?", (STALE_SECONDS + 1,))
    database.close()
    async with inside(config, settled=False) as proxy:
        assert "lazy__brew" in await Host(proxy, "modern").names()
        await until(lambda: len(lazy.ledger.entries("end of input")) == 2)
        assert proxy.fleet.clients["lazy"].state is ServerState.ASLEEP
    async with inside(config):
        pass
    assert starts(lazy) == 2


def test_remembered_definitions_are_the_same_bytes(tmp_path: Path) -> None:
    odd = b'{"name":"a",  "extra":[1e400,"\\u0000"],"inputSchema":{}}'
    introduction = Introduction(Era.MODERN, "2026-07-28", {"name": "s"}, {"tools": {}}, "hello")
    config = ServerConfig(name="a", command="run")
    with open_store(tmp_path / "s.db") as store:
        ListingCache(config, store.listings).save(introduction, ServerListing(tools=(odd,)))
    with open_store(tmp_path / "s.db") as store:
        found = ListingCache(config, store.listings).load()
        other = ListingCache(replace(config, args=("x",)), store.listings).load()
        assert ListingCache(config, store.listings, lambda: 0.0).load().stale

    assert found is not None
    assert (found.introduction, found.listing.tools, found.stale) == (introduction, (odd,), False)
    assert other is None


def test_an_equal_listing_is_written_again_only_after_an_hour(tmp_path: Path) -> None:
    introduction = Introduction(Era.MODERN, "2026-07-28", {"name": "s"}, {"tools": {}}, "hello")
    config, times = ServerConfig(name="a", command="run"), iter((1.0, 3600.0, 3601.0, 3602.0))
    written = []
    with open_store(tmp_path / "s.db") as store:
        cache = ListingCache(config, store.listings, lambda: next(times))
        for tools in ((b"{}",), (b"{}",), (b"{}",), ()):
            cache.save(introduction, ServerListing(tools=tools))
            found = store.listings.get(connection_key(config))
            assert found is not None
            written.append(found[0])

    assert written == [1.0, 1.0, 3601.0, 3602.0]
