"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

# No deadline: how long an example takes says nothing on a machine that is busy.
settings.register_profile("quick", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("quick")

pytest.register_assert_rewrite("support")

# Only after their asserts are to be told in full:
from support.commands import end_fork_server  # noqa: E402
from support.pairwise import pairwise  # noqa: E402
from support.proxies import Host  # noqa: E402
from support.servers import Workshop  # noqa: E402

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy


def pytest_configure(config: pytest.Config) -> None:
    """Let the workers of pytest-xdist take the files in the order of `_longest_first`."""
    if getattr(config.option, "loadscopereorder", False):
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use more workers than cores, because many tests wait for processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + (cores + 1) // 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests marked `pairwise` with few combinations of their parameters, and all others only if asked.

    The others get the mark `full_cross` and are left out unless a person's own ``-m`` speaks of it.
    """
    crosses = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairwise"):
            crosses[item.nodeid.partition("[")[0]].append(item)
    others = set()
    for cross in crosses.values():
        chosen = pairwise([_parameters(item) for item in cross])
        others |= {item for at, item in enumerate(cross) if at not in chosen}
    for item in others:
        item.add_marker("full_cross")
    if others and "full_cross" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item in others])
        items[:] = [item for item in items if item not in others]
    if hasattr(config, "workerinput"):
        _longest_first(items)


def pytest_sessionfinish() -> None:
    """End the fork server, so that its coverage is there when that of all processes is combined."""
    end_fork_server()


def _longest_first(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests, so that no worker waits for another at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def _parameters(item: pytest.Function) -> list[Hashable]:
    """The parameters of a test; a tuple, such as a front and an era, stands for several."""
    values: list[Hashable] = []
    for value in item.callspec.params.values():
        values += value if isinstance(value, tuple) else [id(value)]  # not all can be hashed
    return values


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["handshake", "modern"])
def era(request: pytest.FixtureRequest) -> str:
    """Era of the client."""
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
