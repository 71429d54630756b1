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
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from mcp_context_proxy.retrieval.forms import (
    ARITHMETIC,
    EDGES,
    FIRST_OF_QUERY,
    Value,
    WordList,
    correction,
    is_arithmetic,
    long_values,
    same_letters,
    shell_meaning,
    value_kind,
    written_out,
)
from mcp_context_proxy.retrieval.item_metadata import (
    DELETE,
    EFFECTS,
    ORDERS,
    VERBS,
    opening_match,
    wanted,
)
from mcp_context_proxy.retrieval.needs import (
    ARTICLES,
    KEEPS,
    LEAST_TELLING,
    ONE,
    Span,
    antecedent,
    asks,
    cores,
    denied,
    needs_of,
    ordered,
    quotations,
    within,
    without_opener,
)
from mcp_context_proxy.retrieval.purposes import (
    Purpose,
    done_to_things,
    idiom_of,
    purpose_of,
    reworded,
    service_of,
)
from mcp_context_proxy.retrieval.text import (
    STOP_WORDS,
    SYNONYM_SHARE,
    chunks,
    content_words,
    encodable,
    is_foreign,
    is_known,
    is_translated,
    stem,
    synonyms,
    telling_places,
    terms,
    translated,
    words,
)
from mcp_context_proxy.system.later import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUERY_LIMIT = 8_192
"""Characters of a query that are used."""

QUERY_NEEDS = 12
"""Needs of a query that are embedded beside the whole; each costs about 2 ms."""

CORRECTED_SHARE = 0.8
"""Weight of a corrected word: less than that of the same word written right."""

WRITTEN_OUT_SHARE = 0.7
"""Weight of the words that a short form stands for."""

VALUE_SHARE = 0.3
"""Weight of a word in a value, and of the words that say what the value is, unless it is all that an order is
about."""

CARRIED_SHARE = 0.4
"""Weight of a word that an order only carries."""

REPORTED_SHARE = 0.2
"""The same for what is reported: "that deleting fails" has the words of another order."""

MOST_CORRECTED = 4
"""Words of a query that are corrected; with more, it is probably in another language."""

MOST_COMPARED = 8
"""Unknown words of a query that are compared with others; each takes about a millisecond."""

_AS_VERBS: Final[Mapping[str, str]] = {"file": "create", "book": "book", "log": "create", "open": "open"}
"""Verbs that are names of something else as nouns, or have several meanings, with how they are understood
where they open an order."""

_MEETINGS: Final = frozenset({"meeting", "call", "appointment", "slot", "session", "interview", "lunch"})
"""What is booked in a calendar and not in a shop: "book a meeting" is to schedule one."""

_TRACKED: Final = frozenset(
    {"ticket", "issue", "bug", "case", "incident", "pr", "mr", "pull", "merge", "request"}
)
"""What is opened when it is made: "open a ticket" is to create it, and "open a file" is not."""

_AFTER_VERBS: Final = frozenset({"a", "an", "another", "me", "us", "my", "some"})
"""Words that follow such a verb: "file a bug", but not "file the report under finance"."""

_DELETING: Final = frozenset(verb for verb, action in VERBS.items() if action == "delete")

_TOKEN = re.compile(r"\S+")
_WORD = re.compile(r"[A-Za-z]+")
_CARRYING_VERBS = """
file create report log post send write jot scribble tell remind note email message mail dm reply comment
announce draft inform ask open raise submit
"""
_CARRYING: Final = frozenset(_CARRYING_VERBS.split())
"""Verbs whose object may have a text of its own: what follows "that", "about" or "saying"."""

_NOTING: Final = frozenset({"note", "jot", "scribble"})
"""Those of them that need no other object: "note that tabs are preferred"."""

_CARRIED = re.compile(
    r":\s++|\s(?:that|about|saying|says|titled|called|named)\s++(?!(?:it|this|them|these|those)\b)",
    re.IGNORECASE,
)
"""Places where that begins which an order carries: after a colon with any verb, otherwise with those of
`_CARRYING`."""

_ADDRESSED = re.compile(
    r"\b(?:in|on|from|to|into|via|with|using|at|of|for)\s+(?:(?:our|my|the|your|this)\s+)?(?P<after>[A-Za-z][\w-]*)"
    r"|(?<=[a-z] )(?P<name>[A-Z]\w*)"
)
"""Words by which a server may be addressed: "in our Notion", "on GitHub", "a Jira ticket"."""


class ReadQuery(Struct, frozen=True):
    """A query as it is searched for."""

    written: str
    """The query as it was written, up to `QUERY_LIMIT`, without a word such as "ok," before it."""
    texts: tuple[str, ...]
    """The texts that are embedded, each once: all of it as it was understood, then its needs as chunks. Empty
    for an empty query."""
    beside: tuple[str, ...]
    """Texts whose vectors are averaged with that of the whole: its telling words, and its orders without what
    they carry."""
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

    addressed: frozenset[str]
    """Words in lower case that may be names of servers: "in our Notion", "a Slack channel"."""
    is_gibberish: bool
    """True if nobody knows any of its words: its vector is that of nothing."""
    purpose: Purpose | None
    """The general purpose of a single need; None for most."""
    purposes: tuple[Purpose | None, ...]
    """The same for each text but the first, of a query of several needs."""
    refused: frozenset[str]
    """Stems of verbs that it says are not to be done, and does not ask for elsewhere: "don't merge it"."""
    service: str | None
    """The service that it is for by name (`purposes.service_of`), as an index term."""
    cores: tuple[str, ...]
    """What it may mean if some of it is only told (`needs.cores`)."""

    @property
    def read_as(self) -> str | None:
        """The query as it was understood, for a person; None where it is as it was written."""
        return None if not self.texts or self.texts[0] == self.written else self.texts[0]

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

    Args:
        query: Anybody's words.
        has_term: Returns whether the catalog has an index term: words of the catalog are never corrected.
        catalog: Returns the words that a misspelled one may have meant, beside the packaged ones.
        stands_for: Configured words, in lower case, with the words that they stand for.
        translates: Read words of other languages as the English ones, for a model that knows only these.
    """
    as_written = without_opener(encodable(query[:QUERY_LIMIT]).strip())
    written = ordered(as_written)
    asked, added, weights = dict[str, str](), dict[str, str](), dict[str, float]()

    def count(text: str, weight: float, among: dict[str, str]) -> None:
        for word in words(text):
            if word not in STOP_WORDS:
                term = stem(word)
                among.setdefault(term, word)
                weights[term] = max(weight, weights.get(term, 0.0))

    needs, idiom = needs_of(written), idiom_of(written)
    carried, reported = _carried(written, needs, None if idiom is None else idiom.end)
    openings = dict(_openings(written, needs))
    spoken = _without(written, carried) if carried else written
    translates = translates and is_translated(spoken)
    in_english = not translates and not is_foreign(spoken)
    compared, foreign = dict[str, str | None](), set[str]()
    kinds, plain, unknown = list[tuple[str, float]](), 0, 0
    pieces, end = list[str](), 0
    if idiom is not None:
        # No tool is named by it, but by the words for the same.
        count(idiom.meant, WRITTEN_OUT_SHARE, asked)
        pieces, end = [written[: idiom.start], idiom.meant], idiom.end
    values = [
        one
        for one in long_values(written, needs)
        if not is_arithmetic(one.kind) or not (carried and within(one.start, carried))
    ]
    for start, token, is_first, known_kind in _tokens(written, values):
        if start < end or (idiom is not None and idiom.start <= start < idiom.end):
            continue
        weight, length = 1.0, len(token)
        if carried and within(start, carried):
            weight = REPORTED_SHARE if within(start, reported) else CARRIED_SHARE
        lower, replacement = token.lower(), token
        if (kind := known_kind or value_kind(token)) is not None:
            # The ending of a file says much ("customers.csv"), the rest of a value little.
            ending = token.rpartition(".")[2].lower() if kind == "file" else ""
            count(token, min(weight, VALUE_SHARE), asked)
            count(ending, weight, asked)
            kinds.append((kind, weight))
            replacement = f"{token} ({ending} {kind})" if ending else f"{token} ({kind})"
        elif (meant := stands_for.get(lower) or written_out(token)) is not None or (
            is_first and (meant := shell_meaning(lower, written[start:])) is not None
        ):
            count(token, weight, asked)
            count(meant, weight * WRITTEN_OUT_SHARE, added)
            replacement = meant
        elif start in openings and (said := reworded(written[start : openings[start]])) is not None:
            length, replacement = said
            if length == len(token):
                count(token, VALUE_SHARE, asked)
            count(replacement, weight * WRITTEN_OUT_SHARE, added)
        elif start in openings and (meant := _as_verb(lower, written[start:])) is not None:
            # As a verb, "file" has nothing to do with files, and "book" nothing with address books.
            count(token, VALUE_SHARE, asked)
            count(meant, SYNONYM_SHARE, added)
            replacement = token if meant == lower else meant
        elif translates and weight == 1 and (meant := translated(token, is_first)) is not None:
            count(token, weight, asked)
            count(meant, weight * CORRECTED_SHARE, asked)
            foreign.update(map(stem, words(lower)))
            replacement = meant
        elif lower not in STOP_WORDS:
            # A capital letter within a sentence begins a name, which no list knows.
            if token.isalpha() and (token.islower() or (is_first and token.istitle())):
                # What is carried stays as it is.
                is_strange = weight == 1 and lower not in compared and not has_term(stem(lower))
                if is_strange and not is_known(lower):
                    corrected = sum(right is not None for right in compared.values())
                    may_be_wrong = len(compared) < MOST_COMPARED and corrected < MOST_CORRECTED
                    compared[lower] = correction(lower, catalog) if in_english and may_be_wrong else None
                    if not in_english:
                        foreign.update(map(stem, words(lower)))
                elif is_strange and start in openings and (order := same_letters(lower, ORDERS)):
                    compared[lower] = order
                unknown += lower in compared and compared[lower] is None
                replacement = compared.get(lower) or token
            count(replacement, weight if replacement is token else weight * CORRECTED_SHARE, asked)
        plain += kind is None and lower not in STOP_WORDS
        if replacement is not token:
            pieces += [written[end:start], replacement]
            end = start + length
    for kind, weight in kinds:
        # Beside nothing but a verb, a value is all that the order is about: "close #42" means an issue.
        # Of arithmetic it is what is asked: "calculate" alone, as of a distance, is not yet all of it.
        among = asked if kind.startswith(ARITHMETIC) else added
        count(kind, weight if plain <= 1 else min(weight, VALUE_SHARE), among)
    whole = written
    if pieces:
        whole = "".join([*pieces, written[end:]])
        needs = needs_of(whole)
        carried, reported = _carried(whole, needs, None if idiom is None else idiom.start + len(idiom.meant))
    added = {term: word for term, word in {**synonyms(asked), **added}.items() if term not in asked}
    for term in added:
        weights.setdefault(term, SYNONYM_SHARE)
    parts: dict[str, tuple[NDArray[np.float32], Purpose | None]] = {}
    verb = ""
    for start, end in needs:
        need, order = whole[start:end], _uncarried(whole, start, end, carried)
        if len(needs) > 1 and not content_words(order) and any(denied(need)):
            continue
        if need.partition(" ")[0].lower() in ARTICLES:
            need, order = f"{verb} {need}", verb
        elif (opened := opening_match(need)) is not None:
            verb = opened.group()
        serving = None
        if parts and (match := ONE.search(need)) and (meant := antecedent([*parts])):
            need = order = f"{need[: match.start()]}{meant}{need[match.end() :]}"
        if len(needs) > 1:
            own = idiom_of(need)
            serving = purpose_of(need) if own is None else own.purpose
        of_need = wanted(order), serving
        parts |= {chunk: of_need for chunk in chunks(need) if len(parts) < QUERY_NEEDS}
    purpose = idiom.purpose if idiom is not None else purpose_of(written) if len(needs) == 1 else None
    if purpose is not None and kinds and not purpose.added and idiom is None:
        purpose = None  # a value is in what is asked for, and not in the world
    by_need = np.array([added_for for added_for, _ in parts.values()] or [wanted("")])
    actions = {whole: by_need.max(axis=0), **{text: one for text, (one, _) in parts.items()}} if whole else {}
    texts = tuple(actions)
    beside = [content_words(_without(whole, reported) if reported else whole)]
    if carried:
        beside.append(_without(whole, carried))
    return ReadQuery(
        written=as_written,
        texts=texts,
        beside=tuple(text for text in dict.fromkeys(beside) if text not in ("", whole)),
        asked=asked,
        added=added,
        weights=weights,
        needs=tuple({term: weights[term] for term in terms(need) if term in weights} for need in texts[1:]),
        foreign=frozenset(term for term in foreign if term in asked and not has_term(term)),
        orders=tuple(map(asks, texts[1:])),
        actions=np.array([*actions.values()], np.float32).reshape(len(texts), EFFECTS),
        addressed=frozenset(_addressed(whole)),
        is_gibberish=0 < plain == unknown and not kinds,
        purpose=purpose,
        purposes=tuple(parts[need][1] for need in texts[1:]),
        refused=_refused(whole, reported),
        service=None if (service := service_of(written)) is None else stem(service),
        cores=tuple(cores(as_written)) if written == as_written else (),
    )


def _carried(query: str, needs: Sequence[Span], after_idiom: int | None) -> tuple[list[Span], list[Span]]:
    """Return where a query has text that its orders only carry, and what they report: disjoint, in order.

    All that follows an idiom of memory in its need is carried, and so is what is not to be done.
    """
    spans, reported = quotations(query), list[Span]()
    for start, end in needs:
        if after_idiom is not None and start < after_idiom <= end:
            spans.append((after_idiom, end))
            reported.append(spans[-1])
            continue
        need = query[start:end]
        telling, first = None, ""
        if unwanted := [*((a, b) for a, b, _ in denied(need)), *done_to_things(need)]:
            telling, first = telling_places(need), _first_word(need)
            if len(needs) > 1 or not all(within(place, unwanted) for place in telling):
                spans += ((start + a, start + b) for a, b in unwanted)
                reported += spans[-len(unwanted) :]
        for match in _CARRIED.finditer(need):
            if telling is None:
                telling, first = telling_places(need), _first_word(need)
            may_carry = first in _CARRYING
            if match.group().startswith(":"):
                # An order opens soon, and a query may have thousands of colons.
                may_carry = may_carry or not asks(need[match.end() : match.end() + FIRST_OF_QUERY])
            least = 1 if first in _NOTING else LEAST_TELLING
            if may_carry and bisect_left(telling, match.start()) >= least:
                spans.append((start + match.end(), end))
                if match.group().split()[0].lower() == "that":
                    reported.append(spans[-1])
                break
    return _joined(spans), _joined(reported)


def _refused(query: str, reported: Sequence[Span]) -> frozenset[str]:
    """Return the stems of verbs that are not to be done, unless the query asks for them as well."""
    verbs = {verb for start, _, verb in denied(query) if verb and within(start, reported)}
    if KEEPS.search(query) is not None:
        verbs.add("delete")
    if not verbs:
        return frozenset()
    asked = [*words(_without(query, reported))]
    if any(map(_deletes, verbs)) and not any(map(_deletes, asked)):
        verbs |= _DELETING
    return frozenset(map(stem, verbs)).difference(map(stem, asked))


def _deletes(verb: str) -> bool:
    """Return whether an order that opens with a verb rather asks to delete: "cancel"."""
    return bool(wanted(verb)[DELETE] > 0)


def _addressed(query: str) -> Iterator[str]:
    """Yield the words of a query that may be names of servers."""
    for match in _ADDRESSED.finditer(query[:FIRST_OF_QUERY]):
        yield from match[match.lastgroup or 0].lower().split("-")


def _first_word(text: str) -> str:
    """Return the first telling word of a text, in lower case."""
    return next((w for one in _WORD.finditer(text) if (w := one.group().lower()) not in STOP_WORDS), "")


def _joined(spans: list[Span]) -> list[Span]:
    """Return spans in order, those that overlap as one."""
    joined = list[Span]()
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _without(query: str, spans: Sequence[Span]) -> str:
    kept, at = list[str](), 0
    for start, end in spans:
        kept.append(query[at:start])
        at = end
    return " ".join("".join([*kept, query[at:]]).split())


def _uncarried(query: str, start: int, end: int, carried: Sequence[Span]) -> str:
    """Return a part of a query without the text that it carries."""
    inside = [(max(a, start) - start, b - start) for a, b in carried if a < end and b > start]
    return _without(query[start:end], inside)


def _tokens(query: str, values: Sequence[Value]) -> Iterator[tuple[int, str, bool, str | None]]:
    """Yield each token without punctuation around it: where it starts, itself, whether it is the first.

    A value of several words is one token, and comes with its kind.
    """
    is_first, at = True, 0
    for value in [*values, None]:
        end = len(query) if value is None else value.start
        for match in _TOKEN.finditer(query, at, end):
            token = match.group().rstrip(EDGES + ".")
            bare = token.lstrip(EDGES)
            if bare.isdigit() and token == f"!{bare}":
                bare = token
            if bare:
                yield match.start() + len(token) - len(bare), bare, is_first, None
                is_first = False
        if value is not None:
            yield value.start, query[value.start : value.end], is_first, value.kind
            is_first, at = False, value.end


def _openings(query: str, needs: Sequence[Span]) -> Iterator[Span]:
    """Yield where the words are with which the needs of a query open, and where the needs end."""
    for start, end in needs:
        if (match := opening_match(query[start:end])) is not None:
            yield start + match.start(), end


def _as_verb(word: str, query: str) -> str | None:
    """Return the meaning of a word as a verb, where the words after it say that it is one."""
    following = [one.strip(EDGES + ".").lower() for one in query.split(maxsplit=5)[1:5]]
    as_verb = _AS_VERBS.get(word) if following and following[0] in _AFTER_VERBS else None
    if as_verb == "book" and not _MEETINGS.isdisjoint(following):
        as_verb = "schedule"
    if as_verb == "open":
        as_verb = None if _TRACKED.isdisjoint(following) else "create"
    return as_verb


HISTORY_DECAY = 0.5
"""Factor of the weight of an earlier query with each step back."""


def query_vectors(
    query: ReadQuery, embed: Callable[[Sequence[str]], NDArray[np.float32]], history: Sequence[str] = ()
) -> NDArray[np.float32] | None:
    """Return one row of norm 1 for each text of a query; None for a query without a letter.

    The row of the whole query is the mean of that of the text and of those beside it (`ReadQuery.beside`). So
    phrases that all queries share ("could you please help me") count half, and the grammar still counts.

    Earlier queries pull it towards them. Their words are not added to those of the query: an old one that is
    rare would outweigh the words of the new query.
    """
    if not query.texts:
        return None
    vectors = embed([*query.texts, *query.beside, *history])
    count, beside = len(query.texts), len(query.beside)
    rows = vectors[:count].copy()
    if beside:
        rows[0] = _normalised(vectors[0] + vectors[count : count + beside].sum(axis=0), rows[0])
    if history:
        weights = HISTORY_DECAY ** np.arange(1, len(history) + 1, dtype=np.float32)
        rows[0] = _normalised(rows[0] + weights @ vectors[-len(history) :], rows[0])
    return rows


def _normalised(vector: NDArray[np.float32], otherwise: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else otherwise
