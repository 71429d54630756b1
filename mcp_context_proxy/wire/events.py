"""Cuts a byte stream into server-sent events of bounded size; lines that say nothing cost next to nothing.

What comes stays bytes: an event of megabytes is neither decoded nor joined from pieces more than once. Fields
that nobody could use, such as an id that fits no header or a time beyond all bounds, are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mcp_context_proxy.wire.utf8 import is_utf8

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
