"""``check --host``: finds all that one host would cut, drop, refuse or ignore with this configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog.definitions import SEPARATOR
from mcp_context_proxy.catalog.names import name_within
from mcp_context_proxy.catalog.parts import part_for
from mcp_context_proxy.cli.terminal import counted
from mcp_context_proxy.config.host_profiles import HOSTS, HostProfile, NameRule, room_given
from mcp_context_proxy.config.settings import PRESETS, SHORTEST_NAME
from mcp_context_proxy.config.tables import matches
from mcp_context_proxy.items import Tool
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.trust.profiles import profile_of
from mcp_context_proxy.trust.tokens import THE_USER

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy

NAMED: Final = 3
"""Tools that a line names."""

Severity: TypeAlias = Literal["ok", "warning", "PROBLEM"]


class Effect(Struct, frozen=True):
    """One thing that a host does with our lists or results."""

    severity: Severity
    about: str
    """The part of them, such as ``names``."""
    message: str
    remedy: str = ""


_BREACHES: Final[Mapping[str, tuple[Severity, str]]] = {
    "refused": ("PROBLEM", "and one such name is enough to have the whole list refused"),
    "dropped": ("warning", "and the host leaves these tools out"),
    "shortened": ("warning", "and the host shortens them in its own way, so that two may become the same"),
}
"""Severity and consequence of names that are too long."""


def names(proxy: Proxy) -> Iterator[Effect]:
    """Yield which tools have a shortened name, and which names are too long for one of the hosts.

    The proxy is taken to have its recommended name in each of them.
    """
    tools = [*proxy.catalog.snapshot.tools.values()]
    yield from _shortened(tools, proxy.config.expose.name_lengths[0])
    hosts = [host for host in HOSTS.values() if _too_long(tools, host.name_characters)]
    if hosts:
        room = min(host.name_characters for host in hosts)
        long = _too_long(tools, room)
        message = (
            f"{counted(len(long), 'name')} of tools over {room} characters, too long for "
            f"{', '.join(host.title for host in hosts)}: {_listed(long)}"
        )
        remedy = "leave out expose.max_name_length, or run check --host NAME for the host that you use"
        yield Effect("warning", "names", message, remedy)


def profiles(proxy: Proxy) -> Iterator[Effect]:
    """Yield what the clients of each profile see, and mistakes in the profiles that no other check finds."""
    config, saved = proxy.config, {*proxy.contexts.presets.names, *PRESETS}
    for name, settings in config.clients.items():
        about = f"clients.{name}"
        seen = part_for(THE_USER.within(profile_of(name, settings)), proxy.catalog.whole.snapshot)
        servers = {tool.server for tool in seen.tools.values()}
        documents = sum(not one.server for one in seen.documents.values())
        sees = (
            f"sees {counted(len(seen.tools), 'tool')} of {counted(len(servers), 'server')}, "
            f"{counted(documents, 'document')}"
        )
        yield Effect("ok" if seen.tools or documents else "warning", about, sees)
        for glob in settings.servers or ():
            if not any(matches(glob, server) for server in config.servers):
                yield Effect("warning", about, f"no server is named {glob!r}")
        for preset in settings.presets:
            if preset not in saved:
                remedy = f"`mcp-context-proxy session save {preset}` saves one"
                yield Effect("warning", about, f"there is no preset {preset!r}", remedy)
    if config.context.interactions_top_n and not config.interactions.enabled:
        text = "context.interactions_top_n has no effect: nothing is remembered"
        yield Effect("warning", "context", text, "set interactions.enabled = true")


def effects(proxy: Proxy, host: HostProfile) -> Iterator[Effect]:
    """Yield findings on how a host treats the names, descriptions, lists and results of a proxy.

    The servers of the proxy must have been connected.
    """
    snapshot = proxy.catalog.snapshot
    tools = [*snapshot.tools.values()]
    most = proxy.config.expose.max_name_length or room_given(host)
    tools = [replace(tool, exposed_name=name_within(tool, most)) for tool in tools]
    yield from _shortened(tools, most)
    yield _names(tools, host.names.value, host.server)
    listed = proxy.tool_list.definitions(snapshot, proxy.tool_list.base_names(snapshot))
    described = dict(_described(definition) for definition in listed)
    yield from _descriptions(described, len(proxy.instructions().encode()), host.description_bytes.value)
    if host.tools.value is not None:
        yield _number(len(listed), host.tools.value)
    yield _changes(host, proxy.tool_list.lists_all(snapshot))
    yield _results(host)


def _shortened(tools: Iterable[Tool], most: int) -> Iterator[Effect]:
    cut = [tool for tool in tools if tool.exposed_name != tool.name and len(_full_name(tool)) > most]
    if cut:
        whose = "the name of 1 tool is" if len(cut) == 1 else f"the names of {len(cut):,} tools are"
        examples = _joined([f"{one_line(_full_name(tool))} is {tool.exposed_name}" for tool in cut])
        yield Effect("ok", "names", f"{whose} shortened to {most} characters: {examples}")


def _full_name(tool: Tool) -> str:
    return f"{tool.server}{SEPARATOR}{tool.name}"


def _too_long(tools: Iterable[Tool], room: int) -> list[Tool]:
    return [tool for tool in tools if len(tool.exposed_name) > room]


def _names(tools: Sequence[Tool], rule: NameRule, server: str) -> Effect:
    prefix, room = rule.prefix_with(server), rule.room(server)
    added = f"the host puts {prefix} before each" if prefix else "the host puts nothing before them"
    long = _too_long(tools, room)
    if not long:
        longest = max((len(tool.exposed_name) for tool in tools), default=0) + len(prefix)
        return Effect("ok", "names", f"{added}; the longest has {longest} of {rule.most} characters")
    severity, fate = _BREACHES[rule.breach]
    message = (
        f"{added}, and {len(long):,} of {len(tools):,} then have more than {rule.most} characters, "
        f"{fate}: {_listed(long)}"
    )
    shorter = f"set expose.max_name_length = {room}, or " if room >= SHORTEST_NAME else ""
    return Effect(
        severity, "names", message, f"{shorter}give the proxy a shorter name in the host than {server}"
    )


def _described(definition: Raw) -> tuple[str, int]:
    """Return the name of a listed tool, and the size of its description in bytes."""
    members = envelope.members(definition)
    text = envelope.text(members.get("description")) or ""
    return envelope.text(members["name"]) or "", len(text.encode())


def _descriptions(described: Mapping[str, int], instructions: int, most: int | None) -> Iterator[Effect]:
    """Yield the descriptions that are cut, with their size in bytes by listed name, and the instructions."""
    if most is None:
        return
    long = {name: size for name, size in described.items() if size > most}
    if long:
        named = _joined([f"{name} ({size:,} bytes)" for name, size in long.items()])
        message = f"{len(long)} of {len(described):,} listed are cut to {most:,} bytes: {named}"
        yield Effect("warning", "descriptions", message, 'include = "agent" leaves such tools to the search')
    else:
        yield Effect("ok", "descriptions", f"none of {len(described):,} listed is over {most:,} bytes")
    if instructions > most:
        yield Effect("warning", "instructions", f"{instructions:,} bytes are cut to {most:,}")


def _number(listed: int, most: int) -> Effect:
    if listed <= most:
        return Effect("ok", "tools", f"{listed:,} are listed, of at most {most} from all servers of the host")
    return Effect(
        "warning",
        "tools",
        f"{listed:,} are listed, and the host takes at most {most} from all its servers",
        'set expose.mode = "search", and include = "always" for fewer tools',
    )


def _changes(host: HostProfile, lists_all: bool) -> Effect:
    if host.list_changes.value:
        return Effect("ok", "list changes", "it lists the tools again when they change")
    if lists_all:
        missed = "tools of servers that were not ready when it started"
    else:
        missed = "new tools; those that a search finds are called through call_tool"
    return Effect("ok", "list changes", f"until it is restarted or refreshed, it misses {missed}")


def _results(host: HostProfile) -> Effect:
    forms = {
        "text": "the model reads their text",
        "structured": "the model reads structuredContent where there is any, and the text otherwise",
        "both": "the model reads the text and structuredContent, which may be the same twice",
    }
    message, limit = forms[host.result.value], host.results.value
    if limit is None:
        return Effect("ok", "results", f"{message}; no limit of their length is known")
    fate = "go to a file" if limit.rest == "in a file" else "are cut"
    return Effect("ok", "results", f"{message}; those over {limit.most:,} {limit.unit} {fate}")


def _listed(tools: Iterable[Tool]) -> str:
    return _joined([tool.exposed_name for tool in tools])


def _joined(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
