"""The root command. Each command's module is imported when it is called, so that ``serve`` starts fast."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from pathlib import Path

import click

from mcp_context_proxy import __version__
from mcp_context_proxy.cli.logs import SILENT, configure_logging
from mcp_context_proxy.errors import ContextProxyError
from mcp_context_proxy.front.hangups import outlast_hangups

COMMANDS = {
    "serve": "Serve hosts over stdio, or over HTTP with --http. The default command.",
    "search": "Search the tools behind the proxy.",
    "context": "Print the rules, references and tools for a query, ready for a conversation.",
    "explain": "Tell why a tool is chosen for a query or not.",
    "requests": "Show what was chosen for earlier requests, how and why.",
    "stats": "Show how tools and searches did, and what was saved.",
    "tools": "List every tool behind the proxy, under the name hosts see.",
    "servers": "Show the configured servers and how they are doing.",
    "check": "Check the configuration and start every server once; say what is wrong and how to mend it.",
    "ui": "Print the address of the page that shows request contexts and usage.",
    "login": "Log in to a server that asks for it (OAuth).",
    "logout": "Forget the login to a server.",
    "index": "Index all there is ahead of the first search.",
    "eval": "Measure how well search finds what queries need.",
    "learning": "Show, export, import or forget what use has taught.",
    "recall": "Search what agents searched, called and said.",
    "interactions": "Show how many interactions are remembered, or forget some.",
    "backfill": "Embed the interactions that have no embedding.",
    "demo": "Show the proxy at work in front of example servers.",
}

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
        module = importlib.import_module(f"mcp_context_proxy.cli.{cmd_name}")
        command: click.Command = module.command
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
            formatter.write_dl(list(COMMANDS.items()))

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
        outlast_hangups()
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
