"""The interfaces to vectors: search knows texts and unit vectors, never a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mcp_context_proxy.items import Vector
from mcp_context_proxy.system.later import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Matrix: TypeAlias = "NDArray[np.float32]"
"""Shape [texts, dimensions], every row with L2 norm 1."""

NORM_TOLERANCE = 1e-3
"""Largest distance of a unit vector's length from 1."""


class Embedder(Protocol):
    """Turns texts into unit vectors of one model. Blocking and thread-safe; called in worker threads."""

    def embed(self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> Matrix:
        """Return one unit vector per text, in order; ``on_progress(done, total)`` is called meanwhile.

        Raises:
            ModelError: there is no model, or it failed.
        """


class EmbeddingModel(Protocol):
    """One embedding model, on disk or behind an endpoint. Blocking and thread-safe."""

    @property
    def model_id(self) -> str:
        """Identity of the model: vectors may be compared and stored together if and only if it is equal."""

    @property
    def dimensions(self) -> int:
        """Length of every vector."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per text of the catalog, in order; a text's neighbours do not change it."""

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Do the same for queries: some models tell the two apart, and a caller is waiting."""

    def close(self) -> None:
        """Release the model; waiting callers get an `EmbeddingCancelledError` at once."""


def is_unit(vector: Vector, dimensions: int) -> bool:
    """Return whether a stored array is a possible vector of a model with so many dimensions."""
    return are_unit([vector], dimensions)[0]


def are_unit(vectors: Sequence[Vector], dimensions: int) -> list[bool]:
    """Return, for each stored array, whether it is a possible vector of a model."""
    fitting = [vector.shape == (dimensions,) for vector in vectors]
    some = [vector for vector, fits in zip(vectors, fitting, strict=True) if fits]
    # In float64: a damaged exponent must not overflow.
    norms = np.linalg.norm(np.array(some, np.float64).reshape(-1, dimensions), axis=1)
    near = iter((abs(norms - 1) <= NORM_TOLERANCE).tolist())
    return [fits and next(near) for fits in fitting]


def unit_rows(rows: NDArray[np.float32]) -> Matrix:
    """Scale each row to norm 1.

    Raises:
        ValueError: a row is zero or not finite.
    """
    # In float64: large components must not overflow.
    wide = rows.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    if not (np.isfinite(norms).all() and (norms > 0).all()):
        raise ValueError("a vector is zero or not finite")
    unit: Matrix = (wide / norms).astype(np.float32)
    return unit
