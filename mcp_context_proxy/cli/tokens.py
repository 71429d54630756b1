"""``token``: adds, lists and revokes the named tokens of the HTTP front. A running proxy follows at once."""

from __future__ import annotations

import time
from pathlib import Path

import click

from mcp_context_proxy.cli.options import config_option, configured, echo_json, json_option, open_group
from mcp_context_proxy.cli.terminal import moment, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.items import ToolClass
from mcp_context_proxy.statistics.figures import seconds_of
from mcp_context_proxy.trust.audit import note_now
from mcp_context_proxy.trust.tokens import NamedToken, TokenFile, tokens_path


@click.group("token", invoke_without_command=True)
@config_option
@click.pass_context
def token_command(ctx: click.Context, config_path: Path | None) -> None:
    """Manage the named tokens of those who connect over HTTP.

    Without a subcommand, lists them. A running proxy applies a change within seconds.
    """
    open_group(ctx, config_path, list_tokens)


def _parts(_ctx: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())


def _classes(ctx: click.Context, option: click.Parameter, value: str | None) -> tuple[ToolClass, ...] | None:
    parts = _parts(ctx, option, value)
    if unknown := [part for part in parts or () if part not in list(ToolClass)]:
        raise click.BadParameter(f"{unknown[0]!r} is no class; there are {', '.join(ToolClass)}")
    return None if parts is None else tuple(map(ToolClass, parts))


def _seconds(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else seconds_of(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}") from None


@token_command.command("add")
@click.argument("name")
@configured
@click.option("--servers", callback=_parts, help="Only these servers, separated by commas.")
@click.option("--classes", callback=_classes, help="Only tools of these classes: read,write,destructive.")
@click.option("--expires", callback=_seconds, help="Period after which it expires: 12h, 90d.")
@click.option(
    "--admin", is_flag=True, help="An administrator: without limits, and sees the data of all others."
)
def add(
    config: Config,
    name: str,
    servers: tuple[str, ...] | None,
    classes: tuple[ToolClass, ...] | None,
    expires: int | None,
    admin: bool,
) -> None:
    """Add a token for NAME and print it. It is shown only now: just its hash is kept."""
    if unknown := [server for server in servers or () if server not in config.servers]:
        known = ", ".join(config.servers) or "none"
        raise click.ClickException(f"there is no server {unknown[0]!r}; those configured are: {known}")
    now = time.time()
    until = None if expires is None else now + expires
    file = TokenFile(tokens_path(config))
    token = file.add(name, admin=admin, servers=servers, classes=classes, expires=until, now=now)
    note_now(
        config,
        "token",
        event="added",
        name=name,
        admin=admin,
        servers=None if servers is None else list(servers),
        classes=None if classes is None else [each.value for each in classes],
        expires=until,
    )
    click.echo(token)
    click.echo(
        f"This is the token of {name}; it cannot be shown again. Clients send it as "
        "'Authorization: Bearer TOKEN'.",
        err=True,
    )


@token_command.command("list")
@configured
@json_option
def list_tokens(config: Config, as_json: bool) -> None:
    """List the tokens by name, with their limits. The tokens themselves are not stored."""
    tokens = TokenFile(tokens_path(config)).read()
    if as_json:
        data = [
            {
                "name": one.name,
                "admin": one.admin,
                "servers": one.servers,
                "classes": one.classes,
                "created": one.created,
                "expires": one.expires,
            }
            for one in tokens
        ]
        echo_json({"tokens": data})
        return
    console = results()
    if not tokens:
        console.say("There are no named tokens. `mcp-context-proxy token add NAME` adds one.")
        return
    rows = [("name", "may reach", "created", "expires")]
    rows += [(one.name, _reach(one), moment(one.created), _expiry(one, time.time())) for one in tokens]
    console.columns(rows)


def _reach(token: NamedToken) -> str:
    if token.admin:
        return "everything, as an administrator"
    servers = "all servers" if token.servers is None else ", ".join(token.servers) or "no server"
    return servers if token.classes is None else f"{servers}: {', '.join(token.classes)} tools"


def _expiry(token: NamedToken, now: float) -> str:
    if token.expires is None:
        return "never"
    return moment(token.expires) + ("" if token.is_valid(now) else " (expired)")


@token_command.command("revoke")
@click.argument("name")
@configured
def revoke(config: Config, name: str) -> None:
    """Revoke the token of NAME. Its requests and sessions end within seconds."""
    TokenFile(tokens_path(config)).revoke(name)
    note_now(config, "token", event="revoked", name=name)
    click.echo(f"Revoked the token of {name}.")
