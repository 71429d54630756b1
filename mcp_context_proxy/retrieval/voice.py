"""Whose voice the descriptions of a server are in: of who says what its tools do, or of who wants it done.

Requests that are copied into descriptions ("I need a flight to Rome. Show me my notes.") are nearer to what
people ask than any honest description is, whatever the tools do. Of a server that has many of them nothing
but names is searched (`text`), so that what it says counts neither for it nor for how rare words are. This
finds what was copied: no requests without "I" and "me", in the third person or in other languages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcp_context_proxy.items import Item, Tool
from mcp_context_proxy.retrieval.text import DESCRIPTION_LIMIT

ASKING_SHARE = 1 / 5
"""Of the sentences of a server. Of 2,255 honest ones that have `FEWEST` none has more than 1/100; of those
made of what is asked in public sets all have 1/4 or more, but for the set that does nothing but order."""

FEWEST = 10
"""Sentences: a few are an example, or somebody's own server that is described as he speaks."""

_SENTENCE = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|\n\s*|;\s+")
_LETTER = re.compile(r"[^\W\d_]")
_ASKING = (re.compile(r"I(?=[ '’][a-z])(?<=\bI)"), re.compile(r"me\b(?<=[\s\"'(“‘]me)(?![-/])"))
"""Not World War I, I/O or /users/me. The letters come first, which is ten times as fast: every description is
looked through."""
_QUOTED = re.compile(r"(?<=[\s(])(?:\"[^\"]*\"|“[^”]*”|'[^']*'(?!\w))")
"""What a sentence says that somebody may say; not a sentence that is nothing else."""


def is_asking(items: Sequence[Item]) -> bool:
    """Whether the descriptions of the tools of a server are in the voice of who asks."""
    texts = [item.description[:DESCRIPTION_LIMIT] for item in items if isinstance(item, Tool)]
    suspected = (
        sentence for text in texts if _asks(text) for sentence in _sentences(text) if _asks(sentence)
    )
    asking = sum(_asks(_QUOTED.sub("", sentence)) for sentence in suspected)
    return asking >= FEWEST and asking >= ASKING_SHARE * sum(len(_sentences(text)) for text in texts)


def _asks(text: str) -> bool:
    return any(words.search(text) for words in _ASKING)


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE.split(text) if _LETTER.search(sentence)]
