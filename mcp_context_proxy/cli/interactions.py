"""``interactions``, ``recall`` and ``backfill``: the remembered searches, calls and messages of agents.

``interactions`` counts and forgets them, ``recall`` searches them, ``backfill`` embeds those without an
embedding. None of them starts a server.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import (
    config_option,
    echo_json,
    load_config,
    open_configured_store,
    open_group,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, messages, one_line, results
from mcp_context_proxy.config import Config

if TYPE_CHECKING:
    from mcp_context_proxy.interactions.memory import Recall
    from mcp_context_proxy.interactions.recorder import Backfilled


MOST: Final = 1000
"""Limit of the number of results; a person reads tens."""

INDENT: Final = 6
"""Spaces before the text of an interaction, under its score."""


@click.group("interactions", invoke_without_command=True)
@config_option
@click.pass_context
def interactions_command(ctx: click.Context, config_path: Path | None) -> None:
    """Manage the remembered searches, calls and messages of agents.

    Without a subcommand, shows stats. A running proxy with the same store notices a change at once.
    """
    open_group(ctx, config_path, stats)


@interactions_command.command("stats")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def stats(ctx: click.Context, config_path: Path | None, as_json: bool) -> None:
    """Count the interactions by agent and type."""
    from mcp_context_proxy.store import InteractionScope

    config = load_config(ctx, config_path)
    with open_configured_store(config) as store:
        total, kinds = store.interactions.count(InteractionScope()), store.interactions.kinds()
    if as_json:
        data = [
            {"agent_name": agent, "interaction_type": kind, "count": count, "latest": latest}
            for agent, kind, count, latest in kinds
        ]
        echo_json({"enabled": config.interactions.enabled, "interactions": total, "kinds": data})
        return
    console = results()
    console.say(f"{counted(total, 'interaction')}.")
    _note_if_off(console, config)
    if kinds:
        console.say()
        rows = [("count", "type", "latest", "agent")]
        rows += [(f"{count:,}", kind, _moment(at), one_line(agent)) for agent, kind, count, at in kinds]
        console.columns(rows, right=(0,))


@interactions_command.command("forget")
@config_option
@click.option("--agent", help="Forget those of this agent.")
@click.option("--type", "kind", help="Forget those of this type: search, call, message.")
@click.option(
    "--older-than", "days", metavar="DAYS", type=click.FloatRange(0), help="Forget those older than this."
)
@click.option("--id", "interaction", type=click.IntRange(1), help="Forget this single interaction.")
@click.option("--all", "everything", is_flag=True, help="Forget all interactions.")
@click.pass_context
def forget(
    ctx: click.Context,
    config_path: Path | None,
    agent: str | None,
    kind: str | None,
    days: float | None,
    interaction: int | None,
    everything: bool,
) -> None:
    """Forget interactions for good: a single one, or all that match every given option."""
    from mcp_context_proxy.interactions.memory import agent_named
    from mcp_context_proxy.store import InteractionScope

    narrowed = any(each is not None for each in (agent, kind, days))
    if sum((narrowed, interaction is not None, everything)) != 1:
        raise click.UsageError("give --id alone, or --all alone, or any of --agent, --type and --older-than")
    with open_configured_store(load_config(ctx, config_path)) as store:
        if interaction is not None:
            gone = int(store.interactions.forget_one(interaction))
        else:
            before = None if days is None else time.time() - days * 86_400
            whose = None if agent is None else agent_named(agent)
            gone = store.interactions.forget(InteractionScope(whose, kind, before))
    results().say(f"Forgot {counted(gone, 'interaction')}.")


def _note_if_off(console: Terminal, config: Config) -> None:
    if not config.interactions.enabled:
        console.note("Interactions are not recorded: set enabled = true under [interactions] to record them.")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


@click.command("recall")
@config_option
@click.argument("query")
@click.option("--agent", help="Only interactions of this agent.  [default: all agents]")
@click.option("--type", "kind", help="Only interactions of this type: search, call, message, ...")
@click.option("--top-k", type=click.IntRange(1, MOST), default=10, show_default=True, help="Results.")
@click.option(
    "--decay",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.95,
    show_default=True,
    help="Factor of a score for each day of age.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def recall_command(
    ctx: click.Context,
    config_path: Path | None,
    query: str,
    agent: str | None,
    kind: str | None,
    top_k: int,
    decay: float,
    as_json: bool,
) -> None:
    """Find searches, calls and messages of agents that are similar to QUERY."""
    from mcp_context_proxy.app.parts import memory_of
    from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
    from mcp_context_proxy.server.rendering import recall_data

    if not query.strip():
        raise click.UsageError("QUERY is empty: describe the interaction")
    config = load_config(ctx, config_path)
    model = LazyModel(partial(open_model, config))
    with open_configured_store(config) as store:
        try:
            memory = memory_of(config, store, model)
            found = memory.semantic_search_interactions(query, agent, top_k, decay, kind)
        finally:
            model.close()
    if as_json:
        echo_json({"query": query, **recall_data(found)})
        return
    console = results()
    _note_if_off(console, config)
    _show_recalled(console, query, found)


def _show_recalled(console: Terminal, query: str, found: Recall) -> None:
    if found.note is not None:
        console.note(f"Note: {found.note}")
    if not found.results:
        console.say(f'Nothing similar to "{one_line(query)}" among {counted(found.known, "interaction")}.')
    for one in found.results:
        interaction = one.interaction
        score = "-" if one.score is None else f"{one.score:.2f}"
        facts = f"{interaction.interaction_type} of {interaction.agent_name}, {_moment(interaction.time)}"
        number = Text(f"  #{interaction.id}", style="dim")
        console.say(Text(f"{score:>4}", style="bold"), f"  {one_line(facts)}", number)
        console.prose(one_line(interaction.content), indent=INDENT)


@click.command("backfill")
@config_option
@click.option(
    "--batch-size",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Interactions per request.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def backfill_command(ctx: click.Context, config_path: Path | None, batch_size: int, as_json: bool) -> None:
    """Embed the interactions that have no embedding of the current model.

    Each batch is stored at once: after an interruption, the next run continues.
    """
    from mcp_context_proxy.app.parts import memory_of
    from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
    from mcp_context_proxy.interactions.recorder import backfill

    config = load_config(ctx, config_path)
    # Tried each time: nobody waits here, and the failure of one batch is not that of all.
    model = LazyModel(partial(open_model, config), retry_seconds=0)
    model.get()
    with open_configured_store(config) as store:
        try:
            memory = memory_of(config, store, model)
            with terminal.indexing(messages(), "Embedding") as report:
                done = backfill(memory, batch_size, report)
        finally:
            model.close()
    if as_json:
        echo_json(asdict(done))
    else:
        _show_backfill(results(), done)
    if done.failed or done.left:
        ctx.exit(1)


def _show_backfill(console: Terminal, done: Backfilled) -> None:
    console.say(f"Embedded {counted(done.embedded, 'interaction')}.")
    if done.failed:
        console.note(f"{counted(done.failed, 'error')}; the last one: {done.error}")
    if done.left:
        console.note(f"{counted(done.left, 'interaction')} not tried, because the model failed each time.")
