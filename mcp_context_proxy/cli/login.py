"""``login`` and ``logout``: get a token for a server in a browser, or revoke and delete it."""

from __future__ import annotations

import webbrowser
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import click

from mcp_context_proxy.cli.options import configured, run, shown
from mcp_context_proxy.config import Config, ServerConfig
from mcp_context_proxy.trust.audit import note_now

if TYPE_CHECKING:
    from mcp_context_proxy.oauth.credentials import OAuthCredentials
    from mcp_context_proxy.oauth.login import LoginOffer

LOGIN_SECONDS: Final = 600.0
"""Time limit for a person to log in."""


@click.command("login")
@click.argument("server")
@configured
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
def login_command(config: Config, server: str, no_browser: bool) -> None:
    """Log in to SERVER, a server at a URL that requires it (OAuth).

    Opens a browser and waits until it is redirected to a port of this machine. The token is kept in a file
    that only you can read. A running proxy uses it at its next attempt to connect to the server.
    """
    remote = _remote(config, server)
    if any(name.lower() == "authorization" for name in remote.headers):
        raise click.ClickException(
            f"servers.{server}.headers sets Authorization already; remove it to log in instead"
        )
    run(_log_in, config, remote, not no_browser)


def _remote(config: Config, name: str) -> ServerConfig:
    server = config.servers.get(name)
    if name in config.off:
        raise click.ClickException(f"server {name!r} is off: {config.off[name]}")
    if server is None:
        known = ", ".join(name for name, server in config.servers.items() if server.url is not None)
        there = f"those with a URL are: {known}" if known else "none of its servers has a URL"
        raise click.ClickException(f"there is no server {name!r} in {config.path}; {there}")
    if server.url is None:
        raise click.ClickException(f"server {name!r} is a program: there is no login to it")
    return server


async def _log_in(whole: Config, config: ServerConfig, with_browser: bool) -> None:
    from mcp_context_proxy.system.threads import load_oauth

    await load_oauth()
    from mcp_context_proxy.errors import AuthorizationError
    from mcp_context_proxy.oauth import login, loopback
    from mcp_context_proxy.oauth.credentials import CredentialFile

    file = CredentialFile(config)
    if config.oauth is not None and config.oauth.grant == "client_credentials":
        credentials = await login.log_in_as_client(config)
    else:
        before = await anyio.to_thread.run_sync(file.read)
        surprising = False

        async def tell(offer: LoginOffer) -> None:
            nonlocal surprising
            surprising = _tell(config, offer, before)

        async def show(address: str) -> None:
            click.echo(f"Open this address to log in to {config.name}:\n\n  {shown(address)}\n")
            if with_browser and not surprising:
                await anyio.to_thread.run_sync(webbrowser.open, address)

        port = 0 if config.oauth is None else config.oauth.redirect_port
        async with loopback.listening(config.name, port) as waiting:
            with anyio.move_on_after(LOGIN_SECONDS) as scope:
                credentials = await login.log_in(config, waiting, show, tell)
        if scope.cancelled_caught:
            raise AuthorizationError(config.name, f"nobody logged in within {LOGIN_SECONDS:g} s")
    async with file.locked():
        await anyio.to_thread.run_sync(file.write, credentials)
    note_now(whole, "login", server=config.name, event="logged in", issuer=credentials.issuer)
    click.echo(
        f"Logged in to {config.name} at {shown(credentials.issuer)}. The token is kept in {file.path}."
    )


def _tell(config: ServerConfig, offer: LoginOffer, before: OAuthCredentials | None) -> bool:
    """Print where a login leads and its scopes; return whether that has changed since the last one."""
    from mcp_context_proxy.oauth.token_endpoint import REASON_SHOWN, scopes_beyond
    from mcp_context_proxy.protocol.strangers import one_line

    issuer = one_line(offer.issuer, REASON_SHOWN)
    scopes = f"the scopes {one_line(offer.scope, REASON_SHOWN)}" if offer.scope else "no particular scope"
    click.echo(f"{config.name} wants a login at {issuer}, and asks for {scopes}.")
    changes = []
    if before is not None and before.issuer != offer.issuer:
        changes.append(f"the last login was at {one_line(before.issuer, REASON_SHOWN)}")
    if before is not None and before.scope and (more := scopes_beyond(offer.scope, before.scope)):
        changes.append(f"the last login did not have the scopes {more}")
    for change in changes:
        click.echo(f"WARNING: {change}. Open the address only if you expected that.", err=True)
    return bool(changes)


@click.command("logout")
@click.argument("server")
@configured
def logout_command(config: Config, server: str) -> None:
    """Forget the login to SERVER: revoke its token if possible, and delete it."""
    run(_log_out, config, _remote(config, server))


async def _log_out(whole: Config, config: ServerConfig) -> None:
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
    note_now(whole, "login", server=config.name, event="logged out", revoked=revoked)
    state = "revoked and deleted" if revoked else "deleted, but may stay valid until it expires"
    click.echo(f"Logged out of {config.name}. Its token is {state}.")
