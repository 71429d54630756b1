"""``context``, ``requests`` and ``explain``: show the selection for a query, past ones, and reasons.

``requests`` reads the store; the other two start the servers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import anyio
import click
from rich.text import Text

from mcp_context_proxy.cli.options import (
    WholeNumber,
    configured,
    echo_json,
    expect_words,
    json_option,
    open_configured_store,
    query_argument,
    run,
    shown,
    terms_data,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, moment, open_started_proxy, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol.strangers import one_line

if TYPE_CHECKING:
    from mcp_context_proxy.context.engine import Explanation
    from mcp_context_proxy.context.records import ContextItem, RequestContext


GIVEN: Final[Mapping[str, str]] = {
    "whole": "given whole to a model",
    "outline": "given to a model as an outline",
    "instructions": "given to a model at the start of its session",
    "earlier": "given to a model earlier in its session",
}
"""Forms in which a model was given a document (`context.records.Delivery`)."""


@click.command("context")
@configured
@click.argument("query")
@click.option("--max-tokens", type=WholeNumber(1), help="Budget for all of it.  [default: as configured]")
@json_option
def context_command(config: Config, query: str, max_tokens: int | None, as_json: bool) -> None:
    """Print the rules, references and tools for QUERY.

    With - for QUERY it is read from the standard input: as text, or as the JSON object with a `prompt` that
    hosts give their prompt hooks.
    """
    if query == "-":
        query = _prompt(sys.stdin.read())
    query = expect_words(query)
    context, text = run(_build, config, query, max_tokens)
    if as_json:
        from mcp_context_proxy.context.records import as_data

        echo_json(as_data(context))
    elif text:
        click.echo(shown(text))


def _prompt(given: str) -> str:
    """Return the prompt out of a hook's JSON, or the text itself."""
    try:
        hook = json.loads(given)
    except ValueError:
        return given
    prompt = hook.get("prompt") if isinstance(hook, dict) else None
    return prompt if isinstance(prompt, str) else given


async def _build(config: Config, query: str, max_tokens: int | None) -> tuple[RequestContext, str]:
    from mcp_context_proxy.context.options import Overrides
    from mcp_context_proxy.server.rendering import context_text

    async with open_started_proxy(config) as proxy:
        answer = await proxy.contexts.select(
            query, overrides=Overrides(max_tokens=max_tokens), deliver="whole"
        )
        return answer.context, context_text(answer.context, answer.found.snapshot)


@click.command("requests")
@configured
@click.argument("request_id", metavar="[ID]", required=False)
@click.option("--session", help="Only those of this session.")
@click.option(
    "--limit", type=WholeNumber(1), default=20, show_default=True, help="Number of latest requests."
)
@json_option
def requests_command(
    config: Config, request_id: str | None, session: str | None, limit: int, as_json: bool
) -> None:
    """List the latest requests, or show what was chosen for the one with ID, how and why."""
    from mcp_context_proxy.context.records import RequestRecords, as_data

    console = results()
    with open_configured_store(config) as store:
        records = RequestRecords(config.limits, store.requests)
        if request_id is None:
            found = anyio.run(records.latest, limit, session)
            if as_json:
                echo_json({"requests": [as_data(one) for one in found]})
            else:
                _show_all(console, found)
            return
        context = anyio.run(records.get, request_id)
    if context is None:
        raise click.ClickException(f"there is no request {request_id!r}, or it was forgotten")
    if as_json:
        echo_json(as_data(context))
    else:
        _show_one(console, context)


def _show_all(console: Terminal, found: Sequence[RequestContext]) -> None:
    if not found:
        console.say("No request is remembered.")
    rows = [
        (
            Text(one.id, style="cyan"),
            moment(one.time),
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
    facts = [moment(context.time), context.origin, f"about {context.tokens:,} tokens"]
    if context.session is not None:
        facts.append(f"session {context.session}")
    console.say(Text(", ".join(facts), style="dim"))
    if context.read_as is not None:
        console.prose(Text(f"Read as: {one_line(context.read_as)}", style="dim"), hanging=9)
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
            Text(item.why if item.delivered is None else f"{item.why}; {GIVEN[item.delivered]}", style="dim"),
        )
        for item in items
    ]
    console.columns(rows, indent=2, right=(0, 4))


@click.command("explain")
@configured
@query_argument
@click.argument("name", metavar="TOOL")
@click.option("--server", help="Server of the tool, if several have one of that name.")
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in Kind]),
    default=Kind.TOOL.value,
    show_default=True,
    help="Kind of the item.",
)
@json_option
def explain_command(
    config: Config, query: str, name: str, server: str | None, kind: str, as_json: bool
) -> None:
    """Explain why TOOL is chosen for QUERY or not: its rank, each part of its score, its mode, the budget."""
    explained = run(_explain, config, query, Kind(kind), name, server)
    if as_json:
        data = asdict(explained)
        if explained.score is not None:
            data["score"]["terms"] = terms_data(explained.score.terms)
        echo_json(data)
    else:
        _show(results(), explained)


async def _explain(config: Config, query: str, kind: Kind, name: str, server: str | None) -> Explanation:
    async with open_started_proxy(config) as proxy:
        return await proxy.contexts.explain(query, kind, name, server)


def _show(console: Terminal, explained: Explanation) -> None:
    chosen = "chosen" if explained.selected is not None else "not chosen"
    console.say(Text(explained.name, style="bold cyan"), f" is {chosen}: {explained.reason}")
    options = explained.options
    rows = [("mode", f"{explained.include}, as configured")]
    if explained.danger is not None:
        rows.append(("danger", explained.danger))
    if explained.read_as is not None:
        rows.append(("query, as it was read", one_line(explained.read_as)))
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
    if explained.type is not Kind.TOOL:
        rows.append(
            ("text", "not given to a model" if explained.delivered is None else GIVEN[explained.delivered])
        )
    width = max(len(label) for label, _ in rows) + 2
    for label, value in rows:
        console.prose(f"{label:<{width}}{value}", indent=2, hanging=width)
