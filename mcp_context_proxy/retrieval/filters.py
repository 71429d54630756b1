"""What a search may find: hard constraints, met before anything is cut off.

For one item and for all of an index the same; the latter is a few operations on arrays, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.items import Item, Kind, Tool
from mcp_context_proxy.retrieval import item_metadata
from mcp_context_proxy.retrieval.index import KINDS, Index
from mcp_context_proxy.retrieval.terms import name_key

NAMES_KEPT = 8_192
"""Of tools of whose calls something is known, which are the same from search to search: a megabyte."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Hard constraints: an item that does not meet them is not considered at all."""

    servers: frozenset[str] | None = None
    """Keys of sources, ``rules`` and ``references`` among them; None for all."""
    kinds: frozenset[Kind] | None = None
    """None for all."""
    without: frozenset[tuple[Kind, str]] = frozenset()
    """Items that are left out: kind, and exposed name of a tool or name of a document."""
    labels: frozenset[str] = frozenset()
    """Of `traits`: all of them are needed."""
    any_labels: frozenset[str] = frozenset()
    """One of them is needed; empty for none."""
    no_labels: frozenset[str] = frozenset()
    """None of them may be there."""
    unfit: frozenset[tuple[str, str]] = frozenset()
    """Tools that are left out, by server and own name."""
    proven: frozenset[tuple[str, str]] | None = None
    """The only tools that are considered, by server and own name; None for all."""

    def allow(self, item: Item) -> bool:
        """Whether one item meets them."""
        tool = item if isinstance(item, Tool) else None
        key = tool.server if tool else f"{item.kind}s"
        if self.servers is not None and key not in self.servers:
            return False
        if (self.kinds is not None and item.kind not in self.kinds) or _key(item) in self.without:
            return False
        if tool is not None and (tool.server, tool.name) in self.unfit:
            return False
        if self.proven is not None and (tool is None or (tool.server, tool.name) not in self.proven):
            return False
        if not (self.labels or self.any_labels or self.no_labels):
            return True
        own = frozenset(item_metadata.metadata_of(item).labels())
        met = self.labels <= own and not self.no_labels & own
        return met and (not self.any_labels or bool(self.any_labels & own))


def allowed(index: Index, filters: Filters) -> NDArray[np.bool_]:
    """The items of an index that meet the filters."""
    met = np.ones(len(index.items), bool)
    if filters.servers is not None:
        met &= np.array([key in filters.servers for key in index.keys], bool)[index.sources]
    if filters.kinds is not None:
        met &= np.array([kind in filters.kinds for kind in KINDS], bool)[index.kinds]
    for label in filters.labels:
        met &= index.labelled(label)
    if filters.any_labels:
        met &= np.logical_or.reduce([index.labelled(label) for label in filters.any_labels])
    for label in filters.no_labels:
        met &= ~index.labelled(label)
    if filters.proven is not None:
        proven = np.zeros(met.size, bool)
        proven[_tools(index, filters.proven)] = True
        met &= proven
    met[_tools(index, filters.unfit)] = False
    named = _named(index, (name for _, name in filters.without)) if filters.without else ()
    met[[at for at in named if _key(index.items[at]) in filters.without]] = False
    return met


def _tools(index: Index, keys: frozenset[tuple[str, str]]) -> list[int]:
    """Where the tools are that are given by server and own name."""
    if not keys:
        return []
    # One number for server and name: many servers have a tool of the same name.
    own = np.array([hash(key) for key in index.keys], np.int64)[index.sources] ^ index.names[:, 0]
    wanted = np.array([hash(server) ^ _hashed(name) for server, name in keys], np.int64)
    found = np.flatnonzero(np.isin(own, wanted))
    return [
        at
        for at in found.tolist()
        if isinstance(tool := index.items[at], Tool) and (tool.server, tool.name) in keys
    ]


def _named(index: Index, names: Iterable[str]) -> list[int]:
    """Where the items are that have one of the names, or one that is spelt differently."""
    hashes = np.array([_hashed(name) for name in names], np.int64)
    return index.having(hashes)


@lru_cache(maxsize=NAMES_KEPT)
def _hashed(name: str) -> int:
    return hash(name_key(name))


def _key(item: Item) -> tuple[Kind, str]:
    return item.kind, item.exposed_name if isinstance(item, Tool) else item.name
