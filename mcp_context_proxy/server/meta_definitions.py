"""Definitions of the meta tools, their arguments, and the proxy's own resources and prompt.

Definitions depend on the configuration alone. They are the same for every client and for the life of the
process, so that the prompt cache of a host stays valid. The instructions have words of servers beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.items import NO_FILTERS, SearchFilters
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.strangers import named, one_line, stranger_text
from mcp_context_proxy.results import shortening
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.trust import ACTING
from mcp_context_proxy.trust.fingerprints import sign_in

SEARCH = "search_available_tools"
CALL = "call_tool"
CALL_READ_ONLY = "call_read_only_tool"
SET_CONTEXT = "set_context"
MANAGE = "manage_context"
RECALL = "recall"
READ_RESULT = shortening.READ_RESULT
READ_DOCUMENT = "read_document"
CALLS = frozenset({CALL, CALL_READ_ONLY})
"""Tools that call another one. Hosts let a person always allow one of them, so reading has its own."""
NAMES = CALLS | {SEARCH}
READ_ONLY = frozenset({SEARCH, SET_CONTEXT, RECALL, READ_RESULT, READ_DOCUMENT})
"""Other tools that say they are read-only."""
RESERVED = NAMES | {SET_CONTEXT, MANAGE, RECALL, READ_RESULT, READ_DOCUMENT}
"""Names that no tool of a server gets, whether the meta tool is switched on or not."""

READ_MARK = "[r]"
"""Marks a found tool that says it is read-only."""

NAMES_BYTES = 80
"""Bytes for the names of servers in the description of the search, which hosts put into every request."""

INSTRUCTIONS_BYTES = 2000
"""Bytes of the instructions: some hosts cut them at 2,048."""

INSTRUCTIONS_NAMES_BYTES = 600
"""Bytes for the names of servers in the instructions, which are sent once."""

CUT = "…"
"""Stands at the end of a text that is cut."""

SERVER_LINE_CHARACTERS = 200
"""Characters of a server's own instructions that are passed on: its first sentences."""

SAID_LATER_BYTES: Final = 500
"""Bytes for the instructions of servers in the answer to a search."""

SAID_CHARACTERS: Final = 2000
"""Characters of a server's own instructions in which its line is looked for."""

_HEADING: Final = pattern(r"\s{0,3}#{1,6}\s")
"""Beginning of a heading of markdown."""

NOTHING_SAID: Final[Mapping[str, str]] = {}

ALWAYS_LOAD: Final = {"_meta": {"anthropic/alwaysLoad": True}}
"""Keeps a host that defers tools from hiding the search behind a search of its own."""

ANY_OBJECT: Final = {"type": "object", "additionalProperties": True}
"""OpenAI's API closes an object that does not say that it is open; nothing could be in it then."""

KindName = Annotated[Literal["tool", "rule", "reference"], Meta(examples=["tool", "rule", "reference"])]
Action = Annotated[Literal["add", "remove", "list"], Meta(examples=["add", "remove", "list"])]
Number = Annotated[int, Meta(ge=1, le=50)]


class SearchArguments(SearchFilters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Arguments of `search_available_tools`.

    Filters stand in ``filters``; beside it, where earlier versions had them, they are still understood.
    """

    query: Annotated[str, Meta(description="What to do, in plain words; one sentence per need")]
    """An empty one asks for everything."""
    top_n: Number | None = None
    """By default those that fit."""
    include_schema: Annotated[bool, Meta(description="All about each tool")] = False
    kinds: tuple[KindName, ...] | None = None
    """By default all."""
    best: Annotated[bool, Meta(description="Ask another model for the order, which takes longer")] = False
    filters: Annotated[SearchFilters, Meta(extra_json_schema={"type": "object"})] = NO_FILTERS
    context_id: str | None = None


class CallArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `call_tool`."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: Annotated[Raw | UnsetType, Meta(extra_json_schema=ANY_OBJECT)] = UNSET
    goal: Annotated[
        Annotated[str, Meta(max_length=2000)] | None,
        Meta(description="Purpose in a sentence, not for the tool"),
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
    top_k: Number | None = None
    time_decay_factor: (
        Annotated[float, Meta(gt=0, le=1, description="Share of a score that is left after a day: 0.95")]
        | None
    ) = None


class ReadArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `read_document`."""

    name: Annotated[str, Meta(min_length=1, description="Such as rule://NAME or reference://SKILL/FILE")]
    section: Annotated[str | None, Meta(description="A heading")] = None
    page: Annotated[int, Meta(ge=1)] = 1
    context_id: str | None = None


class PageArguments(msgspec.Struct):
    """Arguments of a call whose name is the URI of a resource."""

    page: Annotated[int, Meta(ge=1)] = 1


class ReadResultArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `read_result`."""

    id: Annotated[str, Meta(min_length=1, description="As the shortened result gives it")]
    page: Annotated[int, Meta(ge=1, description="From 1")] = 1
    path: Annotated[
        str | None, Meta(description="Part of JSON: items[0:20], items[*][id,title], items[?size>3].title")
    ] = None
    pattern: Annotated[str | None, Meta(description="Words in a line; * stands for anything in it")] = None


_NOT_FOR_MODELS: Final = {"max_latency_ms", "min_success_rate", "min_calls", "strict"}
"""Filters on how earlier calls went, which no model is told of: they are for those who know the figures."""

_KEYWORDS: Final = ("type", "additionalProperties", "items", "enum", "description")


@cache
def input_schema(arguments: type[msgspec.Struct], without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Derive the input schema of a meta tool from the struct that decodes its arguments.

    Hosts put it into every request, so it leaves out everything that a model does not need: defaults, null,
    bounds, the arguments named in ``without``, and the schema of each filter, which one line tells.
    """
    schemas = _schemas(arguments)
    schema = schemas[arguments.__name__]
    properties = {
        name: _shortened(told) for name, told in schema["properties"].items() if name not in without
    }
    if issubclass(arguments, SearchFilters):
        own = [name for name in properties if name not in SearchFilters.__struct_fields__]
        properties = {name: properties[name] for name in own}
        told_of = schemas[SearchFilters.__name__]["properties"]
        properties["filters"] = {"type": "object", "description": _filters_line(told_of)}
    return {"type": "object", "properties": properties, "required": schema["required"]}


@cache
def _schemas(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schemas of a struct and of those in it, by name; each takes a millisecond of every start."""
    found: dict[str, Any] = msgspec.json.schema(arguments)["$defs"]
    return found


def _filters_line(schema: Mapping[str, Any]) -> str:
    by_type: dict[str, list[str]] = {}
    for name, told in schema.items():
        if name not in _NOT_FOR_MODELS:
            by_type.setdefault(_shortened(told)["type"], []).append(name)
    return "; ".join(f"{', '.join(names)}: {kind}" for kind, names in by_type.items())


def _shortened(schema: dict[str, Any]) -> dict[str, Any]:
    # Of a type or null, the type comes first.
    schema = {**schema.get("anyOf", [{}])[0], **schema}
    if "enum" in schema:
        schema |= {"type": "string", "enum": schema["examples"]}
    if "items" in schema:
        schema["items"] = _shortened(schema["items"])
    return {key: schema[key] for key in _KEYWORDS if key in schema}


class Setup(Struct, frozen=True):
    """Facts of the configuration that the descriptions mention."""

    servers: Sequence[str]
    has_documents: bool
    off: Sequence[str] = ()
    """Servers that a mistake in their settings keeps off."""
    lists_all: bool = False
    """True where every tool is listed, and the search is for documents."""
    set_context: bool = False
    """True to let models tell the subject of the conversation."""
    manage: bool = False
    """True to let models change the context of their session by hand."""
    recall: bool = False
    """True to let models search earlier interactions."""
    reranks: bool = False
    """True where another model can be asked for the order of the best tools."""

    @property
    def handles(self) -> bool:
        """True where a model may get a ``context_id`` and has to be told that it is an argument."""
        return self.set_context or self.manage


def instructions(
    setup: Setup,
    words_only: bool = False,
    said: Mapping[str, str] = NOTHING_SAID,
    whole: bool = False,
    most: int = INSTRUCTIONS_BYTES,
) -> str:
    """Return the server instructions for the host's model, in `most` bytes.

    The proxy's own part comes first, for one that lists the `whole` catalog or searches by `words_only`; then
    one line for each server that gives instructions itself. Where room is short, the longest are left out.
    """
    hint = (
        f" The embedding model cannot be used, so {SEARCH} goes by words alone: use words that the names and "
        "descriptions of tools are likely to have."
    )
    search = (
        f"Not all tools are listed. When none of the listed ones fits, describe what you need to {SEARCH}: "
        f"it returns the matching tools with their parameters. Call what it finds by name, or through "
        f"{CALL_READ_ONLY} if it is marked {READ_MARK}, else through {CALL}." + (hint if words_only else "")
    )
    if setup.lists_all:
        search = f"All tools are listed. {SEARCH} also finds the rules and references for a task."
    names = f"These tools are those of {_names(setup, INSTRUCTIONS_NAMES_BYTES)}."
    if not setup.servers:
        search, names = search if setup.has_documents else "", _without_servers(setup)
    text = names if whole else f"{search} {names}".strip()
    left = most - len(text.encode())
    lines = {server: line for server, words in said.items() if (line := server_line(server, words))}
    sizes = {server: len(line.encode()) + 1 for server, line in lines.items()}
    # The shortest first: whoever says much leaves out nobody who says less.
    for server in sorted(lines, key=sizes.__getitem__):
        left -= sizes[server]
        if left < 0:
            del lines[server]
    return "\n".join([text, *lines.values()])


def server_line(server: str, words: str) -> str:
    """Return the instructions of a server as a line of whole words under its name; empty without any."""
    line = one_line(_without_heading(words), SERVER_LINE_CHARACTERS)
    if line.endswith(CUT):
        begun = line.removesuffix(CUT).rstrip()
        line = f"{begun.rpartition(' ')[0] or begun} {CUT}"
    return named(server, line) if line else ""


def instructions_by_server(clients: Iterable[DownstreamClient], redact: Redactor) -> dict[str, str]:
    """Return the instructions of each server that gave some without a sign of an attack, by its name."""
    said = {
        client.name: stranger_text(client.introduction.instructions, redact, SAID_CHARACTERS)
        for client in clients
        if client.introduction is not None and client.introduction.instructions
    }
    return {server: words for server, words in said.items() if sign_in(words) is None}


def said_later(clients: Iterable[DownstreamClient], redact: Redactor, introduced: set[str]) -> list[str]:
    """Return a line for each server that connected after a session had begun, once in the session.

    Instructions cannot be sent again, so an answer to a search has those of the servers whose tools it shows,
    the best first. Servers that are told now are added to those `introduced` before.
    """
    left, told = SAID_LATER_BYTES, list[str]()
    # Those of a server take up to a millisecond to examine.
    new = [client for client in clients if client.name not in introduced]
    for server, words in instructions_by_server(new, redact).items():
        line = server_line(server, words)
        left -= len(line.encode())
        if line and left >= 0:
            introduced.add(server)
            told.append(line)
    return told


_NO_SERVERS: Final = (
    "No server is configured yet, so there are no tools. Tell the user, who can add some without a restart: "
    "`mcp-context-proxy install` moves the servers of their hosts here, "
    "`mcp-context-proxy add NAME -- COMMAND` adds one."
)
_NO_SERVERS_HERE: Final = (
    "No server is open to this client, so there are no tools: its profile or its token has none. Tell the "
    "user, who can change that in the configuration."
)


def no_servers() -> str:
    """Return that there is no server, for who acts now."""
    return _NO_SERVERS_HERE if ACTING.get().limited else _NO_SERVERS


def _without_servers(setup: Setup) -> str:
    if not setup.off:
        return no_servers()
    names = _listed(setup.off, INSTRUCTIONS_NAMES_BYTES)
    return (
        "There are no tools now, because a mistake in the configuration keeps each server off: "
        f"{names}. Tell the user: `mcp-context-proxy check` names each mistake and its line, and a server "
        "starts as soon as the file is corrected."
    )


def _without_heading(words: str) -> str:
    """Return instructions from their first sentence on: on one line a heading would be a part of it."""
    lines = words.splitlines()
    for number, line in enumerate(lines):
        if line.strip() and not _HEADING.match(line):
            return "\n".join(lines[number:])
    return words.lstrip("# ")


def _names(setup: Setup, most: int) -> str:
    """Return the names of the servers, as many as there is room for in ``most`` bytes."""
    return _listed(setup.servers, most) if setup.servers else "none yet"


def _listed(names: Sequence[str], most: int) -> str:
    shown: list[str] = []
    for name in names:
        most -= len(name.encode()) + len(", ")
        if most < 0 and shown:
            break
        shown.append(name)
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


UNLISTED: Final = (
    "Find tools of all servers. Most are not listed: search before you say that something cannot be "
    "done. What fits comes with its parameters, ready to call."
)
LISTED: Final = "Find what fits a task. All tools are listed."


def definitions(setup: Setup, whole: bool = False) -> list[Raw]:
    """Return the definitions of the meta tools in the order of the list.

    Search and calls are left out where the catalog is listed ``whole``: everything can be called as it is.
    The other tools stand there because the configuration asks for them.
    """
    without = frozenset() if setup.handles else frozenset({"context_id"})
    documents = " Rules and references are found too." if setup.has_documents else ""
    unsearchable = without | (set() if setup.has_documents else {"kinds"})
    unsearchable |= set() if setup.reranks else {"best"}
    tools: list[Raw] = []
    if not whole:
        about = LISTED if setup.lists_all else UNLISTED
        tools = [
            _tool(
                SEARCH,
                f"{about}{documents} Servers: {_names(setup, NAMES_BYTES)}.",
                input_schema(SearchArguments, unsearchable),
                readOnlyHint=True,
                openWorldHint=False,
            ),
            _tool(
                CALL,
                f"Call any tool by its name from {SEARCH}.",
                input_schema(CallArguments, without),
                readOnlyHint=False,
                destructiveHint=True,
            ),
            _tool(
                CALL_READ_ONLY,
                f"{CALL} for read-only tools, marked {READ_MARK}, and for resources: the name is the URI.",
                # The purpose of a read tells little, and is understood all the same.
                input_schema(CallArguments, without | {"goal"}),
                readOnlyHint=True,
            ),
        ]
    if setup.has_documents:
        text = f"Read a document that {SEARCH} names: whole, one section, or a file of a skill."
        # A model that reads has a context, or needs none.
        schema = input_schema(ReadArguments, frozenset({"context_id"}))
        tools.append(_tool(READ_DOCUMENT, text, schema, **_LOCAL_READ))
    if setup.set_context:
        text = (
            "Say what the conversation is about, so that the listed tools fit it. Returns what was selected, "
            "and a context_id for later calls."
        )
        schema, hints = input_schema(ContextArguments), {"readOnlyHint": True, "openWorldHint": False}
        tools.append(_tool(SET_CONTEXT, text, schema, "Set the context", **hints))
    if setup.manage:
        text = (
            "Add an item to the context of this conversation, remove one, or list what is in it. What is "
            "added is part of every later request, what is removed of none. What a person has decided stays."
        )
        hints = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
        tools.append(_tool(MANAGE, text, input_schema(ManageArguments), "Manage the context", **hints))
    if setup.recall:
        text = (
            "Find what was searched, called or said before, in this conversation or an earlier one. Older "
            "interactions count less."
        )
        tools.append(_tool(RECALL, text, input_schema(RecallArguments), "Recall interactions", **_LOCAL_READ))
    return tools


@cache
def read_result() -> Raw:
    """Return the definition of the tool that reads shortened results, which is listed once there is one."""
    text = "Read what was left out of a shortened result: by page, JSON path or pattern."
    return _tool(READ_RESULT, text, input_schema(ReadResultArguments), **_LOCAL_READ)


_LOCAL_READ: Final = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}


def _tool(name: str, text: str, schema: Mapping[str, Any], title: str | None = None, /, **hints: bool) -> Raw:
    return envelope.raw(
        {
            "name": name,
            **({} if title is None else {"title": title}),
            "description": text,
            "inputSchema": schema,
            "annotations": hints,
            **ALWAYS_LOAD,
        }
    )


SCHEME: Final = "context://"
CURRENT, REQUESTS = LIVE = (f"{SCHEME}current", f"{SCHEME}requests")
"""URIs of the proxy's own resources, which change with the requests of a session."""

CONTEXT_RESOURCES: Final[Sequence[dict[str, Any]]] = [
    {
        "uri": CURRENT,
        "name": "current context",
        "description": "The rules and references that are in force for what is being done now.",
        "mimeType": "text/markdown",
    },
    {
        "uri": REQUESTS,
        "name": "request contexts",
        "description": "What was chosen for the latest requests, how and why.",
        "mimeType": "application/json",
    },
]

CONTEXT_TEMPLATE: Final[Mapping[str, Any]] = {
    "uriTemplate": f"{REQUESTS}/{{id}}",
    "name": "request context",
    "description": "What was chosen for one request, how and why; its id is in the answer to a search.",
    "mimeType": "application/json",
}

CONTEXT_PROMPT: Final = "with_context"

PROMPT: Final[Mapping[str, Any]] = {
    "name": CONTEXT_PROMPT,
    "title": "With context",
    "description": "The rules and references that apply to a query, and the tools that fit it.",
    "arguments": [{"name": "query", "description": "What you want to do", "required": True}],
}
