"""REST operations that search for tools, and that index the catalog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.config.settings import RerankMode
from mcp_context_proxy.context.background_indexing import Indexed
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.options import DomainOverrides, Overrides
from mcp_context_proxy.context.search import TOOL_ONLY, Scope
from mcp_context_proxy.context.search_filters import SearchFilters
from mcp_context_proxy.context.selection import SearchAnswer
from mcp_context_proxy.context.session import QUERY_CHARACTERS
from mcp_context_proxy.errors import UnknownFilterError
from mcp_context_proxy.items import Kind, Tool, ToolClass
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.retrieval.item_metadata import described
from mcp_context_proxy.server.after_call import InteractionLog
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.web.api import (
    Api,
    BadRequestError,
    Count,
    Given,
    Operation,
    Words,
    answer_form,
)


class SearchWanted(SearchFilters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a search for tools."""

    query: Words
    top_k: Count | None = None
    """Number of tools; by default as configured."""
    use_llm: bool | None = None
    """Let another model put the best of them in order; by default as configured."""


class Label(Struct, frozen=True):
    """A category or a tag, and whether somebody gave it or it follows from the tool itself."""

    name: str
    origin: Literal["configured", "derived"]


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
    danger: ToolClass
    """Harm that a call may do."""
    danger_reason: str
    input_schema: Raw
    """JSON, as the server gave it."""


class SearchFacts(Struct, frozen=True):
    """Facts about a search: time, method, number of items searched."""

    result_count: int
    used_llm_rerank: bool
    """True if another model decided the order."""
    rerank: str | None
    """Name of that model, or why there was none; null if reranking is off."""
    filters_applied: dict[str, bool | float | str | list[str]]
    latency_ms: float
    request_id: str
    note: str | None
    """Note for a person about how this was found, or why nothing was."""
    read_as: str | None = None
    """The query with its words corrected and written out; null where nothing was changed."""


SearchResponse: Final = answer_form(
    "SearchAnswer",
    "Tools for a query, best first; none when nothing fits.",
    query=str,
    results=list[ToolFound],
    metadata=SearchFacts,
)


class ReindexWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of indexing again."""

    rebuild: bool = False
    """True: everything; false: only new items."""


ReindexResponse: Final = answer_form(
    "ReindexAnswer", "How far indexing is; it goes on in the background.", Indexed
)

_RERANK: Final[Mapping[bool | None, RerankMode | None]] = {None: None, True: "always", False: "never"}


class SearchApi(Api):
    """Search and indexing."""

    def __init__(
        self,
        contexts: ContextEngine,
        reindex: Callable[[bool], Awaitable[Indexed]],
        log: InteractionLog | None = None,
    ) -> None:
        """Connect the parts; ``reindex`` takes whether everything is indexed anew."""
        self._contexts, self._reindexed, self._log = contexts, reindex, log

    @Operation(
        "GET",
        "/tools/search",
        "Tools for a query, best first.",
        query=SearchWanted,
        answer=SearchResponse,
        problems=(HTTPStatus.NOT_FOUND,),
        names_agent=True,
    )
    async def _search_tools(self, given: Given) -> Struct:
        wanted: SearchWanted = given.query
        try:
            answer = await self._contexts.select(
                wanted.query[:QUERY_CHARACTERS],
                overrides=Overrides(tools=DomainOverrides(top_n=wanted.top_k)),
                origin="search",
                scope=Scope(TOOL_ONLY, msgspec.convert(wanted, SearchFilters, from_attributes=True)),
                rerank=_RERANK[wanted.use_llm],
                owner=given.principal.name,
            )
        except UnknownFilterError as error:
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"{str(error)[0].upper()}{str(error)[1:]}.") from None
        if self._log is not None:
            self._log.searched(answer.context.query, given.agent)
        return await in_thread(_search_response, wanted.query, answer)

    @Operation(
        "POST",
        "/reindex",
        "Read the documents again and index what is new, or everything.",
        query=ReindexWanted,
        answer=ReindexResponse,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
        admin=True,
    )
    async def _reindex(self, given: Given) -> Indexed:
        return await self._reindexed(given.query.rebuild)


def _search_response(query: str, answer: SearchAnswer) -> Struct:
    context, found = answer.context, answer.found
    tokens = {item.name: item.tokens for item in context.of(Kind.TOOL)}
    results = []
    for result in found.tools.results:
        tool = result.item
        assert isinstance(tool, Tool)
        labels: dict[str, Any] = described(tool)
        results.append(
            ToolFound(
                name=tool.exposed_name,
                server=tool.server,
                description=tool.description,
                score=round(result.score, 4),
                why=result.why,
                tokens=tokens.get(tool.exposed_name, 0),
                category=labels["category"],
                tags=labels["tags"],
                danger=tool.tool_class,
                danger_reason=tool.class_reason,
                input_schema=envelope.members(tool.definition)["inputSchema"],
            )
        )
    facts = SearchFacts(
        result_count=len(results),
        used_llm_rerank=context.rerank is not None and context.rerank.used,
        rerank=None if context.rerank is None else context.rerank.reason,
        filters_applied=context.filters,
        latency_ms=round(context.seconds * 1000, 3),
        request_id=context.id,
        note=" ".join(note for note in (found.note, found.filter_note) if note) or None,
        read_as=found.read_as,
    )
    return SearchResponse(query=query, results=results, metadata=facts)
