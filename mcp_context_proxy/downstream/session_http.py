"""Carries frames over streamable HTTP in the handshake era: a POST for each frame, a stream for the rest.

Requests share a session and a connection pool and nothing else: a refused connect, a reset, a status or an
unreadable body fails the request it belongs to. Only a session that the server has forgotten ends them all;
those that it refused unread are then sent once more, in the next one.
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
from mcp_context_proxy.downstream import bodies, http_client, statuses
from mcp_context_proxy.downstream.channel import Ending
from mcp_context_proxy.downstream.streams import STREAM, Answers, Streams
from mcp_context_proxy.errors import BadAnswerError, DownstreamError, SessionForgottenError
from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import RequestId

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
            body = await bodies.read(answer, self._server, self._limits.message_bytes)
        if self._disowned(answer.status_code, body) and await self._forgotten():
            raise SessionForgottenError(self._server)
        if body.lstrip()[:1] in (b"{", b"["):
            self._answers.receive(body)
        if self._answers.waits_for(request_id):
            if body.lstrip()[:1] in (b"{", b"[") and answer.is_success:
                self._refuse_unreadable(body)
            raise statuses.without_message(self._server, answer.status_code, kind or "no content")

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
                    body = await bodies.read(answer, self._server, self._limits.message_bytes)
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
