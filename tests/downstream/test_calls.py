"""A call ends: by its answer, its deadline, its caller, or the end of its server, and is never sent twice."""

import asyncio
import json
import sys
from functools import partial
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.raw_client import text_of
from support.servers import Server, Workshop, tool

from mcp_context_proxy.downstream.lifecycle import ServerState

from .conftest import works

QUICK = {"backoff_first_seconds": 0.01, "backoff_max_seconds": 0.02, "probe_seconds": 0.3}


async def test_a_crash_during_a_call_is_reported_and_the_call_is_never_sent_again(
    workshop: Workshop, good: Server, era: str
) -> None:
    server = workshop.server(
        "frail",
        era=era,
        tools=[tool("die"), tool("live")],
        calls={"die": [{"stderr": "no room"}, {"exit": 6}]},
    )
    async with inside(workshop.config(limits=QUICK)) as proxy:
        host = Host(proxy, era)
        died = await host.call("frail__die", {"text": "once"})
        assert await works(host)
        await server.ledger.until(lambda ledger: len(ledger.entries("start")) == 2)
        client = proxy.fleet.clients["frail"]
        await until(lambda: client.state is ServerState.READY)
        lived = await host.call("frail__live")

    assert died["isError"] is True
    assert "exited (code 6)" in text_of(died)
    assert text_of(died).endswith("may or may not have run and was not sent again; its last output: no room")
    assert "isError" not in lived
    assert len(server.ledger.calls("die")) == 1


async def test_a_call_whose_server_is_killed_names_the_signal(workshop: Workshop) -> None:
    workshop.server("frail", tools=[tool("die")], calls={"die": [{"kill": 9}, {"silent": True}]})
    async with inside(workshop.config()) as proxy:
        result = await Host(proxy, "handshake").call("frail__die")

    assert "killed by signal 9" in text_of(result)


async def test_a_crash_fails_every_pending_call_once(workshop: Workshop) -> None:
    server = workshop.server(
        "frail", tools=[tool("hang"), tool("die")], calls={"hang": [{"silent": True}], "die": [{"exit": 1}]}
    )
    results = []
    async with host_of(workshop.config(), "handshake") as host:

        async def hang() -> None:
            results.append(await host.call("frail__hang"))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(hang)
            await server.ledger.until(lambda ledger: len(ledger.calls("hang")) == 10)
            await host.call("frail__die")

    assert len(results) == 10
    assert all("may or may not have run" in text_of(result) for result in results)
    assert len(server.ledger.calls("hang")) == 10


async def test_a_call_over_the_limit_fails_as_busy_at_once_and_affects_no_other(workshop: Workshop) -> None:
    flag = workshop.flag("go on")
    calls = {"wait": [{"wait": str(flag)}, {"result": {"content": []}}]}
    server = workshop.server("slow", tools=[tool("wait")], calls=calls)
    results: list[Any] = []
    async with host_of(workshop.config(limits={"in_flight_per_server": 2}), "modern") as host:

        async def call() -> None:
            results.append(await host.call("slow__wait"))

        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(call)
            await server.ledger.until(lambda ledger: len(ledger.calls("wait")) == 2)
            refused = await host.call("slow__wait")
            flag.touch()

    assert "busy" in text_of(refused)
    assert [result.get("isError") for result in results] == [None, None]
    assert len(server.ledger.calls("wait")) == 2


@pytest.mark.parametrize("spoken", ["handshake", "modern"])
async def test_a_call_without_a_response_ends_at_its_timeout_and_is_cancelled(
    workshop: Workshop, spoken: str
) -> None:
    server = workshop.server(
        "slow",
        era=spoken,
        tools=[tool("hang"), tool("fine")],
        calls={"hang": [{"wait_cancelled": True}]},
        settings={"call_timeout": 0.5},
    )
    async with host_of(workshop.config(), "handshake") as host:
        result = await host.call("slow__hang")
        (cancelled,) = await server.ledger.until(lambda ledger: ledger.messages("notifications/cancelled"))
        fine = await host.call("slow__fine")

    assert result["isError"] is True
    assert "within 0.5 s" in text_of(result)
    (call,) = server.ledger.messages("tools/call")[:1]
    assert cancelled["params"]["requestId"] == call["id"]
    assert "isError" not in fine


async def test_progress_restarts_the_timeout(workshop: Workshop) -> None:
    flags = [workshop.flag(str(number)) for number in range(6)]
    steps = [step for at, flag in enumerate(flags) for step in ({"progress": [at]}, {"wait": str(flag)})]
    workshop.server("slow", tools=[tool("work")], calls={"work": steps}, settings={"call_timeout": 3.0})
    async with host_of(workshop.config(), "handshake") as host:
        results = []

        async def call() -> None:
            results.append(await host.call("slow__work", progressToken="t"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            for number, flag in enumerate(flags):
                await until(lambda told=number: len(host.notifications) > told)
                await anyio.sleep(0.6)  # nearer to the deadline each time: together well past it
                flag.touch()

    assert "isError" not in results[0]


async def test_no_progress_extends_a_call_beyond_the_longest_timeout(workshop: Workshop) -> None:
    flags = [workshop.flag(str(number)) for number in range(50)]
    steps = [step for at, flag in enumerate(flags) for step in ({"progress": [at]}, {"wait": str(flag)})]
    workshop.server("slow", tools=[tool("work")], calls={"work": steps}, settings={"call_timeout": 0.5})
    async with host_of(workshop.config(limits={"call_max_seconds": 1.0}), "handshake") as host:

        async def go_on() -> None:
            for number, flag in enumerate(flags):
                await until(lambda told=number: len(host.notifications) > told)
                await anyio.sleep(0.1)  # all together would last five seconds
                flag.touch()

        async with anyio.create_task_group() as group:
            group.start_soon(go_on)
            result = await host.call("slow__work", progressToken="t")
            group.cancel_scope.cancel()

    assert result["isError"] is True
    assert "within" in text_of(result)


async def test_a_flood_of_progress_is_thinned_and_its_end_is_passed_on(workshop: Workshop, era: str) -> None:
    workshop.server("eager", tools=[tool("work")], calls={"work": [{"progress": 5000}]})
    async with host_of(workshop.config(), era) as host:
        await host.call("eager__work", progressToken="t")

    told = [params["progress"] for method, params in host.notifications if method.endswith("progress")]
    assert told == sorted(told)
    assert told[:10] == list(range(1, 11))
    assert told[-1] == 5000
    assert len(told) < 2500


async def test_the_latest_progress_is_passed_on_even_if_it_came_too_fast_and_nothing_follows(
    workshop: Workshop, era: str
) -> None:
    flag = workshop.flag("go")
    workshop.server("eager", tools=[tool("work")], calls={"work": [{"progress": 100}, {"wait": str(flag)}]})
    async with host_of(workshop.config(), era) as host, anyio.create_task_group() as group:
        group.start_soon(partial(host.call, "eager__work", progressToken="t"))
        await until(lambda: host.notifications and host.notifications[-1][1]["progress"] == 100)
        flag.touch()

    assert len(host.notifications) < 100


async def test_a_flood_of_log_messages_is_thinned_and_reveals_no_secret(workshop: Workshop) -> None:
    said = {"method": "notifications/message", "params": {"level": "error", "data": "key s3cr3t-value"}}
    server = workshop.server(
        "eager",
        tools=[tool("work")],
        calls={"work": [{"notify": said}] * 3000},
        capabilities={"tools": {}, "logging": {}},
    )
    server.settings["env"] = {"API_KEY": "s3cr3t-value"}
    async with host_of(workshop.config(), "handshake") as host:
        await host.call("eager__work")

    told = [params["data"] for method, params in host.notifications if method == "notifications/message"]
    assert set(told) == {"key [redacted API_KEY]"}
    assert 500 <= len(told) < 3000


async def test_the_progress_of_a_call_reveals_no_secret(workshop: Workshop) -> None:
    server = workshop.server("eager", tools=[tool("work")], calls={"work": [{"progress": 1}]})
    server.settings["env"] = {"API_KEY": "step 1"}
    async with host_of(workshop.config(), "handshake") as host:
        await host.call("eager__work", progressToken="t")

    assert [params["message"] for _, params in host.notifications] == ["[redacted API_KEY]"]


async def test_a_server_that_stops_reading_delays_only_its_own_calls(
    workshop: Workshop, good: Server
) -> None:
    stop = [{"kill": 19}, {"silent": True}]
    workshop.server("stuck", tools=[tool("stop")], calls={"stop": stop}, settings={"call_timeout": 0.5})
    async with host_of(workshop.config(limits={"stop_seconds": 0.2}), "handshake") as host:
        results = []

        async def call() -> None:
            results.append(await host.call("stuck__stop", {"text": "x" * 100_000}))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(call)
            assert await works(host)

    assert len(results) == 5
    assert all(result["isError"] for result in results)


async def test_a_server_that_answers_neither_calls_nor_a_ping_is_started_again(
    workshop: Workshop, era: str
) -> None:
    stop = [{"kill": 19}, {"silent": True}]
    server = workshop.server(
        "stuck",
        era=era,
        tools=[tool("stop"), tool("go_on")],
        calls={"stop": stop},
        settings={"call_timeout": 0.5},
    )
    async with inside(workshop.config(limits={**QUICK, "stop_seconds": 0.2})) as proxy:
        host = Host(proxy, era)
        timed_out = [await host.call(f"stuck__{name}") for name in ("stop", "go_on", "go_on")]
        client = proxy.fleet.clients["stuck"]
        await server.ledger.until(lambda ledger: len(ledger.entries("start")) == 2)
        await until(lambda: client.state is ServerState.READY)
        answer = await host.call("stuck__go_on")

    assert ["within 0.5 s" in text_of(result) for result in timed_out] == [True] * 3
    assert "isError" not in answer


async def test_a_server_that_answers_a_ping_goes_on_after_timeouts(workshop: Workshop, era: str) -> None:
    server = workshop.server(
        "slow",
        era=era,
        tools=[tool("wait")],
        calls={"wait": [{"silent": True}]},
        settings={"call_timeout": 1.0},
    )
    async with inside(workshop.config(limits=QUICK)) as proxy:
        for _ in range(3):
            assert "within 1 s" in text_of(await Host(proxy, era).call("slow__wait"))

    assert len(server.ledger.entries("start")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "spoken"), [("stdio", "handshake"), ("http", "handshake"), ("http", "modern")]
)
async def test_requests_that_a_server_does_not_read_are_bounded_in_bytes(
    workshop: Workshop, good: Server, kind: str, spoken: str
) -> None:
    stop = [{"kill": 19}, {"silent": True}]
    make = workshop.server if kind == "stdio" else workshop.http_server
    settings = {"call_timeout": 60.0, "era": spoken}
    make("stuck", era=spoken, tools=[tool("stop")], calls={"stop": stop}, settings=settings)
    limits = {"stop_seconds": 0.2, "message_bytes": 1 << 20}
    async with host_of(workshop.config(limits=limits), "handshake") as host:
        told: list[str] = []

        async def call() -> None:
            told.append(text_of(await host.call("stuck__stop", {"text": "x" * 100_000})))

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(call)
            # Half of the largest message may wait: five.
            await until(lambda: len(told) == 45)
            assert await works(host)
            assert len(told) == 45
            group.cancel_scope.cancel()

    assert all("bytes of requests are under way; try again" in said for said in told)


ASKING = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "tools/list":
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": []}}), flush=True)
        break
    if message.get("method") == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "asking", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
for number in range(20_000):
    print(json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}))
print("all are asked", file=sys.stderr, flush=True)
input_is_never_read_again = sys.stdout.flush() or __import__("time").sleep(600)
"""


async def test_a_server_that_asks_but_does_not_read_leaves_no_tasks_behind(
    workshop: Workshop, good: Server
) -> None:
    server = workshop.server("asking")
    server.settings = {"command": sys.executable, "args": ["-S", "-c", ASKING], "era": "handshake"}
    async with inside(workshop.config(limits={"stop_seconds": 0.2})) as proxy:
        client = proxy.fleet.clients["asking"]
        await until(lambda: "all are asked" in client.stderr)

        assert len(asyncio.all_tasks()) < 200
        assert await works(Host(proxy, "handshake"))


async def test_the_ledger_of_a_server_shows_each_call_once(workshop: Workshop) -> None:
    server = workshop.server("plain", tools=[tool("go")])
    async with host_of(workshop.config(), "handshake") as host, anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(host.call, "plain__go", {"n": number})

    numbers = [params["arguments"]["n"] for params in server.ledger.calls()]
    assert sorted(numbers) == list(range(200))
    assert len({json.loads(line)["id"] for line in server.ledger.lines("tools/call")}) == 200
