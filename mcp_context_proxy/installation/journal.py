"""Carries out installations, and undoes them.

Before a host's file changes, a copy of its bytes is kept, with a record of what leaves it. A file is replaced
in one step, so that a host never reads half of it. As long as the host's file is the one that the
installation wrote, undoing it puts back the kept bytes. If the host or its person has changed it since, only
our entry leaves, and the servers that were moved come back.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from mcp_context_proxy.config.source import MAX_BYTES
from mcp_context_proxy.installation.editing import EditError, Form, edited, entries
from mcp_context_proxy.installation.plan import FileChange, HostPlan
from mcp_context_proxy.system.later import platformdirs
from mcp_context_proxy.system.process import make_private_folder

_PRIVATE: Final = 0o600

_END: Final = ".mcp-context-proxy"
"""End of the name of a file that is about to take the place of another one."""

_LEFT_SECONDS: Final = 3600.0
"""Age from which such a file was left by a process that was killed."""


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
                with suppress(OSError, ValueError, TypeError, KeyError):
                    data = json.loads(path.read_bytes())
                    found.append((path, Installation(**{**data, "place": tuple(data["place"])})))
        return found

    def install(self, plan: HostPlan) -> Path | None:
        """Change a host's file as planned; return the copy of it as it was, None if there was none.

        Raises:
            OSError: the copy or the file cannot be written; the file is then as before.
            EditError: the file has changed since it was read.
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
            _create(copy, _read(plan.change.file))
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
        """Return the number of the latest record or copy; 0 if there is none."""
        numbers = [path.name.partition("-")[0] for path in self.folder.iterdir()]
        return max((int(one) for one in numbers if one.isdecimal()), default=0)

    def undo(self, record: Path, installation: Installation) -> Undone:
        """Plan the end of an installation.

        Raises:
            OSError: the file cannot be read.
            EditError: the file has changed, and our entry cannot be removed from it.
        """
        file = Path(installation.file)
        copy = None if installation.before is None else self.folder / installation.before
        now = _read(file) if file.exists() else None
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
        gone = installation.moved.keys() - (there.keys() - {installation.entry_name})
        # The copy has values that a record cannot have, such as dates.
        was = {} if before is None else entries(installation.form, before.decode("utf-8"), installation.place)
        back = {name: was.get(name, entry) for name, entry in installation.moved.items() if name in gone}
        if installation.form == "yaml" and back and "name" in next(iter(back.values())):
            back = {name: {k: v for k, v in entry.items() if k != "name"} for name, entry in back.items()}
        remove = {installation.entry_name} & there.keys()
        after = edited(installation.form, text, installation.place, remove, back)
        return Undone(file, now, after.encode("utf-8"), records, whole=False)


class Undone(Struct, frozen=True):
    """The end of an installation, not yet carried out."""

    file: Path
    now: bytes | None
    after: bytes | None
    """None if the file is removed: there was none before."""
    records: tuple[Path, ...]
    whole: bool
    """True if the file gets its earlier bytes back."""

    def difference(self) -> list[str]:
        """Return the lines that change."""
        now, after = (_text(data) for data in (self.now, self.after))
        return FileChange(self.file, now, after or "").difference()

    def carry_out(self) -> None:
        """Write the file, and forget the installation; raises `OSError` or `EditError`."""
        if self.now != self.after:
            if self.after is None:
                _unchanged(self.file, self.now)
                self.file.unlink(missing_ok=True)
            else:
                _replace(self.file, self.now, self.after)
        for path in self.records:
            path.unlink(missing_ok=True)


def write(change: FileChange, *, private: bool = False) -> None:
    """Replace a file in one step.

    A new one is readable for its owner alone, and so is one that gets secrets (`private`).

    Raises:
        EditError: the file or its folder cannot be written, or the file has changed since it was read.
    """
    before = None if change.before is None else change.before.encode("utf-8")
    try:
        _replace(change.file, before, change.after.encode("utf-8"), private=private)
    except OSError as error:
        raise EditError(f"{change.file} cannot be written: {error.strerror or error}") from None


def _replace(file: Path, before: bytes | None, after: bytes, *, private: bool = False) -> None:
    file = file.resolve()  # a link stays a link
    _unchanged(file, before)
    if before is None:
        _make_folder(file.parent)
    elif not os.access(file, os.W_OK):
        raise PermissionError(13, "it is read-only")
    mode = _PRIVATE if before is None else stat.S_IMODE(file.stat().st_mode)
    if private:
        mode &= stat.S_IRWXU
    _remove_left(file)
    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", suffix=_END, dir=file.parent)
    try:
        _store(handle, after)
        _give(Path(temporary), file.parent if before is None else file)
        Path(temporary).chmod(mode)
        _unchanged(file, before)  # a disk takes its time, in which the host may write as well
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _unchanged(file: Path, before: bytes | None) -> None:
    if (_read(file) if file.exists() else None) != before:
        raise EditError(f"{file} has changed in the meantime; run the command again")


def read_text(file: Path) -> str | None:
    """Return the text of a host's file as it stands there; None if there is no file.

    Raises:
        OSError: the file cannot be read.
        EditError: it is no regular file, too large, or not text.
    """
    if not file.exists():
        return None
    if not file.is_file():
        raise EditError(f"{file} is not a regular file")
    if file.stat().st_size > MAX_BYTES:
        raise EditError(f"{file} is larger than {MAX_BYTES >> 20} MiB")
    try:
        return _read(file).decode("utf-8")
    except UnicodeDecodeError:
        raise EditError(f"{file} is not UTF-8 text") from None


def _read(file: Path) -> bytes:
    return file.read_bytes()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _create(file: Path, data: bytes) -> None:
    _store(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), data)
    _give(file, file.parent)


def _store(handle: int, data: bytes) -> None:
    """Write a file to the disk, and close it: what it stands for may change at once."""
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _remove_left(file: Path) -> None:
    """Remove files that processes have left which were killed just before such a file took its place."""
    for left in file.parent.glob(f".{glob.escape(file.name)}.*{_END}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
                left.unlink()


def _make_folder(folder: Path) -> None:
    made = [one for one in (*reversed(folder.parents), folder) if not one.exists()]
    make_private_folder(folder)
    for one in made:
        _give(one, one.parent)


def _give(path: Path, like: Path) -> None:
    """Give what root has made, as with ``sudo``, to the owner of the file or folder that it belongs to."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        with suppress(OSError):  # a file system without owners
            status = like.stat()
            os.chown(path, status.st_uid, status.st_gid)


def kept_data(configuration: Path) -> Iterator[Path]:
    """Yield everything of ours in the user's data folder, for those who want none of it any more.

    The configuration, which lies in the same folder on some platforms, is not among it.
    """
    folder = platformdirs.user_data_path("mcp-context-proxy", appauthor=False)
    with suppress(OSError):
        yield from sorted(path for path in folder.iterdir() if path != configuration)
