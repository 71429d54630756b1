"""``context``, ``requests`` and ``explain``: show the selection for a query, past ones, and reasons.

``requests`` reads the store; the other two start the servers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click
from rich.text import Text

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import config_option, echo_json, load_config, run
from mcp_context_proxy.cli.terminal import Terminal, counted, failure, messages, one_line, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.items import Kind

if TYPE_CHECKING:
    from mcp_context_proxy.context.engine import Explanation
    from mcp_context_proxy.context.records import ContextItem, RequestContext


@click.command("context")
@config_option
@click.argument("query")
@click.option("--max-tokens", type=click.IntRange(1), help="Budget for all of it.  [default: as configured]")
@click.option("--json", "as_json", is_flag=True, help="The request context as one JSON object.")
@click.pass_context
def context_command(
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
        from mcp_context_proxy.context.records import as_data

        echo_json(as_data(context))
    elif text:
        click.echo(text)


def _prompt(given: str) -> str:
    """Return the prompt out of a hook's JSON, or the text itself."""
    try:
        hook = json.loads(given)
    except ValueError:
        return given
    prompt = hook.get("prompt") if isinstance(hook, dict) else None
    return prompt if isinstance(prompt, str) else given


async def _build(config: Config, query: str, max_tokens: int | None) -> tuple[RequestContext, str]:
    from mcp_context_proxy import app
    from mcp_context_proxy.context.options import Overrides
    from mcp_context_proxy.server.rendering import context_text

    console = messages()
    async with app.open_proxy(config) as proxy:
        await terminal.settle(proxy, console)
        for name, client in proxy.fleet.clients.items():
            if cause := failure(client):
                console.say(f"server {name} has failed, its tools are unknown: {cause}")
        await terminal.index(proxy, console)
        answer = await proxy.contexts.select(query, overrides=Overrides(max_tokens=max_tokens))
        return answer.context, context_text(answer.context, answer.snapshot)


@click.command("requests")
@config_option
@click.argument("request_id", metavar="[ID]", required=False)
@click.option("--session", help="Only those of this session.")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Number of latest requests."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def requests_command(
    ctx: click.Context,
    config_path: Path | None,
    request_id: str | None,
    session: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the latest requests, or show what was chosen for the one with ID, how and why."""
    from mcp_context_proxy.context.records import as_data

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
    from mcp_context_proxy.context.search import filter_text

    console.say(Text(f'"{one_line(context.query)}"', style="bold"))
    facts = [_moment(context.time), context.origin, f"about {context.tokens:,} tokens"]
    if context.session is not None:
        facts.append(f"session {context.session}")
    console.say(Text(", ".join(facts), style="dim"))
    if context.failure is not None:
        console.prose(Text(f"The selection failed: {context.failure}", style="yellow"))
    if context.filters:
        asked = ", ".join(f"{name} {filter_text(value)}" for name, value in context.filters.items())
        console.prose(Text(f"Filters: {one_line(asked)}", style="dim"), hanging=9)
    if context.rerank is not None:
        console.prose(Text(f"Rerank: {one_line(context.rerank.reason)}", style="dim"), hanging=8)
    _show_items(console, "Items", context.items)
    _show_items(console, "Over budget", context.dropped)
    _show_items(console, "Closest, because nothing fits", context.near_misses)


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


@click.command("explain")
@config_option
@click.argument("query")
@click.argument("name", metavar="TOOL")
@click.option("--server", help="Server of the tool, if several have one of that name.")
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in Kind]),
    default=Kind.TOOL.value,
    show_default=True,
    help="Kind of the item.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def explain_command(
    ctx: click.Context,
    config_path: Path | None,
    query: str,
    name: str,
    server: str | None,
    kind: str,
    as_json: bool,
) -> None:
    """Explain why TOOL is chosen for QUERY or not: its rank, each part of its score, its mode, the budget."""
    if not query.strip():
        raise click.UsageError("QUERY is empty: say in plain words what you want to do")
    explained = run(_explain, load_config(ctx, config_path), query, Kind(kind), name, server)
    if as_json:
        echo_json(_data(explained))
        return
    _show(results(), explained)


async def _explain(config: Config, query: str, kind: Kind, name: str, server: str | None) -> Explanation:
    from mcp_context_proxy import app

    console = messages()
    async with app.open_proxy(config) as proxy:
        await terminal.settle(proxy, console)
        await terminal.index(proxy, console)
        return await proxy.contexts.explain(query, kind, name, server)


def _data(explained: Explanation) -> dict[str, Any]:
    from dataclasses import asdict

    data = asdict(explained)
    if explained.score is not None:
        terms = explained.score.terms
        data["score"]["terms"] = [
            {"field": field, "term": term, "added": added} for field, term, added in terms
        ]
    return data


def _show(console: Terminal, explained: Explanation) -> None:
    chosen = "chosen" if explained.selected is not None else "not chosen"
    console.say(Text(explained.name, style="bold cyan"), f" is {chosen}: {explained.reason}")
    options = explained.options
    rows = [("mode", f"{explained.include}, as configured")]
    if explained.selected is not None:
        rows.append(("in the context", f"as {explained.selected}"))
    if (score := explained.score) is not None:
        rows.append(("rank", f"{explained.rank} of {explained.ranked} that have anything in common"))
        rows.append(("score", f"{score.total:.3f}"))
        rows.append(("  similarity", "-" if score.cosine is None else f"{score.cosine:.3f}"))
        rows.append(("  words", f"{score.lexical:.2f}"))
        rows += [(f"    {field}", f"{added:.2f} for {term!r}") for field, term, added in score.terms]
        rows.append(("  bonus for a part of the query", f"{score.need:.3f}"))
    if explained.rerank is not None:
        rows.append(("rerank", explained.rerank))
    always = (
        ""
        if options.include_score is None
        else f", and all with a similarity of {options.include_score:g} or more"
    )
    rows.append(("selected are", f"{options.top_n} of the {options.top_k} closest{always}"))
    budget = "no limit" if explained.max_tokens is None else f"of {explained.max_tokens:,}"
    rows.append(("tokens", f"{explained.tokens:,}, {budget}"))
    width = max(len(label) for label, _ in rows) + 2
    for label, value in rows:
        console.prose(f"{label:<{width}}{value}", indent=2, hanging=width)
