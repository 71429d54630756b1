"""Streamable HTTP in both eras, at ``/mcp``: one message in each POST.

The version in the header tells the era. A request of the modern era stands alone. One of the handshake era
belongs to the session that its header names, and ``initialize`` opens one; GET gives a session a stream of
its own, for messages that belong to no request, and DELETE ends it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mcp_context_proxy.config import Limits
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream import Ask
from mcp_context_proxy.front.auth import fields_of, principal_of, rights_of
from mcp_context_proxy.front.conversation import TOO_MUCH, HostMessages, Questions, is_too_much
from mcp_context_proxy.front.http_requests import (
    JSON_TYPE,
    RELEASE_KEY,
    AdmissionRules,
    BadMessageError,
    Exchange,
    error_response,
    read,
)
from mcp_context_proxy.front.http_sessions import (
    SESSION_HEADER,
    HttpSessions,
    StreamableSession,
    UnknownSessions,
)
from mcp_context_proxy.protocol import envelope, eras, headers
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Envelope,
    Members,
    RequestError,
    RequestId,
)
from mcp_context_proxy.protocol.eras import MISSING_CAPABILITY, Era
from mcp_context_proxy.protocol.headers import HEADER_MISMATCH, VERSION_HEADER, HeaderFields
from mcp_context_proxy.server import Caller
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.negotiation import (
    INITIALIZE,
    LISTEN,
    UNSUPPORTED_VERSION,
    Negotiation,
    check_version,
)
from mcp_context_proxy.system.threads import in_task

STREAM_TYPE: Final = "text/event-stream"

PATIENCE: Final = {Era.HANDSHAKE: 0.2, Era.MODERN: 15.0}
"""Seconds after which a request without a result is answered by an event stream. Clients of the older era
know at once that they were heard, and those of the newer one get the status of an error."""

_STATUSES: Final[Mapping[int, HTTPStatus]] = {
    **dict.fromkeys(
        (
            PARSE_ERROR,
            INVALID_REQUEST,
            INVALID_PARAMS,
            HEADER_MISMATCH,
            MISSING_CAPABILITY,
            UNSUPPORTED_VERSION,
        ),
        HTTPStatus.BAD_REQUEST,
    ),
    METHOD_NOT_FOUND: HTTPStatus.NOT_FOUND,
}
"""Status of an error response of the modern era."""


class StreamableHttp:
    """ASGI application of the endpoint."""

    def __init__(
        self, negotiation: Negotiation, limits: Limits, guesses: UnknownSessions, admission: AdmissionRules
    ) -> None:
        self._negotiation, self._gateway, self.guesses = negotiation, negotiation.gateway, guesses
        self.admission = admission
        self._sessions = HttpSessions(self._gateway, limits)
        self._group: TaskGroup

    @property
    def gateway(self) -> Gateway:
        """Return the gateway that answers its requests."""
        return self._gateway

    @property
    def sessions(self) -> HttpSessions:
        """Return the open sessions of the handshake era."""
        return self._sessions

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve inside; whatever is under way at the end is given up."""
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._sessions.run)
            yield
            self._group.cancel_scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        sent = fields_of(scope)
        version = sent.get(VERSION_HEADER)
        modern = is_modern(version)
        refusal: Response | None = None
        if scope["method"] == "POST":
            try:
                body, message = await read(receive)
                if not modern:
                    _check_era(message, version)
                self._check_size(message, body)
            except BadMessageError as error:
                refusal = error.response
            except RecursionError:
                refusal = BadMessageError(None, envelope.TOO_DEEP).response
            else:
                refusal = self.admission.refusal(scope, message, spread=modern)
                try:
                    if refusal is None and modern:
                        refusal = await self._post_modern(scope, receive, send, sent, message)
                    elif refusal is None:
                        refusal = await self._post(scope, receive, send, sent, message)
                except RecursionError:
                    refusal = BadMessageError(_id_of(message), envelope.TOO_DEEP).response
        elif modern:
            refusal = Response(None, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "POST"})
        else:
            refusal = await self._without_body(scope, receive, send, sent)
        if refusal is not None:
            await refusal(scope, receive, send)

    def _check_size(self, message: Envelope, body: bytes) -> None:
        if is_too_much(message, body, self._gateway.methods):
            raise BadMessageError(_id_of(message), TOO_MUCH)

    # The modern era

    async def _post_modern(
        self, scope: Scope, receive: Receive, send: Send, sent: HeaderFields, message: Envelope
    ) -> Response | None:
        request_id, method = message.id, message.method
        if not all(_accepted(sent.get("accept") or "")):
            return Response(None, HTTPStatus.NOT_ACCEPTABLE)
        try:
            if method is UNSET:
                raise RequestError(
                    INVALID_REQUEST, "a client of this version posts requests and notifications"
                )
            if not isinstance(request_id, int | str):
                check_version(sent.get(VERSION_HEADER) or "")
                return Response(None, HTTPStatus.ACCEPTED)
            params = _params_of(message)
            meta = eras.meta_of(params)
            headers.check_routing(sent, method, params, meta)
            era = self._negotiation.era_of(method, params, meta, None)
            if method == "tools/call":
                self._check_arguments(sent, params)
            result = self._negotiation.answer(method, params, era, rights_of(scope))
        except RequestError as error:
            known = request_id if isinstance(request_id, int | str) else None
            frame = envelope.error_reply(known, error.code, error.message, error.data)
            return Response(frame, _status_of(error.code), media_type=JSON_TYPE)
        if result is not None:
            return Response(envelope.reply(request_id, result), media_type=JSON_TYPE)
        exchange = Exchange(
            scope=scope, receive=receive, send=send, group=self._group, headers=[], patience=PATIENCE[era]
        )
        messages = HostMessages(exchange, _NO_QUESTIONS)
        capabilities, client_info = meta[eras.CLIENT_CAPABILITIES_KEY], meta.get(eras.CLIENT_INFO_KEY)
        caller = _caller(scope, era, None, capabilities, client_info, exchange, messages.ask, meta)
        if method == LISTEN:
            await in_task()
            listen = self._negotiation.listen
            work = partial(listen, request_id, params, caller.rights, messages.tell)
        else:
            work = partial(self._gateway.handle, method, params, caller)
        del params, caller
        with self._gateway.drain.busy():
            await exchange.answer(request_id, work, _status_of)
        return None

    def _check_arguments(self, fields: HeaderFields, params: Members) -> None:
        """Check the headers that repeat arguments of a call.

        A listed tool may ask for some. Under any other name none is asked for, but those that are there hold.
        """
        name = envelope.text(params.get("name")) or ""
        schema, required = self._negotiation.header_schema(name, True), True
        if schema is None and headers.repeats_arguments(fields):
            schema, required = self._negotiation.header_schema(name, False), False
        if schema is None:
            return
        try:
            arguments = envelope.members(params.get("arguments", b"{}"))
        except msgspec.DecodeError:
            return
        headers.check_arguments(fields, schema, arguments, required=required)
        # What was compared is what is sent: of a name that came twice, the last value.
        params["arguments"] = envelope.raw(arguments)

    # The handshake era

    async def _post(
        self, scope: Scope, receive: Receive, send: Send, sent: HeaderFields, message: Envelope
    ) -> Response | None:
        session = self._session(scope, sent)
        if isinstance(session, Response):
            return session
        if not all(_accepted(sent.get("accept") or "")):
            text = f"Not Acceptable: the client must accept {JSON_TYPE} and {STREAM_TYPE}"
            return error_response(HTTPStatus.NOT_ACCEPTABLE, None, text)
        if JSON_TYPE not in (sent.get("content-type") or "").partition(";")[0].lower():
            text = f"Unsupported Media Type: a message is {JSON_TYPE}"
            return error_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, None, text)
        if message.method == INITIALIZE and isinstance(message.id, int | str):
            return self._initialize(scope, message.id, message, session)
        if session is None:
            return _no_session(None)
        with self._sessions.busy(session):
            if isinstance(message.id, int | str) and isinstance(message.method, str):
                return await self._request(scope, receive, send, session, message.id, message.method, message)
            await Response(None, HTTPStatus.ACCEPTED, _session_header(session))(scope, receive, send)
            await self._take(session, message)
            return None

    def _initialize(
        self, scope: Scope, request_id: RequestId, message: Envelope, session: StreamableSession | None
    ) -> Response:
        try:
            params = _params_of(message)
            if session is not None:
                result = self._negotiation.initialize_again(params, rights_of(scope))
            elif not self._sessions.make_room():
                text, status = "busy: all sessions are in use", HTTPStatus.SERVICE_UNAVAILABLE
                return error_response(status, None, text, INTERNAL_ERROR)
            else:
                result, state = self._negotiation.initialize(params, rights_of(scope))
                session = self._sessions.open(state, principal_of(scope))
        except RequestError as error:
            return error_response(HTTPStatus.OK, request_id, error.message, error.code)
        frame = envelope.reply(request_id, result)
        return Response(frame, HTTPStatus.OK, _session_header(session), JSON_TYPE)

    async def _request(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        session: StreamableSession,
        request_id: RequestId,
        method: str,
        message: Envelope,
    ) -> Response | None:
        # 7 and "7" are one id: some clients take them for one.
        key = str(request_id)
        if not await session.is_free(key):
            return error_response(HTTPStatus.BAD_REQUEST, request_id, "a request with this id is under way")
        named = _session_header(session)
        try:
            params = _params_of(message)
            meta = eras.meta_of(params)
            era = self._negotiation.era_of(method, params, meta, session.state)
            result = self._negotiation.answer(method, params, era, rights_of(scope))
        except RequestError as error:
            frame = envelope.error_reply(request_id, error.code, error.message, error.data)
            return Response(frame, HTTPStatus.OK, named, JSON_TYPE)
        if result is not None:
            return Response(envelope.reply(request_id, result), HTTPStatus.OK, named, JSON_TYPE)
        added = [(name.encode(), value.encode()) for name, value in named.items()]
        exchange = Exchange(
            scope=scope,
            receive=receive,
            send=send,
            group=self._group,
            headers=added,
            patience=PATIENCE[Era.HANDSHAKE],
        )
        hello = session.state.hello
        capabilities, client_info = (None, None) if hello is None else (hello.capabilities, hello.client_info)
        messages = HostMessages(exchange, session.questions)
        caller = _caller(
            scope, Era.HANDSHAKE, session.state, capabilities, client_info, exchange, messages.ask, meta
        )
        work = partial(self._gateway.handle, method, params, caller)
        del params, caller
        with session.holding(key, exchange), self._gateway.drain.busy():
            await exchange.answer(request_id, work, lambda code: HTTPStatus.OK)
        return None

    async def _take(self, session: StreamableSession, message: Envelope) -> None:
        """Take a notification or a response of a session's client."""
        if not isinstance(message.method, str):
            session.questions.take_response(message)
        elif message.method == "notifications/cancelled":
            try:
                target = envelope.value_or_none(_params_of(message).get("requestId", b"null"))
            except RequestError:
                return
            found = session.exchanges.get(str(target)) if isinstance(target, int | str) else None
            if found is not None:
                found[0].end()
        else:
            await in_task()
            await self._gateway.notified(message.method, session.state)

    async def _without_body(
        self, scope: Scope, receive: Receive, send: Send, sent: HeaderFields
    ) -> Response | None:
        """Open the stream of a session, or end the session."""
        session = self._session(scope, sent)
        if isinstance(session, Response):
            return session
        if scope["method"] not in ("GET", "DELETE"):
            allowed = {"Allow": "GET, POST, DELETE"}
            return Response(None, HTTPStatus.METHOD_NOT_ALLOWED, allowed)
        if scope["method"] == "GET" and not _accepted(sent.get("accept") or "")[1]:
            text = f"Not Acceptable: the client must accept {STREAM_TYPE}"
            return error_response(HTTPStatus.NOT_ACCEPTABLE, None, text)
        if session is None:
            return _no_session(None)
        named = _session_header(session)
        if scope["method"] == "DELETE":
            self._sessions.end(session)
            return Response(None, HTTPStatus.OK, named)
        with self._sessions.busy(session):
            if not await session.is_free(None):
                return error_response(HTTPStatus.CONFLICT, None, "the session has a stream")
            added = [(name.encode(), value.encode()) for name, value in named.items()]
            exchange = Exchange(
                scope=scope, receive=receive, send=send, group=self._group, headers=added, patience=0
            )
            with session.holding(None, exchange):
                await exchange.stream()
        return None

    def _session(self, scope: Scope, sent: HeaderFields) -> StreamableSession | Response | None:
        """Return the session that a request names, None if it names none, or else the refusal."""
        session_id = sent.get(SESSION_HEADER)
        if session_id is None:
            return None
        session = self._sessions.get(session_id, principal_of(scope))
        if session is None:
            # Another principal learns no more about a session than about one that does not exist.
            return self.guesses.refusal(rights_of(scope).person, session_not_found())
        return session


_NO_QUESTIONS: Final = Questions()
"""Those of modern clients, of which nothing is asked."""


def _caller(
    scope: Scope,
    era: Era,
    session: Session | None,
    capabilities: Raw | None,
    client_info: Raw | None,
    exchange: Exchange,
    ask: Ask,
    meta: eras.Meta,
) -> Caller:
    return Caller(
        era=era,
        session=session,
        capabilities=capabilities,
        client_info=client_info,
        principal=principal_of(scope),
        rights=rights_of(scope),
        notify=exchange.notify,
        ask=ask,
        meta=meta,
        release=scope.get(RELEASE_KEY),
    )


def is_modern(version: str | None) -> bool:
    """Return whether the header of a request with this version says that it stands alone."""
    return version is not None and version not in eras.HANDSHAKE_VERSIONS


def session_not_found() -> Response:
    """Return the answer to a request of a session that does not exist."""
    return error_response(HTTPStatus.NOT_FOUND, None, "Session not found")


def _id_of(message: Envelope) -> RequestId | None:
    return message.id if isinstance(message.id, int | str) else None


def _params_of(message: Envelope) -> Members:
    if not isinstance(message.params, Raw):
        return {}
    try:
        return envelope.members(message.params)
    except msgspec.DecodeError:
        raise RequestError(INVALID_PARAMS, "the params must be an object") from None


def _status_of(code: int) -> HTTPStatus:
    return _STATUSES.get(code, HTTPStatus.OK)


def _session_header(session: StreamableSession) -> dict[str, str]:
    return {SESSION_HEADER: session.id}


def _no_session(request_id: RequestId | None) -> Response:
    text = f"Bad Request: the header {SESSION_HEADER} must name a session, which initialize opens"
    return error_response(HTTPStatus.BAD_REQUEST, request_id, text)


@lru_cache(maxsize=64)
def _accepted(accept: str) -> tuple[bool, bool]:
    """Return whether a client accepts JSON, and event streams."""
    types = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    either = "*/*" in types
    return either or bool(types & {JSON_TYPE, "application/*"}), either or bool(
        types & {STREAM_TYPE, "text/*"}
    )


def _check_era(message: Envelope, header: str | None) -> None:
    """Refuse a request that says in its body that it is of the modern era, and not in its header."""
    if not isinstance(message.id, int | str) or not isinstance(message.params, Raw):
        return
    try:
        meta = eras.meta_of(envelope.members(message.params))
    except msgspec.DecodeError:
        return
    version = envelope.text(meta.get(eras.VERSION_KEY))
    if version is not None and header != version:
        text = f"the header {VERSION_HEADER} must say {version!r}, as the body does"
        raise BadMessageError(message.id, text, HEADER_MISMATCH)
