"""The catalog: tools, resources, prompts and documents as an immutable snapshot that is replaced whole.

Definitions stay the bytes that came over the wire, except for parts that must not be shown (`definitions`).
Entries are taken one by one: a bad one is withheld with a reason, never the whole list.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import TypeVar

from anyio.from_thread import check_cancelled
from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog import definitions, names
from mcp_context_proxy.catalog.definitions import Entry, ParsedTools, ToolLists, UnfitError, entry_withheld
from mcp_context_proxy.catalog.documents import DocumentLibrary
from mcp_context_proxy.catalog.skills import document_of, parse_skills
from mcp_context_proxy.catalog.uri_owners import (
    OF_TWO,
    OWN_SKILLS,
    TEMPLATE_BYTES_PER_SERVER,
    TEMPLATES_PER_SERVER,
    UriOwners,
    UriTemplate,
    check_uri,
    part_for,
    skill_claim,
)
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.config.reload import connection_identity
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.items import (
    Document,
    Encoded,
    Prompt,
    Resource,
    Skill,
    Snapshot,
    Source,
    Tool,
    TurnedOffTool,
    Withheld,
    uri_of,
)
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.strangers import one_line, quoted
from mcp_context_proxy.system.threads import keep_latest
from mcp_context_proxy.trust import ACTING, Danger, Principal
from mcp_context_proxy.trust.approval import Approvals, Origin
from mcp_context_proxy.trust.fingerprints import (
    APPROVED,
    Approvable,
    Candidate,
    Ruling,
    sign_in,
    sign_in_definition,
    withheld,
)

logger = logging.getLogger(__name__)

T = TypeVar("T", Tool, Prompt)

PARTS_KEPT = 32
"""Parts of the catalog for principals with limits; another is made in some milliseconds."""

_APPROVED_LISTS = {"prompts": Approvable.PROMPT, "templates": Approvable.TEMPLATE}
"""Lists beside the tools whose entries are approved."""

_RESOURCES: dict[str, tuple[str, str, Callable[[str], object], float, float]] = {
    "resources": ("resource", "uri", check_uri, inf, inf),
    "templates": (
        "resource template",
        "uriTemplate",
        UriTemplate.parse,
        TEMPLATES_PER_SERVER,
        TEMPLATE_BYTES_PER_SERVER,
    ),
}
"""Name of an entry, its member with the URI, the check of that, and the most entries and bytes, by list."""


def _go_on() -> None:
    """Let a refresh go on."""


class WholeCatalog(Struct):
    """The catalog without limits: reading the snapshot is reading a field."""

    snapshot: Snapshot

    @property
    def whole(self) -> WholeCatalog:
        return self


class Catalog:
    """Builds snapshots from the downstream clients and the documents."""

    def __init__(
        self,
        expose: ExposeConfig,
        limits: Limits,
        clients: Callable[[], Iterable[DownstreamClient]],
        documents: DocumentLibrary,
        *,
        configured: Callable[[], frozenset[str]],
        reserved: frozenset[str] = frozenset(),
        approvals: Approvals | None = None,
    ) -> None:
        """Start with a snapshot in which no server has listed; `refresh` fills it.

        ``clients`` returns the current downstream clients, in the order of the configuration, ``configured``
        the names of all servers, also of those that are switched off; ``reserved`` has the names of the
        proxy's own tools and prompts. ``approvals`` decides about definitions; without it, all are served.
        """
        self._approvals = approvals
        self._identities: dict[str, tuple[ServerConfig, str]] = {}
        self._withheld: dict[Approvable, list[Withheld]] = {}
        self._expose, self._limits, self._reserved = expose, limits, reserved
        self._serving, self._configured, self._documents = clients, configured, documents
        self._servers: frozenset[str] = frozenset()
        self._bare = False
        """True while names need no prefix: it is not wanted, and every server is known."""
        self._clients: tuple[DownstreamClient, ...] = ()
        self._lists = ToolLists(expose, limits)
        self._fitted: dict[tuple[str, str], _FittedEntries] = {}
        """Entries of the other lists as they may be shown, by server and name of the list."""
        self._parsed_skills: dict[str, _ParsedSkills] = {}
        self._last_entries: dict[tuple[str, str], tuple[bytes, ...]] = {}
        """Entries that each configured server listed last, by server and name of the list."""
        self._owner_of = UriOwners({}, {})
        self._indexed: tuple[list[Resource], list[Resource], frozenset[str]] = ([], [], frozenset())
        """The resources and templates that it was made of, and the servers."""
        self._refreshing = threading.Lock()
        self._check: Callable[[], object] = _go_on
        unlisted = tuple(client.name for client in clients())
        self.whole = WholeCatalog(
            Snapshot(0, (), owner_of=self._owner_of, servers=configured(), unlisted=unlisted)
        )
        """The whole catalog, for the proxy's own tasks and for principals without limits."""
        self._parts: OrderedDict[tuple[int, Principal], Snapshot] = OrderedDict()
        """Parts of snapshots by generation and principal, those used last at the end."""
        self.changed: list[Callable[[], None]] = []
        """Callbacks, which must not block, for when hosts may have to be notified of a change."""

    def configure(self, expose: ExposeConfig, limits: Limits) -> None:
        """Change names and bounds, from the next `refresh` on."""
        with self._refreshing:
            self._expose, self._limits = expose, limits
            self._lists, self._fitted = ToolLists(expose, limits), {}

    @property
    def snapshot(self) -> Snapshot:
        """The current snapshot, as far as the principal may reach it for whom this is done.

        A request takes it once and uses it to the end. Lists, searches, calls, resources, prompts and the
        REST API see nothing else, so that none of them can show what another hides.
        """
        principal, whole = ACTING.get(), self.whole.snapshot
        if not principal.limited:
            return whole
        key = whole.generation, principal
        part = self._parts.get(key)
        if part is None or part.part_of is not whole:
            part = keep_latest(self._parts, key, part_for(principal, whole), PARTS_KEPT)
        return part

    def refresh(self, check: Callable[[], object] = _go_on) -> Snapshot:
        """Build and publish a snapshot of the current listings and documents. Thread-safe.

        Every value that did not change is the same object as before, and so is the snapshot where nothing
        did: everything derived from it stays valid. ``check`` is called before each entry of a list that has
        to be taken apart; an exception that it raises ends the refresh, and the snapshot stays as it was.
        """
        with self._refreshing:
            self._check = check
            before, findings = self.whole.snapshot, list[str]()
            self._withheld = {kind: [] for kind in Approvable}
            self._clients, self._servers = tuple(self._serving()), self._configured()
            unlisted = tuple(client.name for client in self._clients if client.introduction is None)
            self._bare = not self._expose.prefix and not unlisted
            if unlisted and not self._expose.prefix:
                awaited = ", ".join(unlisted)
                findings.append(f"names keep their prefix until these servers were connected: {awaited}")
            serving = {client.name for client in self._clients}
            self._lists.keep(serving)
            if self._approvals is not None:
                self._approvals.keep(serving)
            self._last_entries = {key: last for key, last in self._last_entries.items() if key[0] in serving}
            self._fitted = {key: fitted for key, fitted in self._fitted.items() if key[0] in serving}
            tools = definitions.keep_unchanged(before.tools, self._tools(findings))
            document_sources = self._documents.sources
            skills = self._skills(findings)
            sources = (
                *self._tool_sources(tools.values(), findings),
                *(known.source for known in self._parsed_skills.values() if known.source.items),
                *document_sources,
            )
            documents = [item for source in sources for item in source.items if isinstance(item, Document)]
            resources = self._resources("resources", before.resources, findings)
            resources |= _pages(tools.values(), resources, findings)
            templates = self._resources("templates", before.templates, findings)
            prompts = definitions.keep_unchanged(before.prompts, self._prompts(findings))
            servers = self._servers if resources or templates else frozenset[str]()
            owned = list(resources.values()), list(templates.values()), servers
            unchanged = owned == self._indexed
            owner_of = self._owner_of if unchanged else UriOwners(resources, templates, servers)
            findings += owner_of.overlaps
            made = Snapshot(
                generation=before.generation + 1,
                sources=sources,
                tools=tools,
                wider={name: tool for tool in tools.values() for name in tool.wider_names},
                turned_off=self._turned_off(),
                withheld={one.exposed_name: one for one in self._withheld[Approvable.TOOL]},
                withheld_prompts={one.exposed_name: one for one in self._withheld[Approvable.PROMPT]},
                first_seen={} if self._approvals is None else self._approvals.first_seen,
                documents=(by_uri := {one.uri: one for one in sorted(documents, key=lambda one: one.uri)}),
                other_uris={
                    uri: one
                    for one in documents
                    if one.full_name and (uri := uri_of(one.kind, one.full_name)) not in by_uri
                },
                resources={uri: one for uri, one in sorted(resources.items()) if one.listed},
                templates={uri: one for uri, one in templates.items() if one.listed},
                owner_of=owner_of,
                prompts=prompts,
                skills=skills,
                findings=tuple(_limited(findings)),
                servers=self._servers,
                unlisted=unlisted,
                unread=self._documents.unread,
            )
            if not _same(before, made):
                self.whole.snapshot, self._owner_of, self._indexed = made, owner_of, owned
            return self.whole.snapshot

    def read_ahead(
        self, config: ServerConfig, listed: tuple[Encoded, ...], check: Callable[[], object] = check_cancelled
    ) -> None:
        """Take a list of tools apart before its server publishes it, in a thread of anyio.

        A list of the largest size takes seconds, in which no refresh could publish the lists of others.
        ``check`` is called as by `refresh`.
        """
        self._lists.read_ahead(config, listed, partial(definitions.checked, check))

    def _checked(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        return definitions.checked(self._check, entries)

    def _tool_sources(self, tools: Iterable[Tool], findings: list[str]) -> Iterator[Source]:
        by_server: dict[str, list[Tool]] = {client.name: [] for client in self._clients}
        for tool in tools:
            by_server[tool.server].append(tool)
        # Reversed, because documents follow the servers and a server, too, may be called ``rules``.
        known = {source.key: source for source in reversed(self.whole.snapshot.sources)}
        for client in self._clients:
            items, source = tuple(by_server[client.name]), known.get(client.name)
            about = "" if client.introduction is None else client.introduction.instructions
            if (sign := sign_in(about)) is not None:
                findings.append(f"{client.name}: its instructions are left out: {sign}")
                about = ""
            if source is None or (source.items, source.about) != (items, about):
                source = Source(client.name, items, about)
            if items:
                yield source

    def _turned_off(self) -> dict[str, TurnedOffTool]:
        """Return the tools that are turned off, by the name that they would have."""
        parsed = (self._lists.last[client.name] for client in self._clients)
        return {tool.exposed_name: tool for one in parsed for tool in one.turned_off}

    def _skills(self, findings: list[str]) -> dict[str, Skill]:
        """Return the skills of all servers by URI; parsed again only where a listing has changed."""
        before, self._parsed_skills = self._parsed_skills, {}
        found: dict[str, Skill] = {}
        for client in self._clients:
            listed = client.listing.skills
            if not listed:
                continue
            known = before.get(client.name)
            if known is None or known.entries is not listed:
                skills, own_findings = parse_skills(client.name, self._checked(listed))
                items = tuple(map(document_of, skills.values()))
                if known is None or known.source.items != items:
                    source = Source(client.name, items)
                else:
                    source = known.source
                known = _ParsedSkills(listed, skills, tuple(own_findings), source)
            self._parsed_skills[client.name] = known
            found |= known.skills
            findings += known.findings
        return found

    def _tools(self, findings: list[str]) -> dict[str, Tool]:
        tools = [tool for client in self._clients for tool in self._approved_tools(client, findings)]
        if (excess := len(tools) - self._limits.tools) > 0:
            findings.append(f"{excess:,} tools over {self._limits.tools:,} are withheld")
            del tools[self._limits.tools :]
        if self._bare:
            waiting = self._withheld[Approvable.TOOL]
            pairs = [(one.server, one.name) for one in tools]
            exposed = self._names(pairs + [(one.server, one.name) for one in waiting])
            tools = [
                replace(tool, exposed_name=name, wider_names=() if name == tool.name else tool.wider_names)
                for tool in tools
                for name in [exposed[tool.server, tool.name]]
            ]
        others: list[TurnedOffTool | Withheld] = [*self._turned_off().values()]
        others += self._withheld[Approvable.TOOL]
        return names.keep_wider_names(self._owned("tool", tools, findings), others, self._servers)

    def _owned(self, kind: str, items: Iterable[T], findings: list[str]) -> dict[str, T]:
        """Return items by exposed name, without those whose name is another's."""
        items = list(items)
        for item in self._checked(items):
            claimed = names.claimed(item.name, item.server, self._servers)
            if claimed is not None:
                findings.append(
                    f"{item.server}: {kind} {item.name!r} is named like one of server {claimed!r}, and only "
                    f"{item.exposed_name} leads to it"
                )
        owned = names.keep_owned(items, self._servers, findings)
        kept: dict[str, T] = {}
        for item in owned:
            first = kept.setdefault(item.exposed_name, item)
            if first is not item:
                offered = f"{first.server} offers it too"
                findings.append(f"{item.server}: {kind} {item.exposed_name!r} is withheld: {offered}")
        return dict(sorted(kept.items()))

    def _approved_tools(self, client: DownstreamClient, findings: list[str]) -> Iterator[Tool]:
        """Yield the tools of one client that are approved, with hints no looser than the approved ones."""
        parsed = self._tools_of(client, findings)
        rulings = self._rulings(client, "tools", Approvable.TOOL, parsed.candidates, findings)
        for tool in parsed.tools:
            ruling = rulings.get(tool.name, APPROVED)
            if ruling.taken and ruling.hints is None:
                yield tool
            elif ruling.taken and ruling.hints is not None:
                stays = definitions.restrained(tool, ruling.hints)
                danger = Danger(stays.tool_class, stays.class_reason)
                if names.turned_off_by(client.config, tool.name, danger) is None:
                    asked_by = names.asked_by(client.config, tool.name, stays.tool_class)
                    yield replace(stays, asked_by=asked_by)

    def _rulings(
        self,
        client: DownstreamClient,
        list_name: str,
        kind: Approvable,
        candidates: Mapping[str, Candidate],
        findings: list[str],
    ) -> Mapping[str, Ruling]:
        """Return the decisions about one list. This is where it is decided which definitions are served."""
        if self._approvals is None:
            return {}
        config = client.config
        known = self._identities.get(config.name)
        if known is None or known[0] is not config:
            known = self._identities[config.name] = config, connection_identity(config)
        mode = config.approval or self._approvals.mode
        origin = Origin(config.name, mode, known[1], client.listing.versions.get(list_name, ""))
        rulings = self._approvals.rulings(origin, kind, candidates, partial(self._own_names, client))
        held = {name: ruling.why for name, ruling in rulings.items() if not ruling.taken}
        if held:
            exposed = self._names([(config.name, name) for name in held])
            self._withheld[kind] += (
                Withheld(*pair, exposed[pair], held[pair[1]]) for pair in exposed if pair[1] in held
            )
            # The first, because not all are told.
            findings.insert(0, f"{config.name}: {withheld(config.name, kind, [*held.values()])}")
        if kind is Approvable.TOOL and (finding := self._approvals.findings.get(config.name)):
            findings.append(f"{config.name}: {finding}")
        return rulings

    def _own_names(self, client: DownstreamClient) -> Iterator[str]:
        """Yield the names of all tools and prompts of one client, also of tools that are turned off."""
        parsed = self._tools_of(client, [])
        yield from (tool.name for tool in parsed.tools)
        yield from (tool.name for tool in parsed.turned_off)
        yield from (
            name
            for name, _ in self._entries(client.name, "prompts", client.listing.prompts, "name", []).shown
        )

    def _tools_of(self, client: DownstreamClient, findings: list[str]) -> ParsedTools:
        """Return the tools of one client; parsed again only when its listing or its settings have changed."""
        config, listing = client.config, client.listing
        known = self._lists.parsed(config, listing.tools, self._checked)
        findings += known.findings
        findings += (f"{client.name}: {finding}" for finding in listing.remarks)
        return known

    def _resources(
        self, name: str, before: Mapping[str, Resource], findings: list[str]
    ) -> dict[str, Resource]:
        """Return the resources or the templates of all servers by URI, in the order of the configuration."""
        kind, member, check, most, most_bytes = _RESOURCES[name]
        found: dict[str, Resource] = {}
        for client in self._clients:
            entries, listed = self._last_listed(client, name)
            taken = size = 0
            fitted = self._entries(client.name, name, entries, member, findings)
            rulings: Mapping[str, Ruling] = {}
            if name == "templates":
                rulings = self._rulings(client, name, Approvable.TEMPLATE, fitted.candidates, findings)
            for uri, definition in self._checked(fitted.shown):
                ruling = rulings.get(uri, APPROVED)
                if not ruling.taken and not ruling.replaces:
                    continue
                try:
                    check(uri)
                    if (claimed := skill_claim(uri, client.name, self._servers)) is not None:
                        whose = "the user's own" if claimed == OWN_SKILLS else f"one of server {claimed!r}"
                        raise UnfitError(f"it would pass for a skill that is {whose}")
                except UnfitError as error:
                    findings.append(f"{client.name}: {kind} {quoted(uri)} is withheld: {error}")
                    continue
                taken, size = taken + 1, size + len(uri.encode())
                if taken > most or size > most_bytes:
                    findings.append(f"{client.name}: its {name} after the first {taken - 1:,} are withheld")
                    break
                # What was served before keeps its URIs, so that they lead to no other server meanwhile.
                resource = Resource(client.name, uri, definition, listed and ruling.taken, ruling.why)
                first = found.setdefault(uri, resource)
                if first is not resource:
                    reason = f"{first.server} offers it too"
                    findings.append(f"{client.name}: {kind} {quoted(uri)} is withheld: {reason}")
                    if definitions.is_page(uri):
                        # Hosts show it with what a tool has returned, and let it call tools.
                        findings.append(f"{first.server}: {kind} {quoted(uri)} is withheld: {OF_TWO}")
                        found[uri] = replace(first, listed=False, withheld=OF_TWO)
        return definitions.keep_unchanged(before, found)

    def _last_listed(self, client: DownstreamClient, name: str) -> tuple[tuple[bytes, ...], bool]:
        """Return the entries of a server's last listing, and whether it lists them now.

        A server that was restarted with other settings has listed nothing yet. Its URIs stay with it
        meanwhile, so that none of them leads to another server unseen.
        """
        listing = client.listing
        entries: tuple[bytes, ...] = getattr(listing, name)
        failed = client.introduction is None or bool(listing.findings.get(name))
        last = self._last_entries.get((client.name, name), ())
        if not entries and failed:
            return last, False
        self._last_entries[client.name, name] = entries
        return entries, True

    def _prompts(self, findings: list[str]) -> dict[str, Prompt]:
        found = []
        for client in self._clients:
            listed = self._entries(client.name, "prompts", client.listing.prompts, "name", findings)
            rulings = self._rulings(client, "prompts", Approvable.PROMPT, listed.candidates, findings)
            found += [
                (client.name, name, definition)
                for name, definition in listed.shown
                if rulings.get(name, APPROVED).taken
            ]
        waiting = [(one.server, one.name) for one in self._withheld[Approvable.PROMPT]]
        exposed = self._names([*((server, name) for server, name, _ in found), *waiting])
        prompts = [
            Prompt(server, name, exposed[server, name], definition) for server, name, definition in found
        ]
        return self._owned("prompt", prompts, findings)

    def _names(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Return the exposed names by server and own name."""
        length = names.name_lengths(self._expose)[0]
        if not self._bare:
            return {pair: names.exposed_name(*pair, length) for pair in pairs}
        return names.bare_names(pairs, self._reserved, length)

    def _entries(
        self, server: str, name: str, entries: tuple[bytes, ...], member: str, findings: list[str]
    ) -> _FittedEntries:
        """Return the entries of one list (``name``) of a server, each with its key.

        The key is the text of ``member``. Entries that cannot be shown are left out. A list is taken apart
        again only when it has changed.
        """
        fitted = self._fitted.get((server, name))
        if fitted is None or fitted.entries is not entries:
            told: list[str] = []
            candidates: dict[str, Candidate] = {}
            shown = tuple(self._fit(server, name, entries, member, told, candidates))
            fitted = self._fitted[server, name] = _FittedEntries(entries, shown, tuple(told), candidates)
        findings += fitted.findings
        return fitted

    def _fit(
        self,
        server: str,
        name: str,
        entries: tuple[bytes, ...],
        member: str,
        findings: list[str],
        candidates: dict[str, Candidate],
    ) -> Iterator[tuple[str, bytes]]:
        for position, definition in enumerate(self._checked(entries), 1):
            try:
                key = envelope.text(envelope.members(definition).get(member))
                if not key or (member == "name" and len(key) > names.OWN_NAME_CHARACTERS):
                    raise UnfitError(f"it has no {member}" if not key else f"its {member} is too long")
                shown, remark = definitions.fit(definition, self._limits)
                if name not in _APPROVED_LISTS and (sign := sign_in_definition(shown)) is not None:
                    raise UnfitError(sign)
            except UnfitError as error:
                findings.append(f"{server}: {entry_withheld(position, name, error)}")
            except (ValueError, RecursionError):
                findings.append(f"{server}: {entry_withheld(position, name, 'it is not an object')}")
            else:
                if remark:
                    findings.append(f"{server}: {quoted(key)} of its {name}: {remark}")
                if (kind := _APPROVED_LISTS.get(name)) is not None and key not in candidates:
                    candidates[key] = Candidate.of(kind, key, definition, shown)
                yield key, shown


class _FittedEntries(Struct, frozen=True):
    """The entries of a list that is no list of tools, each with its key, as they may be shown."""

    entries: tuple[bytes, ...]
    """The list as it came."""
    shown: tuple[tuple[str, bytes], ...]
    findings: tuple[str, ...]
    candidates: Mapping[str, Candidate]
    """Definitions by key, where they are approved."""


class _ParsedSkills(Struct, frozen=True):
    """The skills of a listing."""

    entries: Sequence[bytes]
    skills: Mapping[str, Skill]
    findings: tuple[str, ...]
    source: Source


FINDINGS, FINDING_CHARACTERS = 100, 1_000
"""Findings about one server that are told, and characters of one: a person reads no more."""


def _pages(tools: Iterable[Tool], listed: Mapping[str, Resource], findings: list[str]) -> dict[str, Resource]:
    """Return the pages that tools name and their servers need not list, and those that two servers claim."""
    pages: dict[str, Resource] = {}
    named = ((tool, uri) for tool in tools for uri in (tool.page, *tool.other_pages) if uri)
    for tool, uri in named:
        first = pages.get(uri) or listed.get(uri)
        if first is None:
            with suppress(UnfitError):
                check_uri(uri)
                pages[uri] = Resource(tool.server, uri, b"{}", listed=False)
        elif first.server != tool.server and not first.withheld:
            findings += (
                f"{one}: resource {quoted(uri)} is withheld: {OF_TWO}" for one in (first.server, tool.server)
            )
            pages[uri] = replace(first, listed=False, withheld=OF_TWO)
    return pages


def _limited(findings: Iterable[str]) -> Iterator[str]:
    """Yield the first findings about each server, and how many more there are."""
    counted = Counter[str]()
    for finding in findings:
        server = finding.partition(":")[0]
        counted[server] += 1
        if counted[server] <= FINDINGS:
            yield one_line(finding, FINDING_CHARACTERS)
    for server, number in counted.items():
        if number > FINDINGS:
            yield f"{server}: {number - FINDINGS:,} more findings"


def _same(before: Snapshot, after: Snapshot) -> bool:
    """Return whether nothing has changed but the generation; a source is equal only to itself."""
    fields = (name for name in before.__struct_fields__ if name != "generation")
    return all(getattr(before, name) == getattr(after, name) for name in fields)
