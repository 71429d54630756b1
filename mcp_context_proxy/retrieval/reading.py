"""What is read of items before there is any vector: texts, names and labels, in arrays over all of them.

Terms are counted beside it (`term_counts`): they are put together in a way of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.items import Item, Kind, Tool
from mcp_context_proxy.retrieval.term_counts import TermCounts, count_terms
from mcp_context_proxy.retrieval.terms import name_key
from mcp_context_proxy.retrieval.text import item_text
from mcp_context_proxy.retrieval.traits import traits_of

KINDS = tuple(Kind)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was read of some items, in their order."""

    items: tuple[Item, ...]
    chunks: tuple[tuple[str, ...], ...]
    """The texts of each item."""
    sizes: NDArray[np.int64]
    """How many texts each item has."""
    kinds: NDArray[np.uint8]
    """Kind of each item, as a position in `KINDS`."""
    names: NDArray[np.int64]
    """[items, 2]: hashes of what the spellings of its name have in common, and of its exposed name."""
    labels: NDArray[np.int64]
    """Hashes of the labels of the items (`traits`), item by item."""
    label_counts: NDArray[np.int64]
    """How many labels each item has."""

    @classmethod
    def joined(cls, readings: Sequence[Reading]) -> Reading:
        """Several as one."""
        return cls(
            tuple(chain.from_iterable(one.items for one in readings)),
            tuple(chain.from_iterable(one.chunks for one in readings)),
            np.concatenate([np.zeros(0, np.int64), *(one.sizes for one in readings)]),
            np.concatenate([np.zeros(0, np.uint8), *(one.kinds for one in readings)]),
            np.concatenate([np.zeros((0, 2), np.int64), *(one.names for one in readings)]),
            np.concatenate([np.zeros(0, np.int64), *(one.labels for one in readings)]),
            np.concatenate([np.zeros(0, np.int64), *(one.label_counts for one in readings)]),
        )

    def take(self, places: NDArray[np.int64]) -> Reading:
        """What was read of some of the items, in this order."""
        of_item = np.split(self.labels, np.cumsum(self.label_counts)[:-1])
        return Reading(
            tuple(self.items[place] for place in places),
            tuple(self.chunks[place] for place in places),
            self.sizes[places],
            self.kinds[places],
            self.names[places],
            np.concatenate([np.zeros(0, np.int64), *(of_item[place] for place in places)]),
            self.label_counts[places],
        )

    def labelled(self, label: int) -> NDArray[np.intp]:
        """Places of the items that have a label, given by its hash."""
        found = np.flatnonzero(self.labels == label)
        return np.searchsorted(np.cumsum(self.label_counts), found, side="right")


def read_items(items: Sequence[Item], several_servers: bool) -> tuple[Reading, TermCounts]:
    """Read items for a catalog of one or of several servers."""
    texts = [item_text(item, several_servers) for item in items]
    labels = [[hash(label) for label in traits_of(item).labels()] for item in items]
    reading = Reading(
        items=tuple(items),
        chunks=tuple(text.chunks for text in texts),
        sizes=np.array([len(text.chunks) for text in texts], np.int64),
        kinds=np.array([KINDS.index(item.kind) for item in items], np.uint8),
        names=np.array([_names(item) for item in items], np.int64).reshape(-1, 2),
        labels=np.fromiter(chain.from_iterable(labels), np.int64),
        label_counts=np.array([len(own) for own in labels], np.int64),
    )
    return reading, count_terms(text.fields for text in texts)


def _names(item: Item) -> tuple[int, int]:
    exposed = item.exposed_name if isinstance(item, Tool) else item.name
    return hash(name_key(item.name)), hash(name_key(exposed))
