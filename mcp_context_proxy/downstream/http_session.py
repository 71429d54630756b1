"""Carries frames over streamable HTTP in the handshake era: a POST for each frame, a stream for the rest.

Requests share a session and a connection pool and nothing else: a refused connect, a reset, a status or an
unreadable body fails the request it belongs to. Only a session that the server has forgotten ends them all;
those that it refused unread are then sent once more, in the next one.

Reads the event streams of a handshake-era session: answers, and what belongs to no request.

A stream that breaks off is asked for again from where it was, never what was asked: that ran already.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
import httpx2
from anyio.abc import TaskGroup
from msgspec import UNSET

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream import http_client
from mcp_context_proxy.downstream.link import Ending
from mcp_context_proxy.errors import BadAnswerError, DownstreamError, SessionForgottenError
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import RequestId
from mcp_context_proxy.protocol.framing import Event

STREAM = "text/event-stream"

RESUMPTIONS = 3
"""How often in a row a stream that broke off is asked for again without anything new."""

RESUME_SECONDS = 1.0
"""Before a stream is asked for again, where the server does not say. That of announcements waits no less."""

RESUME_MIN_SECONDS = 0.1
"""The shortest such wait, for an answer: a server that wants none would be asked all the time."""

RESUME_MAX_SECONDS = 60.0
"""The longest such wait."""


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


class Streams:
    """The event streams of one session."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        client: httpx2.AsyncClient,
        answers: Answers,
        headers: Callable[[], Mapping[bytes, bytes]],
    ) -> None:
        """Read nothing yet; `headers` are those of any message in the session."""
        self._server, self._url, self._limits = config.name, config.url or "", limits
        self._client, self._answers, self._headers = client, answers, headers

    async def read_answer(self, request_id: RequestId, answer: httpx2.Response) -> None:
        """Take events until the request is answered, asking for the rest of a stream that broke off.

        Raises:
            httpx2.HTTPError: there is no more, and no answer.
        """
        place = _Place()
        if await self._read(answer, place, request_id):
            return
        failures = 0
        while place.event is not None and failures < RESUMPTIONS:
            seen = place.event
            await anyio.sleep(max(place.wait_seconds, RESUME_MIN_SECONDS))
            try:
                async with self._client.stream("GET", self._url, headers=self._from(place)) as resumed:
                    if await self._read(resumed, place, request_id):
                        return
            except httpx2.HTTPError as error:
                # Whatever it says of this connection: the request was sent over another.
                logger.debug("%s: the rest of a stream cannot be had: %s", self._server, error)
            failures = 0 if place.event != seen else failures + 1
        if self._answers.waits_for(request_id):
            raise httpx2.RemoteProtocolError("the event stream ended without an answer")

    async def listen(self) -> None:
        """Take what belongs to no request, if the server offers a stream for it."""
        place = _Place()
        wait = 0.0
        while True:
            try:
                async with self._client.stream("GET", self._url, headers=self._from(place)) as answer:
                    if not answer.is_success or STREAM not in answer.headers.get("content-type", ""):
                        return
                    wait = 0.0
                    await self._read(answer, place)
            except (httpx2.HTTPError, DownstreamError) as error:
                logger.debug("%s: the stream of announcements broke off: %s", self._server, error)
            wait = min(max(2 * wait, place.wait_seconds, RESUME_SECONDS), RESUME_MAX_SECONDS)
            await anyio.sleep(wait)

    async def _read(
        self, answer: httpx2.Response, place: _Place, request_id: RequestId | None = None
    ) -> bool:
        """Hand over the events of a stream; whether the request is answered."""

        def take(event: Event) -> bool:
            place.note(event)
            if event.name != b"message" or not event.data:
                return False
            self._answers.receive(event.data)
            return request_id is not None and not self._answers.waits_for(request_id)

        return await http_client.read_events(answer, self._server, self._limits.sse_event_bytes, take)

    def _from(self, place: _Place) -> Mapping[bytes, bytes]:
        headers = self._headers()
        return headers if place.event is None else {**headers, b"last-event-id": place.event}


class _Place:
    """How far a stream was read, and when the server wants to be asked for the rest."""

    def __init__(self) -> None:
        self.event: bytes | None = None
        self.wait_seconds = RESUME_SECONDS

    def note(self, event: Event) -> None:
        self.event = event.id or self.event
        if event.retry_seconds is not None:
            self.wait_seconds = min(event.retry_seconds, RESUME_MAX_SECONDS)


logger = logging.getLogger(__name__)

PUSHED_FRAMES = 1024
"""That nobody waits for: each may cancel one of so many calls. Who asks without end misses the rest."""

PUSHES = 8
"""Of those posted at a time: the event loop has more to do than to tell one server."""

SESSION_HEADER = b"mcp-session-id"

GOODBYE_SECONDS = 2.0
"""For the server to hear that the session is over."""

PROOF_ID = "session"
"""Of the ping that proves that a session has expired; requests have numbers."""

REFUSAL_SECONDS = 1.0
"""For what else is under way when the session has expired: most is refused likewise, and is sent again."""


class HttpSession(Ending):
    """A session at a URL. Implements `OpenChannel`."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        client: httpx2.AsyncClient,
        answers: Answers,
        group: TaskGroup,
    ) -> None:
        super().__init__()
        self.version: str | None = None
        """The negotiated revision; named in the headers of every message once it is known."""
        self._server, self._url, self._limits = config.name, config.url or "", limits
        self._client, self._answers, self._group = client, answers, group
        self._session: bytes | None = None
        self._streams = Streams(config, limits, client, answers, self._headers)
        self._pushed, self._pushing = 0, anyio.Semaphore(PUSHES)
        """Frames that nobody waits for, and how many are posted at a time."""
        self._under_way: dict[RequestId, anyio.CancelScope] = {}
        self._expired, self._all_answered = False, anyio.Event()

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
            self._group.start_soon(self._streams.listen)

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame in the background; one that cancels a request also ends its POST."""
        if self._ended.is_set():
            return
        if self._pushed < PUSHED_FRAMES:
            self._pushed += 1
            self._group.start_soon(self._push, frame)
        message = envelope.decode(frame)
        if message.method == "notifications/cancelled" and message.params is not UNSET:
            target = envelope.members(message.params).get("requestId")
            scope = self._under_way.get(envelope.value(target)) if target is not None else None
            if scope is not None:
                scope.cancel()

    async def close(self) -> None:
        """End the session, and tell the server so."""
        known = self._session is not None and not self._ended.is_set()
        self._end()
        if known:
            with anyio.move_on_after(GOODBYE_SECONDS, shield=True):
                await self._quietly("DELETE")

    async def _push(self, frame: bytes) -> None:
        try:
            async with self._pushing:
                await self._tell(frame)
        finally:
            self._pushed -= 1

    async def _tell(self, frame: bytes) -> None:
        """Send what has no answer; a server that cannot be reached shows it at the next request."""
        await self._quietly("POST", frame)

    async def _quietly(self, method: str, frame: bytes | None = None) -> None:
        try:
            with anyio.fail_after(self._limits.connect_seconds):
                async with self._client.stream(
                    method, self._url, content=frame, headers=self._headers()
                ) as answer:
                    if not answer.is_success:
                        logger.debug("%s: a %s got HTTP status %d", self._server, method, answer.status_code)
        except (httpx2.HTTPError, DownstreamError, TimeoutError) as error:
            logger.debug("%s: a %s failed: %s", self._server, method, http_client.told(error))

    async def _request(self, request_id: RequestId, frame: bytes, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await self._exchange(request_id, frame)
            except SessionForgottenError as error:
                self._answers.fail(request_id, error)
                self._expire()
            except DownstreamError as error:
                self._answers.fail(request_id, error)
            except httpx2.HTTPError as error:
                refusal = http_client.refusal(error, self._server, self._url)
                if refusal is not None:
                    self._answers.fail(request_id, refusal)
                else:
                    self._answers.interrupt(request_id, f"broke off ({http_client.told(error)})")
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
                self._note_session(answer)
            if kind == STREAM and answer.is_success:
                await self._streams.read_answer(request_id, answer)
                return
            body = await http_client.read(answer, self._server, self._limits.message_bytes)
        if self._disowned(answer.status_code, body) and await self._forgotten():
            raise SessionForgottenError(self._server)
        if body.lstrip()[:1] in (b"{", b"["):
            self._answers.receive(body)
        if self._answers.waits_for(request_id):
            if body.lstrip()[:1] in (b"{", b"[") and answer.is_success:
                self._refuse_unreadable(body)
            raise http_client.without_message(self._server, answer.status_code, kind or "no content")

    def _note_session(self, answer: httpx2.Response) -> None:
        """Take the id of the session as it came: it goes back byte for byte."""
        for name, value in answer.headers.raw:
            if name.lower() == SESSION_HEADER:
                self._session = value

    def _refuse_unreadable(self, body: bytes) -> None:
        """Fail over a message that cannot be read, and so does not say which request it answers."""
        try:
            envelope.decode(body)
        except envelope.MalformedError as error:
            raise BadAnswerError(self._server, f"with a message that cannot be read ({error})") from None

    def _disowned(self, status: int, body: bytes) -> bool:
        """Whether that may say that the server no longer knows our session: some say it with 400."""
        return self._session is not None and (status == 404 or (status == 400 and b"session" in body.lower()))

    async def _forgotten(self) -> bool:
        """Whether a ping is refused like that, too: a call that is refused alone may have run."""
        if self._expired:
            return True
        frame = envelope.request(PROOF_ID, "ping", {})
        try:
            with anyio.fail_after(self._limits.connect_seconds):
                async with self._client.stream(
                    "POST", self._url, content=frame, headers=self._headers()
                ) as answer:
                    if answer.is_success:
                        return False
                    body = await http_client.read(answer, self._server, self._limits.message_bytes)
        except (httpx2.HTTPError, DownstreamError, TimeoutError) as error:
            logger.debug("%s: a ping failed: %s", self._server, http_client.told(error))
            return False
        return self._disowned(answer.status_code, body)

    def _headers(self) -> dict[bytes, bytes]:
        headers = {b"accept": f"application/json, {STREAM}".encode(), b"content-type": b"application/json"}
        if self._session is not None:
            headers[SESSION_HEADER] = self._session
        if self.version is not None:
            headers[b"mcp-protocol-version"] = self.version.encode()
        return headers


@asynccontextmanager
async def open_session_http(
    config: ServerConfig, limits: Limits, auth: httpx2.Auth | None, answers: Answers
) -> AsyncIterator[HttpSession]:
    """A session at the configured URL. Nothing is sent until the first frame."""
    async with (
        await http_client.client_of(config, limits, auth) as client,
        anyio.create_task_group() as group,
    ):
        session = HttpSession(config, limits, client, answers, group)
        try:
            yield session
        finally:
            await session.close()
            group.cancel_scope.cancel()
