"""Follows the configuration file while the proxy runs; a part with a mistake in it stays as it was.

Twice a second the file itself is looked at (`changes`), which takes some microseconds. Reports of the system
would not do: editors replace a file, a mounted configuration changes when a link is turned to another folder,
and nothing is reported of what another machine writes on a network file system.

A setting is live only if it says so: a server is restarted for any key of its connection, and an unknown
table needs a restart of the proxy. So a new setting is never half applied.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from mcp_context_proxy.config.programs import folder_of
from mcp_context_proxy.config.secrets import SHORTEST, named_secrets_of
from mcp_context_proxy.config.settings import LAUNCH, Config, ServerConfig
from mcp_context_proxy.config.source import Reload, Table, marked
from mcp_context_proxy.errors import NOTICE, ConfigError, ConfigProblem, first_told
from mcp_context_proxy.system.process import open_regular
from mcp_context_proxy.system.threads import Workers, in_thread

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
"""Time between two looks at a file."""

LOOK_FACTOR: Final = 200.0
"""Time between two looks at many files, times the processor time that a look takes."""

SETTLE_SECONDS: Final = 0.1
"""A file that is being written changes again within this time, so it is read when it no longer does."""

SETTLE_LOOKS: Final = 20
"""Looks after which a file is read although it still changes."""

MISSING_LOOKS: Final = 10
"""Looks that a missing file gets, also one of several: some editors delete a file before they write it."""

SECOND_LOOK_SECONDS: Final = 2.0
"""Time for which a file stays as it is before a setting is dropped from it, or half of a line taken."""

SECOND_LOOKS: Final = 15
"""Such looks at a file that goes on changing, before it is left alone until its next change."""

Mark: TypeAlias = tuple[int | str, ...] | None
"""Identity of the file or folder at a path; None if there is none."""


async def changes(look: Callable[[], object], every: float = LOOK_SECONDS) -> AsyncIterator[None]:
    """Yield at once, and whenever `look`, which may block, returns something else than before.

    Something that still changes is waited for. The first look is compared with nothing, so no change is lost
    between a file that was read and its first look.

    All looks are made in one thread, which waits between them as well: to wake the event loop and another
    thread for each would take more processor time than the look at a file.
    """
    ended, pause = threading.Event(), 0.0

    def other_than(found: object) -> object:
        nonlocal pause
        while not ended.wait(pause):
            began = time.thread_time()
            now = look()
            pause = max(every, LOOK_FACTOR * (time.thread_time() - began))
            if now != found:
                return _settled(look, now, ended)
        return found

    found = object()
    looks = Workers(1)
    try:
        while True:
            found = await looks.run(partial(other_than, found))
            yield
    finally:
        ended.set()


def _settled(look: Callable[[], object], now: object, ended: threading.Event) -> object:
    missing = 0
    for _ in range(SETTLE_LOOKS):
        if ended.wait(SETTLE_SECONDS):
            break
        before, now = now, look()
        is_missing = now is None or (isinstance(now, tuple) and None in now)
        missing = missing + 1 if is_missing else 0
        if now == before and (not is_missing or missing >= MISSING_LOOKS):
            break
    return now


def mark_of(path: Path | str) -> Mark:
    """Return the identity of a file or folder: another one after each change of content or rights."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called for each of thousands of paths
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _mark(file: Path) -> Mark:
    """Return the identity of a file with the place that it is at: paths in it count from there."""
    mark = mark_of(file)
    return None if mark is None else (os.path.realpath(file), *mark)


def _end(file: Path) -> tuple[Mark, bool]:
    """Return the identity of a file, and whether its last line is whole.

    Raises `ConfigError` if it cannot be opened, or is a pipe, of which the other end may never come.
    """
    try:
        with suppress(FileNotFoundError), open_regular(file) as opened:
            mark = _mark(file)
            opened.seek(max(os.fstat(opened.fileno()).st_size - 1, 0))
            return mark, opened.read(1) in b"\n"
    except OSError as error:
        raise ConfigError([ConfigProblem(file, None, "", f"cannot be read: {error.strerror}")]) from None
    return None, True


def _lacks(old: object, new: object, keys: Iterable[str] = ()) -> bool:
    """Return whether something that was set has its default again, or an entry of a table or list is gone."""
    if isinstance(old, Table) and isinstance(new, Table):
        fields = {field.name: field for field in msgspec.structs.fields(old)}
        return any(
            was != now and (_lacks(was, now) or now == _default(fields[key]))
            for key in keys or old.keys()
            for was, now in [(getattr(old, key), getattr(new, key))]
        )
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return any(key not in new or _lacks(value, new[key]) for key, value in old.items())
    if isinstance(old, Collection) and isinstance(new, Collection) and not isinstance(old, str):
        with suppress(TypeError):
            new = frozenset(new)
        return any(each not in new for each in old)
    return False


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


_LIVE: Final = marked(ServerConfig, Reload.LIVE)

_NEWER: Final = frozenset({"inherit", "tls", "client_key", "key_id", "resource"})
"""Settings of servers and of their table ``oauth`` that 0.1.0 did not have."""


def connection_key(server: ServerConfig, *, of_0_1_0: bool = False) -> str:
    """Return a digest of all settings that a server's connection depends on, or that of version 0.1.0."""
    # The values of secrets show in the keys that they were expanded into.
    facts = {name: value for name, value in asdict(server).items() if name not in _LIVE}
    # What was stored without these settings still counts where they are not set.
    for name in _NEWER & facts.keys():
        if not facts[name]:
            del facts[name]
    if server.oauth is not None:
        oauth = asdict(server.oauth)
        facts["oauth"] = {key: oauth[key] for key in oauth if key not in _NEWER or oauth[key] is not None}
    if server.cwd is None:
        facts["cwd"] = "~"
    elif server.cwd == LAUNCH:
        # What a server lists in one repository is nothing to go by in another. 0.1.0 did not tell them apart.
        with suppress(OSError):
            facts["cwd"] = None if of_0_1_0 else [LAUNCH, folder_of(server)]

    def path_text(path: Path) -> str:  # the name of a folder need not be UTF-8
        return os.fsencode(path).decode(errors="backslashreplace")

    return hashlib.sha256(msgspec.json.encode(facts, order="sorted", enc_hook=path_text)).hexdigest()


def connection_identity(server: ServerConfig) -> str:
    """Return a digest of the program or URL behind a connection, the same for any secrets and folder.

    Approvals go by it: another token makes no other server, and neither does another repository.
    """
    facts = {
        "command": server.command,
        "args": server.args,
        "env": server.env,
        "url": server.url,
        "transport": server.transport,
        "headers": sorted(server.headers),
    }
    text = msgspec.json.encode(facts, order="deterministic").decode()
    for name, value in sorted(named_secrets_of(server), key=lambda secret: -len(secret[1])):
        if len(value) >= SHORTEST:
            text = text.replace(msgspec.json.encode(value).decode()[1:-1], f"${{{name}}}")
    return hashlib.sha256(text.encode()).hexdigest()


def same_connection(one: ServerConfig, other: ServerConfig) -> bool:
    """Return whether a running server can follow the other configuration without a restart."""
    return connection_key(one) == connection_key(other)


def with_live_settings(running: ServerConfig, now: ServerConfig) -> ServerConfig:
    """Return the configuration of a running connection with the live settings of a changed one.

    Secrets stay, because they are those of the connection.
    """
    return replace(running, **{name: getattr(now, name) for name in _LIVE if name != "secrets"})


def _read_at_start(started: Config, now: Config) -> dict[str, list[str]]:
    """Return the keys that differ and are read only when the proxy starts, by table."""
    live, found = marked(Config, Reload.LIVE), dict[str, list[str]]()
    for table in Config.__struct_fields__:
        old, new = getattr(started, table), getattr(now, table)
        if isinstance(new, Table):
            at_start = marked(type(new), Reload.RESTART) if table in live else new.__struct_fields__
            found[table] = [
                key
                for key in at_start
                if _without_user(getattr(old, key)) != _without_user(getattr(new, key))
            ]
    return {table: keys for table, keys in found.items() if keys}


def _without_user(value: Any) -> Any:
    """Return the address of a database without user and password, which a running proxy follows."""
    is_database = isinstance(value, str) and value.startswith(("postgresql://", "postgres://"))
    return re.sub("//[^/?#]*@", "//", value) if is_database else value


def needs_restart(started: Config, now: Config) -> tuple[str, ...]:
    """Return the dotted keys that differ and are read only when the proxy starts."""
    return tuple(f"{table}.{key}" for table, keys in _read_at_start(started, now).items() for key in keys)


def without_restart(running: Config, now: Config) -> Config:
    """Return a changed configuration in which keys that are read only at the start are the running ones."""
    kept = {
        table: replace(getattr(now, table), **{key: getattr(getattr(running, table), key) for key in keys})
        for table, keys in _read_at_start(running, now).items()
    }
    return replace(now, **kept)


Load = Callable[[], Config]
"""Loads the configuration again from the same place; raises `ConfigError` if it cannot be used."""

Apply = Callable[[Config], Awaitable[None]]
"""Applies a configuration to the running proxy."""


def without_mistakes(config: Config, running: Config) -> Config:
    """Return an edited configuration in which everything with a mistake is as it is in the `running` one.

    A server or table that works must not stop in the middle of an edit; a new server with a mistake is off.
    """
    kept = config.off.keys() & running.servers.keys()
    tables = {re.split(r"[.\[]", problem.key)[0] for problem in config.mistakes} & set(Config.keys())
    # Each server has its share of what is set for all.
    same = running.servers.keys() if tables & {"inherit", "env", "limits"} else kept
    named = [name for name in running.servers if name in kept or name in config.servers]
    of_kept = [problem for name in kept for problem in config.off[name].problems]
    update: dict[str, Any] = {
        "servers": config.servers
        | {name: running.servers[name] if name in same else config.servers[name] for name in named},
        "off": {name: off for name, off in config.off.items() if name not in kept},
        "mistakes": tuple(sorted([*config.mistakes, *of_kept], key=lambda problem: problem.line or 0)),
    }
    return replace(config, **(update | {table: getattr(running, table) for table in tables}))


class Standing(Struct, frozen=True):
    """Differences between the running configuration and the file."""

    problems: tuple[str, ...] = ()
    """Mistakes in the present file, each with its file and line."""
    needs_restart: tuple[str, ...] = ()
    """Dotted keys that were changed since the start and need a restart."""


class Reloader:
    """Loads the configuration when its file changes, or on request."""

    def __init__(self, started: Config, load: Load) -> None:
        """Begin with the configuration of the start; `load` reads the file again, in a thread."""
        self._started, self._current, self._load = started, started, load
        self._asked, self._ended = anyio.Event(), anyio.Event()
        self.standing = Standing(tuple(started.complaints()))

    async def reload(self, seconds: float) -> None:
        """Request a reload, and wait for one that began from now on to end, `seconds` at most."""
        with anyio.move_on_after(seconds):
            for _ in range(2):  # one may be under way that has read the file before
                ended = self._ended
                self.ask()
                await ended.wait()

    def ask(self) -> None:
        self._asked.set()

    async def watch(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait, then request a reload at once and whenever the file may have changed, until cancelled.

        Changes since the file was loaded are found as well.
        """
        await wait()
        # A pipe has been read once and for all.
        if self._started.path is not None and not await in_thread(self._started.path.is_fifo):
            async for _ in changes(self._look):
                self.ask()

    def _look(self) -> object:
        """Return another value after each change of the file, or of one that a value of it comes from."""
        mark = None if self._started.path is None else _mark(self._started.path)
        return mark and (mark, *map(mark_of, self._current.files))

    async def run(self, apply: Apply) -> None:
        """Load the file on each request until cancelled; call `apply` with each changed configuration."""
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            try:
                await self._reload(apply)
            except Exception:
                # boundary: one reload failed; the next edit is a new attempt
                logger.exception("the changed configuration could not be applied")
            finally:
                self._ended.set()
                self._ended = anyio.Event()

    async def _reload(self, apply: Apply) -> None:
        try:
            config = await self._loaded()
        except ConfigError as error:
            problems = tuple(first_told(map(str, error.problems), len(error.problems)))
            if problems != self.standing.problems:
                self.standing = replace(self.standing, problems=problems)
                logger.error("the changed configuration is not used; the running one stays. %s", error)
            return
        if config != self._current:
            await apply(config)
            self._current = config
            keys = needs_restart(self._started, config)
            if keys and keys != self.standing.needs_restart:
                logger.warning("%s: these changes need a restart: %s", config.path, ", ".join(keys))
            self.standing = replace(self.standing, needs_restart=keys)
        problems = tuple[str, ...]()
        if config.off or config.mistakes:
            is_first = config == self._started
            problems = tuple(config.complaints() if is_first else config.complaints("stays as it was"))
        if self.standing.problems and not problems:
            logger.log(NOTICE, "%s has no mistakes any more", config.path)
        for problem in problems:
            if problem not in self.standing.problems:
                logger.warning("%s", problem)
        self.standing = replace(self.standing, problems=problems)

    async def _loaded(self) -> Config:
        """Load the file once it is whole: a text that may be the beginning of one has to stay for a while.

        A setting that is missing may be a guard, and the half of a line that is missing a digit.
        """
        last: Mark | bool = False
        for _ in range(SECOND_LOOKS):
            file = self._started.path
            mark, has_end = (None, True) if file is None else await in_thread(_end, file)
            config, lacks = await in_thread(self._load_beside, self._current)
            is_whole = mark == last or (has_end and not lacks)
            # It may have been emptied between the look at it and the reading.
            if is_whole and (file is None or await in_thread(_mark, file) == mark):
                return config
            last = mark
            await anyio.sleep(SECOND_LOOK_SECONDS)
        raise ConfigError(
            [ConfigProblem(self._started.path, None, "", "it keeps changing; save it once more")]
        )

    def _load_beside(self, running: Config) -> tuple[Config, bool]:
        """Return the configuration of the file, and whether something is missing in it. Blocks."""
        config = without_mistakes(self._load(), running)
        return config, _lacks(running, config, Config.keys())
