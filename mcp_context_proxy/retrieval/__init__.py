"""Search over the catalog: BM25F and sentence embeddings, fused into one score."""

from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.results import FITTING, METHODS, Method, Ranking, Result, SearchOptions

__all__ = [
    "FITTING",
    "METHODS",
    "Engine",
    "Filters",
    "Method",
    "Ranking",
    "Result",
    "SearchOptions",
]
