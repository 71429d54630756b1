"""Names of tools and prompts: how one is shown, whose it is, what it leads to, what is configured for it.

A full name, ``<server>__<own name>``, depends on its own server and tool alone, so it stays when others come
and go. Anything that could make two pairs meet in one name (a character that had to be replaced, a cut, an
underscore beside the separator) adds a short hash of the original pair.

It leads to that server or nowhere, whether the server is connected, slow, failed, switched off or gone. So no
name with the separator in it is ever looked up as an own name. An own name leads somewhere only if exactly
one server has it, and every enabled server is known: one that has not been connected yet may have it as well.

The configuration can turn tools off, and `turned_off_by` alone decides it, for every way to reach a tool.
``allow`` and ``deny`` of a server are globs over the tools' own names, ``enabled = false`` stands under a
tool or a glob, and ``"never"`` under one of these or for a danger class. The first three turn a tool off
whatever else is set; of the last, `_permission` says which counts. The catalog leaves such tools out of the
snapshot, so that lists, searches, the index, learned pairs and calls cannot disagree.
Prompts and resources are not tools: only ``enabled = false`` for the whole server turns them off.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from mcp_context_proxy.config import ExposeConfig, ServerConfig
from mcp_context_proxy.config.host_profiles import NAME_LENGTHS, SERVER
from mcp_context_proxy.config.source import dotted
from mcp_context_proxy.config.tables import ANY, CONFIRM, STRICTNESS, Allow, ToolConfig, matches
from mcp_context_proxy.config.texts import KeyPath
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
    IncludeMode,
    NameOf,
    Prompt,
    Snapshot,
    Tool,
    ToolClass,
    TurnedOffTool,
    Withheld,
)
from mcp_context_proxy.protocol.strangers import in_plain_letters
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.trust import ORDER, Danger, reaches

SEPARATOR = "__"
HASH_LENGTH = 6
"""Hexadecimal digits of the hash in a name: 1 in 16 million that two altered names of one shape meet."""

OWN_NAME_CHARACTERS: Final = 1_000
"""Longest own name of a tool or prompt: it is repeated in findings, errors and records."""

COMPARED: Final = 256
"""Characters of a name with letters of other scripts that are compared. Normalization sorts the marks of a
letter in time that is the square of their number."""

LOOKALIKES_NAMED: Final = 5
"""Names of a group of lookalikes that a finding repeats."""

_VALID_NAME = pattern(r"[a-zA-Z_][a-zA-Z0-9_-]*")
INVALID_IN_NAME = pattern(r"[^a-zA-Z0-9_-]")
_SEEMS_SEPARATOR = pattern(r"[-_./ ]{2}")
"""The separator, or two characters that a person takes for it."""

_LOOKALIKES: Final = str.maketrans("-./ 01", "____ol")

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

Named = TypeVar("Named", Tool, Prompt, TurnedOffTool, Withheld)


def exposed_name(server: str, name: str, max_length: int) -> str:
    plain = f"{server}{SEPARATOR}{name}"
    ambiguous = server.endswith("_") or name.startswith("_")
    if _VALID_NAME.fullmatch(plain) and len(plain) <= max_length and not ambiguous:
        return plain
    cleaned, digest = _valid(plain), _name_digest(server, name)
    room = max_length - len(digest) - 1
    if len(cleaned) <= room:
        return f"{cleaned}_{digest}"
    # Cut in the middle, so that both ends stay readable, and behind the server if there is room.
    room -= 1
    head = room - room // 3
    if head - 1 <= (server_end := len(cleaned) - len(name) - 1) <= room:
        head = server_end
    kept = min(head, server_end)  # with half of the separator; the digest brings the other half
    start = cleaned[:kept] + cleaned[kept:head].rstrip("_")
    end = cleaned[len(cleaned) - (room - head) :].lstrip("_")
    return f"{start}_{digest}_{end}" if end else f"{start}_{digest}"


def name_lengths(expose: ExposeConfig) -> tuple[int, ...]:
    """Return the lengths to which names are fitted: the one for any client, then longer ones."""
    return NAME_LENGTHS if expose.max_name_length is None else (expose.max_name_length,)


def names_within(server: str, name: str, lengths: Sequence[int]) -> list[str]:
    """Return the different exposed names of a tool for several greatest lengths, which are in order."""
    plain = exposed_name(server, name, lengths[0])
    if plain == f"{server}{SEPARATOR}{name}":
        return [plain]
    return list(dict.fromkeys([plain, *(exposed_name(server, name, length) for length in lengths[1:])]))


def is_altered_name(name: str, server: str, own: str) -> bool:
    """Return whether `exposed_name` made a name of this tool or prompt, with any length.

    A host may remember a name from before the length was changed.
    """
    head, found, tail = name.partition(f"_{_name_digest(server, own)}")
    cleaned = _valid(f"{server}{SEPARATOR}{own}")
    return bool(found) and cleaned.startswith(head) and (not tail or cleaned.endswith(tail.removeprefix("_")))


def _valid(name: str) -> str:
    cleaned = INVALID_IN_NAME.sub("_", name)
    return cleaned if _VALID_NAME.match(cleaned) else f"_{cleaned}"


def _name_digest(server: str, name: str) -> str:
    original = f"{server}\0{name}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(original).hexdigest()[:HASH_LENGTH]


def bare_names(
    pairs: Sequence[tuple[str, str]], reserved: Iterable[str], max_length: int
) -> dict[tuple[str, str], str]:
    """Return names without prefix where these are valid and look like no other, else the prefixed name.

    A name that seems to have a prefix keeps its own as well: the part before a separator is the server.

    ``pairs`` has server and own name of everything in the catalog, ``reserved`` the proxy's own names.
    """
    looks = {name: folded(name) for _, name in pairs}
    count = Counter(looks[name] for _, name in pairs)
    prefixed = {(server, name): exposed_name(server, name, max_length) for server, name in pairs}
    # A tool may be named like another server's tool with its prefix, or like one of the proxy's own.
    taken, own = {*map(folded, prefixed.values())}, {folded(name).replace("_", "") for name in reserved}
    return {
        (server, name): name
        if count[looks[name]] == 1
        and looks[name] not in taken
        and looks[name].replace("_", "") not in own
        and len(name) <= max_length
        and _VALID_NAME.fullmatch(name)
        and not seems_full(name)
        else prefixed[server, name]
        for server, name in pairs
    }


def is_plain_name(name: str) -> bool:
    """Return whether a name can be listed as it is, and nobody reads the name of a server in it."""
    return _VALID_NAME.fullmatch(name) is not None and not seems_full(name)


def seems_full(name: str) -> bool:
    """Return whether a person may read the beginning of a name as that of a server."""
    return _SEEMS_SEPARATOR.search(name) is not None


def lookalikes(names: Iterable[str]) -> Iterator[str]:
    """Yield a finding for each group of tools whose names a person takes for one another.

    They differ in case, a hyphen, a digit, or letters of another script.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[folded(name)].append(name)
    for group in groups.values():
        if len(group) > 1:
            more = ", ..." if len(group) > LOOKALIKES_NAMED else ""
            yield f"tools whose names look alike: {', '.join(map(repr, group[:LOOKALIKES_NAMED]))}{more}"


def folded(name: str) -> str:
    """Return the same text for names that a person takes for one another."""
    plain = name if name.isascii() else in_plain_letters(name[:COMPARED])
    return plain.casefold().translate(_LOOKALIKES)


def is_full(name: str) -> bool:
    """Return whether a name states its server, so that it is nobody's own name."""
    return SEPARATOR in name


def owner(name: str, servers: Collection[str]) -> str | None:
    """Return the server that a full name belongs to; None if there is none."""
    return parted(name, servers)[0]


def parted(name: str, servers: Collection[str]) -> tuple[str | None, str]:
    """Return the server with the longest prefix of a full name, and the rest; None and the name without one.

    No name of a server holds a separator, but one may end with half of it, or begin with a character that
    gets an underscore before it in a full name.
    """
    head, separator, rest = name.partition(SEPARATOR)
    for each in ([f"{head}_", head] if rest.startswith("_") else [head]) if separator else ():
        for server in (each, each.removeprefix("_")):
            if server in servers:
                return server, name[len(each) + len(SEPARATOR) :]
    return None, name


def as_full(snapshot: Snapshot, name: str) -> tuple[str, str | None]:
    """Return a name, in full if a model has written a full one in another form, and the server it states.

    Models write ``server.tool``, repeat the mark or the parameters of an answer, or put the prefix of their
    host before a name. A server that cannot be reached is not to be told from one that does not exist.
    """
    written, stated = _WRITTEN.match(name), owner(name, snapshot.servers)
    server = "" if written is None else written[1]
    if written and server in snapshot.servers and stated in (None, server) and reaches(server):
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
        stated = owner(item.exposed_name, servers)
        if stated in (None, item.server):
            yield item
        else:
            findings.append(
                f"{item.server}: {item.exposed_name!r} is withheld: the name belongs to server {stated!r}"
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
    server, own = parted(name, servers)
    if server is None:
        return None
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
        stated = owner(name, snapshot.servers)
        if stated is not None and stated == owner(name, snapshot.unlisted):
            raise AwaitedServersError("tool", name, [stated])
        if (respelt := _respelt(snapshot, name)) is not None:
            return respelt
        raise UnknownItemError("tool", name, suggested(tools, name, snapshot.servers, compared, name_of))
    same = [tool for tool in tools.values() if tool.name == name and server in (None, tool.server)]
    names = [*map(name_of, same)]
    full = name if server is None else f"{server}{SEPARATOR}{name}"
    near = [] if names else suggested(tools, full, snapshot.servers, compared, name_of)
    if server is None and snapshot.unlisted and len(same) < 2:
        raise AwaitedServersError("tool", name, snapshot.unlisted, known=names, nearest=near)
    if len(same) == 1:
        return same[0]
    if same:
        raise SharedNameError("tool", name, names)
    _raise_if_turned_off(snapshot, name, server)
    raise UnknownItemError("tool", full, near)


def _respelt(snapshot: Snapshot, name: str) -> Tool | None:
    """Return the one tool whose full name reads the same, as ``getSum`` does as ``get-sum``."""
    server, own = parted(name, snapshot.servers)
    if len(own) > COMPARED or _HAS_DIGEST.search(name):
        return None
    read, known = folded(own).replace("_", ""), (snapshot.tools, snapshot.turned_off, snapshot.withheld)
    every = (one for items in known for one in items.values() if one.server == server)
    same = [one for one in every if folded(one.name).replace("_", "") == read]
    return same[0] if len(same) == 1 and isinstance(same[0], Tool) else None


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
    server, own = parted(name, servers)
    among = (item for item in items.values() if server in (None, item.server))
    exposed: dict[str, list[str]] = {}
    for item in itertools.islice(among, most * LOOKED_AT):
        for each in {item.name, item.exposed_name} if server is None else {_telling(item.name, server)}:
            exposed.setdefault(each, []).append(name_of(item))
    near = nearest(own if server is None else _telling(own, server), exposed, 2 * most)
    return list(dict.fromkeys(one for each in near for one in exposed[each]))[:NEAREST]


def _telling(own: str, server: str) -> str:
    """Return an own name without the word of its server, by which all of ``git_show`` and so on are alike."""
    return own.removeprefix(f"{server}_").removeprefix(f"{server}-")


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
    found = [(own.danger, key) for key, own in settings_of(config, tool) if own.danger is not None]
    if not found:
        return None, ""
    danger, key = max(found, key=lambda one: ORDER.index(one[0]))
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
