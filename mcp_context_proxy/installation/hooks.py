"""Prompt hooks in hosts' settings: where each host has them, and how one is added and removed in place.

docs/hooks.md has the source of each form.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from mcp_context_proxy.installation.editing import EditError, edited, entries
from mcp_context_proxy.installation.journal import read_text
from mcp_context_proxy.installation.plan import FileChange

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
    """Path below the home folder."""
    event: str
    folder_variable: str = ""
    """Variable with another folder for the file, if the host has one."""
    grouped: bool = True
    """True if a hook stands in a group of hooks with one matcher."""
    timeout: int = SECONDS
    needs_version: bool = False
    """True if the file needs a version at its top."""
    note: str = ""
    """Sentence about something that a person has to do."""

    def path(self, environ: Mapping[str, str]) -> Path:
        """Return the path of its file on this machine."""
        if folder := environ.get(self.folder_variable):
            return Path(folder) / Path(self.file).name
        return Path.home() / self.file


PLACES: Final[Mapping[str, HookPlace]] = {
    place.host: place
    for place in (
        HookPlace(
            host="claude-code",
            file=".claude/settings.json",
            folder_variable="CLAUDE_CONFIG_DIR",
            event="UserPromptSubmit",
        ),
        HookPlace(
            host="codex",
            file=".codex/hooks.json",
            folder_variable="CODEX_HOME",
            event="UserPromptSubmit",
            note="Codex skips a new hook until you trust it: start codex, open /hooks, and trust this one. "
            "Older versions also need codex_hooks = true under [features] in config.toml.",
        ),
        HookPlace(
            host="gemini-cli", file=".gemini/settings.json", event="BeforeAgent", timeout=1000 * SECONDS
        ),
        HookPlace(
            host="cursor",
            file=".cursor/hooks.json",
            event="beforeSubmitPrompt",
            grouped=False,
            needs_version=True,
            note="Cursor takes context at a prompt since some version of 2026, without documenting it.",
        ),
    )
}


def planned(place: HookPlace, file: Path, command: Sequence[str] | None) -> FileChange | None:
    """Return the change that adds our hook, which starts a command, to a file, or with None removes it.

    None is returned if nothing changes.

    Raises:
        EditError: the file cannot be edited in place.
        OSError: it cannot be read.
    """
    before = read_text(file)
    after = _with_hook(place, before, command)
    kept = read_text(kept_copy(file))
    if command is None and kept is not None and before is not None and after != before:
        ours = _command_in(place, before)
        if ours is not None and _with_hook(place, kept, ours) == before:
            after = kept  # nothing else has changed since: back to the same bytes
    return None if after in (before, None) or after is None else FileChange(file, before, after)


def is_ours_alone(place: HookPlace, text: str) -> bool:
    """Return whether a text has our hook and nothing else, so that the file was made for it."""
    command = _command_in(place, text)
    return command is not None and _with_hook(place, None, command) == text


def kept_copy(file: Path) -> Path:
    """Return the place of the copy of a file as it was before the hook."""
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
    """Return the command of our hook in a text; None if there is none."""
    for one in _hooks(place, text):
        hooks = one.get("hooks", [one]) if isinstance(one, dict) else []
        for hook in hooks if isinstance(hooks, list) else ():
            command = hook.get("command") if isinstance(hook, dict) else None
            if isinstance(command, str) and MARK in command:
                return shlex.split(command)
    return None
