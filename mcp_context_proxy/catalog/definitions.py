"""Definitions: a server's list read into tools, and definitions as hosts see them, bounded and readable.

`parse_tools` decides everything about a tool that is decided once: its names, what the configuration says of
it, its danger class, and its definition as it is shown.

Servers are not trusted. Schemas are measured, never validated, resolved or compiled, and nothing they refer
to is fetched. Texts lose the characters that a person does not see. A tool that hides such characters in
something a call depends on, such as a property's name, is withheld. A definition without faults stays the
bytes that came; only its name changes. What an API of models refuses in an ``inputSchema`` is listed in
another form (`model_schemas`), because such an API refuses the whole request, with all tools of the host.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog import model_schemas, names
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.items import Encoded, Prompt, Resource, Tool, ToolClass, TurnedOffTool
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members, nests_deeper
from mcp_context_proxy.protocol.eras import OWN_PREFIX, SERVER_KEY, meta_of
from mcp_context_proxy.protocol.strangers import BLANK_LINES, clean, compact, one_line, quoted, unmarked
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.trust import Hints, danger_of, fingerprints, is_stricter
from mcp_context_proxy.trust.fingerprints import Approvable, Candidate, canonical, fingerprint_if_plain

SCHEMAS = ("inputSchema", "outputSchema")

TEXTS = frozenset({"description", "title", "$comment", "examples"})
"""Members, at any depth, that are only read: cleaning them changes no call."""

OWN_DOMAIN: Final = OWN_PREFIX.rstrip("/").encode()
"""Part of each key of the proxy; in JSON, a slash may be escaped."""

_UNSEEN_IN_PATTERN = pattern(r"\\?[^\\ -~\n\t\U00010000-\U0010ffff]|\\.", re.DOTALL)
"""An unseen character, with a backslash before it that it then needs no more, or an escape. Beyond the basic
plane regular expressions write escapes in different ways."""

_SUSPECT = pattern(rb"\\[ubfr]|(?:\\[nt]| ){%d}|(?i:\[(?: |\\[nt])*+server)" % (BLANK_LINES + 1))
"""Control characters, spaces in a row and marks of servers (`unmarked`), as they are written in JSON."""

_ESCAPED_LETTER = pattern(rb"\\u00(?:2[0134589a-fA-F]|3[0-9abdfABDF]|[46][0-9a-fA-F]|[57][0-9abd-fABD-F])")
"""A letter, digit or sign of ASCII that is written as an escape, as no honest server does: those that some
libraries escape are left out. What is looked for in the bytes of a definition would be missed there."""

_BLANK = b" " * (BLANK_LINES + 1)

_VALUE = pattern(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[,\[{]', re.DOTALL)
USER_INTERACTION: Final = "anthropic/requiresUserInteraction"
"""``_meta`` key of a tool that demands that the user is asked before each call."""
RESULT_SIZE: Final = "anthropic/maxResultSizeChars"
"""``_meta`` key of a tool with the length of a result that hosts shall keep whole."""
APP: Final = "ui"
"""``_meta`` key of a tool with its part in an MCP App."""
OLD_PAGE: Final = "ui/resourceUri"
"""Older ``_meta`` key of a tool with the URI of its page."""
OTHER_PAGE: Final = "openai/outputTemplate"
"""The key of ChatGPT."""
PAGE_SCHEME: Final = "ui"
"""Scheme of the pages of MCP Apps, which tools name in their ``_meta``."""
RESULT_CHARACTERS: Final = 500_000
"""Largest such length that hosts take."""

Entry = TypeVar("Entry")
Defined = TypeVar("Defined", bound=Tool | Resource | Prompt)


class UnfitError(ValueError):
    """A definition that cannot be shown; the text says why."""


def fit(definition: bytes, limits: Limits, *, is_plain: bool | None = None) -> tuple[bytes, str]:
    """Return a definition as it may be shown, with a remark for a person where something was cut.

    `is_plain` is the answer of `fingerprints.fingerprint_if_plain`, where that is known. Of a member that is
    named twice the last stays: some readers take the first, some the last, and some refuse the whole list.
    Raises `UnfitError` if it is over a bound, or hides characters where nothing can be changed.
    """
    members = envelope.members(definition)
    for name in SCHEMAS:
        schema = bytes(members.get(name, Raw(b"")))
        if len(schema) > limits.schema_bytes:
            raise UnfitError(f"its {name} is over {limits.schema_bytes:,} bytes")
        if schema and _count_values(schema, limits.schema_nodes) > limits.schema_nodes:
            raise UnfitError(f"its {name} has more than {limits.schema_nodes:,} values")
    if nests_deeper(definition, limits.nesting_definitions):
        raise UnfitError(f"it nests deeper than {limits.nesting_definitions} levels")
    if (read_alike := _without_misread(members)) is not None:
        definition, is_plain = envelope.encode(read_alike), None
    is_plain = fingerprints.is_plain(definition) if is_plain is None else is_plain
    if not is_plain or not definition.isascii() or _is_suspect(definition):
        objects = _Objects()
        try:
            # Not msgspec: its numbers end at 64 bits.
            value = json.loads(definition, parse_float=_finite, object_pairs_hook=objects)
        except ValueError:
            raise UnfitError("it has a number that cannot be read") from None
        cleaned = _cleaned(value, "", False)
        if isinstance(cleaned.get("_meta"), dict):
            # Keys of the proxy are never a server's.
            cleaned["_meta"] = {
                key: item for key, item in cleaned["_meta"].items() if not key.startswith(OWN_PREFIX)
            }
        if cleaned != value or objects.repeat or _ESCAPED_LETTER.search(definition):
            definition = json.dumps(cleaned, ensure_ascii=False).encode()
    if b'"icons"' in definition:
        definition = _with_safe_icons(definition)
    limit = limits.description_shown_bytes
    if len(definition) <= limit:
        return definition, ""
    shown: Members = envelope.members(definition)
    description = (envelope.text(shown.get("description")) or "").encode()
    size = len(description)
    if size <= limit:
        return definition, ""
    kept = description[:limit].decode("utf-8", "ignore")
    shown["description"] = envelope.raw(f"{kept} … [cut here: {limit:,} of {size:,} bytes]")
    return envelope.encode(shown), f"its description is cut: {limit:,} of {size:,} bytes are shown"


def _without_misread(definition: Members) -> Members | None:
    """Return a definition without members that some hosts read as others; None if it has none.

    Such a host would show and do what nobody has judged, such as a ``Description`` beside the description.
    """
    hints = envelope.members_of(definition.get("annotations"))
    if envelope.misread(definition) is None and envelope.misread(hints) is None:
        return None
    kept = {name: raw for name, raw in definition.items() if envelope.misread((name,)) is None}
    if hints:
        own = {name: raw for name, raw in hints.items() if envelope.misread((name,)) is None}
        kept["annotations"] = envelope.raw(own)
    return kept


def _is_suspect(definition: bytes) -> bool:
    # Each match of the expression has one of these, and a word is looked for much faster than an expression.
    some = b"\\" in definition or _BLANK in definition or b"server" in definition.lower()
    return OWN_DOMAIN in definition or (some and _SUSPECT.search(definition) is not None)


def with_description(definition: bytes, description: str) -> bytes:
    return envelope.encode({**envelope.members(definition), "description": envelope.raw(description)})


def as_ordinary(definition: bytes) -> bytes:
    """Return the definition of a tool without the demand that clients call it as a task."""
    members = envelope.members(definition)
    del members["execution"]
    return envelope.encode(members)


class _Objects:
    """Makes the objects of JSON, and notes whether one names a member twice."""

    repeat = False

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        self.repeat = self.repeat or len(made) < len(pairs)
        return made


def _finite(written: str) -> float:
    number = float(written)
    if math.isinf(number):
        raise ValueError("JSON has no infinity")
    return number


def _count_values(encoded: bytes, limit: int) -> int:
    """Return about the number of values in encoded JSON: each begins after a bracket or a comma."""
    highest = encoded.count(b",") + encoded.count(b"{") + encoded.count(b"[")
    if highest <= limit:
        return highest
    return 1 + sum(1 for match in _VALUE.finditer(encoded) if match[0][:1] != b'"')


def _cleaned(value: Any, key: str, named: bool) -> Any:
    """Return the value with clean texts; ``key`` is its member, ``named`` whether a server chose that key.

    Recursion is bounded by the depth that was checked before.
    """
    if isinstance(value, str):
        if key == "pattern" and not named:
            # The same regular expression with escapes: it may speak of characters that a person does not see.
            return _unchanged(_UNSEEN_IN_PATTERN.sub(_escape, value), "pattern")
        if key in TEXTS and not named:
            return unmarked(compact(value))
        return _unchanged(value, key) if key != "name" or named else _name(value, key)
    if isinstance(value, list):
        return [_cleaned(item, key, named) for item in value]
    if isinstance(value, dict):
        inside = key in model_schemas.BY_NAME and not named
        return {_name(name, name): _cleaned(item, name, inside) for name, item in value.items()}
    return value


def _unchanged(value: str, key: str) -> str:
    if clean(value) != value:
        raise UnfitError(f"it hides characters in {quoted(one_line(key) or 'a name')}, which calls depend on")
    if key != "pattern" and unmarked(value) != value:
        raise UnfitError(f"it writes the mark of a server in {quoted(one_line(key))}, which calls depend on")
    return value


def _name(value: str, key: str) -> str:
    if compact(value) == clean(value):
        return _unchanged(value, key)
    raise UnfitError(f"it hides part of {quoted(one_line(key))} behind a run of spaces")


def _escape(found: re.Match[str]) -> str:
    char = found[0][-1]
    return found[0] if clean(char) else f"\\u{ord(char):04x}"


class Markers(Struct, frozen=True):
    """Statements of a tool about its calls, which hosts decide by."""

    hinted: ToolClass | None
    """Class that its hints state; None if they state none."""
    interactive: bool
    """True if the user must be asked before each call."""
    result_characters: int
    """Length of a result that is kept whole; 0 where the tool says nothing about it."""
    page: str
    """URI of the page of an MCP App that shows its results; empty if it has none."""
    other_pages: tuple[str, ...]
    """URIs of the pages that other kinds of hosts show instead."""
    for_models: bool
    """False if it is for the interface of an MCP App alone."""
    task_only: bool
    """True if its server, of the handshake era, runs it as a task only."""


def markers_of(definition: Members) -> Markers:
    """Return the markers of a tool's definition; an unreadable one loosens nothing.

    A tool that says that it reads and that it destroys destroys.
    """
    # Member by member, so that one that cannot be decoded takes no other with it.
    hints, meta = envelope.members_of(definition.get("annotations")), meta_of(definition)
    hinted = None
    if bytes(hints.get("destructiveHint", b"")) == b"true":
        hinted = ToolClass.DESTRUCTIVE
    elif bytes(hints.get("readOnlyHint", b"")) == b"true":
        hinted = ToolClass.READ
    interactive = bytes(meta.get(USER_INTERACTION, b"false")) not in (b"false", b"null")
    size = envelope.number(meta.get(RESULT_SIZE)) or 0
    named = (app_of(meta).get("resourceUri", meta.get(OLD_PAGE)), meta.get(OLD_PAGE), meta.get(OTHER_PAGE))
    page, *others = (uri if is_page(uri) else "" for uri in (envelope.text(one) or "" for one in named))
    other_pages = tuple(filter(None, dict.fromkeys(others))) if meta else ()
    visibility = bytes(app_of(meta).get("visibility", b""))
    task = bytes(envelope.members_of(definition.get("execution")).get("taskSupport", b""))
    for_models = b"".join(visibility.split()) != b'["app"]'
    length = int(min(max(size, 0), RESULT_CHARACTERS))
    return Markers(hinted, interactive, length, page, other_pages, for_models, task == b'"required"')


def is_page(uri: str) -> bool:
    """Return whether a URI is that of a page with which hosts show the results of a tool to people."""
    return uri.partition(":")[0].strip().lower() == PAGE_SCHEME


def app_of(meta: Members) -> Members:
    """Return the part of a tool's ``_meta`` about MCP Apps; empty if there is none, or an unreadable one."""
    return envelope.members_of(meta.get(APP))


def visible_to(definition: Raw, *whom: str) -> Raw:
    """Return the definition of a tool with the word that hosts show it to models, to pages, or to both."""
    members = envelope.members(definition)
    meta = meta_of(members)
    app = {**app_of(meta), "visibility": envelope.raw(whom)}
    return envelope.raw({**members, "_meta": envelope.raw({**meta, APP: envelope.raw(app)})})


def is_for_apps(tool: Tool) -> bool:
    """Return whether the pages of its server may call a tool, as they may if it says nothing."""
    said = app_of(meta_of(envelope.members(tool.definition))).get("visibility", b"")
    visibility = envelope.value_or_none(said)
    return not isinstance(visibility, list) or "app" in visibility


def class_of(name: str, definition: bytes) -> ToolClass:
    """Return the danger class that a tool's name and hints give, where no configuration says anything."""
    return danger_of(name, markers_of(envelope.members(definition)).hinted, None, "").tool_class


def restrained(tool: Tool, hints: Hints) -> Tool:
    """Return a tool with the hints that were approved before its definition changed."""
    members = envelope.members(tool.definition)
    own = envelope.members_of(members.get("annotations"))
    own["readOnlyHint"] = envelope.raw(hints.tool_class is ToolClass.READ)
    own["destructiveHint"] = envelope.raw(hints.tool_class is ToolClass.DESTRUCTIVE)
    members["annotations"] = envelope.raw(own)
    if hints.interactive:
        members["_meta"] = envelope.raw({**meta_of(members), USER_INTERACTION: True})
    stricter = is_stricter(hints.tool_class, tool.tool_class)
    return replace(
        tool,
        written=envelope.encode(members),
        tool_class=hints.tool_class if stricter else tool.tool_class,
        class_reason="a person has approved it as that" if stricter else tool.class_reason,
        interactive=tool.interactive or hints.interactive,
    )


def fingerprint(server: str, definition: bytes) -> str:
    """Return SHA-256 (hex) over the server and all members of a definition, in any order."""
    return fingerprints.fingerprint(definition).of(server)


def keep_unchanged(before: Mapping[str, Defined], now: Mapping[str, Defined]) -> dict[str, Defined]:
    """Return the current items, each as the object that it was before where its definition says the same.

    Then nothing is indexed, announced or refused anew because a server wrote members in another order.
    """
    kept = dict(now)
    for key, item in now.items():
        known, member = before.get(key), "written" if isinstance(item, Tool) else "definition"
        if known is None or known == item or replace(known, **{member: getattr(item, member)}) != item:
            continue
        # As they are shown: no fingerprint has dates, nor a configured or cut description.
        if canonical(known.definition) == canonical(item.definition):
            kept[key] = known
    return kept


def tool_definition(tool: Tool, name: str | None = None) -> Raw:
    """Return the definition of a tool as it is listed, with a schema that every API of models takes."""
    members = envelope.members(bytes(tool.written))
    members["name"] = envelope.raw(tool.exposed_name if name is None else name)
    members["inputSchema"], left_out = taken_by_models(members["inputSchema"])
    if left_out:
        said = envelope.text(members.get("description")) or ""
        members["description"] = envelope.raw(f"{said} Takes {', '.join(left_out)}, too.".lstrip())
    return envelope.raw(members)


def taken_by_models(schema: Raw) -> tuple[Raw, list[str]]:
    """Return an input schema as every API of models takes it, and the first properties that it leaves out.

    Nearly all are taken as they are.
    """
    members, encoded = envelope.members(schema), bytes(schema)
    if (
        bytes(members.get("type", b"")) == b'"object"'
        and not members.keys() & model_schemas.REFUSED_AT_ROOT - {"allOf"}
        and _has_usual_properties(members)
        and encoded.count(b'"array"') <= encoded.count(b'"items"')
        and model_schemas.SIGN.search(encoded) is None
    ):
        return schema, []
    return model_schemas.rewritten(schema)


def _has_usual_properties(members: Members) -> bool:
    try:
        return all(map(model_schemas.PROPERTY.fullmatch, envelope.members(members["properties"])))
    except (KeyError, msgspec.DecodeError):
        return False


_SAFE_ICON: Final = pattern(r"https://|data:image/", re.IGNORECASE)
"""Beginning of the address of a picture that a host may load; others run a program or read a file."""


def _with_safe_icons(definition: bytes) -> bytes:
    """Return a definition without the icons that are no pictures at ``https:`` or in the address itself."""
    members = envelope.members(definition)
    icons = envelope.value(members.get("icons", Raw(b"[]")))
    safe = [icon for icon in icons if _is_safe(icon)] if isinstance(icons, list) else []
    if safe == icons:
        return definition
    kept = {name: raw for name, raw in members.items() if name != "icons"}
    return envelope.encode(kept | ({"icons": envelope.raw(safe)} if safe else {}))


def _is_safe(icon: Any) -> bool:
    address = icon.get("src") if isinstance(icon, dict) else None
    return isinstance(address, str) and _SAFE_ICON.match(address) is not None


def resource_definition(resource: Resource) -> Raw:
    """Return the definition of a resource or template with its server in the ``_meta``."""
    members = envelope.members(resource.definition)
    members["_meta"] = envelope.raw({**meta_of(members), SERVER_KEY: resource.server})
    return envelope.raw(members)


def prompt_definition(prompt: Prompt) -> Raw:
    members = envelope.members(prompt.definition)
    members["name"] = envelope.raw(prompt.exposed_name)
    return envelope.raw(members)


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


class ToolLists:
    """Lists of tools, each parsed once: before its server publishes it if it is long, else by a refresh."""

    def __init__(self, expose: ExposeConfig, limits: Limits) -> None:
        self._lengths, self._limits = names.name_lengths(expose), limits
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
    findings.extend(names.lookalikes(tools))
    if listed:
        findings.extend(names.without_effect(config, tools))
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
    if not name or not name.isprintable() or len(name) > names.OWN_NAME_CHARACTERS:
        raise UnfitError("it has no usable name")
    exposed, *wider = names.names_within(config.name, name, name_lengths)
    markers = markers_of(members)
    danger = danger_of(name, markers.hinted, *names.class_by(config, name))
    if (reason := names.turned_off_by(config, name, danger)) is not None:
        return TurnedOffTool(config.name, name, exposed, reason), "", None
    schema = members.get("inputSchema")
    if schema is None or not envelope.starts_with(schema, b"{"):
        raise UnfitError(f"tool {name!r} has no inputSchema object")
    settings = [own for _, own in names.settings_of(config, name)]
    named = config.tools.get(name)
    described, use_cases = (None, ()) if named is None else (named.description, named.use_cases)
    try:
        own = definition if described is None else with_description(definition, described)
        own = as_ordinary(own) if markers.task_only else own
        known, is_plain = fingerprint_if_plain(definition, Approvable.TOOL)
        shown, remark = fit(own, limits, is_plain=is_plain)
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
        include=names.include_of(config, name, for_models=markers.for_models),
        tags=config.tags + tuple(tag for own in settings for tag in own.tags),
        category=next((own.category for own in settings if own.category), config.category),
        use_cases=use_cases,
        trusted=config.trusted,
        tool_class=danger.tool_class,
        class_reason=danger.reason,
        interactive=markers.interactive,
        asked_by=names.asked_by(config, name, danger.tool_class),
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
