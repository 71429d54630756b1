"""Versions of the packages that servers run, as the files of the running programs have them.

The server's own words are no witness, and nothing is asked over the network. Everything here blocks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path, PurePath
from typing import Any, Final

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.programs import environment_of

RUNNERS: Final = {
    ("npx",): "@",
    ("npm", "exec"): "@",
    ("npm", "x"): "@",
    ("pnpm", "dlx"): "@",
    ("yarn", "dlx"): "@",
    ("bunx",): "@",
    ("bun", "x"): "@",
    ("uvx",): "==",
    ("uv", "tool", "run"): "==",
    ("pipx", "run"): "==",
}
"""Programs that download the package they run, each with its mark before a version."""


_PACKAGE_FLAGS: Final = {"-p", "--package", "--from"}
_FLAGS_WITH_VALUE: Final = {"--python", "--with", "--index-url", "--index", "--registry", "--directory"}

_VERSION: Final = re.compile(r"\d[0-9A-Za-z.+!-]{0,63}")
_PACKAGE_BYTES: Final = 1024 * 1024
"""Size up to which the description of a package is read: strangers write it."""
_MODULES: Final = "/node_modules/"

SCRIPT_BYTES: Final = 16 * 1024 * 1024
"""Size up to which a program that belongs to no installed package is read; a larger one has no version."""
_DISTRIBUTIONS: Final = 5_000
"""Installed packages of Python that are looked at."""
_INTERPRETERS: Final = re.compile(r"node|nodejs|bun|deno|tsx|python[0-9.]*w?|pypy[0-9.]*|uv")


def program_of(config: ServerConfig) -> str:
    """Return the name of a server's program, without the suffixes that it has on Windows."""
    return PurePath(config.command or "").name.removesuffix(".cmd").removesuffix(".exe")


def requested_package(config: ServerConfig) -> tuple[tuple[str, ...], int, str, str] | None:
    """Return the package that the runner of a server downloads; None if it is no runner.

    It comes as the runner, the place among the arguments, the text before it in that argument, and its name
    with whatever stands behind it.
    """
    words = (program_of(config), *config.args)
    found = next((one for one in RUNNERS if words[: len(one)] == one), None)
    named = None if found is None else _package(config.args, len(found) - 1)
    return None if found is None or named is None else (found, *named)


def _package(args: tuple[str, ...], start: int) -> tuple[int, str, str] | None:
    """Return the package that a runner downloads: after a flag for it, else the first word.

    It comes with its place, and with the text before it in the same argument.
    """
    words = iter([*enumerate(args)][start:])
    for position, word in words:
        flag, equals, value = word.partition("=")
        if flag in _PACKAGE_FLAGS:
            if value:
                return position, flag + equals, value
            following = next(words, None)
            return None if following is None else (following[0], "", following[1])
        if flag in _FLAGS_WITH_VALUE and not value:
            next(words, None)
        elif not word.startswith("-"):
            return position, "", word
    return None


def package_version(config: ServerConfig, group: int | None) -> str:
    """Return name and version of the package that a server runs; empty where that cannot be told.

    Args:
        config: The server.
        group: Its process group, if it runs.
    """
    if config.command is None:
        return ""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        requested = requested_package(config)
        if requested is None:
            return _of_program(config)
        runner, _, _, package = requested
        name = re.split(r"(?<=.)@|[<>=~!^]", package, maxsplit=1)[0]
        found = version_in_node if RUNNERS[runner] == "@" else version_in_python
        arguments = [] if group is None else [*arguments_of_group(group)]
        versions = {version for one in arguments if (version := found(one, name)) is not None}
        if len(versions) == 1:
            return f"{name} {versions.pop()}"
    return ""


def _of_program(config: ServerConfig) -> str:
    """Return name and version of the package of a program that is started directly."""
    environment = environment_of(config, os.environ)
    program = shutil.which(config.command or "", path=environment.get("PATH"))
    if program is None:
        return ""
    path = config.folder / program
    if _INTERPRETERS.fullmatch(program_of(config)) is None:
        # A script that an installation has made, or a program of its own.
        return _of_script(path)
    module = _module(config.args)
    if module is not None:
        return _of_distribution(path.parent.parent, f"{module.split('.')[0]}/", "RECORD")
    script = next((word for word in config.args if not word.startswith("-")), None)
    return "" if script is None else _of_script(config.folder / script)


def _module(args: tuple[str, ...]) -> str | None:
    """Return the module of ``python -m``."""
    for flag, following in pairwise(args):
        if flag == "-m":
            return following
        if not flag.startswith("-"):
            return None
    return None


def _of_script(path: Path) -> str:
    """Return name and version of the package of a script, and its digest where it is not installed."""
    real = path.resolve()
    if not real.is_file():
        return ""
    if path.parent.name == "bin" and (
        found := _of_distribution(path.parent.parent, path.name, "entry_points.txt")
    ):
        return found
    described = _described(real)
    installed = f"{os.sep}node_modules{os.sep}" in str(real)
    if described and installed:
        return described
    with real.open("rb") as stream:
        content = stream.read(SCRIPT_BYTES + 1)
    if len(content) > SCRIPT_BYTES:
        return ""
    # A program under development changes without a version.
    return f"{described or real.name} {hashlib.sha256(content).hexdigest()[:12]}"


def _described(script: Path) -> str:
    """Return name and version from the nearest ``package.json`` above a script."""
    for folder in islice(script.parents, 8):
        file = folder / "package.json"
        if file.is_file():
            described = _decoded(file)
            name, version = described.get("name"), described.get("version")
            if isinstance(name, str) and isinstance(version, str) and _VERSION.fullmatch(version):
                return f"{name[:200]} {version}"
            return ""
    return ""


def _decoded(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        described = json.loads(stream.read(_PACKAGE_BYTES))
    return described if isinstance(described, dict) else {}


def _of_distribution(prefix: Path, named: str, listed_in: str) -> str:
    """Return name and version of the package of Python that names something in one of its files."""
    for found in islice(prefix.glob("lib/python*/site-packages/*.dist-info"), _DISTRIBUTIONS):
        listing = found / listed_in
        if listing.is_file():
            with listing.open("rb") as stream:
                lines = stream.read(_PACKAGE_BYTES).decode("utf-8", "replace").splitlines()
            begins = named if listed_in == "RECORD" else f"{named} "
            if any(line.startswith((begins, f"{named}=")) for line in lines):
                name, _, version = found.name.removesuffix(".dist-info").partition("-")
                return f"{name} {version}" if _VERSION.fullmatch(version) else ""
    return ""


def arguments_of_group(group: int) -> Iterator[str]:
    """Yield the arguments of all programs of a process group that are absolute paths."""
    processes = Path("/proc")
    if not (processes / "self" / "cmdline").exists():
        listed = subprocess.run(
            ["ps", "-A", "-o", "pgid=,args="], capture_output=True, text=True, check=False, errors="replace"
        )
        for line in listed.stdout.splitlines():
            number, *words = line.split()
            if number == str(group):
                yield from (word for word in words if word.startswith("/"))
        return
    for folder in processes.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if os.getpgid(int(folder.name)) == group:
                    words = (folder / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
                    yield from (word for word in words if word.startswith("/"))


def version_in_node(program: str, package: str) -> str | None:
    """Return the version of a package of Node.js, if a program of it runs from an installation of it."""
    root, modules, _ = program.partition(_MODULES)
    if not modules:
        return None
    with suppress(OSError, ValueError):
        with Path(root + modules, package, "package.json").open("rb") as stream:
            described = json.loads(stream.read(_PACKAGE_BYTES))
        version = described.get("version") if isinstance(described, dict) else None
        if isinstance(version, str) and _VERSION.fullmatch(version):
            return version
    return None


def version_in_python(program: str, package: str) -> str | None:
    """Return the version of a package of Python that is installed beside a program."""
    wanted = re.sub(r"[-_.]+", "_", package.split("[", maxsplit=1)[0]).lower()
    place = Path(program)
    if place.parent.name != "bin":
        return None
    for found in place.parent.parent.glob("lib/python*/site-packages/*.dist-info"):
        name, _, version = found.name.removesuffix(".dist-info").partition("-")
        if re.sub(r"[-_.]+", "_", name).lower() == wanted and _VERSION.fullmatch(version):
            return version
    return None
