"""``serve``: runs the proxy. ``ui``: prints the address of its page, with the token that the page needs."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click
from msgspec.structs import replace

from mcp_context_proxy.cli import WholeNumber, config_option, load_config, named_path
from mcp_context_proxy.serving import begin_if_new, serve, telling_the_host
from mcp_context_proxy.system.process import leave

if TYPE_CHECKING:
    from mcp_context_proxy.cli.running import RunningProxy

EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that one can listen on but not connect to, and the one of this machine to connect to instead."""

LISTENING = "0A"
"""State of a socket that listens, in the tables of Linux."""

PROBE_SECONDS = 2.0
"""Time limit for a proxy on this machine to answer."""

PAGE_MARK = b" - mcp-context-proxy</title>"
"""Bytes that each page has among its first `PAGE_HEAD`, and no page of another program."""

PAGE_HEAD = 4096


class _ServeCommand(click.Command):
    """Answers a host whose settings have a wrong option, as its log alone would have the reason otherwise."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError:
            with telling_the_host(over_stdio=not {"--http", "--listen-on"} & {*given}):
                raise


@click.command("serve", cls=_ServeCommand)
@config_option
@click.option("--http", is_flag=True, help="Serve over HTTP instead of stdio.")
@click.option("--host", default=None, help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=WholeNumber(0, 65535), default=None, help="Port to listen on.  [default: 8765]")
@click.option("--no-auth", is_flag=True, help="Require no token; allowed on a loopback address only.")
@click.option(
    "--api-port",
    type=WholeNumber(0, 65535),
    default=None,
    help="With stdio: a port of this machine for the API and the page. With --http they share its port.",
)
@click.option("--profile", metavar="NAME", help="With stdio: the profile [clients.NAME] for this host.")
@click.option(
    "--preset", "presets", metavar="NAME", multiple=True, help="With stdio: a preset to begin with."
)
@click.option("--own", is_flag=True, help="With stdio: a proxy for this session alone.")
@click.option("--shared", is_flag=True, hidden=True, help="Share a proxy with other hosts: the default.")
@click.option("--listen-on", default=None, hidden=True)
@click.pass_context
def serve_command(
    ctx: click.Context,
    config_path: Path | None,
    http: bool,
    host: str | None,
    port: int | None,
    no_auth: bool,
    api_port: int | None,
    profile: str | None,
    presets: tuple[str, ...],
    own: bool,
    shared: bool,
    listen_on: str | None,
) -> None:
    """Serve hosts over stdio, or over HTTP: /mcp, /sse, /healthz, and the API and page at /api/v1 and /ui.

    Over stdio, the sessions of all hosts share the proxy that runs for the configuration; the first one
    starts it. On Windows each session has its own.
    """
    if not http and (host is not None or port is not None or (no_auth and api_port is None)):
        raise click.UsageError("--host and --port need --http; --no-auth needs --http or --api-port")
    if shared and (own or http or api_port is not None):
        raise click.UsageError("--shared is for stdio; set http.api_port in the configuration")
    if http and (profile is not None or presets):
        raise click.UsageError("--profile and --preset are for stdio; over HTTP, hosts use /mcp/p/NAME")
    if own and http:
        raise click.UsageError("--own is for stdio; over HTTP, all hosts share one proxy")
    if http and api_port is not None:
        raise click.UsageError("--api-port is for stdio; with --http the API is at the same port")
    overrides = {
        "http.host": host,
        "http.port": port,
        "http.auth": False if no_auth else None,
        "http.api_port": api_port,
    }
    with telling_the_host(over_stdio=not http and listen_on is None):
        if (message := begin_if_new(named_path(ctx, config_path))) is not None:
            click.echo(message, err=True)
        # The log has what is wrong with it.
        config = load_config(ctx, config_path, overrides, complain=False)
        if profile is not None and profile not in config.clients:
            known = ", ".join(config.clients)
            there = f"there are: {known}" if known else "there are none"
            raise click.UsageError(f"--profile: there is no table [clients.{profile}]; {there}")
    serve(config, overrides=overrides, http=http, profile=profile, presets=presets, listen_on=listen_on)
    leave(0)


@click.command("ui")
@config_option
@click.option("--port", type=WholeNumber(1, 65535), help="Port of the proxy.  [default: as configured]")
@click.pass_context
def ui_command(ctx: click.Context, config_path: Path | None, port: int | None) -> None:
    """Print the address of the pages: servers, tools, requests, usage.

    A proxy that serves hosts and no page opens one for this, on a free port of this machine. It is closed
    when the proxy ends, or after an hour without a look at it.

    The address holds the token behind a `#`: that part is sent to no server, and the page removes it at
    once. It is printed and not opened, because other users of the machine can read the arguments of programs.
    """
    from mcp_context_proxy.trust.tokens import credentials_for, credentials_of

    config = load_config(ctx, config_path, complain=False)
    settings = config.http
    if port is not None:
        settings = replace(settings, port=port, api_port=None)
    name = EVERY_ADDRESS.get(settings.host, settings.host)
    host = f"[{name}]" if ":" in name else name
    # On the port beside stdio, or on the HTTP front.
    beside = [] if settings.api_port is None else [f"127.0.0.1:{settings.api_port}"]
    bases = [*beside, f"{host}:{settings.port}"]
    base = next(filter(_has_page, bases), None)
    other = None if base is None else _other_user_at(int(base.rpartition(":")[2]))
    token = None
    if port is None and (base is None or other is not None):
        from mcp_context_proxy.cli.running import AnswerSource

        proxy = AnswerSource(ctx, config_path, fresh=False).running
        if proxy is not None:
            (base, token), other = _opened(proxy), None
            beside = [base]
    if base is None:
        how = "There is one while a host is connected: run this again then"
        if sys.platform == "win32":
            file = config.path or "your config.toml"
            stop = "run mcp-context-proxy stop"
            how = f"For one beside your hosts, write `api_port = 8766` under [http] in {file}, and {stop}"
        raise click.ClickException(
            f"no page is served at {' or '.join(bases)}. {how}. 'mcp-context-proxy serve --http' serves one "
            "without a host; --port names another port"
        )
    if other is not None:
        raise click.ClickException(
            f"user {other} serves the page at {base}, and opening it would give that user your token. If you "
            "mean the proxy of that user, such as that of a service, its address is told there: sudo -u "
            f"{other} mcp-context-proxy ui. If not, choose another http.port, and start a proxy of your own"
        )
    # Tokens of an issuer are for the HTTP front alone.
    if token is None:
        token = (credentials_for(settings) if base in beside else credentials_of(config)).token
    click.echo(f"http://{base}/ui" + (f"#token={quote(token, safe='')}" if token else ""))


def _opened(proxy: RunningProxy) -> tuple[str, str | None]:
    """Have a proxy open its pages; return their address, and their token if it is theirs alone."""
    try:
        opened = proxy.post("/page")
    except click.UsageError:
        raise click.ClickException(
            "the proxy that runs opens no other page. If it serves HTTP, give its port with --port; if it is "
            "older than this program, end it with 'mcp-context-proxy stop'"
        ) from None
    return f"127.0.0.1:{opened['port']}", opened["token"]


def _other_user_at(port: int) -> str | None:
    """Return the user who listens at a port, if it is neither this one nor root, where the system tells."""
    listeners: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, user = line.split()[:8]
                if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                    listeners.add(int(user))
    if not listeners:  # or the system has no such table, and perhaps no numbers of users
        return None
    others = sorted(listeners - {0, os.getuid()})
    if not others:
        return None
    import pwd

    with suppress(KeyError):
        return pwd.getpwuid(others[0]).pw_name
    return f"#{others[0]}"


def _has_page(base: str) -> bool:
    """Return True if the page of a proxy is served there, and not that of another program."""
    import http.client

    connection = http.client.HTTPConnection(base, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", "/ui")
        response = connection.getresponse()
        return response.status == http.HTTPStatus.OK and PAGE_MARK in response.read(PAGE_HEAD)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
