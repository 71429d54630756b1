"""Reads the certificates that encrypted connections trust: once for all clients, and off the event loop.

An HTTP client that is given none reads them by itself, each anew: 30 ms and more during which nothing else is
served, with every connection to a server.
"""

from __future__ import annotations

import functools
import ssl
import threading

from mcp_context_proxy.threads import in_thread

_lock = threading.Lock()


async def trusted() -> ssl.SSLContext:
    """What every HTTP client of the proxy verifies its peers with."""
    return await in_thread(_trusted)


def _trusted() -> ssl.SSLContext:
    with _lock:
        return _read()


@functools.cache
def _read() -> ssl.SSLContext:
    import httpx2  # noqa: PLC0415 - a proxy of programs needs none of this

    return httpx2.create_ssl_context()
