"""Serve the tools of a corpus with FastMCP and its BM25 search, as a peer for benchmarks/leaderboard.py.

    FASTMCP_PYTHON benchmarks/fastmcp_search.py CORPUS

FASTMCP_PYTHON is an interpreter that has FastMCP 3 or later; the project does not depend on it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.transforms.search import BM25SearchTransform
from fastmcp.tools import Tool
from fastmcp.tools.base import ToolResult


class Listed(Tool):
    """A tool that is listed and does nothing."""

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Answer with nothing."""
        del arguments
        return ToolResult(content="")


def main() -> None:
    server = FastMCP("corpus", transforms=[BM25SearchTransform(max_results=10)])
    for tool in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        schema = tool.get("inputSchema") or {"type": "object", "properties": {}}
        server.add_tool(
            Listed(name=tool["name"], description=tool.get("description") or "", parameters=schema)
        )
    server.run(show_banner=False)


if __name__ == "__main__":
    main()
