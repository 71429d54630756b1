"""What answers hosts, built in one place from the parts of a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_context_proxy.server.attribution import Attribution
from mcp_context_proxy.server.context_prompt import ContextPrompt
from mcp_context_proxy.server.context_resources import ContextResources
from mcp_context_proxy.server.ended_calls import EndedCalls
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.own_tools import OwnTools
from mcp_context_proxy.server.prompts import Prompts
from mcp_context_proxy.server.resources import Resources
from mcp_context_proxy.server.sampling import Sampling
from mcp_context_proxy.server.tool_calls import ToolCalls

if TYPE_CHECKING:
    from mcp_context_proxy.app.proxy import Proxy


def gateway(proxy: Proxy) -> Gateway:
    """What answers hosts."""
    forwarder = proxy.forwarder
    shown = ContextResources(proxy.catalog, proxy.contexts, proxy.handles)
    resources = Resources(proxy.catalog, proxy.fleet, forwarder, shown)
    prompt = ContextPrompt(proxy.contexts, proxy.handles)
    prompts = Prompts(proxy.catalog, proxy.fleet, forwarder, resources, prompt)
    proxy.open_sessions.when_ended(resources.end)
    proxy.upkeep.when_changed(resources.catalog_changed)
    proxy.open_sessions.when_ended(lambda session: proxy.fleet.end(session.party))
    log = None if proxy.remembering is None else proxy.remembering.log
    calls = ToolCalls(
        proxy.catalog,
        proxy.fleet,
        forwarder,
        proxy.contexts,
        proxy.handles,
        proxy.caught_up,
        proxy.searching.answered,
        EndedCalls(_attribution(proxy), proxy.measuring.usage, log),
    )
    own_tools = OwnTools(
        proxy.fleet,
        proxy.contexts,
        calls,
        proxy.handles,
        proxy.changes,
        Sampling(proxy.parked, proxy.searching.reranker.asks_clients),
        lambda: proxy.setup.manage,
        proxy.recallable,
        log,
    )
    return Gateway(
        proxy.fleet,
        proxy.contexts,
        proxy.open_sessions,
        proxy.tool_list,
        calls,
        own_tools,
        resources,
        prompts,
        proxy.config.expose.page_size,
    )


def _attribution(proxy: Proxy) -> Attribution:
    """What decides which request a call was made for, and who is told."""
    learning, searches = proxy.searching.recorder, proxy.measuring.searches
    session_recorder = proxy.searching.session_recorder
    return Attribution(
        proxy.records,
        proxy.handles,
        proxy.catalog,
        None if learning is None else learning.learn,
        None if searches is None else searches.used,
        None if session_recorder is None else session_recorder.used,
        proxy.searching.working_set,
    )
