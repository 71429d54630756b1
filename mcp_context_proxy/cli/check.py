"""``check``: everything that can be wrong, found in one go, each with what to do about it.

What to do about a server that does not work, and about one that may not tomorrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import config_option, load_config, run
from mcp_context_proxy.cli.terminal import (
    Terminal,
    address,
    counted,
    failure,
    findings,
    last_output,
    marked,
    messages,
    results,
    strays,
)
from mcp_context_proxy.config import Config, ServerConfig
from mcp_context_proxy.errors import ConfigError, ModelError
from mcp_context_proxy.items import Kind

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy
    from mcp_context_proxy.downstream.client import DownstreamClient
    from mcp_context_proxy.retrieval.keyword_stuffing import Suspicion


STATUS_SECONDS: Final = 5.0
"""For the one request that finds out the HTTP status of a server."""

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
"""Programs that download what they run, and how a version is pinned with each."""

_CONTAINERS: Final = {"docker", "podman", "nerdctl"}
_WITHOUT_VALUE: Final = {
    *("--rm", "--interactive", "--tty", "--detach", "--init", "--privileged", "--read-only", "--quiet"),
    *("--publish-all", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--replace"),
}
"""Of the options of their ``run``; every other takes a value."""

_PACKAGE_FLAGS: Final = {"-p", "--package", "--from"}
_FLAGS_WITH_VALUE: Final = {"--python", "--with", "--index-url", "--index", "--registry", "--directory"}
_PINNED: Final = re.compile(r".+(?:==|@)v?\d[^,<>~^*]*")
_RANGE: Final = re.compile(r"[<>=~!^]")
"""What a range of versions of a package begins with."""
_ELSEWHERE: Final = re.compile(r"[./~]|[a-z+]+://|git\+|[A-Za-z]:\\")
"""What a path or a URL begins with: those are the user's own to pin."""


def remedy_for(config: ServerConfig, cause: str, status: int | None = None, strays: bool = False) -> str:
    """What to do about a server that failed; empty when the cause says it already.

    Args:
        config: Of the server.
        cause: Why it failed.
        status: With which its URL answered.
        strays: It printed something to stdout that is no message.
    """
    if status is not None and status >= 300:
        return _for_status(config, status)
    if strays:
        return (
            "what it prints to stdout is no MCP message. If that is a help text or an error, correct command "
            f"and args: {address(config)}. If it is an MCP server, it must print such lines to stderr"
        )
    if cause.startswith("cannot start"):
        return _for_start(config)
    if "exited (code" in cause or "was killed" in cause or "closed its output" in cause:
        return (
            f"run it by hand to see why: {address(config)}. Started by the proxy it sees only PATH, HOME and "
            "the like, and what its env names"
        )
    if "not ready within" in cause:
        return (
            "if it is slow to start, such as by a download at its first start, give it longer: "
            f"connect_timeout under servers.{config.name}, now {config.connect_timeout:g} s. "
            "If it is no MCP server, correct the command"
        )
    if "is no MCP server" in cause and config.command is not None:
        return "correct the command"
    if "answered with error" in cause and config.command is not None:
        return "if it is no MCP server, correct the command"
    return "check that it is running and that the URL is right" if config.url is not None else ""


def unpinned(config: ServerConfig) -> str | None:
    """What makes a server another program whenever its author publishes one; None when nothing does."""
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
    return (
        f"{runner} runs whatever version of {name} is newest; pin it, with the number of one that you trust: "
        f"{_RANGE.split(name)[0]}{_RUNNERS[found]}NUMBER"
    )


def _unpinned_image(program: str, args: tuple[str, ...]) -> str | None:
    image = _image(args)
    if image is None or "@" in image:
        return None
    name, colon, tag = image.rpartition(":")
    if colon and "/" not in tag and tag != "latest":
        return None
    name = name if colon and "/" not in tag else image
    return (
        f"{program} runs whatever {name}:latest is just then; pin it, with the tag or the digest of one that "
        f"you trust: {name}:TAG or {name}@sha256:DIGEST"
    )


def _image(args: tuple[str, ...]) -> str | None:
    """What is run as a container; None for other commands."""
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


async def http_status(config: ServerConfig) -> int | None:
    """The status with which a URL answers the first message; None when it does not answer.

    The connection itself does not tell it: where one transport is refused, the next one is tried.
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


def _for_start(config: ServerConfig) -> str:
    command = Path(config.command or "")
    if command.is_absolute() and command.is_file():
        return f"the file is there but cannot be run: chmod +x {command}, or name the interpreter as command"
    return _INSTALL.get(command.name, "")


def _for_status(config: ServerConfig, status: int) -> str:
    if status < 400:
        return "it has moved: give the URL that it redirects to"
    if status in {401, 403}:
        return (
            f"it wants credentials, or others: run mcp-context-proxy login {config.name}, "
            f"or set headers.Authorization under servers.{config.name}"
        )
    if status in {404, 405, 406}:
        other = "http" if config.transport == "sse" else "sse"
        return f'check the path of the URL, often /mcp or /sse; or set transport = "{other}"'
    return "the server has a fault, or something in front of it: ask who runs it"


def _package(args: tuple[str, ...]) -> str | None:
    """What a runner is told to download: after a flag that says so, else its first word."""
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


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "PROBLEM"


STUFFING: Final[Mapping[Suspicion, tuple[str, str]]] = {
    "requests": ("its descriptions read like requests", "descriptions should say what a tool does"),
    "names": (
        "the names of its tools have nothing to do with their descriptions",
        "a name should have a word of what the tool does",
    ),
}
"""What is said of a server that is suspected, and what helps."""

STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found about one thing."""

    level: Level
    subject: str
    message: str
    output: tuple[str, ...] = ()
    """What the thing itself wrote."""
    remedy: str = ""


@click.command("check")
@config_option
@click.option("--strict", is_flag=True, help="Exit with 1 also where there are warnings.")
@click.pass_context
def check_command(ctx: click.Context, config_path: Path | None, strict: bool) -> None:
    """Check the configuration, the model, the store and the documents, and start every server once.

    Exits with 1 when something has to be mended; warnings are allowed, unless --strict.
    """
    console = results()
    try:
        config = load_config(ctx, config_path)
    except ConfigError as error:
        _show(console, [Verdict(Level.PROBLEM, "config", str(problem)) for problem in error.problems])
        console.say()
        console.prose(Text(f"{_counts(len(error.problems), 0)}. No server was started.", style="bold red"))
        ctx.exit(1)
    verdicts = [Verdict(Level.OK, "config", str(config.path)), _model(config), _store(config)]
    _show(console, verdicts)
    found = run(_running, _awake(config))
    _show(console, found)
    ctx.exit(_summary(console, [*verdicts, *found], config, strict))


def _awake(config: Config) -> Config:
    """With every server started, also those that would sleep until they are called."""
    awake = {"start": "eager", "idle_timeout": None}
    servers = {name: server.model_copy(update=awake) for name, server in config.servers.items()}
    return config.model_copy(update={"servers": servers})


def _model(config: Config) -> Verdict:
    from mcp_context_proxy.embedding.embeddings import open_model

    try:
        model = open_model(config)
        model.embed_queries(["does it answer?"])
        told = f"{model.model_id}, {model.dimensions} dimensions"
        model.close()
    except ModelError as error:
        return Verdict(Level.PROBLEM, "model", str(error), remedy="until then, search goes by words alone")
    return Verdict(Level.OK, "model", told)


def _store(config: Config) -> Verdict:
    from mcp_context_proxy.app import store_location
    from mcp_context_proxy.store import open_store

    with open_store(store_location(config)) as store:
        if store.warning is not None:
            return Verdict(Level.WARNING if store.path else Level.PROBLEM, "store", store.warning)
        return Verdict(Level.OK, "store", str(store.path or "in memory: nothing is kept"))


async def _running(config: Config) -> list[Verdict]:
    from mcp_context_proxy import app

    async with app.open_proxy(config) as proxy:
        seconds = await terminal.settle(proxy, messages())
        verdicts = list(_documents(proxy))
        for name, server in config.servers.items():
            client = proxy.fleet.clients.get(name)
            if client is None:
                verdicts.append(Verdict(Level.OK, name, "switched off"))
                continue
            verdicts.append(await _server(client, _offered(proxy, name), seconds[name]))
            if warning := unpinned(server):
                verdicts.append(Verdict(Level.WARNING, name, warning))
        verdicts += _findings(proxy)
        verdicts += _suspected(proxy)
        verdicts += await _rerank(proxy)
    if not config.servers:
        verdicts.append(
            Verdict(Level.WARNING, "servers", "none are configured: add one under [servers.NAME]")
        )
    return verdicts


async def _rerank(proxy: Proxy) -> list[Verdict]:
    """Whether the model that is to put tools in order answers; without one the client's own is asked."""
    found = await proxy.search.reranker.tried()
    if found is None:
        return []
    if not found.used:
        return [Verdict(Level.WARNING, "rerank", found.reason, remedy="until then, search orders alone")]
    return [Verdict(Level.OK, "rerank", f"{found.reason}, answered in {found.seconds * 1000:,.0f} ms")]


def _documents(proxy: Proxy) -> Iterator[Verdict]:
    documents = proxy.library.documents
    if proxy.config.documents:
        rules = sum(document.kind is Kind.RULE for document in documents)
        found = f"{counted(rules, 'rule')}, {counted(len(documents) - rules, 'reference')}"
        yield Verdict(Level.OK if documents else Level.WARNING, "documents", found)
    for finding in proxy.library.findings:
        yield Verdict(Level.WARNING, "documents", str(finding))


def _offered(proxy: Proxy, server: str) -> int:
    return sum(tool.server == server for tool in proxy.catalog.snapshot.tools.values())


async def _server(client: DownstreamClient, offered: int, seconds: float) -> Verdict:
    config, stray = client.config, tuple(marked(strays(client)))
    if cause := failure(client):
        status = await http_status(config) if config.url is not None else None
        told = f"{cause} (HTTP status {status})" if status is not None and status >= 300 else cause
        remedy = remedy_for(config, cause, status, bool(stray))
        return Verdict(Level.PROBLEM, client.name, told, (*last_output(client), *stray), remedy)
    if not client.listing.tools:
        return Verdict(Level.WARNING, client.name, "it is ready, and offers no tools")
    listed = len(client.listing.tools)
    tools = counted(listed, "tool") if offered == listed else f"{offered:,} of {counted(listed, 'tool')}"
    told = f"{tools}, ready in {seconds * 1000:,.0f} ms"
    if stray:
        told += "; what it prints to stdout beside messages is skipped"
    return Verdict(Level.OK, client.name, told, stray)


def _findings(proxy: Proxy) -> Iterator[Verdict]:
    for server, message in findings(proxy):
        yield Verdict(Level.WARNING, server or "catalog", message)


def _suspected(proxy: Proxy) -> Iterator[Verdict]:
    from mcp_context_proxy.retrieval.keyword_stuffing import suspected, suspicion

    sources = proxy.catalog.snapshot.sources
    servers = {
        one.key: suspicion(one.items) for one in sources if one.items and one.items[0].kind is Kind.TOOL
    }
    for server, why in suspected(servers).items():
        told, remedy = STUFFING[why]
        yield Verdict(
            Level.WARNING, server, f"{told}, so its tools are held back where others fit", (), remedy
        )


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
    """Say how it stands; return the exit status."""
    problems = sum(verdict.level is Level.PROBLEM for verdict in verdicts)
    warnings = sum(verdict.level is Level.WARNING for verdict in verdicts)
    servers = counted(sum(server.enabled for server in config.servers.values()), "server")
    console.say()
    if problems:
        console.prose(Text(f"{_counts(problems, warnings)}, {servers}.", style="bold red"))
        return 1
    told = "All is well" if not warnings else f"It works, with {counted(warnings, 'warning')}"
    console.prose(Text(f"{told}: {servers}.", style="bold green" if not warnings else "bold yellow"))
    return 1 if strict and warnings else 0


def _counts(problems: int, warnings: int) -> str:
    told = f"{counted(problems, 'problem')} to mend"
    return f"{told}, {counted(warnings, 'warning')}" if warnings else told
