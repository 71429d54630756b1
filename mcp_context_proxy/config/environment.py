"""Environment variables: those that the file names as ``${NAME}``, and those that servers inherit.

Variables are written ``${VAR}``, ``${VAR:-default}``, or ``${env:VAR}`` as in VS Code. ``$${`` stands for a
literal ``${``; any other ``$`` stays, since passwords contain them. As in a shell, the default is used when
the variable is unset or empty.

A server inherits what programs need to work on this machine and in its network, and nothing that is likely to
be a secret: anything else is named in ``inherit``, or given in ``env``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from mcp_context_proxy.config.secrets import Secret, names_secret, secrets_in_url
from mcp_context_proxy.config.settings import ServerConfig

_REFERENCE: Final = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<body>[^{}]*)\}|(?P<open>\$\{)")
_VARIABLE: Final = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_HOST_VARIABLE: Final = re.compile(
    r"workspaceFolder\w*|userHome|cwd|pathSeparator|file([A-Z]\w*)?|config:.*|command:.*"
)
"""References that only the editor of a host can replace."""


@dataclass(frozen=True, slots=True)
class Unexpanded:
    """A reference that cannot be replaced."""

    message: str
    remedy: str = ""
    variable: str = ""
    """Name of the variable, if it is not set."""


@dataclass(frozen=True, slots=True)
class ExpandedValue:
    """A text with expanded variables, or the problems in it."""

    text: str
    variables: tuple[tuple[str, str], ...]
    """Name and value of each variable that was used."""
    problems: tuple[Unexpanded, ...]


def expand(text: str, environ: Mapping[str, str]) -> ExpandedValue:
    """Expand every variable in a text."""
    variables: list[tuple[str, str]] = []
    problems: list[Unexpanded] = []

    def value_of(match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if match["open"]:
            problems.append(Unexpanded("'${' has no matching '}'; write '$${' for a literal '${'"))
            return ""
        return _lookup(match["body"], environ, variables, problems)

    return ExpandedValue(_REFERENCE.sub(value_of, text), tuple(variables), tuple(problems))


def _lookup(
    body: str, environ: Mapping[str, str], variables: list[tuple[str, str]], problems: list[Unexpanded]
) -> str:
    found = _VARIABLE.fullmatch(body)
    if found is None or (_HOST_VARIABLE.fullmatch(body) and body not in environ):
        problems.append(Unexpanded(_foreign(body)))
        return ""
    name, default = found["name"], found["default"]
    value = environ.get(name)
    if value or (value is not None and default is None):
        variables.append((name, value))
        return value
    if default is None:
        remedy = f"set this environment variable, or write ${{{name}:-default}}"
        problems.append(Unexpanded(f"{name} is not set", remedy, name))
    return default or ""


def _foreign(body: str) -> str:
    if body.startswith("input:"):
        return (
            f"${{{body}}} asks the user in VS Code, which is not possible here; "
            f"put the value in an environment variable and write ${{env:NAME}}"
        )
    if _HOST_VARIABLE.fullmatch(body):
        return f"only the editor knows ${{{body}}}; write the value, or use an environment variable"
    return "'${...}' must hold the name of an environment variable; write '$${' for a literal '${'"


_SYSTEM: Final = (
    (
        *("APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT"),
        *(
            "PROCESSOR_ARCHITECTURE",
            "PROGRAMDATA",
            "PROGRAMFILES",
            "SYSTEMDRIVE",
            "SYSTEMROOT",
            "TEMP",
            "TMP",
        ),
        *("USERNAME", "USERPROFILE", "WINDIR"),
    )
    if sys.platform == "win32"
    else ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "XDG_*")
)
"""The user, the programs, and the folders for temporary and other files."""
_LANGUAGE: Final = ("LANG", "LANGUAGE", "LC_*", "TZ")
_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE")
"""Certificates to trust, such as those of a company's network. Without them, every request of a server fails
there, and so does its download."""
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""The way out of such a network. The URL of a proxy may have a password: see `inherited_secrets`."""

INHERITED: Final = (
    *_SYSTEM,
    *_LANGUAGE,
    *_CERTIFICATES,
    *_PROXIES,
    *(name.lower() for name in _PROXIES),
)
"""Names and patterns of the variables that every server inherits."""


def inherited(server: ServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a server inherits: the usual ones, and those of its ``inherit``."""
    return {name: value for name, value in environ.items() if _matches(name, (*INHERITED, *server.inherit))}


def environment_of(server: ServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a server's program; its ``env`` replaces what it inherits."""
    return {**inherited(server, environ), **server.env}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    if sys.platform == "win32":  # where the case of a name does not count
        name, patterns = name.upper(), tuple(pattern.upper() for pattern in patterns)
    return name in patterns or any("*" in one and fnmatchcase(name, one) for one in patterns)


def inherited_secrets(server: ServerConfig, environ: Mapping[str, str]) -> Iterator[Secret]:
    """Yield name and value of each secret that a server inherits, such as the password of a proxy."""
    for name, value in inherited(server, environ).items():
        if names_secret(name):
            yield name, value
        for _, secret in secrets_in_url(value):
            yield name, secret


_OF_THE_SHELL: Final = frozenset({"_", "COLUMNS", "LINES", "LS_COLORS", "OLDPWD", "PS1", "PWD", "SHLVL"})
"""Variables that differ from shell to shell and decide nothing."""


def differs_from_shell(server: ServerConfig, environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of variables that a server does not get, and of those that it gets with another value.

    Both are compared with the environment of this process, in which a command that is run by hand would work.
    """
    given = environment_of(server, environ)
    missing = sorted(environ.keys() - given.keys() - _OF_THE_SHELL)
    return missing, sorted(name for name in given if given[name] != environ.get(name, given[name]))
