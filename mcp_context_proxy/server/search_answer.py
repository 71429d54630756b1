"""The answer of a search: text for a model, the same as data with schemas, and notes on what was left out."""

from __future__ import annotations

from typing import Any

from mcp_context_proxy.context.selection import Selected
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.server import rendering
from mcp_context_proxy.wire import envelope


def search_answer(
    selected: Selected, fleet: Fleet, with_schema: bool, context_id: str | None = None
) -> bytes:
    """The result of the call that searched; `context_id` names the context that further calls may use."""
    query, found = selected.context.query, selected.found
    tools = found.tools
    data: dict[str, Any] = {
        "query": query,
        "fits": bool(found.results),
        "results": [rendering.structured(result, with_schema) for result in found.results],
        "method": tools.method,
        "known": found.known,
        "request_id": selected.context.id,
    }
    if context_id is not None:
        data["context_id"] = context_id
    if found.near_misses or not found.results:
        data["near_misses"] = [rendering.structured(result, with_schema) for result in found.near_misses]
    if dropped := selected.context.dropped:
        data["dropped"] = [{"name": item.name, "tokens": item.tokens} for item in dropped]
    if (rerank := selected.context.rerank) is not None:
        data["rerank"] = {"used": rerank.used, "reason": rerank.reason}
    if tools.indexed is not None:
        data["indexed"] = dict(zip(("done", "total"), tools.indexed, strict=True))
    notes = [
        note for note in (tools.note, found.filter_note, _too_dear(selected), _unsearched(fleet)) if note
    ]
    if notes:
        data["note"] = " ".join(notes)
    text = rendering.answer_text(query, found, notes, with_schema)
    return envelope.encode({"content": [{"type": "text", "text": text}], "structuredContent": data})


def _unsearched(fleet: Fleet) -> str:
    """Which servers could not be searched, so that the model can try again later."""
    said = []
    if missing := fleet.unlisted:
        named = ", ".join(f"{client.name} ({client.state})" for client in missing)
        said.append(f"Not searched, because not connected: {named}.")
    if stale := [client.name for client in fleet.serving() if client.stale]:
        said.append(f"Searched as last known, because their lists cannot be had: {', '.join(stale)}.")
    return " ".join(said)


def _too_dear(selected: Selected) -> str:
    """What was found but does not fit into the budget, so that the model knows that it exists."""
    context = selected.context
    if not context.dropped:
        return ""
    named = ", ".join(f"{item.name} ({item.tokens:,} tokens)" for item in context.dropped)
    return f"Left out, because they do not fit into {context.options.max_tokens:,} tokens: {named}."
