"""Tools of a server's list, and names of tools and prompts: whose a name is, and the item that it leads to.

`parse_tools` decides everything about a tool that is decided once: its names, what the configuration says of
it, its danger class, and its definition as it is shown.

A full name, ``<server>__<own name>``, leads to that server or nowhere, whether the server is connected, slow,
failed, switched off or gone. So no name with the separator in it is ever looked up as an own name. An own
name leads somewhere only if exactly one server has it, and every enabled server is known: one that has not
been connected yet may have it as well.

The configuration can turn tools off, and `turned_off_by` alone decides it, for every way to reach a tool.
``allow`` and ``deny`` of a server are globs over the tools' own names, ``enabled = false`` stands under a
tool or a glob, and ``"never"`` under one of these or for a danger class. The first three turn a tool off
whatever else is set; of the last, `permission` says which counts. The catalog leaves such tools out of the
snapshot, so that lists, searches, the index, learned pairs and calls cannot disagree.
Prompts and resources are not tools: only ``enabled = false`` for the whole server turns them off.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog import definitions
from mcp_context_proxy.catalog.definitions import (
    HASH_LENGTH,
    INVALID_IN_NAME,
    OWN_NAME_CHARACTERS,
    SEPARATOR,
    UnfitError,
    folded,
    is_altered_name,
    seems_full,
)
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.config.host_profiles import NAME_LENGTHS, SERVER
from mcp_context_proxy.config.source import KeyPath, dotted
from mcp_context_proxy.config.tables import ANY, CONFIRM, STRICTNESS, Allow, ToolConfig, matches
from mcp_context_proxy.errors import (
    COMPARED_CHARACTERS,
    AwaitedServersError,
    SharedNameError,
    TurnedOffError,
    UnknownItemError,
    WithheldError,
    nearest_names,
)
from mcp_context_proxy.items import (
    Encoded,
    IncludeMode,
    NameOf,
    Prompt,
    Snapshot,
    Tool,
    ToolClass,
    TurnedOffTool,
    Withheld,
)
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.trust.fingerprints import Approvable, Candidate, Hints, fingerprint_if_plain
from mcp_context_proxy.trust.guard import Danger, danger_of

COMPARED_ON_LOOP: Final = 500
"""Names that an unknown one is compared with on the event loop: 10 ms at most."""
COMPARED_IN_THREAD: Final = 5000
"""Names that an unknown one is compared with in a thread: 100 ms at most."""
LOOKED_AT: Final = 10
"""Times as many names whose shared letters are counted, to choose those that are compared: as long again."""
NEAREST: Final = 3
"""Similar names that an error suggests."""

EXPOSED: Final[Callable[[Any], str]] = attrgetter("exposed_name")
"""Returns the name that every host has room for."""

_WRITTEN: Final = pattern(
    rf"[\s`'\"]*(?:functions\.)?(?:mcp__)?(?:{SERVER}__)?([\w-]+?)(?:__|[./:])([^\s`'\"(]+)"
)
_HAS_DIGEST: Final = pattern(rf"_[0-9a-f]{{{HASH_LENGTH}}}(?:_|$)")

Entry = TypeVar("Entry")
Named = TypeVar("Named", Tool, Prompt, TurnedOffTool, Withheld)


def is_full(name: str) -> bool:
    """Return whether a name states its server, so that it is nobody's own name."""
    return SEPARATOR in name


def owner(name: str, servers: Collection[str]) -> str | None:
    """Return the server that a full name belongs to: the one with the longest prefix; None if there is none.

    No name of a server holds a separator, but one may end with half of it, or begin with a character that
    gets an underscore before it in a full name.
    """
    head, separator, rest = name.partition(SEPARATOR)
    if not separator:
        return None
    heads = [f"{head}_", head] if rest.startswith("_") else [head]
    for each in heads:
        for server in (each, each.removeprefix("_")):
            if server in servers:
                return server
    return None


def as_full(snapshot: Snapshot, name: str) -> tuple[str, str | None]:
    """Return a name, in full if a model has written a full one in another form, and the server it states.

    Models write ``server.tool``, repeat the mark or the parameters of an answer, or put the prefix of their
    host before a name.
    """
    written, stated = _WRITTEN.match(name), owner(name, snapshot.servers)
    if written is not None and (server := written[1]) in snapshot.servers and stated in (None, server):
        known = (snapshot.tools, snapshot.turned_off, snapshot.withheld)
        own = (name, name.removeprefix(f"{server}{SEPARATOR}"))
        if not any(one.server == server and one.name in own for items in known for one in items.values()):
            return f"{server}{SEPARATOR}{written[2]}", server
    return name, stated


def claimed(name: str, server: str, servers: Iterable[str]) -> str | None:
    """Return another server whose prefix a person reads at the beginning of an own name of this one."""
    if not seems_full(name):
        return None
    start = folded(name)
    return next((each for each in servers if each != server and start.startswith(folded(each) + "__")), None)


def keep_owned(items: Iterable[Named], servers: Collection[str], findings: list[str]) -> Iterator[Named]:
    """Yield the items, except those whose exposed name belongs to another server; each is a finding."""
    for item in items:
        belongs = owner(item.exposed_name, servers)
        if belongs is None or belongs == item.server:
            yield item
        else:
            findings.append(
                f"{item.server}: {item.exposed_name!r} is withheld: the name belongs to server {belongs!r}"
            )


def name_within(tool: Tool, room: int) -> str:
    """Return the longest form of the name of a tool for which there is room, or else the shortest form."""
    return next((name for name in reversed(tool.wider_names) if len(name) <= room), tool.exposed_name)


def by_full_name(items: Mapping[str, Named], name: str, servers: Collection[str]) -> Named | None:
    """Return the item with a full name; None if its server, which alone counts, has none.

    A full name is the exposed one, the same without any change, or one that was shortened to another length.
    One that can be read in both of the last two ways leads nowhere.
    """
    exact = items.get(name)
    if exact is not None:
        return exact
    server = owner(name, servers)
    if server is None:
        return None
    own = name.removeprefix("_" if not name.startswith(server) else "")[len(server) + len(SEPARATOR) :]
    among = [item for item in items.values() if item.server == server]
    plain = next((item for item in among if item.name == own), None)
    if not _HAS_DIGEST.search(name):
        return plain
    altered = next((item for item in among if is_altered_name(name, server, item.name)), None)
    return None if plain is not None and altered is not None else plain or altered


def keep_wider_names(
    tools: dict[str, Tool], others: Iterable[TurnedOffTool | Withheld], servers: Collection[str]
) -> dict[str, Tool]:
    """Return the tools without those wider names that may be taken for the name of anything else.

    ``others`` have a name and are not served.
    """
    wide = [tool for tool in tools.values() if tool.wider_names]
    if not wide:
        return tools
    bearers = Counter(name for tool in wide for name in tool.wider_names)
    for one in itertools.chain(tools.values(), others):
        own = one.wider_names if isinstance(one, Tool) else ()
        for name in (one.exposed_name, f"{one.server}{SEPARATOR}{one.name}"):
            if name in bearers and name not in own:
                bearers[name] += 1
    kept = {}
    for tool in wide:
        fit = (name for name in tool.wider_names if bearers[name] == 1)
        kept[tool.exposed_name] = tuple(name for name in fit if owner(name, servers) == tool.server)
    return {
        name: tool if kept.get(name, ()) == tool.wider_names else replace(tool, wider_names=kept[name])
        for name, tool in tools.items()
    }


def tool_named(
    snapshot: Snapshot,
    name: str,
    server: str | None = None,
    *,
    compared: int = COMPARED_ON_LOOP,
    name_of: NameOf = EXPOSED,
) -> Tool:
    """Return a tool by its exposed or full name, or by its own name where that can mean one server only.

    `compared` is the number of names that an unknown one is compared with, to suggest one. Raises
    `TurnedOffError` or `WithheldError` for a tool that is turned off or waits for a person's approval, and
    `UnknownItemError` if no tool has that name, or several have, or a server that may have it is not known.
    """
    tools = snapshot.tools
    found = snapshot.wider.get(name) or by_full_name(tools, name, snapshot.servers)
    if found is not None and server in (None, found.server):
        return found
    raise_if_withheld("tool", snapshot.withheld, name, snapshot.servers, server, tools.values())
    if server is None and is_full(name):
        _raise_if_turned_off(snapshot, name, server)
        if (away := owner(name, snapshot.unlisted)) is not None and away == owner(name, snapshot.servers):
            raise AwaitedServersError("tool", name, [away])
        raise UnknownItemError("tool", name, suggested(tools, name, snapshot.servers, compared, name_of))
    same = [tool for tool in tools.values() if tool.name == name and server in (None, tool.server)]
    names = [*map(name_of, same)]
    if server is None and snapshot.unlisted and len(same) < 2:
        near = [] if names else suggested(tools, name, snapshot.servers, compared, name_of)
        raise AwaitedServersError("tool", name, snapshot.unlisted, known=names, nearest=near)
    if len(same) == 1:
        return same[0]
    if same:
        raise SharedNameError("tool", name, names)
    _raise_if_turned_off(snapshot, name, server)
    raise UnknownItemError("tool", name, suggested(tools, name, snapshot.servers, compared, name_of))


def raise_if_withheld(
    kind: str,
    withheld: Mapping[str, Withheld],
    name: str,
    servers: Collection[str],
    server: str | None = None,
    served: Iterable[Tool | Prompt] = (),
) -> None:
    """Raise `WithheldError` for a name that waits for approval, also where another server has it too.

    Otherwise an own name would lead to another server as soon as a definition is withheld.
    """
    if not withheld:
        return
    if (found := _named(withheld, name, servers, server)) is not None:
        other = next((one.exposed_name for one in served if one.name == name), "")
        raise WithheldError(
            kind=kind, name=found.exposed_name, server=found.server, reason=found.reason, other=other
        )


def _raise_if_turned_off(snapshot: Snapshot, name: str, server: str | None) -> None:
    """Raise `TurnedOffError` for a full name, or an own one, that none but a tool that is turned off has."""
    if (found := _named(snapshot.turned_off, name, snapshot.servers, server)) is not None:
        raise TurnedOffError(found.exposed_name, found.reason, server=found.server, tool=found.name)


def _named(
    items: Mapping[str, Named], name: str, servers: Collection[str], server: str | None
) -> Named | None:
    found = by_full_name(items, name, servers)
    if found is None and not is_full(name):
        found = next((one for one in items.values() if one.name == name), None)
    if found is None or server not in (None, found.server):
        found = next((one for one in items.values() if (one.server, one.name) == (server, name)), None)
    return found


def suggested(
    items: Mapping[str, Named],
    name: str,
    servers: Collection[str],
    most: int,
    name_of: Callable[[Named], str] = EXPOSED,
) -> list[str]:
    """Return names of items that are similar to an unknown one; for a full name those of its server alone."""
    server = owner(name, servers)
    among = (item for item in items.values() if server in (None, item.server))
    exposed: dict[str, list[str]] = {}
    for item in itertools.islice(among, most * LOOKED_AT):
        for each in {item.name, item.exposed_name}:
            exposed.setdefault(each, []).append(name_of(item))
    near = nearest(name, exposed, 2 * most)
    return list(dict.fromkeys(one for each in near for one in exposed[each]))[:NEAREST]


def nearest(name: str, names: Collection[str], most: int = COMPARED_ON_LOOP) -> list[str]:
    """Return the names that are most similar to another one; of many, those are compared that may be."""
    compared: Iterable[str] = names
    if len(names) > most:
        size, short = len(name), name[:COMPARED_CHARACTERS]
        parts = {short[at : at + 3] for at in range(max(1, len(short) - 2))}
        compared = nlargest(
            most,
            itertools.islice(names, 2 * most * LOOKED_AT),
            key=lambda other: (sum(map(other.__contains__, parts)), -abs(len(other) - size)),
        )
    return nearest_names(name, compared, NEAREST)


def settings_of(config: ServerConfig, tool: str) -> list[tuple[str, ToolConfig]]:
    """Return the settings of a tool with their keys: those under its name, then those of globs."""
    if not config.tools:
        # Few servers have any, and each tool of a long list comes by here several times.
        return []
    named = config.tools.get(tool)
    own = [] if named is None else [(tool, named)]
    return own + [
        (glob, settings)
        for glob, settings in config.tools.items()
        if glob != tool and ANY in glob and matches(glob, tool)
    ]


def include_of(config: ServerConfig, tool: str, *, for_models: bool = True) -> IncludeMode:
    """Return how a tool comes to models: not at all if it is not for them and has no settings of its own."""
    found = (own.include for _, own in settings_of(config, tool))
    return next(filter(None, found), config.include if for_models else IncludeMode.MANUAL)


def _permission(config: ServerConfig, tool: str, tool_class: ToolClass | None) -> tuple[Allow, KeyPath]:
    """Return the permission to call a tool, and the setting that gives it.

    Where its class is None, that is not known, and no class counts.
    """
    named = config.tools.get(tool)
    if named is not None and named.allow is not None:
        return named.allow, ("tools", tool, "allow")
    found: list[tuple[Allow, KeyPath]] = [
        (own.allow, ("tools", key, "allow"))
        for key, own in settings_of(config, tool)
        if own.allow is not None
    ]
    if found:
        return max(found, key=lambda one: STRICTNESS[one[0]])
    if tool_class is None:
        return "always", ()
    return getattr(config.classes, tool_class), ("classes", tool_class)


def turned_off_by(config: ServerConfig, tool: str, danger: Danger | None) -> str | None:
    """Return the setting that turns a tool off, as the end of "is turned off ..."; None if it is on.

    ``danger`` is its class, since a class of tools may be turned off; None leaves that out, where the class
    is not known.
    """
    for key, own in settings_of(config, tool):
        if not own.enabled:
            return f"by {_place(config, ('tools', key, 'enabled'))}"
    # As hosts write the name: their rules have become globs.
    written = INVALID_IN_NAME.sub("_", tool) if config.deny else tool
    for index, glob in enumerate(config.deny):
        if matches(glob, tool) or matches(glob, written):
            return f"by {_place(config, ('deny', index))}"
    if config.allow is not None and not any(matches(glob, tool) for glob in config.allow):
        return f"by {_place(config, ('allow',))}, which does not name it"
    tool_class = None if danger is None else danger.tool_class
    allow, rule = _permission(config, tool, tool_class)
    if allow != "never":
        return None
    of_class = f", because it is {tool_class}: {danger.reason}" if danger and rule[0] == "classes" else ""
    return f"by {_place(config, rule)}{of_class}"


def asked_by(config: ServerConfig, tool: str, tool_class: ToolClass) -> str:
    """Return the setting by which a person is asked before each call of a tool; empty if there is none."""
    allow, rule = _permission(config, tool, tool_class)
    return _place(config, rule) if allow == "ask" else ""


def class_by(config: ServerConfig, tool: str) -> tuple[ToolClass | None, str]:
    """Return the strictest class that the configuration gives a tool, and the setting; None for none."""
    order = list(ToolClass)
    found = [(own.danger, key) for key, own in settings_of(config, tool) if own.danger is not None]
    if not found:
        return None, ""
    danger, key = max(found, key=lambda one: order.index(one[0]))
    return danger, _place(config, ("tools", key, "danger"))


def without_effect(config: ServerConfig, tools: Iterable[str]) -> Iterator[str]:
    """Yield a finding for each setting that is about a tool which its server does not offer.

    ``tools`` has the own names of everything that the server offers, turned off or not.
    """
    offered = frozenset(tools)
    written = offered.union(INVALID_IN_NAME.sub("_", tool) for tool in offered) if config.deny else offered
    globs: list[tuple[KeyPath, str]] = [(("allow",), glob) for glob in config.allow or ()]
    globs += [(("deny", index), glob) for index, glob in enumerate(config.deny)]
    globs += [
        (("tools", name, key), name)
        for name, tool in config.tools.items()
        for key in ("enabled", "allow", "danger")
        if getattr(tool, key) not in (True, None)
    ]
    for key, glob in globs:
        known = written if key[0] == "deny" else offered
        if glob in known or any(matches(glob, tool) for tool in known):
            continue
        own = glob.removeprefix(f"{config.name}__")
        hint = "" if own == glob else f"; write the name that the server itself uses: {own}"
        yield f"{_place(config, key)}: {glob!r} matches none of its tools{hint}"


def _place(config: ServerConfig, key: KeyPath) -> str:
    """Return key, file and line of a setting; the key alone where it comes from no file."""
    older = (*key[:-1], CONFIRM) if key[0] == "tools" else (CONFIRM,)
    written = (config.places.get(dotted(one)) for one in (key, older))
    return next(filter(None, written), f"servers.{config.name}.{dotted(key)}")


Checked: TypeAlias = Callable[[Iterable[Encoded]], Iterator[Encoded]]
"""Passes definitions on one by one; it may end the work by an exception."""


def checked(check: Callable[[], object], entries: Iterable[Entry]) -> Iterator[Entry]:
    """Pass entries on one by one, and call ``check`` before each."""
    for entry in entries:
        check()
        yield entry


class ParsedTools(Struct, frozen=True):
    """The tools of a listing under one configuration of its server."""

    config: ServerConfig
    definitions: Sequence[Encoded]
    tools: tuple[Tool, ...]
    turned_off: tuple[TurnedOffTool, ...]
    findings: tuple[str, ...]
    candidates: Mapping[str, Candidate]
    """Definitions of the tools that are on, by own name."""


def name_lengths(expose: ExposeConfig) -> tuple[int, ...]:
    """Return the lengths to which names are fitted: the one for any client, then longer ones."""
    return NAME_LENGTHS if expose.max_name_length is None else (expose.max_name_length,)


class ToolLists:
    """Lists of tools, each parsed once: before its server publishes it if it is long, else by a refresh."""

    def __init__(self, expose: ExposeConfig, limits: Limits) -> None:
        self._lengths, self._limits = name_lengths(expose), limits
        self.last: dict[str, ParsedTools] = {}
        """Lists as parsed last, by server."""
        self._ahead: dict[str, ParsedTools] = {}
        """Lists that are not published yet, by server."""

    def read_ahead(self, config: ServerConfig, listed: Sequence[Encoded], checked: Checked) -> None:
        """Parse a list that `parsed` will be asked for. Thread-safe."""
        self._ahead[config.name] = parse_tools(config, listed, checked, self._lengths, self._limits)

    def parsed(self, config: ServerConfig, listed: Sequence[Encoded], checked: Checked) -> ParsedTools:
        """Return the tools of a list; parsed again only when the list or the settings have changed."""
        for lists in (self.last, self._ahead):
            known = lists.get(config.name)
            if known is not None and known.definitions is listed and known.config is config:
                break
        else:
            known = parse_tools(config, listed, checked, self._lengths, self._limits)
        if known is self._ahead.get(config.name):
            del self._ahead[config.name]
        self.last[config.name] = known
        return known

    def keep(self, servers: Container[str]) -> None:
        self.last = {name: parsed for name, parsed in self.last.items() if name in servers}


def parse_tools(
    config: ServerConfig,
    listed: Sequence[Encoded],
    checked: Checked,
    name_lengths: Sequence[int],
    limits: Limits,
) -> ParsedTools:
    """Return the tools of a list, apart from those that the configuration turns off, and findings.

    ``checked`` passes the definitions on one by one, and may end the work by an exception. ``name_lengths``
    are the length of the longest exposed name, and those of wider ones.
    """
    tools: dict[str, Tool | TurnedOffTool] = {}
    candidates: dict[str, Candidate] = {}
    findings: list[str] = []
    for position, entry in enumerate(checked(listed), 1):
        try:
            tool, remark, candidate = _parse_tool(config, entry, name_lengths, limits)
        except UnfitError as error:
            findings.append(entry_withheld(position, "tools", error))
            continue
        if tool.name in tools:
            findings.append(f"a second tool named {tool.name!r} is withheld")
            continue
        tools[tool.name] = tool
        if candidate is not None:
            candidates[tool.name] = candidate
        if remark:
            findings.append(f"tool {tool.name!r}: {remark}")
    findings.extend(definitions.lookalikes(tools))
    if listed:
        findings.extend(without_effect(config, tools))
    told = tuple(f"{config.name}: {finding}" for finding in findings)
    on = tuple(tool for tool in tools.values() if isinstance(tool, Tool))
    off = tuple(tool for tool in tools.values() if isinstance(tool, TurnedOffTool))
    return ParsedTools(config, listed, on, off, told, candidates)


def _parse_tool(
    config: ServerConfig, entry: Encoded, name_lengths: Sequence[int], limits: Limits
) -> tuple[Tool | TurnedOffTool, str, Candidate | None]:
    """Return a tool with a remark on a cut, and the candidate for its approval.

    Of one that is turned off only name and hints are read. Raises `UnfitError` if the tool cannot be shown.
    """
    definition = bytes(entry)
    try:
        members = envelope.members(definition)
    except (ValueError, RecursionError):
        raise UnfitError("it is not an object") from None
    name = envelope.text(members.get("name"))
    if not name or not name.isprintable() or len(name) > OWN_NAME_CHARACTERS:
        raise UnfitError("it has no usable name")
    exposed, *wider = definitions.names_within(config.name, name, name_lengths)
    markers = definitions.markers_of(members)
    danger = danger_of(name, markers.hinted, *class_by(config, name))
    if (reason := turned_off_by(config, name, danger)) is not None:
        return TurnedOffTool(config.name, name, exposed, reason), "", None
    schema = members.get("inputSchema")
    if schema is None or not envelope.starts_with(schema, b"{"):
        raise UnfitError(f"tool {name!r} has no inputSchema object")
    settings = [own for _, own in settings_of(config, name)]
    named = config.tools.get(name)
    described, use_cases = (None, ()) if named is None else (named.description, named.use_cases)
    try:
        own = definition if described is None else definitions.with_description(definition, described)
        own = definitions.as_ordinary(own) if markers.task_only else own
        known, is_plain = fingerprint_if_plain(definition, Approvable.TOOL)
        shown, remark = definitions.fit(own, limits, is_plain=is_plain)
    except UnfitError as error:
        raise UnfitError(f"tool {name!r}: {error}") from None
    hints = Hints(markers.hinted or ToolClass.WRITE, markers.interactive)
    written = entry if shown is definition else shown
    candidate = Candidate.of(Approvable.TOOL, name, entry, written, hints, known)
    tool = Tool(
        server=config.name,
        name=name,
        exposed_name=exposed,
        written=written,
        fingerprint=candidate.fingerprint.of(config.name),
        include=include_of(config, name, for_models=markers.for_models),
        tags=config.tags + tuple(tag for own in settings for tag in own.tags),
        category=next((own.category for own in settings if own.category), config.category),
        use_cases=use_cases,
        trusted=config.trusted,
        tool_class=danger.tool_class,
        class_reason=danger.reason,
        interactive=markers.interactive,
        asked_by=asked_by(config, name, danger.tool_class),
        result_characters=markers.result_characters,
        task_only=markers.task_only,
        page=markers.page,
        other_pages=markers.other_pages,
        wider_names=tuple(wider),
    )
    return tool, remark, candidate


def entry_withheld(position: int, list_name: str, reason: object) -> str:
    """Return the finding about an entry of a list that cannot be shown."""
    return f"entry {position} of its {list_name} is withheld: {reason}"
