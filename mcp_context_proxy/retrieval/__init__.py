"""Search over the catalog: BM25F and sentence embeddings, fused."""

from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import EmbedTexts
from mcp_context_proxy.retrieval.ranking import Filters, Ranking, Result, SearchOptions

__all__ = ["EmbedTexts", "Engine", "Filters", "Ranking", "Result", "SearchOptions"]
