"""Splits byte streams into messages, such as lines of JSON and server-sent events, and controls their flow.

All sizes are bounded. A line or event over the limit is skipped without being buffered, and reported with
its first and last bytes, so that the request it answers can fail by its id instead of by its timeout. Data
stays bytes: an event of megabytes is neither decoded nor joined from pieces more than once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import cast
from weakref import WeakSet

import anyio
from msgspec import Struct

from mcp_context_proxy.protocol.envelope import TAKEN_APART_BYTES, is_large, is_utf8
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import alongside, in_task

logger = logging.getLogger(__name__)

EDGE_BYTES = 256
"""Bytes kept of both ends of an oversized message: enough to find the ``id`` of an envelope."""


class Oversized(Struct, frozen=True):
    """A line, or the data of an event, that was dropped because it was longer than the limit."""

    size: int
    """Length in bytes, without the newline."""
    head: bytes
    tail: bytes
    limit: int

    def __str__(self) -> str:
        return f"{self.size:,} bytes, over the limit of {self.limit:,} for a message"


class LineFramer:
    """Collects chunks and yields complete lines without their line ends; blank lines are skipped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._dropped, self._head = 0, b""

    @property
    def unended(self) -> bytes:
        """The part received of an incomplete line; of a line that is too long, its last bytes."""
        return bytes(self._buffer).strip()

    def feed(self, data: bytes) -> Iterable[bytes | Oversized]:
        """Add received bytes, mostly whole lines; return every line that is complete now, in order."""
        if not self._buffer and not self._dropped and len(data) <= self._limit:
            if data.find(b"\n") == len(data) - 1:
                return (line,) if (line := data.strip(b" \t\r\n")) else ()
            if data.endswith(b"\n"):
                return filter(None, [line.strip(b" \t\r") for line in data.split(b"\n")])
        return self._divided(data)

    def _divided(self, data: bytes) -> Iterator[bytes | Oversized]:
        # Most parts of a long line have no end in them: to find that out is faster than to divide them.
        *lines, rest = (data,) if data.find(b"\n") < 0 else data.split(b"\n")
        if lines:
            self._buffer += lines[0]
            lines[0], self._buffer = bytes(self._buffer), bytearray()
        for line in lines:
            if self._dropped:
                yield Oversized(self._dropped + len(line), self._head, line[-EDGE_BYTES:], self._limit)
                self._dropped, self._head = 0, b""
            elif len(line) > self._limit:
                yield Oversized(len(line), line[:EDGE_BYTES], line[-EDGE_BYTES:], self._limit)
            elif stripped := line.strip(b" \t\r"):
                yield stripped
        self._buffer += rest
        if self._dropped or len(self._buffer) > self._limit:
            # Too long already: only its first and last bytes are kept.
            if not self._dropped:
                self._head = bytes(self._buffer[:EDGE_BYTES])
            keep = self._buffer[-EDGE_BYTES:]
            self._dropped += len(self._buffer) - len(keep)
            self._buffer = keep


BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_ID = pattern(rb"[^\x00-\x1f\x7f]{1,1024}")
"""An id that can be sent back in a header; others are ignored."""
_RETRY = pattern(rb"\d{1,9}")
"""Milliseconds; longer numbers, which are years, are ignored."""


class ServerSentEvent(Struct, frozen=True):
    """One server-sent event."""

    name: bytes
    data: bytes
    id: bytes | None = None
    """The id of this event, or of the last event that had one."""
    retry_seconds: float | None = None
    """Time after which the server wants a reconnect, if this event gives one."""


class EventFramer:
    """Collects chunks and yields complete events."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        """The incomplete line at the end of the received bytes."""
        self._data: bytes | bytearray | None = None  # one line as it came, several in one buffer
        self._size, self._name = 0, b""
        self._id: bytes | None = None
        self._retry: float | None = None
        self._pending, self._begun, self._after_return = False, False, False

    def feed(self, data: bytes) -> Iterator[ServerSentEvent | Oversized]:
        """Add received bytes; yield every event that is complete now, in order."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        self._after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = data.split(b"\n")
        for ended in lines:
            line: bytes | bytearray = ended
            if self._line:
                # The line may be as long as the limit, so it is split without a copy.
                self._line += ended
                line, self._line = self._line, bytearray()
            if not self._begun:
                self._begun = True
                if line.startswith(BYTE_ORDER_MARK):  # no part of the first line
                    line = line[len(BYTE_ORDER_MARK) :]
            if line:
                self._take(line)
            elif self._pending:
                yield self._finish()
        self._line += rest
        if self._line.startswith(b":"):
            del self._line[1:]  # a comment, which counts for no event
        self._bound()

    def _take(self, line: bytes | bytearray) -> None:
        if line.startswith(b":"):
            return
        field, value = _parts(line)
        if field == b"data":
            if self._data is None:
                self._data = value
            else:
                if isinstance(self._data, bytes):
                    self._data = bytearray(self._data)
                # Not in a list, where a short line would take ten times its size.
                self._data += b"\n"
                self._data += value
            self._size += len(line) + 1
            self._bound()
        elif field == b"event":
            self._name = value
        elif field == b"id" and _ID.fullmatch(value):
            self._id = value
        elif field == b"retry" and _RETRY.fullmatch(value):
            self._retry = int(value) / 1000
        else:
            return
        self._pending = True

    def _bound(self) -> None:
        """Drop all but both ends of an event that is over the limit."""
        if self._size + len(self._line) <= self._limit:
            return
        if len(self._line) > 2 * EDGE_BYTES:
            self._size += len(self._line) - 2 * EDGE_BYTES
            del self._line[EDGE_BYTES:-EDGE_BYTES]
        if self._data is not None and len(self._data) > 2 * EDGE_BYTES:
            self._data = self._data[:EDGE_BYTES] + self._data[-EDGE_BYTES:]

    def _finish(self) -> ServerSentEvent | Oversized:
        name, data, size, retry = self._name, bytes(self._data or b""), self._size, self._retry
        self._name, self._data, self._size, self._retry, self._pending = b"", None, 0, None, False
        if size > self._limit:
            return Oversized(size, data[:EDGE_BYTES], data[-EDGE_BYTES:], self._limit)
        if not is_utf8(data):
            # Event streams are UTF-8 by definition: invalid bytes become U+FFFD, the rest stays.
            data = data.decode("utf-8", "replace").encode()
        return ServerSentEvent(name or b"message", data, self._id, retry)


def _parts(line: bytes | bytearray) -> tuple[bytes, bytes]:
    """Split a line into field and value."""
    if isinstance(line, bytes):
        field, _, value = line.partition(b":")
        return field, value.removeprefix(b" ")
    # A line that came in pieces may be long, and each bytes method would copy it.
    colon = line.find(b":")
    end = colon if colon >= 0 else len(line)
    begin = end + (2 if line[end + 1 : end + 2] == b" " else 1)
    with memoryview(line) as received:
        return bytes(received[:end]), bytes(received[begin:])


def on_one_line(encoded: bytes) -> bytes:
    """Put JSON on one line: with a line break between values, its author could begin another message."""
    return encoded.replace(b"\n", b" ").replace(b"\r", b" ")


READ_BYTES = 64 * 1024
"""Bytes read of a pipe at a time. A server could enlarge its pipe, and fill it with the smallest messages."""

TAKEN_AT_ONCE = 64
"""Messages of a read that are taken in one step of the event loop; a flood has a thousand in one."""


class PipeReader(asyncio.Protocol):
    """Read end of a pipe: passes received bytes to a function and sets `ended` at the end."""

    def __init__(self, feed: Callable[[bytes], None]) -> None:
        self._feed = feed
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bound the bytes that are read at a time."""
        if hasattr(transport, "max_size"):  # of the pipes of asyncio, without a setting for it
            transport.max_size = READ_BYTES

    def data_received(self, data: bytes) -> None:
        self._feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.ended.set()


class MessageReader(PipeReader):
    """Read end of a pipe with a message on each line: passes on one after the other, in their order.

    A large message takes a worker thread, a flood many steps of the event loop; the pipe is paused meanwhile.
    """

    def __init__(
        self,
        *,
        framer: LineFramer,
        receive: Callable[[bytes | Oversized], None],
        receive_large: Callable[[bytes], Awaitable[None]],
        resume: Callable[[], None] | None = None,
        endless: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Pass messages on to `receive`, large ones to `receive_large`.

        `resume` goes on reading the pipe, where something else may keep it paused; `endless` takes the number
        of bytes since the last message.
        """
        super().__init__(self.data_received)
        self.receive = receive
        self._framer, self._receive_large = framer, receive_large
        self._resume, self._endless = resume or self.resume_reading, endless
        self._transport: asyncio.ReadTransport | None = None
        self._held: deque[bytes | Oversized] = deque()
        """A large message, or the rest of a flood, and those that came after it."""
        self._came = asyncio.Event()
        self._closed = False
        self._unframed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the pipe, to pause it."""
        super().connection_made(transport)
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass on the messages that are complete now."""
        self._unframed += len(data)
        # Of a chunk of usual size, no message is large.
        may_be_large = self._unframed > TAKEN_APART_BYTES
        _step.begin()
        try:
            for number, frame in enumerate(self._framer.feed(data)):
                self._unframed = 0
                if self._held or number >= TAKEN_AT_ONCE or (may_be_large and is_large(frame)):
                    self._held.append(frame)
                else:
                    self.receive(frame)
        finally:
            _step.end()
        if self._held:
            self.pause_reading()
            self._came.set()
        if self._unframed:
            self._endless(self._unframed)

    def pause_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        pipe = self._transport
        if pipe is not None and not pipe.is_closing() and not pipe.is_reading():
            pipe.resume_reading()

    async def run_until_ended(self) -> None:
        """Pass on all messages, until the other side has closed its end."""
        async with alongside(self.run):
            await self.ended.wait()

    async def run(self) -> None:
        """Pass on the messages that are held, until cancelled."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._held:
                frame = self._held[0]
                if isinstance(frame, bytes) and is_large(frame):
                    await self._receive_large(frame)
                else:
                    await asyncio.sleep(0)  # whatever waits has its turn
                    self.receive(frame)
                self._held.popleft()
                # The next one may come much later, and this one has megabytes.
                del frame
            if self._closed:
                self.ended.set()
            else:
                self._resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the pipe is closed; it has ended when nothing is held any more."""
        self._closed = True
        if not self._held:
            super().connection_lost(exc)


LARGE_BYTES = 64 * 1024
"""Size from which a frame and its newline are written separately, to avoid a copy of the frame."""

SMALL_BYTES, GATHERED = 8 * 1024, 8
"""Size up to which frames are gathered, and how many are written together."""

LOOK_SECONDS = 1.0
"""Time between two looks at whether the other side reads."""

PIECE_BYTES = 1 << 18
"""Bytes of a frame that are handed to a pipe at a time. The pipe copies what it cannot write at once: a list
of 70 MB in one go keeps everybody else waiting for 50 ms, and a copy of a megabyte needs new memory."""


class _Step:
    """The step of the event loop in which a pipe is read: frames are written in it, and when it is over."""

    def __init__(self) -> None:
        self.depth, self.number = 0, 1
        """0 outside of any reading; and a number that grows with each step."""
        self.writers: list[PipeWriter] = []
        self._then: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Read some messages from here on."""
        self.depth += 1

    def end(self) -> None:
        """Have all frames written that are gathered: these messages are read."""
        self.depth -= 1
        if self.depth:
            return
        self.number += 1
        while self.writers:
            self.writers.pop().end_step()
        if self._then:
            then, self._then = self._then, []
            for follow_up in then:
                try:
                    follow_up()
                except Exception:
                    # boundary: a bug in it must not end the pipe whose messages were read
                    logger.exception("the follow-up of a message failed")

    def then(self, follow_up: Callable[[], None]) -> None:
        """Call a function once all frames of the step are written."""
        if self.depth:
            self._then.append(follow_up)
        else:
            asyncio.get_running_loop().call_soon(follow_up)


_step = _Step()
after_step = _step.then
"""Calls a function when what is being read is answered: at once, without another step of the event loop."""


class PipeWriter(asyncio.BaseProtocol):
    """Write end of a pipe: writes frames, each with a newline, and tells whether the other side is reading.

    A frame is taken whole, so that a line which has begun is always ended, whatever becomes of the task that
    wrote it. What is longer than `PIECE_BYTES` goes to the pipe piece by piece, as the other side reads;
    frames that come meanwhile follow it.

    Of small frames that come in one step of the event loop, the first is written at once, for a caller that
    waits, and the others a few at a time, the last when the step is over: a write costs more than all else
    that is done with a small frame, and without any the other side would have nothing to do.
    """

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        """Set while there is room and no piece is left, and once the pipe is closed: no writer hangs."""
        self.writable.set()
        self.closed, self._held_up = asyncio.Event(), asyncio.Event()
        self._pipe: asyncio.WriteTransport | None = None
        self._turn, self._full = anyio.Lock(), False
        self._left: deque[memoryview] = deque()
        """What is not handed to the pipe yet, in order."""
        self._gathered: list[bytes] = []
        """Small frames of this step of the event loop, after the first, each with its newline."""
        self._began_in = 0
        """Number of the step whose first small frame is written; 0 if others need not follow it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipe = cast("asyncio.WriteTransport", transport)

    def write_line(self, frame: bytes) -> None:
        """Write a frame, on one line, and a newline; nothing if the pipe is closed."""
        frame = on_one_line(frame)
        if self._began_in == _step.number and len(frame) < SMALL_BYTES and not self._left:
            self._gathered.append(frame + b"\n")
            if len(self._gathered) == 1 and _step.depth:
                _step.writers.append(self)
            elif len(self._gathered) >= GATHERED:
                self._write_gathered()
        elif self._pipe is None:
            return
        elif self._left:
            self._left += (memoryview(frame), memoryview(b"\n"))
        elif len(frame) < LARGE_BYTES:
            self._write_gathered()
            self._pipe.write(frame + b"\n")
            if not _step.depth and self._began_in != _step.number:
                # Outside of any reading, the frames of one step of the loop belong together.
                asyncio.get_running_loop().call_soon(self.end_step)
            self._began_in = _step.number
        elif len(frame) <= PIECE_BYTES:
            self._write_gathered()
            self._pipe.write(frame)
            self._pipe.write(b"\n")
        else:
            self._write_gathered()
            self._left += (memoryview(frame), memoryview(b"\n"))
            self.writable.clear()
            self._held_up.set()
            self._write_piece()

    def end_step(self) -> None:
        self._began_in = 0
        self._write_gathered()

    def _write_gathered(self) -> None:
        if self._gathered and self._pipe is not None:
            frames, self._gathered = self._gathered, []
            self._pipe.write(b"".join(frames))

    def sent_at_once(self, frame: bytes) -> bool:
        """Write a frame if neither it nor one before it has to wait; return whether it was written."""
        if not self.writable.is_set() or self._turn.locked():
            return False
        self.write_line(frame)
        return True

    async def send(self, frame: bytes) -> None:
        """Write a frame once there is room; frames that wait follow one another in turn."""
        if self.sent_at_once(frame):
            return
        await in_task()
        # One frame at a time: once there is room, the first may fill it.
        async with self._turn:
            await self.writable.wait()
            self.write_line(frame)

    def send_nowait(self, frame: bytes) -> bool:
        """Write a frame if there is room; return whether there was."""
        if not self.writable.is_set():
            return False
        self.write_line(frame)
        return True

    async def stalled(self, seconds: float) -> None:
        """Wait until the other side has read nothing of a full pipe for `seconds`."""
        loop = asyncio.get_running_loop()
        unsent, since = 0, loop.time()
        while loop.time() - since < seconds:
            if self.writable.is_set():
                self._held_up.clear()
                await self._held_up.wait()
                unsent, since = 0, loop.time()
            await anyio.sleep(min(LOOK_SECONDS, seconds / 4))
            left = self.unwritten
            if left < unsent:
                since = loop.time()
            unsent = left

    @property
    def unwritten(self) -> int:
        """Number of bytes that the system has not taken yet."""
        waiting = 0 if self._pipe is None else self._pipe.get_write_buffer_size()
        return waiting + sum(map(len, self._gathered)) + sum(map(len, self._left))

    def hand_over(self) -> None:
        """Hand everything that is left to the pipe in one go, because the event loop is about to end."""
        self._write_gathered()
        while self._left and self._pipe is not None and not self._pipe.is_closing():
            self._pipe.write(self._left.popleft())

    def _write_piece(self) -> None:
        """Write the next piece, if there is one and the pipe has room."""
        if not self._left or self._full or self._pipe is None or self._pipe.is_closing():
            return
        frame = self._left.popleft()
        if len(frame) > PIECE_BYTES:
            self._left.appendleft(frame[PIECE_BYTES:])
        self._pipe.write(frame[:PIECE_BYTES])
        if self._full:
            return
        if self._left:
            # In a step of its own: the other side may read as fast as this one writes.
            asyncio.get_running_loop().call_soon(self._write_piece)
        else:
            self.writable.set()

    def pause_writing(self) -> None:
        self._full = True
        self.writable.clear()
        self._held_up.set()

    def resume_writing(self) -> None:
        self._full = False
        if self._left:
            self._write_piece()
        else:
            self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._pipe = None
        self._left.clear()
        self._gathered.clear()
        self.closed.set()
        self.writable.set()


class Backpressure:
    """A gate in front of pipes and response bodies of servers, closed while the stdio host does not read.

    A host on standard streams is the only one that its process serves, so one gate for all servers is enough.
    Over HTTP, where many hosts are served, the gate stays open. Nothing is lost while it is closed: messages
    stay in the pipes of the servers, and calls go on when the host reads again.
    """

    def __init__(self) -> None:
        self._pipes: WeakSet[asyncio.ReadTransport] = WeakSet()
        self._opened: anyio.Event | None = None
        """Set when the gate opens; None while it is open."""

    def pass_through(self, pipe: asyncio.ReadTransport) -> None:
        """Pause this pipe whenever the gate is closed."""
        self._pipes.add(pipe)
        if self._opened is not None:
            pipe.pause_reading()

    @property
    def is_open(self) -> bool:
        """True while servers are read."""
        return self._opened is None

    async def wait(self) -> None:
        """Wait until the gate is open."""
        while self._opened is not None:
            await self._opened.wait()

    def close(self) -> None:
        """Stop reading the servers: messages stay in their pipes."""
        if self._opened is None:
            self._opened = anyio.Event()
            for pipe in self._pipes:
                if not pipe.is_closing():
                    pipe.pause_reading()

    def open(self) -> None:
        """Go on reading the servers."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None
            for pipe in self._pipes:
                if not pipe.is_closing():
                    pipe.resume_reading()


gate = Backpressure()
