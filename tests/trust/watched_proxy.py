"""Runs the proxy and measures each step of its event loop: ``watched_proxy.py REPORT ARGUMENT...``.

A process of its own, so that neither the garbage of other tests nor coverage takes part. REPORT gets a line
of JSON for each step that takes too long: when it began, its seconds, and where it was. The time is that of
the thread of the loop on a processor: a busy machine lets it wait, but does not make it longer. A slow
machine does, so what is allowed is measured in work that the same thread does right after the step.
"""

import asyncio
import json
import sys
import threading
import time
import traceback
from pathlib import Path

LONGEST_STEP = 0.05
"""Seconds for which nobody else is served, at most, where `WORK` takes a quarter of it or less."""

LONGEST_WORK = 4
"""Times that `WORK` may be done in the longest step on a slower machine."""

WORK = json.dumps([{"id": at, "name": f"n{at}", "t": ["a", "b"]} for at in range(20_000)])
"""About 1 MB, 120,000 values, to be decoded. Decoding a result of 10 MB takes ten times as long."""

LOOK_SECONDS = 0.02
"""Time between two looks at where a step is that takes long."""

FRAMES = 12
"""Callers that are named."""


def seconds_of_work() -> float:
    """Return how long this thread takes for `WORK`, as the median of three measurements."""
    measured = []
    for _ in range(3):
        before = time.thread_time()
        json.loads(WORK)
        measured.append(time.thread_time() - before)
    return sorted(measured)[1]


class Watch:
    """Measures the steps of the event loop of this thread."""

    def __init__(self, report: Path) -> None:
        self._report, self._loop_thread = report, threading.get_ident()
        self._step = 0
        self._begun: float | None = None
        self._seen: tuple[int, list[str]] = (0, [])
        """The latest step that took longer than a look, and where it was."""

    def install(self) -> None:
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            self._step += 1
            self._begun = began = time.monotonic()
            before = time.thread_time()
            run(handle)
            took = time.thread_time() - before
            self._begun = None
            if took > LONGEST_STEP and took > LONGEST_WORK * seconds_of_work():
                self._write(began, took, repr(handle))

        asyncio.Handle._run = measured  # type: ignore[method-assign]
        threading.Thread(target=self._look, daemon=True).start()

    def _write(self, began: float, took: float, handle: str) -> None:
        step, frames = self._seen
        where = frames if step == self._step else [handle[:300]]
        with self._report.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"began": began, "seconds": round(took, 3), "where": where}) + "\n")

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            step, begun = self._step, self._begun
            if begun is None or time.monotonic() - begun < LOOK_SECONDS or self._seen[0] == step:
                continue
            frame = sys._current_frames().get(self._loop_thread)
            found = traceback.extract_stack(frame, limit=FRAMES)
            if self._step == step:
                self._seen = step, [f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in found]


if __name__ == "__main__":
    from mcp_context_proxy.cli import main

    Watch(Path(sys.argv.pop(1))).install()
    main()
