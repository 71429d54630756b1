"""A server is a child with arguments and an environment of its own, and gone with the proxy."""

import os
from fnmatch import fnmatchcase

import pytest
from support.ledger import until
from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.config.programs import INHERITED


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
        return file.read().split(")")[-1].split()[0] != "Z"


async def test_children_are_gone_when_the_proxy_stops_even_those_that_ignore_the_end_of_input(
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


async def test_a_child_gets_a_short_environment_and_its_configured_variables(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_ANOTHER", "x")
    first = workshop.server("first", settings={"env": {"FIRST_KEY": "1"}})
    second = workshop.server("second", settings={"env": {"SECOND_KEY": "2"}})
    async with inside(workshop.config()):
        pass

    for server, own in ((first, "FIRST_KEY"), (second, "SECOND_KEY")):
        (start,) = server.ledger.entries("start")
        environment = start["environment"]
        given = {name for name in environment if not any(fnmatchcase(name, one) for one in INHERITED)}
        assert given == {own}


async def test_a_command_is_a_program_and_not_a_shell_line(workshop: Workshop) -> None:
    made = workshop.folder / "made"
    workshop.server("odd").settings = {"command": f"sh -c 'touch {made}'"}
    async with inside(workshop.config()) as proxy:
        told = proxy.fleet.clients["odd"].cause

    assert "no program" in told
    assert not made.exists()


async def test_arguments_are_passed_as_they_are_and_never_to_a_shell(workshop: Workshop) -> None:
    server = workshop.server("plain")
    server.settings["args"] = [*server.settings["args"], "; touch /tmp/never", "$(id)", "a b"]
    async with inside(workshop.config()):
        pass

    (start,) = server.ledger.entries("start")
    assert start["argv"][-3:] == ["; touch /tmp/never", "$(id)", "a b"]


async def test_a_flood_on_stderr_blocks_nothing_and_its_last_lines_are_kept(workshop: Workshop) -> None:
    flood = [{"stderr": "x" * 5000}] * 200 + [{"stderr": "the last line"}]
    workshop.server("loud", tools=[tool("shout")], calls={"shout": flood})
    async with inside(workshop.config()) as proxy:
        result = await Host(proxy, "handshake").call("loud__shout")
        await until(lambda: proxy.fleet.clients["loud"].stderr[-1] == "the last line")

    assert "isError" not in result
