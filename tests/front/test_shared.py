"""``serve``: the sessions of several hosts meet in one proxy."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.commands import real_command
from support.ledger import until
from support.raw_client import RawClient, RpcError
from support.servers import Server, Workshop, tool
from support.wires import stdio

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
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"--listen-on" in words and str(self.config).encode() in words:
                    found.append(int(process.name))
        return found

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
    async with machine.host() as one, machine.host("modern") as other:
        for client in (one, other):
            await client.until_listed("work__echo")
            assert "isError" not in await client.call("work__echo", {"text": "x"})
        assert len(machine.proxies()) == 1
        assert len({entry.get("pid") for entry in server.ledger.entries("started")}) <= 1
        assert len(server.ledger.calls("echo")) == 2


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
    from mcp_context_proxy.bridge.meeting import meeting

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
    assert [one.folder.name for one in found] == ["one", "two"]


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
    assert b"http.port" in done.stderr
    assert b'"id":1,"error"' in done.stdout


def test_folder_that_others_can_write_is_not_used(machine: Machine, server: Server) -> None:
    (machine.folder / "mcp-context-proxy").mkdir()
    (machine.folder / "mcp-context-proxy").chmod(0o777)
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
