"""The stdio front as a process: its end, its streams, and a host that does not read them."""

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import command, real_command
from support.raw_client import PREFIX, RawClient
from support.servers import Workshop, tool
from support.wires import StdioWire, full_pipe, stdio

HASTY = {"drain_seconds": 0.5, "stop_seconds": 0.5}
"""For what is never finished: how long its end is waited for is tested elsewhere."""


@pytest.mark.slow
async def test_the_end_of_input_ends_the_proxy_and_all_its_children(workshop: Workshop) -> None:
    servers = [
        workshop.server("plain", tools=[tool("go")]),
        workshop.server("stubborn", tools=[tool("go")], at_start=[{"ignore_end": True}]),
        workshop.server("parent", tools=[tool("go")], at_start=[{"spawn": True}]),
        workshop.server("hung", on={"initialize": [{"silent": True}], "server/discover": [{"silent": True}]}),
    ]
    async with stdio(command(workshop.config(limits={"stop_seconds": 0.3}))) as client:
        await client.until_listed("plain__go", "stubborn__go", "parent__go")
        await servers[3].ledger.until(lambda ledger: ledger.entries("start"))
        assert client.process is not None

    pids = [entry["pid"] for server in servers for entry in server.ledger.entries("start")]
    pids += [entry["child"] for entry in servers[2].ledger.entries("spawned")]
    assert len(pids) == 5
    await until(lambda: not any(map(running, pids)))


def running(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_proxy_with_0_although_calls_are_pending(
    workshop: Workshop, number: int
) -> None:
    server = workshop.server("work", tools=[tool("hang")], calls={"hang": [{"silent": True}]})
    async with await anyio.open_process(command(workshop.config(limits=HASTY)), stderr=None) as process:
        client = RawClient("modern", {}, {})
        client.wire = StdioWire(process)
        await client.start("tools/call", {"name": "work__hang", "arguments": {}})
        await server.ledger.until(lambda ledger: ledger.entries("start"))
        await until(lambda: running(server.ledger.entries("start")[0]["pid"]))
        os.kill(process.pid, number)
        with anyio.fail_after(20):
            assert await process.wait() == 0

    await until(lambda: not running(server.ledger.entries("start")[0]["pid"]))


async def test_a_subscription_is_answered_when_the_proxy_is_told_to_stop(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("echo")])
    async with stdio(command(workshop.config(limits=HASTY)), "modern") as client:
        given_up, _ = await client.start("subscriptions/listen", {"notifications": {}}, request_id="given up")
        _, ended = await client.start("subscriptions/listen", {"notifications": {}}, request_id="kept")
        await client.until(
            lambda client: len(client.notified("notifications/subscriptions/acknowledged")) == 2
        )
        await client.cancel(given_up)
        assert client.process is not None
        os.kill(client.process.pid, signal.SIGTERM)
        with anyio.fail_after(10):
            result = await ended

    assert result["_meta"][PREFIX + "subscriptionId"] == "kept"


async def test_piped_requests_are_answered_before_the_proxy_ends(workshop: Workshop) -> None:
    meta = {PREFIX + "protocolVersion": "2026-07-28", PREFIX + "clientCapabilities": {}}
    requests = [
        {"jsonrpc": "2.0", "id": number, "method": method, "params": {"_meta": meta}}
        for number, method in enumerate(["server/discover", "tools/list", "resources/list"])
    ]
    lines = "\n".join(map(json.dumps, requests)) + "\n"

    with anyio.fail_after(20):
        ended = await anyio.run_process(command(workshop.config()), input=lines.encode())

    answered = [json.loads(line) for line in ended.stdout.splitlines()]
    assert sorted(answer["id"] for answer in answered) == [0, 1, 2]
    assert all("result" in answer for answer in answered)


NOISY = """
import os, sys
import mcp_context_proxy.server.gateway as gateway
real = gateway.Gateway.handle
async def handle(self, method, params, caller):
    print("a print during a request")
    os.write(1, b"bytes on descriptor 1\\n")
    os.system("echo a child writes")
    return await real(self, method, params, caller)
gateway.Gateway.handle = handle
sys.argv = ["proxy", *sys.argv[1:]]
from mcp_context_proxy.__main__ import main
main()
"""


async def test_output_of_libraries_never_reaches_the_protocol_stream(
    workshop: Workshop, tmp_path: Path
) -> None:
    script = tmp_path / "noisy.py"
    script.write_text(NOISY, encoding="utf-8")
    log = tmp_path / "stderr"
    workshop.server("work", tools=[tool("echo")])
    with log.open("w", encoding="utf-8") as stderr:
        async with stdio(
            [sys.executable, str(script), *real_command(workshop.config())[3:]], stderr=stderr
        ) as client:
            await client.until_listed("work__echo")
            await client.call("work__echo")

    written = log.read_text(encoding="utf-8")
    assert "a print during a request" in written
    assert "bytes on descriptor 1" in written
    assert "a child writes" in written


async def test_messages_for_people_go_to_standard_error(workshop: Workshop, tmp_path: Path) -> None:
    workshop.server("dead", at_start=[{"stderr": "no key"}, {"exit": 4}])
    log = tmp_path / "stderr"
    with log.open("w", encoding="utf-8") as stderr:
        async with stdio(command(workshop.config()), stderr=stderr):
            await until(lambda: "server dead" in log.read_text(encoding="utf-8"))


async def test_a_host_that_reads_no_messages_for_people_is_served_and_later_told_how_many_are_missing(
    workshop: Workshop,
) -> None:
    """A pipe that is full blocks whoever writes to it: for ever, where a host keeps it and never reads."""
    broken = workshop.flag("broken")
    workshop.server(
        "work",
        tools=[tool("change")],
        calls={"change": [{"announce": {"method": "notifications/tools/list_changed"}}]},
        on={"tools/list": [{"if": [str(broken), [{"error": {"code": -32603, "message": "broken"}}]]}]},
    )
    workshop.server("dead", at_start=[{"exit": 4}])
    said = bytearray()
    with full_pipe() as (reading, writing):

        def told() -> bool:
            with suppress(BlockingIOError):
                said.extend(os.read(reading, 1024 * 1024))
            return re.search(rb"\d messages that nobody read are missing here\n.*broken", said) is not None

        async with stdio(command(workshop.config()), stderr=writing) as client:
            await client.until_listed("work__change")
            # Its failure is a message that nobody reads.
            await until(lambda: len(workshop.servers["dead"].ledger.entries("start")) > 1)
            assert "isError" not in await client.call("work__change")
            broken.touch()
            assert not told()
            assert "isError" not in await client.call("work__change")
            await until(told)


async def test_output_of_servers_is_logged_without_escape_sequences(
    workshop: Workshop, tmp_path: Path
) -> None:
    broken, evil = workshop.flag("broken"), "\x1b[2J\x07\u202e\u200bwiped"
    changed = {"method": "notifications/tools/list_changed"}
    workshop.server(
        "odd",
        tools=[tool("work")],
        calls={"work": [{"announce": changed}]},
        on={"tools/list": [{"if": [str(broken), [{"error": {"code": -32603, "message": evil}}]]}]},
    )
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as stderr:
        async with stdio(command(workshop.config()), stderr=stderr) as client:
            await client.until_listed("odd__work")
            broken.touch()
            await client.call("odd__work")
            await until(lambda: "wiped" in log.read_text(encoding="utf-8"))

    said = log.read_text(encoding="utf-8")
    assert said.replace("\n", "").isprintable()
    assert "-32603: wiped" in said
    assert "x1b" not in said


async def test_answers_for_a_host_that_does_not_read_are_bounded(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("echo")])
    meta = {PREFIX + "protocolVersion": "2026-07-28", PREFIX + "clientCapabilities": {}}
    line: Any = {"jsonrpc": "2.0", "method": "tools/list", "params": {"_meta": meta}}
    async with await anyio.open_process(command(workshop.config(limits=HASTY)), stderr=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(json.dumps(line | {"id": "first"}).encode() + b"\n")
        await process.stdout.receive()
        # From now on nothing is read: sooner or later the proxy takes no more.
        for number in range(3000):
            with anyio.move_on_after(1) as taken:
                await process.stdin.send(json.dumps(line | {"id": number}).encode() + b"\n")
            if taken.cancelled_caught:
                break
        os.kill(process.pid, signal.SIGTERM)
        with anyio.fail_after(20):
            assert await process.wait() == 0


async def test_a_host_that_reads_late_gets_every_answer_and_servers_are_paused_meanwhile(
    workshop: Workshop,
) -> None:
    size, calls, unread, odd = 400_000, 60, 1_000_000, range(60, 65)
    server = workshop.server("work", tools=[tool("large")], calls={"large": [{"large": size}]})
    config = workshop.config(limits=HASTY | {"unread_bytes": unread}, results={"max_tokens": 0})
    async with await anyio.open_process(command(config), stderr=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        client = RawClient("modern", {}, {})
        call = {"jsonrpc": "2.0", "method": "tools/call"}
        call["params"] = client._with_meta({"name": "work__large", "arguments": {}}, {})
        lines = [json.dumps(call | {"id": number}) for number in range(calls)]
        await process.stdin.send("\n".join([*lines, ""]).encode())
        await server.ledger.until(lambda ledger: len(ledger.calls()) == calls)
        # Nothing was read so far: what the server still has to say waits in its own pipe.
        await process.stdin.send(b"".join(b'{"jsonrpc":"2.0","id":%d,"method":}\n' % each for each in odd))
        answers, ended = bytearray(), 0
        with anyio.fail_after(60):
            while ended < calls + len(odd):
                chunk = await process.stdout.receive()
                answers += chunk
                ended += chunk.count(b"\n")
        os.kill(process.pid, signal.SIGTERM)
        await process.wait()

    replies = [json.loads(line) for line in answers.splitlines()]
    assert sorted(reply["id"] for reply in replies) == [*range(calls), *odd]
    assert {len(reply["result"]["content"][0]["text"]) for reply in replies if "result" in reply} == {size}
    assert {reply["id"] for reply in replies if "error" in reply} == {*odd}
