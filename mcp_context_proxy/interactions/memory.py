"""The memory of interactions: takes them in, embeds them, finds them again, forgets them.

Blocking and thread-safe. What is kept is in the store first and embedded afterwards: an interaction without
an embedding is never lost, only left out of searches by meaning, and counted there.

What an interaction is, and what a search through them answers. Frozen values.

The embeddings of interactions in memory, as searches compare them: the store's, followed change by change.

A search reads only what has come since the one before it, from whichever process; ten thousand take 15 MB.

How much an interaction counts after some time. Pure.

The text of an interaction as it is kept: without secrets and what nobody sees, and of a bounded length.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.config import Config
from mcp_context_proxy.embedding.embedder import is_unit
from mcp_context_proxy.embedding.embeddings import LazyModel
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import Vector
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.text import clean
from mcp_context_proxy.retrieval.vectors import dots
from mcp_context_proxy.store import InteractionRow as Interaction
from mcp_context_proxy.store import InteractionScope, InteractionStore, InteractionVector
from mcp_context_proxy.system.clock import time_of_day

__all__ = ["CALL", "MESSAGE", "SEARCH", "Interaction", "Method", "Recall", "Recollection", "agent_named"]

SEARCH: Final = "search"
CALL: Final = "call"
MESSAGE: Final = "message"
"""Types that the proxy itself knows; clients may post others."""

AGENT_CHARACTERS: Final = 100
"""Of an agent's name: what a line shows."""

UNNAMED: Final = "unknown"
"""The agent that did not say who it is."""

Method: TypeAlias = Literal["semantic", "recent"]
"""How interactions were found: by meaning and age; or, where no embedding can be had, the latest."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """An interaction that was found."""

    interaction: Interaction
    score: float | None
    """``cosine * time_decay_factor ** days``; None where nothing could be compared."""
    cosine: float | None


@dataclass(frozen=True, slots=True)
class Recall:
    """What a search through interactions found."""

    results: tuple[Recollection, ...]
    """Best first."""
    method: Method
    known: int
    """Interactions there are, of the agent and type that were asked for."""
    without_embedding: int
    """How many of them have none, so that they were left out of a search by meaning."""
    note: str | None = None
    """What whoever asked should know about how this was found."""


def agent_named(name: str | None) -> str:
    """The name of an agent as it is kept: on one line, without what nobody sees."""
    return " ".join(clean(name or "").split())[:AGENT_CHARACTERS].strip() or UNNAMED


DECAY_PER_DAY: Final = 0.95
"""What is left of a score after a day, unless a search says otherwise: 0.21 after 30 days."""

SECONDS_A_DAY: Final = 86_400.0


def aged(
    cosines: NDArray[np.float64], times: NDArray[np.float64], now: float, factor: float
) -> NDArray[np.float64]:
    """The scores of interactions: ``cosine * factor ** days``.

    A cosine below zero counts as zero, so that what is unlike a query gains nothing by being old. `times` and
    `now` are seconds since 1970; what lies ahead of `now`, by another clock, counts as new.
    """
    days = np.maximum(now - times, 0.0) / SECONDS_A_DAY
    scores: NDArray[np.float64] = np.maximum(cosines, 0.0) * np.power(factor, days)
    return scores


READ_AT_ONCE = 1_000
"""Embeddings of one reading, 1.5 MB: others who use the store wait a few milliseconds at most."""

FORGOTTEN_SHARE = 0.25
"""Of all rows, from which on those that were forgotten are taken out: that copies all others."""

_FACTS = np.dtype(
    [("seq", "i8"), ("id", "i8"), ("time", "f8"), ("agent", "i4"), ("type", "i4"), ("there", "?")]
)


@dataclass(frozen=True, slots=True)
class Near:
    """An interaction that is near to a query."""

    id: int
    score: float
    cosine: float


class InteractionVectors:
    """Embeddings of one model. Not thread-safe."""

    def __init__(self, store: InteractionStore) -> None:
        self._store = store
        self._names: dict[str, int] = {}
        self._begin("", 0)

    def follow(self, model_id: str, dimensions: int) -> None:
        """Have what the store has, of one model.

        Raises:
            StoreError: the store cannot be read.
        """
        if (model_id, dimensions) != (self._model_id, self._matrix.shape[1]):
            self._begin(model_id, dimensions)
        while fresh := self._store.vectors(model_id, self._latest, READ_AT_ONCE):
            self._append(fresh)
        if self._store.vector_count(model_id) != np.count_nonzero(self._known["there"]):
            self._known["there"] = np.isin(self._known["seq"], self._store.vector_seqs(model_id))
            self._take_out()

    def nearest(
        self, query: Vector, scope: InteractionScope, top_k: int, factor: float, now: float
    ) -> tuple[list[Near], int]:
        """Those with the best scores, the best first and of equals the latest, and how many were compared."""
        facts = self._known
        (at,) = np.nonzero(self._within(scope))
        cosines = dots(self._matrix[: self._count], query)[at].astype(np.float64)
        scores = aged(cosines, facts["time"][at], now, factor)
        best = np.lexsort((-facts["id"][at], -facts["time"][at], -scores))[:top_k]
        near = [
            Near(int(facts["id"][at[each]]), float(scores[each]), float(cosines[each]))
            for each in best
            if scores[each] > 0
        ]
        return near, len(at)

    def _within(self, scope: InteractionScope) -> NDArray[np.bool_]:
        facts = self._known
        within: NDArray[np.bool_] = facts["there"].copy()
        if scope.agent_name is not None:
            within &= facts["agent"] == self._names.get(scope.agent_name, -1)
        if scope.interaction_type is not None:
            within &= facts["type"] == self._names.get(scope.interaction_type, -1)
        if scope.before is not None:
            within &= facts["time"] < scope.before
        return within

    @property
    def _known(self) -> NDArray[np.void]:
        return self._facts[: self._count]

    def _begin(self, model_id: str, dimensions: int) -> None:
        self._model_id, self._latest, self._count = model_id, 0, 0
        self._facts = np.zeros(0, _FACTS)
        self._matrix = np.zeros((0, dimensions), np.float32)

    def _append(self, fresh: list[InteractionVector]) -> None:
        count, dimensions = self._count + len(fresh), self._matrix.shape[1]
        if count > len(self._facts):
            # Twice the room: rows are copied a few times in all, not with each change.
            facts, matrix = np.zeros(2 * count, _FACTS), np.empty((2 * count, dimensions), np.float32)
            facts[: self._count], matrix[: self._count] = self._known, self._matrix[: self._count]
            self._facts, self._matrix = facts, matrix
        for at, one in enumerate(fresh, self._count):
            agent, kind = self._number(one.agent_name), self._number(one.interaction_type)
            self._facts[at] = (one.seq, one.interaction, one.time, agent, kind, True)
            # A damaged one is near to nothing.
            self._matrix[at] = one.vector if is_unit(one.vector, dimensions) else 0
        self._count, self._latest = count, fresh[-1].seq

    def _take_out(self) -> None:
        there = self._known["there"]
        if np.count_nonzero(there) < (1 - FORGOTTEN_SHARE) * self._count:
            self._facts, self._matrix = self._known[there], self._matrix[: self._count][there]
            self._count = len(self._facts)

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


ARGUMENTS_BYTES: Final = 64 * 1024
"""Arguments of a call that are looked into: what is longer is a file, and would be cut to nothing telling."""

LEVELS: Final = 32
"""Of arguments that are looked into; deeper ones are left out."""

LEFT_OUT: Final = "..."

_SECRET_NAME: Final = re.compile(
    r"passw|passphrase|secret|token|api_?-?key|private_?-?key|credential|authorization|cookie", re.IGNORECASE
)
"""Arguments with such names are not kept."""

Redact = Callable[[str], str]


def plain(text: str, redact: Redact, most: int) -> str:
    """Anybody's text as it is kept."""
    # A secret that was cut in two would not be known any more.
    return clean(redact(clean(text)))[:most].strip()


def call(name: str, arguments: bytes, goal: str | None) -> str:
    """What a call says: its goal, the tool, its arguments."""
    said = f"{name} {_arguments(arguments)}".rstrip()
    return f"{goal}\n{said}" if goal else said


def _arguments(encoded: bytes) -> str:
    if len(encoded) > ARGUMENTS_BYTES:
        return LEFT_OUT
    try:
        value = envelope.value(encoded)
        if isinstance(value, str):  # as some models send them
            value = envelope.value(value.encode("utf-8", "replace")) if value.strip() else None
        return envelope.encode(_without_secrets(value, LEVELS)).decode() if value else ""
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return LEFT_OUT


def _without_secrets(value: Any, levels: int) -> Any:
    if isinstance(value, dict | list) and levels == 0:
        return LEFT_OUT
    if isinstance(value, dict):
        return {
            key: "[redacted]"
            if isinstance(member, str) and _SECRET_NAME.search(key)
            else _without_secrets(member, levels - 1)
            for key, member in value.items()
        }
    if isinstance(value, list):
        return [_without_secrets(member, levels - 1) for member in value]
    return value


T = TypeVar("T")

TOP_K: Final = 10
"""Interactions that a search finds, unless it says how many."""


@dataclass(frozen=True, slots=True)
class InteractionRetention:
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
        model: LazyModel,
        store: InteractionStore,
        retention: InteractionRetention,
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
        model_id, rows = self._model.run(lambda model: (model.model_id, model.embed(texts)))
        by_text = dict(zip(texts, rows, strict=True))
        self._store.put_vectors(model_id, {one.id: by_text[one.content] for one in interactions})

    def unembedded(self, after: int, limit: int) -> list[Interaction]:
        """Interactions with a greater id that the model in use has not embedded, in the order of ids.

        Raises:
            ModelError: there is no model.
            StoreError: the store cannot be read.
        """
        model_id = self._model.run(lambda model: model.model_id)
        return self._store.unembedded(model_id, after, limit)

    def unembedded_count(self) -> int:
        """How many those are.

        Raises:
            ModelError: there is no model.
            StoreError: the store cannot be read.
        """
        model_id = self._model.run(lambda model: model.model_id)
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
            model_id, (vector,) = self._model.run(
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
