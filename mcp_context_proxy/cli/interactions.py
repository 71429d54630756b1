"""``interactions``: how many are remembered, and of whom; and what is to be forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from mcp_context_proxy.cli.options import config_option, echo_json, load_config, open_group
from mcp_context_proxy.cli.terminal import Terminal, counted, one_line, results
from mcp_context_proxy.config import Config

if TYPE_CHECKING:
    from mcp_context_proxy.interactions.memory import InteractionMemory, Model
    from mcp_context_proxy.store import Store


@click.group("interactions", invoke_without_command=True)
@config_option
@click.pass_context
def command(ctx: click.Context, config_path: Path | None) -> None:
    """What agents searched, called and said, as it is remembered.

    Without a command: stats. A running proxy that shares the store notices a change at once.
    """
    open_group(ctx, config_path, stats)


@command.command("stats")
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


@command.command("forget")
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
    from mcp_context_proxy.interactions.interaction import agent_named
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
    from mcp_context_proxy.app.remembering import memory_of

    return memory_of(config, store, model)


def say_where_off(console: Terminal, config: Config) -> None:
    """That nothing new is remembered."""
    if not config.interactions.enabled:
        told = "Interactions are not recorded; enabled = true under [interactions] switches that on."
        console.prose(Text(told, style="yellow"))


def moment(seconds: float) -> str:
    """When something happened, in local time."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
