"""A shared proxy ends, is killed or replaced, and the sessions of its hosts go on."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.commands import forked_command
from support.ledger import until
from support.machine import Machine
from support.raw_client import PATIENCE, RawClient, RpcError
from support.servers import Server, Workshop, tool
from support.wires import stdio

import mcp_context_proxy
from mcp_context_proxy.bridge import ask, running
from mcp_context_proxy.bridge.meeting import LOG_BYTES
from mcp_context_proxy.bridge.session import LAST_LINES_SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
FIRST = (
    json.dumps({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": HELLO}).encode() + b"\n"
)


async def test_session_goes_on_after_the_proxy_was_killed(machine: Machine, server: Server) -> None:
    async with machine.host() as client:
        await client.until_listed("work__hang")
        large = {"text": "x" * 1_200_000}
        _, hanging = await client.start("tools/call", {"name": "work__hang", "arguments": large})
        await server.ledger.until(lambda ledger: ledger.calls("hang"))
        (killed,) = machine.proxies()
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(RpcError, match="may or may not have run"):
            await hanging
        await client.until_listed("work__echo")
        assert "isError" not in await client.call("work__echo", {"text": "again"})
        assert killed not in machine.proxies()
        assert len(machine.proxies()) == 1


async def test_calls_of_a_batch_are_answered_although_the_proxy_was_killed(
    machine: Machine, server: Server
) -> None:
    async with stdio(machine.command, env=machine.told, opened=False) as client:
        await client.request("initialize", HELLO | {"protocolVersion": "2025-03-26"})
        await client.until_listed("work__hang")
        answers = [client.expect(number) for number in (71, 72)]
        call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "work__hang"}}
        await client.wire.send(json.dumps([call | {"id": 71}, call | {"id": 72}]))
        await server.ledger.until(lambda ledger: len(ledger.calls("hang")) == 2)
        (killed,) = machine.proxies()
        os.kill(killed, signal.SIGKILL)
        for answer in answers:
            with pytest.raises(RpcError, match="may or may not have run"):
                await answer


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_request_that_comes_while_the_proxy_stops_runs_once_in_the_next_one(
    machine: Machine, workshop: Workshop, era: str
) -> None:
    """It was refused, or said to be lost, although nobody had taken it."""
    gate = workshop.folder / "gate"
    calls: dict[str, Any] = {"slow": [{"wait": str(gate)}]}
    server = workshop.server("work", tools=[tool("echo"), tool("slow")], calls=calls)
    machine.write()
    async with machine.host(era) as client:
        await client.until_listed("work__slow")
        _, slow = await client.start("tools/call", {"name": "work__slow", "arguments": {"text": "first"}})
        await server.ledger.until(lambda ledger: ledger.calls("slow"))
        (socket,) = running(machine.config, machine.environ)
        await anyio.to_thread.run_sync(partial(ask, socket, "POST", "/stop", seconds=PATIENCE))
        started = [
            await client.start("tools/call", {"name": "work__echo", "arguments": {"text": text}})
            for text in ("second", "third")
        ]
        gate.touch()
        answers = [await slow, *[await answer for _, answer in started]]

    assert not any("isError" in answer for answer in answers)
    assert sorted(call["arguments"]["text"] for call in server.ledger.calls("echo")) == ["second", "third"]


def test_problems_of_the_proxy_that_takes_over_go_to_the_log_of_the_host_and_are_no_messages(
    machine: Machine,
) -> None:
    machine.config.write_text("[servers.work]\ncomand = 'x'\n", encoding="utf-8")
    with machine.bridge() as host:
        assert host.stdin is not None
        assert host.stdout is not None
        assert host.stderr is not None
        host.stdin.write(FIRST)
        host.stdin.flush()
        told = [host.stdout.readline()]
        for proxy in machine.proxies():
            os.kill(proxy, signal.SIGKILL)
        # The second warning says that another proxy has taken the session over.
        warned = [host.stderr.readline() for _ in range(2)]
        host.stdin.write(b'{"jsonrpc":"2.0","id":"last","method":"ping"}\n')
        host.stdin.close()
        told += host.stdout.readlines()

    assert all(b"WARNING: server work: off: comand" in line for line in warned)
    assert [json.loads(line).get("id") for line in told] == ["hello", "last"]


@pytest.mark.parametrize("reads_on", [True, False], ids=["host-goes-on", "host-has-closed-its-end"])
async def test_session_that_is_told_to_end_has_its_requests_answered_and_exits_with_zero(
    machine: Machine, workshop: Workshop, reads_on: bool
) -> None:
    gate = workshop.folder / "gate"
    calls: dict[str, Any] = {"slow": [{"wait": str(gate)}]}
    server = workshop.server("work", tools=[tool("slow")], calls=calls)
    machine.write()
    with machine.bridge() as host:
        assert host.stdin is not None
        assert host.stdout is not None
        host.stdin.write(
            FIRST
            + b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
            + b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"work__slow"}}\n'
        )
        host.stdin.flush()
        await server.ledger.until(lambda ledger: ledger.calls("slow"))
        if not reads_on:
            host.stdin.close()
        host.send_signal(signal.SIGTERM)
        gate.touch()
        told = await anyio.to_thread.run_sync(host.stdout.readlines)
        code = await anyio.to_thread.run_sync(host.wait)
        with suppress(BrokenPipeError):
            host.stdin.close()

    answers = {line["id"]: line for line in map(json.loads, told) if "id" in line}
    assert (code, {*answers}) == (0, {"hello", 2})
    assert "isError" not in answers[2]["result"]


async def test_session_without_requests_ends_at_once_when_told_although_the_proxy_hangs(
    machine: Machine, server: Server
) -> None:
    async with machine.host() as client:
        await client.until_listed("work__echo")
        (proxy,) = machine.proxies()
        assert client.process is not None
        os.kill(proxy, signal.SIGSTOP)
        try:
            client.process.terminate()
            with anyio.fail_after(LAST_LINES_SECONDS / 2):
                assert await client.process.wait() == 0
        finally:
            os.kill(proxy, signal.SIGCONT)


async def test_no_request_that_was_answered_is_said_to_be_lost_with_the_proxy(
    machine: Machine, server: Server
) -> None:
    """Answers may come while the bridge still notes what it has sent."""
    async with machine.host() as client:
        await client.until_listed("work__echo")

    def answers(lines: Iterable[bytes]) -> Iterator[str]:
        """Ids of the answers among what the host is told."""
        return (str(said["id"]) for said in map(json.loads, lines) if "method" not in said)

    def rounds() -> list[str]:
        """Ids of everything that the host was answered, with a proxy that is killed after 300 requests."""
        with machine.bridge() as host:
            assert host.stdin is not None
            assert host.stdout is not None
            host.stdin.write(FIRST)
            for number in range(300):
                host.stdin.write(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % number)
            host.stdin.flush()
            answered = answers(host.stdout)
            told = list(islice(answered, 301))
            for proxy in machine.proxies():
                os.kill(proxy, signal.SIGKILL)
            host.stdin.write(b'{"jsonrpc":"2.0","id":"last","method":"ping"}\n')
            host.stdin.flush()
            told.append(next(answered))
            host.stdin.close()
            return [*told, *answered]

    told = await anyio.to_thread.run_sync(rounds)
    assert sorted(told) == sorted(["hello", "last", *map(str, range(300))])


async def test_host_that_goes_with_its_proxy_leaves_no_bridge(machine: Machine, server: Server) -> None:
    """The bridge waited half a minute for the proxy that it had started for nobody."""
    async with machine.host() as client:
        await client.until_listed("work__echo")

    def end_both() -> None:
        with machine.bridge() as host:
            assert host.stdin is not None
            assert host.stdout is not None
            host.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
            host.stdin.flush()
            assert host.stdout.readline()
            (proxy,) = machine.proxies()
            os.kill(proxy, signal.SIGKILL)
            with suppress(OSError):
                # Once it has ended, the bridge sees it, and is about to start another.
                while b") Z " not in Path(f"/proc/{proxy}/stat").read_bytes():
                    pass
            host.stdin.close()
            host.wait(LAST_LINES_SECONDS * 0.8)

    for _ in range(4):
        await anyio.to_thread.run_sync(end_both)


@pytest.mark.slow
async def test_proxy_that_hangs_is_named_by_status_and_ended_by_stop(
    machine: Machine, server: Server
) -> None:
    def told(command: str) -> str:
        words = forked_command("--config", machine.config, command)
        return subprocess.run(words, env=machine.environ, capture_output=True, text=True, check=True).stdout

    async with machine.host() as client:
        await client.until_listed("work__hang")
        (proxy,) = machine.proxies()
        os.kill(proxy, signal.SIGSTOP)
        _, waiting = await client.start("tools/call", {"name": "work__echo", "arguments": {"text": "x"}})
        assert f"Process {proxy} does not answer" in await anyio.to_thread.run_sync(told, "status")
        assert f"Process {proxy} did not answer" in await anyio.to_thread.run_sync(told, "stop")
        with pytest.raises(RpcError, match="may or may not have run"):
            await waiting
        await client.until_listed("work__echo")
        assert "isError" not in await client.call("work__echo", {"text": "again"})


async def test_host_that_is_killed_ends_only_its_own_session(machine: Machine, server: Server) -> None:
    async with machine.host() as staying:
        await staying.until_listed("work__hang")
        with machine.bridge() as leaving:
            assert leaving.stdin is not None
            leaving.stdin.write(
                b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work__hang","arguments":{},'
                b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
                b'"io.modelcontextprotocol/clientCapabilities":{}}}}\n'
            )
            leaving.stdin.flush()
            await server.ledger.until(lambda ledger: ledger.calls("hang"))
            leaving.kill()
        # The call of the host that has gone is cancelled at the server.
        await server.ledger.until(lambda ledger: ledger.messages("notifications/cancelled"))
        assert "isError" not in await staying.call("work__echo", {"text": "still"})


async def test_proxy_ends_some_time_after_the_last_host_and_leaves_nothing(
    machine: Machine, server: Server
) -> None:
    machine.write(shared={"linger_seconds": 0.2})
    async with machine.host() as client:
        await client.until_listed("work__echo")
    await until(lambda: not machine.proxies())
    assert machine.sockets() == []
    async with machine.host() as client:
        await client.until_listed("work__echo")


def test_proxy_that_cannot_start_says_why(machine: Machine) -> None:
    machine.config.write_text("[http]\nport = 'x'\n", encoding="utf-8")
    done = subprocess.run(
        machine.command,
        input=b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n',
        capture_output=True,
        env=machine.environ,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count(b"http.port: must be a whole number") == 2  # its message, and ours about it
    answer = json.loads(done.stdout)
    assert answer["id"] == 1
    assert "http.port: must be a whole number, not text" in answer["error"]["message"]


@pytest.mark.slow
async def test_log_of_a_proxy_that_runs_for_long_begins_anew(machine: Machine, server: Server) -> None:
    """Nobody else bounds it: it may be in memory, and servers decide how much is logged."""
    async with machine.host() as client:
        await client.until_listed("work__echo")
        log = next(machine.folder.rglob("*.log"))
        with log.open("ab") as file:
            file.write(b"x" * (LOG_BYTES + 1))
        (proxy,) = machine.proxies()
        await until(lambda: log.with_suffix(".log.1").exists() and log.exists())
        await until(lambda: Path(f"/proc/{proxy}/fd/2").readlink() == log)
    assert log.stat().st_size < LOG_BYTES
    assert log.stat().st_mode & 0o077 == 0


def installed(folder: Path, version: str) -> None:
    """Install a version of the package in a folder, in place of the one that is there."""
    package = folder / "mcp_context_proxy"
    if not package.exists():
        package.mkdir(parents=True)
        for entry in Path(mcp_context_proxy.__file__).parent.iterdir():
            if entry.name not in {"__init__.py", "__pycache__"}:
                (package / entry.name).symlink_to(entry)
    text = Path(mcp_context_proxy.__file__).read_text(encoding="utf-8")
    released = f'__version__ = "{mcp_context_proxy.__version__}"'
    assert released in text
    (package / "__init__.py").write_text(
        text.replace(released, f'__version__ = "{version}"'), encoding="utf-8"
    )


async def test_newer_version_replaces_the_proxy_and_no_call_is_lost(
    machine: Machine, workshop: Workshop
) -> None:
    """It is installed in place, while a host is connected and has a call under way."""
    gate, folder = workshop.folder / "gate", workshop.folder / "installed"
    calls: dict[str, Any] = {"slow": [{"wait": str(gate)}]}
    server = workshop.server("work", tools=[tool("echo"), tool("slow")], calls=calls)
    machine.write(shared={"linger_seconds": 0.2})
    environ = {**machine.told, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def host() -> AbstractAsyncContextManager[RawClient]:
        # Without -P, Python takes the package out of its working folder, which is that of the tests.
        return stdio([sys.executable, "-P", *machine.command[1:]], env=environ)

    def versions() -> list[str]:
        sockets = running(machine.config, {**os.environ, **environ})
        return sorted(ask(socket, "GET", "/status", seconds=PATIENCE)["version"] for socket in sockets)

    installed(folder, "1.0.0")
    async with host() as later, host() as former:
        await former.until_listed("work__slow")
        _, slow = await former.start("tools/call", {"name": "work__slow", "arguments": {"text": "kept"}})
        await server.ledger.until(lambda ledger: ledger.calls("slow"))
        before = await anyio.to_thread.run_sync(versions)
        installed(folder, "2.0.0")
        async with host() as newer:
            await newer.until_listed("work__echo")
            both = await anyio.to_thread.run_sync(versions)
            assert "isError" not in await newer.call("work__echo", {"text": "new"})
            assert "isError" not in await former.call("work__echo", {"text": "old"})
            gate.touch()
            kept = await slow
            # The session that began with the former version goes on to its end.
            assert "isError" not in await later.call("work__echo", {"text": "later"})
    async with host() as newest:
        await newest.until_listed("work__echo")
        await until(lambda: len(machine.proxies()) == 1)
        after = await anyio.to_thread.run_sync(versions)

    assert (before, both, after) == (["1.0.0"], ["1.0.0", "2.0.0"], ["2.0.0"])
    assert "kept" in str(kept)
    assert len(server.ledger.calls("slow")) == 1


async def test_proxy_whose_files_an_update_replaces_searches_and_shows_pages_as_before(
    machine: Machine, workshop: Workshop
) -> None:
    """Neither was loaded before, and modules of the next version do not fit to those that were."""
    workshop.server("work", tools=[tool("refund", "Refund a paid order"), tool("echo")])
    machine.write(expose={"list_all_below": 0})
    package = workshop.folder / "installed" / "mcp_context_proxy"
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(mcp_context_proxy.__file__).parent, package, ignore=leave, copy_function=os.symlink)
    environ = {**machine.told, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    async with stdio([sys.executable, "-P", *machine.command[1:]], env=environ) as host:
        await host.until_listed("search_available_tools")
        (proxy,) = machine.proxies()
        files = Path(f"/proc/{proxy}/fd")
        # The last one, in the order of their paths, that only the pages need.
        last = max(path for path in (package / "web").rglob("*") if path.suffix in {".py", ".html", ".js"})

        def is_kept() -> bool:
            with suppress(FileNotFoundError):  # one that was closed meanwhile
                return any(file.readlink().name == last.name for file in files.iterdir())
            return False

        await until(is_kept)
        for file in package.rglob("*.*"):
            if file.suffix in {".py", ".txt", ".html"}:
                file.unlink()
                file.write_text("raise ImportError('of the next version')", encoding="utf-8")
        found = await host.call("search_available_tools", {"query": "give a customer the money back"})
        (socket,) = running(machine.config, {**os.environ, **environ})
        asked = partial(ask, socket, "GET", "/tools/search?query=refund", seconds=PATIENCE)
        over_rest = await anyio.to_thread.run_sync(asked)

    assert "work__refund" in str(found)
    assert "Note" not in str(found)
    assert "work__refund" in str(over_rest)
