"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from mcp_context_proxy.config import Config, load

F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """``--config`` after the command, too; it beats the one before it."""
    return click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        default=None,
        help="A config.toml, or a host's JSON with mcpServers.",
    )(command)


def open_group(ctx: click.Context, config_path: Path | None, default: click.Command) -> None:
    """Hand ``--config`` on to the command of a group that is named, or run the one that it is without."""
    if config_path is not None:
        ctx.find_root().obj = config_path
    if ctx.invoked_subcommand is None:
        ctx.invoke(default)


def load_config(
    ctx: click.Context, config_path: Path | None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """The configuration that the command line names, or the user's own.

    Raises:
        ConfigError: it cannot be used.
    """
    root = ctx.find_root().obj
    path = config_path or (root if isinstance(root, Path) else None)
    return load(path, overrides=overrides or {})


def echo_json(data: Mapping[str, Any]) -> None:
    """One JSON object on stdout, for programs and for eyes; raw JSON in it stays as it is."""
    import msgspec

    from mcp_context_proxy.wire import envelope

    click.echo(msgspec.json.format(envelope.encode(data), indent=2))
