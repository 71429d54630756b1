"""A tool that the configuration turns off is nowhere: not listed, not found, not callable."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.raw_client import OWN, text_of
from support.servers import Server, Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config import load
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.errors import TurnedOffError
from mcp_context_proxy.items import Kind
from mcp_context_proxy.learning import Signal, Use

SEARCH = "search_available_tools"
TASK = "delete a repository for good"
LONG = "delete_everything_that_was_ever_stored_in_the_archive_of_this_company"
TOOLS = [
    tool("get_repo", "Read a repository"),
    tool("get_issue", "Read an issue"),
    tool("delete_repo", "Delete a repository for good"),
    tool("close_issue", "Close an issue"),
    tool(LONG, "Delete the archive"),
]
SETTINGS = {
    "deny": ["delete_*"],
    "tools": {"close_issue": {"enabled": False, "include": "always"}, "get_issue": {"include": "always"}},
}
OFF = ("git__delete_repo", "git__close_issue", f"git__{LONG}")


def found(data: dict[str, Any]) -> list[str]:
    return [one["name"] for one in data["results"]]


@pytest.fixture
def git(workshop: Workshop) -> Server:
    return workshop.server(
        "git",
        tools=TOOLS,
        prompts=[{"name": "delete_repo"}],
        resources=[{"uri": "note://delete_repo", "name": "delete_repo"}],
        settings=dict(SETTINGS),
    )


@pytest.fixture
async def proxy(workshop: Workshop, git: Server) -> AsyncIterator[Proxy]:
    config = workshop.config(expose={"list_all_below": 0}, context={"manage_tool": True})
    async with inside(config) as opened:
        yield opened


async def test_a_tool_that_is_turned_off_is_in_no_list_and_no_search(proxy: Proxy, host: Host) -> None:
    whole = await host.names(**{OWN + "query": TASK})
    read = await host.call(SEARCH, {"query": TASK, "top_n": 50})
    answer = await host.data(SEARCH, {"query": TASK, "top_n": 50})

    assert "git__get_issue" in whole
    assert not {*whole} & {*OFF}
    assert "git__get_repo" in found(answer)
    assert not {*found(answer)} & {*OFF}
    assert "git__get_repo" in text_of(read)
    assert "delete_repo" not in text_of(read) + json.dumps(answer["results"])


async def test_a_search_for_it_says_that_something_is_off_and_neither_name_nor_setting(
    proxy: Proxy, host: Host
) -> None:
    said = "What may fit is turned off at git; only the user can turn it on."
    asked = text_of(await host.call(SEARCH, {"query": "please delete that repo"}))
    other = text_of(await host.call(SEARCH, {"query": "please delete that file"}))

    assert said in asked
    assert "git__delete" not in asked
    assert "deny" not in asked
    assert "turned off" not in other


async def test_mode_all_does_not_list_it_either(workshop: Workshop, git: Server, era: str) -> None:
    async with inside(workshop.config(expose={"mode": "all"})) as proxy:
        names = await Host(proxy, era).names()

    assert [name for name in names if name.startswith("git__")] == ["git__get_issue", "git__get_repo"]


@pytest.mark.parametrize(
    "name", ["git__delete_repo", "delete_repo", "git__close_issue", "close_issue", f"git__{LONG}", LONG]
)
async def test_a_call_says_that_the_tool_is_turned_off_and_in_which_line(
    proxy: Proxy, host: Host, git: Server, name: str
) -> None:
    """By its full name or its own, directly or through the tool for calls; the server sees nothing of it."""
    direct = await host.call(name, {"text": "x"})
    through = await host.call("call_tool", {"name": name, "arguments": {"text": "x"}})

    lines = (proxy.config.path or git.path).read_text().split("\n")
    if "close" in name:
        key, line = "servers.git.tools.close_issue.enabled", lines.index("enabled = false") + 1
    else:
        key, line = "servers.git.deny[0]", lines.index('deny = ["delete_*"]') + 1
    for result in (direct, through):
        assert result["isError"]
        assert f"is turned off by {key} (config.toml:{line}); only the user can turn it on" in text_of(result)
    assert git.ledger.calls() == []


async def test_a_name_that_was_listed_before_the_tool_was_turned_off_says_so_too(
    workshop: Workshop, git: Server, era: str
) -> None:
    git.settings |= {"deny": []}
    async with inside(workshop.config()) as proxy:
        (shortened,) = [one.exposed_name for one in proxy.catalog.snapshot.tools.values() if one.name == LONG]
        git.settings |= {"deny": ["delete_*"]}
        await proxy.apply(load(workshop.config(expose={"max_name_length": 30}), environ={}))
        await until(lambda: LONG in [one.name for one in proxy.catalog.snapshot.turned_off.values()])
        result = await Host(proxy, era).call(shortened)

    assert shortened != f"git__{LONG}"
    assert "is turned off by servers.git.deny[0]" in text_of(result)


async def test_a_tool_outside_of_the_allowed_ones_is_turned_off(
    workshop: Workshop, git: Server, era: str
) -> None:
    del git.settings["deny"]
    git.settings |= {"allow": ["get_*"]}
    async with host_of(workshop.config(), era) as host:
        names, refused = await host.names(), await host.call("git__delete_repo")

    assert [name for name in names if name.startswith("git__")] == ["git__get_issue", "git__get_repo"]
    assert "is turned off by servers.git.allow (config.toml:" in text_of(refused)
    assert ", which does not name it;" in text_of(refused)


async def test_nothing_adds_it_to_a_session(proxy: Proxy, host: Host) -> None:
    change = {"action": "add", "type": "tool", "name": "delete_repo", "server": "git"}
    refused = await host.call("manage_context", change)

    assert "is turned off by servers.git.deny[0]" in text_of(refused)
    with pytest.raises(TurnedOffError):
        await proxy.contexts.related(Kind.TOOL, "git__delete_repo")


async def test_what_was_learned_of_it_does_not_bring_it_back(proxy: Proxy, host: Host) -> None:
    tier = proxy.search.learned
    assert tier is not None

    def teach() -> None:
        for number in range(5):
            tier.learn(Use(TASK, ("git", "delete_repo"), Signal.FOUND, f"session {number}"))

    await anyio.to_thread.run_sync(teach)
    answer = await host.data(SEARCH, {"query": TASK, "top_n": 50})

    assert ("git", "delete_repo") in tier.tools()
    assert "git__delete_repo" not in found(answer)


async def test_prompts_and_resources_of_the_server_stay(proxy: Proxy, host: Host) -> None:
    prompts = await host.request("prompts/list")
    resources = await host.request("resources/list")

    assert "git__delete_repo" in [one["name"] for one in prompts["prompts"]]
    assert "note://delete_repo" in [one["uri"] for one in resources["resources"]]


async def test_the_own_name_then_means_the_tool_of_another_server(
    workshop: Workshop, git: Server, era: str
) -> None:
    other = workshop.server("hub", tools=[tool("delete_repo")])
    async with inside(workshop.config()) as proxy:
        result = await Host(proxy, era).call("delete_repo")

    assert "isError" not in result
    assert (len(other.ledger.calls()), git.ledger.calls()) == (1, [])


async def test_within_a_session_the_own_name_does_not_change_its_server(
    workshop: Workshop, git: Server
) -> None:
    workshop.server("hub", tools=[tool("delete_repo")], settings={"enabled": False})
    git.settings |= {"deny": []}
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "handshake")
        await host.call("delete_repo")
        git.settings |= {"deny": ["delete_*"]}
        workshop.servers["hub"].settings["enabled"] = True
        await proxy.apply(load(workshop.config(), environ={}))
        await until(lambda: "hub__delete_repo" in proxy.catalog.snapshot.tools)
        refused = await host.call("delete_repo")

    assert "belonged to server 'git' earlier in this session" in text_of(refused)


async def test_a_broken_definition_of_such_a_tool_is_no_finding(workshop: Workshop, git: Server) -> None:
    broken = {"name": "delete_all", "inputSchema": 5}
    workshop.server("git", tools=[*TOOLS, broken], settings=dict(SETTINGS))
    async with inside(workshop.config()) as proxy:
        snapshot = proxy.catalog.snapshot

    assert "git__delete_all" in snapshot.turned_off
    assert not [finding for finding in snapshot.findings if "delete_all" in finding]


async def test_a_tool_named_like_one_that_is_turned_off_is_a_finding(workshop: Workshop) -> None:
    settings = {"deny": ["delete_repo"]}
    workshop.server("git", tools=[tool("delete_repo"), tool("Delete-Repo")], settings=settings)
    async with inside(workshop.config()) as proxy:
        (finding,) = proxy.catalog.snapshot.findings

    assert finding == "git: tools whose names look alike: 'delete_repo', 'Delete-Repo'"


async def test_a_lazy_server_that_sleeps_has_the_same_tools_turned_off(
    workshop: Workshop, git: Server, era: str
) -> None:
    git.settings |= {"start": "lazy"}
    config = workshop.config(store={"path": str(workshop.folder / "store.db")})
    async with inside(config) as proxy:
        await until(lambda: proxy.fleet.clients["git"].state is ServerState.ASLEEP)
    async with host_of(config, era) as host:
        refused, names = await host.call("git__delete_repo"), await host.names()

    assert "is turned off by servers.git.deny[0]" in text_of(refused)
    assert not {*names} & {*OFF}
    assert len(git.ledger.entries("start")) == 1


async def test_a_changed_list_is_followed_without_a_restart_of_the_server(
    workshop: Workshop, git: Server, era: str
) -> None:
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, era)
        git.settings |= {"deny": ["get_issue"], "tools": {}}
        await proxy.apply(load(workshop.config(), environ={}))
        await until(lambda: "git__get_issue" in proxy.catalog.snapshot.turned_off)
        off, on = await host.call("git__get_issue"), await host.call("git__delete_repo")

    assert "is turned off" in text_of(off)
    assert "isError" not in on
    assert [one["name"] for one in git.ledger.calls()] == ["delete_repo"]
    assert len(git.ledger.entries("start")) == 1


async def test_a_tool_is_off_at_once_although_its_server_is_still_being_replaced(
    workshop: Workshop, git: Server, era: str
) -> None:
    """The same edit changes the connection, and the new process is not ready before the test allows it."""
    patient = {"limits": {"drain_seconds": 600.0, "connect_seconds": 600.0}}
    async with inside(workshop.config(**patient)) as proxy:
        go = workshop.flag("go")
        slow = workshop.server("git", tools=TOOLS, on={"initialize": [{"wait": str(go)}]}).settings
        workshop.servers["git"].settings = {**slow, "era": "handshake", "deny": ["get_repo"]}
        before = proxy.fleet.clients["git"]
        await proxy.apply(load(workshop.config(**patient), environ={}))
        await until(lambda: "git__get_repo" in proxy.catalog.snapshot.turned_off)
        refused = await Host(proxy, era).call("git__get_repo")
        unchanged = proxy.fleet.clients["git"] is before
        go.touch()

    assert unchanged
    assert "is turned off by servers.git.deny[0]" in text_of(refused)


async def test_a_call_to_a_server_that_is_off_names_the_line(
    workshop: Workshop, git: Server, era: str
) -> None:
    git.settings |= {"enabled": False}
    async with inside(workshop.config()) as proxy:
        refused = await Host(proxy, era).call("git__get_repo")

    line = workshop.config().read_text().split("\n").index("enabled = false") + 1
    expected = f"server 'git' is not available (switched off by servers.git.enabled (config.toml:{line}))"
    assert expected in text_of(refused)
