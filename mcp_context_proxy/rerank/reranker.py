"""Asks another model to order the best tools of a search, if that can matter, within a time limit.

A search never gets worse by it: after any failure the order stays, and the outcome names the reason.

The decision whether to ask compares the scores that order the results (`Result.score`: cosine and words as
one), because their order is in question. The cosine alone would not do: it ignores a name that was given in
part.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import anyio

from mcp_context_proxy.config import Config, Limits, RerankConfig
from mcp_context_proxy.config.settings import RerankMode
from mcp_context_proxy.errors import RerankError
from mcp_context_proxy.items import Tool
from mcp_context_proxy.protocol.strangers import LINE_CHARACTERS, one_line
from mcp_context_proxy.rerank.reranker_model import CandidateItem, RerankerModel, complete_order
from mcp_context_proxy.retrieval.results import Ranking, Result

logger = logging.getLogger(__name__)

CANDIDATES: Final = 5
"""Tools a model is asked about: on public sets the right tool is among so many in 94 of 100 cases where it is
among ten; more make a question longer and a small model worse."""

CERTAIN: Final = 0.90
"""Score above which the first tool keeps its place: it matches in meaning and in words."""

AHEAD: Final = 0.10
"""Lead over the third tool with which the first keeps its place."""

RETRY_SECONDS: Final = 30.0
"""Pause after a failure of a model: searches wait for a dead service once in this time."""

ORDERS_KEPT: Final = 256
"""Answers kept in memory: the same question about the same tools is asked once."""

PLAIN_CASE: Final = (CandidateItem("send_mail", "Send a mail"), CandidateItem("read_file", "Read a file"))
"""A question that any model can answer, to try the configured one."""

NO_MODEL: Final = "there is no model to ask: set rerank.model, or use a client that lets its own be asked"


@dataclass(frozen=True, slots=True)
class Reranking:
    """The outcome of asking another model about a search."""

    used: bool
    """True if the order is the other model's."""
    reason: str
    """The model that was asked, or why none was asked or its answer not used; for a person."""
    seconds: float = 0.0
    """Time that the search waited for it."""


class Reranker:
    """Owns the configured model; a context manager, which closes it."""

    def __init__(
        self,
        mode: RerankMode,
        model: RerankerModel | None,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet; without a configured ``model`` the client's own is asked."""
        self.mode, self._model = mode, model
        self._seconds, self._clock = limits.rerank_seconds, clock
        self._failures: dict[str, tuple[float, str]] = {}
        """By the key of a model: when to try it again, and how it failed."""
        self._orders: OrderedDict[tuple[str, str, tuple[CandidateItem, ...]], list[int]] = OrderedDict()

    @property
    def asks_clients(self) -> bool:
        """True if a search may ask the model of its client without being told to."""
        return self._model is None and self.mode != "never"

    async def rerank(
        self, ranking: Ranking, client: RerankerModel | None = None, mode: RerankMode | None = None
    ) -> tuple[Ranking, Reranking | None]:
        """Return a ranking with its best tools in a better order, or unchanged, and the outcome.

        It should have `CANDIDATES` tools or more. ``client`` is the client's own model, if it can be asked.
        ``mode`` overrides the configured mode; with "never" there is no outcome.
        """
        mode = mode or self.mode
        if mode == "never":
            return ranking, None
        skipped = reason_to_skip(ranking, mode)
        model = self._model or client
        if skipped is not None or model is None:
            return ranking, Reranking(False, f"skipped: {skipped or NO_MODEL}")
        texts = tuple(
            CandidateItem(item.exposed_name if isinstance(item, Tool) else item.name, item.description)
            for item in (result.item for result in candidates(ranking))
        )
        question = (model.key, ranking.query, texts)
        if (order := self._orders.get(question)) is not None:
            return reordered(ranking, order), Reranking(True, f"ordered by {model.name}, as before")
        began = self._clock()
        retry_at, failure = self._failures.get(model.key, (0.0, ""))
        if began < retry_at:
            return ranking, Reranking(False, f"not asked again so soon after a failure: {failure}")
        try:
            order = await self._order(model, ranking.query, texts)
        except RerankError as error:
            now = self._clock()
            self._failures = {key: one for key, one in self._failures.items() if now < one[0]}
            self._failures[model.key] = now + RETRY_SECONDS, str(error)
            logger.warning("%s. The order of the search stays.", error)
            return ranking, Reranking(False, one_line(str(error), LINE_CHARACTERS), now - began)
        self._failures.pop(model.key, None)
        self._orders[question] = order
        if len(self._orders) > ORDERS_KEPT:
            self._orders.popitem(last=False)
        return reordered(ranking, order), Reranking(True, f"ordered by {model.name}", self._clock() - began)

    async def try_model(self) -> Reranking | None:
        """Ask the configured model a plain question; None without one."""
        if self._model is None:
            return None
        began = self._clock()
        try:
            await self._order(self._model, "send a mail", PLAIN_CASE)
        except RerankError as error:
            return Reranking(False, one_line(str(error), LINE_CHARACTERS), self._clock() - began)
        return Reranking(True, self._model.name, self._clock() - began)

    async def _order(self, model: RerankerModel, query: str, texts: tuple[CandidateItem, ...]) -> list[int]:
        try:
            with anyio.fail_after(self._seconds):
                return complete_order(await model.order(query, texts), len(texts))
        except TimeoutError:
            raise RerankError(model.name, f"no answer within {self._seconds:g} s") from None
        except RerankError:
            raise
        except Exception as error:
            # boundary: a search must not fail because of its reranking
            logger.exception("reranking failed")
            raise RerankError(model.name, f"{type(error).__name__}: {error}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._model is not None:
            with anyio.CancelScope(shield=True):
                await self._model.aclose()


def reranker_for(config: Config) -> Reranker:
    """Make the configured reranker."""
    return Reranker(config.rerank.mode, reranker_model_for(config.rerank, config.limits), config.limits)


def reranker_model_for(settings: RerankConfig, limits: Limits) -> RerankerModel | None:
    """Make the configured model, not opened yet; None to ask the client's own."""
    if settings.endpoint is None and settings.model is None:
        return None
    # Imported here: the HTTP client and NumPy take long to import, and nothing else needs them this early.
    from mcp_context_proxy.rerank.models import ChatRerankerModel, CrossEncoderModel  # noqa: PLC0415

    if settings.endpoint is not None:
        return ChatRerankerModel(settings, limits)
    assert settings.model is not None
    return CrossEncoderModel(Path(settings.model))


def candidates(ranking: Ranking) -> tuple[Result, ...]:
    """Return the results that a model may be asked about: the best, selected or just not selected.

    A tool whose exact name was given keeps its place. If the query has several parts, the results were
    selected to serve each of them, and no other result takes their place.
    """
    selected = [result for result in ranking.results if not result.exact]
    several = any(result.serves is not None for result in selected)
    return tuple([*selected, *(() if several else ranking.others)][:CANDIDATES])


def reason_to_skip(ranking: Ranking, mode: RerankMode) -> str | None:
    """Return why no model needs to be asked; None if one should be."""
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
        return f"the best tool scores {best:.2f}"
    if best - third > AHEAD:
        return f"the best tool leads by {best - third:.2f}"
    return None


def reordered(ranking: Ranking, order: list[int]) -> Ranking:
    """Return a ranking with its `candidates` in another order; as many are selected as before."""
    asked = candidates(ranking)
    sorted_ones = iter([asked[at] for at in order])
    moved = {id(result) for result in asked}
    everything = [
        next(sorted_ones) if id(result) in moved else result for result in (*ranking.results, *ranking.others)
    ]
    count = len(ranking.results)
    return replace(ranking, results=tuple(everything[:count]), others=tuple(everything[count:]))
