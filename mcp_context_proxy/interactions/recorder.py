"""Takes interactions in without holding anybody up: written together, then embedded when there is time.

Searches and calls only leave a note here. Whoever posts an interaction hears of it once it is in the store.

Embeds interactions that have no embedding, batch by batch, each kept at once: it can go on later.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio

from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError, StoreError
from mcp_context_proxy.interactions.memory import Interaction, InteractionMemory
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

WAITING: Final = 1_000
"""Searches and calls that wait to be written, or that the store has refused, or interactions that wait for
their embedding. Of more, the oldest are not written, or stay without."""

EMBEDDED_AT_ONCE: Final = 16
"""Some 50 ms of work with the packaged model, beside which a search gets its turn."""

GATHERING_SECONDS: Final = 0.5
"""Before what came is written, unless somebody posted it, and before it is embedded, unless somebody wants to
find it: an agent works in bursts, and is not to share the processor with its own memory."""

REST: Final = 5.0
"""Times that embedding rests for as long as it took. It may take two threads, so a third of one processor."""

PATIENCE_SECONDS: Final = 1.0
"""How long a search waits for a few that were recorded a moment ago: the model may have to be opened first.
For more than are embedded at once it does not wait; they are counted in its answer."""

LAST_WRITE_SECONDS: Final = 2.0
"""For what is unwritten when the proxy stops."""


@dataclass(slots=True, eq=False)
class _Posted:
    """An interaction that somebody waits for."""

    interaction: Interaction
    settled: anyio.Event = field(default_factory=anyio.Event)
    kept: Interaction | None = None
    error: StoreError | None = None


class InteractionRecorder:
    """Takes interactions in. Its `run` owns the work."""

    def __init__(self, memory: InteractionMemory) -> None:
        self.memory = memory
        """Where they go."""
        self._noted: deque[Callable[[], Interaction]] = deque(maxlen=WAITING)
        self._refused: deque[Interaction] = deque(maxlen=WAITING)
        """Notes that could not be written; they go with the next ones."""
        self._posted: deque[_Posted] = deque()
        self._unembedded: deque[Interaction] = deque(maxlen=WAITING)
        self._wake, self._to_embed, self._idle = anyio.Event(), anyio.Event(), anyio.Event()
        self._hurry, self._urgent = anyio.Event(), anyio.Event()
        self._complete = False
        self._busy = 0

    def note(self, interaction: Callable[[], Interaction]) -> None:
        """Keep what the function returns, soon. It is called in another thread. Does not block."""
        self._noted.append(interaction)
        self._wake.set()

    async def post(self, interaction: Interaction) -> Interaction:
        """Keep an interaction, and return it as it is kept: it is in the store by then.

        Raises:
            StoreError: it is not.
        """
        posted = _Posted(interaction)
        self._posted.append(posted)
        self._wake.set()
        self._urgent.set()
        await posted.settled.wait()
        if posted.error is not None:
            raise posted.error
        assert posted.kept is not None
        return posted.kept

    async def settled(self) -> None:
        """Wait until everything given so far is written, and embedded where it can be."""
        while self._noted or self._posted or self._unembedded or self._busy:
            self._hurry.set()
            self._urgent.set()
            self._idle = anyio.Event()
            await self._idle.wait()

    async def caught_up(self) -> None:
        """Wait a moment for what was recorded just now to be embedded, if that is little."""
        few = len(self._noted) + len(self._unembedded) <= EMBEDDED_AT_ONCE
        with anyio.move_on_after(PATIENCE_SECONDS if few else 0):
            await self.settled()

    async def run(self) -> None:
        """Write and embed what comes, until cancelled; then write what is left."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._embed_all)
                while True:
                    await self._wake.wait()
                    self._wake = anyio.Event()
                    with anyio.move_on_after(GATHERING_SECONDS):
                        await self._urgent.wait()
                    self._urgent = anyio.Event()
                    await self._write()
        finally:
            with anyio.move_on_after(LAST_WRITE_SECONDS, shield=True):
                await self._write()

    async def _write(self) -> None:
        """What waits, all in one transaction."""
        noted, posted = list(self._noted), list(self._posted)
        self._noted.clear()
        self._posted.clear()
        if not noted and not posted and not self._refused:
            return
        self._busy += 1
        try:
            # What is in the store must not be written again, nor whoever waits for it be left waiting.
            with anyio.CancelScope(shield=True):
                self._unembedded += await in_thread(self._put, noted, posted)
        finally:
            for one in posted:
                one.settled.set()
            self._done()
        self._to_embed.set()

    def _put(
        self, noted: Sequence[Callable[[], Interaction]], posted: Sequence[_Posted]
    ) -> list[Interaction]:
        made = self.memory.presentable([one for make in noted if (one := _made(make)) is not None])
        self._refused.extend(made)
        given = self.memory.presentable([one.interaction for one in posted])
        try:
            kept = self.memory.keep([*given, *self._refused])
        except StoreError as error:
            for waiting in posted:
                waiting.error = error
            return []
        self._refused.clear()
        for waiting, row in zip(posted, kept, strict=False):
            waiting.kept = row
        return kept

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
                self._busy += 1
                try:
                    left = await in_thread(self._embed, batch, abandon_on_cancel=True)
                    waiting = {one.id for one in self._unembedded}
                    self._unembedded.extend(one for one in left if one.id not in waiting)
                finally:
                    self._done()
                pause = REST * (time.perf_counter() - began)
            self._hurry = anyio.Event()

    def _embed(self, batch: Sequence[Interaction]) -> list[Interaction]:
        """Embed some; returns what is left of an earlier run, or of a time without a model."""
        try:
            self.memory.embed(batch)
            if self._complete:
                return []
            self._complete = True
            return self.memory.unembedded(0, WAITING)
        except (ModelError, EmbeddingCancelledError, StoreError) as error:
            self._complete = False
            logger.debug("%d interactions stay without an embedding: %s", len(batch), error)
        except Exception:
            # boundary: what cannot be embedded must not end the memory
            logger.exception("interactions could not be embedded")
        return []

    def _done(self) -> None:
        self._busy -= 1
        self._idle.set()


def _made(make: Callable[[], Interaction]) -> Interaction | None:
    try:
        return make()
    except Exception:
        # boundary: one that cannot be told must not cost the others
        logger.exception("an interaction could not be recorded")
        return None


BATCH: Final = 50
"""Interactions between two writes."""

GIVEN_UP_AFTER: Final = 5
"""Interactions that fail one after the other, each tried alone: then it is the model, not a text."""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What became of interactions without an embedding."""

    embedded: int
    failed: int
    left: int
    """Not tried, because the model failed again and again."""
    error: str | None
    """The last one."""


def backfill(
    memory: InteractionMemory, batch_size: int = BATCH, on_progress: Callable[[int, int], None] | None = None
) -> Backfilled:
    """Embed what has no embedding by the model in use. Blocks.

    Args:
        memory: Has the interactions.
        batch_size: How many are embedded and kept together.
        on_progress: Told how many were tried, of how many.

    Raises:
        ModelError: there is no model.
        StoreError: the store cannot be read or written; what was embedded until then is kept.
    """
    return _Backfill(memory, on_progress or (lambda _done, _total: None)).run(batch_size)


class _Backfill:
    """One run."""

    def __init__(self, memory: InteractionMemory, report: Callable[[int, int], None]) -> None:
        self._memory, self._report = memory, report
        self._embedded = self._failed = self._in_a_row = 0
        self._error: ModelError | None = None

    def run(self, batch_size: int) -> Backfilled:
        """To the end, or until the model is given up."""
        total, after = self._memory.unembedded_count(), 0
        self._report(0, total)
        while self._in_a_row < GIVEN_UP_AFTER and (batch := self._memory.unembedded(after, batch_size)):
            if not self._embed(batch):
                self._embed_each(batch)
            after = batch[-1].id
            self._report(self._embedded + self._failed, total)
        left = max(self._memory.unembedded_count() - self._failed, 0)
        return Backfilled(self._embedded, self._failed, left, str(self._error) if self._error else None)

    def _embed(self, batch: Sequence[Interaction]) -> bool:
        try:
            self._memory.embed(batch)
        except ModelError as error:
            self._error = error
            return False
        self._embedded, self._in_a_row = self._embedded + len(batch), 0
        return True

    def _embed_each(self, batch: Sequence[Interaction]) -> None:
        """One text that cannot be embedded must not cost the others."""
        for one in batch:
            if self._in_a_row == GIVEN_UP_AFTER:
                return
            if not self._embed([one]):
                self._failed, self._in_a_row = self._failed + 1, self._in_a_row + 1
