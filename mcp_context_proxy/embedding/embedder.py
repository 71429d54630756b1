"""The seam to whatever makes vectors: search knows texts and unit vectors, never a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.items import Vector

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
        """One unit vector per text of the catalog, in order; it does not depend on the text's neighbours.

        Raises:
            ModelError: the model gave none.
        """

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """The same for texts that are searched for: some models tell the two apart, and somebody waits.

        Raises:
            ModelError: the model gave none.
        """

    def close(self) -> None:
        """Let go of what is held; whoever waits gets an `EmbeddingCancelledError` at once."""


NORM_TOLERANCE = 1e-3
"""How far a unit vector's length may be from 1."""


def is_unit(vector: Vector, dimensions: int) -> bool:
    """Whether something can be a model's vector."""
    return are_unit([vector], dimensions)[0]


def are_unit(vectors: Sequence[Vector], dimensions: int) -> list[bool]:
    """Whether each of some things can be a model's vector."""
    fitting = [vector.shape == (dimensions,) for vector in vectors]
    some = [vector for vector, fits in zip(vectors, fitting, strict=True) if fits]
    # In float64: a damaged exponent must not overflow.
    norms = np.linalg.norm(np.array(some, np.float64).reshape(-1, dimensions), axis=1)
    near = iter((abs(norms - 1) <= NORM_TOLERANCE).tolist())
    return [fits and next(near) for fits in fitting]


def unit_rows(rows: NDArray[np.float32]) -> Matrix:
    """Rows scaled to norm 1.

    Raises:
        ValueError: a row cannot be.
    """
    # In float64: large components must not overflow.
    wide = rows.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    if not (np.isfinite(norms).all() and (norms > 0).all()):
        raise ValueError("a vector is zero or not finite")
    unit: Matrix = (wide / norms).astype(np.float32)
    return unit
