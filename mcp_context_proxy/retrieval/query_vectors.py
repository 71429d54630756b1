"""The vectors of a query: of the whole of it, then of its sentences.

That of the whole is the mean of two: of the text, and of its words without stop words. What a query shares
with every other ("could you please help me") thereby counts half, and the grammar still counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.terms import telling_words
from mcp_context_proxy.retrieval.text import query_texts

Embed = Callable[[Sequence[str]], NDArray[np.float32]]


def query_vectors(query: str, embed: Embed) -> NDArray[np.float32] | None:
    """One row of norm 1 for each of `query_texts`; None for a query without a letter."""
    texts = query_texts(query)
    if not texts:
        return None
    words = telling_words(texts[0])
    if words in ("", texts[0]):
        return embed(texts)
    vectors = embed([*texts, words])
    both = vectors[0] + vectors[-1]
    norm = np.linalg.norm(both)
    rows = vectors[:-1].copy()
    rows[0] = both / norm if norm > 0 else vectors[0]
    return rows
