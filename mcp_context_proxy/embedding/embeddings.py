"""Shares one embedding model among all threads, and avoids embedding a text twice.

`LazyModel` opens the configured model at its first use and leaves a failing one alone for a while.
`CachedEmbedder` embeds texts of the catalog and keeps their vectors in the store. `QueryEmbedder` embeds
queries and keeps the latest ones in memory only: the store must not reveal queries.
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
from typing import TypeVar

import numpy as np

from mcp_context_proxy.config import Config
from mcp_context_proxy.embedding.embedder import EmbeddingModel, Matrix, are_unit
from mcp_context_proxy.embedding.folder import model_of, read_folder
from mcp_context_proxy.embedding.model import load_model
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError, StoreError
from mcp_context_proxy.items import Vector
from mcp_context_proxy.store import VectorStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 30.0
"""Pause after a failure of the model. A search may wait for a dead endpoint once in this time."""

BATCH = 64
"""Texts between two writes, two reports of progress and two checks for cancellation: about a tenth of a
second of work with the packaged model, the most that an interrupted indexing can lose."""

REMEMBERED_QUERIES = 1000
"""The texts of a hundred requests with all their sentences: 1.5 MB."""


def open_model(config: Config) -> EmbeddingModel:
    """Open the configured model. Blocking for a model on disk; an endpoint is asked at its first use."""
    settings = config.embedding
    if settings.endpoint is not None:
        # Imported here: the HTTP client takes long to import, and only endpoints need it this early.
        from mcp_context_proxy.embedding.endpoint import EndpointModel  # noqa: PLC0415

        return EndpointModel(settings, config.limits)
    return load_model(settings=settings)


def check_model_files(config: Config) -> None:
    """Read the files of the configured model without opening it, or raise a `ModelError`. Blocking."""
    settings = config.embedding
    if settings.endpoint is None:
        read_folder(model_of(settings), settings)


class LazyModel:
    """A model shared by all threads, opened at its first use.

    A model that could not be opened is not tried again. After a failure in use, callers get the same error
    for `RETRY_SECONDS` without waiting for the model. Each failure is logged once.
    """

    def __init__(
        self,
        load: Callable[[], EmbeddingModel] = load_model,
        *,
        clock: Callable[[], float] = time.monotonic,
        check: Callable[[], None] = lambda: None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Open nothing yet; ``check`` raises `ModelError` if the files show that ``load`` would fail."""
        self._load, self._clock, self._check = load, clock, check
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._model: EmbeddingModel | None = None
        self.error: ModelError | None = None
        """The latest failure; None before the first use, and while the model works."""
        self._retry_at = 0.0

    @property
    def loaded(self) -> bool:
        """True once `get` answers at once."""
        return self._model is not None

    def check(self) -> None:
        """Find out early whether the model can be opened, and log it if not. Blocks for a moment."""
        with self._lock:
            if self._model is None and self.error is None:
                try:
                    self._check()
                except ModelError as error:
                    self._failed(error)

    def get(self) -> EmbeddingModel:
        """Return the model, even while it fails; blocks while it is opened for the first time.

        Raises:
            ModelError: it could not be opened, now or at the first attempt.
        """
        with self._lock:
            if self._model is None and self.error is None:
                try:
                    self._model = self._load()
                except ModelError as error:
                    self._failed(error)
            if self._model is not None:
                return self._model
            assert self.error is not None
            raise self.error.with_traceback(None)

    def run(self, use: Callable[[EmbeddingModel], T]) -> T:
        """Call ``use`` with the model and return its result.

        Raises:
            ModelError: the model cannot be opened, or it failed in use, now or a short while ago.
        """
        model = self.get()
        if (error := self.error) is not None and self._clock() < self._retry_at:
            raise error.with_traceback(None)
        try:
            result = use(model)
        except ModelError as failure:
            self._failed(failure)
            raise
        if self.error is not None:
            self.error = None
            logger.warning("The embedding model works again: search uses words and meaning again.")
        return result

    def close(self) -> None:
        """Release the model; waiting callers get an error at once. Does not block."""
        if self._model is not None:
            self._model.close()

    def _failed(self, error: ModelError) -> None:
        if self.error is None:
            logger.error("%s. Until then search uses words alone.", error)
        self.error, self._retry_at = error, self._clock() + self._retry_seconds


class CachedEmbedder:
    """Embeds texts of the catalog, each once per model: later its vector comes from the store.

    A text is found by its hash. A stored vector is used only if the model can have made it (length, finite,
    norm 1); anything else, and anything that the store fails to give, is computed again.
    """

    def __init__(self, model: LazyModel, store: VectorStore) -> None:
        self._model, self._store = model, store

    def embed(
        self,
        texts: Sequence[str],
        on_progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Matrix:
        """Return one unit vector per text, in order.

        ``on_progress(done, total)`` counts distinct texts: first those from the store, then after each batch.

        Raises:
            ModelError: there is no model, or it failed; the vectors made until then are stored.
            EmbeddingCancelledError: ``cancelled()`` became true; the vectors made until then are stored.
        """
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        distinct = dict(zip(keys, texts, strict=True))
        report = on_progress or (lambda _done, _total: None)

        def embed(model: EmbeddingModel) -> Matrix:
            try:
                found = self._store.get(model.model_id, list(distinct))
            except StoreError:
                found = {}
            usable = are_unit(list(found.values()), model.dimensions)
            vectors = {key: vector for (key, vector), ok in zip(found.items(), usable, strict=True) if ok}
            missing = [key for key in distinct if key not in vectors]
            report(len(vectors), len(distinct))
            for start in range(0, len(missing), BATCH):
                if cancelled():
                    raise EmbeddingCancelledError(len(vectors), len(distinct))
                batch = missing[start : start + BATCH]
                fresh = dict(zip(batch, model.embed([distinct[key] for key in batch]), strict=True))
                # A vector that cannot be stored is computed again at the next start.
                with contextlib.suppress(StoreError):
                    self._store.put(model.model_id, fresh)
                vectors |= fresh
                report(len(vectors), len(distinct))
            return np.array([vectors[key] for key in keys], np.float32).reshape(len(keys), model.dimensions)

        return self._model.run(embed)


@dataclass(slots=True)
class Lookups:
    """Counts the hits and misses of a cache."""

    hits: int = 0
    misses: int = 0


class QueryEmbedder:
    """Embeds queries and remembers the latest ones in memory. Blocking and thread-safe.

    One request embeds the same texts several times: for tools, for documents, for related items, and for
    learning.
    """

    def __init__(self, model: LazyModel, remembered: int = REMEMBERED_QUERIES) -> None:
        self._model, self._remembered = model, remembered
        self._lock = threading.Lock()
        self._latest: OrderedDict[str, Vector] = OrderedDict()
        self._model_id = ""
        self.lookups = Lookups()

    def embed(self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> Matrix:
        """Return one unit vector per text, in order; reports no progress."""
        del on_progress
        return self.vectors(texts)[1]

    def vectors(self, texts: Sequence[str]) -> tuple[str, Matrix]:
        """Return the model's id, and one unit vector per text, in order."""
        distinct = list(dict.fromkeys(texts))
        with self._lock:
            known = {text: self._latest[text] for text in distinct if text in self._latest}
            for text in known:
                self._latest.move_to_end(text)
            self.lookups.hits += len(known)
            self.lookups.misses += len(distinct) - len(known)
        missing = [text for text in distinct if text not in known]
        # Without texts the model is asked too: its id and its dimensions are the answer.
        if missing or not texts:
            self._model_id, rows = self._model.run(lambda one: (one.model_id, one.embed_queries(missing)))
            if not texts:
                return self._model_id, rows
            fresh = dict(zip(missing, rows, strict=True))
            known |= fresh
            with self._lock:
                self._latest.update(fresh)
                while len(self._latest) > self._remembered:
                    self._latest.popitem(last=False)
        return self._model_id, np.stack([known[text] for text in texts])
