"""The part of the REST API that searches for tools, and has everything indexed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import msgspec

from mcp_context_proxy.catalog.exposed import tool_definition
from mcp_context_proxy.config.settings import RerankMode
from mcp_context_proxy.context.background import Indexed
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.options import DomainOverrides, Overrides
from mcp_context_proxy.context.query import QUERY_CHARACTERS
from mcp_context_proxy.context.search import Scope
from mcp_context_proxy.context.selection import Selected
from mcp_context_proxy.errors import StoreError, UnknownFilterError
from mcp_context_proxy.items import Kind, Tool
from mcp_context_proxy.retrieval.ranking import Result
from mcp_context_proxy.retrieval.traits import described
from mcp_context_proxy.server.interaction_log import InteractionLog
from mcp_context_proxy.threads import in_thread
from mcp_context_proxy.web import search_forms as forms
from mcp_context_proxy.web.operation import REFUSED, Given, Operation, RefusedError
from mcp_context_proxy.wire import envelope

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
                query=forms.SearchWanted,
                answer=forms.SearchAnswer,
                names_agent=True,
                problems=(*REFUSED, HTTPStatus.NOT_FOUND),
            ),
            Operation(
                method="POST",
                path="/reindex",
                name="reindex",
                summary="Read the documents again and index what is new, or everything.",
                handler=self._reindex,
                query=forms.ReindexWanted,
                answer=forms.ReindexAnswer,
                problems=(*REFUSED, HTTPStatus.SERVICE_UNAVAILABLE),
            ),
        )

    async def _search_tools(self, given: Given) -> forms.SearchAnswer:
        wanted: forms.SearchWanted = given.query
        try:
            selected = await self._contexts.select(
                wanted.query[:QUERY_CHARACTERS],
                overrides=Overrides(tools=DomainOverrides(top_n=wanted.top_k)),
                origin="search",
                scope=Scope(TOOLS_ONLY, wanted.constraints()),
                rerank=_RERANK[wanted.use_llm],
            )
        except UnknownFilterError as error:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"{str(error)[0].upper()}{str(error)[1:]}.") from None
        if self._log is not None:
            self._log.searched(selected.context.query, given.agent)
        return await in_thread(_search_answer, selected, wanted)

    async def _reindex(self, given: Given) -> forms.ReindexAnswer:
        try:
            done = await self._reindexed(given.query.rebuild)
        except StoreError as error:
            detail = f"The vectors cannot be forgotten: {error}."
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, detail) from None
        return forms.ReindexAnswer(done.tools, done.documents, done.indexed, done.total, done.complete)


def _search_answer(selected: Selected, wanted: forms.SearchWanted) -> forms.SearchAnswer:
    context, found = selected.context, selected.found
    tokens = {item.name: item.tokens for item in context.of(Kind.TOOL)}
    results = [
        _tool_found(result, result.item, tokens.get(result.item.exposed_name, 0))
        for result in found.tools.results
        if isinstance(result.item, Tool)
    ]
    facts = forms.SearchFacts(
        result_count=len(results),
        used_llm_rerank=context.rerank is not None and context.rerank.used,
        rerank=None if context.rerank is None else context.rerank.reason,
        filters_applied=wanted.constraints().applied(),
        latency_ms=round(context.seconds * 1000, 3),
        request_id=context.id,
        note=" ".join(note for note in (found.note, found.filter_note) if note) or None,
    )
    return forms.SearchAnswer(wanted.query, results, facts)


def _tool_found(result: Result, tool: Tool, tokens: int) -> forms.ToolFound:
    labels = msgspec.convert(described(tool), forms.Labels)
    return forms.ToolFound(
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
