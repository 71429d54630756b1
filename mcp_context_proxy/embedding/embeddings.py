"""The model is opened by whoever needs it first; a failure is said once.

One that could not be opened is not tried again. One that failed in use is left alone for a while: whoever
asks meanwhile hears the same at once, and waits for nothing.

Which model the configuration means: the packaged one, one in a folder, or one behind an endpoint.

A text is embedded once per model: after that its vector comes from the store, found by the text's hash.

A stored vector is used only if it can be one of this model's: length, finite, norm 1. Anything else, and
anything the store cannot give, is computed again. Queries do not belong here: they would fill the store and
tell what somebody asked.

Embeds queries: straight through the model, never into the store, which would keep what somebody asked.

The latest queries with their vectors, in memory only: one request asks for the same texts several times.

It searches tools, then documents, then what is near to both.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from mcp_context_proxy.config import Config
from mcp_context_proxy.embedding.embedder import Embedder, Matrix, are_unit
from mcp_context_proxy.embedding.folder import PACKAGED_MODEL, read_folder
from mcp_context_proxy.embedding.model import load_model
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError, StoreError
from mcp_context_proxy.items import Vector
from mcp_context_proxy.store import VectorStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

REST_SECONDS = 30.0
"""How long a model that failed is left alone. A search may wait for a dead endpoint once in this time."""


class LazyModel:
    """A model shared by all threads, opened at first use."""

    def __init__(
        self,
        load: Callable[[], Embedder] = load_model,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Open nothing yet.

        Args:
            load: Opens the model; raises `ModelError`.
            clock: Seconds, of any kind.
            look: Raises `ModelError` if that would be in vain, as far as can be told without it.
        """
        self._load, self._clock, self._look = load, clock, look
        self._lock = threading.Lock()
        self._model: Embedder | None = None
        self._error: ModelError | None = None
        self._rested_at = 0.0

    @property
    def loaded(self) -> bool:
        """Whether `get` answers at once."""
        return self._model is not None

    @property
    def error(self) -> ModelError | None:
        """Why there are no vectors; None while none were needed yet, and when all is well."""
        return self._error

    def look(self) -> None:
        """See whether there is a model to be opened; if not, that is told now. Blocks for a moment."""
        with self._lock:
            if self._model is None and self._error is None:
                try:
                    self._look()
                except ModelError as error:
                    self._failed(error)

    def get(self) -> Embedder:
        """The model, however it is doing; blocks while it is opened for the first time.

        Raises:
            ModelError: it could not be, now or at the first attempt.
        """
        with self._lock:
            if self._model is None and self._error is None:
                self._try_to_open()
            if self._model is not None:
                return self._model
            assert self._error is not None
            raise self._error.with_traceback(None)

    def used(self, use: Callable[[Embedder], T]) -> T:
        """What ``use`` makes of the model.

        Raises:
            ModelError: there is none, or it failed in use, now or a short while ago.
        """
        model = self.get()
        if (error := self._error) is not None and self._clock() < self._rested_at:
            raise error.with_traceback(None)
        try:
            made = use(model)
        except ModelError as failure:
            self._failed(failure)
            raise
        if self._error is not None:
            self._error = None
            logger.warning("the embedding model is back: search goes by words and meaning again")
        return made

    def close(self) -> None:
        """Let go of the model; whoever waits for it is told at once. Does not block."""
        if self._model is not None:
            self._model.close()

    def _try_to_open(self) -> None:
        try:
            self._model = self._load()
        except ModelError as error:
            self._failed(error)

    def _failed(self, error: ModelError) -> None:
        if self._error is None:
            logger.error("%s. Until then search goes by words alone.", error)
        self._error, self._rested_at = error, self._clock() + REST_SECONDS


def look_at_model(config: Config) -> None:
    """Read the files of the configured model, and open nothing. Blocking.

    Raises:
        ModelError: they are missing or damaged.
    """
    settings = config.embedding
    if settings.endpoint is None:
        read_folder(PACKAGED_MODEL if settings.model is None else Path(settings.model), settings)


def open_model(config: Config) -> Embedder:
    """The configured model. Blocking, where it is on disk; an endpoint is asked at the first use.

    Raises:
        ModelError: its files cannot be used.
    """
    settings = config.embedding
    if settings.endpoint is not None:
        # The HTTP client, which nobody else needs that early.
        from mcp_context_proxy.embedding.endpoint import EndpointModel  # noqa: PLC0415

        return EndpointModel(settings, config.limits)
    return load_model(None if settings.model is None else Path(settings.model), settings)


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
