"""A server that hangs, dies or never comes is its own calls' trouble, and nobody else's."""

import os
import signal
import sys
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.raw_client import text_of
from support.servers import Server, Workshop, tool

from mcp_context_proxy.config.load import load
from mcp_context_proxy.config.reload import connection_key
from mcp_context_proxy.downstream.lifecycle import ServerState

from .conftest import works

LISTED_TOOLS = [tool("die"), tool("live")]
LISTED = [{"result": {"tools": LISTED_TOOLS}}]
QUICK = {"backoff_first_seconds": 0.01, "backoff_max_seconds": 0.02, "probe_seconds": 0.3}


async def test_a_server_that_never_answers_does_not_delay_the_others(
    workshop: Workshop, good: Server, era: str
) -> None:
    flag = workshop.flag("never")
    workshop.server("hung", on={"initialize": [{"wait": str(flag)}], "server/discover": [{"silent": True}]})
    async with inside(workshop.config(), settled=False) as proxy:
        await proxy.fleet.clients["good"].wait_first_connect()
        proxy.catalog.refresh()

        assert await works(Host(proxy, era))
        assert proxy.fleet.starting == ("hung",)
        flag.touch()


async def test_a_call_to_a_server_that_starts_for_longer_than_its_timeout_fails_and_says_so(
    workshop: Workshop,
) -> None:
    flag = workshop.flag("later")
    workshop.server("late", tools=[tool("go")], on={"tools/list": [{"wait": str(flag)}]})
    async with inside(workshop.config(), settled=False) as proxy:
        from mcp_context_proxy.errors import ServerUnavailableError

        client = proxy.fleet.clients["late"]
        await until(lambda: client.state is ServerState.STARTING)
        # The attempt that has begun keeps the time that it began with.
        client.configure(replace(client.config, connect_timeout=0.2), client.limits)
        with pytest.raises(ServerUnavailableError, match="still starting"):
            await client.call("tools/call", {})
        flag.touch()
        await proxy.wait_first_connect()

        assert "late__go" in await Host(proxy, "modern").names()


async def test_a_call_to_a_server_that_starts_again_tells_the_old_failure_as_one_of_before(
    workshop: Workshop,
) -> None:
    flag = workshop.flag("later")
    settings = {"connect_timeout": 0.3, "era": "handshake"}
    workshop.server("late", on={"initialize": [{"wait": str(flag)}]}, settings=settings)
    async with inside(workshop.config(limits=QUICK), settled=False) as proxy:
        client = proxy.fleet.clients["late"]
        await until(lambda: client.state is ServerState.STARTING and bool(client.cause))

        assert "(starting again; before that: it was not ready within 0.3 s)" in str(client.unavailable())
        flag.touch()


async def test_a_server_that_misses_its_connect_timeout_is_stopped_and_retried(workshop: Workshop) -> None:
    flag = workshop.flag("ready")
    server = workshop.server(
        "late",
        tools=[tool("go")],
        on={"initialize": [{"wait": str(flag)}]},
        settings={"connect_timeout": 1.0, "era": "handshake"},
    )
    async with inside(workshop.config(limits=QUICK)) as proxy:
        client = proxy.fleet.clients["late"]
        # It may be on its way to the next attempt already.
        assert "within 1 s" in client.cause
        flag.touch()
        await until(lambda: client.state is ServerState.READY)

    assert len(server.ledger.entries("start")) >= 2


async def test_a_server_that_exits_at_start_is_reported_with_its_last_output(
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


async def test_where_the_last_output_has_a_known_remedy_a_call_gets_that_instead_of_the_output(
    workshop: Workshop, good: Server, era: str
) -> None:
    lines = [
        "npm error code E404",
        "npm error 404 Not Found - GET https://registry.npmjs.org/nothing",
        *"abc",
    ]
    workshop.server("dead", at_start=[{"stderr": "\n".join(lines)}, {"exit": 1}], tools=[tool("x")])
    async with inside(workshop.config()) as proxy:
        assert await works(Host(proxy, era))
        message = str(proxy.fleet.clients["dead"].unavailable())

    assert "exited (code 1); its registry does not have this package" in message
    assert "output" not in message


async def test_a_server_that_exits_before_the_first_request_is_reported_with_its_exit_code(
    workshop: Workshop,
) -> None:
    names = [f"dead{number}" for number in range(10)]
    for name in names:
        workshop.server(name).settings = {"command": "sh", "args": ["-c", "echo no key >&2; exit 3"]}
    limits = {"backoff_first_seconds": 9000.0, "backoff_max_seconds": 9000.0}
    async with inside(workshop.config(limits=limits)) as proxy:
        told = [str(proxy.fleet.clients[name].unavailable()) for name in names]

    assert [said for said in told if "exited (code 3)" not in said or "no key" not in said] == []


async def test_the_output_of_a_restart_hides_none_of_the_output_before_the_failure(
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


async def test_the_output_of_a_start_is_not_mixed_with_that_of_the_starts_before(workshop: Workshop) -> None:
    server = workshop.server("dead", at_start=[{"stderr": "no API key: set KEY"}, {"exit": 3}])
    async with inside(workshop.config(limits=QUICK)) as proxy:
        await server.ledger.until(lambda ledger: len(ledger.entries("start")) >= 4)

        assert proxy.fleet.clients["dead"].stderr == ("no API key: set KEY",)


async def test_a_missing_program_is_reported_by_name(workshop: Workshop, good: Server) -> None:
    workshop.server("gone", settings={"command": "no-such-program-anywhere", "args": []})
    async with inside(workshop.config()) as proxy:
        assert "no-such-program-anywhere" in proxy.fleet.clients["gone"].cause
        assert await works(Host(proxy, "modern"))


async def test_tools_of_a_dead_server_stay_listed_and_their_calls_fail_at_once_with_the_cause(
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
        await until(lambda: proxy.fleet.clients["frail"].state is ServerState.FAILED)
        result = await host.call("frail__live")
        names = await host.names()

    assert {"frail__live", "frail__die"} <= set(names)
    assert result["isError"] is True
    assert "'frail'" in text_of(result)
    assert "exited (code 6)" in text_of(result)
    assert "out of luck" in text_of(result)


async def test_a_call_waits_for_a_server_that_is_being_restarted(workshop: Workshop, era: str) -> None:
    first, gate = workshop.flag("first"), workshop.flag("gate")
    once = [{"once": [str(first), LISTED]}, {"wait": str(gate)}, *LISTED]
    server = workshop.server(
        "frail", tools=LISTED_TOOLS, calls={"die": [{"exit": 6}]}, on={"tools/list": once}
    )
    answers: list[dict[str, Any]] = []
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, era)
        await host.call("frail__die")
        await until(lambda: proxy.fleet.clients["frail"].state is ServerState.STARTING)

        async def call() -> None:
            answers.append(await host.call("frail__live"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await server.ledger.until(lambda ledger: len(ledger.entries("start")) == 2)
            assert answers == []
            gate.touch()

    assert [answer.get("isError", False) for answer in answers] == [False]
    assert len(server.ledger.calls("live")) == 1


async def test_a_server_that_is_started_again_stays_listed_whatever_the_store_remembers(
    workshop: Workshop, era: str
) -> None:
    server = workshop.server("frail", tools=LISTED_TOOLS)
    async with inside(workshop.config()) as proxy:
        host, key = Host(proxy, era), connection_key(proxy.config.servers["frail"])
        await until(lambda: proxy.store.listings.get(key))
        proxy.store.listings.forget(key)
        proxy.fleet.restart("frail")
        await proxy.refresh.catch_up()
        assert "frail__live" in proxy.catalog.snapshot.tools
        assert not (await host.call("frail__live")).get("isError")

    assert len(server.ledger.entries("start")) == 2


async def test_a_server_that_is_started_again_twice_at_once_is_ready_for_the_next_call(
    workshop: Workshop, era: str
) -> None:
    gate = workshop.flag("gate")
    server = workshop.server("frail", tools=LISTED_TOOLS, calls={"die": [{"wait": str(gate)}]})
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, era)
        async with anyio.create_task_group() as group:
            group.start_soon(host.call, "frail__die")
            await server.ledger.until(lambda ledger: ledger.calls("die"))
            proxy.fleet.restart("frail")
            proxy.fleet.restart("frail")
            gate.touch()
        assert not (await host.call("frail__live")).get("isError")

    assert len(server.ledger.entries("start")) == 2


async def test_a_server_that_is_started_again_while_its_settings_change_has_the_new_ones(
    workshop: Workshop,
) -> None:
    server = workshop.server("frail", tools=LISTED_TOOLS)
    async with inside(workshop.config()) as proxy:
        await proxy.fleet.wait_first_connect()
        workshop.server("frail", tools=LISTED_TOOLS, settings={"env": {"WORD": "new"}})
        await proxy.apply(load(workshop.config(), environ={}))
        proxy.fleet.restart("frail")
        await server.ledger.until(lambda ledger: len(ledger.entries("end of input")) == 1)
        assert proxy.fleet.clients["frail"].config.env == {"WORD": "new"}


async def test_a_server_that_is_killed_repeatedly_is_ready_for_the_next_call(workshop: Workshop) -> None:
    workshop.server("frail", tools=[tool("pid")], calls={"pid": [{"pid": True}]})
    pids = []
    limits = {"backoff_first_seconds": 9000.0, "backoff_max_seconds": 9000.0, "breaker_seconds": 9000.0}
    async with host_of(workshop.config(limits=limits), "handshake") as host:
        for _ in range(12):
            while (result := await host.call("frail__pid")).get("isError"):  # noqa: ASYNC110 - another process
                await anyio.sleep(0.01)
            pids.append(int(result["content"][0]["text"]))
            os.kill(pids[-1], signal.SIGKILL)

    assert len(set(pids)) == 12


MINIMAL = """
import json, os, signal, sys, time
def answer(message, text):
    result = {"content": [{"type": "text", "text": text}]}
    if message["method"] == "initialize":
        version, info = message["params"]["protocolVersion"], {"name": "minimal", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
def requests():
    for line in iter(sys.stdin.readline, ""):
        message = json.loads(line)
        if "id" in message:
            yield message
"""
"""Programs of servers that treat their process and pipes as no library does."""

LEAVING = (
    MINIMAL
    + """
with open(sys.argv[1], "a") as starts:
    print("started", file=starts)
for message in requests():
    answer(message, "gone")
    if message["method"] == "tools/call":
        sys.exit(7)
"""
)

DEAFENED = (
    MINIMAL
    + """
for message in requests():
    answer(message, "heard")
    if message["method"] == "tools/call" and not os.path.exists(sys.argv[1]):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for number in map(int, sys.argv[2:]):
            os.close(number)
        open(sys.argv[1], "w").close()
        time.sleep(3600)
"""
)


async def test_calls_to_a_server_that_closes_its_pipes_but_stays_go_to_the_next_process(
    workshop: Workshop,
) -> None:
    closed = {"deaf": "0", "mute": "1", "both": "0 1"}
    flags = {name: workshop.flag(name) for name in closed}
    for name, numbers in closed.items():
        arguments = ["-S", "-c", DEAFENED, str(flags[name]), *numbers.split()]
        settings = {"command": sys.executable, "args": arguments, "era": "handshake"}
        workshop.server(name).settings = settings
    told: list[str] = []
    async with inside(workshop.config(limits=QUICK)) as proxy, anyio.create_task_group() as group:
        host = Host(proxy, "handshake")

        async def call(name: str, times: int) -> None:
            told.append(text_of(await host.call(f"{name}__go")))
            await until(flags[name].exists)
            await anyio.wait_all_tasks_blocked()
            async with anyio.create_task_group() as crowd:

                async def again() -> None:
                    told.append(text_of(await host.call(f"{name}__go")))

                for _ in range(times):
                    crowd.start_soon(again)
            assert proxy.fleet.clients[name].restarts == 1

        for name in closed:
            group.start_soon(call, name, 10)

    assert told == ["heard"] * 33


REFUSED = 'read line; echo \'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":""}}\''
HEARD = {"nothing": [], "probe": ["read line"], "greeting": [REFUSED, "read line"]}
ENDS = {
    "deaf": ("exec 0<&-; sleep 60", "it closed its input"),
    "mute": ("exec 1>&-; sleep 60", "it closed its output"),
    "slow": ("exec 0<&- 1>&-; sleep 0.2; exit 3", "it exited (code 3)"),
}


async def test_a_failure_at_start_is_reported_the_same_at_any_moment(
    workshop: Workshop,
) -> None:
    wanted: dict[str, str] = {}
    for heard, lines in HEARD.items():
        for end, (deed, told) in ENDS.items():
            name = f"{heard}-{end}"
            wanted[name] = told
            script = "; ".join([*lines, deed])
            workshop.server(name).settings = {"command": "sh", "args": ["-c", script]}
    limits = {"backoff_first_seconds": 9000.0, "backoff_max_seconds": 9000.0}
    async with inside(workshop.config(limits=limits)) as proxy:
        causes = {name: client.cause for name, client in proxy.fleet.clients.items()}

    assert causes == wanted


async def test_a_server_that_soon_exits_each_time_is_tried_rarely_although_it_answers(
    workshop: Workshop,
) -> None:
    started = workshop.flag("started")
    command = {"command": sys.executable, "args": ["-S", "-c", LEAVING, str(started)], "era": "handshake"}
    workshop.server("leaving").settings = command
    limits = {"backoff_first_seconds": 9000.0, "backoff_max_seconds": 9000.0}
    async with inside(workshop.config(limits=limits)) as proxy:
        host, client = Host(proxy, "handshake"), proxy.fleet.clients["leaving"]
        answers = [text_of(await host.call("leaving__go"))]
        # The first time is forgiven; the second, it is waited as long as for any other that fails.
        await until(lambda: client.restarts == 1 and client.state is ServerState.READY)
        answers.append(text_of(await host.call("leaving__go")))
        await until(lambda: client.state is ServerState.FAILED)
        later = [text_of(await host.call("leaving__go")) for _ in range(20)]

    assert answers == ["gone", "gone"]
    assert all("failed: it exited (code 7)" in said for said in later)
    assert len(started.read_text(encoding="utf-8").splitlines()) == 2


async def test_a_server_that_never_works_is_tried_rarely_whoever_calls_it(
    workshop: Workshop,
) -> None:
    limits = {**QUICK, "breaker_failures": 3, "breaker_seconds": 3600.0}
    server = workshop.server("dying", on={"initialize": [{"exit": 3}]}, settings={"era": "handshake"})
    async with host_of(workshop.config(limits=limits), "modern") as host:
        await server.ledger.until(lambda ledger: len(ledger.entries("start")) == 3)
        told = [await host.call("dying__anything") for _ in range(20)]

    assert all("exited (code 3)" in text_of(result) for result in told[1:])
    assert len(server.ledger.entries("start")) == 3
