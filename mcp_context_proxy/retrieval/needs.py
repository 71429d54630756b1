"""A query of several sentences may have several needs: each should be served before one is served twice.

Items are taken one by one; what a sentence says counts again only for an item that is nearer to it than every
item above. The idea is that of maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998), with the
sentences of the query in place of similarity between results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.fusion import best
from mcp_context_proxy.retrieval.vectors import DECIMALS

PLACES = 12
"""Of a ranking that are given out this way: as many as a selection may have."""

CANDIDATES = 30
"""Items that are considered for these places, the best by score."""

PER_SENTENCE = 5
"""Items of each sentence that are considered beside the best of the whole query."""

NEAR = np.float32(0.4)
"""Cosine from which a sentence asks for something at all: what is below is courtesy, or where a file is. The
least that took nothing from five of six public sets; on the sixth, whose queries are long, recall@5 rises by
2 points and complete@5 by 6. From 0.35 down another set loses."""

MATCH = 0.3
"""Cosine from which a sentence has a real match: "mail it to Bob" has 0.31 with a tool that sends email."""

SHARE_OF_MATCH = 0.7
"""Of the cosine of a sentence's best match: an item that has as much stands for the sentence as well. With
less or more of both, recall and complete@5 on sets of several needs stay within 0.4 points."""

STEP = np.float32(10**-DECIMALS)
"""By which a raised score stays below the one above it."""


def serve(
    scores: NDArray[np.float32], sentences: NDArray[np.float32]
) -> tuple[NDArray[np.float32], dict[int, int]]:
    """The scores, raised where an item serves a sentence better than every item that comes before it.

    With them, for each item that was raised, the sentence that raised it most.

    Args:
        scores: Of all items that may be found.
        sentences: [sentences, items]: the cosine of each with each.
    """
    raised, serving = scores.copy(), dict[int, int]()
    candidates = _candidates(scores, sentences)
    cosines, plain = np.maximum(sentences[:, candidates], NEAR), scores[candidates]
    served = np.full(len(sentences), np.inf, np.float32)
    above, left = np.float32(np.inf), np.ones(candidates.size, bool)
    for _ in range(min(PLACES, candidates.size)):
        gains = np.maximum(cosines - served[:, None], 0)
        worth = np.where(left, plain + gains.max(axis=0), -np.inf)
        place = int(worth.argmax())
        above = min(np.float32(worth[place]), above - STEP)
        raised[candidates[place]] = max(above, plain[place])
        if raised[candidates[place]] > plain[place]:
            serving[int(candidates[place])] = int(gains[:, place].argmax())
        left[place] = False
        served = np.maximum(np.where(np.isinf(served), 0, served), cosines[:, place])
    return np.round(raised, DECIMALS), serving


def represented(selected: Sequence[int], sentences: NDArray[np.float32]) -> list[int]:
    """Those selected, so that each sentence that has a real match has an item that is near to it.

    The best item of one that has none takes the place of the last; where all places are needed, it comes
    after them.

    Args:
        selected: Items, best first.
        sentences: [sentences, items]: the cosine of each with each that may be selected.
    """
    kept, missing, needed = list(selected), list[int](), set[int]()
    for cosines in sentences:
        best = int(cosines.argmax())
        standing = int(cosines[kept].argmax()) if kept else None
        if standing is not None and cosines[kept[standing]] >= SHARE_OF_MATCH * cosines[best]:
            needed.add(standing)
        elif cosines[best] >= MATCH and best not in missing:
            missing.append(best)
    spare = [place for place in reversed(range(len(kept))) if place not in needed]
    for place in spare[: len(missing)]:
        del kept[place]
    return [*kept, *missing]


def _candidates(scores: NDArray[np.float32], sentences: NDArray[np.float32]) -> NDArray[np.intp]:
    """The best of the whole query and of each sentence, in the order of the catalog."""
    chosen = np.zeros(scores.size, bool)
    chosen[best(scores, CANDIDATES)] = True
    for cosines in sentences:
        chosen[best(cosines, PER_SENTENCE)] = True
    return np.flatnonzero(chosen)
