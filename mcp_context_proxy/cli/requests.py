"""``requests``: what was chosen for earlier requests, as the store has it; no server is started."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
from rich.text import Text

from mcp_context_proxy.cli.options import config_option, echo_json, load_config
from mcp_context_proxy.cli.terminal import Terminal, counted, one_line, results
from mcp_context_proxy.config import Config

if TYPE_CHECKING:
    from mcp_context_proxy.context.request import ContextItem, RequestContext


@click.command("requests")
@config_option
@click.argument("request_id", metavar="[ID]", required=False)
@click.option("--session", help="Only those of this session.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many, the latest.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    config_path: Path | None,
    request_id: str | None,
    session: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the latest requests, or tell what was chosen for the one with ID, how and why."""
    from mcp_context_proxy.context.request import as_data

    found = anyio.run(_read, load_config(ctx, config_path), request_id, session, limit)
    if request_id is not None and not found:
        raise click.ClickException(f"there is no request {request_id!r}, or it was forgotten")
    if as_json:
        echo_json({"requests": [as_data(one) for one in found]} if request_id is None else as_data(found[0]))
    elif request_id is not None:
        _show_one(results(), found[0])
    else:
        _show_all(results(), found)


async def _read(
    config: Config, request_id: str | None, session: str | None, limit: int
) -> Sequence[RequestContext]:
    from mcp_context_proxy import app
    from mcp_context_proxy.context.records import RequestRecords
    from mcp_context_proxy.store import open_store

    with open_store(app.store_location(config)) as store:
        records = RequestRecords(config.limits, store.requests)
        if request_id is None:
            return await records.latest(limit, session)
        found = await records.get(request_id)
        return [] if found is None else [found]


def _show_all(console: Terminal, found: Sequence[RequestContext]) -> None:
    if not found:
        console.say("No request is remembered.")
    rows = [
        (
            Text(one.id, style="cyan"),
            _moment(one.time),
            counted(len(one.items), "item"),
            f"{one.tokens:,} tokens",
            Text(one_line(one.query)),
        )
        for one in found
    ]
    console.columns(rows, right=(2, 3))


def _show_one(console: Terminal, context: RequestContext) -> None:
    from mcp_context_proxy.context.found import said

    console.say(Text(f'"{one_line(context.query)}"', style="bold"))
    facts = [_moment(context.time), context.origin, f"about {context.tokens:,} tokens"]
    if context.session is not None:
        facts.append(f"session {context.session}")
    console.say(Text(", ".join(facts), style="dim"))
    if context.failure is not None:
        console.prose(Text(f"The selection failed: {context.failure}", style="yellow"))
    if context.filters:
        asked = ", ".join(f"{name} {said(value)}" for name, value in context.filters.items())
        console.prose(Text(f"Filters: {one_line(asked)}", style="dim"), hanging=9)
    if context.rerank is not None:
        console.prose(Text(f"Rerank: {one_line(context.rerank.reason)}", style="dim"), hanging=8)
    _show_items(console, "Items", context.items)
    _show_items(console, "Too dear", context.dropped)
    _show_items(console, "Nearest, where nothing fits", context.near_misses)


def _show_items(console: Terminal, title: str, items: Sequence[ContextItem]) -> None:
    if not items:
        return
    console.section(title)
    rows = [
        (
            "-" if item.score is None else f"{item.score:.2f}",
            str(item.include_mode),
            str(item.type),
            Text(item.name, style="cyan"),
            f"{item.tokens:,}",
            Text(item.why, style="dim"),
        )
        for item in items
    ]
    console.columns(rows, indent=2, right=(0, 4))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
