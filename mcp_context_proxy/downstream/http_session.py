"""Carries frames over streamable HTTP in the handshake era: a POST for each frame, and event streams back.

Requests share a session and a connection pool and nothing else: a refused connection, a reset, a status or an
unreadable body fails the request it belongs to. Only a session that the server has forgotten ends them all;
requests that the server refused unread are then sent once more, in the next session.

A stream that breaks off is resumed from its last event. The request that it answers is never repeated, as it
has run already.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
from anyio.abc import TaskGroup
from msgspec import UNSET

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream import http_client
from mcp_context_proxy.downstream.jsonrpc import Peer
from mcp_context_proxy.downstream.link import Ending
from mcp_context_proxy.errors import BadAnswerError, DownstreamError, SessionForgottenError
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import RequestId
from mcp_context_proxy.protocol.framing import Event

logger = logging.getLogger(__name__)

STREAM = "text/event-stream"
SESSION_HEADER = b"mcp-session-id"

PUSHED_FRAMES = 1024
"""Frames that are sent without waiting, such as cancellations; further ones are dropped."""

PUSHES = 8
"""Such frames that are posted at a time, so that the event loop can serve other servers, too."""

GOODBYE_SECONDS = 2.0
"""Time for the server to take the end of the session."""

PROOF_ID = "session"
"""Id of the ping that proves that a session has expired; requests have numbers."""

REFUSAL_SECONDS = 1.0
"""Time for other pending requests when the session has expired: most are refused, and are sent again."""

RESUMPTIONS = 3
"""Attempts in a row to resume a stream that bring nothing new, after which it is given up."""

RESUME_SECONDS = 1.0
"""Wait before a stream is resumed, unless the server names one; least wait for the announcement stream."""

RESUME_MIN_SECONDS, RESUME_MAX_SECONDS = 0.1, 60.0
"""Bounds on such a wait, whatever the server says."""


class HttpSession(Ending):
    """A session with a server at a URL. Implements `Channel`."""

    def __init__(
        self, config: ServerConfig, limits: Limits, client: httpx2.AsyncClient, peer: Peer, group: TaskGroup
    ) -> None:
        super().__init__()
        self._server, self._url, self._limits = config.name, config.url or "", limits
        self._client, self._peer, self._group = client, peer, group
        self._session: bytes | None = None
        self._pushed, self._pushing = 0, anyio.Semaphore(PUSHES)
        """Frames that are sent without waiting, and the bound on those posted at a time."""
        self._under_way: dict[RequestId, anyio.CancelScope] = {}
        self._expired, self._all_answered = False, anyio.Event()

    async def send(self, frame: bytes) -> None:
        """Send one frame, without waiting for the response to a request.

        Raises:
            ConnectionError: the session is over.
        """
        if self._ended.is_set():
            raise ConnectionError(self._cause)
        message = envelope.decode(frame)
        if isinstance(message.id, int | str) and message.method is not UNSET:
            if self._expired:
                self._peer.fail(message.id, SessionForgottenError(self._server))
            else:
                scope = self._under_way[message.id] = anyio.CancelScope()
                self._group.start_soon(self._request, message.id, frame, scope)
            return
        await self._send_quietly("POST", frame)
        if message.method == "notifications/initialized":
            self._group.start_soon(self._listen)

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame in the background; a cancellation also ends the POST of its request."""
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
        """End the session, and tell the server that it has ended."""
        known = self._session is not None and not self._ended.is_set()
        self._end()
        if known:
            with anyio.move_on_after(GOODBYE_SECONDS, shield=True):
                await self._send_quietly("DELETE")

    async def _push(self, frame: bytes) -> None:
        try:
            async with self._pushing:
                await self._send_quietly("POST", frame)
        finally:
            self._pushed -= 1

    async def _send_quietly(self, method: str, frame: bytes | None = None) -> None:
        """Send a frame without a response. If it fails, so will the next request, which reports the error."""
        try:
            with anyio.fail_after(self._limits.connect_seconds):
                async with self._client.stream(
                    method, self._url, content=frame, headers=self._headers()
                ) as response:
                    if not response.is_success:
                        logger.debug(
                            "%s: a %s got HTTP status %d", self._server, method, response.status_code
                        )
        except (httpx2.HTTPError, DownstreamError, TimeoutError) as error:
            logger.debug("%s: a %s failed: %s", self._server, method, http_client.described(error))

    async def _request(self, request_id: RequestId, frame: bytes, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await self._exchange(request_id, frame)
            except SessionForgottenError as error:
                self._peer.fail(request_id, error)
                self._expire()
            except DownstreamError as error:
                self._peer.fail(request_id, error)
            except httpx2.HTTPError as error:
                refusal = http_client.refusal(error, self._server, self._url)
                if refusal is not None:
                    self._peer.fail(request_id, refusal)
                else:
                    self._peer.interrupt(request_id, f"broke off ({http_client.described(error)})")
            finally:
                del self._under_way[request_id]
                if self._expired and not self._under_way:
                    self._all_answered.set()

    def _expire(self) -> None:
        """Note that the server has forgotten the session: nothing is sent in it again, and it ends soon."""

        async def end_when_answered() -> None:
            with anyio.move_on_after(REFUSAL_SECONDS):
                await self._all_answered.wait()
            self.give_up("has forgotten the session")

        if not self._expired:
            self._expired = True
            self._group.start_soon(end_when_answered)

    async def _exchange(self, request_id: RequestId, frame: bytes) -> None:
        """Post a request and pass its response on, from the body or from an event stream."""
        async with self._client.stream("POST", self._url, content=frame, headers=self._headers()) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.is_success:
                for name, value in response.headers.raw:
                    if name.lower() == SESSION_HEADER:
                        # It is sent back byte for byte.
                        self._session = value
            if kind == STREAM and response.is_success:
                await self._read_response(request_id, response)
                return
            body = await http_client.read(response, self._server, self._limits.message_bytes)
        if self._disowned(response.status_code, body) and await self._forgotten():
            raise SessionForgottenError(self._server)
        is_json = body.lstrip()[:1] in (b"{", b"[")
        if is_json:
            self._peer.receive(body)
        if self._peer.waits_for(request_id):
            if is_json and response.is_success:
                # A message that cannot be read does not say which request it answers.
                try:
                    envelope.decode(body)
                except envelope.MalformedError as error:
                    reason = f"with a message that cannot be read ({error})"
                    raise BadAnswerError(self._server, reason) from None
            raise http_client.without_message(self._server, response.status_code, kind or "no content")

    def _disowned(self, status: int, body: bytes) -> bool:
        """Return whether a response may mean that the server has forgotten our session: some send 400."""
        return self._session is not None and (status == 404 or (status == 400 and b"session" in body.lower()))

    async def _forgotten(self) -> bool:
        """Return whether a ping is refused, too: a call that alone is refused may have run."""
        if self._expired:
            return True
        frame = envelope.request(PROOF_ID, "ping", {})
        try:
            with anyio.fail_after(self._limits.connect_seconds):
                async with self._client.stream(
                    "POST", self._url, content=frame, headers=self._headers()
                ) as response:
                    if response.is_success:
                        return False
                    body = await http_client.read(response, self._server, self._limits.message_bytes)
        except (httpx2.HTTPError, DownstreamError, TimeoutError) as error:
            logger.debug("%s: a ping failed: %s", self._server, http_client.described(error))
            return False
        return self._disowned(response.status_code, body)

    async def _read_response(self, request_id: RequestId, response: httpx2.Response) -> None:
        """Read events until the request is answered; resume the stream if it breaks off.

        Raises:
            httpx2.HTTPError: the stream has ended without a response.
        """
        place = _Place()
        if await self._read_events(response, place, request_id):
            return
        failures = 0
        while place.event is not None and failures < RESUMPTIONS:
            seen = place.event
            await anyio.sleep(max(place.wait_seconds, RESUME_MIN_SECONDS))
            try:
                async with self._client.stream("GET", self._url, headers=self._headers(place)) as resumed:
                    if await self._read_events(resumed, place, request_id):
                        return
            except httpx2.HTTPError as error:
                # Never a reason to send the request again: it was sent over another connection.
                logger.debug("%s: a stream cannot be resumed: %s", self._server, error)
            failures = 0 if place.event != seen else failures + 1
        if self._peer.waits_for(request_id):
            raise httpx2.RemoteProtocolError("the event stream ended without an answer")

    async def _listen(self) -> None:
        """Read messages that belong to no request, if the server offers a stream for them."""
        place = _Place()
        wait = 0.0
        while True:
            try:
                async with self._client.stream("GET", self._url, headers=self._headers(place)) as response:
                    if not response.is_success or STREAM not in response.headers.get("content-type", ""):
                        return
                    wait = 0.0
                    await self._read_events(response, place)
            except (httpx2.HTTPError, DownstreamError) as error:
                logger.debug("%s: the stream of announcements broke off: %s", self._server, error)
            wait = min(max(2 * wait, place.wait_seconds, RESUME_SECONDS), RESUME_MAX_SECONDS)
            await anyio.sleep(wait)

    async def _read_events(
        self, response: httpx2.Response, place: _Place, request_id: RequestId | None = None
    ) -> bool:
        """Pass the events of a stream on; return whether the request is answered."""

        def take(event: Event) -> bool:
            place.note(event)
            if event.name != b"message" or not event.data:
                return False
            self._peer.receive(event.data)
            return request_id is not None and not self._peer.waits_for(request_id)

        return await http_client.read_events(response, self._server, self._limits.sse_event_bytes, take)

    def _headers(self, resumed: _Place | None = None) -> dict[bytes, bytes]:
        headers = {b"accept": f"application/json, {STREAM}".encode(), b"content-type": b"application/json"}
        if self._session is not None:
            headers[SESSION_HEADER] = self._session
        if self.version is not None:
            headers[b"mcp-protocol-version"] = self.version.encode()
        if resumed is not None and resumed.event is not None:
            headers[b"last-event-id"] = resumed.event
        return headers


@asynccontextmanager
async def open_session_http(
    config: ServerConfig, limits: Limits, auth: httpx2.Auth | None, peer: Peer
) -> AsyncIterator[HttpSession]:
    """Open a session at the configured URL. Nothing is sent until the first frame."""
    async with (
        await http_client.client_of(config, limits, auth) as client,
        anyio.create_task_group() as group,
    ):
        session = HttpSession(config, limits, client, peer, group)
        try:
            yield session
        finally:
            await session.close()
            group.cancel_scope.cancel()


class _Place:
    """The last event read from a stream, and the wait that the server wants before it is resumed."""

    def __init__(self) -> None:
        self.event: bytes | None = None
        self.wait_seconds = RESUME_SECONDS

    def note(self, event: Event) -> None:
        self.event = event.id or self.event
        if event.retry_seconds is not None:
            self.wait_seconds = min(event.retry_seconds, RESUME_MAX_SECONDS)
