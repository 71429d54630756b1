"""The catalog: tools, resources, prompts and documents as an immutable snapshot that is replaced whole.

Definitions stay the bytes that came over the wire, except for parts that must not be shown (`definitions`).
Entries are taken one by one: a bad one is withheld with a reason, never the whole list.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mcp_context_proxy.catalog import definitions
from mcp_context_proxy.catalog.definitions import UnfitError
from mcp_context_proxy.catalog.document_library import DocumentLibrary
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.items import Document, Prompt, Resource, Snapshot, Source, Tool
from mcp_context_proxy.protocol import envelope

logger = logging.getLogger(__name__)

T = TypeVar("T", Tool, Resource, Prompt)


class Catalog:
    """Builds snapshots from the downstream clients and the documents."""

    def __init__(
        self,
        expose: ExposeConfig,
        limits: Limits,
        clients: Callable[[], Iterable[DownstreamClient]],
        documents: DocumentLibrary,
        reserved: frozenset[str] = frozenset(),
    ) -> None:
        """Start with an empty snapshot; `refresh` fills it.

        Args:
            expose: Configuration of the names of tools.
            limits: Bounds on definitions.
            clients: Returns the current downstream clients, in the order of the configuration.
            documents: The rules and references.
            reserved: Names of the proxy's own tools and prompts.
        """
        self._expose, self._limits, self._reserved = expose, limits, reserved
        self._serving, self._documents = clients, documents
        self._clients: tuple[DownstreamClient, ...] = ()
        self._parsed: dict[str, _ParsedTools] = {}
        self._refreshing = threading.Lock()
        self.snapshot = Snapshot(generation=0, sources=())
        """The current snapshot. A request takes it once and uses it to the end."""

    def configure(self, expose: ExposeConfig, limits: Limits) -> None:
        """Change names and bounds, from the next `refresh` on."""
        with self._refreshing:
            self._expose, self._limits = expose, limits
            self._parsed = {}

    def refresh(self) -> Snapshot:
        """Build and publish a snapshot of the current listings and documents. Thread-safe.

        Every value that did not change is the same object as before, and so is the snapshot where nothing
        did: everything derived from it stays valid.
        """
        with self._refreshing:
            before, findings = self.snapshot, list[str]()
            self._clients = tuple(self._serving())
            serving = {client.name for client in self._clients}
            self._parsed = {name: parsed for name, parsed in self._parsed.items() if name in serving}
            tools = definitions.keep_unchanged(before.tools, self._tools(findings))
            document_sources = self._documents.sources
            documents = [
                item for source in document_sources for item in source.items if isinstance(item, Document)
            ]
            made = Snapshot(
                generation=before.generation + 1,
                sources=(*self._tool_sources(tools.values()), *document_sources),
                tools=tools,
                documents={item.uri: item for item in sorted(documents, key=lambda item: item.uri)},
                resources=definitions.keep_unchanged(before.resources, self._resources(findings)),
                templates=tuple(
                    Resource(*entry) for entry in self._entries("templates", "uriTemplate", findings)
                ),
                prompts=definitions.keep_unchanged(before.prompts, self._prompts(findings)),
                findings=tuple(findings),
            )
            if not _same(before, made):
                self.snapshot = made
            return self.snapshot

    def _tool_sources(self, tools: Iterable[Tool]) -> Iterator[Source]:
        by_server: dict[str, list[Tool]] = {client.name: [] for client in self._clients}
        for tool in tools:
            by_server[tool.server].append(tool)
        # Reversed, because documents follow the servers and a server, too, may be called ``rules``.
        known = {source.key: source for source in reversed(self.snapshot.sources)}
        for client in self._clients:
            items = tuple(by_server[client.name])
            source = known.get(client.name)
            if source is None or source.items != items or source.embeddings is not client.tool_embeddings:
                source = Source(client.name, items, client.tool_embeddings)
            if items:
                yield source

    def _tools(self, findings: list[str]) -> dict[str, Tool]:
        """Return all tools by exposed name."""
        tools = [tool for client in self._clients for tool in self._tools_of(client, findings)]
        if (excess := len(tools) - self._limits.tools) > 0:
            findings.append(f"{excess:,} tools over {self._limits.tools:,} are withheld")
            del tools[self._limits.tools :]
        if not self._expose.prefix:
            names = self._names([(tool.server, tool.name) for tool in tools])
            tools = [replace(tool, exposed_name=names[tool.server, tool.name]) for tool in tools]
        return _unique(tools, lambda tool: tool.exposed_name, "tool", findings)

    def _tools_of(self, client: DownstreamClient, findings: list[str]) -> tuple[Tool, ...]:
        """Return the tools of one client; parsed again only when its listing or its settings have changed."""
        config, listing = client.config, client.listing
        known = self._parsed.get(client.name)
        if known is None or known.definitions is not listing.tools or known.config is not config:
            known = self._parsed[client.name] = self._parse(config, listing.tools)
        findings += known.findings
        findings += (f"{client.name}: {finding}" for finding in listing.remarks)
        return known.tools

    def _parse(self, config: ServerConfig, listed: Sequence[bytes]) -> _ParsedTools:
        tools: dict[str, Tool] = {}
        findings: list[str] = []
        for position, definition in enumerate(listed, 1):
            try:
                tool, remark = self._parse_tool(config, definition)
            except UnfitError as error:
                findings.append(_withheld(position, "tools", error))
                continue
            if tool.name in tools:
                findings.append(f"a second tool named {tool.name!r} is withheld")
                continue
            tools[tool.name] = tool
            if remark:
                findings.append(f"tool {tool.name!r}: {remark}")
        findings.extend(definitions.lookalikes(tools))
        told = tuple(f"{config.name}: {finding}" for finding in findings)
        return _ParsedTools(config, listed, tuple(tools.values()), told)

    def _parse_tool(self, config: ServerConfig, definition: bytes) -> tuple[Tool, str]:
        """Return a tool with a remark on a cut.

        Raises:
            UnfitError: The tool cannot be shown.
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
            fingerprint=definitions.fingerprint(config.name, definition),
            include=config.include_of(name),
            tags=config.tags_of(name),
            category=config.category_of(name),
        )
        return tool, fitted.remark

    def _resources(self, findings: list[str]) -> dict[str, Resource]:
        resources = [Resource(*entry) for entry in self._entries("resources", "uri", findings)]
        return _unique(resources, lambda resource: resource.uri, "resource", findings)

    def _prompts(self, findings: list[str]) -> dict[str, Prompt]:
        found = list(self._entries("prompts", "name", findings))
        names = self._names([(server, name) for server, name, _ in found])
        prompts = [
            Prompt(server, name, names[server, name], definition) for server, name, definition in found
        ]
        return _unique(prompts, lambda prompt: prompt.exposed_name, "prompt", findings)

    def _names(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Return the exposed names by server and own name."""
        length = self._expose.max_name_length
        if self._expose.prefix:
            return {pair: definitions.exposed_name(*pair, length) for pair in pairs}
        return definitions.bare_names(pairs, self._reserved, length)

    def _entries(self, name: str, member: str, findings: list[str]) -> Iterator[tuple[str, str, bytes]]:
        """Yield server, key and definition of each entry of one list (``name``) of all servers.

        The key is the text of ``member``. Entries that cannot be shown are left out.
        """
        for client in self._clients:
            for position, definition in enumerate(getattr(client.listing, name), 1):
                try:
                    key = envelope.text(envelope.members(definition).get(member))
                    if not key:
                        raise UnfitError(f"it has no {member}")
                    fitted = definitions.fit(definition, self._limits)
                except UnfitError as error:
                    findings.append(f"{client.name}: {_withheld(position, name, error)}")
                except (ValueError, RecursionError):
                    reason = _withheld(position, name, "it is not an object")
                    findings.append(f"{client.name}: {reason}")
                else:
                    if fitted.remark:
                        findings.append(f"{client.name}: {key!r} of its {name}: {fitted.remark}")
                    yield client.name, key, fitted.definition


@dataclass(frozen=True, slots=True)
class _ParsedTools:
    """The tools of a listing under one configuration of its server."""

    config: ServerConfig
    definitions: Sequence[bytes]
    tools: tuple[Tool, ...]
    findings: tuple[str, ...]


def _same(before: Snapshot, after: Snapshot) -> bool:
    """Return whether nothing has changed but the generation."""
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


def _unique(items: Iterable[T], key: Callable[[T], str], kind: str, findings: list[str]) -> dict[str, T]:
    """Return items by key, sorted by it; the first of several with one key wins, the others are withheld."""
    kept: dict[str, T] = {}
    for item in items:
        first = kept.setdefault(key(item), item)
        if first is not item:
            findings.append(f"{item.server}: {kind} {key(item)!r} is withheld: {first.server} offers it too")
    return dict(sorted(kept.items()))


def _withheld(position: int, list_name: str, reason: object) -> str:
    return f"entry {position} of its {list_name} is withheld: {reason}"
