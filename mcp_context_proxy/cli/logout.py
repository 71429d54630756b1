"""``logout``: forgets a login, and has the authorization server forget it."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import click

from mcp_context_proxy.cli.login import remote
from mcp_context_proxy.cli.options import config_option, load_config
from mcp_context_proxy.cli.running import run
from mcp_context_proxy.config import ServerConfig


@click.command("logout")
@click.argument("server")
@config_option
@click.pass_context
def command(ctx: click.Context, server: str, config_path: Path | None) -> None:
    """Forget the login to SERVER: its token is revoked, where that is possible, and deleted."""
    run(_log_out, remote(load_config(ctx, config_path), server))


async def _log_out(config: ServerConfig) -> None:
    from mcp_context_proxy.sdk import load_oauth

    await load_oauth()
    from mcp_context_proxy.authorization import tokens
    from mcp_context_proxy.authorization.credentials import CredentialFile

    file = CredentialFile(config)
    async with file.locked():
        credentials = await anyio.to_thread.run_sync(file.read)
        was_there = await anyio.to_thread.run_sync(file.delete)
    if not was_there:
        click.echo(f"There was no login to {config.name}.")
        return
    revoked = credentials is not None and await tokens.revoke(config, credentials)
    told = "revoked and deleted" if revoked else "deleted; where it was given it may be good until it expires"
    click.echo(f"Logged out of {config.name}. Its token is {told}.")
