"""The command line: one module for each command, or for a few that are close kin.

Commands show and pass on; they decide nothing. Here are the root command with its logging, and the parts that
all commands share: ``--config``, JSON, asyncio.

A command that asks a running proxy takes a tenth of a second. So nothing that takes time to import, such as
the configuration, is imported here before it is needed.

Each command's module is imported when the command is called, so that ``serve`` starts fast. Log messages go
to stderr: stdout belongs to the protocol, or to the results of a command.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from mcp_context_proxy import __version__
from mcp_context_proxy.errors import UnknownFilterError, innermost, nearest_names
from mcp_context_proxy.protocol.strangers import clean
from mcp_context_proxy.serving import (
    ENDINGS,
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    LEVELS,
    NO_ROOM,
    SERVING_LEVEL,
    ended_by,
    prepare,
)

if TYPE_CHECKING:
    import anyio

    from mcp_context_proxy.config import Config
    from mcp_context_proxy.store.opening import Store


T = TypeVar("T")
FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

REDACTOR: Final = "mcp_context_proxy.redactor"
"""Key of the redactor of the loaded configuration among the facts of a call of the command line."""


def _config_option(text: str) -> Callable[[FC], FC]:
    """Return the option, which is accepted after a command, too, and overrides the one before it."""
    return click.option("--config", "config_path", type=click.Path(path_type=Path), help=text)


config_option = _config_option("A config.toml, or a host's JSON file with mcpServers.")
written_config_option = _config_option("The config.toml to write; a file of a host is refused.")


class Number(click.ParamType):  # type: ignore[type-arg]  # before 8.4, click has it without a type
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


class Period(click.ParamType):  # type: ignore[type-arg]
    """Hours or days on the command line, such as 12h or 7d; its value is their seconds."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from mcp_context_proxy.statistics import seconds_of

        try:
            return seconds_of(value)
        except ValueError as error:
            self.fail(f"{error}", param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


def expect_words(query: str) -> str:
    """Return a query; raise a usage error if it is empty."""
    if not query.strip():
        raise click.UsageError("QUERY is empty: say in plain words what you want to do")
    return query


query_argument = click.argument("query", callback=lambda _ctx, _option, query: expect_words(query))


def named_path(ctx: click.Context, config_path: Path | None) -> Path | None:
    """Return the configuration that the command line names; None if it names none."""
    root = ctx.find_root().obj
    return config_path or (root if isinstance(root, Path) else None)


def configuration_path(ctx: click.Context, config_path: Path | None) -> Path:
    """Return the configuration that the command line names, or the user's own, whether it exists or not."""
    from mcp_context_proxy.bridge import configuration_file

    return Path(configuration_file(named_path(ctx, config_path), os.environ))


def with_servers(config: Config, names: Collection[str]) -> Config:
    """Return a configuration with some of its servers alone, and without documents.

    Raises `click.ClickException` if there is no server of a name.
    """
    from msgspec.structs import replace

    known = (*config.servers, *config.off)
    if unknown := [name for name in names if name not in known]:
        there = ", ".join(known) or "none"
        raise click.ClickException(f"there is no server {unknown[0]!r}; those configured are: {there}")
    servers = {name: server for name, server in config.servers.items() if name in names}
    off = {name: why for name, why in config.off.items() if name in names}
    return replace(config, servers=servers, off=off, documents=())


def load_config(
    ctx: click.Context,
    config_path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    *,
    complain: bool = True,
    skipped: list[str] | None = None,
    unknown: dict[str, None] | None = None,
) -> Config:
    """Load the configuration named on the command line, or the user's own; raises `ConfigError`.

    With `complain`, mistakes that cost only a part of it are printed on stderr; the servers that are off are
    named by the commands that start the others. `skipped` gets the notes on entries of a host's file that are
    left out, which are logged otherwise; `unknown` is that of `load`.
    """
    from mcp_context_proxy.config.load import load
    from mcp_context_proxy.config.secrets import Redactor, all_secrets_of

    path = named_path(ctx, config_path)
    given: dict[str, Any] = {} if skipped is None else {"warn": skipped.append}
    config = load(path, overrides=overrides or {}, unknown=unknown, **given)
    ctx.find_root().meta[REDACTOR] = Redactor(all_secrets_of(config))
    if complain:
        for complaint in config.complaints(servers=False):
            click.echo(f"mcp-context-proxy: {shown(complaint)}", err=True)
    return config


def unknown_server(name: str, config: Config) -> click.UsageError:
    """Return the error about a server that is not in the configuration, with the nearest one and all."""
    known = [*config.servers, *config.off]
    return click.UsageError(str(UnknownFilterError("server", name, nearest_names(name, known, 1), known)))


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
    from mcp_context_proxy.store.opening import open_store

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

    from mcp_context_proxy.system.process import SIGNALS
    from mcp_context_proxy.system.threads import look_up_apart

    results: list[T] = []

    async def run_until_signal() -> None:
        look_up_apart()
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_on_signal, group.cancel_scope)
            results.append(await function(*args))
            group.cancel_scope.cancel()

    async def cancel_on_signal(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(*SIGNALS) as signals:
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


SENTENCE: Final = 200
"""Characters of a sentence that says what a command does, at most."""

COMMANDS: Final = {
    "install": (
        "Set up",
        "install",
        "Move the servers of hosts behind this proxy, and connect the hosts to it.",
    ),
    "uninstall": ("Set up", "install", "Give hosts their own settings back."),
    "import": ("Set up", "configure", "Copy the servers of a host or a file into the configuration."),
    "add": ("Set up", "configure", "Add a server to the configuration."),
    "remove": ("Set up", "configure", "Remove a server from the configuration."),
    "init": ("Set up", "configure", "Write a configuration to begin with."),
    "hook": ("Set up", "install", "Give a host's model what fits each prompt, by the host's prompt hook."),
    "serve": ("Daily use", "serve", "Serve hosts over stdio, or over HTTP with --http. The default command."),
    "ui": ("Daily use", "serve", "Print the address of the pages: servers, tools, requests, usage."),
    "search": ("Daily use", "search", "Search the tools, rules and references behind the proxy."),
    "context": ("Daily use", "contexts", "Print the rules, references and tools for a query."),
    "tools": ("Daily use", "servers", "List all tools behind the proxy, with their cost in tokens."),
    "servers": ("Daily use", "servers", "Show the configured servers and their state."),
    "status": ("Running proxy", "running", "Show what runs: the process, its hosts, and each server."),
    "logs": ("Running proxy", "running", "Show what a server, or the proxy itself, has logged."),
    "call": ("Running proxy", "running", "Call a tool as a host would."),
    "restart": ("Running proxy", "running", "Restart a server."),
    "enable": ("Running proxy", "running", "Turn a server or a tool on."),
    "disable": ("Running proxy", "running", "Turn a server or a tool off."),
    "stop": ("Running proxy", "running", "Stop the proxy that hosts share."),
    "session": ("Running proxy", "servers", "Choose what a session has in its context, and save it."),
    "demo": ("Understand", "demo", "Show the proxy at work in front of example servers."),
    "explain": ("Understand", "contexts", "Explain why a tool is selected for a query, or why not."),
    "requests": ("Understand", "contexts", "Show the items selected for earlier requests, and why."),
    "stats": ("Understand", "stats", "Show how often tools and searches are used, and the saved tokens."),
    "eval": ("Understand", "demo", "Measure how well search finds the tools that queries need."),
    "audit": ("Understand", "store", "Show what was called, refused, asked and changed, and by whom."),
    "learning": ("Learn", "store", "Show, export, import or forget the pairs learned from use."),
    "recall": ("Learn", "search", "Search earlier searches, calls and messages of agents."),
    "interactions": ("Learn", "search", "Count the remembered interactions, or forget some."),
    "backfill": ("Learn", "search", "Embed the interactions that have no embedding."),
    "check": ("Maintain", "check", "Check the configuration and start each server once; name all problems."),
    "changes": ("Maintain", "store", "Show what servers have changed, and what waits for approval."),
    "approve": ("Maintain", "store", "Approve changed definitions of a server."),
    "reject": ("Maintain", "store", "Withhold definitions of a server until they are approved."),
    "store": ("Maintain", "store", "Check, migrate, copy or prune the store."),
    "cluster": ("Maintain", "servers", "Show the replicas that share a database, or drain one."),
    "index": ("Maintain", "servers", "Index everything ahead of the first search."),
    "login": ("Maintain", "configure", "Log in to a server that requires it (OAuth)."),
    "logout": ("Maintain", "configure", "Forget the login to a server."),
    "token": ("Maintain", "configure", "Add, list, renew or revoke tokens of those who connect over HTTP."),
    "secret": ("Maintain", "configure", "Keep secrets for the configuration in the keyring of the system."),
}
"""Each command with its section of the help, its module, and its line in the help."""

SILENT = "critical"
"""The level of commands that report failures in their own output."""


def main() -> None:
    try:
        status = cli.main(prog_name="mcp-context-proxy", args=sys.argv[1:], standalone_mode=False)
    except click.UsageError as error:
        path = "mcp-context-proxy" if error.ctx is None else error.ctx.command_path
        told = _told(error)
        if told.startswith("Usage: "):  # the help of a group that was given no command
            click.echo(told, err=True)
        else:
            click.echo(f"mcp-context-proxy: {shown(told)}\nHelp: {path} --help", err=True)
        status = error.exit_code
    except click.Abort:
        status = EXIT_INTERRUPTED
    except UnicodeEncodeError:
        wrong = [one for one in sys.argv if one != os.fsencode(one).decode(errors="ignore")]
        if not wrong:
            raise
        click.echo(f"mcp-context-proxy: {wrong[0]!a} is not UTF-8, which the terminal has to send", err=True)
        status = EXIT_FAILURE
    except OSError as error:  # in a command, or in the help before any
        if error.errno not in NO_ROOM:
            raise
        status = ended_by(error, None)
    sys.exit(status if isinstance(status, int) else 0)


def _told(error: click.UsageError) -> str:
    """Return the message of an error in a command line, with the possible ones."""
    if isinstance(error, click.NoSuchOption):
        return _without_option(error)
    told, ctx = error.format_message(), error.ctx
    is_unknown = told.startswith("No such command") and "Did you mean" not in told
    if not is_unknown or ctx is None or ctx.parent is None or not isinstance(ctx.command, click.Group):
        return told
    return f"{told.rstrip('.')}. There are: {', '.join(ctx.command.list_commands(ctx))}"


def _without_option(error: click.NoSuchOption) -> str:
    """Return the message about an option that a command does not have: the nearest, or all that it has."""
    told = f"No such option {error.option_name!r}"
    if error.ctx is None:
        return told
    options = [
        option
        for one in error.ctx.command.get_params(error.ctx)
        if isinstance(one, click.Option) and not one.hidden
        for option in (*one.opts, *one.secondary_opts)
        if option.startswith("--")
    ]
    # Without the dashes, which make all of them alike.
    names = {option.removeprefix("--"): option for option in options}
    if near := nearest_names(error.option_name.lstrip("-"), list(names), 1):
        return f"{told}. Did you mean {names[near[0]]!r}?"
    return f"{told}. There are: {', '.join(options)}"


class CommandGroup(click.Group):
    """Commands under one name; its help has the first sentence of each, which Click would cut."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        visible = [(name, one) for name, one in sorted(self.commands.items()) if not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(SENTENCE)) for name, one in visible])


def group(name: str, default: str) -> Callable[[Callable[[], None]], CommandGroup]:
    """Make a group that takes ``--config`` for its subcommands, and runs a default one without any."""

    def made(described: Callable[[], None]) -> CommandGroup:
        @click.group(name, cls=CommandGroup, invoke_without_command=True)
        @config_option
        @click.pass_context
        @functools.wraps(described)
        def opened(ctx: click.Context, config_path: Path | None) -> None:
            if config_path is not None:
                ctx.find_root().obj = config_path
            if ctx.invoked_subcommand is None:
                ctx.invoke(opened.commands[default])

        return opened

    return made


class LazyGroup(click.Group):
    """A group of commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        _, name, _ = COMMANDS[cmd_name]
        module = importlib.import_module(f"mcp_context_proxy.cli.{name}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; the error about an unknown one names the nearest."""
        if args[0] not in COMMANDS and (near := nearest_names(args[0], list(COMMANDS), 1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, without importing any."""
        width = max(map(len, COMMANDS))
        for section in dict.fromkeys(section for section, _, _ in COMMANDS.values()):
            with formatter.section(section):
                rows = [(name, line) for name, (group, _, line) in COMMANDS.items() if group == section]
                formatter.write_dl([(f"{name:<{width}}", line) for name, line in rows])

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; report an expected error as a sentence, without a traceback."""
        try:
            return super().invoke(ctx)
        except click.UsageError:
            raise
        except click.ClickException as error:
            click.echo(f"mcp-context-proxy: {shown(str(error))}", err=True)
            ctx.exit(EXIT_FAILURE)
        except ENDINGS as error:
            ctx.exit(ended_by(error, ctx.find_root().meta.get(REDACTOR)))


@click.group(cls=LazyGroup, invoke_without_command=True)
@config_option
@click.option(
    "--log-level", help="Level of the messages on stderr: debug, info, warning (the default of serve), error."
)
@click.version_option(__version__, prog_name="mcp-context-proxy")
@click.pass_context
def cli(ctx: click.Context, config_path: Path | None, log_level: str | None) -> None:
    """One MCP server in front of many: shows the model only the tools that the current request needs.

    Begin with 'demo', which needs nothing, or with 'install', which connects your hosts. 'check' finds what
    is wrong, and 'COMMAND --help' explains a command.
    """
    serving = ctx.invoked_subcommand in {None, "serve"}
    level = log_level or (SERVING_LEVEL if serving else SILENT)
    if level.lower() not in (*LEVELS, SILENT):
        raise click.BadParameter(f"{level!r} is not one of {', '.join(LEVELS)}", param_hint="--log-level")
    # Before any server starts; other commands start servers as well.
    prepare(level, serving=serving)
    ctx.obj = config_path
    if ctx.invoked_subcommand is None:
        command = cli.get_command(ctx, "serve")
        assert command is not None
        ctx.invoke(command)
