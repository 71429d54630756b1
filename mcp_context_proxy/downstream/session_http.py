"""Carries frames over streamable HTTP in the handshake era: a POST for each frame, a stream for the rest.

Requests share a session and a connection pool and nothing else: a refused connect, a reset, a status or an
unreadable body fails the request it belongs to. Only a session that the server has forgotten ends them all;
those that it refused unread are then sent once more, in the next one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
import httpx2
from anyio.abc import TaskGroup
from msgspec import UNSET

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream import redirects, statuses
from mcp_context_proxy.downstream.flow import gate
from mcp_context_proxy.errors import (
    BadAnswerError,
    DownstreamError,
    ServerUnavailableError,
    SessionForgottenError,
)
from mcp_context_proxy.wire import certificates, envelope
from mcp_context_proxy.wire.envelope import RequestId

logger = logging.getLogger(__name__)

CONNECTIONS = 256
"""Open to one server at a time; further requests wait for one of them."""

RESUMPTIONS = 3
"""How often in a row a stream that broke off is asked for again without anything new."""

RESUME_SECONDS = 1.0
"""Before a stream is asked for again, where the server does not say."""

RESUME_MAX_SECONDS = 60.0
"""The longest such wait."""

GOODBYE_SECONDS = 2.0
"""For the server to hear that the session is over."""

REFUSAL_SECONDS = 1.0
"""For what else is under way when the session has expired: most is refused likewise, and is sent again."""

STREAM = "text/event-stream"


class Answers(Protocol):
    """Takes what comes back: a peer."""

    def receive(self, frame: bytes) -> None:
        """Take one frame."""
        ...

    def waits_for(self, request_id: RequestId) -> bool:
        """Whether a request has no answer yet."""
        ...

    def fail(self, request_id: RequestId, error: DownstreamError) -> None:
        """Fail one request."""
        ...

    def interrupt(self, request_id: RequestId, cause: str) -> None:
        """Fail one request that may have run."""
        ...


class HttpSession:
    """A session at a URL. Implements `Channel`."""

    killed = False
    """Nothing is known of a process."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        client: httpx2.AsyncClient,
        answers: Answers,
        group: TaskGroup,
    ) -> None:
        self.version: str | None = None
        """The negotiated revision; named in the headers of every message once it is known."""
        self._server, self._url, self._limits = config.name, config.url or "", limits
        self._client, self._answers, self._group = client, answers, group
        self._session: str | None = None
        self._under_way: dict[RequestId, anyio.CancelScope] = {}
        self._cause = "closed the connection"
        self._expired, self._all_answered = False, anyio.Event()
        self._ended = anyio.Event()

    async def send(self, frame: bytes) -> None:
        """Send one frame; does not wait for the answer to a request.

        Raises:
            ConnectionError: the session is over.
        """
        if self._ended.is_set():
            raise ConnectionError(self._cause)
        message = envelope.decode(frame)
        if isinstance(message.id, int | str) and message.method is not UNSET:
            if self._expired:
                self._answers.fail(message.id, SessionForgottenError(self._server))
            else:
                scope = self._under_way[message.id] = anyio.CancelScope()
                self._group.start_soon(self._request, message.id, frame, scope)
            return
        await self._tell(frame)
        if message.method == "notifications/initialized":
            self._group.start_soon(self._listen)

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame in the background; one that cancels a request also ends its POST."""
        if self._ended.is_set():
            return
        self._group.start_soon(self._tell, frame)
        message = envelope.decode(frame)
        if message.method == "notifications/cancelled" and message.params is not UNSET:
            target = envelope.members(message.params).get("requestId")
            scope = self._under_way.get(envelope.value(target)) if target is not None else None
            if scope is not None:
                scope.cancel()

    def give_up(self, cause: str) -> None:
        """Treat the session as lost."""
        self._cause = cause
        self._ended.set()

    async def until_ended(self) -> None:
        """Wait until the session is over."""
        await self._ended.wait()

    async def wait_closed(self) -> str:
        """Wait until the session is over; say how, for a person."""
        await self.until_ended()
        return self._cause

    async def close(self) -> None:
        """End the session, and tell the server so."""
        known = self._session is not None and not self._ended.is_set()
        self._ended.set()
        if known:
            with anyio.move_on_after(GOODBYE_SECONDS, shield=True):
                await self._quietly("DELETE")

    async def _tell(self, frame: bytes) -> None:
        """Send what has no answer; a server that cannot be reached shows it at the next request."""
        await self._quietly("POST", frame)

    async def _quietly(self, method: str, frame: bytes | None = None) -> None:
        try:
            async with self._client.stream(
                method, self._url, content=frame, headers=self._headers()
            ) as answer:
                if not answer.is_success:
                    logger.debug("%s: a %s got HTTP status %d", self._server, method, answer.status_code)
        except (httpx2.HTTPError, DownstreamError) as error:
            logger.debug("%s: a %s failed: %s", self._server, method, _named(error))

    async def _request(self, request_id: RequestId, frame: bytes, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await self._exchange(request_id, frame)
            except SessionForgottenError as error:
                self._answers.fail(request_id, error)
                self._expire()
            except DownstreamError as error:
                self._answers.fail(request_id, error)
            except httpx2.ConnectError as error:
                refused = ServerUnavailableError(self._server, "unreachable", f"{self._url}: {error}")
                self._answers.fail(request_id, refused)
            except httpx2.HTTPError as error:
                self._answers.interrupt(request_id, f"broke off ({_named(error)})")
            finally:
                del self._under_way[request_id]
                if self._expired and not self._under_way:
                    self._all_answered.set()

    def _expire(self) -> None:
        """The server knows the session no more: nothing is sent in it again, and soon it is over."""
        if not self._expired:
            self._expired = True
            self._group.start_soon(self._end_when_answered)

    async def _end_when_answered(self) -> None:
        with anyio.move_on_after(REFUSAL_SECONDS):
            await self._all_answered.wait()
        self.give_up("has forgotten the session")

    async def _exchange(self, request_id: RequestId, frame: bytes) -> None:
        async with self._client.stream("POST", self._url, content=frame, headers=self._headers()) as answer:
            kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            if answer.is_success:
                self._session = answer.headers.get("mcp-session-id", self._session)
            if kind == STREAM and answer.is_success:
                await self._read_answer(request_id, answer)
                return
            body = await self._read_body(answer)
        if self._forgotten(answer.status_code, body):
            raise SessionForgottenError(self._server)
        if body.lstrip()[:1] in (b"{", b"["):
            self._answers.receive(body)
        if self._answers.waits_for(request_id):
            raise statuses.without_message(self._server, answer.status_code, kind or "no content")

    def _forgotten(self, status: int, body: bytes) -> bool:
        """Whether the server no longer knows our session: some say it with 400."""
        return self._session is not None and (status == 404 or (status == 400 and b"session" in body.lower()))

    async def _read_body(self, answer: httpx2.Response) -> bytes:
        body = bytearray()
        async for chunk in answer.aiter_bytes():
            await gate.wait()
            body += chunk
            if len(body) > self._limits.message_bytes:
                what = f"with more than {self._limits.message_bytes:,} bytes, the limit of a message"
                raise BadAnswerError(self._server, what)
        return bytes(body)

    async def _read_answer(self, request_id: RequestId, answer: httpx2.Response) -> None:
        """Take events until the request is answered, asking for the rest of a stream that broke off."""
        place = _Place()
        if await self._read_events(answer, place, request_id):
            return
        failures = 0
        while place.event and failures < RESUMPTIONS:
            seen = place.event
            await anyio.sleep(place.wait_seconds)
            async with self._client.stream("GET", self._url, headers=self._headers(place.event)) as resumed:
                if await self._read_events(resumed, place, request_id):
                    return
            failures = 0 if place.event != seen else failures + 1
        if self._answers.waits_for(request_id):
            raise httpx2.RemoteProtocolError("the event stream ended without an answer")

    async def _read_events(
        self, answer: httpx2.Response, place: _Place, request_id: RequestId | None = None
    ) -> bool:
        """Hand over the events of a stream; whether the request is answered."""
        try:
            async for event in httpx2.EventSource(answer, max_event_size=self._limits.sse_event_bytes):
                await gate.wait()
                place.note(event)
                if event.event == "message" and event.data:
                    self._answers.receive(event.data.encode())
                    if request_id is not None and not self._answers.waits_for(request_id):
                        return True
        except httpx2.SSEError as error:
            raise BadAnswerError(
                self._server, f"with an event stream that cannot be read ({error})"
            ) from error
        return False

    async def _listen(self) -> None:
        """Take what belongs to no request, if the server offers a stream for it."""
        place = _Place()
        wait = 0.0
        while True:
            try:
                async with self._client.stream(
                    "GET", self._url, headers=self._headers(place.event)
                ) as answer:
                    if not answer.is_success or STREAM not in answer.headers.get("content-type", ""):
                        return
                    wait = 0.0
                    await self._read_events(answer, place)
            except (httpx2.HTTPError, DownstreamError) as error:
                logger.debug("%s: the stream of announcements broke off: %s", self._server, error)
            wait = min(max(2 * wait, place.wait_seconds), RESUME_MAX_SECONDS)
            await anyio.sleep(wait)

    def _headers(self, last_event: str = "") -> dict[str, str]:
        headers = {"accept": f"application/json, {STREAM}", "content-type": "application/json"}
        if self._session is not None:
            headers["mcp-session-id"] = self._session
        if self.version is not None:
            headers["mcp-protocol-version"] = self.version
        if last_event:
            headers["last-event-id"] = last_event
        return headers


class _Place:
    """How far a stream was read, and when the server wants to be asked for the rest."""

    def __init__(self) -> None:
        self.event = ""
        self.wait_seconds = RESUME_SECONDS

    def note(self, event: httpx2.ServerSentEvent) -> None:
        self.event = event.id or self.event
        if event.retry is not None:
            self.wait_seconds = min(event.retry / 1000, RESUME_MAX_SECONDS)


@asynccontextmanager
async def open_session_http(
    config: ServerConfig, limits: Limits, auth: httpx2.Auth | None, answers: Answers
) -> AsyncIterator[HttpSession]:
    """A session at the configured URL. Nothing is sent until the first frame."""
    timeout = httpx2.Timeout(limits.connect_seconds, read=None)
    pool = httpx2.Limits(max_connections=CONNECTIONS)
    verify = await certificates.trusted()
    async with (
        httpx2.AsyncClient(
            auth=auth,
            headers=config.headers,
            timeout=timeout,
            limits=pool,
            verify=verify,
            **redirects.within_origin(config.name),
        ) as client,
        anyio.create_task_group() as group,
    ):
        session = HttpSession(config, limits, client, answers, group)
        try:
            yield session
        finally:
            await session.close()
            group.cancel_scope.cancel()


def _named(error: Exception) -> str:
    return str(error) or type(error).__name__
