"""Splits text in any script into words, index terms, sentences and chunks.

Catalog and queries go through the same functions, so that the same text gives the same terms on both sides.
"""

from __future__ import annotations

import re
import sys
import unicodedata
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, islice, pairwise
from math import inf
from pathlib import Path
from typing import Final, TypeAlias, cast

from mcp_context_proxy.protocol.strangers import normalized
from mcp_context_proxy.system.later import NDArray, np, packaged_text, pattern

VOCABULARY = Path(__file__).with_name("vocabulary.txt")
"""Tables of words; the file says what each has."""


def _tables() -> dict[str, list[str]]:
    tables, lines = dict[str, list[str]](), list[str]()
    for line in packaged_text(VOCABULARY).splitlines():
        if line.startswith("["):
            lines = tables.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return tables


TABLES: Final[Mapping[str, Sequence[str]]] = _tables()
"""Lines of each table of `VOCABULARY`."""


def listed(table: str) -> frozenset[str]:
    return frozenset(" ".join(TABLES[table]).split())


def meanings(table: str) -> dict[str, str]:
    by_meaning = (line.split(" = ", 1) for line in TABLES[table])
    return {form: meaning for meaning, forms in by_meaning for form in forms.split("; ")}


class Spoken:
    """A pattern that is tried, and compiled, only for texts that have one of some parts of words."""

    def __init__(self, form: re.Pattern[str], beside: str) -> None:
        self.form, self._beside = form, beside.split("|")

    def match(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        return self.form.match(text, start, end) if self._may_match(text) else None

    def search(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        return self.form.search(text, start, end) if self._may_match(text) else None

    def finditer(self, text: str, start: int = 0, end: int = sys.maxsize) -> Iterator[re.Match[str]]:
        return self.form.finditer(text, start, end) if self._may_match(text) else iter(())

    def sub(self, replacement: str, text: str) -> str:
        return self.form.sub(replacement, text) if self._may_match(text) else text

    def _may_match(self, text: str) -> bool:
        lower = text.lower()
        # A generator would take twice as long, and a request is asked this some twenty times.
        for part in self._beside:  # noqa: SIM110
            if part in lower:
                return True
        return False


def spoken(form: str, beside: str = "") -> re.Pattern[str]:
    """Return the pattern of a way to say something, also in capitals; it is compiled at its first use.

    Each way is said by few queries. Where ``beside`` names parts of words, in small letters between bars, of
    which every text that matches has one, it is only tried in texts that have: a first search compiles less.
    """
    found = pattern(form, re.IGNORECASE)
    return cast("re.Pattern[str]", Spoken(found, beside)) if beside else found


STOP_WORDS = listed("stop words")

RUNS_KEPT = 32_768
"""Runs of letters whose terms are cached, in some 6 MB: nearly all words of a large catalog. Reading a
catalog is twice as fast with it."""

LONGEST_KEPT = 32
"""Characters of the longest run that is cached: a longer one is hardly a word."""

NAMES_KEPT = 8_192
"""Identifiers whose words are cached: parameters of different tools have much the same names."""

CHUNK_LIMIT = 500
"""Characters of a chunk: about 120 word pieces, well inside the 256 that the model reads."""

SYNONYM_SHARE = 0.2
"""Weight of a synonym relative to the word itself: enough to decide between items that are otherwise equal,
too little to replace a word. On six public sets synonyms gain 0.3 points of recall@5 and 0.5 of complete@5,
and none of the sets loses; with twice the share, three of the six lose."""

SYNONYMS: Final = TABLES["synonyms"]

KNOWN_WORDS = Path(__file__).with_name("known_words.npy")
"""CRC-32 of the stems of known words, ascending; ``scripts/build_words.py`` writes it."""

_LETTERS = pattern(r"\b[^\W\d_]++\b")
_LATIN, _UNLATIN = pattern(r"[A-Za-z\u00c0-\u024f]"), pattern(r"[^\W\d_\u0000-\u024f]")

_APART = spoken(
    r"(?:^|(?<=[.!?,] )|(?<=\bund )|(?<=\bbitte ))(?!bitte\b)(?P<verb>[^\W\d_]{2,20}?)e?"
    r"(?P<object>(?:\s[^.!?,]{1,100}?)?)\s(?P<particle>ab|an|auf|aus|ein|frei|hinzu|(?:her|hin)?(?:aus|auf|unter|ein)|hoch"
    r"|nach|raus|runter|um|vor|weg|weiter|wieder her|zu|zurück|zusammen|aan|af|in|op|toe|uit|terug)"
    r"(?=\s*(?:[.!?,]|$)|\s(?:und|en)\b)"
)
FOREIGN_WORDS: Final = listed("foreign words")

FEWEST_FOREIGN = 2
"""Words that are not English, from which on a query is in another language: one may be a name. One of them
must be a common word of another language, or have letters that English does not."""

TRANSLATED_SHARE = 0.4
"""Share of its words by which a query is foreign, if not by the first: it may speak of Los Angeles."""

LONGEST_NAME_LIKE = 3
"""Letters of a word with a capital within a query that is rather a name: "Ed" is no word for "and"."""

TRANSLATIONS = Path(__file__).with_name("translations.txt")
"""Words of other languages with which people ask for tools, by the English word for the same."""

_ELIDED = pattern(r"(?:[cdjlmnst]|qu|un|all|dall|dell|nell|sull)['’](?=\w{2})")
"""Articles and the like that some languages write as one with what follows: "l'article"."""
_ENCLITIC = pattern(r"-(?:moi|nous|lui|leur|les?|la|toi|vous|me|te|se|[oa]s?)$")  # as in "donne-moi"


def _letters(*categories: str) -> str:
    """The characters of the cased alphabets (Latin, Greek, Cyrillic, Armenian) of a Unicode category."""
    return "".join(chr(point) for point in range(0x600) if unicodedata.category(chr(point)) in categories)


@cache
def _marks() -> str:
    """Return vowel signs and accents: part of a word, although expressions do not count them."""
    return "".join(chr(p) for p in range(0x300, 0x3100) if unicodedata.category(chr(p)).startswith("M"))


_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana, Han, Hangul: words are not, or not only, divided by spaces."""

_RUN = pattern(lambda: f"(?:[^\\W_]|[{_marks()}])+")
_ASCII_RUN = pattern("[A-Za-z0-9]+")
"""The same for ASCII text, in a quarter of the time."""


def _part() -> str:
    upper, lower = _letters("Lu", "Lt"), _letters("Ll")
    return (
        f"(?P<unspaced>[{_UNSPACED}]+)"
        f"|[{upper}]{{2,}}s(?![{lower}])"  # URLs, IDs
        f"|[{upper}]+(?![{lower}])"
        f"|[{upper}]?[{lower}]+"
        "|\\d+"
        f"|(?:[^\\W\\d_{upper}{lower}{_UNSPACED}]|[{_marks()}])+"
    )


_PART = pattern(_part)
_ASCII_PART = pattern(r"[A-Z]{2,}s(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
"""The same for ASCII text. To compile the other one takes 20 ms, on the event loop if a call comes first."""
_ARABIC_ARTICLE = "\u0627\u0644"
_WRITTEN_WORD = pattern(r"[\w'-]+")
_ACCENTS = pattern("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
"""Marks people leave out when typing: Latin, Greek, Cyrillic accents, Hebrew and Arabic vowel points."""

PARAGRAPH = pattern(r"\n\s*\n")
_SENTENCE_END = r"(?<=[.!?…؟।])\s+|(?<=[。！？])|\n\s*"
_SENTENCE = pattern(_SENTENCE_END)
_SENTENCE_OR_CLAUSE = pattern(
    r"(?<!\bMr\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bNo\.)(?<!\bvs\.)(?<!\bMrs\.)(?<!\bProf\.)"
    rf"(?:{_SENTENCE_END}|;\s+)"
)
_BULLET = pattern(r"^(?:[-*+•–]|\d{1,2}[.)])\s+")
_SPACE = pattern(r"\s+")
_LETTER = pattern(r"[^\W_]")


@lru_cache(maxsize=NAMES_KEPT)
def identifier_words(identifier: str) -> str:
    """Return an identifier as a person would say it: ``createIssue_v2`` is ``create issue v 2``."""
    if identifier.isascii():
        words = _ASCII_PART.findall(identifier)
    else:
        words = [part.group() for run in _RUN.finditer(identifier) for part in _PART.finditer(run.group())]
    return " ".join(words).lower() or identifier.strip()


def name_key(name: str) -> str:
    """Return one key for all spellings of a name: ``createIssue``, ``create_issue``, ``Create issue``."""
    return "".join(_RUN.findall(_unaccented(name))).casefold() or name.strip().casefold()


def words(text: str) -> Iterator[str]:
    """Yield the words of a text, lower case, without accents.

    Identifiers come in parts and, where they were written in one piece, also whole (``GitHub`` gives
    ``git``, ``hub`` and ``github``), so that either spelling finds the other. Unspaced scripts come as
    overlapping pairs of characters.
    """
    for run in _runs(text):
        yield from _words_of(run)


def terms(text: str) -> list[str]:
    """Return the index terms of a text, with repetitions: its stemmed words without stop words."""
    return list(chain.from_iterable(map(_terms_by_run.__getitem__, _runs(text))))


class _TermCache(dict[str, tuple[str, ...]]):
    """The terms of runs; cleared when it is full."""

    def __missing__(self, run: str) -> tuple[str, ...]:
        found = tuple(stem(word) for word in _words_of(run) if word not in STOP_WORDS)
        if len(run) <= LONGEST_KEPT:
            if len(self) >= RUNS_KEPT:
                self.clear()
            self[run] = found
        return found


_terms_by_run = _TermCache()


def content_words(text: str) -> str:
    """Return a text without its stop words, otherwise as it is written."""
    return " ".join(word for word in _WRITTEN_WORD.findall(text) if word.lower() not in STOP_WORDS)


def telling_places(text: str) -> list[int]:
    """Return where the words of a text begin that are no stop words."""
    return [
        match.start() for match in _WRITTEN_WORD.finditer(text) if match.group().lower() not in STOP_WORDS
    ]


PASTED_LIMIT = 65_536
"""Characters of a message in which such lines are looked for."""

LEAST_SAID = 2
"""Telling words around pasted lines from which on these words are the request."""

Span: TypeAlias = tuple[int, int]
"""The places in a text where a part of it begins and ends."""

_QUOTATION_MARKS = ('"', "“", "'")
_QUOTED = pattern("\"([^\"]{3,2000})\"|“([^“”]{3,2000})”|(?:(?<=\\s)|^)'([^']{3,2000})'(?=[\\s.,;!?]|$)")


def quotations(text: str) -> list[Span]:
    if not any(mark in text for mark in _QUOTATION_MARKS):
        return []
    return [match.span() for match in _QUOTED.finditer(text)]


_PASTED = pattern(
    r"(?ms)^```.*?^```[^\n]*$"
    r"|^(?-s:[\[( ]*(?:\d{4}[-/]\d\d[-/]\d\d[T ,]+\d\d:\d\d|\d\d:\d\d:\d\d\b"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d).*$"
    r"|[\[( ]*(?:ERROR|WARN(?:ING)?|INFO|DEBUG|FATAL|TRACE|E|npm (?:ERR!|error)|error\[E\d+\])[\]): ].*$"
    r"|(?:\w+\.)*\w*(?:Error|Exception)\b: .*$|Traceback \(most recent call.*$|Caused by: .*$"
    r"|[ \t]+at \S.*$|[ \t]+File \".*(?-s:\n[ \t].*)?$|(?:diff --git|@@ -\d|[+-]{3} [ab]/).*$"
    r"|[ \t]*(?:(?:async )?def \w+\(|class \w+[(:]|from \S+ import |import [\w.]+$|(?:const|let|var) \w+ ?=)"
    r".*$|[ \t]++.*(?:\w[(\[]|[={};]).*$|(?:if|for|while|with) (?=.*:$).*?(?:\w[(\[]|=).*$|.*[{\[][ \t]*$"
    r"|[)\]}]+[;,]?[ \t]*$)"
)
"""Blocks of code, and lines of logs, of stacks and of differences between files."""


def without_pasted(text: str) -> str:
    """Return what a person says around the logs and code in a message; all of it where that is little."""
    text = text[:PASTED_LIMIT]
    if "\n" not in text:
        return text
    said = _PASTED.sub("", text)
    return said.strip() if len(telling_places(said)) >= LEAST_SAID else text


def within(place: int, spans: Sequence[Span]) -> bool:
    """Return whether a place is in one of several disjoint spans that are in order."""
    before = bisect_right(spans, (place, inf))
    return before > 0 and place < spans[before - 1][1]


def joined(spans: list[Span]) -> list[Span]:
    """Return spans in order, those that overlap as one."""
    found = list[Span]()
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def without(query: str, spans: Sequence[Span]) -> str:
    """Return a text without some spans, and with single spaces."""
    kept, at = list[str](), 0
    for start, end in spans:
        kept.append(query[at:start])
        at = end
    return " ".join("".join([*kept, query[at:]]).split())


_OPENER = (
    r"(?:ok(?:ay)?|so|and|now|then|(?:hey|hi|hello)(?: there)?|hm+|ugh|oh|yes|yeah|anyway|btw|also|alright"
    r"|sudo)\b[\s,.!:;…-]+"
    r"|(?:good|great|fine|perfect|cool|nice|awesome|thanks(?: a lot| so much)?|thank you|thx"
    r"|no|nope|nah|right|well|again|sorry|wait|actually|yep|yup|wow|damn|uh+m*|argh)\s*[,.!:;…-]\s*"
)
_OPENERS: Final = spoken(rf"(?s)\s*(?:{_OPENER}){{1,8}}(?=\W*\w)")
"""Words with which people go on talking; those that may say something only before a comma or the like."""


def without_opener(query: str) -> str:
    """Return a query without words that only go on with a conversation: "ok, and now"."""
    match = _OPENERS.match(query)
    return query if match is None else query[match.end() :]


def is_known(word: str) -> bool:
    """Return whether a word, in lower case, is one of large English lists or of tools (`KNOWN_WORDS`)."""
    if word in STOP_WORDS:
        return True
    # A number of the same type, or the whole list would be converted each time.
    known, own = _known_words(), np.uint32(zlib.crc32(stem(word).encode()))
    at = int(known.searchsorted(own))
    return at < known.size and bool(known[at] == own)


@cache
def _known_words() -> NDArray[np.uint32]:
    known: NDArray[np.uint32] = np.load(KNOWN_WORDS)
    return known


@cache
def _translations() -> tuple[Mapping[str, str], frozenset[str]]:
    """Return the English word for each of `TRANSLATIONS`, and those that English does not have as well."""
    meant, own = dict[str, str](), set[str]()
    for line in packaged_text(TRANSLATIONS).splitlines():
        if not line.startswith("#"):
            english, _, listed = line.partition(":")
            foreign, _, shared = listed.partition("/")
            own.update(foreign.split())
            meant |= dict.fromkeys((*foreign.split(), *shared.split()), english)
    return meant, frozenset(own)


def is_foreign(query: str) -> bool:
    """Return whether a query seems to be in another language than English."""
    letters = [match.group().lower() for match in _LETTERS.finditer(query)]
    if query.isascii() and FOREIGN_WORDS.isdisjoint(letters):
        return False  # as nearly every query
    foreign = strange = 0
    for written in letters:
        if written in FOREIGN_WORDS:
            foreign += 1
        elif not all(map(is_known, words(written))):
            strange += 1
            foreign += not written.isascii()
    return foreign > 0 and foreign + strange >= FEWEST_FOREIGN


def may_be_translated(text: str) -> bool:
    """Return whether a text has a word that is only one of another language, by a quick look."""
    return not _translations()[1].isdisjoint(text.lower().split())


def is_unlatin(text: str) -> bool:
    """Return whether most letters of a text are of no Latin alphabet."""
    return not text.isascii() and len(_UNLATIN.findall(text)) > len(_LATIN.findall(text))


def is_translated(query: str) -> bool:
    """Return whether enough words of a query are those of another language that `translated` knows."""
    meant, telling = _translations()
    spoken = [_unaccented(match.group()).lower() for match in _LETTERS.finditer(query)]
    if telling.isdisjoint(spoken):
        return False
    opens = spoken[0] in telling
    known = sum(word in meant or (opens and not is_known(word)) for word in spoken)
    return known >= max(FEWEST_FOREIGN, 0 if opens else TRANSLATED_SHARE * len(spoken))


def translated(word: str, is_first: bool) -> str | None:
    """Return the English word for a word of another language that asks for tools; None for short names."""
    if word.istitle() and len(word) <= LONGEST_NAME_LIKE and not is_first:
        return None
    plain = _unaccented(word).lower().replace("ß", "ss")
    meant = _translations()[0]
    if (elided := _ELIDED.match(plain)) is not None:
        rest = plain[elided.end() :]
        return meant.get(rest, rest)
    umlauts = plain.replace("ae", "a").replace("oe", "o").replace("ue", "u")  # are written in two ways
    forms = word.lower(), plain, umlauts, _ENCLITIC.sub("", plain)
    return next((meant[form] for form in forms if form in meant), None)


def rejoined(query: str) -> str:
    """Return a query with German and Dutch verbs in one: "mach das Licht aus" is "ausmachen das Licht"."""

    def whole(match: re.Match[str]) -> str:
        verb = match["particle"].replace(" ", "") + match["verb"]
        known = next((one for one in (f"{verb}en", verb) if translated(one, is_first=True)), None)
        return match.group() if known is None else known + match["object"]

    return _APART.sub(whole, query)


def synonyms(terms: Collection[str]) -> dict[str, str]:
    """Return the index terms of the synonyms of some terms, without these, each with its word."""
    found = (pair for term in terms for pair in _SYNONYMS_BY_TERM.get(term, {}).items())
    return {term: word for term, word in found if term not in terms}


def in_other_words(query: str, has_term: Callable[[str], bool]) -> str | None:
    """Return a query with the names that a catalog has for its things; None where that changes nothing."""

    def named(match: re.Match[str]) -> str:
        thing = match.group().lower()
        names = () if has_term(stem(thing)) else _NAMES_OF_THINGS.get(stem(thing), ())
        name = next((name for name in names if has_term(stem(name))), None)
        if name is None:
            return match.group()
        return name if not thing.endswith("s") else f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"

    said = _LETTERS.sub(named, query)
    return None if said == query else said


def stem(word: str) -> str:
    """Remove the commonest endings of an English word, so that ``created`` meets ``creating``.

    Of other words only the Arabic article is removed, which is written as part of them. The result need not
    be a word: it is only compared with other results.
    """
    return _stem(word) if len(word) <= REMEMBERED_CHARACTERS else _stem.__wrapped__(word)


REMEMBERED_CHARACTERS: Final = 24
"""Length of words whose stems are remembered; a stranger's text may have a word of megabytes."""


@lru_cache(maxsize=1 << 14)
def _stem(word: str) -> str:
    if word.startswith(_ARABIC_ARTICLE) and len(word) >= len(_ARABIC_ARTICLE) + 3:
        return word[len(_ARABIC_ARTICLE) :]
    if len(word) < 4 or not word.isascii() or word.isdigit():
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


def _synonyms_by_term() -> dict[str, dict[str, str]]:
    by_term: dict[str, dict[str, str]] = {}
    for group in SYNONYMS:
        stems = {stem(word): word for word in group.split()}
        for own in stems:
            by_term.setdefault(own, {}).update({other: stems[other] for other in stems if other != own})
    return by_term


_SYNONYMS_BY_TERM = _synonyms_by_term()


def _names_of_things() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, others in (line.split(" = ") for line in TABLES["things"]):
        for other in others.split("; "):
            names.setdefault(stem(other), []).append(name)
    return names


_NAMES_OF_THINGS = _names_of_things()
"""Stems of words for things, each with the words that catalogs have for them."""


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
            characters = part.group()
            yield from map("".join, pairwise(characters)) if len(characters) > 1 else characters
        else:
            spaced += 1
            yield part.group().casefold()
    if spaced > 1:
        yield run.casefold()


def _unaccented(text: str) -> str:
    if text.isascii():
        return text
    return normalized("NFC", _ACCENTS.sub("", normalized("NFKD", text)))


def sentences(text: str) -> list[str]:
    """Return the sentences of a text that say something, without bullets."""
    parts = (_BULLET.sub("", part.strip()) for part in _SENTENCE_OR_CLAUSE.split(text))
    return [part for part in parts if _LETTER.search(part)]


_CLAUSE_END: Final = pattern(r"(?:,|:|;|\s[-–]|\s(?=(?:and|but|so)\s))\s*+")
"""Places within a sentence where a clause may begin."""


def clauses(sentence: str, most: int, end: int | None = None) -> list[int]:
    """Return where up to `most` clauses of a sentence begin, before `end`; not the first one."""
    ends = _CLAUSE_END.finditer(sentence, 0, len(sentence) if end is None else end)
    return [match.end() for match in islice(ends, most)]


def chunks(text: str, limit: int = CHUNK_LIMIT) -> tuple[str, ...]:
    """Divide a text into chunks of at most ``limit`` characters; only white space between them is lost.

    Whole paragraphs are put together while they fit; a longer one is divided at its sentences, a longer
    sentence at its words, a longer word anywhere.
    """
    found: list[str] = []
    start = end = 0
    for piece_start, piece_end in _pieces(text, 0, len(text), limit, (PARAGRAPH, _SENTENCE, _SPACE)):
        if piece_end - start > limit:
            found.append(text[start:end])
            start = piece_start
        end = piece_end
    found.append(text[start:end])
    return tuple(chunk.strip() for chunk in found if chunk.strip()) or (text.strip(),)


def _pieces(
    text: str, start: int, end: int, limit: int, separators: tuple[re.Pattern[str], ...]
) -> Iterator[tuple[int, int]]:
    """Yield spans of at most ``limit`` characters, divided by the first separator that makes them fit."""
    if end - start <= limit:
        yield start, end
    elif not separators:
        yield from ((cut, min(cut + limit, end)) for cut in range(start, end, limit))
    else:
        for match in separators[0].finditer(text, start, end):
            if match.start() > start:
                yield from _pieces(text, start, match.start(), limit, separators[1:])
            start = match.end()
        if end > start:
            yield from _pieces(text, start, end, limit, separators[1:])


def encodable(text: str) -> str:
    """Replace half characters (lone surrogates), which JSON allows and UTF-8 does not."""
    return text.encode("utf-8", "replace").decode("utf-8")
