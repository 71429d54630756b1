"""Prompt hooks in hosts' settings, and servers and tools turned on and off: one key, in place.

docs/hooks.md has the source of each form.

One key is changed or added; comments, order and unknown keys stay. The result is read again and compared with
what was meant before it is written, and the file as it was is kept beside it. Running proxies follow the
file. Everything here blocks.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from mcp_context_proxy.catalog.names import turned_off_by
from mcp_context_proxy.config import load
from mcp_context_proxy.config.hosts import servers_place
from mcp_context_proxy.config.source import parse, toml_lines
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.installation.editing import (
    EditError,
    edited,
    entries,
    toml_header,
    toml_table,
)
from mcp_context_proxy.installation.journal import read_text, write
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

_KEY: Final = re.compile(r"^(\s*enabled\s*=\s*)(true|false)\b")
_ROW: Final = re.compile(r"[^\n]*\n|[^\n]+")


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

    Raises:
        EditError: the file cannot be edited in place, or has no such server; it is then as before.
        OSError: it cannot be read or written.
    """
    text = read_text(file)
    if text is None:
        raise EditError(f"{file} does not exist")
    source = parse(file, text.removeprefix("\ufeff").replace("\r\n", "\n"))
    if source.of_host:
        after = _in_host_file(file, text, source.tables, server, tool, enabled)
    else:
        after = _in_toml(text, source.tables, server, tool, enabled)
    if after != text:
        kept = file.with_name(file.name + KEPT_OF_SWITCHES)
        write(FileChange(kept, read_text(kept), text), private=True)
        write(FileChange(file, text, after))
    return Switched(server, tool, enabled, str(file), after != text, _still_off(file, server, tool, enabled))


def _still_off(file: Path, server: str, tool: str | None, enabled: bool) -> str | None:
    """Return a sentence about what turns off a tool that was just turned on."""
    if not enabled or tool is None:
        return None
    try:
        config = load(file, warn=lambda _text: None).servers.get(server)
    except ConfigError:
        return None
    if config is None:
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
    bom, body = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    crlf = "\r\n" in body
    after = _with_key(body.replace("\r\n", "\n"), path, "true" if enabled else "false")
    try:
        got = parse(Path("config.toml"), after).tables
    except ConfigError:
        got = None
    if got != wanted:
        raise EditError(f"{'.'.join(path)} is written in a form that cannot be edited in place")
    return bom + (after.replace("\n", "\r\n") if crlf else after)


def _with_key(text: str, path: tuple[str, ...], value: str) -> str:
    """Return a TOML text with ``enabled`` in the table at a path."""
    lines, rows = toml_lines(text), _ROW.findall(text)
    line = lines.get((*path, "enabled"))
    if line is not None:
        rows[line - 1] = _KEY.sub(rf"\g<1>{value}", rows[line - 1])
        return "".join(rows)
    header = next((number for number, row in enumerate(rows) if toml_header(row) == path), None)
    if header is not None and lines.get(path) is not None:
        rows[header] = rows[header].rstrip("\n") + f"\nenabled = {value}\n"
        return "".join(rows)
    return text.rstrip("\n") + "\n\n" + toml_table(path, {"enabled": value == "true"})


def _in_host_file(file: Path, text: str, tables: Any, server: str, tool: str | None, enabled: bool) -> str:
    place = servers_place(tables)
    if file.suffix.lower() not in {".json", ".jsonc"} or place is None:
        raise EditError(f"{file} is a host's file; turn it on or off in the host")
    found = entries("json", text, place).get(server)
    if not isinstance(found, dict):
        raise EditError(f"there is no server {server} in {file}")
    entry = {key: value for key, value in found.items() if key not in {"enabled", "disabled"}}
    if tool is None:
        if (found.get("enabled") is False or found.get("disabled") is True) is not enabled:
            return text
        entry |= {} if enabled else {"disabled": True}
    else:
        denied = [name for name in found.get("disabledTools", []) if name != tool]
        entry = dict(found) | {"disabledTools": denied if enabled else [*denied, tool]}
        if entry == found or (enabled and "disabledTools" not in found):
            return text
    return edited("json", text, place, [], {server: entry})
