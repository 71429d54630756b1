"""The replicas that are there, as this one knows them: each gives signs of life through the database.

While the database is away, those that were known last stay known: whether one of them is still there, its
address tells.

What a server has announced to one replica, the others hear as a hint. It may be lost and decides nothing: one
about a list has the others list again; one about a resource is passed to their clients, unless the server has
just announced the same there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final

import anyio
import anyio.lowlevel
import msgspec
from msgspec import Struct

from mcp_context_proxy import __version__
from mcp_context_proxy.cluster.relay import ClusterCounts
from mcp_context_proxy.cluster.tables import ReplicaRow, ReplicaTable
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.store.credentials import mark_of
from mcp_context_proxy.store.hints import ChangeHints
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

BEATS_MISSED: Final = 3
"""Signs of life after which a replica counts as gone, if all of them are missing."""

LOOK_SECONDS: Final = 0.1
"""Time between two looks for a replica that is not known."""

SAME_SECONDS: Final = 2.0
"""Time after an announcement of a server here in which that of another replica is taken for the same one."""

ANNOUNCED_KEPT: Final = 1024
"""Resources whose latest announcement is remembered."""


class Replicas:
    """This replica among the others."""

    def __init__(
        self,
        table: ReplicaTable,
        *,
        name: str,
        instance: str,
        address: str,
        keys: Sequence[bytes],
        heartbeat_seconds: float,
        counts: ClusterCounts,
    ) -> None:
        """Know nobody yet; `address` is where the others reach this one, and its own key is the first."""
        self._table, self.name, self._seconds = table, name, heartbeat_seconds
        mark, *others = map(mark_of, keys)
        self._own = ReplicaRow(name, instance, address, mark, __version__, 0.0, 0.0, 0)
        self._marks = frozenset((mark, *others))
        self._alive: dict[str, ReplicaRow] = {}
        self._counts = counts
        counts.replicas = lambda: len(self._alive.keys() - self._suspects)
        self._suspects: set[str] = set()
        self._known: set[str] = set()
        """Names of all that are in the database, also of those that are gone."""
        self._looking, self._looked = anyio.Lock(), -LOOK_SECONDS
        self._problem: str | None = None
        self.refused: str | None = None
        """The replica that has refused a relay of this one, if any did lately."""
        self.on_drain: Callable[[], None] = lambda: None
        """Called when a person wants this replica to be drained."""
        self.after_beat: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        """Called after each sign of life."""

    @property
    def lack(self) -> str | None:
        """The reason why this replica should not serve; None if there is none."""
        if self._problem is not None:
            return self._problem
        if self.refused is not None:
            return "another replica has refused a relay of this one: cluster.key or the clock differs"
        return None

    def address_of(self, replica: str) -> str | None:
        """Return the address of another replica that is alive, as far as that is known; None otherwise."""
        row = self._alive.get(replica)
        return None if row is None or replica in self._suspects or replica == self.name else row.address

    def suspect(self, replica: str) -> None:
        """Note that a replica could not be reached: it counts as gone until its next sign of life."""
        if replica not in self._suspects:
            self._suspects.add(replica)
            self._counts.replicas_lost += 1

    async def look_for(self, replica: str) -> None:
        """Look whether a replica that is not known has joined since the last sign of life.

        Those who ask at the same moment look together, so that made-up names cost few looks.
        """
        if not replica or replica in self._known:
            return
        asked = anyio.current_time()
        async with self._looking:
            if self._looked < asked:
                await anyio.sleep_until(self._looked + LOOK_SECONDS)
                self._looked = anyio.current_time()
                await self._beat(at_start=not self._own.started)

    async def join(self) -> None:
        """Give the first sign of life, if the database can be reached."""
        await self._beat(at_start=True)

    async def run(self) -> None:
        """Give signs of life and follow those of the others, until cancelled."""
        while True:
            await anyio.sleep(self._seconds)
            await self._beat(at_start=not self._own.started)
            await self.after_beat()

    async def leave(self) -> None:
        """Tell that this replica is gone; its sessions have no home from now on."""
        try:
            await in_thread(self._table.leave, self.name, self._own.instance)
        except StoreError as error:
            logger.warning("the other replicas cannot be told that this one leaves: %s", error)

    async def _beat(self, *, at_start: bool) -> None:
        try:
            beat = self._table.beat
            now, rows = await in_thread(lambda: beat(self._own, at_start=at_start))
        except StoreError as error:
            logger.debug("no sign of life: %s", error)
            return
        before, self._alive = self._alive, {}
        self._known = {row.replica for row in rows}
        for row in rows:
            if now - row.seen < BEATS_MISSED * self._seconds:
                self._alive[row.replica] = row
                last = before.get(row.replica)
                if last is None or last.seen != row.seen:
                    self._suspects.discard(row.replica)
            elif row.replica in before and row.replica not in self._suspects:
                self._counts.replicas_lost += 1
        own = self._alive.get(self.name)
        self._problem = self._problem_in(own)
        if own is not None and own.instance == self._own.instance:
            self._own = own
            if own.draining:
                self.on_drain()

    def _problem_in(self, own: ReplicaRow | None) -> str | None:
        if own is not None and own.instance != self._own.instance:
            return "another process has the name of this replica (cluster.replica)"
        marks = Counter(row.key_mark for row in self._alive.values())
        # Of equally many, the key of those that started first is the right one.
        if marks and max(marks, key=marks.__getitem__) not in self._marks:
            return "cluster.key is not that of the other replicas"
        self.refused = None
        return None


class _Hint(Struct, array_like=True):
    server: str
    uri: str | None = None


_encode, _decode = msgspec.json.encode, msgspec.json.Decoder(_Hint).decode


class Announcements:
    """Tells and hears the announcements of servers."""

    def __init__(self, hints: ChangeHints, changes: ChangeNotifier, fleet: Fleet) -> None:
        """Connect `changes` with the hints; call within the event loop."""
        self._hints, self._changes, self._fleet = hints, changes, fleet
        self._announced: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._loop, self._begun = asyncio.get_running_loop(), False
        changes.elsewhere = self._tell
        hints.heard = self._heard

    def close(self) -> None:
        """Tell and hear nothing any more."""
        self._changes.elsewhere = self._hints.heard = None

    def _tell(self, server: str, method: str, uri: str | None) -> None:
        """Tell the others of an announcement of a server here."""
        if uri is None:
            if method.endswith("/list_changed"):
                self._hints.tell(_encode(_Hint(server)).decode())
            return
        self._announced.pop((server, uri), None)
        self._announced[server, uri] = self._loop.time()
        if len(self._announced) > ANNOUNCED_KEPT:
            self._announced.popitem(last=False)
        self._hints.tell(_encode(_Hint(server, uri)).decode())

    def _heard(self, message: str) -> None:
        """Take a message, in the thread of the hints."""
        try:
            self._loop.call_soon_threadsafe(self._take, message)
        except RuntimeError:
            logger.debug("a hint came when everything had ended")

    def _take(self, message: str) -> None:
        if not message:
            if self._begun:
                for each in self._fleet.clients.values():
                    each.list_again()
            self._begun = True
            return
        try:
            hint = _decode(message)
        except msgspec.DecodeError:
            return
        client = self._fleet.clients.get(hint.server)
        if client is None:
            return
        if hint.uri is None:
            client.list_again()
        elif self._loop.time() - self._announced.get((hint.server, hint.uri), -inf) >= SAME_SECONDS:
            self._changes.updated_elsewhere(hint.server, hint.uri)
