"""Requests that another replica has answered, for calls that this one cannot attribute by itself.

A call waits for none of this: it is attributed a moment later, when the other replica has written its record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import anyio

from mcp_context_proxy.context.records import RequestContext, RequestRecords
from mcp_context_proxy.server.after_call import Unattributed
from mcp_context_proxy.system.process import time_of_day

WRITTEN_SECONDS: Final = 1.5
"""Time after which the records of another replica are in the store."""

WAITING_MOST: Final = 1024
"""Calls that wait; of more, the first ones teach nothing."""

REQUESTS_READ: Final = 50
"""Requests of one session, or of one owner, that are read."""


class StoredRequests:
    """Calls that wait for the requests of other replicas."""

    def __init__(self, records: RequestRecords) -> None:
        self._records = records
        self._waiting: deque[tuple[float, Unattributed]] = deque(maxlen=WAITING_MOST)
        self._added = anyio.Event()

    def ask(self, call: Unattributed) -> None:
        """Attribute a call soon. Does not block."""
        self._waiting.append((anyio.current_time() + WRITTEN_SECONDS, call))
        self._added.set()

    async def run(self) -> None:
        """Attribute calls until cancelled."""
        while True:
            await self._added.wait()
            self._added = anyio.Event()
            while self._waiting:
                await anyio.sleep_until(self._waiting[0][0])
                await self._attribute(list(self._due()))

    def _due(self) -> Iterator[Unattributed]:
        while self._waiting and self._waiting[0][0] <= anyio.current_time():
            yield self._waiting.popleft()[1]

    async def _attribute(self, calls: list[Unattributed]) -> None:
        """Attribute calls; the requests of each session, and of each owner, are read once for all of them."""
        known: dict[tuple[str | None, str | None], list[RequestContext]] = {}
        for call in calls:
            key = call.session, call.principal
            if key not in known and call.session is not None:
                known[key] = await self._records.latest(REQUESTS_READ, call.session)
            elif key not in known:
                known[key] = await self._records.latest_of(call.principal, REQUESTS_READ)
            since = time_of_day() - call.window
            call.attribute([one for one in known[key] if one.time >= since])
