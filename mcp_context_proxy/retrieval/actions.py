"""Actions and purposes: what an order wants done, such as to read or to delete, and needs of any subject.

A tool is told by the first verb of its name, an order by the word with which it opens: ``actions.txt`` says
for some 400 words how much better or worse a tool of each action serves such an order. The numbers were
learned from 17,000 written requests by comparing the right tool with the others of its server, which have the
same subject and differ in what they do (``scripts/build_actions.py``).

A tool of a general purpose, such as a search of the web, holds or reaches what it has never heard of. "How
many customers do we have" is far from a tool that runs SQL, and "keep in mind that my sister lives in Oslo"
from one that adds observations to a knowledge graph, so no comparison of meanings can tell that they fit. The
form of the request can.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcp_context_proxy.items import Tool
from mcp_context_proxy.retrieval.text import STOP_WORDS, identifier_words, stem, terms
from mcp_context_proxy.system.later import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VERBS: Final = {
    "read": "get list read fetch show describe view retrieve inspect check count",
    "search": "search find query lookup browse",
    "create": "create add insert new make generate",
    "update": "update edit set write modify change rename move patch replace append put save",
    "delete": "delete remove drop clear purge destroy wipe",
    "send": "send post publish notify reply forward share",
    "run": "run execute start stop call invoke trigger",
    "compute": "compute calculate evaluate convert transform format translate parse encode decode",
    "transfer": "upload download import export sync",
}
VERBS: Final[Mapping[str, str]] = {verb: tag for tag, verbs in _VERBS.items() for verb in verbs.split()}
"""Actions by verb; the first verb in a tool's name decides."""

ACTIONS: Final = ("", *_VERBS)
"""Actions of tools, as the columns of ``actions.txt``; the first is that of a tool whose name has no verb."""

DELETE: Final = ACTIONS.index("delete")

CHANGES: Final = [ACTIONS.index(action) for action in ("create", "update", "send")]

MOST_ADDED: Final = 0.04
"""Highest amount that is added to a score for its action, or taken from it but for deleting."""

UNIT: Final = 0.0001
"""Worth in score of one point in ``actions.txt``."""

CERTAIN_NOT_TO_DELETE: Final = -0.004
"""Addition for deleting tools from which down an order is known not to want any, as one with "show" is."""

TAKEN_FROM_DELETING: Final = 0.1
"""Amount that is then taken from a deleting tool, so that one is only first where nothing else is near."""

ASKING_FOR_FACTS: Final = frozenset({"who", "what", "which", "when", "where"})
"""Words with which a question about facts begins: no tool that creates, changes or sends answers it."""

TAKEN_FROM_CHANGING: Final = 0.12
"""Amount that is then taken from such a tool."""

WEIGHTS: Final = Path(__file__).with_name("actions.txt")

QUESTIONS: Final = frozenset(
    {"what", "which", "who", "whom", "whose", "how", "when", "where", "why", "whether"}
)
"""Words with which a question begins."""

_MORE_ORDERS = """
book schedule cancel tell email message ask remind open close go navigate click take give turn play draw
plot compare merge commit push pull clone checkout review assign label translate summarize summarise explain
answer order buy pay charge refund invite pin unpin mark star track log record note store remember forget
print scan deploy build test restart scale install uninstall upgrade enable disable connect
disconnect subscribe unsubscribe follow unfollow mute block report look tag attach sign approve reject
watch crop resize zip unzip extract sort filter group split join sum file reserve
"""
ORDERS: Final = frozenset({*VERBS, *_MORE_ORDERS.split()})
"""Verbs with which an order begins."""

_BEFORE_ORDERS = """
want need like help let lets try just hey hi hello quickly now first wanna gotta pls plz kindly thanks ok okay
so gonna must may might using ahead actually again
"""
_COURTESIES: Final = frozenset(_BEFORE_ORDERS.split())
"""Words before an order that say nothing about it, beside stop words."""

_PHRASES = """
delete = get rid of; throw away; throw out; chuck out; take down
search for = look up
create = put together; come up with; draw up
start = kick off; fire up
cancel = call off
complete = tick off; cross off
assign = hand over
approve = sign off on; sign off
show = pull up; bring up
fill in = fill out
monitor = keep an eye on
monitor and notify when = tell me when; notify me when; alert me when
monitor and notify if = notify me if; alert me if
"""
PHRASES: Final[Mapping[str, str]] = {
    phrase.strip(): meant.strip()
    for meant, _, phrases in (line.partition("=") for line in _PHRASES.strip().splitlines())
    for phrase in phrases.split(";")
}
"""Phrases with which an order opens, each with the words that tools have for it. Those that tools have as
well, such as "turn on" or "set up", are not among them."""

_SITES = "wikipedia google youtube gmail facebook twitter reddit amazon ebay instagram linkedin netflix"

_BY_OBJECT = """
navigate = go head surf browse / site website webpage homepage url SITES
navigate to = visit open load / site website webpage homepage url SITES
type = write type enter put key insert / field textbox input blank
write = put enter / cell cells
create event = put add / calendar
assign = give pass / ticket issue task card bug case story incident
scale = bump raise increase lower reduce / replicas pods instances
add = drop leave / comment comments
post message to = tell inform notify ping update / channel team everyone everybody
checkout = switch change jump / branch
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

_WORD = re.compile(r"[A-Za-z]+")
_PHRASE = re.compile(
    f"(?:{'|'.join(sorted(PHRASES, key=lambda one: -len(one)))})\\b",
    re.IGNORECASE,
)
_YES_OR_NO = re.compile(
    r"\W*(?:(?:is|are|was|were|does|did|has|am|any|do (?:i|we|they)|have (?:i|we|they))\s)"
    r"(?!(?:you|it)\b|(?:there )?(?:a|any|some) (?:way|chance|possibility)\b)",
    re.IGNORECASE,
)
"""Beginnings of questions that are answered by yes or no; "is it possible to" and "are you able to" order."""


def action_of(name: str) -> int:
    """Return the action of a tool by its name, as a position in `ACTIONS`."""
    verb = next((word for word in identifier_words(name).split() if word in VERBS), None)
    return 0 if verb is None else ACTIONS.index(VERBS[verb])


def opening(order: str) -> str:
    """Return the word with which an order opens, stemmed unless it asks; empty without one."""
    match = opening_match(order)
    word = "" if match is None else match.group().lower()
    return word if word in QUESTIONS else stem(word)


def opening_match(order: str) -> re.Match[str] | None:
    """Return where the word is with which an order opens: after courtesies and words that say nothing."""
    for match in _WORD.finditer(order):
        word = match.group().lower()
        if word in QUESTIONS or (len(word) > 1 and word not in STOP_WORDS and word not in _COURTESIES):
            return match
    return None


def reworded(order: str) -> tuple[int, str] | None:
    """Return how many characters of an order name no tool, and their meaning; None for most orders.

    The order begins with its opening word.
    """
    if (phrase := _PHRASE.match(order)) is not None:
        return phrase.end(), PHRASES[phrase.group().lower()]
    verb, *following = (match.group() for match in islice(_WORD.finditer(order), OBJECT_WORDS + 1))
    objects = frozenset(word.lower() for word in following)
    for meant, verbs, named in BY_OBJECT:
        if verb.lower() in verbs and not named.isdisjoint(objects):
            return len(verb), meant
    return None


def wanted(order: str) -> NDArray[np.float32]:
    """Return what is added to the score of a tool for its action, by position in `ACTIONS`."""
    if _YES_OR_NO.match(order):
        added = np.zeros(len(ACTIONS), np.float32)
        added[CHANGES], added[DELETE] = -TAKEN_FROM_CHANGING, -TAKEN_FROM_DELETING
        return added
    found = _additions().get(opening(order))
    return np.zeros(len(ACTIONS), np.float32) if found is None else found


@cache
def _additions() -> Mapping[str, NDArray[np.float32]]:
    """Return the additions of each opening word."""
    additions = {}
    for line in WEIGHTS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            word, *points = line.split()
            added = np.array([*map(int, points)], np.float32) * np.float32(UNIT)
            additions[word] = np.clip(added, -MOST_ADDED, MOST_ADDED)
            if added[DELETE] <= CERTAIN_NOT_TO_DELETE:
                additions[word][DELETE] = -TAKEN_FROM_DELETING
            if word in ASKING_FOR_FACTS:
                additions[word][CHANGES] = -TAKEN_FROM_CHANGING
    return additions


FIRST_CHARACTERS = 300
"""Characters of a description in which a tool says what it does."""

FIRST_OF_REQUEST = 400
"""Characters of a request in which its form is looked for."""


@dataclass(frozen=True, slots=True, eq=False)
class Purpose:
    """A need that tools of one kind serve whatever it is about."""

    said: re.Pattern[str]
    """What such a tool says of itself."""
    words: dict[str, float]
    """Index terms by which it is looked for, with their weights."""
    shown: int
    """Number of tools that are shown where nothing else fits."""
    added: float = 0.0
    """Amount that is added to the scores of such tools, where the request can hardly mean others."""

    def is_served_by(self, tool: Tool) -> bool:
        """Return whether a tool says that it serves this."""
        text = f"{tool.server}. {identifier_words(tool.name)}. {tool.description[:FIRST_CHARACTERS]}"
        return bool(self.said.search(text))


def _purpose(said: str, words: str, shown: int, added: float = 0.0) -> Purpose:
    return Purpose(re.compile(said, re.IGNORECASE), dict.fromkeys(terms(words), 1.0), shown, added)


WEB_SEARCH: Final = _purpose(
    r"\b(?:web|internet|online) search|\bsearch(?:es|ing)? (?:\w+ ){0,3}(?:web|internet|online)\b",
    "search web internet online",
    2,
)
"""Questions that anybody may ask."""

MEMORY: Final = _purpose(
    r"\bknowledge graph\b|\bremember(?:s|ed|ing)?\b"
    r"|\b(?:in|to|from|into|your|its|the|as|long-term|persistent|agent|user|store|save|search|recall)"
    r" memor(?:y|ies)\b(?! (?:usage|use|dump|leak|limit|map|image|page|address|range|consumption|size))"
    r"|\bmemory\.",
    "memory memories knowledge graph remember",
    3,
)
"""What a caller wants remembered, recalled or forgotten."""

_QUERIES_DATA: Final = (
    r"\b(?:run|execut|perform)\w* (?:[\w-]+ ){0,4}(?:SQL|SELECT|aggregation|(?:database|read-only) quer)"
    r"|\bSQL quer(?:y|ies) (?:on|against|to)\b|\bSELECT quer(?:y|ies)\b",
    "run execute sql select query aggregation database",
    2,
)

QUERIES_OF_DATA: Final = _purpose(*_QUERIES_DATA)
"""Questions for numbers and sums of what a database may hold."""

QUERIES_OF_ROWS: Final = _purpose(*_QUERIES_DATA, 0.12)
"""The same that speak of rows, or of a database: "how many rows does orders have"."""

CHANGES_OF_ROWS: Final = _purpose(
    r"\b(?:INSERT|UPDATE|DELETE)\b.{0,40}\bquer(?:y|ies)\b|\b(?:run|execut)\w* (?:any |arbitrary )?SQL\b",
    "insert update delete query sql write execute",
    1,
    0.12,
)
"""Orders that change rows of a table that has a name: "add a row to the customers table"."""

_FILES: Final = (
    "files?|documents?|photos?|pictures?|images?|videos?|movies?|films?|recordings?|pdfs?|spreadsheets?"
    "|presentations?|folders?|archives?|zips?|downloads?"
)
_PLACES: Final = (
    "museum|pharmacy|chemist|bakery|butcher|library|shops?|stores?|supermarket|market|mall|bank|post office"
    "|restaurant|cafe|bar|pub|gym|pool|zoo|park|cinema|theat(?:re|er)|station|airport|hospital|clinic|dentist"
    "|doctor|hairdresser|garage|hotel|church|school|town hall|gallery|castle"
)

_LOOKED_FOR: Final = (
    (
        _purpose(
            r"\bdirections\b|\broutes?\b|\btravel times?\b|\bdistance (?:matrix|between)\b",
            "directions route travel distance journey",
            2,
            0.1,
        ),
        re.compile(
            r"\b(?:come|get|go|drive|walk|cycle|travel|far|long|way|route)\b.{0,100}?\bto (?:the )?\w.{0,60}?"
            r"\b(?:by (?:train|car|bus|bike|boat|ferry|plane|public transport)|on foot|from here)\b"
            r"|\bhow (?:far|long)\b.{0,30}? from [A-Z].{1,40}? to [A-Z]",
        ),
    ),
    (
        _purpose(
            r"\bplaces?\b|\blocal (?:business|search|result)|\bbusinesses\b|\bpoints? of interest\b",
            "search places local businesses details nearby",
            2,
            0.1,
        ),
        re.compile(
            rf"^\W*(?:is|are|when (?:is|does|do)) the (?:\w+ ){{0,3}}?(?:{_PLACES})\b.{{0,60}} (?:open|close)"
            r"|\b(?:near me|nearby|near here|around here|close to here|in the neighbou?rhood)\b",
            re.IGNORECASE,
        ),
    ),
    (
        _purpose(
            r"\bpapers?\b|\bpreprints?\b|\barxiv\b|\bpubmed\b|\bscholar\w*\b|\bscientific literature\b",
            "search papers research articles preprints scholar literature",
            2,
            0.1,
        ),
        re.compile(
            r"\b(?:scientific|academic|scholarly|peer[- ]reviewed|research)\W+(?:\w+\W+)?"
            r"(?:papers?|articles?|studies|study|literature|publications?)\b|\bpreprints?\b"
            r"|\b(?:papers?|articles?|studies|publications?) (?:scientific|academic|scholarly)\b",
            re.IGNORECASE,
        ),
    ),
    (
        _purpose(
            r"\b(?:search|find|locat)\w*\b.{0,60}?\bfiles?\b|\bfiles?\b.{0,30}?\b(?:search|find)",
            "search find files directory",
            1,
            0.1,
        ),
        re.compile(
            r"^\W*where (?:did|have) (?:I|we) (?:put|saved?|stored?|leave|left) (?:the |my |our )?(?:\w+ )?"
            rf"(?:{_FILES}|contracts?|invoices?|letters?|reports?|slides|cv|resume|forms?|receipts?|tax\w*)\b",
            re.IGNORECASE,
        ),
    ),
    (
        _purpose(
            r"\bfiles?\b.{0,60}?\b(?:size|metadata|information)|\bsize\b.{0,40}?\bfiles?\b|\bsizes\b",
            "file information metadata size sizes",
            1,
            0.1,
        ),
        re.compile(
            rf"^\W*how (?:big|large|long|old) (?:is|are) (?:the |my |this |that )?(?:\w+ )?(?:{_FILES})\b",
            re.IGNORECASE,
        ),
    ),
)
"""Other purposes, each with the form of its requests: ways between two places, places and when they are open,
scientific papers, where a file is, how large it is."""

_WORLDLY: Final = QUESTIONS | {"find", "search", "google", "news", "latest", "best", "recommend", "facts"}
"""Words with which a question about the world opens."""

_OWN: Final = frozenset({"i", "my", "mine", "we", "us", "our", "ours", "this", "these", "here", "it"})
"""Words with which a caller speaks of what is theirs, or of what is at hand."""

_COUNTED: Final = re.compile(
    r"^\W*(?:(?:show|tell|give) me )?(?:what(?:'s| is| was| are) )?(?:the )?"
    r"(?:how many (?!people\b|times\b|days\b|hours\b|calories\b|steps\b|minutes\b)\w+"
    r"|(?:total|sum|average|mean|median|number|count) (?:\w+ ){0,2}?of (?:all )?(?:the |our |my )?\w+"
    r"|count (?:the|our|my|all|how)\b)",
    re.IGNORECASE,
)
"""Questions for a number of things, or for a sum of them."""

_OF_ROWS: Final = re.compile(
    r"\b(?:rows|records)\b|\b(?:from|in) (?:the |our |my )?(?:\w+ ){0,2}(?:db|database|tables?|collection)\b",
    re.IGNORECASE,
)
_OF_SHEETS: Final = re.compile(
    r"\b(?:work|spread)?(?:sheet|book)s?\b|\bcells?\b|\bexcel\b|\bcsv\b", re.IGNORECASE
)

_CHANGED_ROWS: Final = re.compile(
    r"^\W*(?:please )?(?:add|insert|put|delete|remove|update|change|set)\b.*"
    r"(?:\b(?:rows?|records?|entry|entries)\b.*\b(?:to|into|in|from|of) (?:the |our |my )?"
    r"(?!the|our|my|first|second|third|last|next|this|that|same|new|whole)\w+ table\b"
    r"|\bwhere \w+ (?:is|=|equals) )",
    re.IGNORECASE,
)

_AGGREGATED: Final = re.compile(
    r"^\W*(?:(?:show|tell|give|get) me )?(?:what(?:'s| is| was| are) )?(?:the )?"
    r"(?:how many|how much|average|avg|total|sum|mean|median|highest|lowest|maximum|minimum|max|min|top \d+"
    r"|number|count)\b",
    re.IGNORECASE,
)
"""Questions for what is computed from many things."""

_POLITE = (
    r"^\W*(?:(?:please|pls|hey|hi|hello|ok|okay|so|and|also|just|always|can you|could you|would you)\W+)*"
)

IDIOMS: Final = (
    (
        re.compile(
            _POLITE + r"(?P<idiom>(?:remember|memori[sz]e|keep in (?:mind|memory)|bear in mind"
            r"|(?:do not|don't|dont|never) forget"
            r"|make a (?:mental )?note|take note|note(?= that\b)"
            r"|commit (?:it |this )?to memory|for (?:future|later) reference))\b"
            r"(?! (?:to|me|what|when|who|how)\b)",
            re.IGNORECASE,
        ),
        "add to memory",
    ),
    (
        re.compile(
            _POLITE + r"(?P<idiom>(?:what do you (?:still )?(?:know|remember|recall) (?:about|of)"
            r"|do you (?:still )?(?:remember|recall)(?= (?:me|my|our|what|when|who|where)\b)"
            r"|(?:what|when|where) did I (?:say|tell you|mention)"
            r"|remind me (?:what|who|when|where|which)|have I (?:ever )?(?:told you|mentioned)"
            r"|who (?:is|was)(?= [A-Z]\w+ again\b)))\b",
            re.IGNORECASE,
        ),
        "search memory for",
    ),
    (
        re.compile(
            _POLITE + r"(?P<idiom>(?:what|when|where) (?:did|have) (?:I|we)"
            r" (?:write|written|note|noted|jot|jotted)(?: down)?)\b(?! to\b)",
            re.IGNORECASE,
        ),
        "search notes",
    ),
    (
        re.compile(
            _POLITE + r"(?P<idiom>forget(?= (?:that|what|about|everything|all|the fact)\b))",
            re.IGNORECASE,
        ),
        "delete from memory",
    ),
)
"""Ways to ask for something to be remembered, recalled or forgotten, by which no tool is named, with the
words that tools have. They count where a request opens with them."""


@dataclass(frozen=True, slots=True)
class Idiom:
    """An idiom of memory with which a request opens."""

    start: int
    end: int
    meant: str


def idiom_of(request: str) -> Idiom | None:
    """Return the idiom of memory with which a request opens."""
    beginning = request[:FIRST_OF_REQUEST]
    for pattern, meant in IDIOMS:
        if (match := pattern.search(beginning)) is not None:
            return Idiom(*match.span("idiom"), meant)
    return None


def purpose_of(request: str) -> Purpose | None:
    """Return the general purpose that a request of one need has by its form."""
    beginning = request[:FIRST_OF_REQUEST]
    for purpose, form in _LOOKED_FOR:
        if form.search(beginning):
            return purpose
    if _AGGREGATED.search(beginning) and _OF_ROWS.search(beginning) and not _OF_SHEETS.search(beginning):
        return QUERIES_OF_ROWS
    if _CHANGED_ROWS.search(beginning) and not _OF_SHEETS.search(beginning):
        return CHANGES_OF_ROWS
    if _COUNTED.search(beginning):
        return QUERIES_OF_DATA
    opening = opening_match(beginning)
    word = "" if opening is None else opening.group().lower()
    if opening is not None and beginning[opening.start() :].lower().startswith("look up "):
        word = "search"
    if word in _WORLDLY and _OWN.isdisjoint(re.findall(r"[^\W\d_]+", request.lower())):
        return WEB_SEARCH
    return None
