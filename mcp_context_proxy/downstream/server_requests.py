"""Answers the requests that a server makes of us: each in a task of its own, a bounded number at a time.

A server may withdraw a question; then whoever was asked hears of that, and no answer is sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio
from anyio.abc import TaskGroup

from mcp_context_proxy.downstream.jsonrpc import Peer
from mcp_context_proxy.downstream.link import Outgoing, Party
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Members,
    RequestError,
    RequestId,
)

OPEN_QUESTIONS = 64
"""Requests of one server that may be open at a time; further ones are refused."""

CANCELLED = "notifications/cancelled"

CAPABILITY_OF = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
"""What a server may ask of a client, and the capability that a client must have declared for it."""

Answer = Callable[[Peer, str, Members], Awaitable[bytes]]
"""Answers a request the server makes; raises `RequestError` to refuse."""


class ServerRequests:
    """The open requests of one server on one connection."""

    def __init__(self, group: TaskGroup, answer: Answer, seconds: float) -> None:
        """Answer in tasks of `group`, each question within `seconds`."""
        self._group, self._answer, self._seconds = group, answer, seconds
        self._open: dict[RequestId, anyio.CancelScope] = {}
        self._answered = anyio.Event()
        self.taken = 0
        """How many were ever asked."""

    async def all_answered(self) -> None:
        """Wait until none is open."""
        while self._open:
            self._answered = anyio.Event()
            await self._answered.wait()

    def take(self, peer: Peer, request_id: RequestId, method: str, params: Members) -> None:
        """Answer a request that came over `peer`."""
        if request_id in self._open or len(self._open) >= OPEN_QUESTIONS:
            peer.refuse_nowait(request_id, INVALID_REQUEST, "too many requests are open")
            return
        self.taken += 1
        self._open[request_id] = anyio.CancelScope()
        self._group.start_soon(self._reply, peer, request_id, method, params)

    def withdraw(self, params: Members) -> None:
        """Forget a request that the server cancelled."""
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
                self._answered.set()


def party_of(in_flight: Iterable[Outgoing]) -> Party | None:
    """The one party on whose behalf requests are under way; None when there is none, or several."""
    parties = {outgoing.party for outgoing in in_flight if outgoing.party is not None}
    return parties.pop() if len(parties) == 1 else None


async def answer(peer: Peer, method: str, params: Members, owner: Outgoing | None) -> bytes:
    """Answer what a server asks: by the one party whose call it is, and by nobody when that is in doubt.

    Args:
        peer: Over which the server asked.
        method: Of its request.
        params: Of its request.
        owner: The latest request on a connection that serves one party alone; None on a shared one.

    Raises:
        RequestError: the client refuses, or it is not known who is to be asked.
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
