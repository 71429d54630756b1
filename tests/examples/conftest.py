import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters

from mcp_context_proxy.examples import servers

PATIENCE = 30
"""Seconds before a test that hangs is given up; far more than any takes."""

ERAS = ("legacy", "2026-07-28", "auto")
"""The SDK client's words for: the handshake, the modern era without asking, the modern era by discovery."""

Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(
    params=[pytest.param(era, marks=pytest.mark.either("era")) for era in ERAS],
    ids=["handshake", "modern", "discovered"],
)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    """Start an example server over real pipes, with its data in the test's own folder."""

    @asynccontextmanager
    async def connected(name: str, era: str = "auto", **extra: str) -> AsyncIterator[Client]:
        command, *arguments = servers()[name]
        environment = {**os.environ, "MCP_EXAMPLE_DATA": str(tmp_path), **extra}
        parameters = StdioServerParameters(command=command, args=arguments, env=environment)
        with anyio.fail_after(PATIENCE):
            async with Client(parameters, mode=era) as client:
                yield client

    return connected
