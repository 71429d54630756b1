"""The options that narrow a search down, for every command that searches."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mcp_context_proxy.config import Config
from mcp_context_proxy.context.constraints import MIN_CALLS, Constraints

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--server", help="Only tools of this server."),
    click.option("--category", help="Only items of this category."),
    click.option("--tag", "tags", multiple=True, help="Only items with this tag; given again, with both."),
    click.option(
        "--any-tag", "any_tags", multiple=True, help="Only items with this tag; given again, with either."
    ),
    click.option("--language", help="Only items with this tag, too."),
    click.option("--read-only", is_flag=True, help="Only tools that say they change nothing."),
    click.option(
        "--exclude-destructive", is_flag=True, help="Only tools that say they undo and overwrite nothing."
    ),
    click.option(
        "--open-world/--closed-world",
        default=None,
        help="Only tools that reach beyond their server, or only those that say they do not.",
    ),
    click.option(
        "--max-latency-ms",
        type=click.FloatRange(min=0, min_open=True),
        help="No tools of whose calls more than 5 % took longer.",
    ),
    click.option(
        "--min-success-rate",
        type=click.FloatRange(0, 1),
        help="No tools of whose calls a smaller share succeeded.",
    ),
    click.option(
        "--min-calls",
        type=click.IntRange(1),
        default=MIN_CALLS,
        show_default=True,
        help="Calls from which on that share is known.",
    ),
    click.option("--strict", is_flag=True, help="No tools of whose calls too little is known, either."),
)


def narrowing_options(command: Command) -> Command:
    """Give a command the options; it takes them as keywords, for `constraints_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def constraints_of(config: Config, given: dict[str, Any]) -> Constraints:
    """The constraints of the options that were given.

    Raises:
        click.BadParameter: there is no such server in the configuration, or it is switched off.
    """
    _check_server(config, given["server"])
    return Constraints(**given)


def _check_server(config: Config, server: str | None) -> None:
    if server is None:
        return
    if server in config.servers:
        if not config.servers[server].enabled:
            raise click.BadParameter(f"server {server!r} is switched off", param_hint="--server")
        return
    nearest = difflib.get_close_matches(server, config.servers, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise click.BadParameter(
        f"there is no server {server!r}.{hint} There are: {', '.join(config.servers)}", param_hint="--server"
    )
