"""Arguments of calls: those that models write in other words or forms, read as they are meant.

A call tool tells hosts and APIs nothing about the arguments of the tool behind it, so nothing holds a model
to its schema. It writes JSON as a text, numbers as texts and texts as numbers, and names in another spelling.
Such an argument is read where it does not fit its schema and can be meant in one way only; every other one
stays as it is, and its server judges. If that refuses, the model is told what the tool takes, and what its
call lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.catalog.names import SEPARATOR
from mcp_context_proxy.errors import RemoteError
from mcp_context_proxy.items import Tool
from mcp_context_proxy.protocol import envelope, strangers
from mcp_context_proxy.retrieval.text import name_key
from mcp_context_proxy.server.meta_definitions import (
    CallArguments,
    ReadArguments,
    ReadResultArguments,
    SearchArguments,
)
from mcp_context_proxy.server.signatures import LOOKS, Detail, ToolSignature, as_dict, as_list, as_word
from mcp_context_proxy.system.later import pattern

OTHER_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("tool", "tool_name", "toolName"),
    "arguments": ("args", "params", "parameters", "input", "tool_args", "tool_arguments", "tool_input"),
}
"""Words that models use for the arguments of a call tool, which are those of other proxies and of APIs."""
OWN_WORDS: Final[Mapping[type[Struct], Mapping[str, tuple[str, ...]]]] = {
    SearchArguments: {
        "query": (
            "q",
            "queries",
            "search",
            "search_query",
            "task",
            "need",
            "needs",
            "description",
            "keywords",
        ),
        "top_n": ("limit", "top_k", "k", "n", "count", "max_results", "num_results"),
    },
    ReadArguments: {"name": ("uri", "document", "document_name", "path")},
    ReadResultArguments: {"id": ("result_id", "result"), "pattern": ("query", "search", "regex")},
}
"""The same for the arguments of other tools of the proxy."""
SERVER_WORDS: Final = ("server", "server_name", "serverName")
"""The same for the server of a tool, which is a part of the name here."""


def _in_our_words(raw: Raw, kind: type[Struct], servers: Container[str]) -> Raw | None:
    """Return arguments as they are named and formed here; None if that changes none of them."""
    given, words = envelope.members_of(raw), OWN_WORDS.get(kind, {})
    changed = _of_call(given, servers) if kind is CallArguments else _of_other(given, words)
    return None if changed == given else envelope.raw(changed)


def _of_call(given: Mapping[str, Raw], servers: Container[str]) -> dict[str, Raw]:
    """Return the arguments of a call tool under the names that they have here.

    A word stays as it is beside the name that it stands for, and so do two for the same. A server becomes the
    prefix of the name. Where nothing stands for ``arguments``, they are the members beside the name; a member
    is then taken for the server only if it is one of ``servers`` and the name has no other one.
    """
    renamed, several = dict(given), False
    for name, others in OTHER_WORDS.items():
        there = [word for word in others if word in given and (name == "name" or _is_object(given[word]))]
        several = name not in given and len(there) > 1
        if name not in given and len(there) == 1:
            renamed[name] = renamed.pop(there[0])
    beside = [word for word in renamed if word not in CallArguments.__struct_fields__]
    flat = "arguments" not in renamed and not several
    words = [word for word in beside if word in SERVER_WORDS]
    tool = envelope.text(renamed.get("name"))
    if len(words) == 1 and tool and (flat or len(beside) == 1):
        server, owner = envelope.text(renamed[words[0]]), tool.partition(SEPARATOR)[0]
        is_argument = flat and (server not in servers or (owner != server and owner in servers))
        if server is not None and not is_argument:
            beside.remove(words[0])
            del renamed[words[0]]
            if server:
                prefix = f"{server}{SEPARATOR}"
                renamed["name"] = envelope.raw(prefix + tool.removeprefix(prefix))
    if beside and flat:
        renamed["arguments"] = envelope.raw({word: renamed.pop(word) for word in beside})
    return renamed


def _of_other(given: Mapping[str, Raw], words: Mapping[str, tuple[str, ...]]) -> dict[str, Raw]:
    """Return the arguments of another tool under the names and in the forms that they have here.

    Filters of a search are an object, and tags lists; a list of needs is a query with each of them on a line.
    """
    formed = dict(given)
    for name, others in words.items():
        there = [word for word in others if word in given]
        if name not in given and len(there) == 1:
            formed[name] = formed.pop(there[0])
    if "query" in formed and envelope.starts_with(formed["query"], b"["):
        needs = list(map(envelope.text, envelope.elements(formed["query"])))
        if None not in needs:
            formed["query"] = envelope.raw("\n".join(filter(None, needs)))
    filters = formed.get("filters")
    if filters is not None and _is_object(filters):
        try:
            formed["filters"] = envelope.raw(_with_lists(envelope.members(envelope.text(filters) or filters)))
        except msgspec.DecodeError:
            return formed
    return _with_lists(formed)


def _with_lists(filters: Mapping[str, Raw]) -> dict[str, Raw]:
    lists = ("tags", "any_tags", "kinds")
    texts = [name for name in lists if envelope.text(filters.get(name)) is not None]
    return {name: envelope.raw([value]) if name in texts else value for name, value in filters.items()}


def _is_object(value: Raw) -> bool:
    """Return whether a value is a JSON object, or a text that may be one."""
    return bytes(value).lstrip(b' \t\r\n"').startswith(b"{")


CALLED_AS: Final = 'It takes {"name": "name of the tool", "arguments": {what the tool is given}}'

_NAMED: Final[Mapping[type[Struct], Mapping[str, Sequence[str]]]] = {
    SearchArguments: {"": ("query", "top_n", "include_schema", "filters")},
    CallArguments: {"": ("name", "arguments", "goal")},
}
"""Arguments that an error about an unknown one names: those that every definition has."""


def in_words(error: Exception, kind: type[Struct]) -> str:
    """Return why arguments cannot be used, for the model that sent them."""
    said = strangers.in_words(error, kind, "the arguments", _NAMED.get(kind))
    return f"{said}{'' if said.endswith('?') else '.'} {CALLED_AS}" if kind is CallArguments else said


class UnusableArgumentsError(Exception):
    """The arguments of a meta tool cannot be used; the message tells the model why."""


def otherwise(raw: Raw, kind: type[Struct], servers: Container[str]) -> Raw | None:
    """Return arguments that cannot be decoded in the form that is meant; None if there is no other one.

    Models send null for missing values, JSON as a text, and other words.
    """
    if (given := _without_nulls(raw)) is not None:
        return given
    text = envelope.text(raw)
    return _in_our_words(raw, kind, servers) if text is None else Raw(text.encode())


def _without_nulls(raw: Raw) -> Raw | None:
    """Return arguments without those that are null, as in their filters; None if that changes none."""
    given = envelope.members_of(raw)
    kept = {name: value for name, value in given.items() if not is_null(value)}
    filters = _without_nulls(kept["filters"]) if "filters" in kept else None
    kept |= {} if filters is None else {"filters": filters}
    return None if filters is None and len(kept) == len(given) else envelope.raw(kept)


def is_null(raw: Raw) -> bool:
    return len(raw) == len(b"null") and bytes(raw) == b"null"


_KINDS: Final = {"string": b'"', "array": b"[", "object": b"{", "boolean": b"tf", "number": b"-0123456789"}
"""First characters of JSON values, by the type that a schema demands."""


class Demand(Struct, frozen=True, eq=False):
    """The demands of a schema on a value, as far as they are plain."""

    kind: str = ""
    form: Any = None
    values: frozenset[Any] = frozenset()
    spelled: Mapping[str, str] = {}
    """Values in small letters, or names of the members that may be spelled otherwise by `name_key`; without
    those that are then the same."""
    members: Mapping[str, Demand] = {}
    needed: Sequence[str] = ()
    """Members that it has to have."""
    is_closed: bool = False
    """True if it takes no other members."""
    elements: Demand | None = None


DEMANDS_KEPT: Final = 64
"""Latest tools of which that is kept."""

DEPTH: Final = 4
"""Levels of a schema whose demands are known."""

TAKES_OTHERS: Final = (
    *("additionalProperties", "unevaluatedProperties", "patternProperties"),
    *("dependentSchemas", "if", "allOf", "$ref"),
)
"""Members of a schema by which it may take further names: only a demanded one is then missed."""

SEVERAL: Final = frozenset(",;\n[{")
"""Characters of a text that may be several elements of a list; any other text is a list of one."""

SEPARATOR_OF_SEVERAL: Final = pattern(r"[,;\n]")
"""Between the elements of such a text, where it is plain that they are several: values, or addresses."""

ADDRESS: Final = pattern(r"[^\s@,;<>]+@[^\s@,;<>]+")
"""An address of e-mail."""

NESTING: Final = 32
"""Levels of JSON in a text up to which it is read."""


@lru_cache(DEMANDS_KEPT)
def _demanded(tool: Tool) -> Demand:
    told = ToolSignature(tool)
    return _demands(told, told.root, DEPTH)


def _demands(told: ToolSignature, schema: Any, depth: int) -> Demand:
    properties, needed, options = told.members(schema)
    if told.looks >= LOOKS:
        return Demand("object")
    members = {name: Demand() for option in options for name in told.members(option)[0]}
    members |= {name: _demand(told, one, depth - 1) for name, one in properties.items()}
    takes_others = any(as_dict(schema).get(key, False) is not False for key in TAKES_OTHERS)
    names = (name for name in members if name in needed or not takes_others)
    return Demand(
        "object",
        spelled=_told_apart(names, name_key),
        members=members,
        needed=[name for name in properties if name in needed],
        is_closed=as_dict(schema).get("additionalProperties") is False,
    )


def _demand(told: ToolSignature, schema: Any, depth: int) -> Demand:
    if told.looks >= LOOKS:
        return Demand()
    plain = told.plain(schema)
    kind, items, values = plain.get("type"), plain.get("items"), as_list(plain, "enum")
    told.looks += len(values)
    if kind == "object" and depth:
        return _demands(told, plain, depth)
    # Those after the first ones, which a tuple has, are of another kind.
    is_list = kind == "array" and items and depth and "prefixItems" not in plain
    return Demand(
        kind if isinstance(kind, str) else "",
        plain.get("format"),
        frozenset() if any(isinstance(one, dict | list) for one in values) else frozenset(values),
        _told_apart((one for one in values if isinstance(one, str)), str.casefold),
        elements=_demand(told, items, depth - 1) if is_list else None,
    )


def _told_apart(texts: Iterable[str], key: Callable[[str], str]) -> dict[str, str]:
    """Return texts by a key, without those that it does not tell apart."""
    found: dict[str, list[str]] = {}
    for text in texts:
        found.setdefault(key(text), []).append(text)
    return {one: same[0] for one, same in found.items() if len(same) == 1}


def as_meant(tool: Tool, arguments: Raw) -> Raw:
    """Return arguments in the names and types of a tool's schema where they can mean nothing else."""
    if len(arguments) > envelope.TAKEN_APART_BYTES:
        return arguments
    try:
        return _meant(arguments, _demanded(tool))
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _meant(value: Raw, demand: Demand) -> Raw:
    value = _value_meant(value, demand)
    if (inside := demand.elements) is not None:
        listed = _listed(value, inside)
        each = [_meant(one, inside) for one in listed]
        is_same = each == listed and envelope.starts_with(value, b"[")
        return value if is_same or not each else envelope.raw(each)
    if not demand.members or not envelope.starts_with(value, b"{"):
        return value
    given, meant = envelope.members(value), dict[str, Raw]()
    for name, one in given.items():
        known = name
        if name not in demand.members:
            same = demand.spelled.get(name_key(name), name)
            known = name if same in given or same in meant else same
        meant[known] = _meant(one, demand.members[known]) if known in demand.members else one
    return value if meant == given else envelope.raw(meant)


def _listed(value: Raw, inside: Demand) -> Sequence[Raw]:
    """Return the elements of a list, or those that a value in its place plainly stands for, if any."""
    if envelope.starts_with(value, b"["):
        return envelope.elements(value)
    text = envelope.text(value)
    if inside.kind == "string" and text and not SEVERAL.isdisjoint(text):
        parts = [part.strip() for part in SEPARATOR_OF_SEVERAL.split(text)]
        are_several = all(part.casefold() in inside.spelled for part in parts)
        if inside.form == "email":
            are_several = all(map(ADDRESS.fullmatch, parts))
        return [*map(envelope.raw, parts)] if are_several else []
    one = _value_meant(value, inside)
    is_told = inside.values or inside.kind in _KINDS or inside.kind == "integer"
    return [one] if is_told and text != "" and _may_be(one, inside) else []


def _value_meant(value: Raw, demand: Demand) -> Raw:
    """Return a value as the type or one of the values that are demanded, if it plainly is one of them."""
    if _may_be(value, demand):
        return value
    kind, text = demand.kind, envelope.text(value)
    if text is None:
        # A number for a text, such as an id.
        is_number = kind == "string" and envelope.starts_with(value, _KINDS["number"])
        meant = envelope.raw(bytes(value).decode()) if is_number else value
        return meant if _may_be(meant, demand) else value
    if demand.values:
        same = demand.spelled.get(text.casefold())
        return value if same is None else envelope.raw(same)
    written = text.strip().lower() if kind == "boolean" else text.strip()
    meant, read = Raw(written.encode()), envelope.value_or_none(written.encode())
    is_one = read is not None and not (kind == "integer" and isinstance(read, float))
    fits = is_one and _may_be(meant, demand) and not envelope.nests_deeper(bytes(meant), NESTING)
    return meant if fits else value


def _may_be(value: Raw, demand: Demand) -> bool:
    """Return whether a value has the type, and is one of the values, that are demanded, if any are."""
    if demand.values:
        read = envelope.value_or_none(value)
        return not isinstance(read, dict | list) and read in demand.values
    kind = "number" if demand.kind == "integer" else demand.kind
    return kind not in _KINDS or envelope.starts_with(value, _KINDS[kind])


def _misfits(value: Raw, demand: Demand, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield how a value, or anything in it, differs from a demand, and the place of that in it.

    Names are only unknown where they may stand for others that are missing, or where nothing else is taken.
    """
    if not _may_be(value, demand):
        yield "Wrong type or value", at
    elif (inside := demand.elements) is not None and envelope.starts_with(value, b"["):
        for number, one in enumerate(envelope.elements(value)):
            yield from _misfits(one, inside, f"{at}[{number}]")
    elif demand.members and envelope.starts_with(value, b"{"):
        given, of = envelope.members(value), f"{at}." if at else ""
        missing = [name for name in demand.needed if name not in given]
        yield from (("Missing", of + as_word(name)) for name in missing)
        for name, one in given.items():
            if name in demand.members:
                yield from _misfits(one, demand.members[name], of + as_word(name))
            elif missing or demand.is_closed:
                yield "Not known", of + as_word(name)


DETAIL_OF_MISFIT: Final = Detail(0, 12, 2)

MISFITS: Final = 8
"""Places of each kind that `misfit` names."""

MISFITS_SEEN: Final = 100
"""Places that it looks at."""


def misfit(tool: Tool, name: str, arguments: bytes) -> str:
    """Return how arguments differ from the schema of a tool, and its signature; empty if nothing is seen.

    The model has the tool under ``name``.
    """
    if len(arguments) > envelope.TAKEN_APART_BYTES:
        return ""
    given = arguments if envelope.starts_with(arguments, b"{") else b"{}"
    places: dict[str, list[str]] = {"Missing": [], "Not known": [], "Wrong type or value": []}
    for how, place in islice(_misfits(Raw(given), _demanded(tool)), MISFITS_SEEN):
        places[how].append(place)
    sentences = [f"{how}: {', '.join(some[:MISFITS])}." for how, some in places.items() if some]
    if not sentences:
        return ""
    takes = f"It takes {ToolSignature(tool).text('', DETAIL_OF_MISFIT)}."
    return " ".join([takes, *sentences, f"Search for {name} to see all about it."])


DETAILS: Final = 600
"""Characters of the data of an error that a model is told: the reason, and not a trace of a stack."""


def details(error: Exception) -> str:
    """Return the data of a server's error as a line for a model; empty if it has none."""
    data = bytes(error.data) if isinstance(error, RemoteError) and isinstance(error.data, Raw) else b"null"
    return (
        ""
        if data == b"null"
        else f"Details: {strangers.one_line(envelope.text(Raw(data)) or data.decode(), DETAILS)}"
    )
