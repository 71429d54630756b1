"""A request context as statistics count it: a search, what it found, and which of that was used."""

from __future__ import annotations

import hashlib

from mcp_context_proxy.context.request import ContextItem, RequestContext
from mcp_context_proxy.items import Kind, Tool
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.store.usage import SearchRow

QUERY_CHARACTERS = 1_000
"""Kept of a query."""


class CountedSearches:
    """Tells the statistics of request contexts. Does not block."""

    def __init__(self, usage: UsageRecorder, keep_queries: bool) -> None:
        """Prepare to count.

        Args:
            usage: Counts.
            keep_queries: Whether the text of a query may be kept, or its hash only.
        """
        self._usage, self._keep_queries = usage, keep_queries

    def served(self, context: RequestContext) -> None:
        """A request was served."""
        self._usage.searched(self._row(context), context.tokens)

    def used(self, context: RequestContext, tool: Tool) -> None:
        """A tool that a request had selected was called for it."""
        names = [item.name for item in _found(context)]
        rank = names.index(tool.exposed_name) + 1 if tool.exposed_name in names else None
        self._usage.used(self._row(context, tool.exposed_name, rank))

    def _row(self, context: RequestContext, chosen: str | None = None, rank: int | None = None) -> SearchRow:
        found = _found(context)
        return SearchRow(
            id=context.id,
            time=context.time,
            key=hashlib.sha256(context.query.encode()).digest(),
            query=context.query[:QUERY_CHARACTERS] if self._keep_queries else None,
            origin=context.origin,
            results=len(found),
            top=found[0].name if found else None,
            chosen=chosen,
            rank=rank,
            ms=context.seconds * 1000,
            reranked=_is_reranked(context),
        )


def _found(context: RequestContext) -> list[ContextItem]:
    """The tools that the query selected, best first."""
    scored = [item for item in context.of(Kind.TOOL) if item.score is not None]
    if _is_reranked(context):
        return scored
    return sorted(scored, key=lambda item: -(item.score or 0.0))


def _is_reranked(context: RequestContext) -> bool:
    return context.rerank is not None and context.rerank.used
