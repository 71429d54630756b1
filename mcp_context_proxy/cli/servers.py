"""``servers``, ``tools`` and ``index``: start the configured servers, and show or index their items.

Servers are shown without their secrets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
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
    failures,
    findings,
    last_output,
    marked,
    messages,
    one_line,
    results,
    strays,
)
from mcp_context_proxy.config import Config
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.items import Kind, Tool
from mcp_context_proxy.retrieval.item_metadata import described

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy


STYLES: Final = {"ready": "green", "asleep": "cyan", "failed": "bold red", "disabled": "dim"}

ADDRESS_CELLS: Final = 40
"""With fewer, a cut command line or URL does not show which server it is."""

HEADINGS: Final = (
    *("Server", "State", "Era", "Protocol", "Tools", "Resources", "Prompts", "Start", "Command or URL"),
)


@click.command("servers")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def servers_command(ctx: click.Context, config_path: Path | None, as_json: bool) -> None:
    """Start the configured servers once and show their state."""
    servers = run(_collect_servers, load_config(ctx, config_path))
    if as_json:
        echo_json({"servers": servers})
        return
    _show_servers(results(), servers)


async def _collect_servers(config: Config) -> list[dict[str, Any]]:
    from mcp_context_proxy import app

    async with app.open_proxy(config) as proxy:
        seconds = await terminal.settle(proxy, messages())
        clients, found = proxy.fleet.clients, list(findings(proxy))
        return [
            _facts(clients[name], seconds[name], [message for one, message in found if one == name])
            if name in clients
            else {"name": name, "state": "disabled", "address": address(server)}
            for name, server in config.servers.items()
        ]


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
        console.say("No server is configured.")
        return
    rows = [[Text(title, style="bold") for title in HEADINGS]]
    for facts in servers:

        def number(key: str, unit: str = "", facts: dict[str, Any] = facts) -> Text:
            return Text(f"{facts[key]:,}{unit}" if key in facts else "-")

        row = [Text(facts["name"], style="cyan"), Text(facts["state"], style=STYLES[facts["state"]])]
        row += [Text(facts.get("era", "-")), Text(facts.get("protocol", "-"))]
        row += [number("tools"), number("resources"), number("prompts"), number("start_ms", " ms")]
        rows.append([*row, Text(facts["address"], style="dim")])
    console.columns(rows, right=(4, 5, 6, 7), useful=ADDRESS_CELLS)
    for facts in servers:
        if facts["state"] == "failed":
            console.say()
            console.prose(Text(f"{facts['name']}: {facts['cause']}", style="red"), hanging=2)
            for line in (*facts["stderr"], *marked(facts["stdout"])):
                console.prose(Text(f"| {line}", style="dim"), 2, hanging=2)
        if found := facts.get("findings"):
            console.say()
            remarks = f"{counted(len(found), 'remark')} on its definitions: see mcp-context-proxy check"
            console.prose(Text(f"{facts['name']}: {remarks}", style="yellow"), hanging=2)


@click.command("tools")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with definitions, on stdout.")
@click.option("--related", metavar="NAME", help="List only the items that are similar to this tool.")
@click.pass_context
def tools_command(ctx: click.Context, config_path: Path | None, as_json: bool, related: str | None) -> None:
    """List all tools behind the proxy, under the names that hosts see. Token counts are estimates."""
    config = load_config(ctx, config_path)
    if related is not None:
        similar = run(_related, config, related)
        if as_json:
            echo_json({"name": related, "related": similar})
        else:
            _show_related(results(), related, similar)
        return
    data = run(_collect_tools, config)
    if as_json:
        echo_json(data)
        return
    _show_tools(results(), data)


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
        console.say(f"Nothing is similar to {name}.")
    rows = [(f"{one['cosine']:.2f}", str(one["type"]), Text(one["name"], style="cyan")) for one in related]
    console.columns(rows, indent=2, right=(0,))


async def _collect_tools(config: Config) -> dict[str, Any]:
    from mcp_context_proxy import app

    console = messages()
    async with app.open_proxy(config) as proxy:
        await terminal.settle(proxy, console)
        failed = failures(proxy)
        for name, cause in failed.items():
            console.say(Text(f"Server {name} has failed, and its tools are unknown: {cause}", style="yellow"))
        return {**_tools_data(proxy), "failed": [{"server": name, "cause": failed[name]} for name in failed]}


def _tools_data(proxy: Proxy) -> dict[str, Any]:
    from mcp_context_proxy.embedding.tokens import TokenCounter

    count = TokenCounter().count
    snapshot = proxy.catalog.snapshot
    # By server in the order of the configuration, then by name.
    order = {name: position for position, name in enumerate(proxy.fleet.clients)}
    tools = sorted(snapshot.tools.values(), key=lambda tool: (order[tool.server], tool.exposed_name))
    listed = proxy.tool_list.base_names(snapshot)
    default = proxy.tool_list.definitions(snapshot, listed)
    entries = [_tool_data(tool, count, proxy.search.working_set.why(tool)) for tool in tools]
    return {
        "tools": entries,
        "total": {"tools": len(tools), "tokens": sum(entry["tokens"] for entry in entries)},
        "default_list": {
            "tools": len(default),
            "tokens": sum(count(bytes(one).decode("utf-8", "replace")) for one in default),
            "whole": proxy.tool_list.lists_all(snapshot),
        },
    }


def _tool_data(tool: Tool, count: Callable[[str], int], working_set: str | None) -> dict[str, Any]:
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
        facts = f"  {counted(len(tools), 'tool')}, {sum(tool['tokens'] for tool in tools):,} tokens"
        console.say(Text(server, style="bold"), Text(facts, style="dim"))
        rows = [
            (
                Text(tool["name"], style="cyan"),
                tool["include"],
                str(tool["tokens"]),
                Text(one_line(tool["description"]), style="dim"),
            )
            for tool in tools
        ]
        console.columns(rows, indent=2, right=(2,))
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
    if default["whole"]:
        console.prose("All tools are listed, because the catalog is small or [expose] mode is all.")
    console.note("Token counts are estimates (WordPiece tokenizer).", style="dim")


@dataclass(frozen=True, slots=True)
class IndexReport:
    """Result of indexing the catalog."""

    tools: int
    documents: int
    seconds: float
    store: str | None
    """The file that keeps the vectors; None if they are gone with this run."""
    model_error: str | None
    """Why there are no vectors."""
    failed: dict[str, str]
    """Servers that could not be started, each with the cause: their tools are not indexed."""


@click.command("index")
@config_option
@click.option("--rebuild", is_flag=True, help="Forget all vectors in the store first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def index_command(ctx: click.Context, config_path: Path | None, rebuild: bool, as_json: bool) -> None:
    """Index all tools, rules and references, so that the first search does not have to wait."""
    report = run(_index, load_config(ctx, config_path), rebuild)
    if as_json:
        echo_json(asdict(report))
    else:
        _show_index(results(), report)
    if report.model_error is not None or report.failed:
        ctx.exit(1)


async def _index(config: Config, rebuild: bool) -> IndexReport:
    from mcp_context_proxy import app

    console = messages()
    async with app.open_proxy(config) as proxy:
        await terminal.settle(proxy, console)
        began = time.perf_counter()
        if rebuild:
            await anyio.to_thread.run_sync(proxy.store.vectors.clear)
        await terminal.index(proxy, console)
        snapshot, error = proxy.catalog.snapshot, proxy.search.model.error
        return IndexReport(
            tools=len(snapshot.tools),
            documents=len(snapshot.documents),
            seconds=time.perf_counter() - began,
            store=None if proxy.store.path is None else str(proxy.store.path),
            model_error=None if error is None else str(error),
            failed=failures(proxy),
        )


def _show_index(console: Terminal, report: IndexReport) -> None:
    for name, cause in report.failed.items():
        console.note(f"Server {name} has failed and was not indexed: {cause}")
    if report.model_error is not None:
        console.note(f"There are no vectors, so search uses words alone: {report.model_error}")
    items = f"{counted(report.tools, 'tool')} and {counted(report.documents, 'document')}"
    console.say(f"Indexed {items} in {report.seconds:.1f} s.")
    if report.model_error is None:
        kept = (
            "Nothing is kept, because there is no store."
            if report.store is None
            else f"Kept in {report.store}"
        )
        console.note(kept, style="dim")
