"""``servers``: how the configured servers are doing. Started once for the look; never their secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from mcp_context_proxy.cli import progress
from mcp_context_proxy.cli.options import config_option, echo_json, load_config
from mcp_context_proxy.cli.running import run
from mcp_context_proxy.cli.server_facts import address, failure, findings, last_output, marked, strays
from mcp_context_proxy.cli.terminal import Terminal, counted, messages, one_line, results
from mcp_context_proxy.config import Config, ServerConfig
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.condition import State

STYLES: Final = {"ready": "green", "asleep": "cyan", "failed": "bold red", "disabled": "dim"}

ADDRESS_CELLS: Final = 40
"""With fewer, one cannot tell which server a cut command line or URL is."""

HEADINGS: Final = ("Server", "State", "Era", "Protocol", "Tools", "Resources", "Prompts", "Start", "Where")


@click.command("servers")
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(ctx: click.Context, config_path: Path | None, as_json: bool) -> None:
    """Show the configured servers and how they are doing."""
    config = load_config(ctx, config_path)
    servers = run(_collect, config)
    if as_json:
        echo_json({"servers": servers})
        return
    _show(results(), servers)


async def _collect(config: Config) -> list[dict[str, Any]]:
    from mcp_context_proxy import app

    async with app.open_proxy(config) as proxy:
        seconds = await progress.settle(proxy, messages())
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
        "state": "failed" if failed else "asleep" if client.state is State.ASLEEP else "ready",
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


def _show(console: Terminal, servers: list[dict[str, Any]]) -> None:
    if not servers:
        console.say("No servers are configured.")
        return
    heading = [Text(title, style="bold") for title in HEADINGS]
    console.columns([heading, *map(_row, servers)], right=(4, 5, 6, 7), useful=ADDRESS_CELLS)
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


def _row(facts: dict[str, Any]) -> list[Text]:
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
