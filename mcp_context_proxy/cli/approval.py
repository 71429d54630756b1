"""``changes``, ``approve``, ``reject``: changes of servers and decisions. ``audit``: the record of it all.

None of them starts a server: they work on what the proxy has recorded. A running proxy takes a decision
within a second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from rich.text import Text

from mcp_context_proxy.cli import (
    Period,
    configured,
    echo_json,
    json_option,
    open_configured_store,
    shown,
    unknown_server,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, moment, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, one_line
from mcp_context_proxy.trust.audit import KINDS, audit_file
from mcp_context_proxy.trust.audit_file import selecting, summary

if TYPE_CHECKING:
    from mcp_context_proxy.store.opening import Store
    from mcp_context_proxy.trust.audit_file import AuditFile
    from mcp_context_proxy.trust.decisions import Change


SHOWN_DAYS: Final = 30
"""Days for which a change that was taken is shown."""

BY: Final = "command"
"""The way in which these commands decide, as it is recorded."""

ROW_FACTS: Final = ("kind", "name", "state", "event", "reason", "version", "decided", "time")
"""Facts of a recorded definition that ``changes --json`` has."""


@click.command("changes")
@configured
@click.argument("server", required=False)
@click.option("--diff", "with_differences", is_flag=True, help="Show what differs, new sentences first.")
@click.option("--whole", is_flag=True, help="Show long differences whole; --diff shortens them.")
@json_option
def changes_command(
    config: Config, server: str | None, with_differences: bool, whole: bool, as_json: bool
) -> None:
    """Show the definitions that wait for approval, and those that have changed lately.

    With SERVER, those of one server, with the differences. What is shortened has no hash to approve it with.
    """
    from mcp_context_proxy.trust.decisions import changes, hash_of

    with _opened(config) as store:
        known = store.approvals.servers()
        if server is not None and server not in {*known, *config.servers, *config.off}:
            raise unknown_server(server, config)
        servers = [server] if server is not None else known
        whole = whole or as_json
        found = {name: changes(store, name, days=SHOWN_DAYS, whole=whole) for name in servers}
    if as_json:
        echo_json({"servers": [_data(name, of_server) for name, of_server in found.items() if of_server]})
        return
    console = results()
    if not any(found.values()):
        console.say("Nothing waits for approval, and nothing has changed lately.")
    for name, of_server in found.items():
        waiting = [change for change in of_server if change.waits]
        for change in of_server:
            _show(console, name, change, with_differences or whole or server is not None)
        if waiting and all(change.is_whole for change in waiting):
            digest = hash_of(change.row for change in waiting)
            console.say(f"To approve all {len(waiting)}: mcp-context-proxy approve {name} --hash {digest}")
            console.say()


def _show(console: Terminal, server: str, change: Change, with_differences: bool) -> None:
    from mcp_context_proxy.trust.decisions import hash_of

    row = change.row
    name = f"{server}: {row.kind} {one_line(row.name, NAME_CHARACTERS)}"
    style = "bold red" if change.waits else "bold"
    console.say(Text(name, style=style), f"  {change.standing}, {moment(row.time)}")
    if row.version:
        console.say(f"version: {one_line(row.version, NAME_CHARACTERS)}", indent=2)
    for line in change.lines if with_differences else ():
        console.prose(line, indent=2, hanging=4)
    if change.waits and change.is_whole:
        console.say(f"hash: {hash_of([row])}", indent=2)
    elif change.waits:
        console.say(f"longer than what is shown, and its hash: changes {server} --whole", indent=2)


def _data(server: str, found: list[Change]) -> dict[str, Any]:
    from mcp_context_proxy.trust.decisions import hash_of

    waiting = [change.row for change in found if change.waits]
    return {
        "server": server,
        "hash": hash_of(waiting) if waiting else None,
        "definitions": [
            {
                **{fact: getattr(change.row, fact) for fact in ROW_FACTS},
                "hash": hash_of([change.row]),
                "waits": change.waits,
                "differences": list(change.lines),
            }
            for change in found
        ],
    }


@click.command("approve")
@configured
@click.argument("server")
@click.argument("tools", nargs=-1)
@click.option("--hash", "expected", metavar="HASH", help="The hash that `changes` has shown; required.")
def approve_command(config: Config, server: str, tools: tuple[str, ...], expected: str | None) -> None:
    """Approve the definitions of SERVER that wait, or those of TOOLS, as `changes` has shown them."""
    if expected is None:
        raise click.UsageError(
            f"--hash is missing: 'mcp-context-proxy changes {server}' shows what waits, with its hash"
        )
    _decide(config, server, tools, "approved", expected)


@click.command("reject")
@configured
@click.argument("server")
@click.argument("tools", nargs=-1, required=True)
def reject_command(config: Config, server: str, tools: tuple[str, ...]) -> None:
    """Reject the present definitions of TOOLS of SERVER: they are withheld until they are approved."""
    _decide(config, server, tools, "rejected")


def _decide(
    config: Config, server: str, tools: tuple[str, ...], state: str, expected: str | None = None
) -> None:
    from mcp_context_proxy.trust.approval import event_for
    from mcp_context_proxy.trust.audit import note_now
    from mcp_context_proxy.trust.decisions import decide
    from mcp_context_proxy.trust.fingerprints import State

    with _opened(config) as store:
        decided = decide(store, server, tools, State(state), by=BY, expected=expected)
    for row in decided:
        note_now(config, "approval", **event_for(row).facts)
    names = ", ".join(one_line(row.name, NAME_CHARACTERS) for row in decided)
    results().say(f"{state.capitalize()} {counted(len(decided), 'definition')} of {server}: {names}.")


@contextmanager
def _opened(config: Config) -> Iterator[Store]:
    with open_configured_store(config) as store:
        if store.place is None:
            raise click.UsageError(
                'nothing is kept with store.path = "memory", so there is nothing to approve'
            )
        yield store


LOOK_SECONDS: Final = 0.5
"""Time between two looks for further entries with ``--follow``."""

JSON_MOST: Final = 100_000
"""Entries that ``--json`` prints at most, the latest: more would take gigabytes of memory."""


@click.command("audit")
@configured
@click.option(
    "--since", type=Period(), default="1d", show_default=True, help="Hours or days, such as 12h or 7d."
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
    try:
        if server is not None and server not in config.servers:
            # One that has left the configuration still has its entries.
            of_server = selecting(0, server, None, None)
            if not any(map(of_server, file.entries())):
                raise unknown_server(server, config)
        _show_audit(file, selecting(time.time() - since, server, tool, kind), as_json=as_json, follow=follow)
    except OSError as error:
        if error.filename is None:  # of the output
            raise
        raise click.ClickException(f"{file.path} cannot be read: {error.strerror or error}") from None


def _show_audit(
    file: AuditFile, wanted: Callable[[dict[str, Any]], bool], *, as_json: bool, follow: bool
) -> None:
    # Before the files are read, so that no entry falls between the two.
    further = file.follow()
    next(further)
    found = filter(wanted, file.entries())
    if as_json and not follow:
        echo_json({"path": str(file.path), "entries": list(deque(found, maxlen=JSON_MOST))})
        return
    console, count = results(), 0

    def write(entry: dict[str, Any]) -> None:
        if as_json:
            click.echo(shown(msgspec.json.encode(entry).decode()))
        else:
            kind = f"{one_line(entry['kind']):<13}"
            console.say(f"{moment(entry['time'])}  {kind}  {one_line(summary(entry))}")

    for entry in found:
        write(entry)
        count += 1
    if not follow:
        if not count:
            console.say("Nothing was recorded in this time.")
        else:
            console.note(f"{count:,} {'entry' if count == 1 else 'entries'} of {file.folder}")
        return
    for later in further:
        if later is None:
            time.sleep(LOOK_SECONDS)
        elif wanted(later):
            write(later)
