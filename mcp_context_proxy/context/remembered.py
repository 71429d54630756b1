"""Answers that are given again: for the same question, as long as nothing has changed that they depend on.

One state of things at a time: with another one all is forgotten, so nothing here is ever outdated.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from mcp_context_proxy.embedding.remembered import Lookups

ANSWERS: Final = 256
"""Some 10 kB each; between two changes nobody asks more."""

SECONDS: Final = 3600.0
"""What use has taught fades with time; in an hour by a five-hundredth."""

Answer = TypeVar("Answer")


class RememberedAnswers(Generic[Answer]):
    """Answers by question. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._state: object = None
        self._answers: OrderedDict[Hashable, tuple[float, Answer]] = OrderedDict()
        self.lookups = Lookups()

    def get(self, state: object, question: Hashable) -> Answer | None:
        """The answer to a question in a state of things; None where there is none."""
        with self._lock:
            if state != self._state:
                self._state = state
                self._answers.clear()
            since, answer = self._answers.get(question, (-SECONDS, None))
            if answer is not None and self._clock() - since >= SECONDS:
                del self._answers[question]
                answer = None
            self.lookups.count(hits=0 if answer is None else 1, of=1)
            if answer is not None:
                self._answers.move_to_end(question)
            return answer

    def put(self, state: object, question: Hashable, answer: Answer) -> None:
        """Remember the answer to a question in a state of things, unless there is another one by now."""
        with self._lock:
            if state != self._state:
                return
            self._answers[question] = self._clock(), answer
            self._answers.move_to_end(question)
            if len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)
