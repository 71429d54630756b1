"""Checks messages before they are handled: params, nesting depth, number of values, levels, subscriptions.

It also says in plain words why arguments, or a line of a file, do not have the form that they should have.

Only members that this proxy acts on are checked; the server judges the rest. Depth and number of values are
counted on the bytes, without building any object, so that no input is too large to check.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Raw, inspect

from mcp_context_proxy.errors import nearest_names
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.nesting import PART_BYTES, deepest
from mcp_context_proxy.protocol.strangers import one_line

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Least severe first."""


def reaches(level: str | None, least: str | None) -> bool:
    """Return whether a log message is at or above the level `least`; an unknown level always is."""
    if least not in LOG_LEVELS:
        return False
    return level not in LOG_LEVELS or LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)


def most_verbose(levels: Iterable[str | None]) -> str | None:
    """Return the least severe of the levels; None if there is none."""
    known = [level for level in levels if level in LOG_LEVELS]
    return min(known, key=LOG_LEVELS.index, default=None)


URI_CHARACTERS = 4096
"""Longest URI of a subscription or an update; a longer one is refused, or not passed on."""

URI_LEVELS = 64
"""Parents of a URI that are looked for among the subscriptions."""


def covers(subscribed: Collection[str], uri: str) -> bool:
    """Return whether a resource, or one that contains it, is among those subscribed to."""
    return bool(subscribed) and any(each in subscribed for each in containing(uri))


def containing(uri: str) -> Iterator[str]:
    """Yield the URI of a resource, then of those that contain it, without and with a slash."""
    yield uri
    end = len(uri) if len(uri) <= URI_CHARACTERS else 0
    for _ in range(URI_LEVELS):
        end = uri.rfind("/", 0, end)
        if end < 0:
            return
        yield uri[:end]
        yield uri[: end + 1]


STRING, OBJECT, NULL = '"', "{", "n"
"""First characters that tell the kind of a JSON value."""

_KINDS = {STRING: "a string", OBJECT: "an object"}

_NEEDED: Mapping[str, Mapping[str, str]] = {
    "tools/call": {"name": STRING},
    "prompts/get": {"name": STRING},
    "resources/read": {"uri": STRING},
    "resources/directory/read": {"uri": STRING},
    "resources/subscribe": {"uri": STRING},
    "resources/unsubscribe": {"uri": STRING},
    "completion/complete": {"ref": OBJECT, "argument": OBJECT},
    "logging/setLevel": {"level": STRING},
    "skills/get": {"uri": STRING},
}
"""Required members of the params of each method, with their kind."""

_LISTS = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/directory/read",
    "skills/list",
)

_ALLOWED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # Models sometimes write the object as a string of JSON; it is accepted.
    "tools/call": {"arguments": (OBJECT, STRING, NULL)},
    "prompts/get": {"arguments": (OBJECT, NULL)},
    **{method: {"cursor": (STRING, NULL)} for method in _LISTS},
}
"""Optional members of the params of each method, with their possible kinds."""

_LOOKED_AT: Mapping[str, tuple[str, ...]] = {
    **{method: (*needed, "_meta") for method, needed in _NEEDED.items()},
    **dict.fromkeys(_LISTS, ("cursor", "_meta")),
}
"""Members of the params of each method that are decoded here, and so bounded; others are only passed on."""

_REFERENCES = {"ref/prompt": "name", "ref/resource": "uri"}


def fault(method: str, params: Members, *, modern: bool = False) -> str | None:
    """Return what is wrong with the params of a request, for its sender; None if they are right."""
    for name in _LOOKED_AT.get(method, ("_meta",)):
        if (size := len(params.get(name, b""))) > envelope.TAKEN_APART_BYTES:
            return f"{name} of {method} has {size:,} bytes; {envelope.TAKEN_APART_BYTES:,} are allowed"
    for name, kind in _NEEDED.get(method, {}).items():
        if not _is(params.get(name), kind):
            return f"{method} needs {name}, {_KINDS[kind]}"
    for name, kinds in _ALLOWED.get(method, {}).items():
        if name in params and not any(_is(params[name], kind) for kind in kinds):
            return f"{name} of {method} must be {_KINDS[kinds[0]]}"
    if "_meta" in params and not any(_is(params["_meta"], kind) for kind in (OBJECT, NULL)):
        return "_meta must be an object"
    if method == "completion/complete" and (wrong := _reference_fault(params)) is not None:
        return wrong
    meta = eras.meta_of(params)
    token, level = meta.get("progressToken"), meta.get(eras.LOG_LEVEL_KEY)
    if token is not None and type(envelope.value(token)) not in (int, str):
        return "progressToken must be a string or an integer"
    if modern and not _is(meta.get(eras.CLIENT_CAPABILITIES_KEY), OBJECT):
        return f"{eras.CLIENT_CAPABILITIES_KEY} must be an object"
    if modern and level is not None and envelope.text(level) not in LOG_LEVELS:
        return f"{eras.LOG_LEVEL_KEY} must be one of {', '.join(LOG_LEVELS)}"
    return None


def _reference_fault(params: Members) -> str | None:
    try:
        reference, argument = envelope.members(params["ref"]), envelope.members(params["argument"])
    except msgspec.DecodeError:
        return "completion/complete needs ref and argument, objects"
    needed = _REFERENCES.get(envelope.text(reference.get("type")) or "")
    if needed is None or not _is(reference.get(needed), STRING):
        return "ref must be of type ref/prompt with a name, or of type ref/resource with a uri"
    if not (_is(argument.get("name"), STRING) and _is(argument.get("value"), STRING)):
        return "argument needs a name and a value, strings"
    return None


def _is(raw: Raw | None, kind: str) -> bool:
    return raw is not None and envelope.starts_with(raw, kind.encode())


_NO_BEGINNING: Final = bytes(set(range(256)) - set(b'"[{,'))
_STRING: Final = re.compile(rb'"[^"]*"')


def nests_deeper(encoded: bytes, limit: int, part_bytes: int = PART_BYTES) -> bool:
    """Return whether objects and arrays nest deeper than `limit` levels. The input must be valid JSON."""
    if encoded.count(b"{") + encoded.count(b"[") <= limit:
        return False
    return any(depth > limit for depth in deepest(encoded, part_bytes))


def holds_more(encoded: bytes, limit: int) -> bool:
    """Return whether valid JSON has `limit` values or more, not counting empty ones."""
    if sum(encoded.count(mark) for mark in (b",", b"[", b"{")) < limit:
        return False
    # Escapes go first, from the left. Removing two adjacent quotes does not change what is inside strings.
    plain = encoded.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = plain.translate(None, _NO_BEGINNING).replace(b'""', b"")
    # Each remaining string is a key or a value; the marks that begin or separate values are in it or outside.
    if bare.count(b'"') > 4 * limit:
        return True
    return len(_STRING.sub(b"", bare)) >= limit


SHOWN_CHARACTERS: Final = 60
"""Length to which a value or a name of a stranger is repeated in an error."""

_FORMS: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_PLACE: Final = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_NAMED: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`$", re.DOTALL)
_OTHER_FORM: Final = re.compile(r"Expected `([^`]*)`, got `([^`]*)`$")
_BEYOND: Final = re.compile(r"Expected `(\w+)` (of length )?(>=|<=|>|<) ([\d.e+-]+)$")
_NOT_LISTED: Final = re.compile(r"Invalid enum value (.*)$", re.DOTALL)
_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def in_words(error: Exception, form: type, whole: str = "it") -> str:
    """Return why a value does not have a form, for the person or model who wrote it.

    Args:
        error: The error of msgspec, whose own words are those of a programmer.
        form: The type that was asked for.
        whole: Name of the value, where it has a fault as a whole.
    """
    if isinstance(error, RecursionError):
        return f"{whole}: nested too deeply"
    said = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"{whole}: not valid JSON ({one_line(said, SHOWN_CHARACTERS)})"
    place = _PLACE.search(said)
    path = "" if place is None else place[1].replace("[...]", "")
    said = said if place is None else said[: place.start()]
    if found := _NAMED.match(said):
        name = ".".join(filter(None, (path, one_line(found[2], SHOWN_CHARACTERS))))
        if found[1] == "missing required":
            return f"{name} is missing"
        return f"{name} is not known; {_known(form, path, found[2])}"
    subject = path or whole
    if found := _OTHER_FORM.match(said):
        wanted = " or ".join(_FORMS.get(one, one) for one in found[1].split(" | ") if one != "null")
        fraction = found[2] == "float" and wanted == _FORMS["int"]
        return (
            f"{subject} must be {wanted}, not {'a fraction' if fraction else _FORMS.get(found[2], found[2])}"
        )
    if found := _BEYOND.match(said):
        bound, number = _BOUNDS[found[3]], float(found[4])
        if not found[2]:
            return f"{subject} must be {bound} {number:,g}"
        if (found[3], number) == (">=", 1):
            return f"{subject} must not be empty"
        return f"{subject} must have {bound} {number:,g} {'characters' if found[1] == 'str' else 'elements'}"
    if found := _NOT_LISTED.match(said):
        values = ", ".join(map(str, _values(form, path)))
        return f"{subject} must be one of {values}, not {one_line(found[1], SHOWN_CHARACTERS)}"
    return f"{subject}: {one_line(said)}"


def _known(form: type, path: str, name: str) -> str:
    found = _form_at(form, path)
    names = [field.encode_name for field in found.fields] if isinstance(found, inspect.StructType) else []
    near = nearest_names(name, names, 1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"


def _values(form: type, path: str) -> Iterable[object]:
    found = _form_at(form, path)
    return found.values if isinstance(found, inspect.LiteralType) else ()


def _form_at(form: type, path: str) -> object:
    """Return what a type demands at a path such as ``filters.tags[0]``."""
    found: object = _bare(inspect.type_info(form))
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(found, inspect.StructType):
            found = next((field.type for field in found.fields if field.encode_name == part), None)
        else:
            found = getattr(found, "item_type", None)
        found = _bare(found)
    return found


def _bare(form: object) -> object:
    """Return a form without its description, and without null beside it."""
    while True:
        if isinstance(form, inspect.Metadata):
            form = form.type
        elif isinstance(form, inspect.UnionType):
            form = next((one for one in form.types if not isinstance(one, inspect.NoneType)), None)
        else:
            return form
