"""Whether another opinion can matter: which results it is asked about, and when it is not asked. Pure.

The scores are those that results are ordered by (`Result.score`: cosine and words as one), because it is
their order that is in question. The cosine alone would not do: it does not know of a name that was half said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mcp_context_proxy.config.settings import RerankMode
from mcp_context_proxy.retrieval.ranking import Ranking, Result

CANDIDATES: Final = 5
"""A model is asked about: on public sets the right tool is among so many in 94 of 100 cases where it is among
ten, and more make a question longer and a small model worse."""

CERTAIN: Final = 0.90
"""Score over which the first is taken as it is: it has the meaning and the words."""

AHEAD: Final = 0.10
"""By which the first leads the third, where it is taken as it is."""


def candidates(ranking: Ranking) -> tuple[Result, ...]:
    """What a model may be asked about: the best that were selected, and what just failed to be.

    A tool whose name was given is not in question. Where a query has several needs, what serves each was
    selected for that, and nothing from outside takes its place.
    """
    selected = [result for result in ranking.results if not result.exact]
    several = any(result.serves is not None for result in selected)
    return tuple([*selected, *(() if several else ranking.others)][:CANDIDATES])


def reason_to_skip(ranking: Ranking, mode: RerankMode) -> str | None:
    """Why nobody need be asked; None where somebody is to be."""
    if not ranking.fits:
        return "nothing fits the query"
    if any(result.exact for result in ranking.results) and mode == "auto":
        return "the query is the name of a tool"
    asked = candidates(ranking)
    if len(asked) < 2:
        return "there is nothing to put in order"
    if mode == "always":
        return None
    best, third = asked[0].score, asked[min(2, len(asked) - 1)].score
    if best > CERTAIN:
        return f"the best one scores {best:.2f}"
    if best - third > AHEAD:
        return f"the best one leads by {best - third:.2f}"
    return None


def reordered(ranking: Ranking, order: list[int]) -> Ranking:
    """A ranking whose `candidates` stand in another order; as many are selected as before."""
    asked = candidates(ranking)
    sorted_ones = iter([asked[at] for at in order])
    moved = {id(result) for result in asked}
    everything = [
        next(sorted_ones) if id(result) in moved else result for result in (*ranking.results, *ranking.others)
    ]
    count = len(ranking.results)
    return replace(ranking, results=tuple(everything[:count]), others=tuple(everything[count:]))
