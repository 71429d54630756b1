"""Requests that another replica has answered, for calls that this one cannot attribute by itself.

A call waits for none of this: it is attributed a moment later, when the other replica has written its record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Final

import anyio

from mcp_context_proxy.context.records import RequestContext, RequestRecords
from mcp_context_proxy.server.after_call import WINDOW_SECONDS, Unattributed

WRITTEN_SECONDS: Final = 1.5
"""Time after which the records of another replica are in the store."""

TOGETHER_SECONDS: Final = 0.25
"""Time between two looks at the store: of the calls in between, the requests are read together."""

WAITING_MOST: Final = 4096
"""Calls that wait; of more, the first ones teach nothing."""

REQUESTS_READ, REQUESTS_READ_FOR_CALL, REQUESTS_READ_MOST = 40, 10, 500
"""Requests of one session, or of one owner, that are read: so many, and more for each of the calls that are
attributed together, since all replicas have answered others meanwhile."""

KEPT_MOST: Final = 2_000
"""Requests of other replicas in memory, some megabytes."""

CLOCK_SECONDS: Final = 0.25
"""Difference of the clocks of two replicas, up to which a request may seem later than its call."""


class StoredRequests:
    """Calls that wait for the requests of other replicas."""

    def __init__(self, records: RequestRecords) -> None:
        self._records = records
        self._waiting: deque[tuple[float, Unattributed]] = deque(maxlen=WAITING_MOST)
        self._added = anyio.Event()
        self._read: OrderedDict[str, RequestContext] = OrderedDict()
        """Requests of other replicas that were read lately, by id: each is read and decoded once."""

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
            since = min(call.began for call in some) - WINDOW_SECONDS
            until = max(call.began for call in some) + CLOCK_SECONDS
            limit = min(REQUESTS_READ + REQUESTS_READ_FOR_CALL * len(some), REQUESTS_READ_MOST)
            mine = {one.id: one for one in self._records.recent(WINDOW_SECONDS)}
            known = mine.keys() | self._read.keys()
            for one in await self._records.stored(since, until, limit, *key, known):
                self._read[one.id] = one
                if len(self._read) > KEPT_MOST:
                    self._read.popitem(last=False)
            found = _Requests([*self._read.values(), *mine.values()], *key)
            for call in some:
                call.attribute(found.likely(call.began))


class _Requests:
    """The requests of one session, or of one owner without a session, the earliest first."""

    def __init__(self, found: list[RequestContext], session: str | None, owner: str | None) -> None:
        belong = [one for one in found if (one.session, one.owner) == (session, owner)]
        self._found = sorted(belong, key=lambda one: one.time)
        self._times = [one.time for one in self._found]

    def likely(self, began: float) -> Iterator[RequestContext]:
        """Iterate over the requests for which a call may have been made, the most likely first.

        The latest one before the call comes first. One that seems later may be so by the clocks alone.
        """
        after = bisect_right(self._times, began)
        for at in range(after - 1, bisect_left(self._times, began - WINDOW_SECONDS) - 1, -1):
            yield self._found[at]
        yield from self._found[after : bisect_right(self._times, began + CLOCK_SECONDS)]
