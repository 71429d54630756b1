"""``serve``: the proxy itself.

``ui``: where the page is that shows request contexts, with what a browser needs to be let in.
"""

from __future__ import annotations

import http.client
from functools import partial
from pathlib import Path
from urllib.parse import quote

import anyio
import click

from mcp_context_proxy.cli.options import config_option, load_config
from mcp_context_proxy.config import HttpConfig, load


@click.command("serve")
@config_option
@click.option("--http", is_flag=True, help="Serve over HTTP instead of stdio.")
@click.option("--host", default=None, help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=None, help="Port to listen on.  [default: 8765]"
)
@click.option("--no-auth", is_flag=True, help="Ask for no token; on a loopback address only.")
@click.option(
    "--api-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Beside stdio: port of this machine for the API and the page; with --http they are there anyway.",
)
@click.pass_context
def serve_command(
    ctx: click.Context,
    config_path: Path | None,
    http: bool,
    host: str | None,
    port: int | None,
    no_auth: bool,
    api_port: int | None,
) -> None:
    """Serve hosts over stdio, or over HTTP: /mcp, /sse, /healthz, and the API and page at /api/v1 and /ui."""
    from mcp_context_proxy import app

    if not http and (host is not None or port is not None or (no_auth and api_port is None)):
        raise click.UsageError("--host and --port need --http; --no-auth needs it or --api-port")
    if http and api_port is not None:
        raise click.UsageError("--api-port is for stdio; with --http the API is at the same port")
    overrides = {
        "http.host": host,
        "http.port": port,
        "http.auth": False if no_auth else None,
        "http.api_port": api_port,
    }
    config = load_config(ctx, config_path, overrides)
    # Warnings about the file were given when it was first read.
    load_again = partial(load, config.path, overrides=overrides, warn=_ignore)
    try:
        anyio.run(app.serve, config, app.http_front if http else app.stdio_front, load_again)
    except BaseExceptionGroup as group:
        error = _cause(group)
        if isinstance(error, OSError):
            address = f"{config.http.host}:{config.http.port}"
            raise click.ClickException(f"cannot listen on {address}: {error.strerror or error}") from None
        raise error from None


def _ignore(message: str) -> None:
    del message


def _cause(error: BaseException) -> BaseException:
    """The error itself, out of the groups that the task groups on its way wrapped it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


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
def ui_command(ctx: click.Context, config_path: Path | None, port: int | None) -> None:
    """Print the address of the page that shows what was selected for each request.

    The address holds the token behind a `#`: that part is sent to no server, and the page takes it out at
    once. It is printed and not opened, since other users of the machine can read the arguments of programs.
    """
    from mcp_context_proxy.front.auth import credentials_for

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
