"""``serve``: the proxy itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import click

from mcp_context_proxy.cli.options import config_option, load_config
from mcp_context_proxy.config import load


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
def command(
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
