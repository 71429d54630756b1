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
from mcp_context_proxy.retrieval import forms
from mcp_context_proxy.retrieval.item_metadata import MAKES_OR_DELETES, VERBS, Contained
from mcp_context_proxy.retrieval.needs import QUESTIONS, opening, opening_match
from mcp_context_proxy.retrieval.text import STOP_WORDS, identifier_words, listed, spoken, stem, terms, words
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
    doubt: float = 0.0
    """Evidence that other tools need beyond the usual, where none serves it."""
    otherwise: Purpose | None = None
    """Purpose of the tools that serve it where none is there that is made for it."""

    def is_served_by(self, tool: Tool) -> bool:
        text = f"{tool.server}. {identifier_words(tool.name)}. {tool.description[:FIRST_CHARACTERS]}"
        return bool(self.said.search(text))


def _purpose(said: str, words: str, shown: int, added: float = 0.0) -> Purpose:
    return Purpose(spoken(said), dict.fromkeys(terms(words), 1.0), shown, added)


WEB_SEARCH: Final = _purpose(
    r"\b(?:web|internet|online) search|\bsearch(?:es|ing)? (?:\w+ ){0,3}(?:web|internet|online)\b",
    "search web internet online",
    2,
)
"""Questions that anybody may ask."""

_REMEMBERS = (
    r"\bknowledge graph\b|\bremember(?:s|ed|ing)?\b"
    r"|\b(?:in|to|from|into|your|its|the|as|long-term|persistent|agent|user|store|save|add|new|search|recall)"
    r" memor(?:y|ies)\b(?! (?:usage|use|dump|leak|limit|map|image|page|address|range|consumption|size))"
    r"|\bmemory\.|\b(?:stor|sav|record|add|retriev|recall)\w* (?:\w+ ){0,2}?(?:facts?|preferences?"
    r"|thoughts?) (?:about|of|on)\b"
)
_REMEMBERING: Final = "memory memories knowledge graph remember facts"

MEMORY_AGAIN: Final = _purpose(_REMEMBERS, _REMEMBERING, 3)
"""What a caller may have told."""

NOTES: Final = Purpose(
    spoken(
        _REMEMBERS + r"|\b(?:creat|add|writ|sav|append|new|tak|mak|search|find|list|read"
        r"|get)\w* (?:\w+ ){0,3}?(?<!release )notes?\b"
        r"|\b(?:journal|diary|knowledge base)\b"
    ),
    dict.fromkeys(terms(f"{_REMEMBERING} note notes journal diary base"), 1.0),
    3,
    0.15,
    0.3,
)
"""What a caller wants written down, or looks for among what was: for a memory, or for notes."""

MEMORY: Final = Purpose(MEMORY_AGAIN.said, MEMORY_AGAIN.words, MEMORY_AGAIN.shown, 0.2, 0.3, NOTES)
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

_FILES: Final = "|".join(f"{one}s?" for one in sorted(listed("kinds of files")))
_PLACES: Final = "|".join([*sorted(listed("kinds of places")), "post office", "town hall"])

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
        spoken(
            rf"^\W*(?:is|are|when (?:is|does|do)) the (?:\w+ ){{0,3}}?(?:{_PLACES})\b.{{0,60}} (?:open|close)"
            r"|\b(?:near me|nearby|near here|around here|close to here|in the neighbou?rhood)\b"
        ),
    ),
    (
        _purpose(
            r"\bpapers?\b|\bpreprints?\b|\barxiv\b|\bpubmed\b|\bscholar\w*\b|\bscientific literature\b",
            "search papers research articles preprints scholar literature",
            2,
            0.1,
        ),
        spoken(
            r"\b(?:scientific|academic|scholarly|peer[- ]reviewed|research)\W+(?:\w+\W+)?"
            r"(?:papers?|articles?|studies|study|literature|publications?)\b|\bpreprints?\b"
            r"|\b(?:papers?|articles?|studies|publications?) (?:scientific|academic|scholarly)\b"
        ),
    ),
    (
        _purpose(
            r"\b(?:search|find|locat)\w*\b.{0,60}?\bfiles?\b|\bfiles?\b.{0,30}?\b(?:search|find)",
            "search find files directory",
            1,
            0.1,
        ),
        spoken(
            r"^\W*where (?:did|have) (?:I|we) (?:put|saved?|stored?|leave|left) (?:the |my |our )?(?:\w+ )?"
            rf"(?:{_FILES}|contracts?|invoices?|letters?|reports?|slides|cv|resume|forms?|receipts?"
            rf"|tax\w*)\b"
        ),
    ),
    (
        _purpose(
            r"\b(?:get|read|view|show|retriev|fetch)\w* (?:(?:the|full|all|of|for|about|a|an|one|single"
            r"|specific|existing|details?|information|data) )*(?:[A-Z]\w+ )?issue"
            r"(?=[.,;:(]|$| (?:by|with|in|from|including|details|key|number|using|and its)\b)",
            "get issue details key",
            2,
            0.15,
        ),
        spoken(
            r"^\W*(?:is|are|was|has|does|did|who(?:['’]s)?|whose|what(?:['’]s)?|when|which|how|where|why|show"
            r"|(?:the )?(?:status|state|priority|assignee|owner|reporter|due date|title|summary)) "
            r"(?!.{0,60}\b(?:comment|attach|watch|follow|work ?log|log|sla|service level|link|transition"
            r"|history|changed|commit|branch|pull request|epic|sprint|board|block|time|hours)\w*)"
            r".{0,60}?\b[A-Z]{2,10}-\d{1,7}\b"
        ),
    ),
)
"""Other purposes, each with the form of its requests: ways between two places, places and when they are open,
scientific papers, where a file is, what an issue with a key says."""

HISTORY: Final = _purpose(
    r"\b(?:commit|revision|version|edit|change|page|file|issue) (?:logs?|history)\b|\bblame\b"
    r"|\bgit log\b|\blist (?:of )?commits\b|\bhistory of (?:changes|commits|a)\b",
    "log history blame commits changes",
    2,
    0.1,
)
"""Questions for who changed something, and when."""

_HISTORY_NAMED: Final = spoken(
    r"\W*(?:(?:please|can you|could you|I (?:want|need) to) )*(?:show|get|list|see|view|read|check|what)\b"
    r".{0,60}\b(?:commit|change|edit|revision|version|page|file|git) (?:history|logs?)\b",
    "history|log",
)

FACTS_OF_A_PERSON: Final = Purpose(MEMORY_AGAIN.said, MEMORY_AGAIN.words, MEMORY_AGAIN.shown, 0.2)
"""The same where a request is a fact about the caller, or asks for one."""

_ATTRIBUTES = (
    r"(?:\w+ )?(?:name|birthday|birth ?date|anniversary|age|(?:home |postal |new )?address|nickname|hometown"
    r"|(?:shoe |shirt |ring )?size|(?:phone |passport |licen[cs]e )?number|favou?rite \w+|blood type"
    r"|(?:license|number) plate|wi-?fi password|allerg\w+|diet|job title)"
)
_PERSONAL: Final = spoken(
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
    "my|i |i'm|about me",
)
"""Facts about the caller, and questions for them: things that one tells once."""

_WORLDLY: Final = QUESTIONS | {"find", "search", "google", "news", "latest", "best", "recommend", "facts"}
"""Words with which a question about the world opens."""

_OWN: Final = frozenset(["i", "my", "mine", "we", "us", "our", "ours", "this", "these", "here", "it"])
"""Words with which a caller speaks of what is theirs, or of what is at hand."""

_ASKED_FOR_ALL: Final = spoken(
    r"^(\W*(?:what|how|where|which|when|why) )(?:do|can|could|should|shall|would|must) (?:i|we)\b"
)
"""The caller stands for anybody: "what shall I cook"."""

_COUNTED: Final = spoken(
    r"^\W*(?:(?:show|tell|give) me )?(?:what(?:'s| is| was| are) )?(?:the )?"
    r"(?:how many (?!people\b|times\b|days\b|hours\b|calories\b|steps\b|minutes\b)\w+"
    r"|(?:total|sum|average|mean|median|number|count) (?:\w+ ){0,2}?of (?:all )?(?:the |our |my )?\w+"
    r"|count (?:the|our|my|all|how)\b)"
)
"""Questions for a number of things, or for a sum of them."""

_OF_ROWS: Final = spoken(
    r"\b(?:rows|records)\b|\b(?:from|in) (?:the |our |my )?(?:\w+ ){0,2}(?:db|database|tables?|collection)\b"
)

_AGGREGATED: Final = spoken(
    r"^\W*(?:(?:show|tell|give|get) me )?(?:what(?:'s| is| was| are) )?(?:the )?"
    r"(?:how many|how much|average|avg|total|sum|mean|median|highest|lowest|maximum|minimum|max|min|top \d+"
    r"|number|count)\b"
)
"""Questions for a figure that is computed from many things."""

_COURTESIES = (
    r"^\W*(?:(?:please|pls|hey|hi|hello|ok|okay|so|and|also|just|always|both|then|kindly|from now on"
    r"|(?:can|could|would|will) (?:you|u)|(?:I|we)(?:'d| would)? (?:want|need|like) (?:you )?to"
    r"|make sure (?:that )?(?:you|to)|be sure to|let(?:'s| us)|try to)\W+)*"
)
_THIS = r"(?:this|that|it|these|something|the following|one thing)(?: (?:information|facts?|details?))?"
"""Words that stand for what is to be remembered."""
_KEEP = "|".join(sorted(listed("kept")))
_PLACE = (
    r"(?:down|away|aside|on to|somewhere|safe|on (?:record|file)|for (?:me|us|later|next time"
    r"|(?:the )?future(?: use)?)"
    r"|(?:in|into|to) (?:your |the |my )?(?:memory|mind|notes))"
)
_FACT = r"the (?:fact|information|detail)\b"
_CLAUSE = (
    r"that (?:I|we|he|she|they|you|there|the|my|our|his|her|their|all|every\w*|no|an?"
    r"|\w+(?: \w+|'s \w+)? (?:is|are|was|were|has|have|had|will|can|likes?|prefers?|wants?|needs?|works?"
    r"|lives?))\b"
)
_STATEMENT = (
    r"(?:the|my|our|his|her|their|\w+['’]s) (?:(?!that\b|which\b|who\b)[\w-]+ ){1,4}"
    r"(?:is|are|was|were|has|have|likes?|prefers?|wants?)\b"
)
_NOWHERE_ELSE = (
    r"(?!.{0,200}\b(?:in|into|to|on|under|with) (?:the |a |an |my |our |this "
    r"|new )?(?:\w+ ){0,2}?(?:files?|pages?"
    r"|docs?|documents?|readme|sheets?|spreadsheet|issues?|tickets?|tables?|channels?|calendars?|boards?|wiki"
    r"|database|card|task|thread|cell|request|#\w+|\S+\.\w{1,5})\b)"
    r"(?!.{0,200}\b\d+(?:\.\d+)? ?(?:h|hrs?|hours?|mins?|minutes?|days?)\b.{0,40}\b(?:on|at|for)\b)"
    r"(?!\W*https?:)"
)
"""Nothing says that it is to be written into a file, an issue or the like, or that it is time worked."""

IDIOMS: Final = (
    (
        spoken(
            _COURTESIES + r"(?P<idiom>(?:remember(?: it| this| something(?=\W*:))?|memori[sz]e|bear in mind"
            rf"|keep (?:{_THIS} )?in (?:mind|memory)|(?:do not|don't|dont|never) (?:let (?:me|us) )?forget"
            r"|(?:just )?so (?:that )?you know|(?:you (?:should|ought to|need to|have to) know"
            r"|make it known)(?= that\b)"
            rf"|for (?:future|later) reference|commit (?:{_THIS} )?to memory"
            rf"|(?:store|save|keep|put|register|add|enter) (?:{_THIS} )?(?:in|into|to) (?:your "
            rf"|the )?memory))\b"
            r"(?! (?:to|me|what|when|who|how)\b)",
            "remember|memori|in mind|forget|know|reference|memory",
        ),
        "add to memory",
        MEMORY,
    ),
    (
        spoken(
            _COURTESIES + rf"(?P<idiom>(?:{_KEEP})(?:(?: {_PLACE}){{1,2}}(?: {_THIS})?(?: {_PLACE})?"
            rf"|(?: {_THIS})(?: {_PLACE}){{1,2}})(?=\W*:|\W*,(?! (?:then|and|also)\b)|\W+(?:that|{_FACT})"
            rf"|\W+$)"
            rf"|(?:note|jot|write|scribble) down(?= {_STATEMENT})"
            rf"|(?:{_KEEP}) {_THIS}(?=\W*:|\W+(?:that\b|{_FACT}))"
            rf"|(?:{_KEEP})(?: (?:on to|track of))?(?= {_FACT}| {_CLAUSE}|(?<=note)\s*:)"
            rf"|(?:keep|make) a (?:\w+ )?record(?: of (?:{_THIS}|{_FACT}))?(?=\W*[:,]| that\b| of\b)"
            rf"|let the record show|for the record(?=\W)|take note(?=\W*:| that\b| of\b)){_NOWHERE_ELSE}",
            f"{_KEEP}|record",
        ),
        "add a note to memory",
        NOTES,
    ),
    (
        spoken(
            _COURTESIES + r"(?P<idiom>(?:what do you (?:still )?(?:know|remember|recall) (?:about|of)"
            r"|do you (?:still )?(?:remember|recall)(?= (?:me|my|our|what|when|who|where)\b)"
            r"|do you (?:still )?(?:know|remember|have) (?:anything|something) (?:about|on|of)"
            r"|(?:(?:tell|show|give) me |look up )?(?:what|anything|everything|all|something)(?: that)? you"
            r" (?:still )?(?:know|remember|recall|(?:have )?(?:saved|noted|stored)) (?:about|of|on)"
            r"|(?:check|look in|search|consult|ask) (?:in )?(?:your|the) memory(?: (?:for|about))?"
            r"|(?:who|what|when|where|(?:which|what) \w+|how \w+) (?:did|have) I (?:ever )?"
            r"(?:say|said|tell you|told you|mention|mentioned)|(?:did|have) I (?:ever )?(?:tell you"
            r"|told you|mention(?:ed)?)"
            r"|(?:did|have) we (?:ever )?(?:talk|talked|spoken|speak)(?: before)? about"
            r"|remind me (?:what|who|when|where|which)"
            r"|who (?:is|was)(?= [A-Z]\w+ again\b)))\b",
            "know|remember|recall|saved|noted|stored|memory|thing|say|said|tell|told|mention|talk|spoke|speak|remind|again",
        ),
        "search memory for",
        MEMORY,
    ),
    (
        spoken(
            _COURTESIES + r"(?P<idiom>forget(?= (?:that|what|about|everything|all|the fact)\b)"
            r"|disregard(?= what I\b)|(?:stop|no longer) remember(?:ing)?"
            r"|(?:delete|remove|erase|wipe|clear)(?= what you (?:know|remember)\b))",
            "forget|disregard|remember|you know",
        ),
        "delete from memory",
        MEMORY,
    ),
)
"""Ways to ask for something to be remembered, recalled or forgotten, by which no tool is named, with the
words that tools have. They count where a request opens with them. What is written down may be kept by a tool
for notes as well."""

_DOWN = _COURTESIES + r"(?P<verb>note|jot|write|scribble) down\b(?=.{0,200}\S)"
_DOWN_ANYWHERE: Final = spoken(_DOWN, "down")
_DOWN_IN_NOTES: Final = spoken(_DOWN + _NOWHERE_ELSE, "down")

WRITTEN_DOWN: Final = Purpose(NOTES.said, NOTES.words, NOTES.shown, 0.1)
"""What is to be written down, and nothing says where: "write down the steps of this recipe"."""

_ASKS_FOR_CHANGES = spoken(
    r"\W*(?:(?:please|can you|could you|find out|(?:tell|show|give) me|check|see|look up|find|do (?:we"
    r"|you) know"
    r"|(?:I'd like|I would like|I want|we need|I need) to know)\W+)*"
    r"(?:(?:who(?:se|m)?|by whom|(?:since )?when|how long|(?:has|did) (?:anyone|anybody|someone|somebody)"
    r"|(?:which|the|what) (?:commit|change|revision|developer|author|person|one))\b"
    r"(?! (?:can|could|should|may|will|would|must|does)\b)"
    r"|(?P<happened>what (?:(?:has |have )?happened (?:to|with|in)|(?:was|were|has"
    r"|have)(?: been)? changed (?:in|on))))"
)
_CHANGED = spoken(
    r"\b(?:(?:un)?changed|edited|modified|(?:un)?touched|committed|updated|renamed|deleted|removed"
    r"|introduced|added"
    r"|authored|refactored|reverted|rewritten|rewrote|wrote|written|broken?|worked on|working on"
    r"|(?:to blame|responsible) for|last (?:work|change|edit|modif|touch|update|commit)\w*"
    r"|(?:last|latest|recent|first) (?:\w+ )?(?:changes?|edits?|commits?|updates?|modifications?|to \w+"
    r"|in))\b"
)
_VERSIONED = spoken(
    r"\b(?:files?|folders?|lines?|pages?|code|codebase|functions?|modules?|class|scripts?|configs?"
    r"|configuration"
    r"|settings?|sections?|repos?|repository|branch|tests?|readme|manifests?|dockerfile|makefile"
    r"|migrations?|workflows?"
    r"|(?:main|master|this|it)(?=\W*$)|[\w/-]+\.(?!com\b|org\b|net\b)[a-z]{1,5})\b"
)
_SERVICES: Final = listed("services")
_NAMED: Final = spoken(
    r"\b(?:to|in|into|on|onto|from|via|with|using|at|through|of|my|our|his|her|their|the|an?) "
    r"(?=(?P<name>\w+)(?!\w*/)(?:['’]s (?P<of_it>\w+))?)"
)
_BROWSES: Final = frozenset(
    ["go", "open", "visit", "navigat", "brows", "head", "search", "find", "googl", "look"]
)
"""Stems of orders that reach a service by its pages, or only look for what is said of it."""


_QUANTITIES: Final = listed("quantities")
_IN_ANOTHER: Final = spoken(
    r" (?P<part>.+?) (?:(?:out )?of|from|off|on|in|inside) (?:(?:the|my|our|this|that|his|her|their|its) )?"
    r"(?:[a-z]+ ){0,2}?(?-i:(?P<whole>[a-z]+))(?: (?-i:[A-Z\d#'\"])\S*)?[\s.!?]*$"
    r"| (?:(?:the|my|our|this|that|his|her|their|its) )?(?P<owner>[a-z]+)['’]s (?P<owned>.+)"
)


def service_of(request: str) -> str | None:
    """Return the service that a request is for by name: "upload it to S3", but not that of "vercel/ai"."""
    named = (
        name.lower()
        for match in _NAMED.finditer(request, 0, FIRST_OF_REQUEST)
        for name in (match["of_it"], match["name"])
        if name is not None and name.lower() in _SERVICES
    )
    service = next(named, None)
    return None if service is None or opening(request) in _BROWSES else service


def asks_for_history(order: str) -> bool:
    """Return whether a question is for who changed something that has versions, or when."""
    if (match := _ASKS_FOR_CHANGES.match(order)) is None:
        return False
    said = match["happened"] is not None or _CHANGED.search(order, match.end(), FIRST_OF_REQUEST) is not None
    return said and _VERSIONED.search(order, match.end(), FIRST_OF_REQUEST) is not None


def reworded(order: str) -> tuple[int, str] | None:
    """Return how many characters of an order name no tool, and their meaning; None for most orders."""
    if (down := _DOWN_ANYWHERE.match(order)) is not None and _DOWN_IN_NOTES.match(order) is None:
        return down.end(), "write"
    if (said := forms.reworded(order)) is None and asks_for_history(order):
        verb = order.split(maxsplit=1)[0]
        return len(verb), f"show history log of {verb}"
    return said


class Idiom(Struct, frozen=True):
    """An idiom of memory with which a request opens."""

    start: int
    end: int
    meant: str
    purpose: Purpose


def idiom_of(request: str) -> Idiom | None:
    """Return the idiom of memory with which a request opens."""
    beginning = request[:FIRST_OF_REQUEST]
    for form, meant, purpose in IDIOMS:
        if (match := form.search(beginning)) is not None:
            return Idiom(*match.span("idiom"), meant, purpose)
    return None


def contained(order: str) -> Contained | None:
    """Return the thing that an order creates or deletes in a container; None for most orders."""
    opened = opening_match(order)
    verb = "" if opened is None else opened.group().lower()
    action = "delete" if verb in ("throw", "kick") else VERBS.get(verb)
    if opened is None or action not in MAKES_OR_DELETES:
        return None
    match = _IN_ANOTHER.match(order, opened.end(), FIRST_OF_REQUEST)
    whole = "" if match is None else (match["whole"] or match["owner"]).lower()
    if match is None or whole.endswith("s"):  # one of the contacts is a contact
        return None
    part = frozenset(map(stem, set(words(match["part"] or match["owned"])) - STOP_WORDS - _QUANTITIES))
    return Contained(action, stem(whole), part) if part else None


def purpose_of(request: str) -> Purpose | None:
    """Return the general purpose that a request of one need has by its form."""
    beginning = request[:FIRST_OF_REQUEST]
    if asks_for_history(beginning) or _HISTORY_NAMED.match(beginning):
        return HISTORY
    for purpose, form in _LOOKED_FOR:
        if form.search(beginning):
            return purpose
    if _AGGREGATED.match(beginning) and _OF_ROWS.search(beginning):
        return QUERIES_OF_ROWS
    if _COUNTED.match(beginning):
        return QUERIES_OF_DATA
    if _DOWN_IN_NOTES.match(beginning):
        return WRITTEN_DOWN
    if _PERSONAL.match(beginning):
        return FACTS_OF_A_PERSON
    opened = opening_match(beginning)
    word = "" if opened is None else opened.group().lower()
    if opened is not None and beginning[opened.start() :].lower().startswith("look up "):
        word = "search"
    asked = _ASKED_FOR_ALL.sub(r"\1", request)
    if word in _WORLDLY and _OWN.isdisjoint(re.findall(r"[^\W\d_]+", asked.lower())):
        return WEB_SEARCH
    return None
