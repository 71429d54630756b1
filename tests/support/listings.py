"""A catalog with approvals, whose servers list whatever a test says; nothing is connected."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from msgspec.structs import replace

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.documents import DocumentLibrary
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.config.settings import ApprovalMode
from mcp_context_proxy.downstream.listing import ServerListing
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.trust.approval import ApprovalEvent, Approvals
from mcp_context_proxy.trust.decisions import decide, hash_of, pending
from mcp_context_proxy.trust.fingerprints import State

SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}}


@dataclass(frozen=True)
class Introduced:
    """The introduction of a server, as far as the catalog reads it."""

    instructions: str = ""


INTRODUCED = Introduced()
"""That of a server that says nothing about itself."""


def tool(name: str, description: str = "Adds two numbers.", **more: Any) -> dict[str, Any]:
    """A tool's definition."""
    return {"name": name, "description": description, "inputSchema": SCHEMA, **more}


@dataclass(eq=False)
class Client:
    """The side of a client that the catalog sees."""

    config: ServerConfig
    listing: ServerListing = field(default_factory=ServerListing)
    introduction: object = INTRODUCED

    @property
    def name(self) -> str:
        return self.config.name


class Run:
    """One run of a proxy on a store: its catalog, from a start to a stop."""

    def __init__(self, store: Store, mode: ApprovalMode = "notice", **expose: Any) -> None:
        self.store, self.clients = store, dict[str, Client]()
        self.approvals = Approvals(store.approvals, mode)
        self.events: list[ApprovalEvent] = []
        self.approvals.observers.append(self.events.extend)
        self.catalog = Catalog(
            ExposeConfig(**expose),
            Limits(),
            lambda: cast(Any, self.clients.values()),
            DocumentLibrary([], Limits()),
            configured=lambda: frozenset(self.clients),
            approvals=self.approvals,
        )

    def list(
        self,
        server: str,
        *tools: Any,
        version: str = "",
        settings: dict[str, Any] | None = None,
        **lists: Any,
    ) -> Snapshot:
        """Have a server list tools, and prompts and templates by keyword; return the snapshot."""
        client = self.clients.get(server)
        if client is None or settings is not None:
            config = ServerConfig(name=server, **{"command": f"run-{server}", **(settings or {})})
            client = self.clients[server] = Client(config)
        lists = {name: tuple(map(encoded, entries)) for name, entries in lists.items()}
        if tools:
            lists["tools"] = tuple(map(encoded, tools))
        versions = dict.fromkeys(("tools", "prompts", "templates"), version) if version else {}
        client.listing = replace(client.listing, **lists, versions=versions)
        return self.catalog.refresh()

    def served(self) -> list[str]:
        """The exposed names of all tools that are listed and can be called."""
        return list(self.catalog.snapshot.tools)


def approve(store: Store, server: str, *names: str) -> None:
    """Approve the definitions that wait at a server, as a person does; with names only that."""
    waiting = [row for row in pending(store.approvals.record(server).rows) if not names or row.name in names]
    decide(store, server, names, State.APPROVED, by="test", expected=hash_of(waiting))


def approve_in(proxy: Proxy, server: str) -> None:
    """Approve the definitions that wait at a server of a running proxy, which then serves them."""
    approve(proxy.store, server)
    proxy.approvals.refresh()
    proxy.catalog.refresh()


def encoded(entry: Any) -> bytes:
    """A definition as a server sends it."""
    return entry if isinstance(entry, bytes) else json.dumps(entry).encode()
