"""Cuts a byte stream into lines of bounded size; what is over the bound is skipped, never buffered.

A line over the limit is reported with its first and last bytes, so that the request it answers can be
failed by id instead of waiting for its deadline.

Cuts a byte stream into server-sent events of bounded size; lines that say nothing cost next to nothing.

What comes stays bytes: an event of megabytes is neither decoded nor joined from pieces more than once. Fields
that nobody could use, such as an id that fits no header or a time beyond all bounds, are passed over.

The two ends of an operating-system pipe on the event loop, as asyncio wants them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mcp_context_proxy.protocol.envelope import is_utf8

EDGE_BYTES = 256
"""How much of both ends of an oversized line is kept: enough to find an envelope's ``id``."""


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line that was longer than the limit and therefore dropped."""

    size: int
    """Its length in bytes, without the newline."""
    head: bytes
    tail: bytes
    limit: int
    """What it was over."""


class LineFramer:
    """Collects chunks and yields complete lines without their line ends; blank lines are skipped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._dropped = 0
        self._head = b""

    @property
    def unended(self) -> bytes:
        """What has come of a line that is not complete; of one that is too long its last bytes."""
        return bytes(self._buffer).strip()

    def feed(self, data: bytes) -> Iterator[bytes | Oversized]:
        """Add received bytes; yield every line that is now complete, in order."""
        if not self._buffer and not self._dropped and data.endswith(b"\n"):
            # The common case: the chunk is exactly one or more whole lines; no copy into the buffer.
            for line in data.split(b"\n"):
                yield from self._line(line)
            return
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            # One copy and not two: lines may be as long as the limit.
            with memoryview(self._buffer) as received:
                line = bytes(received[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            if self._dropped:
                yield Oversized(self._dropped + len(line), self._head, line[-EDGE_BYTES:], self._limit)
                self._dropped, self._head = 0, b""
            else:
                yield from self._line(line)
        self._searched = len(self._buffer)
        if self._dropped or self._searched > self._limit:
            self._drop()

    def _line(self, line: bytes) -> Iterator[bytes | Oversized]:
        if len(line) > self._limit:
            yield Oversized(len(line), line[:EDGE_BYTES], line[-EDGE_BYTES:], self._limit)
        elif stripped := line.strip(b" \t\r"):
            yield stripped

    def _drop(self) -> None:
        """Forget the buffered part of a line that is already too long, but keep its end as the next start."""
        if not self._dropped:
            self._head = bytes(self._buffer[:EDGE_BYTES])
        keep = self._buffer[-EDGE_BYTES:]
        self._dropped += len(self._buffer) - len(keep)
        self._buffer = keep
        self._searched = len(keep)


BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_ID = re.compile(rb"[^\x00-\x1f\x7f]{1,1024}")
"""An id that can be sent back in a header."""
_RETRY = re.compile(rb"\d{1,9}")
"""Milliseconds; with more digits they are years."""


class OversizedEventError(ValueError):
    """An event is larger than may be."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event."""

    name: bytes
    data: bytes
    id: bytes | None = None
    """Of this event or the last that had one; None before there was one."""
    retry_seconds: float | None = None
    """After which the server wants to be asked again, where this event says so."""


class EventFramer:
    """Collects chunks and yields complete events."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        """What has come of a line that is not complete."""
        self._data: list[bytes] = []
        self._size = 0
        self._name = b""
        self._id: bytes | None = None
        self._retry: float | None = None
        self._pending, self._begun, self._after_return = False, False, False

    def feed(self, data: bytes) -> Iterator[Event]:
        """Add received bytes; yield every event that is now complete, in order.

        Raises:
            OversizedEventError: what is not complete is over the limit.
        """
        *lines, rest = self._normalized(data).split(b"\n")
        for ended in lines:
            line: bytes | bytearray = ended
            if self._line:
                # It may be as long as the limit, so it is not copied before it is taken apart.
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
        self._check(len(self._line))

    def _normalized(self, data: bytes) -> bytes:
        """The bytes with every kind of line end as a line feed."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        self._after_return = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data

    def _take(self, line: bytes | bytearray) -> None:
        if line.startswith(b":"):
            return
        field, value = _parts(line)
        if field == b"data":
            self._data.append(value)
            # A line takes memory of its own, however short it is.
            self._size += len(line) + 1
            self._check(0)
        elif field == b"event":
            self._name = value
        elif field == b"id" and _ID.fullmatch(value):
            self._id = value
        elif field == b"retry" and _RETRY.fullmatch(value):
            self._retry = int(value) / 1000
        else:
            return
        self._pending = True

    def _check(self, unended: int) -> None:
        if self._size + unended > self._limit:
            raise OversizedEventError(f"an event is over the limit of {self._limit:,} bytes")

    def _finish(self) -> Event:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        if not is_utf8(data):
            # Such streams are UTF-8 by definition: what is not becomes U+FFFD, and the rest is as it came.
            data = data.decode("utf-8", "replace").encode()
        event = Event(self._name or b"message", data, self._id, self._retry)
        self._name, self._data, self._size, self._retry, self._pending = b"", [], 0, None, False
        return event


def _parts(line: bytes | bytearray) -> tuple[bytes, bytes]:
    """The field and the value of a line."""
    if isinstance(line, bytes):
        field, _, value = line.partition(b":")
        return field, value.removeprefix(b" ")
    # It came in pieces, so it may be long: each of those would copy it.
    colon = line.find(b":")
    end = colon if colon >= 0 else len(line)
    begin = end + (2 if line[end + 1 : end + 2] == b" " else 1)
    with memoryview(line) as received:
        return bytes(received[:end]), bytes(received[begin:])


def on_one_line(encoded: bytes) -> bytes:
    """JSON as the data of one event, which ends with its line: only between values is there a line break."""
    return encoded.replace(b"\n", b" ").replace(b"\r", b" ")


LARGE_BYTES = 64 * 1024
"""From this on a frame is not copied for the sake of its line end; a small one is written in one go."""


def write_line(pipe: asyncio.WriteTransport, frame: bytes) -> None:
    """Write a frame and its line end."""
    if len(frame) < LARGE_BYTES:
        pipe.write(frame + b"\n")
    else:
        pipe.write(frame)
        pipe.write(b"\n")


class PipeReader(asyncio.Protocol):
    """Feeds what is read to a function and notes the end."""

    def __init__(self, feed: Callable[[bytes], None]) -> None:
        self._feed = feed
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Take what was read."""
        self._feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has closed its end."""
        del exc
        self.ended.set()


class FlowControl(asyncio.BaseProtocol):
    """Knows whether the other side of a pipe is reading."""

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        """Clear while the pipe is full; set again also when it is closed, so that nobody waits for ever."""
        self.writable.set()
        self.closed = asyncio.Event()

    def pause_writing(self) -> None:
        """The pipe is full."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has closed its end."""
        del exc
        self.closed.set()
        self.writable.set()
