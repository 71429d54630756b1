"""``import``, ``add``, ``remove`` and ``init``: the servers of our own configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from mcp_context_proxy.cli.install import (
    PROGRAM,
    InstallError,
    configuration_file,
    dry_option,
    no_check_option,
    project_option,
    project_places,
    secrets_of,
    show_change,
)
from mcp_context_proxy.cli.main import config_option, shown
from mcp_context_proxy.cli.terminal import Terminal, results
from mcp_context_proxy.config import load
from mcp_context_proxy.config.hosts import names_for, servers_place
from mcp_context_proxy.config.source import parse
from mcp_context_proxy.installation.editing import entries
from mcp_context_proxy.installation.journal import read_text, write
from mcp_context_proxy.installation.places import PLACES
from mcp_context_proxy.installation.plan import FileChange, read_configuration, servers_in
from mcp_context_proxy.system.places import BEGINNING

if TYPE_CHECKING:
    from mcp_context_proxy.installation.editing import Form, Place

_FORMS: Final[dict[str, Form]] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


@click.command("import")
@click.argument("source", metavar="FILE|HOST")
@config_option
@project_option
@dry_option
@click.pass_context
def import_command(
    ctx: click.Context, source: str, config_path: Path | None, projects: tuple[str, ...], dry_run: bool
) -> None:
    """Copy the servers of a host, or of a file in the form of any host, into the configuration.

    The host's file stays as it is.
    """
    console = results()
    configuration = read_configuration(configuration_file(ctx, config_path))
    host = PLACES.get(source)
    file = host.file(os.environ) if host else Path(source)
    text = read_text(file)
    if text is None:
        raise InstallError(f"{file} does not exist; give a file, or one of: {', '.join(PLACES)}")
    form = host.form if host else _FORMS.get(file.suffix.lower(), "json")
    places: list[Place | None] = [host.place_in(text) if host else _place_in(file, text)]
    if form == "json" and isinstance(entries("json", text, ()).get("projects"), dict):
        places += project_places(console, text, projects)
    for place in places:
        assert place is not None
        found = servers_in(file, text, form, place, os.environ)
        for name, table in found.moving.items():
            before = set(configuration.servers)
            ours = configuration.add(_allowed(name), table, source if host else file.stem.lstrip("."))
            console.say(f"{shown(name)}: {'there already' if ours in before else 'copied'} as {ours}")
        for name, reason in found.staying.items():
            console.note(f"{shown(name)} is not copied: {shown(reason)}")
        for note in found.notes:
            console.note(shown(note))
    if configuration.change is None:
        console.say("Nothing to change.")
    elif dry_run:
        show_change(console, configuration.change, secrets_of(configuration.servers.values()))
        console.say("Nothing was changed: --dry-run.")
    else:
        write(configuration.change, private=bool(secrets_of(configuration.servers.values())))
        console.say(Text(f"Written: {configuration.file}", style="green"))


def _place_in(file: Path, text: str) -> Place:
    tables = parse(file, text.removeprefix("\ufeff").replace("\r\n", "\n")).tables
    place = servers_place(tables)
    if place is None:
        raise InstallError(f"{file} has no servers in the form of a host that is known")
    return place


def _allowed(name: str) -> str:
    return names_for([name])[name]


@click.command("add", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("command", metavar="-- COMMAND... | URL", nargs=-1, required=True, type=click.UNPROCESSED)
@config_option
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Variable of the program.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header for a URL.")
@no_check_option
@click.pass_context
def add_command(
    ctx: click.Context,
    name: str,
    command: tuple[str, ...],
    config_path: Path | None,
    variables: tuple[str, ...],
    headers: tuple[str, ...],
    no_check: bool,
) -> None:
    """Add a server to the configuration: a command after '--', or a URL.

    Starts it once, and pins the version that ran. ${VARIABLE} in a value is read when the server starts.
    """
    console, file = results(), configuration_file(ctx, config_path)
    configuration = read_configuration(file)
    if _allowed(name) != name:
        raise InstallError(f"{name!r} cannot be the name of a server: letters, digits, _ and - without __")
    if name in configuration.servers:
        raise InstallError(
            f"there is a server {name} already in {file}; '{PROGRAM} remove {name}' removes it"
        )
    table: dict[str, Any] = {}
    if len(command) == 1 and re.match(r"https?://", command[0]):
        table["url"] = command[0]
    else:
        table["command"] = command[0]
        if command[1:]:
            table["args"] = list(command[1:])
    if variables:
        table["env"] = _pairs(variables, "--env")
    if headers:
        table["headers"] = _pairs(headers, "--header")
    configuration.add(name, table, "new")
    if name not in configuration.servers:
        same = next(known for known, one in configuration.servers.items() if one == table)
        raise InstallError(f"the server {same} in {file} is the same")
    change = configuration.change
    assert change is not None
    write(change, private=bool(secrets_of([table])))
    console.say(Text(f"Added to {file}: {name}", style="green"))
    if not no_check:
        _try_and_pin(console, file, name)


def _try_and_pin(console: Terminal, file: Path, name: str) -> None:
    from mcp_context_proxy.cli import pins
    from mcp_context_proxy.cli.check import Level, show, start_once

    verdicts, versions = start_once(load(file, warn=lambda _text: None), [name])
    show(console, verdicts)
    if name in versions:
        pinning = pins.pin(file, versions)
        if pinning.after != pinning.before:
            write(FileChange(file, pinning.before, pinning.after))
            console.say(f"Pinned to the version that ran: {versions[name][0].pinned(versions[name][2])}")
    if any(verdict.level is Level.PROBLEM for verdict in verdicts):
        console.note(f"It stays in the configuration; '{PROGRAM} remove {name}' removes it.")


def _pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        pairs[key] = value
    return pairs


@click.command("remove")
@click.argument("name")
@config_option
@click.pass_context
def remove_command(ctx: click.Context, name: str, config_path: Path | None) -> None:
    """Remove a server from the configuration. A running proxy notices it."""
    file = configuration_file(ctx, config_path)
    configuration = read_configuration(file)
    configuration.remove(name)
    change = configuration.change
    assert change is not None
    write(change)
    results().say(Text(f"Removed from {file}: {name}", style="green"))


@click.command("init")
@config_option
@click.pass_context
def init_command(ctx: click.Context, config_path: Path | None) -> None:
    """Write a first configuration, unless there is one."""
    file = configuration_file(ctx, config_path)
    if file.exists():
        raise InstallError(f"{file} is there already")
    write(FileChange(file, None, BEGINNING))
    results().say(Text(f"Written: {file}", style="green"))
