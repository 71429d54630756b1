"""The stdio front: one host at the other end of the process's standard streams."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from mcp_context_proxy.config import Limits
from mcp_context_proxy.downstream.flow import Backlog
from mcp_context_proxy.front.conversation import Conversation
from mcp_context_proxy.front.pipes import StandardPipes, open_standard_pipes
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.wire.envelope import INVALID_REQUEST
from mcp_context_proxy.wire.framing import Oversized

if TYPE_CHECKING:
    from mcp_context_proxy.server.sdk import SdkServer

logger = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 0.5
"""How long answers that are under way when the input ends are waited for: enough for somebody who pipes
requests in, and soon enough for the servers to hear that a host has gone."""


async def serve(gateway: Gateway, limits: Limits, server: SdkServer) -> None:
    """Serve until the host closes its end; what is still under way soon after is cancelled."""
    async with anyio.create_task_group() as group, open_standard_pipes() as pipes:
        backlog = Backlog(limits.unread_bytes, pipes.send)
        conversation = Conversation(gateway, limits, pipes, backlog.send)

        def receive(frame: bytes | Oversized) -> None:
            if isinstance(frame, Oversized):
                why = f"message of {frame.size:,} bytes, limit {frame.limit:,}"
                conversation.reject(frame.head, frame.tail, INVALID_REQUEST, why)
            else:
                conversation.receive(frame)

        async def watch() -> None:
            """End when the host takes nothing any more: whatever it is, it is no host."""
            await pipes.stalled(limits.stalled_seconds)
            logger.warning("the host has read nothing for %g s: stopping", limits.stalled_seconds)
            group.cancel_scope.cancel()

        group.start_soon(watch)
        await group.start(conversation.run, server)
        await pipes.read(limits.message_bytes, receive)
        await _last_words(conversation, pipes)
        group.cancel_scope.cancel()


async def _last_words(conversation: Conversation, pipes: StandardPipes) -> None:
    with anyio.move_on_after(LAST_WORDS_SECONDS):
        await conversation.finished()
        await pipes.flush()
