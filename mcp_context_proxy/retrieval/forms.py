"""The form of a query: values in it, such as paths, dates and arithmetic, and purposes of any subject.

The characters of a value name no tool: nothing has "17 times 23" in its description, and a tool that counts
primes has "17". The kind of the value does.

A tool of a general purpose, such as a search of the web, holds or reaches what it has never heard of. "How
many customers do we have" is far from a tool that runs SQL, and "keep in mind that my sister lives in Oslo"
from one that adds observations to a knowledge graph, so no comparison of meanings can tell that they fit.

Strangers write queries: every pattern here takes time in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from mcp_context_proxy.items import Tool
from mcp_context_proxy.retrieval.actions import ASKED_FOR_ALL, ORDERS, QUESTIONS, opening_match
from mcp_context_proxy.retrieval.text import STOP_WORDS, identifier_words, terms

FIRST_OF_QUERY: Final = 1_000
"""Characters of a query in which values of several words are looked for."""

ARITHMETIC: Final = "calculate arithmetic expression"
"""The kind of an expression of numbers, with the verb for which it is there."""

NUMBERS: Final = "arithmetic"
"""The kind of numbers with a verb or noun that says what is done with them, as "the average of 3 and 5"."""

LONGEST_VALUE: Final = 512
"""Characters of the longest token that may be a value."""

_ZONES = "UTC|GMT|EST|EDT|CST|CDT|PST|PDT|CET|CEST|JST|AEST|AEDT"
_CURRENCIES = (
    "USD|EUR|GBP|JPY|CHF|AUD|NZD|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|BRL|MXN|ZAR|KRW|SGD|HKD|THB|ILS|AED|RUB|TWD"
)

_STANDARDS = "COVID|UTF|SHA|ISO|GPT|AES|RSA|RFC|IEEE|TLS|SSL|USB|HTTP|MP|PS|MI|CR|LR|IPV|ES|WPA|MD"
"""Names before numbers that are written as issue keys are."""

_TOKENS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("URL", r"(?i:https?|ftp|wss?|file)://\S+"),
        ("repository URL", r"(?:git@[\w.-]+:|(?:git|ssh)://)\S+"),
        (
            "connection string of a database",
            r"(?:postgres(?:ql)?|mysql|mongodb(?:\+srv)?|redis|sqlite)://\S+",
        ),
        ("URL", r"localhost:\d{2,5}(?:/\S*)?"),
        ("email address", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
        ("DOI of a paper", r"(?:(?i:doi):)?10\.\d{4,9}/\S+"),
        ("website URL", r"(?:[\w-]+\.)+(?:com|org|net|io|dev|edu|gov|ai|co|uk|de|eu)(?:/\S*)?"),
        (
            "file",
            r"(?:[^/\s]*/)*[^/\s]+\.(?:txt|md|py|js|ts|tsx|jsx|json|ya?ml|toml|csv|tsv|xlsx?|docx?|pptx?|pdf|png"
            r"|jpe?g|gif|svg|html?|css|xml|sql|sh|go|rs|java|c|cpp|h|rb|php|log|ini|cfg|env|zip|tar|gz|mp[34]|wav"
            r"|mov|ipynb|parquet|db|sqlite)",
        ),
        ("file", r"(?:[^/\s]*/)*(?:\.(?:env|gitignore|npmrc|bashrc|zshrc|dockerignore)|Dockerfile|Makefile)"),
        ("path", r"(?:[A-Za-z]:\\|~?/|\.{1,2}/)[^\s/\\]+(?:[/\\][^\s/\\]*)*"),
        ("date", r"\d{4}-\d{2}-\d{2}(?:T[\d:.]+Z?)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}"),
        ("time", r"\d{1,2}:\d{2}(?::\d{2})?(?:am|pm)?|\d{1,2}(?:am|pm)"),
        ("book ISBN", r"(?:ISBN:?)?97[89]-?\d{1,5}-?\d{1,7}-?\d{1,6}-?[\dX]"),
        ("CVE id of a vulnerability", r"CVE-\d{4}-\d{4,7}"),
        ("issue key", rf"(?!(?:{_STANDARDS})-)[A-Z][A-Z0-9]{{1,9}}-\d{{1,6}}"),
        ("issue number", r"#\d{1,7}"),
        ("merge request number", r"!\d{1,7}"),
        ("spreadsheet cell range", r"\$?[A-Z]{1,3}\$?[1-9]\d{0,6}:\$?[A-Z]{1,3}\$?[1-9]\d{0,6}"),
        ("version", r"v\d{1,4}(?:\.\d{1,6}){2,3}(?:-[\w.]+)?"),
        # "#cafe" and "#feed" are channels and tags; a color has a digit or only one letter.
        ("color", r"#(?:(?=[a-fA-F]*\d)[0-9a-fA-F]{3}(?:[0-9a-fA-F]{3})?|([a-fA-F])\1{2}(?:\1{3})?)"),
        ("channel", r"#[a-z][a-z0-9_]{1,40}(?:-[a-z0-9_]{1,40}){0,6}"),
        ("user", r"@[A-Za-z][A-Za-z0-9_]{1,40}(?:[.-][A-Za-z0-9_]{1,40}){0,3}"),
        ("arXiv paper id", r"\d{4}\.\d{4,5}(?:v\d+)?"),
        ("amount of money", r"[$€£¥₹]\d[\d,.]*[kKmM]?|\d[\d,.]*(?:[€£¥₹]|" + _CURRENCIES + ")"),
        ("currency", _CURRENCIES),
        ("time zone", rf"(?:{_ZONES})(?:[+-]\d{{1,2}}(?::\d{{2}})?)?"),
        (
            "time zone",
            r"(?:Africa|America|Antarctica|Asia|Atlantic|Australia|Europe|Indian|Pacific)/[A-Z]\w+",
        ),
        ("IP address", r"\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?(?::\d+)?"),
        ("MAC address", r"[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}"),
        ("IP address", r"(?=[^\d]*\d)(?=[^:]*:[^:]*:)[0-9a-f:]{3,39}(?:/\d{1,3})?"),
        ("coordinates", r"-?\d{1,3}\.\d{3,},-?\d{1,3}\.\d{3,}"),
        ("phone number", r"\+\d{8,15}|\(?\d{3}\)?[-.]\d{3}[-.]\d{4}|\+\d{1,3}(?:-\d{2,4}){2,4}"),
        ("id", r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
        ("commit hash", r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}"),
        ("temperature", r"-?\d{1,4}(?:\.\d+)?°[CFK]?"),
    )
)
"""Kinds of values, each with the pattern of a whole token; the first that matches counts."""

_MAY_BE_VALUE = re.compile(r"[\d./\\@:#]|(?:Docker|Make)file|" + f"{_CURRENCIES}|{_ZONES}")
"""Parts of which every value has one."""

_SEVERAL: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "cron schedule",
            r"(?<!\S)(?=[\d,/\s-]{0,60}\*)[\d*][\d*,/-]{0,20}(?: [\d*][\w*,/-]{0,20}){4}(?![\w*/])",
        ),
        (
            "coordinates",
            r"(?<![\w.-])-?\d{1,3}\.\d{2,12}°?(?: ?[NS])?, ?-?\d{1,3}\.\d{2,12}°?(?: ?[EW])?(?![\w.])"
            r"|(?<![\w.-])-?\d{1,3}\.\d{1,12}, ?-\d{1,3}\.\d{1,12}(?![\w.])",
        ),
        (
            "phone number",
            r"(?<![\w.+])(?:\+\d{1,3}[ -])?\(\d{2,4}\) ?\d{3,4}[ -]\d{3,4}(?![\w-])"
            r"|(?<![\w.+])\+\d{1,3}(?: \d{2,8}){2,4}(?![\w-])",
        ),
        ("color", r"(?<!\w)(?:rgb|hsl)a?\([\d.,% ]{5,40}\)"),
        (
            "SQL query",
            r"(?<!\S)(?:SELECT\s[^;]{1,300}?\sFROM\s|INSERT INTO\s|DELETE FROM\s|UPDATE\s\S{1,80}\sSET\s"
            r"|(?:CREATE|ALTER|DROP) (?:TABLE|INDEX|VIEW)\s|(?i:select) \* (?i:from)\s)[^;\"'`]{1,800}",
        ),
    )
)
"""Kinds of values that have several words."""


_MAY_BE_SEVERAL = re.compile(r"\d|\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP)\s|(?i:select) \*")

_SPELLED = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
    r"|seventeen|eighteen|nineteen|(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)(?:[ -](?:one|two"
    r"|three|four|five|six|seven|eight|nine))?)(?:[ -](?:hundred|thousand|million))?"
)
_SYMBOLS: Final = tuple(
    (symbol, pattern)
    for symbol, pattern in (
        # A function or a root, which makes an expression of one number.
        (
            "F",
            r"\b(?:sqrt|cbrt|sin|cos|tan|log|log2|log10|ln|exp|abs)\(|√|\b(?:square|cube) root of\b"
            r"|\bfactorial of\b|\b(?:half|(?:a|one|two|three) (?:third|quarter|fifth|tenth)s?) of\b",
        ),
        # A verb or noun that takes two numbers.
        ("V", r"\b(?:add|subtract|multiply|divide|(?:sum|product|average|mean|difference) (?:of|between))\b"),
        (
            "N",
            rf"[$€£]?(?!0\d)(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d+)(?:\.\d+)?(?:(?!\w)|(?=x\d))|\b{_SPELLED}\b|\bpi\b|π",
        ),
        # A power, after its number.
        ("Q", r"[²³]|\bsquared\b|\bcubed\b|\bto the \d+(?:st|nd|rd|th)(?: power)?\b|\bfactorial\b"),
        (
            "O",
            r"(?:%|\bpercent|\bper cent)(?: (?:tip|tax|vat|discount|interest|commission|fee))? (?:off?|on)\b"
            r"(?: the\b)?|\b(?:multiplied|divided) by\b"
            r"|\bto the power of\b|\*\*?|[+^×÷]",
        ),
        # Signs and words that stand between numbers for other reasons, too: "24/7", "800 x 600", "5 - 7 pm".
        (
            "A",
            r"(?<=\s)%(?=\s+\d)|(?<=\d)%(?=\d)|[-/]|\bx\b|(?<=\d)x(?=\d)|\b(?:plus|minus|times|mod|modulo)\b",
        ),
        ("P", r"%"),
        ("L", r"\("),
        ("R", r"\)"),
        ("C", r",|\b(?:and|by|from)\b"),
        (".", r"\w+|\S"),
    )
)
"""Signs of arithmetic, each with a letter; the last is anything else."""

_LEXED = re.compile(
    "|".join(f"(?P<{'X' if letter == '.' else letter}>{one})" for letter, one in _SYMBOLS),
    re.IGNORECASE,
)
_EXPRESSION = re.compile(r"A?[FL]{0,9}N[PQR]{0,9}(?:[OA]A?[FL]{0,9}N[PQR]{0,9})*|VN(?:C{1,2}N){1,20}")
"""An expression in these letters."""

_MAY_BE_ARITHMETIC = re.compile(
    r"\d|√|\b(?:plus|minus|times|divided by|multiplied by|root of|percent of|squared|cubed)\b",
    re.IGNORECASE,
)
_ASKING_WORDS = """
calculate calc compute evaluate solve work much result answer value math maths whats find give get tell show
equal equals exactly roughly quick quickly hey hi ok okay pls
"""
_ASKING: Final = frozenset(_ASKING_WORDS.split())
"""Words around an expression with which it is all that a request is about, beside stop words."""

_OPERAND = re.compile(rf"[\d.,$€£()]+|\b{_SPELLED}\b")
_WORD = re.compile(r"[^\W\d_]+")

MOST_OTHER_WORDS: Final = 6
"""Other words of a need from which on an expression is hardly what it is about."""


_OPERATIONS: Final = {
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "x": "multiply",
    "×": "multiply",
    "/": "divide",
    "÷": "divide",
    "^": "power",
    "**": "power",
    "plus": "add",
    "minus": "subtract",
    "times": "multiply",
    "multiplied by": "multiply",
    "divided by": "divide",
    "%": "modulo",
}
"""Operations of an expression that has only one."""

_SIGNED = re.compile(r"\d\s+-\d")
"""Two numbers, the second below 0, as in coordinates: nothing is taken from the first."""

LAST_DAY: Final = 31
"""The highest number before a slash that may be the day or month of a date."""


class Value(Struct, frozen=True):
    """A value of several words."""

    start: int
    end: int
    kind: str


def is_arithmetic(kind: str) -> bool:
    """Return whether a kind is that of numbers with which something is to be calculated."""
    return kind.startswith((ARITHMETIC, NUMBERS))


def value_kind(token: str) -> str | None:
    """Return the kind of value that a token is; None for a word."""
    if len(token) > LONGEST_VALUE or not _MAY_BE_VALUE.search(token):
        return None
    return next((kind for kind, pattern in _TOKENS if pattern.fullmatch(token)), None)


def long_values(query: str, needs: Sequence[tuple[int, int]]) -> list[Value]:
    """Return the values of a query that have several words, and its arithmetic, in order and disjoint.

    The needs are given as places where they begin and end.
    """
    beginning = query[:FIRST_OF_QUERY]
    found = list[Value]()
    if _MAY_BE_SEVERAL.search(beginning):
        for kind, pattern in _SEVERAL:
            found += (Value(*match.span(), kind) for match in pattern.finditer(beginning))
    if _MAY_BE_ARITHMETIC.search(beginning):
        for start, end in needs:
            found += _arithmetic(beginning, start, min(end, FIRST_OF_QUERY))
    disjoint, at = list[Value](), 0
    for value in sorted(found, key=lambda one: (one.start, -one.end)):
        if value.start >= at:
            disjoint.append(value)
            at = value.end
    return disjoint


def _arithmetic(query: str, start: int, end: int) -> Iterator[Value]:
    """Yield the arithmetic in one need of a query.

    Dates, versions, telephone numbers and sizes of pictures have numbers and signs as well. So an expression
    touches nothing else, and one whose signs are not clear must be all that the need is about.
    """
    signs = list(_LEXED.finditer(query, start, end))
    letters = "".join("." if sign.lastgroup == "X" else sign.lastgroup or "." for sign in signs)
    for match in _EXPRESSION.finditer(letters):
        first, last = signs[match.start()].start(), signs[match.end() - 1].end()
        expression, own = query[first:last], match.group()
        if own.count("N") < 2 and "F" not in own and "Q" not in own:
            continue
        if _touches(query[first - 1 : first], query[last : last + 1]):
            continue
        kinds = {value_kind(token.strip("()")) for token in expression.split()}
        if kinds - {None, "amount of money", "temperature"}:
            continue
        around = _WORD.findall(f"{query[start:first]} {query[last:end]}".lower())
        others = sum(word not in STOP_WORDS and word not in _ASKING for word in around)
        is_clear = not {"O", "F", "Q"}.isdisjoint(own)
        if others > (MOST_OTHER_WORDS if is_clear else "V" not in own and " " in expression):
            continue
        if not is_clear and _SIGNED.search(expression):
            continue
        if is_clear or " " in expression or _is_product(expression):
            yield Value(first, last, _kind_of(expression, own))


def _kind_of(expression: str, signs: str) -> str:
    """Return the kind of an expression, with the operation where a sign alone says it."""
    if "V" in signs:
        return NUMBERS
    operation = _OPERATIONS.get(_OPERAND.sub("", expression.lower()).strip(), "")
    return f"{ARITHMETIC}, {operation}" if operation else ARITHMETIC


def _touches(before: str, after: str) -> bool:
    """Return whether an expression is part of something longer, by the characters around it."""
    return bool(before.strip(" \t\n\"'“(=")) or bool(after.strip(" \t\n\"'”)?=.,!;:"))


def _is_product(expression: str) -> bool:
    """Return whether "144/12" or "17x23" is meant as arithmetic, and not as a date, "24/7" or "50/50"."""
    numbers = [int(number) for number in re.findall(r"\d+", expression)]
    is_one = bool(re.fullmatch(r"\d{1,9}[/x]\d{1,9}", expression)) and numbers[0] != numbers[1]
    return is_one and (numbers[0] > LAST_DAY or "x" in expression)


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
        re.compile(
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

_COURTESIES = (
    r"^\W*(?:(?:please|pls|hey|hi|hello|ok|okay|so|and|also|just|always|can you|could you|would you)\W+)*"
)

IDIOMS: Final = (
    (
        re.compile(
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
        re.compile(
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
        re.compile(
            _COURTESIES + r"(?P<idiom>(?:what|when|where) (?:did|have) (?:I|we)"
            r" (?:write|written|note|noted|jot|jotted)(?: down)?)\b(?! to\b)",
            re.IGNORECASE,
        ),
        "search notes",
    ),
    (
        re.compile(
            _COURTESIES + r"(?P<idiom>forget(?= (?:that|what|about|everything|all|the fact)\b))",
            re.IGNORECASE,
        ),
        "delete from memory",
    ),
)
"""Ways to ask for something to be remembered, recalled or forgotten, by which no tool is named, with the
words that tools have. They count where a request opens with them."""

_AT_THE_END: Final = re.compile(
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
    for pattern, meant in IDIOMS:
        if (match := pattern.search(beginning)) is not None:
            return Idiom(*match.span("idiom"), meant)
    match, opened = _AT_THE_END.search(request, len(request) - len(beginning)), opening_match(beginning)
    if match is not None and opened is not None and opened.group().lower() not in ORDERS | QUESTIONS:
        return Idiom(*match.span("idiom"), "add to memory")
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
    asked = ASKED_FOR_ALL.sub(r"\1", request)
    if word in _WORLDLY and _OWN.isdisjoint(re.findall(r"[^\W\d_]+", asked.lower())):
        return WEB_SEARCH
    return None
