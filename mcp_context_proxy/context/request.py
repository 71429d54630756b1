"""What was chosen for one request, how and why: names and numbers, never the text of a tool or document.

Frozen values. What is written to the store and read back is equal to what was served.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.context.options import ContextOptions
from mcp_context_proxy.items import JSON, Kind
from mcp_context_proxy.rerank.reranker import Reranking

logger = logging.getLogger(__name__)

ID_BYTES = 8
"""Of a request's id: it names a record, it opens nothing; short enough to be typed."""

Origin: TypeAlias = Literal["search", "set_context", "list", "context"]
"""What asked: a search, ``set_context``, a list filtered by a query, or somebody who wants the context itself
(a host's hook, an agent, a person)."""


class Mode(StrEnum):
    """How an item came into a request context."""

    ALWAYS = "always"
    """It is in every session."""
    MANUAL = "manual"
    """It was added to the session by hand."""
    AGENT = "agent"
    """The query selected it."""
    EXPANSION = "expansion"
    """Something selected brought it."""
    LEARNED = "learned"
    """Successful calls speak for it."""
    WORKING_SET = "working_set"
    """It is used again and again, and was in the list from the start."""
    UNCERTAIN = "uncertain"
    """It is listed because little is known of such requests, and there was room."""
    RETAINED = "retained"
    """It was used a moment ago in this session."""


SESSION_MODES = frozenset({Mode.ALWAYS, Mode.MANUAL, Mode.WORKING_SET})
"""Of items that are there whatever the query is."""


@dataclass(frozen=True, slots=True)
class ContextItem:
    """One item of a request context."""

    type: Kind
    name: str
    """Exposed name of a tool, name of a rule or reference."""
    server: str | None
    """Of a tool; None for documents."""
    include_mode: Mode
    score: float | None
    """None where no search scored it."""
    tokens: int
    """What it costs a model to read, estimated."""
    why: str
    """One short sentence for a person."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Everything a model was given for one request, by name."""

    id: str
    time: float
    """Seconds since 1970."""
    query: str
    origin: Origin
    session: str | None
    """Public id of the session it belongs to."""
    items: tuple[ContextItem, ...]
    """The session's items first, then those selected, best first."""
    options: ContextOptions
    """What was in force."""
    dropped: tuple[ContextItem, ...] = ()
    """What was selected and did not fit into `ContextOptions.max_tokens`."""
    near_misses: tuple[ContextItem, ...] = ()
    """When nothing fits: what came nearest. Not part of the context."""
    failure: str | None = None
    """Why there was no selection; the session's items were served."""
    note: str | None = None
    """What a person should know about how this was found, such as a model that could not be loaded."""
    confidence: float | None = None
    """How much use has taught of such requests, 0 to 1; None where nothing hangs on it, or it is unknown."""
    rerank: Reranking | None = None
    """What became of asking another model for the order; None where that is not configured."""
    filters: dict[str, JSON] = field(default_factory=dict)
    """What the search was asked to keep to, by name."""
    seconds: float = 0.0
    """How long it took to build."""
    owner: str | None = None
    """Who asked over MCP, by a digest of the credentials; None without any, and where no host asked."""

    @property
    def tokens(self) -> int:
        """Of all items together, estimated."""
        return sum(item.tokens for item in self.items)

    def of(self, *types: Kind) -> tuple[ContextItem, ...]:
        """Its items of some types."""
        return tuple(item for item in self.items if item.type in types)


@dataclass(slots=True)
class Draft:
    """A request context that is being put together: each item once, the first mention decides how it came."""

    query: str
    origin: Origin
    session: str | None
    options: ContextOptions
    items: dict[tuple[Kind, str], ContextItem] = field(default_factory=dict)
    dropped: tuple[ContextItem, ...] = ()
    near_misses: tuple[ContextItem, ...] = ()
    failure: str | None = None
    note: str | None = None
    confidence: float | None = None
    rerank: Reranking | None = None
    filters: dict[str, JSON] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    owner: str | None = None

    def add(self, items: Iterable[ContextItem]) -> None:
        """Take items that are not in it yet; one that is keeps its mode and gains its score."""
        for item in items:
            known = self.items.setdefault((item.type, item.name), item)
            if known.score is None and item.score is not None:
                self.items[item.type, item.name] = replace(known, score=item.score)

    def fail(self, error: Exception) -> None:
        """There is no selection; what the session has is all."""
        logger.error("the selection for a request failed; the session's items are served", exc_info=error)
        self.failure = f"{type(error).__name__}: {error}"

    def finished(self) -> RequestContext:
        """The value."""
        return RequestContext(
            id=secrets.token_hex(ID_BYTES),
            time=time_of_day(),
            query=self.query,
            origin=self.origin,
            session=self.session,
            items=tuple(self.items.values()),
            options=self.options,
            dropped=self.dropped,
            near_misses=self.near_misses,
            failure=self.failure,
            note=self.note,
            confidence=self.confidence,
            rerank=self.rerank,
            filters=self.filters,
            seconds=time.perf_counter() - self.began,
            owner=self.owner,
        )


def as_data(context: RequestContext) -> dict[str, JSON]:
    """As JSON has it, with its tokens in all; whose it is stays here."""
    data: dict[str, JSON] = {**msgspec.to_builtins(context), "tokens": context.tokens}
    del data["owner"]
    return data


def encoded(context: RequestContext) -> bytes:
    """As JSON, complete."""
    return msgspec.json.encode(context)


def decoded(text: bytes) -> RequestContext:
    """What `encoded` was given.

    Raises:
        msgspec.DecodeError: it is not a request context of this version.
    """
    return msgspec.json.decode(text, type=RequestContext)
