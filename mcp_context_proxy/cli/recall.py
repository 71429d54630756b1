"""``recall``: what agents searched, called and said that is like a query; no server is started."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from mcp_context_proxy.cli.interactions import moment, opened_memory, opened_store, say_where_off
from mcp_context_proxy.cli.options import config_option, echo_json, load_config
from mcp_context_proxy.cli.terminal import Terminal, counted, one_line, results

if TYPE_CHECKING:
    from mcp_context_proxy.interactions.interaction import Recall

MOST: Final = 1000
"""Interactions that may be asked for; a person reads tens."""


INDENT: Final = 6
"""Under a score."""


@click.command("recall")
@config_option
@click.argument("query")
@click.option("--agent", help="Only what this agent did.  [default: all agents]")
@click.option("--type", "kind", help="Only this type: search, call, message, ...")
@click.option("--top-k", type=click.IntRange(1, MOST), default=10, show_default=True, help="How many.")
@click.option(
    "--decay",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.95,
    show_default=True,
    help="What is left of a score after a day.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    config_path: Path | None,
    query: str,
    agent: str | None,
    kind: str | None,
    top_k: int,
    decay: float,
    as_json: bool,
) -> None:
    """Find what agents searched, called and said that is like QUERY."""
    from mcp_context_proxy.embedding import LazyModel
    from mcp_context_proxy.embedding.opening import open_model
    from mcp_context_proxy.server.recall import as_data

    if not query.strip():
        raise click.UsageError("QUERY is empty: say what it was about")
    config = load_config(ctx, config_path)
    model = LazyModel(partial(open_model, config))
    with opened_store(config) as store:
        try:
            memory = opened_memory(config, store, model)
            found = memory.semantic_search_interactions(query, agent, top_k, decay, kind)
        finally:
            model.close()
    if as_json:
        echo_json({"query": query, **as_data(found)})
        return
    console = results()
    say_where_off(console, config)
    _show(console, query, found)


def _show(console: Terminal, query: str, found: Recall) -> None:
    if found.note is not None:
        console.prose(Text(f"Note: {found.note}", style="yellow"))
    if not found.results:
        console.say(f'Nothing like "{one_line(query)}" among {counted(found.known, "interaction")}.')
    for one in found.results:
        interaction = one.interaction
        score = "-" if one.score is None else f"{one.score:.2f}"
        facts = f"{interaction.interaction_type} of {interaction.agent_name}, {moment(interaction.time)}"
        number = Text(f"  #{interaction.id}", style="dim")
        console.say(Text(f"{score:>4}", style="bold"), f"  {one_line(facts)}", number)
        console.prose(one_line(interaction.content), indent=INDENT)
