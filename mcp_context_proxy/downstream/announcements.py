"""Decides what becomes of what a server says or asks on its own accord, and whom it concerns.

A notice that a list has changed goes to the lists. A log message names no request: it is of those whose
calls are under way. A question is answered by the one party whose call it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mcp_context_proxy.config.redaction import Redactor
from mcp_context_proxy.downstream import questions
from mcp_context_proxy.downstream.connect import Inbound
from mcp_context_proxy.downstream.lanes import Lane, Lanes, capabilities_of
from mcp_context_proxy.downstream.link import Link, Outgoing, Party
from mcp_context_proxy.downstream.lists import Lists
from mcp_context_proxy.downstream.peer import Peer
from mcp_context_proxy.downstream.rate import Bucket
from mcp_context_proxy.downstream.redaction import redacted_params
from mcp_context_proxy.wire.envelope import Members

OnEvent = Callable[[str, Members, frozenset[Party]], None]
"""Takes what a server announced: method, params, and whom it concerns; nobody in particular if empty."""

LOGS_PER_SECOND, LOGS_AT_ONCE = 100, 500
"""Log messages of one server that are passed on to clients; a flood would only be skimmed anyway."""


class Announcements:
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

    def on_shared(self, link: Callable[[], Link | None], lanes: Lanes) -> Inbound:
        """For the connection that all share; `link` is it, once it is open."""

        def on_notification(method: str, params: Members) -> None:
            self.take(link(), method, params)

        async def answer(peer: Peer, method: str, params: Members) -> bytes:
            if method in questions.CAPABILITY_OF:
                lanes.note_asked(method, questions.party_of(peer.in_flight))
            return await questions.answer(peer, method, params, None)

        return Inbound(on_notification, answer)

    def on_lane(self, lane: Lane) -> Inbound:
        """For a connection that is not shared."""

        async def answer(peer: Peer, method: str, params: Members) -> bytes:
            return await questions.answer(peer, method, params, lane.outgoing)

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
