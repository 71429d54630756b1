"""How search results read: short for a model, complete enough that the next step can be the call.

A tool is shown as a signature. That says the same as its JSON schema in a fraction of the tokens; where a
schema has more to say, the structured form of the result carries it whole.

The answer of a search: text for a model, the same as data with schemas, and notes on what was left out.

A request context as text: rules and references whole, by priority; tools as signatures, ready to call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mcp_context_proxy.context.records import RequestContext
from mcp_context_proxy.context.search import Found
from mcp_context_proxy.context.selection import Selected
from mcp_context_proxy.context.session import item_by
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.items import Document, Kind, Snapshot, Tool
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.text import clean
from mcp_context_proxy.retrieval.results import Result

DEPTH = 3
"""Levels of nested objects that a signature spells out; deeper ones read ``object``."""

ENUM_VALUES = 12
"""Values of an enumeration that a signature spells out."""

HOW_TO_CALL = "Call a tool by its name, or through call_tool with its name and arguments."

DESCRIPTION_CHARACTERS = 600
"""Of a tool's description in text; the rest is in its definition."""

PARAMETER_CHARACTERS = 140
"""Of a parameter's description in text."""

PARAMETERS = 24
"""Parameters described in text; the signature names them all."""

EXCERPT_CHARACTERS = 500
"""Of a rule or reference; the whole is read as a resource."""


def tool_signature(name: str, schema: Any) -> str:
    """A call signature, such as ``create_issue(title: string, labels?: string[])``."""
    return f"{name}({', '.join(_fields(schema, DEPTH))})"


def _fields(schema: Any, depth: int) -> Iterator[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return
    required = schema.get("required")
    needed = (
        set(required) if isinstance(required, list) and all(isinstance(n, str) for n in required) else set()
    )
    # Those that must be given come first: they are what a caller needs to know.
    for name, prop in sorted(properties.items(), key=lambda pair: pair[0] not in needed):
        mark = "" if name in needed else "?"
        default = f" = {_literal(prop['default'])}" if isinstance(prop, dict) and "default" in prop else ""
        yield f"{name}{mark}: {_type(prop, depth)}{default}"


def _type(schema: Any, depth: int) -> str:
    if not isinstance(schema, dict):
        return "any"
    if isinstance(values := schema.get("enum"), list):
        shown = " | ".join(_literal(value) for value in values[:ENUM_VALUES])
        return shown + (" | ..." if len(values) > ENUM_VALUES else "")
    if "const" in schema:
        return _literal(schema["const"])
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list) and depth > 0:
            return " | ".join(dict.fromkeys(_type(option, depth - 1) for option in options)) or "any"
    if isinstance(reference := schema.get("$ref"), str):
        return reference.rsplit("/", 1)[-1] or "object"
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": one}, depth) for one in kind) or "any"
    if kind == "array":
        inner = _type(schema.get("items"), depth - 1) if depth > 0 else "any"
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if kind == "object" and depth > 0 and (fields := list(_fields(schema, depth - 1))):
        return "{" + ", ".join(fields) + "}"
    return kind if isinstance(kind, str) else "any"


def _literal(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def parameter_lines(schema: Any) -> Iterator[str]:
    """One line for each described parameter."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return
    for name, prop in list(properties.items())[:PARAMETERS]:
        description = prop.get("description") if isinstance(prop, dict) else None
        if isinstance(description, str) and description.strip():
            yield f"{name}: {_cut(_one_line(description), PARAMETER_CHARACTERS)}"


def schema_of(tool: Tool) -> Any:
    """A tool's input schema, decoded."""
    schema = envelope.members(tool.definition).get("inputSchema")
    try:
        return {} if schema is None else msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError):
        return {}


def tool_text(result: Result, tool: Tool, with_schema: bool) -> str:
    """A found tool for a model to read."""
    schema = schema_of(tool) if with_schema else None
    lines = [tool_signature(tool.exposed_name, schema) if with_schema else tool.exposed_name]
    if tool.description:
        lines.append(f"  {_cut(_one_line(tool.description), DESCRIPTION_CHARACTERS)}")
    lines += [f"  - {line}" for line in parameter_lines(schema)]
    lines.append(f"  [{tool.server}; {_why(result)}]")
    return "\n".join(lines)


def document_text(result: Result, document: Document) -> str:
    """A found rule or reference for a model to read."""
    excerpt = _cut(_one_line(result.chunk), EXCERPT_CHARACTERS)
    return f"{document.uri}\n  {excerpt}\n  [{document.kind}; {_why(result)}]"


def _why(result: Result) -> str:
    return f"score {result.score:.2f}: {result.why}"


def answer_text(query: str, answer: Found, notes: Sequence[str], with_schema: bool) -> str:
    """The whole answer to a search for a model to read."""
    asked, known = json.dumps(query, ensure_ascii=False), answer.known
    parts = [f"Note: {note}" for note in notes]
    if answer.results:
        parts.append(f"{len(answer.results)} best matches of {known} for {asked}:")
        parts += _texts(answer.results, with_schema)
        if answer.near_misses:
            parts.append(f"No tool fits well. The nearest: {', '.join(map(_named, answer.near_misses))}.")
        parts.append(HOW_TO_CALL)
    elif answer.near_misses:
        parts.append(f"Nothing fits {asked} well. The nearest of {known}, in case one is meant:")
        parts += _texts(answer.near_misses, with_schema)
        parts.append(f"If one of them could do it, call it all the same. {HOW_TO_CALL}")
    else:
        parts.append(f"Nothing was found for {asked} among {known} tools.")
    return "\n\n".join(parts)


def _texts(results: Iterable[Result], with_schema: bool) -> list[str]:
    return [
        tool_text(result, result.item, with_schema)
        if isinstance(result.item, Tool)
        else document_text(result, result.item)
        for result in results
    ]


def _named(result: Result) -> str:
    item = result.item
    return f"{item.exposed_name} [{item.server}]" if isinstance(item, Tool) else item.uri


def structured(result: Result, with_schema: bool) -> Mapping[str, Any]:
    """A found item as data."""
    item = result.item
    common = {"score": round(result.score, 4), "why": result.why}
    if result.learned > 0:
        common["learned"] = round(result.learned, 4)
    if isinstance(item, Document):
        return {
            "type": str(item.kind),
            "name": item.name,
            "uri": item.uri,
            "description": item.description,
            "excerpt": result.chunk,
            **common,
        }
    schema = {"inputSchema": envelope.members(item.definition)["inputSchema"]} if with_schema else {}
    return {
        "type": "tool",
        "name": item.exposed_name,
        "server": item.server,
        "description": item.description,
        **schema,
        **common,
    }


def shortened(text: str, length: int) -> str:
    """Text of a server in one line of at most ``length`` characters."""
    return _cut(_one_line(text), length)


def _one_line(text: str) -> str:
    return " ".join(clean(text).split())


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3].rstrip() + "..."


def search_answer(
    selected: Selected, fleet: Fleet, with_schema: bool, context_id: str | None = None
) -> bytes:
    """The result of the call that searched; `context_id` names the context that further calls may use."""
    query, found = selected.context.query, selected.found
    tools = found.tools
    data: dict[str, Any] = {
        "query": query,
        "fits": bool(found.results),
        "results": [structured(result, with_schema) for result in found.results],
        "method": tools.method,
        "known": found.known,
        "request_id": selected.context.id,
    }
    if context_id is not None:
        data["context_id"] = context_id
    if found.near_misses or not found.results:
        data["near_misses"] = [structured(result, with_schema) for result in found.near_misses]
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
    text = answer_text(query, found, notes, with_schema)
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


SUMMARY_CHARACTERS = 200
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


def document_message(document: Document) -> str:
    """A rule or reference as a message of a conversation."""
    return f"{LABELS[document.kind]}: {document.name}\n\n{document.text.strip()}"


def tool_line(tool: Tool) -> str:
    """A tool as one line: how it is called and what it is for."""
    signature = tool_signature(tool.exposed_name, schema_of(tool))
    description = shortened(tool.description, SUMMARY_CHARACTERS)
    return f"- {signature}: {description}" if description else f"- {signature}"


def tools_text(tools: Iterable[Tool]) -> str:
    """Tools as a list; empty without any."""
    lines = [tool_line(tool) for tool in tools]
    return "\n".join(["Tools that fit; call one by its name, or through call_tool:", *lines]) if lines else ""


def as_text(context: RequestContext, snapshot: Snapshot) -> str:
    """All of it, fit to be put into a conversation."""
    return "\n\n".join(_parts(context, snapshot))


def _parts(context: RequestContext, snapshot: Snapshot) -> Iterator[str]:
    yield from map(document_message, documents_of(context, snapshot))
    if tools := tools_text(tools_of(context, snapshot)):
        yield tools
    if context.dropped:
        named = ", ".join(f"{item.name} ({item.tokens:,} tokens)" for item in context.dropped)
        yield f"Left out, because they do not fit into {context.options.max_tokens:,} tokens: {named}"
