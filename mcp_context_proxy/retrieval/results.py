"""What a search is asked for and what it answers: options, results with their reasons.

Why an item was found, in one short sentence for a person.

The seam to what use has taught: search knows tools that were used for queries like this one, not how.

``M(query, tool) = cosine(query, past query) - discount``, and a tool counts as near as it is, or as that,
whatever is more. So nothing is ever lowered. Where a tool was used for queries that have nothing in common,
what may be added is bounded: nobody can carry it to the top of everything, however often it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.items import Item
from mcp_context_proxy.retrieval.keyword_stuffing import Suspicion

MOST_ADDED = 0.5
"""Of a tool's own cosine, where its support is general. One that was not among the first fifteen then comes
into the first five in 1 of 100 cases; without a bound, in nearly all."""


FITTING = 0.5
"""What a tool must count as, by use, for that alone to say that something fits: a past query was near to this
one, with a cosine of 0.6 to 0.7."""


@dataclass(frozen=True, slots=True)
class Support:
    """What speaks for a tool."""

    cosine: float
    """What the tool counts as, if its own is not more."""
    query: str | None
    """The past query that is nearest; None where queries are not kept."""
    uses: int
    general: bool = False
    """Whether the tool was used for all sorts of queries: then this one says little."""


class Learned(Protocol):
    """What use has taught. Blocking and thread-safe."""

    def supported(self, query: NDArray[np.float32]) -> Mapping[tuple[str, str], Support]:
        """What speaks for tools, by server and own name, for a query ([dimensions], norm 1)."""

    def confidence(self, query: NDArray[np.float32]) -> float | None:
        """How much is known of requests like this, 0 to 1; None where too little was learned to tell."""

    def generation(self) -> object:
        """Equal to that of another time as long as what is known is the same."""


NO_SUPPORT: Mapping[int, Support] = MappingProxyType({})
"""Where use has taught nothing about a query."""


NOTHING_NEW: Mapping[int, float] = MappingProxyType({})
"""Where no item is new, or that does not matter."""


def add_novelty(scores: NDArray[np.float32], novel: Mapping[int, float]) -> NDArray[np.float32]:
    """Scores by item, with what those have that are new."""
    if not novel:
        return scores
    raised = scores.copy()
    raised[list(novel)] += np.array(list(novel.values()), np.float32)
    return raised


def learned_addition(cosine: float, support: Support) -> float:
    """What use adds to the cosine of one item."""
    if isinf(cosine):  # a filter forbids it
        return 0.0
    missing = support.cosine - cosine
    return max(min(missing, MOST_ADDED * cosine) if support.general else missing, 0.0)


def add_learned(cosine: NDArray[np.float32], supports: Mapping[int, Support]) -> NDArray[np.float32]:
    """Cosines by item, with what use has taught."""
    if not supports:
        return cosine
    raised = cosine.copy()
    for item, support in supports.items():
        raised[item] += np.float32(learned_addition(float(cosine[item]), support))
    return raised


Method: TypeAlias = Literal["hybrid", "dense", "lexical", "rrf"]
"""How items are scored. The proxy uses ``hybrid``, and ``lexical`` where there is no model; the others are
there to be measured against: the cosine alone, and reciprocal rank fusion of both rankings."""

METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How many items a search selects.

    Candidates are the items of the ``top_k`` best chunks, the ``top_k`` best items lexically, and items whose
    name the query is. Of these, in order of score, the first ``top_n`` are selected, and after them every one
    whose cosine is ``include_score`` or more, up to ``top_k`` items in all. With ``share_of_best`` the number
    follows the scores instead of ``top_n``.
    """

    top_k: int = 20
    """Chunk matches considered."""
    top_n: int = 5
    """Items selected."""
    include_score: float = 0.7
    """Items whose cosine is as much are selected even past ``top_n``. Of the cosine, not of the score: words
    in common have no upper bound, and a long query would bring in everything that shares many."""
    share_of_best: float | None = None
    """Select what scores at least this share of the best score, ``at_least`` to ``at_most`` items."""
    best: int = 1
    """How many of the best scores are averaged for that: one that stands out by its name alone should not
    hide the others."""
    at_least: int = 3
    at_most: int = 12
    method: Method = "hybrid"
    explore: bool = False
    """Whether tools that are new and were not used yet have a little more."""
    depth: int = 0
    """How far to rank whatever is selected: items that follow the selected ones come as `Ranking.others`."""


ADAPTIVE = SearchOptions(share_of_best=0.7, best=3, at_least=4, at_most=10, include_score=inf)
"""Selects by how near the others come to the best: few for a clear need, more for a vague or long one. It
finds more of what is needed than a fixed number of the same average. benchmarks/retrieval.md compares them,
and tells what each public set gets from the share that is chosen without it."""


@dataclass(frozen=True, slots=True)
class Result:
    """An item that was found, and why."""

    item: Item
    score: float
    """``cosine + learned + novelty + 0.025 * lexical + need``, or what another method makes of the parts;
    results are ordered by it, after an exact name."""
    cosine: float | None
    """Of the best chunk with the query or one of its sentences; None in a lexical search."""
    lexical: float
    """BM25F; the sum of ``terms``."""
    need: float
    """What was added for serving a sentence of the query better than anything above it."""
    chunk: str
    """The text of the best chunk."""
    terms: tuple[tuple[str, str, float], ...]
    """The lexical score by field and word, one of the query or a synonym."""
    why: str
    """One short sentence for a person."""
    matched: str | None = None
    """What of the query is nearest to that chunk: all of it or a sentence; None in a lexical search."""
    serves: str | None = None
    """The sentence of the query that ``need`` was added for; None where nothing was."""
    learned: float = 0.0
    """What was added to the cosine because the tool was used for queries like this one."""
    support: Support | None = None
    """The use that speaks for it most."""
    novelty: float = 0.0
    """What was added because the tool is new and was not used yet."""
    exact: bool = False
    """Whether the query is its name."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answer to a query."""

    query: str
    results: tuple[Result, ...]
    """Those selected, best first; empty when nothing fits."""
    considered: int
    """Items that met the filters."""
    method: Method
    """The one used: ``lexical`` where there are no vectors."""
    note: str | None
    """What the person should know about how this was found, such as a model that could not be loaded."""
    fits: bool
    """Whether anything in the catalog seems to be meant at all."""
    near_misses: tuple[Result, ...]
    """When nothing fits: what would have been selected otherwise, best first."""
    seconds: float
    """How long the search took, embedding included."""
    others: tuple[Result, ...] = ()
    """What follows those selected, or the near misses, down to `SearchOptions.depth`."""
    best_cosine: float | None = None
    """The highest of the whole query with any item; None in a lexical search."""
    evidence: float | None = None
    """How much says that something is meant, which ``fits`` goes by (`fitting`); None where it cannot."""
    suspected: Mapping[str, Suspicion] = field(default_factory=dict)
    """Servers whose tools come after those of others (`precedence`), and what they are suspected of."""
    indexed: tuple[int, int] | None = None
    """While indexing is under way: how many of the items considered have their vectors, and of how many. The
    others were searched by words. None when all is indexed."""


SPOKEN = {
    "name": "name matches",
    "description": "description mentions",
    "parameters": "parameters match",
    "parameter_descriptions": "parameters mention",
    "server": "server matches",
    "text": "text mentions",
}

FIELDS_NAMED = 2
"""Fields a sentence speaks of: those that added most."""

QUERY_CHARACTERS = 80
"""Of a past query that a sentence repeats."""

_HELD_BACK = "held back where tools of others fit, because"

SUSPECTED: Mapping[Suspicion, str] = {
    "requests": f"{_HELD_BACK} the descriptions of its server read like requests",
    "names": f"{_HELD_BACK} its server's names have nothing to do with their descriptions",
}
"""Why a tool may come last (`precedence`)."""

WORDS_NAMED = 4
"""Words of a field a sentence repeats."""


def explain(
    exact: bool,
    cosine: float | None,
    terms: Sequence[tuple[str, str, float]],
    words: Mapping[str, str],
    asked: Collection[str],
    support: Support | None = None,
    new: bool = False,
    suspicion: Suspicion | None = None,
) -> str:
    """The reasons for one result.

    Args:
        exact: The query is its name.
        cosine: How near it is in meaning.
        terms: Its lexical score by field and index term.
        words: What each index term stands for.
        asked: Index terms of the query; the others are synonyms.
        support: What use says for it.
        new: It has not been here for long.
        suspicion: What its server is suspected of.
    """
    reasons = ["exact name"] if exact else _fields(terms, words, asked)
    if cosine is not None:
        reasons.append(f"meaning {cosine:.2f}")
    if support is not None:
        query = "" if support.query is None else f" '{support.query[:QUERY_CHARACTERS]}'"
        reasons.append(f"used before for{query or ' a similar query'}")
    if new:
        reasons.append("new here")
    if suspicion is not None:
        reasons.append(SUSPECTED[suspicion])
    return "; ".join(reasons)


def _fields(
    terms: Sequence[tuple[str, str, float]], words: Mapping[str, str], asked: Collection[str]
) -> list[str]:
    weights: dict[str, float] = {}
    for name, _, added in terms:
        weights[name] = weights.get(name, 0.0) + added
    chosen = sorted(weights, key=lambda name: -weights[name])[:FIELDS_NAMED]
    return [
        f"{SPOKEN[name]} {_matched([term for at, term, _ in terms if at == name], words, asked)}"
        for name in chosen
    ]


def _matched(terms: Sequence[str], words: Mapping[str, str], asked: Collection[str]) -> str:
    named = sorted(terms, key=lambda term: term not in asked)[:WORDS_NAMED]
    said = " ".join(words[term] for term in named if term in asked)
    alike = [words[term] for term in named if term not in asked]
    parts = [f"'{said}'"] if said else []
    if alike:
        parts.append(f"synonym{'s' if len(alike) > 1 else ''} '{' '.join(alike)}'")
    return " and ".join(parts)
