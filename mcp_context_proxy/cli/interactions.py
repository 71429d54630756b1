"""``interactions``, ``recall`` and ``backfill``: the remembered searches, calls and messages of agents.

``interactions`` counts, forgets, exports and imports them, ``recall`` searches them, ``backfill`` embeds
those without an embedding. None of them starts a server.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec import to_builtins
from rich.text import Text

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.main import (
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

if TYPE_CHECKING:
    from mcp_context_proxy.interactions.memory import Recall, Recollection

MOST: Final = 1000
"""Limit of the number of results; a person reads tens."""

IN_BRIEF: Final = 48
"""Characters of an interaction beside another one."""

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


@interactions_command.command("export")
@configured
@click.argument("file", type=click.Path(dir_okay=False, writable=True, allow_dash=True, path_type=Path))
@click.option("--agent", help="Only interactions of this agent.")
@click.option("--type", "kind", help="Only interactions of this type: search, call, message.")
def export_command(config: Config, file: Path, agent: str | None, kind: str | None) -> None:
    """Write the interactions to FILE, a line of JSON each; - is the standard output."""
    from mcp_context_proxy.interactions.memory import scope_of
    from mcp_context_proxy.interactions.transfer import export_lines

    count = 0
    with open_configured_store(config) as store, click.open_file(str(file), "wb") as out:
        for line in export_lines(store.interactions, scope_of(agent, kind)):
            out.write(line)
            count += 1
    if str(file) != "-":
        results().say(f"Wrote {counted(count, 'interaction')} to {file}.")


@interactions_command.command("import")
@configured
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--table", default="messages", show_default=True, help="Table of a SQLite file.")
@click.option("--agent-column", default="agent_name", show_default=True, help="Column with the agent.")
@click.option("--type-column", default="role", show_default=True, help="Column that becomes the type.")
@click.option("--content-column", default="content", show_default=True, help="Column with the text.")
@click.option("--time-column", default="timestamp", show_default=True, help="Column with the time.")
@json_option
def import_command(
    config: Config,
    file: Path,
    table: str,
    agent_column: str,
    type_column: str,
    content_column: str,
    time_column: str,
    as_json: bool,
) -> None:
    """Import interactions from FILE: lines that export wrote, or a table of messages in a SQLite file.

    Interactions that are there already are not imported again: after an interruption, the next run continues.
    """
    from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
    from mcp_context_proxy.interactions.memory import InteractionMemory
    from mcp_context_proxy.interactions.transfer import MessageTable, import_file

    columns = MessageTable(table, agent_column, type_column, content_column, time_column)
    with (
        open_configured_store(config) as store,
        closing(LazyModel(partial(open_model, config))) as model,
        terminal.indexing("Importing") as report,
    ):
        done = import_file(InteractionMemory(model, store.interactions, config), file, columns, report)
    if as_json:
        echo_json(to_builtins(done))
        return
    console = results()
    console.say(f"Imported {counted(done.kept, 'interaction')} of {done.read:,}.")
    if done.known:
        console.say(f"{counted(done.known, 'interaction')} there already.")
    if done.no_room:
        console.note(
            f"{counted(done.no_room, 'interaction')} left out, the oldest: no more than "
            f"{config.interactions.keep:,} are kept; raise keep under [interactions] to import them."
        )
    if done.unusable:
        console.note(f"{counted(done.unusable, 'row')} left out: {'; '.join(done.reasons)}")
    if done.kept:
        console.say("They have no embeddings yet: mcp-context-proxy backfill makes them.")


def _note_if_off(console: Terminal, config: Config) -> None:
    if not config.interactions.enabled:
        console.note("Interactions are not recorded: set enabled = true under [interactions] to record them.")


@click.command("recall")
@configured
@query_argument
@click.option("--agent", help="Only interactions of this agent.  [default: all agents]")
@click.option("--type", "kind", help="Only interactions of this type: search, call, message, ...")
@click.option("--top-k", type=WholeNumber(1, MOST), help="Results.  [default: interactions.top_k, 10]")
@click.option(
    "--decay",
    type=Number(most=1, above=0),
    help="Factor of a score for each day of age.  [default: interactions.time_decay_factor, 0.95]",
)
@click.option(
    "--compare", type=click.Choice(["recent"]), help="Show what was found beside the latest interactions."
)
@json_option
def recall_command(
    config: Config,
    query: str,
    agent: str | None,
    kind: str | None,
    top_k: int | None,
    decay: float | None,
    compare: str | None,
    as_json: bool,
) -> None:
    """Find the searches, calls and messages of agents that QUERY means."""
    from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
    from mcp_context_proxy.interactions.memory import InteractionMemory
    from mcp_context_proxy.server.rendering import recall_data

    with open_configured_store(config) as store, closing(LazyModel(partial(open_model, config))) as model:
        memory = InteractionMemory(model, store.interactions, config)
        found = memory.semantic_search_interactions(query, agent, top_k, decay, kind)
        latest = memory.recent(agent, top_k, kind) if compare else None
    if as_json:
        beside = {} if latest is None else {"recent": recall_data(latest)["results"]}
        echo_json({"query": query, **recall_data(found), **beside})
        return
    console = results()
    _note_if_off(console, config)
    if latest is not None:
        _compare(console, found, latest)
        return
    if found.note is not None:
        console.note(f"Note: {found.note}")
    if not found.results:
        console.say(f'Nothing fits "{one_line(query)}" among {counted(found.known, "interaction")}.')
    for one in found.results:
        interaction = one.interaction
        score = "-" if one.score is None else f"{one.score:.2f}"
        facts = f"{interaction.interaction_type} of {interaction.agent_name}, {moment(interaction.time)}"
        facts += f", {one.times:,} times" if one.times > 1 else ""
        number = Text(f"  #{interaction.id}", style="dim")
        console.say(Text(f"{score:>4}", style="bold"), f"  {one_line(facts)}", number)
        console.prose(one_line(interaction.content), indent=INDENT)


def _compare(console: Terminal, found: Recall, latest: Recall) -> None:
    """Show found interactions and the latest ones side by side; those in both have their number in both."""
    places = {one.interaction.id: place for place, one in enumerate(latest.results, 1)}
    common = sum(one.interaction.id in places for one in found.results)
    rows = [("", "found by the query", "the latest")]
    pairs = zip_longest(found.results, latest.results)
    rows += [(str(place), _in_brief(one), _in_brief(other)) for place, (one, other) in enumerate(pairs, 1)]
    console.columns(rows, right=(0,))
    console.say(f"{common} of {len(found.results)} found are among the latest {len(latest.results)}.")


def _in_brief(one: Recollection | None) -> str:
    if one is None:
        return ""
    interaction = one.interaction
    return f"#{interaction.id} {moment(interaction.time)} {one_line(interaction.content, IN_BRIEF)}"


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
    from mcp_context_proxy.interactions.memory import InteractionMemory, backfill

    # Tried each time: nobody waits here, and the failure of one batch is not that of all.
    model = LazyModel(partial(open_model, config), retry_seconds=0)
    model.get()
    with open_configured_store(config) as store, closing(model), terminal.indexing("Embedding") as report:
        done = backfill(InteractionMemory(model, store.interactions, config), batch_size, report)
    if as_json:
        echo_json(to_builtins(done))
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
