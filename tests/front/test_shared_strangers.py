"""Hosts, users and files that mean harm get nothing from a shared proxy."""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from support.ledger import until
from support.machine import Machine
from support.nobody import NOBODY, as_nobody, needs_another_user
from support.raw_client import PATIENCE
from support.servers import Server, Workshop, tool
from support.wires import StdioWire, stdio

from mcp_context_proxy.bridge import ask
from mcp_context_proxy.bridge.session import HELD_BYTES
from mcp_context_proxy.system import locked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def planted(folder: Path, how: str) -> None:
    """Plant the folder of sockets as another user of the machine would who is faster."""
    if how == "a link":
        folder.with_name("elsewhere").mkdir(0o700)
        folder.symlink_to("elsewhere")
        return
    folder.mkdir(0o700)
    if how == "of another user":
        os.chown(folder, NOBODY, NOBODY)
    else:
        folder.chmod(0o777)


@pytest.mark.parametrize(
    "how",
    [
        "open",
        "a link",
        pytest.param("of another user", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")),
    ],
)
def test_folder_that_others_can_write_is_not_used(machine: Machine, server: Server, how: str) -> None:
    planted(machine.folder / "mcp-context-proxy", how)
    done = subprocess.run(
        machine.command,
        input=b"",
        capture_output=True,
        env=machine.environ,
        check=False,
    )
    assert b"can be changed by others" in done.stderr
    assert done.returncode == 0, "the session has a proxy of its own"
    assert machine.proxies() == []


CONNECT = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(20)
try:
    peer.connect(sys.argv[1])
    peer.sendall(sys.argv[2].encode())
    print(repr(peer.recv(1000)))
except OSError as error:
    print(type(error).__name__)
"""


@needs_another_user
@pytest.mark.skipif(not as_nobody, reason="needs root")
@pytest.mark.parametrize("opened", [False, True], ids=["as it is", "made accessible"])
async def test_process_of_another_user_is_not_served(machine: Machine, server: Server, opened: bool) -> None:
    """Neither as a host nor with a command, also where somebody has opened folder and socket to all."""
    status = "GET /api/v1/status HTTP/1.1\r\nhost: x\r\n\r\n"
    greeting = '{"bridge":{"pid":1}}\n{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    async with machine.host() as client:
        await client.until_listed("work__echo")
        (path,) = machine.sockets()
        if opened:
            for one, mode in ((machine.folder, 0o755), (path.parent, 0o755), (path, 0o666)):
                one.chmod(mode)
        command = [*as_nobody, "/usr/bin/python3", "-I", "-S", "-c", CONNECT]
        said = [
            await anyio.run_process([*command, str(path), text], check=False) for text in (status, greeting)
        ]
        assert "isError" not in await client.call("work__echo", {"text": "still"})

    told = {one.stdout.decode().strip() for one in said}
    refused = {"PermissionError"} if not opened else {"b''", "ConnectionResetError", "BrokenPipeError"}
    assert told <= refused


def told(path: Path, *lines: str) -> socket.socket:
    """A connection to a shared proxy as a bridge makes it, with its first lines."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(PATIENCE)
    peer.connect(str(path))
    peer.sendall("".join(lines).encode())
    return peer


HELLO = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    '"capabilities":{},"clientInfo":{"name":"x","version":"1"}}}\n'
)


async def test_no_later_line_of_a_host_makes_it_the_session_of_another(
    machine: Machine, server: Server
) -> None:
    """By the session in its greeting the words of a person find their host."""
    ping = '{"jsonrpc":"2.0","id":2,"method":"ping"}\n'
    async with machine.host():
        (path,) = machine.sockets()
        first, later = (
            f'{{"bridge":{{"pid":{pid},"session":"{name}"}}}}\n' for pid, name in ((7, "own"), (8, "stolen"))
        )
        with told(path, first, HELLO, later, ping) as peer:
            answers = peer.makefile()
            while '"id":2' not in answers.readline():
                continue
            status = await anyio.to_thread.run_sync(lambda: ask(path, "GET", "/status", seconds=PATIENCE))

    assert {host["pid"] for host in status["hosts"] if host["name"] == "x"} == {7}


async def test_a_call_that_tells_its_session_and_nests_too_deeply_is_answered(
    machine: Machine, server: Server
) -> None:
    deep = "[" * 5_000 + "]" * 5_000
    meta = '{"x-codex-turn-metadata":{"session_id":"s"}}'
    call = (
        '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":'
        f'{{"name":"echo","arguments":{{"a":{deep}}},"_meta":{meta}}}}}\n'
    )
    ping = '{"jsonrpc":"2.0","id":3,"method":"ping"}\n'
    async with machine.host():
        (path,) = machine.sockets()
        with told(path, '{"bridge":{"pid":7}}\n', HELLO, call, ping) as peer:
            answers = peer.makefile()
            answered = set()
            while not {2, 3} <= answered:
                line = answers.readline()
                assert line, answered
                answered.add(json.loads(line).get("id"))


async def test_bridge_of_a_newer_version_is_served_whatever_else_it_tells_of_itself(
    machine: Machine, server: Server
) -> None:
    async with machine.host() as client:
        await client.until_listed("work__echo")
        (path,) = machine.sockets()
        newer = '{"bridge":{"pid":7,"told_by_a_later_version":{"a":[1]}}}\n'
        with told(path, newer, HELLO) as peer:
            answer = peer.makefile().readline()

    assert json.loads(answer)["result"]["protocolVersion"] == "2025-06-18"


@pytest.mark.parametrize(
    "greeting",
    [
        '{"bridge":{"profile":"chat","presets":["%s"]}}\n' % ("x" * 20_000),
        '{"bridge":{"profile":["chat"]}}\n',
        '{"bridge":"chat"}\n',
        '{"bridge":{"x":%s}}\n' % ("[" * 5_000 + "]" * 5_000),
    ],
)
async def test_host_with_a_greeting_that_cannot_be_read_is_not_served_without_its_limits(
    machine: Machine, server: Server, greeting: str
) -> None:
    async with machine.host():
        (path,) = machine.sockets()
        with told(path, greeting, HELLO) as peer, contextlib.suppress(ConnectionResetError):
            assert peer.recv(1000) == b""


async def test_program_of_a_repository_that_the_host_has_opened_does_not_run(
    machine: Machine, workshop: Workshop
) -> None:
    """The first host is in a repository, and a server starts there, so that the proxy does, too."""
    workshop.server("work", tools=[tool("echo")], settings={"cwd": "launch"})
    machine.write()
    repository, trace = workshop.folder / "repository", workshop.folder / "trace"
    repository.mkdir()
    for module in ("anyio", "mcp_context_proxy"):
        (repository / f"{module}.py").write_text(f"open({str(trace)!r}, 'w')\n", encoding="utf-8")
    # The host starts the command, whose Python does not look into the working folder.
    command = ["env", "-C", str(repository), sys.executable, "-P", *machine.command[1:]]
    async with stdio(command, "modern", env=machine.told) as client:
        await client.until_listed("work__echo")

    assert not trace.exists()


async def test_neither_nested_nor_endless_lines_of_a_host_end_its_session_or_fill_its_bridge(
    machine: Machine, server: Server
) -> None:
    async with machine.host() as client:
        wire = client.wire
        assert isinstance(wire, StdioWire)
        await wire.write(b"[" * 200_000 + b"\n")
        await wire.write(b"[" * 900 + b'"' + b"x" * (1 << 20) + b'"' + b"]" * 900 + b"\n")
        for _ in range(4 * HELD_BYTES >> 20):
            await wire.write(b"x" * (1 << 20))
        held = most_memory(client.process.pid)
        await wire.write(b"\n")
        await client.until_listed("work__echo")
        assert "isError" not in await client.call("work__echo", {"text": "still"})
        spent = processor_seconds(client.process.pid)

    assert held < 3 * HELD_BYTES
    assert spent < 2


def processor_seconds(process: int) -> float:
    """The time that a process has spent on a processor in its own code."""
    status = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    return int(status.rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")


def most_memory(process: int) -> int:
    """The most bytes that a process has had in memory."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) << 10


async def test_hosts_go_on_while_there_is_no_descriptor_for_another(machine: Machine, server: Server) -> None:
    async with machine.host() as client:
        await client.until_listed("work__echo")
        (proxy,) = machine.proxies()
        before = resource.prlimit(proxy, resource.RLIMIT_NOFILE)
        resource.prlimit(proxy, resource.RLIMIT_NOFILE, (1, before[1]))
        async with anyio.create_task_group() as group:

            async def join() -> None:
                async with machine.host("modern") as late:
                    await late.until_listed("work__echo")

            group.start_soon(join)
            log = next(machine.folder.rglob("*.log"))
            await until(lambda: "no host can be accepted" in log.read_text(encoding="utf-8"))
            assert "isError" not in await client.call("work__echo", {"text": "still"})
            resource.prlimit(proxy, resource.RLIMIT_NOFILE, before)
        assert machine.proxies() == [proxy]


def test_session_does_not_wait_for_ever_for_another_one_that_is_stopped(machine: Machine) -> None:
    lock = machine.folder / "x.lock"
    with locked(lock), pytest.raises(TimeoutError, match="another process"), locked(lock, 0.05):
        raise AssertionError
