"""Recording of interactions off the event loop: they are written together, and embedded when there is time.

Searches and calls are only noted. A client that posts an interaction gets the response once it is stored.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import anyio.from_thread
from msgspec import Struct, field

from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError, StoreError
from mcp_context_proxy.interactions.memory import InteractionMemory
from mcp_context_proxy.store import BatchWriter, Interaction, new_origin
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

WAITING: Final = 1_000
"""Interactions that wait to be written, and as many that wait for their embedding. Of more, the oldest are
not written, or stay without an embedding until a backfill."""

EMBEDDED_AT_ONCE: Final = 16
"""Interactions in one batch: some 50 ms of work with the packaged model, during which a search can run."""

GATHERING_SECONDS: Final = 0.5
"""Time for which interactions are gathered before they are written, unless a client posts one, and before
they are embedded, unless a search waits for them: an agent works in bursts, and should not share the
processor with its own memory."""

PAUSE: Final = 5.0
"""Pause between two batches, in times of the last batch. A batch may take two threads, so this uses a third
of one processor."""

PATIENCE_SECONDS: Final = 1.0
"""Time for which a search waits for recent interactions: the model may have to be opened first. It does not
wait for more than one batch; its answer counts those that are left out."""

BATCH: Final = 50
"""Interactions between two writes of a backfill."""

GIVEN_UP_AFTER: Final = 5
"""Interactions that fail one after the other, each tried alone: then the model is broken, not a text."""


class _WaitingInteraction(Struct, eq=False):
    """An interaction that waits to be written."""

    make: Callable[[], Interaction]
    is_posted: bool = False
    presentable: Interaction | None = None
    """The interaction that `make` returned, as it is kept."""
    kept: Interaction | None = None
    """The same with its id, once it is in the store."""
    error: Exception | None = None
    """Why it will not be written."""
    origin: str = field(default_factory=new_origin)
    """Id under which it is written, however often that is tried."""


class InteractionRecorder:
    """Records interactions. Its `run` owns the work."""

    def __init__(self, memory: InteractionMemory) -> None:
        self.memory = memory
        """The memory that keeps them."""
        self._entries = BatchWriter(self._write, seconds=GATHERING_SECONDS, limit=WAITING)
        self._unembedded: deque[Interaction] = deque(maxlen=WAITING)
        self._is_embedding = False
        self._is_complete = False
        self._to_embed, self._hurry, self._embedded = anyio.Event(), anyio.Event(), anyio.Event()

    def note(self, interaction: Callable[[], Interaction]) -> None:
        """Keep the interaction that the function returns, soon. It is called in a thread. Does not block."""
        self._entries.add(_WaitingInteraction(interaction))

    async def post(self, interaction: Interaction) -> Interaction:
        """Keep an interaction, and return it as it is in the store; raises `StoreError`."""
        entry = _WaitingInteraction(lambda: interaction, is_posted=True)
        while entry.kept is None:
            # Posts that arrive during a write are written together by the next one. With very many of them an
            # entry may be dropped, and is added again.
            self._entries.add(entry)
            await self._entries.flush()
            if entry.error is not None:
                raise entry.error
        return entry.kept

    async def drain(self) -> None:
        """Wait until every interaction so far is written, and embedded where that is possible."""
        await self._entries.flush()
        while self._unembedded or self._is_embedding:
            self._hurry.set()
            await self._embedded.wait()

    async def wait_for_recent(self) -> None:
        """Wait a moment for interactions that were just recorded to be embedded, if there are few."""
        few = len(self._entries.unwritten) + len(self._unembedded) <= EMBEDDED_AT_ONCE
        with anyio.move_on_after(PATIENCE_SECONDS if few else 0):
            await self.drain()

    async def run(self) -> None:
        """Write and embed until cancelled, and then write the interactions that are left."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._embed_all)
            await self._entries.run()

    def _write(self, entries: Sequence[_WaitingInteraction]) -> None:
        ready: list[tuple[_WaitingInteraction, Interaction]] = []
        for entry in entries:
            try:
                if entry.presentable is None and entry.error is None:
                    entry.presentable = self.memory.presentable(entry.make())
            except Exception as error:
                # boundary: an interaction that cannot be made must not cost the others
                logger.exception("an interaction could not be recorded")
                entry.error = error
            if entry.presentable is not None and entry.error is None:
                ready.append((entry, entry.presentable))
        if not ready:
            return
        try:
            origins = [entry.origin for entry, _ in ready]
            kept = self.memory.keep([presentable for _, presentable in ready], origins)
        except StoreError as error:
            for entry, _ in ready:
                # Its client gets the error; notes are kept for the next attempt.
                entry.error = error if entry.is_posted else None
            raise
        for (entry, _), interaction in zip(ready, kept, strict=True):
            entry.kept = interaction
        anyio.from_thread.run_sync(self._embed_soon, kept)

    def _embed_soon(self, kept: Sequence[Interaction]) -> None:
        self._unembedded += kept
        self._to_embed.set()

    async def _embed_all(self) -> None:
        while True:
            await self._to_embed.wait()
            self._to_embed = anyio.Event()
            pause = GATHERING_SECONDS
            while self._unembedded:
                with anyio.move_on_after(pause):
                    await self._hurry.wait()
                count = min(len(self._unembedded), EMBEDDED_AT_ONCE)
                batch = [self._unembedded.popleft() for _ in range(count)]
                began = time.perf_counter()
                self._is_embedding = True
                try:
                    left = await in_thread(self._embed, batch, abandon_on_cancel=True)
                    waiting = {one.id for one in self._unembedded}
                    self._unembedded.extend(one for one in left if one.id not in waiting)
                finally:
                    self._is_embedding = False
                    self._embedded.set()
                    self._embedded = anyio.Event()
                pause = PAUSE * (time.perf_counter() - began)
            self._hurry = anyio.Event()

    def _embed(self, batch: Sequence[Interaction]) -> list[Interaction]:
        """Embed a batch; return interactions that got no embedding in an earlier run or without a model."""
        try:
            self.memory.embed(batch)
            if self._is_complete:
                return []
            self._is_complete = True
            return self.memory.unembedded(0, WAITING)
        except (ModelError, EmbeddingCancelledError, StoreError) as error:
            self._is_complete = False
            logger.debug("%d interactions stay without an embedding: %s", len(batch), error)
        except Exception:
            # boundary: interactions that cannot be embedded must not end the memory
            logger.exception("interactions could not be embedded")
        return []


class Backfilled(Struct, frozen=True):
    """The result of a backfill."""

    embedded: int
    failed: int
    left: int
    """Interactions that were not tried, because the model failed again and again."""
    error: str | None
    """The last error."""


def backfill(
    memory: InteractionMemory, batch_size: int = BATCH, on_progress: Callable[[int, int], None] | None = None
) -> Backfilled:
    """Embed the interactions that have no embedding of the model in use. Blocks; may go on after a break.

    `on_progress` gets the number of interactions tried, and of all.

    Raises:
        ModelError: there is no model.
        StoreError: the store cannot be read or written; the embeddings made until then are kept.
    """
    report = on_progress or (lambda _done, _total: None)
    embedded = failed = failed_in_a_row = after = 0
    last_error: ModelError | None = None

    def embed(batch: Sequence[Interaction]) -> bool:
        nonlocal embedded, failed_in_a_row, last_error
        try:
            memory.embed(batch)
        except ModelError as error:
            last_error = error
            return False
        embedded, failed_in_a_row = embedded + len(batch), 0
        return True

    total = memory.unembedded_count()
    report(0, total)
    while failed_in_a_row < GIVEN_UP_AFTER and (batch := memory.unembedded(after, batch_size)):
        if not embed(batch):
            # One text that cannot be embedded must not cost the others.
            for one in batch:
                if failed_in_a_row < GIVEN_UP_AFTER and not embed([one]):
                    failed, failed_in_a_row = failed + 1, failed_in_a_row + 1
        after = batch[-1].id
        report(embedded + failed, total)
    left = max(memory.unembedded_count() - failed, 0)
    return Backfilled(embedded, failed, left, str(last_error) if last_error else None)
