"""This process as a member of the cluster: its parts, from joining to leaving."""

from __future__ import annotations

import logging
import re
import secrets
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import anyio
from starlette.types import ASGIApp

from mcp_context_proxy.cluster.contexts import SharedContexts, StoredRequests
from mcp_context_proxy.cluster.homes import Homes
from mcp_context_proxy.cluster.replicas import Announcements, ClusterCounts, Relay, Replicas, Signer
from mcp_context_proxy.cluster.tables import LeftResultTable, hash_of, tables_of
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.tables import keys_of
from mcp_context_proxy.context.records import RequestRecords
from mcp_context_proxy.context.session import Handles
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import ConfigError, ConfigProblem, StoreError
from mcp_context_proxy.front.sse import EventStreams
from mcp_context_proxy.front.streamable_http import StreamableHttp
from mcp_context_proxy.results.kept import KeptResults, KeptText
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.server.pending_input import PendingInput
from mcp_context_proxy.store import Store
from mcp_context_proxy.store.credentials import Seal, SealedRow
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

UPKEEP_SECONDS = 30.0
"""Time between two notes of the contexts that are in use, with which idle ones are forgotten."""

LEFT_BYTES = 64 * 1024 * 1024
"""Size of the large results that a replica leaves behind when it ends, compressed."""

LEFT_SECONDS = 3.0
"""Time for leaving them, after everything else has ended."""

_RESULT = "result"

_UNSUITED = re.compile(r"[^A-Za-z0-9_-]+")


class LeftResults:
    """Large results of replicas that were told to end: they leave them in the store, sealed, for a while.

    A result is sealed for its id and its owner, so that nobody else can read it here either.
    """

    def __init__(self, table: LeftResultTable, seal: Seal, kept: KeptResults) -> None:
        self._table, self._seal, self._kept = table, seal, kept
        kept.left = self.read

    async def read(self, owner: str, result_id: str) -> KeptText | None:
        """Return a result that another replica has left."""
        id_hash = hash_of(result_id)

        def read() -> bytes | None:
            found = self._table.get(id_hash)
            if found is None:
                return None
            content = self._seal.opened(SealedRow(_RESULT, f"{owner}\0{result_id}", *found, 0))
            return None if content is None else zlib.decompress(content)

        try:
            content = await in_thread(read)
        except StoreError:
            return None
        if content is None:
            return None
        server, _, text = content.partition(b"\0")
        return KeptText(text, server.decode())

    async def leave(self) -> None:
        """Leave the latest results behind, as far as there is time and room."""
        left = 0
        with anyio.move_on_after(LEFT_SECONDS):
            for owner, result_id in self._kept.all():
                kept = await self._kept.get(owner, result_id)
                if kept is None:
                    continue
                size = await in_thread(self._write, owner, result_id, kept)
                left += size
                if not size or left > LEFT_BYTES:
                    return

    def _write(self, owner: str, result_id: str, kept: KeptText) -> int:
        content = zlib.compress(kept.server.encode() + b"\0" + kept.text, 1)
        sealed = self._seal.sealed(_RESULT, f"{owner}\0{result_id}", content)
        try:
            self._table.put(hash_of(result_id), sealed, self._seal.mark)
        except StoreError as error:
            logger.warning("large results cannot be left to other replicas: %s", error)
            return 0
        return len(sealed)

    async def forget_old(self, seconds: float) -> None:
        """Forget those that were left long ago."""
        with suppress(StoreError):
            await in_thread(self._table.forget_old, seconds)


class Member:
    """The parts of a cluster in this process."""

    def __init__(
        self,
        *,
        config: Config,
        store: Store,
        port: int,
        gateway: Gateway,
        handles: Handles,
        pending_input: PendingInput,
        changes: ChangeNotifier,
        fleet: Fleet,
        records: RequestRecords,
        results: KeptResults,
    ) -> None:
        """Prepare to join; the front of this replica is at `port`.

        Raises:
            ConfigError: there is no database that replicas could share, or no key.
        """
        from mcp_context_proxy.store.postgres import PostgresDatabase  # noqa: PLC0415 - an extra

        settings = config.cluster
        if not isinstance(store.database, PostgresDatabase):
            message = "needs store.url, the database that all replicas share"
            raise ConfigError([ConfigProblem(config.path, None, "cluster.enabled", message)])
        keys = keys_of(settings)
        # It may be in a file of its own, and then the configuration does not have it.
        fleet.known.know_own(("cluster.key", keys[0].decode("utf-8", "replace")))
        fallback = _UNSUITED.sub("-", config.store.replica or "") or secrets.token_hex(6)
        self.name = settings.replica or fallback
        self.address = settings.advertise or f"http://{_own_host(config.http.host)}:{port}"
        self._gateway, self._idle_seconds = gateway, config.limits.session_idle_seconds
        self.counts = ClusterCounts(
            store_up=lambda: store.warning is None, does_upkeep=store.database.does_upkeep
        )
        replicas_table, self._table, left = tables_of(store.database)
        self._left = LeftResults(left, Seal(keys), results)
        self.replicas = Replicas(
            replicas_table,
            name=self.name,
            instance=store.database.writer,
            address=self.address,
            keys=keys,
            heartbeat_seconds=settings.heartbeat_seconds,
            counts=self.counts,
        )
        self.contexts = SharedContexts(self._table, handles, self.name, self.counts)
        self._signer = Signer(keys, self.name)
        self._relay = Relay(self._signer)
        self._hints, self._changes, self._fleet = store.database.hints, changes, fleet
        self._stored = StoredRequests(records)
        self._ended = gateway.ended_calls
        pending_input.prefix = results.prefix = f"{self.name}."
        results.listed_for_all = bool(config.results.max_tokens)
        gateway.sharing = self.contexts
        self.replicas.on_drain = self._drain
        self.replicas.after_beat = self.contexts.lose_adopted

    @property
    def host(self) -> str:
        """The Host under which other replicas send relays here."""
        return urlsplit(self.address).netloc.lower()

    def homes(self, app: StreamableHttp, streams: EventStreams) -> tuple[ASGIApp, ASGIApp]:
        """Return the applications before the endpoint, and before that of messages for event streams."""
        made = Homes(
            app,
            streams,
            replicas=self.replicas,
            contexts=self.contexts,
            signer=self._signer,
            relay=self._relay,
            drain=self._gateway.drain,
            resources=self._gateway.resources,
            counts=self.counts,
        )
        return made, made.message

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be a member meanwhile; afterwards the sessions of this replica have no home."""
        announcements = Announcements(self._hints, self._changes, self._fleet)
        self._ended.elsewhere = self._stored.ask
        try:
            await self.replicas.join()
            async with anyio.create_task_group() as group:
                for part in (self.replicas.run, self.contexts.run, self._relay.run, self._stored.run):
                    group.start_soon(part)
                group.start_soon(self._keep_up)
                yield
                group.cancel_scope.cancel()
        finally:
            announcements.close()
            self._ended.elsewhere = None
            with anyio.CancelScope(shield=True):
                await self.contexts.flush()
                await self._left.leave()
                await self.replicas.leave()

    def _drain(self) -> None:
        self._gateway.drain.leaving = True

    async def _keep_up(self) -> None:
        while True:
            await anyio.sleep(min(UPKEEP_SECONDS, self._idle_seconds / 4))
            await self.contexts.keep_up(self._idle_seconds)
            await self._left.forget_old(self._idle_seconds)


def _own_host(host: str) -> str:
    """Return a name of this machine for the other replicas, if the front listens on all of its addresses."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostbyname(socket.gethostname())
    return f"[{host}]" if ":" in host else host
