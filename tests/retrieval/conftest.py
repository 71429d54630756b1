"""The packaged engine."""

from collections.abc import Iterator

import pytest

from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store.opening import open_store


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_store("memory") as store:
        embedder = CachedEmbedder(LazyModel(), store.vectors)
        yield Engine(embedder, embedder, calibration=packaged_background())
