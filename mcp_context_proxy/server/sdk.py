"""Every touch of the SDK's server side, some of it provisional, in one module.

The SDK negotiates, keeps HTTP sessions and serves subscriptions. The methods that the gateway answers are
taken out of its hands by a middleware before it parses or sieves anything, so that raw messages pass.

Leads the payload of a request around the SDK, which would parse and copy it while everybody waits.

What the SDK is shown of a request is what it decides by; where it writes the answer, a stand-in of a few
bytes takes the place of the result. Both payloads pass as the bytes that they are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import validate_mcp_param_headers, x_mcp_header_map
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from msgspec import Raw
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.requests import Request

from mcp_context_proxy import __version__
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_REQUEST, Members, RequestError, RequestId
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.framing import on_one_line
from mcp_context_proxy.server.caller import PASSED_ON_KEY
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.notifications import (
    PROMPTS_CHANGED,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
    ChangeNotifier,
)

SCOPE_KEY = "mcp-context-proxy/bypass"
"""Of an ASGI scope, under which a request keeps its `Bypass`."""

ROUTED_BY = ("name", "uri")
"""Params that the SDK compares with headers."""

_SECRET = secrets.token_hex(16)
"""Known to nobody, so that nothing that is relayed can look like the stand-in."""

_STAND_IN = envelope.encode({_SECRET: 0})


class PayloadBypass:
    """The payloads of one request."""

    __slots__ = ("_payload", "params")

    def __init__(self, params: Members) -> None:
        self.params = params
        """As the client sent them."""
        self._payload: bytes | None = None

    def leave(self, payload: bytes) -> dict[str, Any]:
        """Keep an encoded payload for `put_back`; what the SDK is to write meanwhile."""
        self._payload = payload
        return {_SECRET: 0}

    def put_back(self, written: bytes) -> bytes:
        """What the SDK wrote, with the payload that was left, on one line, where the stand-in is."""
        if self._payload is None or (at := written.find(_STAND_IN)) < 0:
            return written
        payload, self._payload = self._payload, None
        return b"".join((written[:at], on_one_line(payload), written[at + len(_STAND_IN) :]))


def shown(request_id: RequestId, method: str, params: Members) -> bytes:
    """Of a request that the gateway answers, what the SDK decides by: era, names, and nothing large."""
    kept: dict[str, Any] = {key: _short(params[key]) for key in ROUTED_BY if key in params}
    if "_meta" in params:
        kept["_meta"] = _meta(params["_meta"])
    return envelope.request(request_id, method, kept)


def _meta(raw: Raw) -> Mapping[str, Any] | None:
    if not envelope.starts_with(raw, b"{"):
        return None
    meta = eras.meta_of({"_meta": raw})
    kept: dict[str, Any] = {}
    if eras.VERSION_KEY in meta:
        kept[eras.VERSION_KEY] = _short(meta[eras.VERSION_KEY])
    if eras.CLIENT_CAPABILITIES_KEY in meta:
        kept[eras.CLIENT_CAPABILITIES_KEY] = {}
    return kept


def _short(raw: Raw) -> Raw | int:
    """A string, or nothing, as it is; of anything else only that it is neither."""
    return raw if envelope.starts_with(raw, b'"', b"n") else 0


logger = logging.getLogger(__name__)

SESSION_KEY = "mcp-context-proxy/session"
"""Under which a handshake-era connection keeps our session."""

HANDSHAKE_KEY = "mcp-context-proxy/handshake"
"""Under which it keeps what the client said in `initialize`: the SDK's models drop what they do not know."""

NOTIFICATIONS_QUEUED = 1024
"""Notifications of one request that wait to be sent; more are dropped, as progress may be."""

EXTENSIONS: dict[str, dict[str, Any]] = {
    eras.OWN_PREFIX + "query-lists": {"queryKey": eras.QUERY_KEY, "contextKey": eras.CONTEXT_KEY}
}
"""Tells clients that lists can be asked for by query, and under which ``_meta`` keys."""

PARAMS: Mapping[str, type[BaseModel]] = {
    "tools/list": types.PaginatedRequestParams,
    "tools/call": types.CallToolRequestParams,
    "resources/list": types.PaginatedRequestParams,
    "resources/templates/list": types.PaginatedRequestParams,
    "resources/read": types.ReadResourceRequestParams,
    "resources/subscribe": types.SubscribeRequestParams,
    "resources/unsubscribe": types.UnsubscribeRequestParams,
    "prompts/list": types.PaginatedRequestParams,
    "prompts/get": types.GetPromptRequestParams,
    "completion/complete": types.CompleteRequestParams,
    "logging/setLevel": types.SetLevelRequestParams,
}
"""Registering a method is what makes the SDK declare the capability that goes with it."""


class SdkServer(Server[Any]):
    """The SDK's server with our gateway behind it."""

    def __init__(
        self,
        gateway: Gateway,
        changes: ChangeNotifier,
        instructions: str,
        header_schema: Callable[[str], dict[str, Any] | None],
    ) -> None:
        """Build the server.

        Args:
            gateway: Answers all but negotiation and subscriptions.
            changes: Announces what changes to sessions and subscriptions.
            instructions: What hosts tell their models about this server.
            header_schema: Input schema of a tool whose arguments must be repeated in headers; else None.
        """
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)
        super().__init__(
            "mcp-context-proxy",
            version=__version__,
            title="MCP Context Proxy",
            instructions=instructions,
            on_subscriptions_listen=self._listen,
            # Without it, every modern HTTP call would first run the whole tools/list.
            get_tool_input_schema=lambda name: None,
        )
        self.extensions = EXTENSIONS
        self._gateway, self._changes, self._header_schema = gateway, changes, header_schema
        for method, params in PARAMS.items():
            self.add_request_handler(method, params, _unreachable)
        self.middleware.insert(0, self._pass)
        changes.publish_to(self._publish)

    @property
    def gateway(self) -> Gateway:
        """For the fronts that answer from it themselves."""
        return self._gateway

    @property
    def relayed(self) -> frozenset[str]:
        """Methods whose requests and results pass undecoded."""
        return self._gateway.methods

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Declare ``listChanged`` also where the SDK asks without options, as for HTTP sessions."""
        options = notification_options or NotificationOptions(True, True, True)
        # The handshake era knows no extensions, only experiments.
        return super().create_initialization_options(
            options, {**EXTENSIONS, **(experimental_capabilities or {})}, extensions
        )

    async def _pass(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> Any:
        """Answer from the gateway what it knows; leave the rest, and every refusal, to the SDK."""
        if ctx.request_id is None:
            return await self._pass_notification(ctx, call_next)
        if ctx.method == "initialize":
            ctx.session._connection.state[HANDSHAKE_KEY] = dict(ctx.params or {})
        if ctx.method not in self._gateway.methods:
            return await call_next(ctx)
        spoken = Era.MODERN if ctx.protocol_version == eras.MODERN_VERSION else Era.HANDSHAKE
        if spoken is Era.HANDSHAKE and ctx.session.client_params is None:
            return await call_next(ctx)
        bypass = _bypass_of(ctx.request)
        if bypass is None:
            params: Members = {key: _encoded(value) for key, value in (ctx.params or {}).items()}
            return await self._answer(ctx, params, spoken, _decoded)
        if ctx.method == "tools/call" and spoken is Era.MODERN and ctx.request is not None:
            self._check_headers(ctx.request, bypass.params)
        return await self._answer(ctx, bypass.params, spoken, bypass.leave)

    def _check_headers(self, request: Request, params: Members) -> None:
        """Refuse a call whose headers say something else than its arguments."""
        schema = self._header_schema(envelope.text(params.get("name")) or "")
        if schema is None:
            return
        paths = x_mcp_header_map(schema)
        try:
            arguments = envelope.members(params.get("arguments", b"{}"))
        except msgspec.DecodeError:
            return
        named = {path[0]: envelope.value(arguments[path[0]]) for path in paths if path[0] in arguments}
        wrong = validate_mcp_param_headers(schema, named, request.headers)
        if wrong is not None:
            raise MCPError(code=wrong.code, message=wrong.message, data=wrong.data)

    async def _pass_notification(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> Any:
        """Tell the gateway what the client of a session announces."""
        session = ctx.session._connection.state.get(SESSION_KEY)
        if ctx.method == "notifications/initialized" and ctx.request is not None:
            # Whoever asks for nothing hears of changes as well. Other fronts open their sessions themselves.
            self._session_of(ctx)
        if isinstance(session, Session):
            await self._gateway.notified(ctx.method, session)
        return await call_next(ctx)

    async def _listen(
        self, ctx: ServerRequestContext[Any, Any], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve a modern subscription, and hear of the resources that it names as long as it lasts."""
        async with self._gateway.watching(params.notifications.resource_subscriptions or ()):
            return await self.listen(ctx, params)

    async def _answer(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: Members,
        spoken: Era,
        written: Callable[[bytes], dict[str, Any]],
    ) -> dict[str, Any]:
        """Answer from the gateway; `written` makes of an encoded payload what the SDK writes for it."""
        session = self._session_of(ctx) if spoken is Era.HANDSHAKE else None
        async with anyio.create_task_group() as group:
            caller = SdkCaller(ctx, spoken, session, params)
            group.start_soon(caller.deliver)
            try:
                result = await self._gateway.handle(ctx.method, params, caller)
            except RequestError as error:
                data = written(bytes(error.data)) if isinstance(error.data, Raw) else error.data
                failure: MCPError | None = MCPError(code=error.code, message=error.message, data=data)
            else:
                failure = None
            caller.finish()
        if failure is not None:
            raise failure
        return written(result)

    def _session_of(self, ctx: ServerRequestContext[Any, Any]) -> Session:
        """Our session on a handshake-era connection; it ends with it."""
        connection = ctx.session._connection
        session = connection.state.get(SESSION_KEY)
        if not isinstance(session, Session):
            session = connection.state[SESSION_KEY] = Session()
            sessions = self._gateway.open_sessions
            sessions.open(session, lambda method, params: connection.notify(method, _plain(params)))
            connection.exit_stack.callback(sessions.end, session)
        return session

    async def _publish(self, method: str, params: Members) -> None:
        event = _event(method, params)
        if event is not None:
            await self._bus.publish(event)


class SdkCaller:
    """The client of one request that came through the SDK. Implements `Caller`."""

    def __init__(
        self, ctx: ServerRequestContext[Any, Any], spoken: Era, session: Session | None, params: Members
    ) -> None:
        self.era, self.session = spoken, session
        self._outbound = ctx.session._request_outbound
        if spoken is Era.MODERN:
            meta = eras.meta_of(params)
            self.capabilities = meta.get(eras.CLIENT_CAPABILITIES_KEY)
            self.client_info = meta.get(eras.CLIENT_INFO_KEY)
        else:
            said = ctx.session._connection.state.get(HANDSHAKE_KEY, {})
            self.capabilities, self.client_info = _raw(said.get("capabilities")), _raw(said.get("clientInfo"))
        self.principal = None if ctx.request is None else principal_of(ctx.request.headers)
        self._passed_on = None if ctx.request is None else ctx.request.scope.get(PASSED_ON_KEY)
        self._send, self._queue = anyio.create_memory_object_stream[tuple[str, Members]](NOTIFICATIONS_QUEUED)

    def notify(self, method: str, params: Members) -> None:
        """Queue a notification for this request's stream."""
        try:
            self._send.send_nowait((method, params))
        except (anyio.WouldBlock, anyio.ClosedResourceError):
            logger.debug("dropped %s: the client does not read", method)

    def passed_on(self) -> None:
        """See `Caller.passed_on`."""
        if self._passed_on is not None:
            self._passed_on()

    async def deliver(self) -> None:
        """Send what is queued until `finish`."""
        with self._queue:
            async for method, params in self._queue:
                try:
                    await self._outbound.notify(method, _plain(params))
                except Exception:
                    # boundary: a client that has gone must not fail what is still being answered
                    logger.debug("could not send %s", method, exc_info=True)

    def finish(self) -> None:
        """Nothing more will be queued."""
        self._send.close()

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the client on this request's stream."""
        try:
            return envelope.encode(await self._outbound.send_raw_request(method, _plain(params)))
        except MCPError as error:
            raise RequestError(error.error.code, error.error.message, error.error.data) from error


async def _unreachable(ctx: ServerRequestContext[Any, Any], params: Any) -> dict[str, Any]:
    """Only reached by a request before ``initialize``, which the SDK refuses before it comes here."""
    del ctx, params
    raise MCPError(code=INVALID_REQUEST, message="the session is not initialized")


def principal_of(headers: Headers) -> str | None:
    """Who sent an HTTP request, by the credentials it came with; None without any."""
    credentials = headers.get("authorization")
    return None if credentials is None else hashlib.sha256(credentials.encode()).hexdigest()


def _bypass_of(request: Request | None) -> PayloadBypass | None:
    found = None if request is None else request.scope.get(SCOPE_KEY)
    return found if isinstance(found, PayloadBypass) else None


def _decoded(payload: bytes) -> Any:
    return json.loads(payload)


def _encoded(value: Any) -> Raw:
    try:
        return envelope.raw(value)
    except UnicodeEncodeError:
        # Half a character: it goes on escaped, as it came.
        return Raw(json.dumps(value).encode())


def _raw(value: Any) -> Raw | None:
    return None if value is None else envelope.raw(value)


def _plain(params: Members) -> dict[str, Any]:
    return {key: json.loads(bytes(value)) for key, value in params.items()}


_EVENTS: Mapping[str, Callable[[], ServerEvent]] = {
    TOOLS_CHANGED: ToolsListChanged,
    PROMPTS_CHANGED: PromptsListChanged,
    RESOURCES_CHANGED: ResourcesListChanged,
}


def _event(method: str, params: Members) -> ServerEvent | None:
    build = _EVENTS.get(method)
    if build is not None:
        return build()
    uri = envelope.text(params.get("uri"))
    return None if uri is None else ResourceUpdated(uri)
