"""Commands on what the proxy keeps: learned pairs, decisions on definitions, the audit, the store itself.

``learning`` shows, exports, imports and forgets pairs of queries and tools. ``changes`` shows the definitions
that servers have changed, and ``approve`` and ``reject`` decide on them; a running proxy takes a decision
within a second. ``audit`` shows the record of it all. ``store`` checks the store, copies it into another one,
prunes it, erases a person, and brings the schema of a database up to date. None of them starts a server.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Raw
from msgspec.json import encode
from msgspec.structs import replace
from rich.text import Text

from mcp_context_proxy.cli import (
    Period,
    config_option,
    configured,
    echo_json,
    group,
    json_option,
    load_config,
    open_configured_store,
    shown,
    unknown_server,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, moment, print_answer, results
from mcp_context_proxy.config import Config, StoreConfig
from mcp_context_proxy.errors import DataFileError, StoreError
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, one_line
from mcp_context_proxy.system import write_private
from mcp_context_proxy.trust.audit import KINDS, audit_file
from mcp_context_proxy.trust.audit_file import selecting, summary

if TYPE_CHECKING:
    from mcp_context_proxy.embedding.embeddings import QueryEmbedder
    from mcp_context_proxy.items import ToolKey
    from mcp_context_proxy.learning.tier import LearnedTier
    from mcp_context_proxy.store.opening import Store
    from mcp_context_proxy.store.tables import ToolSessionStore
    from mcp_context_proxy.trust.audit_file import AuditFile
    from mcp_context_proxy.trust.decisions import Change


FILE = click.Path(path_type=Path)
SHOWN: Final = 10
"""Pairs that ``stats`` shows: the most certain ones."""
CONFIGURED: Final = "configured"
"""Stands for the store of the configuration, so that no password need be on the command line."""

EVERYONE: Final = "everyone"
"""Owner of the pairs that rank for all."""


@group("learning", default="stats")
def learning_command() -> None:
    """Manage the pairs learned from use: which tools were called for which queries.

    Without a subcommand, shows stats. A running proxy with the same store applies a change within seconds.
    """


@learning_command.command("stats")
@configured
@json_option
def stats(config: Config, as_json: bool) -> None:
    """Show the number of learned pairs, and the most certain ones."""
    with _opened(config) as (tier, _, _, enabled):
        pairs, now = tier.pairs, time.time()
    best = sorted(pairs, key=lambda pair: -pair.confidence_at(now))
    best_shown = [
        {
            "owner": pair.owner,
            "query": pair.query,
            "server": pair.tool[0],
            "tool": pair.tool[1],
            "confidence": round(pair.confidence_at(now), 4),
            "uses": pair.uses,
            "last": pair.last,
        }
        for pair in best[:SHOWN]
    ]
    tools, uses = len({pair.tool for pair in best}), sum(pair.uses for pair in best)
    data = {"enabled": enabled, "pairs": len(best), "tools": tools, "uses": uses, "best": best_shown}
    print_answer(as_json, data, _show_pairs)


def _show_pairs(console: Terminal, data: Mapping[str, Any]) -> None:
    if not data["pairs"]:
        console.prose("Nothing was learned yet: no tool was called after a search that found it.")
        return
    tools = counted(data["tools"], "tool")
    console.say(f"{counted(data['pairs'], 'pair')} of queries and tools, for {tools}.")
    if not data["enabled"]:
        console.say("Learning is switched off, so they have no effect.")
    console.say()
    rows = [("confidence", "uses", "whose", "tool", "query")]
    for pair in data["best"]:
        query = "(text not kept)" if pair["query"] is None else one_line(pair["query"])
        certain, whose = f"{pair['confidence']:.2f}", pair["owner"] or EVERYONE
        rows.append((certain, str(pair["uses"]), whose, f"{pair['server']}__{pair['tool']}", query))
    console.columns(rows, right=(0, 1))


@learning_command.command("export")
@configured
@click.argument("file", type=FILE, required=False)
def export(config: Config, file: Path | None) -> None:
    """Write all pairs to FILE or to stdout, one JSON object per line."""
    from mcp_context_proxy.learning import exported

    with _opened(config) as (tier, _, _, _):
        lines = [line + b"\n" for line in exported(tier.pairs)]
    if file is None:
        click.echo(b"".join(lines), nl=False)
        return
    try:
        write_private(file, lines)
    except OSError as error:
        raise DataFileError(file, None, f"it cannot be written ({error.strerror or error})") from None
    results().say(f"Wrote {counted(len(lines), 'pair')} to {file}.")


@learning_command.command("import")
@configured
@click.argument("file", type=FILE)
def import_(config: Config, file: Path) -> None:
    """Add the pairs in FILE.

    If a pair is known already, the more certain one is kept.
    """
    from mcp_context_proxy.evaluation import read_lines
    from mcp_context_proxy.learning import PairLine, imported

    lines = [line for _, line in read_lines(file, PairLine)]
    with _opened(config) as (tier, model, _, _):
        try:
            taken = imported(lines, model)
        except ValueError as error:
            raise DataFileError(file, None, f"it has a damaged key or vector ({error})") from None
        before = len(tier.pairs)
        tier.take(taken)
        console = results()
        console.say(f"Read {counted(len(lines), 'pair')}. There were {before} before; now {len(tier.pairs)}.")
        if left := len(lines) - len(taken):
            console.say(f"Left out {counted(left, 'pair')} without text, made with another model.")


@learning_command.command("forget")
@configured
@click.option("--tool", help="Forget the pairs of this tool, by the name that hosts see or its own.")
@click.option("--query", help="Forget the pairs of this query, and of queries with the same meaning.")
@click.option("--owner", help="Forget the pairs of this client or person, as stats has it.")
@click.option("--all", "everything", is_flag=True, help="Forget all pairs.")
def forget(config: Config, tool: str | None, query: str | None, owner: str | None, everything: bool) -> None:
    """Forget the pairs of a tool, a query or an owner, or all of them."""
    if sum((tool is not None, query is not None, owner is not None, everything)) != 1:
        raise click.UsageError("give exactly one of --tool, --query, --owner and --all")
    with _opened(config) as (tier, model, sessions, _):
        if query is not None:
            gone = tier.forget_query(model.vectors([query])[1][0], query)
        elif owner is not None:
            gone = tier.forget(lambda pair: (pair.owner or EVERYONE) == owner)
        else:
            gone = tier.forget(lambda pair: everything or _is_meant(pair.tool, tool))
            sessions.forget(key for key in sessions.tools() if everything or _is_meant(key, tool))
    results().say(f"Forgot {counted(gone, 'pair')}.")


@contextmanager
def _opened(config: Config) -> Iterator[tuple[LearnedTier, QueryEmbedder, ToolSessionStore, bool]]:
    """Open the learned tier, the model and the tool sessions; also tells whether learning is on."""
    from functools import partial

    from mcp_context_proxy.embedding.embeddings import LazyModel, QueryEmbedder, open_model
    from mcp_context_proxy.learning.tier import LearnedTier

    with open_configured_store(config) as store, closing(LazyModel(partial(open_model, config))) as lazy:
        model, learning = QueryEmbedder(lazy), config.learning
        tier = LearnedTier(model, store.learned, learning.store_queries)
        yield tier, model, store.tool_sessions, learning.enabled


def _is_meant(key: ToolKey, tool: str | None) -> bool:
    return tool in ("__".join(key), key[1])


CHANGES_DAYS: Final = 30
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

    with _opened_approvals(config) as store:
        known = store.approvals.servers()
        if server is not None and server not in {*known, *config.servers, *config.off}:
            raise unknown_server(server, config)
        servers = [server] if server is not None else known
        whole = whole or as_json
        found = {name: changes(store, name, days=CHANGES_DAYS, whole=whole) for name in servers}
    if as_json:
        changed = [_change_data(name, of_server) for name, of_server in found.items() if of_server]
        echo_json({"servers": changed})
        return
    console = results()
    if not any(found.values()):
        console.say("Nothing waits for approval, and nothing has changed lately.")
    for name, of_server in found.items():
        waiting = [change for change in of_server if change.waits]
        for change in of_server:
            _show_change(console, name, change, with_differences or whole or server is not None)
        if waiting and all(change.is_whole for change in waiting):
            digest = hash_of(change.row for change in waiting)
            console.say(f"To approve all {len(waiting)}: mcp-context-proxy approve {name} --hash {digest}")
            console.say()


def _show_change(console: Terminal, server: str, change: Change, with_differences: bool) -> None:
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


def _change_data(server: str, found: list[Change]) -> dict[str, Any]:
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

    with _opened_approvals(config) as store:
        decided = decide(store, server, tools, State(state), by=BY, expected=expected)
    for row in decided:
        note_now(config, "approval", **event_for(row).facts)
    names = ", ".join(one_line(row.name, NAME_CHARACTERS) for row in decided)
    results().say(f"{state.capitalize()} {counted(len(decided), 'definition')} of {server}: {names}.")


@contextmanager
def _opened_approvals(config: Config) -> Iterator[Store]:
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
        wanted = selecting(time.time() - since, server, tool, kind)
        _show_entries(file, wanted, as_json=as_json, follow=follow)
    except OSError as error:
        if error.filename is None:  # of the output
            raise
        raise click.ClickException(f"{file.path} cannot be read: {error.strerror or error}") from None


def _show_entries(
    file: AuditFile, wanted: Callable[[dict[str, Any]], bool], *, as_json: bool, follow: bool
) -> None:
    if as_json and not follow:
        latest = deque(filter(wanted, file.entries()), maxlen=JSON_MOST)
        echo_json({"path": str(file.path), "entries": list(latest)})
        return
    told, ending = list[int](), False
    if follow:
        # A container that ends after the proxy still prints what that has written at its end.
        signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    console, count = results(), 0

    def write(entry: dict[str, Any]) -> None:
        if as_json:
            click.echo(shown(encode(entry).decode()))
        else:
            kind = f"{one_line(entry['kind']):<13}"
            console.say(f"{moment(entry['time'])}  {kind}  {one_line(summary(entry))}")

    for entry in file.follow() if follow else file.entries():
        if entry is None:
            if ending:
                return
            time.sleep(LOOK_SECONDS)
            ending = bool(told)
        elif wanted(entry):
            write(entry)
            count += 1
    if not count:
        console.say("Nothing was recorded in this time.")
    else:
        console.note(f"{count:,} {'entry' if count == 1 else 'entries'} of {file.folder}")


@group("store", default="check")
def store_command() -> None:
    """Look after the store: a file, or a PostgreSQL database for several replicas.

    Without a subcommand, checks it.
    """


@store_command.command("check")
@configured
@json_option
def check(config: Config, as_json: bool) -> None:
    """Show the place of the store, whether it can be used, and who does which job."""
    with open_configured_store(config) as store:
        problem = store.warning
        jobs = [] if problem is not None else store.leases.held()
        rows = {} if problem is not None else _counted(store)
    if as_json:
        held = [{"job": job, "holder": holder, "until": until} for job, holder, until in jobs]
        echo_json({"place": store.place, "problem": problem, "rows": rows, "leases": held})
    else:
        console = results()
        console.say(f"Store: {store.place or 'in memory: nothing is kept'}")
        console.columns([(name, f"{number:,}") for name, number in rows.items()], right=(1,))
        for job, holder, until in jobs:
            console.say(f"{job}: done by {holder} for {max(0.0, until - time.time()):.0f} s more.")
    if problem is not None:
        raise click.ClickException(problem)


@store_command.command("migrate")
@configured
def migrate(config: Config) -> None:
    """Bring the schema of the database to this version.

    Replicas of the version before go on working with it. A file needs no command: it is migrated when it is
    opened.
    """
    from mcp_context_proxy.store.opening import open_store

    with open_store(replace(config.store, migrate="check")) as store:
        before, after = store.database.migrate()
    said = f"is at version {after} already"
    if before != after:
        said = f"was brought from version {before} to {after}" if before else f"is made, at version {after}"
    results().say(f"The schema of {store.place} {said}.")


@store_command.command("copy")
@config_option
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.pass_context
def copy_(ctx: click.Context, config_path: Path | None, source: str, target: str) -> None:
    """Copy everything FROM one store TO another: a file, postgresql://..., or the word configured.

    A copy that was interrupted is simply started again. Nothing should use either store meanwhile.
    """
    from mcp_context_proxy.store.opening import copy, open_store

    def place(given: str) -> StoreConfig:
        if given == CONFIGURED:
            return load_config(ctx, config_path).store
        is_url = given.startswith(("postgresql://", "postgres://"))
        return StoreConfig(url=given) if is_url else StoreConfig(path=str(Path(given).expanduser()))

    if source != CONFIGURED and "://" not in source and not Path(source).expanduser().is_file():
        raise click.BadParameter(f"there is no file {source}", param_hint="FROM")
    with open_store(place(source)) as one, open_store(place(target)) as other:
        for store in (one, other):
            if store.warning is not None:
                raise click.ClickException(store.warning)
        copied = copy(one, other)
    rows = sum(copied.rows.values())
    results().say(f"Copied {counted(rows, 'row')} from {one.place} to {other.place}.")
    if copied.different:
        raise StoreError(
            other.place or "in memory",
            f"not equal in {', '.join(copied.different)}: it had other content before, or one of the two is "
            "in use. Copy into an empty store while nothing uses either",
        )
    results().say("Both have the same content.")


@store_command.command("prune")
@configured
def prune(config: Config) -> None:
    """Delete what is older, or more, than the configuration keeps. A running proxy does that by itself."""
    from mcp_context_proxy.statistics.recorder import forget_old_counts
    from mcp_context_proxy.store.tables import lag_of

    with open_configured_store(config) as store:
        now, lease = time.time(), store.leases.take("prune", 600.0)
        if lease is None:
            results().say("Another process prunes the store at the moment.")
            return
        # Whoever did that until now is refused, and does it again when this has ended.
        store.database.take_upkeep_over()
        lag_of(store.database, leap=True)
        before = sum(_counted(store).values())
        forget_old_counts(store.statistics, config.limits, now)
        store.requests.forget_old(config.limits.requests_kept, now - config.limits.requests_age_seconds)
        kept = config.interactions
        store.interactions.forget_old(kept.keep, now - kept.keep_days * 86_400)
        store.learned.forget_uses()
        store.leases.give_back(lease)
        after = sum(_counted(store).values())
    results().say(f"Deleted {counted(max(before - after, 0), 'row')}; {after:,} are left.")


@store_command.command("person")
@configured
@click.argument("name")
@click.option("--erase", is_flag=True, help="Delete it, too.")
def person(config: Config, name: str, erase: bool) -> None:
    """Print all that the store has of a person, one JSON object on a line.

    NAME is that of a token, or the principal of a person of an issuer, as the audit has it.
    """
    from mcp_context_proxy.store.memory import InteractionScope
    from mcp_context_proxy.store.opening import tables
    from mcp_context_proxy.trust import MARK

    # Beside their own rows they have those of their clients within each profile.
    of_profiles = f"{name} {MARK}"
    found = (name, len(of_profiles), of_profiles)
    owned = {table.name: ("owner", table.columns) for table in tables() if "owner" in table.columns}
    if config.store.url is not None:
        owned["contexts"] = ("principal", ("kind", "principal", "hello", "state", "seen"))
    number, owners = 0, set[str]()
    with open_configured_store(config) as store:
        if store.warning is not None:
            raise click.ClickException(store.warning)
        for table, (owner, columns) in owned.items():
            select = f"SELECT {', '.join(columns)} FROM {table} WHERE {_OF_PERSON.format(owner)}"
            for values in store.database.rows(select, found):
                row = dict(zip(columns, values, strict=True))
                for column in {"context", "hello", "state"} & row.keys():
                    row[column] = Raw(row[column] or b"null")
                click.echo(encode({"table": table, **row}))
                owners.add(row[owner])
                number += 1
        if erase:
            # By way of these, the proxies that run forget them as well.
            store.learned.remove(pair for pair in store.learned.all() if pair.owner in owners)
            for one in owners:
                store.interactions.forget(InteractionScope(owner=one))
            for table, (owner, _) in owned.items():
                store.database.change(f"DELETE FROM {table} WHERE {_OF_PERSON.format(owner)}", found)
            store.database.overwrite_deleted()
    click.echo(f"{'Deleted' if erase else 'Found'} {counted(number, 'row')} of {name}.", err=True)


_OF_PERSON: Final = "({0} = ? OR substr({0}, 1, ?) = ?)"


def _counted(store: Store) -> dict[str, int]:
    from mcp_context_proxy.store.opening import OF_PROCESSES, tables

    names = [table.name for table in tables() if table.name not in OF_PROCESSES]
    return {name: store.database.number(f"SELECT COUNT(*) FROM {name}") for name in names}
