"""``eval``: measures how well search finds the tools that queries need, in a file or behind the proxy."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final, cast

import anyio.to_thread
import click
from msgspec import to_builtins
from msgspec.structs import replace

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.main import (
    WholeNumber,
    config_option,
    echo_json,
    json_option,
    load_config,
    run,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, open_started_proxy, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.context.records import DomainOptions
from mcp_context_proxy.context.search import tool_search
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, QueryEmbedder, open_model
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
from mcp_context_proxy.retrieval import FITTING, METHODS, Engine, Method
from mcp_context_proxy.retrieval.scoring import calibration_for
from mcp_context_proxy.store import open_store

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
    options = replace(tool_search(DomainOptions.of(numbers)), method=method)
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
