"""The store: everything that is kept between two starts, in one SQLite file or in memory."""

from mcp_context_proxy.store.approvals import (
    APPROVED,
    Additions,
    ApprovalRecord,
    ApprovalRow,
    ApprovalStore,
    VersionRow,
)
from mcp_context_proxy.store.batch_writer import BatchWriter
from mcp_context_proxy.store.interactions import (
    Interaction,
    InteractionScope,
    InteractionStore,
    InteractionVector,
)
from mcp_context_proxy.store.opening import IN_MEMORY, Store, open_store
from mcp_context_proxy.store.statistics import (
    DAY,
    HOUR,
    Counts,
    DefinitionRow,
    SearchRow,
    SearchUsage,
    StatisticsStore,
    ToolUsage,
    UsageSlot,
)
from mcp_context_proxy.store.tables import (
    DECAY_PER_DAY,
    LearnedStore,
    ListingStore,
    Pair,
    PairId,
    RequestRow,
    RequestStore,
    ToolSession,
    ToolSessions,
    ToolSessionStore,
    VectorStore,
)

__all__ = [
    "APPROVED",
    "DAY",
    "DECAY_PER_DAY",
    "HOUR",
    "IN_MEMORY",
    "Additions",
    "ApprovalRecord",
    "ApprovalRow",
    "ApprovalStore",
    "BatchWriter",
    "Counts",
    "DefinitionRow",
    "Interaction",
    "InteractionScope",
    "InteractionStore",
    "InteractionVector",
    "LearnedStore",
    "ListingStore",
    "Pair",
    "PairId",
    "RequestRow",
    "RequestStore",
    "SearchRow",
    "SearchUsage",
    "StatisticsStore",
    "Store",
    "ToolSession",
    "ToolSessionStore",
    "ToolSessions",
    "ToolUsage",
    "UsageSlot",
    "VectorStore",
    "VersionRow",
    "open_store",
]
