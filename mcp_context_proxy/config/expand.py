"""Environment variables in values: ``${VAR}``, ``${VAR:-default}``, and VS Code's ``${env:VAR}``.

``$${`` writes a literal ``${``; any other ``$`` stays as it is, since passwords contain them.
A default counts when the variable is unset or empty, as in a shell. Pure: the environment is passed in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_REFERENCE: Final = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<body>[^{}]*)\}|(?P<open>\$\{)")
_VARIABLE: Final = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_HOST_VARIABLE: Final = re.compile(
    r"workspaceFolder\w*|userHome|cwd|pathSeparator|file([A-Z]\w*)?|config:.*|command:.*"
)
"""What VS Code replaces by itself; here it would only ever be an undefined variable."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """A text with its references replaced, or what stood in the way."""

    text: str
    variables: tuple[tuple[str, str], ...]
    """(name, value) of each variable that was read."""
    problems: tuple[str, ...]


def expand(text: str, environ: Mapping[str, str]) -> Expanded:
    """Replace every reference in `text`."""
    variables: list[tuple[str, str]] = []
    problems: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if match["open"]:
            problems.append("'${' has no matching '}'; write '$${' for a literal '${'")
            return ""
        return _lookup(match["body"], environ, variables, problems)

    return Expanded(_REFERENCE.sub(value_of, text), tuple(variables), tuple(problems))


def _lookup(
    body: str, environ: Mapping[str, str], variables: list[tuple[str, str]], problems: list[str]
) -> str:
    found = _VARIABLE.fullmatch(body)
    if found is None or (_HOST_VARIABLE.fullmatch(body) and body not in environ):
        problems.append(_foreign(body))
        return ""
    name, default = found["name"], found["default"]
    value = environ.get(name)
    if value or (value is not None and default is None):
        variables.append((name, value))
        return value
    if default is None:
        problems.append(f"environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    return default or ""


def _foreign(body: str) -> str:
    if body.startswith("input:"):
        return (
            f"${{{body}}} asks the person in VS Code, which is not possible here; "
            f"put the value in an environment variable and write ${{env:NAME}}"
        )
    if _HOST_VARIABLE.fullmatch(body):
        return f"${{{body}}} is known to VS Code only; write the value out, or use an environment variable"
    return "'${...}' must hold the name of an environment variable; write '$${' for a literal '${'"
