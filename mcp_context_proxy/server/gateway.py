"""The one place where a request meets what answers it: method in, encoded result out.

Serves every front alike. Knows no SDK; what it does not handle here (negotiation, subscriptions) is the
SDK's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.server import meta_tools, paging
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.draining import Drain
from mcp_context_proxy.server.forwarding import SERVER_INFO
from mcp_context_proxy.server.open_sessions import OpenSessions
from mcp_context_proxy.server.own_tools import OwnTools
from mcp_context_proxy.server.prompts import Prompts
from mcp_context_proxy.server.resources import Resources
from mcp_context_proxy.server.tool_calls import ToolCalls
from mcp_context_proxy.server.tools import ToolList
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire import params as params_of_requests
from mcp_context_proxy.wire.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Members,
    RequestError,
)
from mcp_context_proxy.wire.era import Era
from mcp_context_proxy.wire.levels import LOG_LEVELS, most_verbose

if TYPE_CHECKING:
    from mcp_context_proxy.server.tracing import Tracing

logger = logging.getLogger(__name__)

Handler = Callable[[Members, Caller], Awaitable[bytes]]

ANNOUNCED = frozenset({"notifications/roots/list_changed"})
"""What a client tells that concerns the servers."""

HANDSHAKE_ONLY = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Methods that the modern era does not have."""


class Gateway:
    """Answers requests."""

    def __init__(
        self,
        fleet: Fleet,
        contexts: ContextEngine,
        open_sessions: OpenSessions,
        tool_list: ToolList,
        tool_calls: ToolCalls,
        own_tools: OwnTools,
        resources: Resources,
        prompts: Prompts,
        page_size: int = 0,
    ) -> None:
        self.open_sessions = open_sessions
        """For the fronts, which open and end them."""
        open_sessions.when_ended(lambda session: self._share_level())
        self._fleet, self._tool_calls, self._own_tools = fleet, tool_calls, own_tools
        self._contexts = contexts
        self.drain = Drain()
        """Ends what is under way, in order, when the proxy is told to stop."""
        self.tracing: Tracing | None = None
        """Makes spans, where somebody collects them."""
        self._resources, self._page_size = resources, page_size
        self._handlers: Mapping[str, Handler] = {
            "tools/list": self._listing("tools/list", "tools", tool_list.answer),
            "tools/call": self._call,
            "resources/list": self._listing("resources/list", "resources", resources.list),
            "resources/templates/list": self._listing(
                "resources/templates/list", "resourceTemplates", resources.templates
            ),
            "resources/read": _fitted("resources/read", resources.read),
            "resources/subscribe": resources.subscribe,
            "resources/unsubscribe": resources.unsubscribe,
            "prompts/list": self._listing("prompts/list", "prompts", prompts.list),
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
        wrong = params_of_requests.fault(method, params, modern=caller.era is Era.MODERN)
        if wrong is not None:
            raise RequestError(INVALID_PARAMS, wrong)
        if caller.session is not None:
            self._contexts.register(caller.session)
        try:
            with self.drain.request():
                if self.tracing is None:
                    return await handler(params, caller)
                with self.tracing.request(method, params, caller.era) as traced:
                    result = await handler(params, caller)
                    traced.answered(result)
                    return result
        except RequestError:
            raise
        except Exception:
            # boundary: a fault of ours is one request's failure, and its details are for the log
            logger.exception("%s failed", method)
            raise RequestError(
                INTERNAL_ERROR, "internal error of the proxy; its log has the details"
            ) from None
        raise AssertionError("a request that is given up raises")

    def _listing(self, method: str, member: str, whole: Handler) -> Handler:
        """A handler of a list, in pages where they are configured."""
        size = self._page_size
        if size == 0:
            return _fitted(method, whole)

        async def paged(params: Members, caller: Caller) -> bytes:
            result = await whole(paging.without_cursor(params), caller)
            return paging.page(result, member, envelope.text(params.get("cursor")), size)

        return _fitted(method, paged)

    async def notified(self, method: str, session: Session) -> None:
        """Take what a handshake-era client announced."""
        if method in ANNOUNCED:
            await self._fleet.announce(session.party, method)

    def watching(self, uris: Iterable[str]) -> AbstractAsyncContextManager[None]:
        """Hear of updates of these resources, for a modern subscription, as long as it lasts."""
        return self._resources.watching(uris)

    async def _call(self, params: Members, caller: Caller) -> bytes:
        name = envelope.text(params.get("name"))
        if name is not None and name in meta_tools.RESERVED:
            result = await self._own_tools.call(name, params, caller)
            return era.upward("tools/call", result, caller.era, SERVER_INFO)
        return await self._tool_calls.call(params, caller)

    async def _set_level(self, params: Members, caller: Caller) -> bytes:
        """Remember the session's level; the servers log what serves all sessions."""
        level = envelope.text(params.get("level"))
        if level not in LOG_LEVELS:
            raise RequestError(INVALID_PARAMS, f"the level must be one of {', '.join(LOG_LEVELS)}")
        if caller.session is not None:
            caller.session.log_level = level
        self._share_level()
        return b"{}"

    def _share_level(self) -> None:
        self._fleet.set_log_level(most_verbose(session.log_level for session in self.open_sessions))


def _fitted(method: str, handler: Handler) -> Handler:
    """A handler whose own results are fitted to the caller's era; what was forwarded already is."""

    async def fit(params: Members, caller: Caller) -> bytes:
        return era.upward(method, await handler(params, caller), caller.era, SERVER_INFO)

    return fit
