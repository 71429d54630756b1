"""The description of a document that gives none: its first heading or its first sentence.

Whichever comes first, since a heading far below says less about the whole than the words at its top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from mcp_context_proxy.catalog.entries import one_line, shorten
from mcp_context_proxy.catalog.fences import with_code_marked

OVERVIEW_LIMIT: Final = 200
"""Characters: one line in a list."""

_LOOKED_AT: Final = 4096
"""Characters of the text in which the first words must be; also bounds the search for comments."""

_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_HEADING: Final = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)[ \t#]*$")
_MARKER: Final = re.compile(r"[ \t]*(?:[>*+-]|[0-9]{1,9}[.)])[ \t]+")
_WORDS: Final = re.compile(r"[^\W_]")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?…؟।])\s|(?<=[。！？])")


def overview(text: str) -> str:
    """One line on what the text is about; empty when it has no words."""
    lines = list(_prose(_COMMENT.sub("", text[:_LOOKED_AT])))
    if not lines:
        return ""
    heading = _HEADING.match(lines[0])
    if heading is not None:
        return shorten(one_line(heading[1]), OVERVIEW_LIMIT)
    paragraph = one_line(" ".join(takewhile(lambda line: line.strip() and not _HEADING.match(line), lines)))
    return shorten(_SENTENCE_END.split(_MARKER.sub("", paragraph, count=1), maxsplit=1)[0], OVERVIEW_LIMIT)


def _prose(text: str) -> Iterator[str]:
    """The lines from the first one with words on, without blocks of code."""
    begun = False
    for line, code in with_code_marked(text.split("\n")):
        begun = begun or (not code and bool(_WORDS.search(line)))
        if begun and not code:
            yield line
