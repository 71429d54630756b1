"""Commands on the replicas of a cluster: ``cluster status`` and ``cluster drain``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mcp_context_proxy.cli.options import (
    config_option,
    configured,
    echo_json,
    json_option,
    open_configured_store,
    open_group,
)
from mcp_context_proxy.cli.terminal import results
from mcp_context_proxy.config import Config

if TYPE_CHECKING:
    from mcp_context_proxy.cluster.tables import ContextTable, ReplicaTable


@click.group("cluster", invoke_without_command=True)
@config_option
@click.pass_context
def cluster_command(ctx: click.Context, config_path: Path | None) -> None:
    """Look after the replicas that share a database.

    Without a subcommand, shows them.
    """
    open_group(ctx, config_path, status)


@cluster_command.command("status")
@configured
@json_option
def status(config: Config, as_json: bool) -> None:
    """Show the replicas, when each gave its last sign of life, and the sessions that it is the home of."""
    with _tables(config) as (replicas, contexts):
        now, rows, homes = replicas.now(), replicas.all(), contexts.by_home()
    found = [
        {
            "replica": row.replica,
            "address": row.address,
            "version": row.version,
            "seconds_ago": round(now - row.seen, 1),
            "draining": bool(row.draining),
            "same_key": row.key_mark == rows[0].key_mark,
            "sessions": homes.get((row.replica, "session"), 0),
        }
        for row in rows
    ]
    handles = sum(number for (_, kind), number in homes.items() if kind == "handle")
    if as_json:
        echo_json({"replicas": found, "contexts": handles})
        return
    console = results()
    if not found:
        console.say("No replica uses this database.")
        return
    lines = [("replica", "address", "version", "seen", "sessions", "")]
    for each in found:
        notes = ["draining"] * bool(each["draining"]) + ["another key"] * (not each["same_key"])
        seen = f"{each['seconds_ago']} s ago"
        name, address, version = str(each["replica"]), str(each["address"]), str(each["version"])
        lines.append((name, address, version, seen, str(each["sessions"]), ", ".join(notes)))
    console.columns(lines, right=(4,))
    console.say(f"Contexts that clients carry (context_id): {handles:,}.")


@cluster_command.command("drain")
@configured
@click.argument("replica")
def drain(config: Config, replica: str) -> None:
    """Have balancers send new clients elsewhere: the REPLICA says that it is not ready, and serves on.

    It takes new clients again when it is started again.
    """
    with _tables(config) as (replicas, _):
        if not replicas.drain(replica, wanted=True):
            raise click.ClickException(f"there is no replica {replica}; see mcp-context-proxy cluster status")
    results().say(f"{replica} is not ready from its next sign of life on.")


@contextmanager
def _tables(config: Config) -> Iterator[tuple[ReplicaTable, ContextTable]]:
    from mcp_context_proxy.cluster.tables import tables_of

    if config.store.url is None:
        raise click.ClickException("replicas share a database; there is no store.url in the configuration")
    with open_configured_store(config) as store:
        yield tables_of(store.database)
