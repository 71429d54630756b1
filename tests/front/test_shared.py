"""``serve``: the sessions of several hosts meet in one proxy."""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.commands import real_command
from support.ledger import until
from support.nobody import NOBODY, as_nobody, needs_another_user
from support.raw_client import PATIENCE, RawClient, RpcError
from support.servers import Server, Workshop, tool
from support.wires import StdioWire, full_pipe, stdio

import mcp_context_proxy
from mcp_context_proxy.bridge.asking import ask, running
from mcp_context_proxy.bridge.meeting import (
    LOG_BYTES,
    NONCE_BYTES,
    PORT_VARIABLE,
    PROOF_BYTES,
    Meeting,
    locked,
    meeting,
)
from mcp_context_proxy.bridge.session import HELD_BYTES, LAST_LINES_SECONDS

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


class Machine:
    """A machine with a folder for sockets, and hosts that start ``serve``."""

    def __init__(self, folder: Path, workshop: Workshop) -> None:
        self.folder, self.workshop = folder, workshop
        self.config = workshop.folder / "config.toml"

    def write(self, **tables: Any) -> None:
        """Write the configuration again."""
        self.workshop.config(**tables)

    @asynccontextmanager
    async def host(
        self, era: str = "handshake", *, answers: Any = None, **env: str
    ) -> AsyncIterator[RawClient]:
        """A host of the machine."""
        command = real_command("--config", self.config, "serve", shared=True)
        able = {"elicitation": {}} if answers else None
        environment = {"XDG_RUNTIME_DIR": str(self.folder), **env}
        async with stdio(command, era, env=environment, answers=answers, capabilities=able) as client:
            yield client

    def proxies(self) -> list[int]:
        """The process ids of the shared proxies."""
        found: dict[int, int] = {}
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    parent = int((process / "stat").read_text("ascii").rpartition(")")[2].split()[1])
                except OSError:
                    continue
                if b"--listen-on" in words and str(self.config).encode() in words:
                    found[int(process.name)] = parent
        # A process that a proxy is about to start has its command line for a moment.
        return [process for process, parent in found.items() if parent not in found]

    def sockets(self) -> list[Path]:
        return list(self.folder.rglob("*.sock"))


@pytest.fixture
def machine(workshop: Workshop) -> Iterator[Machine]:
    # The path of a socket must be short.
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="mcp-"))
    made = Machine(folder, workshop)
    try:
        yield made
    finally:
        for process in made.proxies():
            os.kill(process, signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server(workshop: Workshop, machine: Machine) -> Server:
    calls: dict[str, Any] = {"hang": [{"wait_cancelled": True}]}
    made = workshop.server("work", tools=[tool("echo"), tool("hang")], calls=calls)
    machine.write()
    return made


async def test_hosts_of_both_eras_use_one_proxy_and_one_copy_of_each_server(
    machine: Machine, server: Server
) -> None:
    machine.write(limits={"first_list_seconds": 60.0})
    async with machine.host() as one, machine.host("modern") as other:
        for client in (one, other):
            # The first list waits for the server.
            assert "work__echo" in await client.names()
            assert "isError" not in await client.call("work__echo", {"text": "x"})
        assert len(machine.proxies()) == 1
        assert len({entry.get("pid") for entry in server.ledger.entries("started")}) <= 1
        assert len(server.ledger.calls("echo")) == 2


@pytest.mark.parametrize("shared", [True, False])
async def test_without_a_configuration_a_host_is_told_what_is_missing_and_gets_what_is_added(
    machine: Machine, workshop: Workshop, shared: bool
) -> None:
    workshop.server("work", tools=[tool("echo")])
    added = workshop.config().read_bytes()
    places = {name: str(machine.folder) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    machine.config = machine.folder / "mcp-context-proxy" / "config.toml"
    command = real_command("serve", shared=shared)
    async with stdio(command, "handshake", env={"XDG_RUNTIME_DIR": str(machine.folder), **places}) as client:
        answer = await client.call("search_available_tools", {"query": "read a file"})
        assert "No server is configured yet" in answer["content"][0]["text"]
        machine.config.write_bytes(added)
        await client.until_listed("work__echo")


async def test_answers_reach_the_host_that_asked(machine: Machine, server: Server) -> None:
    async with machine.host() as one, machine.host() as other:
        await one.until_listed("work__echo")
        # Both count their requests from the same number.
        results: dict[str, Any] = {}

        async def ask(client: RawClient, text: str) -> None:
            results[text] = await client.call("work__echo", {"text": text})

        async with anyio.create_task_group() as group:
            for client, text in ((one, "one"), (other, "other")):
                group.start_soon(ask, client, text)
        assert '"one"' in str(results["one"]).replace("'", '"')
        assert "other" not in str(results["one"])
        assert "other" in str(results["other"])


async def test_hosts_whose_servers_get_other_variables_never_meet(
    machine: Machine, workshop: Workshop
) -> None:
    workshop.server("work", tools=[tool("echo")], settings={"env": {"DESK_TOKEN": "${DESK_TOKEN}"}})
    machine.write()
    async with machine.host(DESK_TOKEN="one"), machine.host(DESK_TOKEN="two"), machine.host(DESK_TOKEN="one"):
        await until(lambda: len(machine.proxies()) == 2)


@pytest.mark.parametrize("variable", ["PATH", "HTTPS_PROXY", "LC_ALL", "MCP_CONTEXT_PROXY_TOKEN"])
async def test_any_variable_that_servers_inherit_keeps_hosts_apart(
    machine: Machine, server: Server, variable: str
) -> None:
    arguments = ["--config", str(machine.config), "serve"]
    environ = {"XDG_RUNTIME_DIR": str(machine.folder), "HOME": "/home/x"}
    before = meeting(arguments, environ).socket
    assert meeting(arguments, {**environ, "CLAUDE_CODE_SESSION_ID": "1", "SHLVL": "3"}).socket == before
    assert meeting(arguments, {**environ, variable: "other"}).socket != before


async def test_variable_of_one_host_that_no_server_is_given_reaches_no_server_of_all(
    machine: Machine, workshop: Workshop
) -> None:
    workshop.server("work", tools=[tool("echo")], settings={"inherit": ["DESK_*"]})
    machine.write()
    async with machine.host(DESK_NAME="ada", OTHER_TOKEN="of-this-host"):
        (pid,) = machine.proxies()
        environ = await anyio.Path(f"/proc/{pid}/environ").read_bytes()
        names = {line.partition(b"=")[0] for line in environ.split(b"\0")}
        assert b"DESK_NAME" in names
        assert b"OTHER_TOKEN" not in names


def test_folder_of_one_host_keeps_it_apart_where_servers_start_in_it(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp_context_proxy.bridge.meeting import meeting

    machine.config.write_text("[servers.a]\ncommand = 'a'\ncwd = 'launch'\n", encoding="utf-8")
    environ = {"XDG_RUNTIME_DIR": str(machine.folder), "HOME": str(tmp_path)}
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.append(meeting(["--config", str(machine.config)], environ))
    assert found[0].socket != found[1].socket
    assert [Path(one.folder).name for one in found] == ["one", "two"]


async def test_hosts_that_start_at_once_start_one_proxy(machine: Machine, server: Server) -> None:
    async with anyio.create_task_group() as group:
        done = []

        async def connect() -> None:
            async with machine.host() as client:
                await client.until_listed("work__echo")
                done.append(len(machine.proxies()))

        for _ in range(20):
            group.start_soon(connect)
    assert done == [1] * 20


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


async def test_no_request_that_was_answered_is_said_to_be_lost_with_the_proxy(
    machine: Machine, server: Server
) -> None:
    """Answers may come while the bridge still notes what it has sent."""
    async with machine.host() as client:
        await client.until_listed("work__echo")
    command = real_command("--config", machine.config, "serve", shared=True)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(machine.folder)}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    first = {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": hello}

    def answers(lines: Iterable[bytes]) -> Iterator[str]:
        """Ids of the answers among what the host is told."""
        return (str(said["id"]) for said in map(json.loads, lines) if "method" not in said)

    def rounds() -> list[str]:
        """Ids of everything that the host was answered, with a proxy that is killed after 300 requests."""
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as host:
            assert host.stdin is not None
            assert host.stdout is not None
            host.stdin.write(json.dumps(first).encode() + b"\n")
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
    command = real_command("--config", machine.config, "serve", shared=True)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(machine.folder)}

    def end_both() -> None:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as host:
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
    env = {**os.environ, "XDG_RUNTIME_DIR": str(machine.folder)}

    def told(command: str) -> str:
        words = real_command("--config", machine.config, command)
        return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout

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
        command = real_command("--config", machine.config, "serve", shared=True)
        with subprocess.Popen(  # noqa: ASYNC220 - it is killed at once
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "XDG_RUNTIME_DIR": str(machine.folder)},
        ) as leaving:
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
        real_command("--config", machine.config, "serve", shared=True),
        input=b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n',
        capture_output=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(machine.folder)},
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count(b"http.port: must be a whole number") == 2  # its message, and ours about it
    answer = json.loads(done.stdout)
    assert answer["id"] == 1
    assert "http.port: must be a whole number, not text" in answer["error"]["message"]


def test_log_of_each_host_has_the_mistakes_in_the_configuration(machine: Machine) -> None:
    machine.config.write_text("[servers.work]\ncomand = 'x'\nenv = { A = 3 }\n", encoding="utf-8")
    for _ in range(2):
        done = subprocess.run(
            real_command("--config", machine.config, "serve", shared=True),
            input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
            capture_output=True,
            env={**os.environ, "XDG_RUNTIME_DIR": str(machine.folder)},
            check=False,
        )
        assert json.loads(done.stdout)["id"] == 1
        assert b"WARNING: server work: off: comand: unknown key; did you mean command?" in done.stderr
        assert b"servers.work.env.A: must be text in quotes, not a whole number" in done.stderr


@pytest.mark.parametrize("stderr", ["closed", "without a reader", "full"])
def test_session_whose_host_takes_no_messages_for_people_is_served(machine: Machine, stderr: str) -> None:
    machine.config.write_text("[servers.work]\ncomand = 'x'\n", encoding="utf-8")
    with full_pipe() as (_, full):
        reading, unread = os.pipe()
        os.close(reading)
        done = subprocess.run(
            real_command("--config", machine.config, "serve", shared=True),
            input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
            stdout=subprocess.PIPE,
            stderr=full if stderr == "full" else unread,
            env={**os.environ, "XDG_RUNTIME_DIR": str(machine.folder)},
            preexec_fn=partial(os.close, 2) if stderr == "closed" else None,
            timeout=PATIENCE,
            check=False,
        )
        os.close(unread)

    assert json.loads(done.stdout)["id"] == 1


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
        real_command("--config", machine.config, "serve", shared=True),
        input=b"",
        capture_output=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(machine.folder)},
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
    words = real_command("--config", machine.config, "serve", shared=True)[1:]
    command = ["env", "-C", str(repository), sys.executable, "-P", *words]
    async with stdio(command, "modern", env={"XDG_RUNTIME_DIR": str(machine.folder)}) as client:
        await client.until_listed("work__echo")

    assert not trace.exists()


async def test_neither_nested_nor_endless_lines_of_a_host_end_its_session_or_fill_its_bridge(
    machine: Machine, server: Server
) -> None:
    async with machine.host() as client:
        wire = client.wire
        assert isinstance(wire, StdioWire)
        await wire.write(b"[" * 200_000 + b"\n")
        for _ in range(4 * HELD_BYTES >> 20):
            await wire.write(b"x" * (1 << 20))
        held = most_memory(client.process.pid)
        await wire.write(b"\n")
        await client.until_listed("work__echo")
        assert "isError" not in await client.call("work__echo", {"text": "still"})

    assert held < 3 * HELD_BYTES


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


def place(machine: Machine, text: str, **environ: str) -> Meeting:
    machine.config.write_text(text, encoding="utf-8")
    arguments = ["--config", str(machine.config), "serve"]
    return meeting(arguments, {"XDG_RUNTIME_DIR": str(machine.folder), "HOME": "/home/x", **environ})


def test_proxy_has_no_variable_in_which_its_hosts_may_differ(machine: Machine) -> None:
    """Otherwise a configuration that names one later gives all hosts that of the first."""
    text = '[servers.work]\ncommand = "x"\n'
    one, other = (place(machine, text, DESK_TOKEN=value) for value in ("one", "two"))
    named = place(machine, text + 'env = { A = "${DESK_TOKEN}" }\n', DESK_TOKEN="one")

    assert one.socket == other.socket
    assert "DESK_TOKEN" not in one.environment
    assert named.environment["DESK_TOKEN"] == "one"
    assert named.socket != one.socket


@pytest.mark.parametrize("setting", ['inherit = ["*"]', 'env = { A = "${cmd:gh auth token}" }'])
def test_where_servers_can_get_any_variable_hosts_with_another_one_have_another_proxy(
    machine: Machine, setting: str
) -> None:
    text = f'[servers.work]\ncommand = "x"\n{setting}\n'
    one, other = (place(machine, text, GH_TOKEN=value, SHLVL=value) for value in ("one", "two"))

    assert one.environment["GH_TOKEN"] == "one"
    assert one.socket != other.socket


def test_session_does_not_wait_for_ever_for_another_one_that_is_stopped(machine: Machine) -> None:
    lock = machine.folder / "x.lock"
    with locked(lock), pytest.raises(TimeoutError, match="another session"), locked(lock, 0.05):
        raise AssertionError


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
    environ = {
        "XDG_RUNTIME_DIR": str(machine.folder),
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def host() -> AbstractAsyncContextManager[RawClient]:
        # Without -P, Python takes the package out of its working folder, which is that of the tests.
        words = real_command("--config", machine.config, "serve", shared=True)[1:]
        return stdio([sys.executable, "-P", *words], env=environ)

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


AT_PORT = {PORT_VARIABLE: "1"}


async def test_hosts_that_meet_at_a_port_start_one_proxy_and_get_their_own_answers(
    machine: Machine, server: Server
) -> None:
    """As on Windows, where there are no Unix sockets."""
    machine.write(limits={"first_list_seconds": 60.0})
    async with anyio.create_task_group() as group:
        done: list[Any] = []

        async def connect(number: int) -> None:
            async with machine.host(**AT_PORT) as client:
                await client.until_listed("work__echo")
                result = await client.call("work__echo", {"text": f"text {number}"})
                done.append((f"text {number}" in str(result), len(machine.proxies())))

        for number in range(8):
            group.start_soon(connect, number)
    assert done == [(True, 1)] * 8


async def test_session_at_a_port_goes_on_after_the_proxy_was_killed(machine: Machine, server: Server) -> None:
    async with machine.host(**AT_PORT) as client:
        await client.until_listed("work__hang")
        _, hanging = await client.start("tools/call", {"name": "work__hang", "arguments": {}})
        await server.ledger.until(lambda ledger: ledger.calls("hang"))
        (killed,) = machine.proxies()
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(RpcError, match="may or may not have run"):
            await hanging
        await client.until_listed("work__echo")
        assert killed not in machine.proxies()
        environ = {"XDG_RUNTIME_DIR": str(machine.folder), **AT_PORT}
        (found,) = await anyio.to_thread.run_sync(running, machine.config, environ)
        status = await anyio.to_thread.run_sync(partial(ask, found, "GET", "/status", seconds=PATIENCE))
        assert (status["pid"], len(status["hosts"])) == (machine.proxies()[0], 1)


async def test_nobody_who_does_not_know_the_key_gets_an_answer_at_a_port(
    machine: Machine, server: Server
) -> None:
    async with machine.host(**AT_PORT) as client:
        await client.until_listed("work__echo")
        (file,) = machine.sockets()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        port = int(file.read_text("ascii").split()[0])
        for said in (
            b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' + b" " * 200,
            b"0" * (NONCE_BYTES + PROOF_BYTES),
        ):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(said)
                received = b""
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        received += await stream.receive()
                assert len(received) in (0, PROOF_BYTES + NONCE_BYTES)
        assert "isError" not in await client.call("work__echo", {"text": "x"})


async def test_program_that_has_the_port_of_a_proxy_that_has_gone_is_not_taken_for_it(
    machine: Machine, server: Server
) -> None:
    heard = b""

    async def listen(stream: anyio.abc.SocketStream) -> None:
        nonlocal heard
        async with stream:
            heard += await stream.receive()
            await stream.send(b"0" * (PROOF_BYTES + NONCE_BYTES))
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                heard += await stream.receive()

    environ = {**os.environ, "XDG_RUNTIME_DIR": str(machine.folder), **AT_PORT}
    arguments = ["--config", str(machine.config), "serve"]
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, listen)
        async with machine.host(**AT_PORT) as client:
            (file,) = machine.sockets()
            key = file.read_text("ascii").split()[1]
            file.write_text(f"{listener.extra(anyio.abc.SocketAttribute.local_port)} {key}\n", "ascii")
            before = machine.proxies()
            async with machine.host(**AT_PORT) as other:
                await other.until_listed("work__echo")
                assert len(machine.proxies()) == len(before) + 1
            await client.until_listed("work__echo")
        group.cancel_scope.cancel()
    assert heard
    assert key.encode() not in heard
    assert b"jsonrpc" not in heard
    assert meeting(arguments, environ).socket in running(machine.config, environ)
