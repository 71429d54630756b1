"""Cuts a byte stream into lines of bounded size; what is over the bound is skipped, never buffered.

A line over the limit is reported with its first and last bytes, so that the request it answers can be
failed by id instead of waiting for its deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
