"""``eval``: how well search finds what queries need, in a file of tools or behind the proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from mcp_context_proxy.cli import progress
from mcp_context_proxy.cli.options import config_option, echo_json, load_config
from mcp_context_proxy.cli.running import run
from mcp_context_proxy.cli.terminal import Terminal, counted, messages, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.retrieval import ADAPTIVE, METHODS, Engine, Method, SearchOptions

if TYPE_CHECKING:
    from mcp_context_proxy.evaluation.comparison import Difference
    from mcp_context_proxy.evaluation.evaluation import Report, Timed
    from mcp_context_proxy.evaluation.queries import Query
    from mcp_context_proxy.items import Snapshot

FILE = click.Path(path_type=Path)


@click.command("eval")
@config_option
@click.argument("files", nargs=-1, required=True, metavar="[CORPUS] QUERIES", type=FILE)
@click.option("--servers", is_flag=True, help="Search the configured servers; no CORPUS.")
@click.option("--compare", is_flag=True, help="Compare two runs: A.run B.run [QUERIES].")
@click.option("--top-k", default=10, show_default=True, type=click.IntRange(1), help="Results to rank.")
@click.option("--method", default="hybrid", show_default=True, type=click.Choice(METHODS), help="Of scoring.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--run", "run_file", type=FILE, help="Write one JSON line per query: its ranking.")
@click.option("--store", type=FILE, help="Keep the vectors of CORPUS in this file between runs.")
@click.pass_context
def command(
    ctx: click.Context,
    config_path: Path | None,
    files: tuple[Path, ...],
    servers: bool,
    compare: bool,
    top_k: int,
    method: str,
    as_json: bool,
    run_file: Path | None,
    store: Path | None,
) -> None:
    """Measure how well search finds what QUERIES need.

    CORPUS: JSON lines {server, name, description, input_schema?}. QUERIES: JSON lines {query, relevant:
    [[server, name], ...], any_of?: [[[server, name], ...], ...]}: every tool of relevant is needed, and one of
    each group of any_of. Either may be gzipped.
    """
    if compare:
        _compare(files, as_json)
        return
    options = SearchOptions(method=cast(Method, method))
    if servers:
        (queries_file,) = _counted(files, 1, "--servers takes one file: QUERIES")
        config = load_config(ctx, config_path)
        measured = run(_of_servers, config, queries_file, options, top_k)
    else:
        corpus, queries_file = _counted(files, 2, "two files are needed: CORPUS and QUERIES")
        measured = _of_corpus(corpus, queries_file, options, top_k, store)
