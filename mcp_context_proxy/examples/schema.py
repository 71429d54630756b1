"""JSON Schema from Python annotations, and the check of arguments against it.

Only what a tool's signature can say: strings, numbers, booleans, lists, literals, typed dictionaries,
defaults, descriptions and bounds. The words of a complaint are for a language model: what is wrong and
what is expected.
"""

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from mcp_context_proxy.examples.protocol import JSON

SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", Any: None, object: None}
"""Python types with a one-word counterpart; None stands for any JSON value."""

PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
"""What `json.loads` gives for each JSON Schema type."""


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, inclusive; used as ``Annotated[int, "what it is", Between(1, 100)]``."""

    low: float
    high: float


def of_annotation(annotation: Any) -> dict[str, JSON]:
    """The schema of one annotation."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return of_annotation(args[0]) | _extras(args[1:])
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    if origin is list:
        return {"type": "array", "items": of_annotation(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": of_annotation(args[1])}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [of_annotation(arg) for arg in args]}
    if annotation is types.NoneType:
        return {"type": "null"}
    if typing.is_typeddict(annotation):
        return _of_typed_dict(annotation)
    word = SCALARS[annotation]
    return {"type": word} if word else {}


def _extras(extras: tuple[Any, ...]) -> dict[str, JSON]:
    schema: dict[str, JSON] = {}
    for extra in extras:
        if isinstance(extra, Between):
            schema |= {"minimum": extra.low, "maximum": extra.high}
        else:
            schema["description"] = extra
    return schema


def _of_typed_dict(annotation: Any) -> dict[str, JSON]:
    hints = typing.get_type_hints(annotation, include_extras=True)
    return {
        "type": "object",
        "properties": {name: of_annotation(hint) for name, hint in hints.items()},
        "required": sorted(annotation.__required_keys__, key=list(hints).index),
    }


def of_parameters(function: Callable[..., object], injected: type) -> dict[str, JSON]:
    """The schema of a function's parameters, without the one annotated ``injected``."""
    hints = typing.get_type_hints(function, include_extras=True)
    properties: dict[str, JSON] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if hints[name] is injected:
            continue
        properties[name] = of_annotation(_without_none(hints[name]))
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        elif parameter.default is not None:
            properties[name]["default"] = parameter.default
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _without_none(hint: Any) -> Any:
    """``Annotated[X | None, ...]`` as ``Annotated[X, ...]``: an optional parameter is left out, not null."""
    if typing.get_origin(hint) is Annotated:
        return Annotated[(_without_none(typing.get_args(hint)[0]), *hint.__metadata__)]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        kept = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
        return kept[0] if len(kept) == 1 else typing.Union[tuple(kept)]  # noqa: UP007
    return hint


def check_arguments(schema: dict[str, JSON], arguments: dict[str, JSON]) -> tuple[dict[str, JSON], list[str]]:
    """The arguments as Python wants them, and everything that is wrong with them.

    A null for an optional argument counts as left out, because models write it so.
    """
    required = schema["required"]
    given = {name: value for name, value in arguments.items() if value is not None or name in required}
    problems: list[str] = []
    return _check(schema, given, "", problems), problems


def _check(schema: dict[str, JSON], value: JSON, where: str, problems: list[str]) -> JSON:
    expected: str | None = schema.get("type")
    if expected is None:
        return value
    if expected == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    # To Python a boolean is a number, to JSON it is not.
    fits = isinstance(value, PYTHON_TYPES[expected]) and isinstance(value, bool) == (expected == "boolean")
    if not fits:
        problems.append(f"{where} must be {_a(expected)}, not {_a(_json_type(value))}")
    elif expected == "object":
        return _check_object(schema, value, where, problems)
    elif expected == "array":
        return [_check(schema["items"], item, f"{where}[{i}]", problems) for i, item in enumerate(value)]
    elif "enum" in schema and value not in schema["enum"]:
        problems.append(f"{where} must be one of {', '.join(schema['enum'])}; got {value!r}")
    elif "minimum" in schema and not schema["minimum"] <= value <= schema["maximum"]:
        problems.append(f"{where} must be from {schema['minimum']} to {schema['maximum']}; got {value}")
    return value


def _check_object(schema: dict[str, JSON], value: JSON, where: str, problems: list[str]) -> JSON:
    known, prefix = schema.get("properties", {}), f"{where}." if where else ""
    checked = {}
    for name, item in value.items():
        if name in known:
            checked[name] = _check(known[name], item, prefix + name, problems)
        elif isinstance(rest := schema.get("additionalProperties", True), dict):
            checked[name] = _check(rest, item, prefix + name, problems)
        elif not rest:
            problems.append(_unknown(prefix + name, list(known)))
    missing = [name for name in schema.get("required", ()) if name not in value]
    problems.extend(f"{prefix}{name} is missing{_purpose(known[name])}" for name in missing)
    return checked


def _unknown(name: str, known: list[str]) -> str:
    nearest = get_close_matches(name, known, 1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"allowed: {', '.join(known) or 'none'}"
    return f"{name} is not an argument of this tool; {hint}"


def _purpose(schema: dict[str, JSON]) -> str:
    kind = _a(schema["type"]) if "type" in schema else "a value"
    return f" ({kind}: {schema['description']})" if "description" in schema else f" ({kind})"


def _a(word: str) -> str:
    if word == "null":
        return word
    return f"an {word}" if word[0] in "aeio" else f"a {word}"


def _json_type(value: JSON) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return next(word for word, kinds in PYTHON_TYPES.items() if isinstance(value, kinds))
