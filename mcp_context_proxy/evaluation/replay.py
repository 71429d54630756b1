"""Replays a log of queries in its order, with the learned tier off and on: the effect of learning from use.

The measured queries are the same each time, all from after the log's first part: they are measured before
anything is learned, and after more and more of the first part. Nothing is learned from them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.embedding.embedder import Embedder
from mcp_context_proxy.embedding.embeddings import QueryEmbedder
from mcp_context_proxy.evaluation.data import EvalQuery
from mcp_context_proxy.evaluation.run import (
    SELECTED_PRECISION,
    TOOLS,
    MeasureDifference,
    answer_of,
    differences,
    measured,
    tools_of,
)
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.learning.pairs import Signal, Use
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.retrieval import Engine, SearchOptions
from mcp_context_proxy.store import DAY, open_store

REVEALED: Final = (0.0, 0.1, 0.3)
"""Shares of the log that were used before each measurement."""

MOST_MEASURED: Final = 2_000
"""Queries, evenly from the rest of the log: more would narrow the intervals little and take long."""

LOG_DAYS: Final = 30.0
"""Length of the log, for the decay of learned pairs."""

SHUFFLED: Final = 20260728
"""Seed for a log without an order of its own."""

MEASURES: Final = ("recall@5", "ndcg@10", SELECTED_PRECISION)


class ReplayStage(Struct, frozen=True):
    """A measurement after a share of the log was used."""

    revealed: float
    used: int
    """Queries used until then."""
    pairs: int
    """Pairs learned from them, and not forgotten since."""
    measures: dict[str, MeasureDifference]
    """With the learned tier off, on, and the difference, query by query."""


def in_random_order(queries: Sequence[EvalQuery]) -> list[EvalQuery]:
    """Make a log of queries that have no order; always the same one."""
    return random.Random(SHUFFLED).sample(list(queries), len(queries))


def replay(
    catalog: Embedder,
    queries: QueryEmbedder,
    snapshot: Snapshot,
    log: Sequence[EvalQuery],
    options: SearchOptions,
    depth: int,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    asides: int = 0,
    repeated: bool = False,
) -> list[ReplayStage]:
    """Measure the effect of learning, by share of the log that was used. Blocks.

    Each query is embedded several times, so ``queries`` should remember all of them. The log is in order of
    time; each of its queries is a session of its own. Only tools are searched, ranked to ``depth``. In each
    session, ``asides`` further tools are called that have nothing to do with the query, a few tools most of
    the time, as agents read files and list folders on the way. With ``repeated``, the queries that were used
    are measured instead of later ones.
    """
    options = replace(options, depth=depth)
    start = math.ceil(max(REVEALED) * len(log))
    rest = log[:start] if repeated else log[start:]
    tests = rest[:: math.ceil(len(rest) / MOST_MEASURED)]
    total, done = start + (1 + len(REVEALED)) * len(tests), 0
    tools = tools_of(snapshot)
    now, chance, known = 0.0, random.Random(SHUFFLED), sorted(tools)
    chance.shuffle(known)

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

    def use(query: EvalQuery, session: str) -> None:
        """Search as a model would, then use a tool for each need, whether it was found or not."""
        answer = answer_of(learning.search(query.text, snapshot, TOOLS, options))
        shown = answer.keys[: answer.selected]
        for need in query.needs:
            used = next((tool for tool in shown if tool in need), None) or min(need & tools, default=None)
            if used is not None:
                signal = Signal.FOUND if used in shown else Signal.UNLISTED
                tier.learn(Use(query.text, used, signal, session, tuple(shown)))
        for _ in range(asides):
            aside = known[min(int(chance.paretovariate(1.0)) - 1, len(known) - 1)]
            if aside not in shown and not any(aside in need for need in query.needs):
                tier.learn(Use(query.text, aside, Signal.UNLISTED, session, tuple(shown)))

    with open_store("memory") as store:
        tier = LearnedTier(queries, store.learned, clock=lambda: now)
        static, learning = Engine(catalog, queries), Engine(catalog, queries, learned=tier)
        static.index(snapshot)
        learning.index(snapshot)
        off, stages, used = rows(static), [], 0
        for share in REVEALED:
            until = math.ceil(share * len(log))
            for at in range(used, until):
                now = at / len(log) * LOG_DAYS * DAY
                use(log[at], f"session {at}")
                step()
            used = until
            stages.append(ReplayStage(share, used, len(tier.pairs), differences(off, rows(learning))))
    return stages
