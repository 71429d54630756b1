"""Turns a server or a tool on or off in the configuration file, in place.

One key is changed or added; comments, order and unknown keys stay. The result is read again and compared with
what was meant before it is written, and the file as it was is kept beside it. Running proxies follow the
file. Everything here blocks.
"""

from __future__ import annotations

import copy
import re
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

KEPT_END: Final = ".before-switch"
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
        kept = file.with_name(file.name + KEPT_END)
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
