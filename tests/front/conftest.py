"""Fixtures of the tests about shared proxies, and about a proxy that the tests of a module share."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.machine import Machine
from support.proxies import HttpProxy
from support.servers import Server, Workshop, tool


@pytest.fixture
def machine(workshop: Workshop) -> Iterator[Machine]:
    # The path of a socket must be short.
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="mcp-"))
    made = Machine(folder, workshop)
    try:
        yield made
    finally:
        for process in made.proxies():
            os.kill(process, signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server(workshop: Workshop, machine: Machine) -> Server:
    calls: dict[str, Any] = {"hang": [{"wait_cancelled": True}]}
    made = workshop.server("work", tools=[tool("echo"), tool("hang")], calls=calls)
    machine.write()
    return made


@pytest.fixture
def proxy(server_and_proxy: tuple[Server, HttpProxy]) -> HttpProxy:
    return server_and_proxy[1]
