"""Asks another model about the best tools of a search, where that can matter, and for no longer than allowed.

A search is never worse off for it: whatever fails, the order is the one that there was, and the outcome says
why.

Whether another opinion can matter: which results it is asked about, and when it is not asked. Pure.

The scores are those that results are ordered by (`Result.score`: cosine and words as one), because it is
their order that is in question. The cosine alone would not do: it does not know of a name that was half said.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

from mcp_context_proxy.config import Config, Limits, RerankConfig
from mcp_context_proxy.config.settings import RerankMode
from mcp_context_proxy.errors import RerankError
from mcp_context_proxy.items import Tool
from mcp_context_proxy.rerank.reranker_model import Candidate, RerankerModel, completed
from mcp_context_proxy.retrieval.results import Ranking, Result

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


logger = logging.getLogger(__name__)

REST_SECONDS: Final = 30.0
"""How long a model that failed is left alone: searches wait for a dead service once in this time."""

ORDERS_KEPT: Final = 256
"""That are remembered: a question that is put again, of the same tools, is not asked again."""

PLAIN_CASE: Final = (Candidate("send_mail", "Send a mail"), Candidate("read_file", "Read a file"))
"""What a configured model is tried with."""

NOBODY: Final = "there is no model to ask: set rerank.model, or use a client that lets its own be asked"


@dataclass(frozen=True, slots=True)
class Reranking:
    """What became of asking another model about a search."""

    used: bool
    """Whether the order is the other model's."""
    reason: str
    """Which model it was, or why none was asked or its answer not used; for a person."""
    seconds: float = 0.0
    """How long the search waited for it."""


class Reranker:
    """Owns the configured model; a context manager, so that its connections end."""

    def __init__(
        self,
        mode: RerankMode,
        judge: RerankerModel | None,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to ask.

        Args:
            mode: When to ask, where a search does not say it.
            judge: Whom; None for the client's own model.
            limits: How long an answer may take.
            clock: Seconds.
        """
        self.mode, self._judge = mode, judge
        self._seconds, self._clock = limits.rerank_seconds, clock
        self._rested: dict[str, tuple[float, str]] = {}
        self._orders: OrderedDict[tuple[str, str, tuple[Candidate, ...]], list[int]] = OrderedDict()

    @property
    def asks_clients(self) -> bool:
        """Whether searches of the proxy's own accord may ask the model of whoever searches."""
        return self._judge is None and self.mode != "never"

    async def rerank(
        self, ranking: Ranking, client: RerankerModel | None = None, mode: RerankMode | None = None
    ) -> tuple[Ranking, Reranking | None]:
        """A ranking, its best tools in another order or in the same; None where that is not wanted.

        Args:
            ranking: Of tools, ranked down to `doubt.CANDIDATES`.
            client: The client's own model; None where it cannot be asked.
            mode: Beats the configured one.
        """
        mode = mode or self.mode
        if mode == "never":
            return ranking, None
        skipped = reason_to_skip(ranking, mode)
        judge = self._judge or client
        if skipped is not None or judge is None:
            return ranking, Reranking(False, f"skipped: {skipped or NOBODY}")
        texts = tuple(_candidate(result) for result in candidates(ranking))
        if (order := self._orders.get((judge.key, ranking.query, texts))) is not None:
            return reordered(ranking, order), Reranking(True, f"ordered by {judge.name}, as before")
        if (resting := self._resting(judge)) is not None:
            return ranking, Reranking(False, resting)
        return await self._asked(judge, ranking, texts)

    async def tried(self) -> Reranking | None:
        """What becomes of asking the configured model about a plain case; None for the client's own."""
        if self._judge is None:
            return None
        began, query = self._clock(), "send a mail"
        try:
            await self._order(self._judge, query, PLAIN_CASE)
        except RerankError as error:
            return Reranking(False, str(error), self._clock() - began)
        return Reranking(True, self._judge.name, self._clock() - began)

    async def _asked(
        self, judge: RerankerModel, ranking: Ranking, texts: tuple[Candidate, ...]
    ) -> tuple[Ranking, Reranking]:
        began = self._clock()
        try:
            order = await self._order(judge, ranking.query, texts)
        except RerankError as error:
            self._leave_alone(judge, str(error))
            return ranking, Reranking(False, str(error), self._clock() - began)
        self._rested.pop(judge.key, None)
        self._orders[judge.key, ranking.query, texts] = order
        if len(self._orders) > ORDERS_KEPT:
            self._orders.popitem(last=False)
        return reordered(ranking, order), Reranking(True, f"ordered by {judge.name}", self._clock() - began)

    async def _order(self, judge: RerankerModel, query: str, texts: tuple[Candidate, ...]) -> list[int]:
        try:
            with anyio.fail_after(self._seconds):
                return completed(await judge.order(query, texts), len(texts))
        except TimeoutError:
            raise RerankError(judge.name, f"no answer within {self._seconds:g} s") from None
        except RerankError:
            raise
        except Exception as error:
            # boundary: a search must not fail because of a second opinion on it
            logger.exception("reranking failed")
            raise RerankError(judge.name, f"{type(error).__name__}: {error}") from error

    def _resting(self, judge: RerankerModel) -> str | None:
        until, failure = self._rested.get(judge.key, (0.0, ""))
        return f"left alone for a while: {failure}" if self._clock() < until else None

    def _leave_alone(self, judge: RerankerModel, failure: str) -> None:
        now = self._clock()
        self._rested = {key: rest for key, rest in self._rested.items() if now < rest[0]}
        self._rested[judge.key] = now + REST_SECONDS, failure
        logger.warning("%s. The order of the search stays.", failure)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._judge is not None:
            with anyio.CancelScope(shield=True):
                await self._judge.aclose()


def reranker_model_for(settings: RerankConfig, limits: Limits) -> RerankerModel | None:
    """The configured model, not opened yet; None for the client's own."""
    if settings.endpoint is not None:
        # The HTTP client, which nobody else needs that early.
        from mcp_context_proxy.rerank.models import ChatRerankerModel  # noqa: PLC0415

        return ChatRerankerModel(settings, limits)
    if settings.model is not None:
        # The arrays, likewise.
        from mcp_context_proxy.rerank.models import CrossEncoderModel  # noqa: PLC0415

        return CrossEncoderModel(Path(settings.model))
    return None


def reranker_for(config: Config) -> Reranker:
    """As configured."""
    return Reranker(config.rerank.mode, reranker_model_for(config.rerank, config.limits), config.limits)


def _candidate(result: Result) -> Candidate:
    item = result.item
    return Candidate(item.exposed_name if isinstance(item, Tool) else item.name, item.description)
