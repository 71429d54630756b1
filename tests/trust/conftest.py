from collections.abc import Iterator

import pytest

from mcp_context_proxy.store.opening import Store, open_store


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("memory") as opened:
        yield opened
