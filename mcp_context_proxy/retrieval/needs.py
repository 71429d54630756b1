"""Reads the orders of a query: what they want done, what statements order, where one need ends.

A query goes through these steps (`queries.read_query`):

1. `text.without_opener` takes away words that only go on with a conversation: "ok, and now".
2. `corrected` leaves out orders that are taken back. `ordered` puts orders in the place of statements that
   mean them: "the channel isn't needed any more".
3. `needs_of` divides it: "find the page and mail it to Tom" has two needs.
4. Of each need, `opening_match` finds the word with which its order opens, after courtesies. `wanted` says
   how much tools of each action gain by that word.
5. `denied` finds what is not to be done, `cores`, `asked_in_story` and `asked_alone` what is not only told.

Words are in tables (``vocabulary.txt``), forms of sentences in the patterns of each step. Strangers write
queries: every pattern takes time in the length of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from itertools import islice
from typing import Final

from mcp_context_proxy.retrieval.forms import SOMEBODY, value_kind
from mcp_context_proxy.retrieval.item_metadata import ASKS_FOR_FACTS, CHANGING, ORDERS, VERBS, additions
from mcp_context_proxy.retrieval.text import (
    STOP_WORDS,
    Span,
    clauses,
    listed,
    meanings,
    quotations,
    sentences,
    spoken,
    stem,
    telling_places,
    verb_of,
    within,
    without_opener,
)
from mcp_context_proxy.system.later import NDArray, np, pattern

LEAST_TELLING = 2
"""Telling words (no stop words) on each side of a division, and of an order before what it carries. One is
enough for a verb with its object ("submit it, wait until"), after a word such as "then", and for questions on
both sides."""

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

_AS_SUBJECT: Final = spoken(
    r"(?!(?:check|see|show|tell|find|look|ask|watch) )\w+ (?:is|are|was|were|has|keeps?|fails|crashes"
    r"|(?:failed|crashed)(?! (?!this\b|always\b)[a-z]+s\b)|should|must"
    r"|(?:is|are|was|do|does|did|wo)n['’]?t)\b"
)
"""A verb that is a noun for the verb after it: "deploy is broken", but not "rerun failed tasks"."""

_TELLING: Final = frozenset(("i", "we", "he", "she", "they", "it"))
"""Words after which a verb tells what somebody does: "we start on Monday"."""

_ASKING_WHETHER: Final = listed("auxiliary verbs")
"""Words with which such a statement is a question: "could we start it"."""

_ASKED_INSIDE: Final = spoken(
    r"(?:know|wonder\w*|idea|clue|sure|unsure|curious|understand|remember|forgot) "
    r"(?=(?:what|which|who|whom|whose|how|when|where|why|whether)\b)"
)
"""Words before a question within a statement: "I don't know how many members we have"."""

OPENING_CHARACTERS: Final = 40
"""Characters of a statement in which such a question is looked for."""


def opening(order: str) -> str:
    """Return the word with which an order opens, stemmed unless it asks; empty without one."""
    match = opening_match(order)
    word = "" if match is None else match.group().lower()
    return word if word in QUESTIONS else stem(word)


def opening_match(order: str) -> re.Match[str] | None:
    """Return where the word is with which an order opens, or a question within a statement."""
    before, told = "", False
    for match in _WORD.finditer(order):
        word = match.group().lower()
        if word in QUESTIONS and not told:
            return match
        if len(word) > 1 and word not in STOP_WORDS and word not in _COURTESIES:
            is_noun = before in BEFORE_NOUNS or _AS_SUBJECT.match(order, match.start()) is not None
            told = told or before in _TELLING or (is_noun and word in ORDERS)
            if (asked := _ASKED_INSIDE.match(order, match.start())) is not None:
                return _WORD.match(order, asked.end())
            if not told:
                return match
            if match.start() > OPENING_CHARACTERS:
                return None
        before = "" if before in _ASKING_WHETHER and word in _TELLING else word
    return None


def wanted(order: str) -> NDArray[np.float32]:
    """Return the amount that is added to the score of a tool for its effect, by position."""
    amounts = additions(ASKS_FOR_FACTS.match(order) is not None)
    return amounts.get(opening(order), amounts[""])


# Where one need ends and the next begins.

_LATER = r"(?:then|also|afterwards|finally|after\s+that|besides)"
_DIVIDER = spoken(
    rf"(?:,\s*+(?:and\s++)?{_LATER}|(?<=\s)and\s++{_LATER}|(?<=\s){_LATER})(?:\s*+,)?\s++(?=\S)"
    r"|(?<=\s)(?:after|once|before)\s++(?=you(?:'ve|\s+have)\b|[a-z]+ing\s)"
    r"|(?:(?:,\s*+|(?<=\s))(?P<and>and(?:\s++if\s++(?:so|yes|not|no),?)?|&|plus|as\s++well\s++as"
    r"|(?:so(?:\s++that)?|because)\s++(?:I|we|you)(?:\s++(?:can|could|may|have\s++to|need\s++to|want\s++to)))"
    r"|,|\s[-–•]|\s\d{1,2}[.)])\s++(?=(?P<next>[A-Za-z]+))"
)
"""Places where a need may begin: after a word such as "then" always, otherwise where a verb follows, and
after "and" also where a question does."""

_ORDERS_TOO = spoken(
    r"let (?:[\w'#-]+ ){1,4}?know\b|(?:continue|go on|end|finish|conclude|proceed) (?:with|by)\b"
    r"|for each (?:[\w-]+ ){1,4}?(?:open|make|create|add|send|post|write|file)\b"
)
"""Beginnings of orders whose first word is none by itself."""

_YES_OR_NO = spoken(
    r"(?:is|are|was|were|do|does|did|has|have|can|will) (?:there|its?|they|he|she|the|my|our|any\w*|some\w*"
    r"|we|i)\b"
)
"""Beginnings of questions for a yes or no."""

_CONDITION = spoken(r"\W*(?:if|once|after|before|when|as soon as|should)\s")
"""Beginnings of needs that come before another: "after you have read it, ..."."""

_LEAD = spoken(
    r"(?:(?:\d{1,2}[.)]|[-*•]|(?:and )?if (?:so|yes|not|no)\b,?|otherwise,?|else,?|oh and,?"
    r"|(?:first(?: of all|ly)?|second(?:ly)?|third(?:ly)?|last(?:ly)?|next|step \w+"
    r"|to (?:begin|start) with)(?:[,:]|$))(?:\s++|$))*+"
)
"""What stands before a need and says nothing of it."""

_NUMBERED = pattern(r"\s+\d{1,2}[.)]$")
"""The number of the next line of a list."""

ARTICLES: Final = frozenset({"a", "an", "another"})
"""Words with which one of several things begins: "add a heading and a table"."""

_LISTED = spoken(
    r"\W*(?:please )?(?:(?P<verb>[a-z]+) )?(?:a|an|another) "
    r"(?!.*\b(?:with|for|of|from|between|to|that|which|where|who|containing|including|called|named|saying|about)\b)"
)
"""Order to create a thing of which nothing more is said."""

_WITH_OBJECT = spoken(r"\W*[a-z]+\s++(?:it|them|this|that|these|those|the|my|our|your|all|everything|an?)\b")
"""Beginnings of orders that have an object: "submit it"."""

_NO_VERBS: Final = STOP_WORDS | listed("no orders")
"""Words before an object that are no verbs, or ask for nothing that a tool does: "ensure the quality"."""


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
    return [*_without_leads(query, needs)] if needs[1:] else needs


def _needs_of(sentence: str) -> Iterator[Span]:
    """Yield where the needs of a sentence are.

    A divider ends a need if something is asked for after it and both sides say enough, outside quotations.
    """
    start, opened = 0, opening_match(sentence)
    telling: list[int] | None = None
    quoted = list[Span]()
    for divider in _DIVIDER.finditer(sentence):
        has_opened = opened is not None and start + opened.end() <= divider.start()
        first = opened.group().lower() if opened is not None and has_opened else ""
        least = _least_around(divider, sentence, start, first)
        if least is None:
            continue
        if telling is None:  # most sentences have no divider
            telling, quoted = telling_places(sentence), quotations(sentence)
        before = bisect_left(telling, divider.start()) - bisect_left(telling, start)
        after = len(telling) - bisect_left(telling, divider.end())
        if before >= least[0] and after >= least[1] and not within(divider.start(), quoted):
            yield start, len(sentence[: divider.start()].rstrip())
            start, opened = divider.end(), opening_match(sentence[divider.end() :])
    yield start, len(sentence)


def _least_around(divider: re.Match[str], sentence: str, start: int, first: str) -> tuple[int, int] | None:
    """Return the least telling words before and after a divider; None where nothing is asked for after it.

    The need before it begins at `start`, and opens with the word `first`, in lower case.
    """
    following, place = (divider["next"] or "").lower(), divider.end()
    lists = following in ARTICLES and _lists(sentence[start : divider.start()])
    asks_too = divider["and"] and (following in QUESTIONS or _YES_OR_NO.match(sentence, place))
    orders = following in _ORDERS or lists or _ORDERS_TOO.match(sentence, place)
    if following and not (orders or asks_too or (first in _ORDERS and _is_order(sentence, place))):
        return None
    if lists or (asks_too and (first in _ASKING or _YES_OR_NO.match(sentence, start))):
        return 1, 1
    return (
        1 if _WITH_OBJECT.match(sentence, start) else LEAST_TELLING,
        1 if _is_short_order(sentence, divider) else LEAST_TELLING,
    )


def _without_leads(query: str, needs: Sequence[Span]) -> Iterator[Span]:
    """Yield where needs are without what stands before them: "1.", "if so"."""
    numbered = query.lstrip()[:1].isdigit()
    for start, end in needs:
        number = _NUMBERED.search(query, max(start, end - 6), end) if numbered else None
        lead = _LEAD.match(query, start, end)
        span = start if lead is None else lead.end(), end if number is None else number.start()
        if span[0] < span[1]:
            yield span


def asks(need: str) -> bool:
    """Return whether a need opens with an order or a question, or is a condition of another."""
    return _opens_with(need, _ASKING) or any(
        beginning.match(need) for beginning in (_ORDERS_TOO, _YES_OR_NO, _CONDITION)
    )


def _opens_with(text: str, words: Set[str]) -> bool:
    if (match := opening_match(text)) is None or match.group().lower() not in words:
        return False
    return text[: match.start()].rstrip().rpartition(" ")[2].lower() not in BEFORE_NOUNS


def _is_order(sentence: str, place: int) -> bool:
    """Return whether an order with a verb that is not known begins at a place: "paint the header red"."""
    if (verb := _WORD.match(sentence, place)) is None or _WITH_OBJECT.match(sentence, place) is None:
        return False
    word = verb.group()
    return word.islower() and word not in _NO_VERBS and not word.endswith(("ing", "ed", "ly"))


def _lists(text: str) -> bool:
    """Return whether a text is an order to create something, or one of a list of such things."""
    match = _LISTED.match(text)
    return match is not None and (match["verb"] is None or VERBS.get(match["verb"].lower()) == "create")


def _is_short_order(sentence: str, divider: re.Match[str]) -> bool:
    """Return whether one verb is an order: with its object, or after a word such as "then"."""
    if divider["next"]:
        return _WITH_OBJECT.match(sentence, divider.end()) is not None
    verb = _WORD.match(sentence, divider.end())
    return verb is not None and verb.group().lower() in _ORDERS


# What is not to be done.

_DENIED: Final = spoken(
    r"\b(?:(?:(?:do|should|must)(?: not|n['’]?t)|never|not to|without|instead of|rather than|no need to)\b"
    r"(?: (?:want(?:ing)?|going|need|have|be|being|been|get|ever|actually|yet|please|mind|to|you|it|them"
    r"|this|that|these|those|any(?:thing|one)?)){0,4}"
    r" (?P<verb>\w+)"
    r"|(?:nothing|no \w+|none)\b(?: of (?:it|them|these))? (?:should|must|may|shall|can|is to|are to|will)"
    r"(?: be)? (?P<done>\w+)"
    r"|(?:(?:^|[,.;:!?])\s*|\b(?:but|and|please|just) )(?P<nothing>\w+) (?:nothing|none)\b"
    r"(?: of (?:it|them|these|those))?"
    r"|\bno (?:changes?|edits?|modifications?|deletions?|writes?)\b)"
    r"[^,.;:!?\n]*?(?=[,.;:!?\n]|$| (?:but|just|only|and|tell|show|list|give|get|check|find|let|please)\b)",
    "no|n't|n’t|dont|shouldnt|mustnt|never|without|instead|rather",
)
"""Clauses that say what is not to be done: "don't delete anything", "without changing it", "merge none"."""

KEEPS: Final = spoken(
    r"\b(?:but|and) (?:please )?(?:keep|leave) (?:the|it|my|our|them|everything|all|that|those|its)\b",
    "keep|leave",
)
"""Words that say what is not to be deleted: "but keep the note"."""


def denied(request: str) -> Iterator[tuple[int, int, str]]:
    """Yield where a request says which changes are not to be made, and its verb, if there is one."""
    for match in _DENIED.finditer(request):
        verb = (match["verb"] or match["done"] or match["nothing"] or "").lower()
        if not verb or stem(verb) in CHANGING:
            yield *match.span(), verb


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
_MUST = r"(?:should|must|needs? to|ha(?:s|ve) to|ought to)(?: (?:now|also|really|rather|actually|just))?"
_SUBJECT = (
    r"(?P<what>(?!(?:I|we|you|he|she|there|if|when|nobody|no|(?:some|any|every)(?:body|one)|it(?:['’]s)?) )"
    r"[A-Za-z][^,;:?!]{0,80}?)"
)
_NEEDLESS = "(?:needed|wanted|used|required|necessary|relevant|in use|of use)"
_NO_MORE = "(?:any ?more|any longer)"
_PRAISED = "(?:good|nice|great|helpful|useful|lovely|handy)"
_DONE = r"\w+(?:ed|en)|told|sent|made|put|set"
_BECOMES = (
    rf"(?:be(?! (?:{_DONE}|\w+rn|done|able|on|in|at|there|possible|ready|available)\b)|say|read|show|have|run"
    r"|start|end|cost|look|contain|begin|point|use)"
)
_OF_VALUE_ALONE: Final = meanings("values alone")
"""What is wanted of a value that is all of a query, by its kind."""

_TO_SOMEBODY: Final = spoken(
    r"(?:to )?(?P<who>[@#][a-z][\w.-]+|[\w.+-]+@[\w-]+\.[\w.]+|\+\d[\d ()-]{6,20})\s*: *(?=\S)"
)
"""Somebody, or a channel, to whom what follows is to be sent: "#general: the deploy is done"."""

_IMPLIED: Final = tuple(
    (spoken(rf"(?s)\W*{form}"), order)
    for form, order in (
        (rf"there {_MUST} be (?P<what>(?:an?|another|some|one) .+)", "create {what}"),
        (
            r"(?:(?:I|we) (?:still )?(?:don['’]?t|do not) have|there(?:['’]s| is) (?:still )?no"
            r"|(?:I|we)(?:['’]ve| have) (?:still )?no) (?:any |an? )?(?P<what>[^,;:?!]+?) (?:yet|so far)\W*$",
            "create {what}",
        ),
        (
            rf"{_SUBJECT} (?:(?:is|are)(?:n['’]?t| not| no longer) {_NEEDLESS}(?: {_NO_MORE})?"
            r"|(?:is|are) (?:obsolete|superfluous|redundant)|should (?:be gone|disappear))\W*$",
            "delete {what}",
        ),
        (
            rf"(?:I|we) (?=no longer|.+ {_NO_MORE}\W*$)(?:don['’]?t|do not|no longer) (?:need|want|use)"
            rf" (?P<what>[^,;:?!]+?)(?: {_NO_MORE})?\W*$",
            "delete {what}",
        ),
        (
            rf"it(?:['’]d| would| might| could) (?:be (?:\w+ )?{_PRAISED}|help)(?: (?:me|us|a lot))*"
            r" to (?:have|see|get|know) (?P<what>.+?)(?: in front of (?:me|us))?\W*$",
            "show {what}",
        ),
        (rf"{_SUBJECT} {_MUST} be (?P<who>(?-i:[A-Z])\w+)['’]s\W*$", "assign {what} to {who}"),
        (rf"some(?:body|one) {_MUST} (?P<what>.+)", "{what}"),
        (rf"{_SUBJECT} {_MUST} be (?P<done>{_DONE})\b(?P<rest>.*)", "{done} {what}{rest}"),
        (
            rf"(?P<what>(?:every|each|all|the|my|our|this) [^,;:?!]{{1,40}}?) {_MUST} have"
            r" (?P<rest>(?:an?|another) [^,;:?!]{1,80})$",
            "add {rest} to {what}",
        ),
        (rf"{_SUBJECT} {_MUST} (?P<rest>{_BECOMES} .+)", "change {what} to {rest}"),
        (
            r"(?P<what>(?:\w+ ){0,4}?(?:meeting|call|appointment|lunch|dinner|standup|event|party|lesson)"
            r"(?: (?:with|on|at|about|tomorrow|tonight|today)\b[^,;:?!]{0,60}?)?)"
            r" (?:is|was|has been) (?:called )?off\W*$",
            "cancel {what}",
        ),
    )
)
"""Statements that order something, with the orders: "the channel is not needed any more". What "should be" so
beside another order only says more of that."""

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
    if (verb := _OF_VALUE_ALONE.get(value_kind(query) or "")) is not None:
        return f"{verb} {query}"
    parts = list(islice(sentences(query), MOST_PARTS))
    asked = any(map(asks, parts))
    for sentence in (one for one in parts if len(one) <= LONGEST_STATEMENT):
        order = _implied(sentence, asked)
        if order is None and not asked and (trouble := _COMPLAINT.match(sentence)) is not None:
            order = f"show why {trouble['of']}"
        if order is not None:
            query = query.replace(sentence, order, 1)
    if _TO_SOMEBODY.match(query) is not None:
        query = f"send message to {query}"
    return _LET_KNOW.sub(r"send message to \g<who>", query)


def _implied(statement: str, asked: bool) -> str | None:
    """Return the order that a statement means: "there should be a room for it" is to create one."""
    if asks(statement):
        return None
    for form, order in _IMPLIED:
        if (match := form.match(statement)) is None:
            continue
        said = match.groupdict()
        if asked and "rest" in said:
            return None
        if said.get("done") is not None:
            said["done"] = verb_of(said["done"], _ORDERS)
            if said["done"] is None:
                continue
        return order.format_map(said).replace(" to be ", " to ")
    return None


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

_TELLS_WITHIN: Final = spoken(
    rf"(?:[\w'’-]+,? ){{0,5}}?\b(?:(?:{_PERSON}|{_THING})"
    rf"(?:{_FINITE}| (?:can|could|will|would|may|might)\b|['’](?:ll|d)\b)"
    rf"|{_PERSON} (?:\w+ly )?(?!need)\w+ed\b)"
)
"""Beginnings of statements in whose first words somebody does something: "last year they found a mistake"."""

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
    told = (without_opener(one) for one in dict.fromkeys(found))
    return [one for one in told if _stands_alone(one) and len(needs_of(one)) == 1]


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
        said, tells = without_opener(after if after and not asks(before) else part), _only_tells(part)
        wants = not tells and _wants(said)
        orders = wants and _opens_with(said, _ORDERS)
        if orders and request >= 0:
            found[request] += f" {said}"
        elif wants:
            request = len(found) if orders else request
            found.append(said if _stands_alone(said) or not at else f"{parts[at - 1]} {said}")
        elif not tells and _stands_alone(said) and _TELLS_WITHIN.match(said) is None:
            found.append(said)
        told += not wants
    return found if 2 * told >= len(parts) else []


def asked_alone(query: str) -> str | None:
    """Return what a message shorter than a story asks for; None where that is all of it, or too little."""
    parts = sentences(query)
    asked = [one for one in parts if _wants(one) and not _only_tells(one)]
    alone = " ".join(map(without_opener, asked))
    return alone if len(asked) < len(parts) < LEAST_OF_STORY and _stands_alone(alone) else None


def _wants(sentence: str) -> bool:
    """Return whether a sentence asks for something, or wishes it."""
    asked = sentence.endswith("?") or _opens_with(sentence, _ASKING) or _WISHES.search(sentence)
    return bool(asked or _ORDERS_TOO.match(sentence) or _YES_OR_NO.match(sentence))


def _stands_alone(request: str) -> bool:
    """Return whether a request says enough without what was told before: "stop it" does not."""
    return len(telling_places(request)) >= (LEAST_OF_REFERENCES if _REFERS.search(request) else LEAST_TELLING)


def _only_tells(sentence: str) -> bool:
    """Return whether a sentence is a statement in which nothing is asked for."""
    if _TELLS.match(sentence) is None or sentence.endswith("?") or _WISHES.search(sentence) is not None:
        return False
    return not any(asks(sentence[start:]) for start in (0, *clauses(sentence, MOST_PARTS)))
