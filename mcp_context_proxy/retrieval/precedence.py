"""Whose tools come first: those of servers that are not suspected of stuffing, where any of them fits.

What is suspected (`stuffing`) is not left out, for the suspicion may be wrong. Where others fit, the best of
it comes last, if it seems to be better than all of them; where they do not, it is ranked among them and has
half of the places; where there is nothing else, all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import isinf

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.fitting import Fitting
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.ranking import Result, SearchOptions
from mcp_context_proxy.retrieval.scored import Scored

LAST = 1
"""Suspected tools that come after others that fit, where a selection has room: one is enough to be seen."""

AHEAD = 5
"""Others that are before it, also where fewer would have been selected: it should take the place of none. And
places that there are at least where it is ranked among others."""

SHARE = 0.5
"""Of the places of a selection that suspected tools may have where no others fit."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What was scored for a query."""

    first: Scored
    """What is not suspected, or where nothing else may be found, all."""
    behind: Scored | None
    """What is suspected, where there is something else."""
    evidence: float | None
    """How much says that any of it is meant (`fitting`)."""
    fits: bool
    first_fits: bool
    """Whether something is meant of what is not suspected."""

    @property
    def best_cosine(self) -> float | None:
        """The highest of the whole query with anything."""
        cosines = [
            one.whole for one in (self.first, self.behind) if one is not None and one.whole is not None
        ]
        return max(cosines, default=None)

    def ranked(self, options: SearchOptions) -> tuple[list[Result], list[Result]]:
        """Those selected, and what follows them down to the depth asked for; best first."""
        if self.behind is None:
            return _ranked(self.first, options)
        results, others = _ranked(self.first, replace(options, at_least=max(options.at_least, AHEAD)))
        suspects, more = _ranked(self.behind, options)
        kept, taken = (_last if self.first_fits else _among)(results, suspects, options)
        found = [*results[:kept], *taken]
        if not self.first_fits:
            found.sort(key=lambda one: -one.score)
        others = [*results[kept:], *others, *suspects[len(taken) :], *more]
        return found, others[: max(0, options.depth - len(found))]


def answer(
    score: Callable[[NDArray[np.bool_]], Scored],
    index: Index,
    met: NDArray[np.bool_],
    known: Callable[[], Collection[int]],
    fitting: Fitting,
) -> Answer:
    """Score what meets the filters.

    Args:
        score: Scores those items of the index that are marked.
        index: What there is.
        met: Which of its items meet the filters.
        known: Finds items that no suspicion holds back: the query is their name, or they were used for such
            a one. Only asked where there is a suspicion.
        fitting: What counts as near enough to be meant.
    """
    first = met
    if index.unsuspected is not None:
        first = index.unsuspected.copy()
        first[list(known())] = True
        first &= met
    if not first.any():
        first = met
    scored, behind = score(first), met & ~first
    evidence = scored.evidence(fitting)
    fits = scored.fits(fitting, evidence)
    if not behind.any():
        return Answer(scored, None, evidence, fits, fits)
    suspects = score(behind)
    if fits:
        return Answer(scored, suspects, evidence, fits, fits)
    evidence = suspects.evidence(fitting)
    return Answer(scored, suspects, evidence, suspects.fits(fitting, evidence), fits)


def _last(
    results: Sequence[Result], suspects: Sequence[Result], options: SearchOptions
) -> tuple[int, Sequence[Result]]:
    """How many of the results stay, and the suspects that come after them."""
    best = max((result.score for result in results), default=0.0)
    kept = min(len(results), max(_most(options) - LAST, AHEAD))
    room = max(0, min(LAST, _most(options) - kept))
    taken = [one for one in suspects[:room] if one.score > best]
    return (kept if taken else len(results)), taken


def _among(
    results: Sequence[Result], suspects: Sequence[Result], _options: SearchOptions
) -> tuple[int, Sequence[Result]]:
    """How many of the results stay, and the suspects that are ranked among them."""
    places = max(len(results), min(len(suspects), AHEAD))
    taken = suspects[: max(1, int(SHARE * places), places - len(results))]
    return places - len(taken), taken


def _most(options: SearchOptions) -> int:
    """How many items may be selected."""
    if options.share_of_best is not None:
        return options.at_most
    return options.top_n if isinf(options.include_score) else options.top_k


def _ranked(scored: Scored, options: SearchOptions) -> tuple[list[Result], list[Result]]:
    selected = scored.selected(options)
    results = [scored.result(place) for place in selected]
    return results, [scored.result(place) for place in scored.following(selected, options)]
