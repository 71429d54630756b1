"""``servers``, ``tools`` and ``index``: start the configured servers, and show or index their items.

Servers are shown without their secrets.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import groupby
from typing import Any, Final

import anyio.to_thread
import click
from msgspec import Raw
from rich.text import Text

from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import configured, echo_json, json_option, run
from mcp_context_proxy.cli.terminal import (
    Terminal,
    counted,
    duration,
    failures,
    findings,
    marked,
    open_started_proxy,
    results,
)
from mcp_context_proxy.config import Config, ServerConfig
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.facts import address, failure, last_output, strays, working_folder
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.items import Kind, ToolClass
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, one_line
from mcp_context_proxy.retrieval.item_metadata import described

STYLES: Final = {
    "ready": "green",
    "asleep": "cyan",
    "failed": "bold red",
    "off": "bold red",
    "disabled": "dim",
}

ADDRESS_CELLS: Final = 40
"""With fewer, a cut command line or URL does not show which server it is."""

HEADINGS: Final = (
    *("Server", "State", "Era", "Protocol", "Tools", "Resources", "Prompts", "Start", "Command or URL"),
)


@click.command("servers")
@configured
@json_option
def servers_command(config: Config, as_json: bool) -> None:
    """Start the configured servers once and show their state."""
    servers = run(_collect_servers, config)
    if as_json:
        echo_json({"servers": servers})
    else:
        _show_servers(results(), servers)


async def _collect_servers(config: Config) -> list[dict[str, Any]]:
    from mcp_context_proxy import app

    async with app.open_proxy(config) as proxy:
        seconds = await terminal.settle(proxy)
        clients, found = proxy.fleet.clients, list(findings(proxy))
        turned_off = Counter(tool.server for tool in proxy.catalog.snapshot.turned_off.values())
        servers = [
            _facts(
                clients[name],
                seconds[name],
                [message for one, message in found if one == name],
                turned_off[name],
            )
            if name in clients
            else {"name": name, "state": "disabled", "address": address(server), **_folder(server)}
            for name, server in config.servers.items()
        ]
        off = [
            {"name": name, "state": "off", "address": "", "cause": str(why), "stderr": (), "stdout": ()}
            for name, why in config.off.items()
        ]
        return [*servers, *off]


def _folder(config: ServerConfig) -> dict[str, str]:
    return {"folder": folder} if (folder := working_folder(config)) else {}


def _facts(client: DownstreamClient, seconds: float, found: list[str], off: int) -> dict[str, Any]:
    introduction, listing = client.introduction, client.listing
    failed = bool(client.cause) or introduction is None
    facts: dict[str, Any] = {
        "name": client.name,
        "state": "failed" if failed else "asleep" if client.state is ServerState.ASLEEP else "ready",
        "address": address(client.config),
        **_folder(client.config),
        "start_ms": round(seconds * 1000),
        "findings": found,
    }
    if introduction is not None:
        facts |= {
            "era": str(introduction.era),
            "protocol": introduction.version,
            "server_name": one_line(str(introduction.server_info.get("name", "")), NAME_CHARACTERS),
            "server_version": one_line(str(introduction.server_info.get("version", "")), NAME_CHARACTERS),
            "tools": len(listing.tools),
            "turned_off": off,
            "resources": len(listing.resources) + len(listing.templates),
            "prompts": len(listing.prompts),
        }
    if failed:
        facts |= {"cause": failure(client), "stderr": last_output(client), "stdout": strays(client)}
    return facts


def _show_servers(console: Terminal, servers: list[dict[str, Any]]) -> None:
    if not servers:
        console.say("No server is configured.")
        return
    rows = [[Text(title, style="bold") for title in HEADINGS]]
    for facts in servers:
        numbers = [f"{facts[key]:,}" if key in facts else "-" for key in ("tools", "resources", "prompts")]
        plain = [facts.get("era", "-"), facts.get("protocol", "-"), *numbers, duration(facts.get("start_ms"))]
        name, state = Text(facts["name"], style="cyan"), Text(facts["state"], style=STYLES[facts["state"]])
        rows.append([name, state, *map(Text, plain), Text(facts["address"], style="dim")])
    console.columns(rows, right=(4, 5, 6, 7), useful=ADDRESS_CELLS)
    for facts in servers:
        if "cause" in facts:
            console.say()
            console.prose(Text(f"{facts['name']}: {facts['cause']}", style="red"), hanging=2)
            for line in (*facts["stderr"], *marked(facts["stdout"])):
                console.prose(Text(f"| {line}", style="dim"), 2, hanging=2)
        if found := facts.get("findings"):
            console.say()
            remarks = f"{counted(len(found), 'remark')} on its definitions: see mcp-context-proxy check"
            console.prose(Text(f"{facts['name']}: {remarks}", style="yellow"), hanging=2)


CLASS_STYLES: Final = {ToolClass.READ: "dim", ToolClass.WRITE: "", ToolClass.DESTRUCTIVE: "red"}
"""Colours of the danger classes."""


@click.command("tools")
@configured
@json_option
@click.option("--related", metavar="NAME", help="List only the items that are similar to this tool.")
def tools_command(config: Config, as_json: bool, related: str | None) -> None:
    """List all tools behind the proxy, under the names that hosts see. Token counts are estimates."""
    if related is not None:
        data: dict[str, Any] = {"name": related, "related": run(_related, config, related)}
    else:
        data = run(_collect_tools, config)
    if as_json:
        echo_json(data)
    elif related is not None:
        if not data["related"]:
            results().say(f"Nothing is similar to {related}.")
        rows = [
            (f"{one['cosine']:.2f}", str(one["type"]), Text(one["name"], style="cyan"))
            for one in data["related"]
        ]
        results().columns(rows, indent=2, right=(0,))
    else:
        _show_tools(results(), data)


async def _related(config: Config, name: str) -> list[dict[str, Any]]:
    async with open_started_proxy(config) as proxy:
        return [
            {"type": item.type, "name": item.name, "server": item.server, "cosine": item.score}
            for item in await proxy.contexts.related(Kind.TOOL, name)
        ]


async def _collect_tools(config: Config) -> dict[str, Any]:
    from mcp_context_proxy.embedding.model import TokenCounter

    counter = TokenCounter()

    def tokens(definition: Raw) -> int:
        return counter.count(bytes(definition).decode("utf-8", "replace"))

    async with open_started_proxy(config, indexed=False) as proxy:
        snapshot = proxy.catalog.snapshot
        # By server in the order of the configuration, then by name.
        order = {name: position for position, name in enumerate(proxy.fleet.clients)}
        entries = []
        for tool in sorted(snapshot.tools.values(), key=lambda tool: (order[tool.server], tool.exposed_name)):
            definition = tool_definition(tool)
            entries.append(
                {
                    "name": tool.exposed_name,
                    "server": tool.server,
                    "tool": tool.name,
                    "include": str(tool.include),
                    "working_set": proxy.search.working_set.why(tool),
                    "tokens": tokens(definition),
                    "description": tool.description,
                    **described(tool),
                    "definition": definition,
                }
            )
        default = proxy.tool_list.definitions(snapshot, proxy.tool_list.base_names(snapshot))
        return {
            "tools": entries,
            "turned_off": [
                {"name": tool.exposed_name, "server": tool.server, "tool": tool.name, "reason": tool.reason}
                for tool in sorted(snapshot.turned_off.values(), key=lambda tool: tool.exposed_name)
            ],
            "total": {"tools": len(entries), "tokens": sum(entry["tokens"] for entry in entries)},
            "default_list": {
                "tools": len(default),
                "tokens": sum(map(tokens, default)),
                "whole": proxy.tool_list.lists_all(snapshot),
            },
            "failed": [{"server": name, "cause": cause} for name, cause in failures(proxy).items()],
        }


def _show_tools(console: Terminal, data: dict[str, Any]) -> None:
    for server, group in groupby(data["tools"], key=lambda tool: tool["server"]):
        tools = list(group)
        facts = f"  {counted(len(tools), 'tool')}, {sum(tool['tokens'] for tool in tools):,} tokens"
        console.say(Text(server, style="bold"), Text(facts, style="dim"))
        rows = [
            (
                Text(tool["name"], style="cyan"),
                tool["include"],
                Text(tool["danger"], style=CLASS_STYLES[tool["danger"]]),
                str(tool["tokens"]),
                Text(one_line(tool["description"]), style="dim"),
            )
            for tool in tools
        ]
        console.columns(rows, indent=2, right=(3,))
        console.say()
    if chosen := [tool for tool in data["tools"] if tool["working_set"] is not None]:
        console.say(Text("Working set", style="bold"), Text("  in the default list", style="dim"))
        console.columns(
            [(Text(tool["name"], style="cyan"), Text(tool["working_set"], style="dim")) for tool in chosen],
            indent=2,
        )
        console.say()
    total, default = data["total"], data["default_list"]
    if not total["tools"]:
        console.say("There are no tools.")
    sizes = [
        ("Full list", counted(total["tools"], "tool"), f"{total['tokens']:,} tokens"),
        ("Default list", counted(default["tools"], "tool"), f"{default['tokens']:,} tokens"),
    ]
    console.columns(sizes, right=(1, 2))
    if off := len(data["turned_off"]):
        verb = "is" if off == 1 else "are"
        console.prose(
            f"{counted(off, 'tool')} {verb} turned off: mcp-context-proxy check shows by which line."
        )
    if default["whole"]:
        console.prose("All tools are listed, because the catalog is small or [expose] mode is all.")
    console.note("Token counts are estimates (WordPiece tokenizer).", style="dim")


@click.command("index")
@configured
@click.option("--rebuild", is_flag=True, help="Forget all vectors in the store first.")
@json_option
def index_command(config: Config, rebuild: bool, as_json: bool) -> None:
    """Index all tools, rules and references, so that the first search does not have to wait."""
    report = run(_index, config, rebuild)
    if as_json:
        echo_json(report)
    else:
        _show_index(results(), report)
    if report["model_error"] is not None or report["failed"]:
        raise click.exceptions.Exit(1)


async def _index(config: Config, rebuild: bool) -> dict[str, Any]:
    from mcp_context_proxy import app

    async with app.open_proxy(config) as proxy:
        await terminal.settle(proxy)
        began = time.perf_counter()
        if rebuild:
            await anyio.to_thread.run_sync(proxy.store.vectors.clear)
        await terminal.index(proxy)
        snapshot, error = proxy.catalog.snapshot, proxy.search.model.error
        return {
            "tools": len(snapshot.tools),
            "documents": len(snapshot.documents),
            "seconds": time.perf_counter() - began,
            "store": None if proxy.store.path is None else str(proxy.store.path),
            "model_error": None if error is None else str(error),
            "failed": failures(proxy),
        }


def _show_index(console: Terminal, report: dict[str, Any]) -> None:
    for name, cause in report["failed"].items():
        console.note(f"Server {name} has failed and was not indexed: {cause}")
    if report["model_error"] is not None:
        console.note(f"There are no vectors, so search uses words alone: {report['model_error']}")
    items = f"{counted(report['tools'], 'tool')} and {counted(report['documents'], 'document')}"
    console.say(f"Indexed {items} in {report['seconds']:.1f} s.")
    if report["model_error"] is None:
        kept = f"Kept in {report['store']}" if report["store"] else "Nothing is kept: there is no store."
        console.note(kept, style="dim")
