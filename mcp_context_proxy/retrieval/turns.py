"""A long loop in a worker thread lets the event loop in now and then."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

TURN_SECONDS = 0.005
"""How long others wait at most: what the interpreter's switch interval promises."""

PAUSE_SECONDS = 0.0001
"""Long enough for a thread that waits to wake up."""

T = TypeVar("T")


def taking_turns(values: Iterable[T]) -> Iterator[T]:
    """The values, with a pause whenever a turn is over.

    Where each step calls numpy, the interpreter's own switching fails: each call gives the lock up and has it
    back before a thread that waits for it wakes, and every such release begins that thread's waiting anew. An
    event loop got no turn for 360 ms beside the embeddings of 100,000 tools.
    """
    end = time.perf_counter() + TURN_SECONDS
    for value in values:
        yield value
        if time.perf_counter() >= end:
            time.sleep(PAUSE_SECONDS)
            end = time.perf_counter() + TURN_SECONDS
