"""Readiness of a proxy to take new clients, as the probe ``/readyz`` tells it.

Calls need no store, so a lost one leaves the proxy ready. Nothing here names a server, a path or a person:
the probe is answered without a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.front.http import Readiness
from mcp_context_proxy.system.process import time_of_day

STARTING_SECONDS: Final = 15.0
"""Time for which servers that have not answered yet keep the proxy from being ready, and lists that have just
come: after that, one of them hangs, and clients of the others should not wait for it."""


class Needed(Protocol):
    """A part without which nobody can be served."""

    @property
    def lack(self) -> str | None:
        """The thing that is missing, in words of ours; None if nothing is."""


class ReadinessCheck:
    """Tells whether new clients should come to a proxy; called for each probe."""

    def __init__(self, proxy: Proxy, needed: Iterable[Needed] = ()) -> None:
        """Look at a proxy and at further parts that it needs."""
        self._proxy, self._needed = proxy, tuple(needed)

    def __call__(self) -> Readiness:
        """Return the readiness of this moment. Does not block."""
        proxy, missing = self._proxy, list[str]()
        if proxy.gateway.drain.leaving:
            missing.append("stopping: new clients should go elsewhere")
        if time_of_day() - proxy.started < STARTING_SECONDS:
            starting = [client for client in proxy.fleet.awaited() if not client.failures]
            if starting:
                missing.append(f"{len(starting)} of {len(proxy.fleet.clients)} servers have not answered yet")
            elif proxy.refresh.is_behind:
                missing.append("the lists of servers are not all in the catalog yet")
        missing += [part.lack for part in self._needed if part.lack is not None]
        degraded = []
        if proxy.store.warning is not None:
            degraded.append("the store cannot be used; calls are served without it")
        if proxy.audit.warning is not None:
            degraded.append("the audit cannot be written; calls are served without it")
        return Readiness(missing, degraded)
