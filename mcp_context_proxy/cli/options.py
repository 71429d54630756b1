"""Shared parts of all commands: ``--config``, JSON output, and running asynchronous code.

A command that asks a running proxy takes a tenth of a second. So nothing that takes time to import, such as
the configuration, is imported here before it is needed.
"""

from __future__ import annotations

import functools
import math
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from mcp_context_proxy.protocol.strangers import clean

if TYPE_CHECKING:
    import anyio

    from mcp_context_proxy.config import Config
    from mcp_context_proxy.store import Store

T = TypeVar("T")

REDACTOR: Final = "mcp_context_proxy.redactor"
"""Key of the redactor of the loaded configuration among the facts of a call of the command line."""

STOPPED_BY: Final = () if sys.platform == "win32" else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command: the servers it started must not outlive it. Ctrl-C is among them because
asyncio cancels for it only once, and code that swallows that cancellation lets the command go on."""


config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="A config.toml, or a host's JSON file with mcpServers.",
)
"""Accepted after a command, too, where it overrides the one before the command."""


class Number(click.ParamType[float]):
    """A number on the command line; the error about another value says in words which ones are allowed."""

    name = "number"
    kind = "a number"

    def __init__(
        self, least: float | None = None, most: float | None = None, *, above: float | None = None
    ) -> None:
        """Allow numbers from `least`, or only those over `above`, to `most`; None for no bound."""
        self._least, self._most, self._above = least, most, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail with a sentence if it is none, or not within the bounds."""
        try:
            number = self._read(value)
        except ValueError:
            number = math.nan
        low = -math.inf if self._least is None else self._least
        high = math.inf if self._most is None else self._most
        if not low <= number <= high or (self._above is not None and number <= self._above):
            self.fail(f"{value} is not {self.kind}{self._bounds()}", param, ctx)
        return number

    def _read(self, value: Any) -> float:
        return float(value)

    def _bounds(self) -> str:
        if self._above is not None:
            return f" above {self._above:g}" + ("" if self._most is None else f", up to {self._most:.10g}")
        if self._least is None:
            return ""
        if self._most is None:
            return f" of at least {self._least:g}"
        return f" from {self._least:g} to {self._most:.10g}"


class WholeNumber(Number):
    """A whole number on the command line."""

    kind = "a whole number"

    def _read(self, value: Any) -> int:
        return int(value)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


def expect_words(query: str) -> str:
    """Return a query; raise a usage error if it is empty."""
    if not query.strip():
        raise click.UsageError("QUERY is empty: say in plain words what you want to do")
    return query


query_argument = click.argument("query", callback=lambda _ctx, _option, query: expect_words(query))


def open_group(ctx: click.Context, config_path: Path | None, default: click.Command) -> None:
    """Pass ``--config`` on to the subcommand of a group, or run the default without one."""
    if config_path is not None:
        ctx.find_root().obj = config_path
    if ctx.invoked_subcommand is None:
        ctx.invoke(default)


def named_path(ctx: click.Context, config_path: Path | None) -> Path | None:
    """Return the configuration that the command line names; None if it names none."""
    root = ctx.find_root().obj
    return config_path or (root if isinstance(root, Path) else None)


def load_config(
    ctx: click.Context,
    config_path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    *,
    complain: bool = True,
) -> Config:
    """Load the configuration named on the command line, or the user's own; raises `ConfigError`.

    With `complain`, mistakes that cost only a part of it are printed on stderr.
    """
    from mcp_context_proxy.config import load
    from mcp_context_proxy.config.secrets import Redactor, all_secrets_of

    config = load(named_path(ctx, config_path), overrides=overrides or {})
    ctx.find_root().meta[REDACTOR] = Redactor(all_secrets_of(config))
    for complaint in config.complaints() if complain else ():
        click.echo(f"mcp-context-proxy: {shown(complaint)}", err=True)
    return config


def shown(text: str) -> str:
    """Return a text as any output of a command shows it: clean, and without the configuration's secrets.

    Servers choose names and texts, and may repeat in them anything they were given.
    """
    text = clean(text)
    context = click.get_current_context(silent=True)
    redact = None if context is None else context.find_root().meta.get(REDACTOR)
    return text if redact is None else clean(redact(text))


def configured(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, as its first argument, the configuration for which it is called."""

    @config_option
    @click.pass_context
    @functools.wraps(command)
    def load_and_run(ctx: click.Context, /, config_path: Path | None, **options: Any) -> None:
        command(load_config(ctx, config_path), **options)

    return load_and_run


def open_configured_store(config: Config) -> Store:
    """Open the store of a configuration; a context manager. Blocking; never fails."""
    from mcp_context_proxy.store import open_store

    return open_store(config.store)


def echo_json(data: Mapping[str, Any]) -> None:
    """Print one indented JSON object on stdout, as `shown`."""
    import msgspec

    from mcp_context_proxy.protocol import envelope
    from mcp_context_proxy.protocol.strangers import shown_json

    redact = click.get_current_context().find_root().meta.get(REDACTOR)
    encoded = shown_json(envelope.encode(data), bytes if redact is None else redact.json)
    click.echo(msgspec.json.format(encoded, indent=2))


def run(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run an asynchronous function, and raise its own error, not wrapped by task groups.

    Ctrl-C or a signal cancels it, waits for its clean-up, and raises `KeyboardInterrupt`.
    """
    import anyio

    results: list[T] = []

    async def run_until_signal() -> None:
        async with anyio.create_task_group() as group:
            if STOPPED_BY:
                group.start_soon(cancel_on_signal, group.cancel_scope)
            results.append(await function(*args))
            group.cancel_scope.cancel()

    async def cancel_on_signal(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(*STOPPED_BY) as signals:
            async for _ in signals:
                scope.cancel()
                return

    try:
        anyio.run(run_until_signal)
    except BaseExceptionGroup as group:
        raise innermost(group) from None
    if not results:
        raise KeyboardInterrupt
    return results[0]


def innermost(error: BaseException) -> BaseException:
    """Return the first error in nested groups: task groups wrap the errors of their tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
