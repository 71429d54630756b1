"""The store: everything that is kept between two starts, in one SQLite file, in memory, or in PostgreSQL."""

from mcp_context_proxy.store.approvals import (
    APPROVED,
    Additions,
    ApprovalRecord,
    ApprovalRow,
    ApprovalStore,
    VersionRow,
)
from mcp_context_proxy.store.batch_writer import BatchWriter
from mcp_context_proxy.store.coordination import Lease, LeaseStore, WorkingSetStore
from mcp_context_proxy.store.database import APPROVALS, PAIRS, StoreUnavailableError
from mcp_context_proxy.store.interactions import (
    Interaction,
    InteractionScope,
    InteractionStore,
    InteractionVector,
    new_origin,
)
from mcp_context_proxy.store.learned import (
    DECAY_PER_DAY,
    LearnedStore,
    Pair,
    PairChanges,
    PairId,
    Taught,
    UseRow,
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
    ListingStore,
    RequestRow,
    RequestStore,
    ToolSession,
    ToolSessions,
    ToolSessionStore,
    VectorStore,
)

__all__ = [
    "APPROVALS",
    "APPROVED",
    "DAY",
    "DECAY_PER_DAY",
    "HOUR",
    "IN_MEMORY",
    "PAIRS",
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
    "Lease",
    "LeaseStore",
    "ListingStore",
    "Pair",
    "PairChanges",
    "PairId",
    "RequestRow",
    "RequestStore",
    "SearchRow",
    "SearchUsage",
    "StatisticsStore",
    "Store",
    "StoreUnavailableError",
    "Taught",
    "ToolSession",
    "ToolSessionStore",
    "ToolSessions",
    "ToolUsage",
    "UsageSlot",
    "UseRow",
    "VectorStore",
    "VersionRow",
    "WorkingSetStore",
    "new_origin",
    "open_store",
]
