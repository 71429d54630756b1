"""The learned tier, which raises tools by their learned pairs, and novelty, which raises new ones a little.

Searches read an immutable index. Uses are learned one after the other, in a thread; no call waits for it. The
store learns from each use once, whichever process has seen it. While it fails, uses wait in memory, and count
there as far as this process can tell.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from typing import Final

import anyio
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.embedding import is_unit
from mcp_context_proxy.embedding.embeddings import QueryEmbedder
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError, StoreError
from mcp_context_proxy.items import ToolKey, Vector
from mcp_context_proxy.learning import (
    MOST_ADDED_IF_GENERAL,
    MOST_ADDED_IN_DOUBT,
    MOST_OF_AN_OWNER,
    MOST_PAIRS,
    QUERY_CHARACTERS,
    PairIndex,
    Use,
    first_confidence,
    is_doubtful,
    pruned,
    query_key,
    updated,
)
from mcp_context_proxy.protocol.strangers import clean
from mcp_context_proxy.retrieval import Support
from mcp_context_proxy.retrieval.vectors import dots
from mcp_context_proxy.store.memory import LearnedStore, Pair, PairChanges, PairId, Taught, UseRow
from mcp_context_proxy.store.migrations import PAIRS
from mcp_context_proxy.store.statistics import DAY, StatisticsStore
from mcp_context_proxy.system.later import NDArray, np
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import BatchWriter, in_thread, keep_latest
from mcp_context_proxy.trust import ACTING

logger = logging.getLogger(__name__)

SAME: Final = 0.95
"""Cosine from which on two queries count as one: they differ in a word or in punctuation."""
GATE: Final = 0.5
"""Cosine from which on a past query says something about another one."""
DISCOUNT: Final = 0.10
"""Subtracted from the cosine with a past query; a tool's own text is worth more than a memory."""
DOUBT: Final = 0.10
"""Further discount, all of it without confidence: 0.15 in all after one use."""

CONFIRMED_AFTER_SECONDS: Final = 3_600.0
"""Time between two calls that nothing had selected from which on the second confirms the first: those of one
piece of work, which may both have nothing to do with its searches, are nearer."""

ENOUGH: Final = 50
"""Learned queries before which the tier states no confidence: a few weeks of one person's use. That a new
installation knows little says nothing about a request."""
NEAREST: Final = 3
"""Learned queries on which a confidence is based: one may be near by chance."""

NEWEST: Final = 0.02
"""Addition to the cosine of a brand-new tool: as much as one word that is found in a description."""
HALVED_AFTER_DAYS: Final = 3.0
NEW_FOR_DAYS: Final = 14.0
"""By then 0.0008 are left, less than the scores of two tools differ by."""
SETTLED_AFTER_DAYS: Final = 1.0
"""Time after the first tool was seen: servers that are set up on one day are one installation."""
LOOK_SECONDS: Final = 60.0
"""Time between two looks at the store."""

WAITING: Final = 1_000
"""Uses that wait to be learned; of more, the oldest are dropped."""
AT_ONCE: Final = 10
"""Uses that are learned in one go: some ten milliseconds, for which a proxy that stops has to wait."""
TAKEN_KEPT: Final = 1_000
"""Uses that are remembered, so that a loop teaches each once."""
REFRESH_SECONDS: Final = 2.0
"""Time between two looks at the pairs that other processes have learned or forgotten."""


class _Lesson(Struct, frozen=True):
    """A use with the vector of its query, until the store has learned from it."""

    row: UseRow
    use: Use
    model_id: str
    vector: Vector


class _Known(Struct, frozen=True):
    """The pairs of each owner, as of a revision of the store."""

    revision: int = 0
    indexes: Mapping[str, PairIndex] = field(default_factory=dict)

    def of(self, owner: str) -> PairIndex:
        index = self.indexes.get(owner)
        return no_pairs() if index is None else index

    def changed(self, changes: PairChanges) -> _Known:
        indexes = dict(self.indexes)
        for owner in {pair.owner for pair in changes.pairs} | {owner for owner, _ in changes.gone}:
            gone = {pair for whose, pair in changes.gone if whose == owner}
            fresh = [pair for pair in changes.pairs if pair.owner == owner]
            indexes[owner] = self.of(owner).without(gone).with_pairs(fresh)
        return _Known(max(changes.revision, self.revision), indexes)


class LearnedTier:
    """Support for tools from past uses. Blocking and thread-safe.

    The uses of the user and of administrators teach pairs for everybody; those of another principal teach
    pairs that count in its own searches only (`ACTING`).
    """

    def __init__(
        self,
        model: QueryEmbedder,
        store: LearnedStore,
        store_queries: bool = True,
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Read nothing until the pairs are needed.

        Without `store_queries`, the store keeps only hash and vector of a query.
        """
        self._model, self._store, self._clock = model, store, clock
        self._store_queries = store_queries
        self._writing = threading.Lock()
        self._known: _Known | None = None
        self._pruned_at = 0.0
        self._outdated: list[Pair] = []
        self._pending: deque[_Lesson] = deque(maxlen=WAITING)
        """Uses that the store has not learned from yet."""
        self._guessed: dict[tuple[str, str], set[PairId]] = {}
        """Pairs taught by the sessions of such uses, of which the store may make something else."""

    @property
    def index(self) -> PairIndex:
        """The pairs that count for everybody, as they are now; the first access reads the store."""
        return self._now_known().of("")

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return tuple(pair for index in self._now_known().indexes.values() for pair in index.pairs)

    def tools(self) -> Collection[ToolKey]:
        first, *others = self._visible()
        return (
            first.topics.keys() if not others else {tool for one in (first, *others) for tool in one.topics}
        )

    def generation(self) -> object:
        """Return a value that is equal as long as the pairs are the same."""
        return self._visible()

    def supported(self, query: NDArray[np.float32], written: str | None = None) -> Mapping[ToolKey, Support]:
        """Return the support that each tool has for a query, from its best pair; see `Learned`.

        A pair counts as ``cosine - DISCOUNT - DOUBT * (1 - confidence)``. A doubtful one counts in full only
        beside another one of its tool that was begun at another time.
        """
        best: dict[ToolKey, tuple[float, Pair, PairIndex]] = {}
        firm, confirmed = set[ToolKey](), set[ToolKey]()
        now, forms = self._clock(), self._forms(query, written)
        for index in self._visible():
            if (cosines := _cosines(index, *forms)) is None:
                continue
            near = np.flatnonzero(cosines >= GATE)
            nearest_first = near[np.argsort(-cosines[near], kind="stable")]
            for at, cosine in zip(nearest_first.tolist(), cosines[nearest_first].tolist(), strict=True):
                pair = index.pairs[at]
                known = best.get(pair.tool)
                if not is_doubtful(pair):
                    firm.add(pair.tool)
                if pair.uses > 1 or (
                    known is not None and abs(pair.first - known[1].first) >= CONFIRMED_AFTER_SECONDS
                ):
                    confirmed.add(pair.tool)
                # The cosine alone rules out most pairs, without their confidence; thousands can be near.
                if known is None or cosine - DISCOUNT > known[0]:
                    counted = cosine - DISCOUNT - DOUBT * (1 - pair.confidence_at(now))
                    if known is None or counted > known[0]:
                        best[pair.tool] = counted, pair, index

        def most_added(tool: ToolKey, index: PairIndex) -> float:
            if index.topics[tool].general:
                return MOST_ADDED_IF_GENERAL
            return inf if tool in firm or tool in confirmed else MOST_ADDED_IN_DOUBT

        return {
            tool: Support(counted, pair.query, pair.uses, tool in confirmed, most_added(tool, index))
            for tool, (counted, pair, index) in best.items()
        }

    def confidence(self, query: NDArray[np.float32], written: str | None = None) -> float | None:
        """Return how much is known of requests like this, 0 to 1; None before enough was learned to tell."""
        forms = self._forms(query, written)
        compared = [(index.pairs, _cosines(index, *forms)) for index in self._visible()]
        found = [(pairs, cosines) for pairs, cosines in compared if cosines is not None]
        if not found:
            return None
        pairs = [pair for some, _ in found for pair in some]
        return confidence(pairs, np.concatenate([cosines for _, cosines in found]))

    def _forms(self, query: Vector, written: str | None) -> list[Vector]:
        """Return the vectors of a query: as it is understood, and as it was written where that differs."""
        if written is None or not any(index.pairs for index in self._visible()):
            return [query]
        return [query, *self._model.vectors([clean(written)])[1]]

    def learn(self, use: Use) -> None:
        """Learn from a use; the changed pairs are in the store when this returns, unless it fails.

        Without a vector for the query, `ModelError` is raised and nothing is learned.
        """
        use = replace(use, query=clean(use.query))
        model_id, (vector,) = self._model.vectors([use.query])
        row = UseRow(secrets.token_hex(16), self._clock(), use.owner, use.session, use.tool)
        with self._writing:
            lesson = _Lesson(row, use, model_id, vector)
            self._pending.append(lesson)
            try:
                self._learn_pending()
            except StoreError:
                # In memory alone, until the store can be written.
                taught = self._guessed.setdefault((use.owner, use.session), set())
                pairs, key = self._changes_by(lesson, taught)
                if key is not None:
                    taught.add((key, use.tool))
                known = self._now_known()
                self._known = known.changed(PairChanges(known.revision, tuple(pairs)))
            if self._has_too_many:
                self._prune()

    @property
    def _has_too_many(self) -> bool:
        return any(len(index.pairs) > most_of(owner) for owner, index in self._now_known().indexes.items())

    def forget(self, unwanted: Callable[[Pair], bool]) -> int:
        """Forget pairs of all owners; return how many."""
        with self._writing:
            gone = [pair for pair in self.pairs if unwanted(pair)]
            self._remove(gone)
            return len(gone)

    def forget_query(self, vector: Vector, query: str) -> int:
        """Forget the pairs of a query, and of queries that mean the same; return how many."""
        key = query_key(query)

        def is_same(pair: Pair) -> bool:
            near = pair.vector.shape == vector.shape and float(pair.vector @ vector) >= SAME
            return pair.key == key or near

        return self.forget(is_same)

    def take(self, pairs: Sequence[Pair]) -> None:
        """Add pairs from elsewhere; a known pair is replaced if its confidence is lower.

        Raises `StoreError` if they cannot be kept.
        """
        with self._writing:
            known, now = self._now_known(), self._clock()
            dimensions = self._model.vectors([])[1].shape[1]
            better = []
            for pair in map(_readable, pairs):
                index = known.of(pair.owner)
                at = index.at.get(pair.id)
                is_better = at is None or index.pairs[at].confidence_at(now) < pair.confidence_at(now)
                if is_better and is_unit(pair.vector, dimensions):
                    better.append(pair)
            if better:
                self._store.put(better)
            self._known = known.changed(PairChanges(known.revision, tuple(better)))
            self._prune()

    def refresh(self) -> None:
        """Read the pairs that another process has learned or forgotten, and prune once a day."""
        with self._writing, suppress(StoreError):
            self._learn_pending()
            known = self._known
            if known is None:
                return
            if self._store.may_have_changed(PAIRS):
                changes = self._store.changes(known.revision)
                if changes.revision != known.revision:
                    self._known = known.changed(self._usable(changes))
            outdated, self._outdated = self._outdated, []
            self._remove(outdated)
            if self._has_too_many:
                # Others have learned them.
                self._prune()
            if self._clock() - self._pruned_at >= DAY and self._store.does_upkeep():
                self._prune()
                self._store.forget_uses()

    def _now_known(self) -> _Known:
        known = self._known
        if known is None:
            known = self._known = self._read()
        return known

    def _visible(self) -> tuple[PairIndex, ...]:
        """Return the pairs that count for whom something is done: those of everybody, and its own."""
        known, owner = self._now_known(), ACTING.get().owner
        return (known.of(""), known.of(owner)) if owner and owner in known.indexes else (known.of(""),)

    def _learn_pending(self) -> None:
        """Learn from the uses that wait for the store, one after the other."""
        while self._pending:
            lesson = self._pending[0]
            if self._guessed:
                # The guesses of a time without a store give way to what is learned from the same uses now.
                self._store.revision()
                self._known, self._guessed = None, {}
            known = self._now_known()

            def decide(
                before: PairChanges, taught: Taught, lesson: _Lesson = lesson, known: _Known = known
            ) -> tuple[Sequence[Pair], bytes | None]:
                self._known = known.changed(self._usable(before))
                return self._changes_by(lesson, taught)

            changes = self._store.teach(lesson.row, known.revision, decide)
            self._known = (self._known or known).changed(self._usable(changes))
            self._pending.popleft()

    def _changes_by(self, lesson: _Lesson, taught: Collection[PairId]) -> tuple[list[Pair], bytes | None]:
        use, vector, now = lesson.use, lesson.vector, lesson.row.time
        index = self._now_known().of(use.owner)
        near: dict[ToolKey, Pair] = {}
        if (cosines := _cosines(index, vector)) is not None:
            same = sorted(np.flatnonzero(cosines >= SAME), key=lambda at: cosines[at])
            near = {index.pairs[at].tool: index.pairs[at] for at in same}  # the nearest of each tool
        if (at := index.at.get((query_key(use.query), use.tool))) is not None:
            near[use.tool] = index.pairs[at]
        query = use.query[:QUERY_CHARACTERS] if self._store_queries else None

        def begun(key: bytes) -> Pair:
            first = first_confidence(use.signal)
            return Pair(key, use.tool, query, vector, lesson.model_id, first, 1, now, now, use.owner)

        return updated(use, near, begun, taught, now)

    def _prune(self) -> None:
        """Forget pairs with hardly any confidence, and the worst of too many."""
        self._pruned_at = self._clock()
        try:
            now = self._clock() - self._store.lag()
        except StoreError:
            return
        for owner, index in self._now_known().indexes.items():
            kept = {id(pair) for pair in pruned(index.pairs, now, most_of(owner))}
            # Replicas that do not do the upkeep forget them in memory.
            self._remove([pair for pair in index.pairs if id(pair) not in kept], self._store.prune)

    def _remove(
        self, gone: Sequence[Pair], remove: Callable[[Sequence[Pair], int], None] | None = None
    ) -> None:
        if gone:
            known = self._now_known()
            with suppress(StoreError):
                (remove or self._store.remove)(gone, known.revision)
            ids = frozenset((pair.owner, pair.id) for pair in gone)
            self._known = known.changed(PairChanges(known.revision, gone=ids))

    def _usable(self, changes: PairChanges) -> PairChanges:
        """Return changes without the pairs that cannot be compared, as those of another model."""
        if not changes.pairs:
            return changes
        model_id, none = self._model.vectors([])
        pairs = tuple(
            _readable(pair)
            for pair in changes.pairs
            if pair.model_id == model_id and is_unit(pair.vector, none.shape[1])
        )
        return replace(changes, pairs=pairs)

    def _read(self) -> _Known:
        """Read the store; pairs of another model are embedded again where their text is known."""
        try:
            changes = self._store.changes(0)
        except StoreError:
            return _Known()
        now = None
        with suppress(StoreError):
            now = self._clock() - self._store.lag()
        found = [_readable(pair) for pair in changes.pairs]
        model_id, none = self._model.vectors([])
        usable = [pair for pair in found if pair.model_id == model_id and is_unit(pair.vector, none.shape[1])]
        texts = [pair for pair in found if pair.model_id != model_id and pair.query is not None]
        if texts:
            _, vectors = self._model.vectors([pair.query or "" for pair in texts])
            pairs = zip(texts, vectors, strict=True)
            usable += [replace(pair, vector=vector, model_id=model_id) for pair, vector in pairs]
        indexes, kept = {}, set[int]()
        for owner in {pair.owner for pair in usable}:
            of_owner = [pair for pair in usable if pair.owner == owner]
            # Without the age of the store, which cannot be noted on a full disk, nothing is too old.
            left = of_owner if now is None else pruned(of_owner, now, most_of(owner))
            kept |= {id(pair) for pair in left}
            indexes[owner] = PairIndex.of(left)
        # `refresh` deletes them: a search may be waiting for this, and a write can wait for another process.
        self._outdated = [pair for pair in usable if id(pair) not in kept]
        return _Known(changes.revision, indexes)


@cache
def no_pairs() -> PairIndex:
    return PairIndex.of(())


def most_of(owner: str) -> int:
    return MOST_OF_AN_OWNER if owner else MOST_PAIRS


def _cosines(index: PairIndex, *forms: Vector) -> NDArray[np.float32] | None:
    """Return the cosine of each pair's query with the nearest form; None without pairs of the same model."""
    if not index.pairs or any(index.matrix.shape[-1] != form.shape[-1] for form in forms):
        return None
    nearest: NDArray[np.float32] = np.maximum.reduce([dots(index.matrix, form) for form in forms])
    return nearest


def _readable(pair: Pair) -> Pair:
    """Return a pair of another version or another installation with a clean query."""
    query = None if pair.query is None else clean(pair.query)
    return pair if query == pair.query else replace(pair, query=query)


def confidence(pairs: Sequence[Pair], cosines: NDArray[np.float32]) -> float | None:
    """Return how much is known of queries like one: from 0, nothing like it was asked before, to 1.

    That is the mean cosine of the nearest learned queries, times ``n / (n + 1)`` for the mean number ``n`` of
    their uses. None where too little was learned to tell. `cosines` has that of each pair's query.
    """
    if len(pairs) < ENOUGH or len({pair.key for pair in pairs}) < ENOUGH:
        return None
    nearest: dict[bytes, tuple[float, int]] = {}
    for at in np.argsort(-cosines, kind="stable"):
        if len(nearest) == NEAREST:
            break
        pair = pairs[at]
        cosine, uses = nearest.get(pair.key, (float(cosines[at]), 0))
        nearest[pair.key] = cosine, uses + pair.uses
    likeness = sum(max(cosine, 0.0) for cosine, _ in nearest.values()) / len(nearest)
    used = sum(uses for _, uses in nearest.values()) / len(nearest)
    return likeness * used / (used + 1)


class Novelty:
    """A bonus in search for tools that came lately and were not used yet, for which no pair can speak.

    It is small beside words and meaning, halves every few days, and ends with the first use. Tools of the
    first installation are not new, and neither are tools that take the place of others of their server.
    Blocks for milliseconds once a minute; thread-safe.
    """

    def __init__(
        self,
        store: StatisticsStore,
        used: Callable[[], Collection[ToolKey]],
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Read nothing yet; `used` returns the tools that have learned pairs."""
        self._store, self._used, self._clock = store, used, clock
        self._looking = threading.Lock()
        self._looked_at = float("-inf")
        self._came: Mapping[ToolKey, float] = {}

    def additions(self) -> Mapping[ToolKey, float]:
        """Return the addition to the cosine of each new tool now."""
        now = self._clock()
        if now - self._looked_at >= LOOK_SECONDS and self._looking.acquire(blocking=False):
            try:
                self._looked_at = now
                rows = self._store.definitions()
                settled = min((row.first for row in rows), default=now) + SETTLED_AFTER_DAYS * DAY
                since = max(settled, now - NEW_FOR_DAYS * DAY)
                self._came = {row.key: row.first for row in rows if row.first > since}
            except StoreError as error:
                logger.debug("new tools get no bonus: %s", error)
            finally:
                self._looking.release()
        if not self._came:
            return {}
        used = self._used()
        return {
            tool: addition((now - came) / DAY)
            for tool, came in self._came.items()
            if tool not in used and now - came < NEW_FOR_DAYS * DAY
        }


def addition(days: float) -> float:
    """Return the addition for a tool that came some days ago."""
    return float(NEWEST * 0.5 ** (max(days, 0.0) / HALVED_AFTER_DAYS))


class UseRecorder:
    """Takes uses of tools on the event loop, and has the tier learn from them. Its `run` owns the work."""

    def __init__(self, tier: LearnedTier) -> None:
        self._tier = tier
        self._uses = BatchWriter(self._learn_all, seconds=0, limit=WAITING, at_once=AT_ONCE)
        self._taken: OrderedDict[Use, None] = OrderedDict()
        """The latest uses: one that comes again says nothing new, and takes longer to learn than its call."""

    def learn(self, use: Use) -> None:
        """Learn from a use soon, unless it was taken before. Does not block."""
        if use in self._taken:
            return
        keep_latest(self._taken, use, None, TAKEN_KEPT)
        self._uses.add(use)

    async def flush(self) -> None:
        """Wait until every use is learned that was recorded before."""
        await self._uses.flush()

    async def run(self) -> None:
        """Learn until cancelled, and then from the uses that are left."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._uses.run)
            while True:
                await anyio.sleep(REFRESH_SECONDS)
                try:
                    await in_thread(self._tier.refresh)
                except (ModelError, EmbeddingCancelledError) as error:
                    logger.debug("the pairs of other processes could not be read: %s", error)

    def _learn_all(self, uses: Sequence[Use]) -> None:
        for use in uses:
            try:
                self._tier.learn(use)
            except (ModelError, EmbeddingCancelledError) as error:
                self._taken.pop(use, None)
                logger.debug("nothing was learned from a use: %s", error)
            except Exception:
                # boundary: a use that cannot be learned must not keep others from being learned
                logger.exception("a use could not be learned")
