"""Embeds interactions that have no embedding, batch by batch, each kept at once: it can go on later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.interactions.interaction import Interaction
from mcp_context_proxy.interactions.memory import InteractionMemory

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
