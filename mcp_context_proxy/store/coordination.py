"""Coordination of the processes that share a store: leases of jobs, and the working set of each day."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import ToolKey
from mcp_context_proxy.store.database import WORKING_SET, Tables, Transaction


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
