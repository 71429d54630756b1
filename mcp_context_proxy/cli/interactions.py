"""``interactions``, ``recall`` and ``backfill``: the remembered searches, calls and messages of agents.

``interactions`` counts and forgets them, ``recall`` searches them, ``backfill`` embeds those without an
embedding. None of them starts a server.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.text import Text

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import (
    Number,
    WholeNumber,
    config_option,
    configured,
    echo_json,
    json_option,
    open_configured_store,
    open_group,
    query_argument,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, moment, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.protocol.strangers import one_line

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
@configured
@json_option
def stats(config: Config, as_json: bool) -> None:
    """Count the interactions by agent and type."""
    from mcp_context_proxy.store import InteractionScope

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
        rows += [(f"{count:,}", kind, moment(at), one_line(agent)) for agent, kind, count, at in kinds]
        console.columns(rows, right=(0,))


@interactions_command.command("forget")
@configured
@click.option("--agent", help="Forget those of this agent.")
@click.option("--type", "kind", help="Forget those of this type: search, call, message.")
@click.option("--older-than", "days", metavar="DAYS", type=Number(0), help="Forget those older than this.")
@click.option("--id", "interaction", type=WholeNumber(1), help="Forget this single interaction.")
@click.option("--all", "everything", is_flag=True, help="Forget all interactions.")
def forget(
    config: Config,
    agent: str | None,
    kind: str | None,
    days: float | None,
    interaction: int | None,
    everything: bool,
) -> None:
    """Forget one interaction, or all that meet the options, for good."""
    from mcp_context_proxy.interactions.memory import scope_of

    narrowed = any(each is not None for each in (agent, kind, days))
    if sum((narrowed, interaction is not None, everything)) != 1:
        raise click.UsageError("give --id alone, or --all alone, or any of --agent, --type and --older-than")
    with open_configured_store(config) as store:
        if interaction is not None:
            gone = int(store.interactions.forget_one(interaction))
        else:
            before = None if days is None else time.time() - days * 86_400
            gone = store.interactions.forget(scope_of(agent, kind, before))
    results().say(f"Forgot {counted(gone, 'interaction')}.")


def _note_if_off(console: Terminal, config: Config) -> None:
    if not config.interactions.enabled:
        console.note("Interactions are not recorded: set enabled = true under [interactions] to record them.")


@click.command("recall")
@configured
@query_argument
@click.option("--agent", help="Only interactions of this agent.  [default: all agents]")
@click.option("--type", "kind", help="Only interactions of this type: search, call, message, ...")
@click.option("--top-k", type=WholeNumber(1, MOST), default=10, show_default=True, help="Results.")
@click.option(
    "--decay",
    type=Number(most=1, above=0),
    default=0.95,
    show_default=True,
    help="Factor of a score for each day of age.",
)
@json_option
def recall_command(
    config: Config, query: str, agent: str | None, kind: str | None, top_k: int, decay: float, as_json: bool
) -> None:
    """Find searches, calls and messages of agents that are similar to QUERY."""
    from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
    from mcp_context_proxy.interactions.memory import InteractionMemory
    from mcp_context_proxy.server.rendering import recall_data

    with open_configured_store(config) as store, closing(LazyModel(partial(open_model, config))) as model:
        memory = InteractionMemory(model, store.interactions, config)
        found = memory.semantic_search_interactions(query, agent, top_k, decay, kind)
    if as_json:
        echo_json({"query": query, **recall_data(found)})
        return
    console = results()
    _note_if_off(console, config)
    if found.note is not None:
        console.note(f"Note: {found.note}")
    if not found.results:
        console.say(f'Nothing similar to "{one_line(query)}" among {counted(found.known, "interaction")}.')
    for one in found.results:
        interaction = one.interaction
        score = "-" if one.score is None else f"{one.score:.2f}"
        facts = f"{interaction.interaction_type} of {interaction.agent_name}, {moment(interaction.time)}"
        number = Text(f"  #{interaction.id}", style="dim")
        console.say(Text(f"{score:>4}", style="bold"), f"  {one_line(facts)}", number)
        console.prose(one_line(interaction.content), indent=INDENT)


@click.command("backfill")
@configured
@click.option(
    "--batch-size",
    type=WholeNumber(1, 1000),
    default=50,
    show_default=True,
    help="Interactions per request.",
)
@json_option
def backfill_command(config: Config, batch_size: int, as_json: bool) -> None:
    """Embed the interactions that have no embedding of the current model.

    Each batch is stored at once: after an interruption, the next run continues.
    """
    from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
    from mcp_context_proxy.interactions.memory import InteractionMemory
    from mcp_context_proxy.interactions.recorder import backfill

    # Tried each time: nobody waits here, and the failure of one batch is not that of all.
    model = LazyModel(partial(open_model, config), retry_seconds=0)
    model.get()
    with open_configured_store(config) as store, closing(model), terminal.indexing("Embedding") as report:
        done = backfill(InteractionMemory(model, store.interactions, config), batch_size, report)
    if as_json:
        echo_json(asdict(done))
    else:
        console = results()
        console.say(f"Embedded {counted(done.embedded, 'interaction')}.")
        if done.failed:
            console.note(f"{counted(done.failed, 'error')}; the last one: {done.error}")
        if done.left:
            console.note(
                f"{counted(done.left, 'interaction')} not tried, because the model failed each time."
            )
    if done.failed or done.left:
        raise click.exceptions.Exit(1)
