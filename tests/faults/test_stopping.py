"""The proxy is told to stop, or its host goes: calls under way are finished or told, and nothing is left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteSendStream, Process
from faults.harness import SAFE, Ledger, children, faulty, nonce, runs
from support.ledger import PATIENCE, until
from support.proxies import command, http_proxy, real_command
from support.raw_client import HANDSHAKE, RawClient, RpcError
from support.servers import Workshop, tool
from support.wires import http, stdio
from trust.test_event_loop import hostile_tools

STOP_SECONDS = 6.0
"""Longest stop without running calls, by SECURITY.md."""

MARGIN_SECONDS = 10.0
"""Time that a machine with ten other things to do may add to it."""

STOP_WORK_SECONDS = 3.0
"""Processor time of a stop."""

pytestmark = pytest.mark.slow


class Setup:
    """A proxy's configuration in the making."""

    def __init__(self, folder: Path) -> None:
        self.workshop, self.ledger = Workshop(folder), Ledger(folder / "ledger")

    def server(self, mode: str, **options: Any) -> None:
        self.workshop.server(mode).settings = faulty(mode, self.ledger.path, **options)

    @asynccontextmanager
    async def client(self, front: str, **limits: Any) -> AsyncIterator[tuple[RawClient, int]]:
        """A client, and the process id of its proxy."""
        config = self.workshop.config(limits={"stop_seconds": 0.5} | limits)
        if front == "stdio":
            async with stdio(command(config)) as client:
                assert client.process is not None
                yield client, client.process.pid
        else:
            with http_proxy(config) as proxy:
                async with http(proxy.base, "modern") as client:
                    yield client, proxy.process.pid
                assert proxy.process.wait(PATIENCE) == 0


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


@pytest.fixture(params=["stdio", "http"])
def front(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


async def test_pending_calls_are_finished_before_the_proxy_stops(setup: Setup, front: str) -> None:
    setup.server("slow-call", delay=1.0)
    async with setup.client(front) as (client, pid):
        await client.until_listed(f"slow-call__{SAFE}")
        params = [{"name": "slow-call__tool_000", "arguments": {"nonce": nonce()}} for _ in range(100)]
        futures = [(await client.start("tools/call", each))[1] for each in params]
        await setup.ledger.until(lambda ledger: len(ledger.of("call")) == 100)
        stop(pid)
        with anyio.fail_after(PATIENCE):
            texts = [(await future)["content"][0]["text"] for future in futures]
        await until(lambda: not runs(pid))

    assert texts == [each["arguments"]["nonce"] for each in params]
    await setup.ledger.until(lambda ledger: ledger.survivors() == [])


async def test_calls_after_the_stop_signal_are_refused_and_do_not_run(setup: Setup) -> None:
    go = setup.workshop.flag("go")
    server = setup.workshop.server(
        "work", tools=[tool("slow"), tool("fast")], calls={"slow": [{"wait": str(go)}]}
    )
    async with setup.client("stdio", drain_seconds=PATIENCE) as (client, pid):
        await client.until_listed("work__fast")
        _, early = await client.start("tools/call", {"name": "work__slow", "arguments": {}})
        await server.ledger.until(lambda ledger: ledger.calls("slow"))
        stop(pid)
        refused = None
        while refused is None:
            said = nonce()
            try:
                await client.call("work__fast", {"text": said})
            except RpcError as error:
                refused = error
        go.touch()
        await early

    assert refused.code == -32000
    assert "shutting down" in refused.message
    assert {"text": said} not in [call["arguments"] for call in server.ledger.calls("fast")]


async def test_a_call_that_outlasts_the_drain_timeout_fails_and_is_cancelled(
    setup: Setup, front: str
) -> None:
    setup.server("hang-call")
    async with setup.client(front, drain_seconds=0.5) as (client, pid):
        await client.until_listed(f"hang-call__{SAFE}")
        _, hanging = await client.start("tools/call", {"name": "hang-call__tool_000", "arguments": {}})
        await setup.ledger.until(lambda ledger: ledger.of("call"))
        stop(pid)
        with pytest.raises(RpcError, match="may or may not have run") as given_up, anyio.fail_after(PATIENCE):
            await hanging
        await setup.ledger.until(lambda ledger: ledger.of("cancelled"))

    assert given_up.value.code == -32000
    await setup.ledger.until(lambda ledger: ledger.survivors() == [])


def guardians(pid: int) -> list[int]:
    """The processes that end the servers of a proxy if it is killed: one, once it has a server."""
    return [child for child in children(pid) if "guardian.py" in command_line(child)]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""


def largest_id() -> int:
    """Of a process."""
    return int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))


def caught(pid: int) -> set[int]:
    """The signals that a process has handlers for."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (mask,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def a_call(tool: str) -> bytes:
    """The line that a host writes to call a tool."""
    line = {"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
    return json.dumps(line).encode() + b"\n"


def spoken(calls: int, tool: str) -> bytes:
    """The lines that a host writes to open a session and call a tool."""
    opening = {
        "protocolVersion": HANDSHAKE,
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    }
    lines = [
        {"id": 1, "method": "initialize", "params": opening},
        {"method": "notifications/initialized"},
        *(
            {"id": number, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
            for number in range(2, 2 + calls)
        ),
    ]
    return "".join(json.dumps({"jsonrpc": "2.0"} | line) + "\n" for line in lines).encode()


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far, all of its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_stop_waits_neither_for_a_hostile_list_nor_for_servers_that_hang_or_flood(
    setup: Setup, front: str
) -> None:
    tools = hostile_tools(10_000, 1_800)
    large = setup.workshop.server("large", page_size=1_000, tools=tools)
    setup.server("hang-initialize")
    setup.server("flood", delay=PATIENCE)
    used = []
    async with setup.client(front) as (client, pid):
        # Called unlisted: among ten thousand tools, search finds them and the list has none of them.
        arguments = {"kind": "tools-changed", "nonce": nonce(), "after": True}
        await client.call("flood__tool_000", arguments)
        await large.ledger.until(lambda ledger: len(ledger.messages("tools/list")) >= 10)
        before, began = processor_seconds(pid), time.monotonic()
        stop(pid)

        def stopped() -> bool:
            if runs(pid):
                with suppress(OSError):
                    used.append(processor_seconds(pid) - before)
                return False
            return True

        await until(stopped)
        took = time.monotonic() - began

    # Far less than reading the list, which takes ten times as long; and the wait is that of any stop.
    assert max(used, default=0.0) < STOP_WORK_SECONDS
    assert took < STOP_SECONDS + MARGIN_SECONDS
    await setup.ledger.until(lambda ledger: ledger.survivors() == [])


async def test_a_second_stop_signal_ends_everything_at_once(setup: Setup, tmp_path: Path) -> None:
    setup.server("ignore-sigterm")
    setup.server("hang-call")
    config = setup.workshop.config(limits={"stop_seconds": 60.0, "drain_seconds": 60.0})
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as stderr:
        async with await anyio.open_process(
            real_command(config, "--log-level", "info", "serve"), stderr=stderr
        ) as process:
            assert process.stdin is not None
            await process.stdin.send(spoken(1, "hang-call__tool_000"))
            await setup.ledger.until(lambda ledger: ledger.of("call") and len(ledger.of("start")) == 2)
            process.send_signal(signal.SIGTERM)
            await until(lambda: "stopping on SIGTERM" in log.read_text(encoding="utf-8"))
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE):
                assert await process.wait() == -signal.SIGTERM

    await until(lambda: setup.ledger.survivors() == [])


def test_a_process_waits_for_no_thread_that_works_for_nobody_when_it_ends() -> None:
    program = """
import atexit, threading
from mcp_context_proxy.system.process import leave
threading.Thread(target=threading.Event().wait).start()
atexit.register(print, "registered")
print("written")
leave(3)
"""
    run = [sys.executable, "-c", program]
    ended = subprocess.run(run, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (3, ["written", "registered"], "")


async def test_servers_see_the_end_of_input_when_the_proxy_is_killed(setup: Setup) -> None:
    for mode in ("normal", "slow-call", "hang-call", "flood-stderr"):
        setup.server(mode, size=1 << 16)
    async with await anyio.open_process(real_command(setup.workshop.config()), stderr=None) as process:
        assert process.stdin is not None
        await process.stdin.send(spoken(1, "hang-call__tool_000"))
        await setup.ledger.until(lambda ledger: ledger.of("call") and len(ledger.of("start")) == 4)
        process.kill()

    await until(lambda: setup.ledger.survivors() == [])


async def test_servers_that_ignore_the_end_of_input_end_with_a_killed_proxy(setup: Setup) -> None:
    modes = ("ignore-eof", "ignore-sigterm", "orphan", "hang-initialize")
    for mode in modes:
        setup.server(mode)
    async with await anyio.open_process(real_command(setup.workshop.config()), stderr=None) as process:
        await setup.ledger.until(
            lambda ledger: len(ledger.of("start")) == len(modes) and ledger.of("spawned")
        )
        process.kill()
        await process.wait()

    await until(lambda: setup.ledger.survivors() == [])


async def test_a_server_that_is_just_starting_ends_with_a_killed_proxy() -> None:
    program = """
import os, signal, subprocess, sys
from mcp_context_proxy.system import process

process.guard_groups()
stdin, writing = os.pipe()
with process.starting_group(stdin):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    print(subprocess.Popen(command, stdin=stdin, start_new_session=True).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = await anyio.run_process([sys.executable, "-c", program], check=False, stderr=None)

    assert killed.returncode == -signal.SIGKILL
    await until(lambda: not runs(int(killed.stdout)))


@pytest.mark.parametrize("end", ["os._exit(1)", "sys.exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
@pytest.mark.parametrize("mode", ["normal", "ignore-sigterm", "ignore-eof"])
async def test_a_server_that_was_started_ahead_ends_with_a_proxy_that_never_connects_it(
    setup: Setup, end: str, mode: str
) -> None:
    setup.server(mode)
    program = f"""
import os, signal, sys
from pathlib import Path
from mcp_context_proxy.config import load
from mcp_context_proxy.config.programs import start_ahead

start_ahead(load(Path(sys.argv[1])))
sys.stdin.readline()
{end}
"""
    command = [sys.executable, "-c", program, str(setup.workshop.config())]
    async with await anyio.open_process(command, stderr=None) as process:
        await setup.ledger.until(lambda ledger: len(ledger.of("start")) == 1)
        assert process.stdin is not None
        await process.stdin.send(b"\n")
        await process.wait()

    await until(lambda: setup.ledger.survivors() == [])


async def test_a_server_that_was_started_ahead_is_the_one_that_is_connected(setup: Setup) -> None:
    setup.server("normal")
    async with stdio(real_command(setup.workshop.config())) as client:
        await client.until_listed(f"normal__{SAFE}")

    assert len(setup.ledger.of("start")) == 1


async def test_a_server_that_cannot_be_started_ahead_is_told_with_its_reason(setup: Setup) -> None:
    setup.server("normal")
    setup.workshop.server("gone").settings = {"command": "no-such-program"}
    async with stdio(real_command(setup.workshop.config())) as client:
        await client.until_listed(f"normal__{SAFE}")
        refused = await client.call("gone__anything", {})

    assert "no program 'no-such-program' on its PATH" in refused["content"][0]["text"]


async def test_the_guardian_is_started_before_the_first_server(setup: Setup) -> None:
    setup.server("normal")
    async with await anyio.open_process(real_command(setup.workshop.config()), stderr=None) as process:
        await setup.ledger.until(lambda ledger: ledger.of("start"))
        await until(lambda: guardians(process.pid))
        (guardian,) = guardians(process.pid)
        process.terminate()
        await process.wait()

    (server,) = (entry["pid"] for entry in setup.ledger.of("start"))
    # Ids are given in turn, and from the first on again after the largest.
    assert (server - guardian) % largest_id() < largest_id() // 2


@asynccontextmanager
async def without_guardian(setup: Setup) -> AsyncIterator[tuple[Process, ByteSendStream, int]]:
    """A proxy with two servers whose guardian was killed, and that guardian."""
    for mode in ("ignore-sigterm", "die-mid-call"):
        setup.server(mode)
    async with await anyio.open_process(real_command(setup.workshop.config()), stderr=None) as process:
        assert process.stdin is not None
        await process.stdin.send(spoken(0, ""))
        await setup.ledger.until(lambda ledger: len(ledger.of("start")) == 2)
        (guardian,) = guardians(process.pid)
        os.kill(guardian, signal.SIGKILL)
        yield process, process.stdin, guardian
        process.kill()
        await process.wait()

    await until(lambda: setup.ledger.survivors() == [])


async def test_a_killed_guardian_is_replaced(setup: Setup) -> None:
    async with without_guardian(setup) as (process, stdin, guardian):
        # On a busy machine it would otherwise still be alive when the server starts again.
        await until(lambda: guardians(process.pid) == [])
        await stdin.send(a_call("die-mid-call__tool_000"))
        await setup.ledger.until(lambda ledger: len(ledger.of("start")) == 3)
        await until(lambda: guardians(process.pid) not in ([], [guardian]))


async def test_a_guardian_that_is_killed_while_no_server_starts_is_replaced(setup: Setup) -> None:
    async with without_guardian(setup) as (process, stdin, guardian):
        (replacement,) = await until(lambda: [one for one in guardians(process.pid) if one != guardian])
        # The new one is told of all servers before it is told that one of them has ended.
        await stdin.send(a_call("die-mid-call__tool_000"))
        await setup.ledger.until(lambda ledger: len(ledger.of("start")) == 3)
        assert guardians(process.pid) == [replacement]


async def test_the_guardian_ends_with_the_proxy(setup: Setup) -> None:
    setup.server("normal")
    async with await anyio.open_process(real_command(setup.workshop.config()), stderr=None) as process:
        await setup.ledger.until(lambda ledger: ledger.of("start"))
        await until(lambda: guardians(process.pid) != [])
        (guardian,) = guardians(process.pid)
        process.terminate()
        assert await process.wait() == 0

    await until(lambda: not runs(guardian))


async def test_a_hangup_signal_during_the_start_is_ignored(setup: Setup) -> None:
    setup.server("normal")
    async with await anyio.open_process(real_command(setup.workshop.config()), stderr=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # Python itself catches neither; from the first of both on, it is the proxy that starts.
        await until(lambda: caught(process.pid) & {signal.SIGHUP, signal.SIGTERM})
        await process.stdin.send(spoken(0, ""))
        answered = anyio.Event()
        async with anyio.create_task_group() as group:

            async def hang_up() -> None:
                while not answered.is_set():
                    process.send_signal(signal.SIGHUP)
                    await anyio.sleep(0.005)

            group.start_soon(hang_up)
            with anyio.fail_after(PATIENCE):
                assert b'"protocolVersion"' in await process.stdout.receive()
            answered.set()
        process.terminate()
        assert await process.wait() == 0


async def test_closing_the_terminal_stops_the_proxy(setup: Setup) -> None:
    setup.server("normal")
    ours, theirs = os.openpty()
    async with await anyio.open_process(real_command(setup.workshop.config()), stderr=theirs) as process:
        os.close(theirs)
        await setup.ledger.until(lambda ledger: ledger.of("start"))
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        with anyio.fail_after(PATIENCE):
            assert await process.wait() == 0

    await until(lambda: setup.ledger.survivors() == [])


async def test_calls_of_a_host_that_disconnects_are_cancelled(setup: Setup) -> None:
    setup.server("hang-call")
    async with setup.client("stdio") as (client, _):
        await client.until_listed(f"hang-call__{SAFE}")
        await client.start("tools/call", {"name": "hang-call__tool_000", "arguments": {}})
        await setup.ledger.until(lambda ledger: ledger.of("call"))

    assert setup.ledger.of("cancelled")
    await setup.ledger.until(lambda ledger: ledger.survivors() == [])


async def test_a_host_that_stops_reading_is_dropped_and_nothing_is_left_behind(setup: Setup) -> None:
    setup.server("huge-result", size=1 << 20)
    config = setup.workshop.config(limits={"stalled_seconds": 1.0, "stop_seconds": 0.5})
    async with await anyio.open_process(command(config), stderr=None) as deaf:
        assert deaf.stdin is not None
        await deaf.stdin.send(spoken(200, "huge-result__tool_000"))
        with anyio.fail_after(PATIENCE):
            assert await deaf.wait() == 0
    await setup.ledger.until(lambda ledger: ledger.survivors() == [])
    assert setup.ledger.repeated() == []


LOOKUPS = """
import asyncio, threading
import anyio
from mcp_context_proxy.system.threads import look_up_apart

async def main():
    look_up_apart()
    loop = asyncio.get_running_loop()
    hang = [loop.run_in_executor(None, threading.Event().wait) for _ in range(100)]
    print(len(await loop.getaddrinfo("127.0.0.1", 80)) > 0, flush=True)

anyio.run(main)
"""


async def test_names_whose_lookup_hangs_delay_neither_the_lookup_of_another_nor_the_end() -> None:
    """The owner of a server's name decides how long that takes."""
    with anyio.fail_after(PATIENCE):
        ended = await anyio.run_process([sys.executable, "-c", LOOKUPS])

    assert (ended.returncode, ended.stdout.decode()) == (0, "True\n")
