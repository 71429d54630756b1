"""The part of the REST API that searches for tools, and has everything indexed.

What the API takes and answers about searches for tools, and about indexing: the forms.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.config.settings import RerankMode
from mcp_context_proxy.context.background_indexing import Indexed
from mcp_context_proxy.context.constraints import MIN_CALLS, Constraints
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.options import DomainOverrides, Overrides
from mcp_context_proxy.context.search import Scope
from mcp_context_proxy.context.selection import Selected
from mcp_context_proxy.context.session import QUERY_CHARACTERS
from mcp_context_proxy.errors import StoreError, UnknownFilterError
from mcp_context_proxy.items import Kind, Tool
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.retrieval.item_metadata import described
from mcp_context_proxy.retrieval.results import Result
from mcp_context_proxy.server.after_call import InteractionLog
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.web.api import REFUSED, BadRequestError, Count, Given, Name, Operation, Score, Words

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


TOOLS_ONLY = frozenset({Kind.TOOL})

_RERANK: Mapping[bool | None, RerankMode | None] = {None: None, True: "always", False: "never"}
"""What ``use_llm`` means."""


class SearchApi:
    """What the operations do."""

    def __init__(
        self,
        contexts: ContextEngine,
        reindex: Callable[[bool], Awaitable[Indexed]],
        log: InteractionLog | None = None,
    ) -> None:
        """Prepare to answer.

        Args:
            contexts: The one door to contexts.
            reindex: Indexes what is new, or everything.
            log: Notes what is searched for; None where it is not remembered.
        """
        self._contexts, self._reindexed, self._log = contexts, reindex, log

    def operations(self) -> tuple[Operation, ...]:
        """Everything that can be asked."""
        return (
            Operation(
                method="GET",
                path="/tools/search",
                name="searchTools",
                summary="Tools for a query, best first.",
                handler=self._search_tools,
                query=SearchWanted,
                answer=SearchAnswer,
                names_agent=True,
                problems=(*REFUSED, HTTPStatus.NOT_FOUND),
            ),
            Operation(
                method="POST",
                path="/reindex",
                name="reindex",
                summary="Read the documents again and index what is new, or everything.",
                handler=self._reindex,
                query=ReindexWanted,
                answer=ReindexAnswer,
                problems=(*REFUSED, HTTPStatus.SERVICE_UNAVAILABLE),
            ),
        )

    async def _search_tools(self, given: Given) -> SearchAnswer:
        wanted: SearchWanted = given.query
        try:
            selected = await self._contexts.select(
                wanted.query[:QUERY_CHARACTERS],
                overrides=Overrides(tools=DomainOverrides(top_n=wanted.top_k)),
                origin="search",
                scope=Scope(TOOLS_ONLY, wanted.constraints()),
                rerank=_RERANK[wanted.use_llm],
            )
        except UnknownFilterError as error:
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"{str(error)[0].upper()}{str(error)[1:]}.") from None
        if self._log is not None:
            self._log.searched(selected.context.query, given.agent)
        return await in_thread(_search_answer, selected, wanted)

    async def _reindex(self, given: Given) -> ReindexAnswer:
        try:
            done = await self._reindexed(given.query.rebuild)
        except StoreError as error:
            detail = f"The vectors cannot be forgotten: {error}."
            raise BadRequestError(HTTPStatus.SERVICE_UNAVAILABLE, detail) from None
        return ReindexAnswer(done.tools, done.documents, done.indexed, done.total, done.complete)


def _search_answer(selected: Selected, wanted: SearchWanted) -> SearchAnswer:
    context, found = selected.context, selected.found
    tokens = {item.name: item.tokens for item in context.of(Kind.TOOL)}
    results = [
        _tool_found(result, result.item, tokens.get(result.item.exposed_name, 0))
        for result in found.tools.results
        if isinstance(result.item, Tool)
    ]
    facts = SearchFacts(
        result_count=len(results),
        used_llm_rerank=context.rerank is not None and context.rerank.used,
        rerank=None if context.rerank is None else context.rerank.reason,
        filters_applied=wanted.constraints().applied(),
        latency_ms=round(context.seconds * 1000, 3),
        request_id=context.id,
        note=" ".join(note for note in (found.note, found.filter_note) if note) or None,
    )
    return SearchAnswer(wanted.query, results, facts)


def _tool_found(result: Result, tool: Tool, tokens: int) -> ToolFound:
    labels = msgspec.convert(described(tool), Labels)
    return ToolFound(
        name=tool.exposed_name,
        server=tool.server,
        description=tool.description,
        score=round(result.score, 4),
        why=result.why,
        tokens=tokens,
        category=labels.category,
        tags=labels.tags,
        input_schema=envelope.members(tool_definition(tool))["inputSchema"],
    )
