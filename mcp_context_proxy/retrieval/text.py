"""What is indexed: the texts of an item, and how text is divided into chunks and queries into sentences.

The form of the chunk text was chosen by measurement: with several servers their names and the parameter
names help, with a single one they only dilute the description.

The parameters of a tool, out of a definition nobody has checked.

Schemas are hostile: they are walked without recursion, up to fixed limits, and references are never followed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from mcp_context_proxy.items import JSON, Item, Tool
from mcp_context_proxy.retrieval.terms import identifier_words

MAX_PARAMETERS = 64
"""Names read from one schema; real tools have fewer than 40, and a flood would only drown the description."""

MAX_NAME = 128
"""Characters read of one parameter's name."""

MAX_NODES = 2_000
"""Schema nodes visited; bounds the work on a schema that is nothing but nesting."""

MAX_DESCRIPTION = 1_000
"""Characters read of one parameter's description."""

_COMBINERS = ("anyOf", "oneOf", "allOf")
_NESTING = frozenset({"properties", "items", *_COMBINERS})
"""Keys of a schema that has others in it: most parameters have none."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a schema says about the arguments of a tool, outer ones first."""

    top: tuple[str, ...]
    """Names of the arguments themselves."""
    nested: tuple[str, ...]
    """Names within them."""
    descriptions: tuple[str, ...]


def read_parameters(definition: bytes) -> Parameters:
    """The parameters in a tool's definition; empty for a definition that cannot be read."""
    try:
        decoded = msgspec.json.decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Parameters((), (), ())
    schema = decoded.get("inputSchema") if isinstance(decoded, dict) else None
    return _collect(schema)


def _collect(schema: JSON) -> Parameters:
    top: list[str] = []
    nested: list[str] = []
    descriptions: list[str] = []
    for depth, name, node in _walk(schema):
        if len(top) + len(nested) >= MAX_PARAMETERS:
            break
        (top if depth == 0 else nested).append(name[:MAX_NAME])
        description = node.get("description") if isinstance(node, dict) else None
        if isinstance(description, str) and description:
            descriptions.append(description[:MAX_DESCRIPTION])
    return Parameters(tuple(top), tuple(nested), tuple(descriptions))


def _walk(schema: JSON) -> Iterator[tuple[int, str, JSON]]:
    """Every property with its depth, breadth first, so that limits cut the innermost."""
    waiting: deque[tuple[int, JSON]] = deque([(0, schema)])
    for _ in range(MAX_NODES):
        if not waiting:
            return
        depth, node = waiting.popleft()
        if not isinstance(node, dict):
            continue
        properties = node.get("properties")
        if isinstance(properties, dict):
            for name, child in list(properties.items())[:MAX_PARAMETERS]:
                yield depth, name, child
                if isinstance(child, dict) and not _NESTING.isdisjoint(child):
                    waiting.append((depth + 1, child))
        waiting.extend((depth, child) for child in _alternatives(node))


def _alternatives(node: dict[str, JSON]) -> list[JSON]:
    found = [node.get("items")]
    for key in _COMBINERS:
        options = node.get(key)
        if isinstance(options, list):
            found.extend(options[:MAX_PARAMETERS])
    return found


CHUNK_LIMIT = 500
"""Characters of a chunk: about 120 word pieces, well inside the 256 the model reads."""

NAME_LIMIT = 256
"""Characters of a name that are indexed; hosts refuse names over 64."""

HEAD_LIMIT = 100
"""Characters of a chunk that may go to the name of what it is of; a longer one would leave no room."""

DESCRIPTION_LIMIT = 8_192
"""Characters of a description that are indexed; what comes after is not what the tool is about."""

DOCUMENT_LIMIT = 262_144
"""Characters of a document that are indexed; some 500 chunks, a few seconds of embedding."""

QUERY_LIMIT = 8_192
"""Characters of a query that are looked at."""

QUERY_SENTENCES = 12
"""Sentences of a query that are embedded beside the whole; each costs about 2 ms."""

_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?…؟।])\s+|(?<=[。！？])|\n\s*")
_NEED = re.compile(_SENTENCE.pattern + r"|;\s+|,?\s+and\s+then\s+")
"""Where one need of a query ends and another may begin."""
_BULLET = re.compile(r"^(?:[-*+•–]|\d{1,2}[.)])\s+")
_WORD = re.compile(r"\s+")
_LETTER = re.compile(r"[^\W_]")


@dataclass(frozen=True, slots=True)
class Fields:
    """The texts of an item that lexical search weighs differently; field order as in `lexical.WEIGHTS`."""

    name: str
    description: str
    parameters: str
    parameter_descriptions: str
    server: str
    text: str


@dataclass(frozen=True, slots=True)
class ItemText:
    """Everything that is indexed of one item."""

    fields: Fields
    chunks: tuple[str, ...]
    """What is embedded; never empty."""


def item_text(item: Item, several_servers: bool) -> ItemText:
    """The indexed text of an item in a catalog of one or of several servers."""
    description = _clean(item.description[:DESCRIPTION_LIMIT])
    if isinstance(item, Tool):
        return _tool_text(item, description, several_servers)
    body = _clean(item.text[:DOCUMENT_LIMIT])
    name = _clean(item.name[:NAME_LIMIT])
    fields = Fields(name, description, "", "", "", body)
    return ItemText(fields, _headed_chunks(name, f"{description}\n\n{body}"))


def chunks(text: str, limit: int = CHUNK_LIMIT) -> tuple[str, ...]:
    """Divide a text into chunks of at most ``limit`` characters; only white space between them is lost.

    Whole paragraphs are put together while they fit; a longer one is divided at its sentences, a longer
    sentence at its words, a longer word anywhere.
    """
    found: list[str] = []
    start = end = 0
    for piece_start, piece_end in _pieces(text, 0, len(text), limit, (_PARAGRAPH, _SENTENCE, _WORD)):
        if piece_end - start > limit:
            found.append(text[start:end])
            start = piece_start
        end = piece_end
    found.append(text[start:end])
    return tuple(chunk.strip() for chunk in found if chunk.strip()) or (text.strip(),)


def query_texts(query: str) -> list[str]:
    """A query and its sentences, each once and as chunks: what is embedded to search for it, in one batch."""
    query = _clean(query[:QUERY_LIMIT]).strip()
    parts = [_BULLET.sub("", part.strip()) for part in _NEED.split(query)]
    sentences = [chunk for part in parts if _LETTER.search(part) for chunk in chunks(part)]
    return list(dict.fromkeys([query, *sentences[:QUERY_SENTENCES]]))


def _tool_text(tool: Tool, description: str, several_servers: bool) -> ItemText:
    parameters = read_parameters(tool.definition)
    name = _clean(tool.name[:NAME_LIMIT])
    words = identifier_words(name)
    fields = Fields(
        name=name,
        description=description,
        parameters=_clean(" ".join(parameters.top + parameters.nested)),
        parameter_descriptions=_clean("\n".join(parameters.descriptions)),
        server=_clean(tool.server),
        text="",
    )
    if not several_servers:
        return ItemText(fields, _headed_chunks(words, description))
    names = _clean(", ".join(identifier_words(parameter) for parameter in parameters.top))
    body = f"{description} Parameters: {names}" if names else description
    return ItemText(fields, _headed_chunks(f"{fields.server} {words}", body))


def _headed_chunks(head: str, body: str) -> tuple[str, ...]:
    """The chunks of ``head: body``; each has the head, for a chunk alone must still tell what it is of."""
    head = f"{head[:HEAD_LIMIT]}: "
    return tuple((head + chunk).strip() for chunk in chunks(body, CHUNK_LIMIT - len(head)))


def _pieces(
    text: str, start: int, end: int, limit: int, separators: tuple[re.Pattern[str], ...]
) -> Iterator[tuple[int, int]]:
    """Spans of at most ``limit`` characters, divided by the first separator that makes them fit."""
    if end - start <= limit:
        yield start, end
    elif not separators:
        yield from ((cut, min(cut + limit, end)) for cut in range(start, end, limit))
    else:
        for span in _split(text, start, end, separators[0]):
            yield from _pieces(text, *span, limit, separators[1:])


def _split(text: str, start: int, end: int, separator: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    for match in separator.finditer(text, start, end):
        if match.start() > start:
            yield start, match.start()
        start = match.end()
    if end > start:
        yield start, end


def _clean(text: str) -> str:
    """The text without the half characters (lone surrogates) that JSON lets through and UTF-8 does not."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text
