"""The packaged model, loaded once for all tests of this folder."""

import pytest

from mcp_context_proxy.embedding import OnnxModel, load_model


@pytest.fixture(scope="session")
def model() -> OnnxModel:
    return load_model()
