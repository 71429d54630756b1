"""``tools``: everything there is, under the names hosts see, with what it costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from mcp_context_proxy.catalog.exposed import tool_definition
from mcp_context_proxy.cli import progress
from mcp_context_proxy.cli.options import config_option, echo_json, load_config
from mcp_context_proxy.cli.running import run
from mcp_context_proxy.cli.server_facts import failure
from mcp_context_proxy.cli.terminal import Terminal, counted, messages, one_line, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.items import Kind, Tool
from mcp_context_proxy.retrieval.traits import described

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy


@click.command("tools")
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, with full definitions.")
@click.option("--related", metavar="NAME", help="Only what is near in meaning to this tool.")
@click.pass_context
def command(ctx: click.Context, config_path: Path | None, as_json: bool, related: str | None) -> None:
    """List every tool behind the proxy, under the name hosts see. Tokens are estimates."""
    if related is not None:
        near = run(_related, load_config(ctx, config_path), related)
        if as_json:
            echo_json({"name": related, "related": near})
        else:
            _show_related(results(), related, near)
        return
    data = run(_collect, load_config(ctx, config_path))
    if as_json:
        echo_json(data)
        return
    _show(results(), data)


async def _collect(config: Config) -> dict[str, Any]:
    from mcp_context_proxy import app

    console = messages()
    async with app.open_proxy(config) as proxy:
        await progress.settle(proxy, console)
        failed = {name: cause for name, client in proxy.fleet.clients.items() if (cause := failure(client))}
        for name, cause in failed.items():
            console.say(Text(f"server {name} has failed, its tools are unknown: {cause}", style="yellow"))
        return {**_data(proxy), "failed": [{"server": name, "cause": failed[name]} for name in failed]}


async def _related(config: Config, name: str) -> list[dict[str, Any]]:
    from mcp_context_proxy import app

    console = messages()
    async with app.open_proxy(config) as proxy:
        await progress.settle(proxy, console)
        await progress.index(proxy, console)
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
    entries = [_tool(tool, count, proxy.searching.working_set.why(tool)) for tool in tools]
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


def _show(console: Terminal, data: dict[str, Any]) -> None:
    for server, group in groupby(data["tools"], key=lambda tool: tool["server"]):
        tools = list(group)
        tokens = sum(tool["tokens"] for tool in tools)
        console.say(
            Text(server, style="bold"),
            Text(f"  {counted(len(tools), 'tool')}, {tokens:,} tokens", style="dim"),
        )
        console.columns([_row(tool) for tool in tools], indent=2, right=(2,))
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


def _row(tool: dict[str, Any]) -> tuple[Text, str, str, Text]:
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
