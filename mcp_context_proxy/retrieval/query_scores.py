"""Scores of one query against one index: all items, the candidates among them, their results with reasons.

An immutable value between the arrays of the index and the answer; nothing here waits or remembers.
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
from mcp_context_proxy.retrieval.relevance import STRONG_COVERAGE, Calibration
from mcp_context_proxy.retrieval.results import SUSPECTED, Method, Result, SearchOptions, Support
from mcp_context_proxy.retrieval.scoring import (
    add_learned,
    add_novelty,
    boost_uncovered_sentences,
    count_selected,
    ensure_each_sentence_covered,
    evidence,
    fill_missing_cosines,
    fuse,
    learned_addition,
    needed_evidence,
)
from mcp_context_proxy.retrieval.text import (
    QUERY_LIMIT,
    SYNONYM_SHARE,
    name_key,
    query_terms,
    query_texts,
    synonyms,
)
from mcp_context_proxy.retrieval.vectors import DenseIndex, best

SEVERAL_SENTENCES = 2
"""Texts of a query above which it has more than one sentence: a single sentence gives the query and
itself."""

PROVEN_BY_USE = 0.5
"""Cosine of a support from which on past use alone shows that something fits: the past query had a cosine of
0.6 to 0.7 with this one."""

FIELDS_NAMED = 2
"""Fields that a result's reasons name: those that added most."""

WORDS_NAMED = 4
"""Words of a field that the reasons repeat."""

QUERY_CHARACTERS = 80
"""Characters of a past query that the reasons repeat."""

FIELD_REASONS = {
    "name": "name matches",
    "description": "description mentions",
    "parameters": "parameters match",
    "parameter_descriptions": "parameters mention",
    "server": "server matches",
    "text": "text mentions",
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PreparedQuery:
    """A query with everything that is computed of it once for all items of an index."""

    index: Index
    texts: Sequence[str]
    """The query and its sentences."""
    vectors: NDArray[np.float32] | None
    """[texts, dimensions]; None in a search by words only."""
    method: Method
    terms: Mapping[str, str]
    """Index terms of the query and their synonyms, each with its word."""
    asked: frozenset[str]
    """Index terms of the query itself."""
    lexical: NDArray[np.float32]
    """BM25F of every item."""
    idf: Mapping[str, float]
    named: Sequence[int]
    """Items whose name the query is."""
    supports: Mapping[int, Support]
    """Past use that speaks for items, by position in the index."""
    novel: Mapping[int, float]
    """Additions for new items, by position in the index."""

    @classmethod
    def of(
        cls,
        text: str,
        index: Index,
        *,
        vectors: NDArray[np.float32] | None,
        method: Method,
        supports: Mapping[int, Support],
        novel: Mapping[int, float],
    ) -> PreparedQuery:
        """Divide a query into terms and sentences and compute its lexical scores."""
        text = text[:QUERY_LIMIT]
        asked = query_terms(text)
        alike = synonyms(asked)
        lexical = index.lexical.score(asked, alike, SYNONYM_SHARE)
        return cls(
            index=index,
            texts=query_texts(text),
            vectors=vectors,
            method=method,
            terms={**asked, **alike},
            asked=frozenset(asked),
            lexical=lexical.scores,
            idf=lexical.idf,
            named=index.named([name_key(text)]),
            supports=supports,
            novel=novel,
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class QueryScores:
    """Scores of the items that can be among the best, by place: their position among these, in catalog order.

    These are all items that pass the filters; in a large catalog those of them that are near by estimate.
    """

    query: PreparedQuery
    allowed: int
    """Number of items that pass the filters."""
    items: NDArray[np.intp]
    """Position in the index, by place."""
    exact: frozenset[int]
    """Places of the items whose name the query is."""
    lexical: NDArray[np.float32]
    dense: DenseIndex | None
    """The chunks of these items; None in a lexical search, as are the cosines."""
    by_chunk: NDArray[np.float32] | None
    """[texts, chunks]: the cosine of each text of the query with each chunk."""
    cosine: NDArray[np.float32] | None
    """Highest cosine of any text of the query with any chunk of each item."""
    whole: float | None
    """Highest cosine of the query as a whole with any item."""
    sentences: NDArray[np.float32] | None
    """[sentences, items]: cosines of a query of several sentences; None for others."""
    supports: Mapping[int, Support]
    novel: Mapping[int, float]
    plain: NDArray[np.float32]
    """Scores before `boost_uncovered_sentences`."""
    fused: NDArray[np.float32]
    """Scores that order the items."""
    boosted_by: Mapping[int, int]
    """For each place that was raised, the sentence that raised it most."""

    @classmethod
    def of(cls, query: PreparedQuery, allowed: NDArray[np.bool_]) -> QueryScores:
        """Score the items of the index that are marked as allowed; without vectors by words only."""
        index = query.index
        dense = by_chunk = cosine = cosines = near = None
        if index.dense is None or query.vectors is None:
            items = np.flatnonzero(allowed)
        else:
            words = fuse(None, query.lexical)
            if query.method == "dense":
                words.fill(0)
            words[~allowed] = -np.inf
            items = index.dense.candidates(query.vectors, words, {*query.named, *query.supports})
            dense = index.dense.of(items)
            by_chunk = dense.cosines(query.vectors)
            cosines = dense.by_item(by_chunk)
            cosine = near = cosines.max(axis=0)
        lexical, supports = query.lexical[items], _by_place(query.supports, items)
        exact, novel = _by_place(dict.fromkeys(query.named), items), _by_place(query.novel, items)
        if near is not None:
            if not index.complete:
                near = fill_missing_cosines(near, lexical, index.ready[items])
            near = add_learned(near, supports)
        plain = fused = add_novelty(fuse(near, lexical, query.method), novel)
        sentences, boosted_by = None, dict[int, int]()
        if query.method == "hybrid" and not exact and cosines is not None and items.size:
            sentences = cosines[1:] if len(cosines) > SEVERAL_SENTENCES else None
        if sentences is not None:
            fused, boosted_by = boost_uncovered_sentences(plain, sentences)
        return cls(
            query=query,
            allowed=int(allowed.sum()),
            items=items,
            exact=frozenset(exact),
            lexical=lexical,
            dense=dense,
            by_chunk=by_chunk,
            cosine=cosine,
            whole=None if cosines is None or not items.size else float(cosines[0].max()),
            sentences=sentences,
            supports=supports,
            novel=novel,
            plain=plain,
            fused=fused,
            boosted_by=boosted_by,
        )

    def ranked(self, options: SearchOptions) -> tuple[list[Result], list[Result]]:
        """Return the selected items and those that follow them down to the depth asked for, best first."""
        ordered = self._ordered(options.top_k, options.top_n)
        count = count_selected(self.fused[ordered], options)
        more = [
            place
            for place in ordered[count:]
            if self.cosine is not None and self.cosine[place] >= options.include_score
        ]
        selected = [int(place) for place in (*ordered[:count], *more[: max(0, options.top_k - count)])]
        if self.sentences is not None:
            selected = ensure_each_sentence_covered(selected, self.sentences)
        following: list[int] = []
        if (missing := options.depth - len(selected)) > 0:
            ordered = self._ordered(max(options.top_k, options.depth), options.depth)
            following = [int(place) for place in ordered[~np.isin(ordered, selected)][:missing]]
        return [self._result(place) for place in selected], [self._result(place) for place in following]

    def evidence(self, calibration: Calibration) -> float | None:
        """Return the evidence that something is meant; None where it cannot be told."""
        if self.whole is None or self.query.vectors is None or not self.query.index.complete:
            return None
        if not isinstance(calibration, np.ndarray):
            return None
        highest = (K1 + 1) * self._query_idf()
        coverage = float(self.lexical.max()) / highest if highest else 0.0
        return evidence(self.whole, self.query.vectors[0], calibration, coverage)

    def fits(self, calibration: Calibration, evidence: float | None) -> bool:
        """Return whether anything seems to be meant: near in meaning, an exact name, or most of the words.

        Without vectors, or while some are missing, any common word will do: there is nothing else to go by.
        """
        has_a_word = bool((self.lexical > 0).any())
        if self.exact or any(
            support.cosine >= PROVEN_BY_USE and not support.general for support in self.supports.values()
        ):
            return True
        if self.whole is None:
            return has_a_word
        if isinstance(calibration, np.ndarray):
            return has_a_word if evidence is None else evidence >= needed_evidence(self.allowed)
        if calibration == "anything" or self.whole >= calibration:
            return True
        return self._coverage() >= STRONG_COVERAGE if self.query.index.complete else has_a_word

    def _ordered(self, top_k: int, wanted: int) -> NDArray[np.intp]:
        """Return the candidates' places: exact names first, then by score, then in catalog order.

        Candidates are the items of the best chunks, the best items lexically, the best by score as many as
        are wanted, and all items with an exact name, a boost or a support.
        """
        chosen = np.zeros(self.items.size, bool)
        chosen[best(self.lexical, top_k)] = True
        chosen &= self.lexical > 0
        chosen[list(self.exact)] = True
        if self.dense is not None and self.by_chunk is not None:
            chunks = best(self.by_chunk.max(axis=0), top_k)
            chosen[np.searchsorted(self.dense.starts, chunks, side="right") - 1] = True
            # The best chunks may all be of a few long items, and the best item by score be best in neither.
            chosen[best(self.fused, min(wanted, top_k))] = True
        chosen |= self.fused > self.plain
        chosen[list(self.supports)] = True
        candidates = np.flatnonzero(chosen)
        is_exact = np.isin(candidates, list(self.exact))
        ordered: NDArray[np.intp] = candidates[np.lexsort((candidates, -self.fused[candidates], ~is_exact))]
        return ordered

    def _query_idf(self) -> float:
        return math.fsum(self.query.idf[term] for term in self.query.asked)

    def _coverage(self) -> float:
        """Return the share of the query's idf that the lexically best item has."""
        if not self.lexical.any():
            return 0.0
        best_item = int(self.items[self.lexical.argmax()])
        matched = {term for _, term, _ in self.query.index.lexical.parts(best_item, self.query.idf)}
        return math.fsum(self.query.idf[term] for term in matched) / self._query_idf()

    def _result(self, place: int) -> Result:
        """Return the item at a place with its scores and reasons."""
        query, index, item = self.query, self.query.index, int(self.items[place])
        cosine = float(self.cosine[place]) if self.cosine is not None and index.ready[item] else None
        parts = index.lexical.parts(item, query.idf)
        text, chunk = self._nearest(place)
        boosted_by, support = self.boosted_by.get(place), self.supports.get(place)
        learned = 0.0
        if support is not None and self.cosine is not None:
            learned = learned_addition(float(self.cosine[place]), support)
        return Result(
            item=index.items[item],
            score=float(self.fused[place]),
            cosine=cosine,
            lexical=float(self.lexical[place]),
            need=float(self.fused[place] - self.plain[place]),
            chunk=chunk,
            matched=None if cosine is None else text,
            serves=None if boosted_by is None else query.texts[1 + boosted_by],
            learned=learned,
            support=support,
            exact=place in self.exact,
            novelty=self.novel.get(place, 0.0),
            terms=tuple((field, query.terms[term], added) for field, term, added in parts),
            why=self._why(place, cosine, parts),
        )

    def _nearest(self, place: int) -> tuple[str | None, str]:
        """Return the text of the query and the chunk of an item that are nearest to each other."""
        chunks = self.query.index.chunks[int(self.items[place])]
        if self.dense is None or self.by_chunk is None:
            return None, chunks[0]
        start = int(self.dense.starts[place])
        own = self.by_chunk[:, start : start + len(chunks)]
        chunk = int(own.max(axis=0).argmax())
        return self.query.texts[int(own[:, chunk].argmax())], chunks[chunk]

    def _why(self, place: int, cosine: float | None, parts: Sequence[tuple[str, str, float]]) -> str:
        """Return the reasons for one result as a short sentence; ``parts`` is its score by field and term."""
        reasons = ["exact name"] if place in self.exact else self._lexical_reasons(parts)
        if cosine is not None:
            reasons.append(f"meaning {cosine:.2f}")
        if (support := self.supports.get(place)) is not None:
            past = "" if support.query is None else f" '{support.query[:QUERY_CHARACTERS]}'"
            reasons.append(f"used before for{past or ' a similar query'}")
        if place in self.novel:
            reasons.append("new here")
        if (suspicion := self.query.index.suspicion(int(self.items[place]))) is not None:
            reasons.append(SUSPECTED[suspicion])
        return "; ".join(reasons)

    def _lexical_reasons(self, parts: Sequence[tuple[str, str, float]]) -> list[str]:
        by_field: dict[str, float] = {}
        for field, _, added in parts:
            by_field[field] = by_field.get(field, 0.0) + added
        reasons = []
        for field in sorted(by_field, key=lambda name: -by_field[name])[:FIELDS_NAMED]:
            terms = [term for at, term, _ in parts if at == field]
            named = sorted(terms, key=lambda term: term not in self.query.asked)[:WORDS_NAMED]
            words = " ".join(self.query.terms[term] for term in named if term in self.query.asked)
            alike = [self.query.terms[term] for term in named if term not in self.query.asked]
            matched = [f"'{words}'"] if words else []
            if alike:
                matched.append(f"synonym{'s' if len(alike) > 1 else ''} '{' '.join(alike)}'")
            reasons.append(f"{FIELD_REASONS[field]} {' and '.join(matched)}")
        return reasons


def _by_place(by_item: Mapping[int, T], items: NDArray[np.intp]) -> dict[int, T]:
    """Return values by position in the index as values by place among ``items``; others are left out."""
    places = np.searchsorted(items, np.fromiter(by_item, np.intp, len(by_item))).tolist()
    return {
        place: value
        for place, (item, value) in zip(places, by_item.items(), strict=True)
        if place < items.size and items[place] == item
    }
