"""A proxy from its start to its end: the store, the signals, the front, the configuration that changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.redaction import redact_logs
from mcp_context_proxy.config.reload import Load, Reloader
from mcp_context_proxy.config.secrets import all_secrets_of
from mcp_context_proxy.free_memory import keep_giving_back, keep_little
from mcp_context_proxy.front.process import (
    SIGNALS,
    listen_for_signals,
    raise_file_limit,
    spare_the_collector,
    take_short_turns,
)
from mcp_context_proxy.sdk import load_sdk
from mcp_context_proxy.server import meta_tools
from mcp_context_proxy.store import open_store
from mcp_context_proxy.threads import in_thread

if TYPE_CHECKING:
    from mcp_context_proxy.server.sdk import SdkServer

Front = Callable[[Proxy, "SdkServer"], Awaitable[None]]
"""Serves hosts until it is cancelled or its host is gone."""


def store_location(config: Config) -> Path | Literal["memory"] | None:
    """Where vectors are kept; None is the user's data folder."""
    path = config.store.path
    if path is None:
        return None
    return "memory" if path == "memory" else Path(path)


@asynccontextmanager
async def open_proxy(config: Config, *, serves: bool = False) -> AsyncIterator[Proxy]:
    """A running proxy, without a front; if it is to have one, most servers wait for that."""
    redact_logs(all_secrets_of(config))
    store = await in_thread(open_store, store_location(config))
    try:
        proxy = Proxy(config, store)
        if serves:
            proxy.fleet.starts.hold_back()
        async with proxy.running():
            yield proxy
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(store.close)


LATELY_SECONDS = 7 * 86_400.0
"""Since the latest request, for search to be made ready before there is one."""


LOOK_SECONDS = 0.5
"""For the files of the model to be read, while the SDK is imported: 25 ms for the packaged one. Those of a
large one are read on while hosts are served already."""


async def serve(config: Config, front: Front, load_again: Load) -> None:
    """Serve a front until it ends or the process is asked to stop; follow the configuration meanwhile."""
    raise_file_limit()
    keep_little()
    take_short_turns()
    # Listened for before any server is started: none may outlive a proxy that is stopped at once.
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        async with anyio.create_task_group() as listening:
            asked, reloader = anyio.Event(), Reloader(config, load_again)
            listening.start_soon(listen_for_signals, signals, asked, reloader.ask)
            async with open_proxy(config, serves=True) as proxy:
                # Half a second of imports, in which the first servers start.
                async with anyio.create_task_group() as group:
                    group.start_soon(_look_at_model, proxy)
                    await load_sdk()
                from mcp_context_proxy.server.sdk import SdkServer  # noqa: PLC0415
                from mcp_context_proxy.server.tracing import open_tracing  # noqa: PLC0415

                proxy.trace(open_tracing())
                server = SdkServer(
                    proxy.gateway,
                    proxy.changes,
                    _instructions(proxy),
                    proxy.tool_list.header_schema,
                )

                async def apply(changed: Config) -> None:
                    await proxy.apply(changed)
                    server.instructions = _instructions(proxy)

                proxy.reloader = reloader
                async with anyio.create_task_group() as group:
                    group.start_soon(_stop_when_asked, asked, proxy, server, group.cancel_scope)
                    group.start_soon(reloader.run, apply)
                    group.start_soon(_spare_the_collector, proxy)
                    group.start_soon(keep_giving_back)
                    group.start_soon(_make_search_ready, proxy)
                    proxy.fleet.starts.let_all()
                    await front(proxy, server)
                    group.cancel_scope.cancel()
            listening.cancel_scope.cancel()


async def _look_at_model(proxy: Proxy) -> None:
    with anyio.move_on_after(LOOK_SECONDS):
        await in_thread(proxy.searching.model.look, abandon_on_cancel=True)


def _instructions(proxy: Proxy) -> str:
    return meta_tools.instructions(proxy.setup, words_only=proxy.searching.model.error is not None)


async def _spare_the_collector(proxy: Proxy) -> None:
    spare_the_collector()
    await proxy.settled()
    spare_the_collector()


async def _make_search_ready(proxy: Proxy) -> None:
    """Where something was asked lately, more will be: the first search finds the model open and words read.

    Elsewhere nothing is opened that may never be needed: a model takes some 100 MB.
    """
    await proxy.settled()
    latest = await proxy.records.latest(1)
    if latest and time_of_day() - latest[0].time < LATELY_SECONDS:
        proxy.searcher.prepare(proxy.catalog.snapshot)


async def _stop_when_asked(
    asked: anyio.Event, proxy: Proxy, server: SdkServer, scope: anyio.CancelScope
) -> None:
    await asked.wait()
    # A subscription that ends with an answer was not lost.
    server.listen.close()
    await proxy.gateway.drain.finish(proxy.config.limits.drain_seconds)
    # The servers begin to stop while the front still closes its connections.
    proxy.fleet.stop()
    scope.cancel()
