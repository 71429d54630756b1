"""The packaged models, loaded once for all tests of this folder."""

import pytest

from mcp_context_proxy.config import PACKAGED_MODELS, EmbeddingConfig
from mcp_context_proxy.embedding.embeddings import OnnxModel, load_model


@pytest.fixture(scope="session")
def model() -> OnnxModel:
    return load_model()


@pytest.fixture(scope="session")
def base_model() -> OnnxModel:
    return load_model(settings=EmbeddingConfig(model=PACKAGED_MODELS[1]))
