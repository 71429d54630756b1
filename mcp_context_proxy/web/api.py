"""The REST API: request contexts and searches, for host hooks, agents, scripts and the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import msgspec

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.exposed import tool_definition
from mcp_context_proxy.config.settings import RerankMode
from mcp_context_proxy.context.background import Indexed
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.options import DomainOverrides, Overrides
from mcp_context_proxy.context.query import QUERY_CHARACTERS
from mcp_context_proxy.context.request import RequestContext
from mcp_context_proxy.context.search import Scope
from mcp_context_proxy.context.selection import Selected
from mcp_context_proxy.errors import StoreError, UnknownFilterError
from mcp_context_proxy.items import Kind, Tool
from mcp_context_proxy.retrieval.ranking import Result
from mcp_context_proxy.retrieval.traits import described
from mcp_context_proxy.server.interaction_log import InteractionLog
from mcp_context_proxy.threads import in_thread
from mcp_context_proxy.web import messages
from mcp_context_proxy.web.describing import Describer
from mcp_context_proxy.web.operation import REFUSED, WITH_BODY, Given, Operation, RefusedError
from mcp_context_proxy.web.sessions_api import session_of
from mcp_context_proxy.wire import envelope

TOOLS_ONLY = frozenset({Kind.TOOL})

_UNKNOWN = (*REFUSED, HTTPStatus.NOT_FOUND)
_WITH_BODY = (*_UNKNOWN, *WITH_BODY)

_RERANK: Mapping[bool | None, RerankMode | None] = {None: None, True: "always", False: "never"}
"""What ``use_llm`` means."""


class Api:
    """What the operations do."""

    def __init__(
        self,
        contexts: ContextEngine,
        catalog: Catalog,
        reindex: Callable[[bool], Awaitable[Indexed]],
        log: InteractionLog | None = None,
    ) -> None:
        """Prepare to answer.

        Args:
            contexts: The one door to contexts.
            catalog: Has descriptions.
            reindex: Indexes what is new, or everything.
            log: Notes what is searched for; None where it is not remembered.
        """
        self._contexts, self._catalog = contexts, catalog
        self._reindexed, self._log = reindex, log

    def operations(self) -> tuple[Operation, ...]:
        """Everything that can be asked."""
        return (
            Operation(
                method="GET",
                path="/requests",
                name="listRequests",
                summary="The latest request contexts, newest first.",
                handler=self._list_requests,
                query=messages.RequestsWanted,
                answer=messages.RequestsAnswer,
                problems=REFUSED,
            ),
            Operation(
                method="GET",
                path="/requests/{request}",
                name="getRequest",
                summary="What was chosen for one request, how and why.",
                handler=self._request,
                query=messages.Describe,
                answer=messages.RequestAnswer,
                problems=_UNKNOWN,
            ),
            Operation(
                method="POST",
                path="/context",
                name="buildContext",
                summary="The request context for a query.",
                handler=self._build_context,
                body=messages.ContextWanted,
                answer=messages.RequestAnswer,
                names_agent=True,
                problems=_WITH_BODY,
            ),
            Operation(
                method="GET",
                path="/tools/search",
                name="searchTools",
                summary="Tools for a query, best first.",
                handler=self._search_tools,
                query=messages.SearchWanted,
                answer=messages.SearchAnswer,
                names_agent=True,
                problems=_UNKNOWN,
            ),
            Operation(
                method="POST",
                path="/reindex",
                name="reindex",
                summary="Read the documents again and index what is new, or everything.",
                handler=self._reindex,
                query=messages.ReindexWanted,
                answer=messages.ReindexAnswer,
                problems=(*REFUSED, HTTPStatus.SERVICE_UNAVAILABLE),
            ),
        )

    async def _list_requests(self, given: Given) -> messages.RequestsAnswer:
        contexts = await self._contexts.requests(given.query.session, given.query.limit)
        describer = self._describer(False)
        behind = await self._contexts.tokens_behind()
        return messages.RequestsAnswer([_request_answer(one, describer) for one in contexts], behind)

    async def _request(self, given: Given) -> messages.RequestAnswer:
        context = await self._contexts.request(given.path["request"])
        if context is None:
            detail = f"There is no request {given.path['request']!r}, or not any more."
            raise RefusedError(HTTPStatus.NOT_FOUND, detail)
        return _request_answer(context, self._describer(given.query.describe))

    async def _build_context(self, given: Given) -> messages.RequestAnswer:
        wanted: messages.ContextWanted = given.body
        context = await self._contexts.build(
            wanted.query[:QUERY_CHARACTERS],
            None if wanted.session is None else session_of(self._contexts, wanted.session),
            wanted.options.overrides(),
            remember=wanted.record,
        )
        if wanted.record:
            self._note(context.query, given.agent)
        return _request_answer(context, self._describer(wanted.describe))

    async def _search_tools(self, given: Given) -> messages.SearchAnswer:
        wanted: messages.SearchWanted = given.query
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
        self._note(selected.context.query, given.agent)
        return await in_thread(_search_answer, selected, wanted)

    async def _reindex(self, given: Given) -> messages.ReindexAnswer:
        try:
            done = await self._reindexed(given.query.rebuild)
        except StoreError as error:
            detail = f"The vectors cannot be forgotten: {error}."
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, detail) from None
        return messages.ReindexAnswer(done.tools, done.documents, done.indexed, done.total, done.complete)

    def _note(self, query: str, agent: str | None) -> None:
        if self._log is not None:
            self._log.searched(query, agent)

    def _describer(self, describe: bool) -> Describer:
        return Describer(self._catalog.snapshot if describe else None)


def _request_answer(context: RequestContext, describer: Describer) -> messages.RequestAnswer:
    return messages.RequestAnswer(
        id=context.id,
        time=context.time,
        query=context.query,
        origin=context.origin,
        session=context.session,
        items=describer.items(context.items),
        options=context.options,
        dropped=describer.items(context.dropped),
        near_misses=describer.items(context.near_misses),
        failure=context.failure,
        note=context.note,
        confidence=context.confidence,
        rerank=context.rerank,
        filters=context.filters,
        seconds=context.seconds,
        tokens=context.tokens,
    )


def _search_answer(selected: Selected, wanted: messages.SearchWanted) -> messages.SearchAnswer:
    context, found = selected.context, selected.found
    tokens = {item.name: item.tokens for item in context.of(Kind.TOOL)}
    results = [
        _tool_found(result, result.item, tokens.get(result.item.exposed_name, 0))
        for result in found.tools.results
        if isinstance(result.item, Tool)
    ]
    facts = messages.SearchFacts(
        result_count=len(results),
        used_llm_rerank=context.rerank is not None and context.rerank.used,
        rerank=None if context.rerank is None else context.rerank.reason,
        filters_applied=wanted.constraints().applied(),
        latency_ms=round(context.seconds * 1000, 3),
        request_id=context.id,
        note=" ".join(note for note in (found.note, found.filter_note) if note) or None,
    )
    return messages.SearchAnswer(wanted.query, results, facts)


def _tool_found(result: Result, tool: Tool, tokens: int) -> messages.ToolFound:
    labels = msgspec.convert(described(tool), messages.Labels)
    return messages.ToolFound(
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
