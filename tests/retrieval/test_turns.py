"""A loop that takes turns is the loop that it was."""

from __future__ import annotations

import threading

import numpy as np

from mcp_context_proxy.retrieval.turns import taking_turns


def test_every_value_comes_in_order_and_none_before_it_is_asked_for():
    asked: list[int] = []
    values = taking_turns(asked.append(n) or n for n in range(1_000))

    assert next(values) == 0
    assert asked == [0]
    assert list(values) == list(range(1, 1_000))


def test_a_thread_that_waits_gets_its_turn_while_each_step_calls_numpy():
    begun, heard = threading.Event(), threading.Event()

    def wait() -> None:
        begun.wait()
        heard.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    numbers = np.arange(1_000)
    for _ in taking_turns(iter(int, 1)):
        begun.set()
        numbers.searchsorted(numbers)
        if heard.is_set():
            break
    waiting.join()

    assert heard.is_set()
