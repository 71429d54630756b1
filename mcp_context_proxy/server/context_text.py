"""A request context as text: rules and references whole, by priority; tools as signatures, ready to call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mcp_context_proxy.context.request import RequestContext
from mcp_context_proxy.context.session_items import item_by
from mcp_context_proxy.items import Document, Kind, Snapshot, Tool
from mcp_context_proxy.server import rendering

DESCRIPTION_CHARACTERS = 200
"""Of a tool's description: what it is for; the rest is in its definition."""

LABELS = {Kind.RULE: "Rule", Kind.REFERENCE: "Reference"}


def documents_of(context: RequestContext, snapshot: Snapshot) -> list[Document]:
    """Its rules and references as they are now: the highest priority first, rules before references."""
    keys = ((item.type, item.name) for item in context.of(Kind.RULE, Kind.REFERENCE))
    found = [item for key in keys if isinstance(item := item_by(snapshot, key), Document)]
    return sorted(found, key=lambda document: (-document.priority, document.kind is not Kind.RULE))


def tools_of(context: RequestContext, snapshot: Snapshot) -> list[Tool]:
    """Its tools as they are now, in its order."""
    names = (item.name for item in context.of(Kind.TOOL))
    return [snapshot.tools[name] for name in names if name in snapshot.tools]


def document_text(document: Document) -> str:
    """A rule or reference as a message of a conversation."""
    return f"{LABELS[document.kind]}: {document.name}\n\n{document.text.strip()}"


def tool_line(tool: Tool) -> str:
    """A tool as one line: how it is called and what it is for."""
    signature = rendering.signature(tool.exposed_name, rendering.schema_of(tool))
    description = rendering.shortened(tool.description, DESCRIPTION_CHARACTERS)
    return f"- {signature}: {description}" if description else f"- {signature}"


def tools_text(tools: Iterable[Tool]) -> str:
    """Tools as a list; empty without any."""
    lines = [tool_line(tool) for tool in tools]
    return "\n".join(["Tools that fit; call one by its name, or through call_tool:", *lines]) if lines else ""


def as_text(context: RequestContext, snapshot: Snapshot) -> str:
    """All of it, fit to be put into a conversation."""
    return "\n\n".join(_parts(context, snapshot))


def _parts(context: RequestContext, snapshot: Snapshot) -> Iterator[str]:
    yield from map(document_text, documents_of(context, snapshot))
    if tools := tools_text(tools_of(context, snapshot)):
        yield tools
    if context.dropped:
        named = ", ".join(f"{item.name} ({item.tokens:,} tokens)" for item in context.dropped)
        yield f"Left out, because they do not fit into {context.options.max_tokens:,} tokens: {named}"
