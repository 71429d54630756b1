"""The packaged model, loaded once for all tests of this folder."""

import pytest

from mcp_context_proxy.embedding import MiniLM, load_model


@pytest.fixture(scope="session")
def model() -> MiniLM:
    return load_model()
