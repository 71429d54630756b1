"""Requests that another replica has answered, for calls that this one cannot attribute by itself.

A call waits for none of this: it is attributed a moment later, when the other replica has written its record.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Final

import anyio

from mcp_context_proxy.context.records import RequestContext, RequestRecords, decoded
from mcp_context_proxy.server.after_call import WINDOW_SECONDS, Unattributed
from mcp_context_proxy.store import RequestRow

WRITTEN_SECONDS: Final = 1.5
"""Time after which the records of another replica are in the store."""

TOGETHER_SECONDS: Final = 0.25
"""Time between two looks at the store: of the calls in between, the requests are read together."""

WAITING_MOST: Final = 4096
"""Calls that wait; of more, the first ones teach nothing."""

REQUESTS_READ, REQUESTS_READ_FOR_CALL, REQUESTS_READ_MOST = 40, 10, 500
"""Requests of one session, or of one owner, that are read: so many, and more for each of the calls that are
attributed together, since all replicas have answered others meanwhile."""

CLOCK_SECONDS: Final = 0.25
"""Difference of the clocks of two replicas, up to which a request may seem later than its call."""


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
                await anyio.sleep_until(self._waiting[0][0] + TOGETHER_SECONDS)
                await self._attribute(list(self._due()))

    def _due(self) -> Iterator[Unattributed]:
        while self._waiting and self._waiting[0][0] <= anyio.current_time():
            yield self._waiting.popleft()[1]

    async def _attribute(self, calls: list[Unattributed]) -> None:
        """Attribute calls; the requests of each session, and of each owner, are read once for all of them."""
        together: dict[tuple[str | None, str | None], list[Unattributed]] = defaultdict(list)
        for call in calls:
            together[call.session, call.principal].append(call)
        for key, some in together.items():
            until = max(call.began for call in some) + CLOCK_SECONDS
            limit = min(REQUESTS_READ + REQUESTS_READ_FOR_CALL * len(some), REQUESTS_READ_MOST)
            rows = await self._records.rows_before(until, limit, *key)
            found = _Requests([*self._records.recent(WINDOW_SECONDS), *rows], *key)
            for call in some:
                call.attribute(found.likely(call.began))


class _Requests:
    """The requests of one session, or of one owner without a session; a row is decoded when it is needed."""

    def __init__(
        self, found: list[RequestContext | RequestRow], session: str | None, owner: str | None
    ) -> None:
        belong = [one for one in found if (one.session, one.owner) == (session, owner)]
        # Of a request that is in memory as well, the row comes second.
        self._found = list({one.id: one for one in reversed(belong)}.values())
        self._found.sort(key=lambda one: -one.time)

    def likely(self, began: float) -> Iterator[RequestContext]:
        """Iterate over the requests for which a call may have been made, the most likely first.

        The latest one before the call comes first. One that seems later may be so by the clocks alone.
        """
        before = [at for at, one in enumerate(self._found) if began - WINDOW_SECONDS <= one.time <= began]
        after = [at for at, one in enumerate(self._found) if began < one.time <= began + CLOCK_SECONDS]
        for at in (*before, *reversed(after)):
            one = self._found[at]
            if isinstance(one, RequestRow):
                read = decoded(one)
                if read is None:
                    continue
                self._found[at] = one = read
            yield one
