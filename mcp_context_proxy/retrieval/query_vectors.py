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


HISTORY_DECAY = 0.5
"""Of the weight of what was asked before, with each step back."""


def query_vectors(query: str, embed: Embed, history: Sequence[str] = ()) -> NDArray[np.float32] | None:
    """One row of norm 1 for each of `query_texts`; None for a query without a letter.

    What was asked before, the latest first, pulls the whole towards it. Its words do not join those of the
    query: an old one that is rare would outweigh what is asked now.
    """
    texts = query_texts(query)
    if not texts:
        return None
    words = telling_words(texts[0])
    telling = [] if words in ("", texts[0]) else [words]
    vectors = embed([*texts, *telling, *history])
    rows = vectors[: len(texts)].copy()
    if telling:
        rows[0] = _normal(rows[0] + vectors[len(texts)], rows[0])
    if history:
        weights = HISTORY_DECAY ** np.arange(1, len(history) + 1, dtype=np.float32)
        rows[0] = _normal(rows[0] + weights @ vectors[-len(history) :], rows[0])
    return rows


def _normal(vector: NDArray[np.float32], otherwise: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else otherwise
