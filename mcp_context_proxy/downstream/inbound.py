"""Messages that a server sends on its own accord: notifications, and requests that a client must answer.

A handshake-era server does not say which request of ours a message is about, so that is inferred: a change
notice goes to the lists, a log message to the sessions whose calls are pending, and a request of the server
to the one party whose calls are pending. If several parties have pending calls, the request is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.backpressure import Bucket
from mcp_context_proxy.downstream.era_negotiation import SHARED_CAPABILITIES
from mcp_context_proxy.downstream.jsonrpc import Peer
from mcp_context_proxy.downstream.link import Notify, Outgoing, Party
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Members,
    RequestError,
    RequestId,
)

CAPABILITY_OF = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
"""Requests that a server may make of a client, and the capability that the client must have declared."""

CANCELLED = "notifications/cancelled"
LOG_MESSAGE = "notifications/message"

OPEN_REQUESTS = 64
"""Requests of one server that may be open at a time; further ones are refused."""

LOGS_PER_SECOND, LOGS_AT_ONCE = 100, 500
"""Log messages of one server that are passed on to clients; nobody reads more than that."""

Answer: TypeAlias = Callable[[Peer, str, Members], Awaitable[bytes]]
"""Answers a request that the server makes over a peer; raises `RequestError` to refuse."""

OnEvent: TypeAlias = Callable[[str, Members, frozenset[Party]], None]
"""Takes a notification of a server: method, params, and the parties concerned, which may be none."""


@dataclass(frozen=True, slots=True)
class Inbound:
    """Handlers of the messages that come over one connection, and the capabilities declared on it."""

    on_notification: Notify
    answer: Answer
    capabilities: Mapping[str, Any] = field(default_factory=lambda: SHARED_CAPABILITIES)
    """Declared in the handshake; the modern era declares with each request."""


class ServerRequests:
    """The open requests that one server has made on one connection, each answered in a task of its own."""

    def __init__(self, group: TaskGroup, answer: Answer, seconds: float) -> None:
        """Answer in tasks of `group`, each request within `seconds`."""
        self._group, self._answer, self._seconds = group, answer, seconds
        self._open: dict[RequestId, anyio.CancelScope] = {}
        self._all_answered = anyio.Event()
        self.taken = 0
        """Requests accepted so far."""

    async def wait_all_answered(self) -> None:
        """Wait until no request is open."""
        while self._open:
            self._all_answered = anyio.Event()
            await self._all_answered.wait()

    def take(self, peer: Peer, request_id: RequestId, method: str, params: Members) -> None:
        """Answer a request that came over `peer`."""
        if request_id in self._open or len(self._open) >= OPEN_REQUESTS:
            peer.refuse_nowait(request_id, INVALID_REQUEST, "too many requests are open")
            return
        self.taken += 1
        self._open[request_id] = anyio.CancelScope()
        self._group.start_soon(self._reply, peer, request_id, method, params)

    def cancel(self, params: Members) -> None:
        """Stop answering the request that the server cancelled; no response is sent."""
        target = envelope.value(params["requestId"]) if "requestId" in params else None
        scope = self._open.get(target) if isinstance(target, int | str) else None
        if scope is not None:
            scope.cancel()

    async def _reply(self, peer: Peer, request_id: RequestId, method: str, params: Members) -> None:
        try:
            with self._open[request_id]:
                try:
                    with anyio.fail_after(self._seconds):
                        result = await self._answer(peer, method, params)
                    await peer.answer(request_id, result)
                except RequestError as error:
                    await peer.refuse(request_id, error.code, error.message, error.data)
                except TimeoutError:
                    text = f"the client did not answer {method} within {self._seconds:g} s"
                    await peer.refuse(request_id, INTERNAL_ERROR, text)
        finally:
            del self._open[request_id]
            if not self._open:
                self._all_answered.set()


def party_of(in_flight: Iterable[Outgoing]) -> Party | None:
    """Return the one party with pending requests; None when there is none, or several."""
    parties = {outgoing.party for outgoing in in_flight if outgoing.party is not None}
    return parties.pop() if len(parties) == 1 else None


async def answer(peer: Peer, method: str, params: Members, owner: Outgoing | None) -> bytes:
    """Answer a request of a server by asking the one party whose call it belongs to.

    Args:
        peer: The peer over which the server made the request.
        method: Method of the server's request.
        params: Params of the server's request.
        owner: The latest request on a connection that serves one party alone; None on a shared one.

    Raises:
        RequestError: the client refuses, or it is not known which client to ask.
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
    if latest.ask is None:
        raise RequestError(METHOD_NOT_FOUND, f"the client does not support {method}")
    with peer.held(party):
        return await latest.ask(method, params)


def redacted_params(params: Members, redact: Redactor) -> Members:
    """Return the params of a notification without secrets: log messages and progress are read by people."""
    return {name: Raw(redact.json(bytes(raw))) for name, raw in params.items()}


class ServerNotifications:
    """Routes the notifications of one server, over all its connections."""

    def __init__(
        self, take_change_notice: Callable[[str], bool], redact: Redactor, on_event: OnEvent | None
    ) -> None:
        """Prepare to route.

        Args:
            take_change_notice: Takes a method; returns True if it says that a list has changed.
            redact: Removes secrets from log messages.
            on_event: Takes notifications that belong to no request, such as an updated resource.
        """
        self._take_change_notice, self._redact = take_change_notice, redact
        self._on_event = on_event or (lambda method, params, parties: None)
        self._logs = Bucket(LOGS_PER_SECOND, LOGS_AT_ONCE)

    def take(
        self, method: str, params: Members, in_flight: Sequence[Outgoing], owner: Party | None = None
    ) -> None:
        """Route a notification.

        Args:
            method: Method of the notification.
            params: Params of the notification.
            in_flight: Pending requests on the connection.
            owner: The party of a connection that is not shared.
        """
        if self._take_change_notice(method):
            return
        if owner is not None:
            parties = frozenset({owner})
        else:
            parties = frozenset(sent.party for sent in in_flight if sent.party is not None)
        if method == LOG_MESSAGE:
            if not self._logs.take():
                return
            params = redacted_params(params, self._redact)
            takers = [
                sent.on_notification for sent in in_flight if sent.party in parties and sent.on_notification
            ]
            if len(parties) == 1 and takers:
                # A log message of one party alone belongs to the latest of its calls.
                takers[-1](method, params)
                return
        self._on_event(method, params, parties)
