"""Programs of local servers: their environment, the runners that download them, the packages that they are.

A server inherits the variables that programs need to work on this machine and in its network, and nothing
that is likely to be a secret: anything else is named in ``inherit``, or given in ``env``.

Package runners such as ``npx`` download a server, at its first start at least, which takes as long as the
download. One that is interrupted can leave the cache of npm so that every later start fails: npm takes the
half of a package that is there for the whole.

Most of the first second of a proxy is its import on one core and the start of its servers on the others. So
``serve`` starts the first servers as soon as it knows its configuration, and the connection to each takes the
process that is there. What it has written until then waits in its pipes.

The version of a package is read from the files of the running program: the server's own words are no witness,
and nothing is asked over the network. Reading it blocks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any, Final

from mcp_context_proxy.config.secrets import Secret, names_secret, secrets_in_url
from mcp_context_proxy.config.settings import LAUNCH, Config, ServerConfig
from mcp_context_proxy.errors import Fault, StartError
from mcp_context_proxy.system import INHERITED, matches
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.process import (
    descriptor_shortage,
    group_installs,
    group_started,
    guard_groups,
    hold_signals,
    open_regular,
    raise_file_limit,
    starting_group,
)


def inherited(server: ServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a server inherits: the usual ones, and those of its ``inherit``."""
    return {name: value for name, value in environ.items() if _inherits(name, server.inherit)}


@lru_cache(maxsize=4096)
def _inherits(name: str, more: tuple[str, ...]) -> bool:
    """Return whether servers inherit a variable; a start asks for each variable and server several times."""
    return matches(name, (*INHERITED, *more))


def environment_of(server: ServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a server's program; its ``env`` goes before the inherited variables."""
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

_OF_THE_PROXY: Final = frozenset(
    {"OPENBLAS_NUM_THREADS", "ORT_DISABLE_TELEMETRY", "PYDANTIC_DISABLE_PLUGINS"}
)
"""Variables that the proxy sets for itself: no shell has them."""


def differs_from_shell(server: ServerConfig, environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of variables that a server does not get, and of those that it gets with another value.

    Both are compared with the environment of this process, in which a command that is run by hand would work.
    """
    given = environment_of(server, environ)
    missing = sorted(environ.keys() - given.keys() - _OF_THE_SHELL - _OF_THE_PROXY)
    return missing, sorted(name for name in given if given[name] != environ.get(name, given[name]))


DOWNLOADERS: Final[Mapping[str, frozenset[str]]] = {
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
_PATH_BEGINS: Final = pattern(r"(?:(?<![^\s'\"(])|(?<=file://))/")
PATHS_TRIED: Final = 8
"""Places where the path in a line of a server may begin that are looked up."""


def downloads(server: ServerConfig) -> bool:
    """Return whether the program of a server is a runner that downloads a package."""
    _, program, args = _run(server)
    commands = DOWNLOADERS.get(program)
    return commands is not None and (not commands or not commands.isdisjoint(args))


def _run(server: ServerConfig) -> tuple[int, str, tuple[str, ...]]:
    """Return the program that runs a server, and its arguments, without the shell before them.

    The number of arguments that belong to the shell comes first.
    """
    program, args = _name_of(server.command or ""), server.args
    if program in SHELLS and len(args) > 1 and args[0].lower() == "/c":
        return 2, _name_of(args[1]), args[2:]
    return 0, program, args


def _name_of(command: str) -> str:
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
        # A path may have spaces in it, so each place is tried where one can begin, the last one first.
        begins = [max(before.rfind(":\\") - 1, 0)]
        if separator == "/":
            begins = [match.start() for match in _PATH_BEGINS.finditer(before)][: -PATHS_TRIED - 1 : -1]
        for begin in begins:
            folder = Path(before[begin:]) / NPX_FOLDER / digest
            is_plain = folder.is_absolute() and os.pardir not in folder.parts
            if is_plain and os.path.isdir(folder):  # noqa: PTH112 - no error, whatever a server writes
                return folder
    return None


RUNNERS: Final = {
    ("npx",): "@",
    ("pnpx",): "@",
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

_VERSION: Final = pattern(r"\d[0-9A-Za-z.+!-]{0,63}")
_PACKAGE_BYTES: Final = 1024 * 1024
"""Size up to which the description of a package is read: strangers write it."""
_MODULES: Final = "/node_modules/"

SCRIPT_BYTES: Final = 16 * 1024 * 1024
"""Size up to which a program that belongs to no installed package is read; a larger one has no version."""
_DISTRIBUTIONS: Final = 5_000
"""Installed packages of Python that are looked at."""
_INTERPRETERS: Final = pattern(r"node|nodejs|bun|deno|tsx|python[0-9.]*w?|pypy[0-9.]*|uv")


def program_of(config: ServerConfig) -> str:
    return _name_of(config.command or "")


def requested_package(config: ServerConfig) -> tuple[tuple[str, ...], int, str, str] | None:
    """Return the package that the runner of a server downloads; None if it is no runner.

    It comes as the runner, the place among the arguments, the text before it in that argument, and its name
    with whatever stands behind it.
    """
    skipped, program, args = _run(config)
    found = next((one for one in RUNNERS if (program, *args)[: len(one)] == one), None)
    named = None if found is None else _package(config.args, skipped + len(found) - 1)
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

    `group` is its process group, if it runs.
    """
    if config.command is None:
        return ""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        requested = requested_package(config)
        if requested is None:
            return _of_program(config)
        runner, _, _, package = requested
        name = re.split(r"(?<=.)@|[<>=~!^]", package, maxsplit=1)[0]
        if (version := version_in_group(group, name, RUNNERS[runner])) is not None:
            return f"{name} {version}"
    return ""


def version_in_group(group: int | None, package: str, mark: str) -> str | None:
    """Return the version of a package that the programs of a process group are installed with.

    `mark` stands before a version in the package's ecosystem. None if they do not agree on one.
    """
    found = version_in_node if mark == "@" else version_in_python
    arguments = () if group is None else arguments_of_group(group)
    versions = {version for one in arguments if (version := found(one, package)) is not None}
    return versions.pop() if len(versions) == 1 else None


def _of_program(config: ServerConfig) -> str:
    """Return name and version of the package of a program that is started directly."""
    environment = environment_of(config, os.environ)
    program = shutil.which(config.command or "", path=environment.get("PATH"))
    if program is None:
        return ""
    path = folder_of(config) / program
    if _INTERPRETERS.fullmatch(program_of(config)) is None:
        # A script that an installation has made, or a program of its own.
        return _of_script(path)
    module = _module(config.args)
    if module is not None:
        return _of_distribution(path.parent.parent, f"{module.split('.')[0]}/", "RECORD")
    script = next((word for word in config.args if not word.startswith("-")), None)
    return "" if script is None else _of_script(folder_of(config) / script)


def _module(args: tuple[str, ...]) -> str | None:
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
    with open_regular(real) as stream:
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
    with open_regular(file) as stream:
        described = json.loads(stream.read(_PACKAGE_BYTES))
    return described if isinstance(described, dict) else {}


def _of_distribution(prefix: Path, named: str, listed_in: str) -> str:
    """Return name and version of the package of Python that names something in one of its files."""
    for found, name, version in _installed(prefix):
        listing = found / listed_in
        if listing.is_file():
            with open_regular(listing) as stream:
                lines = stream.read(_PACKAGE_BYTES).decode("utf-8", "replace").splitlines()
            begins = named if listed_in == "RECORD" else f"{named} "
            if any(line.startswith((begins, f"{named}=")) for line in lines):
                return f"{name} {version}"
    return ""


def _installed(prefix: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield the folder, the name and the version of each package of Python in an installation."""
    for found in islice(prefix.glob("lib/python*/site-packages/*.dist-info"), _DISTRIBUTIONS):
        name, _, version = found.name.removesuffix(".dist-info").partition("-")
        if _VERSION.fullmatch(version):
            yield found, name, version


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
        version = _decoded(Path(root + modules, package, "package.json")).get("version")
        if isinstance(version, str) and _VERSION.fullmatch(version):
            return version
    return None


def version_in_python(program: str, package: str) -> str | None:
    """Return the version of a package of Python that is installed beside a program."""
    wanted = _folded(package.split("[", maxsplit=1)[0])
    place = Path(program)
    if place.parent.name != "bin":
        return None
    same = (version for _, name, version in _installed(place.parent.parent) if _folded(name) == wanted)
    return next(same, None)


def _folded(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


_ahead: dict[str, tuple[ServerConfig, subprocess.Popen[bytes]]] = {}
"""Processes that no connection has taken yet, by the name of the server."""


def first_wave(at_once: int) -> int:
    """Return how many servers start while the proxy itself is still starting, of those that may at a time.

    Programs that start take the processor from the first response of the proxy, and it needs one for itself.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(at_once, max(1, cores - 1))


def start_ahead(config: Config) -> None:
    """Start the first wave of servers, in their order. Blocking."""
    if sys.platform == "win32":  # its servers are started by the SDK
        return
    raise_file_limit()
    hold_signals()
    first = (server for server in config.servers.values() if server.enabled)
    for server in islice(first, first_wave(config.limits.starts_at_once)):
        # Of a lazy server, enough may be known.
        if server.transport == "stdio" and server.start == "eager":
            with suppress(StartError):  # the connection tries it again, and tells
                _ahead[server.name] = server, spawn(server)


def take_started(config: ServerConfig) -> subprocess.Popen[bytes] | None:
    """Return the process that was started ahead for a connection, once; None if there is none."""
    ahead = _ahead.pop(config.name, None)
    return None if ahead is None else ahead[1]


def launch_of(config: ServerConfig) -> tuple[str, Path, dict[str, str]]:
    """Return the program of a server, its folder and its environment. Blocking.

    Raises `StartError` if it cannot be started; the message says why, and names a remedy.
    """
    environment = environment_of(config, os.environ)
    command, folder = config.command or "", _folder(config)
    program = _program(command, environment.get("PATH"), folder)
    if program is None:
        raise _no_program(command, folder)
    return program, folder, environment


def spawn(config: ServerConfig) -> subprocess.Popen[bytes]:
    """Start the program of a server in a process group of its own. Blocking.

    Raises `StartError` as `launch_of` does.
    """
    program, folder, environment = launch_of(config)
    if refusal := descriptor_shortage():
        raise StartError(Fault.NO_START, f"cannot start {program}: {refusal}")
    guard_groups()
    stdin, writing = os.pipe()
    try:
        with starting_group(stdin):
            process = subprocess.Popen(
                [program, *config.args],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=environment,
                bufsize=0,
                start_new_session=True,
            )
            group_started(process.pid)
            if downloads(config):
                group_installs(process.pid)
    except OSError as error:
        os.close(writing)
        reason = error.strerror or type(error).__name__
        raise StartError(Fault.NOT_RUNNABLE, f"cannot start {program}: {reason}") from error
    finally:
        os.close(stdin)
    process.stdin = os.fdopen(writing, "wb", 0)
    return process


def folder_of(config: ServerConfig) -> Path:
    """Return the working folder of a program; the home folder for a configuration that is no file.

    Raises `OSError` if the folder in which the proxy was started no longer exists.
    """
    if config.cwd == LAUNCH:
        return Path.cwd()
    if config.cwd is not None:
        return config.cwd
    home = Path("~").expanduser()
    return home if home.is_absolute() else Path(home.root or os.sep)


def _folder(config: ServerConfig) -> Path:
    try:
        folder = folder_of(config)
    except OSError as error:
        message = f"cannot start: the folder in which the proxy was started cannot be used: {error.strerror}"
        raise StartError(Fault.NO_START, message) from error
    try:
        there = stat.S_ISDIR(folder.stat().st_mode)
    except PermissionError:
        message = f"cannot start: the folder {str(folder)!r} may not be entered; allow it or correct 'cwd'"
        raise StartError(Fault.NO_START, message) from None
    except OSError:
        there = False
    if not there:
        message = f"cannot start: there is no folder {str(folder)!r}; create it or correct 'cwd'"
        raise StartError(Fault.NO_START, message)
    return folder


PROGRAM_ALONE: Final = "it is the program alone; its arguments are 'args', each in its own quotes"


def _no_program(command: str, folder: Path) -> StartError:
    """Return the error about a command that leads to no program; a path says more than a name."""
    alone = f"; correct 'command': {PROGRAM_ALONE}" if len(command.split()) > 1 else ""
    if PureWindowsPath(command).name == command:
        remedy = alone or "; install it or give its full path as 'command'"
        return StartError(Fault.NO_PROGRAM, f"cannot start: no program '{command}' on its PATH{remedy}")
    program = PureWindowsPath(command) if PureWindowsPath(command).drive else folder / command
    try:
        mode = Path(program).stat().st_mode
    except PermissionError:
        reason = f"{program} lies in a folder that may not be entered; allow it or correct 'command'"
        return StartError(Fault.NO_ACCESS, f"cannot start: {reason}")
    except (OSError, ValueError):
        remedy = alone or "; install it or correct 'command'"
        return StartError(Fault.NO_PROGRAM, f"cannot start: there is no program {program}{remedy}")
    if stat.S_ISDIR(mode):
        return StartError(Fault.NO_START, f"cannot start: {program} is a folder; correct 'command'")
    return StartError(Fault.NOT_RUNNABLE, f"cannot start: {program} is no file that you may run")


_ENDS: Final = (*os.environ.get("PATHEXT", ".EXE;.CMD").split(";"), "") if sys.platform == "win32" else ("",)
"""Endings that names of programs lack. Beside ``npx.cmd``, Node.js has an ``npx`` that Windows cannot run."""


def _program(command: str, path: str | None, folder: Path) -> str | None:
    """Return the path of a program, or None; relative paths count from the working folder of the server.

    `shutil.which` alone would try them in the folder in which the proxy was started, and on Windows look
    there first for every program: it may be a repository that the host has opened.
    """
    places = os.defpath if path is None else path
    entries = places.split(os.pathsep) if Path(command).name == command else [""]
    tried = (shutil.which(str(folder / entry / f"{command}{end}")) for entry in entries for end in _ENDS)
    return next(filter(None, tried), None)
