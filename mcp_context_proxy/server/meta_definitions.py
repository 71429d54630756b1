"""The proxy's own tools: what they are called, and what they say of themselves and of what they take.

Their definitions are made from the configuration alone, so that they are the same for everyone and for the
life of the process, and a host's prompt cache holds.

What the proxy's own tools are given, checked as it is decoded; nothing is taken that has no name here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from mcp_context_proxy.context.constraints import Constraints
from mcp_context_proxy.protocol import envelope

SEARCH = "search_available_tools"
CALL = "call_tool"
SET_CONTEXT = "set_context"
MANAGE = "manage_context"
RECALL = "recall"
NAMES = frozenset({SEARCH, CALL, SET_CONTEXT})
RESERVED = NAMES | {MANAGE, RECALL}
"""No tool of a server gets one of these, whether it is switched on or not."""

SERVERS_NAMED = 40
"""Servers that a description lists by name."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the descriptions speak of."""

    servers: Sequence[str]
    has_documents: bool
    manage: bool = False
    """Whether the model may change its session's context by hand."""
    recall: bool = False
    """Whether it may search earlier interactions."""


WORDS_ONLY: Final = (
    f" The embedding model cannot be used, so {SEARCH} goes by words alone: use words that the names and "
    "descriptions of tools are likely to have."
)


def instructions(setup: Setup, words_only: bool = False) -> str:
    """What a host tells its model about this server.

    Args:
        setup: What is behind it.
        words_only: Whether nothing can be found by its meaning.
    """
    return (
        f"One server in front of {_names(setup)}. Not all of their tools may be listed. "
        f"When none of the listed ones fits, describe what you need to {SEARCH}: it returns the matching "
        f"tools with their parameters. Call what it finds by name, or through {CALL}."
        + (WORDS_ONLY if words_only else "")
    )


def definitions(setup: Setup) -> list[Raw]:
    """The definitions of the meta tools, in the order they are listed."""
    tools = [_search(setup), _call(), _set_context()]
    tools += [_manage()] if setup.manage else []
    tools += [_recall()] if setup.recall else []
    return [envelope.raw(tool) for tool in tools]


def _names(setup: Setup) -> str:
    if not setup.servers:
        return "no servers yet"
    named = ", ".join(setup.servers[:SERVERS_NAMED])
    more = len(setup.servers) - SERVERS_NAMED
    return f"{named} and {more} more" if more > 0 else named


def _search(setup: Setup) -> dict[str, Any]:
    documents = " Rules and references that apply are found too." if setup.has_documents else ""
    return {
        "name": SEARCH,
        "title": "Search available tools",
        "description": (
            f"Find tools across all connected servers ({_names(setup)}). Most of their tools may not be "
            "listed: search before you conclude that something cannot be done. Say in plain words what you "
            "want to do, one need a sentence; the best matching tools come back with their parameters, ready "
            "to call." + documents
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What you want to do, in plain words"},
                "top_n": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 50,
                    "description": "How many; by default about 5",
                },
                "server": {"type": "string", "description": "Search only this server"},
                "include_schema": {"type": "boolean", "description": "False: names only"},
                "kinds": {
                    "type": "array",
                    "items": {"type": "string", "enum": ["tool", "rule", "reference"]},
                    "description": "By default all",
                },
                "category": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "All of them"},
                "any_tags": {"type": "array", "items": {"type": "string"}},
                "language": {"type": "string"},
                "read_only": {"type": "boolean"},
                "exclude_destructive": {"type": "boolean"},
                "open_world": {"type": "boolean"},
                "max_latency_ms": {"type": "number"},
                "min_success_rate": {"type": "number"},
                "strict": {"type": "boolean"},
                "context_id": {"type": "string"},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        "outputSchema": _found_schema(),
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }


def _call() -> dict[str, Any]:
    return {
        "name": CALL,
        "title": "Call a tool",
        "description": (
            f"Call any tool of the connected servers by its name, listed or not. Use {SEARCH} first to learn "
            "its name and parameters."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The tool's name as the search gives it"},
                "arguments": {"type": "object", "description": "The tool's arguments"},
                "goal": {
                    "type": "string",
                    "description": "What the call is for, in one sentence; not sent to the tool",
                },
                "context_id": {"type": "string"},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
    }


def _set_context() -> dict[str, Any]:
    return {
        "name": SET_CONTEXT,
        "title": "Set the context",
        "description": (
            "Say what the conversation is about, so that the listed tools fit it. Returns what was selected, "
            "and a context_id for later calls."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "The task at hand"},
                "intent": {"type": "string", "description": "What is to come of it"},
                "context_id": {"type": "string"},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        "outputSchema": _found_schema(context_id={"type": "string"}),
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }


def _manage() -> dict[str, Any]:
    return {
        "name": MANAGE,
        "title": "Manage the context",
        "description": (
            "Add an item to the context of this conversation, remove one, or list what is in it. What is "
            "added is part of every later request, what is removed of none."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["add", "remove", "list"]},
                "type": {"type": "string", "enum": ["tool", "rule", "reference"]},
                "name": {"type": "string"},
                "server": {"type": "string"},
                "context_id": {"type": "string"},
            },
            "required": ["action"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    }


def _recall() -> dict[str, Any]:
    return {
        "name": RECALL,
        "title": "Recall interactions",
        "description": (
            "Find what was searched, called or said before, in this conversation or an earlier one. What is "
            "long past counts less."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What it was about"},
                "agent_name": {"type": "string", "description": "Only of this agent"},
                "interaction_type": {"type": "string", "description": "Such as search, call or message"},
                "top_k": {"type": "integer", "minimum": 1, "maximum": 50},
                "time_decay_factor": {"type": "number", "description": "Left of a score after a day: 0.95"},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }


def _found_schema(**more: Any) -> dict[str, Any]:
    """Of what a search answers. Hosts may put it into every request, so it says what is there and no more."""
    item = {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "name": {"type": "string"},
            "score": {"type": "number"},
            "why": {"type": "string"},
            "learned": {"type": "number"},
        },
        "required": ["type", "name", "score", "why"],
    }
    return {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "fits": {"type": "boolean"},
            "results": {"type": "array", "items": item},
            "near_misses": {"type": "array"},
            "method": {"type": "string", "enum": ["hybrid", "lexical"]},
            "known": {"type": "integer"},
            "request_id": {"type": "string"},
            "indexed": {"type": "object"},
            "note": {"type": "string"},
            **more,
        },
        "required": ["query", "fits", "results", "method", "known", "request_id", *more],
    }


class SearchArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `search_available_tools`."""

    query: Annotated[str, Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=1, le=50)] | None = None
    server: str | None = None
    include_schema: bool = True
    kinds: list[Literal["tool", "rule", "reference"]] | None = None
    category: str | None = None
    tags: list[str] | None = None
    any_tags: list[str] | None = None
    language: str | None = None
    read_only: bool | None = None
    exclude_destructive: bool | None = None
    open_world: bool | None = None
    max_latency_ms: Annotated[float, Meta(gt=0)] | None = None
    min_success_rate: Annotated[float, Meta(ge=0, le=1)] | None = None
    strict: bool | None = None
    context_id: str | None = None

    def constraints(self) -> Constraints:
        """As the context layer has them."""
        return Constraints(
            server=self.server,
            category=self.category,
            tags=tuple(self.tags or ()),
            any_tags=tuple(self.any_tags or ()),
            language=self.language,
            read_only=bool(self.read_only),
            exclude_destructive=bool(self.exclude_destructive),
            open_world=self.open_world,
            max_latency_ms=self.max_latency_ms,
            min_success_rate=self.min_success_rate,
            strict=bool(self.strict),
        )


class CallArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `call_tool`."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: Raw | UnsetType = UNSET
    goal: Annotated[str, Meta(max_length=2000)] | None = None
    context_id: str | None = None


class ContextArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `set_context`."""

    query: Annotated[str, Meta(min_length=1)]
    intent: str | None = None
    context_id: str | None = None


class ManageArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `manage_context`."""

    action: Literal["add", "remove", "list"]
    type: Literal["tool", "rule", "reference"] | None = None
    name: str | None = None
    server: str | None = None
    context_id: str | None = None


class RecallArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `recall`."""

    query: Annotated[str, Meta(min_length=1)]
    agent_name: str | None = None
    interaction_type: str | None = None
    top_k: Annotated[int, Meta(ge=1, le=50)] = 10
    time_decay_factor: Annotated[float, Meta(gt=0, le=1)] = 0.95
