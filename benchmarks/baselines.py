"""Baselines of search: plain BM25, and the seed design of this project. Small and independent."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from mcp_context_proxy.embedding import Embedder
from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval.text import chunks

Ranked = list[tuple[str, str, float]]
"""Server, name and score, best first."""


class PlainBM25:
    """Okapi BM25, k1 1.2 and b 0.75, over the lower-case words of name and description, as they are."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._tools = _tools(snapshot)
        counts = [Counter(_words(f"{tool.name} {tool.description}")) for tool in self._tools]
        average = sum(map(Counter.total, counts)) / len(counts)
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for at, words in enumerate(counts):
            length = 1.2 * (0.25 + 0.75 * words.total() / average)
            for word, count in words.items():
                self._postings[word].append((at, count * 2.2 / (count + length)))

    def rank(self, query: str, depth: int) -> Ranked:
        """The best tools that have a word of the query."""
        scores = [0.0] * len(self._tools)
        for word in sorted(self._postings.keys() & set(_words(query))):
            found = self._postings[word]
            idf = math.log(1 + (len(self._tools) - len(found) + 0.5) / (len(found) + 0.5))
            for at, weight in found:
                scores[at] += idf * weight
        return [entry for entry in _best(self._tools, scores, depth) if entry[2] > 0]


class SeedDesign:
    """The best cosine of the whole query with any chunk of ``name: description``."""

    def __init__(self, snapshot: Snapshot, embedder: Embedder, query_embedder: Embedder) -> None:
        self._tools, self._queries = _tools(snapshot), query_embedder
        texts = [chunks(f"{tool.name}: {tool.description}") for tool in self._tools]
        self._starts = np.cumsum([0, *map(len, texts[:-1])])
        self._matrix = embedder.embed([text for of_tool in texts for text in of_tool])

    def rank(self, query: str, depth: int) -> Ranked:
        """The nearest tools."""
        (vector,) = self._queries.embed([query])
        return _best(self._tools, np.maximum.reduceat(self._matrix @ vector, self._starts).tolist(), depth)


def _tools(snapshot: Snapshot) -> list[Tool]:
    items = [item for source in snapshot.sources for item in source.items if isinstance(item, Tool)]
    return sorted(items, key=lambda tool: (tool.server, tool.name))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _best(tools: Sequence[Tool], scores: Sequence[float], depth: int) -> Ranked:
    order = sorted(range(len(tools)), key=lambda at: -scores[at])[:depth]
    return [(tools[at].server, tools[at].name, scores[at]) for at in order]
