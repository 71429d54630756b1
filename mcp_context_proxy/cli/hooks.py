"""``hook``: has a host give the user's own words to the proxy at each prompt, and the model what fits."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from mcp_context_proxy.cli.install import (
    PROGRAM,
    InstallError,
    configuration_file,
    dry_option,
    own_command,
    show_change,
)
from mcp_context_proxy.cli.options import config_option, shown
from mcp_context_proxy.cli.terminal import results
from mcp_context_proxy.installation.hooks import PLACES, is_ours_alone, kept_copy, planned
from mcp_context_proxy.installation.journal import read_text, write
from mcp_context_proxy.installation.plan import FileChange

host_argument = click.argument("host", type=click.Choice(list(PLACES)))


@click.group("hook")
def hook_command() -> None:
    """Give a host's model, at each prompt, the tools, rules and references that fit the user's own words."""


@hook_command.command("install")
@host_argument
@config_option
@dry_option
@click.pass_context
def install_hook(ctx: click.Context, host: str, config_path: Path | None, dry_run: bool) -> None:
    """Add the hook to the settings of HOST, in place; the file as it was is kept beside it."""
    console, place = results(), PLACES[host]
    words = own_command(configuration_file(ctx, config_path))
    at = words.index("serve")
    change = planned(place, Path.home(), [*words[:at], "hook", "run", host, *words[at + 1 :]])
    if change is None:
        console.say("Nothing to change: the hook is there already.")
        return
    show_change(console, change, [])
    if dry_run:
        console.say("Nothing was changed: --dry-run.")
        return
    _carry_out(change)
    console.say(Text(f"Written: {change.file}", style="green"))
    if place.note:
        console.prose(place.note)
    console.say(f"Back to how it was: {PROGRAM} hook uninstall {host}")


@hook_command.command("uninstall")
@host_argument
@dry_option
def uninstall_hook(host: str, dry_run: bool) -> None:
    """Remove the hook from the settings of HOST."""
    console = results()
    change = planned(PLACES[host], Path.home(), None)
    if change is None:
        console.say("There is no hook of ours.")
        return
    show_change(console, change, [])
    if dry_run:
        console.say("Nothing was changed: --dry-run.")
        return
    if change.before is not None and is_ours_alone(PLACES[host], change.before):
        change.file.unlink()
    else:
        write(change)
    kept_copy(change.file).unlink(missing_ok=True)
    console.say(Text(f"Removed from {change.file}", style="green"))


@hook_command.command("run", hidden=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_hook(arguments: tuple[str, ...]) -> None:
    """Answer a hook; see `bridge.hook`. Here, where there are no sockets, with nothing."""
    del arguments


def _carry_out(change: FileChange) -> None:
    if change.before is not None:
        kept = kept_copy(change.file)
        if (there := read_text(kept)) != change.before:
            write(FileChange(kept, there, change.before))
    try:
        write(change)
    except OSError as error:
        raise InstallError(f"{shown(str(change.file))}: {error.strerror or error}") from None
