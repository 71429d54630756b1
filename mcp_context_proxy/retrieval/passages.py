"""Passages: the chunk by which a document of several chunks counts, with the words of that chunk alone.

A handbook has nearly every word of any request somewhere, so that its words as a whole say little. The word
of one chapter and the meaning of another say nothing together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from mcp_context_proxy.retrieval.scoring import LEXICAL_FACTOR
from mcp_context_proxy.retrieval.text import terms
from mcp_context_proxy.system.later import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Terms: TypeAlias = "Sequence[tuple[str, str, float]]"
"""The lexical score of an item by field and term."""

READ_WHOLE: Final = 3
"""Chunks of a document whose terms are looked at, the most promising: to read all takes milliseconds."""

TELLING: Final = 6
"""Words, those that say most, by which they are chosen."""

PASSAGES_WANTED: Final = 6
"""Documents that are ranked by their passages at least: more than an answer usually has."""

MOST_PASSAGES: Final = 64
"""Documents that are looked at for that, the best by all of their words; as many are kept in lower case."""

SHORTEST_STEM: Final = 4
"""Characters of a stem from which on the word may have another last one: ``policy`` and ``policies``."""

OF_TEXT: Final = "text"
"""Field of the words of a document itself; its name and its description stand for all of it."""


class Passage(Struct, frozen=True):
    """The chunk of a document that is nearest to a query, by meaning and words together."""

    chunk: int
    cosine: float
    """0 where only words are compared."""
    terms: Terms
    """The lexical score of the document without words that are elsewhere in it."""

    @property
    def lexical(self) -> float:
        """The sum of the terms."""
        return math.fsum(amount for _, _, amount in self.terms)

    @property
    def score(self) -> float:
        """Meaning and words together."""
        return self.cosine + float(LEXICAL_FACTOR) * self.lexical


def best_passage(chunks: Sequence[str], cosines: NDArray[np.float32] | None, by_term: Terms) -> Passage:
    """Return the passage of a document of several chunks, given the words of all of it.

    Args:
        chunks: Its chunks.
        cosines: Cosine of the query with each; None where only words are compared.
        by_term: The lexical score of the whole document.
    """
    of_all = [one for one in by_term if one[0] != OF_TEXT]
    inside = [one for one in by_term if one[0] == OF_TEXT]
    near = np.zeros(len(chunks), np.float32) if cosines is None else cosines
    likely = near.astype(np.float64)
    if inside:
        telling = sorted(inside, key=lambda one: -one[2])[:TELLING]
        stems = [(term[:-1] if len(term) > SHORTEST_STEM else term, amount) for _, term, amount in telling]
        for at, said in enumerate(_lower(tuple(chunks))):
            likely[at] += LEXICAL_FACTOR * sum(amount for stem, amount in stems if stem in said)
    found = Passage(int(near.argmax()), float(near.max()), tuple(of_all))
    for at in np.argsort(-likely, kind="stable")[:READ_WHOLE].tolist():
        own = set(terms(chunks[at])) if inside else set()
        said_here = tuple(one for one in by_term if one[0] != OF_TEXT or one[1] in own)
        passage = Passage(at, float(near[at]), said_here)
        if passage.score > found.score:
            found = passage
    return found


@lru_cache(maxsize=MOST_PASSAGES)
def _lower(chunks: tuple[str, ...]) -> list[str]:
    return [chunk.casefold() for chunk in chunks]
