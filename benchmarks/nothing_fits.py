"""How well "nothing fits" tells queries that a catalog can answer from those put to a catalog of other tools.

A query put to another catalog counts as impossible only if none of the tools it needs has a near twin there.
Many can still be answered by accident, in a catalog of thousands of tools nearly all, so the share refused is
a lower bound. Thresholds are also chosen with one catalog left out, and tried on that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mcp_context_proxy.evaluation.evaluation import TOOLS
from mcp_context_proxy.evaluation.queries import Query
from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval import EmbedTexts, Engine, SearchOptions
from mcp_context_proxy.retrieval.background import packaged_background
from mcp_context_proxy.retrieval.fitting import COVERAGE_WEIGHT, LEAST_EVIDENCE
from mcp_context_proxy.retrieval.text import chunks

SAMPLE = 150
"""Queries of each set put to each catalog, at equal distances."""

KEPT = 0.97
"""Of the answerable queries: at most 3 % may be refused."""

TWIN = 0.6
"""Cosine of two tools' names and descriptions from which one may do the other's work."""

LARGE = 1_000
"""Tools from which on a catalog can answer most of what is put to it; a row tells of all others together."""

HEAD = (
    "catalog (tools)",
    "answerable",
    "fit",
    "impossible",
    "refused",
    "AUROC",
    "of the cosine alone",
    "threshold of the others",
    "fit",
    "refused",
)

Named = tuple[str, Snapshot, list[Query]]


@dataclass(frozen=True, slots=True)
class Asked:
    """The queries of one set put to one catalog."""

    catalog: str
    tools: int
    own: bool
    evidence: np.ndarray
    """Of each query."""
    cosine: np.ndarray
    """The best of each query."""
    fits: np.ndarray
    """What was answered."""


def calibration(sets: Sequence[Named], embedder: EmbedTexts, query_embedder: EmbedTexts) -> list[str]:
    """The section of the page."""
    asked = ask_all(sets, embedder, query_embedder)
    sizes = dict.fromkeys((one.catalog, one.tools) for one in asked)
    rows = [[f"{catalog} ({tools})", *_numbers(asked, {catalog})] for catalog, tools in sizes]
    rows.append([f"**all under {LARGE:,}**", *_numbers(asked, {name for name, n in sizes if n < LARGE})])
    rows.append(["**all**", *_numbers(asked, {name for name, _ in sizes})])
    return [
        '## "Nothing fits"',
        "",
        f"Up to {SAMPLE} queries of each set, put to their own catalog (answerable) and to the others.",
        f"Impossible are those that need no tool with a twin there (cosine of the texts {TWIN:g} or more).",
        "Evidence: the best cosine, in standard deviations above those of general requests, and",
        f"{COVERAGE_WEIGHT:g} times the share of the query's words that an item has.",
        f"Refused: less than {LEAST_EVIDENCE:g}, and no name.",
        f"Last columns: the evidence that {KEPT:.0%} of the answerable queries of all other catalogs reach,",
        "tried on this one; in the last rows that of all of them.",
        "",
        *(f"| {' | '.join(line)} |" for line in [HEAD, ["---"] * len(HEAD), *rows]),
        "",
        *ACCIDENTS,
    ]


ACCIDENTS = (
    "Accidents: 20 impossible queries to each catalog, of these and three more sets, were read one by one",
    "with the tools that came nearest. 16 of the 20 put to seal_tools (4,076 tools from every field) can be",
    "answered there after all: a flight, a hotel, the rank of a web page. So can 6 of 20 put to livemcp,",
    "6 of 20 put to metatool_multi, and none of 20 put to mcpproxy_golden. The share refused is a lower",
    "bound, and that of seal_tools says nothing.",
)


def ask_all(sets: Sequence[Named], embedder: EmbedTexts, query_embedder: EmbedTexts) -> list[Asked]:
    """Every set of queries put to every catalog, each catalog once."""
    catalogs = {frozenset(snapshot.tools): (name, snapshot) for name, snapshot, _ in reversed(sets)}
    asked = []
    for tools, (catalog, snapshot) in catalogs.items():
        engine = Engine(embedder, query_embedder, packaged_background())
        for _, own, queries in sets:
            sample = queries[:: max(1, len(queries) // SAMPLE)][:SAMPLE]
            is_own = frozenset(own.tools) == tools
            if not is_own:
                twins = _with_twin(own, snapshot, embedder)
                sample = [query for query in sample if twins.isdisjoint(frozenset().union(*query.needs))]
            found = [engine.search(query.text, snapshot, TOOLS, SearchOptions(top_n=1)) for query in sample]
            evidence = np.array([ranking.evidence or 0.0 for ranking in found])
            cosine = np.array([ranking.best_cosine or 0.0 for ranking in found])
            fits = np.array([ranking.fits for ranking in found], bool)
            asked.append(Asked(catalog, len(tools), is_own, evidence, cosine, fits))
    return asked


def auroc(positive: np.ndarray, negative: np.ndarray) -> float:
    """The chance that an answerable query has the higher value (Mann and Whitney); ties count half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.mean() / 2 / negative.size)


def threshold(asked: Sequence[Asked]) -> float:
    """The evidence that enough of the answerable queries have, every set weighing the same."""
    steps = np.arange(1.0, 6.0, 0.05)
    kept = np.mean([[(one.evidence >= step).mean() for step in steps] for one in asked if one.own], axis=0)
    return float(steps[kept >= KEPT].max())


def _numbers(asked: Sequence[Asked], catalogs: set[str]) -> list[str]:
    """One row: of a catalog, or of several (whose threshold is their own)."""
    here = [one for one in asked if one.catalog in catalogs]
    elsewhere = here if len(catalogs) > 1 else [one for one in asked if one.catalog not in catalogs]
    own, foreign = ([one for one in here if one.own is is_own] for is_own in (True, False))
    positive, negative = (np.concatenate([one.evidence for one in some]) for some in (own, foreign))
    cosines = [np.concatenate([one.cosine for one in some]) for some in (own, foreign)]
    fit, wrong = (np.concatenate([one.fits for one in some]) for some in (own, foreign))
    chosen = threshold(elsewhere or here)
    numbers = [1 - wrong.mean(), auroc(positive, negative), auroc(cosines[0], cosines[1]), chosen]
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
