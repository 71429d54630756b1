"""The model is loaded once, by whoever needs it first; a failure is said once and not tried again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mcp_context_proxy.embedding.embedder import Embedder
from mcp_context_proxy.embedding.model import load_model
from mcp_context_proxy.errors import ModelError

logger = logging.getLogger(__name__)


class LazyModel:
    """A model shared by all threads, loaded at first use."""

    def __init__(self, load: Callable[[], Embedder] = load_model) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._model: Embedder | None = None
        self._error: ModelError | None = None

    @property
    def loaded(self) -> bool:
        """Whether `get` answers at once."""
        return self._model is not None

    @property
    def error(self) -> ModelError | None:
        """Why there is no model; None while it was not needed yet, and when it is loaded."""
        return self._error

    def get(self) -> Embedder:
        """The model; blocks while it is loaded for the first time.

        Raises:
            ModelError: it could not be loaded, now or at the first attempt.
        """
        with self._lock:
            if self._model is None and self._error is None:
                self._try_to_load()
            if self._model is not None:
                return self._model
            assert self._error is not None
            raise self._error.with_traceback(None)

    def _try_to_load(self) -> None:
        try:
            self._model = self._load()
        except ModelError as e:
            self._error = e
            logger.error("%s. Until then search goes by words alone.", e)
