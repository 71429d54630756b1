"""Names of tools and prompts while servers come, go, and call their own things like those of others."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.growth import costs_more
from support.listings import INTRODUCED

from mcp_context_proxy.catalog import names
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.documents import DocumentLibrary
from mcp_context_proxy.catalog.names import exposed_name
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.context.session import SessionContext, resolve_in
from mcp_context_proxy.downstream.listing import ServerListing
from mcp_context_proxy.errors import AwaitedServersError, UnknownItemError
from mcp_context_proxy.items import Kind, Prompt, Snapshot, Tool

SERVERS = ("a", "A", "a_", "_a", "ab", "0a", "-a", "a-b", "a_b")
PARTS = ("x", "_x", "x_", "y", "Xy", "é", "x" * 60)
OWN = sorted(
    {
        *PARTS,
        *(
            f"{server}{between}{part}"
            for server in SERVERS
            for between in ("__", "--", "_-")
            for part in PARTS
        ),
        *(f"{one}__{other}__x" for one in SERVERS for other in SERVERS),
        *(exposed_name(server, part, 50) for server in SERVERS for part in PARTS),
    }
)
NEVER, LISTED, OFF = "never connected", "listed", "off"


@dataclass(eq=False)
class Stub:
    """A downstream client as the catalog sees it."""

    config: ServerConfig
    listing: ServerListing
    introduction: object = None

    @property
    def name(self) -> str:
        return self.config.name


def listing(own: Iterable[str]) -> ServerListing:
    own = list(own)
    tools = [json.dumps({"name": name, "inputSchema": {"type": "object"}}).encode() for name in own]
    prompts = [json.dumps({"name": name}).encode() for name in own]
    return ServerListing(tools=tuple(tools), prompts=tuple(prompts))


class World:
    """A catalog over servers whose state a test changes."""

    def __init__(self, prefix: bool) -> None:
        self.own: dict[str, list[str]] = {}
        self.state: dict[str, str] = {}
        limits = Limits()
        self.catalog = Catalog(
            ExposeConfig(prefix=prefix),
            limits,
            self.clients,
            DocumentLibrary((), limits),
            configured=lambda: frozenset(self.state),
            reserved=frozenset({"call_tool"}),
        )

    def clients(self) -> Iterable[Any]:
        for server, state in self.state.items():
            if state != OFF:
                config = ServerConfig(name=server, command="x")
                known = state == LISTED
                yield Stub(config, listing(self.own[server] if known else ()), INTRODUCED if known else None)

    def change(self, server: str, state: str, own: list[str]) -> None:
        self.state.pop(server, None)
        if state != "removed":
            self.own[server] = own
            self.state[server] = state
        self.catalog.refresh()

    def named(self, name: str) -> set[str]:
        """The servers that a name states: those whose prefix it has, as full names are made."""
        return {one for one in SERVERS if name.startswith((f"{one}__", f"_{one}__"))}


CHANGES = st.tuples(
    st.sampled_from(SERVERS),
    st.sampled_from((LISTED, LISTED, NEVER, OFF, "removed")),
    st.lists(st.sampled_from(PARTS[:4]) | st.sampled_from(OWN), max_size=4, unique=True),
)


@settings(max_examples=150)
@given(st.booleans(), st.lists(CHANGES, min_size=1, max_size=6), st.data())
def test_a_name_leads_to_the_server_that_it_names_or_nowhere(
    prefix: bool, changes: list[tuple[str, str, list[str]]], data: st.DataObject
) -> None:
    world, session = World(prefix), SessionContext()
    meant: dict[tuple[str, str], set[str]] = {}
    for change in changes:
        world.change(*change)
        assert world.catalog._lists.last.keys() <= world.state.keys(), (
            "nothing is kept of those that have gone"
        )
        snapshot = world.catalog.snapshot
        listed = [*snapshot.tools, *snapshot.prompts]
        own = [name for server in world.state for name in world.own[server]]
        full = [f"{server}__{name}" for server in SERVERS for name in own]
        called = data.draw(st.lists(st.sampled_from([*listed, *own, *full, *PARTS]), max_size=8))
        for name in (*listed, *called):
            for kind, found in led_to(snapshot, session, name):
                check_server(world, name, found)
                meant.setdefault((kind, name), set()).add(found.server)
    assert all(len(servers) == 1 for (_, name), servers in meant.items() if "__" not in name)


def led_to(snapshot: Snapshot, session: SessionContext, name: str) -> Iterable[tuple[str, Tool | Prompt]]:
    try:
        tool = resolve_in(session, snapshot, Kind.TOOL, name)
        assert isinstance(tool, Tool)
        yield "tool", tool
    except UnknownItemError:
        pass
    try:
        prompt = names.by_full_name(snapshot.prompts, name, snapshot.servers)
        if prompt is not None:
            session.means("prompt", name, prompt.server)
            yield "prompt", prompt
    except UnknownItemError:
        pass


def check_server(world: World, name: str, found: Tool | Prompt) -> None:
    if "__" in name:
        # Of the configured servers whose prefix the name has, it is the one with the longest.
        assert found.server in world.named(name)
        others = world.named(name) & world.state.keys() - {found.server}
        assert all(len(other) <= len(found.server) for other in others)
    else:
        assert found.name == name
        assert NEVER not in world.state.values()
        # One whose full name belongs to another server is withheld, and nothing leads to it.
        served = {(tool.server, tool.name) for tool in world.catalog.snapshot.tools.values()}
        having = [one for one, state in world.state.items() if state == LISTED and (one, name) in served]
        assert having == [found.server]


@settings(max_examples=150)
@given(st.booleans(), st.lists(CHANGES, min_size=1, max_size=6))
def test_whatever_is_listed_is_what_its_name_leads_to(
    prefix: bool, changes: list[tuple[str, str, list[str]]]
) -> None:
    world = World(prefix)
    for change in changes:
        world.change(*change)
    snapshot = world.catalog.snapshot

    assert all(names.tool_named(snapshot, name) is tool for name, tool in snapshot.tools.items())
    assert all("__" in name for name in snapshot.tools) or not prefix


def world_of(listed: Mapping[str, list[str]], prefix: bool = True) -> World:
    world = World(prefix)
    for server, own in listed.items():
        world.change(server, LISTED, own)
    return world


def test_a_tool_has_its_plain_full_name_beside_the_altered_one() -> None:
    snapshot = world_of({"a": ["x" * 60, "é", "_x"]}).catalog.snapshot

    assert [names.tool_named(snapshot, f"a__{own}").name for own in ("x" * 60, "é", "_x")] == [
        "x" * 60,
        "é",
        "_x",
    ]


@pytest.mark.parametrize("server", [None, "a"])
def test_a_tool_with_its_server_needs_no_other_server_to_be_known(server: str | None) -> None:
    world = world_of({"a": ["x"]})
    world.change("ab", NEVER, [])
    snapshot = world.catalog.snapshot

    if server is None:
        with pytest.raises(AwaitedServersError, match=r"use a__x\. Not connected: ab$"):
            names.tool_named(snapshot, "x", server)
    else:
        assert names.tool_named(snapshot, "x", server).server == server


def test_a_misspelt_name_leads_to_similar_ones_while_a_server_is_not_known() -> None:
    world = world_of({"time": ["get_time"]})
    world.change("broken", NEVER, [])

    with pytest.raises(AwaitedServersError, match=r"did you mean time__get_time\? Not connected: broken$"):
        names.tool_named(world.catalog.snapshot, "get_tme")


def test_a_full_name_of_a_server_that_is_not_known_is_not_called_unknown() -> None:
    world = world_of({"time": ["get_time"]})
    world.change("broken", NEVER, [])

    with pytest.raises(AwaitedServersError, match=r"tool 'broken__run'\. Not connected: broken$"):
        names.tool_named(world.catalog.snapshot, "broken__run")


def test_the_most_similar_of_thousands_of_names_is_suggested() -> None:
    world = world_of(
        {"fleet": [f"op_{number}_{verb}" for number in range(400) for verb in ("start", "stop")]}
    )

    for asked in ("fleet__op_5_strat", "op_399_stopp"):
        with pytest.raises(UnknownItemError) as caught:
            names.tool_named(world.catalog.snapshot, asked)
        best = {"fleet__op_5_strat": "fleet__op_5_start", "op_399_stopp": "fleet__op_399_stop"}[asked]
        assert f"did you mean {best}" in str(caught.value)


@pytest.mark.parametrize("written", ["get_sum", "getSum", "GetSum", "get.sum"])
def test_a_tool_is_found_by_its_full_name_in_another_spelling(written: str) -> None:
    snapshot = world_of({"every": ["get-sum", "echo"]}).catalog.snapshot

    assert names.tool_named(snapshot, f"every__{written}").name == "get-sum"


def test_another_spelling_leads_nowhere_where_two_tools_differ_in_nothing_else() -> None:
    snapshot = world_of({"every": ["get-sum", "getSum", "echo"]}).catalog.snapshot

    with pytest.raises(UnknownItemError, match="did you mean every__get"):
        names.tool_named(snapshot, "every__get_sum")


def test_a_name_of_any_length_is_looked_for_once_in_all_spellings() -> None:
    snapshot = world_of({"fleet": [f"op_{number}" for number in range(1_000)]}).catalog.snapshot

    def ask(name: str) -> None:
        with pytest.raises(UnknownItemError):
            names.tool_named(snapshot, name)

    assert not costs_more(20, ask, "fleet__" + "a" * 1_000_000, "fleet__" + "a" * 200)


def test_a_tool_that_is_gone_from_its_server_is_not_answered_with_one_of_another() -> None:
    snapshot = world_of({"north": ["plan_route", "close"], "south": ["plan_routes"]}).catalog.snapshot

    with pytest.raises(UnknownItemError) as caught:
        names.tool_named(snapshot, "plan_route", "south")
    assert str(caught.value) == "unknown tool 'south__plan_route'; did you mean south__plan_routes?"


def test_the_word_of_a_server_makes_no_name_similar() -> None:
    snapshot = world_of({"git": ["git_reset", "git_show", "git_status"]}).catalog.snapshot

    with pytest.raises(UnknownItemError) as caught:
        names.tool_named(snapshot, "git__git_push")
    assert str(caught.value) == "unknown tool 'git__git_push'"
    with pytest.raises(UnknownItemError, match=r"did you mean git__git_status\?$"):
        names.tool_named(snapshot, "git__git_state")


def test_many_awaited_servers_are_not_all_named() -> None:
    error = AwaitedServersError("tool", "x", [f"s{number}" for number in range(40)])

    assert str(error) == "no connected server has a tool 'x'. Not connected: s0, s1, s2 and 37 more"
