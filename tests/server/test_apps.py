"""MCP Apps behind the proxy: hosts show their pages, which call the tools of their own server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.proxies import Host, command, inside
from support.raw_client import PREFIX
from support.servers import Server, Workshop, tool
from support.wires import stdio

from mcp_context_proxy.app.proxy import Proxy

EXTENSION = "io.modelcontextprotocol/ui"
SHOWS = {"extensions": {EXTENSION: {"mimeTypes": ["text/html;profile=mcp-app"]}}}
PAGE, SEEN = "ui://monitor/page.html", "monitor__show_load"
OURS = ["search_available_tools", "call_tool", "call_read_only_tool"]


def on_page(page: str = PAGE, **more: Any) -> dict[str, Any]:
    return {"_meta": {"ui": {"resourceUri": page, **more}}}


def monitor(workshop: Workshop, name: str = "monitor", **more: Any) -> Server:
    """A server with a page that no list has, a tool for it alone, and one that it may not call."""
    tools = [
        tool("show_load", "Shows the load of the machine", **on_page()),
        tool("poll", "Returns the load of the machine again", **on_page(visibility=["app"])),
        tool("reboot", "Starts the machine again", _meta={"ui": {"visibility": ["model"]}}),
        tool("add", "Adds a line to the list of alarms"),
    ]
    return workshop.server(name, tools=tools, files={PAGE: f"{name} has it"}, **more)


@pytest.fixture(scope="module")
async def proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    """A server with a page in front of more tools than are listed whole, in both eras."""
    workshop = Workshop(tmp_path_factory.mktemp("apps"))
    monitor(workshop)
    workshop.server("notes", tools=[tool("add", "Adds a note"), tool("drop", "Deletes a note")])
    async with inside(workshop.config(expose={"list_all_below": 0}), patience=None) as opened:
        yield opened


@pytest.fixture
def host(proxy: Proxy, era: str) -> Host:
    """A host that shows pages."""
    return Host(proxy, era, SHOWS)


def visibility(entry: dict[str, Any]) -> Any:
    return entry.get("_meta", {}).get("ui", {}).get("visibility")


async def listed(host: Host) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in (await host.request("tools/list"))["tools"]}


async def test_a_host_that_shows_pages_lists_the_tools_with_one_because_only_a_listed_tool_shows_it(
    host: Host, proxy: Proxy, era: str
) -> None:
    found, plain = await listed(host), await listed(Host(proxy, era))

    assert [*plain] == OURS
    assert all(visibility(entry) is None for entry in plain.values())
    assert [*found] == [*OURS, SEEN, "poll", "show_load"]
    assert found[SEEN]["_meta"]["ui"] == {"resourceUri": PAGE}


async def test_what_a_page_may_call_is_listed_for_it_alone_under_the_name_that_it_uses(host: Host) -> None:
    found = await listed(host)

    assert {name: visibility(found[name]) for name in ("show_load", "poll")} == {
        "show_load": ["app"],
        "poll": ["app"],
    }
    assert "poll" in (await host.call("poll"))["content"][0]["text"]


async def test_no_page_may_call_the_tools_of_the_proxy_itself_or_of_servers_without_a_page(
    workshop: Workshop, era: str
) -> None:
    """To a host all tools are those of one server, so it would let the page of one call those of all."""
    monitor(workshop)
    workshop.server("notes", tools=[tool("drop")], settings={"include": "always"})
    async with inside(workshop.config(expose={"list_all_below": 0})) as proxy:
        found = await listed(Host(proxy, era, SHOWS))

    assert [visibility(found[name]) for name in (*OURS, "notes__drop")] == [["model"]] * 4


async def test_a_page_gets_no_name_that_two_tools_have_or_that_an_unknown_server_may_have(
    workshop: Workshop, era: str
) -> None:
    monitor(workshop)
    workshop.server("other", tools=[tool("poll"), tool("call_tool")])
    config = workshop.config(expose={"list_all_below": 0})
    async with inside(config) as proxy:
        shared = await listed(Host(proxy, era, SHOWS))
    workshop.server("other", settings={"command": "/nowhere/server"})
    async with inside(workshop.config(expose={"list_all_below": 0})) as proxy:
        unknown = await listed(Host(proxy, era, SHOWS))

    assert [*shared] == [*OURS, SEEN, "add", "show_load"]
    assert [*unknown] == [*OURS, SEEN]


async def test_a_page_that_no_list_has_is_read_from_the_server_whose_tool_names_it(
    workshop: Workshop, era: str
) -> None:
    """The extension leaves it to servers to list their pages."""
    monitor(workshop)
    workshop.server(
        "grabs", tools=[tool("grab")], resources=[], templates=[{"uriTemplate": "ui://{+all}", "name": "all"}]
    )
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, era, SHOWS)
        read = await host.request("resources/read", {"uri": PAGE})
        shown = [entry["uri"] for entry in (await host.request("resources/list"))["resources"]]

    assert read["contents"][0]["text"] == "monitor has it"
    assert PAGE not in shown


async def test_a_server_is_told_of_pages_only_with_calls_for_which_a_host_shows_one(
    workshop: Workshop,
) -> None:
    """A server that believes in a page may leave the work to it, and only say that it is shown."""
    server = monitor(workshop, era="modern")
    async with inside(workshop.config(expose={"list_all_below": 0})) as proxy:
        host = Host(proxy, "modern", SHOWS | {"elicitation": {}})
        for name in (SEEN, "show_load", "monitor__add"):
            await host.call(name)
        for name in ("monitor__show_load", "monitor__poll"):
            await host.call("call_tool", {"name": name, "arguments": {}})
        declared = [call["_meta"][PREFIX + "clientCapabilities"] for call in server.ledger.calls()]

    assert [EXTENSION in one.get("extensions", {}) for one in declared] == [True, True, False, False, False]
    assert all("elicitation" in one for one in declared)


async def test_the_proxy_declares_pages_to_a_host_that_shows_them(workshop: Workshop, era: str) -> None:
    """Some hosts show none of a server that does not declare them."""
    monitor(workshop)
    declared = []
    for capabilities in (SHOWS, {}):
        async with stdio(command(workshop.config()), era, capabilities=capabilities) as client:
            declared.append(client.introduction["capabilities"])

    assert declared[0]["extensions"][EXTENSION] == SHOWS["extensions"][EXTENSION]
    assert EXTENSION not in declared[1].get("extensions", {})


async def test_a_search_says_which_tools_to_call_by_themselves_so_that_their_page_is_shown(
    host: Host, proxy: Proxy, era: str
) -> None:
    query = {"query": "show the load of the machine"}
    told = [await one.call(OURS[0], query) for one in (host, Host(proxy, era))]
    texts = [result["content"][0]["text"] for result in told]
    other = await host.call(OURS[0], {"query": "delete a note"})

    note = f"Note: To show its page, call {SEEN} by its own name, and not through call_tool."
    assert [note in text for text in texts] == [True, False]
    assert "page" not in other["content"][0]["text"]


async def test_a_search_names_no_tool_for_its_page_that_the_list_has_no_room_for(
    workshop: Workshop, era: str
) -> None:
    """A host shows no page for a tool that it has not listed, however it is called."""
    monitor(workshop)
    query = {"query": "show the load of the machine"}
    for expose in ({"list_all_below": 0, "found_tokens": 0}, {"mode": "all", "found_tokens": 0}):
        async with inside(workshop.config(expose=expose)) as proxy:
            host = Host(proxy, era, SHOWS)
            text = (await host.call(OURS[0], query))["content"][0]["text"]
            names = [*await listed(host)]

        assert SEEN in text
        assert ("To show its page" in text) == (SEEN in names) == ("mode" in expose)
