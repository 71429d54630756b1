"""``check``: finds all problems of a set-up in one go, each with a remedy.

Every configured server is started once. A server that works may still get a warning, such as one without a
pinned version, which becomes another program whenever its author publishes one.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace
from rich.text import Text

from mcp_context_proxy.catalog.documents import Loaded, load_documents
from mcp_context_proxy.catalog.files import hidden_places
from mcp_context_proxy.cli import (
    config_option,
    echo_json,
    json_option,
    load_config,
    open_configured_store,
    pins,
    run,
    terminal,
    with_servers,
)
from mcp_context_proxy.cli.install import show_change
from mcp_context_proxy.cli.pins import (
    LOGIN,
    Level,
    Verdict,
    Versions,
    remedy_for,
    unpinned,
    version_that_runs,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, duration, marked, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.hosts import from_host
from mcp_context_proxy.config.programs import differs_from_shell
from mcp_context_proxy.config.secrets import names_secret
from mcp_context_proxy.config.source import Mistake, read
from mcp_context_proxy.downstream.fleet import failure, last_output, strays, working_folder
from mcp_context_proxy.errors import ConfigError, ConfigProblem, Fault, ModelError, StoreError, some_of
from mcp_context_proxy.installation.editing import EditError
from mcp_context_proxy.items import Document, IncludeMode, Kind, Tool, ToolClass, TurnedOffTool
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, one_line
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import in_thread

if TYPE_CHECKING:
    from mcp_context_proxy.app.proxy import Proxy
    from mcp_context_proxy.config.host_profiles import HostProfile
    from mcp_context_proxy.downstream.client import DownstreamClient
    from mcp_context_proxy.retrieval.keyword_stuffing import Suspicion

VARIABLES_NAMED: Final = 3
"""Variables that a remedy names; a shell has dozens."""

VARIABLE: Final = pattern(r"\b[A-Za-z_]\w*")
"""A word of a program's output that may be a variable."""

APPLIES: Final = {IncludeMode.ALWAYS: "in every context", IncludeMode.MANUAL: "only by hand"}

TAKEN_DAYS: Final = 7
"""Days for which a change that was taken without a person is repeated."""

LEAST_FREE: Final = 64 * 1024
"""Free bytes below which a disk is full: SQLite needs half of it to begin."""

ENVIRONMENT: Final = "environment"
"""Subject of the verdict about the variables that servers do not get."""

STUFFING: Final[Mapping[Suspicion, tuple[str, str]]] = {
    "requests": ("its descriptions read like requests", "descriptions should say what a tool does"),
    "names": (
        "the names of its tools have nothing to do with their descriptions",
        "a name should have a word of the description",
    ),
}
"""Reason and remedy of a suspicion of keyword stuffing."""

UNPINNED: Final = "not pinned, so that the newest version runs at each start"
TO_PIN: Final = "mcp-context-proxy check --pin writes the versions that run into the configuration"

STYLES: Final = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


@click.command("check")
@click.argument("names", metavar="[SERVER...]", nargs=-1)
@config_option
@click.option("--strict", is_flag=True, help="Exit with 1 on warnings, too.")
@click.option("--host", metavar="NAME", help="Say what this host cuts, drops or refuses, such as cursor.")
@click.option(
    "--as",
    "server_name",
    metavar="NAME",
    help="Name of the proxy in the settings of that host, if you changed it.",
)
@click.option("--pin", is_flag=True, help="Write the versions that just ran into the configuration.")
@click.option("--host-file", is_flag=True, help="With --pin: also into a file that belongs to a host.")
@click.option("--offline", is_flag=True, help="Look at the file alone: start nothing and fetch no secret.")
@json_option
@click.pass_context
def check_command(
    ctx: click.Context,
    names: tuple[str, ...],
    config_path: Path | None,
    strict: bool,
    host: str | None,
    server_name: str | None,
    pin: bool,
    host_file: bool,
    offline: bool,
    as_json: bool,
) -> None:
    """Check the configuration, the model, the store and the documents, and start each SERVER once; else all.

    With --host, say also what that host makes of names, descriptions, lists and results. --offline looks at
    the configuration and the documents alone. Exits with 1 on problems, with --strict also on warnings.
    """
    if host_file and not pin:
        raise click.UsageError("--host-file needs --pin, which it lets write into the file of a host")
    if offline and (pin or host):
        raise click.UsageError("--offline starts no server, so that there is nothing for --pin and --host")
    if names and (host or offline):
        raise click.UsageError("--host and --offline are about all servers")
    console, profile = Terminal(io.StringIO()) if as_json else results(), _profile(host, server_name)
    skipped, verdicts, found = list[str](), list[Verdict](), list[Verdict]()
    unknown = dict[str, None]() if offline else None
    config: Config | None = None
    versions: Versions = {}
    try:
        config = load_config(ctx, config_path, complain=False, skipped=skipped, unknown=unknown)
        config = with_servers(config, names) if names else config
        verdicts += (*_configuration(config), *_dollars(config, offline))
        if unknown:
            message = f"not set here, or not fetched, and assumed to be right: {some_of([*unknown])}"
            verdicts.append(Verdict(Level.NOTE, "config", message))
        verdicts += (
            Verdict(Level.OK if note.endswith("is skipped") else Level.WARNING, "config", note)
            for note in skipped
        )
        if not offline:
            verdicts += (_model(config), _store(config), _audit(config), *_disk(config), *_folders(config))
        show(console, verdicts)
        if offline:
            # Others are those whose place is not known here.
            there = replace(config, documents=tuple(one for one in config.documents if one.path.exists()))
            found += _documents(there, load_documents(there.documents, config.limits))
            found += (Verdict(Level.WARNING, name, UNPINNED, TO_PIN) for name in _unpinned(config))
        else:
            started = start_once(config, config.servers) if names else None
            found, versions = started or (run(_check_proxy, config, profile, versions), versions)
            found += _pins(console, config, versions, writing=pin, host_file=host_file)
    except StoreError as error:
        config, found = None, [Verdict(Level.PROBLEM, "store", str(error))]
    except ConfigError as error:
        config, found = (
            None,
            [Verdict(Level.PROBLEM, "config", str(one), problem=one) for one in error.problems],
        )
    show(console, found)
    verdicts += found
    status = _summary(console, verdicts, None if offline else config, strict)
    if as_json:
        echo_json(_data(verdicts, config, status))
    ctx.exit(status)


def _data(verdicts: Sequence[Verdict], config: Config | None, status: int) -> dict[str, Any]:
    """Return the outcome as data, with file and line of each finding that has some."""
    source, findings = None, []
    with suppress(ConfigError):  # it may have been changed meanwhile
        source = None if config is None or config.path is None else read(config.path)
        source = from_host(source, lambda _: None)[0] if source is not None and source.of_host else source
    for one in verdicts:
        place = one.problem
        if place is None and source is not None and config is not None and one.subject in config.servers:
            place = source.problem(Mistake(("servers", one.subject), one.message))
        findings.append(
            {
                "level": one.level.lower(),
                "subject": one.subject,
                "message": one.message if one.problem is None else one.problem.message,
                "remedy": one.remedy or (one.problem.remedy if one.problem else ""),
                "output": list(one.output),
                "file": None if place is None or place.file is None else str(place.file),
                "line": None if place is None else place.line,
                "key": None if place is None else place.key,
            }
        )
    counts = Counter(one.level for one in verdicts)
    problems, warnings = counts[Level.PROBLEM], counts[Level.WARNING]
    return {"ok": status == 0, "problems": problems, "warnings": warnings, "findings": findings}


def _profile(host: str | None, server_name: str | None) -> HostProfile | None:
    """Return the profile of the host that `check` is for, with the name that the proxy has there."""
    from mcp_context_proxy.config.host_profiles import HOSTS, host_named

    if host is None:
        if server_name is not None:
            raise click.UsageError("--as needs --host: it is the name of the proxy in the settings of a host")
        return None
    profile = host_named(host)
    if profile is None:
        raise click.BadParameter(f"{host!r} is not known; known are {', '.join(HOSTS)}", param_hint="--host")
    return profile if server_name is None else replace(profile, server=server_name)


def _pins(
    console: Terminal, config: Config, versions: Versions, *, writing: bool, host_file: bool
) -> list[Verdict]:
    """Write the `versions` that ran if that is wanted; return the messages about pins that are left."""
    if not (open_ended := _unpinned(config)):
        return []
    told = [f"{name} (now {versions[name][2]})" if name in versions else name for name in open_ended]
    if not writing or config.path is None:
        return [Verdict(Level.WARNING, "pins", f"{UNPINNED}: {', '.join(told)}", TO_PIN)]
    try:
        pinning = pins.pin(config.path, versions)
        of_host = read(config.path).of_host and not host_file
        backup = pins.write_keeping(pinning.change) if pinning.changes and not of_host else None
    except EditError as error:
        return [Verdict(Level.PROBLEM, "pins", str(error))]
    except (OSError, ConfigError) as error:
        reason = error.strerror or "it cannot be read" if isinstance(error, OSError) else str(error)
        return [Verdict(Level.PROBLEM, "pins", f"{config.path}: {reason}")]
    if pinning.changes:
        show_change(console, pinning.change)
    if of_host and pinning.changes:
        remedy = "change these lines yourself, or add --host-file"
        return [Verdict(Level.WARNING, "pins", f"{config.path} belongs to a host: nothing written", remedy)]
    verdicts = []
    if backup is not None:
        pins.keep_listings(config.path, versions)
        verdicts.append(Verdict(Level.OK, "pins", f"written; the file as it was: {backup}"))
    if by_hand := [name for name in open_ended if name not in versions or name in pinning.by_hand]:
        remedy = "its version cannot be told or written: pin it by hand"
        verdicts.append(Verdict(Level.WARNING, "pins", f"{UNPINNED}: {', '.join(by_hand)}", remedy))
    return verdicts


def _unpinned(config: Config) -> list[str]:
    return [name for name, server in config.servers.items() if server.enabled and unpinned(server)]


def _configuration(config: Config) -> Iterator[Verdict]:
    from mcp_context_proxy.trust.tokens import open_front

    yield Verdict(Level.OK, "config", str(config.path))
    for problem in config.mistakes:
        until = "until then, it counts as not given"
        yield Verdict(Level.PROBLEM, "config", str(problem), until, problem=problem)
    if open_to_others := open_front(config.http):
        yield Verdict(Level.PROBLEM, "config", str(open_to_others), "until then, serve --http does not start")
    for name, off in config.off.items():
        for problem in off.problems:
            cause = replace(problem, remedy="")
            yield Verdict(Level.PROBLEM, name, f"off: {cause}", problem.remedy, problem=problem)


def _model(config: Config) -> Verdict:
    from mcp_context_proxy.embedding.embeddings import open_model

    try:
        model = open_model(config)
        model.embed_queries(["a query"])
        facts = f"{model.model_id}, {model.dimensions} dimensions"
        model.close()
    except ModelError as error:
        return Verdict(Level.PROBLEM, "model", str(error), "until then, search uses words alone")
    return Verdict(Level.OK, "model", facts)


def _store(config: Config) -> Verdict:
    with open_configured_store(config) as store:
        if store.warning is not None:
            return Verdict(Level.WARNING if store.place else Level.PROBLEM, "store", store.warning)
        return Verdict(Level.OK, "store", store.place or "in memory: nothing is kept")


def _audit(config: Config) -> Verdict:
    from mcp_context_proxy.trust.audit import audit_file

    file = audit_file(config)
    if file is None:
        return Verdict(Level.OK, "audit", "off: no record of calls is kept")
    if (fault := file.fault()) is not None:
        return Verdict(Level.PROBLEM, "audit", fault, "calls go on, and are not recorded")
    return Verdict(Level.OK, "audit", str(file.path))


def _disk(config: Config) -> Iterator[Verdict]:
    """Yield a message if there is no room for the data of the proxy."""
    from mcp_context_proxy.trust.audit import state_folder

    folder = state_folder(config)
    with suppress(OSError):  # of a folder that cannot be used, others tell
        if folder is not None and (free := shutil.disk_usage(folder).free) < LEAST_FREE:
            message = f"the disk with {folder} is full: {free:,} bytes are free"
            yield Verdict(Level.PROBLEM, "disk", message, "calls go on, and nothing new is kept")


def _folders(config: Config) -> Iterator[Verdict]:
    """Yield the folders in which servers start: their programs may read files there."""
    servers: dict[str, list[str]] = {}
    for name, server in config.servers.items():
        if server.enabled and (folder := working_folder(server)):
            servers.setdefault(folder, []).append(name)
    for folder, names in servers.items():
        verb = "starts" if len(names) == 1 else "start"
        yield Verdict(Level.OK, "folder", f"{', '.join(names)} {verb} in {folder}")


def _dollars(config: Config, offline: bool) -> Iterator[Verdict]:
    """Yield variables written for a shell, where no shell reads them; offline, each name in capitals."""
    for name, server in config.servers.items():
        texts = (*server.args, *server.env.values(), *server.headers.values())
        names = dict.fromkeys(one for text in texts for one in _DOLLAR.findall(text))
        found = [one for one in names if one in os.environ or (offline and one.isupper())]
        if found and PurePath(server.command or "").name not in {"sh", "bash", "zsh"}:
            message = f"no braces around {some_of(found)}: passed on as written, and not its value"
            yield Verdict(Level.WARNING, name, message, "write ${NAME} for the value of a variable")


_DOLLAR: Final = re.compile(r"(?<![$\\])\$([A-Za-z_]\w*)")
"""Its name is told without the sign: the whole may be the literal value of a secret, which is redacted."""


async def _check_proxy(config: Config, host: HostProfile | None, versions: Versions) -> list[Verdict]:
    """Start every server once; fill in the `versions` of those that run without a pinned one."""
    from mcp_context_proxy.app.serve import open_proxy

    # Every server is started, even one that would otherwise start at its first call.
    awake = {"start": "eager", "idle_timeout": None}
    servers = {name: replace(server, **awake) for name, server in config.servers.items()}
    async with open_proxy(replace(config, servers=servers)) as proxy:
        seconds = await terminal.settle(proxy)
        verdicts = list(_documents(config, proxy.library.loaded, proxy.contexts.costs.of))
        failed: list[DownstreamClient] = []
        for name, server in config.servers.items():
            client = proxy.fleet.clients.get(name)
            if client is None:
                by = f" by {place}" if (place := server.places.get("enabled")) else ""
                verdicts.append(Verdict(Level.OK, name, f"switched off{by}"))
                continue
            snapshot = proxy.catalog.snapshot
            offered = [tool for tool in snapshot.tools.values() if tool.server == name]
            off = [tool for tool in snapshot.turned_off.values() if tool.server == name]
            verdicts.append(await _server(client, offered, len(off), seconds[name]))
            # A variable may explain why a program does not work where nothing that it said does.
            silent = client.fault in {Fault.EXITED, Fault.SILENT, Fault.REFUSED} and not client.remedy
            if verdicts[-1].level is Level.PROBLEM and silent and server.command is not None:
                failed.append(client)
            verdicts += (Verdict(Level.OK, name, remark) for remark in server.remarks)
            verdicts += _turned_off(name, off)
            if (missing := unpinned(server)) is not None and client.connected is not None:
                group = client.connected.process_group
                version = await in_thread(partial(version_that_runs, server, missing, group))
                if version is not None:
                    versions[name] = (missing, server, version)
        verdicts += _variables(failed)
        from mcp_context_proxy.web.inventory import remarks_together

        for name, message in remarks_together(proxy):
            verdicts.append(Verdict(Level.WARNING, name or "catalog", message))
        with suppress(StoreError):  # the verdict about the store tells of it
            verdicts += await in_thread(lambda: [*_taken_lately(proxy)])
        verdicts += await _copies(proxy)
        verdicts += await pins.issuer(config)
        verdicts += _suspected(proxy)
        verdicts += pins.profiles(proxy)
        if host is None:
            verdicts += pins.names(proxy)
        else:
            effects = pins.effects(proxy, host)
            verdicts += (replace(one, subject=f"{host.title}: {one.subject}") for one in effects)
        reranking = await proxy.search.reranker.try_model()
        if reranking is not None and reranking.used:
            answered = f"{reranking.reason}, answered in {duration(reranking.seconds * 1000)}"
            verdicts.append(Verdict(Level.OK, "rerank", answered))
        elif reranking is not None:
            remedy = "until then, search alone orders the tools"
            verdicts.append(Verdict(Level.WARNING, "rerank", reranking.reason, remedy))
    if not config.servers and not config.off:
        remedy = (
            "mcp-context-proxy install moves those of your hosts here; mcp-context-proxy add NAME -- COMMAND "
            "adds one"
        )
        verdicts.append(Verdict(Level.WARNING, "servers", "none is configured", remedy))
    return verdicts


def _documents(
    config: Config, loaded: Loaded, cost: Callable[[Document], int] | None = None
) -> Iterator[Verdict]:
    documents = loaded.documents
    if config.documents:
        rules = sum(document.kind is Kind.RULE for document in documents)
        found = f"{counted(rules, 'rule')}, {counted(len(documents) - rules, 'reference')}"
        yield Verdict(Level.OK if documents else Level.WARNING, "documents", found)
        when: dict[str, list[Document]] = {}
        for one in documents:
            if said := APPLIES.get(one.include) or ("for files" if one.patterns else ""):
                when.setdefault(said, []).append(one)
        for said, those in when.items():
            tokens = sum(map(cost, those)) if cost and said == APPLIES[IncludeMode.ALWAYS] else 0
            names = some_of([one_line(one.name, NAME_CHARACTERS) for one in those])
            yield Verdict(Level.OK, "documents", f"{said}{f' ({tokens:,} tokens)' * bool(tokens)}: {names}")
    if hidden := hidden_places(folder.path.absolute() for folder in config.documents):
        said = "hidden and so not read; give each that you want an entry"
        yield Verdict(Level.OK, "documents", f"{said}: {some_of([*map(str, hidden)])}")
    for finding in loaded.findings:
        problem = ConfigProblem(finding.file, finding.line, "", finding.message)
        yield Verdict(Level.WARNING, "documents", str(finding), problem=problem)


def _turned_off(server: str, tools: Iterable[TurnedOffTool]) -> Iterator[Verdict]:
    by_reason: dict[str, list[str]] = {}
    for tool in tools:
        by_reason.setdefault(tool.reason, []).append(one_line(tool.name, NAME_CHARACTERS))
    for reason, names in by_reason.items():
        yield Verdict(Level.OK, server, f"turned off {reason}: {some_of(names)}")


def _taken_lately(proxy: Proxy) -> Iterator[Verdict]:
    """Yield a line for each server whose changes were taken although nobody has looked at them."""
    from mcp_context_proxy.trust.decisions import changes

    for name in proxy.fleet.clients:
        taken = [one for one in changes(proxy.store, name, days=TAKEN_DAYS) if one.taken_by_mode]
        if taken:
            names = some_of([one_line(one.row.name, NAME_CHARACTERS) for one in taken])
            message = f"changed or new in the last {TAKEN_DAYS} days, and taken: {names}"
            yield Verdict(Level.OK, name, message, f"look: mcp-context-proxy changes {name}")


async def _copies(proxy: Proxy) -> list[Verdict]:
    """Index everything; return a line for each server whose tools say the same as those of an older one."""
    from mcp_context_proxy.retrieval.engine import copies, younger_servers

    snapshot = proxy.catalog.snapshot
    comparable = bool(younger_servers(snapshot))
    # With the vectors in the store, the first search of a host embeds its query alone.
    if comparable or proxy.store.place is not None:
        await terminal.index(proxy)
    if not comparable:
        return []
    by_servers: dict[tuple[str, str], list[str]] = {}
    for copy in await in_thread(lambda: [*copies(proxy.search.engine.index_of(snapshot))]):
        name, original = (one_line(one.exposed_name, NAME_CHARACTERS) for one in (copy.tool, copy.original))
        by_servers.setdefault((copy.tool.server, copy.original.server), []).append(f"{name} as {original}")
    remedy = "searches put them after those; if only one server is wanted, turn the other off"
    verdicts = []
    for (server, older), pairs in by_servers.items():
        message = f"says nearly the same as {older}, which was there before: {some_of(pairs)}"
        verdicts.append(Verdict(Level.WARNING, server, message, remedy))
    return verdicts


def _dangers(tools: Sequence[Tool]) -> str:
    classes = Counter(tool.tool_class for tool in tools)
    counts = ", ".join(f"{classes[one]:,} {one}" for one in ToolClass if classes[one])
    asked = sum(bool(tool.asked_by) for tool in tools)
    confirmed = f"; a person confirms calls of {counted(asked, 'tool')}" if asked else ""
    return f" ({counts}{confirmed})" if tools else ""


async def _server(
    client: DownstreamClient, offered: Sequence[Tool], turned_off: int, seconds: float
) -> Verdict:
    config, stray = client.config, tuple(marked(strays(client)))
    if cause := failure(client):
        from mcp_context_proxy.downstream.http_client import http_status

        status = await http_status(config) if config.url is not None else None
        said = status is None or status < 300 or LOGIN in cause or f"HTTP status {status}" in cause
        shown = cause if said else f"{cause} (HTTP status {status})"
        remedy = client.remedy or remedy_for(config, client.fault, status, bool(stray), cause)
        return Verdict(Level.PROBLEM, client.name, shown, remedy, (*last_output(client), *stray))
    if not client.listing.tools:
        return Verdict(Level.WARNING, client.name, "it is ready, but offers no tools")
    listed = len(client.listing.tools)
    if turned_off == listed:
        return Verdict(Level.WARNING, client.name, "it is ready, but all its tools are turned off")
    tools = counted(listed, "tool")
    if len(offered) != listed:
        tools = f"{len(offered):,} of {tools}"
    if turned_off:
        tools += f" ({turned_off:,} turned off)"
    ready = f"{tools}, ready in {duration(seconds * 1000)}{_dangers(offered)}"
    if stray:
        ready += "; output on stdout that is no message is skipped"
    return Verdict(Level.OK, client.name, ready, output=stray)


def _suspected(proxy: Proxy) -> Iterator[Verdict]:
    from mcp_context_proxy.retrieval.keyword_stuffing import suspected, suspicion

    sources = proxy.catalog.snapshot.sources
    servers = {
        one.key: suspicion(one.items) for one in sources if one.items and one.items[0].kind is Kind.TOOL
    }
    for server, why in suspected(servers).items():
        reason, remedy = STUFFING[why]
        effect = "so its tools come after others that fit"
        yield Verdict(Level.WARNING, server, f"{reason}, {effect}", remedy)


def start_once(config: Config, names: Iterable[str]) -> tuple[list[Verdict], Versions]:
    """Start some servers once; return the verdicts about them, and the versions of those without a pin."""
    chosen = {name: config.servers[name] for name in names if name in config.servers}
    versions: Versions = {}
    only = replace(config, servers=chosen, documents=(), off={})
    told = chosen.keys() | {ENVIRONMENT}
    verdicts = [one for one in run(_check_proxy, only, None, versions) if one.subject in told]
    for name in names:
        if name in config.off:
            verdicts.append(Verdict(Level.PROBLEM, name, f"off: {config.off[name]}"))
    return verdicts, versions


def show(console: Terminal, verdicts: Iterable[Verdict]) -> None:
    for verdict in verdicts:
        head = Text.assemble(
            (f"{verdict.level:<8} ", STYLES[verdict.level]), (f"{verdict.subject}: ", "cyan"), verdict.message
        )
        console.prose(head, hanging=9)
        for line in verdict.output:
            console.say(Text(f"| {line}", style="dim"), indent=9)
        if verdict.remedy:
            console.prose(Text(f"-> {verdict.remedy}"), 9, hanging=3)


def _summary(console: Terminal, verdicts: list[Verdict], config: Config | None, strict: bool) -> int:
    """Print the outcome; return the exit status."""
    levels = Counter(verdict.level for verdict in verdicts)
    problems, warnings = levels[Level.PROBLEM], levels[Level.WARNING]
    failed = int(bool(problems or (strict and warnings)))
    warned = counted(warnings, "warning") + ", and --strict allows none" * strict if warnings else ""
    found = f"{counted(problems, 'problem')} to fix" if problems else "No problem"
    found += f", {warned}" if warned else ""
    console.say()
    if config is None:
        style = "bold red" if problems else "bold yellow" if warnings else "bold green"
        console.note(f"{found}. No server was started.", style=style)
        return failed
    enabled = sum(server.enabled for server in config.servers.values())
    servers = counted(known := len(config.servers) + len(config.off), "server")
    if problems:
        broken = {verdict.subject for verdict in verdicts if verdict.level is Level.PROBLEM}
        working = sum(server.enabled and name not in broken for name, server in config.servers.items())
        work = f"{working:,} of {servers} {'works' if 1 in (working, known) else 'work'}"
        console.note(f"{found}: {work}.", style="bold red")
        return 1
    if enabled < known:
        servers = f"{enabled:,} of {servers} {'is' if enabled == 1 else 'are'} on"
    if not enabled and not config.documents:
        why = "every server is switched off" if config.servers else "no server is configured"
        console.note(f"Nothing to serve: {why}.", style="bold yellow")
    elif warnings:
        console.note(f"It works, with {warned}: {servers}.", style="bold yellow")
    else:
        console.note(f"All is well: {servers}.", style="bold green")
    return failed


def _variables(failed: Iterable[DownstreamClient]) -> Iterator[Verdict]:
    """Yield the variables of this shell that servers which failed do not get; values are not shown.

    Where their output mentions some, only these are named; otherwise a few, those of secrets first.
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[DownstreamClient]] = {}
    for client in failed:
        missing, other = differs_from_shell(client.config, os.environ)
        groups.setdefault((tuple(missing), tuple(other)), []).append(client)
    for (absent, others), clients in groups.items():
        names = ", ".join(client.name for client in clients)
        differing = f"; {some_of(others, VARIABLES_NAMED)} have other values" if others else ""
        if absent:
            words = {word for client in clients for line in client.stderr for word in VARIABLE.findall(line)}
            mentioned = [name for name in absent if name in words]
            named = mentioned or sorted(absent, key=lambda name: not names_secret(name))
            listed = some_of(named, VARIABLES_NAMED)
            message = f"{names} failed without these variables of this shell: {listed}{differing}"
            yield Verdict(Level.NOTE, ENVIRONMENT, message, "name those that a server needs in its inherit")
        elif differing:
            yield Verdict(Level.NOTE, ENVIRONMENT, f"{names} had all variables of this shell{differing}")
