"""On which line each key of a TOML text stands; `tomllib` does not tell.

Only for text that `tomllib` has accepted: it reads structure and skips values. On anything it does not
know it stops and returns what it has, because a missing line number must never become a failure.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from contextlib import suppress
from typing import Final, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""``("servers", "github", "args", 0)``."""

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE: Final = re.compile(r"[ \t]*")
_KEY: Final = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING: Final = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""(?:"{0,2})|\'\'\'.*?\'\'\'(?:'{0,2})|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\'''', re.DOTALL
)
_SCALAR: Final = re.compile(r"[^,\]}#\n]+")


def toml_lines(text: str) -> dict[KeyPath, int]:
    """The 1-based line of each table, key and array element."""
    scanner = _Scanner(text)
    with suppress(_UnknownError, ValueError, RecursionError):
        scanner.run()
    return scanner.lines


class _UnknownError(Exception):
    """Something that is not the TOML this scanner knows."""


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._counts: dict[KeyPath, int] = {}

    def run(self) -> None:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self) -> KeyPath:
        start, repeated = self.at, self.text.startswith("[[", self.at)
        self.at += 2 if repeated else 1
        parts = self._key()
        self._expect("]]" if repeated else "]")
        path: KeyPath = ()
        for part in parts[:-1]:
            path = self._element((*path, part))
            self._note(path, start)
        path = (*path, parts[-1])
        if repeated:
            self._note(path, start)
            self._counts[path] = self._counts.get(path, 0) + 1
        path = self._element(path)
        self._note(path, start)
        return path

    def _element(self, path: KeyPath) -> KeyPath:
        """In an array of tables a name means its latest element."""
        count = self._counts.get(path, 0)
        return (*path, count - 1) if count else path

    def _pair(self, table: KeyPath) -> None:
        start, path = self.at, table
        for part in self._key():
            path = (*path, part)
            self._note(path, start)
        self._expect("=")
        self._skip(_SPACE)
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(_SPACE)
            parts.append(_plain(self._take(_KEY)))
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return parts
            self.at += 1

    def _value(self, path: KeyPath) -> None:
        first = self.text[self.at : self.at + 1]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        elif first and first in "\"'":
            self._take(_STRING)
        else:
            self._take(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while not self._closed("]"):
            self._note((*path, index), self.at)
            self._value((*path, index))
            self._separator()
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while not self._closed("}"):
            self._pair(path)
            self._separator()

    def _closed(self, bracket: str) -> bool:
        self._skip(_BLANK)
        if not self.text.startswith(bracket, self.at):
            return False
        self.at += 1
        return True

    def _separator(self) -> None:
        self._skip(_BLANK)
        if self.text.startswith(",", self.at):
            self.at += 1

    def _expect(self, token: str) -> None:
        self._skip(_SPACE)
        if not self.text.startswith(token, self.at):
            raise _UnknownError
        self.at += len(token)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _UnknownError
        self.at = match.end()
        return match[0]

    def _note(self, path: KeyPath, at: int) -> None:
        self.lines.setdefault(path, bisect_right(self._newlines, at - 1) + 1)


def _plain(key: str) -> str:
    if key[0] == "'":
        return key[1:-1]
    return str(tomllib.loads(f"key = {key}")["key"]) if key[0] == '"' else key
