"""A loop that lets other threads run yields the same values."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest

from mcp_context_proxy.retrieval.indexing import yielding_gil


def test_values_are_produced_lazily_and_in_order():
    asked: list[int] = []
    values = yielding_gil(asked.append(n) or n for n in range(1_000))

    assert next(values) == 0
    assert asked == [0]
    assert list(values) == list(range(1, 1_000))


@pytest.fixture
def never_switching() -> Iterator[None]:
    """The interpreter takes the lock from no thread by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(3600.0)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("never_switching")
def test_a_long_loop_lets_other_threads_run():
    begun, heard = threading.Event(), threading.Event()

    def wait() -> None:
        begun.wait()
        heard.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    given_up = time.monotonic() + 10
    begun.set()
    for _ in yielding_gil(count()):
        if heard.is_set() or time.monotonic() > given_up:
            break
    was_heard = heard.is_set()
    waiting.join()

    assert was_heard
