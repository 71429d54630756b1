"""Options that several commands take.

Runs a command's asynchronous part: it cleans up whatever ends it, and a failure comes out as itself.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
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

    from mcp_context_proxy.protocol import envelope

    click.echo(msgspec.json.format(envelope.encode(data), indent=2))


T = TypeVar("T")

STOPPED_BY: Final = () if sys.platform == "win32" else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a command from outside: servers it has started must not outlive it. Ctrl-C as well, because
asyncio cancels for that only once, and whatever happens to swallow that lets the command go on."""


def run(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run to the end; Ctrl-C or a signal cancels and cleans up first.

    Raises:
        KeyboardInterrupt: it was ended from outside.
        BaseException: whatever the function raised, not wrapped by the tasks it ended.
    """
    try:
        return anyio.run(_stoppable, function, args)
    except BaseExceptionGroup as group:
        raise _first(group) from None


async def _stoppable(function: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> T:
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


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
