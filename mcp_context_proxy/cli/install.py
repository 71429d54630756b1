"""``install`` and ``uninstall``: hosts are connected to this proxy, and get their own settings back.

``hook``: a host gives the user's own words to the proxy at each prompt, and the fitting tools to its model.

Each shows what it would change before it does, and keeps a copy of a host's file.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from mcp_context_proxy.cli import (
    CommandGroup,
    config_option,
    configuration_path,
    shown,
    written_config_option,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, results
from mcp_context_proxy.config import default_path, load
from mcp_context_proxy.config.secrets import Redactor, in_json, random_parts, secret_arguments, secrets_in_url
from mcp_context_proxy.errors import ContextProxyError
from mcp_context_proxy.installation import HOST_PLACES, HostPlace, about, hosts_here, read_text
from mcp_context_proxy.installation.editing import FORMS, EditError, entries
from mcp_context_proxy.installation.journal import (
    HOOK_PLACES,
    Journal,
    is_ours_alone,
    kept_copy,
    kept_data,
    write,
)
from mcp_context_proxy.installation.journal import planned as planned_hook
from mcp_context_proxy.installation.plan import Configuration, FileChange, HostPlan, plan, read_configuration
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system import APP

if TYPE_CHECKING:
    from mcp_context_proxy.installation.editing import Place

SECRET_CHARACTERS: Final = 6
"""Length from which a value of a variable or a header is not shown."""
_NAMED_SECRET: Final = re.compile(
    r"""((?:token|secret|passw|pwd|credential|auth|api[-_]?key|access[-_]?key)[\w-]{0,60}["']?\s*[=:]\s*["']?)"""
    r"""(?!\*\*\*|(?:true|false|null)\b|(?:\w+[ ])?(?:\$\{|\[redacted)|[{\[])"""
    r"""(?:(?<=:)-[^"'{}]*(?=\})|[^"',\s]+(?:[ ][^"',\s{}\[\]]+)*)""",
    re.IGNORECASE,
)
"""A value after a name of a secret, such as in a comment, or in a setting beside the servers."""
_OF_SECRETS: Final = re.compile(r"envs?|environment|(?:\w+_)?headers")
"""Keys of tables whose values are secrets, in the forms of hosts."""
_REFERENCE: Final = re.compile(r"\$\{|\{env:|^\$\w+$")
"""A value that names a variable, in the forms of hosts, and is no secret itself."""


class InstallError(ContextProxyError):
    """A command was asked for something that cannot be done; the message says why."""


HOSTS_KNOWN: Final = f"HOST is one of: {', '.join(HOST_PLACES)}"

hosts_argument = click.argument(
    "names",
    metavar="[HOST]...",
    nargs=-1,
    shell_complete=lambda _ctx, _param, begun: [name for name in HOST_PLACES if name.startswith(begun)],
)
yes_option = click.option("--yes", is_flag=True, help="Change the files without asking.")
dry_option = click.option("--dry-run", is_flag=True, help="Show the changes, and change nothing.")
project_option = click.option(
    "--project",
    "projects",
    multiple=True,
    metavar="PATH|all",
    help="Also the servers that Claude Code has for a project, or for all of them.",
)
no_check_option = click.option("--no-check", is_flag=True, help="Do not start servers to test them.")


def _hosts(names: Sequence[str]) -> list[HostPlace]:
    unknown = [name for name in names if name not in HOST_PLACES]
    if unknown:
        known = ", ".join(HOST_PLACES)
        raise click.BadParameter(f"{unknown[0]!r} is not known; known are {known}", param_hint="HOST")
    return [HOST_PLACES[name] for name in dict.fromkeys(names)]


_CACHED: Final = re.compile(
    r"[/\\](?:(?:archive|environments|builds)-v\d+|\.?cache[/\\]pipx|pipx[/\\]\.cache)[/\\]", re.IGNORECASE
)
"""A path in a cache of uv, or of ``pipx run``."""


def own_command(file: Path) -> list[str]:
    """Return the command with which a host starts this proxy: a full path, as hosts lack the shell's PATH.

    Raises `InstallError` for a program that will not stay where it is.
    """
    started = Path(sys.argv[0])
    found = str(started.absolute()) if started.stem == APP and started.exists() else shutil.which(APP)
    if found and _CACHED.search(found):
        raise InstallError(
            f"nothing was changed: this program is a copy in the cache of uvx or pipx, which delete it some "
            f"day, and hosts could not start it then. Install it ('uv tool install {APP}' or 'pipx install "
            f"{APP}'), and run '{APP} install' again"
        )
    program = [found] if found else [sys.executable, "-P", "-m", "mcp_context_proxy"]
    return [*program, "serve", *([] if file == default_path(os.environ) else ["--config", str(file)])]


@click.command("install", epilog=HOSTS_KNOWN)
@hosts_argument
@written_config_option
@project_option
@dry_option
@yes_option
@no_check_option
@click.pass_context
def install_command(
    ctx: click.Context,
    names: tuple[str, ...],
    config_path: Path | None,
    projects: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    no_check: bool,
) -> None:
    """Move the servers of hosts behind this proxy, and connect the hosts to it.

    Without a HOST, those of all hosts on this machine. Shows each change and asks first; keeps a copy of each
    file, which 'uninstall' puts back. Servers that need something only their host can give stay where they
    are.
    """
    console, file = results(), configuration_path(ctx, config_path)
    chosen = _hosts(names) or hosts_here(os.environ)
    if not chosen:
        raise InstallError(
            f"no host was found on this machine; known are {', '.join(HOST_PLACES)}. Name one to connect it "
            f"before its first start, as in '{APP} install claude-code'"
        )
    if projects and all(one.name != "claude-code" for one in chosen):
        raise InstallError(
            f"--project {projects[0]}: only Claude Code has servers for projects; it is not among the hosts"
        )
    configuration = read_configuration(file)
    plans, failed, left = _plans(console, chosen, configuration, projects)
    changes = [one.change for one in plans if one.change]
    if configuration.change:
        console.section("Configuration")
        show_change(console, configuration.change)
    if not changes:
        console.say()
        console.say("Nothing to change." if not failed else "Nothing was changed.")
        ctx.exit(bool(failed))
    moved = dict.fromkeys(name for one in plans for name in one.names.values())
    hosts_changed = dict.fromkeys(one.host.title for one in plans if one.change)
    stay = left + sum(len(one.staying) for one in plans)
    console.section(
        f"{counted(len(moved), 'server')} behind the proxy, for {counted(len(hosts_changed), 'host')}"
        + (
            f"; {stay} {'stays in its host' if stay == 1 else 'stay in their hosts'}, as said above"
            if stay
            else ""
        )
    )
    if dry_run:
        console.say("Nothing was changed: --dry-run.")
        ctx.exit(bool(failed))
    _agree(console, yes, len(changes) + bool(configuration.change))
    # Our configuration first: a host never points to servers that are not there yet.
    if configuration.change:
        write(configuration.change, private=bool(secrets_of(configuration.servers)))
    connected = _connect(console, plans, failed)
    all_start = _try(console, file, moved, no_check)
    if connected:
        console.section("What is left to do")
        console.columns([(host.title, host.restart) for host in connected], indent=2, whole=True)
        console.say()
        if not configuration.servers:
            begin = "install --project all' moves them" if left else "add NAME -- COMMAND...' adds one"
            console.note(f"No server is behind the proxy yet: '{APP} {begin}.", style="bold yellow")
        console.say(f"Back to how it was: {APP} uninstall {' '.join(names)}".rstrip())
    for line in failed:
        console.note(line, style="bold red")
    ctx.exit(bool(failed) or not all_start)


def _connect(console: Terminal, plans: Sequence[HostPlan], failed: list[str]) -> list[HostPlace]:
    """Carry out the plans of hosts, and return the hosts that are connected; add those that cannot be."""
    journal, connected, kept = Journal(), list[str](), False
    for one in plans:
        try:
            kept |= journal.install(one) is not None
        except (OSError, EditError) as error:
            why = f"{error}"
            if isinstance(error, OSError):
                why = f"{error.filename or journal.folder}: {error.strerror or error}"
            failed.append(f"{one.host.title}: nothing was changed: {why}")
            continue
        if one.change:
            connected.append(one.host.name)
    hosts = [HOST_PLACES[name] for name in dict.fromkeys(connected)]
    if hosts:
        console.note(f"Connected: {', '.join(host.title for host in hosts)}", style="green")
    if kept:
        console.say(f"The files as they were are in {journal.folder}")
    return hosts


def _plans(
    console: Terminal, hosts: Iterable[HostPlace], configuration: Configuration, projects: Sequence[str]
) -> tuple[list[HostPlan], list[str], int]:
    """Plan and show each host.

    Return the plans, a sentence for each host that cannot be changed, and how many servers of projects stay.
    """
    plans, failed, left = list[HostPlan](), list[str](), 0
    command = own_command(configuration.file)
    hosts = list(hosts)
    variables = _variables(hosts, configuration)
    for host in hosts:
        file = host.file(os.environ)
        console.section(host.title)
        try:
            with about(file):
                text = read_text(file)
                steps: list[Place | None] = [None]
                if host.name == "claude-code":
                    places, left = project_places(console, text or "", projects)
                    steps += places
                for place in steps:
                    one = plan(host, file, text, configuration, command, os.environ, place, variables)
                    plans.append(one)
                    text = one.change.after if one.change else text
                    _show_plan(console, one)
                for other in host.others(os.environ):
                    console.note(f"{shown(str(other))}: its servers stay; '{APP} import FILE' copies them")
        except EditError as error:
            failed.append(f"{host.title}: {error}")
            console.note(f"{error}", style="bold red")
    return plans, failed, left


def _variables(hosts: Sequence[HostPlace], configuration: Configuration) -> dict[str, bool]:
    """Return the variables that our configuration refers to once the servers of these hosts are in it."""
    trial = Configuration(configuration.file, configuration.before)
    if not any(host.named for host in hosts):
        return {}  # each of them hands over all
    for host in hosts:
        with suppress(OSError, EditError):
            file = host.file(os.environ)
            plan(host, file, read_text(file), trial, [APP], os.environ)
    return trial.variables(os.environ)


def project_places(console: Terminal, text: str, wanted: Sequence[str]) -> tuple[list[Place], int]:
    """Return the places of the servers of Claude Code for projects; tell and count those that stay."""
    known: dict[str, int] = {}
    for name, project in entries("json", text, ("projects",)).items() if text.strip() else ():
        if isinstance(project, dict) and isinstance(servers := project.get("mcpServers"), dict) and servers:
            known[name] = len(servers)
    asked = list(known) if "all" in wanted else [str(Path(one).absolute()) for one in wanted if one != "all"]
    for one in asked:
        if one not in known:
            some = ", ".join(known) or "no project"
            raise InstallError(f"Claude Code has no servers for {one}; it has some for: {some}")
    left = [name for name in known if name not in asked]
    count = sum(known[name] for name in left)
    if left:
        stay, them = ("stays", "it") if count == 1 else ("stay", "them")
        places = counted(len(left), "project")
        console.say(f"{counted(count, 'server')} of {places} {stay}; --project PATH or all moves {them}")
    return [("projects", one, "mcpServers") for one in asked], count


def _show_plan(console: Terminal, one: HostPlan) -> None:
    if one.change is None:
        console.say("Already in place.")
    else:
        show_change(console, one.change)
    for name, ours in one.names.items():
        if name != ours:
            console.say(Text(f"{one_line(name)} is called {ours} behind the proxy"))
    for name, reason in one.staying.items():
        console.note(one_line(f"{name} stays: {reason}"))
    for note in one.notes:
        console.note(one_line(note))


def show_change(console: Terminal, change: FileChange) -> None:
    """Print the lines that change, and some around them, without the secrets of all that is in the file."""
    console.say(Text(str(change.file), style="bold"))
    form = FORMS.get(change.file.suffix.lower(), "json")
    texts = change.before or "", change.after
    secrets = {one for text in texts for one in secrets_of(entries(form, text, ()))}
    forms = {form for one in secrets for form in (one, *in_json(one))}
    longest_first = sorted(forms, key=len, reverse=True)
    for line in change.difference():
        if not line.startswith(("---", "+++", "@@")):
            style = {"+": "green", "-": "red"}.get(line[:1], "dim")
            console.say(Text(shown(_masked(line, longest_first)), style=style))


def secrets_of(data: Any) -> set[str]:
    """Return the values of variables and headers, and secrets in arguments and URLs, wherever they are."""
    found, left = set[str](), [data]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            tables = (one for key, one in value.items() if _OF_SECRETS.fullmatch(str(key)))
            values = (text for one in tables if isinstance(one, dict) for text in one.values())
            found |= {text for text in values if isinstance(text, str)}
            value = [*value.values()]
        inside = value if isinstance(value, list) else []
        left += inside
        texts = [one for one in inside if isinstance(one, str)]
        found |= {secret for _, _, secret in secret_arguments(texts)}
        for text in texts:
            found |= {*random_parts(text), *(secret for _, secret in secrets_in_url(text))}
    return {one for one in found if len(one) >= SECRET_CHARACTERS and not _REFERENCE.search(one)}


def _agree(console: Terminal, yes: bool, files: int) -> None:
    console.say()
    if yes:
        return
    if not sys.stdin.isatty():
        raise InstallError(
            "nothing was changed: there is no terminal to ask on; add --yes, or --dry-run to look"
        )
    click.confirm(f"Change {counted(files, 'file')}?", abort=True)


def _try(console: Terminal, file: Path, names: Iterable[str], no_check: bool) -> bool:
    """Start servers once and print how it went; return True if all work."""
    from mcp_context_proxy.cli.check import show, start_once
    from mcp_context_proxy.cli.pins import Level

    names = list(names)
    if no_check or not names:
        return True
    console.section("Starting each server once")
    config = load(file, warn=lambda _text: None)
    verdicts, _ = start_once(config, names)
    show(console, verdicts)
    broken = {verdict.subject for verdict in verdicts if verdict.level is Level.PROBLEM}
    if broken:
        off = sum(name in config.servers and not config.servers[name].enabled for name in names)
        works = len(names) - len(broken) - off
        console.say()
        console.note(
            f"{works} of {counted(len(names) - off, 'server')} {'works' if works == 1 else 'work'}. "
            "Until you have followed the remedies above, hosts do without the others. "
            f"'{APP} check' tries again.",
            style="bold yellow",
        )
    return not broken


@click.command("uninstall", epilog=HOSTS_KNOWN)
@hosts_argument
@dry_option
@yes_option
@click.option("--purge", is_flag=True, help="Also remove the store, the token and the logins.")
@click.pass_context
def uninstall_command(
    ctx: click.Context, names: tuple[str, ...], dry_run: bool, yes: bool, purge: bool
) -> None:
    """Give hosts their own settings back, byte for byte.

    If a host's file has changed since, the entry of the proxy is removed, and the moved servers are put back.
    The configuration of the proxy stays.
    """
    console, journal = results(), Journal()
    wanted = {host.name for host in _hosts(names)}
    records = [one for one in journal.installations() if not wanted or one[1].host in wanted]
    if not records and not purge:
        console.say("Nothing to undo: no host was connected with 'install'.")
        return
    failed = False
    # The latest first: each step leads to the text that the one before it has left.
    for record, installation in records:
        host = HOST_PLACES.get(installation.host)
        console.section(host.title if host else installation.host)
        try:
            with about(Path(installation.file)):
                undone = journal.undo(record, installation)
                show_change(console, undone.change)
                if not undone.whole:
                    change = "our entry is removed, and the moved servers are put back"
                    anew = "".join(f"; {name} stays, as it is there now" for name in undone.other)
                    console.note(f"The file has changed since: {change}{anew}.")
            if dry_run:
                continue
            if not yes:
                _agree(console, yes, 1)
            undone.carry_out()
            console.say(
                Text(f"{undone.file}: as it was" if undone.whole else str(undone.file), style="green")
            )
        except EditError as error:
            failed = True
            console.note(f"{error}", style="bold red")
    for name, place in HOOK_PLACES.items():
        with suppress(EditError):
            if (not wanted or name in wanted) and planned_hook(place, place.path(os.environ), None):
                removes = f"{APP} hook uninstall {name}"
                console.note(f"The prompt hook of {HOST_PLACES[name].title} stays; '{removes}' removes it.")
    if purge and not failed:
        _purge(console, dry_run, yes)
    ctx.exit(failed)


def _masked(line: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        line = line.replace(secret, "***")
    return _NAMED_SECRET.sub(r"\1***", Redactor(())(line))


def _purge(console: Terminal, dry_run: bool, yes: bool) -> None:
    found = list(kept_data(default_path(os.environ)))
    console.section("Data of the proxy")
    for path in found:
        console.say(str(path))
    if not found:
        console.say("None.")
    elif not dry_run:
        _agree(console, yes, len(found))
        for path in found:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        with suppress(OSError):  # the configuration may lie there
            found[0].parent.rmdir()
        console.say("Removed.")
    if (file := default_path(os.environ)).exists():
        console.say(f"The configuration stays in {file.parent}")


host_argument = click.argument("host", metavar="HOST", type=click.Choice(list(HOOK_PLACES)))
HOOK_HOSTS: Final = f"HOST is one of: {', '.join(HOOK_PLACES)}"


@click.group("hook", cls=CommandGroup)
def hook_command() -> None:
    """Give a host's model, at each prompt, the tools, rules and references that fit the user's own words."""


@hook_command.command("install", epilog=HOOK_HOSTS)
@host_argument
@config_option
@dry_option
@click.pass_context
def install_hook(ctx: click.Context, host: str, config_path: Path | None, dry_run: bool) -> None:
    """Add the hook to the settings of HOST, in place; the file as it was is kept beside it."""
    console, place = results(), HOOK_PLACES[host]
    words = own_command(configuration_path(ctx, config_path))
    at = words.index("serve")
    change = planned_hook(place, place.path(os.environ), [*words[:at], "hook", "run", host, *words[at + 1 :]])
    if change is None:
        console.say("Nothing to change: the hook is there already.")
        return
    if not _shown(console, change, dry_run):
        return
    if change.before is not None:
        kept = kept_copy(change.file)
        if (there := read_text(kept)) != change.before:
            write(FileChange(kept, there, change.before))
    write(change)
    console.say(Text(f"Written: {change.file}", style="green"))
    if place.note:
        console.prose(place.note)
    console.say(f"Back to how it was: {APP} hook uninstall {host}")


@hook_command.command("uninstall", epilog=HOOK_HOSTS)
@host_argument
@dry_option
def uninstall_hook(host: str, dry_run: bool) -> None:
    """Remove the hook from the settings of HOST."""
    console = results()
    place = HOOK_PLACES[host]
    change = planned_hook(place, place.path(os.environ), None)
    if change is None:
        console.say("There is no hook of ours.")
        return
    if not _shown(console, change, dry_run):
        return
    if change.before is not None and is_ours_alone(place, change.before):
        change.file.unlink()
    else:
        write(change)
    kept_copy(change.file).unlink(missing_ok=True)
    console.say(Text(f"Removed from {change.file}", style="green"))


@hook_command.command("run", hidden=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_hook(arguments: tuple[str, ...]) -> None:
    """Answer a hook; see `bridge`. Here, where there are no sockets, with nothing."""
    del arguments


def _shown(console: Terminal, change: FileChange, dry_run: bool) -> bool:
    """Show a change; return whether it is to be carried out."""
    show_change(console, change)
    if dry_run:
        console.say("Nothing was changed: --dry-run.")
    return not dry_run
