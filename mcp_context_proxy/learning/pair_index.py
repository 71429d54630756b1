"""Learned pairs in memory, where searches read them, and as JSON lines, for export and import."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.embedding.embeddings import QueryEmbedder
from mcp_context_proxy.items import ToolKey, Vector
from mcp_context_proxy.learning.pairs import key_of
from mcp_context_proxy.retrieval.vectors import dots
from mcp_context_proxy.store import Pair, PairId
from mcp_context_proxy.store.tables import decoded_vector, encoded_vector

COHERENT: Final = 0.2
"""Mean cosine of a tool's queries with each other from which on they have a topic. On public logs 90 of 100
tools have more; queries for all sorts of tools together have 0.08 to 0.17."""


@dataclass(frozen=True, slots=True, eq=False)
class PairIndex:
    """The pairs at one moment, and their vectors as one matrix. Immutable.

    A pair that is used again keeps its vector, so a new index copies the matrix only for a new pair.
    """

    pairs: tuple[Pair, ...]
    at: Mapping[PairId, int]
    """Position of each pair."""
    matrix: NDArray[np.float32]
    topics: Mapping[ToolKey, Topic]

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Self:
        """Index some pairs; of two with the same id, the later one."""
        known = tuple({pair.id: pair for pair in pairs}.values())
        return cls(
            pairs=known,
            at={pair.id: at for at, pair in enumerate(known)},
            matrix=np.stack([pair.vector for pair in known]) if known else np.zeros((0, 0), np.float32),
            topics=_with_queries({}, known),
        )

    def with_pairs(self, changed: Collection[Pair]) -> PairIndex:
        """Return an index with pairs that are new, or replace those of the same id."""
        pairs, fresh = list(self.pairs), []
        for pair in changed:
            at = self.at.get(pair.id)
            if at is None:
                fresh.append(pair)
            elif pair.vector is not self.pairs[at].vector:
                return PairIndex.of([*self.pairs, *changed])
            else:
                pairs[at] = pair
        if not fresh:
            return replace(self, pairs=tuple(pairs))
        if not self.pairs:
            return PairIndex.of(fresh)
        return PairIndex(
            pairs=(*pairs, *fresh),
            at={**self.at, **{pair.id: at for at, pair in enumerate(fresh, len(pairs))}},
            matrix=np.concatenate([self.matrix, np.stack([pair.vector for pair in fresh])]),
            topics=_with_queries(self.topics, fresh),
        )

    def without(self, gone: Iterable[Pair]) -> PairIndex:
        """Return an index without some pairs."""
        ids = {id(pair) for pair in gone}
        return PairIndex.of(pair for pair in self.pairs if id(pair) not in ids)

    def cosines(self, query: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Return the cosine of each pair's query with this one; None without pairs of the same model."""
        if not self.pairs or self.matrix.shape[-1] != query.shape[-1]:
            return None
        return dots(self.matrix, query)


def _with_queries(topics: Mapping[ToolKey, Topic], pairs: Iterable[Pair]) -> dict[ToolKey, Topic]:
    extended = dict(topics)
    for pair in pairs:
        known = extended.get(pair.tool)
        extended[pair.tool] = Topic.of(pair.vector) if known is None else known.with_query(pair.vector)
    return extended


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """The topic of one tool's queries.

    A tool that is used for everything, or claims to do everything, says nothing about one more query.
    """

    count: int
    total: NDArray[np.float64]
    """Sum of the queries' vectors, each of norm 1."""

    @classmethod
    def of(cls, vector: Vector) -> Self:
        """Start with one query."""
        return cls(1, vector.astype(np.float64))

    def with_query(self, vector: Vector) -> Topic:
        """Return the topic with one more query."""
        return Topic(self.count + 1, self.total + vector)

    @property
    def general(self) -> bool:
        """True where the queries have less in common than those of a tool with one purpose."""
        if self.count < 2:
            return False
        # |v1 + ... + vn|^2 is the sum of all cosines: each of two different queries twice, and n ones of each
        # vector with itself. Without those, divided by n (n - 1), it is the mean cosine.
        twice = float(self.total @ self.total) - self.count
        return twice / (self.count * (self.count - 1)) < COHERENT


class PairLine(msgspec.Struct, omit_defaults=True):
    """One pair as a JSON line.

    A pair with its text is embedded again where it is imported. A pair without text brings its vector, which
    only the same model can use.
    """

    server: str
    tool: str
    """The name the server itself uses."""
    confidence: float
    uses: int
    first: float
    """Seconds since 1970, as is ``last``."""
    last: float
    query: str | None = None
    key: str | None = None
    """Hash of a query whose text is not kept."""
    model: str | None = None
    """The model that made the vector, where the text is not kept."""
    vector: str | None = None
    """float32, little-endian, base64."""


def exported(pairs: Iterable[Pair]) -> Iterable[bytes]:
    """Yield one JSON line per pair."""
    for pair in pairs:
        line = PairLine(*pair.tool, pair.confidence, pair.uses, pair.first, pair.last, pair.query)
        if pair.query is None:
            line.key, line.model = pair.key.hex(), pair.model_id
            line.vector = base64.b64encode(encoded_vector(pair.vector)).decode()
        yield msgspec.json.encode(line)


def imported(lines: Sequence[PairLine], model: QueryEmbedder) -> list[Pair]:
    """Return the pairs of lines that this model can use: those with text, and those with its own vectors.

    Raises `ModelError` when it makes no vectors, and `ValueError` for a damaged key or vector.
    """
    model_id, vectors = model.vectors([line.query for line in lines if line.query is not None])
    embedded = iter(vectors)
    pairs = []
    for line in lines:
        if line.query is not None:
            key, vector = key_of(line.query), next(embedded)
        elif line.model == model_id and line.key and line.vector:
            key = bytes.fromhex(line.key)
            vector = decoded_vector(base64.b64decode(line.vector))
        else:
            continue
        tool, confidence = (line.server, line.tool), min(max(line.confidence, 0.0), 1.0)
        pairs.append(
            Pair(key, tool, line.query, vector, model_id, confidence, line.uses, line.first, line.last)
        )
    return pairs
