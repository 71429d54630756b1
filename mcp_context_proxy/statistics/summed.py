"""All that is remembered of each tool, ready to be asked during a search: of every proxy on the store.

Written by one thread at a time; reading takes no lock, and sees values that do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcp_context_proxy.statistics.batch import ToolKey
from mcp_context_proxy.statistics.figures import ToolFigures
from mcp_context_proxy.store import StatisticsStore
from mcp_context_proxy.store.usage import ToolUsage


class Summed:
    """The usage of each tool, summed up, and what follows from it."""

    def __init__(self, store: StatisticsStore) -> None:
        self._store = store
        self._usage: dict[ToolKey, ToolUsage] = {}
        self._figures: dict[ToolKey, ToolFigures] = {}
        self._version: int | None = None

    def all_figures(self) -> Mapping[ToolKey, ToolFigures]:
        """Those of every tool that was called, as they are now; they stay so. Does not block."""
        return self._figures

    def add(self, usages: Iterable[ToolUsage]) -> None:
        """Add what was just counted."""
        changed = {}
        for usage in usages:
            key = usage.server, usage.tool
            known = self._usage.get(key)
            self._usage[key] = usage if known is None else known.plus(usage)
            changed[key] = ToolFigures.of(self._usage[key])
        self._figures = {**self._figures, **changed}

    def refresh(self, besides: Iterable[ToolUsage]) -> None:
        """Read what is in the store, if another process has changed it; add what is not in it yet.

        Raises:
            StoreError: it cannot be read; what was known stays.
        """
        version = self._store.version()
        if version == self._version:
            return
        usage = {(one.server, one.tool): one for one in self._store.tools()}
        self._version, self._usage = version, usage
        self._figures = {key: ToolFigures.of(one) for key, one in usage.items()}
        self.add(besides)
