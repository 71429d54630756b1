"""``servers``, ``tools`` and ``index``: show the servers and their tools, or index them.

Servers are shown without their secrets.
"""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click
from rich.text import Text

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import configured, echo_json, json_option, run
from mcp_context_proxy.cli.running import AnswerSource, asking
from mcp_context_proxy.cli.terminal import (
    Terminal,
    counted,
    duration,
    marked,
    open_started_proxy,
    results,
)
from mcp_context_proxy.items import Kind, ToolClass
from mcp_context_proxy.protocol.strangers import one_line

if TYPE_CHECKING:
    from mcp_context_proxy.config import Config

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
@asking
@json_option
def servers_command(source: AnswerSource, as_json: bool) -> None:
    """Show the configured servers and their state; where no proxy runs, they are started once."""
    proxy = source.running
    found = run(_collect_servers, source.config) if proxy is None else proxy.get("/servers")["servers"]
    if as_json:
        echo_json({"servers": found})
    else:
        _show_servers(results(), found)


async def _collect_servers(config: Config) -> list[dict[str, Any]]:
    from mcp_context_proxy import app
    from mcp_context_proxy.web.inventory import all_servers

    async with app.open_proxy(config) as proxy:
        seconds = await terminal.settle(proxy)
        found = all_servers(proxy)
        for facts in found:
            if facts["name"] in seconds:
                facts["start_ms"] = round(seconds[facts["name"]] * 1000)
        return found


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
            for line in (*facts.get("stderr", ()), *marked(facts.get("stdout", ()))):
                console.prose(Text(f"| {line}", style="dim"), 2, hanging=2)
        if found := facts.get("findings"):
            console.say()
            remarks = f"{counted(len(found), 'remark')} on its definitions: see mcp-context-proxy check"
            console.prose(Text(f"{facts['name']}: {remarks}", style="yellow"), hanging=2)


CLASS_STYLES: Final = {ToolClass.READ: "dim", ToolClass.WRITE: "", ToolClass.DESTRUCTIVE: "red"}
"""Colours of the danger classes."""


@click.command("tools")
@asking
@json_option
@click.option("--related", metavar="NAME", help="List only the items that are similar to this tool.")
def tools_command(source: AnswerSource, as_json: bool, related: str | None) -> None:
    """List all tools behind the proxy, under the names that hosts see. Token counts are estimates."""
    data = _tools(source) if related is None else _similar(source, related)
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


def _similar(source: AnswerSource, name: str) -> dict[str, Any]:
    if source.running is not None:
        found: dict[str, Any] = source.running.get(f"/tools/{quote(name, safe='')}/related")
        return found
    return {"name": name, "related": run(_related, source.config, name)}


async def _related(config: Config, name: str) -> list[dict[str, Any]]:
    async with open_started_proxy(config) as proxy:
        return [
            {"type": item.type, "name": item.name, "server": item.server, "cosine": item.score}
            for item in await proxy.contexts.related(Kind.TOOL, name)
        ]


def _tools(source: AnswerSource) -> dict[str, Any]:
    if source.running is not None:
        found: dict[str, Any] = source.running.get("/tools")
        return found
    return run(_collect_tools, source.config)


async def _collect_tools(config: Config) -> dict[str, Any]:
    from mcp_context_proxy.embedding.embeddings import TokenCounter
    from mcp_context_proxy.web.inventory import all_tools

    async with open_started_proxy(config, indexed=False) as proxy:
        return all_tools(proxy, TokenCounter())


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
    import anyio.to_thread

    from mcp_context_proxy import app
    from mcp_context_proxy.web.inventory import failures

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
            "store": proxy.store.place,
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
