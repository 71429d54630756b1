"""The stdio front: one host at the other end of the process's standard streams.

It owns its bytes. Requests that the gateway answers go straight from frame to frame; the SDK sees what is
its to decide: negotiation, pings, subscriptions, and every message that is not in order.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import UNSET, Raw

from mcp_context_proxy.config import Limits
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream.rate import Bucket
from mcp_context_proxy.front.backlog import Backlog
from mcp_context_proxy.front.pipes import StandardPipes, open_standard_pipes
from mcp_context_proxy.server.gateway import ANNOUNCED, Gateway
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import INVALID_REQUEST, Members, RequestError, RequestId
from mcp_context_proxy.wire.era import Era
from mcp_context_proxy.wire.framing import Oversized

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

    from mcp_context_proxy.server.sdk import SdkServer

logger = logging.getLogger(__name__)

ASK_PREFIX = "ask-"
"""Ids of requests we make of the host start so; the SDK's are numbers."""

LAST_WORDS_SECONDS = 0.5
"""How long answers that are under way when the input ends are waited for: enough for somebody who pipes
requests in, and soon enough for the servers to hear that a host has gone."""

SDK_QUEUE = 1024
"""Messages that wait for the SDK; it takes few, and a host that sends more requests gets an error."""

SDK_NOTIFICATIONS = frozenset({"notifications/initialized", "notifications/cancelled"})
"""Those that mean something to the SDK, or to what it answers."""

COMPLAINTS = 20
"""Logged of a host's messages at once, and one a second after that: a broken host is as broken each time."""


class StdioCaller:
    """The host, for the length of one request. Implements `Caller`."""

    __slots__ = ("_front", "capabilities", "client_info", "era", "principal", "session")

    def __init__(
        self,
        front: StdioFront,
        spoken: Era,
        session: Session | None,
        capabilities: Raw | None,
        client_info: Raw | None,
    ) -> None:
        self._front, self.era, self.session = front, spoken, session
        self.capabilities, self.client_info = capabilities, client_info
        self.principal: str | None = None

    def notify(self, method: str, params: Members) -> None:
        """Write a notification, or drop it when the host is not reading."""
        self._front.pipes.send_nowait(envelope.notification(method, params))

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the host; see `Caller.ask`."""
        return await self._front.ask(method, params)


class StdioFront:
    """Serves one host until its input ends."""

    def __init__(self, gateway: Gateway, limits: Limits) -> None:
        self.pipes: StandardPipes
        self._gateway, self._limits = gateway, limits
        self._methods = gateway.methods
        self._session: Session | None = None
        self._handshake: Members = {}
        self._initialize_id: RequestId | None = None
        self._in_flight: dict[RequestId, anyio.CancelScope] = {}
        self._with_sdk: dict[RequestId, ExitStack] = {}
        self._idle = anyio.Event()
        self._ended = False
        self._asked: dict[str, asyncio.Future[bytes]] = {}
        self._asks = 0
        self._complaints = Bucket(1.0, COMPLAINTS)
        self._backlog: Backlog
        self._announced: set[str] = set()
        self._group: TaskGroup
        self._to_sdk: MemoryObjectSendStream[SessionMessage | Exception]

    async def serve(self, server: SdkServer) -> None:
        """Serve until the host closes its end; what is still under way soon after is cancelled."""
        to_sdk, for_sdk = anyio.create_memory_object_stream["SessionMessage | Exception"](SDK_QUEUE)
        to_host, for_host = anyio.create_memory_object_stream["SessionMessage"](SDK_QUEUE)
        self._to_sdk = to_sdk
        async with anyio.create_task_group() as group, to_sdk, for_sdk, to_host, for_host:
            self._group = group
            async with open_standard_pipes() as pipes:
                self.pipes, self._backlog = pipes, Backlog(self._limits.unread_bytes, pipes.send)
                group.start_soon(self._watch_host)
                group.start_soon(self._relay_sdk, for_host)
                group.start_soon(server.run, for_sdk, to_host, server.create_initialization_options())
                await pipes.read(self._limits.message_bytes, self._receive)
                self._ended = True
                self._note_idle()
                with anyio.move_on_after(LAST_WORDS_SECONDS):
                    await self._idle.wait()
                    await pipes.flush()
                group.cancel_scope.cancel()
        if self._session is not None:
            self._gateway.open_sessions.end(self._session)

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the host; see `Caller.ask`."""
        self._asks += 1
        request_id = f"{ASK_PREFIX}{self._asks}"
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[request_id] = future
        try:
            await self.pipes.send(envelope.request(request_id, method, params))
            return await future
        except asyncio.CancelledError:
            cancelled = envelope.notification("notifications/cancelled", {"requestId": request_id})
            self.pipes.send_nowait(cancelled)
            raise
        finally:
            del self._asked[request_id]

    def _receive(self, frame: bytes | Oversized) -> None:
        if isinstance(frame, Oversized):
            why = f"message of {frame.size:,} bytes, limit {frame.limit:,}"
            self._reject(frame.head, frame.tail, INVALID_REQUEST, why)
            return
        try:
            message = envelope.decode_from_client(frame)
        except envelope.MalformedError as error:
            self._reject(frame, frame, error.code, f"message that cannot be read: {error}")
            return
        if message.method is UNSET:
            self._receive_reply(message, frame)
        elif message.id is UNSET:
            self._receive_notification(message, frame)
        else:
            self._receive_request(message, frame)

    def _receive_request(self, message: envelope.Envelope, frame: bytes) -> None:
        request_id, method = message.id, message.method
        if not isinstance(request_id, int | str) or not isinstance(method, str):
            self._pass_to_sdk(frame)
            return
        params = _members(message.params)
        if method == "initialize" and params is not None:
            self._initialize_id, self._handshake = request_id, params
        caller = self._caller(params) if params is not None and method in self._methods else None
        if caller is None or params is None or request_id in self._in_flight:
            self._pass_to_sdk(frame)
        elif len(self._in_flight) >= self._limits.in_flight:
            text = f"busy: {len(self._in_flight)} requests are under way"
            self._refuse(envelope.error_reply(request_id, INVALID_REQUEST, text))
        else:
            self._in_flight[request_id] = anyio.CancelScope()
            self._group.start_soon(self._answer, request_id, method, params, caller)

    def _caller(self, params: Members) -> StdioCaller | None:
        """Who is calling; None while nothing is negotiated, which is for the SDK to judge."""
        if "_meta" in params:
            meta = era.meta_of(params)
            if era.is_modern(meta):
                return StdioCaller(
                    self, Era.MODERN, None, meta[era.CLIENT_CAPABILITIES_KEY], meta.get(era.CLIENT_INFO_KEY)
                )
            if era.VERSION_KEY in meta:
                return None
        if self._session is None:
            return None
        return StdioCaller(
            self,
            Era.HANDSHAKE,
            self._session,
            self._handshake.get("capabilities"),
            self._handshake.get("clientInfo"),
        )

    async def _answer(self, request_id: RequestId, method: str, params: Members, caller: StdioCaller) -> None:
        scope = self._in_flight[request_id]
        try:
            with scope, self._gateway.drain.busy():
                try:
                    reply = envelope.reply(request_id, await self._gateway.handle(method, params, caller))
                except RequestError as error:
                    reply = envelope.error_reply(request_id, error.code, error.message, error.data)
                # A host that does not read keeps answers waiting; what it asked with need not wait as well.
                del params, caller
                await self._backlog.send(reply)
        finally:
            del self._in_flight[request_id]
            self._note_idle()

    def _refuse(self, reply: bytes) -> None:
        """Answer a request that is one too many; a host that does not read is not read either."""
        if not self.pipes.send_nowait(reply):
            self.pipes.pause_reading()
            self._group.start_soon(self._refuse_later, reply)

    async def _refuse_later(self, reply: bytes) -> None:
        await self.pipes.send(reply)
        self.pipes.resume_reading()

    async def _watch_host(self) -> None:
        """End when the host takes nothing any more: whatever it is, it is no host."""
        await self.pipes.stalled(self._limits.stalled_seconds)
        logger.warning("the host has read nothing for %g s: stopping", self._limits.stalled_seconds)
        self._group.cancel_scope.cancel()

    def _note_idle(self) -> None:
        """Once the input has ended: whether everything that came is answered."""
        if self._ended and not self._in_flight and not self._with_sdk:
            self._idle.set()

    def _receive_notification(self, message: envelope.Envelope, frame: bytes) -> None:
        if message.method == "notifications/cancelled":
            params = _members(message.params) or {}
            target = envelope.value(params["requestId"]) if "requestId" in params else None
            scope = self._in_flight.get(target) if isinstance(target, int | str) else None
            if scope is not None:
                scope.cancel()
                return
            if isinstance(target, int | str):
                # What is given up there is not answered.
                self._answered_by_sdk(target)
        elif self._session is not None and isinstance(message.method, str):
            self._announce(message.method, self._session)
        if message.method in SDK_NOTIFICATIONS:
            self._pass_to_sdk(frame)

    def _announce(self, method: str, session: Session) -> None:
        """Tell the gateway soon; what was said many times until then, it hears once."""
        if method in ANNOUNCED and method not in self._announced:
            self._announced.add(method)
            self._group.start_soon(self._tell, method, session)

    async def _tell(self, method: str, session: Session) -> None:
        self._announced.discard(method)
        await self._gateway.notified(method, session)

    def _receive_reply(self, message: envelope.Envelope, frame: bytes) -> None:
        future = self._asked.get(message.id) if isinstance(message.id, str) else None
        if future is None:
            self._pass_to_sdk(frame)
        elif future.done():
            return
        elif message.result is not UNSET:
            future.set_result(bytes(message.result))
        else:
            error = envelope.decode_error(message.error) if message.error is not UNSET else envelope.Error()
            data = None if error.data is UNSET else error.data
            future.set_exception(RequestError(error.code, error.message or "no result", data))

    def _reject(self, head: bytes, tail: bytes, code: int, why: str) -> None:
        request_id = envelope.salvage_id(head, tail)
        if self._complaints.take():
            logger.warning("the host sent a %s", why)
        self.pipes.send_nowait(envelope.error_reply(request_id, code, why))

    def _pass_to_sdk(self, frame: bytes) -> None:
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 - loaded while the servers start
        from mcp_types import JSONRPCRequest, jsonrpc_message_adapter  # noqa: PLC0415

        try:
            message = jsonrpc_message_adapter.validate_json(frame, by_name=False)
        except ValueError:
            self._reject(frame, frame, INVALID_REQUEST, "message that is not JSON-RPC")
            return
        try:
            self._to_sdk.send_nowait(SessionMessage(message))
        except anyio.WouldBlock:
            if isinstance(message, JSONRPCRequest):
                self._reject(frame, frame, INVALID_REQUEST, "request more than can be queued")
            return
        if isinstance(message, JSONRPCRequest):
            self._with_sdk.setdefault(message.id, ExitStack()).enter_context(self._gateway.drain.busy())

    async def _relay_sdk(self, for_host: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write what the SDK says; its answer to ``initialize`` is what opens the session."""
        async for item in for_host:
            message = item.message
            if self._session is None and self._initialize_id is not None:
                self._open_session_on(message)
            await self.pipes.send(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
            if not hasattr(message, "method"):
                self._answered_by_sdk(message.id)

    def _answered_by_sdk(self, request_id: RequestId | None) -> None:
        if request_id is not None and (held := self._with_sdk.pop(request_id, None)) is not None:
            held.close()
            self._note_idle()

    def _open_session_on(self, message: object) -> None:
        if getattr(message, "id", None) == self._initialize_id and hasattr(message, "result"):
            self._session = Session()
            self._gateway.open_sessions.open(self._session, self._notify)

    async def _notify(self, method: str, params: Members) -> None:
        await self.pipes.send(envelope.notification(method, params))


def _members(params: Raw | object) -> Members | None:
    """The params of a request; none are empty, and what is not an object is None."""
    if not isinstance(params, Raw):
        return {}
    try:
        return envelope.members(params)
    except ValueError:
        return None
