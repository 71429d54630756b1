"""Which searches and calls of hosts are remembered as interactions, and as whose. Nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.interactions import content
from mcp_context_proxy.interactions.interaction import CALL, SEARCH, Interaction
from mcp_context_proxy.interactions.recorder import InteractionRecorder
from mcp_context_proxy.items import Tool
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.wire.envelope import Members

NO_ARGUMENTS: Final = Raw(b"{}")


class _ClientInfo(msgspec.Struct):
    """What is read of how a client introduces itself."""

    name: str = ""


class InteractionLog:
    """Notes what hosts do."""

    def __init__(self, recorder: InteractionRecorder, clock: Callable[[], float] = time_of_day) -> None:
        self._recorder, self._clock = recorder, clock

    def searched(self, query: str, agent_name: str | None) -> None:
        """Something was searched for. Does not block."""
        interaction = Interaction(agent_name or "", SEARCH, query, self._clock())
        self._recorder.note(lambda: interaction)

    def called(self, tool: Tool, params: Members, caller: Caller, goal: str | None) -> None:
        """A call was answered. Does not block, and looks at nothing yet."""
        now, client, arguments = self._clock(), caller.client_info, params.get("arguments", NO_ARGUMENTS)

        def told() -> Interaction:
            said = content.call(tool.exposed_name, bytes(arguments), goal)
            return Interaction(agent_of(client) or "", CALL, said, now)

        self._recorder.note(told)


def agent_of(client_info: Raw | None) -> str | None:
    """The name of a client, as it introduces itself; None when it does not."""
    if client_info is None:
        return None
    try:
        return msgspec.json.decode(client_info, type=_ClientInfo).name or None
    except msgspec.MsgspecError:
        return None
