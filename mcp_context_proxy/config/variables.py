"""Variables in the configuration, and the places that their values come from.

They are written ``${VAR}``, ``${VAR:-default}``, or ``${env:VAR}`` as in VS Code. ``$${`` stands for a
literal ``${``; any other ``$`` stays, since passwords contain them. As in a shell, the default is used when
the variable is unset or empty.

``${keyring:NAME}`` is a secret that ``mcp-context-proxy secret set NAME`` has stored. ``${cmd:PROGRAM ...}``
is the output of a program, which runs only if the user's own configuration allows it. ``${file:PATH}`` is
the content of a file. Keyrings and programs block no longer than the constants below say: a keyring may ask a
person to unlock it, who is not there when a host starts the proxy.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, PIPE
from types import MappingProxyType
from typing import IO, Any, Final, TypeAlias

from msgspec import Struct

from mcp_context_proxy.config.secrets import names_secret
from mcp_context_proxy.errors import ContextProxyError
from mcp_context_proxy.system import OPEN, matches
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.process import open_regular

SecretSource: TypeAlias = Callable[[str], str]
"""Returns the value for the text after the colon; raises `SecretSourceError` if there is none."""


class SecretSourceError(ContextProxyError):
    """A secret cannot be read or written; ``remedy`` is the thing to do about it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message, self.remedy = message, remedy
        super().__init__(f"{message}; {remedy}" if remedy else message)


REFERENCE: Final = "${"
"""Beginning of every reference. A text without one stands for itself."""

_REFERENCE: Final = pattern(r"(?P<escape>\$\$\{)|\$\{(?P<body>[^{}]*)\}|(?P<open>\$\{)")
_VARIABLE: Final = pattern(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_EVERYWHERE: Final[Mapping[str, Callable[[], str]]] = {
    "userHome": lambda: str(Path.home()),
    "pathSeparator": lambda: os.sep,
    "/": lambda: os.sep,
}
"""Variables of editors that mean the same in every program of a user, with their values."""

_HOST_VARIABLE: Final = pattern(r"workspaceFolder(\w*|:.*)|cwd|file([A-Z]\w*)?|config:.*|command:.*")
"""References that only the editor of a host can replace."""


class Unexpanded(Struct, frozen=True):
    """A reference that cannot be replaced."""

    message: str
    remedy: str = ""
    variable: str = ""
    """Name of the variable, if it is not set."""


class ExpandedValue(Struct, frozen=True):
    """A text with expanded variables, or the problems in it."""

    text: str
    variables: tuple[tuple[str, str], ...]
    """Name and value of each variable that was used."""
    problems: tuple[Unexpanded, ...]


def expand(
    text: str, environ: Mapping[str, str], sources: Mapping[str, SecretSource] = MappingProxyType({})
) -> ExpandedValue:
    """Expand every variable in a text; ``sources`` has other places for values, by prefix."""
    variables: list[tuple[str, str]] = []
    problems: list[Unexpanded] = []

    def value_of(match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if match["open"]:
            if text.startswith("${{", match.start()):
                whole = text[match.start() :].partition("}}")[0] + "}}"
                problems.append(Unexpanded(f"only its host knows {whole}; write the value, or ${{VARIABLE}}"))
            else:
                problems.append(Unexpanded("'${' has no matching '}'; write '$${' for a literal '${'"))
            return ""
        prefix, colon, rest = match["body"].partition(":")
        if colon and prefix in sources:
            try:
                found = sources[prefix](rest)
            except SecretSourceError as error:
                problems.append(Unexpanded(error.message, error.remedy, match["body"]))
                return ""
            variables.append((match["body"], found))
            return found
        return _lookup(match["body"], environ, variables, problems)

    return ExpandedValue(_REFERENCE.sub(value_of, text), tuple(variables), tuple(problems))


def _lookup(
    body: str, environ: Mapping[str, str], variables: list[tuple[str, str]], problems: list[Unexpanded]
) -> str:
    if body in _EVERYWHERE and body not in environ:
        return _EVERYWHERE[body]()
    found = _VARIABLE.fullmatch(body)
    if found is None or (_HOST_VARIABLE.fullmatch(body) and body not in environ):
        problems.append(Unexpanded(_foreign(body)))
        return ""
    name, default = found["name"], found["default"]
    value = environ.get(name)
    if value or (value is not None and default is None):
        if not matches(name, OPEN) or names_secret(name):
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


SERVICE: Final = "mcp-context-proxy"
"""Name under which the keyring has the secrets."""

INDEX: Final = ":names"
"""Entry with the names of all others, because keyrings list nothing. No secret can have this name."""

NAME: Final = pattern(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)

KEYRING_SECONDS, COMMAND_SECONDS = 10.0, 5.0

OUTPUT_BYTES: Final = 64 * 1024
"""Longest output of a command, or content of a file, that is taken for a value."""

CAUSE_CHARACTERS: Final = 200
"""Length to which the message of a keyring or a command is cut."""


UNKNOWN: Final = f"https://unknown.invalid/{'0' * 32}"
"""A value that nobody knows, in the form in which most are taken: of a URL, a path, a key, a word."""


def with_unknown(
    text: str, environ: Mapping[str, str], sources: Mapping[str, SecretSource], unknown: dict[str, None]
) -> ExpandedValue:
    """Expand a text with something in place of each value that is not there; `unknown` gets their names."""
    # A text that begins with a value may be a URL, and one within a text may be a port.
    stand_in = UNKNOWN if text.startswith(REFERENCE) else "1"

    def lacking(prefix: str, rest: str) -> str:
        if not (value := sources[prefix](rest)):
            unknown[f"{prefix}:{rest}"] = None
        return value or stand_in

    given = {prefix: partial(lacking, prefix) for prefix in sources}
    problems = expand(text, environ, given).problems
    unset = dict.fromkeys(one.variable for one in problems if one.variable and ":" not in one.variable)
    unknown |= unset
    return expand(text, {**environ, **dict.fromkeys(unset, stand_in)}, given)


def sources(
    *,
    commands: bool,
    is_host_file: bool,
    folder: Path,
    environ: Mapping[str, str],
    files: list[Path],
    fetching: bool = True,
) -> dict[str, SecretSource]:
    """Return the sources of one configuration by prefix; each value is fetched once.

    `is_host_file` is true for a host's file, which may come with a repository. Paths begin in `folder`; the
    `files` get those that are read. Without `fetching`, each value is empty that would be fetched.
    """

    def run(text: str) -> str:
        if not commands:
            raise SecretSourceError("${cmd:...} is off", "commands = true under [secrets] allows it")
        return output_of(text, folder, environ) if fetching else ""

    def read(text: str) -> str:
        path = folder / text
        if not fetching:
            return ""
        try:
            path = folder / Path(text).expanduser()
            files.append(path)
            with open_regular(path) as file:
                return _value(file.read(OUTPUT_BYTES + 1), f"{path} has")
        except (OSError, RuntimeError, ValueError) as error:
            raise SecretSourceError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None

    def refuse(_text: str) -> str:
        raise SecretSourceError("nothing is read or run for the file of a host; use a config.toml")

    stored = read_secret if fetching else lambda _name: ""
    by_prefix = {"keyring": stored, "cmd": run, "file": read}
    return {prefix: _once(refuse if is_host_file else source) for prefix, source in by_prefix.items()}


def _once(source: SecretSource) -> SecretSource:
    """Return a source that is asked once for each value, also for one that it cannot give."""

    @cache
    def outcome(text: str) -> str | SecretSourceError:
        try:
            return source(text)
        except SecretSourceError as error:
            return error

    def found(text: str) -> str:
        value = outcome(text)
        if isinstance(value, SecretSourceError):
            raise value
        return value

    return found


def read_secret(name: str) -> str:
    value = _ask_keyring("get_password", SERVICE, _checked(name))
    if value is None:
        raise SecretSourceError(f"the keyring has no secret {name}", f"run: {SERVICE} secret set {name}")
    return str(value)


def store_secret(name: str, value: str) -> None:
    names = {*stored_names(), _checked(name)}
    _ask_keyring("set_password", SERVICE, name, value)
    _ask_keyring("set_password", SERVICE, INDEX, json.dumps(sorted(names)))


def remove_secret(name: str) -> None:
    names = set(stored_names())
    if _checked(name) not in names:
        raise SecretSourceError(f"the keyring has no secret {name}")
    if _ask_keyring("get_password", SERVICE, name) is not None:
        _ask_keyring("delete_password", SERVICE, name)
    _ask_keyring("set_password", SERVICE, INDEX, json.dumps(sorted(names - {name})))


def stored_names() -> list[str]:
    """Return the names of all secrets that were stored, without their values."""
    found = _ask_keyring("get_password", SERVICE, INDEX)
    try:
        names = json.loads(found or "[]")
    except ValueError:
        names = []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _checked(name: str) -> str:
    if NAME.fullmatch(name):
        return name
    raise SecretSourceError("the name of a secret is 1 to 64 of A-Z a-z 0-9 _ . -")


def _ask_keyring(function: str, *arguments: str) -> Any:
    """Call a function of the package keyring, in a thread that can be left behind."""
    try:
        keyring = import_module("keyring")
    except ImportError:
        remedy = f"run: pip install '{SERVICE}[keyring]'"
        raise SecretSourceError("the package keyring is not installed", remedy) from None
    outcome: list[Any] = []

    def ask() -> None:
        try:
            outcome.append(getattr(keyring, function)(*arguments))
        except Exception as error:  # boundary: the keyring, whose backends raise what they like
            cause = _cause(str(error) or type(error).__name__)
            outcome.append(SecretSourceError(f"the keyring cannot be used: {cause}"))

    thread = threading.Thread(target=ask, daemon=True, name="keyring")
    thread.start()
    thread.join(KEYRING_SECONDS)
    if not outcome:
        waited = f"the keyring did not answer within {KEYRING_SECONDS:g} s"
        raise SecretSourceError(waited, "it may be locked: unlock it and try again")
    if isinstance(outcome[0], SecretSourceError):
        raise outcome[0]
    return outcome[0]


def output_of(text: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Return the output of a command, without the line break at its end. No shell takes part."""
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise SecretSourceError(f"${{cmd:...}} cannot be split into words: {error}") from None
    if not command:
        raise SecretSourceError("${cmd:} names no program")
    name = f"${{cmd:{command[0]} ...}}"
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environ), stdin=DEVNULL, stdout=PIPE, stderr=PIPE, bufsize=0
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SecretSourceError(f"{name} cannot be run: {_cause(reason)}") from None
    until = time.monotonic() + COMMAND_SECONDS
    assert process.stdout is not None
    assert process.stderr is not None
    printed, said = _Beginning(process.stdout, ends=True), _Beginning(process.stderr)
    try:
        printed.wait(until)
        if len(printed.kept) <= OUTPUT_BYTES:
            said.wait(until)
            process.wait(max(0.0, until - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise SecretSourceError(f"{name} did not end within {COMMAND_SECONDS:g} s") from None
    finally:
        process.kill()
        process.wait()
    if process.returncode and len(printed.kept) <= OUTPUT_BYTES:
        reason = _cause(said.kept.decode("utf-8", "replace"))
        raise SecretSourceError(f"{name} ended with exit code {process.returncode}{reason and ': '}{reason}")
    return _value(printed.kept, f"{name} printed")


def _value(content: bytes | bytearray, has: str) -> str:
    """Return the text of a file or output without the line break at its end; `has` begins a complaint."""
    if len(content) > OUTPUT_BYTES:
        raise SecretSourceError(f"{has} more than {OUTPUT_BYTES:,} bytes")
    try:
        value = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SecretSourceError(f"{has} something that is no text") from None
    if not value:
        raise SecretSourceError(f"{has} nothing")
    return value


class _Beginning:
    """The beginning of all that comes through a pipe, read in a thread that can be left behind."""

    def __init__(self, pipe: IO[bytes], *, ends: bool = False) -> None:
        """Keep a byte more than `OUTPUT_BYTES`; the rest is not even read if it ``ends`` there."""
        self.kept = bytearray()
        self._pipe, self._ends = pipe, ends
        self._thread = threading.Thread(target=self._read, daemon=True, name="output of a command")
        self._thread.start()

    def wait(self, until: float) -> None:
        """Wait for the end; raises `TimeoutError` if it has not come by that time."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            raise TimeoutError

    def _read(self) -> None:
        with self._pipe:
            while block := self._pipe.read(OUTPUT_BYTES):
                self.kept += block[: OUTPUT_BYTES + 1 - len(self.kept)]
                if self._ends and len(self.kept) > OUTPUT_BYTES:
                    return


def _cause(text: str) -> str:
    """Return the beginning of a message on one line, without characters that a person cannot see."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 10 * CAUSE_CHARACTERS])
    return " ".join(shown.split())[:CAUSE_CHARACTERS]
