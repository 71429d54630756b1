"""Says in plain words why arguments, or a line of a file, do not have the form that they should have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from mcp_context_proxy.errors import nearest_names
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system.later import inspect, pattern

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
_PLACE: Final = pattern(r" - at `(?:key in )?\$\.?([^`]*)`$")
_NAMED: Final = pattern(r"Object (missing required|contains unknown) field `(.*)`$", re.DOTALL)
_OTHER_FORM: Final = pattern(r"Expected `([^`]*)`, got `([^`]*)`$")
_BEYOND: Final = pattern(r"Expected `(\w+)` (of length )?(>=|<=|>|<) ([\d.e+-]+)$")
_NOT_LISTED: Final = pattern(r"Invalid enum value (.*)$", re.DOTALL)
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
    """Return the demand of a type at a path such as ``filters.tags[0]``."""
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
