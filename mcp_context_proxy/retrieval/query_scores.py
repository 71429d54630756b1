"""One query against one index: scores of all items, the candidates among them, their results.

An immutable value between the arrays and the answer; nothing here waits or remembers.

A query of several sentences may have several needs: each should be served before one is served twice.

Items are taken one by one; what a sentence says counts again only for an item that is nearer to it than every
item above. The idea is that of maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998), with the
sentences of the query in place of similarity between results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.bm25 import K1
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.relevance import STRONG_COVERAGE, Fitting, evidence, needed
from mcp_context_proxy.retrieval.results import (
    FITTING,
    NO_SUPPORT,
    NOTHING_NEW,
    Method,
    Result,
    SearchOptions,
    Support,
    add_learned,
    add_novelty,
    explain,
    learned_addition,
)
from mcp_context_proxy.retrieval.scoring import DenseIndex, best, count_selected, expected, fuse
from mcp_context_proxy.retrieval.terms import SHARE, name_key, query_terms, synonyms
from mcp_context_proxy.retrieval.text import QUERY_LIMIT, query_texts
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


def boost_uncovered_sentences(
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


def ensure_each_sentence_covered(selected: Sequence[int], sentences: NDArray[np.float32]) -> list[int]:
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


T = TypeVar("T")

SEVERAL = 2
"""Texts of a query from which on it has more than one sentence: the query itself and the only one are one."""


@dataclass(frozen=True, slots=True, eq=False)
class QueryScores:
    """The scores of a query, by place: those of the items that can be among the best, in catalog order.

    These are the items that filters allow, and where they are very many, those that are near by estimate.
    """

    index: Index
    items: NDArray[np.intp]
    """By place, the position in the index."""
    texts: Sequence[str]
    """The query and its sentences, in the order of the vectors."""
    vector: NDArray[np.float32] | None
    """Of the query as a whole; None in a lexical search."""
    terms: Mapping[str, str]
    """Index terms of the query, each with its word, and their synonyms."""
    asked: frozenset[str]
    """Those of the query itself."""
    allowed: NDArray[np.bool_]
    """What of the index may be found."""
    exact: frozenset[int]
    """Places of the items whose name the query is."""
    dense: DenseIndex | None
    """Of the items; None in a lexical search, as are the cosines."""
    by_text: NDArray[np.float32] | None
    """Cosines by text and chunk."""
    cosine: NDArray[np.float32] | None
    whole: float | None
    """The best cosine of any item with the query as a whole."""
    lexical: NDArray[np.float32]
    idf: Mapping[str, float]
    """Of each index term."""
    plain: NDArray[np.float32]
    """Cosine and lexical score as one."""
    fused: NDArray[np.float32]
    """The same, raised for items that serve a need of their own."""
    serving: Mapping[int, int]
    """For each place that was raised, the text of the query that its item serves."""
    sentences: NDArray[np.float32] | None
    """[sentences, places]: cosines, where the query has several and each is to be served."""
    supports: Mapping[int, Support]
    """What use says for items; it is in ``plain``."""
    novel: Mapping[int, float]
    """What items have because they are new; it is in ``plain``."""

    @classmethod
    def of(
        cls,
        query: str,
        index: Index,
        vectors: NDArray[np.float32] | None,
        met: NDArray[np.bool_],
        method: Method = "hybrid",
        supports: Mapping[int, Support] = NO_SUPPORT,
        novel: Mapping[int, float] = NOTHING_NEW,
    ) -> QueryScores:
        """Score the items of an index; without the query's vectors by its words only.

        ``met`` tells which of them may be found; ``supports`` and ``novel`` are by position in the index.
        """
        query = query[:QUERY_LIMIT]
        asked = query_terms(query)
        alike = synonyms(asked)
        weighed = index.lexical.weigh(asked, alike, SHARE)
        named = index.named(name_key(query))
        dense = by_text = cosine = cosines = None
        if index.dense is None or vectors is None:
            items = np.flatnonzero(met)
        else:
            words = fuse(None, weighed.scores)
            if method == "dense":
                words.fill(0)
            words[~met] = -np.inf
            items = index.dense.candidates(vectors, words, {*named, *supports})
            dense = index.dense.of(items)
            by_text = dense.cosines(vectors)
            cosines = dense.by_item(by_text)
            cosine = cosines.max(axis=0)
        lexical, supports, novel = weighed.scores[items], _placed(supports, items), _placed(novel, items)
        exact = frozenset(_placed(dict.fromkeys(named), items))
        near = cosine
        if near is not None:
            near = near if index.complete else expected(near, lexical, index.ready[items])
            near = add_learned(near, supports)
        plain = add_novelty(fuse(near, lexical, method), novel)
        served = method == "hybrid" and not exact and cosines is not None and len(cosines) > SEVERAL
        sentences = cosines[1:] if served and cosines is not None and items.size else None
        fused, serving = (plain, {}) if sentences is None else boost_uncovered_sentences(plain, sentences)
        return cls(
            index=index,
            items=items,
            texts=query_texts(query),
            vector=None if vectors is None else vectors[0],
            terms={**asked, **alike},
            asked=frozenset(asked),
            allowed=met,
            exact=exact,
            dense=dense,
            by_text=by_text,
            cosine=cosine,
            whole=None if cosines is None or not items.size else float(cosines[0].max()),
            lexical=lexical,
            idf=weighed.idf,
            plain=plain,
            fused=fused,
            serving={place: 1 + sentence for place, sentence in serving.items()},
            sentences=sentences,
            supports=supports,
            novel=novel,
        )

    def selected(self, options: SearchOptions) -> list[int]:
        """Places of the items selected, best first: exact names, then by score, then in catalog order."""
        ordered = self._ordered(options.top_k, options.top_n)
        count = count_selected(self.fused[ordered], options)
        more = [place for place in ordered[count:] if self._is_near(place, options.include_score)]
        selected = [int(place) for place in (*ordered[:count], *more[: max(0, options.top_k - count)])]
        return selected if self.sentences is None else ensure_each_sentence_covered(selected, self.sentences)

    def following(self, selected: Sequence[int], options: SearchOptions) -> list[int]:
        """What comes after those selected, best first, down to the depth asked for."""
        missing = options.depth - len(selected)
        if missing <= 0:
            return []
        ordered = self._ordered(max(options.top_k, options.depth), options.depth)
        return [int(place) for place in ordered[~np.isin(ordered, selected)][:missing]]

    def _is_near(self, place: np.intp, cosine: float) -> bool:
        return self.cosine is not None and bool(self.cosine[place] >= cosine)

    def fits(self, fitting: Fitting, found: float | None) -> bool:
        """Whether anything seems to be meant: near in meaning, an exact name, or most of the telling words.

        ``found`` is the `evidence` for it.

        Without vectors, or while some are missing, any common word will do: there is nothing else to go by.
        """
        if self.exact or self._is_remembered():
            return True
        if self.whole is None:
            return self._has_a_word()
        if isinstance(fitting, np.ndarray):
            return self._has_a_word() if found is None else found >= needed(int(self.allowed.sum()))
        near = fitting == "anything" or self.whole >= fitting
        if not self.index.complete:
            return near or self._has_a_word()
        return near or self._coverage() >= STRONG_COVERAGE

    def evidence(self, fitting: Fitting) -> float | None:
        """How much says that something is meant, beside general requests; None where that is not known."""
        if self.whole is None or self.vector is None or not self.index.complete:
            return None
        if not isinstance(fitting, np.ndarray):
            return None
        most = (K1 + 1) * self._rarity()
        coverage = float(self.lexical.max()) / most if most else 0.0
        return evidence(self.whole, self.vector, fitting, coverage)

    def result(self, place: int) -> Result:
        """The item at a place with its scores and reasons."""
        item = int(self.items[place])
        cosine = float(self.cosine[place]) if self.cosine is not None and self.index.ready[item] else None
        parts = self.index.lexical.parts(item, self.idf)
        text, chunk = self._best_pair(place)
        serving, support = self.serving.get(place), self.supports.get(place)
        return Result(
            item=self.index.items[item],
            score=float(self.fused[place]),
            cosine=cosine,
            lexical=float(self.lexical[place]),
            need=float(self.fused[place] - self.plain[place]),
            chunk=chunk,
            matched=None if cosine is None else text,
            serves=None if serving is None else self.texts[serving],
            learned=self._learned(place),
            support=support,
            exact=place in self.exact,
            novelty=self.novel.get(place, 0.0),
            terms=tuple((field, self.terms[term], added) for field, term, added in parts),
            why=explain(
                place in self.exact,
                cosine,
                parts,
                self.terms,
                self.asked,
                support,
                place in self.novel,
                self.index.suspicion(item),
            ),
        )

    def _is_remembered(self) -> bool:
        """Whether a tool was used for a query that meant much the same."""
        return any(support.cosine >= FITTING and not support.general for support in self.supports.values())

    def _learned(self, place: int) -> float:
        """What use adds to the cosine of an item."""
        support = self.supports.get(place)
        return (
            0.0
            if support is None or self.cosine is None
            else learned_addition(float(self.cosine[place]), support)
        )

    def _ordered(self, top_k: int, wanted: int) -> NDArray[np.intp]:
        candidates = self._candidates(top_k, wanted)
        is_exact = np.isin(candidates, list(self.exact))
        ordered: NDArray[np.intp] = candidates[np.lexsort((candidates, -self.fused[candidates], ~is_exact))]
        return ordered

    def _candidates(self, top_k: int, wanted: int) -> NDArray[np.intp]:
        """Places of the best chunks, the best items lexically, exact names; as many as are wanted in all."""
        chosen = np.zeros(self.items.size, bool)
        chosen[best(self.lexical, top_k)] = True
        chosen &= self.lexical > 0
        chosen[list(self.exact)] = True
        if self.dense is not None and self.by_text is not None:
            chunks = best(self.by_text.max(axis=0), top_k)
            chosen[np.searchsorted(self.dense.starts, chunks, side="right") - 1] = True
            # The best chunks may all be of a few long items, and what is best altogether be best in neither.
            chosen[best(self.fused, min(wanted, top_k))] = True
        chosen |= self.fused > self.plain
        chosen[list(self.supports)] = True
        return np.flatnonzero(chosen)

    def _coverage(self) -> float:
        """The share of the query's idf that the best item lexically has."""
        if not self.lexical.any():
            return 0.0
        best_item = int(self.items[self.lexical.argmax()])
        matched = {term for _, term, _ in self.index.lexical.parts(best_item, self.idf)}
        return math.fsum(self.idf[term] for term in matched) / self._rarity()

    def _rarity(self) -> float:
        """The idf of the query."""
        return math.fsum(self.idf[term] for term in self.asked)

    def _best_pair(self, place: int) -> tuple[str | None, str]:
        """The text of the query and the chunk of an item that are nearest to each other."""
        chunks = self.index.chunks[int(self.items[place])]
        if self.dense is None or self.by_text is None:
            return None, chunks[0]
        start = int(self.dense.starts[place])
        own = self.by_text[:, start : start + len(chunks)]
        chunk = int(own.max(axis=0).argmax())
        return self.texts[int(own[:, chunk].argmax())], chunks[chunk]

    def _has_a_word(self) -> bool:
        return bool((self.lexical > 0).any())


def _placed(by_item: Mapping[int, T], items: NDArray[np.intp]) -> dict[int, T]:
    """What is said of some positions in the index, by their places among ``items``; others are left out."""
    places = np.searchsorted(items, np.fromiter(by_item, np.intp, len(by_item))).tolist()
    return {
        place: value
        for place, (item, value) in zip(places, by_item.items(), strict=True)
        if place < items.size and items[place] == item
    }
