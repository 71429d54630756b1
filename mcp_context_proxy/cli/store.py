"""``store``: brings the schema of a database up to date, checks, copies and prunes the store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from mcp_context_proxy.cli.options import config_option, configured, echo_json, json_option, open_group
from mcp_context_proxy.cli.terminal import counted, results
from mcp_context_proxy.config import Config, StoreConfig
from mcp_context_proxy.errors import StoreError

if TYPE_CHECKING:
    from mcp_context_proxy.store import Store

CONFIGURED: Final = "configured"
"""Stands for the store of the configuration, so that no password need be on the command line."""


@click.group("store", invoke_without_command=True)
@config_option
@click.pass_context
def store_command(ctx: click.Context, config_path: Path | None) -> None:
    """Look after the store: a file, or a PostgreSQL database for several replicas.

    Without a subcommand, checks it.
    """
    open_group(ctx, config_path, check)


@store_command.command("check")
@configured
@json_option
def check(config: Config, as_json: bool) -> None:
    """Show the place of the store, whether it can be used, and who does which job."""
    with _opened(config.store) as store:
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
        raise StoreError(store.place or "in memory", problem)


@store_command.command("migrate")
@configured
def migrate(config: Config) -> None:
    """Bring the schema of the database to this version.

    Replicas of the version before go on working with it. A file needs no command: it is migrated when it is
    opened.
    """
    with _opened(config.store.model_copy(update={"migrate": "check"})) as store:
        before, after = store.database.migrate()
    said = f"from {before} to {after}" if before != after else f"at {after} already"
    results().say(f"The schema of {store.place} is {said}.")


@store_command.command("copy")
@config_option
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.pass_context
def copy_(ctx: click.Context, config_path: Path | None, source: str, target: str) -> None:
    """Copy everything FROM one store TO another: a file, postgresql://..., or the word configured.

    A copy that was interrupted is simply started again. Nothing should use either store meanwhile.
    """
    from mcp_context_proxy.cli.options import load_config
    from mcp_context_proxy.store.copying import copy

    def place(given: str) -> StoreConfig:
        if given == CONFIGURED:
            return load_config(ctx, config_path).store
        is_url = given.startswith(("postgresql://", "postgres://"))
        return StoreConfig(url=given) if is_url else StoreConfig(path=str(Path(given).expanduser()))

    if source != CONFIGURED and "://" not in source and not Path(source).expanduser().is_file():
        raise click.BadParameter(f"there is no file {source}", param_hint="FROM")
    with _opened(place(source)) as one, _opened(place(target)) as other:
        for store in (one, other):
            if store.warning is not None:
                raise StoreError(store.place or "in memory", store.warning)
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

    with _opened(config.store) as store:
        before, now = sum(_counted(store).values()), time.time()
        lease = store.leases.take("prune", 600.0)
        if lease is None:
            results().say("Another process prunes the store at the moment.")
            return
        forget_old_counts(store.statistics, config.limits, now)
        store.requests.put((), config.limits.requests_kept, now - config.limits.requests_age_seconds)
        kept = config.interactions
        store.interactions.put((), now, kept.keep, now - kept.keep_days * 86_400)
        store.learned.forget_uses()
        store.leases.give_back(lease)
        after = sum(_counted(store).values())
    results().say(f"Deleted {counted(max(before - after, 0), 'row')}; {after:,} are left.")


def _opened(config: StoreConfig) -> Store:
    from mcp_context_proxy.store import open_store

    return open_store(config)


def _counted(store: Store) -> dict[str, int]:
    from mcp_context_proxy.store.copying import OF_PROCESSES, tables

    names = [table.name for table in tables() if table.name not in OF_PROCESSES]
    return {name: store.database.number(f"SELECT COUNT(*) FROM {name}") for name in names}
