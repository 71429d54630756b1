"""JSON as hosts write it, with comments and trailing commas, and the line of each key.

Comments and trailing commas become spaces, so that every position stays what a person sees.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from mcp_context_proxy.config.toml_lines import KeyPath

_COMMENT: Final = re.compile(r'("(?:[^"\\\n]|\\.)*+"?)|//[^\n]*+|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA: Final = re.compile(r'("(?:[^"\\\n]|\\.)*+"?)|,(?=\s*+[\]}])')
_VISIBLE: Final = re.compile(r"\S")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++')


def plain_json(text: str) -> str:
    """`text` as strict JSON of the same length."""
    return _TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text))


def _blank(match: re.Match[str]) -> str:
    return match[1] or re.sub(r"[^\n]", " ", match[0])


@dataclass(slots=True)
class JsonLines:
    """Where the keys of a JSON text are."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    """1-based line of each key and array element."""
    duplicates: list[tuple[KeyPath, int]] = field(default_factory=list)
    """Keys given again, with the line of the repetition."""


def json_lines(plain: str) -> JsonLines:
    """The lines of a text that `json.loads` has accepted."""
    found = JsonLines()
    newlines = [match.start() for match in re.finditer("\n", plain)]
    for path, at in _keys(plain):
        line = bisect_right(newlines, at - 1) + 1
        if path in found.lines:
            found.duplicates.append((path, line))
        found.lines[path] = line
    return found


def _keys(plain: str) -> Iterator[tuple[KeyPath, int]]:
    """Each key with its position. `path` is where we are; an index as its last part means: in an array."""
    path: list[str | int] = []
    key_next = False
    for match in _TOKEN.finditer(plain):
        token = match[0]
        if token == "{":
            path.append("")
            key_next = True
        elif token == "[":
            path.append(0)
            yield tuple(path), _next(plain, match.end())
        elif token in "}]" and path:
            path.pop()
            key_next = False
        elif token == "," and path and isinstance(path[-1], int):
            path[-1] += 1
            yield tuple(path), _next(plain, match.end())
        elif token == ",":
            key_next = True
        elif key_next and path:
            path[-1] = _decoded(token)
            key_next = False
            yield tuple(path), match.start()


def _next(plain: str, at: int) -> int:
    found = _VISIBLE.search(plain, at)
    return found.start() if found else at


def _decoded(token: str) -> Any:
    return json.loads(token, strict=False)
