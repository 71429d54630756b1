"""Copies: tools of a server that say the same as those of a server that was there before.

Whoever comes later must not take the calls of another server's tools by a few words more.
A search puts such a tool after its original, and ``check`` names both to a person.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.query_scores import (
    COPY_COSINE,
    YOUNGER_SECONDS,
    ages_of,
    first_vectors,
    younger,
)
from mcp_context_proxy.system.later import np

BLOCK: Final = 256
"""Tools that are compared with all others at a time."""

COMPARED: Final = 20_000
"""Tools of a catalog that are compared with each other: some seconds."""


class Copy(Struct, frozen=True):
    """A tool, and the one of an older server that it says the same as."""

    tool: Tool
    original: Tool


def copies(index: Index) -> Iterator[Copy]:
    """Yield each tool that says nearly the same as one of an older server, with the nearest such.

    Equal definitions are two accounts of one service; an answer tells them as one, and names both. Without
    vectors nothing can be told.
    """
    ready = np.flatnonzero(index.ready).tolist()
    places = [at for at in ready if isinstance(index.items[at], Tool)][:COMPARED]
    ages = ages_of([index.items[at] for at in places], index)
    if index.dense is None or not younger(ages):
        return
    tools = [one for at in places if isinstance(one := index.items[at], Tool)]
    vectors = first_vectors(index.dense, np.array(places))
    for start in range(0, len(tools), BLOCK):
        block = slice(start, start + BLOCK)
        cosines = vectors[block] @ vectors.T
        cosines[ages[block, None] - ages[None, :] < YOUNGER_SECONDS] = 0
        for tool, row in zip(tools[block], cosines, strict=True):
            original = tools[int(row.argmax())]
            if row.max() >= COPY_COSINE and original.definition != tool.definition:
                yield Copy(tool, original)


def younger_servers(snapshot: Snapshot) -> bool:
    """Return whether a server of some tools is younger than that of others."""
    servers = {tool.server for tool in snapshot.tools.values()}
    return younger(np.array([snapshot.first_seen.get(server, 0.0) for server in servers]))
