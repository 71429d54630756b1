"""One posted request over HTTP: prepared by ASGI middleware, and answered with JSON or an event stream.

`WholeBodies` receives each body before anything else happens, so that a slow sender holds a connection and
not a session as well, and a client that goes away in the middle is no error. Large bodies wait for room in
the pipes of those who send them; once a request is forwarded, the limits of its server count it instead.
`InProfile` finds the profile by the token of a request, by its address ``/mcp/p/NAME``, or by its agent.

`AdmissionRules` lets no new work begin while the proxy stops, and no calls beyond a person's rate. A refusal
has an HTTP status of its own, so that a balancer or a client can send the request again: nothing of it has
run. Replies to questions of servers, cancellations and other notifications are admitted always, since the
calls that are under way need them to finish.

Most requests are answered in the flight that received them, and nothing else is started for them. Once one
takes longer, or has something to tell or to ask meanwhile, two tasks accompany it: one sends what comes
before the result, the other waits for the client to leave, which cancels the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Final

import anyio
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_context_proxy.front import ASKED_KEY, FrameChannel
from mcp_context_proxy.front.auth import RETRY_SECONDS, RIGHTS_KEY, fields_of, principal_of, rights_of
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import (
    INVALID_REQUEST,
    Envelope,
    MalformedError,
    Members,
    RequestError,
    RequestId,
)
from mcp_context_proxy.protocol.framing import on_one_line
from mcp_context_proxy.server import Profiles, UnknownProfileError
from mcp_context_proxy.server.gateway import SHUTTING_DOWN, Gateway
from mcp_context_proxy.system.threads import Cancellable, assigned, in_task
from mcp_context_proxy.trust import ACTING

logger = logging.getLogger(__name__)

JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
"""RFC 9457."""

SMALL_BYTES = 32 * 1024
"""Size of a body up to which it never waits for room: a connection may have received as much unasked."""

TOGETHER_BYTES = 8 * 1024 * 1024
"""Bytes of larger bodies of one principal, together, that are neither answered nor forwarded yet: two of the
largest. There is room for one more, so that nobody's slow bodies take all of it."""

RELEASE_KEY = "mcp-context-proxy/release"
"""Key of an ASGI scope: gives back the room that the body takes (`Caller.release`)."""

WAITING_KEY = "mcp-context-proxy/waiting"
"""Key of an ASGI scope: the `Waiting` of the request's connection."""

PART_BYTES = 256 * 1024
"""Bytes of a body handed to a connection at a time."""

Waiting = Callable[[int], None]
"""Tells a connection that so many bytes more (or less) wait outside of it to be written."""

AGENT_HEADER = "X-Agent-Name"
"""Header of an HTTP request with the name of the agent on whose behalf it is made."""

PARAMETER: Final = "profile"
"""Parameter of a route that names a profile."""


class BadMessageError(Exception):
    """A body that is refused; `response` is the JSON-RPC error that says why, `batch` the messages in it."""

    def __init__(
        self,
        request_id: RequestId | None,
        text: str,
        code: int = INVALID_REQUEST,
        batch: Sequence[bytes] = (),
    ) -> None:
        super().__init__(text)
        self.batch = batch
        self.response = error_response(HTTPStatus.BAD_REQUEST, request_id, text, code)


class WholeBodies:
    """ASGI middleware that receives the whole body of each request before its application is called."""

    def __init__(self, app: ASGIApp, limit: int, wait_seconds: float) -> None:
        """Receive bodies of up to `limit` bytes, which wait for room no longer than `wait_seconds`."""
        self._app, self._limit, self._wait_seconds = app, limit, wait_seconds
        share = max(TOGETHER_BYTES, limit)
        self._budget = BodyBudget(share + limit, share)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = fields_of(scope)
        length = headers.get("content-length")
        if length in (None, "0") and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
        elif (headers.get("content-encoding") or "identity").lower() != "identity":
            text = "Bodies are taken as they are, not compressed."
            await _problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)(scope, receive, send)
        elif length is not None and int(length) > self._limit:
            await self._too_large()(scope, receive, send)
        else:
            await self._serve(scope, receive, send, None if length is None else int(length))

    async def _serve(self, scope: Scope, receive: Receive, send: Send, announced: int | None) -> None:
        body, more = bytearray(), True
        release: Callable[[], None] | None = None
        try:
            while more:
                if release is None and max(announced or 0, len(body)) > SMALL_BYTES:
                    await in_task()
                    try:
                        with anyio.fail_after(self._wait_seconds):
                            size = announced or self._limit
                            release = await self._budget.enter(size, principal_of(scope))
                    except TimeoutError:
                        # The connection stays open: a client that is still sending would never read why.
                        text, headers = "Too many large bodies are under way.", {"Retry-After": "1"}
                        refusal = _problem(HTTPStatus.SERVICE_UNAVAILABLE, text, headers)
                        await refusal(scope, receive, send)
                        return
                    scope[RELEASE_KEY] = release
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > self._limit:
                    await self._too_large()(scope, receive, send)
                    return
            whole_body = bytes(body)
            body.clear()
            await self._app(scope, replay(whole_body, receive), send)
        finally:
            if release is not None:
                release()

    def _too_large(self) -> Response:
        return _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is over {self._limit:,} bytes.")


def _problem(status: HTTPStatus, detail: str, headers: dict[str, str] | None = None) -> Response:
    problem = {"title": status.phrase, "status": status, "detail": detail}
    return Response(envelope.encode(problem), status, headers, PROBLEM_TYPE)


class BodyBudget:
    """Bounds the bytes of bodies that are under way, of all and of each principal.

    They enter in the order in which they came; where a principal has its share under way, others pass.
    """

    def __init__(self, size: int, share: int) -> None:
        self._left, self._share = size, share
        self._held = Counter[str | None]()
        """Bytes under way by principal."""
        self._waiting: deque[tuple[int, str | None, anyio.Event]] = deque()

    async def enter(self, size: int, principal: str | None = None) -> Callable[[], None]:
        """Wait for room for `size` bytes; return a function that gives it back, once however often called."""
        inside, place = True, (size, principal, anyio.Event())
        self._waiting.append(place)
        self._admit()
        try:
            await place[2].wait()
        except anyio.get_cancelled_exc_class():
            if place[2].is_set():
                self._leave(size, principal)
            else:
                self._waiting.remove(place)
                self._admit()
            raise

        def leave() -> None:
            nonlocal inside
            if inside:
                inside = False
                self._leave(size, principal)

        return leave

    def _leave(self, size: int, principal: str | None) -> None:
        self._left += size
        self._held[principal] -= size
        if not self._held[principal]:
            del self._held[principal]
        self._admit()

    def _admit(self) -> None:
        full = set[str | None]()
        for place in list(self._waiting):
            size, principal, admitted = place
            held = self._held[principal]
            if principal in full or held + size > max(self._share, size):
                full.add(principal)
                continue
            if size > self._left:
                return
            self._waiting.remove(place)
            self._left -= size
            self._held[principal] = held + size
            admitted.set()


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `Receive` that gives the body first, and then the messages after it."""
    given = False

    async def replaying() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replaying


async def read(receive: Receive) -> tuple[bytes, Envelope]:
    """Return a body, which `WholeBodies` has received, and the message in it.

    Raises `BadMessageError` if there is no message in it.
    """
    body: bytes = (await receive()).get("body", b"")
    try:
        message = await envelope.decode_any(body, envelope.decode_from_client)
    except MalformedError as error:
        text = f"message that cannot be read: {error}"
        request_id, batch = envelope.salvage_id(body, body), envelope.batched(body)
        raise BadMessageError(request_id, text, error.code, batch) from None
    if message.method is UNSET and not _is_response(message):
        raise BadMessageError(None, "a reply needs a result, an object, or an error with code and message")
    return body, message


def error_response(
    status: HTTPStatus, request_id: RequestId | None, text: str, code: int = INVALID_REQUEST
) -> Response:
    return Response(envelope.error_reply(request_id, code, text), status, media_type=JSON_TYPE)


def _is_response(message: Envelope) -> bool:
    if isinstance(message.result, Raw):
        return message.error is UNSET and envelope.starts_with(message.result, b"{")
    error = envelope.members_of(message.error)  # type: ignore[arg-type]
    is_code = type(envelope.value_or_none(error.get("code", b"null"))) is int
    return is_code and envelope.text(error.get("message")) is not None


class InProfile:
    """ASGI application that serves each request within the limits of its profile."""

    def __init__(self, app: ASGIApp, profiles: Profiles) -> None:
        self._app, self._profiles = app, profiles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; one for a profile that does not exist is refused."""
        known = rights = rights_of(scope)
        wanted = scope.get("path_params", {}).get(PARAMETER)
        if scope["type"] == "http" and (wanted is not None or self._profiles.active):
            try:
                rights = self._profiles.of_request(known, wanted, fields_of(scope).get(AGENT_HEADER.lower()))
            except UnknownProfileError as error:
                await PlainTextResponse(f"{error}\n", HTTPStatus.NOT_FOUND)(scope, receive, send)
                return
        if rights is known:
            await self._app(scope, receive, send)
            return
        with assigned(ACTING, rights):
            await self._app({**scope, RIGHTS_KEY: rights}, receive, send)


STOPPING: Final = "shutting down: the proxy was told to stop; it did not run"

TOO_MANY_CALLS: Final = -32029
"""Error code of a call over the rate: of the range that servers choose from, with 29 as in status 429."""


class AdmissionRules:
    """Decides for each message whether it may begin."""

    def __init__(self, gateway: Gateway) -> None:
        self._drain, self._quota = gateway.drain, gateway.quota

    def refusal(self, scope: Scope, message: Envelope | None, *, spread: bool = False) -> Response | None:
        """Return the response to a message that may not begin; None if it may.

        It is `spread` if it belongs to no session, so that any replica may have the next one.
        """
        if message is None or message.method is UNSET or not isinstance(message.id, int | str):
            return None
        if self._drain.stopping:
            refused = error_response(HTTPStatus.SERVICE_UNAVAILABLE, message.id, STOPPING, SHUTTING_DOWN)
            refused.headers["Retry-After"] = RETRY_SECONDS
            return refused
        if message.method == "tools/call" and not self._quota.take(rights_of(scope), spread=spread):
            status = HTTPStatus.TOO_MANY_REQUESTS
            refused = error_response(status, message.id, str(self._quota), TOO_MANY_CALLS)
            refused.headers["Retry-After"] = str(self._quota.seconds)
            return refused
        return None


Header = tuple[bytes, bytes]

JSON_HEADER: Final = (b"content-type", b"application/json")

STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]

PING: Final = b": ping\r\n\r\n"

PING_SECONDS: Final = 15.0
"""Time between two comments on a silent stream, which keep proxies in between from closing it."""

ALONE_SECONDS: Final = 0.05
"""Time after which a request is accompanied: most are answered before, and a client that leaves is noticed
soon enough."""

NOTIFICATIONS_QUEUED, NOTIFICATIONS_QUEUED_BYTES = 1024, 1 << 20
"""Notifications of one request that wait to be sent; more are dropped, as progress may be."""

CANCELLED: Final = -32800
"""Error code of a request that its client has cancelled. Its response has to end all the same."""


class Exchange(FrameChannel):
    """One request, its response, and the notifications before it."""

    _added: anyio.Event
    """Set when a frame is queued, and at the end. This and the next three are made by `accompany`."""
    _sent: anyio.Event
    _delivered: anyio.Event
    _watching: anyio.CancelScope

    def __init__(
        self,
        *,
        scope: Scope,
        receive: Receive,
        send: Send,
        group: TaskGroup,
        headers: list[Header],
        patience: float,
    ) -> None:
        """Answer by `send`, with more headers; after `patience` seconds without a result, by a stream.

        Tasks that accompany the request are started in `group`.
        """
        self._receive, self._send, self._waiting = receive, send, waiting_of(scope)
        self._asked: list[RequestId] = scope.get(ASKED_KEY, [])
        self._group, self._headers, self._patience = group, headers, patience
        self._scope = Cancellable()
        self._frames: deque[bytes] = deque()
        """Frames that wait to be written; they count as unsent bytes of the connection."""
        self._bytes = self._written = 0
        """Bytes of these, and the number of frames that were written."""
        self._accompanied = self._streaming = self._finished = self._left = False
        self._why: RequestError | None = None

    async def answer(
        self,
        request_id: RequestId,
        work: Callable[[], Awaitable[bytes]],
        status_of: Callable[[int], HTTPStatus],
    ) -> None:
        """Send the result of `work`, or its error with the status that belongs to the error code."""
        self._asked.append(request_id)
        timer = asyncio.get_running_loop().call_later(ALONE_SECONDS, self.accompany)
        result, error = None, None
        try:
            with self._scope:
                try:
                    result = await work()
                except RequestError as refused:
                    error = refused
            if self._left:
                return
            if result is not None:
                await self._finish(HTTPStatus.OK, envelope.reply_parts(request_id, result))
                return
            error = error or self._why or RequestError(CANCELLED, "the request was cancelled")
            frame = envelope.error_reply(request_id, error.code, error.message, error.data)
            await self._finish(status_of(error.code), (frame,))
        finally:
            timer.cancel()
            self._end_company()

    async def stream(self) -> None:
        """Send an event stream without a result, until the client leaves or it is ended."""
        self.accompany()
        try:
            with self._scope:
                await anyio.sleep_forever()
            if not self._left:
                await self._finish(HTTPStatus.OK, ())
        finally:
            self._end_company()

    def _end_company(self) -> None:
        self._finished = True
        if self._accompanied:
            self._added.set()
            self._sent.set()
            self._watching.cancel()

    def end(self, why: RequestError | None = None) -> None:
        """Give the request up; its response is this error, or says that it was cancelled."""
        self._why = why
        self._scope.cancel()

    async def send(self, frame: bytes) -> None:
        """Send a frame before the result; waits until the connection takes it."""
        self._put(frame)
        # A cancelled task keeps its local variables until it is collected, which may be long.
        del frame
        last = self._written + len(self._frames)
        while self._written < last and not self._finished:
            await self._sent.wait()

    def send_nowait(self, frame: bytes) -> bool:
        """Send a frame soon, unless too many wait already."""
        if self._has_room(len(frame)):
            self._put(frame)
            return True
        return False

    def notify(self, method: str, params: Members) -> None:
        """Send a notification soon, unless too many wait already; then it is not even encoded."""
        if self._has_room(sum(map(len, params.values()))):
            self._put(envelope.notification(method, params))

    def _has_room(self, size: int) -> bool:
        if len(self._frames) < NOTIFICATIONS_QUEUED and self._bytes + size <= NOTIFICATIONS_QUEUED_BYTES:
            return True
        logger.debug("dropped a notification: the client does not read")
        return False

    def accompany(self) -> None:
        """Start to send notifications before the result, and to watch the client."""
        if not self._accompanied and not self._finished:
            self._accompanied = True
            self._added, self._sent, self._delivered = anyio.Event(), anyio.Event(), anyio.Event()
            self._watching = anyio.CancelScope()
            self._group.start_soon(self._deliver)
            self._group.start_soon(self._watch)

    def _put(self, frame: bytes) -> None:
        if self._finished:
            return
        self._frames.append(frame)
        self._count(len(frame))
        self.accompany()
        self._added.set()

    def _count(self, more: int) -> None:
        self._bytes += more
        self._waiting(more)

    async def _watch(self) -> None:
        with self._watching:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._left = True
            self._scope.cancel()

    async def _deliver(self) -> None:
        try:
            while not self._finished or self._frames:
                patience = PING_SECONDS if self._streaming else self._patience
                with anyio.move_on_after(patience) as silence:
                    await self._added.wait()
                self._added = anyio.Event()
                if self._finished and not self._frames:
                    return
                if not self._streaming:
                    await self._begin()
                elif silence.cancelled_caught:
                    await self._write(PING)
                while self._frames:
                    await self._write_first()
        except Exception:
            # boundary: a client that has gone must not fail the request that is still being answered
            logger.debug("a stream has broken off", exc_info=True)
        finally:
            self._delivered.set()

    async def _write_first(self) -> None:
        # A method of its own, so that no local variable keeps a frame that is sent while the stream is idle.
        self._count(-len(self._frames[0]))
        await self._write_event(self._frames[0])
        self._frames.popleft()
        self._written += 1
        sent, self._sent = self._sent, anyio.Event()
        sent.set()

    async def _write_event(self, data: bytes, name: bytes = b"message") -> None:
        for piece in event_parts(data, name):
            await self._write(piece)

    async def _begin(self) -> None:
        self._streaming = True
        headers = [*STREAM_HEADERS, *self._headers]
        await self._send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})

    async def _write(self, piece: bytes, *, more: bool = True) -> None:
        await send_body(self._send, piece, self._waiting, more=more)

    async def _finish(self, status: HTTPStatus, parts: tuple[bytes, ...]) -> None:
        """Send the response, after all that comes before it."""
        self._finished = True
        if self._accompanied:
            self._added.set()
            await self._delivered.wait()
        if self._streaming:
            if parts:
                await self._write_event(b"".join(parts))
            await self._write(b"", more=False)
            return
        size = sum(map(len, parts))
        headers = [JSON_HEADER, (b"content-length", b"%d" % size), *self._headers]
        start = {"type": "http.response.start", "status": status, "headers": headers}
        await self._send(start)
        if size <= PART_BYTES:
            await self._send({"type": "http.response.body", "body": b"".join(parts), "more_body": False})
            return
        for part in parts[:-1]:
            await self._write(part)
        await self._write(parts[-1], more=False)


def waiting_of(scope: Scope) -> Waiting:
    """Return the `Waiting` of a request's connection."""
    found: Waiting | None = scope.get(WAITING_KEY)
    return found or (lambda more: None)


async def send_body(send: Send, body: bytes, waiting: Waiting, *, more: bool) -> None:
    """Send a body, or a piece of one if there is `more`, in parts; the unsent part is not copied."""
    left = memoryview(body)
    waiting(len(left))
    try:
        while len(left) > PART_BYTES:
            await send({"type": "http.response.body", "body": left[:PART_BYTES], "more_body": True})
            left = left[PART_BYTES:]
            waiting(-PART_BYTES)
        await send({"type": "http.response.body", "body": bytes(left), "more_body": more})
    finally:
        waiting(-len(left))
        left.release()


def event_parts(data: bytes, name: bytes = b"message") -> tuple[bytes, ...]:
    """Return an event in one piece, or in several if a large one would be copied."""
    line = on_one_line(data)
    event = b"event: %b\r\ndata: " % name, line, b"\r\n\r\n"
    return event if len(line) > PART_BYTES else (b"".join(event),)
