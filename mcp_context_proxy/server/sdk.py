"""The only module that touches the SDK's server side, some of which is provisional.

The SDK negotiates, keeps HTTP sessions and serves subscriptions. A middleware takes the methods that the
gateway answers out of its hands, so that raw messages pass: the SDK would parse and copy a payload while
everybody waits. Of such a request over HTTP it is shown only the members by which it decides (`shown`), and
where it writes the response, a placeholder of a few bytes takes the place of the result (`PayloadBypass`).
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
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
from starlette.requests import Request

from mcp_context_proxy import __version__
from mcp_context_proxy.context.delivery import SessionIntroduction
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    Members,
    RequestError,
    RequestId,
)
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.framing import on_one_line
from mcp_context_proxy.server.caller import Caller, principal_of, rights_of
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.notifications import (
    PROMPTS_CHANGED,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
    ChangeNotifier,
)
from mcp_context_proxy.server.resources import TOO_MANY, too_many
from mcp_context_proxy.trust.tokens import ACTING, THE_USER, Principal, acting_as

logger = logging.getLogger(__name__)

BYPASS_KEY = "mcp-context-proxy/bypass"
"""Key of an ASGI scope: the `PayloadBypass` of the request."""

RELEASE_KEY = "mcp-context-proxy/release"
"""Key of an ASGI scope: gives back the room that the body takes (`Caller.release`)."""

SESSION_KEY = "mcp-context-proxy/session"
"""Key in the state of a handshake-era connection: our session."""

HANDSHAKE_KEY = "mcp-context-proxy/handshake"
"""Key in the same state: the params of `initialize`, of which the SDK's models drop what they do not know."""

INTRODUCTION_KEY = "mcp-context-proxy/introduction"
"""Key in the same state: the instructions with which the session began."""

HEADER_PARAMS = ("name", "uri")
"""Params that the SDK compares with headers."""

NOTIFICATIONS_QUEUED, NOTIFICATIONS_QUEUED_BYTES = 1024, 1 << 20
"""Notifications of one request that wait to be sent; more are dropped, as progress may be."""

EXTENSIONS: dict[str, dict[str, Any]] = {
    eras.OWN_PREFIX + "query-lists": {"queryKey": eras.QUERY_KEY, "contextKey": eras.CONTEXT_KEY}
}
"""Tells clients that lists can be asked for by query, and under which ``_meta`` keys."""

SKILLS: dict[str, dict[str, Any]] = {eras.SKILLS_EXTENSION: {"directoryRead": True}}
"""Declares skills, to modern clients only: the extension is one of that era."""

_EVENTS: Mapping[str, Callable[[], ServerEvent]] = {
    TOOLS_CHANGED: ToolsListChanged,
    PROMPTS_CHANGED: PromptsListChanged,
    RESOURCES_CHANGED: ResourcesListChanged,
}

_SECRET = secrets.token_hex(16)
"""Unknown outside of this process, so that no relayed payload can look like the placeholder."""

_PLACEHOLDER = envelope.encode({_SECRET: 0})


class SdkServer(Server[Any]):
    """The SDK's server with our gateway behind it."""

    def __init__(
        self,
        *,
        gateway: Gateway,
        changes: ChangeNotifier,
        introduction: Callable[[], SessionIntroduction],
        header_schema: Callable[[str], dict[str, Any] | None],
    ) -> None:
        """Build the server.

        `introduction` returns the text about it that hosts give to their models, as it is at the moment;
        `header_schema` returns the input schema of a tool whose arguments are repeated in headers, and None
        for any other.
        """
        self.gateway, self._changes, self._header_schema = gateway, changes, header_schema
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)
        self._buses: dict[Principal, tuple[InMemorySubscriptionBus, ListenHandler]] = {}
        """Subscriptions of principals with limits."""
        super().__init__(
            "mcp-context-proxy",
            version=__version__,
            title="MCP Context Proxy",
            on_subscriptions_listen=self._listen,
            # Without it, every modern HTTP call would first run the whole tools/list.
            get_tool_input_schema=lambda name: None,
        )
        self._introduction, self._introduced = introduction, SessionIntroduction()
        self.extensions = EXTENSIONS | SKILLS
        for method in gateway.methods:
            # A registered method is what makes the SDK declare the capability that goes with it.
            self.add_request_handler(method, types.RequestParams, _unreachable)
        self.middleware.insert(0, self._pass)

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
        """Answer the gateway's methods from the gateway; leave the rest, and every refusal, to the SDK."""
        if ctx.request_id is None:
            session = ctx.session._connection.state.get(SESSION_KEY)
            if ctx.method == "notifications/initialized" and ctx.request is not None:
                # A client that makes no requests is notified as well. Other fronts open their sessions
                # themselves.
                self._session_of(ctx)
            if isinstance(session, Session):
                await self.gateway.notified(ctx.method, session)
            return await call_next(ctx)
        if ctx.method in ("initialize", "server/discover"):
            return await self._introduce(ctx, call_next)
        if ctx.method not in self.gateway.methods:
            return await call_next(ctx)
        era = Era.MODERN if ctx.protocol_version == eras.MODERN_VERSION else Era.HANDSHAKE
        if era is Era.HANDSHAKE and ctx.session.client_params is None:
            return await call_next(ctx)
        bypass = None if ctx.request is None else ctx.request.scope.get(BYPASS_KEY)
        if not isinstance(bypass, PayloadBypass):
            params: Members = {key: _encoded(value) for key, value in (ctx.params or {}).items()}
            return await self._answer(ctx, params, era, json.loads)
        if ctx.method == "tools/call" and era is Era.MODERN and ctx.request is not None:
            self._check_headers(ctx.request, bypass.params)
        return await self._answer(ctx, bypass.params, era, bypass.leave)

    def _rights(self, ctx: ServerRequestContext[Any, Any], client_info: Raw | None) -> Principal:
        """Return the principal of a request, with the limits of its client's profile."""
        known = ACTING.get() if ctx.request is None else rights_of(ctx.request.scope)
        return self.gateway.profiles.of_client(known, client_info)

    def session_after(self, instructions: object, rights: Principal = THE_USER) -> Session:
        """Return a new session, which knows the rules in the instructions that its client was sent."""
        known = self._introduced if instructions == self._introduced.text else SessionIntroduction()
        return Session(
            principal=rights.name,
            rights=rights,
            delivered=dict(known.given),
            introduced=set(known.servers),
        )

    async def _introduce(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> Any:
        """Describe the proxy with the instructions of this moment; a session remembers the rules in them."""
        params = dict(ctx.params or {})
        meta = params.get("_meta") or {}
        info = params.get("clientInfo") if ctx.method == "initialize" else meta.get(eras.CLIENT_INFO_KEY)
        with acting_as(self._rights(ctx, None if info is None else envelope.raw(info))):
            introduction = self._introduced = self._introduction()
        if ctx.method == "initialize":
            state = ctx.session._connection.state
            state[HANDSHAKE_KEY], state[INTRODUCTION_KEY] = dict(ctx.params or {}), introduction
        result = await call_next(ctx)
        # The SDK has instructions of its own from the start, when not even the documents may have been read.
        if isinstance(result, types.InitializeResult | types.DiscoverResult):
            return result.model_copy(update={"instructions": introduction.text})
        return {**result, "instructions": introduction.text} if isinstance(result, dict) else result

    def _check_headers(self, request: Request, params: Members) -> None:
        """Refuse a call whose headers contradict its arguments."""
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

    async def _listen(
        self, ctx: ServerRequestContext[Any, Any], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve a modern subscription, subscribed to the resources that it names while it lasts."""
        self._changes.publish, self._changes.subscribers = self._publish, self._subscribers
        uris = params.notifications.resource_subscriptions or ()
        if too_many(uris):
            raise MCPError(code=INVALID_PARAMS, message=TOO_MANY)
        meta = (ctx.params or {}).get("_meta") or {}
        info = meta.get(eras.CLIENT_INFO_KEY)
        rights = self._rights(ctx, None if info is None else envelope.raw(info))
        if rights.limited:
            with acting_as(rights):
                hidden = [uri for uri in uris if not self.gateway.resources.exists(uri)]
            if hidden:
                raise MCPError(code=INVALID_PARAMS, message=f"unknown resource {hidden[0]!r}")
        async with self.gateway.resources.watching(uris):
            return await self._listener(rights)(ctx, params)

    async def _answer(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: Members,
        era: Era,
        to_write: Callable[[bytes], dict[str, Any]],
    ) -> dict[str, Any]:
        """Answer from the gateway; `to_write` turns an encoded payload into an object for the SDK."""
        failure: MCPError | None = None
        stream = RequestStream(ctx)
        async with anyio.create_task_group() as group:
            group.start_soon(stream.deliver)
            try:
                caller = self._caller(ctx, params, era, stream)
                result = await self.gateway.handle(ctx.method, params, caller)
            except RequestError as error:
                data = to_write(bytes(error.data)) if isinstance(error.data, Raw) else error.data
                failure = MCPError(code=error.code, message=error.message, data=data)
            stream.finish()
        if failure is not None:
            raise failure
        return to_write(result)

    def _caller(
        self, ctx: ServerRequestContext[Any, Any], params: Members, era: Era, stream: RequestStream
    ) -> Caller:
        session, request = None, ctx.request
        if era is Era.MODERN:
            meta = eras.meta_of(params)
            capabilities, client_info = meta.get(eras.CLIENT_CAPABILITIES_KEY), meta.get(eras.CLIENT_INFO_KEY)
        else:
            session = self._session_of(ctx)
            handshake = ctx.session._connection.state.get(HANDSHAKE_KEY, {})
            capabilities, client_info = (
                None if (declared := handshake.get(name)) is None else envelope.raw(declared)
                for name in ("capabilities", "clientInfo")
            )
        return Caller(
            era=era,
            session=session,
            capabilities=capabilities,
            client_info=client_info,
            principal=None if request is None else principal_of(request.scope),
            rights=THE_USER if request is None else rights_of(request.scope),
            notify=stream.notify,
            ask=stream.ask,
            release=(request and request.scope.get(RELEASE_KEY)) or (lambda: None),
        )

    def _session_of(self, ctx: ServerRequestContext[Any, Any]) -> Session:
        """Return our session on a handshake-era connection, opened on first use; both end together."""
        connection = ctx.session._connection
        session = connection.state.get(SESSION_KEY)
        if not isinstance(session, Session):
            known = connection.state.get(INTRODUCTION_KEY)
            known = known if isinstance(known, SessionIntroduction) else SessionIntroduction()
            info = connection.state.get(HANDSHAKE_KEY, {}).get("clientInfo")
            rights = self._rights(ctx, None if info is None else envelope.raw(info))
            session = Session(
                principal=rights.name,
                rights=rights,
                delivered=dict(known.given),
                introduced=set(known.servers),
            )
            connection.state[SESSION_KEY] = session
            self.gateway.open_session(
                session, lambda method, params: connection.notify(method, _plain(params))
            )
            connection.exit_stack.callback(self.gateway.end_session, session)
        return session

    def _subscribers(self) -> Iterable[Principal]:
        return list(self._buses)

    def _listener(self, rights: Principal) -> ListenHandler:
        """Return the handler of the subscriptions of one principal, which hear nothing of others."""
        if not rights.limited:
            return self.listen
        if rights not in self._buses:
            bus = InMemorySubscriptionBus()
            self._buses[rights] = bus, ListenHandler(bus)
        return self._buses[rights][1]

    def close_subscriptions(self) -> None:
        """End all subscriptions, each with a response."""
        self.listen.close()
        for _, handler in self._buses.values():
            handler.close()

    async def _publish(self, method: str, params: Members, concerns: Callable[[Principal], bool]) -> None:
        uri = envelope.text(params.get("uri"))
        if method not in _EVENTS and uri is None:
            return
        event = _EVENTS[method]() if method in _EVENTS else ResourceUpdated(uri or "")
        buses = [self._bus] if concerns(THE_USER) else []
        for bus in (*buses, *(bus for rights, (bus, _) in list(self._buses.items()) if concerns(rights))):
            await bus.publish(event)


class RequestStream:
    """The SDK's stream of one request: takes notifications and requests to the client meanwhile."""

    def __init__(self, ctx: ServerRequestContext[Any, Any]) -> None:
        self._outbound = ctx.session._request_outbound
        self._bytes = 0
        self._send, self._queue = anyio.create_memory_object_stream[tuple[str, Members]](NOTIFICATIONS_QUEUED)

    def notify(self, method: str, params: Members) -> None:
        """Queue a notification for this request's stream; it is dropped if the client does not read."""
        size = sum(len(raw) for raw in params.values())
        try:
            if self._bytes + size > NOTIFICATIONS_QUEUED_BYTES:
                raise anyio.WouldBlock
            self._send.send_nowait((method, params))
            self._bytes += size
        except (anyio.WouldBlock, anyio.ClosedResourceError):
            logger.debug("dropped %s: the client does not read", method)

    async def deliver(self) -> None:
        """Send queued notifications until `finish`."""
        with self._queue:
            async for method, params in self._queue:
                self._bytes -= sum(len(raw) for raw in params.values())
                try:
                    await self._outbound.notify(method, _plain(params))
                except Exception:
                    # boundary: a client that has gone must not fail the request that is still being answered
                    logger.debug("could not send %s", method, exc_info=True)

    def finish(self) -> None:
        """End `deliver` once the queue is empty."""
        self._send.close()

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the client on this request's stream."""
        try:
            return envelope.encode(await self._outbound.send_raw_request(method, _plain(params)))
        except MCPError as error:
            raise RequestError(error.error.code, error.error.message, error.error.data) from error


class PayloadBypass:
    """Keeps the payloads of one request out of the SDK: its params, and then its result."""

    __slots__ = ("_payload", "params")

    def __init__(self, params: Members) -> None:
        self.params = params
        """The params as the client sent them."""
        self._payload: bytes | None = None

    def leave(self, payload: bytes) -> dict[str, Any]:
        """Keep an encoded payload for `put_back`; return the placeholder that the SDK writes meanwhile."""
        self._payload = payload
        return {_SECRET: 0}

    def put_back(self, written: bytes) -> bytes:
        """Replace the placeholder in the SDK's output by the payload, on one line."""
        if self._payload is None or (at := written.find(_PLACEHOLDER)) < 0:
            return written
        payload, self._payload = self._payload, None
        return b"".join((written[:at], on_one_line(payload), written[at + len(_PLACEHOLDER) :]))


def shown(request_id: RequestId, method: str, params: Members) -> bytes:
    """Encode a request for the SDK with only the members that it decides by: era and names, nothing large."""
    kept: dict[str, Any] = {key: _short(params[key]) for key in HEADER_PARAMS if key in params}
    if "_meta" in params:
        kept["_meta"] = None
        if envelope.starts_with(params["_meta"], b"{"):
            meta = eras.meta_of(params)
            kept["_meta"] = {key: _short(meta[key]) for key in (eras.VERSION_KEY,) if key in meta}
            if eras.CLIENT_CAPABILITIES_KEY in meta:
                kept["_meta"][eras.CLIENT_CAPABILITIES_KEY] = {}
    return envelope.request(request_id, method, kept)


def _short(raw: Raw) -> Raw | int:
    """Return a string or null as it is; 0 for anything else, which is neither."""
    return raw if envelope.starts_with(raw, b'"', b"n") else 0


async def _unreachable(ctx: ServerRequestContext[Any, Any], params: Any) -> dict[str, Any]:
    """Stand in for the handlers: the SDK refuses a request before ``initialize`` before it gets here."""
    del ctx, params
    raise MCPError(code=INVALID_REQUEST, message="the session is not initialized")


def _encoded(value: Any) -> Raw:
    try:
        return envelope.raw(value)
    except UnicodeEncodeError:
        # Half a character: it goes on escaped, as it came.
        return Raw(json.dumps(value).encode())


def _plain(params: Members) -> dict[str, Any]:
    return {key: json.loads(bytes(value)) for key, value in params.items()}
