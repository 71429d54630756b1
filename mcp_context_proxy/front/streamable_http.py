"""Streamable HTTP in both eras, at ``/mcp``: one message in each POST, or in one version a batch.

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
from msgspec import UNSET, Raw, Struct
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from mcp_context_proxy.config import Limits
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream import Ask
from mcp_context_proxy.front import Questions
from mcp_context_proxy.front.auth import fields_of, principal_of, rights_of
from mcp_context_proxy.front.conversation import TOO_MUCH, HostMessages, caller_of, is_too_much, params_of
from mcp_context_proxy.front.http_requests import (
    JSON_TYPE,
    RELEASE_KEY,
    STREAM_HEADERS,
    AdmissionRules,
    BadMessageError,
    Exchange,
    Header,
    Waiting,
    error_response,
    event_parts,
    read,
    replay,
    send_body,
    waiting_of,
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
from mcp_context_proxy.protocol.eras import MISSING_CAPABILITY, UNSUPPORTED_VERSION, Era
from mcp_context_proxy.protocol.headers import HEADER_MISMATCH, VERSION_HEADER, HeaderFields
from mcp_context_proxy.server import Caller
from mcp_context_proxy.server.negotiation import INITIALIZE, LISTEN, Negotiation, check_version
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


class _Request(Struct, frozen=True, eq=False):
    """One HTTP request, as ASGI has it."""

    scope: Scope
    receive: Receive
    send: Send
    sent: HeaderFields

    @property
    def accepts(self) -> tuple[bool, bool]:
        """Tells whether the client accepts JSON, and event streams."""
        return _accepted(self.sent.get("accept") or "")


class _BatchResponse:
    """Response to a batch: each response to one of its messages, as events of one stream."""

    def __init__(self, send: Send, waiting: Waiting, headers: list[Header]) -> None:
        self._send, self._waiting, self._headers = send, waiting, headers
        self._parts: list[bytes] = []
        self._passes = False
        """True while one message is answered by a stream, which is passed on as it is."""
        self.begun = False

    async def send(self, message: Message) -> None:
        """Take a part of the response to one message."""
        if message["type"] == "http.response.start":
            self._passes = STREAM_HEADERS[0] in message["headers"]
            if self._passes:
                await self._begin()
            return
        body, more = bytes(message.get("body", b"")), message.get("more_body", False)
        if self._passes:
            await self._write(body)
            return
        self._parts.append(body)
        if not more and (whole := b"".join(self._parts)):
            await self._begin()
            for piece in event_parts(whole):
                await self._write(piece)
        if not more:
            self._parts.clear()

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            headers = [*STREAM_HEADERS, *self._headers]
            await self._send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})

    async def _write(self, piece: bytes) -> None:
        if piece:
            await send_body(self._send, piece, self._waiting, more=True)

    async def end(self) -> None:
        await send_body(self._send, b"", self._waiting, more=False)


class StreamableHttp:
    """ASGI application of the endpoint."""

    def __init__(
        self, negotiation: Negotiation, limits: Limits, guesses: UnknownSessions, admission: AdmissionRules
    ) -> None:
        self._negotiation, self.gateway = negotiation, negotiation.gateway
        self.guesses, self.admission = guesses, admission
        self.sessions = HttpSessions(self.gateway, limits)
        """The open sessions of the handshake era."""
        self._group: TaskGroup

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve inside; whatever is under way at the end is given up."""
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self.sessions.run)
            yield
            self._group.cancel_scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(scope, receive, send, fields_of(scope))
        version = request.sent.get(VERSION_HEADER)
        modern = is_modern(version)
        refusal: Response | None = None
        if scope["method"] == "POST":
            try:
                body, message = await read(receive)
                if not modern:
                    _check_era(message, version)
                if is_too_much(message, body, self.gateway.methods):
                    raise BadMessageError(_id_of(message), TOO_MUCH)
            except BadMessageError as error:
                refusal = await self._post_batch(request, error) if error.batch else error.response
            except RecursionError:
                refusal = BadMessageError(None, envelope.TOO_DEEP).response
            else:
                refusal = self.admission.refusal(scope, message, spread=modern)
                try:
                    if refusal is None and modern:
                        refusal = await self._post_modern(request, message)
                    elif refusal is None:
                        refusal = await self._post(request, message)
                except RecursionError:
                    refusal = BadMessageError(_id_of(message), envelope.TOO_DEEP).response
        elif modern:
            refusal = Response(None, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "POST"})
        else:
            refusal = await self._without_body(request)
        if refusal is not None:
            await refusal(scope, receive, send)

    def _exchange(
        self, request: _Request, patience: float, session: StreamableSession | None = None
    ) -> Exchange:
        """Return an exchange for the response, which names its session, if any."""
        named = {} if session is None else _session_header(session)
        return Exchange(
            scope=request.scope,
            receive=request.receive,
            send=request.send,
            group=self._group,
            headers=[(name.encode(), value.encode()) for name, value in named.items()],
            patience=patience,
        )

    # The modern era

    async def _post_modern(self, request: _Request, message: Envelope) -> Response | None:
        request_id, method, sent, rights = message.id, message.method, request.sent, rights_of(request.scope)
        if not all(request.accepts):
            return Response(None, HTTPStatus.NOT_ACCEPTABLE)
        try:
            if method is UNSET:
                raise RequestError(
                    INVALID_REQUEST, "a client of this version posts requests and notifications"
                )
            if not isinstance(request_id, int | str):
                check_version(sent.get(VERSION_HEADER) or "")
                return Response(None, HTTPStatus.ACCEPTED)
            params = params_of(message)
            meta = eras.meta_of(params)
            headers.check_routing(sent, method, params, meta)
            era = self._negotiation.era_of(method, params, meta, None)
            if method == "tools/call":
                self._check_arguments(sent, params)
            result = self._negotiation.answer(method, params, era, rights)
        except RequestError as error:
            frame = envelope.error_reply(_id_of(message), error.code, error.message, error.data)
            return Response(frame, _status_of(error.code), media_type=JSON_TYPE)
        if result is not None:
            return Response(envelope.reply(request_id, result), media_type=JSON_TYPE)
        exchange = self._exchange(request, PATIENCE[era])
        messages = HostMessages(exchange, _NO_QUESTIONS)
        caller = _caller(request.scope, era, None, meta, exchange, messages.ask)
        if method == LISTEN:
            await in_task()
            listen = self._negotiation.listen
            work = partial(listen, request_id, params, caller.rights, messages.tell)
        else:
            work = partial(self.gateway.handle, method, params, caller)
        del params, caller
        with self.gateway.drain:
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

    async def _post(self, request: _Request, message: Envelope) -> Response | None:
        session = self._session(request)
        if isinstance(session, Response):
            return session
        if not all(request.accepts):
            text = f"Not Acceptable: the client must accept {JSON_TYPE} and {STREAM_TYPE}"
            return error_response(HTTPStatus.NOT_ACCEPTABLE, None, text)
        if JSON_TYPE not in (request.sent.get("content-type") or "").partition(";")[0].lower():
            text = f"Unsupported Media Type: a message is {JSON_TYPE}"
            return error_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, None, text)
        if message.method == INITIALIZE and isinstance(message.id, int | str):
            return self._initialize(request.scope, message.id, message, session)
        if session is None:
            return _no_session()
        with self.sessions.busy(session):
            if isinstance(message.id, int | str) and isinstance(message.method, str):
                return await self._request(request, session, message.id, message.method, message)
            accepted = Response(None, HTTPStatus.ACCEPTED, _session_header(session))
            await accepted(request.scope, request.receive, request.send)
            await self._take(session, message)
            return None

    async def _post_batch(self, request: _Request, error: BadMessageError) -> Response | None:
        """Serve the messages of a batch one after the other, each as if it were posted by itself."""
        session = self._session(request)
        if not isinstance(session, StreamableSession):
            return session or error.response
        hello = session.state.hello
        if hello is None or hello.version != eras.BATCH_VERSION or not all(request.accepts):
            return error.response
        left = False

        async def receive() -> Message:
            nonlocal left
            message = await request.receive()
            left = left or message["type"] == "http.disconnect"
            return message

        headers = [(name.encode(), value.encode()) for name, value in _session_header(session).items()]
        batch = _BatchResponse(request.send, waiting_of(request.scope), headers)
        for message in error.batch:
            if not left:
                await self(request.scope, replay(message, receive), batch.send)
        if not batch.begun:
            return Response(None, HTTPStatus.ACCEPTED, _session_header(session))
        await batch.end()
        return None

    def _initialize(
        self, scope: Scope, request_id: RequestId, message: Envelope, session: StreamableSession | None
    ) -> Response:
        try:
            params = params_of(message)
            if session is not None:
                result = self._negotiation.initialize_again(params, rights_of(scope))
            elif not self.sessions.make_room(rights_of(scope).person):
                text, status = "busy: all sessions are in use", HTTPStatus.SERVICE_UNAVAILABLE
                return error_response(status, None, text, INTERNAL_ERROR)
            else:
                result, state = self._negotiation.initialize(params, rights_of(scope))
                session = self.sessions.open(state, principal_of(scope))
        except RequestError as error:
            return error_response(HTTPStatus.OK, request_id, error.message, error.code)
        frame = envelope.reply(request_id, result)
        return Response(frame, HTTPStatus.OK, _session_header(session), JSON_TYPE)

    async def _request(
        self,
        request: _Request,
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
            params = params_of(message)
            meta = eras.meta_of(params)
            era = self._negotiation.era_of(method, params, meta, session.state)
            result = self._negotiation.answer(method, params, era, rights_of(request.scope))
        except RequestError as error:
            frame = envelope.error_reply(request_id, error.code, error.message, error.data)
            return Response(frame, HTTPStatus.OK, named, JSON_TYPE)
        if result is not None:
            return Response(envelope.reply(request_id, result), HTTPStatus.OK, named, JSON_TYPE)
        exchange = self._exchange(request, PATIENCE[Era.HANDSHAKE], session)
        messages = HostMessages(exchange, session.questions)
        caller = _caller(request.scope, Era.HANDSHAKE, session.state, meta, exchange, messages.ask)
        work = partial(self.gateway.handle, method, params, caller)
        del params, caller
        with session.holding(key, exchange), self.gateway.drain:
            await exchange.answer(request_id, work, lambda code: HTTPStatus.OK)
        return None

    async def _take(self, session: StreamableSession, message: Envelope) -> None:
        """Take a notification or a response of a session's client."""
        if not isinstance(message.method, str):
            session.questions.take_response(message)
        elif message.method == "notifications/cancelled":
            try:
                target = envelope.value_or_none(params_of(message).get("requestId", b"null"))
            except RequestError:
                return
            found = session.exchanges.get(str(target)) if isinstance(target, int | str) else None
            if found is not None:
                found[0].end()
        else:
            await in_task()
            await self.gateway.notified(message.method, session.state)

    async def _without_body(self, request: _Request) -> Response | None:
        """Open the stream of a session, or end the session."""
        session, method = self._session(request), request.scope["method"]
        if isinstance(session, Response):
            return session
        if method not in ("GET", "DELETE"):
            return Response(None, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET, POST, DELETE"})
        if method == "GET" and not request.accepts[1]:
            text = f"Not Acceptable: the client must accept {STREAM_TYPE}"
            return error_response(HTTPStatus.NOT_ACCEPTABLE, None, text)
        if session is None:
            return _no_session()
        if method == "DELETE":
            self.sessions.end(session)
            return Response(None, HTTPStatus.OK, _session_header(session))
        with self.sessions.busy(session):
            if not await session.is_free(None):
                return error_response(HTTPStatus.CONFLICT, None, "the session has a stream")
            exchange = self._exchange(request, 0, session)
            with session.holding(None, exchange):
                await exchange.stream()
        return None

    def _session(self, request: _Request) -> StreamableSession | Response | None:
        """Return the session that a request names, None if it names none, or else the refusal."""
        session_id = request.sent.get(SESSION_HEADER)
        if session_id is None:
            return None
        session = self.sessions.get(session_id, principal_of(request.scope))
        if session is None:
            # Another principal learns no more about a session than about one that does not exist.
            return self.guesses.refusal(rights_of(request.scope).person, session_not_found())
        return session


_NO_QUESTIONS: Final = Questions()
"""Those of modern clients, of which nothing is asked."""


def _caller(
    scope: Scope, era: Era, session: Session | None, meta: eras.Meta, exchange: Exchange, ask: Ask
) -> Caller:
    rights, release = rights_of(scope), scope.get(RELEASE_KEY)
    return caller_of(era, session, meta, rights=rights, notify=exchange.notify, ask=ask, release=release)


def is_modern(version: str | None) -> bool:
    """Return whether the header of a request with this version says that it stands alone."""
    return version is not None and version not in eras.HANDSHAKE_VERSIONS


def session_not_found() -> Response:
    return error_response(HTTPStatus.NOT_FOUND, None, "Session not found")


def _id_of(message: Envelope) -> RequestId | None:
    return message.id if isinstance(message.id, int | str) else None


def _status_of(code: int) -> HTTPStatus:
    return _STATUSES.get(code, HTTPStatus.OK)


def _session_header(session: StreamableSession) -> dict[str, str]:
    return {SESSION_HEADER: session.id}


def _no_session() -> Response:
    text = f"Bad Request: the header {SESSION_HEADER} must name a session, which initialize opens"
    return error_response(HTTPStatus.BAD_REQUEST, None, text)


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
    version = envelope.text(eras.meta_of(envelope.members_of(message.params)).get(eras.VERSION_KEY))
    if version is not None and header != version:
        text = f"the header {VERSION_HEADER} must say {version!r}, as the body does"
        raise BadMessageError(message.id, text, HEADER_MISMATCH)
