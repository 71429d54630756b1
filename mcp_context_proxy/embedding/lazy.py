"""The model is opened by whoever needs it first; a failure is said once.

One that could not be opened is not tried again. One that failed in use is left alone for a while: whoever
asks meanwhile hears the same at once, and waits for nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from mcp_context_proxy.embedding.embedder import Embedder
from mcp_context_proxy.embedding.model import load_model
from mcp_context_proxy.errors import ModelError

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
