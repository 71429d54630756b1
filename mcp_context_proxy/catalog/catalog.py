"""The catalog: everything there is behind the proxy, as an immutable snapshot that is swapped whole.

Definitions stay the bytes that came over the wire, but for what must not be shown. Entries are taken one by
one: a bad one is withheld with a reason, never the whole list.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from mcp_context_proxy.catalog import definitions
from mcp_context_proxy.catalog.definitions import UnfitError, fingerprint, lookalikes, steady
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.items import Document, Prompt, Resource, Snapshot, Source, Tool
from mcp_context_proxy.protocol import envelope

logger = logging.getLogger(__name__)

T = TypeVar("T", Tool, Resource, Prompt)


class Documents(Protocol):
    """Where rules and references come from."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The owners of the documents and of their embeddings."""
        ...


@dataclass(frozen=True, slots=True)
class _Parsed:
    """What a listing gave under one configuration of its server."""

    config: ServerConfig
    definitions: Sequence[bytes]
    tools: tuple[Tool, ...]
    findings: tuple[str, ...]


class Catalog:
    """Builds snapshots from the downstream clients and the documents."""

    def __init__(
        self,
        expose: ExposeConfig,
        limits: Limits,
        clients: Callable[[], Iterable[DownstreamClient]],
        documents: Documents,
    ) -> None:
        """Start with an empty snapshot; `refresh` fills it.

        Args:
            expose: How tools are named.
            limits: Bounds on definitions.
            clients: Gives the downstream clients there are now, in the order of the configuration.
            documents: The rules and references.
        """
        self._expose, self._limits = expose, limits
        self._serving, self._documents = clients, documents
        self._clients: tuple[DownstreamClient, ...] = ()
        self._parsed: dict[str, _Parsed] = {}
        self._refreshing = threading.Lock()
        self.reserved: frozenset[str] = frozenset()
        """Names of the proxy's own tools."""
        self.snapshot = Snapshot(generation=0, sources=())
        """The current snapshot. A request takes it once and uses it to the end."""

    def configure(self, expose: ExposeConfig, limits: Limits) -> None:
        """Name and bound what there is differently, from the next `refresh` on."""
        with self._refreshing:
            self._expose, self._limits = expose, limits
            self._parsed = {}

    def refresh(self) -> Snapshot:
        """Build and publish a snapshot of what the clients and documents hold now. Thread-safe."""
        with self._refreshing:
            return self._build()

    def _build(self) -> Snapshot:
        findings: list[str] = []
        self._clients = tuple(self._serving())
        self._parsed = {
            client.name: self._parsed[client.name] for client in self._clients if client.name in self._parsed
        }
        tools = steady(self.snapshot.tools, self._named_tools(findings))
        by_server: dict[str, list[Tool]] = {client.name: [] for client in self._clients}
        for tool in tools.values():
            by_server[tool.server].append(tool)
        sources = [
            self._source(client, tuple(by_server[client.name]))
            for client in self._clients
            if by_server[client.name]
        ]
        document_sources = self._documents.sources
        documents = [
            item for source in document_sources for item in source.items if isinstance(item, Document)
        ]
        made = Snapshot(
            generation=self.snapshot.generation + 1,
            sources=(*sources, *document_sources),
            tools=tools,
            documents={item.uri: item for item in sorted(documents, key=lambda item: item.uri)},
            resources=steady(self.snapshot.resources, self._resources(findings)),
            templates=tuple(self._templates(findings)),
            prompts=steady(self.snapshot.prompts, self._prompts(findings)),
            findings=tuple(findings),
        )
        if not _same(self.snapshot, made):
            self.snapshot = made
        return self.snapshot

    def _source(self, client: DownstreamClient, tools: tuple[Tool, ...]) -> Source:
        """The same object as before when nothing in it changed: what was derived from it stays good."""
        known = next((source for source in self.snapshot.sources if source.key == client.name), None)
        if known is not None and known.items == tools and known.embeddings is client.tool_embeddings:
            return known
        return Source(client.name, tools, client.tool_embeddings)

    def _named_tools(self, findings: list[str]) -> dict[str, Tool]:
        tools = [tool for client in self._clients for tool in self._tools_of(client, findings)]
        if len(tools) > self._limits.tools:
            findings.append(
                f"{len(tools) - self._limits.tools:,} tools over {self._limits.tools:,} are withheld"
            )
            del tools[self._limits.tools :]
        if not self._expose.prefix:
            pairs = [tool.key for tool in tools]
            names = definitions.bare_names(pairs, self.reserved, self._expose.max_name_length)
            tools = [replace(tool, exposed_name=names[tool.key]) for tool in tools]
        return _unique(tools, lambda tool: tool.exposed_name, "tool", findings)

    def _tools_of(self, client: DownstreamClient, findings: list[str]) -> tuple[Tool, ...]:
        """The tools of one client; parsed again only when its listing or its settings have changed."""
        config, listing = client.config, client.listing
        known = self._parsed.get(client.name)
        if known is None or known.definitions is not listing.tools or known.config is not config:
            known = _Parsed(config, listing.tools, *self._parse_tools(config, listing.tools))
            self._parsed[client.name] = known
        findings.extend(known.findings)
        findings.extend(f"{client.name}: {finding}" for finding in listing.remarks)
        return known.tools

    def _parse_tools(
        self, config: ServerConfig, listed: Sequence[bytes]
    ) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
        tools: dict[str, Tool] = {}
        findings: list[str] = []
        for position, definition in enumerate(listed, 1):
            try:
                tool, remark = self._parse_tool(config, definition)
            except UnfitError as error:
                findings.append(f"{config.name}: {definitions.withheld(position, 'tools', str(error))}")
                continue
            if tool.name in tools:
                findings.append(f"{config.name}: a second tool named {tool.name!r} is withheld")
                continue
            tools[tool.name] = tool
            if remark:
                findings.append(f"{config.name}: tool {tool.name!r}: {remark}")
        findings.extend(f"{config.name}: {finding}" for finding in lookalikes(tools))
        return tuple(tools.values()), tuple(findings)

    def _parse_tool(self, config: ServerConfig, definition: bytes) -> tuple[Tool, str]:
        """A tool, and what is missing of its definition.

        Raises:
            UnfitError: it cannot be shown.
        """
        try:
            members = envelope.members(definition)
        except (ValueError, RecursionError):
            raise UnfitError("it is not an object") from None
        name = envelope.text(members.get("name"))
        if not name or not name.isprintable():
            raise UnfitError("it has no usable name")
        schema = members.get("inputSchema")
        if schema is None or not envelope.starts_with(schema, b"{"):
            raise UnfitError(f"tool {name!r} has no inputSchema object")
        try:
            fitted = definitions.fit(definition, self._limits)
        except UnfitError as error:
            raise UnfitError(f"tool {name!r}: {error}") from None
        tool = Tool(
            server=config.name,
            name=name,
            exposed_name=definitions.exposed_name(config.name, name, self._expose.max_name_length),
            description=envelope.text(envelope.members(fitted.definition).get("description")) or "",
            definition=fitted.definition,
            fingerprint=fingerprint(config.name, definition),
            include=config.include_of(name),
            tags=config.tags_of(name),
            category=config.category_of(name),
        )
        return tool, fitted.remark

    def _resources(self, findings: list[str]) -> dict[str, Resource]:
        resources = [
            Resource(server, uri, definition)
            for server, uri, definition in self._keyed("resources", "uri", findings)
        ]
        return _unique(resources, lambda resource: resource.uri, "resource", findings)

    def _templates(self, findings: list[str]) -> Iterator[Resource]:
        for server, uri, definition in self._keyed("templates", "uriTemplate", findings):
            yield Resource(server, uri, definition)

    def _keyed(self, name: str, member: str, findings: list[str]) -> Iterator[tuple[str, str, bytes]]:
        """Server, key and definition of each entry of one list of all servers."""
        for client in self._clients:
            found: list[str] = []
            listed = getattr(client.listing, name)
            for key, definition in definitions.keyed(listed, name, member, self._limits, found):
                yield client.name, key, definition
            findings.extend(f"{client.name}: {finding}" for finding in found)

    def _prompts(self, findings: list[str]) -> dict[str, Prompt]:
        found = list(self._keyed("prompts", "name", findings))
        length = self._expose.max_name_length
        pairs = [(server, name) for server, name, _ in found]
        names = (
            {pair: definitions.exposed_name(*pair, length) for pair in pairs}
            if self._expose.prefix
            else definitions.bare_names(pairs, self.reserved, length)
        )
        prompts = [
            Prompt(server, name, names[server, name], definition) for server, name, definition in found
        ]
        return _unique(prompts, lambda prompt: prompt.exposed_name, "prompt", findings)


def _same(before: Snapshot, after: Snapshot) -> bool:
    """Whether nothing has changed: then what was derived from the snapshot before stays good, too."""
    return len(before.sources) == len(after.sources) and all(
        (
            *(known is source for known, source in zip(before.sources, after.sources, strict=True)),
            before.tools == after.tools,
            before.documents == after.documents,
            before.resources == after.resources,
            before.templates == after.templates,
            before.prompts == after.prompts,
            before.findings == after.findings,
        )
    )


def _unique(items: Iterable[T], key: Callable[[T], str], what: str, findings: list[str]) -> dict[str, T]:
    """By key, sorted by it; the first of several wins, and the others are found wanting."""
    kept: dict[str, T] = {}
    for item in items:
        first = kept.setdefault(key(item), item)
        if first is not item:
            findings.append(f"{item.server}: {what} {key(item)!r} is withheld: {first.server} offers it too")
    return dict(sorted(kept.items()))
