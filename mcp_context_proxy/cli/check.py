"""``check``: everything that can be wrong, found in one go, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from mcp_context_proxy.cli import diagnosis, progress
from mcp_context_proxy.cli.options import config_option, load_config
from mcp_context_proxy.cli.running import run
from mcp_context_proxy.cli.server_facts import failure, findings, last_output, marked, strays
from mcp_context_proxy.cli.terminal import Terminal, counted, messages, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.errors import ConfigError, ModelError
from mcp_context_proxy.items import Kind

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy
    from mcp_context_proxy.downstream.client import DownstreamClient
    from mcp_context_proxy.retrieval.stuffing import Suspicion


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
def command(ctx: click.Context, config_path: Path | None, strict: bool) -> None:
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
    from mcp_context_proxy.embedding.opening import open_model

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
        seconds = await progress.settle(proxy, messages())
        verdicts = list(_documents(proxy))
        for name, server in config.servers.items():
            client = proxy.fleet.clients.get(name)
            if client is None:
                verdicts.append(Verdict(Level.OK, name, "switched off"))
                continue
            verdicts.append(await _server(client, _offered(proxy, name), seconds[name]))
            if warning := diagnosis.unpinned(server):
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
    found = await proxy.searching.reranker.tried()
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
        status = await diagnosis.http_status(config) if config.url is not None else None
        told = f"{cause} (HTTP status {status})" if status is not None and status >= 300 else cause
        remedy = diagnosis.remedy(config, cause, status, bool(stray))
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
    from mcp_context_proxy.retrieval.stuffing import suspected, suspicion

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
