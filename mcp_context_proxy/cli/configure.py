"""Set-up: ``import``, ``add``, ``remove``, ``init``, ``login``, ``logout``, ``secret`` and ``token``.

A value is typed without being shown, or read from the standard input. It is never an argument, which other
programs of the machine could read.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
import time
import webbrowser
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import click
from rich.text import Text

from mcp_context_proxy.cli import (
    CommandGroup,
    Period,
    configuration_path,
    configured,
    echo_json,
    group,
    json_option,
    run,
    shown,
    with_servers,
    written_config_option,
)
from mcp_context_proxy.cli.install import (
    HOSTS_KNOWN,
    InstallError,
    dry_option,
    no_check_option,
    project_option,
    project_places,
    secrets_of,
    show_change,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, moment, results
from mcp_context_proxy.config import Config, ServerConfig, load
from mcp_context_proxy.config.hosts import names_for, servers_place
from mcp_context_proxy.config.settings import SERVER_NAME
from mcp_context_proxy.config.source import parse, plain
from mcp_context_proxy.config.tables import RoleName
from mcp_context_proxy.installation import HOST_PLACES, about, read_text
from mcp_context_proxy.installation.editing import FORMS, entries
from mcp_context_proxy.installation.journal import write
from mcp_context_proxy.installation.plan import (
    FileChange,
    read_configuration,
    rules_of,
    servers_in,
)
from mcp_context_proxy.items import ToolClass
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system import APP, BEGINNING
from mcp_context_proxy.trust.audit import note_now
from mcp_context_proxy.trust.tokens import PERSON, NamedToken, NamedTokens, tokens_of

if TYPE_CHECKING:
    from mcp_context_proxy.installation.editing import Place
    from mcp_context_proxy.oauth import OAuthCredentials
    from mcp_context_proxy.oauth.login import LoginOffer
    from mcp_context_proxy.store.credentials import SharedCredentials


LOGIN_SECONDS: Final = 600.0
"""Time limit for a person to log in."""


@click.command("login")
@click.argument("server")
@configured
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
def login_command(config: Config, server: str, no_browser: bool) -> None:
    """Log in to SERVER, a server at a URL that requires it (OAuth).

    Opens a browser and waits until it is redirected to a port of this machine. The token is kept in a file
    that only you can read, or sealed in the store if cluster.key is set: then for all replicas. A running
    proxy uses it at its next attempt to connect to the server.
    """
    remote = _remote(config, server)
    if any(name.lower() == "authorization" for name in remote.headers):
        raise click.ClickException(
            f"servers.{server}.headers sets Authorization already; remove it to log in instead"
        )
    with _shared(config) as shared:
        if shared is not None and shared.problem is not None:
            raise click.ClickException(f"{shared.problem}. To give up the login to {server}, log out first")
        run(_log_in, config, remote, not no_browser, shared)


@contextmanager
def _shared(config: Config) -> Iterator[SharedCredentials | None]:
    """Open the credentials that replicas share, if this configuration has their key."""
    from mcp_context_proxy.store.credentials import shared_credentials
    from mcp_context_proxy.store.opening import open_store

    if config.cluster.key is None and config.cluster.key_file is None:
        yield None
        return
    with open_store(config.store) as store:
        shared = shared_credentials(config, store)
        if shared is not None:
            shared.look(now=True)
        yield shared


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


async def _log_in(
    whole: Config, config: ServerConfig, with_browser: bool, shared: SharedCredentials | None
) -> None:
    from mcp_context_proxy.errors import AuthorizationError
    from mcp_context_proxy.oauth import Logins, login

    kept, log = Logins(shared).of(config), logging.getLogger(login.__name__)
    # Commands are silent by default, and a person is told what is odd about a login.
    log.setLevel(min(log.getEffectiveLevel(), logging.WARNING))
    if config.oauth is not None and config.oauth.grant == "client_credentials":
        credentials = await login.log_in_as_client(config)
    else:
        before = await anyio.to_thread.run_sync(kept.read_now)
        surprising = False

        async def tell(offer: LoginOffer) -> None:
            nonlocal surprising
            surprising = _print_offer(config, offer, before)

        async def show(address: str) -> None:
            if not with_browser:
                port = urlsplit(waiting.redirect_uri).port
                there = f"ssh -L {port}:127.0.0.1:{port} {platform.node()}"
                click.echo(
                    f"If your browser is on another machine, run there first: {there}\n"
                    "Or paste here the address at which it ends, although it shows no page there."
                )
            # Nothing of it is redacted, even if it looks like a key of the configuration.
            click.echo(f"Open this address to log in to {config.name}:\n\n  {one_line(address)}\n")
            if with_browser and not surprising:
                await anyio.to_thread.run_sync(webbrowser.open, address)

        port = 0 if config.oauth is None else config.oauth.redirect_port
        async with login.listening(config.name, port, None if with_browser else sys.stdin) as waiting:
            with anyio.move_on_after(LOGIN_SECONDS) as scope:
                credentials = await login.log_in(config, waiting, show, tell)
        if scope.cancelled_caught:
            raise AuthorizationError(config.name, f"nobody logged in within {LOGIN_SECONDS:g} s")
    async with kept.renewing():
        if not await anyio.to_thread.run_sync(kept.write, credentials):
            raise AuthorizationError(config.name, "others change its login at the moment; log in again")
    note_now(whole, "login", server=config.name, event="logged in", issuer=credentials.issuer)
    click.echo(
        f"Logged in to {config.name} at {shown(credentials.issuer)}. The token is kept in {kept.place}."
    )


def _print_offer(config: ServerConfig, offer: LoginOffer, before: OAuthCredentials | None) -> bool:
    """Print where a login leads and its scopes; return whether a person would not expect that."""
    from mcp_context_proxy.oauth.token_endpoint import REASON_SHOWN, scopes_beyond

    issuer = one_line(offer.issuer, REASON_SHOWN)
    scopes = f"the scopes {one_line(offer.scope, REASON_SHOWN)}" if offer.scope else "no particular scope"
    click.echo(f"{config.name} wants a login at {issuer}, and asks for {scopes}.")
    changes = []
    if before is not None and before.issuer != offer.issuer:
        changes.append(f"the last login was at {one_line(before.issuer, REASON_SHOWN)}")
    if before is not None and before.scopes and (more := scopes_beyond(offer.scope, before.scopes)):
        changes.append(f"the last login did not have the scopes {more}")
    if offer.is_elsewhere:
        page, redeemer = (one_line(host, REASON_SHOWN) for host in (offer.page, offer.redeemer))
        changes.append(f"its login page is at {page}, and {redeemer} gets what you confirm there")
    for change in changes:
        click.echo(f"WARNING: {change}. Open the address only if you expected that.", err=True)
    return bool(changes)


@click.command("logout")
@click.argument("server")
@configured
def logout_command(config: Config, server: str) -> None:
    """Forget the login to SERVER: revoke its token if possible, and delete it."""
    with _shared(config) as shared:
        run(_log_out, config, _remote(config, server), shared)


async def _log_out(whole: Config, config: ServerConfig, shared: SharedCredentials | None) -> None:
    from mcp_context_proxy.errors import AuthorizationError
    from mcp_context_proxy.oauth import Logins, token_endpoint

    kept = Logins(shared).of(config)
    async with kept.renewing():
        try:
            credentials = await anyio.to_thread.run_sync(kept.read_now)
        except AuthorizationError:
            credentials = None  # sealed with another key
        was_there = await anyio.to_thread.run_sync(kept.delete)
    if not was_there:
        click.echo(f"There was no login to {config.name}.")
        return
    revoked = credentials is not None and await token_endpoint.revoke(config, credentials)
    note_now(whole, "login", server=config.name, event="logged out", revoked=revoked)
    state = "revoked and deleted" if revoked else "deleted, but may stay valid until it expires"
    click.echo(f"Logged out of {config.name}. Its token is {state}.")


@click.group("secret", cls=CommandGroup)
def secret_command() -> None:
    """Keep secrets in the keyring of the system; ${keyring:NAME} in the configuration is the value of one."""


@secret_command.command("set")
@click.argument("name")
def set_secret(name: str) -> None:
    """Store a secret as NAME: typed at the prompt, or read from the standard input."""
    from mcp_context_proxy.config.variables import store_secret

    if sys.stdin.isatty():
        value = click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True)
    else:
        value = sys.stdin.read().rstrip("\r\n")
    if not value:
        raise click.ClickException("the value is empty; nothing was stored")
    store_secret(name, value)
    results().say(f"Stored. Write ${{keyring:{name}}} in the configuration.")


@secret_command.command("list")
@json_option
def list_secrets(as_json: bool) -> None:
    """List the names of the stored secrets."""
    from mcp_context_proxy.config.variables import stored_names

    names = stored_names()
    if as_json:
        echo_json({"secrets": names})
        return
    for name in names:
        results().say(name)
    if not names:
        results().say("No secret is stored.")


@secret_command.command("remove")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def remove_secrets(names: tuple[str, ...]) -> None:
    """Remove secrets from the keyring of the system."""
    from mcp_context_proxy.config.variables import remove_secret

    for name in names:
        remove_secret(name)
    results().say(f"Removed {counted(len(names), 'secret')}.")


@group("token", default="list")
def token_command() -> None:
    """Manage the named tokens of those who connect over HTTP.

    Without a subcommand, lists them. A running proxy applies a change within seconds.
    """


@contextmanager
def _tokens(config: Config) -> Iterator[NamedTokens]:
    with _shared(config) as shared:
        yield tokens_of(config, shared)


def _parts(_ctx: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())


def _classes(ctx: click.Context, option: click.Parameter, value: str | None) -> tuple[ToolClass, ...] | None:
    parts = _parts(ctx, option, value)
    if unknown := [part for part in parts or () if part not in list(ToolClass)]:
        raise click.BadParameter(f"{unknown[0]!r} is no class; there are {', '.join(ToolClass)}")
    return None if parts is None else tuple(map(ToolClass, parts))


@token_command.command("add")
@click.argument("name")
@configured
@click.option("--servers", callback=_parts, help="Only these servers, separated by commas.")
@click.option("--classes", callback=_classes, help="Only tools of these classes: read,write,destructive.")
@click.option("--expires", type=Period(), help="Period after which it expires: 12h, 90d.")
@click.option(
    "--role",
    type=click.Choice(get_args(RoleName)),
    default="use",
    show_default=True,
    help="Rights over the proxy; metrics is for Prometheus, and reads them alone.",
)
def add(
    config: Config,
    name: str,
    servers: tuple[str, ...] | None,
    classes: tuple[ToolClass, ...] | None,
    expires: int | None,
    role: RoleName,
) -> None:
    """Add a token for NAME and print it. It is shown only now: just its hash is kept."""
    with_servers(config, servers or ())
    now = time.time()
    until = None if expires is None else now + expires
    with _tokens(config) as tokens:
        token = tokens.add(name, role=role, servers=servers, classes=classes, expires=until, now=now)
    limits = {
        "servers": None if servers is None else list(servers),
        "classes": None if classes is None else [each.value for each in classes],
    }
    _give(config, name, token, event="added", role=role, **limits, expires=until)


def _give(config: Config, name: str, token: str, *, event: str, **facts: Any) -> None:
    note_now(config, "token", event=event, name=name, **facts)
    click.echo(token)
    told = f"This is the token of {name}; it cannot be shown again."
    click.echo(f"{told} Clients send it as 'Authorization: Bearer TOKEN'.", err=True)


@token_command.command("renew")
@click.argument("name")
@configured
@click.option(
    "--overlap", type=Period(), default="1d", show_default=True, help="Period in which both are accepted."
)
def renew(config: Config, name: str, overlap: int) -> None:
    """Replace the token of NAME by another one with the same rights and lifetime, and print that."""
    with _tokens(config) as tokens:
        token = tokens.renew(name, overlap)
    _give(config, name, token, event="renewed", overlap=overlap)


@token_command.command("list")
@configured
@json_option
def list_tokens(config: Config, as_json: bool) -> None:
    """List the tokens by name, with their limits. The tokens themselves are not stored."""
    with _tokens(config) as kept:
        known = kept.read()
    tokens, people = ([one for one in known if one.is_of_person is kind] for kind in (False, True))
    profiles = {token: name for name, table in config.clients.items() for token in table.tokens}
    if as_json:
        facts = ("name", "role", "servers", "classes", "created", "expires")
        data = ({fact: getattr(one, fact) for fact in facts} for one in tokens)
        listed = [one | {"profile": profiles.get(one["name"])} for one in data]
        echo_json({"tokens": listed, "revoked": {one.name: one.created for one in people}})
        return
    console = results()
    if not known:
        console.say("There are no named tokens. 'mcp-context-proxy token add NAME' adds one.")
        return
    rows, now = [("name", "role", "may reach", "created", "expires")], time.time()
    for one in tokens:
        within = f", within profile {profiles[one.name]}" if one.name in profiles else ""
        rows.append((one.name, one.role, _reach(one) + within, moment(one.created), _expiry(one, now)))
        if now < one.former_expires:
            rows.append(("", "", "with its former token", "", moment(one.former_expires)))
    if tokens:
        console.columns(rows)
    for one in people:
        console.say(f"Tokens of {one.name} from before {moment(one.created)} are refused.")


def _reach(token: NamedToken) -> str:
    if token.role == "metrics":
        return "no server"
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
    """Revoke the token of NAME. Its requests and sessions end within seconds.

    NAME may be the principal of a person, as the audit has it: all tokens of an issuer until now are revoked.
    """
    with _tokens(config) as tokens:
        tokens.revoke(name)
    note_now(config, "token", event="revoked", name=name)
    click.echo(f"Revoked the token{'s until now' if PERSON.fullmatch(name) else ''} of {name}.")


@click.command("import", epilog=HOSTS_KNOWN)
@click.argument("source", metavar="FILE|HOST")
@written_config_option
@project_option
@dry_option
@click.pass_context
def import_command(
    ctx: click.Context, source: str, config_path: Path | None, projects: tuple[str, ...], dry_run: bool
) -> None:
    """Copy the servers of a host, or of a file in the form of any host, into the configuration.

    The host's file stays as it is.
    """
    console = results()
    configuration = read_configuration(configuration_path(ctx, config_path))
    host = HOST_PLACES.get(source)
    file = host.file(os.environ) if host else Path(source)
    with about(file):
        text = read_text(file)
        if text is None:
            other = "nothing to copy" if host else f"give one of: {', '.join(HOST_PLACES)}, or a file"
            raise InstallError(f"{file} does not exist; {other}")
        form = host.form if host else FORMS.get(file.suffix.lower(), "json")
        origin = source if host else file.stem.lstrip(".")
        rules = rules_of(host, text, os.environ) if host else {}
        places: list[Place | None] = [host.place_in(text) if host else _place_in(file, text)]
        has_projects = form == "json" and isinstance(entries("json", text, ()).get("projects"), dict)
    if has_projects:
        places += project_places(console, text, projects)[0]
    for place in places:
        assert place is not None
        found = servers_in(file, text, form, place, os.environ, rules)
        for name, table in found.moving.items():
            before = set(configuration.servers)
            ours = configuration.add(names_for([name])[name], table, origin)
            console.say(f"{one_line(name)}: {'there already' if ours in before else 'copied'} as {ours}")
        for name, reason in found.staying.items():
            console.note(one_line(f"{name} is not copied: {reason}"))
        for note in found.notes:
            console.note(one_line(note))
    if configuration.change is None:
        console.say("Nothing to change.")
    elif dry_run:
        show_change(console, configuration.change)
        console.say("Nothing was changed: --dry-run.")
    else:
        write(configuration.change, private=bool(secrets_of(configuration.servers)))
        console.say(Text(f"Written: {configuration.file}", style="green"))


def _place_in(file: Path, text: str) -> Place:
    place = servers_place(parse(file, plain(text)).tables)
    if place is None:
        raise InstallError(f"{file} has no servers in the form of a host that is known")
    return place


@click.command("add", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("command", metavar="-- COMMAND... | URL", nargs=-1, required=True, type=click.UNPROCESSED)
@written_config_option
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Variable of the program.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header for a URL.")
@no_check_option
@click.pass_context
def add_command(
    ctx: click.Context,
    name: str,
    command: tuple[str, ...],
    config_path: Path | None,
    variables: tuple[str, ...],
    headers: tuple[str, ...],
    no_check: bool,
) -> None:
    """Add a server to the configuration: a command after '--', or a URL.

    Starts it once, and pins the version that ran. Exits with 1 if it does not start; it is added all the
    same. ${VARIABLE} in a value is read when the server starts.
    """
    console, file = results(), configuration_path(ctx, config_path)
    configuration = read_configuration(file)
    if not SERVER_NAME.fullmatch(name):
        raise InstallError(f"{name!r} cannot be the name of a server: letters, digits, _ and - without __")
    if name in configuration.servers:
        raise InstallError(f"there is a server {name} already in {file}; '{APP} remove {name}' removes it")
    table: dict[str, Any] = {}
    if len(command) == 1 and _is_url(name, command[0]):
        table["url"] = command[0]
    else:
        table["command"] = command[0]
        if command[1:]:
            table["args"] = list(command[1:])
    if variables:
        table["env"] = _pairs(variables, "--env")
    if headers:
        table["headers"] = _pairs(headers, "--header")
    same = configuration.add(name, table, "new")
    if name not in configuration.servers:
        raise InstallError(f"the server {same} in {file} is the same")
    change = configuration.change
    assert change is not None
    write(change, private=bool(secrets_of([table])))
    console.say(Text(f"Added to {file}: {name}", style="green"))
    if not no_check:
        ctx.exit(_try_and_pin(console, file, name))


def _is_url(name: str, word: str) -> bool:
    """Return whether a single word is the URL of a server, and no program.

    Raises `InstallError` if it is neither, but nearly one of them.
    """
    if re.match(r"https?://", word, re.IGNORECASE):
        return True
    is_host = re.fullmatch(r"[\w-]+(\.[\w-]+)*\.[A-Za-z]{2,}/[^\s\\]*", word) and not Path(word).exists()
    if re.match(r"[A-Za-z][\w+.-]*://", word) or re.fullmatch(r"[\w.-]+:\d+(/.*)?", word) or is_host:
        raise InstallError(f"{word} is no URL of a server: one begins with http:// or https://")
    if len(words := word.split()) > 1 and not Path(word).exists():
        raise InstallError(
            f"there is no program {word!r}; without the quotes it is {words[0]} with arguments: "
            f"{APP} add {name} -- {word}"
        )
    return False


def _try_and_pin(console: Terminal, file: Path, name: str) -> int:
    """Start a server once, and pin the version that ran; return the exit status."""
    from mcp_context_proxy.cli import pins
    from mcp_context_proxy.cli.check import show, start_once
    from mcp_context_proxy.cli.pins import Level

    verdicts, versions = start_once(load(file, warn=lambda _text: None), [name])
    show(console, verdicts)
    if name in versions:
        pinning = pins.pin(file, versions)
        if pinning.changes:
            write(pinning.change)
            pins.keep_listings(file, versions)
            console.say(f"Pinned to the version that ran: {versions[name][0].pinned(versions[name][2])}")
    if all(verdict.level is not Level.PROBLEM for verdict in verdicts):
        return 0
    console.note(
        f"{name} stays in the configuration although it does not work: correct it there, or "
        f"'{APP} remove {name}' removes it.",
        style="bold red",
    )
    return 1


def _pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        pairs[key] = value
    return pairs


@click.command("remove")
@click.argument("name")
@written_config_option
@click.pass_context
def remove_command(ctx: click.Context, name: str, config_path: Path | None) -> None:
    """Remove a server from the configuration. A running proxy notices it."""
    file = configuration_path(ctx, config_path)
    configuration = read_configuration(file)
    configuration.remove(name)
    change = configuration.change
    assert change is not None
    write(change)
    results().say(Text(f"Removed from {file}: {name}", style="green"))


@click.command("init")
@written_config_option
@click.pass_context
def init_command(ctx: click.Context, config_path: Path | None) -> None:
    """Write a first configuration, unless there is one."""
    file = configuration_path(ctx, config_path)
    if file.exists():
        raise InstallError(f"{file} is there already")
    read_configuration(file)
    write(FileChange(file, None, BEGINNING))
    results().say(Text(f"Written: {file}", style="green"))
