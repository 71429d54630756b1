"""All downstream servers together: started at once, each with a life of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream.client import DownstreamClient, State
from mcp_context_proxy.wire.envelope import Members

Event = Callable[[str, str, Members], None]
"""Takes what a server announced: its name, the method, the params."""


class Fleet:
    """The downstream clients, by name, in the order of the configuration.

    An async context manager: entering starts all servers without waiting for any, leaving stops them all.
    """

    def __init__(
        self,
        configs: Iterable[ServerConfig],
        limits: Limits,
        on_change: Callable[[], None] = lambda: None,
        on_event: Event | None = None,
    ) -> None:
        """Prepare a client for each enabled server; see `DownstreamClient` for the callbacks."""
        self.clients = {
            config.name: DownstreamClient(
                config, limits, on_change, partial(on_event, config.name) if on_event else None
            )
            for config in configs
            if config.enabled
        }
        self._limits = limits
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Fleet:
        self._group = anyio.create_task_group()
        group = await self._group.__aenter__()
        starting = anyio.Semaphore(self._limits.starts_at_once)
        for client in self.clients.values():
            group.start_soon(client.run, starting, name=f"server {client.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        for client in self.clients.values():
            client.stop()
        assert self._group is not None
        return await self._group.__aexit__(kind, error, trace)

    async def settled(self) -> None:
        """Wait until every server is ready or has failed its first attempt."""
        for client in self.clients.values():
            await client.settled()

    @property
    def unlisted(self) -> tuple[DownstreamClient, ...]:
        """Servers of which nothing is known yet: still starting, or never connected."""
        return tuple(client for client in self.clients.values() if client.introduction is None)

    @property
    def starting(self) -> tuple[str, ...]:
        """Servers whose first attempt to connect is not over."""
        return tuple(
            name for name, client in self.clients.items() if client.state in {State.WAITING, State.STARTING}
        )
