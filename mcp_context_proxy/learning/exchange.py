"""Learned pairs as JSON lines, to be looked at, kept, or taken to another machine.

A pair with its text is embedded where it is taken in; one without has its vector with it, which only the same
model can use.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.embedding.embeddings import QueryEmbedder
from mcp_context_proxy.learning.pairs import Pair, key_of

LITTLE_ENDIAN = np.dtype("<f4")


class PairLine(msgspec.Struct, omit_defaults=True):
    """One pair."""

    server: str
    tool: str
    """Its own name."""
    confidence: float
    uses: int
    first: float
    """Seconds since 1970, as is ``last``."""
    last: float
    query: str | None = None
    key: str | None = None
    """Hash of a query whose text is not kept."""
    model: str | None = None
    """Whose vector it is, where the text is not kept."""
    vector: str | None = None
    """float32, little-endian, base64."""


def exported(pairs: Iterable[Pair]) -> Iterable[bytes]:
    """One line per pair."""
    for pair in pairs:
        server, tool = pair.tool
        line = PairLine(server, tool, pair.confidence, pair.uses, pair.first, pair.last, pair.query)
        if pair.query is None:
            line.key, line.model = pair.key.hex(), pair.model_id
            line.vector = base64.b64encode(pair.vector.astype(LITTLE_ENDIAN).tobytes()).decode()
        yield msgspec.json.encode(line)


def imported(lines: Sequence[PairLine], model: QueryEmbedder) -> list[Pair]:
    """The pairs of lines that this model can use; of those without text, only its own.

    Raises:
        ModelError: there are no vectors.
    """
    model_id, vectors = model.vectors([line.query for line in lines if line.query is not None])
    embedded = iter(vectors)
    pairs = []
    for line in lines:
        if line.query is not None:
            pairs.append(_pair(line, key_of(line.query), next(embedded), model_id))
        elif line.model == model_id and line.key and line.vector:
            vector = np.frombuffer(base64.b64decode(line.vector), LITTLE_ENDIAN).astype(np.float32)
            pairs.append(_pair(line, bytes.fromhex(line.key), vector, model_id))
    return pairs


def _pair(line: PairLine, key: bytes, vector: NDArray[np.float32], model_id: str) -> Pair:
    confidence = min(max(line.confidence, 0.0), 1.0)
    tool = line.server, line.tool
    return Pair(key, tool, line.query, vector, model_id, confidence, line.uses, line.first, line.last)
