"""Indexing in the background: the first search of a snapshot asks for it, and waits for it a moment only."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio.from_thread import check_cancelled
from anyio.from_thread import run_sync as on_loop

from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""Takes how many texts are indexed, of how many. Called on the event loop; must not block."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """How far indexing is."""

    tools: int
    """All there are."""
    documents: int
    """All there are."""
    indexed: int
    total: int
    """Tools and documents that can be found."""
    complete: bool
    """Whether nothing more is to come: where there is no model, with nothing indexed."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """A snapshot that searches want indexed."""

    snapshot: Snapshot
    since: float = field(default_factory=anyio.current_time)
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Indexed, or given up."""


class BackgroundIndexing:
    """Indexes the snapshot that searches want, one at a time."""

    def __init__(self, engine: Engine, open_model: Callable[[], object]) -> None:
        """Prepare to index.

        Args:
            engine: Owns the indexes.
            open_model: Makes the model ready, in a thread, while words are read.
        """
        self._engine, self._open_model = engine, open_model
        self._wanted: _Wanted | None = None
        self._asked, self._begun = anyio.Event(), anyio.Event()
        self._listeners: list[OnProgress] = []

    def begin(self) -> None:
        """Have the model made ready: there is going to be a search."""
        self._begun.set()

    async def run(self) -> None:
        """Index what searches want, in a thread, until cancelled; a newer snapshot goes first."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._have_model)
            while True:
                await self._asked.wait()
                self._asked = anyio.Event()
                if self._wanted is not None:
                    await self._index_wanted(self._wanted)

    async def _have_model(self) -> None:
        await self._begun.wait()
        # Whoever needs it hears the same, and the log has it.
        with contextlib.suppress(ModelError):
            await in_thread(self._open_model, abandon_on_cancel=True)

    async def _index_wanted(self, wanted: _Wanted) -> None:
        def superseded() -> bool:
            return _stopped() or self._wanted is not wanted

        indexed = partial(self._engine.index, wanted.snapshot, _from_thread(self._tell), superseded)
        try:
            await in_thread(indexed)
        except EmbeddingCancelledError as stopped:
            logger.debug("%s", stopped)
        except Exception:
            # boundary: after a fault in indexing, search goes on by what is ready
            logger.exception("indexing failed")
        finally:
            wanted.ended.set()

    def _tell(self, done: int, total: int) -> None:
        for listener in self._listeners:
            listener(done, total)

    def prepare(self, snapshot: Snapshot) -> None:
        """Have a snapshot indexed in the background."""
        self._begun.set()
        if self._engine.indexed(snapshot):
            return
        if self._wanted is None or self._wanted.snapshot is not snapshot or self._wanted.ended.is_set():
            self._wanted = _Wanted(snapshot)
        self._asked.set()

    async def wait(
        self, snapshot: Snapshot, until: float, patience: float, on_progress: OnProgress | None
    ) -> None:
        """Wait until a snapshot is indexed, but not for ever."""
        self.prepare(snapshot)
        if self._engine.indexed(snapshot) or self._wanted is None:
            return
        listeners = [on_progress] if on_progress is not None else []
        self._listeners += listeners
        try:
            with anyio.move_on_at(min(until, self._wanted.since + patience)):
                await self._wanted.ended.wait()
        finally:
            for listener in listeners:
                self._listeners.remove(listener)

    async def index(
        self, snapshot: Snapshot, on_progress: OnProgress | None, limiter: anyio.CapacityLimiter
    ) -> None:
        """Index a snapshot in the foreground, to the end."""
        indexed = partial(self._engine.index, snapshot, _from_thread(on_progress), _stopped)
        await in_thread(indexed, limiter=limiter)


def _stopped() -> bool:
    """Never true: raises what ends the thread, when the task that waits for it is cancelled."""
    check_cancelled()
    return False


def _from_thread(on_progress: OnProgress | None) -> OnProgress | None:
    return None if on_progress is None else lambda done, total: on_loop(on_progress, done, total)
