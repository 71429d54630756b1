"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpcore2
import pytest
from hypothesis import settings
from hypothesis.strategies import text

SHELL = re.compile(
    "(?i).*_PROXY|PYTHON(?!PATH|HOME).*|CLICOLOR.*|(FORCE|NO)_COLOR|COLUMNS|LINES"
    "|MCP_CONTEXT_PROXY_(?!AXE|DEBUGGABLE).*"
)
"""Variables of a developer's shell that change output, connections, programs in Python, or the proxy."""

# No deadline: how long an example takes says nothing on a machine that is busy.
# No failed examples are kept in a checkout that cannot be written: hypothesis would warn, which is an error.
COMMON: dict[str, Any] = {"deadline": None} | ({} if os.access(".", os.W_OK) else {"database": None})
settings.register_profile("quick", max_examples=25, **COMMON)
settings.register_profile("fixed", max_examples=25, derandomize=True, **COMMON)
settings.register_profile("thorough", max_examples=100, **COMMON)
settings.load_profile("quick")

# A shell also says who may read new files, and lets jobs in the background ignore Ctrl-C.
for variable in filter(SHELL.fullmatch, [*os.environ]):
    del os.environ[variable]
os.umask(0o022)
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of processes are started, and each would compile what it imports.
sys.dont_write_bytecode = False

# Hundreds of HTTP clients are opened, and each would read all trusted certificates, which takes 20 ms.
httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)

# Until all tests are collected, hardly anything is garbage, and each look at what there is takes longer.
gc.disable()

SLOW_WEIGHT, SERVERS_WEIGHT = 50, 5
"""Quick tests that take about as long as a slow one, and as one that may start servers."""

SHARING = ("tests/every_front/",)
"""Packages whose files share running proxies."""

pytest_plugins = ["support.chat", "support.coverings"]
pytest.register_assert_rewrite("support")

# Only after their asserts are to be told in full:
from support import measuring  # noqa: E402

measuring.begin()

from support.commands import end_fork_server, held_fork_server, share_fork_server  # noqa: E402
from support.proxies import Host  # noqa: E402
from support.servers import Workshop  # noqa: E402

if TYPE_CHECKING:
    from mcp_context_proxy.app.proxy import Proxy


def pytest_configure(config: pytest.Config) -> None:
    """Let the workers of pytest-xdist take the files in the order of the hook below."""
    if getattr(config.option, "loadscopereorder", False):
        config.option.loadscopereorder = False
    if not hasattr(config, "workerinput"):
        measuring.forget()
    if given := getattr(config, "workerinput", {}).get("fork_server"):
        share_fork_server(given)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let all workers of pytest-xdist use one fork server, which the first that needs it starts."""
    if sys.platform != "win32":
        node.workerinput["fork_server"] = str(held_fork_server())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready() -> None:
    """List the characters for Hypothesis once, while the workers collect, and not in each of them."""
    text().validate()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin with another folder, so that not all compile the same modules at once."""
    report = yield
    if collector.path == Path(__file__).parent and (worker := getattr(collector.config, "workerinput", None)):
        at = len(report.result) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result = [*report.result[at:], *report.result[:at]]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use two workers for each core, because a worker waits for processes half of its time."""
    return 2 * (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give a package whose files share running proxies to one worker, as pytest-xdist does with a file."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    return Scheduling(config, log)


def together(nodeid: str) -> str:
    """Return the file of a test, or its package if the files of that share running proxies."""
    file = nodeid.partition("::")[0]
    return next((package for package in SHARING if file.startswith(package)), file)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no worker waits for another at the end.

    Whatever a worker began to collect with, all have the same order then.
    """
    if hasattr(config, "workerinput"):
        weights = Counter[str]()
        for item in items:
            slow, servers = item.get_closest_marker("slow"), "workshop" in getattr(item, "fixturenames", ())
            if slow:
                weights[together(item.nodeid)] += SLOW_WEIGHT * slow.kwargs.get("times", 1)
            else:
                weights[together(item.nodeid)] += SERVERS_WEIGHT if servers else 1
        items.sort(key=lambda item: (-weights[together(item.nodeid)], item.nodeid.partition("::")[0]))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Begin with garbage collection, which need not look at the modules and the thousands of tests."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the fork server, and write what all processes have run if that is measured."""
    end_fork_server()
    measuring.save()
    if not hasattr(session.config, "workerinput") and not session.config.option.collectonly:
        measuring.write_data()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(
    params=[pytest.param(each, marks=pytest.mark.either("era")) for each in ("handshake", "modern")]
)
def era(request: pytest.FixtureRequest) -> str:
    """Era of the client."""
    return str(request.param)


@pytest.fixture
def host(proxy: Proxy, era: str) -> Host:
    """A client of the module's own ``proxy``."""
    return Host(proxy, era)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a store that is not there yet."""
    return tmp_path / "store.sqlite3"


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    """Makes downstream servers and the configuration that names them."""
    made = Workshop(tmp_path)
    yield made
    made.close()
