"""How well "nothing fits" tells queries that a catalog can answer from those put to a catalog of other tools.

A query put to another catalog counts as impossible only if none of the tools it needs has a near twin there.
What is left can still be answered by accident now and then, so the share refused is a lower bound. Thresholds
are also chosen with one catalog left out, and tried on that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mcp_context_proxy.evaluation.evaluation import TOOLS
from mcp_context_proxy.evaluation.queries import Query
from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval import EmbedTexts, Engine, SearchOptions
from mcp_context_proxy.retrieval.fusion import FITTING_COSINE
from mcp_context_proxy.retrieval.text import chunks

SAMPLE = 150
"""Queries of each set put to each catalog, at equal distances."""

KEPT = 0.97
"""Of the answerable queries: at most 3 % may be refused."""

TWIN = 0.6
"""Cosine of two tools' names and descriptions from which one may do the other's work."""

HEAD = (
    "catalog",
    "answerable",
    "fit",
    "impossible",
    "refused",
    "AUROC",
    "threshold of the others",
    "fit",
    "refused",
)

Named = tuple[str, Snapshot, list[Query]]


@dataclass(frozen=True, slots=True)
class Asked:
    """The queries of one set put to one catalog."""

    catalog: str
    own: bool
    cosine: np.ndarray
    """The best of each query."""
    fits: np.ndarray
    """What was answered."""


def calibration(sets: Sequence[Named], embedder: EmbedTexts, query_embedder: EmbedTexts) -> list[str]:
    """The section of the page."""
    asked = ask_all(sets, embedder, query_embedder)
    catalogs = list(dict.fromkeys(one.catalog for one in asked))
    rows = [[catalog, *_numbers(asked, catalog)] for catalog in catalogs]
    rows.append(["**all**", *_numbers(asked, None)])
    return [
        '## "Nothing fits"',
        "",
        f"Up to {SAMPLE} queries of each set, put to their own catalog (answerable) and to the others.",
        f"Impossible are those that need no tool with a twin there (cosine of the texts {TWIN:g} or more).",
        f"Refused: the whole query reaches no cosine of {FITTING_COSINE:g}, is no name, shares few words.",
        f"Last columns: the cosine that {KEPT:.0%} of the answerable queries of all other catalogs reach,",
        "tried on this one; in the last row that of all.",
        "",
        *(f"| {' | '.join(line)} |" for line in [HEAD, ["---"] * len(HEAD), *rows]),
        "",
        "Accidents: of 40 queries put to another catalog (not that of seal_tools), drawn at random from",
        "those with a sentence of cosine 0.30 or more and read one by one, 10 could be answered after",
        "all (the wind in Moscow by a weather tool, papers on machine learning by a search for papers).",
        "So the share refused is a lower bound. In a catalog of thousands of tools something is always",
        "near, and a fixed cosine refuses hardly anything.",
    ]


def ask_all(sets: Sequence[Named], embedder: EmbedTexts, query_embedder: EmbedTexts) -> list[Asked]:
    """Every set of queries put to every catalog, each catalog once."""
    catalogs = {frozenset(snapshot.tools): (name, snapshot) for name, snapshot, _ in reversed(sets)}
    asked = []
    for tools, (catalog, snapshot) in catalogs.items():
        engine = Engine(embedder, query_embedder)
        for _, own, queries in sets:
            sample = queries[:: max(1, len(queries) // SAMPLE)][:SAMPLE]
            is_own = frozenset(own.tools) == tools
            if not is_own:
                twins = _with_twin(own, snapshot, embedder)
                sample = [query for query in sample if twins.isdisjoint(frozenset().union(*query.needs))]
            found = [engine.search(query.text, snapshot, TOOLS, SearchOptions(top_n=1)) for query in sample]
            cosine = np.array([ranking.best_cosine or 0.0 for ranking in found])
            asked.append(Asked(catalog, is_own, cosine, np.array([ranking.fits for ranking in found], bool)))
    return asked


def auroc(positive: np.ndarray, negative: np.ndarray) -> float:
    """The chance that an answerable query has the higher cosine (Mann and Whitney); ties count half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.mean() / 2 / negative.size)


def threshold(asked: Sequence[Asked]) -> float:
    """The cosine that enough of the answerable queries reach, every set weighing the same."""
    steps = np.arange(0.1, 0.6, 0.005)
    kept = np.mean([[(one.cosine >= step).mean() for step in steps] for one in asked if one.own], axis=0)
    return float(steps[kept >= KEPT].max())


def _numbers(asked: Sequence[Asked], catalog: str | None) -> list[str]:
    """One row: of a catalog, or of all (whose threshold is their own)."""
    here = [one for one in asked if catalog is None or one.catalog == catalog]
    elsewhere = [one for one in asked if catalog is None or one.catalog != catalog]
    own, foreign = ([one for one in here if one.own is is_own] for is_own in (True, False))
    positive, negative = (np.concatenate([one.cosine for one in some]) for some in (own, foreign))
    fit, wrong = (np.concatenate([one.fits for one in some]) for some in (own, foreign))
    chosen = threshold(elsewhere)
    numbers = [1 - wrong.mean(), auroc(positive, negative), chosen]
    numbers += [(positive >= chosen).mean(), (negative < chosen).mean()]
    return [str(positive.size), f"{fit.mean():.3f}", str(negative.size), *(f"{x:.3f}" for x in numbers)]


def _with_twin(own: Snapshot, other: Snapshot, embedder: EmbedTexts) -> set[tuple[str, str]]:
    """The tools of a catalog that have a twin in the other."""
    tools = list(own.tools.values())
    mine, theirs = (embedder.embed([_text(tool) for tool in s.tools.values()]) for s in (own, other))
    near = (mine @ theirs.T).max(axis=1) >= TWIN
    return {(tool.server, tool.name) for tool, has in zip(tools, near, strict=True) if has}


def _text(tool: Tool) -> str:
    return chunks(f"{tool.name}: {tool.description}")[0]
