"""Passes on to the SDK what is its to decide, and to the host what it says to that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from mcp_context_proxy.front.channel import Channel
from mcp_context_proxy.server.draining import Drain
from mcp_context_proxy.wire.envelope import RequestId
from mcp_context_proxy.wire.nesting import holds_more

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCMessage

    from mcp_context_proxy.server.sdk import SdkServer

SDK_QUEUE = 1024
"""Messages that wait for the SDK; it takes few, and a host that sends more requests gets an error."""

MOST_VALUES = 10_000
"""In a message that the SDK reads whole, which takes it a tenth of the time that nobody should wait. What is
negotiated, announced and answered by people has a hundred."""

TOO_MUCH = f"message of more than {MOST_VALUES:,} values, which no message of its kind needs"


class SdkSide:
    """The SDK's part of one conversation."""

    def __init__(
        self,
        channel: Channel,
        drain: Drain,
        spoke: Callable[[JSONRPCMessage], None],
        settled: Callable[[RequestId], None],
    ) -> None:
        """Relay to `channel`.

        Args:
            channel: To the host.
            drain: Is kept busy by what is not answered.
            spoke: Hears of each message of the SDK before it is written.
            settled: Hears of each request that is answered, or never will be.
        """
        self._channel, self._drain, self._spoke, self._settled = channel, drain, spoke, settled
        self._with_sdk: dict[RequestId, ExitStack] = {}
        self._to_sdk, self._for_sdk = anyio.create_memory_object_stream["SessionMessage | Exception"](
            SDK_QUEUE
        )

    @property
    def idle(self) -> bool:
        """Whether all requests that were passed on are answered."""
        return not self._with_sdk

    def has(self, request_id: RequestId | None) -> bool:
        """Whether a request that was passed on is not answered yet."""
        return request_id in self._with_sdk

    async def run(self, server: SdkServer) -> None:
        """Serve until cancelled."""
        to_host, for_host = anyio.create_memory_object_stream["SessionMessage"](SDK_QUEUE)
        async with anyio.create_task_group() as group, self._to_sdk, self._for_sdk, to_host, for_host:
            group.start_soon(self._relay, for_host)
            options = server.create_initialization_options()
            group.start_soon(server.run, self._for_sdk, to_host, options)
            await anyio.sleep_forever()

    def take(self, frame: bytes) -> str | None:
        """Pass a message on; what is wrong with it, where it is not passed on and has to be answered."""
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 - loaded while the servers start
        from mcp_types import JSONRPCRequest, jsonrpc_message_adapter  # noqa: PLC0415

        if holds_more(frame, MOST_VALUES):
            return TOO_MUCH
        try:
            message = jsonrpc_message_adapter.validate_json(frame, by_name=False)
        except ValueError:
            return "message that is not JSON-RPC"
        try:
            self._to_sdk.send_nowait(SessionMessage(message))
        except anyio.WouldBlock:
            return "request more than can be queued" if isinstance(message, JSONRPCRequest) else None
        if isinstance(message, JSONRPCRequest):
            self._with_sdk.setdefault(message.id, ExitStack()).enter_context(self._drain.busy())
        return None

    def settle(self, request_id: RequestId | None) -> None:
        """A request that was passed on is answered, or never will be."""
        if request_id is not None and (held := self._with_sdk.pop(request_id, None)) is not None:
            held.close()
            self._settled(request_id)

    async def _relay(self, for_host: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async for item in for_host:
            message = item.message
            self._spoke(message)
            await self._channel.send(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
            if not hasattr(message, "method"):
                self.settle(message.id)
