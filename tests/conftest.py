"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

# How long an example takes says nothing on a machine that is busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

pytest.register_assert_rewrite("support")

# Only after their asserts are to be told in full:
from support.proxies import Host  # noqa: E402
from support.servers import Workshop  # noqa: E402

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["handshake", "modern"])
def era(request: pytest.FixtureRequest) -> str:
    """Of the client."""
    return str(request.param)


@pytest.fixture
def host(proxy: Proxy, era: str) -> Host:
    """A client of the module's own ``proxy``."""
    return Host(proxy, era)


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    """Makes downstream servers and the configuration that names them."""
    made = Workshop(tmp_path)
    yield made
    made.close()
