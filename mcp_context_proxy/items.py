"""What flows through the proxy: tools, rules, references, their chunks, and what was selected.

Frozen values without behaviour; every other module may depend on this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


JSON: TypeAlias = Any
"""Decoded JSON whose shape is somebody else's."""

Vector: TypeAlias = "NDArray[np.float32]"
"""Shape [dimensions], L2 norm 1."""


ToolKey: TypeAlias = tuple[str, str]
"""A tool of a server: the server's key in the configuration, and the name the server itself uses."""


class IncludeMode(StrEnum):
    """When an item is part of a context."""

    ALWAYS = "always"
    """In every session."""
    MANUAL = "manual"
    """Only when added by hand; never found by search."""
    AGENT = "agent"
    """When a query selects it."""


class Kind(StrEnum):
    """The three kinds of item."""

    TOOL = "tool"
    RULE = "rule"
    REFERENCE = "reference"


DOCUMENT_KINDS = frozenset({Kind.RULE, Kind.REFERENCE})
"""What is read rather than called."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of one downstream server. Its definition stays the bytes that came over the wire."""

    server: str
    """Key of the server in the configuration."""
    name: str
    """The name the server itself uses."""
    exposed_name: str
    """The name hosts see and call; unique in the catalog."""
    description: str
    """Empty when the server gives none."""
    definition: bytes
    """One JSON object, as received; only texts are cleaned and cut where they must be."""
    fingerprint: str
    """SHA-256 (hex) over server and definition; changes when anything about the tool changes, but not when
    its members come in another order."""
    include: IncludeMode = IncludeMode.AGENT
    tags: tuple[str, ...] = ()
    """As configured."""
    category: str | None = None
    """As configured; None where it is not."""

    @property
    def kind(self) -> Kind:
        """Always `Kind.TOOL`."""
        return Kind.TOOL

    @property
    def key(self) -> ToolKey:
        """Its server and own name, which identify it whatever name hosts see."""
        return self.server, self.name


def uri_of(kind: Kind, name: str) -> str:
    """``rule://NAME`` or ``reference://NAME``, the name percent-encoded where it must be."""
    from urllib.parse import quote  # noqa: PLC0415

    return f"{kind}://{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class Document:
    """A rule or a reference: markdown that is served as a resource and found like a tool."""

    kind: Kind
    """`Kind.RULE` or `Kind.REFERENCE`."""
    name: str
    """Unique within its kind; part of its URI."""
    description: str
    text: str
    """The markdown body, without front matter."""
    fingerprint: str
    """SHA-256 (hex) over everything above; changes when anything about the document changes."""
    include: IncludeMode = IncludeMode.AGENT
    priority: int = 500
    """0 to 999; a higher one comes first."""
    tags: tuple[str, ...] = ()

    @property
    def uri(self) -> str:
        """``rule://NAME`` or ``reference://NAME``, the name percent-encoded where it must be."""
        return uri_of(self.kind, self.name)


Item: TypeAlias = Tool | Document


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource, or a template of resources, of one downstream server."""

    server: str
    uri: str
    """Its URI, or its URI template (RFC 6570)."""
    definition: bytes
    """One JSON object, as received; only texts are cleaned and cut where they must be."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of one downstream server."""

    server: str
    name: str
    """The name the server itself uses."""
    exposed_name: str
    """The name hosts see and use; unique in the catalog."""
    definition: bytes
    """One JSON object, as received; only texts are cleaned and cut where they must be."""


class IndexedChunk(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A piece of an item's text with its embedding.

    Hidden from the garbage collector: there are more of them than of all else in a large catalog, they are
    part of no cycle, and every request waits while it looks at them.
    """

    text: str
    embedding: Vector
    chunk_index: int
    """Position among the chunks of its item, from 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The owner of some items and of their embeddings: one downstream client, or the documents.

    Embeddings live and die with their owner. They are filled just in time, at the first search.
    """

    key: str
    """The server's key, or ``rules`` / ``references`` for documents."""
    items: tuple[Item, ...]
    embeddings: dict[str, list[IndexedChunk]]
    """Chunks by item name (a tool's own name, a document's name). Shared with the owner, not a copy."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The whole catalog at one moment. A request uses one snapshot from start to end."""

    generation: int
    """Grows by one with every change."""
    sources: tuple[Source, ...]
    tools: Mapping[str, Tool] = field(default_factory=dict)
    """By exposed name, sorted by it."""
    documents: Mapping[str, Document] = field(default_factory=dict)
    """By URI, sorted by it."""
    resources: Mapping[str, Resource] = field(default_factory=dict)
    """Of the downstream servers, by URI."""
    templates: tuple[Resource, ...] = ()
    prompts: Mapping[str, Prompt] = field(default_factory=dict)
    """By exposed name, sorted by it."""
    findings: tuple[str, ...] = ()
    """What was withheld and why, for a person."""
