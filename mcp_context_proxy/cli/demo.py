"""``demo``: shows the proxy at work before the example servers. ``eval``: measures how well search finds.

Everything runs in a temporary folder with its own configuration and store, which is deleted afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import anyio
import anyio.to_thread
import click
from msgspec import to_builtins
from msgspec.structs import replace
from rich.text import Text

from mcp_context_proxy import examples
from mcp_context_proxy.cli import (
    WholeNumber,
    config_option,
    echo_json,
    json_option,
    load_config,
    run,
    search,
    terminal,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, indexing, messages, open_started_proxy, results
from mcp_context_proxy.config import Config, default_path
from mcp_context_proxy.context.search import tool_search
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, QueryEmbedder, open_model
from mcp_context_proxy.errors import ContextProxyError, innermost
from mcp_context_proxy.evaluation import (
    Evaluation,
    MeasureDifference,
    Report,
    compare_files,
    evaluate,
    in_random_order,
    read_corpus,
    read_queries,
    replay,
    write_run,
)
from mcp_context_proxy.protocol import eras
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.retrieval import FITTING, METHODS, Method
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import calibration_for
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.system import APP

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, RequestParamsMeta, Tool

    from mcp_context_proxy.context.indexing import OnProgress


SEARCHES: Final = (
    "write down what we agreed on in the meeting",
    "when is everybody free next Tuesday",
    "what does a loan of 200,000 cost each month",
)
"""None of them contains the name of a tool; each is for another server."""

SHOWN: Final = 2
"""Tools shown of each search; of the rules and references, the best one is shown."""

BAR: Final = 20
"""Cells of the longest bar."""

LOG_SHOWN: Final = 15
"""Lines of the proxy's log that are shown when it fails."""

DEADLINE_SECONDS: Final = 60.0
"""Time limit of the demo: it takes a few seconds, and must not hang on a broken machine."""

DATA: Final = "data"
"""Folder of the example servers' data, in the temporary folder of the demo."""

OWN_SERVER: Final = """\
[servers.memory]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-memory@2026.8.31"]"""


class DemoError(ContextProxyError):
    """The demo failed; the text ends with the proxy's own messages."""


@click.command("demo")
def demo_command() -> None:
    """Show the proxy at work in front of example servers. Works offline; nothing is kept."""
    run(_demo, results())


async def _demo(console: Terminal) -> None:
    began = anyio.current_time()
    console.say(Text(APP, style="bold"), ": one MCP server in front of many")
    console.note("Everything here is real and runs on this machine: no network, key or service.", style="dim")
    try:
        temporary = tempfile.TemporaryDirectory(prefix="mcp-context-proxy-demo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise DemoError(f"the demo needs a temporary folder, and cannot create one: {error}") from None
    with temporary as name:
        folder = Path(name)
        log = folder / "proxy.log"
        try:
            with anyio.fail_after(DEADLINE_SECONDS), log.open("w", encoding="utf-8") as messages_of_proxy:
                await _play(console, folder, messages_of_proxy)
        except Exception as error:
            cause = innermost(error)
            if isinstance(cause, BrokenPipeError):
                # The reader has gone; the proxy's pipes raise errors of their own.
                raise cause from None
            # boundary: whatever fails here, the proxy's own messages tell why
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            reason = str(cause) or type(cause).__name__
            raise DemoError("\n  ".join([f"the demo failed: {reason}", *lines[-LOG_SHOWN:]])) from error
    _show_next(console, anyio.current_time() - began)


async def _play(console: Terminal, folder: Path, log: TextIO) -> None:
    config = folder / "config.toml"
    config.write_text(_config(folder), encoding="utf-8")
    with ExitStack() as starting:
        starting.enter_context(messages().status("Starting the proxy and the example servers"))
        proxy = [sys.executable, "-m", "mcp_context_proxy", "--config", str(config), "serve", "--own"]
        async with _connected(proxy, folder, log) as client:
            offered = await _offered(folder)
            starting.close()
            _show_servers(console, offered)
            _show_lists(console, offered, (await client.list_tools()).tools)
            await _show_searches(console, client)
            await _show_calls(console, client)


def _config(folder: Path) -> str:
    lines = ["[store]", f"path = {_toml(str(folder / 'store.sqlite3'))}"]
    # The output must not depend on the speed of the machine.
    lines += ["[limits]", f"indexing_wait_seconds = {DEADLINE_SECONDS:.1f}"]
    for name, (program, *args) in examples.servers().items():
        lines += [
            f"[servers.{name}]",
            f"command = {_toml(program)}",
            f"args = {_toml(args)}",
            f"env = {{ {examples.DATA_VARIABLE} = {_toml(str(folder / DATA))} }}",
            f"cwd = {_toml(str(folder))}",
        ]
    for kind, documents in examples.documents().items():
        lines += ["[[documents]]", f"kind = {_toml(kind)}", f"path = {_toml(str(documents))}"]
    return "\n".join(lines) + "\n"


def _toml(value: str | list[str]) -> str:
    # Strings of JSON are strings of TOML; a dollar in a path is no variable.
    return json.dumps(value, ensure_ascii=False).replace("${", "$${")


@asynccontextmanager
async def _connected(command: Sequence[str], folder: Path, log: TextIO) -> AsyncIterator[Client]:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    program, *args = command
    env = {**os.environ, examples.DATA_VARIABLE: str(folder / DATA), "XDG_RUNTIME_DIR": str(folder)}
    # In the temporary folder, as its socket: a file of the user's folder could be imported as a module.
    server = StdioServerParameters(command=program, args=args, env=env, cwd=folder)
    async with Client(stdio_client(server, errlog=log)) as client:
        yield client


async def _offered(folder: Path) -> dict[str, list[Tool]]:
    """Return the tools of each server, as a host without a proxy gets them."""
    found: dict[str, list[Tool]] = {}

    async def ask(name: str, command: Sequence[str]) -> None:
        with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
            async with _connected(command, folder, log) as client:
                found[name] = (await client.list_tools()).tools

    async with anyio.create_task_group() as group:
        for name, command in examples.servers().items():
            group.start_soon(ask, name, command)
    return {name: found[name] for name in examples.SERVERS}


def _show_servers(console: Terminal, offered: Mapping[str, Sequence[Tool]]) -> None:
    console.section("1  Servers behind the proxy")
    rows = [
        (
            Text(server, style="cyan"),
            counted(len(tools), "tool"),
            Text(", ".join(tool.name for tool in tools), style="dim"),
        )
        for server, tools in offered.items()
    ]
    console.columns(rows, indent=3, right=(1,))


def _show_lists(console: Terminal, offered: Mapping[str, Sequence[Tool]], listed: Sequence[Tool]) -> None:
    from mcp_context_proxy.embedding.embeddings import TokenCounter

    console.section("2  Definitions that the model reads with every request")
    counter, mark = TokenCounter(), "#" if console.options.ascii_only else "━"

    def tokens(tools: Iterable[Tool]) -> int:
        definitions = (tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools)
        return sum(
            counter.count(json.dumps(one, ensure_ascii=False, separators=(",", ":"))) for one in definitions
        )

    everything = [tool for tools in offered.values() for tool in tools]
    full, short = tokens(everything), tokens(listed)
    rows = [
        (
            label,
            counted(number, "tool"),
            f"about {cost:,} tokens",
            Text(mark * max(1, round(BAR * cost / full)), style="green" if cost < full else "red"),
        )
        for label, number, cost in (
            ("Without the proxy", len(everything), full),
            ("With the proxy", len(listed), short),
        )
    ]
    console.columns(rows, indent=3, right=(1, 2))
    saved = 100 * (full - short) / full
    console.prose(
        f"{saved:.0f} % less: only {', '.join(tool.name for tool in listed)}. "
        "A search finds the other tools when they are needed, and all of them can be called. "
        "(Token counts are estimates by a WordPiece tokenizer.)",
        indent=3,
    )


async def _show_searches(console: Terminal, client: Client) -> None:
    console.section("3  Search: the model describes the tool it needs, in its own words")
    for query in SEARCHES:
        began = anyio.current_time()
        with indexing() as report:

            async def on_progress(
                progress: float, total: float | None, message: str | None, report: OnProgress = report
            ) -> None:
                del message
                report(int(progress), int(total or 0))

            answer = await client.call_tool(
                "search_available_tools",
                {"query": query},
                progress_callback=on_progress,
                meta=cast("RequestParamsMeta", {eras.FORMAT_KEY: "json"}),
            )
        data = answer.structured_content
        if answer.is_error or not isinstance(data, dict):
            raise DemoError(f"search_available_tools failed: {_text(answer)}")
        took = f"{(anyio.current_time() - began) * 1000:,.0f} ms"
        took += ", including indexing" if query == SEARCHES[0] else ""
        console.say()
        console.say("   ", Text(f'"{query}"', style="bold"))
        searched = f"Among {data['known']} tools, rules and references, in {took}."
        console.prose(Text(searched, style="dim"), indent=3)
        if data.get("note"):
            console.prose(Text(data["note"], style="yellow"), indent=3)
        found = data["results"] or data["near_misses"]
        tools = [one for one in found if one["type"] == "tool"]
        documents = [one for one in found if one["type"] != "tool"]
        for rank, one in enumerate(tools[:SHOWN], 1):
            search.show_one(console, rank, one)
        for one in documents[:1]:
            search.show_one(console, "+", one)


async def _show_calls(console: Terminal, client: Client) -> None:
    console.section("4  Call: every tool can be called, listed or not")
    today = datetime.now(UTC).date().isoformat()
    note = {"title": f"Meeting of {today}", "body": "We ship on Friday.", "tags": ["meeting"]}
    console.prose("Through call_tool, which is always listed:", indent=3)
    through = {"name": "notes__create_note", "arguments": note}
    _show_call(console, "call_tool", through, await client.call_tool("call_tool", through))
    console.say()
    console.prose("By its own name, as the search returned it:", indent=3)
    loan = {"amount": 200_000, "annual_rate": 3.5, "years": 20}
    name = "calculator__loan_payment"
    _show_call(console, name, loan, await client.call_tool(name, loan))


def _show_call(console: Terminal, name: str, arguments: Mapping[str, Any], answer: CallToolResult) -> None:
    if answer.is_error:
        raise DemoError(f"{name} failed: {_text(answer)}")
    call = Text.assemble((name, "bold cyan"), " ", json.dumps(arguments, ensure_ascii=False))
    console.prose(call, indent=5, hanging=2)
    console.prose(Text(f"-> {_text(answer)}", style="green"), indent=5, hanging=3)


def _text(answer: CallToolResult) -> str:
    return " ".join(one_line(getattr(part, "text", "")) for part in answer.content)


def _show_next(console: Terminal, seconds: float) -> None:
    # With the full path, if there is one: hosts often do not know the PATH of a shell.
    command = json.dumps(shutil.which(APP) or APP)
    entry = f'{{ "mcpServers": {{ "context-proxy": {{\n  "command": {command} }} }} }}'
    console.section("Next: your own servers")
    for step, snippet in (
        ("If a host has them already, this moves them here and connects it", f"{APP} install"),
        (f"Otherwise: 1. Add them to {default_path(os.environ)}", OWN_SERVER),
        ("2. Check that they all start", f"{APP} check"),
        ("3. In your host's configuration, replace them with this one", entry),
    ):
        console.prose(step, indent=3, hanging=3)
        for line in snippet.splitlines():
            console.say(Text(line, style="cyan"), indent=6)
    console.say()
    console.note(f"This took {seconds:.1f} s, and nothing was kept.", style="dim")


FILE = click.Path(path_type=Path)

SHORTEST_LOG: Final = 10
"""Queries: a tenth of them is one."""

LABELS: Final = {
    "selected": "tools selected",
    "selected_recall": "recall of the selection",
    "selected_precision": "precision of the selection",
    "kept": "answerable, something fits",
    "refused": "impossible, nothing fits",
    "fits": "queries that fit",
}


@click.command("eval")
@config_option
@click.argument("files", nargs=-1, required=True, metavar="[CORPUS] QUERIES", type=FILE)
@click.option("--servers", is_flag=True, help="Search the configured servers with their options.")
@click.option("--compare", is_flag=True, help="Compare two runs: A.run B.run [QUERIES].")
@click.option("--learning", is_flag=True, help="Replay QUERIES as a log, and measure learning.")
@click.option("--shuffle", is_flag=True, help="With --learning: replay in a fixed random order.")
@click.option("--top-k", default=10, show_default=True, type=WholeNumber(1), help="Results to rank.")
@click.option(
    "--method", default="hybrid", show_default=True, type=click.Choice(METHODS), help="Scoring method."
)
@json_option
@click.option("--run", "run_file", type=FILE, help="Write rankings to this file, one JSON line per query.")
@click.option("--store", type=FILE, help="Keep the vectors of CORPUS in this file for later runs.")
@click.pass_context
def eval_command(
    ctx: click.Context,
    config_path: Path | None,
    files: tuple[Path, ...],
    servers: bool,
    compare: bool,
    learning: bool,
    shuffle: bool,
    top_k: int,
    method: str,
    as_json: bool,
    run_file: Path | None,
    store: Path | None,
) -> None:
    """Measure how well search finds the tools that queries need.

    CORPUS has JSON lines {server, name, description, input_schema?}, QUERIES has JSON lines {query,
    relevant: [[server, name], ...], any_of?: [[[server, name], ...], ...]}. A query needs each tool of
    relevant, and one tool of each group of any_of. Both files may be gzipped. With --config, the embedding
    model of that configuration is used.
    """
    chosen = cast(Method, method)
    if compare:
        _compare(files, as_json)
        return
    if shuffle and not learning:
        raise click.UsageError("--shuffle is for --learning: otherwise the order of QUERIES does not matter")
    if learning:
        _expect(files, (2,), "--learning takes two files: CORPUS and QUERIES")
        _replay(_named_config(ctx, config_path), files, shuffle, top_k, store, as_json)
        return
    if servers:
        _expect(files, (1,), "--servers takes one file: QUERIES")
        evaluation = run(_of_servers, load_config(ctx, config_path), files[0], chosen, top_k)
    else:
        _expect(files, (2,), "two files are needed: CORPUS and QUERIES, or --servers and QUERIES")
        config = _named_config(ctx, config_path)
        evaluation = _of_corpus(config, files[0], files[1], chosen, top_k, store)
    if run_file is not None:
        write_run(run_file, evaluation.answers)
    if as_json:
        echo_json(to_builtins(evaluation.report))
    else:
        _show(results(), evaluation.report)


def _expect(files: tuple[Path, ...], counts: tuple[int, ...], message: str) -> None:
    if len(files) not in counts:
        raise click.UsageError(f"{message}; {counted(len(files), 'file')} given")


def _named_config(ctx: click.Context, config_path: Path | None) -> Config:
    # The user's own configuration is not used: files give the same measures to everyone.
    named = config_path is not None or ctx.find_root().obj is not None
    return load_config(ctx, config_path) if named else Config()


def _replay(
    config: Config, files: tuple[Path, ...], shuffle: bool, top_k: int, store: Path | None, as_json: bool
) -> None:
    snapshot, log = read_corpus(files[0]), read_queries(files[1])
    if len(log) < SHORTEST_LOG:
        raise click.UsageError(
            f"a log of {len(log)} queries is too short; at least {SHORTEST_LOG} are needed"
        )
    model = LazyModel(partial(open_model, config))
    with open_store(store or "memory") as opened, terminal.indexing("Replaying") as report:
        stages = replay(
            CachedEmbedder(model, opened.vectors),
            QueryEmbedder(model, remembered=len(log)),
            snapshot,
            in_random_order(log) if shuffle else log,
            FITTING,
            top_k,
            report,
        )
    if as_json:
        echo_json({"stages": [to_builtins(stage) for stage in stages]})
    else:
        console = results()
        measured = next(iter(stages[0].measures.values())).difference.queries
        console.say(f"{measured:,} queries measured, with the learned tier off and on")
        console.say()
        rows = [
            (f"{stage.revealed:.0%}", f"{stage.used:,}", f"{stage.pairs:,}", name, *_cells(one))
            for stage in stages
            for name, one in stage.measures.items()
        ]
        head = ("used", "queries", "pairs", "", "off", "on", "difference", "95 % interval")
        console.columns([head, *rows], right=(0, 1, 2, 4, 5, 6))


def _of_corpus(
    config: Config, corpus: Path, queries_file: Path, method: Method, top_k: int, store: Path | None
) -> Evaluation:
    snapshot, queries = read_corpus(corpus), read_queries(queries_file)
    model = LazyModel(partial(open_model, config))
    with open_store(store or "memory") as opened:
        words_only = method == "lexical"
        engine = Engine(
            None if words_only else CachedEmbedder(model, opened.vectors),
            QueryEmbedder(model, remembered=0),
            calibration=calibration_for(config.embedding),
            stands_for=config.search.synonyms,
        )
        with terminal.indexing() as report:
            engine.index(snapshot, report)
        return evaluate(engine, snapshot, queries, replace(FITTING, method=method), top_k)


async def _of_servers(config: Config, queries_file: Path, method: Method, top_k: int) -> Evaluation:
    queries = read_queries(queries_file)
    numbers = config.search.resolved("tools", config.embedding.packaged is not None)
    options = replace(tool_search(numbers), method=method)
    async with open_started_proxy(config) as proxy:
        measured = partial(evaluate, proxy.search.engine, proxy.catalog.snapshot, queries, options, top_k)
        return await anyio.to_thread.run_sync(measured)


def _compare(files: tuple[Path, ...], as_json: bool) -> None:
    _expect(files, (2, 3), "--compare takes two runs, and optionally QUERIES")
    first, second, *queries = files
    found = compare_files(first, second, read_queries(queries[0]) if queries else None)
    if as_json:
        echo_json({name: to_builtins(difference) for name, difference in found.items()})
    else:
        rows = [(LABELS.get(name, name), *_cells(one)) for name, one in found.items()]
        head = ("", "first", "second", "difference", "95 % interval")
        results().columns([head, *rows], right=(1, 2, 3))


def _show(console: Terminal, report: Report) -> None:
    catalog = f"{counted(report.tools, 'tool')} of {counted(report.servers, 'server')}"
    console.say(f"{report.queries:,} queries to {catalog}; method: {report.method}")
    if report.note:
        console.say(f"Note: {report.note}")
    if report.unmeetable:
        console.say(f"Note: {report.unmeetable} of the queries need a tool that does not exist")
    console.say()
    rows = [
        (LABELS.get(name, name), f"{at.mean:.3f}", f"[{at.low:.3f}, {at.high:.3f}]")
        for name, at in report.measures.items()
    ]
    console.columns(rows, right=(1,))
    latency = report.latency_ms
    console.say(f"search p50 {latency.p50:.1f} ms, p95 {latency.p95:.1f} ms")


def _cells(one: MeasureDifference) -> tuple[str, str, str, str]:
    gain = one.difference
    return (
        f"{one.first:.3f}",
        f"{one.second:.3f}",
        f"{gain.mean:+.3f}",
        f"[{gain.low:+.3f}, {gain.high:+.3f}]",
    )
