"""The fronts: where hosts come in."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from mcp_context_proxy.app.proxy import Proxy

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from mcp_context_proxy.server.sdk import SdkServer

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
        from mcp_context_proxy.web import beside  # noqa: PLC0415 - a stdio front alone needs none of it

        async with _watching_stalls(proxy):
            await beside.serve(_web_routes(proxy), settings, settings.api_port, limits, proxy.health)


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
    from mcp_context_proxy.front import guard, http  # noqa: PLC0415 - a stdio front needs none of it
    from mcp_context_proxy.front.token import credentials_for  # noqa: PLC0415

    settings, limits = proxy.config.http, proxy.config.limits
    credentials = credentials_for(settings)
    bound = http.listen(settings.host, settings.port)
    port = bound.getsockname()[1]
    policy = guard.policy(settings.host, port, settings.allowed_hosts, credentials.token)
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
    from mcp_context_proxy.web.contexts_api import ContextsApi  # noqa: PLC0415
    from mcp_context_proxy.web.interactions_api import InteractionsApi  # noqa: PLC0415
    from mcp_context_proxy.web.routes import routes  # noqa: PLC0415
    from mcp_context_proxy.web.search_api import SearchApi  # noqa: PLC0415
    from mcp_context_proxy.web.sessions_api import SessionsApi  # noqa: PLC0415
    from mcp_context_proxy.web.usage_api import UsageApi  # noqa: PLC0415

    measuring = proxy.measuring
    parts = proxy.remembering
    recorder, log = (None, None) if parts is None else (parts.recorder, parts.log)
    sessions_api = SessionsApi(proxy.contexts, proxy.catalog, proxy.changes)
    contexts_api = ContextsApi(proxy.contexts, proxy.catalog, log)
    search_api = SearchApi(proxy.contexts, proxy.reindex, log)
    usage_api = UsageApi(measuring.reports, measuring.usage, proxy.catalog, proxy.tool_list.lists_all)
    interactions_api = InteractionsApi(recorder)
    apis = sessions_api, contexts_api, search_api, usage_api, interactions_api
    operations = [operation for each in apis for operation in each.operations()]
    metrics = [] if measuring.usage is None else [prometheus.route(measuring.usage.counters)]
    return [*routes(operations), *metrics]
