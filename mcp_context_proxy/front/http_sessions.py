"""Sessions over HTTP: of the handshake era over streamable HTTP, and over HTTP+SSE before it.

When all places are taken, a session of the person who has most of them makes room, the one that was idle for
longest: nobody ends the sessions of others by opening many. Nothing is kept for clients that
come back, so a call whose stream has broken off is cancelled. Only one request with an id, and one stream of
its own, can be open in a session; the next one waits until the one before it has ended. A session serves the
principal that opened it; for any other it does not exist.

The stream of HTTP+SSE is one response without a result, with a conversation behind it.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import anyio
from msgspec import Struct, field
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mcp_context_proxy.config import Limits
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.front import Questions, http_requests
from mcp_context_proxy.front.auth import principal_of, rights_of
from mcp_context_proxy.front.conversation import Conversation
from mcp_context_proxy.front.http_requests import AdmissionRules, Exchange
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, Members, RequestError
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.negotiation import Negotiation
from mcp_context_proxy.system.process import Bucket
from mcp_context_proxy.system.threads import in_task, keep_latest

logger = logging.getLogger(__name__)

SESSION_HEADER = "mcp-session-id"

ENDING_SECONDS = 1.0
"""Time for a response that its client has already read, or a stream that it has left, to end."""

GUESSES_PER_SECOND, GUESSES = 10.0, 100
"""Unknown sessions that are answered with 404: all clients of a restarted proxy, but no search for ids.
Nobody finds one of 128 random bits anyway."""

ENDED = RequestError(INTERNAL_ERROR, "the session was ended meanwhile; the request may or may not have run")

PRINCIPALS_KEPT = 1000
"""People whose guesses are counted; of more, the one whose last guess is longest ago begins anew."""


class UnknownSessions:
    """Limit on answers to requests for sessions that do not exist, for each person."""

    def __init__(self) -> None:
        self._buckets: dict[str | None, Bucket] = {}

    def refusal(self, person: str | None, not_found: Response) -> Response:
        """Return the response to one of them: `not_found`, or 429 to somebody who tries many."""
        if self._bucket_of(person).take():
            return not_found
        return _too_many()

    def refusal_unseen(self, person: str | None) -> Response | None:
        """Return the response to somebody who has tried too many already; None if they may try one more."""
        return _too_many() if self._bucket_of(person).is_empty else None

    def _bucket_of(self, person: str | None) -> Bucket:
        bucket = self._buckets.get(person) or Bucket(GUESSES_PER_SECOND, GUESSES)
        return keep_latest(self._buckets, person, bucket, PRINCIPALS_KEPT)


def _too_many() -> Response:
    text = "Too many requests for sessions that do not exist.\n"
    return Response(text, HTTPStatus.TOO_MANY_REQUESTS, {"Retry-After": "1"})


class StreamableSession(Struct, eq=False):
    """One session: the terms with its client are in `state`, the rest is this process's."""

    id: str
    owner: str | None
    """The principal that opened it."""
    state: Session
    idle_since: float = 0.0
    under_way: int = 0
    """Number of its open requests, streams among them."""
    questions: Questions = field(default_factory=Questions)
    exchanges: dict[str | None, tuple[Exchange, anyio.Event]] = field(default_factory=dict)
    """Open requests by id, and by None its own stream, each with the event of its end."""

    @property
    def is_quiet(self) -> bool:
        """True if nothing is under way but a stream of its own."""
        return self.under_way <= (None in self.exchanges)

    async def notify(self, method: str, params: Members) -> None:
        """Send a notification on its own stream; drop it if the client has opened none."""
        if (stream := self.exchanges.get(None)) is not None:
            await stream[0].send(envelope.notification(method, params))

    async def is_free(self, key: str | None) -> bool:
        """Return whether a request with an id can begin, after one that is about to end has ended."""
        if key not in self.exchanges:
            return True
        await in_task()
        with anyio.move_on_after(ENDING_SECONDS):
            while (earlier := self.exchanges.get(key)) is not None:
                await earlier[1].wait()
        return key not in self.exchanges

    @contextmanager
    def holding(self, key: str | None, exchange: Exchange) -> Iterator[None]:
        ended = anyio.Event()
        self.exchanges[key] = exchange, ended
        try:
            yield
        finally:
            del self.exchanges[key]
            ended.set()


class HttpSessions:
    """The open sessions, those first whose last request ended first."""

    def __init__(self, gateway: Gateway, limits: Limits) -> None:
        self._gateway, self._limits = gateway, limits
        self._open: dict[str, StreamableSession] = {}
        self.prefix = ""
        """Beginning of each id: the name of the replica that opens the session, where there are several."""

    def __len__(self) -> int:
        return len(self._open)

    async def run(self) -> None:
        """End sessions that have been idle for too long, until cancelled."""
        while True:
            await anyio.sleep(self._limits.session_idle_seconds / 8)
            horizon = anyio.current_time() - self._limits.session_idle_seconds
            for session in list(self._open.values()):
                if not session.under_way and session.idle_since <= horizon:
                    self.end(session)

    def make_room(self, person: str | None) -> bool:
        """End an idle session if there is no place; return whether there is one now for a person.

        Nobody ends that of somebody who has fewer than they have.
        """
        while len(self._open) >= self._limits.sessions:
            held = Counter(session.state.rights.person for session in self._open.values())
            idle = (session for session in self._open.values() if not session.under_way)
            # Of those with as many, the first in the order of idleness.
            chosen = max(idle, key=lambda session: held[session.state.rights.person], default=None)
            if chosen is None or held[chosen.state.rights.person] < held[person]:
                return False
            self.end(chosen)
        return True

    def open(self, state: Session, owner: str | None) -> StreamableSession:
        """Open a session, for which `make_room` has found a place."""
        return self.open_as(self.prefix + secrets.token_hex(16), state, owner)

    def open_as(self, session_id: str, state: Session, owner: str | None) -> StreamableSession:
        """Open a session under an id that its client knows already."""
        session = StreamableSession(session_id, owner, state, anyio.current_time())
        self._open[session_id] = session
        self._gateway.open_session(state, session.notify)
        return session

    def find(self, session_id: str) -> StreamableSession | None:
        """Return a session, whoever asks; None if it is not open here."""
        return self._open.get(session_id)

    def end_state(self, state: Session) -> None:
        """End the session with this state, if it is open here."""
        for session in list(self._open.values()):
            if session.state is state:
                self.end(session)

    def get(self, session_id: str, owner: str | None) -> StreamableSession | None:
        """Return a session; None if it does not exist for this principal."""
        session = self._open.get(session_id)
        return None if session is None or session.owner != owner else session

    def end(self, session: StreamableSession) -> None:
        """End a session, with an error for each of its open requests."""
        if self._open.pop(session.id, None) is not None:
            # A copy, because one that is in a flight ends at once, and is open no more.
            for exchange, _ in tuple(session.exchanges.values()):
                exchange.end(ENDED)
            self._gateway.end_session(session.state)

    @contextmanager
    def busy(self, session: StreamableSession) -> Iterator[None]:
        """Count a request of a session, which is not idle meanwhile."""
        session.under_way += 1
        try:
            yield
        finally:
            session.under_way -= 1
            session.idle_since = anyio.current_time()
            if self._open.pop(session.id, None) is not None:
                # Reinserted, as the last that became idle.
                self._open[session.id] = session


MESSAGES_PATH = "/messages/"


class EventStreams:
    """The open event streams, by session id, and the two ASGI applications that serve them."""

    def __init__(
        self,
        negotiation: Negotiation,
        limits: Limits,
        guesses: UnknownSessions,
        admission: AdmissionRules,
        *,
        below: str,
    ) -> None:
        """Have messages posted `below` a path, which a reverse proxy takes away."""
        self._negotiation, self._limits, self._guesses = negotiation, limits, guesses
        self._admission, self._messages = admission, f"{below}{MESSAGES_PATH}"
        self._open: dict[str, tuple[str | None, Conversation]] = {}
        """Principal and conversation of each stream."""
        self.prefix = ""
        """Beginning of each id: the name of the replica that has the stream, where there are several."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a stream, and serve its host until it goes away."""
        if scope["method"] != "GET":
            await Response(None, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET"})(scope, receive, send)
            return
        session_id, principal = self.prefix + secrets.token_hex(16), principal_of(scope)
        async with anyio.create_task_group() as group:
            channel = EventChannel(
                scope=scope, receive=receive, send=send, group=group, headers=[], patience=0
            )
            conversation = Conversation(
                negotiation=self._negotiation,
                limits=self._limits,
                channel=channel,
                rights=rights_of(scope),
            )
            await group.start(conversation.run)
            self._open[session_id] = principal, conversation
            try:
                await channel.open(f"{self._messages}?session_id={session_id}")
                await channel.stream()
            finally:
                del self._open[session_id]
                group.cancel_scope.cancel()

    async def message(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body, message = await http_requests.read(receive)
        except http_requests.BadMessageError as error:
            await error.response(scope, receive, send)
            return
        conversation = self._conversation(scope)
        if isinstance(conversation, Response):
            await conversation(scope, receive, send)
            return
        refused = self._admission.refusal(scope, message)
        if refused is not None:
            await refused(scope, receive, send)
            return
        if conversation.is_busy:
            text, status = "busy: too many requests are under way", HTTPStatus.SERVICE_UNAVAILABLE
            await http_requests.error_response(status, None, text, INTERNAL_ERROR)(scope, receive, send)
            return
        released = anyio.Event()
        under_way = conversation.take(message, body, released.set)
        await Response("Accepted", HTTPStatus.ACCEPTED)(scope, receive, send)
        if under_way and len(body) > http_requests.SMALL_BYTES:
            # The body keeps its room in `WholeBodies` until then.
            await released.wait()

    def _conversation(self, scope: Scope) -> Conversation | Response:
        """Return the conversation that a message belongs to, or else the response that refuses it."""
        if scope["method"] != "POST":
            return Response(None, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "POST"})
        content_type = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        if content_type != http_requests.JSON_TYPE:
            return Response(f"A message is {http_requests.JSON_TYPE}.\n", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        session_id = QueryParams(scope["query_string"]).get("session_id")
        if session_id is None:
            return Response("session_id is required", HTTPStatus.BAD_REQUEST)
        owner, conversation = self._open.get(session_id, (None, None))
        if conversation is None or owner != principal_of(scope):
            # Another principal learns no more about a session than about one that does not exist.
            not_found = Response("Could not find session", HTTPStatus.NOT_FOUND)
            return self._guesses.refusal(rights_of(scope).person, not_found)
        return conversation


class EventChannel(Exchange):
    """Writes frames to an event stream. Implements `HostChannel`."""

    async def open(self, endpoint: str) -> None:
        """Begin the stream with the path to which messages are posted."""
        await self._begin()
        await self._write_event(endpoint.encode(), b"endpoint")

    def pause_reading(self) -> None:
        """Do nothing: each message comes by a request of its own."""

    def resume_reading(self) -> None:
        """Do nothing: see `pause_reading`."""
