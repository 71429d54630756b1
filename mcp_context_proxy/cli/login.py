"""``login`` and ``logout``: get a token for a server in a browser, or revoke and delete it."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import click

from mcp_context_proxy.cli.options import config_option, load_config, run
from mcp_context_proxy.config import Config, ServerConfig

LOGIN_SECONDS: Final = 600.0
"""Time limit for a person to log in."""


@click.command("login")
@click.argument("server")
@config_option
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
@click.pass_context
def login_command(ctx: click.Context, server: str, config_path: Path | None, no_browser: bool) -> None:
    """Log in to SERVER, a server at a URL that requires it (OAuth).

    Opens a browser and waits until it is redirected to a port of this machine. The token is kept in a file
    that only you can read. A running proxy uses it at its next attempt to connect to the server.
    """
    config = _remote(load_config(ctx, config_path), server)
    if any(name.lower() == "authorization" for name in config.headers):
        raise click.ClickException(
            f"servers.{server}.headers sets Authorization already; remove it to log in instead"
        )
    run(_log_in, config, not no_browser)


def _remote(config: Config, name: str) -> ServerConfig:
    server = config.servers.get(name)
    if server is None:
        known = ", ".join(name for name, server in config.servers.items() if server.url is not None)
        there = f"those with a URL are: {known}" if known else "none of its servers has a URL"
        raise click.ClickException(f"there is no server {name!r} in {config.path}; {there}")
    if server.url is None:
        raise click.ClickException(f"server {name!r} is a program: there is no login to it")
    return server


async def _log_in(config: ServerConfig, with_browser: bool) -> None:
    from mcp_context_proxy.system.threads import load_oauth

    await load_oauth()
    from mcp_context_proxy.errors import AuthorizationError
    from mcp_context_proxy.oauth import login
    from mcp_context_proxy.oauth.credentials import CredentialFile

    file = CredentialFile(config)
    if config.oauth is not None and config.oauth.grant == "client_credentials":
        credentials = await login.log_in_as_client(config)
    else:

        async def send(address: str) -> None:
            click.echo(f"Open this address to log in to {config.name}:\n\n  {address}\n")
            if with_browser:
                await anyio.to_thread.run_sync(webbrowser.open, address)

        port = 0 if config.oauth is None else config.oauth.redirect_port
        async with login.listening(config.name, port) as waiting:
            with anyio.move_on_after(LOGIN_SECONDS) as scope:
                person = login.Person(waiting.redirect_uri, send, waiting.answer)
                credentials = await login.log_in(config, person)
        if scope.cancelled_caught:
            raise AuthorizationError(config.name, f"nobody logged in within {LOGIN_SECONDS:g} s")
    async with file.locked():
        await anyio.to_thread.run_sync(file.write, credentials)
    click.echo(f"Logged in to {config.name} at {credentials.issuer}. The token is kept in {file.path}.")


@click.command("logout")
@click.argument("server")
@config_option
@click.pass_context
def logout_command(ctx: click.Context, server: str, config_path: Path | None) -> None:
    """Forget the login to SERVER: revoke its token if possible, and delete it."""
    run(_log_out, _remote(load_config(ctx, config_path), server))


async def _log_out(config: ServerConfig) -> None:
    from mcp_context_proxy.system.threads import load_oauth

    await load_oauth()
    from mcp_context_proxy.oauth import token_endpoint
    from mcp_context_proxy.oauth.credentials import CredentialFile

    file = CredentialFile(config)
    async with file.locked():
        credentials = await anyio.to_thread.run_sync(file.read)
        was_there = await anyio.to_thread.run_sync(file.delete)
    if not was_there:
        click.echo(f"There was no login to {config.name}.")
        return
    revoked = credentials is not None and await token_endpoint.revoke(config, credentials)
    state = "revoked and deleted" if revoked else "deleted, but may stay valid until it expires"
    click.echo(f"Logged out of {config.name}. Its token is {state}.")
