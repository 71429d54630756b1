"""The composition root: builds everything from a `Config`, and owns the root task group."""

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.app.serve import (
    Front,
    http_front,
    open_proxy,
    serve,
    shared_front,
    stdio_front,
)

__all__ = [
    "Front",
    "Proxy",
    "http_front",
    "open_proxy",
    "serve",
    "shared_front",
    "stdio_front",
]
