"""Embeds queries: straight through the model, never into the store, which would keep what somebody asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mcp_context_proxy.embedding.embedder import Matrix
from mcp_context_proxy.embedding.lazy import LazyModel


class QueryEmbedder:
    """The model as the search engine asks it for queries. Blocking and thread-safe."""

    def __init__(self, model: LazyModel) -> None:
        self._model = model

    def embed(self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> Matrix:
        """One unit vector per text, in order.

        Raises:
            ModelError: there is no model, or it failed.
        """
        del on_progress
        return self.vectors(texts)[1]

    def vectors(self, texts: Sequence[str]) -> tuple[str, Matrix]:
        """The same, with the id of the model whose vectors they are.

        Raises:
            ModelError: there is no model, or it failed.
        """
        return self._model.used(lambda model: (model.model_id, model.embed_queries(texts)))
