"""This process as a member of the cluster, and the homes of sessions and parked calls.

The id of a session and of a parked call begins with the name of the replica that made it. A request for
another replica is relayed there, once. If its home is gone, this replica adopts the session: it becomes the
home in the database, compared and set, and goes on from the state that is kept there.
"""

from __future__ import annotations

import logging
import re
import secrets
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import anyio
import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_context_proxy.cluster import NOBODY, ContextRow, LeftResults, decoded, hash_of, hello_of, tables_of
from mcp_context_proxy.cluster.contexts import SESSION, SharedContexts, StoredRequests
from mcp_context_proxy.cluster.replicas import (
    RELAY_HEADER,
    Announcements,
    ClusterCounts,
    Reason,
    Relay,
    RelayEnd,
    Replicas,
    Signer,
    not_here,
    refused,
)
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.tables import keys_of
from mcp_context_proxy.context import RequestRecords
from mcp_context_proxy.context.session import Handles, Session
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import ConfigError, ConfigProblem, StoreError
from mcp_context_proxy.front import ASKED_KEY, last_event
from mcp_context_proxy.front.auth import principal_of, rights_of
from mcp_context_proxy.front.http_requests import JSON_TYPE, STOPPING, error_response, replay
from mcp_context_proxy.front.http_sessions import MESSAGES_PATH, SESSION_HEADER, EventStreams
from mcp_context_proxy.front.streamable_http import StreamableHttp, is_modern, session_not_found
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, RequestId, error_reply
from mcp_context_proxy.protocol.headers import VERSION_HEADER
from mcp_context_proxy.results.result_store import KeptResults
from mcp_context_proxy.results.shortening import READ_RESULT
from mcp_context_proxy.server.consent import PendingInput
from mcp_context_proxy.server.gateway import SHUTTING_DOWN, Gateway
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.store.credentials import Seal
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.system.process import Bucket
from mcp_context_proxy.system.threads import alongside, in_task, in_thread, keep_latest

logger = logging.getLogger(__name__)

MOVED_KEPT: Final = 10_000
"""Sessions of which it is remembered that they have another home than their id says, half a megabyte."""

ATTEMPTS: Final = 3
"""Looks at a row that other replicas change meanwhile."""

LOOKED_UP_AT_ONCE: Final = 8
"""Sessions of one principal that are looked up in the database at a time."""

COMPLAINTS_PER_SECOND, COMPLAINTS = 0.1, 10
"""Rate and burst of log lines about relays that are refused: any client can send their header."""

LONGEST_ID: Final = 128
"""Longest id of a session that is looked up: a name, a dot, and 32 digits."""

UNDECIDED: Final = "this session cannot be reached or taken over now; the request did not run"

MAY_HAVE_RUN: Final = "the replica that holds this {} was lost; the request may or may not have run"


class _Params(msgspec.Struct):
    requestState: Any = None  # noqa: N815 - the protocol's word
    taskId: Any = None  # noqa: N815
    name: Any = None
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _Request(msgspec.Struct):
    params: _Params | None = None
    id: RequestId | None = None


class _Reading(msgspec.Struct):
    id: str = ""


_request = msgspec.json.Decoder(_Request).decode
_call = msgspec.json.Decoder(_Params).decode
_reading = msgspec.json.Decoder(_Reading).decode


class Homes:
    """ASGI application before the endpoint of a replica; `message` is the one before event streams."""

    def __init__(
        self,
        app: StreamableHttp,
        streams: EventStreams,
        *,
        replicas: Replicas,
        contexts: SharedContexts,
        signer: Signer,
        relay: Relay,
        counts: ClusterCounts,
    ) -> None:
        """Lead requests to their homes, and to `app` or `streams` if that is here."""
        self._app, self._streams, self._replicas, self._contexts = app, streams, replicas, contexts
        self._signer, self._relay = signer, relay
        self._drain, self._resources = app.gateway.drain, app.gateway.resources
        self._moved: OrderedDict[str, str] = OrderedDict()
        self._adopting: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._looking: WeakValueDictionary[str | None, anyio.Semaphore] = WeakValueDictionary()
        self._counts = counts
        self._complaints = Bucket(COMPLAINTS_PER_SECOND, COMPLAINTS)
        counts.sessions = lambda: len(app.sessions)
        app.gateway.quota.replicas = counts.replicas
        app.sessions.prefix = streams.prefix = f"{replicas.name}."
        contexts.on_lost = app.sessions.end_state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request here, or have its home serve it."""
        try:
            await in_task()
        except anyio.get_cancelled_exc_class():
            # The replica ends, and this request has not begun: a balancer gives it to another one.
            await _unavailable(STOPPING, SHUTTING_DOWN)(scope, receive, send)
            return
        sent = dict(scope["headers"])
        body = await _body(scope, receive)
        relayed = RELAY_HEADER in sent
        if relayed and not self._may_relay(scope, body):
            await refused()(scope, receive, send)
            return
        version = sent.get(VERSION_HEADER.encode())
        alone = is_modern(None if version is None else version.decode("latin-1"))
        session_id = "" if alone else sent.get(SESSION_HEADER.encode(), b"").decode("latin-1")
        if session_id and len(session_id) <= LONGEST_ID:
            await self._lead(session_id, scope, body, receive, send, relayed=relayed)
            return
        made = "" if session_id or relayed else _made_before(body)
        if made and await self._answered_elsewhere(made, Reason.CALL, scope, body, receive, send):
            return
        if not alone and not session_id and scope["method"] == "POST":
            send = partial(self._opened, send)
        await self._app(scope, replay(body, receive), send)

    async def message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a message for an event stream, here or at the replica that has the stream."""
        body = await _body(scope, receive)
        # What a client writes behind this path means nothing, and a relay would spell it in another way than
        # it was signed: this replica would take itself for one with another key.
        scope = {**scope, "path": MESSAGES_PATH}
        if RELAY_HEADER in dict(scope["headers"]):
            if not self._may_relay(scope, body):
                await refused()(scope, receive, send)
                return
        else:
            session_id = QueryParams(scope["query_string"]).get("session_id", "")
            reason = Reason.SESSION if b'"method"' in body else Reason.REPLY
            if await self._answered_elsewhere(session_id, reason, scope, body, receive, send):
                return
        await self._streams.message(scope, replay(body, receive), send)

    def _may_relay(self, scope: Scope, body: bytes) -> bool:
        """Return whether another replica has signed this relay."""
        values = [value for name, value in scope["headers"] if name == RELAY_HEADER]
        if len(values) == 1 and self._signer.is_valid(values[0], scope, body):
            return True
        self._counts.relays_refused += 1
        if self._complaints.take():
            logger.warning("refused a relay that was not signed with the key of this cluster")
        return False

    async def _answered_elsewhere(
        self, made: str, reason: Reason, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> bool:
        """Relay a request to the replica that has made this id, and return whether it has an answer."""
        home, dot, _ = made.partition(".")
        if not dot or home == self._replicas.name or len(home) > LONGEST_ID:
            return False
        await self._replicas.look_for(home)
        return await self._answered_by(home, reason, scope, body, receive, send)

    async def _opened(self, send: Send, message: Message) -> None:
        """Write the row of a session that was opened before its id leaves."""
        if message["type"] == "http.response.start":
            opened = dict(message.get("headers", ())).get(SESSION_HEADER.encode())
            session = None if opened is None else self._app.sessions.find(opened.decode())
            if session is not None:
                await self._contexts.opened(session.id, session.state)
        await send(message)

    async def _let_go(self, session_id: str) -> bool:
        """Return whether a session may be adopted: this replica stops, or leaves and it is quiet."""
        if self._drain.stopping or not self._drain.leaving:
            return self._drain.stopping
        session = self._app.sessions.find(session_id)
        if session is None or not session.is_quiet or not await self._contexts.written(session.state):
            return False
        if self._app.sessions.find(session_id) is session:
            if not session.is_quiet:
                return False
            self._contexts.forget(session.state)
            self._app.sessions.end(session)
        return True

    async def _ended(self, session_id: str, send: Send, message: Message) -> None:
        """Delete the row of a session that was ended before its client hears so: nobody adopts it then."""
        if message["type"] == "http.response.start" and self._app.sessions.find(session_id) is None:
            await self._contexts.ended(session_id)
        await send(message)

    async def _lead(
        self, session_id: str, scope: Scope, body: bytes, receive: Receive, send: Send, *, relayed: bool
    ) -> None:
        if self._app.sessions.find(session_id) is None:
            is_reply = scope["method"] == "POST" and b'"method"' not in body
            reason = Reason.REPLY if is_reply else Reason.SESSION
            home = self._moved.get(session_id) or session_id.rpartition(".")[0]
            found: Response | str | None = None
            for _ in range(ATTEMPTS):
                asked = "" if relayed or self._replicas.address_of(home) is None else home
                if asked and await self._answered_by(home, reason, scope, body, receive, send):
                    return
                found = await self._look_up(session_id, asked, scope, relayed=relayed)
                if not isinstance(found, str):
                    break
                home = keep_latest(self._moved, session_id, found, MOVED_KEPT)
            if found is not None:
                refusal = _unavailable(UNDECIDED) if isinstance(found, str) else found
                await refusal(scope, receive, send)
                return
        elif relayed and (b'"method"' in body or scope["method"] == "GET") and await self._let_go(session_id):
            # Nothing of it has run, so the sender can adopt the session; replies are still taken.
            await not_here()(scope, receive, send)
            return
        if scope["method"] == "DELETE":
            send = partial(self._ended, session_id, send)
        await self._app(scope, replay(body, receive), send)

    async def _look_up(
        self, session_id: str, asked: str, scope: Scope, *, relayed: bool
    ) -> Response | str | None:
        """Look a session up, and adopt it unless it has a home, which `asked` is not any more.

        Returns None if it can be served here, the name of its home, or the refusal.
        """
        async with self._adopting.setdefault(session_id, anyio.Lock()):
            for _ in range(ATTEMPTS):
                if self._app.sessions.find(session_id) is not None:
                    return None
                if relayed and self._drain.leaving:
                    return not_here()
                row = await self._row_of(session_id, scope)
                if isinstance(row, Response):
                    return row
                await self._replicas.look_for(row.home)
                if row.home not in (self._replicas.name, asked) and self._replicas.address_of(row.home):
                    # Never two hops: whoever has relayed it looks the session up as well.
                    return not_here() if relayed else row.home
                if await self._adopt(session_id, row, scope):
                    return None
            return _unavailable(UNDECIDED)

    async def _row_of(self, session_id: str, scope: Scope) -> ContextRow | Response:
        """Return the row of a session, or the refusal.

        The database is not asked for a principal that has tried too many sessions that do not exist.
        """
        principal, guesses = rights_of(scope).person, self._app.guesses
        async with self._looking.setdefault(principal, anyio.Semaphore(LOOKED_UP_AT_ONCE)):
            if (refusal := guesses.refusal_unseen(principal)) is not None:
                return refusal
            try:
                row = await in_thread(self._contexts.table.get, hash_of(session_id))
            except StoreError:
                return _unavailable(UNDECIDED)
            # Of another principal there is none.
            owner = principal_of(scope) or NOBODY
            if row is None or row.kind != SESSION or row.principal != owner:
                return guesses.refusal(principal, session_not_found())
        return row

    async def _answered_by(
        self, home: str, reason: Reason, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> bool:
        """Relay a request, and return whether it has an answer; otherwise it has not run."""
        address = self._replicas.address_of(home)
        if address is None:
            return False
        asked = _request_id(body)
        ending = b""
        if asked is not None:
            scope.get(ASKED_KEY, []).append(asked)
            ending = last_event(asked, _lost(reason))
        outcome = await self._relay.send(home, address, scope, body, receive, send, ending=ending)
        self._counts.relays[reason, outcome] += 1
        if outcome is RelayEnd.UNREACHABLE:
            self._replicas.suspect(home)
        elif outcome is RelayEnd.REFUSED:
            self._replicas.refused = home
        elif outcome is RelayEnd.BROKEN:
            # A client does not repeat a request after an error with status 200.
            frame = error_reply(asked, INTERNAL_ERROR, _lost(reason))
            await Response(frame, media_type=JSON_TYPE)(scope, receive, send)
        return outcome in (RelayEnd.ANSWERED, RelayEnd.CUT, RelayEnd.BROKEN)

    async def _adopt(self, session_id: str, row: ContextRow, scope: Scope) -> bool:
        """Become the home of a session; return False if that cannot be, or another replica was faster."""
        if self._replicas.lack is not None or self._drain.stopping:
            return False
        if not self._app.sessions.make_room(rights_of(scope).person):
            return False
        table, name = self._contexts.table, self._replicas.name
        try:
            if not await in_thread(table.adopt, row.id_hash, row.epoch, name):
                return False
        except StoreError:
            return False
        try:
            state, _ = decoded(row.state)
            hello = hello_of(row.hello)
        except msgspec.DecodeError:
            logger.warning("a session cannot be adopted, because its row is damaged")
            return False
        rights = self._app.gateway.profiles.of_client(
            rights_of(scope), None if hello is None else hello.client_info
        )
        session = Session(id=state.id, principal=principal_of(scope), rights=rights, hello=hello)
        self._app.sessions.open_as(session_id, session, principal_of(scope))
        self._contexts.adopted(session, row)
        for uri in state.subscriptions:
            session.subscriptions.add(uri)
            self._resources.watches.add(session, uri)
        self._moved.pop(session_id, None)
        self._counts.adoptions += 1
        logger.info("adopted a session of replica %s", row.home or session_id.rpartition(".")[0])
        return True


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Return the body of a request, which is there as one message; only a POST has any."""
    message = await receive()
    return message.get("body", b"") if scope["method"] == "POST" else b""


def _made_before(body: bytes) -> str:
    """Return the id of the waiting call that a request answers, of its task, or of the result it reads."""
    if not any(word in body for word in (b'"requestState"', b'"taskId"', READ_RESULT.encode())):
        return ""
    try:
        params = _request(body).params or _Params()
        for made in (params.requestState, params.taskId):
            if isinstance(made, str):
                return made
        given = _call(_object(params.arguments)) if params.name != READ_RESULT else params
        return _reading(_object(given.arguments)).id if given.name == READ_RESULT else ""
    except msgspec.DecodeError:
        return ""


def _object(arguments: msgspec.Raw) -> bytes:
    """Return arguments as an object; some clients write it into a text."""
    given = bytes(arguments)
    return msgspec.json.decode(given, type=str).encode() if given.startswith(b'"') else given


def _request_id(body: bytes) -> RequestId | None:
    try:
        return _request(body).id
    except msgspec.DecodeError:
        return None


def _unavailable(text: str, code: int = INTERNAL_ERROR) -> Response:
    response = error_response(HTTPStatus.SERVICE_UNAVAILABLE, None, text, code)
    response.headers["Retry-After"] = "1"
    return response


def _lost(reason: Reason) -> str:
    """Return the message to a client whose relay has broken off."""
    return MAY_HAVE_RUN.format("call" if reason is Reason.CALL else "session")


UPKEEP_SECONDS = 30.0
"""Time between two notes of the contexts that are in use, with which idle ones are forgotten."""

_UNSUITED = re.compile(r"[^A-Za-z0-9_-]+")


class Member:
    """The parts of a cluster in this process."""

    def __init__(
        self,
        *,
        config: Config,
        store: Store,
        port: int,
        gateway: Gateway,
        handles: Handles,
        pending_input: PendingInput,
        changes: ChangeNotifier,
        fleet: Fleet,
        records: RequestRecords,
        results: KeptResults,
    ) -> None:
        """Prepare to join; the front of this replica is at `port`.

        Raises `ConfigError` if there is no database that replicas could share, or no key.
        """
        from mcp_context_proxy.store.postgres import PostgresDatabase  # noqa: PLC0415 - an extra

        settings = config.cluster
        if not isinstance(store.database, PostgresDatabase):
            message = "needs store.url, the database that all replicas share"
            raise ConfigError([ConfigProblem(config.path, None, "cluster.enabled", message)])
        keys = keys_of(settings)
        # It may be in a file of its own, and then the configuration does not have it.
        fleet.known.know_own(("cluster.key", keys[0].decode("utf-8", "replace")))
        fallback = _UNSUITED.sub("-", config.store.replica or "") or secrets.token_hex(6)
        self.name = settings.replica or fallback
        self.address = settings.advertise or f"http://{_own_host(config.http.host)}:{port}"
        self._gateway, self._idle_seconds = gateway, config.limits.session_idle_seconds
        self.counts = ClusterCounts(does_upkeep=store.database.does_upkeep)
        replicas_table, self._table, left = tables_of(store.database)
        self._left = LeftResults(left, Seal(keys), results)
        self.replicas = Replicas(
            replicas_table,
            name=self.name,
            instance=store.database.writer,
            address=self.address,
            keys=keys,
            heartbeat_seconds=settings.heartbeat_seconds,
            counts=self.counts,
        )
        self.contexts = SharedContexts(self._table, handles, self.name, self.counts)
        self._signer = Signer(keys, self.name, self.replicas.now)
        self._relay = Relay(self._signer)
        self._hints, self._changes, self._fleet = store.database.hints, changes, fleet
        self._stored = StoredRequests(records)
        self._ended = gateway.ended_calls
        pending_input.prefix = results.prefix = gateway.tasks.prefix = f"{self.name}."
        results.listed_for_all = bool(config.results.max_tokens)
        gateway.sharing = self.contexts
        self.replicas.on_drain = self._drain
        self.replicas.after_beat = self._after_beat

    @property
    def host(self) -> str:
        """The Host under which other replicas send relays here."""
        return urlsplit(self.address).netloc.lower()

    def homes(self, app: StreamableHttp, streams: EventStreams) -> tuple[ASGIApp, ASGIApp]:
        """Return the applications before the endpoint, and before that of messages for event streams."""
        made = Homes(
            app,
            streams,
            replicas=self.replicas,
            contexts=self.contexts,
            signer=self._signer,
            relay=self._relay,
            counts=self.counts,
        )
        return made, made.message

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be a member meanwhile; afterwards the sessions of this replica have no home."""
        announcements = Announcements(self._hints, self._changes, self._fleet)
        self._ended.elsewhere = self._stored.ask
        try:
            await self.replicas.join()
            parts = self.replicas.run, self.contexts.run, self._relay.run, self._stored.run, self._keep_up
            async with alongside(*parts):
                yield
        finally:
            announcements.close()
            self._ended.elsewhere = None
            with anyio.CancelScope(shield=True):
                await self.contexts.flush()
                await self._left.leave()
                await self.replicas.leave()

    async def _after_beat(self) -> None:
        self._relay.give_up(self.replicas.is_there)
        await self.contexts.lose_adopted()

    def _drain(self) -> None:
        self._gateway.drain.leaving = True

    async def _keep_up(self) -> None:
        while True:
            await anyio.sleep(min(UPKEEP_SECONDS, self._idle_seconds / 4))
            await self.contexts.keep_up(self._idle_seconds)
            await self._left.forget_old(self._idle_seconds)


def _own_host(host: str) -> str:
    """Return a name of this machine for the other replicas, if the front listens on all of its addresses."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostbyname(socket.gethostname())
    return f"[{host}]" if ":" in host else host
