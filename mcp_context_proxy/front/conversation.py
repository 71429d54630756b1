"""One host, whatever way its messages come: each request is answered, and each notification taken.

Requests that the gateway answers go straight from frame to frame; the SDK sees what is its to decide:
negotiation, pings, subscriptions, and every message that is not in order.

The host of a conversation, as a request sees it: what it said of itself, and how it is told and asked.

Requests that are made of a host, and its replies to them.

What a conversation with a host needs of the way to it, whatever that is.

Passes on to the SDK what is its to decide, and to the host what it says to that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream
from msgspec import UNSET, Raw

from mcp_context_proxy.config import Limits
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream.backpressure import Bucket
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_REQUEST, Envelope, Members, RequestError, RequestId
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.validation import holds_more
from mcp_context_proxy.server.gateway import RELAYED_NOTIFICATIONS, Drain, Gateway

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCMessage

    from mcp_context_proxy.server.sdk import SdkServer


class HostChannel(Protocol):
    """Takes frames for one host."""

    async def send(self, frame: bytes) -> None:
        """Write one frame; waits while the host does not read. Dropped when the host is gone."""
        ...

    def send_nowait(self, frame: bytes) -> bool:
        """Write one frame unless the host is not reading; whether it was written."""
        ...

    def pause_reading(self) -> None:
        """Read nothing more of the host for now."""
        ...

    def resume_reading(self) -> None:
        """Read on."""
        ...


ASK_PREFIX = "ask-"
"""Ids of requests we make of the host start so; the SDK's are numbers."""


class HostRequests:
    """Those of one conversation."""

    def __init__(self, channel: HostChannel) -> None:
        self._channel = channel
        self._open: dict[str, asyncio.Future[bytes]] = {}
        self._count = 0

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the host; see `Caller.ask`."""
        self._count += 1
        request_id = f"{ASK_PREFIX}{self._count}"
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[request_id] = future
        try:
            await self._channel.send(envelope.request(request_id, method, params))
            return await future
        except asyncio.CancelledError:
            cancelled = envelope.notification("notifications/cancelled", {"requestId": request_id})
            self._channel.send_nowait(cancelled)
            raise
        finally:
            del self._open[request_id]

    def answer(self, message: Envelope) -> bool:
        """Take a reply; whether it was one to a request that was made here."""
        future = self._open.get(message.id) if isinstance(message.id, str) else None
        if future is None:
            return False
        if future.done():
            return True
        if message.result is not UNSET:
            future.set_result(bytes(message.result))
        else:
            error = envelope.decode_error(message.error) if message.error is not UNSET else envelope.Error()
            data = None if error.data is UNSET else error.data
            future.set_exception(RequestError(error.code, error.message or "no result", data))
        return True


class Host:
    """The host, for the length of one request. Implements `Caller`."""

    __slots__ = (
        "_channel",
        "_questions",
        "capabilities",
        "client_info",
        "era",
        "principal",
        "released",
        "session",
    )

    def __init__(
        self,
        channel: HostChannel,
        questions: HostRequests,
        spoken: Era,
        session: Session | None,
        said: tuple[Raw | None, Raw | None],
        principal: str | None,
    ) -> None:
        self._channel, self._questions, self.era, self.session = channel, questions, spoken, session
        self.capabilities, self.client_info = said
        self.principal = principal
        self.released = anyio.Event()
        """Set when nobody here needs what the request came with any more."""

    def notify(self, method: str, params: Members) -> None:
        """Write a notification, or drop it when the host is not reading."""
        self._channel.send_nowait(envelope.notification(method, params))

    def release(self) -> None:
        """See `Caller.release`."""
        self.released.set()

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the host; see `Caller.ask`."""
        return await self._questions.ask(method, params)


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
        channel: HostChannel,
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


logger = logging.getLogger(__name__)

SDK_NOTIFICATIONS = frozenset({"notifications/initialized", "notifications/cancelled"})
"""Those that mean something to the SDK, or to what it answers."""

COMPLAINTS = 20
"""Logged of a host's messages at once, and one a second after that: a broken host is as broken each time."""


class Conversation:
    """What is said with one host."""

    def __init__(
        self,
        gateway: Gateway,
        limits: Limits,
        channel: HostChannel,
        answer: Callable[[bytes], Awaitable[None]],
        principal: str | None = None,
    ) -> None:
        """Converse over `channel`; `answer` writes answers there, `principal` is who the host is."""
        self._gateway, self._limits, self._channel, self._write = gateway, limits, channel, answer
        self._principal = principal
        self._methods = gateway.methods
        self._session: Session | None = None
        self._handshake: Members = {}
        self._initialize_id: RequestId | None = None
        self._early: list[tuple[Envelope, bytes]] = []
        """Requests that came before ``initialize`` was answered: they belong to the session that it opens."""
        self._under_way = 0
        """Requests that are answered here and not answered yet."""
        self._cancellable: dict[RequestId, anyio.CancelScope] = {}
        """Of those that are not cancelled: an id is free as soon as that is."""
        self._idle = anyio.Event()
        self._ended = False
        self._questions = HostRequests(channel)
        self._sdk = SdkSide(channel, gateway.drain, self._spoke, self._settled)
        self._complaints = Bucket(1.0, COMPLAINTS)
        self._announced: set[str] = set()
        self._group: TaskGroup

    async def run(
        self, server: SdkServer, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Answer until cancelled; what is under way then is given up."""
        try:
            async with anyio.create_task_group() as self._group:
                task_status.started()
                await self._sdk.run(server)
        finally:
            if self._session is not None:
                self._gateway.open_sessions.end(self._session)

    async def finished(self) -> None:
        """Wait until everything that came is answered; nothing comes any more."""
        self._ended = True
        self._note_idle()
        await self._idle.wait()

    @property
    def is_busy(self) -> bool:
        """Whether one more request would be refused."""
        return self._under_way + len(self._early) >= self._limits.in_flight

    def receive(self, frame: bytes) -> None:
        """Take one message."""
        try:
            message = envelope.decode_from_client(frame)
        except envelope.MalformedError as error:
            self.reject(frame, frame, error.code, f"message that cannot be read: {error}")
            return
        self.take(message, frame)

    def take(self, message: Envelope, frame: bytes) -> anyio.Event | None:
        """Take one message that is decoded; what is set when it needs its frame no more, if it does."""
        if message.method is UNSET:
            if not self._questions.answer(message):
                self._pass_to_sdk(frame)
        elif message.id is UNSET:
            self._receive_notification(message, frame)
        else:
            return self._receive_request(message, frame)
        return None

    def reject(self, head: bytes, tail: bytes, code: int, why: str) -> None:
        """Say of a message, by its first and its last bytes, why it is not taken."""
        request_id = envelope.salvage_id(head, tail)
        if self._complaints.take():
            logger.warning("the host sent a %s", why)
        self._channel.send_nowait(envelope.error_reply(request_id, code, why))

    def _receive_request(self, message: Envelope, frame: bytes) -> anyio.Event | None:
        request_id, method = message.id, message.method
        if not isinstance(request_id, int | str) or not isinstance(method, str):
            self._pass_to_sdk(frame)
            return None
        params = _members(message.params)
        if method == "initialize" and params is not None:
            self._initialize_id, self._handshake = request_id, params
        caller = self._caller(params) if params is not None and method in self._methods else None
        early = caller is None and method in self._methods and self._sdk.has(self._initialize_id)
        if params is None or (caller is None and not early):
            self._pass_to_sdk(frame)
        elif self.is_busy:
            text = f"busy: {self._under_way} requests are under way"
            self._refuse(envelope.error_reply(request_id, INVALID_REQUEST, text))
        elif caller is None:
            self._early.append((message, frame))
        else:
            scope = self._cancellable[request_id] = anyio.CancelScope()
            self._under_way += 1
            self._group.start_soon(self._answer, request_id, method, params, caller, scope)
            return caller.released
        return None

    def _caller(self, params: Members) -> Host | None:
        """Who is calling; None while nothing is negotiated, which is for the SDK to judge."""
        spoken, session = Era.HANDSHAKE, self._session
        said = self._handshake.get("capabilities"), self._handshake.get("clientInfo")
        if "_meta" in params:
            meta = eras.meta_of(params)
            if eras.is_modern(meta):
                spoken, session = Era.MODERN, None
                said = meta[eras.CLIENT_CAPABILITIES_KEY], meta.get(eras.CLIENT_INFO_KEY)
            elif eras.VERSION_KEY in meta:
                return None
        if spoken is Era.HANDSHAKE and session is None:
            return None
        return Host(self._channel, self._questions, spoken, session, said, self._principal)

    async def _answer(
        self, request_id: RequestId, method: str, params: Members, caller: Host, scope: anyio.CancelScope
    ) -> None:
        released = caller.released
        try:
            with scope, self._gateway.drain.busy():
                try:
                    reply = envelope.reply(request_id, await self._gateway.handle(method, params, caller))
                except RequestError as error:
                    reply = envelope.error_reply(request_id, error.code, error.message, error.data)
                # A host that does not read keeps answers waiting; what it asked with need not wait as well.
                del params, caller
                released.set()
                writing = self._write(reply)
                del reply
                await writing
        finally:
            released.set()
            self._under_way -= 1
            if self._cancellable.get(request_id) is scope:
                del self._cancellable[request_id]
            self._note_idle()

    def _refuse(self, reply: bytes) -> None:
        """Answer a request that is one too many; a host that does not read is not read either."""
        if not self._channel.send_nowait(reply):
            self._channel.pause_reading()
            self._group.start_soon(self._refuse_later, reply)

    async def _refuse_later(self, reply: bytes) -> None:
        await self._channel.send(reply)
        self._channel.resume_reading()

    def _note_idle(self) -> None:
        """Once nothing comes any more: whether everything that came is answered."""
        if self._ended and not self._under_way and self._sdk.idle:
            self._idle.set()

    def _receive_notification(self, message: Envelope, frame: bytes) -> None:
        if message.method == "notifications/cancelled":
            params = _members(message.params) or {}
            target = envelope.value(params["requestId"]) if "requestId" in params else None
            scope = self._cancellable.pop(target, None) if isinstance(target, int | str) else None
            if scope is not None:
                scope.cancel()
                return
            self._early = [each for each in self._early if each[0].id != target]
            if isinstance(target, int | str):
                # What is given up there is not answered.
                self._sdk.settle(target)
        elif self._session is not None and isinstance(message.method, str):
            self._announce(message.method, self._session)
        if message.method in SDK_NOTIFICATIONS:
            self._pass_to_sdk(frame)

    def _announce(self, method: str, session: Session) -> None:
        """Tell the gateway soon; what was said many times until then, it hears once."""
        if method in RELAYED_NOTIFICATIONS and method not in self._announced:
            self._announced.add(method)
            self._group.start_soon(self._tell, method, session)

    async def _tell(self, method: str, session: Session) -> None:
        self._announced.discard(method)
        await self._gateway.notified(method, session)

    def _pass_to_sdk(self, frame: bytes) -> None:
        if (why := self._sdk.take(frame)) is not None:
            self.reject(frame, frame, INVALID_REQUEST, why)

    def _settled(self, request_id: RequestId) -> None:
        """The SDK has one request less to answer."""
        if request_id == self._initialize_id:
            early, self._early = self._early, []
            for message, frame in early:
                self.take(message, frame)
        self._note_idle()

    def _spoke(self, message: JSONRPCMessage) -> None:
        """Open the session on the answer to ``initialize``."""
        if self._session is not None or self._initialize_id is None:
            return
        if getattr(message, "id", None) == self._initialize_id and hasattr(message, "result"):
            self._session = Session()
            self._gateway.open_sessions.open(self._session, self._notify)

    async def _notify(self, method: str, params: Members) -> None:
        await self._channel.send(envelope.notification(method, params))


def _members(params: Raw | object) -> Members | None:
    """The params of a request; none are empty, and what is not an object is None."""
    if not isinstance(params, Raw):
        return {}
    try:
        return envelope.members(params)
    except ValueError:
        return None
