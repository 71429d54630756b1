"""Embeddings for programs without a proxy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Self

from mcp_context_proxy.config import Config
from mcp_context_proxy.embedding.embedder import Matrix
from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
from mcp_context_proxy.items import Vector
from mcp_context_proxy.system.later import np


class Embeddings:
    """Embeds texts with the model of a configuration, by default the packaged one.

    Every vector is a float32 array of `dimension` numbers with norm 1, so the cosine of two is their dot
    product, -1 to 1. Blocking and thread-safe. Close it, or use it as a context manager. Methods raise
    `ModelError` if the model cannot be opened or fails.
    """

    def __init__(self, config: Config | None = None) -> None:
        """Open nothing yet; the model is opened at the first use."""
        self._model = LazyModel(partial(open_model, config or Config()))

    @property
    def dimension(self) -> int:
        """Numbers of a vector: 384 with the packaged model."""
        return self._model.run(lambda model: model.dimensions)

    def embed(self, text: str) -> Vector:
        """Return the vector of one text, of shape ``(dimension,)``."""
        vector: Vector = self.embed_many([text])[0]
        return vector

    def embed_many(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors of texts, one a row, of shape ``(len(texts), dimension)``."""
        return self._model.run(lambda model: model.embed(list(texts)))

    def embed_query(self, query: str) -> Vector:
        """Return the vector of a query; some models read queries otherwise than texts."""
        vector: Vector = self._model.run(lambda model: model.embed_queries([query]))[0]
        return vector

    def cosine(self, one: str, other: str) -> float:
        """Return the cosine of two texts, -1 to 1; 1 is the same direction."""
        first, second = self.embed_many([one, other])
        return float(first @ second)

    def most_similar(self, query: str, texts: Sequence[str], top_k: int = 10) -> list[tuple[int, float]]:
        """Return the texts that are nearest to a query: the position of each, and its cosine, best first.

        Raises:
            ValueError: `top_k` is below 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}; it must be at least 1")
        if not texts:
            return []
        cosines = self.embed_many(texts) @ self.embed_query(query)
        best = np.argsort(-cosines, kind="stable")[:top_k]
        return [(int(at), float(cosines[at])) for at in best]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the model."""
        self._model.close()
