"""Messages that a server sends on its own accord: notifications, and requests that a client must answer.

A handshake-era server does not say which request of ours a message is about, so that is inferred: a change
notice goes to the lists, a log message to the sessions whose calls are pending, and a request of the server
to the one party whose calls are pending. If several parties have pending calls, the request is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec import Raw

from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.backpressure import Bucket
from mcp_context_proxy.downstream.era_negotiation import SHARED_CAPABILITIES
from mcp_context_proxy.downstream.jsonrpc import Answer, Peer
from mcp_context_proxy.downstream.link import Notify, Outgoing, Party
from mcp_context_proxy.protocol.envelope import (
    METHOD_NOT_FOUND,
    Members,
    RequestError,
)

CAPABILITY_OF = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
"""Requests that a server may make of a client, and the capability that the client must have declared."""

LOG_MESSAGE = "notifications/message"

LOGS_PER_SECOND, LOGS_AT_ONCE = 100, 500
"""Log messages of one server that are passed on to clients; nobody reads more than that."""

OnEvent: TypeAlias = Callable[[str, Members, frozenset[Party]], None]
"""Takes a notification of a server: method, params, and the parties concerned, which may be none."""


@dataclass(frozen=True, slots=True)
class Inbound:
    """Handlers of the messages that come over one connection, and the capabilities declared on it."""

    on_notification: Notify
    answer: Answer
    capabilities: Mapping[str, Any] = field(default_factory=lambda: SHARED_CAPABILITIES)
    """Declared in the handshake; the modern era declares with each request."""


def party_of(in_flight: Iterable[Outgoing]) -> Party | None:
    """Return the one party with pending requests; None when there is none, or several."""
    parties = {outgoing.party for outgoing in in_flight if outgoing.party is not None}
    return parties.pop() if len(parties) == 1 else None


async def answer(peer: Peer, method: str, params: Members, owner: Outgoing | None) -> bytes:
    """Answer a request of a server by asking the one party whose call it belongs to.

    `owner` is the latest request on a connection that serves one party alone; None on a shared one.

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
        """Prepare; `take_change_notice` returns True for methods that say that a list has changed."""
        self._take_change_notice, self._redact = take_change_notice, redact
        self._on_event = on_event or (lambda method, params, parties: None)
        self._logs = Bucket(LOGS_PER_SECOND, LOGS_AT_ONCE)

    def take(
        self, method: str, params: Members, in_flight: Sequence[Outgoing], owner: Party | None = None
    ) -> None:
        """Route a notification from a connection with these pending requests; `owner` if it is not shared."""
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
