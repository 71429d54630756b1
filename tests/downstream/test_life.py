"""A server that hangs, dies or never comes is its own calls' trouble, and nobody else's."""

import json
import os
import signal
import sqlite3
from contextlib import closing
from functools import partial
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, inside
from support.servers import Server, Workshop, tool

from mcp_context_proxy.downstream.condition import State
from mcp_context_proxy.downstream.memory import STALE_SECONDS
from mcp_context_proxy.wire.era import Era

pytestmark = pytest.mark.anyio

LISTED_TOOLS = [tool("die"), tool("live")]
LISTED = [{"result": {"tools": LISTED_TOOLS}}]
QUICK = {"backoff_first_seconds": 0.01, "backoff_max_seconds": 0.02, "probe_seconds": 0.3}


def text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
        return file.read().split(")")[-1].split()[0] != "Z"


@pytest.fixture
def good(workshop: Workshop) -> Server:
    """A healthy neighbour."""
    return workshop.server("good", tools=[tool("fine")])


async def works(host: Host) -> bool:
    return "good__fine" in await host.names() and "isError" not in await host.call("good__fine")


async def test_a_server_that_never_answers_does_not_keep_the_others_waiting(
    workshop: Workshop, good: Server, era: str
) -> None:
    flag = workshop.flag("never")
    workshop.server("hung", on={"initialize": [{"wait": str(flag)}], "server/discover": [{"silent": True}]})
    async with inside(workshop.config(), settled=False) as proxy:
        await proxy.fleet.clients["good"].settled()
        proxy.catalog.refresh()

        assert await works(Host(proxy, era))
        assert proxy.fleet.starting == ("hung",)
        flag.touch()


async def test_a_call_to_a_server_that_is_starting_fails_at_once_and_says_so(workshop: Workshop) -> None:
    flag = workshop.flag("later")
    workshop.server("late", tools=[tool("go")], on={"tools/list": [{"wait": str(flag)}]})
    async with inside(workshop.config(), settled=False) as proxy:
        from mcp_context_proxy.errors import ServerUnavailableError

        with pytest.raises(ServerUnavailableError, match=r"starting|waiting"):
            await proxy.fleet.clients["late"].call("tools/call", {})
        flag.touch()
        await proxy.settled()

        assert "late__go" in await Host(proxy, "modern").names()


async def test_a_server_that_was_not_ready_in_time_is_given_up_and_tried_again(workshop: Workshop) -> None:
    flag = workshop.flag("ready")
    server = workshop.server(
        "late",
        tools=[tool("go")],
        on={"initialize": [{"wait": str(flag)}]},
        settings={"connect_timeout": 0.4, "era": "handshake"},
    )
    async with inside(workshop.config(limits=QUICK)) as proxy:
        client = proxy.fleet.clients["late"]
        # It may be on its way to the next attempt already.
        assert "0.4 s" in client.cause
        flag.touch()
        await until(lambda: client.state is State.READY)

    assert len(server.ledger.entries("start")) >= 2


async def test_a_server_that_exits_at_start_is_told_with_its_last_words(
    workshop: Workshop, good: Server, era: str
) -> None:
    workshop.server(
        "dead", at_start=[{"stderr": "reading settings\nno API key: set KEY"}, {"exit": 3}], tools=[tool("x")]
    )
    workshop.server("mute", at_start=[{"raw": "Usage: mute KEY"}, {"exit": 3}])
    async with inside(workshop.config()) as proxy:
        from mcp_context_proxy.errors import ServerUnavailableError

        assert "its last output: Usage: mute KEY" in str(proxy.fleet.clients["mute"].unavailable())
        assert await works(Host(proxy, era))
        with pytest.raises(ServerUnavailableError) as refused:
            await proxy.fleet.clients["dead"].call("tools/call", {})

    message = str(refused.value)
    assert "'dead'" in message
    assert "exited (code 3)" in message
    assert "no API key: set KEY" in message


async def test_what_a_server_says_as_it_is_started_again_hides_none_of_its_last_words(
    workshop: Workshop,
) -> None:
    trace = "\n".join([f"frame {number}" for number in range(30)] + ["KeyError: 'KEY'"])
    die = [{"stderr": trace}, {"exit": 1}]
    once, again = str(workshop.flag("first")), str(workshop.flag("again"))
    starting = [{"stderr": "frame 0\nand something else"}, {"once": [again, []]}, {"wait": "/never"}]
    workshop.server("dead", at_start=[{"once": [once, die]}, *starting])
    async with inside(workshop.config(limits=QUICK)) as proxy:
        await until(lambda: workshop.flag("again").exists())
        client = proxy.fleet.clients["dead"]

        assert client.stderr[-2:] == ("frame 29", "KeyError: 'KEY'")
        assert "KeyError" in str(client.unavailable())


async def test_a_program_that_is_not_there_is_told_by_name(workshop: Workshop, good: Server) -> None:
    workshop.server("gone", settings={"command": "no-such-program-anywhere", "args": []})
    async with inside(workshop.config()) as proxy:
        assert "no-such-program-anywhere" in proxy.fleet.clients["gone"].cause
        assert await works(Host(proxy, "modern"))


async def test_tools_of_a_server_that_died_stay_listed_and_their_calls_fail_at_once_with_why(
    workshop: Workshop, era: str
) -> None:
    started = workshop.flag("started")
    die = [{"stderr": "out of luck"}, {"exit": 6}]
    server = workshop.server(
        "frail",
        tools=[tool("die"), tool("live")],
        calls={"die": die},
        at_start=[{"once": [str(started), [{"stderr": "first start"}]]}],
        on={"tools/list": [{"once": [str(workshop.flag("listed")), LISTED]}, *die]},
    )
    async with inside(workshop.config(limits={"backoff_first_seconds": 30.0})) as proxy:
        host = Host(proxy, era)
        await host.call("frail__die")
        await server.ledger.until(lambda ledger: len(ledger.entries("start")) == 2)
        await until(lambda: proxy.fleet.clients["frail"].state is State.FAILED)
        result = await host.call("frail__live")
        names = await host.names()

    assert {"frail__live", "frail__die"} <= set(names)
    assert result["isError"] is True
    assert "'frail'" in text(result)
    assert "exited (code 6)" in text(result)
    assert "out of luck" in text(result)


async def test_a_call_waits_for_a_server_that_is_being_started_again(workshop: Workshop, era: str) -> None:
    first, gate = workshop.flag("first"), workshop.flag("gate")
    once = [{"once": [str(first), LISTED]}, {"wait": str(gate)}, *LISTED]
    server = workshop.server(
        "frail", tools=LISTED_TOOLS, calls={"die": [{"exit": 6}]}, on={"tools/list": once}
    )
    answers: list[dict[str, Any]] = []
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, era)
        await host.call("frail__die")
        await until(lambda: proxy.fleet.clients["frail"].state is State.STARTING)

        async def call() -> None:
            answers.append(await host.call("frail__live"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await server.ledger.until(lambda ledger: len(ledger.entries("start")) == 2)
            assert answers == []
            gate.touch()

    assert [answer.get("isError", False) for answer in answers] == [False]
    assert len(server.ledger.calls("live")) == 1


async def test_a_crash_during_a_call_is_told_and_the_call_is_never_sent_again(
    workshop: Workshop, good: Server, era: str
) -> None:
    server = workshop.server(
        "frail", era=era, tools=[tool("die"), tool("live")], calls={"die": [{"exit": 6}]}
    )
    async with inside(workshop.config(limits=QUICK)) as proxy:
        host = Host(proxy, era)
        died = await host.call("frail__die", {"text": "once"})
        assert await works(host)
        await server.ledger.until(lambda ledger: len(ledger.entries("start")) == 2)
        client = proxy.fleet.clients["frail"]
        await until(lambda: client.state is State.READY)
        lived = await host.call("frail__live")

    assert died["isError"] is True
    assert "exited (code 6)" in text(died)
    assert "may or may not have run" in text(died)
    assert "isError" not in lived
    assert len(server.ledger.calls("die")) == 1


async def test_a_kill_during_a_call_names_the_signal(workshop: Workshop) -> None:
    workshop.server("frail", tools=[tool("die")], calls={"die": [{"kill": 9}, {"silent": True}]})
    async with inside(workshop.config()) as proxy:
        result = await Host(proxy, "handshake").call("frail__die")

    assert "killed by signal 9" in text(result)


async def test_one_that_is_killed_again_and_again_is_there_for_the_next_call(workshop: Workshop) -> None:
    workshop.server("frail", tools=[tool("pid")], calls={"pid": [{"pid": True}]})
    pids = []
    limits = {"backoff_first_seconds": 9000.0, "backoff_max_seconds": 9000.0, "breaker_seconds": 9000.0}
    async with inside(workshop.config(limits=limits)) as proxy:
        host = Host(proxy, "handshake")
        for _ in range(12):
            while (result := await host.call("frail__pid")).get("isError"):  # noqa: ASYNC110 - another process
                await anyio.sleep(0.01)
            pids.append(int(result["content"][0]["text"]))
            os.kill(pids[-1], signal.SIGKILL)

    assert len(set(pids)) == 12


async def test_a_crash_fails_every_call_that_is_under_way_once(workshop: Workshop) -> None:
    server = workshop.server(
        "frail", tools=[tool("hang"), tool("die")], calls={"hang": [{"silent": True}], "die": [{"exit": 1}]}
    )
    results = []
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "handshake")

        async def hang() -> None:
            results.append(await host.call("frail__hang"))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(hang)
            await server.ledger.until(lambda ledger: len(ledger.calls("hang")) == 10)
            await host.call("frail__die")

    assert len(results) == 10
    assert all("may or may not have run" in text(result) for result in results)
    assert len(server.ledger.calls("hang")) == 10


async def test_one_that_is_of_no_use_is_left_alone_after_some_tries_whoever_calls_it(
    workshop: Workshop,
) -> None:
    limits = {**QUICK, "breaker_failures": 3, "breaker_seconds": 3600.0}
    server = workshop.server("dying", on={"initialize": [{"exit": 3}]}, settings={"era": "handshake"})
    async with inside(workshop.config(limits=limits)) as proxy:
        host = Host(proxy, "modern")
        await server.ledger.until(lambda ledger: len(ledger.entries("start")) == 3)
        told = [await host.call("dying__anything") for _ in range(20)]

    assert all("exited (code 3)" in text(result) for result in told[1:])
    assert len(server.ledger.entries("start")) == 3


async def test_a_call_too_many_is_told_busy_at_once_and_costs_no_other(workshop: Workshop) -> None:
    flag = workshop.flag("go on")
    calls = {"wait": [{"wait": str(flag)}, {"result": {"content": []}}]}
    server = workshop.server("slow", tools=[tool("wait")], calls=calls)
    results: list[Any] = []
    async with inside(workshop.config(limits={"in_flight_per_server": 2})) as proxy:
        host = Host(proxy, "modern")

        async def call() -> None:
            results.append(await host.call("slow__wait"))

        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(call)
            await server.ledger.until(lambda ledger: len(ledger.calls("wait")) == 2)
            refused = await host.call("slow__wait")
            flag.touch()

    assert "busy" in text(refused)
    assert [result.get("isError") for result in results] == [None, None]
    assert len(server.ledger.calls("wait")) == 2


@pytest.mark.parametrize("spoken", ["handshake", "modern"])
async def test_a_call_without_answer_ends_at_its_deadline_and_is_cancelled(
    workshop: Workshop, spoken: str
) -> None:
    server = workshop.server(
        "slow",
        era=spoken,
        tools=[tool("hang"), tool("fine")],
        calls={"hang": [{"wait_cancelled": True}]},
        settings={"call_timeout": 0.5},
    )
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "handshake")
        result = await host.call("slow__hang")
        (cancelled,) = await server.ledger.until(lambda ledger: ledger.messages("notifications/cancelled"))
        fine = await host.call("slow__fine")

    assert result["isError"] is True
    assert "within 0.5 s" in text(result)
    (call,) = server.ledger.messages("tools/call")[:1]
    assert cancelled["params"]["requestId"] == call["id"]
    assert "isError" not in fine


async def test_progress_starts_the_deadline_anew(workshop: Workshop) -> None:
    flags = [workshop.flag(str(number)) for number in range(4)]
    steps = [step for flag in flags for step in ({"progress": 1}, {"wait": str(flag)})]
    workshop.server("slow", tools=[tool("work")], calls={"work": steps}, settings={"call_timeout": 0.6})
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "handshake")
        results = []

        async def call() -> None:
            results.append(await host.call("slow__work", progressToken="t"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            for number, flag in enumerate(flags):
                await until(lambda told=number: len(host.notifications) > told)
                await anyio.sleep(0.25)  # nearer to the deadline each time: together well past it
                flag.touch()

    assert "isError" not in results[0]


async def test_a_flood_of_progress_is_thinned_and_its_end_is_told(workshop: Workshop, era: str) -> None:
    workshop.server("eager", tools=[tool("work")], calls={"work": [{"progress": 5000}]})
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, era)
        await host.call("eager__work", progressToken="t")

    told = [params["progress"] for method, params in host.notifications if method.endswith("progress")]
    assert told == sorted(told)
    assert told[:10] == list(range(1, 11))
    assert told[-1] == 5000
    assert len(told) < 2500


async def test_the_newest_progress_is_told_though_it_came_too_fast_and_nothing_follows(
    workshop: Workshop, era: str
) -> None:
    flag = workshop.flag("go")
    workshop.server("eager", tools=[tool("work")], calls={"work": [{"progress": 100}, {"wait": str(flag)}]})
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, era)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(host.call, "eager__work", progressToken="t"))
            await until(lambda: host.notifications and host.notifications[-1][1]["progress"] == 100)
            flag.touch()

    assert len(host.notifications) < 100


async def test_a_flood_of_log_messages_is_thinned_and_tells_no_secret(workshop: Workshop) -> None:
    said = {"method": "notifications/message", "params": {"level": "error", "data": "key s3cr3t-value"}}
    server = workshop.server(
        "eager",
        tools=[tool("work")],
        calls={"work": [{"notify": said}] * 3000},
        capabilities={"tools": {}, "logging": {}},
    )
    server.settings["env"] = {"API_KEY": "s3cr3t-value"}
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "handshake")
        await host.call("eager__work")

    told = [params["data"] for method, params in host.notifications if method == "notifications/message"]
    assert set(told) == {"key [redacted API_KEY]"}
    assert 500 <= len(told) < 3000


async def test_cancelling_the_caller_cancels_at_the_server(workshop: Workshop) -> None:
    server = workshop.server("slow", tools=[tool("hang")], calls={"hang": [{"wait_cancelled": True}]})
    async with inside(workshop.config()) as proxy, anyio.create_task_group() as group:
        group.start_soon(Host(proxy, "handshake").call, "slow__hang")
        await server.ledger.until(lambda ledger: ledger.calls("hang"))
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await server.ledger.until(lambda ledger: ledger.entries("cancelled"))


async def test_an_old_server_that_ignores_the_modern_probe_is_asked_the_old_way(workshop: Workshop) -> None:
    workshop.server("old", tools=[tool("go")], on={"server/discover": [{"silent": True}]})
    async with inside(workshop.config(limits=QUICK)) as proxy:
        assert "old__go" in await Host(proxy, "modern").names()


async def test_an_old_server_that_dies_of_the_modern_probe_is_not_probed_again(workshop: Workshop) -> None:
    server = workshop.server("old", tools=[tool("go")], on={"server/discover": [{"exit": 1}]})
    async with inside(workshop.config(limits=QUICK)) as proxy:
        await until(lambda: proxy.fleet.clients["old"].state is State.READY)
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


def respecify(server: Server, **spec: Any) -> None:
    server.path.write_text(json.dumps(json.loads(server.path.read_text()) | spec))


async def served(workshop: Workshop, server: Server) -> Era:
    """One run of a proxy with a store that is kept, until the server is ready; in which era."""
    config = workshop.config(limits=QUICK, store={"path": "store.db"})
    async with inside(config) as proxy:
        client = proxy.fleet.clients[server.name]
        await until(lambda: client.state is State.READY)
        assert client.introduction is not None
        return client.introduction.era


async def test_a_server_that_a_probe_is_wasted_on_is_not_probed_by_the_next_proxy(
    workshop: Workshop, old: Server
) -> None:
    for _ in range(3):
        assert await served(workshop, old) is Era.HANDSHAKE

    assert probes(old) == 1


async def test_a_server_at_a_url_that_ignores_the_probe_is_not_probed_by_the_next_proxy(
    workshop: Workshop,
) -> None:
    never = [{"wait": str(workshop.flag("never"))}]
    server = workshop.http_server("old", tools=[tool("go")], on={"server/discover": never})
    for _ in range(2):
        assert await served(workshop, server) is Era.HANDSHAKE

    assert probes(server) == 1


async def test_a_server_that_is_connected_differently_is_probed_again(
    workshop: Workshop, old: Server
) -> None:
    await served(workshop, old)
    old.settings["env"] = {"ACCOUNT": "another"}
    await served(workshop, old)

    assert probes(old) == 2


async def test_a_server_that_a_probe_is_wasted_on_is_probed_again_after_a_day(
    workshop: Workshop, old: Server
) -> None:
    await served(workshop, old)
    with closing(sqlite3.connect(workshop.folder / "store.db")) as database, database:
        database.execute("UPDATE listings SET time = time - ?", (STALE_SECONDS + 1,))
    await served(workshop, old)

    assert probes(old) == 2


async def test_a_server_that_says_it_is_another_version_is_probed_by_the_next_proxy(
    workshop: Workshop, old: Server
) -> None:
    await served(workshop, old)
    respecify(old, era="both", on={}, version="2")
    eras = [await served(workshop, old) for _ in range(3)]

    assert eras == [Era.HANDSHAKE, Era.MODERN, Era.MODERN]


async def test_a_server_that_became_modern_is_found_so_by_the_proxy_that_remembers_it_otherwise(
    workshop: Workshop, old: Server
) -> None:
    await served(workshop, old)
    respecify(old, era="modern", on={})
    before = len(old.ledger.entries("start"))
    eras = [await served(workshop, old) for _ in range(2)]

    assert eras == [Era.MODERN, Era.MODERN]
    assert len(old.ledger.entries("start")) == before + 3


async def test_a_modern_server_that_died_while_it_was_asked_is_asked_again(workshop: Workshop) -> None:
    dies_once = [{"once": [str(workshop.flag("died")), [{"exit": 1}]]}]
    server = workshop.server("new", era="modern", tools=[tool("go")], on={"server/discover": dies_once})
    async with inside(workshop.config(limits=QUICK)) as proxy:
        await until(lambda: proxy.fleet.clients["new"].state is State.READY)

    assert len(server.ledger.messages("server/discover")) == 2


async def test_the_era_can_be_named_to_skip_the_probe(workshop: Workshop) -> None:
    server = workshop.server("old", tools=[tool("go")], settings={"era": "handshake"})
    async with inside(workshop.config()):
        pass

    assert server.ledger.messages("server/discover") == []


async def test_a_changed_list_is_listed_anew(workshop: Workshop, era: str) -> None:
    server = workshop.server(
        "growing", era=era, tools=[tool("grow")], calls={"grow": [{"set": {"tools": [tool("new")]}}]}
    )
    async with inside(workshop.config(expose={"mode": "all"})) as proxy:
        host = Host(proxy, era)
        if era == "modern":
            await server.ledger.until(lambda ledger: ledger.entries("listening"))
        await host.call("growing__grow")
        await until(lambda: "growing__new" in proxy.catalog.snapshot.tools)

        assert "growing__grow" not in await host.names()


async def test_a_flood_of_change_notices_leads_to_few_listings(workshop: Workshop) -> None:
    flood = [{"announce": {"method": "notifications/tools/list_changed"}}] * 500
    server = workshop.server("flapping", tools=[tool("flap")], calls={"flap": flood})
    async with inside(workshop.config()) as proxy:
        await Host(proxy, "handshake").call("flapping__flap")
        await server.ledger.until(lambda ledger: len(ledger.messages("tools/list")) == 2)
        await Host(proxy, "handshake").call("flapping__flap")

        assert len(server.ledger.messages("tools/list")) <= 3


async def test_a_changed_list_that_cannot_be_had_leaves_the_old_one(workshop: Workshop) -> None:
    once = workshop.flag("listed")
    server = workshop.server(
        "odd",
        tools=[tool("go")],
        on={"tools/list": [{"once": [str(once), [{"result": {"tools": [tool("go")]}}]]}, {"error": {}}]},
        calls={"go": [{"announce": {"method": "notifications/tools/list_changed"}}]},
    )
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "handshake")
        await host.call("odd__go")
        await server.ledger.until(lambda ledger: len(ledger.messages("tools/list")) == 2)
        await host.call("odd__go")

        assert "odd__go" in await host.names()


async def test_children_are_gone_when_the_proxy_stops_also_those_that_ignore_the_end(
    workshop: Workshop,
) -> None:
    servers = [
        workshop.server("plain", tools=[tool("go")]),
        workshop.server("stubborn", tools=[tool("go")], at_start=[{"ignore_end": True}]),
        workshop.server("parent", tools=[tool("go")], at_start=[{"spawn": True}]),
    ]
    async with inside(workshop.config(limits={"stop_seconds": 0.2})):
        pids = [entry["pid"] for server in servers for entry in server.ledger.entries("start")]
        pids += [entry["child"] for entry in servers[2].ledger.entries("spawned")]
        assert len(pids) == 4
        assert all(map(alive, pids))

    await until(lambda: not any(map(alive, pids)))


async def test_a_child_gets_a_short_environment_and_what_is_configured_for_it(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_ANOTHER", "x")
    first = workshop.server("first", settings={"env": {"FIRST_KEY": "1"}})
    second = workshop.server("second", settings={"env": {"SECOND_KEY": "2"}})
    async with inside(workshop.config()):
        pass

    for server, own in ((first, "FIRST_KEY"), (second, "SECOND_KEY")):
        (start,) = server.ledger.entries("start")
        known = {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}
        assert set(start["environment"]) - known == {own}


async def test_arguments_are_passed_as_they_are_and_never_to_a_shell(workshop: Workshop) -> None:
    server = workshop.server("plain")
    server.settings["args"] = [*server.settings["args"], "; touch /tmp/never", "$(id)", "a b"]
    async with inside(workshop.config()):
        pass

    (start,) = server.ledger.entries("start")
    assert start["argv"][-3:] == ["; touch /tmp/never", "$(id)", "a b"]


async def test_a_flood_on_stderr_blocks_nothing_and_its_end_is_kept(workshop: Workshop) -> None:
    flood = [{"stderr": "x" * 5000}] * 200 + [{"stderr": "the last line"}]
    workshop.server("loud", tools=[tool("shout")], calls={"shout": flood})
    async with inside(workshop.config()) as proxy:
        result = await Host(proxy, "handshake").call("loud__shout")
        await until(lambda: proxy.fleet.clients["loud"].stderr[-1] == "the last line")

    assert "isError" not in result


async def test_a_server_that_reads_nothing_more_holds_up_only_itself(
    workshop: Workshop, good: Server
) -> None:
    stop = [{"kill": 19}, {"silent": True}]
    workshop.server("stuck", tools=[tool("stop")], calls={"stop": stop}, settings={"call_timeout": 0.5})
    async with inside(workshop.config(limits={"stop_seconds": 0.2})) as proxy:
        host = Host(proxy, "handshake")
        results = []

        async def call() -> None:
            results.append(await host.call("stuck__stop", {"text": "x" * 100_000}))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(call)
            assert await works(host)

    assert len(results) == 5
    assert all(result["isError"] for result in results)


async def test_the_ledger_of_a_server_shows_each_call_once(workshop: Workshop) -> None:
    server = workshop.server("plain", tools=[tool("go")])
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "handshake")
        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(host.call, "plain__go", {"n": number})

    numbers = [params["arguments"]["n"] for params in server.ledger.calls()]
    assert sorted(numbers) == list(range(200))
    assert len({json.loads(line)["id"] for line in server.ledger.lines("tools/call")}) == 200
