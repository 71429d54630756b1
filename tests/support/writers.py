"""A process that starts writers to a store and kills them: ``python -m support.writers STORE``.

It has imported what they need and only forks, so that hundreds can be killed in seconds. Commands are lines:
``start NAME``, ``kill NAME``. What is said, by the writers too, are lines: ``NAME 7``, once round 7 is
written, and ``gone NAME``.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.statistics import ToolUsage, UsageSlot
from mcp_context_proxy.store.tables import RequestRow

TOGETHER = 8
"""Rows of one transaction, which are there together or not at all."""
PAUSE_SECONDS = 0.0005
NOW = 1_700_000_000.0


def write(path: Path, name: str) -> None:
    """Write the same rows again and again, each time with the next number."""
    with open_store(path) as store:
        assert store.warning is None, store.warning
        for n in range(1, 1_000_000):
            rows = {row.to_bytes(32, "big"): np.full(4, n, np.float32) for row in range(TOGETHER)}
            store.vectors.put(name, rows)
            store.statistics.add([(UsageSlot.of(NOW), ToolUsage("s", name, calls=1, last=NOW))], {}, [])
            store.requests.put([RequestRow(name, NOW, None, b"%d" % n)], 100_000, 0.0)
            os.write(1, f"{name} {n}\n".encode())
            # SQLite looks for a free lock ever more seldom: who never lets go makes others wait for long.
            time.sleep(PAUSE_SECONDS)


def serve(path: Path) -> None:
    """Carry out commands until the input ends; then nobody is left."""
    running: dict[str, int] = {}
    for line in sys.stdin:
        command, name = line.split()
        if command == "start":
            running[name] = os.fork()
            if running[name] == 0:
                write(path, name)
        else:
            end(running.pop(name))
            os.write(1, f"gone {name}\n".encode())
    for process in running.values():
        end(process)


def end(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


class Writers:
    """The other side."""

    def __init__(self, commands: IO[str], said: IO[str]) -> None:
        self._commands, self._said = commands, said
        self.acknowledged: dict[str, int] = {}

    def start(self, name: str) -> None:
        """Start a writer; it has written something when this returns."""
        self._command("start", name)
        while name not in self.acknowledged:
            self._hear()

    def kill(self, name: str) -> int:
        """Kill a writer; how many rounds it has acknowledged."""
        self._command("kill", name)
        while self._hear() != ("gone", name):
            pass
        return self.acknowledged.pop(name)

    def _command(self, *words: str) -> None:
        self._commands.write(" ".join(words) + "\n")
        self._commands.flush()

    def _hear(self) -> tuple[str, str]:
        line = self._said.readline()
        assert line, "the writers have ended"
        who, what = line.split()
        if who != "gone":
            self.acknowledged[who] = int(what)
        return who, what


@contextmanager
def writers(path: Path) -> Iterator[Writers]:
    """Have writers for a store."""
    command = [sys.executable, "-m", "support.writers", str(path)]
    folder = Path(__file__).parents[1]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Writers(process.stdin, process.stdout)
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            process.kill()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
