"""``index``: everything indexed ahead of the first search, so that no search has to do it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio.to_thread
import click
from rich.text import Text

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import config_option, echo_json, load_config, run
from mcp_context_proxy.cli.terminal import counted, failure, messages, results
from mcp_context_proxy.config import Config


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What was indexed."""

    tools: int
    documents: int
    seconds: float
    store: str | None
    """The file that keeps the vectors; None when they are gone with this run."""
    model_error: str | None
    """Why there are no vectors."""
    failed: dict[str, str]
    """Servers that could not be started, each with the cause: their tools are not indexed."""


@click.command("index")
@config_option
@click.option("--rebuild", is_flag=True, help="Forget every vector in the store first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def index_command(ctx: click.Context, config_path: Path | None, rebuild: bool, as_json: bool) -> None:
    """Index all tools, rules and references ahead of the first search."""
    done = run(_index, load_config(ctx, config_path), rebuild)
    if as_json:
        echo_json(asdict(done))
    else:
        _show(done)
    if done.model_error is not None or done.failed:
        ctx.exit(1)


async def _index(config: Config, rebuild: bool) -> IndexReport:
    from mcp_context_proxy import app

    console = messages()
    async with app.open_proxy(config) as proxy:
        await terminal.settle(proxy, console)
        began = time.perf_counter()
        if rebuild:
            await anyio.to_thread.run_sync(proxy.store.vectors.clear)
        await terminal.index(proxy, console)
        snapshot, error = proxy.catalog.snapshot, proxy.search.model.error
        return IndexReport(
            tools=len(snapshot.tools),
            documents=len(snapshot.documents),
            seconds=time.perf_counter() - began,
            store=None if proxy.store.path is None else str(proxy.store.path),
            model_error=None if error is None else str(error),
            failed={
                name: cause for name, client in proxy.fleet.clients.items() if (cause := failure(client))
            },
        )


def _show(done: IndexReport) -> None:
    console = results()
    for name, cause in done.failed.items():
        console.prose(Text(f"server {name} has failed and was not indexed: {cause}", style="yellow"))
    if done.model_error is not None:
        console.prose(Text(f"There are no vectors, search goes by words: {done.model_error}", style="yellow"))
    what = f"{counted(done.tools, 'tool')} and {counted(done.documents, 'document')}"
    console.say(f"Indexed {what} in {done.seconds:.1f} s.")
    if done.model_error is None:
        kept = "Nothing is kept: there is no store." if done.store is None else f"Kept in {done.store}"
        console.prose(Text(kept, style="dim"))
