"""Programs of local servers: the environment that they get, and the runners that download them.

A server inherits what programs need to work on this machine and in its network, and nothing that is likely to
be a secret: anything else is named in ``inherit``, or given in ``env``.

Package runners such as ``npx`` download a server, at its first start at least, which takes as long as the
download. One that is interrupted can leave the cache of npm so that every later start fails: npm takes the
half of a package that is there for the whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Final

from mcp_context_proxy.config.secrets import Secret, names_secret, secrets_in_url
from mcp_context_proxy.config.settings import ServerConfig
from mcp_context_proxy.system.variables import INHERITED, matches


def inherited(server: ServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a server inherits: the usual ones, and those of its ``inherit``."""
    return {name: value for name, value in environ.items() if matches(name, (*INHERITED, *server.inherit))}


def environment_of(server: ServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a server's program; its ``env`` replaces what it inherits."""
    return {**inherited(server, environ), **server.env}


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


RUNNERS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("npx", "pnpx", "bunx", "uvx"), frozenset[str]()),
    "npm": frozenset({"exec", "x"}),
    "pnpm": frozenset({"dlx"}),
    "yarn": frozenset({"dlx"}),
    "bun": frozenset({"x"}),
    "deno": frozenset({"run", "x"}),
    "uv": frozenset({"run", "tool", "x"}),
    "pipx": frozenset({"run"}),
    **dict.fromkeys(("docker", "podman", "nerdctl"), frozenset({"run"})),
}
"""Programs that download, each with the commands that do; none stands for any."""

SHELLS: Final = frozenset({"cmd"})
"""Programs of Windows that start a runner: ``cmd /c npx ...``."""

NPX_FOLDER: Final = "_npx"
"""Folder in the cache of npm with a folder for each set of packages that npx has run."""

DIGEST_CHARACTERS: Final = 16
"""Length of the name of such a folder, in hexadecimal digits."""

BROKEN: Final = ("MODULE_NOT_FOUND", "Cannot find module", "Cannot find package", "ENOTEMPTY")
"""Errors of Node.js and npm about packages that are there in part."""

_HEXADECIMAL: Final = frozenset("0123456789abcdef")


def downloads(server: ServerConfig) -> bool:
    """Return whether the program of a server is a runner that downloads a package."""
    words = [server.command or "", *server.args]
    if _program(words[0]) in SHELLS and len(words) > 2 and words[1].lower() == "/c":
        words = words[2:]
    commands = RUNNERS.get(_program(words[0]))
    return commands is not None and (not commands or not commands.isdisjoint(words[1:]))


def _program(command: str) -> str:
    return PurePath(command).name.lower().removesuffix(".cmd").removesuffix(".exe")


def broken_npx_cache(server: ServerConfig, stderr: Iterable[str]) -> Path | None:
    """Return the folder of npm's cache that a failed server complains of; None if it has no such complaint.

    The folder exists, and is one that npx makes again: what a server writes must not have a person delete
    anything else. Blocks.
    """
    lines = list(stderr)
    if not downloads(server) or not any(mark in line for line in lines for mark in BROKEN):
        return None
    return next((folder for line in lines if (folder := _npx_folder(line)) is not None), None)


def _npx_folder(line: str) -> Path | None:
    """Return the folder of npx that a line names, with its path up to there."""
    for separator in "/\\":
        before, found, after = line.partition(f"{separator}{NPX_FOLDER}{separator}")
        digest = after[:DIGEST_CHARACTERS]
        if not found or len(digest) < DIGEST_CHARACTERS or not _HEXADECIMAL.issuperset(digest):
            continue
        # A path on Windows may have spaces in it; before one on other systems there is a space or a quote.
        start = before.rfind(":\\") - 1 if separator == "\\" else max(map(before.rfind, " '\"(")) + 1
        path = before[max(start, 0) :].removeprefix("file://")
        folder = Path(path) / NPX_FOLDER / digest
        if folder.is_absolute() and os.pardir not in folder.parts and folder.is_dir():
            return folder
    return None
