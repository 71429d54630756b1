"""The one place where a request meets what answers it: method in, encoded result out.

Serves every front alike. Knows no SDK; what it does not handle here (negotiation, subscriptions) is the
SDK's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.handles import Handles
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import DownstreamError
from mcp_context_proxy.server import meta_tools
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.context_prompt import ContextPrompt
from mcp_context_proxy.server.context_resources import ContextResources
from mcp_context_proxy.server.draining import Drain
from mcp_context_proxy.server.forwarding import SERVER_INFO
from mcp_context_proxy.server.own_tools import OwnTools
from mcp_context_proxy.server.prompts import Prompts
from mcp_context_proxy.server.resources import Resources
from mcp_context_proxy.server.tools import ToolCalls, ToolList
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Members,
    RequestError,
)
from mcp_context_proxy.wire.era import Era

logger = logging.getLogger(__name__)

Handler = Callable[[Members, Caller], Awaitable[bytes]]

HANDSHAKE_ONLY = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Methods that the modern era has not."""


class Gateway:
    """Answers requests."""

    def __init__(
        self,
        catalog: Catalog,
        fleet: Fleet,
        contexts: ContextEngine,
        handles: Handles,
        tool_list: ToolList,
        tool_calls: ToolCalls,
        own_tools: OwnTools,
    ) -> None:
        resources = Resources(catalog, fleet, ContextResources(catalog, contexts, handles))
        prompts = Prompts(catalog, fleet, resources, ContextPrompt(contexts, handles))
        self._fleet, self._tool_calls, self._own_tools = fleet, tool_calls, own_tools
        self._contexts = contexts
        self.drain = Drain()
        """Ends what is under way, in order, when the proxy is told to stop."""
        self._handlers: Mapping[str, Handler] = {
            "tools/list": _fitted("tools/list", tool_list.answer),
            "tools/call": self._call,
            "resources/list": _fitted("resources/list", resources.list),
            "resources/templates/list": _fitted("resources/templates/list", resources.templates),
            "resources/read": _fitted("resources/read", resources.read),
            "resources/subscribe": resources.subscribe,
            "resources/unsubscribe": resources.unsubscribe,
            "prompts/list": _fitted("prompts/list", prompts.list),
            "prompts/get": prompts.get,
            "completion/complete": prompts.complete,
            "logging/setLevel": self._set_level,
        }

    @property
    def methods(self) -> frozenset[str]:
        """Methods that are answered here."""
        return frozenset(self._handlers)

    async def handle(self, method: str, params: Members, caller: Caller) -> bytes:
        """Answer a request: its encoded result, fitted to the caller's era.

        Raises:
            RequestError: it is refused; nothing else is ever raised but a cancellation.
        """
        handler = self._handlers.get(method)
        if handler is None or (caller.era is Era.MODERN and method in HANDSHAKE_ONLY):
            raise RequestError(METHOD_NOT_FOUND, "Method not found", method)
        if caller.session is not None:
            self._contexts.register(caller.session)
        try:
            with self.drain.request():
                return await handler(params, caller)
        except RequestError:
            raise
        except Exception:
            # boundary: a fault of ours is one request's failure, and its details are for the log
            logger.exception("%s failed", method)
            raise RequestError(
                INTERNAL_ERROR, "internal error of the proxy; its log has the details"
            ) from None
        raise AssertionError("a request that is given up raises")

    async def _call(self, params: Members, caller: Caller) -> bytes:
        arguments = params.get("arguments")
        if arguments is not None and bytes(arguments)[:1] not in (b"{", b'"', b"n"):
            raise RequestError(INVALID_PARAMS, "the arguments of a tool must be an object")
        name = envelope.text(params.get("name"))
        if name is not None and name in meta_tools.RESERVED:
            result = await self._own_tools.call(name, params, caller)
            return era.upward("tools/call", result, caller.era, SERVER_INFO)
        return await self._tool_calls.call(params, caller)

    async def _set_level(self, params: Members, caller: Caller) -> bytes:
        """Remember the session's level, and pass it on to the servers that log."""
        level = envelope.text(params.get("level"))
        if level is None:
            raise RequestError(INVALID_PARAMS, "logging/setLevel needs a level")
        if caller.session is not None:
            caller.session.log_level = level
        for client in self._fleet.clients.values():
            introduction = client.introduction
            if client.link is None or introduction is None:
                continue
            if client.era is Era.HANDSHAKE and introduction.offers("logging"):
                try:
                    await client.call("logging/setLevel", {"level": params["level"]})
                except DownstreamError as error:
                    logger.debug("%s", error)
        return b"{}"


def _fitted(method: str, handler: Handler) -> Handler:
    """A handler whose own results are fitted to the caller's era; what was forwarded already is."""

    async def fit(params: Members, caller: Caller) -> bytes:
        return era.upward(method, await handler(params, caller), caller.era, SERVER_INFO)

    return fit
