"""A text is embedded once per model: after that its vector comes from the store, found by the text's hash.

A stored vector is used only if it can be one of this model's: length, finite, norm 1. Anything else, and
anything the store cannot give, is computed again. Queries do not belong here: they would fill the store and
tell what somebody asked.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mcp_context_proxy.embedding.embedder import Embedder, Matrix, are_unit
from mcp_context_proxy.embedding.lazy import LazyModel
from mcp_context_proxy.errors import EmbeddingCancelledError, StoreError
from mcp_context_proxy.items import Vector
from mcp_context_proxy.store.protocol import VectorStore

BATCH = 64
"""Texts between two writes, two reports of progress and two looks at whether to stop: about a tenth of a
second of work with the packaged model, which is what an interrupted indexing can lose."""


class CachedEmbedder:
    """Embeds texts of the catalog, each text once. Blocking and thread-safe."""

    def __init__(self, model: LazyModel, store: VectorStore) -> None:
        self._model, self._store = model, store

    def embed(
        self,
        texts: Sequence[str],
        on_progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Matrix:
        """One unit vector per text, in order.

        ``on_progress(done, total)`` counts distinct texts: once those the store knows, then every batch.

        Raises:
            ModelError: there is no model, or it failed; what was embedded until then is stored.
            EmbeddingCancelledError: ``cancelled()`` became true; what was embedded until then is stored.
        """
        return self._model.used(partial(self._embedded, texts, on_progress, cancelled))

    def _embedded(
        self,
        texts: Sequence[str],
        on_progress: Callable[[int, int], None] | None,
        cancelled: Callable[[], bool],
        model: Embedder,
    ) -> Matrix:
        keys = [_key(text) for text in texts]
        distinct = dict(zip(keys, texts, strict=True))
        vectors = self._stored(model, list(distinct))
        missing = [key for key in distinct if key not in vectors]
        report = on_progress or (lambda _done, _total: None)
        report(len(vectors), len(distinct))
        for start in range(0, len(missing), BATCH):
            if cancelled():
                raise EmbeddingCancelledError(len(vectors), len(distinct))
            batch = missing[start : start + BATCH]
            fresh = dict(zip(batch, model.embed([distinct[key] for key in batch]), strict=True))
            self._put(model, fresh)
            vectors |= fresh
            report(len(vectors), len(distinct))
        return np.array([vectors[key] for key in keys], np.float32).reshape(len(keys), model.dimensions)

    def _stored(self, model: Embedder, keys: list[bytes]) -> dict[bytes, Vector]:
        try:
            found = self._store.get(model.model_id, keys)
        except StoreError:
            return {}
        usable = are_unit(list(found.values()), model.dimensions)
        return {key: vector for (key, vector), ok in zip(found.items(), usable, strict=True) if ok}

    def _put(self, model: Embedder, vectors: dict[bytes, Vector]) -> None:
        # What is not kept is computed again at the next start.
        with contextlib.suppress(StoreError):
            self._store.put(model.model_id, vectors)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
