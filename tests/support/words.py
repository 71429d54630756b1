"""A model whose vectors a test can read: a text is the sum of its words."""

import hashlib
from collections.abc import Sequence

import numpy as np

from mcp_context_proxy.errors import ModelError


class Words:
    """A model in which a text is the sum of its words, each of which has a random direction."""

    def __init__(self, model_id: str = "words", dimensions: int = 64) -> None:
        self.model_id, self.dimensions = model_id, dimensions
        self.error: ModelError | None = None

    def vectors(self, texts: Sequence[str]) -> tuple[str, np.ndarray]:
        if self.error is not None:
            raise self.error
        rows = [self.one(text) for text in texts]
        return self.model_id, np.array(rows, np.float32).reshape(len(rows), self.dimensions)

    def embed(self, texts: Sequence[str], on_progress: object = None) -> np.ndarray:
        return self.vectors(texts)[1]

    def one(self, text: str) -> np.ndarray:
        total = sum(self._direction(word.strip(".,:")) for word in text.lower().split())
        return (total / np.linalg.norm(total)).astype(np.float32)

    def _direction(self, word: str) -> np.ndarray:
        seed = hashlib.sha256(f"{self.model_id} {word}".encode()).digest()[:8]
        return np.random.default_rng(int.from_bytes(seed, "big")).standard_normal(self.dimensions)
