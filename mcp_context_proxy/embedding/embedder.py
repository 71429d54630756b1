"""The seam to whatever makes vectors: search knows texts and unit vectors, never a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Matrix: TypeAlias = NDArray[np.float32]
"""Shape [texts, dimensions], every row with L2 norm 1."""


class Embedder(Protocol):
    """Blocking and thread-safe; called in worker threads."""

    @property
    def model_id(self) -> str:
        """Equal for two embedders exactly when their vectors may be compared and stored together."""

    @property
    def dimensions(self) -> int:
        """Length of every vector."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One unit vector per text, in order; a text's vector does not depend on its neighbours."""
