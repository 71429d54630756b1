"""Purposes of a request that its form tells: it is for a memory, a database, the web, whatever its subject.

A tool of a general purpose, such as a search of the web, holds or reaches what it has never heard of. "How
many customers do we have" is far from a tool that runs SQL, and "keep in mind that my sister lives in Oslo"
from one that adds observations to a knowledge graph, so no comparison of meanings can tell that they fit.

Strangers write requests: every pattern here takes time in the length of the text.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from mcp_context_proxy.items import Tool
from mcp_context_proxy.retrieval.item_metadata import ASKED_FOR_ALL, ORDERS, QUESTIONS, opening_match
from mcp_context_proxy.retrieval.text import identifier_words, terms
from mcp_context_proxy.system.later import pattern

FIRST_CHARACTERS = 300
"""Characters of a description in which a tool says what it does."""

FIRST_OF_REQUEST = 400
"""Characters of a request in which its form is looked for."""


class Purpose(Struct, frozen=True, eq=False):
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
    return Purpose(pattern(said, re.IGNORECASE), dict.fromkeys(terms(words), 1.0), shown, added)


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

_ON_SCREENS: Final = (
    r"(?:\w+ ){0,2}?(?:know|use|work|page|(?:web)?site|settings|menu|tab|screen|folder|file|code)"
)

_LOOKED_FOR: Final = (
    (
        _purpose(
            r"\bdirections\b|\broutes?\b|\btravel times?\b|\bdistance (?:matrix|between)\b",
            "directions route travel distance journey",
            2,
            0.1,
        ),
        pattern(
            r"\b(?:come|get|go|drive|walk|cycle|travel|far|long|way|route)\b.{0,100}?\bto (?:the )?\w.{0,60}?"
            r"\b(?:by (?:train|car|bus|bike|boat|ferry|plane|public transport)|on foot|from here)\b"
            r"|\bhow (?:far|long)\b.{0,30}? from [A-Z].{1,40}? to [A-Z]"
            r"|\b[Hh]ow (?:do|can|could|would|should) (?:I|i|we) (?:get|come|drive|walk|cycle|travel) "
            rf"(?:from .{{1,60}}? )?to (?:the )?(?!{_ON_SCREENS}\b)\w",
        ),
    ),
    (
        _purpose(
            r"\bplaces?\b|\blocal (?:business|search|result)|\bbusinesses\b|\bpoints? of interest\b",
            "search places local businesses details nearby",
            2,
            0.1,
        ),
        pattern(
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
        pattern(
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
        pattern(
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
        pattern(
            rf"^\W*how (?:big|large|long|old) (?:is|are) (?:the |my |this |that )?(?:\w+ )?(?:{_FILES})\b",
            re.IGNORECASE,
        ),
    ),
)
"""Other purposes, each with the form of its requests: ways between two places, places and when they are open,
scientific papers, where a file is, how large it is."""

OWN_THINGS: Final = _purpose(
    r"\b(?:web|internet|online|news|image|video|place|local) search|\bsearch engine\b"
    r"|\bsearch(?:es|ing)? (?:\w+ ){0,3}(?:web|internet|online)\b",
    "search web internet online news",
    0,
    -0.1,
)
"""What the caller owns is looked for: a search of the web serves that less than anything else, and is not
shown for it."""

_OF_MINE: Final = pattern(
    r"^\W*(?:please |pls |can you |could you )?(?:find|search|look (?:up|for|through|in)|look|get|show"
    r"|where(?:'s| is| are)|read|list|open|check)\W+(?:(?:me|through|in|for|all|of|up|at) )*(?:my|our) "
    r"(?!.*\b(?:web|internet|online|google|near|nearby)\b)",
    re.IGNORECASE,
)

_HISTORY: Final = (
    _purpose(
        r"\b(?:commit|revision|version|edit|change|page|file|issue) (?:logs?|history)\b|\bblame\b"
        r"|\bgit log\b|\blist (?:of )?commits\b|\bhistory of (?:changes|commits|a)\b",
        "log history blame commits changes",
        2,
        0.1,
    ),
    pattern(
        r"^\W*(?:who|when)\b.{0,40}\b(?:changed|edited|modified|touched|wrote|committed|broke|updated|renamed"
        r"|deleted|removed|introduced|added|worked on|working on)\b(?=.{0,60}\b(?:files?|lines?|pages?|code"
        r"|functions?|modules?|class|scripts?|configs?|sections?|repos?|repository|branch|main|master|tests?)\b)",
        re.IGNORECASE,
    ),
)
"""Questions for who changed something, and when."""

FACTS_OF_A_PERSON: Final = Purpose(MEMORY.said, MEMORY.words, MEMORY.shown, 0.2)
"""The same where a request is a fact about the caller, or asks for one."""

_ATTRIBUTES = (
    r"(?:\w+ )?(?:name|birthday|birth ?date|anniversary|age|(?:home |postal |new )?address|nickname|hometown"
    r"|(?:shoe |shirt |ring )?size|(?:phone |passport |licen[cs]e )?number|favou?rite \w+|blood type"
    r"|(?:license|number) plate|wi-?fi password|allerg\w+|diet|job title)"
)
_PERSONAL: Final = pattern(
    r"^\W*(?:(?:please|and|so|by the way|btw|fyi)\W+)?(?:"
    r"(?:what|who|when|where|how old|which)(?:'s| is| was| are| were)? (?:the "
    + _ATTRIBUTES
    + r" of )?my (?:\w+(?:['’]s)? )?(?:"
    + _ATTRIBUTES
    + r")\b"
    r"|(?:what|when|which|how old)(?:'s| is| was| are| were) (?:the )?(?:" + _ATTRIBUTES + r") of my\b"
    r"|my (?:\w+(?:['’]s)? )?(?:" + _ATTRIBUTES + r") (?:is|isn't|is not|was|has changed|changed)\b"
    r"|I(?:'m| am| was)? (?:allergic|born|vegetarian|vegan|married|retired|moved|prefer"
    r"|live (?:in|at|on|near|with)|always use|never use|hate|can't stand|grew up|work (?:at|for|as))\b"
    r"|(?:what|which|where|when|how old|who)\b.*\b(?:I (?:told|mentioned to|said to) you"
    r"|you (?:know|remember) about me|what I (?:told|said)))",
    re.IGNORECASE,
)
"""Facts about the caller, and questions for them: things that one tells once."""

_WORLDLY: Final = QUESTIONS | {"find", "search", "google", "news", "latest", "best", "recommend", "facts"}
"""Words with which a question about the world opens."""

_OWN: Final = frozenset({"i", "my", "mine", "we", "us", "our", "ours", "this", "these", "here", "it"})
"""Words with which a caller speaks of what is theirs, or of what is at hand."""

_COUNTED: Final = pattern(
    r"^\W*(?:(?:show|tell|give) me )?(?:what(?:'s| is| was| are) )?(?:the )?"
    r"(?:how many (?!people\b|times\b|days\b|hours\b|calories\b|steps\b|minutes\b)\w+"
    r"|(?:total|sum|average|mean|median|number|count) (?:\w+ ){0,2}?of (?:all )?(?:the |our |my )?\w+"
    r"|count (?:the|our|my|all|how)\b)",
    re.IGNORECASE,
)
"""Questions for a number of things, or for a sum of them."""

_OF_ROWS: Final = pattern(
    r"\b(?:rows|records)\b|\b(?:from|in) (?:the |our |my )?(?:\w+ ){0,2}(?:db|database|tables?|collection)\b",
    re.IGNORECASE,
)
_OF_SHEETS: Final = pattern(
    r"\b(?:work|spread)?(?:sheet|book)s?\b|\bcells?\b|\bexcel\b|\bcsv\b", re.IGNORECASE
)

_CHANGED_ROWS: Final = pattern(
    r"^\W*(?:please )?(?:add|insert|put|delete|remove|update|change|set)\b.*"
    r"(?:\b(?:rows?|records?|entry|entries)\b.*\b(?:to|into|in|from|of) (?:the |our |my )?"
    r"(?!the|our|my|first|second|third|last|next|this|that|same|new|whole)\w+ table\b"
    r"|\bwhere \w+ (?:is|=|equals) )",
    re.IGNORECASE,
)

_AGGREGATED: Final = pattern(
    r"^\W*(?:(?:show|tell|give|get) me )?(?:what(?:'s| is| was| are) )?(?:the )?"
    r"(?:how many|how much|average|avg|total|sum|mean|median|highest|lowest|maximum|minimum|max|min|top \d+"
    r"|number|count)\b",
    re.IGNORECASE,
)
"""Questions for what is computed from many things."""

_COURTESIES = (
    r"^\W*(?:(?:please|pls|hey|hi|hello|ok|okay|so|and|also|just|always|can you|could you|would you)\W+)*"
)

IDIOMS: Final = (
    (
        pattern(
            _COURTESIES + r"(?P<idiom>(?:remember|memori[sz]e|keep in (?:mind|memory)|bear in mind"
            r"|(?:do not|don't|dont|never) forget"
            r"|make a (?:mental )?note|take note|note(?= that\b)"
            r"|commit (?:it |this )?to memory|for (?:future|later) reference))\b"
            r"(?! (?:to|me|what|when|who|how)\b)",
            re.IGNORECASE,
        ),
        "add to memory",
    ),
    (
        pattern(
            _COURTESIES + r"(?P<idiom>(?:what do you (?:still )?(?:know|remember|recall) (?:about|of)"
            r"|do you (?:still )?(?:remember|recall)(?= (?:me|my|our|what|when|who|where)\b)"
            r"|(?:what|when|where) did I (?:say|tell you|mention)"
            r"|remind me (?:what|who|when|where|which)|have I (?:ever )?(?:told you|mentioned)"
            r"|who (?:is|was)(?= [A-Z]\w+ again\b)))\b",
            re.IGNORECASE,
        ),
        "search memory for",
    ),
    (
        pattern(
            _COURTESIES + r"(?P<idiom>(?:what|when|where) (?:did|have) (?:I|we)"
            r" (?:write|written|note|noted|jot|jotted)(?: down)?)\b(?! to\b)",
            re.IGNORECASE,
        ),
        "search notes",
    ),
    (
        pattern(
            _COURTESIES + r"(?P<idiom>forget(?= (?:that|what|about|everything|all|the fact)\b))",
            re.IGNORECASE,
        ),
        "delete from memory",
    ),
)
"""Ways to ask for something to be remembered, recalled or forgotten, by which no tool is named, with the
words that tools have. They count where a request opens with them."""

_AT_THE_END: Final = pattern(
    r"[\s,](?:(?:and|so|but|please|pls) )?(?P<idiom>(?:do not|don't|dont|never) forget(?: (?:it|that|this))?"
    r"|remember (?:it|that|this)|keep (?:it|that|this) in mind|for (?:future|later) reference)[\s.!]*$",
    re.IGNORECASE,
)
"""Ways to end what is to be remembered ("I was born in Oslo, don't forget"), if it opens with no order."""


class Idiom(Struct, frozen=True):
    """An idiom of memory with which a request opens."""

    start: int
    end: int
    meant: str


def idiom_of(request: str) -> Idiom | None:
    """Return the idiom of memory with which a request opens or ends."""
    beginning = request[:FIRST_OF_REQUEST]
    for form, meant in IDIOMS:
        if (match := form.search(beginning)) is not None:
            return Idiom(*match.span("idiom"), meant)
    match, opened = _AT_THE_END.search(request, len(request) - len(beginning)), opening_match(beginning)
    if match is not None and opened is not None and opened.group().lower() not in ORDERS | QUESTIONS:
        return Idiom(*match.span("idiom"), "add to memory")
    return None


def purpose_of(request: str) -> Purpose | None:
    """Return the general purpose that a request of one need has by its form."""
    beginning = request[:FIRST_OF_REQUEST]
    purpose, form = _HISTORY
    if form.match(beginning):
        return purpose
    for purpose, form in _LOOKED_FOR:
        if form.search(beginning):
            return purpose
    if _AGGREGATED.match(beginning) and _OF_ROWS.search(beginning) and not _OF_SHEETS.search(beginning):
        return QUERIES_OF_ROWS
    if _CHANGED_ROWS.match(beginning) and not _OF_SHEETS.search(beginning):
        return CHANGES_OF_ROWS
    if _COUNTED.match(beginning):
        return QUERIES_OF_DATA
    if _PERSONAL.match(beginning):
        return FACTS_OF_A_PERSON
    if _OF_MINE.match(beginning):
        return OWN_THINGS
    opening = opening_match(beginning)
    word = "" if opening is None else opening.group().lower()
    if opening is not None and beginning[opening.start() :].lower().startswith("look up "):
        word = "search"
    asked = ASKED_FOR_ALL.sub(r"\1", request)
    if word in _WORLDLY and _OWN.isdisjoint(re.findall(r"[^\W\d_]+", asked.lower())):
        return WEB_SEARCH
    return None
