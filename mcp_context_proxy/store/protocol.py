"""The seams to the store: what other modules may ask of it, without knowing that it is SQLite.

All methods block and are thread-safe. All raise `StoreError` when the store fails; callers go on without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mcp_context_proxy.items import Vector


class VectorStore(Protocol):
    """Vectors by model and content hash."""

    def get(self, model_id: str, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Those of ``keys`` that are known, as stored; whether one is plausible is the caller's to judge."""

    def put(self, model_id: str, vectors: Mapping[bytes, Vector]) -> None:
        """Keep the vectors, all or none; another one under the same key is replaced."""

    def clear(self) -> None:
        """Forget all vectors."""
