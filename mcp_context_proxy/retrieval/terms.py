"""What counts as a word and as a term: one splitter for identifiers, prose and queries, in any script.

Knows nothing of items or scores; the same text gives the same terms on both sides of a search.

Words that people and tools use for one another: a person opens a ticket, the tool creates an issue.

A synonym counts a fifth of a word of the query: enough to decide between items that are otherwise equal, too
little to stand in for a word. The groups were written down before anything was measured with them; on six
public sets they gain 0.3 points of recall@5 and 0.5 of complete@5, and none loses. With twice the share,
three of the six lose.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import chain, pairwise

_ENGLISH = (
    "a about all also am an and any are as at be been being but by can could did do does for from had has "
    "have he her here him his how i if in into is it its me more my no not of on or our please she should "
    "so some such than that the their them then there these they this those to us was we were what when "
    "where which who whom why will with would you your s t "
)
STOP_WORDS = frozenset(_ENGLISH.split())
"""English words that say nothing about which tool is meant; a term of every query would only add noise."""

RUNS_KEPT = 32_768
"""Whose terms are remembered, in some 6 MB: nearly all words of a large catalog, for tools speak of few
things. Reading is twice as fast for it."""

LONGEST_KEPT = 32
"""Characters of a run that is remembered; what is longer is hardly a word, and should take no room."""

NAMES_KEPT = 8_192
"""Identifiers whose words are remembered: parameters of different tools have much the same names."""


def _letters(*categories: str) -> str:
    """The characters of the cased alphabets (Latin, Greek, Cyrillic, Armenian) of a Unicode category."""
    return "".join(chr(point) for point in range(0x600) if unicodedata.category(chr(point)) in categories)


_UPPER = _letters("Lu", "Lt")
_LOWER = _letters("Ll")
_MARKS = "".join(chr(p) for p in range(0x300, 0x3100) if unicodedata.category(chr(p)).startswith("M"))
"""Vowel signs and accents: part of a word, although `\\w` does not count them."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana, Han, Hangul: words are not, or not only, divided by spaces."""

_RUN = re.compile(f"(?:[^\\W_]|[{_MARKS}])+")
_ASCII_RUN = re.compile("[A-Za-z0-9]+")
"""The same where there is nothing else, in a quarter of the time."""
_PART = re.compile(
    f"(?P<unspaced>[{_UNSPACED}]+)"
    f"|[{_UPPER}]{{2,}}s(?![{_LOWER}])"  # URLs, IDs
    f"|[{_UPPER}]+(?![{_LOWER}])"
    f"|[{_UPPER}]?[{_LOWER}]+"
    "|\\d+"
    f"|(?:[^\\W\\d_{_UPPER}{_LOWER}{_UNSPACED}]|[{_MARKS}])+"
)
_ARTICLE = "\u0627\u0644"
_WRITTEN = re.compile(r"[\w'-]+")
_ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
"""Marks people leave out when typing: Latin, Greek, Cyrillic accents, Hebrew and Arabic vowel points."""


@lru_cache(maxsize=NAMES_KEPT)
def identifier_words(identifier: str) -> str:
    """An identifier as a person would say it: ``createIssue_v2`` is ``create issue v 2``."""
    words = [part.group() for run in _RUN.finditer(identifier) for part in _PART.finditer(run.group())]
    return " ".join(words).lower() or identifier.strip()


def name_key(name: str) -> str:
    """What two spellings of one name have in common: ``createIssue``, ``create_issue``, ``Create issue``."""
    return "".join(_RUN.findall(_unaccented(name))).casefold() or name.strip().casefold()


def words(text: str) -> Iterator[str]:
    """The words of a text, lower case, without accents.

    Identifiers come in parts and, where they were written in one piece, also whole (``GitHub`` gives
    ``git``, ``hub`` and ``github``), so that either spelling finds the other. Unspaced scripts come as
    overlapping pairs of characters.
    """
    for run in _runs(text):
        yield from _words_of(run)


def _runs(text: str) -> list[str]:
    return _ASCII_RUN.findall(text) if text.isascii() else _RUN.findall(_unaccented(text))


def _words_of(run: str) -> Iterator[str]:
    if run.isascii() and run.isalpha() and (run.islower() or run.istitle()):
        # Nearly every run is one plain word.
        yield run.lower()
        return
    spaced = 0
    for part in _PART.finditer(run):
        if part.lastgroup == "unspaced":
            yield from _pairs(part.group())
        else:
            spaced += 1
            yield part.group().casefold()
    if spaced > 1:
        yield run.casefold()


def terms(text: str) -> list[str]:
    """The index terms of a text, with repetitions."""
    return list(chain.from_iterable(map(_known.__getitem__, _runs(text))))


class _Terms(dict[str, tuple[str, ...]]):
    """The terms of runs, each asked for many times; when it is full it begins anew."""

    def __missing__(self, run: str) -> tuple[str, ...]:
        found = tuple(stem(word) for word in _words_of(run) if word not in STOP_WORDS)
        if len(run) <= LONGEST_KEPT:
            if len(self) >= RUNS_KEPT:
                self.clear()
            self[run] = found
        return found


_known = _Terms()


def query_terms(query: str) -> dict[str, str]:
    """Each index term of a query once, in order, with the word it stands for."""
    found: dict[str, str] = {}
    for word in words(query):
        if word not in STOP_WORDS:
            found.setdefault(stem(word), word)
    return found


def telling_words(text: str) -> str:
    """A text without its stop words, otherwise as it is written."""
    return " ".join(word for word in _WRITTEN.findall(text) if word.lower() not in STOP_WORDS)


def stem(word: str) -> str:
    """An English word without its commonest endings, so that ``created`` meets ``creating``.

    Of other words only the Arabic article goes, which is written as part of them. The result need not be a
    word: it is only compared with other results.
    """
    if word.startswith(_ARTICLE) and len(word) >= len(_ARTICLE) + 3:
        return word[len(_ARTICLE) :]
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies"):
        word = word[:-3] + "y"
    elif word.endswith("s") and word[-2] not in "aisu":
        word = word[:-1]
    for ending, least in (("ation", 4), ("ing", 3), ("ed", 3), ("ion", 4), ("ly", 4)):
        if word.endswith(ending) and len(word) - len(ending) >= least:
            word = word[: -len(ending)] + ("at" if ending == "ation" else "")
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] == "e" else word


def _unaccented(text: str) -> str:
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for first, second in pairwise(run):
        yield first + second


SHARE = 0.2
"""Of what the word itself would count."""

GROUPS = (
    "create add new make open insert register",
    "delete remove erase drop clear destroy",
    "get fetch read retrieve show view display",
    "find search lookup query look",
    "list enumerate browse",
    "update edit modify change set alter",
    "send post email message mail",
    "run execute start launch invoke",
    "download save export",
    "upload import attach",
    "translate convert transform",
    "compute calculate evaluate",
    "close finish complete resolve",
    "book reserve schedule",
    "buy purchase order",
    "picture image photo",
    "movie film",
    "song music track",
    "job career position employment",
    "trip travel vacation",
    "money currency",
    "house home property estate",
    "car vehicle",
    "company business",
    "folder directory",
    "repo repository",
    "pr pull",
    "ticket issue bug",
    "doc document",
    "summary summarize",
    "chart graph plot diagram",
    "recipe cook dish",
    "weather forecast temperature",
    "stock share equity",
    "remember memory recall",
)
"""Verbs of tools first, then what they are done to."""


def _alike() -> dict[str, dict[str, str]]:
    alike: dict[str, dict[str, str]] = {}
    for group in GROUPS:
        stems = {stem(word): word for word in group.split()}
        for own in stems:
            alike.setdefault(own, {}).update({other: stems[other] for other in stems if other != own})
    return alike


_ALIKE = _alike()


def synonyms(terms: Collection[str]) -> dict[str, str]:
    """Index terms that are none of these but mean the same as one, each with the word it is of."""
    found: dict[str, str] = {}
    for term in terms:
        found |= _ALIKE.get(term, {})
    return {term: word for term, word in found.items() if term not in terms}
