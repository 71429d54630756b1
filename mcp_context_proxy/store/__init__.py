"""What is remembered between two starts, in one SQLite file; without one, in memory."""

from mcp_context_proxy.store.opening import IN_MEMORY, Store, default_path, open_store
from mcp_context_proxy.store.rows import (
    InteractionRow,
    InteractionScope,
    InteractionStore,
    InteractionVector,
    LearnedRow,
    LearnedStore,
    ListingStore,
    RequestRow,
    RequestStore,
    StatisticsStore,
    ToolSession,
    ToolSessions,
    ToolSessionStore,
    VectorStore,
)

__all__ = [
    "IN_MEMORY",
    "InteractionRow",
    "InteractionScope",
    "InteractionStore",
    "InteractionVector",
    "LearnedRow",
    "LearnedStore",
    "ListingStore",
    "RequestRow",
    "RequestStore",
    "StatisticsStore",
    "Store",
    "ToolSession",
    "ToolSessionStore",
    "ToolSessions",
    "VectorStore",
    "default_path",
    "open_store",
]
