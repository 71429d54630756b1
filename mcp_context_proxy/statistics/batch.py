"""What was counted and not yet in the store: it adds up, so a store that cannot be written costs little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mcp_context_proxy.statistics.tally import Tally
from mcp_context_proxy.store.usage import SearchRow, SearchUsage, Slot, ToolUsage

ToolKey = tuple[str, str]
"""Server, and the name that the server itself uses."""

ROWS: Final = 1_000
"""Searches that wait to be kept one by one; of more, the oldest are only counted."""


class Batch:
    """Counts since the last write. Of one thread at a time."""

    def __init__(self) -> None:
        self._tools: dict[tuple[Slot, ToolKey], ToolUsage] = {}
        self.searches: dict[Slot, SearchUsage] = {}
        self.rows: dict[str, SearchRow] = {}

    def __bool__(self) -> bool:
        return bool(self._tools or self.searches or self.rows)

    @property
    def tools(self) -> Iterator[tuple[Slot, ToolUsage]]:
        """Usage of tools by slot."""
        return ((slot, usage) for (slot, _), usage in self._tools.items())

    def add_tally(self, key: ToolKey, tally: Tally) -> ToolUsage:
        """Count what a tally has; it as a value."""
        usage = tally.usage(*key)
        self._add_tool((Slot.of(usage.last), key), usage)
        return usage

    def add_search(self, slot: Slot, usage: SearchUsage) -> None:
        """Count what came of searches."""
        known = self.searches.get(slot)
        self.searches[slot] = usage if known is None else known.plus(usage)

    def add_row(self, row: SearchRow) -> None:
        """Keep a search, in the place of what was known of it."""
        self.rows.pop(row.id, None)
        self.rows[row.id] = row
        if len(self.rows) > ROWS:
            del self.rows[next(iter(self.rows))]

    def take(self, later: Batch) -> None:
        """Add all that another one has."""
        for key, usage in later._tools.items():
            self._add_tool(key, usage)
        for slot, searched in later.searches.items():
            self.add_search(slot, searched)
        for row in later.rows.values():
            self.add_row(row)

    def _add_tool(self, key: tuple[Slot, ToolKey], usage: ToolUsage) -> None:
        known = self._tools.get(key)
        self._tools[key] = usage if known is None else known.plus(usage)
