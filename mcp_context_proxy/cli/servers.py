"""``servers``: how the configured servers are doing. Started once for the look; never their secrets.

``tools``: everything there is, under the names hosts see, with what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import config_option, echo_json, load_config, run
from mcp_context_proxy.cli.terminal import (
    Terminal,
    address,
    counted,
    failure,
    findings,
    last_output,
    marked,
    messages,
    one_line,
    results,
    strays,
)
from mcp_context_proxy.config import Config, ServerConfig
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.items import Kind, Tool
from mcp_context_proxy.retrieval.item_metadata import described

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy


STYLES: Final = {"ready": "green", "asleep": "cyan", "failed": "bold red", "disabled": "dim"}

ADDRESS_CELLS: Final = 40
"""With fewer, one cannot tell which server a cut command line or URL is."""

HEADINGS: Final = ("Server", "State", "Era", "Protocol", "Tools", "Resources", "Prompts", "Start", "Where")


@click.command("servers")
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def servers_command(ctx: click.Context, config_path: Path | None, as_json: bool) -> None:
    """Show the configured servers and how they are doing."""
    config = load_config(ctx, config_path)
    servers = run(_collect_servers, config)
    if as_json:
        echo_json({"servers": servers})
        return
    _show_servers(results(), servers)


async def _collect_servers(config: Config) -> list[dict[str, Any]]:
    from mcp_context_proxy import app

    async with app.open_proxy(config) as proxy:
        seconds = await terminal.settle(proxy, messages())
        clients = proxy.fleet.clients
        found = list(findings(proxy))
        return [
            _facts(clients[name], seconds[name], [message for server, message in found if server == name])
            if name in clients
            else _disabled(server)
            for name, server in config.servers.items()
        ]


def _disabled(config: ServerConfig) -> dict[str, Any]:
    return {"name": config.name, "state": "disabled", "address": address(config)}


def _facts(client: DownstreamClient, seconds: float, found: list[str]) -> dict[str, Any]:
    introduction, listing = client.introduction, client.listing
    failed = bool(client.cause) or introduction is None
    facts: dict[str, Any] = {
        "name": client.name,
        "state": "failed" if failed else "asleep" if client.state is ServerState.ASLEEP else "ready",
        "address": address(client.config),
        "start_ms": round(seconds * 1000),
        "findings": found,
    }
    if introduction is not None:
        facts |= {
            "era": str(introduction.era),
            "protocol": introduction.version,
            "server_name": one_line(str(introduction.server_info.get("name", ""))),
            "server_version": one_line(str(introduction.server_info.get("version", ""))),
            "tools": len(listing.tools),
            "resources": len(listing.resources) + len(listing.templates),
            "prompts": len(listing.prompts),
        }
    if failed:
        facts |= {"cause": failure(client), "stderr": last_output(client), "stdout": strays(client)}
    return facts


def _show_servers(console: Terminal, servers: list[dict[str, Any]]) -> None:
    if not servers:
        console.say("No servers are configured.")
        return
    heading = [Text(title, style="bold") for title in HEADINGS]
    console.columns([heading, *map(_server_row, servers)], right=(4, 5, 6, 7), useful=ADDRESS_CELLS)
    for facts in servers:
        if facts["state"] == "failed":
            console.say()
            console.prose(Text(f"{facts['name']}: {facts['cause']}", style="red"), hanging=2)
            for line in (*facts["stderr"], *marked(facts["stdout"])):
                console.prose(Text(f"| {line}", style="dim"), 2, hanging=2)
        if found := facts.get("findings"):
            console.say()
            told = f"{counted(len(found), 'remark')} on what it lists: mcp-context-proxy check tells"
            console.prose(Text(f"{facts['name']}: {told}", style="yellow"), hanging=2)


def _server_row(facts: dict[str, Any]) -> list[Text]:
    def number(key: str, unit: str = "") -> str:
        return f"{facts[key]:,}{unit}" if key in facts else "-"

    return [
        Text(facts["name"], style="cyan"),
        Text(facts["state"], style=STYLES[facts["state"]]),
        Text(facts.get("era", "-")),
        Text(facts.get("protocol", "-")),
        *map(Text, (number("tools"), number("resources"), number("prompts"), number("start_ms", " ms"))),
        Text(facts["address"], style="dim"),
    ]


@click.command("tools")
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, with full definitions.")
@click.option("--related", metavar="NAME", help="Only what is near in meaning to this tool.")
@click.pass_context
def tools_command(ctx: click.Context, config_path: Path | None, as_json: bool, related: str | None) -> None:
    """List every tool behind the proxy, under the name hosts see. Tokens are estimates."""
    if related is not None:
        near = run(_related, load_config(ctx, config_path), related)
        if as_json:
            echo_json({"name": related, "related": near})
        else:
            _show_related(results(), related, near)
        return
    data = run(_collect_tools, load_config(ctx, config_path))
    if as_json:
        echo_json(data)
        return
    _show_tools(results(), data)


async def _collect_tools(config: Config) -> dict[str, Any]:
    from mcp_context_proxy import app

    console = messages()
    async with app.open_proxy(config) as proxy:
        await terminal.settle(proxy, console)
        failed = {name: cause for name, client in proxy.fleet.clients.items() if (cause := failure(client))}
        for name, cause in failed.items():
            console.say(Text(f"server {name} has failed, its tools are unknown: {cause}", style="yellow"))
        return {**_data(proxy), "failed": [{"server": name, "cause": failed[name]} for name in failed]}


async def _related(config: Config, name: str) -> list[dict[str, Any]]:
    from mcp_context_proxy import app

    console = messages()
    async with app.open_proxy(config) as proxy:
        await terminal.settle(proxy, console)
        await terminal.index(proxy, console)
        return [
            {"type": item.type, "name": item.name, "server": item.server, "cosine": item.score}
            for item in await proxy.contexts.related(Kind.TOOL, name)
        ]


def _show_related(console: Terminal, name: str, related: list[dict[str, Any]]) -> None:
    if not related:
        console.say(f"Nothing is near to {name}.")
    rows = [(f"{one['cosine']:.2f}", str(one["type"]), Text(one["name"], style="cyan")) for one in related]
    console.columns(rows, indent=2, right=(0,))


def _data(proxy: Proxy) -> dict[str, Any]:
    from mcp_context_proxy.embedding.tokens import TokenCounter

    count = TokenCounter().count
    snapshot = proxy.catalog.snapshot
    # By server in the order of the configuration, then by name.
    order = {name: position for position, name in enumerate(proxy.fleet.clients)}
    tools = sorted(snapshot.tools.values(), key=lambda tool: (order[tool.server], tool.exposed_name))
    listed = proxy.tool_list.base_names(snapshot)
    default = proxy.tool_list.definitions(snapshot, listed)
    entries = [_tool(tool, count, proxy.search.working_set.why(tool)) for tool in tools]
    return {
        "tools": entries,
        "total": {"tools": len(tools), "tokens": sum(entry["tokens"] for entry in entries)},
        "default_list": {
            "tools": len(default),
            "tokens": sum(count(bytes(one).decode("utf-8", "replace")) for one in default),
            "whole": proxy.tool_list.lists_all(snapshot),
        },
    }


def _tool(tool: Tool, count: Callable[[str], int], working_set: str | None) -> dict[str, Any]:
    definition = tool_definition(tool)
    return {
        "name": tool.exposed_name,
        "server": tool.server,
        "tool": tool.name,
        "include": str(tool.include),
        "working_set": working_set,
        "tokens": count(bytes(definition).decode("utf-8", "replace")),
        "description": tool.description,
        **described(tool),
        "definition": definition,
    }


def _show_tools(console: Terminal, data: dict[str, Any]) -> None:
    for server, group in groupby(data["tools"], key=lambda tool: tool["server"]):
        tools = list(group)
        tokens = sum(tool["tokens"] for tool in tools)
        console.say(
            Text(server, style="bold"),
            Text(f"  {counted(len(tools), 'tool')}, {tokens:,} tokens", style="dim"),
        )
        console.columns([_tool_row(tool) for tool in tools], indent=2, right=(2,))
        console.say()
    _show_working_set(console, data["tools"])
    _show_totals(console, data)


def _show_working_set(console: Terminal, tools: list[dict[str, Any]]) -> None:
    """Which tools are in the default list because they are used again and again, and how often that is."""
    chosen = [tool for tool in tools if tool["working_set"] is not None]
    if chosen:
        console.say(Text("Working set", style="bold"), Text("  in the default list", style="dim"))
        rows = [(Text(tool["name"], style="cyan"), Text(tool["working_set"], style="dim")) for tool in chosen]
        console.columns(rows, indent=2)
        console.say()


def _tool_row(tool: dict[str, Any]) -> tuple[Text, str, str, Text]:
    return (
        Text(tool["name"], style="cyan"),
        tool["include"],
        str(tool["tokens"]),
        Text(one_line(tool["description"]), style="dim"),
    )


def _show_totals(console: Terminal, data: dict[str, Any]) -> None:
    total, default = data["total"], data["default_list"]
    if not total["tools"]:
        console.say("There are no tools.")
    rows = [
        ("Full list", counted(total["tools"], "tool"), f"{total['tokens']:,} tokens"),
        ("Default list", counted(default["tools"], "tool"), f"{default['tokens']:,} tokens"),
    ]
    console.columns(rows, right=(1, 2))
    if default["whole"]:
        console.prose("All tools are listed: the catalog is small, or [expose] mode is all.")
    console.prose(Text("Tokens are estimates, by a tokenizer (WordPiece).", style="dim"))
