"""The memory of interactions: keeps them, embeds them, finds them again by meaning and age, forgets them.

An interaction is in the store first and embedded afterwards: one without an embedding is never lost. Searches
by meaning leave it out, and count it in their answer.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.secrets import Redactor, all_secrets_of
from mcp_context_proxy.embedding.embedder import is_unit
from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import Vector
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.strangers import clean, one_line
from mcp_context_proxy.retrieval.vectors import dots
from mcp_context_proxy.store import (
    DAY,
    DECAY_PER_DAY,
    IN_MEMORY,
    Interaction,
    InteractionScope,
    InteractionStore,
    InteractionVector,
    open_store,
)
from mcp_context_proxy.system.process import time_of_day

READ_AT_ONCE: Final = 1_000
"""Embeddings that are read at once, 1.5 MB: others who use the store wait some milliseconds at most."""

FORGOTTEN_SHARE: Final = 0.25
"""Share of forgotten rows from which on they are removed, which copies all others."""

_FACTS = np.dtype(
    [("seq", "i8"), ("id", "i8"), ("time", "f8"), ("agent", "i4"), ("type", "i4"), ("there", "?")]
)


@dataclass(frozen=True, slots=True)
class Near:
    """An interaction that is like a query."""

    id: int
    score: float
    cosine: float


class InteractionVectors:
    """Embeddings of one model in memory, where searches compare them; ten thousand take 15 MB.

    They follow the store: a search reads the changes since the search before, whichever process made them.
    Not thread-safe.
    """

    def __init__(self, store: InteractionStore) -> None:
        self._store = store
        self._names: dict[str, int] = {}
        self._begin("", 0)

    def _begin(self, model_id: str, dimensions: int) -> None:
        self._model_id, self._latest, self._count = model_id, 0, 0
        self._facts = np.zeros(0, _FACTS)
        self._matrix = np.zeros((0, dimensions), np.float32)

    def follow(self, model_id: str, dimensions: int) -> None:
        """Read the changes of the store, for one model; raises `StoreError`."""
        if (model_id, dimensions) != (self._model_id, self._matrix.shape[1]):
            self._begin(model_id, dimensions)
        # Every embedding that is written gets the next `seq`, so reading goes on after the last one. A
        # deletion changes only the number of rows; if that differs, the rows that are left are looked up.
        while fresh := self._store.vectors(model_id, self._latest, READ_AT_ONCE):
            self._append(fresh)
        if self._store.vector_count(model_id) != np.count_nonzero(self._known["there"]):
            self._known["there"] = np.isin(self._known["seq"], self._store.vector_seqs(model_id))
            there = self._known["there"]
            if np.count_nonzero(there) < (1 - FORGOTTEN_SHARE) * self._count:
                self._facts, self._matrix = self._known[there], self._matrix[: self._count][there]
                self._count = len(self._facts)

    def nearest(
        self, query: Vector, scope: InteractionScope, top_k: int, factor: float, now: float
    ) -> tuple[list[Near], int]:
        """Return those with the best scores, the best first, and the number that was compared.

        Of equal scores, the latest comes first.
        """
        facts = self._known
        within: NDArray[np.bool_] = facts["there"].copy()
        if scope.agent_name is not None:
            within &= facts["agent"] == self._names.get(scope.agent_name, -1)
        if scope.interaction_type is not None:
            within &= facts["type"] == self._names.get(scope.interaction_type, -1)
        if scope.before is not None:
            within &= facts["time"] < scope.before
        (at,) = np.nonzero(within)
        cosines = dots(self._matrix[: self._count], query)[at].astype(np.float64)
        scores = aged(cosines, facts["time"][at], now, factor)
        best = np.lexsort((-facts["id"][at], -facts["time"][at], -scores))[:top_k]
        near = [
            Near(int(facts["id"][at[each]]), float(scores[each]), float(cosines[each]))
            for each in best
            if scores[each] > 0
        ]
        return near, len(at)

    @property
    def _known(self) -> NDArray[np.void]:
        return self._facts[: self._count]

    def _append(self, fresh: list[InteractionVector]) -> None:
        count, dimensions = self._count + len(fresh), self._matrix.shape[1]
        if count > len(self._facts):
            # Twice the size: then rows are copied a few times in all, not with each change.
            facts, matrix = np.zeros(2 * count, _FACTS), np.empty((2 * count, dimensions), np.float32)
            facts[: self._count], matrix[: self._count] = self._known, self._matrix[: self._count]
            self._facts, self._matrix = facts, matrix
        for at, one in enumerate(fresh, self._count):
            agent, kind = self._number(one.agent_name), self._number(one.interaction_type)
            self._facts[at] = (one.seq, one.interaction, one.time, agent, kind, True)
            # A damaged vector becomes zero, which is like no query.
            self._matrix[at] = one.vector if is_unit(one.vector, dimensions) else 0
        self._count, self._latest = count, fresh[-1].seq

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


def aged(
    cosines: NDArray[np.float64], times: NDArray[np.float64], now: float, factor: float
) -> NDArray[np.float64]:
    """Return the scores of interactions: ``cosine * factor ** days``.

    A cosine below zero counts as zero, so that an interaction unlike the query gains nothing by being old.
    `times` and `now` are seconds since 1970; a time after `now`, by another clock, counts as now.
    """
    days = np.maximum(now - times, 0.0) / DAY
    scores: NDArray[np.float64] = np.maximum(cosines, 0.0) * np.power(factor, days)
    return scores


SEARCH: Final = "search"
CALL: Final = "call"
MESSAGE: Final = "message"
"""The types of interactions that the proxy itself knows; clients may post others."""

TOP_K: Final = 10
"""Interactions that a search finds, unless it says how many."""

AGENT_CHARACTERS: Final = 100
"""Characters of an agent's name that are kept: they fit on a line."""

TYPE_CHARACTERS: Final = 64
"""Characters of a type that are kept."""

UNNAMED: Final = "unknown"
"""Name of an agent that did not say who it is."""

ARGUMENTS_BYTES: Final = 64 * 1024
"""Size of arguments that are kept; longer ones hold a file, and cut they would say nothing."""

LEVELS: Final = 32
"""Depth of arguments that are kept."""

LEFT_OUT: Final = "..."

_SECRET_NAME: Final = re.compile(
    r"passw|passphrase|secret|token|api_?-?key|private_?-?key|credential|authorization|cookie", re.IGNORECASE
)
"""Names of arguments that are not kept."""

Method: TypeAlias = Literal["semantic", "recent"]
"""The way interactions were found: by meaning and age; or, without an embedding, the latest."""

Redact: TypeAlias = Callable[[str], str]
"""Removes secrets from a text."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """An interaction that was found."""

    interaction: Interaction
    score: float | None
    """``cosine * time_decay_factor ** days``; None where nothing could be compared."""
    cosine: float | None


@dataclass(frozen=True, slots=True)
class Recall:
    """The answer of a search for interactions."""

    results: tuple[Recollection, ...]
    """Best first."""
    method: Method
    known: int
    """Number of interactions of the agent and type in question."""
    without_embedding: int
    """Number of those without an embedding, which a search by meaning leaves out."""
    note: str | None = None
    """A remark for the client on how these were found."""


class InteractionMemory:
    """The interactions of agents.

    Blocking and thread-safe. Methods raise `StoreError` when the store fails, and `ModelError` when they need
    the model and there is none.
    """

    def __init__(
        self,
        model: LazyModel,
        store: InteractionStore,
        config: Config,
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Use a store, with the bounds and without the secrets of a configuration."""
        self._model, self._store, self._clock = model, store, clock
        self._keep, self._characters = config.interactions, config.limits.interaction_characters
        self.redact: Redact = Redactor(all_secrets_of(config))
        """Removes secrets from a text; may be replaced."""
        self._vectors, self._comparing = InteractionVectors(store), threading.Lock()

    def add(self, interactions: Sequence[Interaction]) -> list[Interaction]:
        """Keep interactions, all or none, and return them as they are in the store."""
        return self.keep([self.presentable(one) for one in interactions])

    def presentable(self, interaction: Interaction) -> Interaction:
        """Return an interaction as it is kept: without secrets, and of a bounded length."""
        return replace(
            interaction,
            agent_name=agent_named(interaction.agent_name),
            interaction_type=one_line(interaction.interaction_type, TYPE_CHARACTERS),
            content=plain(interaction.content, self.redact, self._characters),
            time=min(interaction.time, self._clock()),
        )

    def keep(self, presentable: Sequence[Interaction]) -> list[Interaction]:
        """Keep presentable interactions, all or none, and return them with their ids."""
        now = self._clock()
        return self._store.put(presentable, now, self._keep.keep, now - self._keep.keep_days * DAY)

    def embed(self, interactions: Sequence[Interaction]) -> None:
        """Embed interactions; raises `EmbeddingCancelledError` when the proxy is stopping."""
        texts = list(dict.fromkeys(one.content for one in interactions))
        model_id, rows = self._model.run(lambda model: (model.model_id, model.embed(texts)))
        by_text = dict(zip(texts, rows, strict=True))
        self._store.put_vectors(model_id, {one.id: by_text[one.content] for one in interactions})

    def unembedded(self, after: int, limit: int) -> list[Interaction]:
        """Return interactions with a greater id that the model in use has not embedded, by id."""
        model_id = self._model.run(lambda model: model.model_id)
        return self._store.unembedded(model_id, after, limit)

    def unembedded_count(self) -> int:
        """Return the number of interactions that the model in use has not embedded."""
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
        """Find interactions that are like a query, by default of all agents and types.

        Old ones count less: `time_decay_factor` is the share of a score that is left after a day. Without an
        embedding of the query, this finds the latest ones. The answer says which method was used.
        """
        scope = scope_of(agent_name, interaction_type)
        try:
            model_id, (vector,) = self._model.run(
                lambda model: (model.model_id, model.embed_queries([query]))
            )
        except (ModelError, EmbeddingCancelledError) as error:
            note = f"The query has no embedding, so these are the latest interactions: {error}."
            return replace(self.recent(agent_name, top_k, interaction_type), note=note)
        with self._comparing:
            self._vectors.follow(model_id, len(vector))
            near, compared = self._vectors.nearest(vector, scope, top_k, time_decay_factor, self._clock())
        by_id = {one.id: _readable(one) for one in self._store.get([one.id for one in near])}
        results = [Recollection(by_id[one.id], one.score, one.cosine) for one in near if one.id in by_id]
        known = self._store.count(scope)
        left_out = max(known - compared, 0)
        missing = "1 interaction has" if left_out == 1 else f"{left_out:,} interactions have"
        note = f"{missing} no embedding and could not be compared; mcp-context-proxy backfill embeds them."
        return Recall(tuple(results), "semantic", known, left_out, note if left_out else None)

    def recent(
        self, agent_name: str | None = None, limit: int = TOP_K, interaction_type: str | None = None
    ) -> Recall:
        """Return the latest interactions, newest first."""
        scope = scope_of(agent_name, interaction_type)
        results = tuple(Recollection(_readable(one), None, None) for one in self._store.latest(limit, scope))
        return Recall(results, "recent", self._store.count(scope), 0)

    def forget(self, scope: InteractionScope) -> int:
        """Forget interactions for good, all or none; return how many."""
        return self._store.forget(scope)

    def forget_one(self, interaction: int) -> bool:
        """Forget one for good; return whether it was there."""
        return self._store.forget_one(interaction)


class Interactions(InteractionMemory):
    """A memory of interactions for programs without a proxy, with a store and a model of its own.

    Blocking and thread-safe. Close it, or use it as a context manager.
    """

    def __init__(self, store: Path | str = IN_MEMORY, config: Config | None = None) -> None:
        """Open a memory.

        Args:
            store: A file that keeps it, such as a proxy's; by default nothing is kept after closing.
            config: Bounds of the interactions kept, and the embedding model; by default as in the proxy.
        """
        config = config or Config()
        self._opened = open_store(IN_MEMORY if store == IN_MEMORY else Path(store))
        self._lazy = LazyModel(partial(open_model, config))
        super().__init__(self._lazy, self._opened.interactions, config)

    def record(
        self, agent_name: str, interaction_type: str, content: str, when: float | None = None
    ) -> Interaction:
        """Keep and embed an interaction; return it as it is kept.

        Args:
            agent_name: Name of the agent.
            interaction_type: Such as ``search``, ``call`` or ``message``.
            content: The text of the interaction.
            when: Seconds since 1970; by default now.

        Raises:
            StoreError: it was not kept.
            ModelError: it was kept, and has no embedding.
        """
        moment = time_of_day() if when is None else when
        (kept,) = self.add([Interaction(agent_name, interaction_type, content, moment)])
        self.embed([kept])
        return kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the model and the store."""
        self._lazy.close()
        self._opened.close()


def scope_of(
    agent_name: str | None, interaction_type: str | None, before: float | None = None
) -> InteractionScope:
    """Return the interactions of an agent, by any spelling of its name, and of a type; None is any."""
    return InteractionScope(None if agent_name is None else agent_named(agent_name), interaction_type, before)


def agent_named(name: str | None) -> str:
    """Return the name of an agent as it is kept: on one line, without invisible characters."""
    return one_line(name or "")[:AGENT_CHARACTERS].strip() or UNNAMED


def _readable(interaction: Interaction) -> Interaction:
    """Return an interaction out of the store for a reader: another version may have written it."""
    return replace(
        interaction,
        agent_name=agent_named(interaction.agent_name),
        interaction_type=one_line(interaction.interaction_type, TYPE_CHARACTERS),
        content=clean(interaction.content),
    )


def plain(text: str, redact: Redact, most: int) -> str:
    """Return a text as it is kept: without secrets and invisible characters, and of a bounded length."""
    # Cut afterwards: a secret that is cut in two is not recognized.
    return clean(redact(clean(text)))[:most].strip()


def call(name: str, arguments: bytes, goal: str | None) -> str:
    """Return the content of a call: its goal, the tool, its arguments."""
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
