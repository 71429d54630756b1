"""The part of the REST API that builds request contexts, and shows those of earlier requests."""

from __future__ import annotations

from http import HTTPStatus

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.query import QUERY_CHARACTERS
from mcp_context_proxy.context.request import RequestContext
from mcp_context_proxy.server.interaction_log import InteractionLog
from mcp_context_proxy.web import context_forms as forms
from mcp_context_proxy.web.describing import Describer
from mcp_context_proxy.web.operation import REFUSED, WITH_BODY, Given, Operation, RefusedError
from mcp_context_proxy.web.sessions_api import session_of

_UNKNOWN = (*REFUSED, HTTPStatus.NOT_FOUND)
_WITH_BODY = (*_UNKNOWN, *WITH_BODY)


class ContextsApi:
    """What the operations do."""

    def __init__(self, contexts: ContextEngine, catalog: Catalog, log: InteractionLog | None = None) -> None:
        """Prepare to answer.

        Args:
            contexts: The one door to contexts.
            catalog: Has descriptions.
            log: Notes what is searched for; None where it is not remembered.
        """
        self._contexts, self._catalog, self._log = contexts, catalog, log

    def operations(self) -> tuple[Operation, ...]:
        """Everything that can be asked."""
        return (
            Operation(
                method="GET",
                path="/requests",
                name="listRequests",
                summary="The latest request contexts, newest first.",
                handler=self._list_requests,
                query=forms.RequestsWanted,
                answer=forms.RequestsAnswer,
                problems=REFUSED,
            ),
            Operation(
                method="GET",
                path="/requests/{request}",
                name="getRequest",
                summary="What was chosen for one request, how and why.",
                handler=self._request,
                query=forms.Describe,
                answer=forms.RequestAnswer,
                problems=_UNKNOWN,
            ),
            Operation(
                method="POST",
                path="/context",
                name="buildContext",
                summary="The request context for a query.",
                handler=self._build_context,
                body=forms.ContextWanted,
                answer=forms.RequestAnswer,
                names_agent=True,
                problems=_WITH_BODY,
            ),
        )

    async def _list_requests(self, given: Given) -> forms.RequestsAnswer:
        contexts = await self._contexts.requests(given.query.session, given.query.limit)
        describer = self._describer(False)
        behind = await self._contexts.tokens_behind()
        return forms.RequestsAnswer([_request_answer(one, describer) for one in contexts], behind)

    async def _request(self, given: Given) -> forms.RequestAnswer:
        context = await self._contexts.request(given.path["request"])
        if context is None:
            detail = f"There is no request {given.path['request']!r}, or not any more."
            raise RefusedError(HTTPStatus.NOT_FOUND, detail)
        return _request_answer(context, self._describer(given.query.describe))

    async def _build_context(self, given: Given) -> forms.RequestAnswer:
        wanted: forms.ContextWanted = given.body
        context = await self._contexts.build(
            wanted.query[:QUERY_CHARACTERS],
            None if wanted.session is None else session_of(self._contexts, wanted.session),
            wanted.options.overrides(),
            remember=wanted.record,
        )
        if wanted.record and self._log is not None:
            self._log.searched(context.query, given.agent)
        return _request_answer(context, self._describer(wanted.describe))

    def _describer(self, describe: bool) -> Describer:
        return Describer(self._catalog.snapshot if describe else None)


def _request_answer(context: RequestContext, describer: Describer) -> forms.RequestAnswer:
    return forms.RequestAnswer(
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
