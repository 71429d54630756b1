"""What the API takes and answers: the forms, with names and numbers as in the context layer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from mcp_context_proxy.config.settings import Preset
from mcp_context_proxy.context.constraints import MIN_CALLS, Constraints
from mcp_context_proxy.context.options import ContextOptions, DomainOverrides, Overrides
from mcp_context_proxy.context.request import Mode, Origin
from mcp_context_proxy.items import Kind
from mcp_context_proxy.rerank.reranker import Reranking

LISTED_MOST = 500
"""Request contexts in one answer: more than a person looks through, some 500 kB."""

SELECTED_MOST = 1000
"""Items or chunks that may be asked for; a model reads tens."""

LATENCY_MOST = 1e9
"""Milliseconds: eleven days."""

Words = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Count = Annotated[int, Meta(ge=1, le=SELECTED_MOST)]
Score = Annotated[float, Meta(ge=0, le=1)]
Tags = Annotated[str, Meta(max_length=1000)]
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


class ItemName(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool by its exposed name, or by its own with its server; a rule or reference by its name."""

    type: Kind
    name: Name
    server: Name | None = None


class SessionChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """What is changed in a session: all of it, or nothing where a name is unknown."""

    add: Annotated[list[ItemName], Meta(max_length=SELECTED_MOST)] = []
    remove: Annotated[list[ItemName], Meta(max_length=SELECTED_MOST)] = []
    options: OptionChanges | None = None
    """Replaces what the session has changed so far."""


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


class SearchWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """A search for tools."""

    query: Words
    top_k: Count | None = None
    """How many tools; by default as configured."""
    server: Name | None = None
    use_llm: bool | None = None
    """Whether another model puts the best of them in order; by default as configured."""
    category: Name | None = None
    tags: Tags = ""
    """Divided by commas; all of them are needed."""
    any_tags: Tags = ""
    """Divided by commas; one of them is needed."""
    language: Name | None = None
    read_only: bool = False
    exclude_destructive: bool = False
    open_world: bool | None = None
    max_latency_ms: Annotated[float, Meta(gt=0, le=LATENCY_MOST)] | None = None
    min_success_rate: Score | None = None
    min_calls: Annotated[int, Meta(ge=1, le=1_000_000_000)] = MIN_CALLS
    strict: bool = False

    def constraints(self) -> Constraints:
        """As the context layer has them."""
        return Constraints(
            server=self.server,
            category=self.category,
            tags=_divided(self.tags),
            any_tags=_divided(self.any_tags),
            language=self.language,
            read_only=self.read_only,
            exclude_destructive=self.exclude_destructive,
            open_world=self.open_world,
            max_latency_ms=self.max_latency_ms,
            min_success_rate=self.min_success_rate,
            min_calls=self.min_calls,
            strict=self.strict,
        )


def _divided(words: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in words.split(",") if word.strip())


class ReindexWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """What is indexed again."""

    rebuild: bool = False
    """True: everything; false: what is not indexed yet."""


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


class RemovedItem(Struct, frozen=True):
    """What was removed from a session by hand."""

    type: Kind
    name: str


class SessionAnswer(Struct, frozen=True):
    """A session's context."""

    id: str
    kind: str
    created: float
    query: str | None
    items: list[Item]
    removed: list[RemovedItem]
    options: Overrides
    latest_request: str | None


class SessionsAnswer(Struct, frozen=True):
    """All sessions, oldest first."""

    sessions: list[SessionAnswer]


class Label(Struct, frozen=True):
    """A category or a tag, and whether somebody gave it or it follows from the tool itself."""

    name: str
    origin: Literal["configured", "derived"]


class Labels(Struct, frozen=True):
    """What an item can be filtered by."""

    category: Label
    tags: list[Label]


class ToolFound(Struct, frozen=True):
    """One tool that a search found."""

    name: str
    server: str
    description: str
    score: float
    why: str
    tokens: int
    category: Label
    tags: list[Label]
    input_schema: Raw
    """JSON, as the server gave it."""


class SearchFacts(Struct, frozen=True):
    """How a search went."""

    result_count: int
    used_llm_rerank: bool
    """Whether the order is another model's."""
    rerank: str | None
    """Which one's, or why it is not; null where that was not wanted."""
    filters_applied: dict[str, bool | float | str | list[str]]
    latency_ms: float
    request_id: str
    note: str | None
    """What a person should know about how this was found, or why nothing was."""


class SearchAnswer(Struct, frozen=True):
    """Tools for a query, best first; none when nothing fits."""

    query: str
    results: list[ToolFound]
    metadata: SearchFacts


class ReindexAnswer(Struct, frozen=True):
    """How far indexing is; it goes on in the background."""

    tools: int
    documents: int
    indexed: int
    total: int
    """Tools and documents that can be found."""
    complete: bool
