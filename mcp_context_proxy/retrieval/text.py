"""What is indexed: the texts of an item, and how text is divided into chunks and queries into sentences.

The form of the chunk text was chosen by measurement: with several servers their names and the parameter
names help, with a single one they only dilute the description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mcp_context_proxy.items import Item, Tool
from mcp_context_proxy.retrieval.parameters import read_parameters
from mcp_context_proxy.retrieval.terms import identifier_words

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
