"""What is being waited for, shown on stderr while it lasts; silent where that is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy
    from mcp_context_proxy.context.background import OnProgress
    from mcp_context_proxy.downstream.client import DownstreamClient

NAMED: Final = 4
"""Servers that the line names; of more, it gives the number."""


async def settle(proxy: Proxy, console: Console) -> dict[str, float]:
    """Wait until each server is ready or has failed once; return the seconds it took, by server."""
    began = anyio.current_time()
    waiting = dict.fromkeys(proxy.fleet.clients)
    seconds: dict[str, float] = {}
    with console.status(_starting(list(waiting))) as status:

        async def wait(client: DownstreamClient) -> None:
            await client.settled()
            seconds[client.name] = anyio.current_time() - began
            del waiting[client.name]
            status.update(_starting(list(waiting)))

        async with anyio.create_task_group() as group:
            for client in proxy.fleet.clients.values():
                group.start_soon(wait, client)
        await proxy.settled()
    return seconds


async def index(proxy: Proxy, console: Console) -> None:
    """Index all there is."""
    with indexing(console) as report:
        await proxy.searcher.index(proxy.catalog.snapshot, report)


@contextmanager
def indexing(console: Console, what: str = "Indexing") -> Iterator[OnProgress]:
    """A bar that is gone when the work is done; takes how many texts are indexed, of how many."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _starting(names: list[str]) -> str:
    if not names:
        return "Reading what there is"
    named = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    return f"Starting {named} and {more} more" if more > 0 else f"Starting {named}"
