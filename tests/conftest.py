"""Fixtures for all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says nothing on a machine that is busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

pytest.register_assert_rewrite("support")

from support.servers import Workshop  # noqa: E402 - only after its asserts are to be told in full


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["handshake", "modern"])
def era(request: pytest.FixtureRequest) -> str:
    """Of the client."""
    return str(request.param)


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    """Makes downstream servers and the configuration that names them."""
    made = Workshop(tmp_path)
    yield made
    made.close()
