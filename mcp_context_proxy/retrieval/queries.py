"""Reads a query as a person wrote it: its words with their weights, its needs, and the texts to embed.

Misspelled words are corrected, short forms are written out, and values (paths, links, keys, dates) are said
to be what they are. A query of several orders is divided into them. What an order only carries, such as the
text of a message or the subject of a report, counts less than the order itself.

Strangers write queries: every pattern here takes time in the length of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.retrieval.forms import (
    ARITHMETIC,
    EDGES,
    FIRST_OF_QUERY,
    JSON,
    PLAIN_TEXT,
    Value,
    WordList,
    correction,
    is_arithmetic,
    long_values,
    shell_meaning,
    value_kind,
    written_out,
)
from mcp_context_proxy.retrieval.item_metadata import EFFECTS, Contained
from mcp_context_proxy.retrieval.needs import (
    LEAST_TELLING,
    asked_alone,
    asked_in_story,
    asks,
    cores,
    corrected,
    denied,
    needs_of,
    opening_match,
    ordered,
    wanted,
)
from mcp_context_proxy.retrieval.purposes import (
    Idiom,
    Purpose,
    contained,
    idiom_of,
    purpose_of,
    reworded,
    service_of,
)
from mcp_context_proxy.retrieval.text import (
    STOP_WORDS,
    SYNONYM_SHARE,
    Span,
    chunks,
    content_words,
    encodable,
    is_foreign,
    is_known,
    is_translated,
    is_unlatin,
    joined,
    listed,
    quotations,
    rejoined,
    stem,
    synonyms,
    telling_places,
    terms,
    translated,
    within,
    without,
    without_opener,
    without_pasted,
    words,
)
from mcp_context_proxy.system.later import NDArray, np

QUERY_LIMIT = 8_192
"""Characters of a query that are used."""

QUERY_NEEDS = 12
"""Needs of a query that are embedded beside the whole; each costs about 2 ms."""

TEXTS_OF_ONE_NEED = 2
"""Texts up to which a query has one need: all of it, and the need as it was understood."""

SHORT_QUERY = 12
"""Words up to which a query of one need is short, and embedded as it stands. The words that tell nothing blur
a longer one; in a short one they are part of what is asked. Of requests for servers that nobody here had
searched before, two in a hundred more have their tool first than if a vector without them is added."""

WORDS_OF_SHORT_QUERY = 0.75
"""Share of their weight that the words of a short query have: any tool has some of them by chance. One more
in a hundred of the same requests then has its tool first; longer ones, with a share, lose as many."""

CORRECTED_SHARE = 0.8
"""Weight of a corrected word: less than that of the same word written right."""

WRITTEN_OUT_SHARE = 0.7
"""Weight of the words that a short form stands for."""

VALUE_SHARE = 0.3
"""Weight of a word in a value, and of the words that say what the value is, unless it is all that an order is
about."""

CARRIED_SHARE = 0.4
"""Weight of a word that an order only carries."""

MOST_CORRECTED = 4
"""Words of a query that are corrected; with more, it is probably in another language."""

MOST_COMPARED = 8
"""Unknown words of a query that are compared with others; each takes about a millisecond."""

_MEETINGS, _TRACKED, _AFTER_VERBS = listed("booked"), listed("opened"), listed("after verbs")

_TOKEN = re.compile(r"\S+")
_WORD = re.compile(r"[A-Za-z]+")
_CARRYING: Final = listed("carrying verbs")
"""Verbs whose object may have a text of its own: what follows "that", "about" or "saying"."""

_CARRIED = re.compile(
    r":\s++|\s(?:that|about|saying|says|titled|called|named)\s++(?!(?:it|this|them|these|those)\b)",
    re.IGNORECASE,
)
"""Places where that begins which an order carries: after a colon with any verb, otherwise with those of
`_CARRYING`."""


class ReadQuery(Struct, frozen=True):
    """A query as it is searched for."""

    written: str
    """The query as it was written, up to `QUERY_LIMIT`, without a word such as "ok," before it."""
    texts: tuple[str, ...]
    """The texts that are embedded, each once: all of it as it was understood, then its needs as chunks. Empty
    for an empty query."""
    beside: tuple[str, ...]
    """Texts whose vectors are averaged with that of the whole: its telling words, if it is long, its orders
    without what they carry, and a query with the name of a server."""
    asked: Mapping[str, str]
    """Index terms of the query, each with the word that gave it."""
    added: Mapping[str, str]
    """Index terms of synonyms, of short forms written out and of kinds of values, each with its word."""
    weights: Mapping[str, float]
    """The weight of each term, asked or added."""
    needs: tuple[Mapping[str, float], ...]
    """The terms of each text but the first, with their weights."""
    foreign: frozenset[str]
    """Index terms of a query in another language that neither the catalog nor English has; empty for other
    queries. They say nothing of whether something fits: the model cannot read them, and no tool has them."""
    orders: tuple[bool, ...]
    """For each text but the first, true if it opens with an order or a question: it asks for something."""
    actions: NDArray[np.float32]
    """[texts, actions]: what is added to the score of a tool for its action. The first row, that of the
    whole, has the highest of its orders."""
    is_unreadable: bool
    """True if most of its letters are of no Latin alphabet, so that the packaged models cannot read it."""
    is_gibberish: bool
    """True if nobody knows any of its words: its vector is that of nothing."""
    purpose: Purpose | None
    """The general purpose of a single need; None for most."""
    purposes: tuple[Purpose | None, ...]
    """The same for each text but the first, of a query of several needs."""
    inside: Contained | None
    """The thing that its single need creates or deletes in a container."""
    service: str | None
    """The service that it is for by name (`purposes.service_of`), as an index term."""
    cores: tuple[str, ...]
    """What it may mean if some of it is only told (`needs.cores`)."""
    alone: str | None
    """What it asks for without what it only tells (`needs.asked_alone`)."""

    @property
    def has_several_needs(self) -> bool:
        """True if it was divided into needs, each of which wants tools of its own."""
        return len(self.texts) > TEXTS_OF_ONE_NEED

    @property
    def counted(self) -> Mapping[str, float]:
        """The weight of each term beside the meaning of the query."""
        share = WORDS_OF_SHORT_QUERY if _is_short(self.texts) else 1.0
        return {term: share * weight for term, weight in self.weights.items()}

    @property
    def read_as(self) -> str | None:
        """The query as it was understood, for a person; None where it is as it was written."""
        return None if not self.texts or self.texts[0] == self.written else self.texts[0]

    def addressing(self, server: str, written: str) -> ReadQuery:
        """Return it as the rest of a query that names a server, too.

        The words are those of the rest; the vector is the mean of both, because a name may say what is meant,
        as in "opportunities in salesforce".
        """
        cores = tuple(f"{server}: {core}" for core in self.cores)
        alone = None if self.alone is None else f"{server}: {self.alone}"
        return replace(self, written=written, beside=(*self.beside, written), cores=cores, alone=alone)

    def unlike(self, query: str) -> str | None:
        """Return a query that is understood as other words than its own; None for most."""
        return None if self.texts[:1] == (query,) else query


def read_query(
    query: str,
    has_term: Callable[[str], bool],
    catalog: Callable[[], WordList],
    stands_for: Mapping[str, str],
    translates: bool = True,
) -> ReadQuery:
    """Read a query.

    Statements become orders and the query is divided; then its words are explained one by one, so that the
    text says what they mean; last, each need is read for the action and the purpose that it asks for.

    Args:
        query: Anybody's words.
        has_term: Returns whether the catalog has an index term: words of the catalog are never corrected.
        catalog: Returns the words that a misspelled one may have meant, beside the packaged ones.
        stands_for: Configured words, in lower case, with the words that they stand for.
        translates: Read words of other languages as the English ones, for a model that knows only these.
    """
    said = without_pasted(query)[:QUERY_LIMIT]
    as_written = without_opener(encodable(said).strip())
    meant = corrected(as_written)
    written = ordered(rejoined(meant) if translates else meant)
    idiom = idiom_of(written)
    divided = _Divided.of(written, None if idiom is None else idiom.end)
    reader = _Reader(written, divided, has_term, catalog, stands_for=stands_for, translates=translates)
    service = service_of(without(written, divided.carried))
    whole = reader.read(idiom)
    if whole != written:
        divided = _Divided.of(whole, None if idiom is None else idiom.start + len(idiom.meant))
    asked, kinds, weights = reader.asked, reader.kinds, reader.weights
    added = {term: word for term, word in {**synonyms(asked), **reader.added}.items() if term not in asked}
    for term in added:
        weights.setdefault(term, SYNONYM_SHARE)
    parts = _parts(whole, divided)
    purpose = None if idiom is None else idiom.purpose
    if idiom is None and len(divided.needs) == 1:
        purpose = purpose_of(written)
        if purpose is not None and kinds and not purpose.added:
            purpose = None  # a value is in what is asked for, and not in the world
    by_need = np.array([added_for for added_for, _ in parts.values()] or [wanted("")])
    actions = {whole: by_need.max(axis=0), **{text: one for text, (one, _) in parts.items()}} if whole else {}
    texts = tuple(actions)
    beside = [] if _is_short(texts) else [content_words(whole)]
    if divided.carried:
        beside.append(without(whole, divided.carried))
    return ReadQuery(
        written=as_written,
        texts=texts,
        beside=tuple(text for text in dict.fromkeys(beside) if text not in ("", whole)),
        asked=asked,
        added=added,
        weights=weights,
        needs=tuple({term: weights[term] for term in terms(need) if term in weights} for need in texts[1:]),
        foreign=frozenset(term for term in reader.foreign if term in asked and not has_term(term)),
        orders=tuple(map(asks, texts[1:])),
        actions=np.array([*actions.values()], np.float32).reshape(len(texts), EFFECTS),
        is_unreadable=translates and is_unlatin(whole),
        is_gibberish=0 < reader.plain == reader.unknown and not kinds,
        purpose=purpose,
        purposes=tuple(parts[need][1] for need in texts[1:]),
        inside=contained(written) if len(divided.needs) == 1 else None,
        service=None if service is None else stem(service),
        cores=tuple(asked_in_story(meant) or (cores(meant) if written == meant else ())),
        alone=asked_alone(meant),
    )


class _Divided(Struct, frozen=True):
    """The parts of a query, as places in it: disjoint, in order."""

    needs: Sequence[Span]
    carried: Sequence[Span]
    """Text that orders only carry, and what is not to be done."""

    @classmethod
    def of(cls, query: str, after_idiom: int | None) -> _Divided:
        """Divide a query, which may open with an idiom of memory that ends at a place."""
        needs = needs_of(query)
        return cls(needs, _carried(query, needs, after_idiom))


class _Token(Struct, frozen=True):
    """A word or value of a query, without punctuation around it."""

    start: int
    text: str
    lower: str
    is_first: bool
    kind: str | None
    """The kind of a value; None for a word."""


_Meant: TypeAlias = "tuple[str, int] | None"
"""The words that a token stands for and the characters that they replace; None if a rule does not know it."""


class _Reader:
    """Reads the words of a query: how much each counts, and what it means.

    Each token is explained by the first of `RULES` that knows it. A rule counts the words of the token, and
    returns those that stand for it in the text that is embedded.
    """

    def __init__(
        self,
        written: str,
        divided: _Divided,
        has_term: Callable[[str], bool],
        catalog: Callable[[], WordList],
        *,
        stands_for: Mapping[str, str],
        translates: bool,
    ) -> None:
        self._written, self._divided = written, divided
        self._has_term, self._catalog, self._stands_for = has_term, catalog, stands_for
        said = without(written, divided.carried) if divided.carried else written
        self._translates = translates and is_translated(said)
        self._in_english = not self._translates and not is_foreign(said)
        self._openings = dict(_openings(written, divided.needs))
        """Where the words are with which needs open, each with the end of its need."""
        self._corrected = dict[str, str | None]()
        """Words that nobody knows, each with the word that was probably meant."""
        self.asked, self.added, self.weights = dict[str, str](), dict[str, str](), dict[str, float]()
        self.kinds = list[tuple[str, float]]()
        """Kinds of the values, with their weights."""
        self.foreign = set[str]()
        self.plain = self.unknown = 0
        """Number of words that say something, and of those that nobody knows."""

    def read(self, idiom: Idiom | None) -> str:
        """Count all words, and return the query with what they mean in their place."""
        pieces, end = list[str](), 0
        if idiom is not None:
            # No tool is named by it, but by the words for the same.
            self._count(idiom.meant, WRITTEN_OUT_SHARE, self.asked)
            pieces, end = [self._written[: idiom.start], idiom.meant], idiom.end
        carried = self._divided.carried
        values = [
            one
            for one in long_values(self._written, self._divided.needs)
            if not (is_arithmetic(one.kind) and within(one.start, carried))
            and (one.kind != JSON or self._says_enough_without(one))
        ]
        for token in _tokens(self._written, values):
            if token.start < end:
                continue
            weight = self._weight_of(token)
            known = (meant for rule in self.RULES if (meant := rule(self, token, weight)) is not None)
            text, length = next(known, (token.text, 0))
            self.plain += token.kind is None and token.lower not in STOP_WORDS
            if text is not token.text:
                pieces += [self._written[end : token.start], text]
                end = token.start + length
        for kind, weight in self.kinds:
            # Beside nothing but a verb, a value is all that the order is about: "close #42" means an issue.
            # Of arithmetic it is what is asked: "calculate" alone, as of a distance, is not yet all of it.
            among = self.asked if kind.startswith(ARITHMETIC) else self.added
            self._count(kind, weight if self.plain <= 1 else min(weight, VALUE_SHARE), among)
        return "".join([*pieces, self._written[end:]])

    def _says_enough_without(self, value: Value) -> bool:
        return len(telling_places(without(self._written, [(value.start, value.end)]))) >= LEAST_TELLING

    def _weight_of(self, token: _Token) -> float:
        return CARRIED_SHARE if within(token.start, self._divided.carried) else 1.0

    def _count(self, text: str, weight: float, among: dict[str, str]) -> None:
        for word in words(text):
            if word not in STOP_WORDS:
                term = stem(word)
                among.setdefault(term, word)
                self.weights[term] = max(weight, self.weights.get(term, 0.0))

    def _as_value(self, token: _Token, weight: float) -> _Meant:
        """Name the kind of a value. The ending of a file says much ("customers.csv"), the rest little.

        Beside a verb alone, the ending of a plain text says little: any tool that reads files may be meant.
        """
        if token.kind is None:
            return None
        ending = token.lower.rpartition(".")[2] if token.kind == "file" else ""
        self._count(token.text, min(weight, VALUE_SHARE), self.asked)
        is_all = ending in PLAIN_TEXT and self._written.partition(" ")[2] == token.text
        self._count(ending, VALUE_SHARE if is_all else weight, self.asked)
        self.kinds.append((token.kind, weight))
        kind = f"{ending} {token.kind}" if ending else token.kind
        return kind if kind == JSON else f"{token.text} ({kind})", len(token.text)

    def _as_short_form(self, token: _Token, weight: float) -> _Meant:
        """Write out a configured word, a short form, or a command of a shell that stands first."""
        meant = self._stands_for.get(token.lower) or written_out(token.text)
        if meant is None and token.is_first:
            meant = shell_meaning(token.lower, self._written[token.start :])
        if meant is None:
            return None
        self._count(token.text, weight, self.asked)
        self._count(meant, weight * WRITTEN_OUT_SHARE, self.added)
        return meant, len(token.text)

    def _as_phrase(self, token: _Token, weight: float) -> _Meant:
        """Use the words that tools have for an order: "get rid of" is to delete."""
        end = self._openings.get(token.start)
        if end is None or (said := reworded(self._written[token.start : end])) is None:
            return None
        length, meant = said
        if length == len(token.text):
            self._count(token.text, VALUE_SHARE, self.asked)
        self._count(meant, weight * WRITTEN_OUT_SHARE, self.added)
        return meant, length

    def _as_verb(self, token: _Token, weight: float) -> _Meant:
        """Tell a verb from its noun: to "file" has nothing to do with files, to "book" not with addresses."""
        del weight  # of these only the meaning counts, however it is said
        meant = _meaning_as_verb(token.lower, self._written[token.start :])
        if meant is None or token.start not in self._openings:
            return None
        self._count(token.text, VALUE_SHARE, self.asked)
        self._count(meant, SYNONYM_SHARE, self.added)
        return token.text if meant == token.lower else meant, len(token.text)

    def _as_foreign(self, token: _Token, weight: float) -> _Meant:
        """Translate a word of another language."""
        if not self._translates or weight < 1 or (meant := translated(token.text, token.is_first)) is None:
            return None
        self._count(token.text, weight, self.asked)
        self._count(meant, weight * CORRECTED_SHARE, self.asked)
        self.foreign.update(map(stem, words(token.lower)))
        return meant, len(token.text)

    def _as_word(self, token: _Token, weight: float) -> _Meant:
        """Correct a word that is misspelled. What is carried stays as it is, and so do names."""
        if token.lower in STOP_WORDS:
            return None
        meant = token.text
        # A capital letter within a sentence begins a name, which no list knows.
        if meant.isalpha() and (meant.islower() or (token.is_first and meant.istitle())):
            if weight == 1:
                self._correct(token.lower)
            self.unknown += token.lower in self._corrected and self._corrected[token.lower] is None
            meant = self._corrected.get(token.lower) or meant
        self._count(meant, weight if meant is token.text else weight * CORRECTED_SHARE, self.asked)
        return meant, len(token.text)

    def _correct(self, word: str) -> None:
        """Look for the word that was probably meant by one that neither the catalog nor English has."""
        found = self._corrected
        if word in found or self._has_term(stem(word)) or is_known(word):
            return
        corrected = sum(right is not None for right in found.values())
        may_be_wrong = len(found) < MOST_COMPARED and corrected < MOST_CORRECTED
        found[word] = correction(word, self._catalog) if self._in_english and may_be_wrong else None
        if not self._in_english:
            self.foreign.update(map(stem, words(word)))

    RULES: Final = (_as_value, _as_short_form, _as_phrase, _as_verb, _as_foreign, _as_word)


def _is_short(texts: Sequence[str]) -> bool:
    return len(texts) <= TEXTS_OF_ONE_NEED and all(len(text.split()) <= SHORT_QUERY for text in texts)


def _parts(whole: str, divided: _Divided) -> dict[str, tuple[NDArray[np.float32], Purpose | None]]:
    """Return the needs of a query as texts to embed, each with what it adds for actions and its purpose."""
    parts: dict[str, tuple[NDArray[np.float32], Purpose | None]] = {}
    several = len(divided.needs) > 1
    for start, end in divided.needs:
        need, order = whole[start:end], _uncarried(whole, start, end, divided.carried)
        if several and not content_words(order) and denied(need):
            continue
        serving = None
        if several:
            own = idiom_of(need)
            serving = purpose_of(need) if own is None else own.purpose
        of_need = wanted(order), serving
        parts |= {chunk: of_need for chunk in chunks(need) if len(parts) < QUERY_NEEDS}
    return parts


def _carried(query: str, needs: Sequence[Span], after_idiom: int | None) -> list[Span]:
    """Return where a query has text that its orders only carry: disjoint, in order.

    All that follows an idiom of memory in its need is carried, and so is what is not to be done.
    """
    spans = quotations(query)
    for start, end in needs:
        if after_idiom is not None and start < after_idiom <= end:
            spans.append((after_idiom, end))
            continue
        need = query[start:end]
        telling, first = None, ""
        if unwanted := denied(need):
            telling, first = telling_places(need), _first_word(need)
            if len(needs) > 1 or not all(within(place, unwanted) for place in telling):
                spans += ((start + a, start + b) for a, b in unwanted)
        for match in _CARRIED.finditer(need):
            if telling is None:
                telling, first = telling_places(need), _first_word(need)
            may_carry = first in _CARRYING
            if match.group().startswith(":"):
                # An order opens soon, and a query may have thousands of colons.
                may_carry = may_carry or not asks(need[match.end() : match.end() + FIRST_OF_QUERY])
            if may_carry and bisect_left(telling, match.start()) >= LEAST_TELLING:
                spans.append((start + match.end(), end))
                break
    return joined(spans)


def _first_word(text: str) -> str:
    """Return the first telling word of a text, in lower case."""
    return next((w for one in _WORD.finditer(text) if (w := one.group().lower()) not in STOP_WORDS), "")


def _uncarried(query: str, start: int, end: int, carried: Sequence[Span]) -> str:
    """Return a part of a query without the text that it carries."""
    inside = [(max(a, start) - start, b - start) for a, b in carried if a < end and b > start]
    return without(query[start:end], inside)


def _tokens(query: str, values: Sequence[Value]) -> Iterator[_Token]:
    """Yield the words and values of a query; a value of several words is one token."""
    is_first, at = True, 0
    for value in [*values, None]:
        end = len(query) if value is None else value.start
        for match in _TOKEN.finditer(query, at, end):
            token = match.group().rstrip(EDGES + ".")
            bare = token.lstrip(EDGES)
            if bare.isdigit() and token == f"!{bare}":
                bare = token
            if bare:
                start = match.start() + len(token) - len(bare)
                yield _Token(start, bare, bare.lower(), is_first, value_kind(bare))
                is_first = False
        if value is not None:
            text = query[value.start : value.end]
            yield _Token(value.start, text, text.lower(), is_first, value.kind)
            is_first, at = False, value.end


def _openings(query: str, needs: Sequence[Span]) -> Iterator[Span]:
    """Yield where the words are with which the needs of a query open, and where the needs end."""
    for start, end in needs:
        if (match := opening_match(query[start:end])) is not None:
            yield start + match.start(), end


def _meaning_as_verb(word: str, query: str) -> str | None:
    """Return the meaning of a word that is a noun as well, where the words after it say that it is a verb."""
    if word not in ("book", "file", "log", "open"):
        return None
    following = [one.strip(EDGES + ".").lower() for one in query.split(maxsplit=5)[1:5]]
    if not following or following[0] not in _AFTER_VERBS:
        return None
    if word == "book":
        return "book" if _MEETINGS.isdisjoint(following) else "schedule"
    return None if word == "open" and _TRACKED.isdisjoint(following) else "create"
