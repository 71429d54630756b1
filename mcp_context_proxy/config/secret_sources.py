"""Places that values of the configuration may come from: the keyring of the system, and commands.

``${keyring:NAME}`` is a secret that ``mcp-context-proxy secret set NAME`` has stored. ``${cmd:PROGRAM ...}``
is what a program prints; it runs only if the user's own configuration allows it.

Everything here blocks, each time no longer than the constants below say: a keyring may ask a person to unlock
it, who is not there when a host starts the proxy.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from mcp_context_proxy.errors import ContextProxyError
from mcp_context_proxy.system.later import pattern

SERVICE: Final = "mcp-context-proxy"
"""Name under which the keyring has the secrets."""

INDEX: Final = ":names"
"""Entry with the names of all others, because keyrings list nothing. No secret can have this name."""

NAME: Final = pattern(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)

KEYRING_SECONDS: Final = 10.0
COMMAND_SECONDS: Final = 5.0

OUTPUT_BYTES: Final = 64 * 1024
"""Longest output of a command that is taken for a value."""

CAUSE_CHARACTERS: Final = 200
"""Length to which the message of a keyring or a command is cut."""

SecretSource: TypeAlias = Callable[[str], str]
"""Returns the value for what stands after the colon.

Raises:
    SecretSourceError: there is none.
"""


class SecretSourceError(ContextProxyError):
    """A secret cannot be read or written; ``remedy`` is the thing to do about it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message, self.remedy = message, remedy
        super().__init__(f"{message}; {remedy}" if remedy else message)


def sources(
    *, commands: bool, is_host_file: bool, folder: Path, environ: Mapping[str, str]
) -> dict[str, SecretSource]:
    """Return the sources of one configuration by prefix; each value is fetched once.

    Args:
        commands: Whether the configuration allows commands.
        is_host_file: Whether it is the file of a host, which may come with a repository.
        folder: Folder in which commands run.
        environ: Their environment.
    """

    def run(text: str) -> str:
        if is_host_file:
            raise SecretSourceError("${cmd:...} runs no command for the file of a host; use a config.toml")
        if not commands:
            raise SecretSourceError("${cmd:...} is off", "commands = true under [secrets] allows it")
        return output_of(text, folder, environ)

    return {"keyring": _once(read_secret), "cmd": _once(run)}


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
    """Return a secret from the keyring."""
    value = _ask_keyring("get_password", SERVICE, _checked(name))
    if value is None:
        raise SecretSourceError(f"the keyring has no secret {name}", f"run: {SERVICE} secret set {name}")
    return str(value)


def store_secret(name: str, value: str) -> None:
    """Store a secret in the keyring, in place of one with the same name."""
    names = {*stored_names(), _checked(name)}
    _ask_keyring("set_password", SERVICE, name, value)
    _ask_keyring("set_password", SERVICE, INDEX, json.dumps(sorted(names)))


def remove_secret(name: str) -> None:
    """Remove a secret from the keyring."""
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
            outcome.append(
                SecretSourceError(f"the keyring cannot be used: {_cause(str(error) or type(error).__name__)}")
            )

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
            command,
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
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
    if len(printed.kept) > OUTPUT_BYTES:
        raise SecretSourceError(f"{name} printed more than {OUTPUT_BYTES:,} bytes")
    if process.returncode:
        reason = _cause(said.kept.decode("utf-8", "replace"))
        raise SecretSourceError(
            f"{name} ended with exit code {process.returncode}{': ' if reason else ''}{reason}"
        )
    try:
        value = printed.kept.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SecretSourceError(f"{name} printed something that is no text") from None
    if not value:
        raise SecretSourceError(f"{name} printed nothing")
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
        """Wait for the end.

        Raises:
            TimeoutError: it has not come by that time.
        """
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
    line = " ".join(
        "".join(char if char.isprintable() else " " for char in text[: 10 * CAUSE_CHARACTERS]).split()
    )
    return line[:CAUSE_CHARACTERS]
