"""The replicas that are there, as this one knows them, and requests that are passed on to them.

A relay is signed with the key of the cluster, for one receiver, one moment and one request. The receiver
takes each once, and checks the client's own token again. It is never passed on a second time.

While the database is away, those that were known last stay known: whether one of them is still there, its
address tells.

What a server has announced to one replica, the others hear as a hint. It may be lost and decides nothing: one
about a list has the others list again; one about a resource is passed to their clients, unless the server has
just announced the same there.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, StrEnum, auto
from http import HTTPStatus
from math import inf
from typing import Final

import anyio
import anyio.lowlevel
import httpx2
import msgspec
from msgspec import Struct, field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mcp_context_proxy import __version__
from mcp_context_proxy.cluster import ReplicaRow, ReplicaTable
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.front.streamable_http import STREAM_TYPE
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.store.credentials import mark_of
from mcp_context_proxy.store.postgres import ChangeHints
from mcp_context_proxy.system.threads import in_thread, keep_latest

logger = logging.getLogger(__name__)

RELAY_HEADER: Final = b"x-mcp-relay"
"""Header of a relay: version, sender, receiver, time, number and signature. In an answer it says that the
receiver is not the home, and that nothing has run."""

NOT_HERE: Final = b"not-here"

VERSION: Final = "1"

CLOCK_SECONDS: Final = 30.0
"""Time for which a relay is valid, by the clock of the database as its two replicas know it."""

CONNECT_SECONDS: Final = 1.0
"""Time to connect to a replica, which is near; one that takes longer counts as gone."""

_TIMEOUTS: Final = {"timeout": {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}}

KEPT_ALIVE, KEPT_ALIVE_SECONDS = 256, 5.0
"""Idle connections that are kept for the next relay, and the time for which one is kept: much shorter than
that of the other side, since nobody knows whether a request was read on a connection that is being closed."""

RELAYS_OPEN: Final = 1024
"""Connections to all replicas together: as many as one front has."""

SEEN_MOST: Final = 200_000
"""Numbers of relays that are remembered until they are not valid any more; beyond it, relays are refused."""

_OF_ONE_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"content-length",
        b"te",
        b"trailer",
        b"upgrade",
        b"proxy-authorization",
        b"host",
        b"origin",
        b"date",
        RELAY_HEADER,
    }
)
"""Headers of one connection; the Host and Origin were checked by the replica that the client has reached."""

_STREAM: Final = re.compile(rb"(?:^|&)(session_id=[A-Za-z0-9_.-]+)(?:&|$)")


class RelayEnd(Enum):
    """Ends of a relay."""

    ANSWERED = auto()
    """The client has the home's answer."""
    UNREACHABLE = auto()
    """There was no connection; nothing has run."""
    NOT_HERE = auto()
    """The receiver is not the home, or not any more; nothing has run."""
    REFUSED = auto()
    """The receiver does not accept the signature; nothing has run."""
    BROKEN = auto()
    """The connection was lost before there was any answer; it may have run."""
    CUT = auto()
    """The connection was lost in the middle of the answer."""


class Reason(StrEnum):
    """Reasons for a relay."""

    SESSION = "session"
    """A request of a session."""
    REPLY = "reply"
    """The client's reply to a question that was asked within a session."""
    CALL = "call"
    """The answer that a parked call waits for."""


class ClusterCounts(Struct, eq=False):
    """Counts for metrics; the event loop writes them."""

    relays: Counter[tuple[Reason, RelayEnd]] = field(default_factory=Counter)
    """Relays that this replica has sent."""
    relays_refused: int = 0
    """Relays to this replica that were not signed for it."""
    adoptions: int = 0
    """Sessions that this replica has taken over."""
    sessions_lost: int = 0
    """Sessions of this replica that another one has taken over."""
    replicas_lost: int = 0
    """Replicas that were there and gave no sign of life, or could not be reached."""
    stale: int = 0
    """Contexts that another replica had changed since they were last read here."""
    sessions: Callable[[], int] = int
    """Returns the number of sessions that are at home here."""
    replicas: Callable[[], int] = int
    """Returns the number of replicas that are there, this one among them."""
    does_upkeep: Callable[[], bool] = bool
    """Returns whether this replica deletes old rows and sums up statistics."""


class Signer:
    """Signs relays of this replica, and checks those of others."""

    def __init__(self, keys: Sequence[bytes], name: str, clock: Callable[[], float]) -> None:
        """Sign with the first of the keys, and accept messages signed with any of them."""
        self._keys, self._name, self._clock = keys, name, clock
        self._seen: OrderedDict[str, float] = OrderedDict()

    def sign(self, receiver: str, scope: Scope, body: bytes) -> bytes:
        """Return the value of the header of a relay."""
        said = f"{VERSION} {self._name} {receiver} {self._clock():.3f} {secrets.token_hex(12)}"
        return f"{said} {_signature(self._keys[0], said, scope, body)}".encode()

    def is_valid(self, value: bytes, scope: Scope, body: bytes) -> bool:
        """Return whether a header was made by a replica for this request, and comes for the first time."""
        parts = value.decode("latin-1").split(" ")
        if len(parts) != 6 or parts[0] != VERSION or parts[2] != self._name:
            return False
        said, number = " ".join(parts[:5]), parts[4]
        given = parts[5].encode("latin-1")
        made = [_signature(key, said, scope, body).encode() for key in self._keys]
        # Each is compared, so that the time tells nothing.
        if sum(hmac.compare_digest(each, given) for each in made) == 0:
            return False
        now = self._clock()
        # Signed by a replica, so it is a number.
        if abs(now - float(parts[3])) > CLOCK_SECONDS or number in self._seen:
            return False
        while self._seen and next(iter(self._seen.values())) < now - 2 * CLOCK_SECONDS:
            self._seen.popitem(last=False)
        if len(self._seen) >= SEEN_MOST:
            return False
        self._seen[number] = now
        return True


def _signature(key: bytes, said: str, scope: Scope, body: bytes) -> str:
    sent = dict(scope["headers"])
    parts = (
        said.encode(),
        scope["method"].encode(),
        scope["path"].encode(),
        scope["query_string"],
        sent.get(b"mcp-session-id", b""),
        hashlib.sha256(sent.get(b"authorization", b"")).digest(),
        hashlib.sha256(body).digest(),
    )
    signed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, signed, hashlib.sha256).hex()


class Relay:
    """Passes requests on to other replicas, and their answers back."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._transport: httpx2.AsyncHTTPTransport | None = None
        self._under_way: dict[anyio.CancelScope, str] = {}
        """Receiver of each relay under way."""

    async def run(self) -> None:
        """Keep connections open until cancelled."""
        try:
            await anyio.sleep_forever()
        finally:
            transport, self._transport = self._transport, None
            if transport is not None:
                with anyio.CancelScope(shield=True):
                    await transport.aclose()

    def give_up(self, is_there: Callable[[str], bool]) -> None:
        """Break off requests to receivers that are gone: a lost machine closes no connection."""
        for scope, receiver in self._under_way.items():
            if not is_there(receiver):
                scope.cancel()

    @contextmanager
    def _while_there(self, receiver: str) -> Iterator[None]:
        with anyio.CancelScope() as scope:
            self._under_way[scope] = receiver
            try:
                yield
            finally:
                del self._under_way[scope]
        if scope.cancelled_caught:
            raise httpx2.ReadError("it gives no sign of life")

    async def send(
        self,
        receiver: str,
        address: str,
        scope: Scope,
        body: bytes,
        receive: Receive,
        send: Send,
        *,
        ending: bytes = b"",
    ) -> RelayEnd:
        """Pass a request on, and its answer back, unless there is none.

        A stream that breaks off ends with `ending`, which answers the request.
        """
        outcome = RelayEnd.BROKEN
        async with anyio.create_task_group() as group:

            async def leave_with_client() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(leave_with_client)
            outcome = await self._exchange(receiver, address, scope, body, send, ending)
            group.cancel_scope.cancel()
        return outcome

    async def _exchange(
        self, receiver: str, address: str, scope: Scope, body: bytes, send: Send, ending: bytes
    ) -> RelayEnd:
        if self._transport is None:
            limits = httpx2.Limits(
                max_connections=RELAYS_OPEN,
                max_keepalive_connections=KEPT_ALIVE,
                keepalive_expiry=KEPT_ALIVE_SECONDS,
            )
            # Without a client: its redirects, cookies and hooks cost more than the rest, and none is wanted.
            # The environment's proxies lead out of the cluster.
            self._transport = httpx2.AsyncHTTPTransport(limits=limits, trust_env=False)
        headers = [
            (name, value)
            for name, value in scope["headers"]
            if name not in _OF_ONE_HOP and not name.startswith(b"sec-fetch-")
        ]
        # Only the id of an event stream means anything. The rest of a query would reach the receiver in
        # another spelling than was signed, and this replica would take itself for one with another key.
        found = _STREAM.search(scope["query_string"])
        query = b"" if found is None else found[1]
        scope = {**scope, "query_string": query}
        headers.append((RELAY_HEADER, self._signer.sign(receiver, scope, body)))
        url = address + scope["path"] + (f"?{query.decode()}" if query else "")
        request = httpx2.Request(
            scope["method"], url, headers=headers, content=body or None, extensions=_TIMEOUTS
        )
        started = is_stream = False
        try:
            with self._while_there(receiver):
                response = await self._transport.handle_async_request(request)
                try:
                    if (said := response.headers.get(RELAY_HEADER.decode())) is not None:
                        return RelayEnd.NOT_HERE if said == NOT_HERE.decode() else RelayEnd.REFUSED
                    answered = [pair for pair in response.headers.raw if pair[0].lower() not in _OF_ONE_HOP]
                    length = response.headers.get("content-length")
                    if length is not None:
                        answered.append((b"content-length", length.encode()))
                    start = {
                        "type": "http.response.start",
                        "status": response.status_code,
                        "headers": answered,
                    }
                    await send(start)
                    started = True
                    is_stream = response.headers.get("content-type", "").startswith(STREAM_TYPE)
                    stream = response.stream
                    assert isinstance(stream, httpx2.AsyncByteStream)
                    async for piece in stream:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return RelayEnd.ANSWERED
                finally:
                    with anyio.CancelScope(shield=True):
                        await response.aclose()
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout):
            return RelayEnd.UNREACHABLE
        except httpx2.HTTPError as error:
            logger.debug("a relay to replica %s has broken off: %s", receiver, error)
            if is_stream:
                await send({"type": "http.response.body", "body": ending, "more_body": False})
            return RelayEnd.CUT if started else RelayEnd.BROKEN


def not_here() -> Response:
    """Return the answer to a relay to a replica that is not the home."""
    return Response(None, HTTPStatus.MISDIRECTED_REQUEST, {RELAY_HEADER.decode(): NOT_HERE.decode()})


def refused() -> Response:
    """Return the answer to a relay that is not accepted."""
    return Response(None, HTTPStatus.FORBIDDEN, {RELAY_HEADER.decode(): "refused"})


BEATS_MISSED: Final = 3
"""Signs of life after which a replica counts as gone, if all of them are missing."""

LOOK_SECONDS: Final = 0.1
"""Time between two looks for a replica that is not known."""

SAME_SECONDS: Final = 2.0
"""Time after an announcement of a server here in which that of another replica is taken for the same one."""

ANNOUNCED_KEPT: Final = 1024
"""Resources whose latest announcement is remembered."""


class Replicas:
    """This replica among the others."""

    def __init__(
        self,
        table: ReplicaTable,
        *,
        name: str,
        instance: str,
        address: str,
        keys: Sequence[bytes],
        heartbeat_seconds: float,
        counts: ClusterCounts,
    ) -> None:
        """Know nobody yet; `address` is where the others reach this one, and its own key is the first."""
        self._table, self.name, self._seconds = table, name, heartbeat_seconds
        mark, *others = map(mark_of, keys)
        self._own = ReplicaRow(name, instance, address, mark, __version__, 0.0, 0.0, 0)
        self._marks = frozenset((mark, *others))
        self._alive: dict[str, ReplicaRow] = {}
        self._counts = counts
        counts.replicas = lambda: len(self._alive.keys() - self._suspects)
        self._suspects: set[str] = set()
        self._known: set[str] = set()
        """Names of all that are in the database, also of those that are gone."""
        self._looking, self._looked = anyio.Lock(), -LOOK_SECONDS
        self._problem: str | None = None
        self.refused: str | None = None
        """The replica that has refused a relay of this one, if any did lately."""
        self._ahead = time.time() - time.monotonic()
        self._since: float | None = None
        """Time since which the others have been followed without a gap; None while the database is away."""
        self.on_drain: Callable[[], None] = lambda: None
        """Called when a person wants this replica to be drained."""
        self.after_beat: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        """Called after each sign of life."""

    @property
    def lack(self) -> str | None:
        """The reason why this replica should not serve; None if there is none."""
        if self._problem is not None:
            return self._problem
        if self.refused is not None:
            return "another replica has refused a relay of this one: cluster.key differs"
        return None

    def now(self) -> float:
        """Return the time by the clock of the database: that of a replica may be wrong, or jump."""
        return time.monotonic() + self._ahead

    def is_there(self, replica: str) -> bool:
        """Return whether a replica gives signs of life, even if it is too busy to be connected to."""
        return replica in self._alive

    def address_of(self, replica: str) -> str | None:
        """Return the address of another replica that is alive, as far as that is known; None otherwise."""
        row = self._alive.get(replica)
        return None if row is None or replica in self._suspects or replica == self.name else row.address

    def suspect(self, replica: str) -> None:
        """Note that a replica could not be reached: it counts as gone until its next sign of life.

        While the database is away, which has those signs, that is until this one would have given its own.
        """
        if replica not in self._suspects:
            self._suspects.add(replica)
            self._counts.replicas_lost += 1

    async def look_for(self, replica: str) -> None:
        """Look whether a replica that is not known has joined since the last sign of life.

        Those who ask at the same moment look together, so that made-up names cost few looks.
        """
        if not replica or replica in self._known:
            return
        asked = anyio.current_time()
        async with self._looking:
            if self._looked < asked:
                await anyio.sleep_until(self._looked + LOOK_SECONDS)
                self._looked = anyio.current_time()
                await self._beat(at_start=not self._own.started)

    async def join(self) -> None:
        """Give the first sign of life, if the database can be reached."""
        await self._beat(at_start=True)

    async def run(self) -> None:
        """Give signs of life and follow those of the others, until cancelled."""
        while True:
            await anyio.sleep(self._seconds)
            await self._beat(at_start=not self._own.started)
            await self.after_beat()

    async def leave(self) -> None:
        """Tell that this replica is gone; its sessions have no home from now on."""
        try:
            await in_thread(self._table.leave, self.name, self._own.instance)
        except StoreError as error:
            logger.warning("the other replicas cannot be told that this one leaves: %s", error)

    async def _beat(self, *, at_start: bool) -> None:
        try:
            beat = self._table.beat
            now, rows = await in_thread(lambda: beat(self._own, at_start=at_start))
        except StoreError as error:
            logger.debug("no sign of life: %s", error)
            # Nor is there any of the others, so each is tried again.
            self._suspects.clear()
            self._since = None
            return
        self._ahead = now - time.monotonic()
        self._since = now if self._since is None else self._since
        before, self._alive = self._alive, {}
        self._known = {row.replica for row in rows}
        for row in rows:
            # Nobody could give a sign of life while the database was away, and who was there may be still.
            seen = max(row.seen, self._since) if row.replica in before else row.seen
            if now - seen < BEATS_MISSED * self._seconds:
                self._alive[row.replica] = row
                last = before.get(row.replica)
                if last is None or last.seen != row.seen:
                    self._suspects.discard(row.replica)
            elif row.replica in before and row.replica not in self._suspects:
                self._counts.replicas_lost += 1
        own = self._alive.get(self.name)
        self._problem = self._problem_in(own)
        if own is not None and own.instance == self._own.instance:
            self._own = own
            if own.draining:
                self.on_drain()

    def _problem_in(self, own: ReplicaRow | None) -> str | None:
        if own is not None and own.instance != self._own.instance:
            return "another process has the name of this replica (cluster.replica)"
        marks = Counter(row.key_mark for row in self._alive.values())
        # Of equally many, the key of those that started first is the right one.
        if marks and max(marks, key=marks.__getitem__) not in self._marks:
            return "cluster.key is not that of the other replicas"
        self.refused = None
        return None


class _Hint(Struct, array_like=True):
    server: str
    uri: str | None = None


_encode, _decode = msgspec.json.encode, msgspec.json.Decoder(_Hint).decode


class Announcements:
    """Tells and hears the announcements of servers."""

    def __init__(self, hints: ChangeHints, changes: ChangeNotifier, fleet: Fleet) -> None:
        """Connect `changes` with the hints; call within the event loop."""
        self._hints, self._changes, self._fleet = hints, changes, fleet
        self._announced: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._loop, self._begun = asyncio.get_running_loop(), False
        changes.elsewhere = self._announce
        hints.heard = self._receive

    def close(self) -> None:
        """Tell and hear nothing any more."""
        self._changes.elsewhere = self._hints.heard = None

    def _announce(self, server: str, method: str, uri: str | None) -> None:
        if uri is None:
            if method.endswith("/list_changed"):
                self._hints.tell(_encode(_Hint(server)).decode())
            return
        keep_latest(self._announced, (server, uri), self._loop.time(), ANNOUNCED_KEPT)
        self._hints.tell(_encode(_Hint(server, uri)).decode())

    def _receive(self, message: str) -> None:
        """Take a message, in the thread of the hints."""
        try:
            self._loop.call_soon_threadsafe(self._take, message)
        except RuntimeError:
            logger.debug("a hint came when everything had ended")

    def _take(self, message: str) -> None:
        if not message:
            if self._begun:
                for each in self._fleet.clients.values():
                    each.lists.mark_stale()
            self._begun = True
            return
        try:
            hint = _decode(message)
        except msgspec.DecodeError:
            return
        client = self._fleet.clients.get(hint.server)
        if client is None:
            return
        if hint.uri is None:
            client.lists.mark_stale()
        elif self._loop.time() - self._announced.get((hint.server, hint.uri), -inf) >= SAME_SECONDS:
            self._changes.updated_elsewhere(hint.server, hint.uri)
