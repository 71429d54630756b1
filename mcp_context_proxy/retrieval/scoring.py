"""Formulas of the ranking: fusion, learned tools, needs, passages of documents, evidence that anything fits.

Pure functions over arrays. An item's score is ``cosine + learned + novelty + 0.02 * BM25F + action +
instructions + need``. Compared with rank fusion, min-max, z-scores and other weighted sums, this form was the
best on twelve public sets of tools, and the factor stays the same whichever of them is left out.

A handbook has nearly every word of any request somewhere, so that its words as a whole say little. The word
of one chapter and the meaning of another say nothing together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from math import inf, isinf
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from mcp_context_proxy.config import PACKAGED_MODELS, EmbeddingConfig
from mcp_context_proxy.retrieval import Method, SearchOptions, Support
from mcp_context_proxy.retrieval.text import terms
from mcp_context_proxy.retrieval.vectors import DECIMALS, best, dots
from mcp_context_proxy.system.later import NDArray, np, packaged_text

LEXICAL_FACTOR: Final = 0.02
"""Worth of one point of BM25F in cosine. It was 0.025 for the published model; for the trained one 0.02 gains
a point of recall@1, and with less, requests with several needs lose."""

INSTRUCTIONS: Final = 0.03
"""Amount that is added to the tools of a server whose instructions have every word of the query; less for a
share of them by idf. On 132 requests for the 33 lists with instructions written for them, recall@1 rises by
0.8 points with 0.02 and 0.03, by 2.3 with 0.08. A server whose instructions have the words of all the others
was first no more often than without, up to 0.05. It is less than an action may add: it decides among tools
that are otherwise alike."""

ADDRESSED: Final = 0.05
"""Amount by which tools of other servers count less where a query names one, as "in our Notion". Its name is
among the words as well, but counts little where the server has many tools."""

ADDRESSED_OTHERWISE: Final = 0.15
"""The same where its name only has a short form of the word ("prod-db"), which matches in no other way."""

ADDRESSED_ALONE: Final = 0.3
"""The same where the words of the rest alone are compared with tools (`needs.address_of`). Of 205 requests
for 1,056 tools of 21 servers, each with the name of its server before or after it, all then have a tool of
that server first; 62 to 67 in a hundred have the right one there, nearly as if no other server were searched,
and 53 to 65 with the name among the words."""

RRF_K = 60
"""Constant of reciprocal rank fusion, as its authors set it."""

NEED_PLACES = 10
"""Places of a ranking that are shared among needs: as many as are shown at most."""

NEED_CANDIDATES = 30
"""Items that are considered for these places, the best by score."""

NEED_CANDIDATES_OF_A_NEED = 8
"""Items of each need that are considered beside them."""

LIKELIHOOD: Final = 0.06
"""Score by which an item is e times as likely to be what a need means. From 0.05 to 0.08 as many requests
with several needs have all of them met."""

LIKELY: Final = 250
"""Items that may be what a need means, the best by score: many thousands of unlikely ones would seem to be as
likely together as the best, and an index that estimates has not all of them."""

SAME_SERVER: Final = 0.2
"""Likelihood of the tools of a server that serves no other need, beside those of one that surely does."""

OF_THE_WHOLE: Final = 0.3
"""Weight of the query as a whole beside needs that ask for something."""

OF_NO_ORDER: Final = 0.5
"""Weight of a need that opens with neither an order nor a question: it may only say where a file is."""

OF_THE_WHOLE_BY_NO_ORDER: Final = 6.0
"""Weight that the whole gains by each of these: a story is one need. With 3 to 10 the public sets of one need
and of several stay within half a point."""

UNMET: Final = 0.02
"""Likelihood with which a need counts as met before any item is placed."""

CONTEXT: Final = 0.5
"""Part of the vector of the whole query in that of each of several needs: "hand it to Sven" says little."""

NEED_STEP: Final = 10**-DECIMALS
"""Distance by which a raised score stays above the one below it."""

EVIDENCE_OF_COSINE = 0.7
"""Evidence that something is meant, by the cosine of the best item itself: where nothing anywhere is near, a
comparison alone would let the least bad item fit."""

EVIDENCE_OF_MARGIN = 0.25
"""Evidence by cosine beyond the mean of the nearest elsewhere. The numbers of evidence were chosen together
on half of the requests, and for small catalogs on half of the servers, the threshold later while looking at
all, so that 97 of 100 are kept and as many as possible refused of those that nothing fits."""

EVIDENCE_OF_DEVIATION = 0.06
"""Evidence for each standard deviation above general requests."""

FAR = 0.25
"""Cosine by which something elsewhere may be nearer than the best item before it alone speaks against it."""

AGAINST_FAR = 1.5
"""Evidence by cosine against an item that is farther than that."""

EVIDENCE_OF_COUNTERPARTS = 0.4
"""Evidence by the likeness of the nearest elsewhere with the catalog: a request that is near to what the
catalog has, too, is meant for it, and one that is near to what it lacks is not."""

EVIDENCE_OF_ADDRESS = 0.15
"""Evidence for a query that names a server of the catalog."""

EVIDENCE_OF_RANK = 0.6
"""Evidence by cosine beyond the general requests that are nearest to the query."""

AGAINST_ALONE = 0.6
"""Evidence against an item by cosine beyond the item `COMPANY` places behind: what a catalog serves has tools
of its kind there, and one that is alone is more often near by a word that it shares."""

COMPANY = 5
"""Places and general requests that these two look at."""

ORDINARY_TOOLS = 1_000
"""Number of ordinary tools beside those of a catalog among which the words of a query are rare or common.
300 to 3,000 refuse and keep the same within a request or two."""

NEARER_UNAIDED = 0.1
"""Cosine by which what a model does unaided may be nearer to a query than the general requests before it
speaks against all items. With 0.05, five points more are refused of what people type to an assistant that
writes code, but also half a point of what tools can serve."""

SHARPNESS = 20.0
"""Weight of the nearest elsewhere beside the others: e times that of one whose cosine is 0.05 lower."""

NEEDED_EVIDENCE = 0.0375
"""Evidence that is needed in the smallest catalogs."""

NEEDED_BY_SIZE = 0.115
"""Evidence that is needed more in a catalog that is e times as large: the best of many is near by chance."""

DOUBT_OF_TOLD = 0.05
"""Evidence beyond the needed below which what a message asks for decides without what it tells. With 0.1, or
without a limit, more is refused in short stories (.77 and .82 for .76), and of public requests as well."""

WORTH_OTHER_WORDS = 0.08
"""Evidence of a request that nothing fits from which on it is read with the catalog's names for its things.
Who means other things by the same words ("tickets for the gig") has none to begin with."""

RIVALS = 3
"""Number of the nearest elsewhere whose mean the best item is compared with: the nearest one may be the same
tool of another server. They are compared with the catalog together with the query, which costs nothing where
it has one need: four vectors are multiplied at once."""

FEWEST_ITEMS = 5
"""A smaller catalog needs as much evidence as one of this size: of a single item any would be enough."""

MOST_ITEMS = 10_000
"""A larger catalog needs as much evidence as one of this size, beyond which none was measured."""

STRONG_COVERAGE = 0.6
"""Share of a query's idf that the best item must have for its words alone to say that something is meant."""

BACKGROUND = Path(__file__).parent / "background"
"""Vectors by each packaged model, one a row: of general requests as float16 in ``NAME.npy``, and in units of
1/127 of what is elsewhere in ``NAME.elsewhere.npy`` and what a model does unaided in ``NAME.unaided.npy``.

The requests are such as people make to tools in general, written down without a look at any set of tools that
is measured; half of them serve nearly as well. Elsewhere are every fourth of the tools that the model was
trained on, tools for everyday needs that few servers have, such as the weather or a table in a restaurant,
and small talk, for which there are no tools. Unaided, a model explains, writes and changes the code or the
text of a conversation. ``scripts/build_background.py`` embeds them: to do it at the first search of every new
store would make somebody wait for seconds."""

UNIT = 127
"""Number that stands for 1 in the stored vectors of things elsewhere and of what is done unaided."""


class Background:
    """Vectors that the catalog is compared with to tell whether it has anything that is meant."""

    def __init__(
        self,
        requests: NDArray[np.float32],
        elsewhere: NDArray[np.float32],
        unaided: NDArray[np.float32],
    ) -> None:
        """Take vectors of general requests, items of other catalogs, and work that a model does unaided."""
        self.requests, self.elsewhere, self.unaided = requests, elsewhere, unaided


class PackagedBackground(Background):
    """The same by a packaged model, read from the package at their first use."""

    def __init__(self, model: str) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name == "requests":
            requests: NDArray[np.float16] = np.load(BACKGROUND / f"{self._model}.npy")
            self.requests = requests.astype(np.float32)
        elif name in ("elsewhere", "unaided"):
            stored: NDArray[np.int8] = np.load(BACKGROUND / f"{self._model}.{name}.npy")
            setattr(self, name, stored.astype(np.float32) / np.float32(UNIT))
        return object.__getattribute__(self, name)


Calibration: TypeAlias = float | Background | Literal["anything"]
"""Decides how near the best item must be for anything to be meant: a background, a cosine, or, for a model of
which nothing is known, ``anything``."""


def fuse(
    cosine: NDArray[np.float32] | None, lexical: NDArray[np.float32], method: Method = "hybrid"
) -> NDArray[np.float32]:
    """Return one score per item; without a model the lexical part alone, on the same scale."""
    if cosine is not None and method == "dense":
        return cosine
    if cosine is not None and method == "rrf":
        # An item without any of the words has only the one rank.
        fused = reciprocal_ranks(cosine)
        fused[lexical > 0] += reciprocal_ranks(lexical)[lexical > 0]
        return fused
    weighted = LEXICAL_FACTOR * lexical
    return np.round(weighted if cosine is None else cosine + weighted, DECIMALS)


def reciprocal_ranks(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return ``1 / (60 + rank)`` by item; equal scores have one rank.

    Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning
    methods" (SIGIR 2009).
    """
    ranks = np.searchsorted(np.sort(-scores), -scores) + 1
    reciprocal: NDArray[np.float32] = (1 / (RRF_K + ranks)).astype(np.float32)
    return reciprocal


def fill_missing_cosines(
    cosine: NDArray[np.float32], lexical: NDArray[np.float32], ready: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Return the cosines, with a guess from its words for each item that has no vectors yet.

    The guess is the highest cosine times the item's share of the highest lexical score. So an item that is
    not indexed yet is neither buried under those that are nor put above those that have its words.
    """
    if ready.all() or not ready.any() or not lexical.any():
        return cosine
    share = max(np.float32(0), cosine[ready].max()) * lexical / lexical.max()
    return np.where(ready, cosine, share).astype(np.float32)


def learned_additions(
    cosine: NDArray[np.float32], supports: Mapping[int, Support], nearest: float
) -> NDArray[np.float32]:
    """Return the amounts that past use adds to the cosines of items; never negative.

    An item then counts as near as its support says. Where its support is weak the addition is bounded:
    nobody can carry a tool to the top of everything, however often it is used, and a call that had nothing
    to do with the latest request does not make its tool a match for it.

    Args:
        cosine: Cosines by item.
        supports: Past use that speaks for items.
        nearest: Cosine that weak support raises no item above.
    """
    added = np.zeros_like(cosine)
    for item, support in supports.items():
        if isinf(own := float(cosine[item])):  # a filter excludes it
            continue
        missing = support.cosine - own
        if support.is_weak:
            missing = min(missing, support.most_added * own, nearest - own)
        added[item] = max(missing, 0.0)
    return added


def add_novelty(scores: NDArray[np.float32], novel: Mapping[int, float]) -> NDArray[np.float32]:
    """Return scores by item with the addition for new items."""
    if not novel:
        return scores
    raised = scores.copy()
    raised[list(novel)] += np.array(list(novel.values()), np.float32)
    return raised


def in_context(cosines: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosines of each need together with the query as a whole.

    Args:
        cosines: [texts, chunks]: those of the whole query, then those of its needs.
        vectors: The vectors of these texts.
    """
    context = np.float32(CONTEXT)
    lengths = np.linalg.norm(vectors[1:] + context * vectors[0], axis=1, keepdims=True)
    together: NDArray[np.float32] = (cosines[1:] + context * cosines[0]) / lengths
    return together


def share_places(
    scores: NDArray[np.float32],
    needs: NDArray[np.float32],
    asks: Sequence[bool],
    sources: NDArray[np.integer[Any]],
) -> tuple[NDArray[np.float32], dict[int, int]]:
    """Raise items so that the first places are shared among the needs of a query.

    For each need, every item is as likely to be the right one as ``exp(score / LIKELIHOOD)``, and more likely
    where its server also serves another need: "hand it to Sven" means the tracker in which the issue was
    made. The query as a whole counts as a need as well. The first place goes to the best score; the others
    are given out one by one, each to the item that adds most to the likelihood that all needs are met. So a
    need with one clear winner takes one place, and a vague one several. It is the diversification of Santos,
    Macdonald and Ounis, "Exploiting query reformulations for web search result diversification" (WWW 2010),
    but for all needs at once.

    Args:
        scores: Scores of all items that may be found.
        needs: [needs, items]: the score of each item for each need.
        asks: For each need, true if it opens with an order or a question.
        sources: [items]: the source of each item.

    Returns:
        The scores, and for each item that was raised, the need that it is likeliest for.
    """
    likely = _likelihoods(needs)
    if len(needs) > 1:
        of_source = np.stack([np.bincount(sources, weights=row) for row in likely])
        elsewhere = np.stack([np.delete(of_source, at, axis=0).max(axis=0) for at in range(len(needs))])
        likely *= (SAME_SERVER + elsewhere)[:, sources]
        likely /= likely.sum(axis=1, keepdims=True)
    chosen = np.zeros(scores.size, bool)
    chosen[best(scores, NEED_CANDIDATES)] = True
    for row in likely:
        chosen[best(row, NEED_CANDIDATES_OF_A_NEED)] = True
    candidates = np.flatnonzero(chosen & (scores > -np.inf))
    told = np.concatenate([likely, _likelihoods(scores[None])])[:, candidates]
    others = len(asks) - sum(asks)
    weights = np.array(
        [*(1.0 if one else OF_NO_ORDER for one in asks), OF_THE_WHOLE + OF_THE_WHOLE_BY_NO_ORDER * others],
        np.float32,
    )
    met, order = np.full((len(told), 1), UNMET, np.float32), [int(scores[candidates].argmax())]
    for _ in range(1, min(NEED_PLACES, candidates.size)):
        met += told[:, order[-1:]]
        gains = weights @ np.log1p(told / met)
        gains[order] = -1.0
        order.append(int(gains.argmax()))
    raised, serving = scores.copy(), dict[int, int]()
    placed = candidates[order]
    raised[placed] = -np.inf
    above = raised.max(initial=-np.inf)
    claimed = _claims(scores, needs, asks, likely)
    for item, at in zip(placed[::-1].tolist(), order[::-1], strict=True):
        above = max(scores[item], claimed.get(item, -np.inf), above + np.float32(NEED_STEP))
        raised[item] = above
        if above > scores[item]:
            serving[item] = int(told[:-1, at].argmax())
    return np.round(raised, DECIMALS), serving


def _likelihoods(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return how likely each item is the right one, by row, given its scores."""
    likely: NDArray[np.float32] = np.exp(
        (scores - scores.max(axis=1, keepdims=True)) / np.float32(LIKELIHOOD)
    )
    if scores.shape[1] > LIKELY:
        for row in likely:
            row[row < np.partition(row, -LIKELY)[-LIKELY]] = 0
    likely /= likely.sum(axis=1, keepdims=True)
    return likely


def _claims(
    scores: NDArray[np.float32],
    needs: NDArray[np.float32],
    asks: Sequence[bool],
    likely: NDArray[np.float32],
) -> dict[int, np.float32]:
    """Return what the likeliest item of each need that asks for something counts at least.

    It counts like the best of the query, less the share by which the need is farther from anything.
    """
    nearest = needs.max(axis=1)
    far = 1 - nearest / max(nearest.max(), np.float32(NEED_STEP))
    return {
        int(row.argmax()): scores.max() - by
        for row, by, asked in zip(likely, far, asks, strict=True)
        if asked
    }


def count_selected(
    scores: NDArray[np.float32], options: SearchOptions, best_proven: float | None = None
) -> int:
    """Return how many of the candidates, given their scores in order, are selected for their rank.

    They need a share of ``best_proven``, by default of the best score: a tool that was used once hides no
    other one.
    """
    if not scores.size:
        return 0
    if options.share_of_best is None:
        return min(options.top_n, scores.size)
    shares = options.share_of_best + options.share_step * np.arange(scores.size)
    best = scores.max() if best_proven is None else best_proven
    near = int((scores >= shares * best - options.leeway).sum())
    return min(max(near, options.at_least), options.at_most, scores.size)


class Rivals(Struct, frozen=True, eq=False):
    """The things elsewhere that are nearest to a query, the nearest last."""

    cosines: NDArray[np.float64]
    vectors: NDArray[np.float32]


def rivals_of(vector: NDArray[np.float32], background: Background) -> Rivals:
    """Return the tools of other catalogs that are nearest to a text."""
    elsewhere = dots(background.elsewhere, vector)
    some = elsewhere.argpartition(-RIVALS)[-RIVALS:]
    some.sort()
    cosines = np.round(elsewhere[some].astype(np.float64), DECIMALS).astype(np.float64, copy=False)
    order = cosines.argsort(kind="stable")
    return Rivals(cosines[order], background.elsewhere[some[order]])


def evidence(
    cosines: NDArray[np.float32],
    general: NDArray[np.float32],
    rivals: NDArray[np.float64],
    counterparts: NDArray[np.float32],
    unaided: float,
    coverage: NDArray[np.float64],
) -> tuple[float, float]:
    """Return the evidence that a catalog has an item that is meant, and what a prompt needs beyond a search.

    Whoever searches wants a tool. What people type to an assistant needs none more often than not, so the
    first 0.1 by which unaided work is nearer speaks against it, too.

    A cosine means little by itself: a vague query is near to everything, one full of names to nothing, and
    every model has its own scale. So the best cosine is also compared in two ways: with the query's cosines
    with general requests, in standard deviations, as scores of speakers are normalised before they are
    accepted (z-norm), and with the nearest elsewhere. A request that is much nearer to these than to anything
    here is meant for another server, or for none. Meaning or the words of the query may be enough, so both
    are combined as a noisy or, ``1 - (1 - meaning) * (1 - coverage)``; meaning below 0 takes from the words,
    which may be the same by accident. Both must be of one item: the word of one and the meaning of another
    say nothing together.

    Args:
        cosines: Those of the items with the query as a whole.
        general: Those of general requests with it.
        rivals: Those of the nearest elsewhere with it, the nearest last.
        counterparts: The highest cosine of any item with each of these.
        unaided: That of the nearest text of work that a model does unaided.
        coverage: The share of the highest possible BM25F that each item has, 0 to 1.
    """
    best = float(cosines.max())
    near = np.round(general.astype(np.float64), DECIMALS)
    # Of the items without a word only the nearest counts.
    some = coverage > 0
    some[cosines.argmax()] = True
    own = cosines[some]
    meaning = (
        EVIDENCE_OF_COSINE * own
        + EVIDENCE_OF_MARGIN * (own - float(rivals.mean()))
        + EVIDENCE_OF_DEVIATION / (float(near.std()) or 1.0) * (own - float(near.mean()))
        - AGAINST_FAR * np.maximum(float(rivals[-1]) - FAR - own, 0.0)
    )
    weights = np.exp(SHARPNESS * (rivals - rivals[-1]))
    company = min(COMPANY + 1, cosines.size)
    nearest = float(np.partition(near, -COMPANY)[-COMPANY:].mean())
    told = (
        1
        - float(((1 - np.clip(meaning, -1.0, 1.0)) * (1 - coverage[some])).min())
        + EVIDENCE_OF_COUNTERPARTS * float(weights @ counterparts / weights.sum())
        + EVIDENCE_OF_RANK * (best - nearest)
        - max(unaided - nearest - NEARER_UNAIDED, 0.0)
        - AGAINST_ALONE * (best - float(np.partition(cosines, -company)[-company]))
    )
    return max(told, 0.0), min(max(unaided - nearest, 0.0), NEARER_UNAIDED)


@cache
def ordinary_terms() -> Mapping[str, float]:
    """Return the terms that are common in tools, each with the share of tools of an ordinary server with it.

    Servers count alike: else the names of those with a hundred tools would be common words.
    """
    lines = packaged_text(BACKGROUND / "terms.txt").splitlines()
    shares = (line.split() for line in lines)
    return {term: int(thousandths) / 1000 for thousandths, term in shares}


def needed_evidence(items: int) -> float:
    """Return the evidence from which on something is meant in a catalog of so many items."""
    size = min(max(items, FEWEST_ITEMS), MOST_ITEMS)
    return NEEDED_EVIDENCE + NEEDED_BY_SIZE * float(np.log(size / FEWEST_ITEMS))


def spare_evidence(evidence: float | None, items: int) -> float:
    """Return the evidence beyond that which is needed among so many items; infinite if it cannot be told."""
    return inf if evidence is None else evidence - needed_evidence(items)


def calibration_for(embedding: EmbeddingConfig) -> Calibration:
    """Return the calibration for a model; ``anything`` for another model without a configured cosine."""
    if embedding.fitting_cosine is not None:
        return embedding.fitting_cosine
    return "anything" if embedding.packaged is None else packaged_background(embedding.packaged)


@cache
def packaged_background(model: str = PACKAGED_MODELS[0]) -> Background:
    return PackagedBackground(model)


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
