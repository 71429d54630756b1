"""The root command. Each command's module is imported when it is called, so that ``serve`` starts fast.

Where messages go: to stderr, never to stdout, which is the protocol's.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import re
import sys
from pathlib import Path
from typing import Final

import click

from mcp_context_proxy import __version__
from mcp_context_proxy.config.secrets import NOTICE
from mcp_context_proxy.downstream.backpressure import Bucket
from mcp_context_proxy.errors import ContextProxyError
from mcp_context_proxy.system.process import ignore_sighup

LEVELS = ("debug", "info", "warning", "error")
SILENT = "critical"
"""The level of commands that show what happened themselves."""


COMPLAINTS_PER_SECOND, COMPLAINTS = 1.0, 20

SESSION_ID = re.compile(r"\b[0-9a-f]{8}(-?)(?:[0-9a-f]{4}\1){3}[0-9a-f]{12}\b")
"""As the SDK makes them, and names them in what it logs. Who knows one, and the token, has the session."""


class _Visible(logging.Formatter):
    """Shows what a terminal would obey or hide: servers and clients have words of theirs in messages."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == NOTICE else f"{record.levelname}: "
        text = f"mcp-context-proxy: {level}{super().format(record)}"
        if record.name == "root" or record.name.startswith("mcp."):
            text = SESSION_ID.sub("[session]", text)
        return text if text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()


class _Departures(logging.Filter):
    """Passes over what the SDK says of clients that end their session while they ask: nothing has failed."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return error is None or not _is_departure(error)


class _Complaints(logging.Filter):
    """Passes some of what the HTTP server says of bad requests: whoever can connect can send any number."""

    def __init__(self) -> None:
        super().__init__()
        self._bucket = Bucket(COMPLAINTS_PER_SECOND, COMPLAINTS)

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING or self._bucket.take()


def _is_departure(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_departure, error.exceptions))
    # By name: what has no front need not import what it comes from.
    return type(error).__name__ in {"ClosedResourceError", "BrokenResourceError"}


def configure_logging(level: str) -> None:
    """Log to stderr from `level` up.

    Raises:
        click.BadParameter: there is no such level.
    """
    if level.lower() not in (*LEVELS, SILENT):
        raise click.BadParameter(f"{level!r} is not one of {', '.join(LEVELS)}", param_hint="--log-level")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Visible())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # What goes wrong in a login is told as a sentence; the SDK logs it as a traceback besides.
    logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)
    # What these say in detail is whole messages, with arguments and results.
    for name in ("mcp", "sse_starlette"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").addFilter(_Complaints())
    if level.lower() != "debug":
        logging.getLogger("mcp.server.streamable_http").addFilter(_Departures())
        # The libraries' own chatter explains nothing to a user.
        for name in ("mcp", "httpx2", "httpcore2", "asyncio", "watchfiles"):
            logging.getLogger(name).setLevel(logging.ERROR)


COMMANDS: Final = {
    "serve": ("serve", "Serve hosts over stdio, or over HTTP with --http. The default command."),
    "search": ("search", "Search the tools behind the proxy."),
    "context": ("contexts", "Print the rules, references and tools for a query, ready for a conversation."),
    "explain": ("contexts", "Tell why a tool is chosen for a query or not."),
    "requests": ("contexts", "Show what was chosen for earlier requests, how and why."),
    "stats": ("stats", "Show how tools and searches did, and what was saved."),
    "tools": ("servers", "List every tool behind the proxy, under the name hosts see."),
    "servers": ("servers", "Show the configured servers and how they are doing."),
    "check": (
        "check",
        "Check the configuration and start every server once; say what is wrong and how to mend it.",
    ),
    "ui": ("serve", "Print the address of the page that shows request contexts and usage."),
    "login": ("login", "Log in to a server that asks for it (OAuth)."),
    "logout": ("login", "Forget the login to a server."),
    "index": ("index", "Index all there is ahead of the first search."),
    "eval": ("eval", "Measure how well search finds what queries need."),
    "learning": ("learning", "Show, export, import or forget what use has taught."),
    "recall": ("interactions", "Search what agents searched, called and said."),
    "interactions": ("interactions", "Show how many interactions are remembered, or forget some."),
    "backfill": ("interactions", "Embed the interactions that have no embedding."),
    "demo": ("demo", "Show the proxy at work in front of example servers."),
}
"""Each command with the module it is in and its line in the help."""

NUMPY_THREADS = "OPENBLAS_NUM_THREADS"
"""The environment variable that NumPy's library reads when it is loaded. By itself it starts a thread for
each processor, and interrupts a process that it can give none; searches take as long with one."""

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
"""As a shell reports a program that Ctrl-C ended."""
EXIT_BROKEN_PIPE = 141
"""As a shell reports a program whose reader has gone, such as ``| head``."""


class LazyGroup(click.Group):
    """A group whose commands live in modules of the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"mcp_context_proxy.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; for one that does not exist, the error names the nearest."""
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if near and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; an error of ours is told in words, without a traceback."""
        try:
            return super().invoke(ctx)
        except ContextProxyError as error:
            click.echo(f"mcp-context-proxy: {error}", err=True)
            ctx.exit(EXIT_FAILURE)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            _discard_stdout()
            ctx.exit(EXIT_BROKEN_PIPE)


def _discard_stdout() -> None:
    """What is still buffered goes nowhere: at exit Python would complain that it cannot be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


@click.group(cls=LazyGroup, invoke_without_command=True)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="A config.toml, or a host's JSON with mcpServers.",
)
@click.option(
    "--log-level",
    default=None,
    help="Of messages on stderr: debug, info, warning (the default of serve), error.",
)
@click.version_option(__version__, prog_name="mcp-context-proxy")
@click.pass_context
def cli(ctx: click.Context, config_path: Path | None, log_level: str | None) -> None:
    """One MCP server in front of many: shows the model only the tools the current request needs."""
    os.environ.setdefault(NUMPY_THREADS, "1")
    serving = ctx.invoked_subcommand in {None, "serve"}
    if serving:
        ignore_sighup()
    # The other commands tell themselves what went wrong, where it belongs in what they show.
    configure_logging(log_level or ("warning" if serving else SILENT))
    ctx.obj = config_path
    if ctx.invoked_subcommand is None:
        command = cli.get_command(ctx, "serve")
        assert command is not None
        ctx.invoke(command)


def main() -> None:
    """Run the command line."""
    cli(prog_name="mcp-context-proxy", args=sys.argv[1:])
