"""A healthy neighbour of the server that a test is about, and whether it works."""

import pytest
from support.proxies import Host
from support.servers import Server, Workshop, tool


@pytest.fixture
def good(workshop: Workshop) -> Server:
    """A healthy neighbour."""
    return workshop.server("good", tools=[tool("fine")])


async def works(host: Host) -> bool:
    return "good__fine" in await host.names() and "isError" not in await host.call("good__fine")
