"""``check``: finds all problems of a set-up in one go, each with a remedy.

Every configured server is started once. A server that works may still get a warning, such as one without a
pinned version, which becomes another program whenever its author publishes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import config_option, load_config, open_configured_store, run
from mcp_context_proxy.cli.terminal import (
    Terminal,
    address,
    counted,
    failure,
    findings,
    last_output,
    marked,
    results,
    strays,
    working_folder,
)
from mcp_context_proxy.config import Config, ServerConfig
from mcp_context_proxy.errors import ConfigError, ModelError
from mcp_context_proxy.items import Kind

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy
    from mcp_context_proxy.config.host_profiles import HostProfile
    from mcp_context_proxy.downstream.client import DownstreamClient
    from mcp_context_proxy.retrieval.keyword_stuffing import Suspicion


STATUS_SECONDS: Final = 5.0
"""Time limit of the request for the HTTP status of a failed server."""

_INSTALL: Final = {
    "npx": "install Node.js: https://nodejs.org",
    "npm": "install Node.js: https://nodejs.org",
    "node": "install Node.js: https://nodejs.org",
    "bunx": "install Bun: https://bun.sh",
    "uvx": "install uv: https://docs.astral.sh/uv",
    "uv": "install uv: https://docs.astral.sh/uv",
    "pipx": "install pipx: https://pipx.pypa.io",
    "docker": "install Docker: https://docs.docker.com/get-docker",
}


class Level(StrEnum):
    """Severity of a verdict."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "PROBLEM"


STUFFING: Final[Mapping[Suspicion, tuple[str, str]]] = {
    "requests": ("its descriptions read like requests", "descriptions should say what a tool does"),
    "names": (
        "the names of its tools have nothing to do with their descriptions",
        "a name should have a word of the description",
    ),
}
"""Reason and remedy of a suspicion of keyword stuffing."""

STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one check."""

    level: Level
    subject: str
    message: str
    output: tuple[str, ...] = ()
    """Lines that a server wrote."""
    remedy: str = ""


@click.command("check")
@config_option
@click.option("--strict", is_flag=True, help="Exit with 1 on warnings, too.")
@click.option("--host", metavar="NAME", help="Say what this host cuts, drops or refuses, such as cursor.")
@click.option(
    "--as",
    "server_name",
    metavar="NAME",
    help="Name of the proxy in the settings of that host, if it is another.",
)
@click.pass_context
def check_command(
    ctx: click.Context, config_path: Path | None, strict: bool, host: str | None, server_name: str | None
) -> None:
    """Check the configuration, the model, the store and the documents, and start each server once.

    With --host, say also what that host makes of the names, descriptions, lists and results. Exits with 1 if
    there are problems to fix. Warnings do not count, except with --strict.
    """
    console, profile = results(), _profile(host, server_name)
    try:
        config = load_config(ctx, config_path)
    except ConfigError as error:
        _show(console, [Verdict(Level.PROBLEM, "config", str(problem)) for problem in error.problems])
        console.say()
        console.note(f"{_counts(len(error.problems), 0)}. No server was started.", style="bold red")
        ctx.exit(1)
    verdicts = [Verdict(Level.OK, "config", str(config.path)), _model(config), _store(config)]
    verdicts += _folders(config)
    _show(console, verdicts)
    found = run(_check_proxy, config, profile)
    _show(console, found)
    ctx.exit(_summary(console, [*verdicts, *found], config, strict))


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


def _model(config: Config) -> Verdict:
    from mcp_context_proxy.embedding.embeddings import open_model

    try:
        model = open_model(config)
        model.embed_queries(["a query"])
        facts = f"{model.model_id}, {model.dimensions} dimensions"
        model.close()
    except ModelError as error:
        return Verdict(Level.PROBLEM, "model", str(error), remedy="until then, search uses words alone")
    return Verdict(Level.OK, "model", facts)


def _store(config: Config) -> Verdict:
    with open_configured_store(config) as store:
        if store.warning is not None:
            return Verdict(Level.WARNING if store.path else Level.PROBLEM, "store", store.warning)
        return Verdict(Level.OK, "store", str(store.path or "in memory: nothing is kept"))


def _folders(config: Config) -> Iterator[Verdict]:
    """Yield the folders in which servers start: their programs may read files there."""
    servers: dict[str, list[str]] = {}
    for name, server in config.servers.items():
        if server.enabled and (folder := working_folder(server)):
            servers.setdefault(folder, []).append(name)
    for folder, names in servers.items():
        verb = "starts" if len(names) == 1 else "start"
        yield Verdict(Level.OK, "folder", f"{', '.join(names)} {verb} in {folder}")


async def _check_proxy(config: Config, host: HostProfile | None) -> list[Verdict]:
    from mcp_context_proxy import app
    from mcp_context_proxy.cli import host_check

    # Every server is started, even one that would otherwise start at its first call.
    awake = {"start": "eager", "idle_timeout": None}
    servers = {name: server.model_copy(update=awake) for name, server in config.servers.items()}
    async with app.open_proxy(config.model_copy(update={"servers": servers})) as proxy:
        seconds = await terminal.settle(proxy)
        verdicts = list(_documents(proxy))
        for name, server in config.servers.items():
            client = proxy.fleet.clients.get(name)
            if client is None:
                verdicts.append(Verdict(Level.OK, name, "switched off"))
                continue
            offered = sum(tool.server == name for tool in proxy.catalog.snapshot.tools.values())
            verdicts.append(await _server(client, offered, seconds[name]))
            if warning := unpinned(server):
                verdicts.append(Verdict(Level.WARNING, name, warning))
        for name, message in findings(proxy):
            verdicts.append(Verdict(Level.WARNING, name or "catalog", message))
        verdicts += _suspected(proxy)
        for one in host_check.names(proxy) if host is None else host_check.effects(proxy, host):
            subject = one.about if host is None else f"{host.title}: {one.about}"
            verdicts.append(Verdict(Level(one.severity), subject, one.message, remedy=one.remedy))
        if (reranking := await proxy.search.reranker.try_model()) is not None:
            if reranking.used:
                answered = f"{reranking.reason}, answered in {reranking.seconds * 1000:,.0f} ms"
                verdicts.append(Verdict(Level.OK, "rerank", answered))
            else:
                remedy = "until then, search alone orders the tools"
                verdicts.append(Verdict(Level.WARNING, "rerank", reranking.reason, remedy=remedy))
    if not config.servers:
        verdicts.append(Verdict(Level.WARNING, "servers", "none is configured: add one under [servers.NAME]"))
    return verdicts


def _documents(proxy: Proxy) -> Iterator[Verdict]:
    documents = proxy.library.loaded.documents
    if proxy.config.documents:
        rules = sum(document.kind is Kind.RULE for document in documents)
        found = f"{counted(rules, 'rule')}, {counted(len(documents) - rules, 'reference')}"
        yield Verdict(Level.OK if documents else Level.WARNING, "documents", found)
    for finding in proxy.library.loaded.findings:
        yield Verdict(Level.WARNING, "documents", str(finding))


async def _server(client: DownstreamClient, offered: int, seconds: float) -> Verdict:
    config, stray = client.config, tuple(marked(strays(client)))
    if cause := failure(client):
        status = await http_status(config) if config.url is not None else None
        shown = f"{cause} (HTTP status {status})" if status is not None and status >= 300 else cause
        remedy = remedy_for(config, cause, status, bool(stray))
        return Verdict(Level.PROBLEM, client.name, shown, (*last_output(client), *stray), remedy)
    if not client.listing.tools:
        return Verdict(Level.WARNING, client.name, "it is ready, but offers no tools")
    listed = len(client.listing.tools)
    tools = counted(listed, "tool") if offered == listed else f"{offered:,} of {counted(listed, 'tool')}"
    ready = f"{tools}, ready in {seconds * 1000:,.0f} ms"
    if stray:
        ready += "; output on stdout that is no message is skipped"
    return Verdict(Level.OK, client.name, ready, stray)


def _suspected(proxy: Proxy) -> Iterator[Verdict]:
    from mcp_context_proxy.retrieval.keyword_stuffing import suspected, suspicion

    sources = proxy.catalog.snapshot.sources
    servers = {
        one.key: suspicion(one.items) for one in sources if one.items and one.items[0].kind is Kind.TOOL
    }
    for server, why in suspected(servers).items():
        reason, remedy = STUFFING[why]
        effect = "so its tools come after others that fit"
        yield Verdict(Level.WARNING, server, f"{reason}, {effect}", remedy=remedy)


def _show(console: Terminal, verdicts: Iterable[Verdict]) -> None:
    for verdict in verdicts:
        head = Text.assemble(
            (f"{verdict.level:<8} ", STYLES[verdict.level]), (f"{verdict.subject}: ", "cyan"), verdict.message
        )
        console.prose(head, hanging=9)
        for line in verdict.output:
            console.prose(Text(f"| {line}", style="dim"), 9, hanging=2)
        if verdict.remedy:
            console.prose(Text(f"-> {verdict.remedy}"), 9, hanging=3)


def _summary(console: Terminal, verdicts: list[Verdict], config: Config, strict: bool) -> int:
    """Print the outcome; return the exit status."""
    problems = sum(verdict.level is Level.PROBLEM for verdict in verdicts)
    warnings = sum(verdict.level is Level.WARNING for verdict in verdicts)
    enabled = sum(server.enabled for server in config.servers.values())
    servers = counted(enabled, "server")
    console.say()
    if problems:
        console.note(f"{_counts(problems, warnings)}: {servers}.", style="bold red")
        return 1
    if not enabled and not config.documents:
        why = "every server is switched off" if config.servers else "no server is configured"
        console.note(f"Nothing to serve: {why}.", style="bold yellow")
    elif warnings:
        console.note(f"It works, with {counted(warnings, 'warning')}: {servers}.", style="bold yellow")
    else:
        console.note(f"All is well: {servers}.", style="bold green")
    return 1 if strict and warnings else 0


def _counts(problems: int, warnings: int) -> str:
    found = f"{counted(problems, 'problem')} to fix"
    return f"{found}, {counted(warnings, 'warning')}" if warnings else found


def remedy_for(config: ServerConfig, cause: str, status: int | None = None, strays: bool = False) -> str:
    """Return the remedy for a failed server; empty if the cause says it already.

    `status` is the HTTP status of its URL. With `strays`, it printed something to stdout that is no message.
    """
    if status is not None and status >= 300:
        return _remedy_for_status(config, status)
    if strays:
        return (
            "its output on stdout is no MCP message. If it is a help text or an error, correct command and "
            f"args: {address(config)}. If this is an MCP server, it must print such lines to stderr"
        )
    if cause.startswith("cannot start"):
        command = Path(config.command or "")
        if command.is_absolute() and command.is_file():
            return f"the file cannot be run: chmod +x {command}, or name the interpreter as command"
        return _INSTALL.get(command.name, "")
    if "npx cache is broken" in cause:
        return ""
    if "exited (code" in cause or "was killed" in cause or "closed its output" in cause:
        return (
            f"run it by hand to see why: {address(config)}. Started by the proxy, it gets only PATH, HOME "
            "and the like, and the variables of its env setting"
        )
    if "not ready within" in cause:
        seconds = config.first_connect_timeout or config.connect_timeout
        return (
            "if it starts slowly, such as with a download at its first start, raise connect_timeout under "
            f"servers.{config.name}, now {seconds:g} s. If it is no MCP server, correct the command"
        )
    if "is no MCP server" in cause and config.command is not None:
        return "correct the command"
    if "answered with error" in cause and config.command is not None:
        return "if it is no MCP server, correct the command"
    return "check that it is running and that the URL is right" if config.url is not None else ""


def _remedy_for_status(config: ServerConfig, status: int) -> str:
    if status < 400:
        return "it has moved: configure the URL that it redirects to"
    if status in {401, 403}:
        return (
            f"it needs credentials, or other ones: run mcp-context-proxy login {config.name}, "
            f"or set headers.Authorization under servers.{config.name}"
        )
    if status in {404, 405, 406}:
        other = "http" if config.transport == "sse" else "sse"
        return f'check the path of the URL, often /mcp or /sse; or set transport = "{other}"'
    return "the server, or something in front of it, has a fault: ask its operator"


async def http_status(config: ServerConfig) -> int | None:
    """Return the HTTP status of a URL for a first message; None without a response.

    The connection itself hides it: after one transport is refused, the next one is tried.
    """
    import httpx2

    from mcp_context_proxy.protocol import envelope
    from mcp_context_proxy.protocol.eras import HANDSHAKE_VERSION

    hello = {
        "protocolVersion": HANDSHAKE_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "mcp-context-proxy", "version": "check"},
    }
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    method, body = (
        ("GET", None) if config.transport == "sse" else ("POST", envelope.request(1, "initialize", hello))
    )
    try:
        async with (
            httpx2.AsyncClient(timeout=STATUS_SECONDS) as client,
            client.stream(
                method, config.url or "", content=body, headers={**headers, **config.headers}
            ) as response,
        ):
            return response.status_code
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return None


_RUNNERS: Final = {
    ("npx",): "@",
    ("npm", "exec"): "@",
    ("npm", "x"): "@",
    ("pnpm", "dlx"): "@",
    ("yarn", "dlx"): "@",
    ("bunx",): "@",
    ("bun", "x"): "@",
    ("uvx",): "==",
    ("uv", "tool", "run"): "==",
    ("pipx", "run"): "==",
}
"""Programs that download the package they run, each with its mark before a version."""

_CONTAINERS: Final = {"docker", "podman", "nerdctl"}
_WITHOUT_VALUE: Final = {
    *("--rm", "--interactive", "--tty", "--detach", "--init", "--privileged", "--read-only", "--quiet"),
    *("--publish-all", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--replace"),
}
"""Options of their ``run`` without a value; all others have one."""

_PACKAGE_FLAGS: Final = {"-p", "--package", "--from"}
_FLAGS_WITH_VALUE: Final = {"--python", "--with", "--index-url", "--index", "--registry", "--directory"}
_PINNED: Final = re.compile(r".+(?:==|@)v?\d[^,<>~^*]*")
_RANGE: Final = re.compile(r"[<>=~!^]")
"""Beginning of a range of versions."""
_ELSEWHERE: Final = re.compile(r"[./~]|[a-z+]+://|git\+|[A-Za-z]:\\")
"""Beginning of a path or a URL: those are the user's own to pin."""


def unpinned(config: ServerConfig) -> str | None:
    """Return a warning about a server without a pinned version; None if it has one, or needs none."""
    program = PurePath(config.command or "").name.removesuffix(".cmd").removesuffix(".exe")
    if program in _CONTAINERS:
        return _unpinned_image(program, config.args)
    words = (program, *config.args)
    found = next((one for one in _RUNNERS if words[: len(one)] == one), None)
    if found is None:
        return None
    runner, package = " ".join(found), _package(words[len(found) :])
    if package is None or _PINNED.fullmatch(package) or _ELSEWHERE.match(package):
        return None
    name = package.removesuffix("@latest")
    pin = f"{_RANGE.split(name)[0]}{_RUNNERS[found]}VERSION"
    return f"not pinned: {runner} runs the newest version of {name}; pin one that you trust: {pin}"


def _unpinned_image(program: str, args: tuple[str, ...]) -> str | None:
    image = _image(args)
    if image is None or "@" in image:
        return None
    name, colon, tag = image.rpartition(":")
    if colon and "/" not in tag and tag != "latest":
        return None
    name = name if colon and "/" not in tag else image
    return (
        f"not pinned: {program} runs the current {name}:latest; pin one that you trust: {name}:TAG or "
        f"{name}@sha256:DIGEST"
    )


def _image(args: tuple[str, ...]) -> str | None:
    """Return the image of a ``run`` command; None for other commands."""
    words = iter(args)
    if "run" not in words:  # also moves on behind it
        return None
    for word in words:
        if not word.startswith("-"):
            return word
        if word.startswith("--"):
            has_value = word not in _WITHOUT_VALUE and "=" not in word
        else:
            has_value = word[-1] not in "itdPq" and len(word) == 2
        if has_value:
            next(words, None)
    return None


def _package(args: tuple[str, ...]) -> str | None:
    """Return the package that a runner downloads: after a flag for it, else the first word."""
    words = iter(args)
    for word in words:
        flag, _, value = word.partition("=")
        if flag in _PACKAGE_FLAGS:
            return value or next(words, None)
        if flag in _FLAGS_WITH_VALUE and not value:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None
