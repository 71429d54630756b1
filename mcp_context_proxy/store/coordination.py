"""Coordination of those who use the store: leases of jobs, the working set of a day, and batched writes.

Batches are written off the event loop: whoever adds an entry pays for an append.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

import anyio
import msgspec
from msgspec import Struct

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import ToolKey
from mcp_context_proxy.store.database import Tables, Transaction
from mcp_context_proxy.store.migrations import WORKING_SET
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)


class Lease(Struct, frozen=True):
    """The right to do a job until a moment."""

    job: str
    token: int
    """Number of the lease: a later one of the same job has a greater one."""
    until: float
    """Seconds since 1970, on the clock of the database."""


class LeaseStore(Tables):
    """Leases: which process does a job that one of them should do."""

    def take(self, job: str, seconds: float, *, over: bool = False) -> Lease | None:
        """Take or renew the lease of a job; None while another process has it, unless it is taken over."""
        database = self._database
        now = database.now()
        with database.transaction() as transaction:
            # Writing first makes the others wait, so that only one of them finds the lease free.
            transaction.execute(
                "INSERT INTO leases (job, holder, token, until) VALUES (?, ?, 0, 0) "
                "ON CONFLICT (job) DO UPDATE SET until = leases.until",
                (job, ""),
            )
            query = "SELECT holder, token, until FROM leases WHERE job = ?"
            holder, token, until = transaction.execute(query, (job,)).fetchone()
            if holder != database.writer and until > now and not over:
                return None
            if holder != database.writer or until <= now:
                token += 1
            transaction.execute(
                "UPDATE leases SET holder = ?, token = ?, until = ? WHERE job = ?",
                (database.writer, token, now + seconds, job),
            )
        return Lease(job, token, now + seconds)

    def give_back(self, lease: Lease) -> None:
        """End a lease, so that another process can take it at once."""
        with self._database.transaction() as transaction:
            transaction.execute(
                "UPDATE leases SET until = 0 WHERE job = ? AND token = ?", (lease.job, lease.token)
            )

    def held(self) -> list[tuple[str, str, float]]:
        """Return jobs, who holds them and until when."""
        query = "SELECT job, holder, until FROM leases WHERE until > ? ORDER BY job"
        return [(job, holder, until) for job, holder, until in self._database.rows(query, [self.now()])]

    def now(self) -> float:
        """Return the time by which leases end."""
        return self._database.now()


UPKEEP: Final = "upkeep"
"""Job of deleting old rows and summing up statistics."""

UPKEEP_SECONDS: Final = 60.0
"""Time after which another process takes the job over from one that was lost."""


class Upkeep:
    """The job of deleting old rows, which one of several processes does. Blocking and thread-safe."""

    def __init__(self, leases: LeaseStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._leases, self._clock = leases, clock
        self._lease: Lease | None = None
        self._asked = -UPKEEP_SECONDS
        self._asking = threading.Lock()

    def is_ours(self) -> bool:
        """Return whether this process does the job. The lease is taken or renewed if it is time."""
        with self._asking:
            now = self._clock()
            if now - self._asked >= UPKEEP_SECONDS / 2:
                self._asked = now
                try:
                    self._lease = self._leases.take(UPKEEP, UPKEEP_SECONDS)
                except StoreError:
                    self._lease = None  # logged by the store
            return self._lease is not None

    def take_over(self) -> None:
        """Do the job from now on, and have whoever did it before refused.

        Raises:
            StoreError: the store cannot be written.
        """
        with self._asking:
            self._lease, self._asked = self._leases.take(UPKEEP, UPKEEP_SECONDS, over=True), self._clock()

    def is_still_ours(self, transaction: Transaction) -> bool:
        """Return whether nobody has taken the job over since `is_ours` was asked."""
        lease = self._lease
        return lease is not None and transaction.holds(lease.job, lease.token)

    def end(self) -> None:
        """Leave the job to others."""
        with self._asking:
            lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._leases.give_back(lease)
            except StoreError:
                return  # it ends by itself


WORKING_SETS_KEPT = 30
"""Days whose choice is kept, to look back."""


class _Chosen(msgspec.Struct, frozen=True):
    server: str
    tool: str
    why: str


class WorkingSetStore(Tables):
    """The working set of each day: chosen by the first process that needs it, the same for all others."""

    def get(self, day: str, budget: int) -> dict[ToolKey, str] | None:
        """Return the tools of a day, each with the reason; None if nobody has chosen them yet."""
        query = "SELECT tools FROM working_sets WHERE day = ? AND budget = ?"
        rows = self._database.rows(query, (day, budget))
        return _decoded(rows[0][0]) if rows else None

    def choose(self, day: str, budget: int, chosen: Mapping[ToolKey, str]) -> dict[ToolKey, str]:
        """Keep the tools of a day, and return those that count: another process may have been faster."""
        encoded = msgspec.json.encode([_Chosen(*tool, why) for tool, why in chosen.items()])
        with self._database.transaction(WORKING_SET) as transaction:
            transaction.execute(
                "INSERT INTO working_sets (day, budget, tools) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (day, budget, encoded),
            )
            transaction.next_revision(WORKING_SET)
            transaction.forget_old("working_sets", ("day", "budget"), by="day", keep=WORKING_SETS_KEPT)
            query = "SELECT tools FROM working_sets WHERE day = ? AND budget = ?"
            (tools,) = transaction.execute(query, (day, budget)).fetchone()
        return _decoded(tools) or dict(chosen)


def _decoded(tools: object) -> dict[ToolKey, str] | None:
    """Return the tools of a row; None where it is damaged."""
    try:
        found = msgspec.json.decode(tools if isinstance(tools, bytes) else b"", type=list[_Chosen])
    except msgspec.DecodeError:
        return None
    return {(one.server, one.tool): one.why for one in found}


T = TypeVar("T")

LAST_SECONDS: Final = 2.0
"""Time for the entries that are unwritten when the proxy stops."""


class BatchWriter(Generic[T]):
    """Gathers entries for a moment and writes them together, in a thread.

    Entries that the store refuses are kept, and written with the next ones. A killed process loses the
    entries since the last write began: those of `seconds` and of the time that a write takes.
    """

    def __init__(
        self, write: Callable[[list[T]], None], *, seconds: float, limit: int, at_once: int | None = None
    ) -> None:
        """Write nothing yet: `run` does.

        `write` is called in a thread, one call at a time, with `at_once` entries at most, gathered for some
        `seconds`. It raises `StoreError` where they are to be kept for another attempt. Of more than `limit`
        entries that wait, the oldest are dropped.
        """
        self._write, self._seconds, self._at_once = write, seconds, at_once
        self._waiting: deque[T] = deque(maxlen=limit)
        self._in_flight: list[T] = []
        self._wake, self._writing = anyio.Event(), anyio.Lock()

    def add(self, entry: T) -> None:
        """Have an entry written soon. Does not block."""
        self._waiting.append(entry)
        self._wake.set()

    @property
    def unwritten(self) -> list[T]:
        """The entries that are not in the store yet, oldest first."""
        return [*self._in_flight, *self._waiting]

    async def run(self) -> None:
        """Write until cancelled, and then the entries that are left."""
        try:
            while True:
                await self._wake.wait()
                await anyio.sleep(self._seconds)
                self._wake = anyio.Event()
                await self.flush()
        finally:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                await self.flush()

    async def flush(self) -> None:
        """Write every entry that was added before, unless the store refuses."""
        async with self._writing:
            left = len(self._waiting)
            while left > 0:
                count = min(left, self._at_once or left)
                self._in_flight = [self._waiting.popleft() for _ in range(count)]
                # Not abandoned when cancelled: the store must not get the same entries twice.
                with anyio.CancelScope(shield=True):
                    written = await in_thread(self._attempt, self._in_flight)
                if not written:
                    self._waiting = deque(self.unwritten, self._waiting.maxlen)
                self._in_flight, left = [], left - count if written else 0

    def _attempt(self, entries: list[T]) -> bool:
        try:
            self._write(entries)
        except StoreError:
            return False  # logged by the store
        except Exception:
            # boundary: entries that cannot be written must not end the task, nor be tried for ever
            logger.exception("%d entries could not be written to the store and are lost", len(entries))
        return True
