"""Definitions of the meta tools: their names, their descriptions for models, and their arguments.

Definitions depend on the configuration alone. They are the same for every client and for the life of the
process, so that the prompt cache of a host stays valid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from mcp_context_proxy.context.search_filters import SearchFilters
from mcp_context_proxy.protocol import envelope

SEARCH = "search_available_tools"
CALL = "call_tool"
CALL_READ_ONLY = "call_read_only_tool"
SET_CONTEXT = "set_context"
MANAGE = "manage_context"
RECALL = "recall"
READ_DOCUMENT = "read_document"
CALLS = frozenset({CALL, CALL_READ_ONLY})
"""Tools that call another one. Hosts let a person always allow one of them, so reading has its own."""
NAMES = CALLS | {SEARCH, SET_CONTEXT}
READ_ONLY = frozenset({SEARCH, SET_CONTEXT, RECALL, READ_DOCUMENT})
"""Other tools that say they are read-only."""
RESERVED = NAMES | {MANAGE, RECALL, READ_DOCUMENT}
"""Names that no tool of a server gets, whether the meta tool is switched on or not."""

READ_MARK = "[r]"
"""Marks a found tool that says it is read-only."""

SERVERS_NAMED = 40
"""Servers that a description lists by name."""

KindName = Annotated[Literal["tool", "rule", "reference"], Meta(examples=["tool", "rule", "reference"])]
Action = Annotated[Literal["add", "remove", "list"], Meta(examples=["add", "remove", "list"])]
Number = Annotated[int, Meta(ge=1, le=50)]


class SearchArguments(SearchFilters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Arguments of `search_available_tools`."""

    query: Annotated[str, Meta(min_length=1, description="What you want to do, in plain words")]
    top_n: Annotated[Number | None, Meta(description="How many; by default about 5")] = None
    include_schema: Annotated[bool, Meta(description="True: all about each tool")] = False
    kinds: Annotated[tuple[KindName, ...] | None, Meta(description="By default all")] = None
    context_id: str | None = None


class CallArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `call_tool`."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: Annotated[Raw | UnsetType, Meta(extra_json_schema={"type": "object"})] = UNSET
    goal: Annotated[
        Annotated[str, Meta(max_length=2000)] | None,
        Meta(description="Purpose in a sentence, kept from the tool"),
    ] = None
    context_id: str | None = None


class ContextArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `set_context`."""

    query: Annotated[str, Meta(min_length=1, description="The task at hand")]
    intent: Annotated[str | None, Meta(description="The result you want")] = None
    context_id: str | None = None


class ManageArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `manage_context`."""

    action: Action
    type: KindName | None = None
    name: str | None = None
    server: str | None = None
    context_id: str | None = None


class RecallArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `recall`."""

    query: Annotated[str, Meta(min_length=1, description="What it was about")]
    agent_name: Annotated[str | None, Meta(description="Only of this agent")] = None
    interaction_type: Annotated[str | None, Meta(description="Such as search, call or message")] = None
    top_k: Number = 10
    time_decay_factor: Annotated[
        float, Meta(gt=0, le=1, description="Share of a score that is left after a day: 0.95")
    ] = 0.95


class ReadArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `read_document`."""

    name: Annotated[str, Meta(min_length=1, description="Such as rule://NAME or reference://SKILL/FILE")]
    section: Annotated[str | None, Meta(description="A heading")] = None
    page: Annotated[int, Meta(ge=1)] = 1
    context_id: str | None = None


_LEADING: Final = ("query", "top_n", "server", "include_schema", "kinds")
"""Arguments of a search that stand first, because models use them most."""

_NOT_FOR_MODELS: Final[Mapping[type[msgspec.Struct], Collection[str]]] = {
    SearchArguments: {"min_calls"},
    ReadArguments: {"context_id"},
}
"""Arguments that are not told to models: a model that reads has a context, or needs none."""

_KEYWORDS: Final = ("type", "minimum", "maximum", "items", "enum", "description")


@cache
def input_schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """Derive the input schema of a meta tool from the struct that decodes its arguments.

    Hosts put it into every request, so it leaves out everything that a model does not need: defaults, null,
    the bounds of texts and fractions, and the longer descriptions that search filters have for people.
    """
    schema = msgspec.json.schema(arguments)["$defs"][arguments.__name__]
    properties = {name: _shortened(described) for name, described in schema["properties"].items()}
    if issubclass(arguments, SearchFilters):
        properties = {name: properties[name] for name in dict.fromkeys((*_LEADING, *properties))}
        for field in msgspec.inspect.type_info(SearchFilters).fields:  # type: ignore[attr-defined]
            properties[field.name].pop("description")
            if (description := field.type.extra["model"]) is not None:
                properties[field.name]["description"] = description
    hidden = _NOT_FOR_MODELS.get(arguments, ())
    return {
        "type": "object",
        "properties": {name: told for name, told in properties.items() if name not in hidden},
        "required": schema["required"],
        "additionalProperties": False,
    }


def _shortened(schema: dict[str, Any]) -> dict[str, Any]:
    # Of a type or null, the type comes first.
    schema = {**schema.get("anyOf", [{}])[0], **schema}
    if "enum" in schema:
        schema |= {"type": "string", "enum": schema["examples"]}
    if "items" in schema:
        schema["items"] = _shortened(schema["items"])
    omitted = () if schema["type"] == "integer" else ("minimum", "maximum")
    return {key: schema[key] for key in _KEYWORDS if key in schema and key not in omitted}


@dataclass(frozen=True, slots=True)
class Setup:
    """Facts of the configuration that the descriptions mention."""

    servers: Sequence[str]
    has_documents: bool
    manage: bool = False
    """True to let models change the context of their session by hand."""
    recall: bool = False
    """True to let models search earlier interactions."""


def instructions(setup: Setup, words_only: bool = False) -> str:
    """Return the server instructions for the host's model, which may have to search by words alone."""
    hint = (
        f" The embedding model cannot be used, so {SEARCH} goes by words alone: use words that the names and "
        "descriptions of tools are likely to have."
    )
    return (
        f"One server in front of {_names(setup)}. Not all of their tools may be listed. "
        f"When none of the listed ones fits, describe what you need to {SEARCH}: it returns the matching "
        f"tools with their parameters. Call what it finds by name, or through {CALL_READ_ONLY} if it is "
        f"marked {READ_MARK}, else through {CALL}." + (hint if words_only else "")
    )


def _names(setup: Setup) -> str:
    if not setup.servers:
        return "no servers yet"
    named = ", ".join(setup.servers[:SERVERS_NAMED])
    more = len(setup.servers) - SERVERS_NAMED
    return f"{named} and {more} more" if more > 0 else named


def definitions(setup: Setup) -> list[Raw]:
    """Return the definitions of the meta tools in the order of the list."""
    documents = " Rules and references that apply are found too." if setup.has_documents else ""
    search = {
        "name": SEARCH,
        "title": "Search available tools",
        "description": (
            f"Find tools across all connected servers ({_names(setup)}). Most of their tools may not be "
            "listed: search before you conclude that something cannot be done. Say in plain words what you "
            "want to do, one sentence per need; the best matching tools come back with their parameters, "
            "ready to call." + documents
        ),
        "inputSchema": input_schema(SearchArguments),
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }
    call_schema = input_schema(CallArguments)
    call = {
        "name": CALL,
        "title": "Call a tool",
        "description": (
            f"Call any tool of the connected servers, listed or not, by the name that {SEARCH} gives."
        ),
        "inputSchema": call_schema,
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
    }
    call_read_only = {
        "name": CALL_READ_ONLY,
        "title": "Call a read-only tool",
        "description": f"{CALL} for tools that only read, which {SEARCH} marks {READ_MARK}.",
        "inputSchema": call_schema,
        "annotations": {"readOnlyHint": True, "openWorldHint": True},
    }
    set_context = {
        "name": SET_CONTEXT,
        "title": "Set the context",
        "description": (
            "Say what the conversation is about, so that the listed tools fit it. Returns what was selected, "
            "and a context_id for later calls."
        ),
        "inputSchema": input_schema(ContextArguments),
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }
    manage = {
        "name": MANAGE,
        "title": "Manage the context",
        "description": (
            "Add an item to the context of this conversation, remove one, or list what is in it. What is "
            "added is part of every later request, what is removed of none."
        ),
        "inputSchema": input_schema(ManageArguments),
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    }
    recall = {
        "name": RECALL,
        "title": "Recall interactions",
        "description": (
            "Find what was searched, called or said before, in this conversation or an earlier one. Older "
            "interactions count less."
        ),
        "inputSchema": input_schema(RecallArguments),
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }
    read_document = {
        "name": READ_DOCUMENT,
        "title": "Read a document",
        "description": f"Read a document that {SEARCH} names: whole, one section, or a file of a skill.",
        "inputSchema": input_schema(ReadArguments),
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }
    tools = [search, call, call_read_only, set_context]
    tools += [read_document] if setup.has_documents else []
    tools += [manage] if setup.manage else []
    tools += [recall] if setup.recall else []
    return [envelope.raw(tool) for tool in tools]
