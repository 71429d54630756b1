"""Hints of PostgreSQL that an area of the store has changed, so that replicas need not ask all the time.

A hint may be lost, and decides nothing: it only says that looking is worth while. Without a connection that
listens, and half a minute after the last look in any case, everything may have changed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, unquote

import psycopg
from psycopg import sql

POLL_SECONDS: Final = 30.0
"""Time after a look at an area after which it may have changed without a hint."""

LISTEN_SECONDS: Final = 0.5
"""Time between two sendings of hints: of many changes of an area, one hint is sent."""

AGAIN_SECONDS: Final = 2.0
"""Time after which a connection that was lost is opened again."""

MESSAGE: Final = "@"
"""Beginning of a hint that holds messages, and not the names of areas."""

MESSAGES_WAITING, MESSAGES_AT_ONCE, MESSAGE_CHARACTERS = 256, 4, 1800
"""Messages of one sending, messages of one hint, and the length of a message: a hint has 8,000 bytes."""


class ChangeHints:
    """Sends and takes hints with one thread and a connection of its own."""

    def __init__(self, url: str, channel: str, connect: Callable[[str], psycopg.Connection[Any]]) -> None:
        """Connect nothing yet; ``url`` leads to the server itself, not to a pooler of transactions."""
        self._url, self._channel, self._connect = url, channel, connect
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._listening = False
        self._connected: int | None = None
        """File descriptor of the connection."""
        self._told: set[str] = set()
        self._to_tell: set[str] = set()
        self._looked: dict[str, float] = {}
        self._messages: dict[str, None] = {}
        self.heard: Callable[[str], None] | None = None
        """Takes each message of another process, in the thread of the hints; and an empty one whenever
        messages may have been lost."""

    def start(self) -> None:
        if self._thread is None and not self._closing.is_set():
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="store-hints", daemon=True)
                    self._thread.start()

    def changed(self, area: str) -> None:
        """Tell the other replicas soon that an area has changed."""
        with self._lock:
            self._to_tell.add(area)

    def tell(self, message: str) -> None:
        """Send a message to the other processes soon; one that waits is not sent twice. It may be lost."""
        with self._lock:
            if len(self._messages) < MESSAGES_WAITING:
                self._messages[quote(message, safe="")[:MESSAGE_CHARACTERS]] = None

    def may_have_changed(self, area: str) -> bool:
        """Return whether an area may have changed since this was asked before."""
        now = time.monotonic()
        with self._lock:
            fresh = area in self._told or now - self._looked.get(area, -POLL_SECONDS) >= POLL_SECONDS
            if fresh or not self._listening:
                self._told.discard(area)
                self._looked[area] = now
                return True
            return False

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            if self._connected is not None:
                shut(self._connected)
        if self._thread is not None:
            self._thread.join(2 * LISTEN_SECONDS)

    def _run(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(psycopg.Error, OSError):
                connection = self._connect(self._url)
                try:
                    self._listen(connection)
                finally:
                    with self._lock:
                        # What is told from now on is not heard.
                        self._listening, self._connected = False, None
                    connection.close()
            self._closing.wait(AGAIN_SECONDS)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        with self._lock:
            self._listening, self._connected = True, connection.fileno()
            self._looked.clear()
        if self.heard is not None:
            self.heard("")
        while not self._closing.is_set():
            for notice in connection.notifies(timeout=LISTEN_SECONDS):
                if notice.payload.startswith(MESSAGE):
                    # Sent by this process as well, which knows.
                    if notice.pid != connection.info.backend_pid and self.heard is not None:
                        for each in notice.payload[1:].split(","):
                            self.heard(unquote(each))
                    continue
                with self._lock:
                    self._told.update(notice.payload.split(","))
            with self._lock:
                telling, self._to_tell = self._to_tell, set()
                messages, self._messages = list(self._messages), {}
            if telling:
                connection.execute("SELECT pg_notify(%s, %s)", (self._channel, ",".join(sorted(telling))))
            for start in range(0, len(messages), MESSAGES_AT_ONCE):
                payload = MESSAGE + ",".join(messages[start : start + MESSAGES_AT_ONCE])
                connection.execute("SELECT pg_notify(%s, %s)", (self._channel, payload))


def shut(number: int) -> None:
    """Shut a socket down, so that whoever waits for it reads its end; the owner closes it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as other:
        other.shutdown(socket.SHUT_RDWR)
