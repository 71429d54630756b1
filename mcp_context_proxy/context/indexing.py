"""Indexing for searches: in the background, one snapshot at a time, and the wait of a search for it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial

import anyio
from anyio.from_thread import check_cancelled
from anyio.from_thread import run_sync as on_loop
from msgspec import Struct, field

from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""Called on the event loop with the number of indexed texts and of all texts. Must not block."""


class Indexed(Struct, frozen=True):
    """Progress of indexing, which goes on in the background."""

    tools: int
    documents: int
    indexed: int
    total: int
    """Tools and documents that can be found."""
    complete: bool
    """True if nothing is left to index; without a model nothing ever is."""


class _Wanted(Struct, eq=False):
    """A snapshot that a search wants indexed."""

    snapshot: Snapshot
    since: float = field(default_factory=anyio.current_time)
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Set once it is indexed, or indexing was given up."""
    progress: list[tuple[float, int]] = field(default_factory=list)
    """Times of the latest two reports, each with the number of texts."""
    seconds_left: float = 0.0
    """Time that it takes from the latest report on, as far as that can be told."""
    told: anyio.Event = field(default_factory=anyio.Event)
    """Set at each report, and renewed."""

    def report(self, done: int, total: int) -> None:
        """Note how far indexing is."""
        self.progress[:] = [*self.progress[-1:], (anyio.current_time(), done)]
        (began, first), (now, latest) = self.progress[0], self.progress[-1]
        if latest > first:
            self.seconds_left = (now - began) / (latest - first) * (total - latest)
        self.told.set()
        self.told = anyio.Event()


class BackgroundIndexing:
    """Indexes the snapshots that searches want, one at a time."""

    def __init__(
        self,
        engine: Engine,
        open_model: Callable[[], object],
        after: Callable[[Snapshot], object] | None = None,
    ) -> None:
        """Index nothing yet.

        ``open_model`` is called in a thread, while words are indexed, and ``after`` with each snapshot that
        was indexed, when nobody waits for it any more.
        """
        self._engine, self._open_model, self._after = engine, open_model, after
        self._wanted: _Wanted | None = None
        self._asked, self._begun = anyio.Event(), anyio.Event()
        self._listeners: list[OnProgress] = []

    def begin(self) -> None:
        """Load the model, because a search is about to need it."""
        self._begun.set()

    async def run(self) -> None:
        """Index in a thread until cancelled; a newer snapshot cuts off an older one."""

        async def load_model() -> None:
            await self._begun.wait()
            # The search that needs the model gets the same error, and the log has it.
            with contextlib.suppress(ModelError):
                await in_thread(self._open_model, abandon_on_cancel=True)

        async with anyio.create_task_group() as group:
            group.start_soon(load_model)
            while True:
                await self._asked.wait()
                self._asked = anyio.Event()
                if self._wanted is not None:
                    await self._index_wanted(self._wanted)

    async def _index_wanted(self, wanted: _Wanted) -> None:
        def superseded() -> bool:
            check_cancelled()
            return self._wanted is not wanted

        def report(done: int, total: int) -> None:
            wanted.report(done, total)
            for listener in self._listeners:
                listener(done, total)

        index = partial(self._engine.index, wanted.snapshot, _from_thread(report), superseded)
        try:
            await in_thread(index)
        except EmbeddingCancelledError as stopped:
            logger.debug("%s", stopped)
        except Exception:
            # boundary: after a fault in indexing, searches use what is indexed
            logger.exception("indexing failed")
        finally:
            wanted.ended.set()
            wanted.told.set()
        if self._after is not None and self._engine.indexed(wanted.snapshot):
            try:
                await in_thread(partial(self._after, wanted.snapshot), abandon_on_cancel=True)
            except Exception:
                # boundary: what was not prepared is done by the first request that needs it
                logger.exception("preparing links of documents failed")

    def prepare(self, snapshot: Snapshot) -> None:
        self._begun.set()
        if self._engine.indexed(snapshot):
            return
        if self._wanted is None or self._wanted.snapshot is not snapshot or self._wanted.ended.is_set():
            self._wanted = _Wanted(snapshot)
        self._asked.set()

    async def wait(
        self, snapshot: Snapshot, until: float, patience: float, on_progress: OnProgress | None
    ) -> None:
        """Wait for the index of a snapshot, as long as it may be ready in time.

        The search waits ``until`` its deadline, by the clock of the event loop; after ``patience`` seconds no
        search waits for this snapshot any more.
        """
        self.prepare(snapshot)
        if self._engine.indexed(snapshot) or self._wanted is None:
            return
        if on_progress is not None:
            self._listeners.append(on_progress)
        wanted = self._wanted
        deadline = min(until, wanted.since + patience)
        try:
            with anyio.CancelScope(deadline=deadline):
                while not wanted.ended.is_set() and anyio.current_time() + wanted.seconds_left < deadline:
                    await wanted.told.wait()
        finally:
            if on_progress is not None:
                self._listeners.remove(on_progress)

    async def index(self, snapshot: Snapshot, on_progress: OnProgress | None) -> None:
        """Index a snapshot to the end, and wait for it."""

        def stopped() -> bool:
            check_cancelled()  # raises, which ends the thread
            return False

        report = None if on_progress is None else _from_thread(on_progress)
        await in_thread(partial(self._engine.index, snapshot, report, stopped))


def _from_thread(on_progress: OnProgress) -> OnProgress:
    return lambda done, total: on_loop(on_progress, done, total)
