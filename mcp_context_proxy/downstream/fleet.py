"""All downstream servers together: started at once, each with a life of its own, and replaced one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.reload import same_connection
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.lifecycle import ServerState, StartLimiter
from mcp_context_proxy.downstream.link import Party
from mcp_context_proxy.downstream.listing_cache import ListingCache
from mcp_context_proxy.downstream.server_notifications import OnEvent
from mcp_context_proxy.errors import ServerUnavailableError


@dataclass(frozen=True, slots=True)
class FleetChange:
    """What a new configuration did to the servers, by name."""

    started: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    kept: int = 0
    """Servers whose connection stayed as it was."""

    def __str__(self) -> str:
        told = [
            f"{verb} {', '.join(names)}"
            for verb, names in (
                ("started", self.started),
                ("restarted", self.restarted),
                ("stopped", self.stopped),
            )
            if names
        ]
        return "; ".join([*told, f"{self.kept} unchanged"])


class Fleet:
    """The downstream clients, by name, in the order of the configuration.

    An async context manager: entering starts all servers without waiting for any, leaving stops them all.
    """

    def __init__(
        self,
        configs: Iterable[ServerConfig],
        limits: Limits,
        on_change: Callable[[], None] = lambda: None,
        on_event: OnEvent | None = None,
        memory: ListingCache | None = None,
    ) -> None:
        """Prepare a client for each enabled server; see `DownstreamClient` for the callbacks."""
        self._limits, self._on_change, self._on_event, self._memory = limits, on_change, on_event, memory
        self._log_level: str | None = None
        self.clients: Mapping[str, DownstreamClient] = {
            config.name: self._client(config) for config in configs if config.enabled
        }
        """Those that are called, swapped whole when they become others."""
        self._successors: dict[str, DownstreamClient] = {}
        """Started with a changed configuration, and not yet in their predecessors' places."""
        self._retiring: set[DownstreamClient] = set()
        self._group: TaskGroup | None = None
        self.starts = StartLimiter(limits.starts_at_once)
        """Says when servers are started."""

    def client(self, name: str) -> DownstreamClient:
        """The client of a server.

        Raises:
            ServerUnavailableError: it has been removed since its name was looked up.
        """
        found = self.clients.get(name)
        if found is None:
            raise ServerUnavailableError(name, "removed", "it is no longer configured")
        return found

    def serving(self) -> tuple[DownstreamClient, ...]:
        """The clients that are called now, in the order of the configuration."""
        return tuple(self.clients.values())

    async def __aenter__(self) -> Fleet:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        for client in self.clients.values():
            self._start(client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.stop()
        assert self._group is not None
        return await self._group.__aexit__(kind, error, trace)

    def stop(self) -> None:
        """Ask every server to stop, without waiting for any."""
        for client in (*self.clients.values(), *self._successors.values(), *self._retiring):
            client.stop()
        self._successors.clear()

    async def recall(self) -> None:
        """Know, before anything is started, what is remembered of lazy servers."""
        for client in self.clients.values():
            await client.recall()

    async def settled(self) -> None:
        """Wait until every server is ready or has failed its first attempt."""
        for client in self.clients.values():
            await client.settled()

    async def announce(self, party: Party, method: str) -> None:
        """Tell the servers what the client of a session announced."""
        for client in self.clients.values():
            await client.announce(party, method)

    def set_log_level(self, level: str | None) -> None:
        """Have all servers log what serves all sessions."""
        self._log_level = level
        for client in self.clients.values():
            client.wishes.set_log_level(level)

    def end(self, party: Party) -> None:
        """A session has ended: nothing is kept for it."""
        for client in self.clients.values():
            client.end(party)

    @property
    def unlisted(self) -> tuple[DownstreamClient, ...]:
        """Servers of which nothing is known yet: still starting, or never connected."""
        return tuple(client for client in self.clients.values() if client.introduction is None)

    @property
    def starting(self) -> tuple[str, ...]:
        """Servers whose first attempt to connect is not over."""
        return tuple(
            name
            for name, client in self.clients.items()
            if client.state in {ServerState.WAITING, ServerState.STARTING}
        )

    def apply(self, configs: Iterable[ServerConfig], limits: Limits) -> FleetChange:
        """Follow a changed configuration, without waiting for what that takes.

        A server whose connection is the same keeps it. One that is to be connected differently is replaced
        once its successor is ready or has failed; the calls that are under way in one that goes may finish.
        """
        wanted = {config.name: config for config in configs if config.enabled}
        self._limits = limits
        stopped = [name for name in self.clients if name not in wanted]
        for name in stopped:
            self._retire(self._successors.pop(name, None))
            self._retire(self.clients[name])
        clients: dict[str, DownstreamClient] = {}
        started, restarted = [], []
        for name, config in wanted.items():
            serving = self.clients.get(name)
            if serving is None:
                started.append(name)
                serving = self._started(config)
            elif self._follow(serving, config):
                restarted.append(name)
            clients[name] = serving
        self.clients = clients
        kept = len(wanted) - len(started) - len(restarted)
        self._on_change()
        return FleetChange(tuple(started), tuple(restarted), tuple(stopped), kept)

    def _follow(self, serving: DownstreamClient, config: ServerConfig) -> bool:
        """Have the server run as configured; whether that takes another connection."""
        name = config.name
        successor = self._successors.get(name)
        if successor is not None and same_connection(successor.config, config):
            successor.configure(config, self._limits)
            return False
        self._retire(self._successors.pop(name, None))
        if same_connection(serving.config, config):
            serving.configure(config, self._limits)
            return False
        self._successors[name] = self._started(config)
        assert self._group is not None
        self._group.start_soon(self._succeed, self._successors[name], name=f"successor of {name}")
        return True

    async def _succeed(self, successor: DownstreamClient) -> None:
        """Put a client in the place of its predecessor, as soon as it can do its work.

        One that takes long waits no longer than calls under way may: what is configured is what is wanted.
        """
        name = successor.name
        with anyio.move_on_after(self._limits.drain_seconds):
            await successor.settled()
        if self._successors.get(name) is successor:
            del self._successors[name]
            successor.wishes.take_over(self.clients[name].wishes)
            self._retire(self.clients[name])
            self.clients = {**self.clients, name: successor}
            self._on_change()

    def _client(self, config: ServerConfig) -> DownstreamClient:
        client = DownstreamClient(config, self._limits, self._on_change, self._on_event, self._memory)
        client.wishes.set_log_level(self._log_level)
        return client

    def _started(self, config: ServerConfig) -> DownstreamClient:
        client = self._client(config)
        self._start(client)
        return client

    def _start(self, client: DownstreamClient) -> None:
        assert self._group is not None
        self._group.start_soon(client.run, self.starts, name=f"server {client.name}")

    def _retire(self, client: DownstreamClient | None) -> None:
        if client is not None:
            assert self._group is not None
            self._retiring.add(client)
            self._group.start_soon(self._drain, client, name=f"retiring {client.name}")

    async def _drain(self, client: DownstreamClient) -> None:
        await client.drain(self._limits.drain_seconds)
        client.stop()
        self._retiring.discard(client)
