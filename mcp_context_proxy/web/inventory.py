"""REST operations on the servers and tools behind the proxy: lists, switches, and approval of definitions.

An operation that changes something needs a proven administrator (`Operation.decides`), and is in the audit.
A model must get neither the text of a definition that waits nor a way to approve it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

from msgspec import Meta, Raw, Struct

from mcp_context_proxy.catalog import names
from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.context.selection import unknown_names
from mcp_context_proxy.downstream.fleet import address, server_facts, working_folder
from mcp_context_proxy.embedding.embeddings import TokenCounter
from mcp_context_proxy.errors import (
    ServerUnavailableError,
    UnknownFilterError,
    UnknownItemError,
    nearest_names,
    some_of,
)
from mcp_context_proxy.installation.editing import EditError
from mcp_context_proxy.installation.journal import Switched, switch
from mcp_context_proxy.items import Kind, Snapshot, ToolClass
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import Role, reaches
from mcp_context_proxy.trust.approval import Approvals
from mcp_context_proxy.trust.audit import AuditLog
from mcp_context_proxy.trust.decisions import ApprovalError, changes, decide, hash_of
from mcp_context_proxy.trust.fingerprints import State
from mcp_context_proxy.web import Api, BadRequestError, Given, Name, Operation, Order, answer_form, note_order
from mcp_context_proxy.web.search import Label, Served, described

APPLIED_SECONDS: Final = 10.0
"""Time limit for a changed configuration to be applied before the answer."""


class ServerFacts(Struct, frozen=True, omit_defaults=True):
    """A server with its sizes, as far as they are known."""

    name: str
    state: str
    address: str
    folder: str | None = None
    findings: list[str] = []
    era: str | None = None
    protocol: str | None = None
    server_name: str | None = None
    server_version: str | None = None
    tools: int | None = None
    turned_off: int | None = None
    withheld: int | None = None
    resources: int | None = None
    prompts: int | None = None
    cause: str | None = None
    stderr: list[str] = []
    """Last lines on stderr of a server that failed."""
    stdout: list[str] = []
    """First lines on stdout that are no messages, of a server that failed."""


class ServersAnswer(Struct, frozen=True):
    """All configured servers, in the order of the configuration."""

    servers: list[ServerFacts]


class ListedTool(Struct, frozen=True):
    """A tool behind the proxy."""

    name: str
    server: str
    tool: str
    """Own name of the tool."""
    include: str
    working_set: str | None
    """Reason why it is in the default list; null if use has not put it there."""
    tokens: int
    description: str
    category: Label
    tags: list[Label]
    danger: ToolClass
    danger_reason: str
    definition: Raw
    """JSON, as hosts get it."""


class TurnedOff(Struct, frozen=True):
    """A tool that the configuration turns off."""

    name: str
    server: str
    tool: str
    reason: str


class Size(Struct, frozen=True):
    """Size of a list of tools."""

    tools: int
    tokens: int


class DefaultList(Size, frozen=True):
    """Size of the list that a model gets first."""

    whole: bool
    """True if it is the list of all tools."""


class FailedServer(Struct, frozen=True):
    """A server that is not ready."""

    server: str
    cause: str


class ToolListAnswer(Struct, frozen=True):
    """All tools, under the names that hosts see; token counts are estimates."""

    tools: list[ListedTool]
    turned_off: list[TurnedOff]
    total: Size
    default_list: DefaultList
    failed: list[FailedServer]


class RelatedItem(Struct, frozen=True):
    """An item that is similar to a tool."""

    type: str
    name: str
    server: str | None
    cosine: float | None


class RelatedAnswer(Struct, frozen=True):
    """Items that are similar to a tool, most similar first."""

    name: str
    related: list[RelatedItem]


class Done(Struct, frozen=True):
    """An order that was carried out."""

    done: str
    """Sentence for a person."""


SwitchAnswer: Final = answer_form("SwitchAnswer", "A server or tool that was turned on or off.", Switched)

_SWITCHING: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


class InventoryApi(Api):
    """Operations on servers and tools."""

    def __init__(self, proxy: Served) -> None:
        self._proxy, self._counts = proxy, TokenCounts()

    @Operation("GET", "/servers", answer=ServersAnswer, role=Role.VIEW)
    async def _list_servers(self, given: Given) -> dict[str, Any]:
        """All configured servers, with what they offer and why one failed."""
        return {"servers": [one for one in all_servers(self._proxy) if reaches(one["name"])]}

    @Operation("GET", "/tools", answer=ToolListAnswer, role=Role.VIEW)
    async def _list_tools(self, given: Given) -> dict[str, Any]:
        """All tools behind the proxy, with their cost in tokens."""
        return await in_thread(all_tools, self._proxy, self._counts)

    @Operation("GET", "/tools/{tool}/related", problems=(HTTPStatus.NOT_FOUND,))
    async def _list_related(self, given: Given) -> RelatedAnswer:
        """Items that are similar to a tool."""
        name = given.path["tool"]
        found = await self._proxy.contexts.related(Kind.TOOL, name)
        return RelatedAnswer(name, [RelatedItem(one.type, one.name, one.server, one.score) for one in found])

    @Order("/servers/{server}/restart", problems=(HTTPStatus.NOT_FOUND,))
    async def _restart_server(self, given: Given) -> Done:
        """Stop a server after its pending calls, and start it again."""
        name = given.path["server"]
        expect_server(self._proxy, name)
        try:
            self._proxy.fleet.restart(name)
        except ServerUnavailableError as error:
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"{error}.") from None
        note_order(self._proxy.audit, given, "restart", server=name)
        return Done(f"Server {name} is started again, after its pending calls.")

    @Order("/servers/{server}/enable", answer=SwitchAnswer, problems=_SWITCHING)
    async def _enable_server(self, given: Given) -> Switched:
        """Turn a server on, in the configuration file."""
        return await self._switch(given, given.path["server"], None, True)

    @Order("/servers/{server}/disable", answer=SwitchAnswer, problems=_SWITCHING)
    async def _disable_server(self, given: Given) -> Switched:
        """Turn a server off, in the configuration file."""
        return await self._switch(given, given.path["server"], None, False)

    @Order("/tools/{tool}/enable", answer=SwitchAnswer, problems=_SWITCHING)
    async def _enable_tool(self, given: Given) -> Switched:
        """Turn a tool on, in the configuration file."""
        return await self._switch_tool(given, True)

    @Order("/tools/{tool}/disable", answer=SwitchAnswer, problems=_SWITCHING)
    async def _disable_tool(self, given: Given) -> Switched:
        """Turn a tool off, in the configuration file."""
        return await self._switch_tool(given, False)

    async def _switch_tool(self, given: Given, enabled: bool) -> Switched:
        name, snapshot = given.path["tool"], self._proxy.catalog.snapshot
        off = [one for one in snapshot.turned_off.values() if name in (one.exposed_name, one.name)]
        if len(off) == 1 and name not in snapshot.tools:
            return await self._switch(given, off[0].server, off[0].name, enabled)
        tool = snapshot.tools[exposed_name(self._proxy, name)]
        return await self._switch(given, tool.server, tool.name, enabled)

    async def _switch(self, given: Given, server: str, tool: str | None, enabled: bool) -> Switched:
        expect_server(self._proxy, server)
        path = self._proxy.config.path
        if path is None:
            raise BadRequestError(HTTPStatus.CONFLICT, "There is no configuration file.")
        try:
            switched = await in_thread(switch, path, server, tool, enabled)
        except (EditError, OSError) as error:
            raise BadRequestError(HTTPStatus.CONFLICT, f"{path} is not changed: {error}.") from None
        if switched.changed:
            note_order(self._proxy.audit, given, "enable" if enabled else "disable", server=server, tool=tool)
            if self._proxy.reloader is not None:
                await self._proxy.reloader.reload(APPLIED_SECONDS)
        return switched


def expect_server(proxy: Served, server: str) -> None:
    """Raise an error unless a server is configured."""
    known = [*filter(reaches, (*proxy.config.servers, *proxy.config.off))]
    if server not in known:
        raise UnknownFilterError("server", server, nearest_names(server, known, 1), known)


def exposed_name(proxy: Served, tool: str, server: str | None = None) -> str:
    """Return the exposed name of a tool; raise an error if there is no such tool."""
    try:
        return names.tool_named(proxy.catalog.snapshot, tool, server).exposed_name
    except UnknownItemError as error:
        reason: Exception = error
        try:
            proxy.fleet.raise_if_unavailable(server or names.owner(tool, proxy.catalog.snapshot.servers))
        except ServerUnavailableError as unavailable:
            reason = unavailable
        raise BadRequestError(HTTPStatus.NOT_FOUND, f"{reason}.") from None


def all_servers(proxy: Served) -> list[dict[str, Any]]:
    clients, found = proxy.fleet.clients, [*remarks(proxy)]
    snapshot = proxy.catalog.snapshot
    away = [Counter(tool.server for tool in of.values()) for of in (snapshot.turned_off, snapshot.withheld)]
    servers: list[dict[str, Any]] = []
    for name, config in proxy.config.servers.items():
        if name in clients:
            remarked = [message for one, message in found if one == name]
            servers.append(server_facts(clients[name], remarked, *(counts[name] for counts in away)))
        else:
            folder = {"folder": at} if (at := working_folder(config)) else {}
            servers.append({"name": name, "state": "disabled", "address": address(config), **folder})
    servers += [
        {"name": name, "state": "off", "address": "", "cause": str(why), "stderr": (), "stdout": ()}
        for name, why in proxy.config.off.items()
    ]
    return servers


def remarks(proxy: Served) -> list[tuple[str, str]]:
    """Return each remark on the listed definitions, with its server; the server is '' if there is none."""
    found = []
    for finding in proxy.catalog.snapshot.findings:
        server, colon, message = finding.partition(": ")
        known = bool(colon) and server in proxy.fleet.clients
        found.append((server, one_line(message)) if known else ("", one_line(finding)))
    snapshot, rules = proxy.catalog.snapshot, proxy.config.context.expansion_rules
    switched_off = proxy.config.servers.keys() - proxy.fleet.clients.keys()
    away = any((snapshot.unlisted, proxy.fleet.failures(), proxy.config.off, switched_off))
    # A name may be that of a tool of a server that is away.
    for name, near in () if away else unknown_names(rules, snapshot):
        hint = f"; did you mean {near[0]!r}?" if near else ""
        message = f"context.expansion_rules: no tool, rule or reference is called {one_line(name)!r}{hint}"
        found.append(("", message))
    return found


_WITHHELD: Final = pattern(r"([a-z ]+) ('.*') is withheld: (.*)")


def remarks_together(proxy: Served) -> Iterator[tuple[str, str]]:
    """Yield the remarks with their server; those that withhold definitions for one reason are one."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for server, message in remarks(proxy):
        found = _WITHHELD.fullmatch(message)
        kind, name, reason = ("", message, "") if found is None else found.groups()
        groups.setdefault((server, kind, reason or message), []).append(name)
    for (server, kind, reason), those in groups.items():
        if not kind:
            yield server, reason
        elif len(those) == 1:
            yield server, f"{kind} {those[0]} is withheld: {reason}"
        else:
            yield server, f"{len(those):,} {kind}s are withheld: {reason}: {some_of(those)}"


class TokenCounts:
    """Tokens of definitions as hosts get them: each is counted once, as long as the catalog has it."""

    def __init__(self, count: Callable[[str], int] | None = None) -> None:
        """Count nothing yet; ``count`` returns the tokens of a text, by default as everywhere."""
        self._count = count or TokenCounter().count
        self._counts: dict[bytes, int] = {}
        self._generation = -1

    def of(self, definition: Raw) -> int:
        """Return the tokens of a definition. Blocks where it was not counted before."""
        key = hashlib.sha256(definition).digest()
        known = self._counts.get(key)
        if known is None:
            text = bytes(definition).decode("utf-8", "replace")
            known = self._counts[key] = self._count(text)
        return known

    def forget_former(self, snapshot: Snapshot, listed: Iterable[Raw]) -> None:
        """Forget the definitions that a changed catalog has no more."""
        if snapshot.generation != self._generation:
            self._generation = snapshot.generation
            keys = {hashlib.sha256(definition).digest() for definition in listed}
            self._counts = {key: count for key, count in self._counts.items() if key in keys}


def all_tools(proxy: Served, counts: TokenCounts) -> dict[str, Any]:
    """Return all tools with their cost, and the sizes of the lists. Blocks."""
    tokens = counts.of
    snapshot = proxy.catalog.snapshot
    # By server in the order of the configuration, then by name.
    order = {name: position for position, name in enumerate(proxy.fleet.clients)}
    entries = []
    for tool in sorted(
        snapshot.tools.values(), key=lambda tool: (order.get(tool.server, len(order)), tool.exposed_name)
    ):
        definition = tool_definition(tool)
        entries.append(
            {
                "name": tool.exposed_name,
                "server": tool.server,
                "tool": tool.name,
                "include": str(tool.include),
                "working_set": proxy.working_set.why(tool),
                "tokens": tokens(definition),
                "description": tool.description,
                **described(tool),
                "definition": definition,
            }
        )
    default = proxy.tool_list.definitions(snapshot, proxy.tool_list.base_names(snapshot))
    counts.forget_former(snapshot, (*(entry["definition"] for entry in entries), *default))
    return {
        "tools": entries,
        "turned_off": [
            {"name": tool.exposed_name, "server": tool.server, "tool": tool.name, "reason": tool.reason}
            for tool in sorted(snapshot.turned_off.values(), key=lambda tool: tool.exposed_name)
        ],
        "total": {"tools": len(entries), "tokens": sum(entry["tokens"] for entry in entries)},
        "default_list": {
            "tools": len(default),
            "tokens": sum(map(tokens, default)),
            "whole": proxy.tool_list.lists_all(snapshot),
        },
        "failed": [{"server": name, "cause": cause} for name, cause in proxy.fleet.failures().items()],
    }


SHOWN_DAYS: Final = 30.0
"""Days for which a change that was taken is shown."""

SHOWN: Final = 500
"""Definitions of all servers in one answer, those that wait first."""

NAMES: Final = 1_000
"""Definitions that are decided about at once."""

BY: Final = "page"
"""The way in which these operations decide, as it is recorded."""


class ChangedDefinition(Struct, frozen=True):
    """A definition that waits for a person, or that was taken lately without one."""

    server: str
    kind: str
    name: str
    state: str
    standing: str
    """The state and how it came about, in words."""
    waits: bool
    version: str
    """Version of the server's package; empty where it is not known."""
    time: float
    hash: str
    """The hash with which to approve it; empty if the differences are shortened."""
    differences: list[str]
    """Lines for a person: new sentences first."""


class ApprovalsAnswer(Struct, frozen=True):
    """Definitions that wait for a person, then those that changed lately."""

    definitions: list[ChangedDefinition]


class ToReject(Struct, forbid_unknown_fields=True, frozen=True):
    """Definitions to reject."""

    names: Annotated[list[Name], Meta(min_length=1, max_length=NAMES)]


class ToApprove(ToReject, forbid_unknown_fields=True, frozen=True):
    """Definitions to approve, with the hash of the text that was shown."""

    hash: Annotated[str, Meta(min_length=1, max_length=64)]


class Decided(Struct, frozen=True):
    """Number of definitions that were decided about."""

    decided: int


class ApprovalsApi(Api):
    """Operations on the approval of definitions."""

    def __init__(
        self,
        store: Store,
        approvals: Approvals,
        on_decided: Callable[[], None],
        audit: AuditLog | None = None,
    ) -> None:
        """Connect the parts; ``on_decided`` has the catalog follow."""
        self._store, self._approvals, self._on_decided = store, approvals, on_decided
        self._audit = audit

    @Operation(
        "GET",
        "/approvals",
        role=Role.VIEW,
        decides=True,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
    )
    async def _list_approvals(self, given: Given) -> ApprovalsAnswer:
        """Definitions that wait for a person, and those that changed lately."""
        return ApprovalsAnswer(await in_thread(self._changed))

    @Order(
        "/approvals/{server}/approve",
        problems=(HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE),
    )
    async def _approve(self, given: Given, body: ToApprove) -> Decided:
        """Approve definitions of a server as they were shown."""
        return await self._decide(given, body.names, State.APPROVED, expected=body.hash)

    @Order(
        "/approvals/{server}/reject",
        problems=(HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE),
    )
    async def _reject(self, given: Given, body: ToReject) -> Decided:
        """Withhold the present definitions of a server until they are approved."""
        return await self._decide(given, body.names, State.REJECTED)

    def _changed(self) -> list[ChangedDefinition]:
        found = [
            (server, change)
            for server in filter(reaches, self._store.approvals.servers())
            for change in changes(self._store, server, days=SHOWN_DAYS, most=SHOWN)
        ]
        found.sort(key=lambda pair: not pair[1].waits)
        return [
            ChangedDefinition(
                server=server,
                kind=change.row.kind,
                name=change.row.name,
                state=change.row.state,
                standing=change.standing,
                waits=change.waits,
                version=change.row.version,
                time=change.row.time,
                hash=hash_of([change.row]) if change.is_whole else "",
                differences=list(change.lines),
            )
            for server, change in found[:SHOWN]
        ]

    async def _decide(self, given: Given, names: list[str], state: State, **more: Any) -> Decided:
        server = given.path["server"]
        decision = partial(decide, self._store, server, names, state, by=BY, **more)
        try:
            rows = await in_thread(self._approvals.take, decision)
        except ApprovalError as error:
            raise BadRequestError(HTTPStatus.CONFLICT, f"{error}.") from None
        self._on_decided()
        if self._audit is not None:
            order = "approve" if state is State.APPROVED else "reject"
            named = rows[0].name if len(rows) == 1 else None
            note_order(self._audit, given, order, server=server, tool=named, definitions=str(len(rows)))
        return Decided(len(rows))
