"""An agent that asks right after it has connected gets its answer.

Requests wait for servers that start, and remembered listings are there at once.
"""

import json
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from support.ledger import until
from support.proxies import Host, command, host_of, http_proxy, inside
from support.raw_client import AS_DATA, RawClient, data_of
from support.servers import Server, Workshop, tool
from support.wires import http, sse, stdio

from mcp_context_proxy.app.serve import readiness
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.config.reload import connection_key
from mcp_context_proxy.downstream.fleet import server_facts
from mcp_context_proxy.downstream.lifecycle import ServerState

BREW = tool("brew", "Brew a cup of coffee")
HANGS = {"start_wait_seconds": 0.2}


def late(workshop: Workshop, **spec: Any) -> Server:
    """A server that lists nothing before its flag exists."""
    steps = {"tools/list": [{"wait": str(workshop.flag("ready"))}]}
    return workshop.server("late", tools=[BREW], on=steps, **spec)


def stored(workshop: Workshop, **tables: Any) -> Path:
    return workshop.config(store={"path": "store.db"}, **tables)


def note_of(found: dict[str, Any]) -> str:
    return str(found.get("note", ""))


def best_of(found: dict[str, Any]) -> str:
    return str(found["results"][0]["name"])


async def remembered(workshop: Workshop, **tables: Any) -> Path:
    """The configuration, after a first run in which every server was connected and remembered."""
    config = stored(workshop, **tables)
    async with inside(config) as proxy:
        for client in proxy.fleet.clients.values():
            await until(lambda client=client: proxy.store.listings.get(connection_key(client.config)))
    return config


async def late_but_remembered(workshop: Workshop) -> Path:
    """The same of a server that from now on lists nothing before its flag exists."""
    server = workshop.server("late", tools=[BREW])
    config = await remembered(workshop)
    steps = {"tools/list": [{"wait": str(workshop.flag("ready"))}]}
    server.respecify(on=steps)
    return config


async def test_an_agent_that_searches_and_calls_right_after_it_has_connected_gets_its_tool(
    workshop: Workshop,
) -> None:
    slow = {"initialize": [{"wait": str(workshop.flag("ready"))}], "server/discover": [{"silent": True}]}
    server = workshop.server("late", tools=[BREW], on=slow)
    async with stdio(command(workshop.config(limits={"start_wait_seconds": 60.0}))) as client:
        _, done = await client.start(
            "tools/call",
            {"name": "search_available_tools", "arguments": {"query": "coffee"}},
            **AS_DATA,
        )
        await server.ledger.until(lambda ledger: ledger.messages("initialize"))
        workshop.flag("ready").touch()
        found = await done

        assert best_of(data_of(found)) == "late__brew"
        called = await client.call("late__brew", {"text": "x"})
        assert json.loads(called["content"][0]["text"])["name"] == "brew"


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Refreshes of the catalog go on once it is set.

    They run in a thread: on a busy machine they end long after the server is ready.
    """
    refresh, go_on = Catalog.refresh, threading.Event()

    def late_refresh(catalog: Catalog, check: Callable[[], None] = lambda: None) -> Any:
        if catalog.whole.snapshot.generation:
            go_on.wait(30)
        return refresh(catalog, check)

    monkeypatch.setattr(Catalog, "refresh", late_refresh)
    return go_on


async def test_a_proxy_is_not_ready_before_the_lists_that_have_come_are_in_the_catalog(
    workshop: Workshop, go_on: threading.Event
) -> None:
    late(workshop)
    workshop.flag("ready").touch()
    async with inside(workshop.config(), settled=False) as proxy:
        await until(lambda: not proxy.fleet.unlisted)
        assert "late" in proxy.catalog.whole.snapshot.unlisted
        assert readiness(proxy).missing == ["the lists of servers are not all in the catalog yet"]

        go_on.set()
        await until(lambda: not readiness(proxy).missing)
        assert "late" not in proxy.catalog.whole.snapshot.unlisted


async def test_a_search_has_a_server_whose_list_has_come_but_is_not_yet_in_the_catalog(
    workshop: Workshop, go_on: threading.Event
) -> None:
    server = late(workshop)
    async with inside(workshop.config(), settled=False) as proxy:
        # The first search of all waits for more, and so it is not the one that is looked at.
        await until(lambda: server.ledger.messages("tools/list"))
        await until(lambda: "late" in proxy.catalog.whole.snapshot.unlisted)
        workshop.flag("ready").touch()
        await until(lambda: not proxy.fleet.unlisted)
        assert "late" in proxy.catalog.whole.snapshot.unlisted
        async with anyio.create_task_group() as group:
            found: list[dict[str, Any]] = []

            async def search() -> None:
                found.append(await Host(proxy, "modern").data("search_available_tools", {"query": "coffee"}))

            group.start_soon(search)
            await anyio.wait_all_tasks_blocked()
            go_on.set()

        assert best_of(found[0]) == "late__brew"


async def test_a_search_that_waits_reports_progress_to_a_client_that_asked_for_it(
    workshop: Workshop, era: str
) -> None:
    late(workshop)
    async with inside(workshop.config(limits={"start_wait_seconds": 60.0}), settled=False) as proxy:
        host, found = Host(proxy, era), []

        async def search() -> None:
            query = {"query": "coffee"}
            found.append(await host.data("search_available_tools", query, progressToken="t"))

        async with anyio.create_task_group() as group:
            group.start_soon(search)
            await until(lambda: host.notifications)
            workshop.flag("ready").touch()
        (method, params), *_ = host.notifications
        assert method == "notifications/progress"
        assert params["progressToken"] == "t"
        assert params["message"].startswith("waiting for servers (late: ")
        reached = [params["progress"] for _, params in host.notifications]
        assert reached == sorted(reached)
        assert best_of(found[0]) == "late__brew"


async def test_all_searches_together_wait_for_a_server_that_hangs_only_once(workshop: Workshop) -> None:
    late(workshop)
    workshop.server("good", tools=[tool("fine", "Say that all is fine")])
    async with host_of(workshop.config(limits={"start_wait_seconds": 0.5}), "modern", settled=False) as host:
        waits: list[bool] = []
        for query in ("fine", "all is fine"):
            told = len(host.notifications)
            found = await host.data("search_available_tools", {"query": query}, progressToken="t")
            messages = [params["message"] for _, params in host.notifications[told:]]
            waits.append(any("late" in message for message in messages))
            assert best_of(found) == "good__fine"
            assert "Not searched: late (still starting)." in note_of(found)

        assert waits == [True, False]


@pytest.mark.parametrize(
    ("name", "query", "waits"),
    [
        pytest.param("late", "brew a cup of coffee", False, id="a tool that is there is surely meant"),
        pytest.param("coffee-house", "brew a cup of coffee", True, id="the query has a word of the server"),
        pytest.param("late", "what is the weather in Oslo", True, id="nothing that is there fits"),
    ],
)
async def test_a_search_waits_for_a_server_unless_a_tool_that_is_there_is_surely_meant(
    workshop: Workshop, name: str, query: str, waits: bool
) -> None:
    workshop.server("good", tools=[BREW, tool("fine", "Say that all is fine")])
    workshop.server(name, on={"tools/list": [{"wait": str(workshop.flag("never"))}]})
    limits = {"start_wait_seconds": 1.5 if waits else 60.0}
    async with inside(workshop.config(limits=limits), settled=False) as proxy:
        found = await Host(proxy, "modern").data("search_available_tools", {"query": query})

        assert proxy.fleet.clients[name].was_late is waits
        assert f"Not searched: {name} (still starting)." in note_of(found)
        assert waits or best_of(found) == "good__brew"


async def test_a_search_that_waits_looks_again_once_a_further_server_is_there(workshop: Workshop) -> None:
    workshop.server("good", tools=[BREW], on={"tools/list": [{"wait": str(workshop.flag("ready"))}]})
    workshop.server("fine", tools=[tool("fine", "Say that all is fine")])
    workshop.server("late", on={"tools/list": [{"wait": str(workshop.flag("never"))}]})
    async with inside(workshop.config(limits={"start_wait_seconds": 60.0}), settled=False) as proxy:
        host, answers = Host(proxy, "modern"), []

        async def search() -> None:
            query = {"query": "brew a cup of coffee"}
            answers.append(await host.data("search_available_tools", query, progressToken="t"))

        async with anyio.create_task_group() as group:
            group.start_soon(search)
            await until(lambda: host.notifications)  # after a second, in which nothing fitted
            workshop.flag("ready").touch()

        assert best_of(answers[0]) == "good__brew"
        assert "Not searched: late (still starting)." in note_of(answers[0])


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        pytest.param("search_available_tools", {"query": "coffee, please"}, id="a word of its name"),
        pytest.param(
            "search_available_tools", {"query": "a drink", "filters": {"server": "coffee"}}, id="a filter"
        ),
        pytest.param("coffee__brew", {"text": "x"}, id="a call"),
    ],
)
async def test_a_server_that_a_request_names_starts_before_those_that_are_being_downloaded(
    workshop: Workshop, method: str, arguments: dict[str, Any]
) -> None:
    runner = workshop.folder / "npx"
    runner.symlink_to(sys.executable)
    settings = {"command": str(runner)}
    for name in ("first", "second"):
        workshop.server(name, on={"tools/list": [{"wait": str(workshop.flag("never"))}]}, settings=settings)
    workshop.server("coffee", tools=[BREW], settings=settings)
    limits = {"starts_at_once": 1, "start_wait_seconds": 20.0, "connect_seconds": 20.0}
    async with inside(workshop.config(limits=limits), settled=False) as proxy:
        await until(lambda: proxy.fleet.clients["first"].state is ServerState.STARTING)
        answer = await Host(proxy, "modern").call(method, arguments)

        assert "isError" not in answer
        assert proxy.fleet.clients["coffee"].state is ServerState.READY
        assert proxy.fleet.clients["second"].state is ServerState.WAITING


async def test_the_next_proxy_waits_no_more_for_a_server_that_hangs_and_finds_it_when_it_is_ready(
    workshop: Workshop,
) -> None:
    late(workshop)
    workshop.server("good", tools=[tool("fine", "Say that all is fine")])
    store = {"path": str(workshop.folder / "store.sqlite3")}
    config, waits = workshop.config(limits={"start_wait_seconds": 0.5}, store=store), list[bool]()

    async def search(host: Host) -> None:
        told = len(host.notifications)
        await host.data("search_available_tools", {"query": "all is fine"}, progressToken="t")
        waits.append(any("late" in params["message"] for _, params in host.notifications[told:]))

    for _ in range(2):
        async with host_of(config, "modern", settled=False) as host:
            await search(host)
    workshop.flag("ready").touch()
    async with inside(config) as proxy:
        found = await Host(proxy, "modern").data("search_available_tools", {"query": "coffee"})

    assert waits == [True, False]
    assert best_of(found) == "late__brew"


async def test_the_next_proxy_does_not_wait_for_a_server_that_has_failed(workshop: Workshop) -> None:
    workshop.server("late", at_start=[{"wait": str(workshop.flag("asked"))}, {"exit": 1}])
    config, waits = stored(workshop, limits={"start_wait_seconds": 60.0}), list[bool]()
    for _ in range(2):
        async with host_of(config, "modern", settled=False) as host, anyio.create_task_group() as group:
            found = partial(host.data, "search_available_tools", {"query": "coffee"}, progressToken="t")
            group.start_soon(found)
            await anyio.wait_all_tasks_blocked()
            workshop.flag("asked").touch()
        waits.append(any("late" in params["message"] for _, params in host.notifications))

    assert waits == [True, False]


# Lists


LONG = {"first_list_seconds": 60.0}


async def test_the_first_lists_of_every_front_wait_for_a_server_that_starts(workshop: Workshop) -> None:
    """Clients over HTTP of both eras, over SSE and over stdio; those of a shared proxy in `test_shared`."""
    server = late(workshop, prompts=[{"name": "greet"}], resources=[{"uri": "mem://one", "name": "one"}])
    config = workshop.config(limits=LONG)
    lists = {"prompts/list": "late__greet", "resources/list": "mem://one"}
    with http_proxy(config) as proxy:
        async with (
            http(proxy.base, plain=True) as one,
            http(proxy.base, "modern", plain=True) as two,
            sse(proxy.base) as three,
            stdio(command(config)) as four,
        ):
            answers = [(await client.start("tools/list"))[1] for client in (one, two, three, four)]
            others = [(await two.start(method))[1] for method in lists]
            await server.ledger.until(lambda ledger: len(ledger.messages("tools/list")) == 2)
            assert not any(answer.done() for answer in (*answers, *others))
            workshop.flag("ready").touch()

            for answer in answers:
                assert "late__brew" in [listed["name"] for listed in (await answer)["tools"]]
            for answer, listed in zip(others, lists.values(), strict=True):
                assert listed in str(await answer)


async def test_all_lists_together_wait_for_a_server_that_hangs_only_once(
    workshop: Workshop, era: str
) -> None:
    late(workshop)
    workshop.server("good", tools=[tool("fine")])
    workshop.server("dead", at_start=[{"exit": 1}])
    limits = {"first_list_seconds": 0.3, "backoff_first_seconds": 60.0}
    async with inside(workshop.config(limits=limits), settled=False) as proxy:
        host = Host(proxy, era)
        await proxy.fleet.clients["good"].wait_first_connect()
        first = await host.request("tools/list")
        hanging = proxy.fleet.clients["late"]
        hanging.configure(hanging.config, replace(hanging.limits, **LONG))

        assert "good__fine" in str(first)
        assert "late__brew" not in str(first)
        assert "good__fine" in await host.names()


async def test_a_server_that_fails_holds_no_list_up(workshop: Workshop) -> None:
    workshop.server("dead", at_start=[{"exit": 1}])
    workshop.server("good", tools=[tool("fine")])
    async with inside(workshop.config(limits=LONG), settled=False) as proxy:
        assert "good__fine" in await Host(proxy, "modern").names()


async def test_remembered_lists_are_answered_without_a_wait(workshop: Workshop) -> None:
    late(workshop)
    workshop.flag("ready").touch()
    config = await remembered(workshop, limits=LONG)
    workshop.flag("ready").unlink()
    async with inside(config, settled=False) as proxy:
        assert "late__brew" in await Host(proxy, "modern").names()


async def test_a_list_waits_for_no_server_whose_tools_it_never_has(workshop: Workshop) -> None:
    late(workshop)
    tables = {"limits": LONG, "expose": {"mode": "search"}}
    async with inside(workshop.config(**tables), settled=False) as proxy:
        assert "search_available_tools" in await Host(proxy, "modern").names()


async def test_a_list_waits_for_no_more_servers_once_it_is_too_large_to_have_all_tools(
    workshop: Workshop, era: str
) -> None:
    late(workshop)
    workshop.server("good", tools=[tool("fine")])
    tables = {"limits": LONG, "expose": {"mode": "auto", "list_all_below": 1}}
    async with inside(workshop.config(**tables), settled=False) as proxy:
        with anyio.fail_after(30.0):
            names = await Host(proxy, era).names()

        assert "search_available_tools" in names
        assert "good__fine" not in names


@pytest.mark.parametrize("expose", [{"mode": "search"}, {"mode": "auto", "list_all_below": 1}])
async def test_a_list_waits_for_a_server_that_has_tools_for_every_list(
    workshop: Workshop, expose: dict[str, Any]
) -> None:
    server = late(workshop, settings={"tools": {"brew": {"include": "always"}}})
    workshop.server("good", tools=[tool("fine")])
    tables = {"limits": LONG, "expose": expose}
    names: list[str] = []
    async with inside(workshop.config(**tables), settled=False) as proxy, anyio.create_task_group() as group:

        async def ask() -> None:
            names.extend(await Host(proxy, "modern").names())

        group.start_soon(ask)
        await server.ledger.until(lambda ledger: ledger.messages("tools/list"))
        assert not names
        workshop.flag("ready").touch()

    assert "late__brew" in names


# Calls


@pytest.mark.parametrize("name", ["late__brew", "brew"])
async def test_a_call_waits_for_a_server_that_starts_and_reports_progress(
    workshop: Workshop, name: str, era: str
) -> None:
    late(workshop)
    async with inside(workshop.config(limits=HANGS), settled=False) as proxy:
        host, answers = Host(proxy, era), []

        async def call() -> None:
            answers.append(await host.call(name, {"text": "x"}, progressToken="t"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await until(lambda: host.notifications)
            assert answers == []
            workshop.flag("ready").touch()
        assert "waiting for servers (late: " in host.notifications[0][1]["message"]
        assert "isError" not in answers[0]


async def test_a_call_waits_for_a_server_no_longer_than_its_connect_timeout(workshop: Workshop) -> None:
    late(workshop)
    async with inside(workshop.config(limits=HANGS), settled=False) as proxy:
        client = proxy.fleet.clients["late"]
        await until(lambda: client.state is ServerState.STARTING)
        client.configure(replace(client.config, connect_timeout=0.3), client.limits)
        refused = await Host(proxy, "modern").call("late__brew")
        facts = server_facts(client, [], 0, 0)

        assert (facts["state"], "cause" in facts) == ("still starting", False)
        assert (
            "'late' is not available (still starting: call again in a while)" in refused["content"][0]["text"]
        )


async def test_a_call_of_one_server_does_not_wait_for_another(workshop: Workshop) -> None:
    late(workshop)
    workshop.server("good", tools=[tool("fine")])
    async with inside(workshop.config(limits=HANGS), settled=False) as proxy:
        await proxy.fleet.clients["good"].wait_first_connect()
        host = Host(proxy, "modern")

        assert "isError" in await host.call("good__fyne", progressToken="t")
        assert host.notifications == []
        assert proxy.fleet.starting == ("late",)


async def test_what_is_remembered_of_a_server_is_listed_and_found_at_once_and_marked(
    workshop: Workshop, era: str
) -> None:
    config = await late_but_remembered(workshop)
    async with inside(config, settled=False) as proxy:
        host = Host(proxy, era)
        assert "late__brew" in await host.names()
        found = await host.data("search_available_tools", {"query": "coffee"}, progressToken="t")
        assert best_of(found) == "late__brew"
        assert "Searched as last known, because not connected yet: late." in note_of(found)
        waited = [params["message"] for _, params in host.notifications]
        assert [message for message in waited if "waiting for servers" in message] == []

        workshop.flag("ready").touch()
        await until(lambda: proxy.fleet.clients["late"].state is ServerState.READY)
        found = await host.data("search_available_tools", {"query": "coffee"})
        assert "last known" not in note_of(found)


async def test_a_call_of_a_remembered_tool_waits_for_its_server_with_progress(
    workshop: Workshop, era: str
) -> None:
    config = await late_but_remembered(workshop)
    async with inside(config, settled=False) as proxy:
        host, answers = Host(proxy, era), []

        async def call() -> None:
            answers.append(await host.call("late__brew", {"text": "x"}, progressToken="t"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await until(lambda: host.notifications)
            workshop.flag("ready").touch()
        assert "waiting for servers (late: " in host.notifications[0][1]["message"]
        assert "isError" not in answers[0]


async def test_a_remembered_server_that_fails_stays_listed_and_its_calls_say_why(workshop: Workshop) -> None:
    server = workshop.server("late", tools=[BREW])
    config = await remembered(workshop)
    server.respecify(at_start=[{"exit": 3}])
    async with host_of(config, "modern") as host:
        assert "late__brew" in await host.names()
        found = await host.data("search_available_tools", {"query": "coffee"})
        assert "Searched as last known, because not connected yet: late (" in note_of(found)
        refused = await host.call("late__brew")

        assert "exited (code 3)" in refused["content"][0]["text"]


async def test_a_tool_that_a_server_no_longer_has_goes_when_it_is_connected(workshop: Workshop) -> None:
    server = workshop.server("late", tools=[BREW, tool("old")])
    config = await remembered(workshop)
    server.respecify(tools=[BREW])
    async with inside(config) as proxy:
        names = await Host(proxy, "modern").names()

        assert "late__brew" in names
        assert "late__old" not in names


GRIND = "[server 'late' says] Grind the beans first."


async def answers_to(client: RawClient, *queries: str) -> list[str]:
    """The texts of searches, each for the best tool alone."""
    arguments = [{"query": query, "top_n": 1} for query in queries]
    found = [await client.call("search_available_tools", each) for each in arguments]
    return [one["content"][0]["text"] for one in found]


async def test_a_server_that_connects_after_its_host_is_introduced_once_by_a_search(
    workshop: Workshop,
) -> None:
    slow = {"initialize": [{"wait": str(workshop.flag("ready"))}], "server/discover": [{"silent": True}]}
    workshop.server("late", tools=[BREW], on=slow, instructions="Grind the beans\nfirst.\u202e")
    workshop.server("lawn", tools=[tool("mow", "Mow the lawn")])
    config = stored(workshop, limits={"start_wait_seconds": 60.0}, expose={"mode": "search"})
    async with stdio(command(config)) as client:
        workshop.flag("ready").touch()
        answers = await answers_to(client, "mow the lawn", "brew coffee", "brew a cup of coffee")

    assert GRIND not in client.introduction["instructions"]
    assert [answer.count(GRIND) for answer in answers] == [0, 1, 0]


async def test_a_server_that_the_instructions_introduce_is_not_introduced_again(workshop: Workshop) -> None:
    late(workshop, instructions="Grind the beans first.")
    workshop.flag("ready").touch()
    config = await remembered(workshop, expose={"mode": "search"})
    async with stdio(command(config)) as client:
        answers = await answers_to(client, "brew coffee")

    assert GRIND in client.introduction["instructions"]
    assert "late__brew" in answers[0]
    assert GRIND not in answers[0]


@pytest.mark.parametrize("name", ["late__brew", "brew"])
async def test_a_call_at_the_moment_in_which_its_server_becomes_ready_is_served(
    workshop: Workshop, name: str
) -> None:
    late(workshop)
    async with inside(workshop.config(), settled=False) as proxy:
        host = Host(proxy, "modern")
        workshop.flag("ready").touch()
        await proxy.fleet.clients["late"].wait_first_connect()

        # The catalog has not read the list yet.
        assert not proxy.catalog.snapshot.tools
        assert "isError" not in await host.call(name)


async def test_a_prompt_is_got_at_the_moment_in_which_its_server_becomes_ready(workshop: Workshop) -> None:
    late(workshop, prompts=[{"name": "greet"}])
    async with inside(workshop.config(), settled=False) as proxy:
        host = Host(proxy, "modern")
        workshop.flag("ready").touch()
        await proxy.fleet.clients["late"].wait_first_connect()

        assert not proxy.catalog.snapshot.prompts
        assert (await host.request("prompts/get", {"name": "late__greet"}))["messages"]
