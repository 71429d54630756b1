"""Pins: servers whose runner fetches the newest version of a package at each start, and how to fix that.

A server without a pinned version becomes another program whenever its author publishes one. The version that
just ran is read from the files of the running program, never from the server's own words, and is
written into the configuration on request.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path, PurePath
from typing import Any, Final

from msgspec import Struct

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.hosts import from_host
from mcp_context_proxy.config.programs import (
    RUNNERS,
    arguments_of_group,
    environment_of,
    program_of,
    requested_package,
    version_in_node,
    version_in_python,
)
from mcp_context_proxy.config.source import KeyPath, parse, read
from mcp_context_proxy.errors import ConfigError

_CONTAINERS: Final = {"docker", "podman", "nerdctl"}
_WITHOUT_VALUE: Final = {
    *("--rm", "--interactive", "--tty", "--detach", "--init", "--privileged", "--read-only", "--quiet"),
    *("--publish-all", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--replace"),
}
"""Options of their ``run`` without a value; all others have one."""

_PINNED: Final = re.compile(r".+(?:==|@)v?\d[^,<>~^*]*")
_RANGE: Final = re.compile(r"(?<=.)@|[<>=~!^]")
"""Beginning of a tag or a range of versions; the ``@`` of a scope comes first in a name."""
_ELSEWHERE: Final = re.compile(r"[./~]|[a-z+]+://|git\+|[A-Za-z]:\\")
"""Beginning of a path or a URL: those are the user's own to pin."""

_DIGEST: Final = re.compile(r"@(sha256:[0-9a-f]{64})$")
_INSPECT_SECONDS: Final = 10.0
"""Time for a container program to tell the digest of an image that it has."""


class Unpinned(Struct, frozen=True):
    """An argument of a server that names a package or an image without a version."""

    position: int
    """The place among the arguments."""
    before: str
    """The part of the argument before the name, such as ``--package=``."""
    package: str
    """The name, without tags and ranges."""
    mark: str
    """The mark between name and version."""

    def pinned(self, version: str) -> str:
        """Return the argument with a version."""
        return f"{self.before}{self.package}{self.mark}{version}"


def unpinned(config: ServerConfig) -> Unpinned | None:
    """Return the argument of a server that lacks a version; None if it has one, or needs none."""
    if program_of(config) in _CONTAINERS:
        return _unpinned_image(config.args)
    requested = requested_package(config)
    if requested is None:
        return None
    runner, position, before, package = requested
    if _PINNED.fullmatch(package) or _ELSEWHERE.match(package):
        return None
    return Unpinned(position, before, _RANGE.split(package)[0], RUNNERS[runner])


def _unpinned_image(args: tuple[str, ...]) -> Unpinned | None:
    position = _image(args)
    if position is None or "@" in args[position]:
        return None
    name, colon, tag = args[position].rpartition(":")
    tagged = bool(colon) and "/" not in tag
    if tagged and tag != "latest":
        return None
    return Unpinned(position, "", name if tagged else args[position], "@")


def _image(args: tuple[str, ...]) -> int | None:
    """Return the place of the image of a ``run`` command; None for other commands."""
    words = iter(enumerate(args))
    if not any(word == "run" for _, word in words):  # also moves on behind it
        return None
    for position, word in words:
        if not word.startswith("-"):
            return position
        if word.startswith("--"):
            has_value = word not in _WITHOUT_VALUE and "=" not in word
        else:
            has_value = word[-1] not in "itdPq" and len(word) == 2
        if has_value:
            next(words, None)
    return None


def version_that_runs(config: ServerConfig, missing: Unpinned, group: int | None) -> str | None:
    """Return the version of the package or image that a server runs; None if it cannot be told. Blocking.

    `group` is the process group of the server, whose programs lie in the folder that the runner has filled.
    """
    if PurePath(config.command or "").name in _CONTAINERS:
        return _digest(config, missing.package)
    arguments = [] if group is None else [*arguments_of_group(group)]
    found = version_in_node if missing.mark == "@" else version_in_python
    versions = {version for one in arguments if (version := found(one, missing.package)) is not None}
    return versions.pop() if len(versions) == 1 else None


def _digest(config: ServerConfig, image: str) -> str | None:
    environment = environment_of(config, os.environ)
    program = shutil.which(config.command or "", path=environment.get("PATH"))
    if program is None:
        return None
    command = [program, "image", "inspect", "--format", "{{json .RepoDigests}}", image]
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        told = subprocess.run(
            command, capture_output=True, env=environment, timeout=_INSPECT_SECONDS, check=True
        )
        for digest in json.loads(told.stdout):
            if found := _DIGEST.search(str(digest)):
                return found[1]
    return None


class Pinning(Struct, frozen=True):
    """Versions written into the text of a file."""

    before: str
    after: str
    by_hand: tuple[str, ...]
    """Servers whose argument is not found in the file as it is, such as one with a variable in it."""

    def difference(self) -> list[str]:
        """Return the lines that change, as ``diff`` shows them."""
        lines = unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=0)
        return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def pin(file: Path, pins: Mapping[str, tuple[Unpinned, ServerConfig, str]]) -> Pinning:
    """Return the text of a configuration with versions in the arguments of servers; nothing else changes.

    `pins` has the version of each server. The result is checked: it is the same configuration but for them.

    Raises:
        ConfigError: the file can no longer be read.
        OSError: the same.
    """
    text = before = file.read_bytes().decode("utf-8")
    source = read(file)
    if source.of_host:
        from_host(source, lambda _warning: None)
    by_hand = []
    for name, (missing, config, version) in pins.items():
        path = source.written(("servers", name, "args", missing.position))
        changed = _replaced(file, text, path, config.args[missing.position], missing.pinned(version))
        if changed is None:
            by_hand.append(name)
        else:
            text = changed
    return Pinning(before, text, tuple(by_hand))


def _replaced(file: Path, text: str, path: KeyPath, old: str, new: str) -> str | None:
    """Return a text with one string replaced; None if it does not stand there as it is."""
    source = parse(file, _plain(text))
    line = source.lines().get(path)
    expected: Any = copy.deepcopy(source.tables)
    holder = expected
    for part in path[:-1]:
        holder = holder[part]
    if line is None or holder[path[-1]] != old:
        return None
    holder[path[-1]] = new
    rows = text.split("\n")
    row = rows[line - 1]
    for quoted, quotes in ((json.dumps(old, ensure_ascii=False), '"'), (f"'{old}'", "'")):
        for found in re.finditer(re.escape(quoted), row):
            rows[line - 1] = f"{row[: found.start()]}{quotes}{new}{quotes}{row[found.end() :]}"
            with suppress(ConfigError):
                changed = "\n".join(rows)
                if parse(file, _plain(changed)).tables == expected:
                    return changed
    return None


def _plain(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def write(file: Path, pinning: Pinning) -> Path:
    """Write the pinned configuration, and return the copy of the file as it was before.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    file = file.resolve()
    mode = file.stat().st_mode & 0o777
    backup = _first_free(file.with_name(f"{file.name}{end}") for end in (".bak", *_numbered(".bak")))
    _create(backup, pinning.before, mode)
    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(pinning.after.encode("utf-8"))
        Path(temporary).chmod(mode)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return backup


def _numbered(end: str) -> Sequence[str]:
    return [f"{end}{number}" for number in range(2, 1000)]


def _first_free(places: Iterable[Path]) -> Path:
    found = next((place for place in places if not place.exists()), None)
    if found is None:
        raise FileExistsError("there are too many copies of this file already")
    return found


def _create(file: Path, text: str, mode: int) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(text.encode("utf-8"))
