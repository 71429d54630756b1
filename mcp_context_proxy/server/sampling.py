"""Lets a search ask the model of the client that searches, in the way that the client's era allows.

A handshake-era client is asked by a request. In the modern era the question is the result of the call, which
is parked until the client calls again with the answer, or goes on without it when its time is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from mcp_context_proxy.downstream.link import Ask, Notify
from mcp_context_proxy.rerank.judge import Judge
from mcp_context_proxy.rerank.sampling import SamplingJudge
from mcp_context_proxy.server import declared
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.parked import ParkedCalls
from mcp_context_proxy.wire.envelope import Members
from mcp_context_proxy.wire.era import Era

Search = Callable[[Judge | None, Notify], Awaitable[bytes]]
"""A search: the model it may ask, and where its notifications go in, its encoded result out."""


class Sampling:
    """Knows whether a caller's model may be asked, and how."""

    def __init__(self, parked: ParkedCalls, wanted: bool) -> None:
        """Ask by way of `parked` where that is needed, and nobody unless it is `wanted`."""
        self._parked, self._wanted = parked, wanted

    async def answered(self, params: Members, caller: Caller, search: Search) -> bytes:
        """What a search answers, or what the client has to answer first.

        Raises:
            RequestError: a modern client goes on with a search that is not known.
            Exception: what `search` raises.
        """
        if not self._wanted or "sampling" not in declared.capabilities(caller):
            return await search(None, caller.notify)
        if caller.session is not None:
            return await search(_judge(caller, caller.ask, caller.session.id), caller.notify)
        if caller.era is Era.HANDSHAKE:
            return await search(None, caller.notify)

        async def work(ask: Ask, notify: Notify) -> bytes:
            return await search(_judge(caller, ask, f"of {caller.principal}"), notify)

        return await self._parked.call(caller.principal, "search", params, caller.notify, work)


def _judge(caller: Caller, ask: Ask, client: str) -> SamplingJudge:
    return SamplingJudge(partial(declared.ask_declared, caller, ask), client)
