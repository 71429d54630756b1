"""``backfill``: interactions without an embedding get one; it can be ended at any time and goes on later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from rich.text import Text

from mcp_context_proxy.cli import progress
from mcp_context_proxy.cli.interactions import opened_memory, opened_store
from mcp_context_proxy.cli.options import config_option, echo_json, load_config
from mcp_context_proxy.cli.terminal import Terminal, counted, messages, results

if TYPE_CHECKING:
    from mcp_context_proxy.embedding.embedder import Embedder
    from mcp_context_proxy.interactions.backfill import Backfilled

T = TypeVar("T")


@click.command("backfill")
@config_option
@click.option(
    "--batch-size", type=click.IntRange(1, 1000), default=50, show_default=True, help="Embedded together."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def command(ctx: click.Context, config_path: Path | None, batch_size: int, as_json: bool) -> None:
    """Embed the interactions that have no embedding by the model in use.

    Every batch is kept at once: after an interruption, the next run goes on.
    """
    from mcp_context_proxy.embedding.opening import open_model
    from mcp_context_proxy.interactions.backfill import backfill

    config = load_config(ctx, config_path)
    embedder = open_model(config)
    with opened_store(config) as store:
        try:
            memory = opened_memory(config, store, _Opened(embedder))
            with progress.indexing(messages(), "Embedding") as report:
                done = backfill(memory, batch_size, report)
        finally:
            embedder.close()
    if as_json:
        echo_json(asdict(done))
    else:
        _show(results(), done)
    if done.failed or done.left:
        ctx.exit(1)


class _Opened:
    """A model that is tried each time: nobody waits here, and one failure is not all of them."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def used(self, use: Callable[[Embedder], T]) -> T:
        """What ``use`` makes of it."""
        return use(self._embedder)


def _show(console: Terminal, done: Backfilled) -> None:
    console.say(f"Embedded {counted(done.embedded, 'interaction')}.")
    if done.failed:
        console.prose(Text(f"{counted(done.failed, 'error')}; the last: {done.error}", style="yellow"))
    if done.left:
        told = f"{counted(done.left, 'interaction')} were not tried, because the model failed each time."
        console.prose(Text(told, style="yellow"))
