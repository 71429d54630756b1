"""``ui``: where the page is that shows request contexts, with what a browser needs to be let in."""

from __future__ import annotations

import http.client
from pathlib import Path
from urllib.parse import quote

import click

from mcp_context_proxy.cli.options import config_option, load_config
from mcp_context_proxy.config import HttpConfig

EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that one can listen on but not connect to, and what this machine connects to instead."""

PATIENCE_SECONDS = 2.0
"""For a proxy on this machine to say that it is there."""


@click.command("ui")
@config_option
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Where the proxy listens.  [default: as configured]"
)
@click.pass_context
def command(ctx: click.Context, config_path: Path | None, port: int | None) -> None:
    """Print the address of the page that shows what was selected for each request.

    The address holds the token behind a `#`: that part is sent to no server, and the page takes it out at
    once. It is printed and not opened, since other users of the machine can read the arguments of programs.
    """
    from mcp_context_proxy.front.token import credentials_for

    settings = load_config(ctx, config_path).http
    if port is not None:
        settings = settings.model_copy(update={"port": port, "api_port": None})
    base = next((base for base in _bases(settings) if _is_served(base)), None)
    if base is None:
        raise click.ClickException(
            f"no proxy answers at {' or '.join(_bases(settings))}: start one with `serve --http`, give the "
            "one that a host starts a port with `http.api_port`, or name another port with --port"
        )
    token = credentials_for(settings).token
    click.echo(f"http://{base}/ui" + (f"#token={quote(token, safe='')}" if token else ""))


def _bases(settings: HttpConfig) -> list[str]:
    """Where the page can be: beside a stdio front, or on the HTTP front."""
    named = EVERY_ADDRESS.get(settings.host, settings.host)
    host = f"[{named}]" if ":" in named else named
    beside = [] if settings.api_port is None else [f"127.0.0.1:{settings.api_port}"]
    return [*beside, f"{host}:{settings.port}"]


def _is_served(base: str) -> bool:
    connection = http.client.HTTPConnection(base, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", "/ui")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
