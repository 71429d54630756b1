"""Conversation with one host, over any front: answers its requests and takes its notifications and responses.

Requests go straight from frame to frame. Those of the protocol itself, such as ``initialize`` and ``ping``,
are answered at once, all others by the gateway, each in a flight of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from contextvars import copy_context

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import UNSET, Raw

from mcp_context_proxy.config import Limits
from mcp_context_proxy.context.session import Given, Session
from mcp_context_proxy.downstream import Ask, Notify
from mcp_context_proxy.front import FrameChannel, HostChannel, Questions
from mcp_context_proxy.protocol import envelope, eras, holds_more
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    Envelope,
    Members,
    RequestError,
    RequestId,
)
from mcp_context_proxy.protocol.eras import HANDSHAKE, MODERN, Era
from mcp_context_proxy.protocol.framing import LineFramer, MessageReader, Oversized, PipeWriter
from mcp_context_proxy.server import Caller
from mcp_context_proxy.server.gateway import RELAYED_NOTIFICATIONS
from mcp_context_proxy.server.negotiation import INITIALIZE, LISTEN, Negotiation
from mcp_context_proxy.system.process import Bucket
from mcp_context_proxy.system.threads import Flight, in_task, in_thread
from mcp_context_proxy.trust import ACTING, THE_USER, Principal

logger = logging.getLogger(__name__)

PROTOCOL_BYTES = 1 << 20
"""Size of a message that is no request for the gateway: the memory that it takes is not counted."""

MOST_VALUES = 10_000
"""Values in such a message, which is read whole while everybody else waits. One that negotiates, announces or
answers has a hundred; this many take a tenth of a bearable delay."""

TOO_MUCH = (
    f"message of more than {MOST_VALUES:,} values or {PROTOCOL_BYTES:,} bytes, "
    "which no message of its kind needs"
)

COMPLAINTS = 20
"""Log lines about a host's bad messages at once, and one a second after that."""


def is_too_much(message: Envelope, encoded: bytes, methods: Collection[str]) -> bool:
    """Return whether a message has more than any of its kind needs; `methods` are those of the gateway.

    The answer to a question of a server may have images, and so any size.
    """
    if message.method in methods:
        return False
    large = message.method is not UNSET and len(encoded) > PROTOCOL_BYTES
    return large or holds_more(encoded, MOST_VALUES)


def params_of(message: Envelope) -> Members:
    """Return the params of a message, of which there may be none.

    Raises `RequestError` if they are not an object.
    """
    if not isinstance(message.params, Raw):
        return {}
    try:
        return envelope.members(message.params)
    except ValueError:
        raise RequestError(INVALID_PARAMS, "the params must be an object") from None


def caller_of(
    era: Era,
    session: Session | None,
    meta: eras.Meta,
    *,
    rights: Principal,
    notify: Notify,
    ask: Ask,
    release: Callable[[], None] | None,
    given: Given | None = None,
) -> Caller:
    """Return the caller of a request, by its ``_meta`` or, in the handshake era, by its session."""
    hello = None if session is None else session.hello
    capabilities = client_info = None
    if era is MODERN:
        session = None
        capabilities, client_info = meta[eras.CLIENT_CAPABILITIES_KEY], meta.get(eras.CLIENT_INFO_KEY)
    elif hello is not None:
        capabilities, client_info = hello.capabilities, hello.client_info
    return Caller(
        era=era,
        session=session,
        capabilities=capabilities,
        client_info=client_info,
        principal=rights.name,
        rights=rights,
        notify=notify,
        ask=ask,
        meta=meta,
        release=release,
        given=given,
    )


LAST_RESPONSES_SECONDS = 0.5
"""Time for requests that are under way when a host closes its end: enough for a person who pipes requests in,
and soon enough for the servers to be stopped after a host has gone."""


class HostStream(MessageReader):
    """Reads and writes the frames of one host, which closes its end at last. Implements `HostChannel`."""

    _out: asyncio.WriteTransport

    def __init__(self, message_bytes: int) -> None:
        """Read nothing before `read`. Whoever opens the stream sets `_out`, and has it tell `_writer`."""
        super().__init__(
            framer=LineFramer(message_bytes), receive=self._take_frame, receive_large=self._take_large
        )
        self._writer = writer = PipeWriter()
        self.send_nowait, self.sent_at_once = writer.send_nowait, writer.sent_at_once
        self._conversation: Conversation | None = None

    async def send(self, frame: bytes) -> None:
        """Write one frame once the host has read enough of those before it."""
        await self._writer.send(frame)

    def _take_frame(self, frame: bytes | Oversized) -> None:
        assert self._conversation is not None
        self._conversation.receive(frame)

    async def _take_large(self, frame: bytes) -> None:
        assert self._conversation is not None
        await self._conversation.receive_large(frame)

    async def read(self, conversation: Conversation) -> None:
        """Hand the messages of the host to its conversation, until it closes its end."""
        self._conversation = conversation
        await self.run_until_ended()

    async def stalled(self, seconds: float) -> None:
        """Wait until the host has read nothing of a full stream for `seconds`; then give up the rest."""
        await self._writer.stalled(seconds)
        if not self._out.is_closing():
            self._out.abort()

    async def flush(self) -> None:
        """Wait until all is written, or the host is gone."""
        self._out.set_write_buffer_limits(0, 0)
        await self._writer.writable.wait()

    def close(self) -> None:
        """Close the stream, after the frames that wait are written."""
        self._writer.hand_over()
        self._out.close()


async def converse(conversation: Conversation, stream: HostStream, stalled_seconds: float) -> None:
    """Serve a host until it closes its end; requests that are under way soon after are cancelled."""
    async with anyio.create_task_group() as group:

        async def end_when_stalled() -> None:
            await stream.stalled(stalled_seconds)
            logger.warning("a host has read nothing for %g s: its session ends", stalled_seconds)
            group.cancel_scope.cancel()

        await group.start(conversation.run)
        group.start_soon(end_when_stalled)
        await stream.read(conversation)
        with anyio.move_on_after(LAST_RESPONSES_SECONDS):
            await conversation.finish()
            await stream.flush()
        group.cancel_scope.cancel()


class Conversation:
    """Conversation with one host."""

    def __init__(
        self,
        *,
        negotiation: Negotiation,
        limits: Limits,
        channel: HostChannel,
        rights: Principal = THE_USER,
        has_successor: bool = False,
    ) -> None:
        """Converse over `channel`; `rights` are those of the host.

        If the conversation `has_successor`, another proxy gets the requests that come once this one stops.
        """
        self._has_successor = has_successor
        self._negotiation, self._gateway = negotiation, negotiation.gateway
        self._limits, self._channel, self._rights = limits, channel, rights
        self._context = copy_context()
        """The context of every request: it acts for the host."""
        self._context.run(ACTING.set, rights)
        self.session: Session | None = None
        """The session of the host; None before it is negotiated, and in the modern era."""
        self.client_info: Raw | None = None
        """The latest introduction of the host; None if it has not introduced itself."""
        self._flights: set[Flight] = set()
        """Requests that are being answered."""
        self._held_replies = 0
        """Number of other replies that wait for the host to read."""
        self._cancellable: dict[RequestId, Flight] = {}
        """Those that are not cancelled: an id can be used again as soon as its request is."""
        self._idle = anyio.Event()
        self._input_ended = False
        self._questions = Questions()
        self._messages = HostMessages(channel, self._questions)
        self._complaints = Bucket(1.0, COMPLAINTS)
        self._announced: set[str] = set()
        self._given: Given = {}
        """Documents that the model of the host was given, in the modern era."""
        self._caller_before: Caller | None = None
        self._group: TaskGroup

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled; requests that are under way then are given up."""
        try:
            async with anyio.create_task_group() as self._group:
                task_status.started()
                try:
                    await anyio.sleep_forever()
                finally:
                    for flight in tuple(self._flights):
                        flight.cancel()
        finally:
            if self.session is not None:
                self._gateway.end_session(self.session)

    async def finish(self) -> None:
        """Wait until every request is answered; no more messages come."""
        self._input_ended = True
        self._note_idle()
        await self._idle.wait()

    @property
    def rights(self) -> Principal:
        """The rights of the host, with the limits of its profile."""
        if self.session is not None:
            return self.session.rights
        return self._gateway.profiles.of_client(self._rights, self.client_info)

    @property
    def is_busy(self) -> bool:
        """True while one more request would be refused."""
        return self._under_way >= self._limits.in_flight

    @property
    def _under_way(self) -> int:
        return len(self._flights) + self._held_replies

    @property
    def leaves_requests(self) -> bool:
        """True once the proxy stops, and leaves requests to the next one."""
        return self._has_successor and self._gateway.drain.stopping

    def receive(self, frame: bytes | Oversized) -> None:
        if isinstance(frame, Oversized):
            why = f"message of {frame.size:,} bytes, limit {frame.limit:,}"
            self.reject(frame.head, frame.tail, INVALID_REQUEST, why)
            return
        try:
            message = envelope.decode_from_client(frame)
        except envelope.MalformedError as error:
            self.reject_malformed(frame, error)
        else:
            self.take(message, frame)

    async def receive_large(self, frame: bytes) -> None:
        try:
            message = await envelope.decode_any(frame, envelope.decode_from_client)
        except envelope.MalformedError as error:
            self.reject_malformed(frame, error)
        else:
            self.take(message, frame)

    def take(self, message: Envelope, frame: bytes, release: Callable[[], None] | None = None) -> bool:
        """Take a decoded message; return whether it is a request that is under way now.

        `release` is called once the frame of such a request is no longer needed.
        """
        try:
            if message.method is UNSET:
                self._questions.take_response(message)
            elif message.id is UNSET:
                self._receive_notification(message)
            elif not self.leaves_requests:
                return self._receive_request(message, frame, release)
        except RecursionError:
            self._refuse(message, INVALID_REQUEST, envelope.TOO_DEEP)
        except Exception:
            # boundary: a bug of the proxy costs one message, and its details are for the log
            if self._complaints.take():
                logger.exception("a message of the host could not be taken")
            self._refuse(message, INTERNAL_ERROR, "internal error of the proxy; its log has the details")
        return False

    def _refuse(self, message: Envelope, code: int, why: str) -> None:
        """Answer a message that could not be taken, if it is a request."""
        if isinstance(message.id, int | str) and message.method is not UNSET:
            self._reply_now(envelope.error_reply(message.id, code, why))

    def reject_malformed(self, frame: bytes, error: envelope.MalformedError) -> None:
        """Take the messages of a batch one by one; answer any other unreadable frame with an error."""
        hello = None if self.session is None else self.session.hello
        has_batches = hello is not None and hello.version == eras.BATCH_VERSION
        if has_batches and (messages := envelope.batched(frame)):
            for message in messages:
                self.receive(message)
            return
        self.reject(frame, frame, error.code, f"message that cannot be read: {error}")

    def reject(self, head: bytes, tail: bytes, code: int, why: str) -> None:
        """Answer a message that is not taken with an error, by its first and last bytes."""
        request_id = envelope.salvage_id(head, tail)
        if self._complaints.take():
            logger.warning("the host sent a %s", why)
        self._reply_now(envelope.error_reply(request_id, code, why))

    def _receive_request(self, message: Envelope, frame: bytes, release: Callable[[], None] | None) -> bool:
        request_id, method = message.id, message.method
        assert isinstance(request_id, envelope.ID_TYPES)
        assert isinstance(method, str)
        gateway = method in self._gateway.methods
        if not gateway and is_too_much(message, frame, self._gateway.methods):
            self.reject(frame, frame, INVALID_REQUEST, TOO_MUCH)
            return False
        try:
            params = params_of(message)
            if method == INITIALIZE:
                self._reply_now(envelope.reply(request_id, self._initialize(params)))
                return False
            caller = self._caller(method, params, release)
            answer, rights = self._negotiation.answer, self._rights
            result = None if gateway else answer(method, params, caller.era, rights, self._given)
            if result is not None:
                self._reply_now(envelope.reply(request_id, result))
                return False
        except RequestError as error:
            self._reply_now(envelope.error_reply(request_id, error.code, error.message, error.data))
            return False
        if (under_way := self._under_way) >= self._limits.in_flight:
            text = f"busy: {under_way} requests are under way"
            self._reply_now(envelope.error_reply(request_id, INVALID_REQUEST, text))
            return False
        flight = self._cancellable[request_id] = Flight(self._group, self._context)
        self._flights.add(flight)
        flight.start(self._answer(request_id, method, params, caller, flight, release))
        return True

    def _initialize(self, params: Members) -> bytes:
        """Return the result of ``initialize``; the first one opens the session."""
        if self.session is not None:
            return self._negotiation.initialize_again(params, self._rights)

        result, self.session = self._negotiation.initialize(params, self._rights)
        self.client_info, self._caller_before = params["clientInfo"], None
        self._gateway.open_session(self.session, self._messages.tell)
        return result

    def _caller(self, method: str, params: Members, release: Callable[[], None] | None) -> Caller:
        """Return the caller of a request.

        Raises `RequestError` if nothing is negotiated yet that it could be answered by.
        """
        meta, session, before = eras.meta_of(params), self.session, self._caller_before
        if before is not None and before.meta is meta and release is None:
            # Nearly every request of a host has the same.
            return before
        self._caller_before = None
        if meta.is_modern:
            era = MODERN
        elif session is not None and eras.VERSION_KEY not in meta:
            era = HANDSHAKE
        else:
            era = self._negotiation.era_of(method, params, meta, session)
        caller = caller_of(
            era,
            session,
            meta,
            rights=self._rights,
            notify=self._messages.notify,
            ask=self._messages.ask,
            release=release,
            given=self._given,
        )
        self.client_info = caller.client_info
        if era is MODERN or session is not None:
            self._caller_before = caller
        return caller

    async def _answer(
        self,
        request_id: RequestId,
        method: str,
        params: Members,
        caller: Caller,
        flight: Flight,
        release: Callable[[], None] | None,
    ) -> None:
        try:
            with self._gateway.drain:
                try:
                    if method == LISTEN and caller.era is MODERN:
                        await in_task()
                        listen = self._negotiation.listen
                        result = await listen(request_id, params, self._rights, self._messages.tell)
                    else:
                        result = await self._gateway.handle(method, params, caller)
                    if len(result) > envelope.LARGE_MESSAGE_BYTES:
                        # Megabytes take milliseconds for each copy, and the write makes another one.
                        response = await in_thread(envelope.reply, request_id, result)
                    else:
                        response = envelope.reply(request_id, result)
                    del result
                except RequestError as error:
                    response = envelope.error_reply(request_id, error.code, error.message, error.data)
                # A host that does not read keeps responses waiting; the memory of its requests is freed.
                del params, caller
                if release is not None:
                    release()
                if not self._channel.sent_at_once(response):
                    sending = self._channel.send(response)
                    del response
                    await sending
        finally:
            if release is not None:
                release()
            self._flights.discard(flight)
            if self._cancellable.get(request_id) is flight:
                del self._cancellable[request_id]
            if self._input_ended:
                self._note_idle()

    def _reply_now(self, response: bytes) -> None:
        """Write a response at once; a host that does not read it is not read either."""

        async def send_and_resume() -> None:
            try:
                await self._channel.send(response)
            finally:
                self._held_replies -= 1
                self._note_idle()
            self._channel.resume_reading()

        if not self._channel.send_nowait(response):
            self._channel.pause_reading()
            self._held_replies += 1
            self._group.start_soon(send_and_resume)

    def _note_idle(self) -> None:
        if self._input_ended and not self._under_way:
            self._idle.set()

    def _receive_notification(self, message: Envelope) -> None:
        if message.method == "notifications/cancelled":
            with contextlib.suppress(RequestError):
                params = params_of(message)
                target = envelope.value_or_none(params.get("requestId", b"null"))
                flight = self._cancellable.pop(target, None) if isinstance(target, int | str) else None
                if flight is not None:
                    flight.cancel()
        elif self.session is not None and message.method in RELAYED_NOTIFICATIONS:
            assert isinstance(message.method, str)
            if message.method not in self._announced:
                # One that is repeated before the gateway has taken it is passed on once.
                self._announced.add(message.method)
                self._group.start_soon(self._announce, message.method, self.session)

    async def _announce(self, method: str, session: Session) -> None:
        self._announced.discard(method)
        await self._gateway.notified(method, session)


class HostMessages:
    """Notifications to one host, and requests that are made of it, over one channel."""

    __slots__ = ("_channel", "_questions")

    def __init__(self, channel: FrameChannel, questions: Questions) -> None:
        self._channel, self._questions = channel, questions

    def notify(self, method: str, params: Members) -> None:
        """Write a notification, or drop it when the host is not reading."""
        self._channel.send_nowait(envelope.notification(method, params))

    async def tell(self, method: str, params: Members) -> None:
        """Write a notification once the host is reading."""
        frame = envelope.notification(method, params)
        if not self._channel.sent_at_once(frame):
            await self._channel.send(frame)

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the host; see `Caller.ask`."""
        with self._questions.ask() as (request_id, future):
            try:
                await self._channel.send(envelope.request(request_id, method, params))
                return await future
            except asyncio.CancelledError:
                self.notify("notifications/cancelled", {"requestId": envelope.raw(request_id)})
                raise
