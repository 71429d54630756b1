"""The memory of interactions: takes them in, embeds them, finds them again, forgets them.

Blocking and thread-safe. What is kept is in the store first and embedded afterwards: an interaction without
an embedding is never lost, only left out of searches by meaning, and counted there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self, TypeVar

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.config import Config
from mcp_context_proxy.embedding.embedder import Embedder
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.interactions.content import plain
from mcp_context_proxy.interactions.decay import DECAY_PER_DAY, SECONDS_A_DAY
from mcp_context_proxy.interactions.interaction import Interaction, Recall, Recollection, agent_named
from mcp_context_proxy.interactions.vectors import InteractionVectors
from mcp_context_proxy.store import InteractionScope, InteractionStore

T = TypeVar("T")

TOP_K: Final = 10
"""Interactions that a search finds, unless it says how many."""


class Model(Protocol):
    """Lends an embedder."""

    def used(self, use: Callable[[Embedder], T]) -> T:
        """What ``use`` makes of it; raises `ModelError`."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept."""

    rows: int
    days: float
    characters: int
    """Of one content."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """As configured."""
        kept = config.interactions
        return cls(kept.keep, kept.keep_days, config.limits.interaction_characters)


class InteractionMemory:
    """What agents searched, called and said."""

    def __init__(
        self,
        model: Model,
        store: InteractionStore,
        retention: Retention,
        redact: Callable[[str], str],
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Remember in a store.

        Args:
            model: Makes embeddings.
            store: Keeps them, and the interactions.
            retention: How much is kept.
            redact: Takes secrets out of a text.
            clock: Seconds since 1970.
        """
        self._model, self._store, self._retention = model, store, retention
        self._redact, self._clock = redact, clock
        self._vectors, self._comparing = InteractionVectors(store), threading.Lock()

    def redact_with(self, redact: Callable[[str], str]) -> None:
        """Know other secrets from now on."""
        self._redact = redact

    def add(self, interactions: Sequence[Interaction]) -> list[Interaction]:
        """Keep interactions, and return them as they are kept: they are in the store by then.

        Raises:
            StoreError: nothing was kept.
        """
        return self.keep(self.presentable(interactions))

    def presentable(self, interactions: Sequence[Interaction]) -> list[Interaction]:
        """Interactions as they are kept: without secrets, and of a bounded length."""
        now = self._clock()
        return [self._presentable(one, now) for one in interactions]

    def keep(self, presentable: Sequence[Interaction]) -> list[Interaction]:
        """Keep such, and return them with the ids they have then.

        Raises:
            StoreError: nothing was kept.
        """
        now = self._clock()
        oldest = now - self._retention.days * SECONDS_A_DAY
        return self._store.put(presentable, now, self._retention.rows, oldest)

    def embed(self, interactions: Sequence[Interaction]) -> None:
        """Give interactions their embeddings.

        Raises:
            ModelError: there are none to be had.
            EmbeddingCancelledError: the proxy stops.
            StoreError: they cannot be kept.
        """
        texts = list(dict.fromkeys(one.content for one in interactions))
        model_id, rows = self._model.used(lambda model: (model.model_id, model.embed(texts)))
        by_text = dict(zip(texts, rows, strict=True))
        self._store.put_vectors(model_id, {one.id: by_text[one.content] for one in interactions})

    def unembedded(self, after: int, limit: int) -> list[Interaction]:
        """Interactions with a greater id that the model in use has not embedded, in the order of ids.

        Raises:
            ModelError: there is no model.
            StoreError: the store cannot be read.
        """
        model_id = self._model.used(lambda model: model.model_id)
        return self._store.unembedded(model_id, after, limit)

    def unembedded_count(self) -> int:
        """How many those are.

        Raises:
            ModelError: there is no model.
            StoreError: the store cannot be read.
        """
        model_id = self._model.used(lambda model: model.model_id)
        return max(self._store.count(InteractionScope()) - self._store.vector_count(model_id), 0)

    def semantic_search_interactions(
        self,
        query: str,
        agent_name: str | None = None,
        top_k: int = TOP_K,
        time_decay_factor: float = DECAY_PER_DAY,
        interaction_type: str | None = None,
    ) -> Recall:
        """Interactions that are like a query, those long past counting less.

        Where no embedding can be had, the latest ones; the answer says which of the two it is.

        Args:
            query: In anybody's words.
            agent_name: Only what this agent did; None searches across all.
            top_k: How many.
            time_decay_factor: What is left of a score after a day.
            interaction_type: Only of this type.

        Raises:
            StoreError: the store cannot be read.
        """
        scope = InteractionScope(None if agent_name is None else agent_named(agent_name), interaction_type)
        try:
            model_id, (vector,) = self._model.used(
                lambda model: (model.model_id, model.embed_queries([query]))
            )
        except (ModelError, EmbeddingCancelledError) as error:
            note = f"The query has no embedding, so these are the latest interactions: {error}."
            return replace(self._latest(scope, top_k), note=note)
        with self._comparing:
            self._vectors.follow(model_id, len(vector))
            near, compared = self._vectors.nearest(vector, scope, top_k, time_decay_factor, self._clock())
        by_id = {one.id: one for one in self._store.get([one.id for one in near])}
        results = [Recollection(by_id[one.id], one.score, one.cosine) for one in near if one.id in by_id]
        known = self._store.count(scope)
        left_out = max(known - compared, 0)
        return Recall(tuple(results), "semantic", known, left_out, _left_out(left_out))

    def recent(
        self, agent_name: str | None = None, limit: int = TOP_K, interaction_type: str | None = None
    ) -> Recall:
        """The latest interactions, newest first.

        Raises:
            StoreError: the store cannot be read.
        """
        scope = InteractionScope(None if agent_name is None else agent_named(agent_name), interaction_type)
        return self._latest(scope, limit)

    def forget(self, scope: InteractionScope) -> int:
        """Forget interactions for good; how many.

        Raises:
            StoreError: nothing was forgotten.
        """
        return self._store.forget(scope)

    def forget_one(self, interaction: int) -> bool:
        """Forget one for good; whether it was there.

        Raises:
            StoreError: it was not forgotten.
        """
        return self._store.forget_one(interaction)

    def _latest(self, scope: InteractionScope, limit: int) -> Recall:
        results = tuple(Recollection(one, None, None) for one in self._store.latest(limit, scope))
        return Recall(results, "recent", self._store.count(scope), 0)

    def _presentable(self, one: Interaction, now: float) -> Interaction:
        return replace(
            one,
            agent_name=agent_named(one.agent_name),
            content=plain(one.content, self._redact, self._retention.characters),
            time=min(one.time, now),
        )


def _left_out(count: int) -> str | None:
    if count == 0:
        return None
    subject = "1 interaction has" if count == 1 else f"{count:,} interactions have"
    return f"{subject} no embedding and could not be compared; mcp-context-proxy backfill gives them one."
