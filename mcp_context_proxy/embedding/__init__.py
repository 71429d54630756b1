"""Turns texts into vectors with the packaged model; importing it loads neither the model nor its runtime."""

from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, OnnxModel, load_model
from mcp_context_proxy.embedding.models import Embedder

__all__ = ["CachedEmbedder", "Embedder", "LazyModel", "OnnxModel", "load_model"]
