"""Conversation with one host, over any front: answers its requests and takes its notifications and responses.

Requests for the gateway go straight from frame to frame. The SDK gets the messages that are its to decide:
negotiation, pings, subscriptions, and every message that is not in order.
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
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_REQUEST, Envelope, Members, RequestError, RequestId
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.framing import Bucket
from mcp_context_proxy.protocol.validation import holds_more
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.gateway import RELAYED_NOTIFICATIONS, Gateway
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust.tokens import ACTING, THE_USER, Principal

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

    from mcp_context_proxy.server.sdk import SdkServer

logger = logging.getLogger(__name__)

ASK_PREFIX = "ask-"
"""Start of the ids of our requests to the host; the SDK's ids are numbers."""

SDK_QUEUE = 1024
"""Messages that wait for the SDK; it gets few, and a host that sends more requests gets an error."""

SDK_NOTIFICATIONS = frozenset({"notifications/initialized", "notifications/cancelled"})
"""Notifications that mean something to the SDK."""

SDK_BYTES = 1 << 20
"""Size of one message for the SDK, which keeps it until it is answered."""

MOST_VALUES = 10_000
"""Values in a message that the SDK reads whole while everybody else waits. A message that negotiates,
announces or answers has a hundred; this many take a tenth of a bearable delay."""

TOO_MUCH = (
    f"message of more than {MOST_VALUES:,} values or {SDK_BYTES:,} bytes, which no message of its kind needs"
)

COMPLAINTS = 20
"""Log lines about a host's bad messages at once, and one a second after that."""


class HostChannel(Protocol):
    """Takes frames for one host."""

    async def send(self, frame: bytes) -> None:
        """Write one frame; waits while the host does not read. Dropped when the host is gone."""
        ...

    def send_nowait(self, frame: bytes) -> bool:
        """Write one frame unless the host is not reading; return whether it was written."""
        ...

    def pause_reading(self) -> None:
        """Stop reading messages of the host."""
        ...

    def resume_reading(self) -> None:
        """Read messages of the host again."""
        ...


class Conversation:
    """Conversation with one host."""

    def __init__(
        self,
        *,
        gateway: Gateway,
        limits: Limits,
        channel: HostChannel,
        write_response: Callable[[bytes], Awaitable[None]],
        rights: Principal = THE_USER,
    ) -> None:
        """Converse over `channel`, to which `write_response` writes; `rights` are those of the host."""
        self._gateway, self._limits, self._channel = gateway, limits, channel
        self._write_response, self._rights = write_response, rights
        self._methods = gateway.methods
        self._session: Session | None = None
        self._handshake: Members = {}
        """The params of ``initialize``."""
        self._initialize_id: RequestId | None = None
        self._early: list[tuple[Envelope, bytes]] = []
        """Requests that came before ``initialize`` was answered: they belong to the session that it opens."""
        self._under_way = 0
        """Number of requests that the gateway is answering."""
        self._cancellable: dict[RequestId, anyio.CancelScope] = {}
        """Scopes of those that are not cancelled: an id can be used again as soon as its request is."""
        self._for_sdk: dict[RequestId, ExitStack] = {}
        """Requests that the SDK has yet to answer; each keeps the drain busy."""
        self._to_sdk, self._sdk_input = anyio.create_memory_object_stream["SessionMessage | Exception"](
            SDK_QUEUE
        )
        self._idle = anyio.Event()
        self._input_ended = False
        self._messages = HostMessages(channel)
        self._complaints = Bucket(1.0, COMPLAINTS)
        self._announced: set[str] = set()
        self._client_info: Raw | None = None
        self._group: TaskGroup

    async def run(
        self, server: SdkServer, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Answer until cancelled; requests that are under way then are given up."""
        to_host, sdk_output = anyio.create_memory_object_stream["SessionMessage"](SDK_QUEUE)
        try:
            async with anyio.create_task_group() as self._group, self._to_sdk, self._sdk_input:
                ACTING.set(self._rights)
                task_status.started()
                options = server.create_initialization_options()
                self._group.start_soon(server.run, self._sdk_input, to_host, options)
                async with to_host, sdk_output:
                    await self._relay_from_sdk(sdk_output, server)
                    await anyio.sleep_forever()
        finally:
            for request in self._for_sdk.values():
                # Nobody waits for its answer any more, so the drain need not either.
                request.close()
            if self._session is not None:
                self._gateway.end_session(self._session)

    async def finish(self) -> None:
        """Wait until every request is answered; no more messages come."""
        self._input_ended = True
        self._note_idle()
        await self._idle.wait()

    @property
    def session(self) -> Session | None:
        """The session of the host; None before it is negotiated, and in the modern era."""
        return self._session

    @property
    def rights(self) -> Principal:
        """The rights of the host, with the limits of its profile."""
        if self._session is not None:
            return self._session.rights
        return self._gateway.profiles.of_client(self._rights, self._client_info)

    @property
    def client_info(self) -> Raw | None:
        """The latest introduction of the host; None if it has not introduced itself."""
        return self._client_info

    @property
    def is_busy(self) -> bool:
        """True while one more request would be refused."""
        return self._under_way + len(self._early) >= self._limits.in_flight

    def receive(self, frame: bytes) -> None:
        """Take one message."""
        try:
            message = envelope.decode_from_client(frame)
        except envelope.MalformedError as error:
            self.reject_malformed(frame, error)
            return
        self.take(message, frame)

    async def receive_large(self, frame: bytes) -> None:
        """Take one large message; see `envelope.decode_large`."""
        try:
            message = await in_thread(envelope.decode_large, frame, envelope.decode_from_client)
        except envelope.MalformedError as error:
            self.reject_malformed(frame, error)
            return
        self.take(message, frame)

    def take(self, message: Envelope, frame: bytes) -> anyio.Event | None:
        """Take a decoded message; return the event that is set once its frame is no longer needed, if any."""
        if message.method is UNSET:
            if not self._messages.take_response(message) and not self._messages.asked(message.id):
                self._pass_to_sdk(frame)
        elif message.id is UNSET:
            self._receive_notification(message, frame)
        else:
            return self._receive_request(message, frame)
        return None

    def reject_malformed(self, frame: bytes, error: envelope.MalformedError) -> None:
        """Answer a message that cannot be decoded with an error."""
        self.reject(frame, frame, error.code, f"message that cannot be read: {error}")

    def reject(self, head: bytes, tail: bytes, code: int, why: str) -> None:
        """Answer a message that is not taken with an error, by its first and last bytes."""
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
            self._client_info = params.get("clientInfo")
        # Set when the front no longer needs the memory of the request.
        released = anyio.Event()
        caller = None
        if params is not None and method in self._methods:
            caller = self._caller(params, released.set)
        early = caller is None and method in self._methods and self._initialize_id in self._for_sdk
        if params is None or (caller is None and not early):
            self._pass_to_sdk(frame)
        elif self.is_busy or (caller is None and not self._has_room_for(frame)):
            text = f"busy: {self._under_way} requests are under way"
            self._refuse(envelope.error_reply(request_id, INVALID_REQUEST, text))
        elif caller is None:
            self._early.append((message, frame))
        else:
            scope = self._cancellable[request_id] = anyio.CancelScope()
            self._under_way += 1
            self._group.start_soon(self._answer, request_id, method, params, caller, scope, released)
            return released
        return None

    def _has_room_for(self, frame: bytes) -> bool:
        """Return whether one more early request can wait."""
        return sum(len(each) for _, each in self._early) + len(frame) <= self._limits.message_bytes

    def _caller(self, params: Members, release: Callable[[], None]) -> Caller | None:
        """Return the caller of a request; None while nothing is negotiated, which is for the SDK to judge."""
        era, session = Era.HANDSHAKE, self._session
        capabilities, client_info = self._handshake.get("capabilities"), self._handshake.get("clientInfo")
        if "_meta" in params:
            meta = eras.meta_of(params)
            if eras.is_modern(meta):
                era, session = Era.MODERN, None
                capabilities = meta[eras.CLIENT_CAPABILITIES_KEY]
                client_info = meta.get(eras.CLIENT_INFO_KEY)
            elif eras.VERSION_KEY in meta:
                return None
        if era is Era.HANDSHAKE and session is None:
            return None
        self._client_info = client_info
        return Caller(
            era=era,
            session=session,
            capabilities=capabilities,
            client_info=client_info,
            principal=self._rights.name,
            rights=self._rights,
            notify=self._messages.notify,
            ask=self._messages.ask,
            release=release,
        )

    async def _answer(
        self,
        request_id: RequestId,
        method: str,
        params: Members,
        caller: Caller,
        scope: anyio.CancelScope,
        released: anyio.Event,
    ) -> None:
        try:
            with scope, self._gateway.drain.busy():
                try:
                    result = await self._gateway.handle(method, params, caller)
                    if envelope.is_large(result):
                        # Megabytes take milliseconds for each copy, and the write makes another one.
                        response = await in_thread(envelope.reply, request_id, result)
                    else:
                        response = envelope.reply(request_id, result)
                    del result
                except RequestError as error:
                    response = envelope.error_reply(request_id, error.code, error.message, error.data)
                # A host that does not read keeps responses waiting; the memory of its requests is freed.
                del params, caller
                released.set()
                writing = self._write_response(response)
                del response
                await writing
        finally:
            released.set()
            self._under_way -= 1
            if self._cancellable.get(request_id) is scope:
                del self._cancellable[request_id]
            self._note_idle()

    def _refuse(self, response: bytes) -> None:
        """Refuse a request over the limit; a host that does not read the response is not read either."""

        async def send_and_resume() -> None:
            await self._channel.send(response)
            self._channel.resume_reading()

        if not self._channel.send_nowait(response):
            self._channel.pause_reading()
            self._group.start_soon(send_and_resume)

    def _note_idle(self) -> None:
        if self._input_ended and not self._under_way and not self._for_sdk:
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
                # The SDK does not answer a request that was cancelled.
                self._settle(target)
        elif self._session is not None and message.method in RELAYED_NOTIFICATIONS:
            assert isinstance(message.method, str)
            if message.method not in self._announced:
                # One that is repeated before the gateway has taken it is passed on once.
                self._announced.add(message.method)
                self._group.start_soon(self._announce, message.method, self._session)
        if message.method in SDK_NOTIFICATIONS:
            self._pass_to_sdk(frame)

    async def _announce(self, method: str, session: Session) -> None:
        self._announced.discard(method)
        await self._gateway.notified(method, session)

    def _pass_to_sdk(self, frame: bytes) -> None:
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 - loaded while the servers start
        from mcp_types import JSONRPCRequest, jsonrpc_message_adapter  # noqa: PLC0415

        if len(frame) > SDK_BYTES or holds_more(frame, MOST_VALUES):
            self.reject(frame, frame, INVALID_REQUEST, TOO_MUCH)
            return
        try:
            message = jsonrpc_message_adapter.validate_json(frame, by_name=False)
        except ValueError:
            self.reject(frame, frame, INVALID_REQUEST, "message that is not JSON-RPC")
            return
        try:
            if len(self._for_sdk) >= SDK_QUEUE and isinstance(message, JSONRPCRequest):
                raise anyio.WouldBlock
            self._to_sdk.send_nowait(SessionMessage(message))
        except anyio.WouldBlock:
            if isinstance(message, JSONRPCRequest):
                self.reject(frame, frame, INVALID_REQUEST, "request more than can be queued")
            return
        if isinstance(message, JSONRPCRequest):
            self._for_sdk.setdefault(message.id, ExitStack()).enter_context(self._gateway.drain.busy())

    async def _relay_from_sdk(
        self, messages: MemoryObjectReceiveStream[SessionMessage], server: SdkServer
    ) -> None:
        """Write the SDK's messages; the session opens before the response to ``initialize`` is written."""

        async def notify(method: str, params: Members) -> None:
            await self._channel.send(envelope.notification(method, params))

        async for item in messages:
            message = item.message
            response_to = None if hasattr(message, "method") else message.id
            negotiated = hasattr(message, "result") and response_to == self._initialize_id
            if negotiated and self._session is None:
                rights = self._gateway.profiles.of_client(self._rights, self._client_info)
                self._session = server.session_after(
                    getattr(message, "result", {}).get("instructions"), rights
                )
                self._gateway.open_session(self._session, notify)
            await self._channel.send(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
            if response_to is not None:
                self._settle(response_to)

    def _settle(self, request_id: RequestId) -> None:
        """Forget a request for the SDK that is answered, or never will be, and go on after it."""
        busy = self._for_sdk.pop(request_id, None)
        if busy is None:
            return
        busy.close()
        if request_id == self._initialize_id:
            early, self._early = self._early, []
            for message, frame in early:
                self.take(message, frame)
        self._note_idle()


def _members(params: Raw | object) -> Members | None:
    """Return the params of a request: empty if there are none, None if they are not an object."""
    if not isinstance(params, Raw):
        return {}
    try:
        return envelope.members(params)
    except ValueError:
        return None


class HostMessages:
    """Notifications to one host, requests that are made of it, and their responses."""

    def __init__(self, channel: HostChannel) -> None:
        self._channel = channel
        self._pending: dict[str, asyncio.Future[bytes]] = {}
        self._count = 0

    def notify(self, method: str, params: Members) -> None:
        """Write a notification, or drop it when the host is not reading."""
        self._channel.send_nowait(envelope.notification(method, params))

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the host; see `Caller.ask`."""
        self._count += 1
        request_id = f"{ASK_PREFIX}{self._count}"
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = future
        try:
            await self._channel.send(envelope.request(request_id, method, params))
            return await future
        except asyncio.CancelledError:
            self.notify("notifications/cancelled", {"requestId": envelope.raw(request_id)})
            raise
        finally:
            del self._pending[request_id]

    def asked(self, request_id: object) -> bool:
        """Return whether an id is one of ours, so that a late response to it is nobody's business."""
        return isinstance(request_id, str) and request_id.startswith(ASK_PREFIX)

    def take_response(self, message: Envelope) -> bool:
        """Take a response; return whether it belongs to a request that was made here."""
        future = self._pending.get(message.id) if isinstance(message.id, str) else None
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
