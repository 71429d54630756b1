"""What the API takes and answers about request contexts: the forms, named as in the context layer."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from mcp_context_proxy.config.settings import Preset
from mcp_context_proxy.context.options import ContextOptions, DomainOverrides, Overrides
from mcp_context_proxy.context.request import Mode, Origin
from mcp_context_proxy.items import Kind
from mcp_context_proxy.rerank.reranker import Reranking
from mcp_context_proxy.web.bounds import LISTED_MOST, Count, Name, Score, Words

Depth = Annotated[int, Meta(ge=0, le=5)]
Steps = Annotated[int, Meta(ge=0, le=100)]
"""Requests or queries to look back."""
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class DomainChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """What is changed for tools, or for rules and references; numbers beat the preset."""

    preset: Preset | None = None
    top_k: Count | None = None
    top_n: Count | None = None
    include_score: Score | None = None

    def overrides(self, preset: Preset | None) -> DomainOverrides:
        """As the context layer has it; ``preset`` where there is none of its own."""
        return DomainOverrides(self.preset or preset, self.top_k, self.top_n, self.include_score)


class OptionChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """What a session or a request changes of how much is selected; what is not given stays."""

    preset: Preset | None = None
    """For tools and documents, where they have none of their own."""
    tools: DomainChanges = DomainChanges()
    documents: DomainChanges = DomainChanges()
    max_tokens: Tokens | None = None
    expansion_depth: Depth | None = None
    expansion_threshold: Score | None = None
    expansion_top_n: Count | None = None
    history: Steps | None = None
    retain_requests: Steps | None = None
    expand_results: bool | None = None

    def overrides(self) -> Overrides:
        """As the context layer has it."""
        return Overrides(
            tools=self.tools.overrides(self.preset),
            documents=self.documents.overrides(self.preset),
            max_tokens=self.max_tokens,
            expansion_depth=self.expansion_depth,
            expansion_threshold=self.expansion_threshold,
            expansion_top_n=self.expansion_top_n,
            history=self.history,
            retain_requests=self.retain_requests,
            expand_results=self.expand_results,
        )


class ContextWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """A query that a context is wanted for."""

    query: Words
    session: Name | None = None
    """Public id of the session whose items belong to it."""
    options: OptionChanges = OptionChanges()
    record: bool = True
    """False: only looked at, and not remembered."""
    describe: bool = False
    """True: items come with their description and priority."""


class Describe(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of what has items in it."""

    describe: bool = False


class RequestsWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Which request contexts are listed."""

    session: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=LISTED_MOST)] = 50


class Item(Struct, frozen=True):
    """One item of a context."""

    type: Kind
    name: str
    server: str | None
    include_mode: Mode
    score: float | None
    tokens: int
    why: str
    description: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET


class RequestAnswer(Struct, frozen=True):
    """A request context."""

    id: str
    time: float
    query: str
    origin: Origin
    session: str | None
    items: list[Item]
    options: ContextOptions
    dropped: list[Item]
    near_misses: list[Item]
    failure: str | None
    note: str | None
    confidence: float | None
    rerank: Reranking | None
    filters: dict[str, bool | float | str | list[str]]
    """What the search was asked to keep to, by name."""
    seconds: float
    tokens: int
    """Of all items together."""


class RequestsAnswer(Struct, frozen=True):
    """The latest request contexts, newest first."""

    requests: list[RequestAnswer]
    tokens_behind: int | None
    """What a model would read if everything there is were listed; null while it is being counted."""
