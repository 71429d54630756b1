"""Learning from use: tools that were called for a query rank higher in later searches like it.

Here are the learned pairs of query and tool, and the working set: the tools that are used again and again.
The confidence of a pair is a moving average of the signals of its uses; without a use it halves in two weeks.
All of it is pure: the time is passed in.

The working set is chosen once a day (UTC) from the sessions in which tools were used, by the first proxy that
needs it, and stored: a list that changed with use would cost every prompt its place in the provider's cache,
and proxies on one store list the same.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Self

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.embedding.embeddings import QueryEmbedder
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import IncludeMode, Tool, ToolKey, Vector
from mcp_context_proxy.statistics.recorder import WINDOW_DAYS
from mcp_context_proxy.store.memory import DECAY_PER_DAY, Pair, PairId
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.store.statistics import DAY
from mcp_context_proxy.store.tables import ToolSessions, decoded_vector, encoded_vector
from mcp_context_proxy.system.later import NDArray, np, pattern
from mcp_context_proxy.system.process import date_of

logger = logging.getLogger(__name__)


class Signal(StrEnum):
    """The way in which a tool came to be used, or not."""

    FOUND = "found"
    """A search found it, and it was used."""
    LISTED = "listed"
    """It was in the list, and it was used."""
    STATED = "stated"
    """The call said what it was for, and nothing had selected the tool for that."""
    UNLISTED = "unlisted"
    """It was used after a request for which no search had found it and no list had it: search can learn most
    from it, if the call was made for that request."""
    PASSED_OVER = "passed_over"
    """It was shown while another tool was used."""


WEIGHTS: Final[Mapping[Signal, float]] = {
    Signal.FOUND: 1.5,
    Signal.LISTED: 1.0,
    Signal.STATED: 1.0,
    Signal.UNLISTED: 0.5,
    Signal.PASSED_OVER: -0.2,
}
"""Only the proportions count: the largest weight stands for full confidence."""

STRONGEST: Final = max(WEIGHTS.values())


class Use(Struct, frozen=True):
    """A successful call, and the query that it was made for."""

    query: str
    """The query in the words of the client."""
    tool: ToolKey
    signal: Signal
    session: str
    """The session or client that made the call: within one, a repetition says nothing new."""
    shown: tuple[ToolKey, ...] = ()
    """The tools that were shown for the query."""
    owner: str = ""
    """Principal who made the call; empty for the user and all administrators, whose pairs are everybody's."""


FIRST: Final = 0.75
"""Share of the weight of a first use that counts at once: one use may be a mistake."""
RATE: Final = 0.3
"""Share of the distance to its signal by which a further use moves the average."""
RATE_AGAINST: Final = 0.1
"""The same for a tool that was passed over: a little, as several tools can do one thing."""

FORGET_BELOW: Final = 0.1
"""A pair with less confidence is not worth its place."""
FORGET_AFTER_DAYS: Final = 30.0
"""Days without a use after which a pair is forgotten."""
MOST_PAIRS: Final = 5_000
"""Pairs that are kept; so many are compared with a query in a fraction of a millisecond."""
KEPT_OF_TOO_MANY: Final = 0.9
"""Share of `MOST_PAIRS` that stays when there are more, so that not every further pair causes a pruning."""
MOST_OF_AN_OWNER: Final = 1_000
"""Pairs of one named principal, which only its own searches compare."""
MOST_OF_A_TOOL: Final = 200
"""Pairs of one tool: however often it is used, it cannot drive out the pairs of others."""

NEW_IN_A_SESSION: Final = 20
"""Pairs of one tool that one session can begin: a loop teaches no more than a person does."""
QUERY_CHARACTERS: Final = 1_000
"""Characters of a query that are kept."""

_WORD = pattern(r"\w+")


def updated(
    use: Use,
    near: Mapping[ToolKey, Pair],
    begun: Callable[[bytes], Pair],
    taught: Collection[PairId],
    now: float,
) -> tuple[list[Pair], bytes | None]:
    """Return the pairs that a use changes or begins, and the key of the one for which it counts, if it does.

    `near` has each tool's pair that means the same, `taught` the pairs that the session has taught before;
    `begun` makes the first pair of a key.
    """
    known = near.get(use.tool)
    key = query_key(use.query) if known is None else known.key
    lessons = sum(tool == use.tool for _, tool in taught)
    if (key, use.tool) in taught or (known is None and lessons >= NEW_IN_A_SESSION):
        return [], None
    # A tool that was shown and not used loses a little, but never in the session that taught its pair:
    # whoever uses two tools for one query does not contradict himself.
    changed = [
        passed_over(pair, now)
        for tool, pair in near.items()
        if tool in use.shown and tool != use.tool and pair.id not in taught
    ]
    return [begun(key) if known is None else used_again(known, use.signal, now), *changed], key


def query_key(query: str) -> bytes:
    """Return the hash of a query's words; case, spaces and punctuation do not matter."""
    words = " ".join(_WORD.findall(query.lower())) or query
    return hashlib.sha256(words.encode("utf-8", "replace")).digest()


def first_confidence(signal: Signal) -> float:
    return FIRST * WEIGHTS[signal] / STRONGEST


def is_doubtful(pair: Pair) -> bool:
    """Return whether a pair rests on one call of a tool that nothing had shown for the query.

    Agents read files and list folders between one search and the next: such a call may have had nothing to do
    with the latest request. The same call in another session confirms it.
    """
    return pair.uses == 1 and pair.confidence <= first_confidence(Signal.UNLISTED)


def moved(confidence: float, signal: Signal) -> float:
    """Return a confidence after one more signal; never below zero, where nothing is added to a search."""
    target = WEIGHTS[signal] / STRONGEST
    rate = RATE_AGAINST if target < 0 else RATE
    return max(confidence + rate * (target - confidence), 0.0)


def used_again(pair: Pair, signal: Signal, now: float) -> Pair:
    return replace(
        pair, confidence=moved(pair.confidence_at(now), signal), uses=pair.uses + 1, last=max(now, pair.last)
    )


def passed_over(pair: Pair, now: float) -> Pair:
    """Return a pair after its tool was shown while another one was used; that is no use, so it ages on."""
    # The average moves at the confidence that is left now. A pair stores that of its last use, from which
    # `confidence_at` subtracts the decay, so the decay since then is taken out again.
    left = moved(pair.confidence_at(now), Signal.PASSED_OVER)
    days = min((now - pair.last) / DAY, FORGET_AFTER_DAYS)
    return replace(pair, confidence=left / DECAY_PER_DAY ** max(days, 0.0))


def pruned(pairs: Iterable[Pair], now: float, most: int = MOST_PAIRS) -> list[Pair]:
    """Return the pairs worth keeping, in their order, `most` at most."""
    oldest = now - FORGET_AFTER_DAYS * DAY
    alive = [pair for pair in pairs if pair.last >= oldest and pair.confidence_at(now) >= FORGET_BELOW]
    best_first = sorted(alive, key=lambda pair: (-pair.confidence_at(now), -pair.last))
    kept: set[int] = set()
    of_tool: dict[ToolKey, int] = {}
    for pair in best_first:
        count = of_tool[pair.tool] = of_tool.get(pair.tool, 0) + 1
        if count <= MOST_OF_A_TOOL:
            kept.add(id(pair))
    if len(kept) > most:
        left = int(most * KEPT_OF_TOO_MANY)
        kept = {id(pair) for pair in [pair for pair in best_first if id(pair) in kept][:left]}
    return [pair for pair in alive if id(pair) in kept]


COHERENT: Final = 0.2
"""Mean cosine of a tool's queries with each other from which on they have a topic. On public logs 90 of 100
tools have more; queries for all sorts of tools together have 0.08 to 0.17."""

MOST_ADDED_IF_GENERAL: Final = 0.5
"""Share of its own cosine that may be added to a tool whose queries have no topic. One that was not among the
first fifteen then comes into the first five in 1 of 100 cases; without a bound, in nearly all."""

MOST_ADDED_IN_DOUBT: Final = 2.0
"""The same for a doubtful pair (`is_doubtful`). With 0.5 and 1 repeated queries find their tool less
often; with 3 more of the shown tools come from calls beside the point (benchmarks/learning.md)."""


class PairIndex(Struct, frozen=True, eq=False):
    """The pairs at one moment, and their vectors as one matrix. Immutable.

    A pair that is used again keeps its vector, so a new index copies the matrix only for a new pair.
    """

    pairs: tuple[Pair, ...]
    at: Mapping[PairId, int]
    """Position of each pair."""
    matrix: NDArray[np.float32]
    topics: Mapping[ToolKey, Topic]

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Self:
        """Index some pairs; of two with the same id, the later one."""
        known = tuple({pair.id: pair for pair in pairs}.values())
        return cls(
            pairs=known,
            at={pair.id: at for at, pair in enumerate(known)},
            matrix=np.stack([pair.vector for pair in known]) if known else np.zeros((0, 0), np.float32),
            topics=_with_queries({}, known),
        )

    def with_pairs(self, changed: Collection[Pair]) -> PairIndex:
        """Return an index with pairs that are new, or replace those of the same id."""
        pairs, fresh = list(self.pairs), []
        for pair in changed:
            at = self.at.get(pair.id)
            if at is None:
                fresh.append(pair)
            elif pair.vector is not self.pairs[at].vector:
                return PairIndex.of([*self.pairs, *changed])
            else:
                pairs[at] = pair
        if not fresh:
            return replace(self, pairs=tuple(pairs))
        if not self.pairs:
            return PairIndex.of(fresh)
        return PairIndex(
            pairs=(*pairs, *fresh),
            at={**self.at, **{pair.id: at for at, pair in enumerate(fresh, len(pairs))}},
            matrix=np.concatenate([self.matrix, np.stack([pair.vector for pair in fresh])]),
            topics=_with_queries(self.topics, fresh),
        )

    def without(self, gone: Collection[PairId]) -> PairIndex:
        if not any(each in self.at for each in gone):
            return self
        return PairIndex.of(pair for pair in self.pairs if pair.id not in gone)


def _with_queries(topics: Mapping[ToolKey, Topic], pairs: Iterable[Pair]) -> dict[ToolKey, Topic]:
    extended = dict(topics)
    for pair in pairs:
        known = extended.get(pair.tool)
        extended[pair.tool] = Topic.of(pair.vector) if known is None else known.with_query(pair.vector)
    return extended


class Topic(Struct, frozen=True, eq=False):
    """The topic of one tool's queries.

    A tool that is used for everything, or claims to do everything, says nothing about one more query.
    """

    count: int
    total: NDArray[np.float64]
    """Sum of the queries' vectors, each of norm 1."""

    @classmethod
    def of(cls, vector: Vector) -> Self:
        return cls(1, vector.astype(np.float64))

    def with_query(self, vector: Vector) -> Topic:
        return Topic(self.count + 1, self.total + vector)

    @property
    def general(self) -> bool:
        """True where the queries have less in common than those of a tool with one purpose."""
        if self.count < 2:
            return False
        # |v1 + ... + vn|^2 is the sum of all cosines: each of two different queries twice, and n ones of each
        # vector with itself. Without those, divided by n (n - 1), it is the mean cosine.
        twice = float(self.total @ self.total) - self.count
        return twice / (self.count * (self.count - 1)) < COHERENT


class PairLine(msgspec.Struct, omit_defaults=True):
    """One pair as a JSON line.

    A pair with its text is embedded again where it is imported. A pair without text brings its vector, which
    only the same model can use.
    """

    server: str
    tool: str
    """The name the server itself uses."""
    confidence: float
    uses: int
    first: float
    """Seconds since 1970, as is ``last``."""
    last: float
    query: str | None = None
    key: str | None = None
    """Hash of a query whose text is not kept."""
    model: str | None = None
    """The model that made the vector, where the text is not kept."""
    vector: str | None = None
    """float32, little-endian, base64."""
    owner: str = ""
    """Whose pair it is; empty where it is everyone's."""


def exported(pairs: Iterable[Pair]) -> Iterable[bytes]:
    for pair in pairs:
        facts = (*pair.tool, pair.confidence, pair.uses, pair.first, pair.last, pair.query)
        line = PairLine(*facts, owner=pair.owner)
        if pair.query is None:
            line.key, line.model = pair.key.hex(), pair.model_id
            line.vector = base64.b64encode(encoded_vector(pair.vector)).decode()
        yield msgspec.json.encode(line)


def imported(lines: Sequence[PairLine], model: QueryEmbedder) -> list[Pair]:
    """Return the pairs of lines that this model can use: those with text, and those with its own vectors.

    Raises `ModelError` when it makes no vectors, and `ValueError` for a damaged key or vector.
    """
    model_id, vectors = model.vectors([line.query for line in lines if line.query is not None])
    embedded = iter(vectors)
    pairs = []
    for line in lines:
        if line.query is not None:
            key, vector = query_key(line.query), next(embedded)
        elif line.model == model_id and line.key and line.vector:
            key = bytes.fromhex(line.key)
            vector = decoded_vector(base64.b64decode(line.vector))
        else:
            continue
        tool, confidence = (line.server, line.tool), min(max(line.confidence, 0.0), 1.0)
        uses = line.uses, line.first, line.last
        pairs.append(Pair(key, tool, line.query, vector, model_id, confidence, *uses, line.owner))
    return pairs


SEVERAL: Final = 3
"""Sessions in which a tool of the working set was used: twice may be one task that was resumed."""


class WorkingSet(Struct):
    """The tools of the working set, and why each is in it. Empty until they are chosen."""

    reasons: Mapping[ToolKey, str] = field(default_factory=dict)
    day: str = ""
    """The day for which they were chosen."""

    def why(self, tool: Tool) -> str | None:
        """Return why a tool is in it; None where it is not, or where only a person may add it."""
        return self.reasons.get(tool.key) if tool.include is IncludeMode.AGENT else None

    def choose(
        self,
        store: Store,
        budget: int,
        clock: Callable[[], float],
    ) -> bool:
        """Choose tools for a budget in tokens, or take those of the day; return whether they are others now.

        Blocks; to be called before anything is listed, and again from time to time.
        """
        day = date_of(clock()).date().isoformat()
        if budget == 0 or day == self.day:
            return False
        try:
            reasons = store.working_sets.get(day, budget)
            if reasons is None:
                used = store.tool_sessions.counted(clock() - WINDOW_DAYS * DAY)
                tokens = {row.key: row.tokens for row in store.statistics.definitions()}
                reasons = store.working_sets.choose(day, budget, chosen(used, tokens, budget))
        except StoreError as error:
            if not self.day:
                logger.warning("%s. The list has no working set.", error)
            return False
        before, self.reasons, self.day = self.reasons.keys(), reasons, day
        return reasons.keys() != before


def chosen(used: Sequence[ToolSessions], tokens: Mapping[ToolKey, int], budget: int) -> dict[ToolKey, str]:
    """Return the tools used in most sessions that fit into a budget, each with the reason.

    A tool that does not fit makes room for others. A tool of unknown cost is left for the next start.
    """
    left, found = budget, {}
    for one in sorted(used, key=lambda one: (-one.sessions, -one.last, one.server, one.tool)):
        cost = tokens.get(one.key)
        if one.sessions >= SEVERAL and cost is not None and cost <= left:
            left -= cost
            last = date_of(one.last).date().isoformat()
            days = f"{WINDOW_DAYS:.0f} days"
            found[one.key] = f"used in {one.sessions} sessions of the last {days}, last on {last}"
    return found
