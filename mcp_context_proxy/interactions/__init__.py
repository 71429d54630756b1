"""Interactions: the searches, calls and messages of agents, found again by words, meaning and age.

Here is the memory of them. An interaction is recorded off the event loop: it is in the store first and
embedded afterwards, so one without an embedding is never lost. Searches find it by its words alone, and count
it in their answer.

Searches and calls are only noted. A client that posts an interaction gets the response once it is stored.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import anyio
import anyio.from_thread
import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config import Config
from mcp_context_proxy.embedding.embeddings import LazyModel
from mcp_context_proxy.errors import (
    EmbeddingCancelledError,
    ModelError,
    StoreError,
    check_bounds,
    check_type,
)
from mcp_context_proxy.interactions.index import InteractionIndex, MemoryQuery
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.strangers import clean, one_line
from mcp_context_proxy.retrieval.scoring import calibration_for
from mcp_context_proxy.store.memory import Interaction, InteractionScope, InteractionStore, new_origin
from mcp_context_proxy.store.statistics import DAY
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import BatchWriter, in_thread

logger = logging.getLogger(__name__)

MESSAGE: Final = "message"
"""The type of an interaction that is posted without one."""

MOST_FOUND: Final = 1_000
"""Limit of the number of interactions that a search finds."""

AGENT_CHARACTERS: Final = 100
"""Characters of an agent's name that are kept: they fit on a line."""

TYPE_CHARACTERS: Final = 64
"""Characters of a type that are kept."""

EMBEDDED_WITHIN: Final = 60.0
"""Seconds in which the proxy that recorded an interaction embeds it by itself, even after a long burst."""

UNNAMED: Final = "unknown"
"""Name of an agent that did not say who it is."""

ARGUMENTS_BYTES: Final = 64 * 1024
"""Size of arguments that are kept; longer ones hold a file, and cut they would say nothing."""

LEVELS: Final = 32
"""Depth of arguments that are kept."""

LEFT_OUT: Final = "..."

_SECRET_NAME: Final = pattern(
    r"passw|passphrase|secret|token|api_?-?key|private_?-?key|credential|authorization|cookie", re.IGNORECASE
)
"""Names of arguments that are not kept."""

Method: TypeAlias = Literal["semantic", "words", "recent"]
"""The way interactions were found: by meaning, words and age; without an embedding of the query by words and
age; or the latest."""

Redact: TypeAlias = Callable[[str], str]
"""Removes secrets from a text."""


class Recollection(Struct, frozen=True):
    """An interaction that was found."""

    interaction: Interaction
    score: float | None
    """``(cosine + 0.025 * BM25F + 0.3 * share / words) * boost * time_decay_factor ** days``, with the share
    of the query that it has and the number of words of the query; None in a list of the latest."""
    cosine: float | None
    """None if the interaction or the query has no embedding."""
    times: int = 1
    """Interactions of this type with the same text, of which this is the best."""


class Recall(Struct, frozen=True):
    """The answer of a search for interactions."""

    results: tuple[Recollection, ...]
    """Best first."""
    method: Method
    known: int
    """Number of interactions of the agent and type in question."""
    without_embedding: int
    """Number of those without an embedding, which a search compares by words alone."""
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
        *,
        redact: Redact,
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Use a store, with the bounds of a configuration; `redact` removes secrets from a text."""
        self._model, self._store, self._clock = model, store, clock
        self._keep, self._characters = config.interactions, config.limits.interaction_characters
        self._redact = redact
        self._index = InteractionIndex(store, config.interactions, calibration_for(config.embedding))
        self._comparing = threading.Lock()

    def add(self, interactions: Sequence[Interaction]) -> list[Interaction]:
        """Keep interactions, all or none, and return them as they are in the store.

        Raises `ValueError` if one has no type or no text, or its time is before 1970.
        """
        interactions = list(interactions)
        for one in interactions:
            check_type("an interaction", one, Interaction)
            check_bounds("the time of an interaction", one.time, 0, whole=False)
            for name in ("agent_name", "interaction_type", "content"):
                check_type(name, getattr(one, name), str)
                if name != "agent_name" and not getattr(one, name).strip():
                    raise ValueError(f"{name} of an interaction must not be empty")
        return self.keep([self.presentable(one) for one in interactions])

    def presentable(self, interaction: Interaction) -> Interaction:
        """Return an interaction as it is kept: without secrets, and of a bounded length."""
        return replace(
            interaction,
            agent_name=agent_named(self._redact(clean(interaction.agent_name))),
            interaction_type=one_line(self._redact(clean(interaction.interaction_type)), TYPE_CHARACTERS),
            content=plain(interaction.content, self._redact, self._characters),
            time=min(interaction.time, self._clock()),
        )

    def keep(
        self, presentable: Sequence[Interaction], origins: Sequence[str] | None = None
    ) -> list[Interaction]:
        """Keep presentable interactions, all or none, and return them with their ids.

        One that is sent again under the same origin is kept once.
        """
        now = self._clock()
        oldest = now - self._keep.keep_days * DAY
        return self._store.put(presentable, now, self._keep.keep, oldest, origins)

    def known(self, presentable: Sequence[Interaction]) -> set[Interaction]:
        return self._store.equal(presentable)

    def room(self) -> int:
        """Return the number of interactions that can be kept before the oldest are forgotten."""
        return self._keep.keep - self._store.count(InteractionScope())

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
        model_id = self._model.run(lambda model: model.model_id)
        return max(self._store.count(InteractionScope()) - self._store.vector_count(model_id), 0)

    def semantic_search_interactions(
        self,
        query: str,
        agent_name: str | None = None,
        top_k: int | None = None,
        time_decay_factor: float | None = None,
        interaction_type: str | None = None,
        owner: str | None = None,
    ) -> Recall:
        """Find interactions that a query means, by default of all agents and types.

        Without an embedding of the query, this compares words, and returns the latest interactions if none
        has the words. The answer says which method was used.

        Args:
            query: Any words.
            agent_name: Only of this agent.
            top_k: Number of results, 1 to 1,000; by default that of the configuration.
            time_decay_factor: Share of a score that is left after a day, above 0 and at most 1; by default
                that of the configuration for each type.
            interaction_type: Only of this type.
            owner: Only those of this principal; empty for the user.

        Raises:
            ValueError: a number is outside its bounds.
        """
        top_k = self._keep.top_k if top_k is None else top_k
        check_type("query", query, str)
        check_bounds("top_k", top_k, 1, MOST_FOUND)
        # Also for a number that is none (NaN): no comparison with it is true.
        if time_decay_factor is not None and not 0 < time_decay_factor <= 1:
            raise ValueError(f"time_decay_factor is {time_decay_factor}; it must be above 0 and at most 1")
        scope, note = replace(scope_of(agent_name, interaction_type), owner=owner), ""
        model_id, vector = None, None
        try:
            model_id, (vector,) = self._model.run(
                lambda model: (model.model_id, model.embed_queries([query]))
            )
        except (ModelError, EmbeddingCancelledError) as error:
            note = f"The query has no embedding, so only words were compared: {error}."
        wanted = MemoryQuery(query, vector, scope, top_k, time_decay_factor)
        with self._comparing:
            self._index.follow(model_id, 0 if vector is None else len(vector))
            now = self._clock()
            near, unembedded = self._index.nearest(wanted, now)
        by_id = {one.id: _readable(one) for one in self._store.get([one.id for one in near])}
        results = tuple(
            Recollection(by_id[one.id], one.score, one.cosine, one.times) for one in near if one.id in by_id
        )
        known = self._store.count(scope)
        if vector is None:
            if not results:
                note = note.replace("so only words were compared", "so these are the latest interactions")
                return replace(self.recent(agent_name, top_k, interaction_type, owner), note=note)
            return Recall(results, "words", known, known, note)
        if left := int((unembedded < now - EMBEDDED_WITHIN).sum()):
            have = "1 interaction has" if left == 1 else f"{left:,} interactions have"
            note = (
                f"{have} no embedding and could be compared by words only; mcp-context-proxy backfill embeds "
                "them."
            )
        return Recall(results, "semantic", known, len(unembedded), note or None)

    def recent(
        self,
        agent_name: str | None = None,
        limit: int | None = None,
        interaction_type: str | None = None,
        owner: str | None = None,
    ) -> Recall:
        """Return the latest interactions, newest first; by default as many as a search finds.

        Raises `ValueError` if the limit is below 1.
        """
        limit = self._keep.top_k if limit is None else limit
        check_bounds("limit", limit, 1)
        scope = replace(scope_of(agent_name, interaction_type), owner=owner)
        results = tuple(Recollection(_readable(one), None, None) for one in self._store.latest(limit, scope))
        return Recall(results, "recent", self._store.count(scope), 0)

    def kinds(self) -> list[tuple[str, str, int, float]]:
        """Return agents and types, each with the number of interactions and the time of the latest."""
        return self._store.kinds()

    def forget(self, scope: InteractionScope) -> int:
        return self._store.forget(scope)

    def forget_one(self, interaction: int) -> bool:
        return self._store.forget_one(interaction)


def scope_of(
    agent_name: str | None, interaction_type: str | None, before: float | None = None
) -> InteractionScope:
    """Return the interactions of an agent, by any spelling of its name, and of a type; None is any."""
    agent = None if agent_name is None else agent_named(agent_name)
    return InteractionScope(agent, interaction_type, before)


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


def call_content(name: str, arguments: bytes, goal: str | None) -> str:
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


WAITING: Final = 1_000
"""Interactions that wait to be written, and as many that wait for their embedding. Of more, the oldest are
not written, or stay without an embedding until a backfill."""

EMBEDDED_AT_ONCE: Final = 16
"""Interactions in one batch: some 50 ms of work with the packaged model, during which a search can run."""

GATHERING_SECONDS: Final = 0.5
"""Time for which interactions are gathered before they are written, unless a client posts one, and before
they are embedded, unless a search waits for them: an agent works in bursts, and should not share the
processor with its own memory."""

PAUSE: Final = 5.0
"""Pause between two batches, in times of the last batch. A batch may take two threads, so this uses a third
of one processor."""

PATIENCE_SECONDS: Final = 1.0
"""Time for which a search waits for recent interactions: the model may have to be opened first. It does not
wait for more than one batch; its answer counts those that are left out."""

BATCH: Final = 50
"""Interactions between two writes of a backfill."""

GIVEN_UP_AFTER: Final = 5
"""Interactions that fail one after the other, each tried alone: then the model is broken, not a text."""


class _WaitingInteraction(Struct, eq=False):
    """An interaction that waits to be written."""

    make: Callable[[], Interaction]
    is_posted: bool = False
    presentable: Interaction | None = None
    """The interaction that `make` returned, as it is kept."""
    kept: Interaction | None = None
    """The same with its id, once it is in the store."""
    error: Exception | None = None
    """Why it will not be written."""
    origin: str = field(default_factory=new_origin)
    """Id under which it is written, however often that is tried."""


class InteractionRecorder:
    """Records interactions. Its `run` owns the work."""

    def __init__(self, memory: InteractionMemory) -> None:
        self.memory = memory
        """The memory that keeps them."""
        self._entries = BatchWriter(self._write, seconds=GATHERING_SECONDS, limit=WAITING)
        self._unembedded: deque[Interaction] = deque(maxlen=WAITING)
        self._is_embedding = False
        self._is_complete = False
        self._to_embed, self._hurry, self._embedded = anyio.Event(), anyio.Event(), anyio.Event()

    def note(self, interaction: Callable[[], Interaction]) -> None:
        """Keep the interaction that the function returns, soon. It is called in a thread. Does not block."""
        self._entries.add(_WaitingInteraction(interaction))

    async def post(self, interaction: Interaction) -> Interaction:
        """Keep an interaction, and return it as it is in the store; raises `StoreError`."""
        entry = _WaitingInteraction(lambda: interaction, is_posted=True)
        while entry.kept is None:
            # Posts that arrive during a write are written together by the next one. With very many of them an
            # entry may be dropped, and is added again.
            self._entries.add(entry)
            await self._entries.flush()
            if entry.error is not None:
                raise entry.error
        return entry.kept

    async def drain(self) -> None:
        """Wait until every interaction so far is written, and embedded where that is possible."""
        await self._entries.flush()
        while self._unembedded or self._is_embedding:
            self._hurry.set()
            await self._embedded.wait()

    async def wait_for_recent(self) -> None:
        """Wait a moment for interactions that were just recorded to be embedded, if there are few."""
        few = len(self._entries.unwritten) + len(self._unembedded) <= EMBEDDED_AT_ONCE
        with anyio.move_on_after(PATIENCE_SECONDS if few else 0):
            await self.drain()

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._embed_all)
            await self._entries.run()

    def _write(self, entries: Sequence[_WaitingInteraction]) -> None:
        ready: list[tuple[_WaitingInteraction, Interaction]] = []
        for entry in entries:
            try:
                if entry.presentable is None and entry.error is None:
                    entry.presentable = self.memory.presentable(entry.make())
            except Exception as error:
                # boundary: an interaction that cannot be made must not cost the others
                logger.exception("an interaction could not be recorded")
                entry.error = error
            if entry.presentable is not None and entry.error is None:
                ready.append((entry, entry.presentable))
        if not ready:
            return
        try:
            origins = [entry.origin for entry, _ in ready]
            kept = self.memory.keep([presentable for _, presentable in ready], origins)
        except StoreError as error:
            for entry, _ in ready:
                # Its client gets the error; notes are kept for the next attempt.
                entry.error = error if entry.is_posted else None
            raise
        for (entry, _), interaction in zip(ready, kept, strict=True):
            entry.kept = interaction
        anyio.from_thread.run_sync(self._embed_soon, kept)

    def _embed_soon(self, kept: Sequence[Interaction]) -> None:
        self._unembedded += kept
        self._to_embed.set()

    async def _embed_all(self) -> None:
        while True:
            await self._to_embed.wait()
            self._to_embed = anyio.Event()
            pause = GATHERING_SECONDS
            while self._unembedded:
                with anyio.move_on_after(pause):
                    await self._hurry.wait()
                count = min(len(self._unembedded), EMBEDDED_AT_ONCE)
                batch = [self._unembedded.popleft() for _ in range(count)]
                began = time.perf_counter()
                self._is_embedding = True
                try:
                    left = await in_thread(self._embed, batch, abandon_on_cancel=True)
                    waiting = {one.id for one in self._unembedded}
                    self._unembedded.extend(one for one in left if one.id not in waiting)
                finally:
                    self._is_embedding = False
                    self._embedded.set()
                    self._embedded = anyio.Event()
                pause = PAUSE * (time.perf_counter() - began)
            self._hurry = anyio.Event()

    def _embed(self, batch: Sequence[Interaction]) -> list[Interaction]:
        """Embed a batch; return interactions that got no embedding in an earlier run or without a model."""
        try:
            self.memory.embed(batch)
            if self._is_complete:
                return []
            self._is_complete = True
            return self.memory.unembedded(0, WAITING)
        except (ModelError, EmbeddingCancelledError, StoreError) as error:
            self._is_complete = False
            logger.debug("%d interactions stay without an embedding: %s", len(batch), error)
        except Exception:
            # boundary: interactions that cannot be embedded must not end the memory
            logger.exception("interactions could not be embedded")
        return []


class Backfilled(Struct, frozen=True):
    """The result of a backfill."""

    embedded: int
    failed: int
    left: int
    """Interactions that were not tried, because the model failed again and again."""
    error: str | None
    """The last error."""


def backfill(
    memory: InteractionMemory, batch_size: int = BATCH, on_progress: Callable[[int, int], None] | None = None
) -> Backfilled:
    """Embed the interactions that have no embedding of the model in use. Blocks; may go on after a break.

    `on_progress` gets the number of interactions tried, and of all. Raises `ModelError` if there is no model,
    and `StoreError` if the store cannot be read or written; the embeddings made until then are kept.
    """
    report = on_progress or (lambda _done, _total: None)
    embedded = failed = failed_in_a_row = after = 0
    last_error: ModelError | None = None

    def embed(batch: Sequence[Interaction]) -> bool:
        nonlocal embedded, failed_in_a_row, last_error
        try:
            memory.embed(batch)
        except ModelError as error:
            last_error = error
            return False
        embedded, failed_in_a_row = embedded + len(batch), 0
        return True

    total = memory.unembedded_count()
    report(0, total)
    while failed_in_a_row < GIVEN_UP_AFTER and (batch := memory.unembedded(after, batch_size)):
        if not embed(batch):
            # One text that cannot be embedded must not cost the others.
            for one in batch:
                if failed_in_a_row < GIVEN_UP_AFTER and not embed([one]):
                    failed, failed_in_a_row = failed + 1, failed_in_a_row + 1
        after = batch[-1].id
        report(embedded + failed, total)
    left = max(memory.unembedded_count() - failed, 0)
    return Backfilled(embedded, failed, left, str(last_error) if last_error else None)
