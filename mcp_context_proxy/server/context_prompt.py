"""The proxy's own prompt: a query in, its rules and references out, as messages for the conversation."""

from __future__ import annotations

from typing import Any

import msgspec

from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.handles import Handles
from mcp_context_proxy.context.query import QUERY_CHARACTERS, handle_of
from mcp_context_proxy.server import context_text
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import INVALID_PARAMS, Members, RequestError

NAME = "with_context"

DEFINITION: dict[str, Any] = {
    "name": NAME,
    "title": "With context",
    "description": "The rules and references that apply to a query, and the tools that fit it.",
    "arguments": [{"name": "query", "description": "What you want to do", "required": True}],
}


class ContextPrompt:
    """Answers ``prompts/get`` for it."""

    def __init__(self, contexts: ContextEngine, handles: Handles) -> None:
        self._contexts, self._handles = contexts, handles

    async def get(self, params: Members, caller: Caller) -> bytes:
        """The query's rules and references, one message each, then its tools, then the query itself.

        Raises:
            RequestError: there is no query, or the context handle is unknown.
        """
        query = _query(params)
        session = handle_of(params, self._handles, caller.principal) or caller.session
        selected = await self._contexts.select(query, session, owner=caller.principal)
        context, snapshot = selected.context, selected.snapshot
        texts = [context_text.document_text(one) for one in context_text.documents_of(context, snapshot)]
        tools = context_text.tools_text(context_text.tools_of(context, snapshot))
        messages = [_message(text) for text in (*texts, *([tools] if tools else []), query)]
        return envelope.encode({"description": f"Context for: {query}", "messages": messages})


def _message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": {"type": "text", "text": text}}


def _query(params: Members) -> str:
    try:
        arguments = envelope.members(params["arguments"])
    except (KeyError, msgspec.DecodeError):
        arguments = {}
    query = envelope.text(arguments.get("query"))
    if query is None or not query.strip():
        raise RequestError(INVALID_PARAMS, f"prompt {NAME!r} needs a query: what you want to do")
    return query[:QUERY_CHARACTERS]
