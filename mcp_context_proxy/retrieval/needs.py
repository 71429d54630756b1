"""Reads the orders of a query: what they want done, what statements order, where one need ends.

A query goes through these steps (`queries.read_query`):

1. `text.without_opener` takes away words that only go on with a conversation: "ok, and now".
2. `corrected` leaves out orders that are taken back. `ordered` puts orders in the place of statements that
   mean them: "there should be a room for it".
3. `needs_of` divides it: "find the page and mail it to Tom" has two needs.
4. Of each need, `opening_match` finds the word with which its order opens, after courtesies. `wanted` says
   how much tools of each action gain by that word.
5. `denied` finds what is not to be done, `cores`, `asked_in_story` and `asked_alone` what is not only told.

Before these, `address_of` tells the name of a server from what is wanted of it.

Words are in tables (``vocabulary.txt``), forms of sentences in the patterns of each step. Strangers write
queries: every pattern takes time in the length of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Final

from msgspec import Struct

from mcp_context_proxy.retrieval.forms import FIRST_OF_QUERY, SOMEBODY
from mcp_context_proxy.retrieval.item_metadata import ASKS_FOR_FACTS, CHANGING, ORDERS, additions
from mcp_context_proxy.retrieval.text import (
    STOP_WORDS,
    Span,
    clauses,
    identifier_words,
    listed,
    quotations,
    sentences,
    spoken,
    stem,
    telling_places,
    within,
)
from mcp_context_proxy.system.later import NDArray, np, pattern

LEAST_TELLING = 2
"""Telling words (no stop words) on each side of a division, and of an order before what it carries. One is
enough before it for a verb with its object ("submit it, wait until"), and for questions on both sides."""

_WORD = pattern(r"[A-Za-z]+")
QUESTIONS: Final = listed("questions")
"""Words with which a question begins."""

_ORDERS: Final = ORDERS | listed("orders within")
"""Verbs with which a need begins. Those that only this module knows may be the names of servers."""

_ASKING: Final = _ORDERS | QUESTIONS
"""Words with which a text opens that asks for something."""


# The word with which an order opens, and the action that it wants.

_COURTESIES: Final = listed("before orders")
BEFORE_NOUNS: Final = listed("before nouns")
"""Words after which a verb is a noun: "the build is red" and "any new mail" order nothing."""


def opening(order: str) -> str:
    """Return the word with which an order opens, stemmed unless it asks; empty without one."""
    match = opening_match(order)
    word = "" if match is None else match.group().lower()
    return word if word in QUESTIONS else stem(word)


def opening_match(order: str) -> re.Match[str] | None:
    """Return where the word is with which an order or a question opens."""
    for match in _WORD.finditer(order):
        word = match.group().lower()
        if word in QUESTIONS or (len(word) > 1 and word not in STOP_WORDS and word not in _COURTESIES):
            return match
    return None


def wanted(order: str) -> NDArray[np.float32]:
    """Return the amount that is added to the score of a tool for its effect, by position."""
    amounts = additions(ASKS_FOR_FACTS.match(order) is not None)
    return amounts.get(opening(order), amounts[""])


# Where one need ends and the next begins.

_LATER = r"(?:then|also|afterwards|finally|after\s+that|besides)"
_DIVIDER = spoken(
    rf"(?:,\s*+(?:and\s++)?{_LATER}|(?<=\s)and\s++{_LATER}|(?<=\s){_LATER})(?:\s*+,)?\s++(?=\S)"
    r"|(?:(?:,\s*+|(?<=\s))(?P<and>and(?:\s++if\s++(?:so|yes|not|no),?)?|&|plus"
    r"|(?:so(?:\s++that)?|because)\s++(?:I|we|you)(?:\s++(?:can|could|may|have\s++to|need\s++to|want\s++to)))"
    r"|,|\s[-–•])\s++(?=(?P<next>[A-Za-z]+))"
)
"""Places where a need may begin: after a word such as "then" always, otherwise where a verb follows, and
after "and" also where a question does."""

_LETS_KNOW = spoken(r"let (?:[\w'#-]+ ){1,4}?know\b")
"""Beginnings of an order whose first word is none by itself."""

_YES_OR_NO = spoken(
    r"(?:is|are|was|were|do|does|did|has|have|can|will) (?:there|its?|they|he|she|the|my|our|any\w*|some\w*"
    r"|we|i)\b"
)
"""Beginnings of questions for a yes or no."""

_CONDITION = spoken(r"\W*(?:if|once|after|before|when|as soon as|should)\s")
"""Beginnings of needs that come before another: "after you have read it, ..."."""

_WITH_OBJECT = spoken(r"\W*[a-z]+\s++(?:it|them|this|that|these|those|the|my|our|your|all|everything|an?)\b")
"""Beginnings of orders that have an object: "submit it"."""


def needs_of(query: str) -> list[Span]:
    """Return where the needs of a query are: its sentences, divided where a new order begins.

    Both sides of a division say enough to be looked for: "read and write files" and "terms and conditions"
    stay whole. Nothing is divided within a quotation.
    """
    needs, at = list[Span](), 0
    for sentence in sentences(query):
        at = query.index(sentence, at)
        needs += ((at + start, at + end) for start, end in _needs_of(sentence))
        at += len(sentence)
    # The numbers of a list are none.
    return [(start, end) for start, end in needs if any(map(str.isalpha, query[start:end]))] or needs


def _needs_of(sentence: str) -> Iterator[Span]:
    """Yield where the needs of a sentence are.

    A divider ends a need if something is asked for after it and both sides say enough, outside quotations.
    """
    start, opened = 0, opening_match(sentence)
    telling: list[int] | None = None
    quoted = list[Span]()
    for divider in _DIVIDER.finditer(sentence):
        following = (divider["next"] or "").lower()
        asks_too = divider["and"] and (
            following in QUESTIONS or _YES_OR_NO.match(sentence, divider.end()) is not None
        )
        orders = following in _ORDERS or _LETS_KNOW.match(sentence, divider.end())
        if following and not orders and not asks_too:
            continue
        if telling is None:  # most sentences have no divider
            telling, quoted = telling_places(sentence), quotations(sentence)
        has_opened = opened is not None and start + opened.end() <= divider.start()
        first = opened.group().lower() if opened is not None and has_opened else ""
        both_ask = asks_too and (first in _ASKING or _YES_OR_NO.match(sentence, start) is not None)
        least = 1 if both_ask or _WITH_OBJECT.match(sentence, start) else LEAST_TELLING
        before = bisect_left(telling, divider.start()) - bisect_left(telling, start)
        after = len(telling) - bisect_left(telling, divider.end())
        enough = before >= least and after >= (1 if both_ask else LEAST_TELLING)
        if enough and not within(divider.start(), quoted):
            yield start, len(sentence[: divider.start()].rstrip())
            start, opened = divider.end(), opening_match(sentence[divider.end() :])
    yield start, len(sentence)


def asks(need: str) -> bool:
    """Return whether a need opens with an order or a question, or is a condition of another."""
    return _opens_with(need, _ASKING) or any(one.match(need) for one in (_LETS_KNOW, _YES_OR_NO, _CONDITION))


def _opens_with(text: str, words: Set[str]) -> bool:
    if (match := opening_match(text)) is None or match.group().lower() not in words:
        return False
    return text[: match.start()].rstrip().rpartition(" ")[2].lower() not in BEFORE_NOUNS


# What is not to be done.

_DENIED: Final = spoken(
    r"\b(?:(?:(?:do|should|must)(?: not|n['’]?t)|never|not to|without|instead of|rather than|no need to)\b"
    r"(?: (?:want(?:ing)?|going|need|have|be|being|been|get|ever|actually|yet|please|mind|to|you|it|them"
    r"|this|that|these|those|any(?:thing|one)?)){0,4}"
    r" (?P<verb>\w+)"
    r"|(?:(?:^|[,.;:!?])\s*|\b(?:but|and|please|just) )(?P<nothing>\w+) (?:nothing|none)\b"
    r"(?: of (?:it|them|these|those))?)"
    r"[^,.;:!?\n]*?(?=[,.;:!?\n]|$| (?:but|just|only|and|tell|show|list|give|get|check|find|let|please)\b)",
    "n't|n’t|dont|shouldnt|mustnt|never|not|without|instead|rather|no need|none",
)
"""Clauses that say what is not to be done: "don't delete anything", "without changing it", "merge none"."""


def denied(request: str) -> list[Span]:
    """Return where a request says which changes are not to be made."""
    found = _DENIED.finditer(request)
    return [one.span() for one in found if stem((one["verb"] or one["nothing"]).lower()) in CHANGING]


_TAKEN_BACK = (
    r"(?P<back>(?:(?:actually|wait|sorry|hold on)[,.]? )?(?:no(?:,? (?:no|wait))*|scratch that|never ?mind"
    r"|forget (?:that|it)|on second thoughts?|not that(?: one)?|wrong))(?:[,.!]+ (?!\d)|(?= I meant\b))"
)
_BETTER = (
    r"(?<![,;]\s)(?:actually,? |(?:sorry|wait|hold on), )(?![^.!?]{0,200}\b(?:also|too|as well|before that)\b"
    r"|(?:and|then|before|after|there|that|it)\b)|(?=(?:better|rather|I meant?|I['’]d rather)\b(?! than\b))"
)
_CORRECTION: Final = spoken(
    rf"(?s)(?:(?<=[.!?…,;])\s*|\s[-–—]\s*)(?:(?:oh|hm+|or|but|well)\b[, .…]*)?(?:{_TAKEN_BACK}|{_BETTER})"
    r"(?:don['’]?t[,.;] |(?:just|only|better) |rather |I (?:meant?|wanted|want|would rather)(?: to)?\b:? "
    r"|I['’]d rather )*(?P<meant>\S.*)",
    "actually|wait|hold on|sorry|no,|no.|no!|scratch|never|forget|thought|not that|wrong|mean|rather|better",
)
"""Words that take an order back, with what is meant instead: "delete it. Actually no, rename it"."""


def corrected(query: str) -> str:
    """Return a query without the order that it takes back, of which the object stays if it is needed."""
    if (match := _CORRECTION.search(query)) is None or within(match.start(), quotations(query)):
        return query
    before, meant = query[: match.start()], match["meant"]
    start, end = (needs_of(before) or [(0, 0)])[-1]
    # The last order may have been interrupted: "export it and print... no, mail it".
    orders = (one.end() for one in _DIVIDER.finditer(before, start, end) if one["next"] in _ORDERS)
    start = max(orders, default=start)
    undone = before[start:end]
    opened, asked, asks_again = opening_match(undone), asks(undone), asks(meant)
    thing = "" if opened is None else undone[opened.end() :].strip(" .…!?,;")
    # No order is taken back by "no wait, on Tuesday", "is it up? No, start it", "tell Tom: wait, begin".
    takes_back = asks_again >= asked if match["back"] else asked and asks_again
    is_question = before.endswith("?") and ASKS_FOR_FACTS.match(undone) is not None
    if opened is None or not takes_back or is_question or ": " in thing:
        return query
    said = next((meant[:end] for _, end in needs_of(meant)), meant).rstrip(" .!?")
    goes_on = f" ({thing})" if thing and not _stands_alone(said) else ""
    return f"{before[:start]}{said}{goes_on}{meant[len(said) :]}"


# Statements that mean orders.

LONGEST_STATEMENT = 300
"""Characters of a statement that may mean an order."""

MOST_PARTS = 24
"""Sentences of a query, and clauses of a sentence, that are looked at for what is only told."""

_LET_KNOW: Final = spoken(
    rf"\blet (?P<who>{SOMEBODY}) know\b(?!.{{0,80}} (?:in|as|with|on) (?:an?|the|our) )", "know"
)
_SUBJECT = (
    r"(?P<what>(?!(?:I|we|you|he|she|there|if|when|nobody|no|(?:some|any|every)(?:body|one)|it(?:['’]s)?) )"
    r"[A-Za-z][^,;:?!]{0,80}?)"
)
_MISSING: Final = spoken(
    r"(?s)\W*(?:there (?:should|must|needs? to|ha(?:s|ve) to|ought to)(?: (?:now|also|really|rather"
    r"|actually|just))? be (?P<what>(?:an?|another|some|one) .+)"
    r"|(?:(?:I|we) (?:still )?(?:don['’]?t|do not) have|there(?:['’]s| is) (?:still )?no"
    r"|(?:I|we)(?:['’]ve| have) (?:still )?no) (?:any |an? )?(?P<none>[^,;:?!]+?) (?:yet|so far)\W*$)"
)
"""Statements that something is missing, which order it: "there should be a room for it"."""

_TROUBLED = (
    r"(?:(?:is|are|was|were|looks?|seems?|keeps?|went|(?:has|have|had)(?: been)?|gets?)"
    r"(?: (?:so|very|too|still|all|again|just|always|totally|really|completely|suddenly))*"
    r" (?:red|broken|failing|failed|down|stuck|hanging|slow|crashing|crashed|dead|dying|offline|unreachable"
    r"|unresponsive|unavailable|flaky|unhealthy|not (?:working|responding|starting|loading))"
    r"|(?:is|are)n['’]?t (?:working|responding|starting|loading)"
    r"|(?:does|do|did|wo|ca)n['’]?t (?:work|start|load|respond|build|compile|connect|open)"
    r"|(?:just )?(?:failed|crashed|broke|hangs?|fails?|crashes|times? out))\b"
)
_WHY = (
    r"(?:(?:so|and|but) )?(?:what (?:broke|happened|went wrong|gives|now)|what(?:['’]s| is) wrong"
    r"|why(?: is that)?|no idea why|(?:I|we|nobody|no one) .{0,12}knows? why"
    r"|(?:please |can you |could you )*(?:(?:have|take) a look|check|look into it|look|help)(?: please)?)"
)
_COMPLAINT: Final = spoken(
    rf"(?s)\W*(?P<of>{_SUBJECT} {_TROUBLED}(?:(?!\b(?:some(?:body|one)|should|must|needs?|please)\b)"
    rf"[^,;:?!])*)(?:[,;:?!]+ {_WHY})?\W*$"
)
"""Statements that something does not work."""


def ordered(query: str) -> str:
    """Return a query with the orders that its statements mean: who says that it fails wants to know why."""
    parts = list(islice(sentences(query), MOST_PARTS))
    asked = any(map(asks, parts))
    for sentence in (one for one in parts if len(one) <= LONGEST_STATEMENT and not asks(one)):
        if (missing := _MISSING.match(sentence)) is not None:
            query = query.replace(sentence, f"create {missing['what'] or missing['none']}", 1)
        elif not asked and (trouble := _COMPLAINT.match(sentence)) is not None:
            query = query.replace(sentence, f"show why {trouble['of']}", 1)
    return _LET_KNOW.sub(r"send message to \g<who>", query)


# Stories, in which only some is asked for.

_PERSON = r"(?:I|we|he|she|they|it|there|you|(?:some|every|no|any)(?:body|one|thing))"
_THING = (
    r"(?:(?:my|our|his|her|their|your|the|this|that|these|those|some|half|most|all) [\w'’-]+"
    r"(?: (?:from|of|in|on|at|with) (?:(?:the|my|our|a) )?[\w'’-]+)?(?: [\w'’-]+)?"
    r"|(?!(?:what|which|who|whose|when|where|why|how)\b)(?-i:[A-Z][a-z]+)(?: from \w+)?)"
)
_FINITE = (
    r"(?:['’](?:s|m|re|ve)\b|(?: (?:just|already|really|also|usually|always|still|never|often|probably"
    rf"|somehow|even|only|all))* (?:{'|'.join(sorted(listed('finite verbs')))}|\w+n['’]t)\b)"
)
_LED = r"\W*(?:(?:and|but|so|also|now|then|ok|okay|anyway|well|because|since|as|oh|ugh|hm+)\W+){0,4}"
_TELLS: Final = spoken(
    rf"{_LED}(?:(?:{_PERSON}|{_THING}){_FINITE}|{_PERSON} (?:\w+ly )?(?!need)\w+ed"
    r"|not (?:sure|urgent|in a hurry)|no (?:rush|hurry|idea)|long story|sorry|thanks|thank you|thx|cheers"
    r"|hope|hi|hello|hey|good (?:morning|evening|afternoon)|fyi|by the way|btw)\b"
)
"""Beginnings of statements, and of what is only said."""

_WISHES: Final = spoken(
    r"\b(?:(?:can|could|would|will) (?:you|u|someone|somebody|anyone|anybody)\b|please\b|pls\b|should|must"
    r"|(?:I|we)(?:['’]d| would)?(?: (?:just|only|really|also|now|still|simply))* (?:need|want|like|love)\b"
    r"|(?:need|has|have)s? to\b|wonder|interested\b|curious about|looking (?:for|to|at|into)\b|planning"
    r"|considering|searching|trying|hoping|going to\b|travell?ing|working on|thinking (?:of|about)\b|in need"
    r"|conducting|preparing|writing|building|studying)"
)
"""Words of one who wants something: "I'm planning a trip" is no mere statement."""

_REFERS: Final = spoken(r"\b(?:it|its|them|that|this|those|these|him|one)\b")
_GOES_ON: Final = spoken(
    r"(?:then|next|finally|lastly|also|additionally|furthermore|moreover|after(?:wards| that)), "
    r"|(?:if|once|after) .{1,80}, please\b"
)
"""Beginnings of the next of several requests, each of which has more said of it."""
LEAST_OF_STORY = 4
"""Sentences from which on a story is long: no vector of all of it says which of them is the request."""

LEAST_OF_REFERENCES = 4
"""Telling words of a request that speaks of something told before, from which on it stands alone."""


def cores(query: str) -> list[str]:
    """Return what a query may mean if some of it is a story: the same without its statements.

    "The deployment went wrong, we want the version from before" has to be read as a whole, so whoever
    searches compares both with the catalog. What several needs are about may be told before them.
    """
    parts = list(islice(sentences(query), MOST_PARTS))
    asking = [one for one in parts if not _only_tells(one)]
    found = [" ".join(asking)] if len(asking) < len(parts) else []
    remaining = asking or parts[-1:]
    for at, one in enumerate(remaining):
        if _TELLS.match(one) is not None:
            wish = _WISHES.search(one)
            ends = clauses(one, MOST_PARTS, None if wish is None else wish.start())
            asked = [end for end in ends if _TELLS.match(one, end) is None]
            found += [" ".join([one[end:], *remaining[at + 1 :]]) for end in (asked[:1] + asked[1:][-1:])]
            break
    return [one for one in dict.fromkeys(found) if _stands_alone(one) and len(needs_of(one)) == 1]


def asked_in_story(query: str) -> list[str]:
    """Return what a long story may ask for: its orders together, its questions, and what is no statement.

    What says too little by itself is read with the sentence before it. Before a colon a story only leads on.
    """
    parts = list(islice(sentences(query), MOST_PARTS))
    if len(parts) < LEAST_OF_STORY or any(map(_GOES_ON.match, parts)):
        return []
    found, request, told = list[str](), -1, 0
    for at, part in enumerate(parts):
        before, _, after = part.partition(": ")
        said, tells = after if after and not asks(before) else part, _only_tells(part)
        wants = not tells and _wants(said)
        orders = wants and _opens_with(said, _ORDERS)
        if orders and request >= 0:
            found[request] += f" {said}"
        elif wants:
            request = len(found) if orders else request
            found.append(said if _stands_alone(said) or not at else f"{parts[at - 1]} {said}")
        elif not tells and _stands_alone(said):
            found.append(said)
        told += not wants
    return found if 2 * told >= len(parts) else []


def asked_alone(query: str) -> str | None:
    """Return what a message shorter than a story asks for; None where that is all of it, or too little."""
    parts = sentences(query)
    asked = [one for one in parts if _wants(one) and not _only_tells(one)]
    alone = " ".join(asked)
    return alone if len(asked) < len(parts) < LEAST_OF_STORY and _stands_alone(alone) else None


def _wants(sentence: str) -> bool:
    """Return whether a sentence asks for something, or wishes it."""
    asked = sentence.endswith("?") or _opens_with(sentence, _ASKING) or _WISHES.search(sentence)
    return bool(asked or _LETS_KNOW.match(sentence) or _YES_OR_NO.match(sentence))


def _stands_alone(request: str) -> bool:
    """Return whether a request says enough without what was told before: "stop it" does not."""
    return len(telling_places(request)) >= (LEAST_OF_REFERENCES if _REFERS.search(request) else LEAST_TELLING)


def _only_tells(sentence: str) -> bool:
    """Return whether a sentence is a statement in which nothing is asked for."""
    if _TELLS.match(sentence) is None or sentence.endswith("?") or _WISHES.search(sentence) is not None:
        return False
    return not any(asks(sentence[start:]) for start in (0, *clauses(sentence, MOST_PARTS)))


# The servers that a query names.
#
# The name of a server says where to look, and not what for: of its tools, those that have it in their texts
# are meant no more than others. So where a query says what is wanted without the name, the words of that are
# compared with tools, and those of the server are preferred.

CALLED_SHORTLY: Final = {"prod": "production", "dev": "development", "stg": "staging"}
"""Short forms in names of servers that nothing else is called by, each with the word that people say."""

NO_NAMES: Final = STOP_WORDS | ORDERS | {"mcp", "server", "api", "tools"}
"""Words in names of servers by which none is addressed."""

_ADDRESSED: Final = pattern(
    r"\b(?:in|on|from|to|into|via|with|using|at|of|for)\s+(?:(?:our|my|the|your|this)\s+)?(?P<after>[A-Za-z][\w-]*)"
    r"|(?<=[a-z] )(?P<name>[A-Z]\w*)"
    r"|\b(?:the|our|my|your) (?P<kept>[A-Za-z][\w-]*)(?= (?:database|db|wiki|workspace|account|cluster)\b)"
)
"""Words by which a server may be addressed: "in our Notion", "a Jira ticket", "the sales database"."""

_NAME_WORD: Final = pattern(r"[A-Za-z0-9]+")
_USED: Final = pattern(
    r"(?:(?:please|now|then)\s+)?(?:(?:use|using|with|via|through|ask|open|call|in|on|from|at)\s+)?"
    r"(?:(?:the|my|our|your)\s+)?",
    re.IGNORECASE,
)
"""Words before a name that opens a query."""
_THEN: Final = pattern(
    r"(?P<kind>(?:\s+(?:mcp|servers?|tools?|api|app|account|workspace))*)(?P<mark>\s*[:,;>|]|\s+[-–—]+)?\s+"
    r"(?P<link>(?:to|for|that|which|and|then)\b\s*)?",
    re.IGNORECASE,
)
"""Words and marks after it."""
_AT_END: Final = pattern(
    r"(?:\s+(?:mcp|servers?|tools?|api|app|account|workspace))*[\s.?!)\]]*$", re.IGNORECASE
)
_BEFORE_END: Final = pattern(
    r"(?:[\s,;]+(?:in|on|from|to|into|via|with|using|at|inside|through|within|for)(?:\s+(?:the|my|our|your|this))?\s+"
    r"|\s*[(\[]\s*)$",
    re.IGNORECASE,
)
"""Words and marks around a name that ends a query."""

BEFORE_END: Final = 40
"""Characters before such a name in which these are looked for."""

LEAST_LEFT, LEAST_BESIDE_A_NOUN = 2, 3
"""Telling words of what is wanted: of fewer, the name may be a part of it, unless a mark tells it from the
rest. So it may sooner where it ends the query and is written like any other noun, as in "write the content in
the word document"."""


class Called(Struct, frozen=True):
    """The words by which servers are called."""

    by_word: Mapping[str, Mapping[int, bool]]
    """By word, the places of the servers, and whether their names have the word itself and not only a short
    form of it."""
    lengths: Sequence[int]
    """Number of such words in each name; 0 for what is no server, such as the user's rules."""


class Address(Struct, frozen=True):
    """A query that names servers beside what it wants."""

    name: str
    """The name as it was written."""
    wanted: str
    """The rest of the query."""
    servers: tuple[int, ...]
    """Places of the servers."""


class _Name(Struct, frozen=True):
    """Words of a query that name servers."""

    start: int
    end: int
    servers: frozenset[int]
    length: int
    """Number of words."""


def called(names: Sequence[str], are_servers: Sequence[bool]) -> Called:
    """Return the words by which sources of these names are called."""
    by_word: dict[str, dict[int, bool]] = {}
    for at, name in enumerate(names):
        for word in identifier_words(name).split():
            for said in {word, CALLED_SHORTLY.get(word, word)} - NO_NAMES:
                by_word.setdefault(said, {})[at] = said == word
    words = ({*identifier_words(name).split()} - NO_NAMES for name in names)
    return Called(
        by_word, [len(own) if is_one else 0 for own, is_one in zip(words, are_servers, strict=True)]
    )


def addressed(query: str, words: Called) -> dict[int, bool]:
    """Return the servers that a query names, by words of their names that are no verbs.

    Each with whether the name has the word itself, and not only a short form of it.
    """
    found = (match[match.lastgroup or 0] for match in _ADDRESSED.finditer(query[:FIRST_OF_QUERY]))
    said = (word for one in found for word in one.lower().split("-"))
    return {at: own for word in said for at, own in words.by_word.get(word, {}).items()}


def address_of(query: str, words: Called) -> Address | None:
    """Return what a query wants of servers that it names at its beginning or its end; None for most.

    If it names several that have nothing in common, each may be for a part of it.
    """
    names = list(_names(query[:FIRST_OF_QUERY], words)) if sum(map(bool, words.lengths)) > 1 else []
    if not names or not frozenset.intersection(*(one.servers for one in names)):
        return None
    first, last = names[0], names[-1]
    opening, then = _USED.fullmatch(query[: first.start]), _THEN.match(query, first.end)
    if opening is not None and then is not None:
        wanted = query[then.end() :]
        is_marked = bool(then["mark"] or (then["link"] and (opening.group() or then["kind"])))
        is_told = is_marked or (_is_whole(first, words) and asks(wanted))
        says_enough = len(telling_places(wanted)) >= (1 if is_marked else LEAST_LEFT)
        if is_told and says_enough and (then["mark"] or _is_one(wanted)):
            return Address(query[first.start : first.end], wanted, tuple(sorted(first.servers)))
    before = query[max(last.start - BEFORE_END, 0) : last.start]
    if (ending := _BEFORE_END.search(before)) is not None and _AT_END.match(query, last.end):
        wanted = query[: last.start - (len(before) - ending.start())]
        least = LEAST_BESIDE_A_NOUN if query[last.start].islower() else LEAST_LEFT
        if _is_whole(last, words) and len(telling_places(wanted)) >= least and _is_one(wanted):
            return Address(query[last.start : last.end], wanted, tuple(sorted(last.servers)))
    return None


def _is_one(wanted: str) -> bool:
    """Return whether it is one need: of several, each may be for another server."""
    return len(needs_of(wanted)) == 1


def _is_whole(name: _Name, words: Called) -> bool:
    """Return whether it is the whole name of a server, and not a word of it that may mean anything."""
    return name.length == min(words.lengths[at] for at in name.servers)


def _names(query: str, words: Called) -> Iterator[_Name]:
    """Yield the longest runs of words that name servers together."""
    run: _Name | None = None
    for match in _NAME_WORD.finditer(query):
        found = words.by_word.get(match.group().lower(), {})
        named = frozenset(at for at, own in found.items() if own and words.lengths[at])
        if run is not None and run.servers & named and query[run.end : match.start()] in (" ", "-", "_"):
            run = _Name(run.start, match.end(), run.servers & named, run.length + 1)
            continue
        if run is not None:
            yield run
        run = _Name(match.start(), match.end(), named, 1) if named else None
    if run is not None:
        yield run
