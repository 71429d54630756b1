"""One query against one index: scores of all items, the candidates among them, their results.

An immutable value between the arrays and the answer; nothing here waits or remembers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.explanation import explain
from mcp_context_proxy.retrieval.filters import Filters, allowed
from mcp_context_proxy.retrieval.fitting import STRONG_COVERAGE, Fitting, evidence, needed
from mcp_context_proxy.retrieval.fusion import best, count_selected, expected, fuse
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.learned import (
    FITTING,
    NO_SUPPORT,
    NOTHING_NEW,
    Support,
    added,
    favoured,
    lifted,
)
from mcp_context_proxy.retrieval.lexical import K1
from mcp_context_proxy.retrieval.needs import represented, serve
from mcp_context_proxy.retrieval.ranking import Method, Result, SearchOptions
from mcp_context_proxy.retrieval.synonyms import SHARE, synonyms
from mcp_context_proxy.retrieval.terms import name_key, query_terms
from mcp_context_proxy.retrieval.text import QUERY_LIMIT, query_texts

SEVERAL = 2
"""Texts of a query from which on it has more than one sentence: the query itself and the only one are one."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The scores of a query; -inf where a filter forbids the item."""

    index: Index
    texts: Sequence[str]
    """The query and its sentences, in the order of the vectors."""
    vector: NDArray[np.float32] | None
    """Of the query as a whole; None in a lexical search."""
    terms: Mapping[str, str]
    """Index terms of the query, each with its word, and their synonyms."""
    asked: frozenset[str]
    """Those of the query itself."""
    allowed: NDArray[np.bool_]
    exact: frozenset[int]
    """Allowed items whose name the query is."""
    similarities: NDArray[np.float32] | None
    """By chunk, the best of all texts; None in a lexical search, as is `cosine`."""
    by_text: NDArray[np.float32] | None
    """By text and chunk."""
    cosine: NDArray[np.float32] | None
    whole: float | None
    """The best cosine of any item allowed with the query as a whole."""
    lexical: NDArray[np.float32]
    idf: Mapping[str, float]
    """Of each index term."""
    plain: NDArray[np.float32]
    """Cosine and lexical score as one."""
    fused: NDArray[np.float32]
    """The same, raised for items that serve a need of their own."""
    serving: Mapping[int, int]
    """For each item that was raised, the text of the query it serves."""
    sentences: NDArray[np.float32] | None
    """[sentences, items]: cosines, where the query has several and each is to be served."""
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
        filters: Filters,
        method: Method = "hybrid",
        supports: Mapping[int, Support] = NO_SUPPORT,
        novel: Mapping[int, float] = NOTHING_NEW,
    ) -> Scored:
        """Score every item of an index; without the query's vectors by its words only."""
        query = query[:QUERY_LIMIT]
        asked = query_terms(query)
        alike = synonyms(asked)
        met = allowed(index, filters)
        weighed = index.lexical.weigh(asked, alike, SHARE)
        lexical = np.where(met, weighed.scores, 0).astype(np.float32)
        exact = frozenset(item for item in index.named(name_key(query)) if met[item])
        by_text = similarities = cosine = cosines = None
        if index.dense is not None and vectors is not None:
            words = np.where(met, 0 if method == "dense" else fuse(None, lexical), -np.inf)
            by_text = index.dense.similarities(vectors, words.astype(np.float32), exact | supports.keys())
            cosines = np.where(met, index.dense.by_item(by_text), -np.inf).astype(np.float32)
            similarities, cosine = by_text.max(axis=0), cosines.max(axis=0)
        near = cosine if cosine is None or index.complete else expected(cosine, lexical, index.ready)
        if near is not None:
            near = lifted(near, supports)
        plain = np.where(met, favoured(fuse(near, lexical, method), novel), -np.inf).astype(np.float32)
        served = method == "hybrid" and not exact and cosines is not None and len(cosines) > SEVERAL
        sentences = cosines[1:] if served and cosines is not None else None
        fused, serving = (plain, {}) if sentences is None else serve(plain, sentences)
        whole = None if cosines is None or not met.any() else float(cosines[0].max())
        return cls(
            index=index,
            texts=query_texts(query),
            vector=None if vectors is None else vectors[0],
            terms={**asked, **alike},
            asked=frozenset(asked),
            allowed=met,
            exact=exact,
            similarities=similarities,
            by_text=by_text,
            cosine=cosine,
            whole=whole,
            lexical=lexical,
            idf=weighed.idf,
            plain=plain,
            fused=fused,
            serving={item: 1 + sentence for item, sentence in serving.items()},
            sentences=sentences,
            supports=supports,
            novel=novel,
        )

    def indexed(self) -> tuple[int, int]:
        """How many of the items allowed have their vectors, and of how many."""
        return int((self.allowed & self.index.ready).sum()), int(self.allowed.sum())

    def selected(self, options: SearchOptions) -> list[int]:
        """The items selected, best first: exact names, then by score, then in catalog order."""
        ordered = self._ordered(options.top_k, options.top_n)
        count = count_selected(self.fused[ordered], options)
        more = [item for item in ordered[count:] if self._is_near(item, options.include_score)]
        selected = [int(item) for item in (*ordered[:count], *more[: max(0, options.top_k - count)])]
        return selected if self.sentences is None else represented(selected, self.sentences, self.allowed)

    def following(self, selected: Sequence[int], options: SearchOptions) -> list[int]:
        """What comes after those selected, best first, down to the depth asked for."""
        missing = options.depth - len(selected)
        if missing <= 0:
            return []
        ordered = self._ordered(max(options.top_k, options.depth), options.depth)
        return [int(item) for item in ordered[~np.isin(ordered, selected)][:missing]]

    def _is_near(self, item: np.intp, cosine: float) -> bool:
        return self.cosine is not None and bool(self.cosine[item] >= cosine)

    def fits(self, fitting: Fitting) -> bool:
        """Whether anything seems to be meant: near in meaning, an exact name, or most of the telling words.

        Without vectors, or while some are missing, any common word will do: there is nothing else to go by.
        """
        if self.exact or self._is_remembered():
            return True
        if self.whole is None:
            return self._has_a_word()
        if isinstance(fitting, np.ndarray):
            found = self.evidence(fitting)
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

    def result(self, item: int) -> Result:
        """An item with its scores and reasons."""
        cosine = float(self.cosine[item]) if self.cosine is not None and self.index.ready[item] else None
        parts = tuple(self.index.lexical.parts(item, self.idf))
        text, chunk = self._best_pair(item)
        serving = self.serving.get(item)
        return Result(
            item=self.index.items[item],
            score=float(self.fused[item]),
            cosine=cosine,
            lexical=float(self.lexical[item]),
            need=float(self.fused[item] - self.plain[item]),
            chunk=chunk,
            matched=None if cosine is None else text,
            serves=None if serving is None else self.texts[serving],
            learned=self._learned(item),
            support=self.supports.get(item),
            exact=item in self.exact,
            novelty=self.novel.get(item, 0.0),
            terms=parts,
            why=explain(
                item in self.exact, cosine, parts, self.terms, self.supports.get(item), item in self.novel
            ),
        )

    def _cosine(self, item: int) -> float:
        return float("-inf") if self.cosine is None else float(self.cosine[item])

    def _is_remembered(self) -> bool:
        """Whether a tool was used for a query that meant much the same."""
        return any(
            support.cosine >= FITTING and self.allowed[item] and not support.general
            for item, support in self.supports.items()
        )

    def _learned(self, item: int) -> float:
        """What use adds to the cosine of an item."""
        support = self.supports.get(item)
        return 0.0 if support is None else added(self._cosine(item), support)

    def _ordered(self, top_k: int, wanted: int) -> NDArray[np.intp]:
        candidates = self._candidates(top_k, wanted)
        is_exact = np.isin(candidates, list(self.exact))
        ordered: NDArray[np.intp] = candidates[np.lexsort((candidates, -self.fused[candidates], ~is_exact))]
        return ordered

    def _candidates(self, top_k: int, wanted: int) -> NDArray[np.intp]:
        """Items of the best chunks, the best items lexically, exact names; as many as are wanted in all."""
        chosen = np.zeros(len(self.index.items), bool)
        chosen[best(self.lexical, top_k)] = True
        chosen &= self.lexical > 0
        chosen[list(self.exact)] = True
        if self.index.dense is not None and self.similarities is not None:
            item_of = self.index.dense.item_of
            near = np.where(self.allowed[item_of], self.similarities, -np.inf)
            chosen[item_of[best(near, top_k)]] = True
        if self.cosine is not None:
            # The best chunks may all be of a few long items, and what is best altogether be best in neither.
            chosen[best(self.fused, min(wanted, top_k))] = True
        chosen |= self.fused > self.plain
        chosen[list(self.supports)] = True
        # In a large catalog far down the words an item may have no score: its cosine was not computed.
        return np.flatnonzero(chosen & np.isfinite(self.fused))

    def _coverage(self) -> float:
        """The share of the query's idf that the best item lexically has."""
        if not self.lexical.any():
            return 0.0
        matched = {term for _, term, _ in self.index.lexical.parts(int(self.lexical.argmax()), self.idf)}
        return sum(self.idf[term] for term in matched) / self._rarity()

    def _rarity(self) -> float:
        """The idf of the query."""
        return sum(self.idf[term] for term in self.asked)

    def _best_pair(self, item: int) -> tuple[str | None, str]:
        """The text of the query and the chunk of an item that are nearest to each other."""
        chunks = self.index.chunks[item]
        if self.index.dense is None or self.similarities is None or self.by_text is None:
            return None, chunks[0]
        chunk = self.index.dense.best_chunk(item, self.similarities)
        column = self.by_text[:, int(self.index.dense.starts[item]) + chunk]
        return self.texts[int(column.argmax())], chunks[chunk]

    def _has_a_word(self) -> bool:
        return bool((self.lexical > 0).any())
