"""A tiny MCP server on standard streams, so that what is measured is whatever stands in front of it.

    python -S -E tool_server.py SERVER COUNT [--modern] [--hang]

Both eras with ``--modern``, else the handshake. ``--hang`` never answers. The argument ``size`` of any call
asks for a text of so many characters, ``crash`` for the end of the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from definitions import tools

META = "io.modelcontextprotocol/"


def main() -> None:
    server, count = int(sys.argv[1]), int(sys.argv[2])
    if "--hang" in sys.argv:
        time.sleep(1e6)
    listed, modern = tools(server, count), "--modern" in sys.argv
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        body = answer(message["method"], message.get("params") or {}, listed, modern)
        out.write(json.dumps({"jsonrpc": "2.0", "id": message["id"]} | body).encode() + b"\n")
        out.flush()


def answer(method: str, params: dict[str, Any], listed: list[dict[str, Any]], modern: bool) -> dict[str, Any]:
    """The ``result`` or ``error`` member of the reply."""
    more = {"resultType": "complete"} if META + "protocolVersion" in params.get("_meta", {}) else {}
    if method == "tools/call":
        return {"result": call(params.get("arguments") or {}) | more}
    cached = more | {"ttlMs": 60000, "cacheScope": "private"} if more else {}
    if method == "tools/list":
        return {"result": {"tools": listed} | cached}
    info = {"name": "tiny", "version": "1"}
    capabilities: dict[str, Any] = {"tools": {}}
    if method == "server/discover" and modern:
        versions = ["2026-07-28"]
        meta = {META + "serverInfo": info}
        return {
            "result": {"supportedVersions": versions, "capabilities": capabilities, "_meta": meta} | cached
        }
    if method == "initialize":
        version = {"protocolVersion": "2025-11-25"}
        return {"result": {"capabilities": capabilities, "serverInfo": info} | version}
    return {"error": {"code": -32601, "message": "Method not found"}}


def call(arguments: dict[str, Any]) -> dict[str, Any]:
    """A small result, unless a size is asked for."""
    if "crash" in arguments:
        os._exit(3)
    return {"content": [{"type": "text", "text": "x" * arguments.get("size", 2)}]}


if __name__ == "__main__":
    main()
