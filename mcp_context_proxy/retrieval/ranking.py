"""What a search is asked for and what it answers: options, results with their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal, TypeAlias, get_args

from mcp_context_proxy.items import Item
from mcp_context_proxy.retrieval.learned import Support
from mcp_context_proxy.retrieval.stuffing import Suspicion

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
