"""Remembers request contexts: the latest in memory at once, all that are kept in the store, a moment later.

Nobody waits for the disk to be served. The store is written by one task, off the event loop.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import anyio
import msgspec

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.config import Limits
from mcp_context_proxy.context.request import RequestContext, decoded, encoded
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store import RequestRow, RequestStore
from mcp_context_proxy.threads import in_thread

logger = logging.getLogger(__name__)

IN_MEMORY = 200
"""Request contexts that are at hand without the store: what a person looks at, under a megabyte."""

GATHERING_SECONDS = 0.5
"""What is added meanwhile is written at once, and whoever is just being answered does not share the processor
with the disk."""

UNWRITTEN = 1_000
"""That wait where the store refuses them, and go with the next one: some megabytes. Of more, the latest."""

LAST_WRITE_SECONDS = 2.0
"""For what is unwritten when the proxy stops."""


class RequestRecords:
    """The request contexts there were. Without a store those in memory are all."""

    def __init__(self, limits: Limits, store: RequestStore | None = None) -> None:
        self._store, self._keep, self._age = store, limits.requests_kept, limits.requests_age_seconds
        self._recent: OrderedDict[str, RequestContext] = OrderedDict()
        self._unwritten: dict[str, RequestContext] = {}
        self._wake = anyio.Event()
        self._added: list[Callable[[RequestContext], None]] = []

    def when_added(self, callback: Callable[[RequestContext], None]) -> None:
        """Call with every request context that is added; it must not block."""
        self._added.append(callback)

    def add(self, context: RequestContext) -> None:
        """Remember one. Does not block."""
        self._recent[context.id] = context
        if len(self._recent) > min(IN_MEMORY, self._keep):
            self._recent.popitem(last=False)
        if self._store is not None:
            self._unwritten[context.id] = context
            self._wake.set()
        for added in self._added:
            added(context)

    def recent(self) -> Iterator[RequestContext]:
        """Those in memory, newest first."""
        return reversed(self._recent.values())

    async def get(self, request_id: str) -> RequestContext | None:
        """The one by that id; None when it is unknown or forgotten."""
        known = self._recent.get(request_id) or self._unwritten.get(request_id)
        if known is not None or self._store is None:
            return known
        row = await in_thread(self._get, request_id)
        return None if row is None else _read(row)

    async def latest(self, limit: int, session: str | None = None) -> list[RequestContext]:
        """The latest, of one session or of all, newest first; also those of other proxies on the store."""
        recent = (one for one in self.recent() if session is None or one.session == session)
        return await self._with_stored(recent, limit, lambda store: store.latest(limit, session))

    async def latest_of(self, owner: str | None, limit: int) -> list[RequestContext]:
        """The same, of one who asked."""
        recent = (one for one in self.recent() if one.owner == owner)
        return await self._with_stored(recent, limit, lambda store: store.latest_of(owner, limit))

    async def _with_stored(
        self,
        recent: Iterable[RequestContext],
        limit: int,
        read: Callable[[RequestStore], list[RequestRow]],
    ) -> list[RequestContext]:
        found = {one.id: one for one in recent}
        if self._store is not None:
            rows = await in_thread(self._rows, partial(read, self._store))
            stored = (_read(row) for row in rows if row.id not in found)
            found |= {one.id: one for one in stored if one is not None}
        return sorted(found.values(), key=lambda one: -one.time)[:limit]

    async def run(self) -> None:
        """Write what is added, until cancelled; then once more."""
        try:
            while True:
                await self._wake.wait()
                await anyio.sleep(GATHERING_SECONDS)
                self._wake = anyio.Event()
                await self._write()
        finally:
            with anyio.move_on_after(LAST_WRITE_SECONDS, shield=True):
                await self._write()

    async def _write(self) -> None:
        """What is unwritten, all that came meanwhile in one transaction; what is refused stays so."""
        waiting = list(self._unwritten.values())
        if waiting:
            written = await in_thread(self._put, waiting)
            for one in waiting if written else waiting[:-UNWRITTEN]:
                self._unwritten.pop(one.id, None)

    def _put(self, contexts: Iterable[RequestContext]) -> bool:
        assert self._store is not None
        rows = [RequestRow(one.id, one.time, one.session, encoded(one), one.owner) for one in contexts]
        try:
            self._store.put(rows, self._keep, time_of_day() - self._age)
        except StoreError:
            return False
        return True

    def _get(self, request_id: str) -> RequestRow | None:
        assert self._store is not None
        try:
            return self._store.get(request_id)
        except StoreError:
            return None

    def _rows(self, read: Callable[[], list[RequestRow]]) -> list[RequestRow]:
        try:
            return read()
        except StoreError:
            return []


def _read(row: RequestRow) -> RequestContext | None:
    """A stored one; None when another version wrote it and this one cannot read it."""
    try:
        return decoded(row.context)
    except msgspec.DecodeError:
        return None
