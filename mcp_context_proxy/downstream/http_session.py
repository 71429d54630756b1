"""Carries frames over HTTP in the handshake era: a POST for each frame, and event streams back.

With streamable HTTP, requests share a session and a connection pool and nothing else: a refused connection, a
reset, a status or an unreadable body fails the request it belongs to. Only a session that the server has
forgotten ends them all; requests that the server refused unread are then sent once more, in the next session.

A stream that breaks off is resumed from its last event. The request that it answers is never repeated, as it
has run already.

The older transport, HTTP+SSE, has one event stream from the server, and a POST for each frame to it. The
SDK's transport for it bounds an event at 1 MiB, so a larger result would end the connection. Here the bound
is configured, and frames stay undecoded.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
from anyio.abc import TaskGroup
from msgspec import UNSET

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream import Channel, QueuedChannel, http_client
from mcp_context_proxy.downstream.jsonrpc import Peer
from mcp_context_proxy.errors import BadAnswerError, DownstreamError, SessionForgottenError
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import RequestId
from mcp_context_proxy.protocol.framing import Oversized, ServerSentEvent

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

ORDER_SECONDS = 1.0
"""Time for a server to accept a frame before the next one is posted beside it."""

LATE_SECONDS = 0.02
"""The same for a server that was late before: it may answer a POST only when the request in it has run."""

UNKNOWN = frozenset({404, 410})
"""Statuses of a server that does not know the stream: no response would ever come over it."""

RECEIPT_BYTES = 64 << 10
"""Size up to which the body of a POST's response is read; it is not used."""


class HttpSession(Channel):
    """A session with a server at a URL."""

    def __init__(
        self,
        *,
        config: ServerConfig,
        limits: Limits,
        client: httpx2.AsyncClient,
        peer: Peer,
        group: TaskGroup,
    ) -> None:
        self._ended = anyio.Event()
        self._server, self._url, self._limits = config.name, config.url or "", limits
        self._client, self._peer, self._group = client, peer, group
        self._session: bytes | None = None
        self._pushed, self._pushing = 0, anyio.Semaphore(PUSHES)
        """Frames that are sent without waiting, and the bound on those posted at a time."""
        self._under_way: dict[RequestId, anyio.CancelScope] = {}
        self._expired, self._all_answered = False, anyio.Event()

    async def send(self, frame: bytes) -> None:
        """Send one frame, without waiting for the response to a request."""
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
                async with self._stream(method, frame) as response:
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
            except (DownstreamError, httpx2.HTTPError) as error:
                http_client.fail_request(self._peer, request_id, error, self._url)
                if isinstance(error, SessionForgottenError):
                    self._expire()
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
        async with self._stream("POST", frame) as response:
            if response.is_success:
                for name, value in response.headers.raw:
                    if name.lower() == SESSION_HEADER:
                        # It is sent back byte for byte.
                        self._session = value
            if http_client.content_kind(response) == STREAM and response.is_success:
                await self._read_response(request_id, response)
                return
            body = await http_client.read(response, self._server, self._limits.message_bytes)
        if self._disowned(response.status_code, body) and await self._forgotten():
            raise SessionForgottenError(self._server)
        is_json = body.lstrip()[:1] in (b"{", b"[")
        if is_json:
            await self._peer.receive_large(body)
        if self._peer.waits_for(request_id):
            if is_json and response.is_success:
                # A message that cannot be read does not say which request it answers.
                try:
                    envelope.decode_from_server(body)
                except envelope.MalformedError as error:
                    reason = f"with a message that cannot be read ({error})"
                    raise BadAnswerError(self._server, reason) from None
            raise http_client.without_message(self._server, response, body)

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
                async with self._stream("POST", frame) as response:
                    if response.is_success:
                        return False
                    body = await http_client.read(response, self._server, self._limits.message_bytes)
        except (httpx2.HTTPError, DownstreamError, TimeoutError) as error:
            logger.debug("%s: a ping failed: %s", self._server, http_client.described(error))
            return False
        return self._disowned(response.status_code, body)

    async def _read_response(self, request_id: RequestId, response: httpx2.Response) -> None:
        """Read events until the request is answered; resume the stream if it breaks off."""
        place = _Place()
        if await self._read_events(response, place, request_id):
            return
        failures = 0
        while place.event is not None and failures < RESUMPTIONS:
            seen = place.event
            await anyio.sleep(max(place.wait_seconds, RESUME_MIN_SECONDS))
            try:
                async with self._stream("GET", resumed=place) as resumed:
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
                async with self._stream("GET", resumed=place) as response:
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

        async def take(event: ServerSentEvent | Oversized) -> bool:
            if isinstance(event, Oversized):
                self._peer.receive(event)
            else:
                place.note(event)
                if event.name == b"message" and event.data:
                    await self._peer.receive_large(event.data)
            return request_id is not None and not self._peer.waits_for(request_id)

        return await http_client.read_events(response, self._limits.sse_event_bytes, take)

    def _stream(
        self, method: str, frame: bytes | None = None, resumed: _Place | None = None
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """Send a request in the session."""
        headers = {b"accept": f"application/json, {STREAM}".encode(), b"content-type": b"application/json"}
        if self._session is not None:
            headers[SESSION_HEADER] = self._session
        if self.version is not None:
            headers[b"mcp-protocol-version"] = self.version.encode()
        if resumed is not None and resumed.event is not None:
            headers[b"last-event-id"] = resumed.event
        return self._client.stream(method, self._url, content=frame, headers=headers)


@asynccontextmanager
async def open_session_http(
    config: ServerConfig, limits: Limits, auth: httpx2.Auth | None, peer: Peer
) -> AsyncIterator[HttpSession]:
    """Open a session at the configured URL. Nothing is sent until the first frame."""
    async with (
        await http_client.client_of(config, limits, auth) as client,
        anyio.create_task_group() as group,
    ):
        session = HttpSession(config=config, limits=limits, client=client, peer=peer, group=group)
        try:
            yield session
        finally:
            await session.close()
            group.cancel_scope.cancel()


class _Place:
    """The last event read from a stream, and the wait that the server wants before it is resumed."""

    event: bytes | None = None
    wait_seconds = RESUME_SECONDS

    def note(self, event: ServerSentEvent) -> None:
        self.event = event.id or self.event
        if event.retry_seconds is not None:
            self.wait_seconds = min(event.retry_seconds, RESUME_MAX_SECONDS)


class SseChannel(QueuedChannel):
    """An open event stream and the address to post frames to."""

    def __init__(self, config: ServerConfig, limits: Limits, client: httpx2.AsyncClient, peer: Peer) -> None:
        super().__init__()
        self._server, self._limits = config.name, limits
        self._client, self._peer = client, peer
        self._address = ""
        self.ready = anyio.Event()
        """Set when the server has named its address, or the stream has ended without."""

    async def read(self, stream: httpx2.Response, url: str) -> None:
        """Pass received events on until the stream ends."""

        async def take(event: ServerSentEvent | Oversized) -> bool:
            if isinstance(event, Oversized):
                self._peer.receive(event)
            elif event.name == b"endpoint":
                self._address = _same_origin(url, event.data.decode())
                self.ready.set()
            elif event.name == b"message" and event.data:
                await self._peer.receive_large(event.data)
            return False

        try:
            await http_client.read_events(stream, self._limits.sse_event_bytes, take)
        except (httpx2.HTTPError, DownstreamError, ValueError) as error:
            self._cause = f"broke off the event stream ({http_client.described(error)})"
        finally:
            self._end()

    async def write(self, group: TaskGroup) -> None:
        """Post the queued frames in order.

        The next frame is posted when the server has accepted the one before, or takes long to: some servers
        accept a request only when it has run.
        """
        patience = ORDER_SECONDS
        async for frame in self.frames:
            taken = anyio.Event()
            group.start_soon(self._post, frame, taken)
            with anyio.move_on_after(patience):
                await taken.wait()
            patience = ORDER_SECONDS if taken.is_set() else LATE_SECONDS

    async def _post(self, frame: bytes, taken: anyio.Event) -> None:
        """Post one frame; on an error, fail the request in it, if there is one."""
        headers = {"content-type": "application/json"}
        try:
            with anyio.move_on_after(self._limits.call_max_seconds):
                async with self._client.stream(
                    "POST", self._address, content=frame, headers=headers
                ) as response:
                    body = await http_client.read(response, self._server, RECEIPT_BYTES)
                if response.status_code in UNKNOWN:
                    self.give_up(f"took no message (HTTP status {response.status_code})")
                elif not response.is_success:
                    self._fail(frame, http_client.without_message(self._server, response, body))
        except httpx2.HTTPError as error:
            self._fail(frame, error)
        except DownstreamError as error:
            logger.debug("a receipt cannot be read: %s", error)
        finally:
            taken.set()

    def _fail(self, frame: bytes, error: DownstreamError | httpx2.HTTPError) -> None:
        message = envelope.decode(frame)
        if isinstance(message.id, int | str) and message.method is not UNSET:
            http_client.fail_request(self._peer, message.id, error, self._address)
        else:
            logger.debug("%s took no message: %s", self._server, error)

    def _end(self) -> None:
        self.ready.set()
        super()._end()


@asynccontextmanager
async def open_sse(
    config: ServerConfig, limits: Limits, auth: httpx2.Auth | None, peer: Peer
) -> AsyncIterator[SseChannel]:
    """Open the event stream that `config` names.

    Raises `BadAnswerError` or `httpx2.HTTPError` if it cannot be opened.
    """
    url = config.url or ""
    async with (
        await http_client.client_of(config, limits, auth) as client,
        client.stream(
            "GET", url, headers={"accept": "text/event-stream", "cache-control": "no-store"}
        ) as stream,
    ):
        if stream.is_error:
            raise http_client.without_message(config.name, stream)
        stream.raise_for_status()
        channel = SseChannel(config, limits, client, peer)
        async with anyio.create_task_group() as group:
            group.start_soon(channel.read, stream, url)
            try:
                await channel.ready.wait()
                group.start_soon(channel.write, group)
                yield channel
            finally:
                group.cancel_scope.cancel()
                channel.close()


def _same_origin(url: str, address: str) -> str:
    """Return the address to post to; a stream must not lead us, and our headers, to another origin."""
    found = urljoin(url, address)
    if urlsplit(found)[:2] != urlsplit(url)[:2]:
        raise ValueError(f"it names an address of another origin: {urlsplit(found).netloc}")
    return found
