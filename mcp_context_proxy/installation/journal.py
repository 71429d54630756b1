"""Changes of files that belong to a person: installations, prompt hooks and switches, and the way back.

Each of the three keeps the bytes of the file before it changes it, and replaces the file in one step, so that
nobody reads half of it. As long as nothing else has changed the file since, the way back puts these bytes
there again. Everything here blocks.

An installation has a copy and a record in the journal, a folder of ours. If the host or its person has
changed the file since, only our entry leaves, and the servers that were moved come back.

A prompt hook and a switch, which turns a server or a tool on or off in our configuration, keep the copy
beside the file. They change or add one key; comments, order and unknown keys stay. docs/hooks.md has the
source of each form of hooks. Running proxies follow a switch.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
import shlex
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from mcp_context_proxy.catalog.names import turned_off_by
from mcp_context_proxy.config import load
from mcp_context_proxy.config.hosts import SWITCHES, servers_place
from mcp_context_proxy.config.source import parse, plain
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.installation import HOST_PLACES, about, read_text
from mcp_context_proxy.installation.editing import (
    EditError,
    Form,
    edited,
    entries,
    unified,
    with_value,
)
from mcp_context_proxy.installation.plan import FileChange, HostPlan, allowing
from mcp_context_proxy.system import locked, make_private_folder, remove_left
from mcp_context_proxy.system.later import platformdirs

_PRIVATE: Final = 0o600

_END: Final = ".mcp-context-proxy"
"""End of the name of a file that is about to take the place of another one."""


class Installation(Struct, frozen=True, kw_only=True):
    """The record of one installation in one file."""

    host: str
    file: str
    form: Form
    place: tuple[str, ...]
    entry_name: str
    """Name of the entry that starts this proxy."""
    moved: Mapping[str, Any]
    """Entries that left the file, as they stood there."""
    before: str | None
    """Name of the copy of the file as it was; None if there was no file."""
    after: str
    """SHA-256 of the file as the installation left it."""
    at: float
    """Seconds since 1970."""


class Journal:
    """The folder with records of installations and copies of hosts' files; only its owner can read it."""

    def __init__(self, folder: Path | None = None) -> None:
        """Use a folder; the default is one in the user's data folder."""
        self.folder = folder or platformdirs.user_data_path("mcp-context-proxy", appauthor=False) / "hosts"

    def installations(self) -> list[tuple[Path, Installation]]:
        """Return the records that are there, the latest first; damaged ones are left out."""
        found = []
        with suppress(OSError):
            for path in sorted(self.folder.glob("*.json"), reverse=True):
                with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
                    data = json.loads(path.read_bytes())
                    found.append((path, Installation(**{**data, "place": tuple(data["place"])})))
        return found

    def install(self, plan: HostPlan) -> Path | None:
        """Change a host's file as planned; return the copy of it as it was, None if there was none.

        Raises `OSError` if the copy or the file cannot be written; the file is then as before, and
        `EditError` if the file has changed since it was read.
        """
        if plan.change is None:
            return None
        _make_folder(self.folder)
        # In their order, also where the clock has been set back.
        now = max(time.time_ns(), self._latest() + 1)
        name = f"{now:020d}-{plan.host.name}"
        copy = None
        if plan.change.before is not None:
            copy = self.folder / f"{name}.before"
            _create(copy, plan.change.file.read_bytes())
        record = Installation(
            host=plan.host.name,
            file=str(plan.change.file),
            form=plan.host.form,
            place=plan.place,
            entry_name=plan.entry_name,
            moved=plan.moved,
            before=None if copy is None else copy.name,
            after=_digest(plan.change.after.encode("utf-8")),
            at=now / 1e9,
        )
        # The record comes first: whatever happens afterwards, what was there can be put back.
        note = self.folder / f"{name}.json"
        _create(note, json.dumps(asdict(record), indent=1, default=str).encode("utf-8"))
        try:
            write(plan.change)
        except (OSError, EditError):
            note.unlink(missing_ok=True)
            if copy is not None:
                copy.unlink(missing_ok=True)
            raise
        return copy

    def _latest(self) -> int:
        numbers = [path.name.partition("-")[0] for path in self.folder.iterdir()]
        return max((int(one) for one in numbers if one.isdecimal()), default=0)

    def undo(self, record: Path, installation: Installation) -> Undone:
        """Plan the end of an installation.

        Raises `OSError` if the file cannot be read, and `EditError` if the file has changed, and our entry
        cannot be removed from it.
        """
        file = Path(installation.file)
        copy = None if installation.before is None else self.folder / installation.before
        now = file.read_bytes() if file.exists() else None
        before = None
        if copy is not None:
            with suppress(OSError):  # somebody has removed it: the record has the servers as well
                before = copy.read_bytes()
        records = tuple(path for path in (record, copy) if path is not None)
        if now is None or (_digest(now) == installation.after and (copy is None) == (before is None)):
            return Undone(file, now, before if now is not None else None, records, whole=True)
        text = now.decode("utf-8")
        there = entries(installation.form, text, installation.place)
        # Where our entry has the name of one that was there before, that one comes back in its place.
        others = {name: entry for name, entry in there.items() if name != installation.entry_name}
        # The copy has values that a record cannot have, such as dates.
        was = {} if before is None else entries(installation.form, before.decode("utf-8"), installation.place)
        moved = {name: was.get(name, entry) for name, entry in installation.moved.items()}
        back = {name: entry for name, entry in moved.items() if name not in others}
        other = tuple(name for name, entry in moved.items() if others.get(name, entry) != entry)
        if installation.form == "yaml" and back and "name" in next(iter(back.values())):
            back = {name: {k: v for k, v in entry.items() if k != "name"} for name, entry in back.items()}
        remove = {installation.entry_name} & there.keys()
        host = HOST_PLACES.get(installation.host)
        listed = host is not None and host.listed
        after = edited(installation.form, text, installation.place, remove, back, listed=listed)
        if host is not None and installation.entry_name not in back:
            after = allowing(host, after, installation.entry_name, wanted=False)
        return Undone(file, now, after.encode("utf-8"), records, whole=False, other=other)


class Undone(Struct, frozen=True):
    """The end of an installation, not yet carried out."""

    file: Path
    now: bytes | None
    after: bytes | None
    """None if the file is removed: there was none before."""
    records: tuple[Path, ...]
    whole: bool
    """True if the file gets its earlier bytes back."""
    other: tuple[str, ...] = ()
    """Moved servers that do not come back, because another one has the name by now."""

    @property
    def change(self) -> FileChange:
        before, after = ((data or b"").decode("utf-8", "replace") for data in (self.now, self.after))
        return FileChange(self.file, before, after)

    def carry_out(self) -> None:
        """Write or remove the file, and forget the installation; raises `EditError` as `write` does."""
        if self.now != self.after:
            with _writing(self.file):
                if self.after is None:
                    _unchanged(self.file, self.now)
                    self.file.unlink(missing_ok=True)
                else:
                    _replace(self.file, self.now, self.after)
        for path in self.records:
            path.unlink(missing_ok=True)


def write(change: FileChange, *, private: bool = False) -> None:
    """Replace a file in one step.

    A new one is readable for its owner alone, and so is one that gets secrets (`private`). Raises `EditError`
    if the file or its folder cannot be written, or the file has changed since it was read.
    """
    before = None if change.before is None else change.before.encode("utf-8")
    with _writing(change.file):
        _replace(change.file, before, change.after.encode("utf-8"), private=private)


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EditError(f"{file} cannot be written: {error.strerror or error}") from None


def _replace(file: Path, before: bytes | None, after: bytes, *, private: bool = False) -> None:
    try:
        file = file.resolve()  # a link stays a link
    except RuntimeError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(file)) from None
    _unchanged(file, before)
    if before is None:
        _make_folder(file.parent)
    elif not os.access(file, os.W_OK):
        raise PermissionError(13, "it is read-only")
    mode = _PRIVATE if before is None else stat.S_IMODE(file.stat().st_mode)
    if private:
        mode &= stat.S_IRWXU
    remove_left(file, ".", _END)
    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", suffix=_END, dir=file.parent)
    try:
        _store(handle, after, file.parent if before is None else file, mode)
        _unchanged(file, before)  # a disk takes its time, in which the host may write as well
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _unchanged(file: Path, before: bytes | None) -> None:
    if (file.read_bytes() if file.exists() else None) != before:
        raise EditError(f"{file} has changed in the meantime; run the command again")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _create(file: Path, data: bytes) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    try:
        _store(handle, data, file.parent)
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _store(handle: int, data: bytes, like: Path, mode: int | None = None) -> None:
    """Write a file to the disk, and close it: what it stands for may change at once.

    It gets the owner of `like`, and a mode, while it is open: later, somebody else may have put another file
    in its place.
    """
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        _give(stream.fileno(), like)
        if mode is not None and hasattr(os, "fchmod"):
            os.fchmod(stream.fileno(), mode)
        os.fsync(stream.fileno())


def _make_folder(folder: Path) -> None:
    made = [one for one in (*reversed(folder.parents), folder) if not one.exists()]
    make_private_folder(folder)
    for one in made if _is_root() else ():
        with suppress(OSError):
            handle = os.open(one, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            _give(handle, one.parent)
            os.close(handle)


def _give(handle: int, like: Path) -> None:
    """Give an open file that root has made, as with ``sudo``, to the owner of `like`."""
    if _is_root():
        with suppress(OSError):  # a file system without owners
            status = like.stat()
            os.fchown(handle, status.st_uid, status.st_gid)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def kept_data(configuration: Path) -> Iterator[Path]:
    """Yield everything of ours in the user's data folder, for those who want none of it any more.

    The configuration, which lies in the same folder on some platforms, is not among it.
    """
    folder = platformdirs.user_data_path("mcp-context-proxy", appauthor=False)
    with suppress(OSError):
        yield from sorted(path for path in folder.iterdir() if path != configuration)


MARK: Final = " hook run "
"""Part of our commands, and of nobody else's in these files."""

KEPT_END: Final = ".before-hook"
"""End of the name of the copy of a file as it was before the hook."""

SECONDS: Final = 5
"""Time limit that the host gets; the hook itself ends after two."""


class HookPlace(Struct, frozen=True, kw_only=True):
    """The place of prompt hooks in the settings of a host."""

    host: str
    file: str
    """Path, in the form of those of a `HostPlace`."""
    event: str
    grouped: bool = True
    """True if a hook stands in a group of hooks with one matcher."""
    timeout: int = SECONDS
    needs_version: bool = False
    """True if the file needs a version at its top."""
    note: str = ""
    """Sentence about something that a person has to do."""

    def path(self, environ: Mapping[str, str]) -> Path:
        return HOST_PLACES[self.host].file(environ, path=self.file)


HOOK_PLACES: Final[Mapping[str, HookPlace]] = {
    place.host: place
    for place in (
        HookPlace(
            host="claude-code",
            file="${CLAUDE_CONFIG_DIR:-~/.claude}/settings.json",
            event="UserPromptSubmit",
        ),
        HookPlace(
            host="codex",
            file="${CODEX_HOME:-~/.codex}/hooks.json",
            event="UserPromptSubmit",
            note="Codex skips a new hook until you trust it: start codex, open /hooks, and trust this one. "
            "Older versions also need codex_hooks = true under [features] in config.toml.",
        ),
        HookPlace(
            host="gemini-cli",
            file="${GEMINI_CLI_HOME:-~}/.gemini/settings.json",
            event="BeforeAgent",
            timeout=1000 * SECONDS,
        ),
        HookPlace(
            host="cursor",
            file="~/.cursor/hooks.json",
            event="beforeSubmitPrompt",
            grouped=False,
            needs_version=True,
            note="Cursor takes context at a prompt since some version of 2026, without documenting it.",
        ),
    )
}


def planned(place: HookPlace, file: Path, command: Sequence[str] | None) -> FileChange | None:
    """Return the change that adds our hook, which starts a command, to a file, or with None removes it.

    None is returned if nothing changes. Raises `EditError` if the file cannot be read or edited in place.
    """
    with about(file):
        before = read_text(file)
        after = _with_hook(place, before, command)
        kept = read_text(kept_copy(file))
        if command is None and kept is not None and before is not None and after != before:
            ours = _command_in(place, before)
            if ours is not None and _with_hook(place, kept, ours) == before:
                after = kept  # nothing else has changed since: back to the same bytes
    return None if after is None or after == before else FileChange(file, before, after)


def is_ours_alone(place: HookPlace, text: str) -> bool:
    """Return whether a text has our hook and nothing else, so that the file was made for it."""
    command = _command_in(place, text)
    return command is not None and _with_hook(place, None, command) == text


def kept_copy(file: Path) -> Path:
    return file.with_name(file.name + KEPT_END)


def _with_hook(place: HookPlace, text: str | None, command: Sequence[str] | None) -> str | None:
    if text is None and command is None:
        return None
    found = _hooks(place, text or "")
    others = [one for one in found if MARK not in json.dumps(one)]
    if command is None and others == found:
        return text
    if command is None:
        insert = {place.event: others} if others else {}
        return edited("json", text or "", ("hooks",), [place.event], insert)
    hook: dict[str, Any] = {"type": "command", "command": shlex.join(command), "timeout": place.timeout}
    entry: dict[str, Any] = {"hooks": [hook]} if place.grouped else hook
    if [entry] == [one for one in found if one not in others]:
        return text
    if not (text or "").strip():
        version = {"version": 1} if place.needs_version else {}
        return json.dumps({**version, "hooks": {place.event: [entry]}}, indent=2) + "\n"
    return edited("json", text or "", ("hooks",), [], {place.event: [*others, entry]})


def _hooks(place: HookPlace, text: str) -> list[Any]:
    found = entries("json", text, ("hooks",)).get(place.event, []) if text.strip() else []
    if not isinstance(found, list):
        raise EditError(f"hooks.{place.event} is not a list")
    return found


def _command_in(place: HookPlace, text: str) -> list[str] | None:
    for one in _hooks(place, text):
        hooks = one.get("hooks", [one]) if isinstance(one, dict) else []
        for hook in hooks if isinstance(hooks, list) else ():
            command = hook.get("command") if isinstance(hook, dict) else None
            if isinstance(command, str) and MARK in command:
                return shlex.split(command)
    return None


KEPT_OF_SWITCHES: Final = ".before-switch"
"""End of the name of the copy of the file as it was before the last switch."""


class Switched(Struct, frozen=True):
    """The outcome of a switch."""

    server: str
    tool: str | None
    """Own name of the tool; None for the whole server."""
    enabled: bool
    file: str
    changed: bool
    """False if it was so before."""
    note: str | None = None
    """Sentence about another setting that still turns it off."""


def switch(file: Path, server: str, tool: str | None, enabled: bool) -> Switched:
    """Turn a server, or one of its tools by its own name, on or off.

    Raises `EditError` if the file cannot be edited in place, or has no such server; it is then as before, and
    `OSError` if it cannot be written.
    """
    with _alone():
        return _switch(file, server, tool, enabled)


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until nobody else switches; where that cannot be known, each still looks at the file."""
    folder = platformdirs.user_data_path("mcp-context-proxy", appauthor=False)
    with ExitStack() as held:
        with suppress(OSError):
            make_private_folder(folder)
            held.enter_context(locked(folder / "switches.lock"))
        yield


def _switch(file: Path, server: str, tool: str | None, enabled: bool) -> Switched:
    with about(file):
        text = read_text(file)
    if text is None:
        raise EditError(f"{file} does not exist")
    kept = file.with_name(file.name + KEPT_OF_SWITCHES)
    after, before = _switched(file, text, server, tool, enabled), read_text(kept)
    if after != text:
        with suppress(EditError, ConfigError):
            if before is not None and _switched(file, before, server, tool, not enabled) == text:
                after = before  # nothing else has changed since: back to the same bytes
        write(FileChange(kept, before, text), private=True)
        write(FileChange(file, text, after))
    return Switched(server, tool, enabled, str(file), after != text, _still_off(file, server, tool, enabled))


def _switched(file: Path, text: str, server: str, tool: str | None, enabled: bool) -> str:
    source = parse(file, plain(text))
    if source.of_host:
        return _in_host_file(file, text, source.tables, server, tool, enabled)
    return _in_toml(text, source.tables, server, tool, enabled)


def _still_off(file: Path, server: str, tool: str | None, enabled: bool) -> str | None:
    """Return a sentence about the setting that keeps off what was just turned on."""
    if not enabled:
        return None
    try:
        loaded = load(file, warn=lambda _text: None)
    except ConfigError:
        return None
    if (mistake := loaded.off.get(server)) is not None:
        return f"the server stays off until this is corrected: {mistake}"
    if tool is None or (config := loaded.servers.get(server)) is None:
        return None
    if not config.enabled:
        return f"its server {server} is turned off"
    by = turned_off_by(config, tool, None)
    return None if by is None else f"it is still turned off {by}"


def _in_toml(text: str, tables: Any, server: str, tool: str | None, enabled: bool) -> str:
    servers = tables.get("servers")
    if not isinstance(servers, dict) or not isinstance(servers.get(server), dict):
        raise EditError(f"there is no [servers.{server}] in the configuration")
    path = ("servers", server) if tool is None else ("servers", server, "tools", tool)
    wanted = copy.deepcopy(tables)
    holder = wanted
    for key in path:
        holder = holder.setdefault(key, {})
        if not isinstance(holder, dict):
            raise EditError(f"{'.'.join(path)} is not a table")
    if holder.get("enabled", True) is enabled:
        return text
    holder["enabled"] = enabled
    body, as_it_was = unified(text)
    after = with_value(body, path, "enabled", enabled)
    try:
        got = parse(Path("config.toml"), after).tables
    except ConfigError:
        got = None
    if got != wanted:
        raise EditError(f"{'.'.join(path)} is written in a form that cannot be edited in place")
    return as_it_was(after)


def _in_host_file(file: Path, text: str, tables: Any, server: str, tool: str | None, enabled: bool) -> str:
    place = servers_place(tables)
    if file.suffix.lower() not in {".json", ".jsonc"} or place is None:
        raise EditError(f"{file} is a host's file; turn it on or off in the host")
    found = entries("json", text, place).get(server)
    if not isinstance(found, dict):
        raise EditError(f"there is no server {server} in {file}")
    entry = {key: value for key, value in found.items() if key not in SWITCHES}
    if tool is None:
        if any(found.get(key) is off for key, off in SWITCHES.items()) is not enabled:
            return text
        entry |= {} if enabled else {"disabled": True}
    else:
        denied = [name for name in found.get("disabledTools", []) if name != tool]
        entry = dict(found) | {"disabledTools": denied if enabled else [*denied, tool]}
        if entry == found or (enabled and "disabledTools" not in found):
            return text
    return edited("json", text, place, [], {server: entry})
