"""Detects keyword stuffing: descriptions that are written to be found, not to describe the tools.

Requests that are copied into descriptions ("I need a flight to Rome. Book me a table.") are nearer to real
requests than any honest description is, whatever the tools do. Two things give such a server away: its
descriptions speak as a user does, or the names of its tools have nothing to do with them. Its claims may be
true all the same, so it is searched, but its tools come after those of others (`engine`). Requests in the
third person, or in other languages under names that are made to go with them, are not detected.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from mcp_context_proxy.items import Item, Tool
from mcp_context_proxy.retrieval.item_metadata import DESCRIPTION_LIMIT, NAME_LIMIT
from mcp_context_proxy.retrieval.text import STOP_WORDS, identifier_words, stem

Suspicion: TypeAlias = Literal["requests", "names"]
"""``requests``: the descriptions speak as a user does; ``names``: names and descriptions have no words in
common."""

ASKING_SHARE = 1 / 5
"""Share of the sentences of a server that are requests. Of 2,255 honest servers none that has `FEWEST_ASKING`
reaches 1/100; servers made of the queries of public sets have 1/4 or more, but for one set of mere orders."""

FEWEST_ASKING = 10
"""Requests that a server must have: a few may be examples."""

NAMED_SHARE = 1 / 4
"""Share of the described tools of a server that have a word of their name in the description. Honest servers
with `FEWEST_TOOLS` have 2/3 or more; tools that are called ``helper_17`` and the like have none."""

FEWEST_TOOLS = 5
"""Described tools: of four, chance or one odd name may decide."""

SHORTEST_WORD = 3
"""Letters of a word of a name that counts: shorter ones are found in every text."""

BEGINNING = 6
"""First letters of a word that are compared: a translator translates, and a calculator calculates."""

ENGLISH_SHARE = 1 / 80
"""Share of descriptions, by letters, that are words of `_ENGLISH`, from which on they count as English: names
are English nearly always, and can only be looked for in English. Honest descriptions in English have 1/60 and
more, a heap of the words of requests 1/50, and Chinese with names of products 1/170."""

LETTERS_A_WORD = 5
"""About as many as an English word has: scripts without spaces have no words that could be counted."""

_COMMON = (
    "about and could from into need please should that the their there this what when where which with would "
    "you your"
)
_ENGLISH = frozenset(_COMMON.split())
"""Words that nearly every English description has, and no other language."""
_SENTENCE = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|\n\s*|;\s+")
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_ASKING = (re.compile(r"I(?=[ '’][a-z])(?<=\bI)"), re.compile(r"me\b(?<=[\s\"'(“‘]me)(?![-/])"))
"""The words I and me, but not World War I, I/O or /users/me. The patterns begin with the letters, which is
ten times as fast: every description is searched."""
_QUOTED = re.compile(r"(?<=[\s(])(?:\"[^\"]*+\"|“[^“”]*+”|'[^']*+'(?!\w))")
"""A quotation within a sentence; not a sentence that is nothing else. It holds no quotation mark that may
begin one: a heap of marks that are never closed is then read once, and not again from each of them."""


def suspicion(items: Sequence[Item]) -> Suspicion | None:
    """Return why the descriptions of the tools of a server are suspected; None where they are not."""
    tools = [item for item in items if isinstance(item, Tool)]
    texts = [tool.description[:DESCRIPTION_LIMIT] for tool in tools]
    asking = [sentence for text in texts if _asks(text) for sentence in _sentences(text) if _asks(sentence)]
    requests = sum(_asks(_QUOTED.sub("", sentence)) for sentence in asking)
    if requests >= FEWEST_ASKING and requests >= ASKING_SHARE * sum(len(_sentences(text)) for text in texts):
        return "requests"
    described = [(tool.name, text) for tool, text in zip(tools, texts, strict=True) if _LETTER.search(text)]
    return None if _names_match(described) else "names"


def suspected(servers: Mapping[str, Suspicion | None]) -> dict[str, Suspicion]:
    """Return the servers whose tools come after others: the suspected ones, or none where all are."""
    found = {key: why for key, why in servers.items() if why is not None}
    return found if len(found) < len(servers) else {}


def _asks(text: str) -> bool:
    return any(words.search(text) for words in _ASKING)


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE.split(text) if _LETTER.search(sentence)]


def _names_match(described: Sequence[tuple[str, str]]) -> bool:
    """Return whether names and descriptions, given in pairs, have words in common, as far as can be told."""
    if len(described) < FEWEST_TOOLS:
        return True
    names = [_beginnings(name) for name, _ in described]
    occurrences = Counter(word for own in names for word in own)
    enough = NAMED_SHARE * len(described)
    found = 0
    for own, (_, text) in zip(names, described, strict=True):
        # A word that most names of a server have in common says nothing of any of its tools.
        distinctive = [word for word in own if 2 * occurrences[word] <= len(described)]
        found += _has_word(text.lower(), distinctive)
        if found >= enough:
            return True
    # Names can only be looked for in descriptions that are in English.
    words = Counter(word for _, text in described for word in _WORD.findall(text.lower()))
    letters = sum(len(word) * number for word, number in words.items())
    return LETTERS_A_WORD * sum(words[word] for word in _ENGLISH) < ENGLISH_SHARE * letters


def _beginnings(name: str) -> set[str]:
    words = (word for word in identifier_words(name[:NAME_LIMIT]).split() if word.isalpha())
    return {stem(word)[:BEGINNING] for word in words if len(word) >= SHORTEST_WORD and word not in STOP_WORDS}


def _has_word(text: str, beginnings: Sequence[str]) -> bool:
    """Return whether any word of a text begins with one of some beginnings."""
    for beginning in beginnings:
        at = text.find(beginning)
        while at > 0 and text[at - 1].isalpha():
            at = text.find(beginning, at + 1)
        if at >= 0:
            return True
    return False
