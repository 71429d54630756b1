"""``login``: allows the proxy to use a server, in a browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import click

from mcp_context_proxy.cli.options import config_option, load_config
from mcp_context_proxy.cli.running import run
from mcp_context_proxy.config import Config, ServerConfig

LOGIN_SECONDS: Final = 600.0
"""For a person to find the password and say yes."""


@click.command("login")
@click.argument("server")
@config_option
@click.option("--no-browser", is_flag=True, help="Only print the address to open.")
@click.pass_context
def command(ctx: click.Context, server: str, config_path: Path | None, no_browser: bool) -> None:
    """Log in to SERVER, a server at a URL that asks for it (OAuth).

    Opens a browser and waits for it to come back to a port of this machine. The token is kept in a file that
    only you can read. A proxy that is running uses it when it tries the server next.
    """
    config = remote(load_config(ctx, config_path), server)
    if any(name.lower() == "authorization" for name in config.headers):
        raise click.ClickException(
            f"servers.{server}.headers has an Authorization already; remove it to log in instead"
        )
    run(_log_in, config, not no_browser)


def remote(config: Config, name: str) -> ServerConfig:
    """A configured server at a URL.

    Raises:
        click.ClickException: there is none by that name.
    """
    server = config.servers.get(name)
    if server is None:
        known = ", ".join(name for name, server in config.servers.items() if server.url is not None)
        there = f"at a URL are: {known}" if known else "none in it is at a URL"
        raise click.ClickException(f"there is no server {name!r} in {config.path}; {there}")
    if server.url is None:
        raise click.ClickException(f"server {name!r} is a program: it has nowhere to log in")
    return server


async def _log_in(config: ServerConfig, with_browser: bool) -> None:
    from mcp_context_proxy.sdk import load_oauth

    await load_oauth()
    from mcp_context_proxy.authorization import grants, loopback
    from mcp_context_proxy.authorization.credentials import CredentialFile
    from mcp_context_proxy.errors import AuthorizationError

    file = CredentialFile(config)
    if config.oauth is not None and config.oauth.grant == "client_credentials":
        credentials = await grants.prove_ourselves(config)
    else:

        async def send(address: str) -> None:
            click.echo(f"Open this address to log in to {config.name}:\n\n  {address}\n")
            if with_browser:
                await anyio.to_thread.run_sync(webbrowser.open, address)

        port = 0 if config.oauth is None else config.oauth.redirect_port
        async with loopback.listening(config.name, port) as waiting:
            with anyio.move_on_after(LOGIN_SECONDS) as scope:
                person = grants.Person(waiting.redirect_uri, send, waiting.answer)
                credentials = await grants.log_in(config, person)
        if scope.cancelled_caught:
            raise AuthorizationError(config.name, f"nobody logged in within {LOGIN_SECONDS:g} s")
    async with file.locked():
        await anyio.to_thread.run_sync(file.write, credentials)
    click.echo(f"Logged in to {config.name} at {credentials.issuer}. The token is kept in {file.path}.")
