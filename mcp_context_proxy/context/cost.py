"""What items cost a model to read, estimated: a tool by its definition as listed, a document by its text.

Each version of an item is counted once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice

from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.embedding.tokens import TokenCounter
from mcp_context_proxy.items import Document, Item, Snapshot

ITEMS_KEPT = 20_000
"""Costs that are remembered, in some 3 MB; more than that are counted again."""


class Costs:
    """Estimates tokens. Blocking: about 0.2 ms for an item that is new. Thread-safe."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._known: OrderedDict[str, int] = OrderedDict()
        self._counting = threading.Lock()

    def of(self, item: Item) -> int:
        """Tokens of one item."""
        known = self._known.get(item.fingerprint)
        if known is None:
            known = self._known[item.fingerprint] = self._counter.count(_text(item))
            if len(self._known) > ITEMS_KEPT:
                self._known.popitem(last=False)
        return known

    def know(self, tokens: Mapping[str, int]) -> None:
        """Take what was counted before, by fingerprint, as far as there is room."""
        for fingerprint, count in islice(tokens.items(), max(0, ITEMS_KEPT - len(self._known))):
            self._known.setdefault(fingerprint, count)

    def of_all(self, items: Iterable[Item]) -> int:
        """Tokens of several items together."""
        return sum(map(self.of, items))

    def behind(self, snapshot: Snapshot) -> int | None:
        """Tokens of everything a snapshot holds: what a model would read without the proxy.

        None while another thread counts them: the first count of a large catalog takes seconds.
        """
        if not self._counting.acquire(blocking=False):
            return None
        try:
            return self.of_all(snapshot.tools.values()) + self.of_all(snapshot.documents.values())
        finally:
            self._counting.release()


def _text(item: Item) -> str:
    if isinstance(item, Document):
        return item.text
    return bytes(tool_definition(item)).decode("utf-8", "replace")
