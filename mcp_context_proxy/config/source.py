"""One configuration file as it stands: read within bounds, parsed, and able to say where a key is."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from mcp_context_proxy.config.json_text import json_lines, plain_json
from mcp_context_proxy.config.toml_lines import KeyPath, toml_lines
from mcp_context_proxy.errors import ConfigError, ConfigProblem

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of a configuration file. A host's settings file also holds histories and grows to many megabytes."""
TRUST_VARIABLE: Final = "MCP_CONTEXT_PROXY_TRUST_CONFIG"
"""Says that others may change the configuration: for a volume that shows rights and owners of its own."""
_JSON_SUFFIXES: Final = frozenset({".json", ".jsonc", ".code-workspace"})
_POSITION: Final = re.compile(
    r"^(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$"
)
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Source:
    """The tables of one file, before anything about their content is known."""

    file: Path
    tables: Mapping[str, Any]
    is_json: bool
    lines: Callable[[], Mapping[KeyPath, int]]
    """Computed when the first problem asks for it: a good file never pays."""
    origins: dict[KeyPath, KeyPath] = field(default_factory=dict)
    """Where a table stands in the file, when it was taken from another place (hosts' JSON)."""
    duplicates: tuple[tuple[KeyPath, int], ...] = ()
    """Keys given more than once, with the line of the repetition."""

    def problem(self, path: KeyPath, message: str) -> ConfigProblem:
        """A mistake at `path`, with the line of the nearest key that is in the file."""
        written = self.written(path)
        return ConfigProblem(self.file, self._line(written), dotted(written), message)

    def written(self, path: KeyPath) -> KeyPath:
        """The path a person finds in the file."""
        for size in range(len(path), 0, -1):
            if path[:size] in self.origins:
                return self.origins[path[:size]] + path[size:]
        return path

    def _line(self, path: KeyPath) -> int | None:
        lines = self.lines()
        return next((lines[path[:size]] for size in range(len(path), 0, -1) if path[:size] in lines), None)


def dotted(path: KeyPath) -> str:
    """A path as a person writes it: ``servers.github.args[0]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (
                part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
            )
    return text


def read(file: Path) -> Source:
    """Read and parse `file`.

    Raises:
        ConfigError: it cannot be read or is not TOML or JSON.
    """
    text = _text(file)
    is_json = file.suffix.lower() in _JSON_SUFFIXES or (
        file.suffix.lower() != ".toml" and text.lstrip().startswith("{")
    )
    return _parse_json(file, text) if is_json else _parse_toml(file, text)


def changeable_by_others(file: Path, environ: Mapping[str, str]) -> list[ConfigProblem]:
    """Problems if others may write or replace `file`: they could run programs as its reader."""
    if os.name != "posix" or environ.get(TRUST_VARIABLE):
        return []
    try:
        status, folders = file.stat(), {file.parent, file.resolve().parent}
        if not stat.S_ISREG(status.st_mode):
            return []
        messages = [*_of_file(file, status), *_of_folders(folders)]
    except (OSError, RuntimeError):  # gone since it was read: nobody can change it now
        return []
    otherwise = f", or set {TRUST_VARIABLE}=1 if that is meant to be so"
    return [ConfigProblem(file, None, "", message + otherwise) for message in messages]


def _of_file(file: Path, status: os.stat_result) -> Iterator[str]:
    if status.st_mode & stat.S_IWOTH:
        yield f"everyone on this machine may change it, and so run programs as you; run: chmod o-w '{file}'"
    if status.st_uid not in (0, os.geteuid()):
        yield (
            f"it belongs to another user (id {status.st_uid}), who could run programs as you by it; "
            f"run: sudo chown $(id -u) '{file}'"
        )


def _of_folders(folders: Iterable[Path]) -> Iterator[str]:
    for folder in sorted(folders):
        mode = folder.stat().st_mode
        # With the sticky bit, as that of /tmp, only its owner may replace a file.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            yield (
                "everyone on this machine may put another file in its place, and so run programs as you; "
                f"run: chmod o-w '{folder}'"
            )


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _failure(file, None, f"cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise _failure(file, None, f"is larger than {MAX_BYTES // 1024**2} MiB")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _failure(file, line, "is not UTF-8 text; save it with that encoding") from None


def _parse_toml(file: Path, text: str) -> Source:
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise _failure(file, None, "is nested too deeply") from None
    except ValueError as error:
        raise _toml_failure(file, text, str(error)) from None
    return Source(file, tables, False, cache(lambda: toml_lines(text)))


def _toml_failure(file: Path, text: str, message: str) -> ConfigError:
    found = _POSITION.match(message)
    if found is None:
        return _failure(file, None, f"is not valid TOML: {message}")
    rows = text.split("\n")
    number = int(found["line"]) if found["line"] else len(rows)
    what, row = found["what"], rows[number - 1] if number <= len(rows) else ""
    if what.startswith(("Cannot overwrite", "Cannot declare", "Duplicate inline table key")):
        key = row.split("=")[0].strip().strip("[]").strip()
        return _failure(file, number, "is given twice; keep one of them", key)
    return _failure(
        file,
        number,
        f"is not valid TOML: {what}" + (f" (column {found['column']})" if found["column"] else ""),
    )


def _parse_json(file: Path, text: str) -> Source:
    plain = plain_json(text)
    repeated: list[str] = []

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) < len(pairs):
            repeated.append("")
        return keys

    try:
        tables = json.loads(plain, object_pairs_hook=table)
    except RecursionError:
        raise _failure(file, None, "is nested too deeply") from None
    except json.JSONDecodeError as error:
        message = f"is not valid JSON: {error.msg} (column {error.colno})"
        raise _failure(file, error.lineno, message) from None
    except ValueError as error:
        raise _failure(file, None, f"is not valid JSON: {error}") from None
    if not isinstance(tables, dict):
        raise _failure(file, 1, "must hold a JSON object")
    found = cache(lambda: json_lines(plain))
    return Source(
        file, tables, True, lambda: found().lines, duplicates=tuple(found().duplicates) if repeated else ()
    )


def _failure(file: Path, line: int | None, message: str, key: str = "") -> ConfigError:
    return ConfigError([ConfigProblem(file, line, key, message)])
