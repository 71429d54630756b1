"""Reads the event streams of a handshake-era session: answers, and what belongs to no request.

A stream that breaks off is asked for again from where it was, never what was asked: that ran already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import anyio
import httpx2

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream import bodies
from mcp_context_proxy.errors import DownstreamError
from mcp_context_proxy.wire.envelope import RequestId
from mcp_context_proxy.wire.events import Event

logger = logging.getLogger(__name__)

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

        return await bodies.read_events(answer, self._server, self._limits.sse_event_bytes, take)

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
