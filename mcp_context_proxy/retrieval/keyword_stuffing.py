"""Detects keyword stuffing: descriptions that are written to be found, not to describe the tools.

Requests that are copied into descriptions ("I need a flight to Rome. Book me a table.") are nearer to real
requests than any honest description is, whatever the tools do. Two things give such a server away: its
descriptions speak as a user does, or the names of its tools have nothing to do with them. Its claims may be
true all the same, so it is searched, but its tools come after those of others (`engine`). Requests in the
third person, or in other languages under names that are made to go with them, are not detected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

from msgspec import Struct

from mcp_context_proxy.items import Item, Tool
from mcp_context_proxy.retrieval.item_metadata import DESCRIPTION_LIMIT, NAME_LIMIT, title_of
from mcp_context_proxy.retrieval.text import STOP_WORDS, identifier_words, stem
from mcp_context_proxy.system.later import NDArray, np, pattern

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
"""Descriptions that differ in more than their numbers: of four, chance or one odd name may decide. Tools such
as ``relay_1`` to ``relay_8`` say the same, and claim no more than one of them would."""

SHORTEST_WORD = 3
"""Letters of a word of a name that counts: shorter ones are found in every text."""

BEGINNING = 6
"""First letters of a word that are compared: a translator translates, and a calculator calculates."""

WORDS_KEPT = 4_096
"""Words of names whose beginning is cached: most names are made of the same ones."""

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
_SENTENCE = pattern(r"[.!?…;\n](?:(?<=\n)\s*|(?<=[.!?…])[\"')\]]*\s+|(?<=;)\s+)")
"""The end of a sentence. The pattern begins with its characters, which is four times as fast."""
_LETTER = pattern(r"[^\W\d_]")
_WORD = pattern(r"[^\W\d_]+")
_NUMBER = pattern(r"\d+")
_ASKING = (pattern(r"I(?=[ '’][a-z])(?<=\bI)"), pattern(r"me\b(?<=[\s\"'(“‘]me)(?![-/])"))
"""The words I and me, but not World War I, I/O or /users/me. The patterns begin with the letters, which is
ten times as fast: every description is searched."""
_QUOTED = pattern(r"(?<=[\s(])(?:\"[^\"]*+\"|“[^“”]*+”|'[^']*+'(?!\w))")
"""A quotation within a sentence; not a sentence that is nothing else. It holds no quotation mark that may
begin one: a heap of marks that are never closed is then read once, and not again from each of them."""


class Evidence(Struct, frozen=True, eq=False):
    """Counts in the descriptions and names of some items, in their order; a list may be read in parts."""

    sentences: NDArray[np.int32]
    """[items, 2]: number of sentences of each description, and how many of them are requests."""
    described: NDArray[np.int64]
    """Hash of each description without its numbers; 0 where it has no letter."""
    letters: NDArray[np.int32]
    """[items, 2]: number of letters of each description, and how many of its words are `_ENGLISH`; zeros
    where a word of the name is found in it."""
    names: NDArray[np.int64]
    """Hashes of the beginnings of the words in the names, item by item."""
    name_counts: NDArray[np.int64]
    """Number of these of each item."""
    is_found: NDArray[np.bool_]
    """True for each of ``names`` that the description has, too."""

    @classmethod
    def of(cls, items: Sequence[Item], titles: Sequence[str]) -> Evidence:
        """Read tools with their titles; other items have no evidence."""
        sentences, letters = list[tuple[int, int]](), list[tuple[int, int]]()
        names, counts, found = list[int](), list[int](), list[bool]()
        described = list[int]()
        for item, title in zip(items, titles, strict=True):
            text = item.description[:DESCRIPTION_LIMIT] if isinstance(item, Tool) else ""
            parts, of_title = _sentences(text), _sentences(title)
            asking = (_requests(one) for one in (*parts, *of_title))
            sentences.append((len(parts) + len(of_title), sum(asking) if _asks(f"{text} {title}") else 0))
            described.append(hash(_NUMBER.sub("", text)) if parts else 0)
            lower, own = text.lower(), _beginnings(item.name) if parts else set()
            own_found = [_has_word(lower, word) for word in own]
            names += map(hash, own)
            counts.append(len(own))
            found += own_found
            words = [] if any(own_found) else _WORD.findall(lower)
            letters.append((sum(map(len, words)), sum(map(_ENGLISH.__contains__, words))))
        return cls(
            np.array(sentences, np.int32).reshape(-1, 2),
            np.array(described, np.int64),
            np.array(letters, np.int32).reshape(-1, 2),
            np.array(names, np.int64),
            np.array(counts, np.int64),
            np.array(found, np.bool_),
        )

    @classmethod
    def joined(cls, parts: Sequence[Evidence]) -> Evidence:
        return cls(
            np.concatenate([np.zeros((0, 2), np.int32), *(one.sentences for one in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(one.described for one in parts)]),
            np.concatenate([np.zeros((0, 2), np.int32), *(one.letters for one in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(one.names for one in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(one.name_counts for one in parts)]),
            np.concatenate([np.zeros(0, np.bool_), *(one.is_found for one in parts)]),
        )

    def take(self, places: NDArray[np.int64]) -> Evidence:
        """Return the same of some of the items, in this order."""
        counts, ends = self.name_counts[places], np.cumsum(self.name_counts)
        shift = np.repeat(ends[places] - np.cumsum(counts), counts)
        at = np.arange(counts.sum()) + shift
        return Evidence(
            self.sentences[places],
            self.described[places],
            self.letters[places],
            self.names[at],
            counts,
            self.is_found[at],
        )

    def suspicion(self) -> Suspicion | None:
        """Return why these descriptions are suspected; None where they are not."""
        sentences, requests = self.sentences.sum(axis=0, dtype=np.int64).tolist()
        if requests >= FEWEST_ASKING and requests >= ASKING_SHARE * sentences:
            return "requests"
        return None if self._names_match() else "names"

    def _names_match(self) -> bool:
        """Return whether names and descriptions have words in common, as far as can be told."""
        # Of names such as "ls" and "mv" nothing can be told.
        judged = self.described[(self.described != 0) & (self.name_counts > 0)]
        if len(set(judged.tolist())) < FEWEST_TOOLS:
            return True
        number = judged.size
        tools = np.repeat(np.arange(self.described.size), self.name_counts)
        _, which, occurrences = np.unique(self.names, return_inverse=True, return_counts=True)
        # A word that most names of a server have in common says nothing of any of its tools.
        is_distinctive = 2 * occurrences[which] <= number
        # Counted without `np.unique`, which imports masked arrays for it: 16 ms of the first search.
        named = np.count_nonzero(np.bincount(tools[self.is_found & is_distinctive]))
        if named >= NAMED_SHARE * number:
            return True
        # Names can only be looked for in descriptions that are in English.
        letters, english = self.letters.sum(axis=0, dtype=np.int64).tolist()
        return bool(LETTERS_A_WORD * english < ENGLISH_SHARE * letters)


def suspicion(items: Sequence[Item]) -> Suspicion | None:
    """Return why the descriptions of the tools of a server are suspected; None where they are not."""
    if is_trusted(items):
        return None
    return Evidence.of(items, [title_of(one) if isinstance(one, Tool) else "" for one in items]).suspicion()


def is_trusted(items: Sequence[Item]) -> bool:
    """Return whether the configuration trusts the server that some tools belong to."""
    return any(isinstance(item, Tool) and item.trusted for item in items[:1])


def suspected(servers: Mapping[str, Suspicion | None]) -> dict[str, Suspicion]:
    """Return the servers whose tools come after others: the suspected ones, or none where all are."""
    found = {key: why for key, why in servers.items() if why is not None}
    return found if len(found) < len(servers) else {}


def _asks(text: str) -> bool:
    return any(words.search(text) for words in _ASKING)


def _requests(sentence: str) -> bool:
    return _asks(sentence) and _asks(_QUOTED.sub("", sentence))


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE.split(text) if _LETTER.search(sentence)]


def _beginnings(name: str) -> set[str]:
    return {_beginning(word) for word in identifier_words(name[:NAME_LIMIT]).split()} - {""}


@lru_cache(maxsize=WORDS_KEPT)
def _beginning(word: str) -> str:
    """Return the beginning of a word of a name; nothing of one that does not count."""
    counts = word.isalpha() and len(word) >= SHORTEST_WORD and word not in STOP_WORDS
    return stem(word)[:BEGINNING] if counts else ""


def _has_word(text: str, beginning: str) -> bool:
    """Return whether any word of a text begins with some letters."""
    at = text.find(beginning)
    while at > 0 and text[at - 1].isalpha():
        at = text.find(beginning, at + 1)
    return at >= 0
