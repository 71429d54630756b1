"""The learned pairs at one moment, as searches read them: immutable, and cheap to follow by the next.

A pair that is used again keeps its vector, so nothing large is made anew but for a pair that is new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.learning.coherence import Topic
from mcp_context_proxy.learning.pairs import Pair, ToolKey
from mcp_context_proxy.retrieval.vectors import dots

PairKey: TypeAlias = tuple[bytes, ToolKey]


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The pairs, and their vectors as one matrix."""

    pairs: tuple[Pair, ...]
    at: Mapping[PairKey, int]
    """Where each pair is."""
    matrix: NDArray[np.float32]
    topics: Mapping[ToolKey, Topic]

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Self:
        """Of pairs, each key once."""
        known = tuple({(pair.key, pair.tool): pair for pair in pairs}.values())
        topics: dict[ToolKey, Topic] = {}
        for pair in known:
            _add(topics, pair)
        return cls(
            pairs=known,
            at={(pair.key, pair.tool): at for at, pair in enumerate(known)},
            matrix=np.stack([pair.vector for pair in known]) if known else np.zeros((0, 0), np.float32),
            topics=topics,
        )

    def with_pairs(self, changed: Collection[Pair]) -> State:
        """With pairs that are new, or take the place of their former selves."""
        pairs, fresh = list(self.pairs), []
        for pair in changed:
            at = self.at.get((pair.key, pair.tool))
            if at is None:
                fresh.append(pair)
            elif pair.vector is not self.pairs[at].vector:
                return State.of([*self.pairs, *changed])
            else:
                pairs[at] = pair
        if not fresh:
            return replace(self, pairs=tuple(pairs))
        if not self.pairs:
            return State.of(fresh)
        topics = dict(self.topics)
        for pair in fresh:
            _add(topics, pair)
        keys = ((pair.key, pair.tool) for pair in fresh)
        return State(
            pairs=(*pairs, *fresh),
            at={**self.at, **{key: len(pairs) + number for number, key in enumerate(keys)}},
            matrix=np.concatenate([self.matrix, np.stack([pair.vector for pair in fresh])]),
            topics=topics,
        )

    def without(self, gone: Iterable[Pair]) -> State:
        """Without some of its pairs."""
        ids = {id(pair) for pair in gone}
        return State.of(pair for pair in self.pairs if id(pair) not in ids)

    def cosines(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of each pair's query with this one."""
        return dots(self.matrix, query)

    def is_general(self, tool: ToolKey) -> bool:
        """Whether the queries a tool was used for have nothing in common."""
        return self.topics[tool].general


def _add(topics: dict[ToolKey, Topic], pair: Pair) -> None:
    known = topics.get(pair.tool)
    topics[pair.tool] = Topic.of(pair.vector) if known is None else known.and_of(pair.vector)
