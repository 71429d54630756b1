"""A memory whose vectors and clock a test can read."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from support import words as words_of_support
from support.clocks import Clock

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.interactions import (
    MESSAGE,
    InteractionMemory,
)
from mcp_context_proxy.store.memory import Interaction
from mcp_context_proxy.store.opening import Store, open_store

T = TypeVar("T")

DAY = 86_400.0
NOW = 20_000 * DAY

SECRET = "hunter2-and-more"


class Words(words_of_support.Words):
    """A model that is run as a lazy one; a text that is a number has that cosine to every query."""

    def __init__(self, model_id: str = "words", dimensions: int = 64) -> None:
        super().__init__(model_id, dimensions)
        self.unusable: set[str] = set()
        """Texts for which it has no vector."""
        self.asked: list[Sequence[str]] = []

    def run(self, use: Callable[[Any], T]) -> T:
        if self.error is not None:
            raise self.error
        return use(self)

    def embed(self, texts: Sequence[str], on_progress: object = None) -> np.ndarray:
        self.asked.append(texts)
        if self.unusable.intersection(texts):
            raise ModelError("words", "no vector for that", "say something else")
        return super().embed(texts)

    embed_queries = embed

    def close(self) -> None:
        pass

    def one(self, text: str) -> np.ndarray:
        try:
            cosine = 1.0 if text == QUERY else float(text)
        except ValueError:
            return super().one(text)
        vector = np.zeros(self.dimensions, np.float32)
        vector[0], vector[1] = cosine, np.sqrt(max(1 - cosine**2, 0))
        return vector


QUERY = "anything"
"""To which a text that is a number has that cosine."""


def said(content: str, days: float = 0.0, agent: str = "planner", kind: str = MESSAGE) -> Interaction:
    """An interaction of some days ago."""
    return Interaction(agent, kind, content, NOW - days * DAY)


def remembered(memory: InteractionMemory, *interactions: Interaction) -> list[Interaction]:
    """Kept and embedded."""
    kept = memory.add(interactions)
    memory.embed(kept)
    return kept


@pytest.fixture
def words() -> Words:
    return Words()


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with open_store(path) as opened:
        yield opened


def memory_in(
    store: Store, words: Words, clock: Clock, rows: int = 10_000, days: float = 90.0, **more: Any
) -> InteractionMemory:
    config = Config.of(
        {"interactions": {"keep": rows, "keep_days": days, **more}, "embedding": {"model": "words"}}
    )
    redact = Redactor([("PASSWORD", SECRET)])
    return InteractionMemory(words, store.interactions, config, redact=redact, clock=clock)


@pytest.fixture
def memory(store: Store, words: Words, clock: Clock) -> InteractionMemory:
    return memory_in(store, words, clock)
