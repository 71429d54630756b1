"""Replays a log of queries in its order, the learned tier on against off: what use would have taught by then.

The same queries, all from after the log's first part, are measured each time: before anything is learned, and
after more and more of the first part. Nothing is learned from those that are measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.evaluation.data import EvalQuery
from mcp_context_proxy.evaluation.run import (
    TOOLS,
    MeasureDifference,
    answer_of,
    differences,
    measured,
    tools_of,
)
from mcp_context_proxy.items import Snapshot, ToolKey
from mcp_context_proxy.learning.pair_store import QueryModel
from mcp_context_proxy.learning.pairs import Signal, Use
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.retrieval import EmbedTexts, Engine, SearchOptions
from mcp_context_proxy.store import DAY, open_store

REVEALED: Final = (0.0, 0.1, 0.3)
"""Shares of the log that were used before what is measured."""

MOST_MEASURED: Final = 2_000
"""Queries, evenly from the rest of the log: more would narrow the intervals little and take long."""

LOG_DAYS: Final = 30.0
"""Over which the log is spread, for the decay of what was learned."""

SHUFFLED: Final = 20260728
"""Seed for a log without an order of its own."""

MEASURES: Final = ("recall@5", "ndcg@10")


@dataclass(frozen=True, slots=True)
class ReplayStage:
    """What was measured when a share of the log had been used."""

    revealed: float
    used: int
    """Queries."""
    pairs: int
    """Learned from them, and not forgotten since."""
    measures: dict[str, MeasureDifference]
    """With the learned tier off, on, and the difference, query by query."""


class QueryVectors:
    """Embeds each query once for all replays, for search and for the learned tier."""

    def __init__(self, model: QueryModel) -> None:
        self._model, self._id = model, ""
        self._known: dict[str, NDArray[np.float32]] = {}

    def vectors(self, texts: Sequence[str]) -> tuple[str, NDArray[np.float32]]:
        """The model's id, and one vector per text."""
        if not texts:
            return self._model.vectors([])
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if missing:
            self._id, rows = self._model.vectors(missing)
            self._known |= dict(zip(missing, rows, strict=True))
        return self._id, np.array([self._known[text] for text in texts], np.float32)

    def embed(
        self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None
    ) -> NDArray[np.float32]:
        """One row per text."""
        del on_progress
        return self.vectors(texts)[1]


def in_random_order(queries: Sequence[EvalQuery]) -> list[EvalQuery]:
    """A log for queries that have no order; always the same one."""
    return random.Random(SHUFFLED).sample(list(queries), len(queries))


def replay(
    catalog: EmbedTexts,
    model: QueryModel,
    snapshot: Snapshot,
    log: Sequence[EvalQuery],
    options: SearchOptions,
    depth: int,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[ReplayStage]:
    """Measure what use teaches, by share of the log that was used. Blocks.

    Args:
        catalog: Embeds the tools.
        model: Embeds the queries.
        snapshot: What is searched; only its tools.
        log: Queries with what they need, oldest first; each is a session of its own.
        options: Of every search; their depth is replaced.
        depth: Results to rank for each query.
        on_progress: Called with how many searches are done, and of how many.
    """
    queries, clock = QueryVectors(model), _Clock()
    options = replace(options, depth=depth)
    start = math.ceil(max(REVEALED) * len(log))
    rest = log[start:]
    tests = rest[:: math.ceil(len(rest) / MOST_MEASURED)]
    total, done = start + (1 + len(REVEALED)) * len(tests), 0
    tools = tools_of(snapshot)

    def step() -> None:
        nonlocal done
        done += 1
        on_progress(done, total)

    def rows(engine: Engine) -> list[dict[str, float]]:
        answers = []
        for query in tests:
            answers.append(answer_of(engine.search(query.text, snapshot, TOOLS, options)))
            step()
        return [
            {name: row[name] for name in MEASURES if name in row}
            for row in measured(tests, answers, tools, depth)
        ]

    with open_store("memory") as store:
        tier = LearnedTier(queries, store.learned, clock=clock.now)
        static, learning = Engine(catalog, queries), Engine(catalog, queries, learned=tier)
        static.index(snapshot)
        learning.index(snapshot)
        off, stages, used = rows(static), [], 0
        for share in REVEALED:
            until = math.ceil(share * len(log))
            for at in range(used, until):
                clock.seconds = at / len(log) * LOG_DAYS * DAY
                _use(tier, learning, snapshot, log[at], options, tools, f"session {at}")
                step()
            used = until
            stages.append(ReplayStage(share, used, len(tier.pairs), differences(off, rows(learning))))
    return stages


class _Clock:
    """The time of the log."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


def _use(
    tier: LearnedTier,
    engine: Engine,
    snapshot: Snapshot,
    query: EvalQuery,
    options: SearchOptions,
    tools: frozenset[ToolKey],
    session: str,
) -> None:
    """What a model does that searches, and then uses what it needs, found or not."""
    answer = answer_of(engine.search(query.text, snapshot, TOOLS, options))
    shown = answer.keys[: answer.selected]
    for need in query.needs:
        used = next((tool for tool in shown if tool in need), None) or min(need & tools, default=None)
        if used is not None:
            signal = Signal.FOUND if used in shown else Signal.UNLISTED
            tier.learn(Use(query.text, used, signal, session, tuple(shown)))
