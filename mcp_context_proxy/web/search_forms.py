"""What the API takes and answers about searches for tools, and about indexing: the forms."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from mcp_context_proxy.context.constraints import MIN_CALLS, Constraints
from mcp_context_proxy.web.bounds import Count, Name, Score, Words

LATENCY_MOST = 1e9
"""Milliseconds: eleven days."""

Tags = Annotated[str, Meta(max_length=1000)]


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


class ReindexWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """What is indexed again."""

    rebuild: bool = False
    """True: everything; false: what is not indexed yet."""


class ReindexAnswer(Struct, frozen=True):
    """How far indexing is; it goes on in the background."""

    tools: int
    documents: int
    indexed: int
    total: int
    """Tools and documents that can be found."""
    complete: bool
