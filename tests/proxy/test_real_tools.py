"""The lists of 33 published servers, a thousand tools, through the proxy: nothing lost, nothing added."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import Raw
from support.proxies import Host, command, inside
from support.raw_client import PATIENCE
from support.servers import TOOLS, Workshop, real_lists
from support.wires import stdio

from mcp_context_proxy.catalog.definitions import taken_by_models
from mcp_context_proxy.catalog.names import exposed_name
from mcp_context_proxy.config.host_profiles import HOSTS, NAME_CHARACTERS
from mcp_context_proxy.server.meta_definitions import NAMES

VALID = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """A server for each of the lists."""
    workshop = Workshop(tmp_path_factory.mktemp("real"))
    for path in sorted(TOOLS.glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz")
        plain = workshop.folder / f"{name}.tools.json"
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        workshop.server(name, tools_file=str(plain), ledger=None)
    yield workshop
    workshop.close()


def text(definition: Any) -> str:
    """JSON that differs when a value, a member or the order of members does."""
    return json.dumps(definition, ensure_ascii=False)


def renamed_back(listed: list[dict[str, Any]]) -> dict[str, list[str]]:
    """By server, its listed tools, with the servers' own names put back in place."""
    names = {
        exposed: (server, tool["name"])
        for server, tools in real_lists().items()
        for tool, exposed in zip(tools, exposed_names(server), strict=True)
    }
    found: dict[str, list[str]] = {}
    for definition in listed:
        server, own = names[definition["name"]]
        found.setdefault(server, []).append(text({**definition, "name": own}))
    return found


def exposed_names(server: str) -> list[str]:
    return [exposed_name(server, tool["name"], NAME_CHARACTERS) for tool in real_lists()[server]]


def as_listed(definition: dict[str, Any]) -> dict[str, Any]:
    """Return what clients get of a definition.

    Ten of the schemas have no properties or an array without items, which APIs of models refuse. One tool
    runs as a task only, for which the proxy waits.
    """
    schema, _ = taken_by_models(Raw(json.dumps(definition["inputSchema"]).encode()))
    shown = {**definition, "inputSchema": json.loads(bytes(schema))}
    if shown.get("execution", {}).get("taskSupport") == "required":
        del shown["execution"]
    return shown


def assert_complete(listed: list[dict[str, Any]]) -> None:
    found = renamed_back(listed)
    for server, tools in real_lists().items():
        assert sorted(found[server]) == sorted(text(as_listed(tool)) for tool in tools), server


def test_the_corpus_is_what_it_says() -> None:
    assert len(real_lists()) == 33
    assert sum(map(len, real_lists().values())) == 1035


async def test_every_definition_reaches_a_client_over_stdio_unchanged(real: Workshop, era: str) -> None:
    config = real.config(expose={"mode": "all"})
    async with stdio(command(config), era) as client:
        expected = [name for server in real_lists() for name in exposed_names(server)]
        await client.until_listed(*expected)
        listed = (await client.request("tools/list"))["tools"]
        with anyio.fail_after(PATIENCE):
            # The proxy's own tools leave the list once no server is awaited any more.
            while len(listed) > 1035:
                listed = (await client.request("tools/list"))["tools"]

    assert len(listed) == 1035
    assert_complete(listed)


async def test_all_tools_have_distinct_names_that_every_host_accepts(real: Workshop) -> None:
    async with inside(real.config(expose={"mode": "all"})) as proxy:
        names = await Host(proxy, "modern").names()

    assert len(names) == len(set(names)) == 1035
    assert [name for name in names if not VALID.fullmatch(name)] == []
    for host in HOSTS.values():
        assert [name for name in names if len(name) > host.name_characters] == [], host.title


async def test_tools_without_type_and_properties_in_their_schema_are_listed_with_both_and_nothing_else(
    workshop: Workshop,
) -> None:
    tools = real_lists()["gitlab"]
    workshop.server("gitlab", tools=tools)
    async with inside(workshop.config(expose={"mode": "all"})) as proxy:
        listed = (await Host(proxy, "handshake").request("tools/list"))["tools"]

    assert all("type" not in tool["inputSchema"] for tool in tools)
    for definition in listed:
        (tool,) = [tool for tool in tools if definition["name"] == f"gitlab__{tool['name']}"]
        assert definition["inputSchema"] == {"type": "object", **tool["inputSchema"], "properties": {}}
        assert {**definition, "name": 0, "inputSchema": 0} == {**tool, "name": 0, "inputSchema": 0}


async def test_without_prefix_tools_keep_their_names_where_these_are_unique(real: Workshop) -> None:
    async with inside(real.config(expose={"mode": "all", "prefix": False})) as proxy:
        names = await Host(proxy, "modern").names()

    owners: dict[str, list[str]] = {}
    for server, tools in real_lists().items():
        for tool in tools:
            owners.setdefault(tool["name"], []).append(server)
    assert {len(servers) > 1 for servers in owners.values()} == {True, False}
    for name, servers in owners.items():
        if len(servers) > 1:
            assert name not in names
            assert {f"{server}__{name}" for server in servers} <= set(names)
        elif len(name) <= NAME_CHARACTERS:
            assert name in names
        else:
            assert exposed_name(servers[0], name, NAME_CHARACTERS) in names


async def test_a_default_list_is_short_whatever_is_behind_it(real: Workshop) -> None:
    async with inside(real.config()) as proxy:
        answers = [await Host(proxy, era).request("tools/list") for era in ("handshake", "modern")]

    for answer in answers:
        assert {tool["name"] for tool in answer["tools"]} == NAMES
        assert len(json.dumps(answer["tools"], separators=(",", ":"))) <= 420 * 4


async def test_exposed_names_do_not_change_when_servers_disappear(real: Workshop, tmp_path: Path) -> None:
    names = {}
    for kept in (["github", "gitlab", "zereight-gitlab"], ["github"], ["zereight-gitlab", "github"]):
        fewer = Workshop(tmp_path)
        fewer.servers = {name: real.servers[name] for name in kept}
        async with inside(fewer.config(expose={"mode": "all"})) as proxy:
            listed = await Host(proxy, "modern").names()
        names[len(kept), kept[0]] = {name for name in listed if name.startswith("github__")}

    assert len({frozenset(each) for each in names.values()}) == 1
    assert len(names[1, "github"]) == 26
