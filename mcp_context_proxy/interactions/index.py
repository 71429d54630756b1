"""The index of interactions: their words and embeddings in memory, compared with a query.

An interaction is scored as an item of the catalog is, ``cosine + 0.025 * BM25F``, and more if it has a query
of few words word by word, times the boost of its type and the share that its age leaves of it. It is found
only if it has evidence of being meant (`evidence`) and is at least half as near as the nearest. An identifier
in the query, such as a ticket or a commit, means exactly itself: then only those that have it are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from mcp_context_proxy.config import InteractionsConfig
from mcp_context_proxy.embedding import are_unit
from mcp_context_proxy.items import Vector
from mcp_context_proxy.retrieval.bm25 import LexicalIndex, TermCounts, count_terms, join_counts
from mcp_context_proxy.retrieval.item_metadata import Fields
from mcp_context_proxy.retrieval.scoring import STRONG_COVERAGE, Calibration, fuse
from mcp_context_proxy.retrieval.text import terms
from mcp_context_proxy.retrieval.vectors import NOWHERE, DenseIndex, Pool
from mcp_context_proxy.store.memory import (
    SEARCH,
    Interaction,
    InteractionScope,
    InteractionStore,
    InteractionVector,
)
from mcp_context_proxy.store.statistics import DAY
from mcp_context_proxy.system.later import NDArray, np, pattern

READ_AT_ONCE: Final = 1_000
"""Interactions or embeddings that are read at once, some MB: others who use the store wait some milliseconds
at most."""

COUNTED_TOGETHER: Final = 256
"""Interactions below which the words of new ones are joined with those before them, so that there are not as
many arrays as interactions."""

FORGOTTEN_SHARE: Final = 0.25
"""Share of forgotten rows from which on they are removed, which copies all others."""

WORDS_INDEXED: Final = 4_000
"""Characters of an interaction whose words are indexed: as many as are kept by default."""

NUMBER_WEIGHT: Final = 3.0
"""Weight of a word with a digit: it is a name of something, and stands for little else. Of 30 queries with
the id of a ticket or a commit among 200 messages, 15 find it first with 1, 26 with 2, 28 with 3."""

IDENTIFIERS: Final = frozenset(
    {
        "issue key",
        "issue number",
        "arXiv paper id",
        "id",
        "commit hash",
        "email address",
        "URL",
        "CVE id of a vulnerability",
    }
)
"""Kinds of values that stand for exactly one thing."""

_CODE: Final = pattern(r"[A-Z][A-Z0-9]{0,9}(?:-\d{1,9})*[-_]?\d{4,12}")
"""A code of errors, orders or tickets (``E1047``, ``ORD-2026-0012``), which stands for one thing as well."""

_TO_DIGITS: Final = pattern(r"(?<=[A-Z])(?=\d)")
"""The place in a code where others write a space or a hyphen."""

CERTAIN_DEVIATIONS: Final = 8.0
"""Standard deviations above general requests from which on meaning alone is proof."""

NEEDED_BY_SPREAD: Final = 0.13
"""Evidence that is needed for each standard deviation that the best of so many random draws is expected to
have."""

SPARED: Final = 0.04
"""Evidence that is let off. With these three, 29 of 30 queries in other words than the message find it, and
16 of 20 that nothing fits show nothing; two of the other four show something near."""

FEWEST: Final = 20
"""Fewer interactions need as much evidence as so many: of a single one any would be enough."""

SHARE_OF_BEST: Final = 0.55
"""Share of the best relevance that an interaction needs to be found. Of 30 queries in other words than the
message, 29 find it among five with 0.4 to 0.55, at 3.5 to 1.9 results each; with 0.6 28 do. It lets fewer
recent ones pass that only share a word: of 60 questions to 3,000 interactions, 49 find theirs first, and 45
with 0.5."""

SPOKEN: Final = 0.3
"""Relevance of an interaction that has a query of one word, beside that of its words and meaning; of a query
of several words it is shared among them. A single word is often a name, whose vector says little and whose
BM25F is small where many interactions have it."""

_OWNED: Final = "\0"
"""Begins the names of owners among those of agents and types."""

_EDGES: Final = "\"'`()[]{}<>,;:!?.“”"

PLACES_OF_A_FORM: Final = 3
"""One of so many places at most is for interactions that differ in their numbers and ids alone, such as a
call for one ticket after another, while something else fits; and one for searches, which only ask."""

STANDS_OUT: Final = 1.1
"""Factor by which the most relevant interaction has to be above those with a place to get the last one,
however old it is. Of 59 questions to 2,000 interactions of two months, 56 find theirs among ten so, and 54
without."""

LOOKED_AT: Final = 50
"""Candidates for each place that are looked at before all of them are."""

_NUMBERED: Final = pattern(r"\d[\w-]*")
"""A number, or an id from its first digit on."""

_FACTS: Final = [
    ("id", "i8"),
    ("time", "f8"),
    ("agent", "i4"),
    ("owner", "i4"),
    ("type", "i4"),
    ("same", "i8"),
    ("form", "i8"),
    ("row", "i4"),
    ("there", "?"),
]


class Near(Struct, frozen=True):
    """An interaction that a query means."""

    id: int
    score: float
    cosine: float | None
    """None if it has no embedding."""
    times: int
    """Interactions of its type with this text; it is the one with the best score."""


class MemoryQuery(Struct, frozen=True):
    """A query with the choices of its caller."""

    query: str
    vector: Vector | None
    """Embedding of the query; None to compare words only."""
    scope: InteractionScope
    top_k: int
    factor: float | None
    """Share of a score that is left after a day; None for that of the configuration, by type."""


class InteractionIndex:
    """Interactions in memory; a hundred thousand with embeddings take some 250 MB.

    It follows the store: a search reads the changes since the search before, whichever process made them.
    Not thread-safe.
    """

    def __init__(
        self, store: InteractionStore, settings: InteractionsConfig, calibration: Calibration
    ) -> None:
        self._store, self._settings, self._calibration = store, settings, calibration
        self._names: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._latest, self._count = 0, 0
        self._facts = np.zeros(0, _FACTS)
        self._counts: list[TermCounts] = []
        self._lexical: LexicalIndex | None = None
        self._begin_vectors("")

    def _begin_vectors(self, model_id: str) -> None:
        self._model_id, self._latest_vector, self._pool = model_id, 0, Pool()
        self._facts["row"] = NOWHERE

    def follow(self, model_id: str | None, dimensions: int) -> None:
        """Read the changes of the store, with the embeddings of one model; raises `StoreError`."""
        self._read_words()
        if self._store.count(InteractionScope()) != np.count_nonzero(self._known["there"]):
            self._known["there"] &= np.isin(self._known["id"], self._store.ids())
            there = self._known["there"]
            if np.count_nonzero(there) < (1 - FORGOTTEN_SHARE) * self._count:
                self._remove(np.flatnonzero(~there))
        if model_id is None:
            return
        if model_id != self._model_id:
            self._begin_vectors(model_id)
        # Every embedding that is written gets the next `seq`, so reading goes on after the last one.
        while fresh := self._store.vectors(model_id, self._latest_vector, READ_AT_ONCE):
            if max(one.interaction for one in fresh) > self._latest:
                self._read_words()
            self._place(fresh, dimensions)
            self._latest_vector = fresh[-1].seq

    def nearest(self, wanted: MemoryQuery, now: float) -> tuple[list[Near], NDArray[np.float64]]:
        """Return the interactions that a query means, the best first, and the times of those not embedded.

        Of equal scores, the latest comes first.
        """
        facts = self._known
        within = self._within(wanted.scope)
        unembedded: NDArray[np.float64] = facts["time"][within & (facts["row"] == NOWHERE)]
        weights = {
            term: NUMBER_WEIGHT if any(map(str.isdigit, term)) else 1.0 for term in terms(wanted.query)
        }
        if not within.any():
            return [], unembedded
        self._lexical = LexicalIndex.build(self._counts, self._lexical)
        lexical, coverage = self._lexical.score_with_shares(weights)
        identified = self._identified(wanted.query, within)
        if identified is not None:
            within &= identified
        words = fuse(None, lexical.scores)
        words[~within] = -np.inf
        if wanted.vector is None or not self._pool.vectors.size:
            items = np.flatnonzero(within & (words > 0))
            relevance, cosines = words[items], None
        else:
            dense = DenseIndex(self._pool.vectors, facts["row"].copy(), np.ones(self._count, np.int64))
            items = dense.candidates(wanted.vector[None], words)
            cosines = dense.of(items).cosines(wanted.vector[None])[0]
            relevance = np.maximum(cosines, 0) + words[items]
        relevance += (SPOKEN * coverage[items] / max(len(weights), 1)).astype(np.float32)
        meant = relevance > 0
        if identified is None:
            meant &= self._has_evidence(wanted.vector, cosines, coverage[items], int(within.sum()))
        # A question is nearest to the same question: it says nothing of how near an answer has to be.
        told = meant & (facts["type"][items] != self._names.get(SEARCH, -1))
        bar = relevance.max(where=told, initial=0) or relevance.max(where=meant, initial=0)
        meant &= relevance >= SHARE_OF_BEST * bar
        chosen = items[meant]
        scores = relevance[meant].astype(np.float64) * self._kept_share(chosen, wanted.factor, now)
        cosines = None if cosines is None else cosines[meant]
        near = []
        for each, times in self._distinct(wanted.top_k, chosen, scores, relevance[meant]):
            one = facts[chosen[each]]
            has_cosine = cosines is not None and one["row"] != NOWHERE
            cosine = float(cosines[each]) if cosines is not None and has_cosine else None
            near.append(Near(int(one["id"]), float(scores[each]), cosine, times))
        return near, unembedded

    def _distinct(
        self,
        top_k: int,
        chosen: NDArray[np.intp],
        scores: NDArray[np.float64],
        relevance: NDArray[np.float32],
    ) -> list[tuple[int, int]]:
        """Return the places of the best in `chosen`, each with the number of those of its type and text.

        The last place is for the most relevant one, if it is by far and others are only more recent.
        """
        facts = self._facts[chosen]  # within the scope, so those of other owners are not counted
        order = np.lexsort((-facts["id"], -facts["time"], -scores))
        order = order[: np.count_nonzero(scores > 0)]
        # Mostly the first of them are enough, and sorting all by their texts takes as long as comparing them.
        for looked_at in (order[: LOOKED_AT * top_k], order):
            first = np.sort(np.unique(facts["same"][looked_at], return_index=True)[1])
            more = _earlier_alike(facts["form"][looked_at[first]]) >= max(top_k // PLACES_OF_A_FORM, 1)
            if np.count_nonzero(~more) >= top_k:
                break
        best = looked_at[np.sort(np.concatenate([first[~more], first[more]])[:top_k])]
        nearest = np.where(scores > 0, relevance, 0).argmax() if order.size else 0
        if 1 < top_k == best.size and relevance[nearest] >= STANDS_OUT * relevance[best].max():
            best[-1] = nearest
            best = best[np.argsort(-scores[best], kind="stable")]
        return [(int(each), int((facts["same"] == facts["same"][each]).sum())) for each in best]

    def _within(self, scope: InteractionScope) -> NDArray[np.bool_]:
        facts = self._known
        within: NDArray[np.bool_] = facts["there"].copy()
        if scope.agent_name is not None:
            within &= facts["agent"] == self._names.get(scope.agent_name, -1)
        if scope.interaction_type is not None:
            within &= facts["type"] == self._names.get(scope.interaction_type, -1)
        if scope.owner is not None:
            within &= facts["owner"] == self._names.get(_OWNED + scope.owner, -1)
        if scope.before is not None:
            within &= facts["time"] < scope.before
        return within

    def _identified(self, query: str, within: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        from mcp_context_proxy.retrieval.forms import value_kind  # noqa: PLC0415 - expressions of searches

        tokens = (token.strip(_EDGES) for token in query.split())
        codes = (token for token in tokens if value_kind(token) in IDENTIFIERS or _CODE.fullmatch(token))
        asked = [found for token in codes if (found := terms(_TO_DIGITS.sub("-", token)))]
        if not asked or self._lexical is None:
            return None
        having = np.zeros(within.size, bool)
        for identifier in asked:
            having |= self._lexical.shares(dict.fromkeys(identifier, 1.0)) >= 1
        return having

    def _has_evidence(
        self,
        vector: Vector | None,
        cosines: NDArray[np.float32] | None,
        coverage: NDArray[np.float64],
        among: int,
    ) -> NDArray[np.bool_]:
        """Return which interactions have evidence of being meant, among so many."""
        calibration = self._calibration
        if vector is None or cosines is None:
            return coverage >= STRONG_COVERAGE
        if isinstance(calibration, str):
            return np.ones(coverage.size, bool)
        if isinstance(calibration, float):
            return (cosines >= calibration) | (coverage >= STRONG_COVERAGE)
        return evidence(cosines, vector, calibration.requests, coverage) >= needed_evidence(among)

    def _kept_share(self, chosen: NDArray[np.intp], factor: float | None, now: float) -> NDArray[np.float64]:
        facts, settings = self._facts[chosen], self._settings
        linear = settings.time_decay == "linear"
        shares = np.empty(len(facts), np.float64)
        by_number = {self._names[name]: own for name, own in settings.types.items() if name in self._names}
        for number in sorted(set(facts["type"].tolist())):
            own, of_type = by_number.get(number), facts["type"] == number
            daily, boost = settings.time_decay_factor, 1.0
            if own is not None:
                daily, boost = own.time_decay_factor or daily, own.boost
            daily = daily if factor is None else factor
            shares[of_type] = boost * left_share(facts["time"][of_type], now, daily, linear=linear)
        return shares

    @property
    def _known(self) -> NDArray[np.void]:
        return self._facts[: self._count]

    def _read_words(self) -> None:
        while fresh := self._store.after(self._latest, READ_AT_ONCE):
            self._append(fresh)

    def _append(self, fresh: Sequence[Interaction]) -> None:
        count = self._count + len(fresh)
        if count > len(self._facts):
            # Twice the size: then rows are copied a few times in all, not with each change.
            facts = np.zeros(2 * count, _FACTS)
            facts[: self._count] = self._known
            self._facts = facts
        for at, one in enumerate(fresh, self._count):
            agent, kind = self._number(one.agent_name), self._number(one.interaction_type)
            text = " ".join(one.content.casefold().split())
            same = hash((kind, text))
            form = kind if one.interaction_type == SEARCH else hash((kind, _NUMBERED.sub("#", text)))
            owner = self._number(_OWNED + one.owner)
            self._facts[at] = (one.id, one.time, agent, owner, kind, same, form, NOWHERE, True)
        counted = count_terms(Fields("", one.content[:WORDS_INDEXED], "", "", "", "") for one in fresh)
        if self._counts and self._counts[-1].size < COUNTED_TOGETHER:
            counted = join_counts([self._counts.pop(), counted])
        self._counts.append(counted)
        self._count, self._latest = count, fresh[-1].id

    def _place(self, fresh: Sequence[InteractionVector], dimensions: int) -> None:
        """Store embeddings, each in the row of its interaction; a damaged one stays away."""
        fits = are_unit([one.vector for one in fresh], dimensions)
        usable = [one for one, unit in zip(fresh, fits, strict=True) if unit]
        ids = np.array([one.interaction for one in usable], np.int64)
        at = np.searchsorted(self._known["id"], ids)
        known = (at < self._count) & (self._known["id"][np.minimum(at, self._count - 1)] == ids)
        if known.any():
            vectors = np.array([one.vector for one in usable], np.float32)[known]
            self._known["row"][at[known]] = self._pool.add(vectors)

    def _remove(self, gone: NDArray[np.intp]) -> None:
        left = np.delete(np.arange(self._count), gone)
        self._counts = [join_counts(self._counts).take(left)]
        self._lexical = LexicalIndex.build(self._counts)
        facts = self._known[left]
        rows, self._pool, vectors = facts["row"].copy(), Pool(), self._pool.vectors
        embedded = np.flatnonzero(rows != NOWHERE)
        facts["row"] = NOWHERE
        if embedded.size:
            facts["row"][embedded] = self._pool.add(vectors.stored(rows[embedded]))
        self._facts, self._count = facts, len(facts)

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


def _earlier_alike(forms: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return for each the number of those before it that have its form."""
    order = np.argsort(forms, kind="stable")
    ordered = forms[order]
    earlier = np.empty(forms.size, np.intp)
    earlier[order] = np.arange(forms.size) - np.searchsorted(ordered, ordered)
    return earlier


def evidence(
    cosines: NDArray[np.float32],
    vector: Vector,
    general: NDArray[np.float32],
    coverage: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the evidence by interaction that it is meant, 0 to 1.

    A cosine means little by itself: a vague query is near to everything, one full of names to nothing. So it
    is compared with the query's cosines with general requests, in standard deviations, as scores of speakers
    are normalised before they are accepted (z-norm). Either that or the words of the query may be enough, so
    both are combined as a noisy or, ``1 - (1 - meaning) * (1 - coverage)``.

    Args:
        cosines: With the query, by interaction.
        vector: The vector of the query.
        general: Vectors of general requests, one a row.
        coverage: The share of the query's idf that each interaction has, 0 to 1.
    """
    near = (general @ vector).astype(np.float64)
    deviations = (cosines - near.mean()) / (float(near.std()) or 1.0)
    found: NDArray[np.float64] = 1 - (1 - np.clip(deviations / CERTAIN_DEVIATIONS, 0, 1)) * (1 - coverage)
    return found


def needed_evidence(among: int) -> float:
    """Return the evidence from which on one of so many interactions is meant.

    The best of many is near by chance: the highest of n draws from a normal distribution is expected at about
    sqrt(2 ln n) standard deviations (the leading term of its asymptotic expansion).
    """
    return NEEDED_BY_SPREAD * float(np.sqrt(2 * np.log(max(among, FEWEST)))) - SPARED


def left_share(
    times: NDArray[np.float64], now: float, factor: float, *, linear: bool = False
) -> NDArray[np.float64]:
    """Return the share of the scores of interactions that their age leaves: ``factor ** days``.

    Linear decay takes ``1 - factor`` of the whole each day, until nothing is left. `times` and `now` are
    seconds since 1970; a time after `now`, by another clock, counts as now.
    """
    days = np.maximum(now - times, 0.0) / DAY
    shares: NDArray[np.float64] = (
        np.maximum(1 - (1 - factor) * days, 0.0) if linear else np.power(factor, days)
    )
    return shares
