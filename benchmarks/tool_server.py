"""A tiny MCP server on standard streams, so that the subject in front of it is measured and not the server.

    python -S -E tool_server.py SERVER COUNT [--modern] [--hang]

It speaks both eras with ``--modern``, else only the handshake. ``--hang`` never answers. The argument
``size`` of any call asks for a text of so many characters, ``crash`` for the end of the process.
"""

from __future__ import annotations

import os
import sys
import time
from os.path import abspath, dirname
from typing import Any

sys.path.append(dirname(dirname(abspath(__file__))))  # noqa: PTH100, PTH120 - pathlib starts slower

from definitions import tools

from mcp_context_proxy.examples import Core, Pipe, Request, serve_stdio


class ToolServer(Core):
    """Made-up tools that answer with a text of the wanted size."""

    caching = dict.fromkeys(Core.caching, (60_000, "private"))

    def __init__(self, server: int, count: int, era: str) -> None:
        super().__init__({"name": "tiny", "version": "1"})
        self.era = era
        self._listed = tools(server, count)

    def tools(self) -> list[Any]:
        """The same tools every time."""
        return self._listed

    def call(self, request: Request) -> Any:
        """Answer any tool."""
        arguments = request.params.get("arguments") or {}
        if "crash" in arguments:
            os._exit(3)
        return {"content": [{"type": "text", "text": "x" * arguments.get("size", 2)}]}


def main() -> None:
    server, count = int(sys.argv[1]), int(sys.argv[2])
    if "--hang" in sys.argv:
        time.sleep(1e6)
    serve_stdio(ToolServer(server, count, "both" if "--modern" in sys.argv else "handshake"), Pipe())


if __name__ == "__main__":
    main()
