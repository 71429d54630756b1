"""The latest queries with their vectors, in memory only: one request asks for the same texts several times.

It searches tools, then documents, then what is near to both.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mcp_context_proxy.embedding.embedder import Matrix
from mcp_context_proxy.items import Vector

TEXTS = 1000
"""Those of a hundred requests with all their sentences: 1.5 MB."""


@dataclass(slots=True)
class Lookups:
    """How often something that is remembered was asked for, and was there."""

    hits: int = 0
    misses: int = 0

    def count(self, hits: int, of: int) -> None:
        """Some were asked for, and as many were there."""
        self.hits += hits
        self.misses += of - hits


class EmbedsQueries(Protocol):
    """Whoever turns texts into vectors."""

    def embed(self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> Matrix:
        """One unit vector per text, in order."""
        ...


class RememberedQueries:
    """An embedder that is asked for each text once. Blocking and thread-safe."""

    def __init__(self, embedder: EmbedsQueries) -> None:
        self._embedder = embedder
        self._lock = threading.Lock()
        self._latest: OrderedDict[str, Vector] = OrderedDict()
        self.lookups = Lookups()

    def embed(self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> Matrix:
        """One unit vector per text, in order.

        Raises:
            ModelError: there is no model, or it failed.
        """
        with self._lock:
            known = {text: self._latest[text] for text in texts if text in self._latest}
            for text in known:
                self._latest.move_to_end(text)
            self.lookups.count(hits=len(known), of=len(set(texts)))
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if not known:
            vectors = self._embedder.embed(texts, on_progress)
            self._remember(dict(zip(texts, vectors, strict=True)))
            return vectors
        if missing:
            fresh = dict(zip(missing, self._embedder.embed(missing, on_progress), strict=True))
            self._remember(fresh)
            known |= fresh
        return np.stack([known[text] for text in texts])

    def _remember(self, fresh: dict[str, Vector]) -> None:
        with self._lock:
            self._latest.update(fresh)
            while len(self._latest) > TEXTS:
                self._latest.popitem(last=False)
