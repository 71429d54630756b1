"""Shared parts of all commands: ``--config``, JSON output, and running asynchronous code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import click

from mcp_context_proxy.config import Config, load

if TYPE_CHECKING:
    from mcp_context_proxy.store import Store

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

STOPPED_BY: Final = () if sys.platform == "win32" else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command: the servers it started must not outlive it. Ctrl-C is among them because
asyncio cancels for it only once, and code that swallows that cancellation lets the command go on."""


def config_option(command: F) -> F:
    """Accept ``--config`` after the command, too; it overrides the one before the command."""
    return click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        default=None,
        help="A config.toml, or a host's JSON file with mcpServers.",
    )(command)


def open_group(ctx: click.Context, config_path: Path | None, default: click.Command) -> None:
    """Pass ``--config`` on to the subcommand of a group, or run the default without one."""
    if config_path is not None:
        ctx.find_root().obj = config_path
    if ctx.invoked_subcommand is None:
        ctx.invoke(default)


def load_config(
    ctx: click.Context, config_path: Path | None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Load the configuration named on the command line, or the user's own.

    Raises:
        ConfigError: it cannot be used.
    """
    root = ctx.find_root().obj
    path = config_path or (root if isinstance(root, Path) else None)
    return load(path, overrides=overrides or {})


def open_configured_store(config: Config) -> Store:
    """Open the store of a configuration; a context manager. Blocking; never fails."""
    from mcp_context_proxy.app import store_location
    from mcp_context_proxy.store import open_store

    return open_store(store_location(config))


def echo_json(data: Mapping[str, Any]) -> None:
    """Print one indented JSON object on stdout; raw JSON in it stays unchanged."""
    import msgspec

    from mcp_context_proxy.protocol import envelope

    click.echo(msgspec.json.format(envelope.encode(data), indent=2))


def run(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run an asynchronous function; Ctrl-C or a signal cancels it and waits for its clean-up.

    Raises:
        KeyboardInterrupt: a signal ended it.
        BaseException: the function's own error, not wrapped by task groups.
    """
    try:
        return anyio.run(_run_until_signal, function, args)
    except BaseExceptionGroup as group:
        raise innermost(group) from None


def innermost(error: BaseException) -> BaseException:
    """Return the first error in nested groups: task groups wrap the errors of their tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run_until_signal(function: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> T:
    results: list[T] = []
    async with anyio.create_task_group() as group:
        if STOPPED_BY:
            group.start_soon(_cancel_on_signal, group.cancel_scope)
        results.append(await function(*args))
        group.cancel_scope.cancel()
    if not results:
        raise KeyboardInterrupt
    return results[0]


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(*STOPPED_BY) as signals:
        async for _ in signals:
            scope.cancel()
            return
