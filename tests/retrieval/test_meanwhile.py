"""Results that a thread computes while their owner waits for something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval import Engine
from mcp_context_proxy.system.threads import MEANWHILE_THREADS, Meanwhile

PATIENCE = 60.0


def busy_threads(stack: ExitStack) -> None:
    """Keep every thread for such results busy until the stack is left."""
    over = threading.Event()
    stack.callback(over.set)
    for _ in range(MEANWHILE_THREADS):
        begun = threading.Event()

        def wait(begun: threading.Event = begun) -> bool:
            begun.set()
            return over.wait(PATIENCE)

        Meanwhile(wait).begin()
        assert begun.wait(PATIENCE)


def test_another_thread_computes_what_has_begun() -> None:
    began = threading.Event()

    def compute() -> int:
        began.set()
        return threading.get_ident()

    found = Meanwhile(compute)
    found.begin()

    assert began.wait(PATIENCE)
    assert found.result() == found.result() != threading.get_ident()


def test_whoever_asks_computes_what_no_thread_is_free_for() -> None:
    found, counted = Meanwhile(threading.get_ident), Meanwhile(threading.get_ident)

    assert counted.result() == threading.get_ident()
    with ExitStack() as stack:
        busy_threads(stack)
        found.begin()
        assert found.result() == threading.get_ident()


def test_an_error_is_raised_where_the_result_is_asked_for() -> None:
    def fail() -> int:
        raise ValueError("no")

    found = Meanwhile(fail)
    found.begin()

    with pytest.raises(ValueError, match="no"):
        found.result()


def test_a_search_gives_the_same_whether_or_not_a_thread_is_free(
    word_vectors: Callable[..., Any], tool: Callable[..., Tool], snapshot: Callable[..., Snapshot]
) -> None:
    catalog = snapshot(tool("create_issue", "Create an issue"), tool("list_files", "List the files"))

    def best() -> list[tuple[str, float, str]]:
        found = Engine(word_vectors()).search("create a new issue", catalog)
        return [(one.item.name, one.score, one.why) for one in found.results]

    usual = best()
    assert usual
    with ExitStack() as stack:
        busy_threads(stack)
        assert best() == usual
