"""Runs the proxy and records its functions that are entered, whenever `flows.py` asks for it.

    python entered.py PORT ARGUMENTS...

The arguments are those of ``mcp-context-proxy``. It connects to the port and reads commands, one a line:
``start`` begins a new recording, ``count`` asks for the number of functions so far, and ``stop`` ends the
recording and asks for a JSON list of ``[file, function]`` in the order of entry.
"""

from __future__ import annotations

import inspect
import json
import re
import runpy
import socket
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = "mcp_context_proxy"

_INNER = re.compile(r"(\.<locals>\.<\w+>)+$")


class Recorder:
    """A profile function that notes each function of the package once, in the order of entry."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        self._recording = False
        self._entered: dict[CodeType, None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a function that is entered; called by the interpreter."""
        if self._recording and event == "call":
            code = frame.f_code
            is_function = (
                code.co_flags & inspect.CO_OPTIMIZED
            )  # not set for the bodies of modules and classes
            if code not in self._entered and is_function and code.co_filename.startswith(self._folder):
                self._entered[code] = None

    def obey(self, command: str) -> str:
        """Carry out one command and return the answer to it."""
        if command == "start":
            self._entered.clear()
        self._recording = command != "stop"
        if command == "stop":
            return json.dumps(list(dict.fromkeys(map(self._name, list(self._entered)))))
        return str(len(self._entered))

    def _name(self, code: CodeType) -> tuple[str, str]:
        """Return file and function; a comprehension or lambda counts as the function around it."""
        return code.co_filename.removeprefix(self._folder), _INNER.sub("", code.co_qualname)


def main() -> None:
    spec = find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    recorder = Recorder(Path(spec.origin).parent)
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    threading.Thread(target=_listen, args=(connection, recorder), daemon=True).start()
    # Only threads that begin after this are recorded, which leaves out the one that listens.
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    sys.argv = [PACKAGE, *sys.argv[2:]]
    runpy.run_module(PACKAGE, run_name="__main__", alter_sys=True)


def _listen(connection: socket.socket, recorder: Recorder) -> None:
    with connection.makefile("rw", encoding="utf-8") as stream:
        for line in stream:
            stream.write(recorder.obey(line.strip()) + "\n")
            stream.flush()


if __name__ == "__main__":
    main()
