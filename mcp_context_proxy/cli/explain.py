"""``explain``: why a tool, rule or reference is chosen for a query, or why it is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from mcp_context_proxy.cli import progress
from mcp_context_proxy.cli.options import config_option, echo_json, load_config
from mcp_context_proxy.cli.running import run
from mcp_context_proxy.cli.terminal import Terminal, messages, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.items import Kind

if TYPE_CHECKING:
    from mcp_context_proxy.context.explanation import Explanation


@click.command("explain")
@config_option
@click.argument("query")
@click.argument("name", metavar="TOOL")
@click.option("--server", help="Of the tool, where several have one of that name.")
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in Kind]),
    default=Kind.TOOL.value,
    show_default=True,
    help="What the name is of.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    config_path: Path | None,
    query: str,
    name: str,
    server: str | None,
    kind: str,
    as_json: bool,
) -> None:
    """Tell why TOOL is chosen for QUERY or not: its rank, each part of its score, its mode, the budget."""
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
        await progress.settle(proxy, console)
        await progress.index(proxy, console)
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
        rows.append(("  meaning", "-" if score.cosine is None else f"{score.cosine:.3f}"))
        rows.append(("  words", f"{score.lexical:.2f}"))
        rows += [(f"    {field}", f"{added:.2f} for {term!r}") for field, term, added in score.terms]
        rows.append(("  a need of its own", f"{score.need:.3f}"))
    if explained.rerank is not None:
        rows.append(("rerank", explained.rerank))
    always = (
        ""
        if options.include_score is None
        else f", and all with a meaning of {options.include_score:g} or more"
    )
    rows.append(("selected are", f"{options.top_n} of the {options.top_k} nearest{always}"))
    budget = "no bound" if explained.max_tokens is None else f"of {explained.max_tokens:,}"
    rows.append(("tokens", f"{explained.tokens:,}, {budget}"))
    width = max(len(label) for label, _ in rows) + 2
    for label, value in rows:
        console.prose(f"{label:<{width}}{value}", indent=2, hanging=width)
