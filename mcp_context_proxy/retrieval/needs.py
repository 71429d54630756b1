"""Divides a query into its needs: "find the page and mail it to Tom" has two. Reads statements as orders.

A need begins with a sentence, or within one where a new order or question begins. Strangers write queries:
every pattern here takes time in the length of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence, Set
from itertools import islice
from math import inf
from typing import Final, TypeAlias

from mcp_context_proxy.retrieval.item_metadata import (
    BEFORE_NOUNS,
    ORDERS,
    OTHER_CHANGES,
    PHRASES,
    QUESTIONS,
    VERBS,
    opening_match,
)
from mcp_context_proxy.retrieval.text import STOP_WORDS, sentences, stem, telling_places
from mcp_context_proxy.system.later import pattern

LEAST_TELLING = 2
"""Telling words (no stop words) on each side of a division, and of an order before what it carries. One is
enough for a verb with its object ("submit it, wait until"), after a word such as "then", and for questions on
both sides."""

_FURTHER_ORDERS = """
announce authorize backup ban bundle categorize centre center clarify classify combine compile compose
compress condense configure deactivate debug decrypt deduplicate delegate detach discard dispatch distribute
dm drain embed encrypt enroll estimate examine exclude expand extend finalize flag flatten fork format freeze
gather geocode greet guess ignore inform initialize integrate interpret introduce investigate lint list mail
mention minimize mirror monitor mount organize overwrite ping pm populate preview prioritize proofread protect
rank rebase rebuild recap recommend reconnect recreate redact redeploy redirect reduce refactor reformat
regenerate reindex relabel reload render renew repair repeat reschedule research revise screenshot shade shift
shorten shrink simulate sketch skip snooze solve squash strip suggest suspend tally terminate thank tidy
transcribe transition trim troubleshoot truncate tweak unarchive unassign unblock underline unfreeze unmute
unpublish upvote validate verify visualize vote wake widen zoom
"""
_ORDERS: Final = ORDERS | frozenset(_FURTHER_ORDERS.split())
"""Verbs with which a need begins. Those that only this module knows may be the names of servers."""

_ASKING: Final = _ORDERS | QUESTIONS
"""Words with which a text opens that asks for something."""

_WORD = re.compile(r"[A-Za-z]+")
_SITES = "wikipedia google youtube gmail facebook twitter reddit amazon ebay instagram linkedin netflix"

_BY_OBJECT = """
navigate = go head surf browse / site website webpage homepage url SITES
navigate to = visit open load / site website webpage homepage url SITES
type = write type enter put key insert / field textbox input blank
write = put enter / cell cells
create event = put add / calendar
create = issue write raise draw / invoice bill quote estimate receipt
send message = write / team everyone everybody colleagues boss
update event = push shift postpone bump / meeting appointment call standup
assign = give pass hand / ticket issue task card bug case story incident
scale = bump raise increase lower reduce / replicas pods instances
add = drop leave / comment comments
add = put / new list table crm database backlog board cart basket catalog inventory register wishlist
update event = move reschedule / hour
post message to = tell inform notify ping update / channel team everyone everybody
post message to channel = put drop write say thank announce congratulate remind ask / channel
checkout = switch change jump / branch
cancel = stop kill abort halt / job jobs pipeline pipelines build builds
format = make turn set / bold italic italics underlined strikethrough
protect = lock secure / document report letter contract offer
"""
BY_OBJECT: Final = tuple(
    (meant.strip(), frozenset(verbs.split()), frozenset(objects.split()))
    for meant, _, words in (
        line.replace("SITES", _SITES).partition("=") for line in _BY_OBJECT.strip().splitlines()
    )
    for verbs, _, objects in [words.partition("/")]
)
"""Verbs that mean something else with some objects: people give a ticket to somebody, tools assign it."""

OBJECT_WORDS: Final = 7
"""Words after a verb among which its object is looked for."""

_PHRASE = pattern(
    f"(?:{'|'.join(sorted(PHRASES, key=lambda one: -len(one)))})\\b",
    re.IGNORECASE,
)

_NAMED = (
    r"(?:(?-i:[A-Z][A-Za-z]+)|him|her|them|(?:every|some)(?:one|body)"
    r"|(?:my|our|his|her|the) (?:\w+ ){0,2}?(?:boss|team|people|guys|colleagues?|mother|father|mum|mom|dad"
    r"|wife|husband|sister|brother|landlord|neighbou?rs?|teacher|doctor|lawyer|customers?|clients?|supplier|tenants?"
    r"|manager|staff|family|parents?|group))\b"
)
"""Somebody who can be written to."""

_CELL: Final = pattern(r"\b[A-Z]{1,3}\d{1,5}\b")
_ISSUE_KEY: Final = pattern(r"\b[A-Z]{2,10}-\d+\b")
_HOUR: Final = pattern(
    r"\b(?:\d{1,2} ?[ap]m|\d{1,2}:\d\d|half past|quarter (?:to|past)|\d{1,2} o['’]?clock|noon)\b",
    re.IGNORECASE,
)
_CHANNEL: Final = pattern(r"(?<!\S)#[a-z][\w-]+")
_VALUES: Final = ((_CELL, "cell"), (_ISSUE_KEY, "issue"), (_HOUR, "hour"), (_CHANNEL, "channel"))
"""Values that are the object of a verb, with the words that stand for them in `BY_OBJECT`."""

_MADE_OTHER: Final = pattern(
    r"make(?= (?:it|them|this|these|those|the|my|our|all|every|each)\b.{0,80}? (?:\w{2,}er|more|less|public"
    r"|private|visible|invisible|hidden|black|white|red|blue|green|yellow|grey|gray|orange|purple|pink|look"
    r"|stay|louder|empty|available|active|inactive|read-only|mandatory|optional)\b)",
    re.IGNORECASE,
)
"""Orders to change something: "make the header blue"."""

_WITH_OTHER_WORDS: Final = (
    (
        pattern(
            rf"(?:write to|tell|inform|notify|text)(?= {_NAMED}(?:,|:|$| (?:that|about|how|why|when|where"
            rf"|what|we|I|I'm|I'll|the|our|my|it|it's)\b))(?!.{{0,200}} (?:in|as|with|by) an? )",
            re.IGNORECASE,
        ),
        "send message to",
    ),
    (pattern(rf"(?:e-?mail|mail)(?= {_NAMED})", re.IGNORECASE), "send email to"),
    (pattern(rf"(?:bill|invoice)(?= {_NAMED})", re.IGNORECASE), "create invoice for"),
    (_MADE_OTHER, "change"),
)
"""Orders to write to somebody, or to change something, with the words that tools have for them."""

_LET_KNOW: Final = pattern(
    rf"\blet (?P<who>{_NAMED}) know\b(?!.{{0,80}} (?:in|as|with|on) (?:an?|the|our) )", re.IGNORECASE
)

_QUOTATION_MARKS = ('"', "“", "'")
_QUOTED = re.compile("\"([^\"]{3,2000})\"|“([^“”]{3,2000})”|(?:(?<=\\s)|^)'([^']{3,2000})'(?=[\\s.,;!?]|$)")

_LATER = r"(?:then|also|afterwards|finally|after\s+that|besides)"
_DIVIDER = re.compile(
    rf"(?:,\s*+(?:and\s++)?{_LATER}|(?<=\s)and\s++{_LATER}|(?<=\s){_LATER})(?:\s*+,)?\s++(?=\S)"
    r"|(?<=\s)(?:after|once|before)\s++(?=you(?:'ve|\s+have)\b|[a-z]+ing\s)"
    r"|(?:(?:,\s*+|(?<=\s))(?P<and>and(?:\s++if\s++(?:so|yes|not|no),?)?|&|plus|as\s++well\s++as"
    r"|(?:so(?:\s++that)?|because)\s++(?:I|we|you)(?:\s++(?:can|could|may|have\s++to|need\s++to|want\s++to)))"
    r"|,|\s[-–•]|\s\d{1,2}[.)])\s++(?=(?P<next>[A-Za-z]+))",
    re.IGNORECASE,
)
"""Places where a need may begin: after a word such as "then" always, otherwise where a verb follows, and
after "and" also where a question does."""

_ORDERS_TOO = re.compile(
    r"let (?:[\w'#-]+ ){1,4}?know\b|(?:continue|go on|end|finish|conclude|proceed) (?:with|by)\b"
    r"|for each (?:[\w-]+ ){1,4}?(?:open|make|create|add|send|post|write|file)\b",
    re.IGNORECASE,
)
"""Beginnings of orders whose first word is none by itself."""

_YES_OR_NO = re.compile(
    r"(?:is|are|was|were|do|does|did|has|have|can|will) (?:there|its?|they|he|she|the|my|our|any\w*|some\w*"
    r"|we|i)\b",
    re.IGNORECASE,
)
"""Beginnings of questions for a yes or no."""

_CONDITION = re.compile(r"\W*(?:if|once|after|before|when|as soon as|should)\s", re.IGNORECASE)
"""Beginnings of needs that come before another: "after you have read it, ..."."""

_LEAD = re.compile(
    r"(?:(?:\d{1,2}[.)]|[-*•]|(?:and )?if (?:so|yes|not|no)\b,?|otherwise,?|else,?|oh and,?"
    r"|(?:first(?: of all|ly)?|second(?:ly)?|third(?:ly)?|last(?:ly)?|next|step \w+"
    r"|to (?:begin|start) with)(?:[,:]|$))(?:\s++|$))*+",
    re.IGNORECASE,
)
"""What stands before a need and says nothing of it."""

_NUMBERED = re.compile(r"\s+\d{1,2}[.)]$")
"""The number of the next line of a list."""

ARTICLES: Final = frozenset({"a", "an", "another"})
"""Words with which one of several things begins: "add a heading and a table"."""

_LISTED = re.compile(
    r"\W*(?:please )?(?:(?P<verb>[a-z]+) )?(?:a|an|another) "
    r"(?!.*\b(?:with|for|of|from|between|to|that|which|where|who|containing|including|called|named|saying|about)\b)",
    re.IGNORECASE,
)
"""Order to create a thing of which nothing more is said."""

_WITH_OBJECT = re.compile(
    r"\W*[a-z]+\s++(?:it|them|this|that|these|those|the|my|our|your|all|everything|an?)\b", re.IGNORECASE
)
"""Beginnings of orders that have an object: "submit it"."""

_NO_ORDERS: Final = ("ing", "ed", "ly")
"""Endings of words that are no orders: "including the price"."""

_NO_VERBS_EITHER = """
within across per like unlike despite minus even
achieve determine enhance ensure identify improve increase provide
"""
_NO_VERBS: Final = STOP_WORDS | frozenset(_NO_VERBS_EITHER.split())
"""Words before an object that are no verbs, or ask for nothing that a tool does: "ensure the quality"."""

CHANGING: Final = frozenset(
    stem(verb)
    for verb in (*OTHER_CHANGES, *VERBS, "touch", "alter")
    if VERBS.get(verb) not in ("read", "search", "compute")
)
"""Stems of verbs that change something."""

_DENIED: Final = pattern(
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
    re.IGNORECASE,
)
"""Clauses that say what is not to be done: "don't delete anything", "without changing it", "merge none"."""

KEEPS: Final = pattern(
    r"\b(?:but|and) (?:please )?(?:keep|leave) (?:the|it|my|our|them|everything|all|that|those|its)\b",
    re.IGNORECASE,
)
"""Words that say what is not to be deleted: "but keep the note"."""

_PERSON = r"(?:I|we|he|she|they|it|there|you|(?:some|every|no|any)(?:body|one|thing))"
_THING = (
    r"(?:(?:my|our|his|her|their|your|the|this|that|these|those|some|half|most|all) [\w'’-]+"
    r"(?: (?:from|of|in|on|at|with) (?:(?:the|my|our|a) )?[\w'’-]+)?(?: [\w'’-]+)?"
    r"|(?!(?:what|which|who|whose|when|where|why|how)\b)(?-i:[A-Z][a-z]+)(?: from \w+)?)"
)
_FINITE_VERBS = """
am is are was were has have had do does did keep keeps kept wants wanted needs needed like likes
love loves think thinks thought guess believe suppose hope hoped know knows knew work works left
went come comes came goes say says said tell tells told call calls ask asks gave get gets got made
took met saw heard found arrive arrives start starts run runs look looks seem seems feel feels sound
sounds cannot \\w+n['’]t
"""
_FINITE = (
    r"(?:['’](?:s|m|re|ve)\b|(?: (?:just|already|really|also|usually|always|still|never|often|probably"
    rf"|somehow|even|only|all))* (?:{'|'.join(_FINITE_VERBS.split())})\b)"
)
_LED = r"\W*(?:(?:and|but|so|also|now|then|ok|okay|anyway|well|because|since|as|oh|ugh|hm+)\W+){0,4}"
_TELLS: Final = pattern(
    rf"{_LED}(?:(?:{_PERSON}|{_THING}){_FINITE}|{_PERSON} (?:\w+ly )?(?!need)\w+ed"
    r"|not (?:sure|urgent|in a hurry)|no (?:rush|hurry|idea)|long story|sorry|thanks|thank you|thx|cheers"
    r"|hope|hi|hello|hey|good (?:morning|evening|afternoon)|fyi|by the way|btw)\b",
    re.IGNORECASE,
)
"""Beginnings of statements, and of what is only said."""

_WISHES: Final = pattern(
    r"\b(?:(?:can|could|would|will) (?:you|u|someone|somebody|anyone|anybody)\b|please\b|pls\b|should|must"
    r"|(?:I|we)(?:['’]d| would)?(?: (?:just|only|really|also|now|still|simply))* (?:need|want|like|love)\b"
    r"|(?:need|has|have)s? to\b|wonder|interested\b|curious about|looking (?:for|to|at|into)\b|planning"
    r"|considering|searching|trying|hoping|going to\b|travell?ing|working on|thinking (?:of|about)\b|in need"
    r"|conducting|preparing|writing|building|studying)",
    re.IGNORECASE,
)
"""Words of one who wants something: "I'm planning a trip" is no mere statement."""

_CLAUSE_END: Final = pattern(r"(?:,|:|;|\s[-–]|\s(?=(?:and|but|so)\s))\s*+")
"""Places within a sentence where a clause may begin."""

_OPENER = (
    r"(?:ok|okay|so|and|now|then|(?:hey|hi|hello)(?: there)?|hm+|ugh|oh|yes|yeah|anyway|btw|also|alright)\b"
    r"[\s,.!:;…-]+"
    r"|(?:good|great|fine|perfect|cool|nice|awesome|thanks(?: a lot| so much)?|thank you|thx"
    r"|no|nope|nah|right|well|again|sorry|wait|actually|yep|yup|wow|damn|uh+m*|argh)\s*[,.!:;…-]\s*"
)
_OPENERS: Final = pattern(rf"\s*(?:{_OPENER}){{1,8}}(?=\W*\w)", re.IGNORECASE | re.DOTALL)
"""Words with which people go on talking; those that may say something only before a comma or the like."""

ONE: Final = pattern(r"(?<= )one(?=[\s.,!?]*(?:$|for |in |on |with |called |named |that ))", re.IGNORECASE)
"""A word for what was named before: "open one"."""

_MUST = r"(?:should|must|needs? to|ha(?:s|ve) to|ought to)(?: (?:now|also|really|rather|actually|just))?"
_SUBJECT = (
    r"(?P<what>(?!(?:I|we|you|he|she|there|if|when|nobody|no|(?:some|any|every)(?:body|one)|it(?:['’]s)?) )"
    r"[A-Za-z][^,;:?!]{0,80}?)"
)
_NEEDLESS = "(?:needed|wanted|used|required|necessary|relevant|in use|of use)"
_NO_MORE = "(?:any ?more|any longer)"
_PRAISED = "(?:good|nice|great|helpful|useful|lovely|handy)"
_BECOMES = (
    r"(?:be(?! (?:\w+ed|able|on|in|at|there|possible)\b)|say|read|show|have|run|start|end|cost|look|contain"
    r"|begin|point|use)"
)
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
_IMPLIED: Final = tuple(
    (pattern(rf"\W*{form}", re.IGNORECASE | re.DOTALL), order)
    for form, order in (
        (rf"there {_MUST} be (?P<what>(?:an?|another|some|one) .+)", "create {what}"),
        (
            r"(?:(?:I|we) (?:still )?(?:don['’]?t|do not) have|there(?:['’]s| is) (?:still )?no"
            r"|(?:I|we)(?:['’]ve| have) (?:still )?no) (?:any |an? )?(?P<what>[^,;:?!]+?) (?:yet|so far)\W*$",
            "create {what}",
        ),
        (
            rf"{_SUBJECT} (?:(?:is|are)(?:n['’]?t| not) {_NEEDLESS}(?: {_NO_MORE})?"
            rf"|(?:is|are) no longer {_NEEDLESS}|(?:is|are) (?:obsolete|superfluous|redundant)"
            r"|should (?:be gone|disappear))\W*$",
            "delete {what}",
        ),
        (
            rf"(?:I|we) (?:don['’]?t|do not) (?:need|want|use) (?P<what>[^,;:?!]+?) {_NO_MORE}\W*$",
            "delete {what}",
        ),
        (r"(?:I|we) no longer (?:need|want|use) (?P<what>[^,;:?!]+)$", "delete {what}"),
        (
            rf"it(?:['’]d| would| might| could) (?:be (?:\w+ )?{_PRAISED}|help)(?: (?:me|us|a lot))*"
            r" to (?:have|see|get|know) (?P<what>.+?)(?: in front of (?:me|us))?\W*$",
            "show {what}",
        ),
        (rf"some(?:body|one) {_MUST} (?P<what>.+)", "{what}"),
        (rf"{_SUBJECT} {_MUST} be (?P<done>\w+(?:ed|en))\b(?P<rest>.*)", "{done} {what}{rest}"),
        (rf"{_SUBJECT} {_MUST} (?P<rest>{_BECOMES} .+)", "change {what} to {rest}"),
    )
)
"""Statements that order something, with the orders: "the channel is not needed any more"."""

_COMPLAINT: Final = pattern(
    rf"\W*(?P<of>{_SUBJECT} {_TROUBLED}(?:(?!\b(?:some(?:body|one)|should|must|needs?|please)\b)[^,;:?!])*)"
    rf"(?:[,;:?!]+ {_WHY})?\W*$",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that something does not work."""

_ENDING: Final = (("ied", "y"), ("ed", ""), ("ed", "e"), ("en", ""), ("en", "e"))
"""Endings of participles, with those of their verbs."""

_ONE_OF: Final = pattern(
    r"\b(?:an?|any|another) ((?:[\w-]+ ){0,2}?[\w-]+)"
    r"(?=[?.!,;]|$| (?:about|for|of|in|on|with|called|named|to|that|from|at|already|yet|there)\b)",
    re.IGNORECASE,
)

_REFERS: Final = pattern(r"\b(?:it|its|them|that|this|those|these|him|one)\b", re.IGNORECASE)

LEAST_OF_REFERENCES = 4
"""Telling words of a request that speaks of something told before, from which on it stands alone."""

FIRST_OF_ORDER = 80
"""Characters of an order in which a value is looked for that is its object."""

LONGEST_STATEMENT = 300
"""Characters of a statement that may mean an order."""

MOST_PARTS = 24
"""Sentences of a query, and clauses of a sentence, that are looked at for what is only told."""

Span: TypeAlias = tuple[int, int]
"""The places in a text where a part of it begins and ends."""


def divided(query: str) -> list[str]:
    """Return the needs of a query in its own words: its sentences, divided where a new order begins.

    Both sides of a division say enough to be looked for: "read and write files" and "terms and conditions"
    stay whole. Nothing is divided within a quotation.
    """
    return [query[start:end] for start, end in needs_of(query)]


def needs_of(query: str) -> list[Span]:
    """Return where the needs of a query are, in order."""
    needs, at = list[Span](), 0
    for sentence in sentences(query):
        at = query.index(sentence, at)
        start, telling, quoted = 0, None, list[Span]()
        opened = opening_match(sentence)
        for match in _DIVIDER.finditer(sentence):
            following, place = (match["next"] or "").lower(), match.end()
            first = ""
            if opened is not None and start + opened.end() <= match.start():
                first = opened.group().lower()
            lists = following in ARTICLES and _lists(sentence[start : match.start()])
            questions = match["and"] and (following in QUESTIONS or _YES_OR_NO.match(sentence, place))
            orders = following in _ORDERS or lists or _ORDERS_TOO.match(sentence, place)
            unknown = first in _ORDERS and _is_order(sentence, place)
            if following and not (orders or questions or unknown):
                continue
            if telling is None:
                telling, quoted = telling_places(sentence), quotations(sentence)
            before, after = bisect_left(telling, match.start()), bisect_left(telling, place)
            both_ask = questions and (first in _ASKING or _YES_OR_NO.match(sentence, start))
            enough_before = before - bisect_left(telling, start) >= (
                1 if both_ask or lists or _WITH_OBJECT.match(sentence, start) else LEAST_TELLING
            )
            enough_after = len(telling) - after >= (
                1 if both_ask or lists or _is_short_order(sentence, match) else LEAST_TELLING
            )
            if enough_before and enough_after and not within(match.start(), quoted):
                needs.append((at + start, at + len(sentence[: match.start()].rstrip())))
                start, opened = place, opening_match(sentence[place:])
        needs.append((at + start, at + len(sentence)))
        at += len(sentence)
    return [*_without_leads(query, needs)] if needs[1:] else needs


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


def _is_order(sentence: str, place: int) -> bool:
    """Return whether an order with a verb that is not known begins at a place: "paint the header red"."""
    verb = _WORD.match(sentence, place)
    return (
        verb is not None
        and (word := verb.group()).islower()
        and word not in _NO_VERBS
        and not word.endswith(_NO_ORDERS)
        and _WITH_OBJECT.match(sentence, place) is not None
    )


def _lists(text: str) -> bool:
    """Return whether a text is an order to create something, or one of a list of such things."""
    match = _LISTED.match(text)
    return match is not None and (match["verb"] is None or VERBS.get(match["verb"].lower()) == "create")


def _opens_with(text: str, words: Set[str]) -> bool:
    match = opening_match(text)
    if match is None or match.group().lower() not in words:
        return False
    return text[: match.start()].rstrip().rpartition(" ")[2].lower() not in BEFORE_NOUNS


def _is_short_order(sentence: str, divider: re.Match[str]) -> bool:
    """Return whether one verb is an order: with its object, or after a word such as "then"."""
    if divider["next"]:
        return _WITH_OBJECT.match(sentence, divider.end()) is not None
    verb = _WORD.match(sentence, divider.end())
    return verb is not None and verb.group().lower() in _ORDERS


def quotations(text: str) -> list[Span]:
    """Return where a text has something in quotation marks."""
    if not any(mark in text for mark in _QUOTATION_MARKS):
        return []
    return [match.span() for match in _QUOTED.finditer(text)]


def within(place: int, spans: Sequence[Span]) -> bool:
    """Return whether a place is in one of several disjoint spans that are in order."""
    before = bisect_right(spans, (place, inf))
    return before > 0 and place < spans[before - 1][1]


def antecedent(needs: Sequence[str]) -> str | None:
    """Return what "one" in a later need means: "is there an issue about it? If not, open one"."""
    return next((match[1] for need in reversed(needs) if (match := _ONE_OF.search(need)) is not None), None)


def denied(request: str) -> Iterator[tuple[int, int, str]]:
    """Yield where a request says which changes are not to be made, and its verb, if there is one."""
    for match in _DENIED.finditer(request):
        verb = (match["verb"] or match["done"] or match["nothing"] or "").lower()
        if not verb or stem(verb) in CHANGING:
            yield *match.span(), verb


def without_opener(query: str) -> str:
    """Return a query without words that only go on with a conversation: "ok, and now"."""
    match = _OPENERS.match(query)
    return query if match is None else query[match.end() :]


def reworded(order: str) -> tuple[int, str] | None:
    """Return how many characters of an order name no tool, and their meaning; None for most orders.

    The order begins with its opening word.
    """
    if (phrase := _PHRASE.match(order)) is not None:
        return phrase.end(), PHRASES[phrase.group().lower()]
    verb, *following = (match.group() for match in islice(_WORD.finditer(order), OBJECT_WORDS + 1))
    objects = {word.lower() for word in following}
    objects |= {word for value, word in _VALUES if value.search(order, 0, FIRST_OF_ORDER)}
    for meant, verbs, named in BY_OBJECT:
        if verb.lower() in verbs and not named.isdisjoint(objects):
            return len(verb), meant
    for form, meant in _WITH_OTHER_WORDS:
        if (said := form.match(order)) is not None:
            return said.end(), meant
    return None


def cores(query: str) -> list[str]:
    """Return what a query may mean if some of it is a story: the same without its statements.

    People tell what happened before they ask: "The client has called twice and was not amused. Who has ticket
    PAY-7?" But "the deployment went wrong, we want the version from before" has to be read as a whole, so
    whoever searches compares both with the catalog. Only a query of a single need has a core: what several
    needs are about may be told before them.
    """
    parts = list(islice(sentences(query), MOST_PARTS))
    asking = [one for one in parts if not _only_tells(one)]
    found = [" ".join(asking)] if len(asking) < len(parts) else []
    remaining = asking or parts[-1:]
    for at, one in enumerate(remaining):
        if _TELLS.match(one) is not None:
            wish = _WISHES.search(one)
            ends = _clauses(one, len(one) if wish is None else wish.start())
            asked = [end for end in ends if _TELLS.match(one, end) is None]
            found += [" ".join([one[end:], *remaining[at + 1 :]]) for end in (asked[:1] + asked[1:][-1:])]
            break
    told = (without_opener(one) for one in dict.fromkeys(found))
    return [one for one in told if _stands_alone(one) and len(needs_of(one)) == 1]


def ordered(query: str) -> str:
    """Return a query with the orders that its statements mean in their place.

    Who only says that something does not work wants to know why.
    """
    parts = list(islice(sentences(query), MOST_PARTS))
    asked = any(map(asks, parts))
    for sentence in (one for one in parts if len(one) <= LONGEST_STATEMENT):
        order = _implied(sentence)
        if order is None and not asked and (trouble := _COMPLAINT.match(sentence)) is not None:
            order = f"show why {trouble['of']}"
        if order is not None:
            query = query.replace(sentence, order, 1)
    return _LET_KNOW.sub(r"send message to \g<who>", query)


def _implied(statement: str) -> str | None:
    """Return the order that a statement means: "there should be a room for it" is to create one."""
    for form, order in () if asks(statement) else _IMPLIED:
        if (match := form.match(statement)) is not None:
            said = match.groupdict()
            if (done := said.get("done")) is not None:
                verbs = [done[: -len(end)] + other for end, other in _ENDING if done.endswith(end)]
                verbs += [done[:-3]] if done[-3:-2] == done[-4:-3] else []
                said["done"] = next((verb for verb in verbs if verb.lower() in _ORDERS), None)
                if said["done"] is None:
                    continue
            return order.format_map(said).replace(" to be ", " to ")
    return None


def _stands_alone(request: str) -> bool:
    """Return whether a request says enough without what was told before: "stop it" does not."""
    telling = len(telling_places(request))
    return telling >= (LEAST_OF_REFERENCES if _REFERS.search(request) else LEAST_TELLING)


def _only_tells(sentence: str) -> bool:
    """Return whether a sentence is a statement in which nothing is asked for."""
    if _TELLS.match(sentence) is None or sentence.endswith("?") or _WISHES.search(sentence) is not None:
        return False
    return not any(asks(sentence[start:]) for start in (0, *_clauses(sentence, len(sentence))))


def _clauses(sentence: str, end: int) -> list[int]:
    """Return where the first clauses of a sentence begin, but the first."""
    return [match.end() for match in islice(_CLAUSE_END.finditer(sentence, 0, end), MOST_PARTS)]
