"""Servers whose descriptions may be stuffed: made to be found, and not to tell what their tools do.

Requests that are copied into descriptions ("I need a flight to Rome. Book me a table.") are nearer to what
people ask than any honest description is, whatever the tools do. Two things give such a server away: its
descriptions are in the voice of who asks, or the names of its tools have nothing to do with them. What it
says may be true all the same, so it is searched; but its tools come after those of others (`precedence`). Not
found are requests in the third person or in other languages under names that are made to go with them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from mcp_context_proxy.items import Item, Tool
from mcp_context_proxy.retrieval.terms import STOP_WORDS, identifier_words, stem
from mcp_context_proxy.retrieval.text import DESCRIPTION_LIMIT

Suspicion: TypeAlias = Literal["requests", "names"]
"""``requests``: the descriptions are in the voice of who asks; ``names``: the names do not bear them out."""

ASKING_SHARE = 1 / 5
"""Of the sentences of a server. Of 2,255 honest servers none that has `FEWEST_ASKING` reaches 1/100; of those
made of what is asked in public sets all have 1/4 or more, but for the set that does nothing but order."""

FEWEST_ASKING = 10
"""Sentences: a few are an example, or somebody's own server that is described as he speaks."""

NAMED_SHARE = 1 / 4
"""Of the described tools of a server that have a word of their name in the description. Of the honest ones
with `FEWEST_TOOLS` all have 2/3 or more; tools that are called ``helper_17`` and the like have none."""

FEWEST_TOOLS = 5
"""Described tools: of four, chance or one odd name may decide."""

SHORTEST_WORD = 3
"""Letters of a word of a name that counts: shorter ones are found in every text."""

BEGINNING = 6
"""Letters of a word that are compared: a translator translates, and a calculator calculates."""

ENGLISH_SHARE = 1 / 80
"""Of descriptions, by letters, that is `_ENGLISH`, from which on names can be looked for in them: names are
English nearly always. What tools say in English has 1/60 and more, a heap of the words of requests 1/50, and
Chinese that names products 1/170."""

LETTERS_A_WORD = 5
"""About as many as an English word has: scripts without spaces have no words that could be counted."""

_COMMON = (
    "about and could from into need please should that the their there this what when where which with would "
    "you your"
)
_ENGLISH = frozenset(_COMMON.split())
"""Words that hardly any description in English does without, and no other language has."""
_SENTENCE = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|\n\s*|;\s+")
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_ASKING = (re.compile(r"I(?=[ '’][a-z])(?<=\bI)"), re.compile(r"me\b(?<=[\s\"'(“‘]me)(?![-/])"))
"""Not World War I, I/O or /users/me. The letters come first, which is ten times as fast: every description is
looked through."""
_QUOTED = re.compile(r"(?<=[\s(])(?:\"[^\"]*\"|“[^”]*”|'[^']*'(?!\w))")
"""What a sentence says that somebody may say; not a sentence that is nothing else."""


def suspicion(items: Sequence[Item]) -> Suspicion | None:
    """Why the descriptions of the tools of a server are suspected; None where they are not."""
    tools = [item for item in items if isinstance(item, Tool)]
    texts = [tool.description[:DESCRIPTION_LIMIT] for tool in tools]
    if _are_requests(texts):
        return "requests"
    described = [(tool.name, text) for tool, text in zip(tools, texts, strict=True) if _LETTER.search(text)]
    return None if _are_borne_out(described) else "names"


def suspected(servers: Mapping[str, Suspicion | None]) -> dict[str, Suspicion]:
    """Those of some servers that come after others: none where there is no other."""
    found = {key: why for key, why in servers.items() if why is not None}
    return found if len(found) < len(servers) else {}


def _are_requests(texts: Sequence[str]) -> bool:
    """Whether descriptions are in the voice of who asks."""
    suspected = (
        sentence for text in texts if _asks(text) for sentence in _sentences(text) if _asks(sentence)
    )
    asking = sum(_asks(_QUOTED.sub("", sentence)) for sentence in suspected)
    return asking >= FEWEST_ASKING and asking >= ASKING_SHARE * sum(len(_sentences(text)) for text in texts)


def _asks(text: str) -> bool:
    return any(words.search(text) for words in _ASKING)


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE.split(text) if _LETTER.search(sentence)]


def _are_borne_out(described: Sequence[tuple[str, str]]) -> bool:
    """Whether names and descriptions, given in pairs, have to do with each other, as far as can be told."""
    if len(described) < FEWEST_TOOLS:
        return True
    words = [_telling(name) for name, _ in described]
    named = Counter(word for of_one in words for word in of_one)
    enough = NAMED_SHARE * len(described)
    found = 0
    for of_one, (_, text) in zip(words, described, strict=True):
        # What most names of a server have in common tells nothing of any of its tools.
        telling = [word for word in of_one if 2 * named[word] <= len(described)]
        found += _has_any(text.lower(), telling)
        if found >= enough:
            return True
    return not _is_english([text for _, text in described])


def _telling(name: str) -> set[str]:
    words = (word for word in identifier_words(name).split() if word.isalpha() and word not in STOP_WORDS)
    return {stem(word)[:BEGINNING] for word in words if len(word) >= SHORTEST_WORD}


def _has_any(text: str, beginnings: Sequence[str]) -> bool:
    """Whether any word of a text begins in one of some ways."""
    for beginning in beginnings:
        at = text.find(beginning)
        while at > 0 and text[at - 1].isalpha():
            at = text.find(beginning, at + 1)
        if at >= 0:
            return True
    return False


def _is_english(texts: Sequence[str]) -> bool:
    words = Counter(word for text in texts for word in _WORD.findall(text.lower()))
    letters = sum(len(word) * number for word, number in words.items())
    return LETTERS_A_WORD * sum(words[word] for word in _ENGLISH) >= ENGLISH_SHARE * letters
