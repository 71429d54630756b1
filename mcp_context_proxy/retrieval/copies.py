"""Copies: tools of a server that say the same as those of a server that was there before.

Whoever comes later must not take the calls of another server's tools by a few words more.
A search puts such a tool after its original, and ``check`` names both to a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.items import Item, Snapshot, Tool
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.vectors import DenseIndex

COPIES_LOOKED_FOR: Final = 40
"""Best places of a search in which copies are looked for; an answer has at most as many."""

COPY_COSINE: Final = 0.88
"""Cosine from which two descriptions say the same: 0.9 without the name of the server, which is part of the
text that is compared."""

COPY_MARGIN: Final = 0.15
"""Advantage in score that does not put a copy before its original: some words more."""

YOUNGER_SECONDS: Final = 3600.0
"""Time by which a server is younger than another; servers set up in one sitting are of one age."""

BLOCK: Final = 256
"""Tools that are compared with all others at a time."""

COMPARED: Final = 20_000
"""Tools of a catalog that are compared with each other: some seconds."""


@dataclass(frozen=True, slots=True)
class Copy:
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


def ages_of(items: Sequence[Item], index: Index) -> NDArray[np.float64]:
    """Return the time at which the server of each tool was first seen; documents have none.

    A document is no copy: the user has chosen it.
    """
    seen = index.snapshot.first_seen
    return np.array([seen.get(one.server, 0.0) if isinstance(one, Tool) else np.nan for one in items])


def younger(ages: NDArray[np.float64]) -> bool:
    """Return whether one of some ages is younger than another."""
    known = ages[~np.isnan(ages)]
    return bool(known.size and known.max() - known.min() >= YOUNGER_SECONDS)


def first_vectors(dense: DenseIndex, places: NDArray[np.intp]) -> NDArray[np.float32]:
    """Return the vectors of the first chunks of some items, which have their descriptions."""
    return np.array(dense.vectors.views(dense.rows[dense.starts[places]]), np.float32)
