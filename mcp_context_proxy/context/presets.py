"""Presets: choices that a person made in a session, saved by a name, with which other sessions begin.

The names of the packaged presets, such as ``conservative``, are presets as well: they only say how much is
selected.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from mcp_context_proxy.config.reload import Mark, mark_of
from mcp_context_proxy.config.settings import PRESETS
from mcp_context_proxy.context import NO_OVERRIDES, DomainOverrides, Overrides, joined
from mcp_context_proxy.context.session import NO_SESSION, SessionContext, SessionView
from mcp_context_proxy.errors import ContextProxyError
from mcp_context_proxy.items import JSON, ItemKey, Kind
from mcp_context_proxy.system import locked, make_private_folder, write_private
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.process import read_own

logger = logging.getLogger(__name__)

FILE_NAME: Final = "presets.json"

NAME: Final = pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)

MOST_SAVED: Final = 200
"""Saved presets: each has a person behind it."""

MOST_ITEMS: Final = 1_000
"""Items of one preset, added or removed."""


class PresetError(ContextProxyError):
    """A preset cannot be saved, or there is none of a name."""


class ChosenItem(Struct, frozen=True):
    """An item that a person chose."""

    type: Kind
    name: str
    """Exposed name of a tool, name of a rule or reference."""
    server: str | None = None
    """Server of a tool, whose name must not lead to another one later."""

    @property
    def key(self) -> ItemKey:
        return self.type, self.name


Chosen = Annotated[tuple[ChosenItem, ...], Meta(max_length=MOST_ITEMS)]


class SavedPreset(Struct, frozen=True):
    """Choices of a person."""

    added: Chosen = ()
    removed: Chosen = ()
    options: Overrides = NO_OVERRIDES


class _File(Struct, frozen=True):
    presets: dict[str, SavedPreset] = {}


_AMOUNTS: Final[Mapping[str, SavedPreset]] = {
    name: SavedPreset(options=Overrides(DomainOverrides(preset=name), DomainOverrides(preset=name)))
    for name in PRESETS
}


def no_preset(name: str) -> str:
    """Return the message about a preset that there is not."""
    if not name:
        return "the name of a preset is empty, so it adds nothing"
    return f"there is no preset {name!r}: `session save {name}` would save one"


class PresetBook:
    """The presets by name: the packaged ones, and those of a file. Without a file, none outlives it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._saved: dict[str, SavedPreset] = {}
        self._told: set[str] = set()
        self._version: Mark = None
        """Of the file when it was read last; None if there was none."""

    def load(self) -> None:
        """Read the file if another proxy has written it since, as in the beginning. Blocks a moment.

        One that cannot be used is logged, and what was known stays.
        """
        if self._path is None or (version := mark_of(self._path)) == self._version:
            return
        self._version = version
        try:
            self._saved = self._read()
        except PresetError as error:
            known = f"the {len(self._saved)} known ones stay" if self._saved else "there are no saved presets"
            logger.warning("%s; %s", error, known)

    def _read(self) -> dict[str, SavedPreset]:
        if self._path is None:
            return dict(self._saved)
        try:
            return msgspec.json.decode(read_own(self._path), type=_File).presets
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise PresetError(f"{self._path} cannot be used: {error}") from error

    def as_data(self) -> dict[str, dict[str, JSON]]:
        self.load()
        return {name: msgspec.to_builtins(self._saved[name]) for name in sorted(self._saved)}

    @property
    def names(self) -> list[str]:
        self.load()
        return sorted(self._saved)

    def save(self, name: str, preset: SavedPreset) -> None:
        """Save a preset; one of the same name is replaced. Blocks.

        Raises `PresetError` if it cannot be named so, there are too many, or the file cannot be written.
        """
        if not NAME.fullmatch(name) or name in PRESETS:
            raise PresetError(
                f"a preset cannot be named {name[:70]!r}: write 1 to 32 letters, digits, '_' or '-', "
                f"beginning with a letter or digit; {', '.join(PRESETS)} are packaged"
            )
        with self._changing() as saved:
            saved[name] = preset
            if len(saved) > MOST_SAVED:
                raise PresetError(f"there are {MOST_SAVED} presets already; forget one that is not needed")

    def forget(self, name: str) -> None:
        """Forget a saved preset. Blocks.

        Raises `PresetError` if there is none of that name, or the file cannot be written.
        """
        with self._changing() as saved:
            if saved.pop(name, None) is None:
                there = f"there are: {', '.join(sorted(saved))}" if saved else "there are none"
                raise PresetError(f"there is no saved preset {name!r}; {there}")

    def begin(self, session: SessionContext, names: Iterable[str]) -> None:
        """Begin a session with the items of some presets; a later one counts before an earlier one."""
        self.load()
        for preset in self._of(names):
            for one in preset.removed:
                session.added.pop(one.key, None)
                session.removed.add(one.key)
            for one in preset.added:
                session.removed.discard(one.key)
                session.added[one.key] = None
                if one.server is not None:
                    session.meant[one.key] = one.server
            session.by_person.update(one.key for one in (*preset.added, *preset.removed))

    def view(self, names: Iterable[str]) -> SessionView:
        """Return the items of some presets as the view of a request without a session."""
        names = tuple(names)
        return replace(self.begun(names).view(), id=None, delivered=None) if names else NO_SESSION

    def begun(self, names: Iterable[str]) -> SessionContext:
        """Return a session that begins with some presets."""
        session = SessionContext()
        self.begin(session, names)
        return session

    def choices_of(self, session: SessionContext) -> SavedPreset:
        """Return the choices of a person in a session, without those of a model.

        Those of the presets with which it began are among them, unless its profile says only how much is
        selected.
        """

        def chosen(keys: Iterable[ItemKey]) -> tuple[ChosenItem, ...]:
            return tuple(ChosenItem(*key, session.meant.get(key)) for key in keys if key in session.by_person)

        rights = session.rights
        begun_with = (name for name in rights.all_presets if name in self._saved or name in rights.presets)
        options = joined([*self.options(begun_with), session.overrides])
        return SavedPreset(chosen(session.added), chosen(sorted(session.removed)), options)

    def options(self, names: Iterable[str]) -> list[Overrides]:
        """Return the options of some presets, those of a later one after those of an earlier one."""
        return [preset.options for preset in self._of(names) if preset.options != NO_OVERRIDES]

    def unknown(self, names: Iterable[str]) -> list[str]:
        self.load()
        return [name for name in names if name not in _AMOUNTS and name not in self._saved]

    def _of(self, names: Iterable[str]) -> Iterator[SavedPreset]:
        for name in names:
            preset = _AMOUNTS.get(name) or self._saved.get(name)
            if preset is not None:
                yield preset
            elif name not in self._told:
                self._told.add(name)
                logger.warning("%s", no_preset(name))

    @contextmanager
    def _changing(self) -> Iterator[dict[str, SavedPreset]]:
        """Give the presets to be changed inside, and replace the file; other proxies write it as well."""
        if self._path is None:
            yield (saved := self._read())
            self._saved = saved
        else:
            try:
                make_private_folder(self._path.parent)
                with locked(self._path.with_suffix(".lock")):
                    saved = self._read()
                    yield saved
                    content = msgspec.json.format(msgspec.json.encode(_File(saved)))
                    write_private(self._path, content + b"\n")
                    self._saved = saved
            except OSError as error:
                raise PresetError(f"{self._path} cannot be written: {error.strerror or error}") from error
