"""What counts calls and searches, built in one place: the recorder, what it counts against, the reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mcp_context_proxy.config import Config
from mcp_context_proxy.context.constraints import Figures
from mcp_context_proxy.context.cost import Costs
from mcp_context_proxy.context.counted import CountedSearches
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.statistics.inventory import Inventory
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.statistics.report import Reports
from mcp_context_proxy.statistics.retention import Retention

if TYPE_CHECKING:
    from mcp_context_proxy.store import Store


class Measuring:
    """The parts of statistics, connected; where they are switched off there are none."""

    def __init__(
        self,
        config: Config,
        store: Store,
        snapshot: Callable[[], Snapshot],
        costs: Costs,
        listed_whole: Callable[[Snapshot], bool],
    ) -> None:
        """Build the parts.

        Args:
            config: Of everything.
            store: Keeps what is counted.
            snapshot: All there is now.
            costs: Of items, in tokens.
            listed_whole: Whether everything is listed.
        """
        retention = Retention.of(config.limits)
        self.reports = Reports(store.statistics)
        self.usage: UsageRecorder | None = None
        self.searches: CountedSearches | None = None
        if config.statistics.enabled:
            inventory = Inventory(store.statistics, snapshot, costs.of, listed_whole, known=costs.know)
            self.usage = UsageRecorder(store.statistics, retention, inventory)
            keep = config.learning.store_queries and config.context.keep_requests
            self.searches = CountedSearches(self.usage, keep)
            if config.learning.enabled:
                self.usage.counters.learned_pairs = store.learned.count

    @property
    def figures(self) -> Figures:
        """What is known of tools from their calls."""
        return {} if self.usage is None else self.usage.summed.all_figures()
