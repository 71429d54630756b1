"""Why an item was found, in one short sentence for a person."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mcp_context_proxy.retrieval.learned import Support
from mcp_context_proxy.retrieval.stuffing import Suspicion

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
    for field, _, added in terms:
        weights[field] = weights.get(field, 0.0) + added
    chosen = sorted(weights, key=lambda field: -weights[field])[:FIELDS_NAMED]
    return [
        f"{SPOKEN[field]} {_matched([term for at, term, _ in terms if at == field], words, asked)}"
        for field in chosen
    ]


def _matched(terms: Sequence[str], words: Mapping[str, str], asked: Collection[str]) -> str:
    named = sorted(terms, key=lambda term: term not in asked)[:WORDS_NAMED]
    said = " ".join(words[term] for term in named if term in asked)
    alike = [words[term] for term in named if term not in asked]
    parts = [f"'{said}'"] if said else []
    if alike:
        parts.append(f"synonym{'s' if len(alike) > 1 else ''} '{' '.join(alike)}'")
    return " and ".join(parts)
