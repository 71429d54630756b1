"""Why an item was found, in one short sentence for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcp_context_proxy.retrieval.learned import Support

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

WORDS_NAMED = 4
"""Words of a field a sentence repeats."""


def explain(
    exact: bool,
    cosine: float | None,
    terms: Sequence[tuple[str, str, float]],
    words: Mapping[str, str],
    support: Support | None = None,
    new: bool = False,
) -> str:
    """The reasons for one result; ``words`` gives the word of the query for each index term."""
    reasons = ["exact name"] if exact else _fields(terms, words)
    if cosine is not None:
        reasons.append(f"meaning {cosine:.2f}")
    if support is not None:
        query = "" if support.query is None else f" '{support.query[:QUERY_CHARACTERS]}'"
        reasons.append(f"used before for{query or ' a similar query'}")
    if new:
        reasons.append("new here")
    return "; ".join(reasons)


def _fields(terms: Sequence[tuple[str, str, float]], words: Mapping[str, str]) -> list[str]:
    weights: dict[str, float] = {}
    for field, _, added in terms:
        weights[field] = weights.get(field, 0.0) + added
    chosen = sorted(weights, key=lambda field: -weights[field])[:FIELDS_NAMED]
    return [f"{SPOKEN[field]} '{_matched(field, terms, words)}'" for field in chosen]


def _matched(field: str, terms: Sequence[tuple[str, str, float]], words: Mapping[str, str]) -> str:
    return " ".join([words[term] for at, term, _ in terms if at == field][:WORDS_NAMED])
