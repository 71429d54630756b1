"""The list of tools of one server, taken apart: each definition becomes a tool, or is withheld with a reason.

Everything that is decided about a tool once is decided here: its names, what the configuration says of it,
its danger class, and its definition as it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from mcp_context_proxy.catalog import definitions, names
from mcp_context_proxy.catalog.definitions import UnfitError
from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.items import Tool, ToolClass, TurnedOffTool
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.trust.danger import danger_of
from mcp_context_proxy.trust.fingerprints import Approvable, Candidate, Hints, fingerprint_if_plain


class ParsedTools(Struct, frozen=True):
    """The tools of a listing under one configuration of its server."""

    config: ServerConfig
    definitions: Sequence[bytes]
    tools: tuple[Tool, ...]
    turned_off: tuple[TurnedOffTool, ...]
    findings: tuple[str, ...]
    candidates: Mapping[str, Candidate]
    """Definitions of the tools that are on, by own name."""


def parse_tools(
    config: ServerConfig,
    listed: Sequence[bytes],
    checked: Callable[[Iterable[bytes]], Iterator[bytes]],
    name_lengths: Sequence[int],
    limits: Limits,
) -> ParsedTools:
    """Return the tools of a list, apart from those that the configuration turns off, and findings.

    Args:
        config: The server and its settings.
        listed: The definitions as they came.
        checked: Passes them on one by one; it may end the work by an exception.
        name_lengths: Longest exposed name, and the lengths of wider ones.
        limits: Bounds for a definition.
    """
    tools: dict[str, Tool | TurnedOffTool] = {}
    candidates: dict[str, Candidate] = {}
    findings: list[str] = []
    for position, definition in enumerate(checked(listed), 1):
        try:
            tool, remark, candidate = _parse_tool(config, definition, name_lengths, limits)
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
        findings.extend(names.without_effect(config, tools))
    told = tuple(f"{config.name}: {finding}" for finding in findings)
    on = tuple(tool for tool in tools.values() if isinstance(tool, Tool))
    off = tuple(tool for tool in tools.values() if isinstance(tool, TurnedOffTool))
    return ParsedTools(config, listed, on, off, told, candidates)


def _parse_tool(
    config: ServerConfig, definition: bytes, name_lengths: Sequence[int], limits: Limits
) -> tuple[Tool | TurnedOffTool, str, Candidate | None]:
    """Return a tool with a remark on a cut, and what is approved of it.

    Of one that is turned off only name and hints are read.

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
    exposed, *wider = definitions.names_within(config.name, name, name_lengths)
    markers = definitions.markers_of(members)
    danger = danger_of(name, markers.hinted, *names.class_by(config, name))
    if (reason := names.turned_off_by(config, name, danger)) is not None:
        return TurnedOffTool(config.name, name, exposed, reason), "", None
    schema = members.get("inputSchema")
    if schema is None or not envelope.starts_with(schema, b"{"):
        raise UnfitError(f"tool {name!r} has no inputSchema object")
    described, use_cases = config.described(name)
    try:
        own = definition if described is None else definitions.with_description(definition, described)
        known, is_plain = fingerprint_if_plain(definition, Approvable.TOOL)
        shown, remark = definitions.fit(own, limits, is_plain=is_plain)
    except UnfitError as error:
        raise UnfitError(f"tool {name!r}: {error}") from None
    hints = Hints(markers.hinted or ToolClass.WRITE, markers.interactive)
    candidate = Candidate.of(Approvable.TOOL, name, definition, shown, hints, known)
    shown_members = members if shown is definition else envelope.members(shown)
    tool = Tool(
        server=config.name,
        name=name,
        exposed_name=exposed,
        description=envelope.text(shown_members.get("description")) or "",
        definition=shown,
        fingerprint=candidate.fingerprint.of(config.name),
        include=config.include_of(name),
        tags=config.tags_of(name),
        category=config.category_of(name),
        use_cases=use_cases,
        trusted=config.trusted,
        tool_class=danger.tool_class,
        class_reason=danger.reason,
        interactive=markers.interactive,
        asked_by=names.asked_by(config, name, danger.tool_class),
        result_characters=markers.result_characters,
        wider_names=tuple(wider),
    )
    return tool, remark, candidate


def entry_withheld(position: int, list_name: str, reason: object) -> str:
    """Return the finding about an entry of a list that cannot be shown."""
    return f"entry {position} of its {list_name} is withheld: {reason}"
