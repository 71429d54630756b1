"""The library's public names take the same arguments as when they were released."""

import inspect
import re
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from msgspec import Struct

import mcp_context_proxy
from mcp_context_proxy import library

from .conftest import AsReleased

PAGE = Path(__file__).parents[2] / "docs" / "library.md"


VARIABLES = {"ContextEngine": "engine", "Interactions": "interactions"}
"""The name of an object on the page."""


def explained(name: str) -> set[str]:
    """Everything that the page of documentation calls, but methods of other objects."""
    text = PAGE.read_text(encoding="utf-8")
    own = re.findall(rf"\b{VARIABLES.get(name, name)}\.(\w+)", text)
    return {*re.findall(r"(?<![\w.])(\w+)\(", text), *own}


def signature(of: Any) -> list[str]:
    """One entry a parameter: its name, how it is given, its default. Types are for type checkers."""
    kinds = {
        inspect.Parameter.KEYWORD_ONLY: " by name",
        inspect.Parameter.VAR_POSITIONAL: " any number",
        inspect.Parameter.VAR_KEYWORD: " any others",
    }
    return [
        parameter.name + kinds.get(parameter.kind, "") + default(parameter.default)
        for parameter in inspect.signature(of).parameters.values()
        if parameter.name != "self"
    ]


def default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, Enum):
        return f" = {value.value}"
    simple = value is None or isinstance(value, str | int | float | tuple)
    return f" = {value!r}" if simple else " = ..."


def described(name: str) -> Any:
    value, used = getattr(mcp_context_proxy, name), explained(name)
    if isinstance(value, type) and issubclass(value, Enum):
        return {member.name: member.value for member in value}
    if isinstance(value, UnionType):
        return [member.__name__ for member in get_args(value)]
    if not isinstance(value, type):
        return signature(value)
    methods = {
        method: signature(function)
        for method, function in inspect.getmembers(value, inspect.isfunction)
        if method in used and not method.startswith("_")
    }
    fields = [*value.__struct_fields__] if issubclass(value, Struct) else []
    properties = [one for one, _ in inspect.getmembers(value, lambda one: isinstance(one, property))]
    shown = {"attributes": sorted(fields + properties), "methods": methods}
    return {"made with": signature(value), **shown} if name in used else shown


def test_the_public_signatures_are_as_released(as_released: AsReleased) -> None:
    as_released("library.json", {name: described(name) for name in library.__all__})
