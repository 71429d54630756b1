"""``interactions``: how many are remembered, and of whom; and what is to be forgotten.

``recall``: what agents searched, called and said that is like a query; no server is started.

``backfill``: interactions without an embedding get one; it can be ended at any time and goes on later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click
from rich.text import Text

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import config_option, echo_json, load_config, open_group
from mcp_context_proxy.cli.terminal import Terminal, counted, messages, one_line, results
from mcp_context_proxy.config import Config

if TYPE_CHECKING:
    from mcp_context_proxy.embedding.embedder import Embedder
    from mcp_context_proxy.interactions.memory import InteractionMemory, Model, Recall
    from mcp_context_proxy.interactions.recorder import Backfilled
    from mcp_context_proxy.store import Store


@click.group("interactions", invoke_without_command=True)
@config_option
@click.pass_context
def interactions_command(ctx: click.Context, config_path: Path | None) -> None:
    """What agents searched, called and said, as it is remembered.

    Without a command: stats. A running proxy that shares the store notices a change at once.
    """
    open_group(ctx, config_path, stats)


@interactions_command.command("stats")
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def stats(ctx: click.Context, config_path: Path | None, as_json: bool) -> None:
    """Show how many are remembered, by agent and type."""
    from mcp_context_proxy.store import InteractionScope

    config = load_config(ctx, config_path)
    with opened_store(config) as store:
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
    say_where_off(console, config)
    if kinds:
        console.say()
        rows = [("count", "type", "latest", "agent")]
        rows += [(f"{count:,}", kind, moment(at), one_line(agent)) for agent, kind, count, at in kinds]
        console.columns(rows, right=(0,))


@interactions_command.command("forget")
@config_option
@click.option("--agent", help="What this agent did.")
@click.option("--type", "kind", help="What is of this type: search, call, message.")
@click.option("--older-than", "days", type=click.FloatRange(0), help="What is older than so many days.")
@click.option("--id", "interaction", type=click.IntRange(1), help="One alone.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
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
    """Forget interactions for good: one, or all that match every option given."""
    from mcp_context_proxy.interactions.memory import agent_named
    from mcp_context_proxy.store import InteractionScope

    narrowed = any(each is not None for each in (agent, kind, days))
    if sum((narrowed, interaction is not None, everything)) != 1:
        raise click.UsageError("say what to forget: --agent, --type, --older-than, or --id, or --all")
    with opened_store(load_config(ctx, config_path)) as store:
        if interaction is not None:
            gone = int(store.interactions.forget_one(interaction))
        else:
            before = None if days is None else time.time() - days * 86_400
            whose = None if agent is None else agent_named(agent)
            gone = store.interactions.forget(InteractionScope(whose, kind, before))
    results().say(f"Forgot {counted(gone, 'interaction')}.")


@contextmanager
def opened_store(config: Config) -> Iterator[Store]:
    """The configured store."""
    from mcp_context_proxy.app import store_location
    from mcp_context_proxy.store import open_store

    with open_store(store_location(config)) as store:
        yield store


def opened_memory(config: Config, store: Store, model: Model) -> InteractionMemory:
    """The memory of a store."""
    from mcp_context_proxy.app.build import memory_of

    return memory_of(config, store, model)


def say_where_off(console: Terminal, config: Config) -> None:
    """That nothing new is remembered."""
    if not config.interactions.enabled:
        told = "Interactions are not recorded; enabled = true under [interactions] switches that on."
        console.prose(Text(told, style="yellow"))


def moment(seconds: float) -> str:
    """When something happened, in local time."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


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
    """Find what agents searched, called and said that is like QUERY."""
    from mcp_context_proxy.embedding import LazyModel
    from mcp_context_proxy.embedding.embeddings import open_model
    from mcp_context_proxy.server.rendering import recall_data

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
        echo_json({"query": query, **recall_data(found)})
        return
    console = results()
    say_where_off(console, config)
    _show_recalled(console, query, found)


def _show_recalled(console: Terminal, query: str, found: Recall) -> None:
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


T = TypeVar("T")


@click.command("backfill")
@config_option
@click.option(
    "--batch-size", type=click.IntRange(1, 1000), default=50, show_default=True, help="Embedded together."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def backfill_command(ctx: click.Context, config_path: Path | None, batch_size: int, as_json: bool) -> None:
    """Embed the interactions that have no embedding by the model in use.

    Every batch is kept at once: after an interruption, the next run goes on.
    """
    from mcp_context_proxy.embedding.embeddings import open_model
    from mcp_context_proxy.interactions.recorder import backfill

    config = load_config(ctx, config_path)
    embedder = open_model(config)
    with opened_store(config) as store:
        try:
            memory = opened_memory(config, store, _Opened(embedder))
            with terminal.indexing(messages(), "Embedding") as report:
                done = backfill(memory, batch_size, report)
        finally:
            embedder.close()
    if as_json:
        echo_json(asdict(done))
    else:
        _show_backfill(results(), done)
    if done.failed or done.left:
        ctx.exit(1)


class _Opened:
    """A model that is tried each time: nobody waits here, and one failure is not all of them."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def used(self, use: Callable[[Embedder], T]) -> T:
        """What ``use`` makes of it."""
        return use(self._embedder)


def _show_backfill(console: Terminal, done: Backfilled) -> None:
    console.say(f"Embedded {counted(done.embedded, 'interaction')}.")
    if done.failed:
        console.prose(Text(f"{counted(done.failed, 'error')}; the last: {done.error}", style="yellow"))
    if done.left:
        told = f"{counted(done.left, 'interaction')} were not tried, because the model failed each time."
        console.prose(Text(told, style="yellow"))
