"""Corrects words that are spelled wrong, by the words of the catalog and by packaged words.

Only words that nobody knows come here. The distance is that of optimal string alignment: an
insertion, a deletion, a substitution or a swap of neighbours counts one (Damerau, "A technique for computer
detection and correction of spelling errors", CACM 1964).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_context_proxy.system.later import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


SHORTEST = 4
"""Letters of the shortest word that is corrected: a shorter one has too many neighbours."""

LONGEST = 24
"""Letters of the longest word that is corrected."""

TWO_ERRORS_FROM = 7
"""Letters from which on a word may have two errors."""

WORDS_COMPARED = 50_000
"""Words of a list that are compared: a comparison of so many takes some 5 ms. The names of 1,000 tools have
about 900 words."""

CANDIDATES = 500
"""Words whose errors are counted for one that is misspelled, 0.05 ms each: of real lists, some 20 have nearly
the same letters; a hostile one could have only such."""

VOWELS = frozenset("aeiouy")

SHORTEST_PART = 3
"""Letters of the shorter of two words that are written as one."""

SHORT = 4
"""Letters up to which a word is only corrected by a swap or a missing letter: others are rather short for
something ("proj", "incl")."""

_ENDINGS = """
able ably ible er ers or ors al ally ive ively ness ment ments ful fully less ise ize ised ized ises izes
ising izing isation ization ist ists ity ism ish ling ler led like wise ward
"""
ENDINGS = frozenset(_ENDINGS.split())
"""Endings that make new words of known ones: "scalable", "footer"."""

SHORTEST_BASE = 4
"""Letters of the shortest word that another one is derived from."""

WORDS = Path(__file__).with_name("words.txt")
"""Words that a misspelled word may have meant, the most likely first: words of tools, then frequent English
ones. ``scripts/build_words.py`` writes them."""


LIKELY = 10_000
"""Words of the file that a misspelled one may have meant. A word that nobody knows and that is near to a
rarer one, as "forex" is to "fore", is rather a new word."""


class WordList:
    """Words, the most likely first, among which the nearest to a misspelled one is found."""

    def __init__(self, words: Iterable[str]) -> None:
        """Keep the words that are plain letters and of a length that is compared."""
        plain = (word for word in words if word.isascii() and word.isalpha() and word.islower())
        self._words = [word for word in plain if SHORTEST - 1 <= len(word) <= LONGEST + 2][:WORDS_COMPARED]
        self.known = frozenset(self._words)
        """The words that are compared."""
        self._lengths = np.array([len(word) for word in self._words], np.int16)
        self._letters = _letter_counts(self._words)

    def nearest(self, word: str, most: int = 2) -> tuple[str, int] | None:
        """Return the nearest word within one or two errors, with their number; of equals the first."""
        if not self._words:
            return None
        allowed = min(most, 2 if len(word) >= TWO_ERRORS_FROM else 1)
        # An error changes the counts of letters by two at most (a substitution), so one comparison of arrays
        # leaves out most words.
        away = np.abs(self._letters - _letter_counts([word])).sum(axis=1, dtype=np.int16)
        near = (away <= 2 * allowed) & (np.abs(self._lengths - len(word)) <= allowed)
        found: tuple[str, int] | None = None
        for at in np.flatnonzero(near)[:CANDIDATES].tolist():
            candidate = self._words[at]
            # People rarely miss the first letter; a word that differs in it is mostly another word.
            if candidate[0] != word[0] and word[:2] != candidate[1::-1] and word != candidate[1:]:
                continue
            if len(word) <= SHORT and len(candidate) <= len(word) and sorted(candidate) != sorted(word):
                continue
            distance = errors(word, candidate)
            if distance <= allowed and (found is None or distance < found[1]):
                found = candidate, distance
        return found


def correction(word: str, catalog: Callable[[], WordList]) -> str | None:
    """Return the word that a misspelled word was probably meant to be; None for a right or a strange one.

    Words of the catalog go before others that are as near. Of the packaged ones only the likely are meant.
    Two words written as one ("backend", "rootkit") are often a new word, and letters without a vowel ("smth")
    short for something: only a word of the catalog is then taken to be meant, with one error. A word that is
    derived from a known one ("scalable") is right.

    Args:
        word: In lower case; none that the catalog has or that is known otherwise (`text.is_known`).
        catalog: Returns the words of its names.
    """
    if not SHORTEST <= len(word) <= LONGEST or not (word.isascii() and word.isalpha()):
        return None
    if is_derived(word):
        return None
    if is_joined(word) or VOWELS.isdisjoint(word):
        found = [catalog().nearest(word, 1)]
    else:
        found = [catalog().nearest(word), likely().nearest(word)]
    near = [one for one in found if one is not None]
    return min(near, key=lambda one: one[1])[0] if near else None


def is_joined(word: str) -> bool:
    """Return whether a word consists of two packaged words, with no letter three times in a row."""
    if any(a == b == c for a, b, c in zip(word, word[1:], word[2:], strict=False)):
        return False
    known = packaged().known
    splits = range(SHORTEST_PART, len(word) - SHORTEST_PART + 1)
    return any(max(at, len(word) - at) >= SHORTEST and {word[:at], word[at:]} <= known for at in splits)


def is_derived(word: str) -> bool:
    """Return whether a word is a packaged one with an ending that makes a new word of it."""
    known = packaged().known
    for at in range(SHORTEST_BASE - 1, len(word) - 1):
        base, ending = word[:at], word[at:]
        if ending in ENDINGS and (
            (len(base) >= SHORTEST_BASE and base in known)
            or base + "e" in known
            or (base[-1] == "i" and base[:-1] + "y" in known)
        ):
            return True
    # Both spellings are right: "organise", "summarising".
    return "is" in word and word.replace("is", "iz") in known


def errors(first: str, second: str) -> int:
    """Return the distance of two words by optimal string alignment."""
    before, row = list[int](), list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        above, before, row = before, row, [i]
        for j, b in enumerate(second, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and b == first[i - 2]:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1]


@cache
def packaged() -> WordList:
    """Return the words of `WORDS`."""
    return WordList(WORDS.read_text(encoding="ascii").split())


@cache
def likely() -> WordList:
    """Return those of `WORDS` that people mean when they err."""
    return WordList(WORDS.read_text(encoding="ascii").split()[:LIKELY])


def _letter_counts(words: Sequence[str]) -> NDArray[np.int8]:
    """Return [words, letters]: how often each has each letter."""
    counts = np.zeros((len(words), 26), np.int8)
    if words:
        letters = np.frombuffer("".join(words).encode(), np.uint8) - ord("a")
        np.add.at(counts, (np.repeat(np.arange(len(words)), [len(word) for word in words]), letters), 1)
    return counts
