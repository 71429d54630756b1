"""Decides what becomes of what a server says or asks on its own accord, and whom it concerns.

A notice that a list has changed goes to the lists. A log message names no request: it is of those whose
calls are under way. A question is answered by the one party whose call it belongs to.

Keeps a server's secrets out of its failures and notifications. Other results pass as they came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Raw

from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream import server_requests
from mcp_context_proxy.downstream.backpressure import Bucket
from mcp_context_proxy.downstream.connect import Inbound
from mcp_context_proxy.downstream.dedicated import DedicatedConnection, DedicatedConnections, capabilities_of
from mcp_context_proxy.downstream.jsonrpc import Peer
from mcp_context_proxy.downstream.link import Link, Outgoing, Party
from mcp_context_proxy.downstream.listing import Lists
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallInterruptedError,
    DownstreamError,
    RemoteError,
    ServerUnavailableError,
)
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.system.threads import in_thread

LARGE_BYTES: Final = 256 * 1024
"""That are not looked through on the event loop: each secret has some forty forms."""


def redacted(error: DownstreamError, redact: Redactor) -> DownstreamError:
    """The same error without the secrets that the server's own words may hold."""
    match error:
        case RemoteError():
            data = Raw(redact.json(bytes(error.data))) if isinstance(error.data, Raw) else error.data
            return RemoteError(error.server, error.code, redact(error.remote_message), data)
        case BadAnswerError():
            return BadAnswerError(error.server, redact(error.what), error.http_status)
        case CallInterruptedError():
            return CallInterruptedError(error.server, error.subject, redact(error.cause))
        case ServerUnavailableError():
            return ServerUnavailableError(error.server, error.state, redact(error.cause), error.stderr)
    return error


async def redacted_result(result: bytes, redact: Redactor) -> bytes:
    """The same result; without secrets if it tells of a failure, as a URL with its key would.

    Any other is the server's to say: a proxy that edits data is wrong about it sooner or later.
    """
    if b'"isError"' not in result or bytes(envelope.members(result).get("isError", b"")) != b"true":
        return result
    if len(result) < LARGE_BYTES:
        return redact.json(result)
    return await in_thread(redact.json, result)


def redacted_params(params: Members, redact: Redactor) -> Members:
    """What a notification says: a log message or the progress of a call is for people and for logs."""
    return {name: Raw(redact.json(bytes(raw))) for name, raw in params.items()}


OnEvent = Callable[[str, Members, frozenset[Party]], None]
"""Takes what a server announced: method, params, and whom it concerns; nobody in particular if empty."""

LOGS_PER_SECOND, LOGS_AT_ONCE = 100, 500
"""Log messages of one server that are passed on to clients; a flood would only be skimmed anyway."""


class ServerNotifications:
    """What one server says, over all its connections."""

    def __init__(self, lists: Lists, redact: Redactor, on_event: OnEvent | None) -> None:
        """Pass on what is no notice of a change of `lists`.

        Args:
            lists: Of the server.
            redact: Takes secrets out of log messages.
            on_event: Takes what belongs to no request, such as an updated resource.
        """
        self._lists, self._redact = lists, redact
        self._on_event = on_event or (lambda method, params, parties: None)
        self._logs = Bucket(LOGS_PER_SECOND, LOGS_AT_ONCE)

    def on_shared(self, link: Callable[[], Link | None], lanes: DedicatedConnections) -> Inbound:
        """For the connection that all share; `link` is it, once it is open."""

        def on_notification(method: str, params: Members) -> None:
            self.take(link(), method, params)

        async def answer(peer: Peer, method: str, params: Members) -> bytes:
            if method in server_requests.CAPABILITY_OF:
                lanes.note_asked(method, server_requests.party_of(peer.in_flight))
            return await server_requests.answer(peer, method, params, None)

        return Inbound(on_notification, answer)

    def on_lane(self, lane: DedicatedConnection) -> Inbound:
        """For a connection that is not shared."""

        async def answer(peer: Peer, method: str, params: Members) -> bytes:
            return await server_requests.answer(peer, method, params, lane.outgoing)

        def on_notification(method: str, params: Members) -> None:
            if not self._lists.take_notice(method):
                in_flight = _in_flight(None if lane.connected is None else lane.connected.link)
                self._pass_on(in_flight, method, params, frozenset({lane.party}))

        return Inbound(on_notification, answer, capabilities_of(lane.outgoing))

    def take(self, link: Link | None, method: str, params: Members) -> None:
        """Take a notification that came over the shared connection, or a subscription to it."""
        if not self._lists.take_notice(method):
            in_flight = _in_flight(link)
            parties = frozenset(sent.party for sent in in_flight if sent.party is not None)
            self._pass_on(in_flight, method, params, parties)

    def _pass_on(
        self, in_flight: Sequence[Outgoing], method: str, params: Members, parties: frozenset[Party]
    ) -> None:
        """A log message of one party alone belongs to the latest of its calls."""
        if method == "notifications/message":
            if not self._logs.take():
                return
            params = redacted_params(params, self._redact)
        takers = [
            sent.on_notification for sent in in_flight if sent.party in parties and sent.on_notification
        ]
        if method == "notifications/message" and len(parties) == 1 and takers:
            takers[-1](method, params)
        else:
            self._on_event(method, params, parties)


def _in_flight(link: Link | None) -> list[Outgoing]:
    return link.in_flight if isinstance(link, Peer) else []
