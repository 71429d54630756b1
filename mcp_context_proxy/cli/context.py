"""``context``: the rules, references and tools for a query, as text that fits into a conversation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mcp_context_proxy.cli import progress
from mcp_context_proxy.cli.options import config_option, echo_json, load_config
from mcp_context_proxy.cli.running import run
from mcp_context_proxy.cli.server_facts import failure
from mcp_context_proxy.cli.terminal import messages
from mcp_context_proxy.config import Config

if TYPE_CHECKING:
    from mcp_context_proxy.context.request import RequestContext


@click.command("context")
@config_option
@click.argument("query")
@click.option("--max-tokens", type=click.IntRange(1), help="What it may cost.  [default: as configured]")
@click.option("--json", "as_json", is_flag=True, help="The request context as one JSON object.")
@click.pass_context
def command(
    ctx: click.Context, config_path: Path | None, query: str, max_tokens: int | None, as_json: bool
) -> None:
    """Print the rules, references and tools for QUERY.

    With - for QUERY it is read from the standard input: as text, or as the JSON object with a `prompt` that
    hosts give their prompt hooks.
    """
    if query == "-":
        query = _prompt(sys.stdin.read())
    if not query.strip():
        raise click.UsageError("QUERY is empty: say in plain words what you want to do")
    context, text = run(_build, load_config(ctx, config_path), query, max_tokens)
    if as_json:
        from mcp_context_proxy.context.request import as_data

        echo_json(as_data(context))
    elif text:
        click.echo(text)


def _prompt(given: str) -> str:
    """What the person wrote, of what a hook is given."""
    try:
        hook = json.loads(given)
    except ValueError:
        return given
    prompt = hook.get("prompt") if isinstance(hook, dict) else None
    return prompt if isinstance(prompt, str) else given


async def _build(config: Config, query: str, max_tokens: int | None) -> tuple[RequestContext, str]:
    from mcp_context_proxy import app
    from mcp_context_proxy.context.options import Overrides
    from mcp_context_proxy.server.context_text import as_text

    console = messages()
    async with app.open_proxy(config) as proxy:
        await progress.settle(proxy, console)
        for name, client in proxy.fleet.clients.items():
            if cause := failure(client):
                console.say(f"server {name} has failed, its tools are unknown: {cause}")
        await progress.index(proxy, console)
        selected = await proxy.contexts.select(query, overrides=Overrides(max_tokens=max_tokens))
        return selected.context, as_text(selected.context, selected.snapshot)
