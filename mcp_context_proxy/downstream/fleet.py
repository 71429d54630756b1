"""All downstream servers: started together, each with a client of its own; and facts about them.

In facts for a person, the environment and the headers of a server are never shown. In texts about it, values
that came from variables, credentials in URLs, and arguments with the name of a secret are replaced.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.programs import folder_of
from mcp_context_proxy.config.reload import same_connection, with_live_settings
from mcp_context_proxy.config.secrets import Redactor, secret_arguments, secrets_of
from mcp_context_proxy.config.settings import LAUNCH, SERVER_NAME
from mcp_context_proxy.downstream import HIDDEN, Party, without_credentials
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.connections import LATE_KEY, UNPROBED_KEY, ServerMemory
from mcp_context_proxy.downstream.inbound import OnEvent
from mcp_context_proxy.downstream.lifecycle import ServerState, Shared
from mcp_context_proxy.downstream.listing import CachedListing
from mcp_context_proxy.downstream.stdio import KeepLine
from mcp_context_proxy.errors import ServerOff, ServerUnavailableError
from mcp_context_proxy.oauth import Logins
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, one_line, unmarked
from mcp_context_proxy.store.tables import ListingStore
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import in_task, in_thread
from mcp_context_proxy.trust import reaches
from mcp_context_proxy.trust.guard import KnownSecrets

SLOT_SECONDS = 5.0
"""Time for which a starting server counts against the bound: one that hangs must not hold up the others."""

DOWNLOADS_AT_ONCE = 4
"""Most servers that are downloaded at a time, as all together would be ready together, and last."""

NO_NEWS_SECONDS = 0.5
"""Time without a further server after which a search may do with those that are there: servers that are ready
soon after each other are waited for in any case."""

DOWNLOAD_SLOT_SECONDS = 30.0
"""Time for which a server that is downloaded counts against that bound."""


class Clients(dict[str, DownstreamClient]):
    """The clients in use, by name of the server.

    Looking up a server that has been removed since its name was known raises `ServerUnavailableError`.
    """

    def __missing__(self, name: str) -> DownstreamClient:
        raise ServerUnavailableError(name, "removed", "it is no longer configured")


class Fleet:
    """The clients of all downstream servers, by name, in the order of the configuration.

    An async context manager: entering starts all servers without waiting for any, leaving stops them all.
    """

    _group: TaskGroup
    """Runs the clients, from entering on."""

    def __init__(
        self,
        *,
        configs: Iterable[ServerConfig],
        limits: Limits,
        on_change: Callable[[], None],
        on_event: OnEvent,
        store: ListingStore,
        off: Mapping[str, ServerOff],
        known: KnownSecrets,
        logins: Logins,
        keep_line: KeepLine | None = None,
    ) -> None:
        """Prepare a client for each enabled server; see `Shared` for the other arguments.

        `off` has the servers with mistakes in their settings, which are not started.
        """
        self.known, self.logins, self._on_change = known, logins, on_change
        self.starts = StartLimiter(limits.starts_at_once)
        self.shared = Shared(
            on_change=self._listing_changed,
            on_state=self._state_changed,
            on_event=on_event,
            store=store,
            unprobed=ServerMemory(store, UNPROBED_KEY),
            late=ServerMemory(store, LATE_KEY),
            known=known,
            logins=logins,
            keep_line=keep_line,
            take_place=self.starts.take,
        )
        configs = list(configs)
        self.off = off
        """Servers that are off because of a mistake, with the mistake."""
        self._configs = {config.name: config for config in configs}
        """Settings of all other servers, also of those that are switched off, by name."""
        self._limits = limits
        self._log_level: str | None = None
        self.clients: Mapping[str, DownstreamClient] = Clients(
            {config.name: self._client(config) for config in configs if config.enabled}
        )
        """Clients in use. The mapping is replaced as a whole when one of them changes."""
        self._successors: dict[str, DownstreamClient] = {}
        """Clients with a changed configuration that have not replaced their predecessors yet."""
        self._retiring: set[DownstreamClient] = set()
        """Clients no longer in use that still have pending requests."""
        self._following: set[DownstreamClient] = set()
        """Clients that are started once their predecessors are gone."""
        self.unlisted: tuple[DownstreamClient, ...] = ()
        """Clients of servers that have never been connected."""
        self.stale: tuple[str, ...] = ()
        """Names of servers whose listing has changed and cannot be fetched."""
        self.remembered: tuple[DownstreamClient, ...] = ()
        """Clients that are not connected yet, and are listed and searched as the store remembers them."""
        self._state_changed()

    def _client(self, config: ServerConfig) -> DownstreamClient:
        client = DownstreamClient(config, self._limits, self.shared)
        client.subscriptions.set_log_level(self._log_level)
        return client

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
        return await self._group.__aexit__(kind, error, trace)

    def _start(self, client: DownstreamClient) -> None:
        self._group.start_soon(client.run, name=f"server {client.name}")

    def stop(self) -> None:
        """Ask every server to stop, without waiting for any."""
        for client in (*self.clients.values(), *self._successors.values(), *self._retiring):
            client.stop()
        self._successors.clear()

    def configured(self) -> frozenset[str]:
        """Return the names of all servers in the configuration, also of those that are off."""
        # A name that is itself the mistake could be part of the names of another server's tools.
        return frozenset((*self._configs, *filter(SERVER_NAME.fullmatch, self.off)))

    def serving(self) -> tuple[DownstreamClient, ...]:
        """Return the clients in use, in the order of the configuration."""
        return tuple(self.clients.values())

    # Every search asks for the attributes that the next two set, and servers change seldom.

    def _listing_changed(self) -> None:
        self._state_changed()
        self.stale = tuple(client.name for client in self.clients.values() if client.stale)
        self._on_change()

    def _state_changed(self) -> None:
        clients = self.clients.values()
        waiting = {ServerState.WAITING, ServerState.STARTING}
        self.starting = tuple(client.name for client in clients if client.state in waiting)
        """Names of servers that are being connected or have not begun to be."""
        self.remembered = tuple(
            client for client in clients if client.remembered and client.state is not ServerState.ASLEEP
        )
        unlisted = tuple(client for client in clients if client.introduction is None)
        if unlisted != self.unlisted:
            # Names depend on it: see `catalog.names`.
            self.unlisted = unlisted
            self._on_change()
        self.failed = (*self.off, *(client.name for client in unlisted if client.cause))
        """Names of servers without tools, because of a mistake or because they could not be connected to."""

    def raise_if_unavailable(self, name: str | None) -> None:
        """Raise `ServerUnavailableError` if a configured server is off or was never connected.

        Nothing is said about a server that the principal for whom this is done may not reach.
        """
        if name is not None and not reaches(name):
            return
        client = self.clients.get(name or "")
        if client in self.unlisted:
            raise client.unavailable()
        if name is not None and name in self.off:
            raise ServerUnavailableError(name, "off", str(self.off[name]))
        if client is None and (config := self._configs.get(name or "")) is not None:
            place = config.places.get("enabled", f"servers.{config.name}.enabled")
            raise ServerUnavailableError(config.name, f"switched off by {place}")

    async def load_listings(self) -> None:
        """Restore the servers' listings from the store, before any is started."""
        await self.shared.unprobed.load()
        await self.shared.late.load()
        clients = tuple(self.clients.values())

        def cached() -> list[CachedListing | None]:
            return [client.cached_listing() for client in clients]

        for client, listing in zip(clients, await in_thread(cached), strict=True):
            client.restore(listing)

    async def wait_changed(self, *, called: bool = False) -> None:
        """Wait a moment until the catalog has the lists that servers have announced as changed.

        The wait is longer where a tool is `called` that may be new.
        """
        if changed := tuple(self.shared.changed):
            await in_task()
            fetched = [await lists.wait_fetched(called=called) for lists in changed]
            if any(fetched):
                await self.shared.catch_up()

    def look_again(self, server: str | None) -> bool:
        """Have the tools of a server listed again, as `Lists.look_again` does, if it may be reached."""
        client = self.clients.get(server or "")
        return client is not None and reaches(client.name) and client.lists.look_again()

    async def wait_first_connect(self) -> None:
        """Wait until every server is ready or has failed its first attempt."""
        for client in self.clients.values():
            await client.wait_first_connect()

    def hurry(self, server: str | None, means: Callable[[str], bool] | None = None) -> None:
        """Let a server, and those whose name or address a request means, start before other unknown ones."""
        for one in filter(lambda client: reaches(client.name), self.awaited()):
            if one.name == server or (means and means(f"{one.name} {address(one.config)}")):
                self.starts.hurry(one.name)

    async def wait_until_enough(self, enough: Callable[[str], Awaitable[bool]]) -> None:
        """Wait until no unknown server has come for a moment, and those that are there are `enough`.

        This is asked with the names and addresses of the others.
        """
        before = self.awaited()
        while True:
            await anyio.sleep(NO_NEWS_SECONDS)
            if (starting := self.awaited()) == before:
                await self.shared.catch_up()
                if await enough(" ".join(f"{one.name} {address(one.config)}" for one in starting)):
                    return
            before = starting

    def awaited(self, name: str | None = None) -> tuple[DownstreamClient, ...]:
        """Return the clients that start, and of whose servers nothing is known.

        With a name, only that server, known or not: it may have more than is remembered.
        """
        starting = (client for client in self.clients.values() if client.name in self.starting)
        if name is not None:
            return tuple(client for client in starting if client.name == name)
        return tuple(client for client in starting if client in self.unlisted)

    def set_log_level(self, level: str | None) -> None:
        self._log_level = level
        for client in self.clients.values():
            client.subscriptions.set_log_level(level)

    async def notify(self, party: Party, method: str) -> None:
        """Pass a client's notification on to the servers that have a connection for its session alone."""
        for client in self.clients.values():
            await client.notify(party, method)

    def end(self, party: Party) -> None:
        """Close all connections of a session that has ended."""
        for client in self.clients.values():
            client.end(party)

    def failures(self) -> dict[str, str]:
        """Return why servers are not ready that should be, by name."""
        return {name: cause for name, client in self.clients.items() if (cause := failure(client))}

    def apply(
        self,
        configs: Iterable[ServerConfig],
        limits: Limits,
        off: Mapping[str, ServerOff] = MappingProxyType({}),
    ) -> str:
        """Follow a changed configuration, without waiting; return a description of the changes.

        A server whose connection settings are the same keeps its connection. A server with other settings
        is replaced once its successor is ready or has failed. Pending calls of a server that is stopped or
        replaced may finish.
        """
        configs = list(configs)
        self.off = off
        self._configs = {config.name: config for config in configs}
        wanted = {config.name: config for config in configs if config.enabled}
        limits_changed, self._limits = limits != self._limits, limits
        stopped = [name for name in self.clients if name not in wanted]
        for name in stopped:
            self._retire(self._successors.pop(name, None))
            self._retire(self.clients[name])
        clients = Clients()
        started, restarted = [], []
        for name, config in wanted.items():
            client = self.clients.get(name)
            if client is None:
                started.append(name)
                client = self._client(config)
                self._start(client)
            elif self._follow(client, config, limits_changed):
                restarted.append(name)
            clients[name] = client
        self.clients = clients
        self._listing_changed()
        changes = {"started": started, "restarted": restarted, "stopped": stopped}
        told = [f"{verb} {', '.join(names)}" for verb, names in changes.items() if names]
        return "; ".join([*told, f"{len(wanted) - len(started) - len(restarted)} unchanged"])

    def _follow(self, client: DownstreamClient, config: ServerConfig, limits_changed: bool) -> bool:
        """Run a server by its new configuration; return whether that takes another connection."""
        name = config.name
        successor = self._successors.get(name)
        if not limits_changed and config == (successor or client).config:
            return False
        # Even if it is replaced soon: what is turned off now must not be called meanwhile.
        client.configure(with_live_settings(client.config, config), self._limits)
        if successor is not None and same_connection(successor.config, config):
            successor.configure(config, self._limits)
            return False
        self._retire(self._successors.pop(name, None))
        if same_connection(client.config, config):
            client.configure(config, self._limits)
            return False
        successor = self._successors[name] = self._client(config)
        self._start(successor)
        self._group.start_soon(self._replace, successor, name=f"successor of {name}")
        return True

    async def _replace(self, successor: DownstreamClient) -> None:
        """Replace a client by its successor, once that is ready or has failed.

        A slow successor is waited for no longer than pending calls are: the new configuration takes effect.
        """
        name = successor.name
        with anyio.move_on_after(self._limits.drain_seconds):
            await successor.wait_first_connect()
        if self._successors.get(name) is successor:
            del self._successors[name]
            successor.subscriptions.take_over(self.clients[name].subscriptions)
            self._retire(self.clients[name])
            self.clients = Clients({**self.clients, name: successor})
            self._listing_changed()

    def restart(self, name: str) -> None:
        """Stop a server, after its pending calls and no later than those may take, and start it again.

        Calls that come meanwhile wait for it, and its items stay listed as they are known. One that is just
        started again, or with new settings, is left to that. Raises `ServerUnavailableError` if not in use.
        """
        running = self.clients[name]
        if running in self._following or name in self._successors:
            return
        following = self._client(running.config)
        self._following.add(following)
        following.restore(running.known)
        following.subscriptions.take_over(running.subscriptions)
        self.clients = Clients({**self.clients, name: following})
        self._group.start_soon(self._follow_stopped, running, following, name=f"restart of {name}")
        self._listing_changed()

    async def _follow_stopped(self, running: DownstreamClient, following: DownstreamClient) -> None:
        """Start a server when its predecessor, which may hold a port or a file, is gone."""
        self._retiring.add(running)
        await self._drain(running)
        await running.stopped()
        self._following.discard(following)
        if self.clients.get(following.name) is following:
            self._start(following)

    def _retire(self, client: DownstreamClient | None) -> None:
        if client is not None:
            self._retiring.add(client)
            self._group.start_soon(self._drain, client, name=f"retiring {client.name}")

    async def _drain(self, client: DownstreamClient) -> None:
        await client.drain(self._limits.drain_seconds)
        client.stop()
        self._retiring.discard(client)


class StartLimiter:
    """Bounds how many servers are started at a time, and how many before the proxy itself is ready.

    Starting programs compete for the processor with the proxy's first responses. So a first wave starts
    beside the proxy, and the rest follows once that has listed its tools, or a moment after the proxy serves.
    """

    def __init__(self, at_once: int) -> None:
        """Let so many servers start at a time."""
        self._left = {SLOT_SECONDS: at_once, DOWNLOAD_SLOT_SECONDS: min(at_once, DOWNLOADS_AT_ONCE)}
        """Places that are free, by the time for which they are held."""
        self._waiting: list[tuple[str, tuple[float, ...], anyio.Event]] = []
        self._wanted = set[str]()
        """Servers for which a request waits."""
        self._first = self._starting = 0
        """Servers of the first wave that may still begin, and those that have begun."""
        self._listed = anyio.Event()
        """Set once nothing of the first wave is starting any more."""
        self._all = anyio.Event()
        self._all.set()

    def hold_back(self, first: int) -> None:
        """Start no more than so many for now."""
        self._first, self._all = first, anyio.Event()

    async def let_all(self, seconds: float, settled: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start all servers, within the bound, when the first wave is ready, and after `seconds` anyway.

        `settled` waits until what the first wave has listed is served, which needs the processor, too.
        """
        with anyio.move_on_after(seconds):
            await self._listed.wait()
            if settled is not None:
                await settled()
        self._all.set()

    def hurry(self, name: str) -> None:
        """Let a server, for which a request waits, start before the others."""
        self._wanted.add(name)
        self._give_places()

    def _give_places(self) -> None:
        """Give the free places, first to wanted servers, and one too many to one of these at a time."""
        for waiting in sorted(self._waiting, key=lambda one: one[0] not in self._wanted):
            name, places, given = waiting
            if self._left[SLOT_SECONDS] + (name in self._wanted) <= 0:
                break
            if self._left[places[-1]] + (name in self._wanted) > 0:
                self._waiting.remove(waiting)
                for place in places:
                    self._left[place] -= 1
                given.set()

    async def take(self, name: str, downloads: bool = False) -> Callable[[], None]:
        """Wait for a place, and among the downloads for another; return a function that gives them back.

        It may be called more than once; the time of each place ends anyway.
        """
        ahead = not self._all.is_set() and self._first > 0
        if ahead:
            self._first -= 1
            self._starting += 1
        else:
            await self._all.wait()
        places = (SLOT_SECONDS, DOWNLOAD_SLOT_SECONDS) if downloads else (SLOT_SECONDS,)
        held, given = {*places}, anyio.Event()

        def free(*places: float) -> None:
            self._wanted.discard(name)
            for place in held.intersection(places):
                held.discard(place)
                self._left[place] += 1
                self._starting -= ahead and place == SLOT_SECONDS
            if self._starting == 0:
                self._listed.set()
            self._give_places()

        self._waiting.append(waiting := (name, places, given))
        self._give_places()
        if not given.is_set():
            try:
                await given.wait()
            except BaseException:
                if given.is_set():
                    free(*places)
                else:
                    self._waiting.remove(waiting)
                raise
        for place in places:
            asyncio.get_running_loop().call_later(place, free, place)
        return lambda: free(*places)


STDERR_SHOWN: Final = 5
"""Lines shown of a failed server's last output."""


def redacted(config: ServerConfig, text: str) -> str:
    """Return a text without this server's secrets and without control characters, on one line."""
    return one_line(without_credentials(Redactor(secrets_of(config))(text)))


def address(config: ServerConfig) -> str:
    """Return a server's command line or URL, without secrets."""
    if config.url is not None:
        return redacted(config, config.url)
    shown = [*config.args]
    for position, _, value in secret_arguments(config.args):
        shown[position] = shown[position].removesuffix(value) + HIDDEN
    return redacted(config, shlex.join([config.command or "", *shown]).replace(f"'{HIDDEN}'", HIDDEN))


def working_folder(config: ServerConfig) -> str:
    """Return the folder in which a server's program starts, as a person reads it; empty for a URL."""
    if config.command is None:
        return ""
    try:
        folder = redacted(config, one_line(str(folder_of(config))))
    except OSError as error:
        return f"a folder that cannot be used ({error.strerror})"
    return f"{folder} (where the host starts the proxy)" if config.cwd == LAUNCH else folder


def failure(client: DownstreamClient) -> str:
    """Return why a server is not ready; empty if it is ready, or was never started."""
    if client.state in {ServerState.READY, ServerState.ASLEEP}:
        return ""
    return redacted(client.config, client.cause)


def failure_and_remedy(client: DownstreamClient) -> str:
    """Return why a server is not ready, and the remedy, where its output shows one."""
    return "; ".join(filter(None, (why := failure(client), client.remedy if why else "")))


def last_output(client: DownstreamClient) -> tuple[str, ...]:
    """Return the last lines of a server on stderr; lines that it repeats at each restart once.

    Lines without a word, such as those that underline another one, are left out. If none of them states an
    error, the last line that does stands before them.
    """
    said = [line for line in client.stderr if any(map(str.isalnum, line))]
    frames = [number for number, line in enumerate(said) if _FRAME.match(line)]
    if client.remedy and frames:
        # Where the remedy is known, the error says enough: the frames, with their lines of code, do not help.
        said = said[frames[-1] + 2 :] or said[-1:]
    said.reverse()
    lines = [*dict.fromkeys(redacted(client.config, line) for line in said)]
    shown = lines[:STDERR_SHOWN]
    if not any(map(_STATES_ERROR.search, shown)):
        earlier = next(filter(_STATES_ERROR.search, lines[STDERR_SHOWN:]), None)
        shown = shown if earlier is None else [*shown[:-1], earlier]
    return tuple(shown[::-1])


def error_line(client: DownstreamClient) -> str:
    """Return the last line of a server's output that states an error, or its last one; empty if none."""
    lines = last_output(client)
    return next(filter(_STATES_ERROR.search, reversed(lines)), "".join(lines[-1:]))


_FRAME: Final = pattern(r' *File "[^"]+", line \d+')
"""A frame of a traceback of Python, whose line of code follows it."""

_STATES_ERROR: Final = pattern(r"(?:Error|Exception)\b|(?i:\berror:|\bfatal\b|\bbecause the\b|^[×✘] )")


def strays(client: DownstreamClient) -> tuple[str, ...]:
    """Return the first lines of a server on stdout that are no messages."""
    return tuple(redacted(client.config, line) for line in client.output.strays)


def server_facts(
    client: DownstreamClient, findings: list[str], turned_off: int, withheld: int
) -> dict[str, Any]:
    """Return the state of a server, its sizes, and why it failed if it has.

    ``findings`` are about its definitions; the configuration turns ``turned_off`` of its tools off, and
    ``withheld`` of them wait for a person.
    """
    introduction, listing = client.introduction, client.listing
    if client.cause:
        state = "failed"
    elif introduction is None:
        state = client.standing
    else:
        state = "asleep" if client.state is ServerState.ASLEEP else "ready"
    facts: dict[str, Any] = {"name": client.name, "state": state, "address": address(client.config)}
    facts["findings"] = findings
    if folder := working_folder(client.config):
        facts["folder"] = folder
    if introduction is not None:
        said = ((fact, str(introduction.server_info.get(fact, ""))) for fact in ("name", "version"))
        facts |= {
            "era": str(introduction.era),
            "protocol": introduction.version,
            **{f"server_{fact}": unmarked(one_line(text, NAME_CHARACTERS)) for fact, text in said},
            "tools": len(listing.tools),
            "turned_off": turned_off,
            "withheld": withheld,
            "resources": len(listing.resources) + len(listing.templates),
            "prompts": len(listing.prompts),
        }
    if client.cause:
        facts |= {"cause": failure(client), "stderr": last_output(client), "stdout": strays(client)}
    return facts
