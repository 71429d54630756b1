"""The process, the machine and its user: threads, signals, memory, descriptors, clocks.

Here are the place of the configuration and its first text, the variables that servers inherit, private files
with their locks, and a bound on the number of things that are remembered. It imports the standard library
alone, because the bridge, which has to start fast, imports it.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import IO, Final, Self, TypeVar

    K = TypeVar("K")
    V = TypeVar("V")


APP: Final = "mcp-context-proxy"
FILE_NAME: Final = "config.toml"
TO_BEGIN: Final = (
    f"'{APP} install' moves the servers of your hosts there, '{APP} add NAME -- COMMAND...' adds one"
)
"""The first steps of somebody who has no configuration, as the end of a sentence that names its file."""

BEGINNING: Final = """\
# Servers behind mcp-context-proxy. All keys: config.example.toml and docs/configuration.md.
# mcp-context-proxy add NAME -- COMMAND...   adds one, and pins the version that ran.
# mcp-context-proxy install                  moves those of your hosts here.
# mcp-context-proxy check                    starts each once, and names all problems.

# [servers.memory]
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-memory@2026.8.31"]
"""


def default_path(environ: Mapping[str, str]) -> Path:
    from pathlib import Path  # noqa: PLC0415 - takes longer than all that a prompt hook does here

    return Path(default_file(environ))


def default_file(environ: Mapping[str, str]) -> str:
    """Return the same as a text."""
    folder = environ.get("XDG_CONFIG_HOME")
    if not folder or sys.platform == "win32" or not os.path.isabs(folder):  # noqa: PTH117
        if sys.platform != "linux":
            from platformdirs import user_config_path  # noqa: PLC0415 - takes long, too

            return str(user_config_path(APP, appauthor=False) / FILE_NAME)
        # As that library says.
        folder = os.path.expanduser("~/.config")  # noqa: PTH111
    return f"{folder}/{APP}/{FILE_NAME}"


def begin(environ: Mapping[str, str]) -> str | None:
    """Write a first configuration, without servers, in the user's own place; return a message that says so.

    A host that was connected by a link or a plugin then gets a proxy that says how to add servers, instead of
    one that ends at once. Return None if there is a configuration, or none can be written.
    """
    file = default_path(environ)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stream:
            stream.write(BEGINNING)
    except OSError:
        return None
    return f"{APP}: no server is configured yet, and {file} was written for them: {TO_BEGIN}"


LONGEST_LINE: Final = 16 * 1024 * 1024
"""Longest line of a file that is read line by line; one without an end would fill the memory."""


LEFT_SECONDS: Final = 3600.0
"""Age from which a file that is about to take the place of another was left by a killed process."""


def remove_left(file: Path, begin: str, end: str = "", seconds: float = LEFT_SECONDS) -> None:
    """Remove files that killed processes have left beside a file: those of its name, `begin` and `end`."""
    try:
        beside = [*file.parent.iterdir()]
    except OSError:
        return
    for left in beside:
        if left.name.startswith(f".{file.name}{begin}") and left.name.endswith(end):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime >= seconds:
                    left.unlink()


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

OPEN: Final = (*_SYSTEM, *_LANGUAGE, *_CERTIFICATES)
"""Those among them that are no secrets: their values are known to every program and stand in every path."""

INHERITED: Final = (
    *OPEN,
    *_PROXIES,
    *(name.lower() for name in _PROXIES),
)
"""Names and patterns of the variables that every server inherits."""


def matches(name: str, patterns: Iterable[str]) -> bool:
    names, globs = _sorted_out(tuple(patterns))
    name = _folded(name)
    return name in names or any(fnmatchcase(name, one) for one in globs)


@lru_cache(maxsize=64)
def _sorted_out(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names and the patterns apart: each of some hundred variables is compared with them."""
    folded = [*map(_folded, patterns)]
    return frozenset(folded), tuple(one for one in folded if "*" in one)


def _folded(name: str) -> str:
    """Return a name as it is compared: on Windows, its case does not count."""
    return name.upper() if sys.platform == "win32" else name


CLOSE_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0)
LOCK_SECONDS: Final = 10.0
"""Time for which another process may hold a lock, such as while it starts a shared proxy."""
LOCK_PAUSE_SECONDS: Final = 0.01


@contextmanager
def locked(path: str | os.PathLike[str], seconds: float = LOCK_SECONDS) -> Iterator[int]:
    """Hold the lock of a file, which is made where there is none; provide its descriptor.

    Raises `TimeoutError` if another process has held it for too long, such as one that is stopped, and
    `OSError` if the file cannot be made or locked.
    """
    until = time.monotonic() + seconds
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | CLOSE_ON_EXEC, 0o600)
    try:
        while True:
            try:
                lock(descriptor)
                break
            except (BlockingIOError, PermissionError):
                if time.monotonic() > until:
                    raise TimeoutError(f"{path} is locked by another process") from None
                time.sleep(LOCK_PAUSE_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> None:
    """Lock an open file until it is closed, or raise `OSError` without waiting."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - only there

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # noqa: PLC0415 - not on Windows

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700; existing folders stay as they are.

    Raises `OSError` if the folder cannot be created.
    """
    # `mkdir(parents=True)` would give the parents the mode of the umask: whoever may write there may replace
    # it.
    for missing in [one for one in (*reversed(folder.parents), folder) if not one.exists()]:
        missing.mkdir(mode=stat.S_IRWXU, exist_ok=True)


def make_private(file: Path) -> bool:
    """Remove the rights of group and others on a file, whatever the umask says; return whether they had any.

    A file that belongs to somebody else stays as it is.
    """
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & OTHERS:
            file.chmod(mode & stat.S_IRWXU)
            return True
    return False


def write_private(path: Path, content: bytes | Iterable[bytes], *, new: bool = False) -> None:
    """Write a file whole that only its owner may read: readers find the former content or all of this.

    With `new`, a file that is there already stays: of two processes one wins. A pipe or a device is written
    as it is. Raises `OSError` if it cannot be written; the former content is still there.
    """
    import tempfile  # noqa: PLC0415 - takes long, too

    pieces = [content] if isinstance(content, bytes) else content
    if path.exists() and not path.is_file():
        with path.open("wb") as other:
            other.writelines(pieces)
        return
    make_private_folder(path.parent)
    remove_left(path, "-")
    descriptor, whole = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        if new:
            with suppress(FileExistsError):
                os.link(whole, path)
        else:
            os.replace(whole, path)  # noqa: PTH105 - its path is a string
    finally:
        with suppress(FileNotFoundError):
            os.unlink(whole)  # noqa: PTH108 - its path is a string


def lock_file(file: IO[bytes]) -> bool:
    """Try to lock an open file without waiting; return whether it is locked, until it is closed."""
    try:
        lock(file.fileno())
    except OSError:
        return False
    return True


def drop_of_largest(kept: dict[K, V], most: int, group_of: Callable[[K], str | None], least: int = 0) -> None:
    """Drop entries beyond `most`: each time the oldest of the group that has most.

    So no group pushes out the entries of another, and the last `least` of each stay in any case.
    """
    while len(kept) > most:
        sizes: dict[str | None, int] = {}
        for key in kept:
            sizes[group_of(key)] = sizes.get(group_of(key), 0) + 1
        largest = max(sizes, key=sizes.__getitem__)
        if sizes[largest] <= least:
            return
        del kept[next(key for key in kept if group_of(key) == largest)]


class Closing:
    """Closes at the end of a `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError
