"""``audit``: prints the record of calls, refusals, questions and changes. Starts no server."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
import msgspec

from mcp_context_proxy.cli.options import configured, echo_json, shown
from mcp_context_proxy.cli.terminal import Terminal, moment, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.statistics.figures import seconds_of
from mcp_context_proxy.trust.audit import KINDS, audit_file, selecting, summary

LOOK_SECONDS: Final = 0.5
"""Time between two looks for further entries with ``--follow``."""

JSON_MOST: Final = 100_000
"""Entries that ``--json`` prints at most, the latest: more would take gigabytes of memory."""


def _seconds(_ctx: click.Context, _option: click.Parameter, value: str) -> float:
    try:
        return seconds_of(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}") from None


@click.command("audit")
@configured
@click.option(
    "--since", callback=_seconds, default="1d", show_default=True, help="Hours or days, such as 12h or 7d."
)
@click.option("--server", help="Only entries about this server.")
@click.option("--tool", help="Only calls of this tool, by its own name.")
@click.option("--kind", type=click.Choice(KINDS), help="Only entries of this kind.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --follow one object on each line.")
@click.option("--follow", is_flag=True, help="Print further entries as they are written, until Ctrl-C.")
def audit_command(
    config: Config,
    since: float,
    server: str | None,
    tool: str | None,
    kind: str | None,
    as_json: bool,
    follow: bool,
) -> None:
    """Show what was called, refused, asked and changed, and by whom.

    Of arguments it has the shape, size and a hash, of results the size; values and queries are not recorded.
    """
    file = audit_file(config)
    if file is None:
        raise click.ClickException(
            'nothing is recorded: [audit] enabled is false, or [store] keeps nothing (path = "memory")'
        )
    wanted = selecting(time.time() - since, server, tool, kind)
    # Before the files are read, so that no entry falls between the two.
    further = file.follow()
    next(further)
    found = filter(wanted, file.entries())
    if as_json and not follow:
        echo_json({"path": str(file.path), "entries": list(deque(found, maxlen=JSON_MOST))})
        return
    console = results()
    write: Callable[[dict[str, Any]], None] = _print_json if as_json else _printer(console)
    count = _print(found, write)
    if not follow:
        if not count:
            console.say("Nothing was recorded in this time.")
        else:
            console.note(f"{count:,} {'entry' if count == 1 else 'entries'} of {file.folder}")
        return
    while True:
        for entry in further:
            if entry is None:
                break
            if wanted(entry):
                write(entry)
        time.sleep(LOOK_SECONDS)


def _print(entries: Iterable[dict[str, Any]], write: Callable[[dict[str, Any]], None]) -> int:
    count = 0
    for entry in entries:
        write(entry)
        count += 1
    return count


def _print_json(entry: dict[str, Any]) -> None:
    click.echo(shown(msgspec.json.encode(entry).decode()))


def _printer(console: Terminal) -> Callable[[dict[str, Any]], None]:
    def write(entry: dict[str, Any]) -> None:
        console.say(one_line(f"{moment(entry['time'])}  {entry['kind']:<13}  {summary(entry)}"))

    return write
