"""Which lines of markdown are code between fences; a ``#`` there begins a comment, not a section."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_FENCE: Final = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)", re.DOTALL)
"""At any depth: the blocks of a list are indented with it."""


def with_code_marked(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a fenced block; the fences do."""
    opening = ""
    for line in lines:
        fence = _FENCE.match(line)
        if not opening:
            opening = fence[1] if fence else ""
            yield line, bool(opening)
            continue
        yield line, True
        if fence and fence[1].startswith(opening) and not fence[2].strip():
            opening = ""
