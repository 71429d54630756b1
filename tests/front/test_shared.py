"""``serve``: the sessions of several hosts meet in one proxy."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.commands import forked_command, real_command
from support.ledger import until
from support.machine import Machine
from support.raw_client import PATIENCE, RawClient
from support.servers import Server, Workshop, tool
from support.tables import each
from support.wires import full_pipe, stdio

from mcp_context_proxy.bridge import ask, folders, running
from mcp_context_proxy.bridge.meeting import Meeting, meeting

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


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
    async with stdio(command, "handshake", env={**machine.told, **places}) as client:
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
        command = forked_command("--config", machine.config, "servers")
        env = {**machine.environ, "DESK_TOKEN": "one"}
        asked = partial(subprocess.run, command, env=env, capture_output=True, text=True, check=True)
        said = (await anyio.to_thread.run_sync(asked)).stderr
        assert [process for process in machine.proxies() if f"process {process} is asked" in said]


@pytest.mark.parametrize("variable", ["PATH", "HTTPS_PROXY", "LC_ALL", "MCP_CONTEXT_PROXY_TOKEN"])
async def test_any_variable_that_servers_inherit_keeps_hosts_apart(
    machine: Machine, server: Server, variable: str
) -> None:
    arguments = ["--config", str(machine.config), "serve"]
    environ = {**machine.told, "HOME": "/home/x"}
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
    environ = {**machine.told, "HOME": str(tmp_path)}
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.append(meeting(["--config", str(machine.config)], environ))
    assert found[0].socket != found[1].socket
    assert [Path(one.folder).name for one in found] == ["one", "two"]


async def test_names_of_folders_need_not_be_utf_8(
    machine: Machine, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"lat\xe4in")
    folder.mkdir()
    monkeypatch.chdir(folder)
    workshop.server("work", tools=[tool("echo")])
    machine.config = Path(shutil.copy(workshop.config(), folder))
    with machine.config.open("a", encoding="utf-8") as file:
        file.write('\n[expose]\nunknown = 1\n[[documents]]\npath = "."\n')
    async with machine.host() as host:
        await host.until_listed("work__echo")
        (place,) = running(machine.config, machine.environ)
        status = ask(place, "GET", "/status", seconds=PATIENCE)
        assert status["config"] == f"{tmp_path}/lat\ufffdin/config.toml"
        (problem,) = status["problems"]
        assert problem.startswith(f"{tmp_path}/lat\ufffdin/config.toml")
        assert len(machine.proxies()) == 1


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


def test_log_of_each_host_has_the_mistakes_in_the_configuration_and_in_its_own_presets(
    machine: Machine,
) -> None:
    machine.config.write_text("[servers.work]\ncomand = 'x'\nenv = { A = 3 }\n", encoding="utf-8")
    for _ in range(2):
        done = subprocess.run(
            [*machine.command, "--preset", "relase"],
            input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
            capture_output=True,
            env=machine.environ,
            check=False,
        )
        assert json.loads(done.stdout)["id"] == 1
        assert b"there is no preset 'relase'" in done.stderr
        assert b"WARNING: server work: off: comand: unknown key; did you mean command?" in done.stderr
        assert b"servers.work.env.A: must be text in quotes, not a whole number" in done.stderr


@pytest.mark.parametrize("options", [("--preset",), ("--profile", "chat", "--preset"), ("--config",)])
def test_an_option_without_its_value_is_told_to_the_host(machine: Machine, options: tuple[str, ...]) -> None:
    done = subprocess.run(
        real_command("serve", *options, shared=True),
        input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        capture_output=True,
        env={**machine.environ, "HOME": str(machine.folder)},
        check=False,
    )

    assert f"Option '{options[-1]}' requires an argument" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("stderr", ["closed", "without a reader", "full"])
def test_session_whose_host_takes_no_messages_for_people_is_served(machine: Machine, stderr: str) -> None:
    machine.config.write_text("[servers.work]\ncomand = 'x'\n", encoding="utf-8")
    with full_pipe() as (_, full):
        reading, unread = os.pipe()
        os.close(reading)
        done = subprocess.run(
            machine.command,
            input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
            stdout=subprocess.PIPE,
            stderr=full if stderr == "full" else unread,
            env=machine.environ,
            preexec_fn=partial(os.close, 2) if stderr == "closed" else None,
            timeout=PATIENCE,
            check=False,
        )
        os.close(unread)

    assert json.loads(done.stdout)["id"] == 1


def place(machine: Machine, text: str, **environ: str) -> Meeting:
    machine.config.write_text(text, encoding="utf-8")
    arguments = ["--config", str(machine.config), "serve"]
    return meeting(arguments, {**machine.told, "HOME": "/home/x", **environ})


@each(
    "text",
    [
        '{"mcpServers": {"a": {"command": "a", "env": {"K": "${env:DESK_TOKEN}"}}}}',
        '{"mcpServers": {"a": {"command": "a", "env": {"K": "$DESK_TOKEN"}}}}',
        pytest.param('{"mcp": {"a": {"environment": {"K": "{env:DESK_TOKEN}"}}}}', id="opencode"),
        pytest.param("mcp_servers.a.env_vars = ['DESK_TOKEN']", id="Codex"),
        pytest.param("extensions: {a: {cmd: a, env_keys: [OTHER, DESK_TOKEN]}}", id="Goose"),
        pytest.param("extensions:\n  a:\n    env_keys:\n    - OTHER\n    - DESK_TOKEN # mine\n", id="Goose"),
    ],
)
def test_a_variable_that_a_server_gets_in_the_form_of_any_host_reaches_the_shared_proxy(
    machine: Machine, text: str
) -> None:
    one, other = (place(machine, text, DESK_TOKEN=value) for value in ("one", "two"))

    assert one.environment["DESK_TOKEN"] == "one"
    assert one.socket != other.socket


def test_session_whose_configuration_comes_from_a_pipe_has_a_proxy_of_its_own(machine: Machine) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"[expose]\n")
    os.close(writing)
    done = subprocess.run(
        real_command("--config", f"/dev/fd/{reading}", "serve", shared=True),
        input='{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n',
        pass_fds=[reading],
        capture_output=True,
        text=True,
        env=machine.environ,
        timeout=PATIENCE,
        check=True,
    )
    os.close(reading)

    assert json.loads(done.stdout)["result"] == {}, done.stderr
    assert "cannot be read again" in done.stderr


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


OF_MACOS = "/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ("/scratch/", "/scratch"),
        (f"{OF_MACOS}/", OF_MACOS),
        ("/" + "x" * 90, "/tmp"),
    ],
)
def test_the_folder_for_temporary_files_has_sockets_if_their_paths_are_short_enough(
    given: str, folder: str
) -> None:
    assert [*folders({"TMPDIR": given})] == [f"{folder}/mcp-context-proxy-{os.getuid()}"]
