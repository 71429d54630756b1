"""A proxy from its start to its end: the store, the signals, the front, the configuration that changes.

The fronts: where hosts come in.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.reload import Load, Reloader
from mcp_context_proxy.config.secrets import all_secrets_of, redact_logs
from mcp_context_proxy.server import meta_definitions
from mcp_context_proxy.store import open_store
from mcp_context_proxy.system.clock import time_of_day
from mcp_context_proxy.system.process import (
    SIGNALS,
    freeze_gc,
    limit_malloc_arenas,
    listen_for_signals,
    raise_file_limit,
    set_switch_interval,
    trim_periodically,
)
from mcp_context_proxy.system.threads import in_thread, load_sdk

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

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
    limit_malloc_arenas()
    set_switch_interval()
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
                    group.start_soon(trim_periodically)
                    group.start_soon(_make_search_ready, proxy)
                    proxy.fleet.starts.let_all()
                    await front(proxy, server)
                    group.cancel_scope.cancel()
            listening.cancel_scope.cancel()


async def _look_at_model(proxy: Proxy) -> None:
    with anyio.move_on_after(LOOK_SECONDS):
        await in_thread(proxy.searching.model.look, abandon_on_cancel=True)


def _instructions(proxy: Proxy) -> str:
    return meta_definitions.instructions(proxy.setup, words_only=proxy.searching.model.error is not None)


async def _spare_the_collector(proxy: Proxy) -> None:
    freeze_gc()
    await proxy.settled()
    freeze_gc()


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


logger = logging.getLogger(__name__)


async def stdio_front(proxy: Proxy, server: SdkServer) -> None:
    """Serve the host at the other end of the standard streams, and the API where it is wanted."""
    async with anyio.create_task_group() as group:
        group.start_soon(_api_beside, proxy)
        await _serve_streams(proxy, server)
        group.cancel_scope.cancel()


async def _api_beside(proxy: Proxy) -> None:
    settings, limits = proxy.config.http, proxy.config.limits
    if settings.api_port is not None:
        from mcp_context_proxy.web import page  # noqa: PLC0415 - a stdio front alone needs none of it

        async with _watching_stalls(proxy):
            await page.serve(_web_routes(proxy), settings, settings.api_port, limits, proxy.health)


async def _serve_streams(proxy: Proxy, server: SdkServer) -> None:
    if sys.platform == "win32":
        from mcp.server.stdio import stdio_server  # noqa: PLC0415 - POSIX has its own front

        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())
        return
    from mcp_context_proxy.front import stdio  # noqa: PLC0415 - POSIX only

    await stdio.serve(proxy.gateway, proxy.config.limits, server)


async def http_front(proxy: Proxy, server: SdkServer) -> None:
    """Serve hosts over HTTP.

    Raises:
        ConfigError: the front would be open to others than this machine, without a token.
        OSError: the address cannot be had.
    """
    from mcp_context_proxy.front import auth, http  # noqa: PLC0415 - a stdio front needs none of it
    from mcp_context_proxy.front.auth import credentials_for  # noqa: PLC0415

    settings, limits = proxy.config.http, proxy.config.limits
    credentials = credentials_for(settings)
    bound = http.listen(settings.host, settings.port)
    port = bound.getsockname()[1]
    policy = auth.policy(settings.host, port, settings.allowed_hosts, credentials.token)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    message = "serving http://%s:%d/mcp, /api/v1 and /ui%s"
    logger.log(credentials.level, message, host, port, credentials.whereabouts)
    app = http.application(server, limits, policy, proxy.health, _web_routes(proxy))
    async with _watching_stalls(proxy):
        await http.serve(app, bound, limits, on_stop=server.listen.close)


@asynccontextmanager
async def _watching_stalls(proxy: Proxy) -> AsyncIterator[None]:
    """Notice stalls of the event loop as long as somebody can collect them."""
    usage = proxy.measuring.usage
    async with anyio.create_task_group() as group:
        if usage is not None:
            group.start_soon(usage.counters.stalls.run)
        yield
        group.cancel_scope.cancel()


def _web_routes(proxy: Proxy) -> list[BaseRoute]:
    from mcp_context_proxy.web import prometheus  # noqa: PLC0415 - a stdio front alone does not need it
    from mcp_context_proxy.web.contexts import ContextsApi  # noqa: PLC0415
    from mcp_context_proxy.web.interactions import InteractionsApi  # noqa: PLC0415
    from mcp_context_proxy.web.page import routes  # noqa: PLC0415
    from mcp_context_proxy.web.search import SearchApi  # noqa: PLC0415
    from mcp_context_proxy.web.usage import UsageApi  # noqa: PLC0415

    measuring = proxy.measuring
    parts = proxy.remembering
    recorder, log = (None, None) if parts is None else (parts.recorder, parts.log)
    contexts_api = ContextsApi(proxy.contexts, proxy.catalog, proxy.changes, log)
    search_api = SearchApi(proxy.contexts, proxy.reindex, log)
    usage_api = UsageApi(measuring.reports, measuring.usage, proxy.catalog, proxy.tool_list.lists_all)
    interactions_api = InteractionsApi(recorder)
    apis = contexts_api, search_api, usage_api, interactions_api
    operations = [operation for each in apis for operation in each.operations()]
    metrics = [] if measuring.usage is None else [prometheus.route(measuring.usage.counters)]
    return [*routes(operations), *metrics]
