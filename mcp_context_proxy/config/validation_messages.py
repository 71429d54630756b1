"""Messages about mistakes in the configuration, in the words of a person who edits the file.

Values are never repeated in a message, because they may be secrets, except where only listed words are
allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mcp_context_proxy.config.settings import Config
from mcp_context_proxy.config.source import KeyPath
from mcp_context_proxy.config.tables import KEY_ERROR, Table

_WANTED: Final = {
    "string_type": "text in quotes",
    "path_type": "text in quotes",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
_OTHER_WORDS: Final = {
    "mcpServers": "servers",
    "serverUrl": "url",
    "type": "transport",
    "disabled": "enabled",
    "environment": "env",
    "timeout": "call_timeout",
}
"""Names that hosts and people use for a key, where the spelling alone does not lead to ours."""


def mistakes(error: ValidationError) -> list[tuple[KeyPath, str]]:
    """Return path and message of each error of the models."""
    return [(_path(detail), _sentence(detail)) for detail in error.errors(include_url=False)]


def _path(detail: ErrorDetails) -> KeyPath:
    # A last part "[key]" says that it is the key, and not its value, that has the mistake.
    return detail["loc"][:-1] if detail["type"] == KEY_ERROR else detail["loc"]


def unknown_key(key: str, allowed: Sequence[str]) -> str:
    """Return the message for a key that does not exist."""
    other = _OTHER_WORDS.get(key)
    near = [other] if other in allowed else difflib.get_close_matches(key, allowed, n=1)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; allowed here: {', '.join(allowed)}"


def _sentence(detail: ErrorDetails) -> str:
    kind, value, facts = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_key(str(detail["loc"][-1]), allowed_keys(detail["loc"][:-1]))
    if kind == "missing":
        return "is missing"
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {_kind_of(value)}"
    if kind in ("literal_error", "enum"):
        return f"must be {_choice(facts['expected'])}, not {_shown(value)}"
    return _range(kind, facts) or detail["msg"].lower()


def _range(kind: str, facts: Mapping[str, Any]) -> str | None:
    match kind:
        case "greater_than_equal":
            return f"must be at least {facts['ge']:g}"
        case "greater_than":
            return f"must be more than {facts['gt']:g}"
        case "less_than_equal":
            return f"must be at most {facts['le']:g}"
        case "finite_number":
            return "must be a finite number"
        case "string_too_short":
            return "must not be empty"
    return None


def _choice(expected: str) -> str:
    return expected.replace("'", '"')


def _shown(value: Any) -> str:
    return f'"{value[:40]}"' if isinstance(value, str) else _kind_of(value)


def _kind_of(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return "text"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
        case None:
            return "null"
    return "a date"


def allowed_keys(path: KeyPath) -> list[str]:
    """Return the keys that the table at `path` may have."""
    model: Any = Config
    for part in path:
        if isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[str(part)].annotation
        else:
            model = next(arg for arg in reversed(get_args(model)) if arg is not Ellipsis)
    return _keys(model)


def _keys(model: Any) -> list[str]:
    if isinstance(model, type) and issubclass(model, Table):
        return model.keys()
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def complaints(config: Config, instead: str = "has a default or more cautious value") -> Iterator[str]:
    """Yield a line for each server that is off because of a mistake, and for each other mistake.

    `instead` is the end of the sentence about anything else that has a mistake: its replacement.
    """
    others = sum(server.enabled for server in config.servers.values())
    rest = "no other starts" if others == 0 else "1 other starts" if others == 1 else f"{others} others start"
    for name, off in config.off.items():
        yield f"server {name}: off: {off}; {rest}"
    for problem in config.mistakes:
        yield f"{problem}; until that is corrected, it {instead}"
