"""Everything that a server sends beside responses, and the log level and subscriptions that clients want.

A handshake-era server does not say which request of ours a message is about, so that is inferred: a change
notice goes to the lists, a log message to the sessions whose calls are pending, and a request of the server
to the one party whose calls are pending. If several parties have pending calls, the request is refused. A
server may also send one when the call that it is about has ended. So the persons of earlier calls count as
well: where others than the one with a pending call may be meant, its request is refused, too.

`Admission` decides which notifications go on at all, and how many: only those that clients know, that concern
something that a client asked for, and that are neither too large nor too many.

Subscriptions are sent again after a reconnect: to a handshake-era server as one request for each change. A
modern server has one subscription, to changes of its lists and of the watched resources, which cannot be
changed: a new one is opened, and the old one ends when the server has acknowledged it. Nothing is replayed to
a new subscription, so after the first one, and after a loss, all lists are fetched again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import anyio
from msgspec import Raw, Struct, field

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream import Link, Notify, Outgoing, Party
from mcp_context_proxy.downstream.connections import CLIENT_INFO, Connected
from mcp_context_proxy.downstream.jsonrpc import NOTIFICATION_BYTES, Peer
from mcp_context_proxy.errors import DownstreamError, RemoteError
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import METHOD_NOT_FOUND, Members, RequestError
from mcp_context_proxy.protocol.eras import (
    CAPABILITY_OF,
    URI_CHARACTERS,
    Era,
    client_capabilities,
    most_verbose,
)
from mcp_context_proxy.protocol.strangers import (
    NAME_CHARACTERS,
    clean,
    one_line,
    stranger_data,
    stranger_text,
    unmarked,
)
from mcp_context_proxy.system.process import Bucket
from mcp_context_proxy.system.threads import keep_latest
from mcp_context_proxy.trust import person_in

logger = logging.getLogger(__name__)

LOG_MESSAGE = "notifications/message"
PROGRESS = "notifications/progress"
RESOURCE_UPDATED = "notifications/resources/updated"
ELICITATION_COMPLETE = "notifications/elicitation/complete"

LOGS_PER_SECOND, LOGS_AT_ONCE = 100, 500
"""Log messages of one server that are passed on to clients; nobody reads more than that."""

COMPLETIONS_PER_SECOND, COMPLETIONS_AT_ONCE = 10, 100
"""Completed elicitations of one server that are passed on: each is something that a person has done."""

ELICITATIONS_KEPT = 1000
"""Elicitations of one server whose completion is awaited; beyond it the oldest is forgotten."""

ELICITATION_ID_CHARACTERS = 256
"""Longest id of an elicitation whose completion is passed on."""

DROPPED_SECONDS = 60.0
"""Time between two log lines about notifications that were not passed on."""

AFTERWARDS_SECONDS = 10.0
"""Time for which a request or a log message of a server may be about a call that has ended."""

NOTIFICATION_STRINGS = 1_000
"""Strings of a notification that is passed on: to clean one takes up to 0.01 ms, whatever its length."""

Route: TypeAlias = Callable[[str, Members, Sequence[Outgoing], Party | None], None]
"""Takes a notification with the pending requests of its connection, and its owner if it is not shared."""

OnEvent: TypeAlias = Callable[[str, str, Members, frozenset[Party]], None]
"""Takes a notification: server, method, params, and the parties concerned, which may be none."""


def party_of(in_flight: Iterable[Outgoing]) -> Party | None:
    """Return the one party with pending requests; None when there is none, or several."""
    parties = {outgoing.party for outgoing in in_flight if outgoing.party is not None}
    return parties.pop() if len(parties) == 1 else None


def others_before(link: Link, party: Party | None) -> frozenset[Party]:
    """Return a party for each person whose call on a connection has just ended, and whom a party may not see.

    A message of the server may be about these calls.
    """
    if party is None or party.sees_all:
        return frozenset()
    person = person_in(party.principal)
    callers = link.earlier_callers(AFTERWARDS_SECONDS)
    return frozenset(Party(principal) for principal in callers if person_in(principal) != person)


async def answer(peer: Peer, method: str, params: Members, owner: Outgoing | None) -> bytes:
    """Answer a request of a server by asking the one party whose call it belongs to.

    `owner` is the latest request on a connection that serves one party alone; None on a shared one. Raises
    `RequestError` if the client refuses, or it is not known which client to ask.
    """
    if method == "ping":
        return b"{}"
    in_flight = [sent for sent in peer.in_flight if sent.party is not None]
    party = party_of(in_flight)
    latest = in_flight[-1] if in_flight else owner
    if latest is None or (in_flight and party is None):
        if method == "roots/list" and latest is None:
            # On connecting, before there is any client: the proxy itself has none.
            return b'{"roots":[]}'
        clients = len({sent.party for sent in in_flight})
        text = f"{method} cannot be passed on: calls of {clients} clients are under way"
        raise RequestError(METHOD_NOT_FOUND, text)
    if owner is None and others_before(peer, party):
        text = f"{method} cannot be passed on: it may be about a call of another person that has just ended"
        raise RequestError(METHOD_NOT_FOUND, text)
    if latest.ask is None:
        raise RequestError(METHOD_NOT_FOUND, f"the client does not support {method}")
    with peer.held(party):
        return await latest.ask(method, params)


def capabilities_to_ask(outgoing: Outgoing) -> set[str]:
    """Return the capabilities by which the client of a request can be asked for something."""
    return {*client_capabilities(outgoing.capabilities)}


class Isolation:
    """Decides which requests to a handshake-era server need a connection of their own.

    With ``isolation = "auto"`` all sessions share one connection until the server makes a request of a
    client. From then on, the session it asked keeps the shared connection, and the others that can be asked
    the same get dedicated ones. Once a call has failed because its client could not be asked, so do such
    clients: the shared connection declares every capability, and a server may well do without one that a
    client lacks.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._asked: set[str] = set()
        """Capabilities that the server has made use of."""
        self._unsupported: set[str] = set()
        """Those of them that the client of a failed call did not support."""
        self.keeper: Party | None = None
        """The session that keeps the shared connection as its own."""
        self.configure(config)

    def configure(self, config: ServerConfig) -> None:
        self._mode = config.isolation
        self._note_need()

    def _note_need(self) -> None:
        self.may_be_needed = self._mode == "session" or (self._mode == "auto" and bool(self._asked))
        """False while every request goes over the shared connection."""

    def note_asked(self, method: str, party: Party | None, calls: Sequence[Outgoing]) -> bool:
        """Note that the server made a request over the shared connection, on behalf of `party` if known.

        A session that is identified this way keeps the connection, and with it the state that the server
        holds for the session; the others get connections of their own. Returns True if none of the clients
        whose `calls` are under way can be asked.
        """
        if self._mode != "auto":
            return False
        capability = CAPABILITY_OF[method]
        unsupported = bool(calls) and all(capability not in capabilities_to_ask(call) for call in calls)
        if unsupported:
            for call in calls:
                call.lacked = capability
        elif self.keeper is None and party is not None and party.lasting:
            self.keeper = party
        self._asked.add(capability)
        self._note_need()
        return unsupported

    def note_failed(self, outgoing: Outgoing) -> None:
        """Note that a request has failed: for want of a capability, if its client was asked in vain."""
        if outgoing.lacked is not None:
            self._unsupported.add(outgoing.lacked)

    def needed_by(self, outgoing: Outgoing) -> bool:
        """Return whether a request must not go over the shared connection."""
        party = outgoing.party
        if party is None or self._mode == "shared":
            return False
        if self._mode == "session":
            return True
        if party is self.keeper:
            return False
        able = capabilities_to_ask(outgoing)
        return self.keeper is not None or not (self._asked.isdisjoint(able) and self._unsupported <= able)


_BEGIN = {"progress": b"-0123456789", "total": b"-0123456789", "message": b'"', "statusMessage": b'"'}
"""First bytes of params of the kind that hosts demand: some do not read on after another one."""
_EXACT = {RESOURCE_UPDATED: "uri", ELICITATION_COMPLETE: eras.ELICITATION_ID}
"""Params that a client compares with its own: they are never changed, and taken only as it has them."""


def shown_params(server: str, method: str, params: Members, redact: Redactor) -> Members:
    """Return the params of a notification as people and models may read them, names of members included.

    The logger of a message begins with the name of its server, so that no server can speak for another one,
    and of ``_meta`` only what is the server's own goes on (`eras.own_words`).
    """
    shown = {
        stranger_text(name, redact, NAME_CHARACTERS): Raw(
            bytes(value) if name == _EXACT.get(method) else stranger_data(bytes(value), redact.json)
        )
        for name, value in params.items()
        if envelope.misread((clean(name),)) is None
    }
    # A number that is too large has become words.
    shown = {
        name: value for name, value in shown.items() if bytes(value)[:1] in _BEGIN.get(name, bytes(value))
    }
    # Cleaned first: a key is what it is for its reader.
    if meta := eras.own_words(envelope.object_of(shown.pop("_meta", None))):
        shown["_meta"] = envelope.raw(meta)
    if method == LOG_MESSAGE:
        own = one_line(envelope.text(shown.get("logger")) or "", NAME_CHARACTERS)
        shown["logger"] = envelope.raw(f"{server}/{own}" if own else server)
    return shown


def waiting_facts(seconds: float, standing: str) -> Members:
    """Return the params of progress, without the token, of a request that waits for servers.

    Progress has to grow, and that of the server begins at 0 or 1: a second of waiting counts a thousandth.
    """
    message = f"waiting for servers ({standing})"
    return {"progress": envelope.raw(round(seconds / 1000, 6)), "message": envelope.raw(message)}


class Admission:
    """Bounds on the notifications of one server, over all its connections."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._logs = Bucket(LOGS_PER_SECOND, LOGS_AT_ONCE)
        self._completions = Bucket(COMPLETIONS_PER_SECOND, COMPLETIONS_AT_ONCE)
        self._elicitations: OrderedDict[str, Party] = OrderedDict()
        """Parties that were asked to visit a URL, by the id of the elicitation, oldest first."""
        self._dropped, self._told = 0, -DROPPED_SECONDS

    def admits(self, method: str, params: Members) -> bool:
        """Return whether a notification is small enough, and not one too many."""
        size, quotes = sum(map(len, params.values())), 2 * NOTIFICATION_STRINGS
        if size > NOTIFICATION_BYTES:
            return self._drop(method, f"over {NOTIFICATION_BYTES:,} bytes")
        if size > quotes and sum(bytes(raw).count(b'"') for raw in params.values()) > quotes:
            return self._drop(method, f"over {NOTIFICATION_STRINGS:,} strings")
        if method == LOG_MESSAGE and not self._logs.take():
            return self._drop(method, f"more than {LOGS_PER_SECOND} a second")
        if method == RESOURCE_UPDATED:
            # Clients compare it, so it is not changed.
            uri = envelope.text(params.get("uri")) or ""
            if not uri.isprintable() or unmarked(clean(uri)) != uri:
                return self._drop(method, "its uri hides something")
        return True

    def expect_completion(self, elicitation_id: str | None, party: Party | None) -> None:
        """Note that a session was asked to visit a URL; the server may tell it when that is done."""
        if elicitation_id is None or len(elicitation_id) > ELICITATION_ID_CHARACTERS:
            return
        # The modern era has no notification for the request that it was asked in.
        if party is not None and party.lasting:
            keep_latest(self._elicitations, elicitation_id, party, ELICITATIONS_KEPT)

    def expect_completions(self, data: object, party: Party | None) -> None:
        """Note the elicitations in the data of an error that sends a person to URLs."""
        if not isinstance(data, Raw) or len(data) > NOTIFICATION_BYTES:
            return
        entries = envelope.object_of(data).get("elicitations")
        for entry in entries if isinstance(entries, list) else ():
            given = entry.get(eras.ELICITATION_ID) if isinstance(entry, dict) else None
            self.expect_completion(given if isinstance(given, str) else None, party)

    def completed(self, params: Members) -> Party | None:
        """Return the session that waits for a completed elicitation, once; None if nobody does."""
        elicitation_id = envelope.text(params.get(eras.ELICITATION_ID))
        if elicitation_id is None or elicitation_id not in self._elicitations:
            return None
        if not self._completions.take():
            self._drop(ELICITATION_COMPLETE, f"more than {COMPLETIONS_PER_SECOND} a second")
            return None
        return self._elicitations.pop(elicitation_id)

    def end(self, party: Party) -> None:
        """Forget the elicitations of a session that has ended."""
        for elicitation_id in [each for each, asked in self._elicitations.items() if asked is party]:
            del self._elicitations[elicitation_id]

    def _drop(self, method: str, why: str) -> bool:
        """Count a notification that is not passed on, and say so once in a while; return False."""
        self._dropped += 1
        now = time.monotonic()
        if now - self._told >= DROPPED_SECONDS:
            count, self._dropped, self._told = self._dropped, 0, now
            text = "server %s: %d notifications were not passed on; the latest is a %s: %s"
            logger.warning(text, self._server, count, method, why)
        return False


CONFIRM_SECONDS = 2.0
"""Time for a server to confirm a subscription; then its client is answered anyway."""

WATCHED = 10_000
"""Resources of one server that clients may be subscribed to; further ones are refused."""

LIST_CHANGES: dict[str, Any] = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
}
"""Changes that a modern server is asked to announce, beside watched resources."""

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


class ClientSubscriptions:
    """The log level and the watched resources of one server, over all clients."""

    def __init__(self) -> None:
        self._level: str | None = None
        """The level that all sessions together need."""
        self._least_level: str | None = None
        """The most verbose level that a request has asked for."""
        self._wanted_level: str | None = None
        self._watchers: Counter[str] = Counter()
        self._sent: set[str] = set()
        """URIs that the handshake-era server was sent on this connection."""
        self._confirmed: set[str] | None = None
        """URIs that the server has responded to; None while no server can respond."""
        self._changed, self._responded = anyio.Event(), anyio.Event()

    @property
    def watched(self) -> frozenset[str]:
        """URIs of the resources that a client has subscribed to."""
        return frozenset(self._watchers)

    def has_room_for(self, uri: str) -> bool:
        """Return whether one more client can watch a resource."""
        return uri in self._watchers or (len(self._watchers) < WATCHED and len(uri) <= URI_CHARACTERS)

    def set_log_level(self, level: str | None) -> None:
        """Set the level that all sessions together need."""
        self._level = level
        self._wake()

    def include_log_level(self, level: str) -> None:
        """Never log less than this from now on: a request asked for it, and the next one may, too."""
        least = most_verbose((self._least_level, level))
        if least != self._least_level:
            self._least_level = least
            self._wake()

    def watch(self, uri: str, sent: bool = False) -> None:
        """Add a client to the watchers of a resource; `sent` if the server has been told already."""
        self._watchers[uri] += 1
        if sent:
            self._sent.add(uri)
            self._confirm([uri])
        if self._watchers[uri] == 1:
            self._wake()

    def unwatch(self, uri: str) -> None:
        """Remove a client from the watchers of a resource."""
        self._watchers[uri] -= 1
        if self._watchers[uri] <= 0:
            del self._watchers[uri]
            if self._confirmed is not None:
                self._confirmed.discard(uri)
            self._wake()

    def take_over(self, other: ClientSubscriptions) -> None:
        """Add everything that was requested of a predecessor."""
        self._level = other._level
        self._least_level = most_verbose((self._least_level, other._least_level))
        self._watchers.update(other._watchers)
        self._wake()

    async def wait_confirmed(self, uri: str) -> None:
        """Wait, for a bounded time, until the server has confirmed the subscription to a resource."""
        with anyio.move_on_after(CONFIRM_SECONDS):
            while self._confirmed is not None and uri in self._watchers and uri not in self._confirmed:
                await self._responded.wait()

    async def keep_sent(
        self,
        connected: Connected,
        limits: Limits,
        on_notification: Notify,
        mark_lists_stale: Callable[[], None],
    ) -> None:
        """Keep the server of a new connection informed, until cancelled.

        `on_notification` takes the notifications of a modern server's subscription, and `mark_lists_stale`
        is called when changes of the lists may have gone unnoticed.
        """
        self._confirmed = set()
        try:
            if connected.introduction.era is Era.MODERN:
                subscription = partial(_Subscription, connected, limits, on_notification, mark_lists_stale)
                await self._keep_subscribed(subscription, limits.probe_seconds)
            else:
                await self._keep_requesting(connected)
        finally:
            self._confirmed = None
            self._notify_waiting()

    async def _keep_requesting(self, connected: Connected) -> None:
        """Send a handshake-era server a request for each change."""

        async def send(method: str, member: str, value: str) -> None:
            try:
                await connected.link.request(method, {member: envelope.raw(value)}, Outgoing(subject=method))
            except DownstreamError as error:
                logger.debug("%s", error)

        sent_level, self._sent = None, set()
        while True:
            changed = self._changed
            level = self._wanted_level
            if level != sent_level and level is not None and connected.introduction.offers("logging"):
                sent_level = level
                await send("logging/setLevel", "level", level)
            for uri in self._sent - self.watched:
                self._sent.discard(uri)
                await send("resources/unsubscribe", "uri", uri)
            for uri in self.watched - self._sent:
                self._sent.add(uri)
                await send("resources/subscribe", "uri", uri)
                self._confirm([uri])
            await changed.wait()

    async def _keep_subscribed(
        self, subscription: Callable[[frozenset[str], bool], _Subscription], probe_seconds: float
    ) -> None:
        """Keep a modern server subscribed to, or return if it announces nothing."""
        old: _Subscription | None = None
        async with anyio.create_task_group() as group:
            while True:
                wanted = self.watched
                new = subscription(wanted, old is None)
                group.start_soon(new.listen)
                with anyio.move_on_after(probe_seconds):
                    await new.settled.wait()
                if old is not None:
                    old.scope.cancel()
                if new.refused:
                    return
                self._confirm(wanted)
                old = new
                while self.watched == wanted:
                    await self._changed.wait()

    def _confirm(self, uris: Iterable[str]) -> None:
        if self._confirmed is not None:
            self._confirmed.update(uris)
        self._notify_waiting()

    def _notify_waiting(self) -> None:
        self._responded.set()
        self._responded = anyio.Event()

    def _wake(self) -> None:
        self._wanted_level = most_verbose((self._level, self._least_level))
        self._changed.set()
        self._changed = anyio.Event()


class _Subscription(Struct, eq=False):
    """One subscription to a modern server."""

    connected: Connected
    limits: Limits
    on_notification: Notify
    mark_lists_stale: Callable[[], None]
    uris: frozenset[str]
    missed_changes: bool
    """True for the first subscription of a connection, and after a loss."""
    refused: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    settled: anyio.Event = field(default_factory=anyio.Event)
    """Set when the server has acknowledged or refused it."""

    async def listen(self) -> None:
        """Subscribe, and again after each loss, until cancelled or refused."""
        watched = {"resourceSubscriptions": sorted(self.uris)} if self.uris else {}
        params = {"notifications": envelope.raw(LIST_CHANGES | watched)}
        outgoing = Outgoing(
            subject="subscriptions/listen",
            timeout=float("inf"),
            client_info=envelope.raw(CLIENT_INFO),
            on_notification=self._take,
        )
        link = self.connected.link
        with self.scope:
            while True:
                try:
                    await link.request("subscriptions/listen", params, outgoing)
                except RemoteError as error:
                    logger.debug("server %s does not announce changes: %s", link.server, error)
                    self.refused = True
                    break
                except DownstreamError as error:
                    logger.debug("server %s: subscription lost: %s", link.server, error)
                self.missed_changes = True
                await anyio.sleep(self.limits.backoff_first_seconds)
        self.settled.set()

    def _take(self, method: str, params: Members) -> None:
        if method != ACKNOWLEDGED:
            self.on_notification(method, params)
            return
        self.settled.set()
        if self.missed_changes:
            self.mark_lists_stale()
