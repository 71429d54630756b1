"""Forms of the words in a query: values such as paths and dates, short forms, shell commands, misspellings.

The characters of a value name no tool: nothing has "17 times 23" in its description, and a tool that counts
primes has "17". The kind of the value does.

Strangers write queries: every pattern here takes time in the length of the text.

Nearly only words that nobody knows come here. The distance is that of optimal string alignment: an
insertion, a deletion, a substitution or a swap of neighbours counts one (Damerau, "A technique for computer
detection and correction of spelling errors", CACM 1964). A swap around one letter ("remane" for "rename") is
one error as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from mcp_context_proxy.retrieval.item_metadata import LONGEST_FIRST, LONGEST_PHRASE, PHRASES
from mcp_context_proxy.retrieval.text import STOP_WORDS, TABLES, listed, meanings, spoken
from mcp_context_proxy.system.later import NDArray, np, packaged_text, pattern

FIRST_OF_QUERY: Final = 1_000
"""Characters of a query in which values of several words are looked for."""

ARITHMETIC: Final = "calculate arithmetic expression"
"""The kind of an expression of numbers, with the verb for which it is there."""

JSON: Final = "JSON value"
"""The kind of an object of JSON, which stands for it: what is in it names no tool."""

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
    (kind, pattern(form))
    for kind, form in (
        ("URL", r"(?i:https?|ftp|wss?|file)://\S+|localhost:\d{2,5}(?:/\S*)?"),
        ("repository URL", r"(?:git@[\w.-]+:|(?:git|ssh)://)\S+"),
        (
            "connection string of a database",
            r"(?:postgres(?:ql)?|mysql|mongodb(?:\+srv)?|redis|sqlite)://\S+",
        ),
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

_MAY_BE_VALUE = pattern(r"[\d./\\@:#]|(?:Docker|Make)file|" + f"{_CURRENCIES}|{_ZONES}")
"""Parts of which every value has one."""

_SEVERAL: Final = tuple(
    (kind, pattern(form))
    for kind, form in (
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
        (JSON, r"(?s)\{\s*\"[^\"]{1,80}\"\s*:(?:.*\}|.*$)"),
    )
)
"""Kinds of values that have several words."""

_MAY_BE_SEVERAL = pattern(r"\d|\{|\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP)\s|(?i:select) \*")

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

_LEXED = pattern(
    "|".join(f"(?P<{'X' if letter == '.' else letter}>{one})" for letter, one in _SYMBOLS),
    re.IGNORECASE,
)
_EXPRESSION = pattern(r"A?[FL]{0,9}N[PQR]{0,9}(?:[OA]A?[FL]{0,9}N[PQR]{0,9})*|VN(?:C{1,2}N){1,20}")
"""An expression in these letters."""

_MAY_BE_ARITHMETIC = pattern(
    r"\d|√|\b(?:plus|minus|times|divided by|multiplied by|root of|percent of|squared|cubed)\b",
    re.IGNORECASE,
)
_ASKING: Final = listed("around arithmetic")

_OPERAND = pattern(rf"[\d.,$€£()]+|\b{_SPELLED}\b")
_WORD = pattern(r"[^\W\d_]+")

MOST_OTHER_WORDS: Final = 6
"""Other words of a need from which on an expression is hardly what it is about."""

_OPERATIONS: Final = meanings("operations")

_SIGNED = pattern(r"\d\s+-\d")
"""Two numbers, the second below 0, as in coordinates: nothing is taken from the first."""

LAST_DAY: Final = 31
"""The highest number before a slash that may be the day or month of a date."""

EDGES = "\"'`()[]{}<>,;:!?“”¿¡«»„"
"""Characters around a word that are not part of it."""

PLAIN_TEXT: Final = listed("plain text")
"""Endings of files that any tool for files may read and write."""

SHORT_FORMS: Final[Mapping[str, str]] = meanings("short forms")

_TITLES: Final = frozenset({"Mr", "Mrs", "mrs"})
"""Titles of people, which are written like short forms."""

SHELL_WORDS: Final[Mapping[str, str]] = meanings("shell commands")

_PLAIN_TOO: Final = frozenset({"cat", "kill", "touch", "tail", "diff", "du"})
"""Commands that are plain words too: they only count before a value, an option, or nothing."""


class Value(Struct, frozen=True):
    """A value of several words."""

    start: int
    end: int
    kind: str


def is_arithmetic(kind: str) -> bool:
    """Return whether a kind is that of numbers with which something is to be calculated."""
    return kind.startswith((ARITHMETIC, NUMBERS))


def value_kind(token: str) -> str | None:
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


def written_out(token: str) -> str | None:
    """Return the words that a short form stands for."""
    return None if token in _TITLES else SHORT_FORMS.get(token.lower())


def shell_meaning(word: str, query: str) -> str | None:
    """Return the effect of a command of a shell with which a query begins."""
    if word in _PLAIN_TOO:
        following = (query.split(maxsplit=2)[1:2] or ["-"])[0]
        if not (following.startswith("-") or following.isdigit() or value_kind(following.strip(EDGES))):
            return None
    return SHELL_WORDS.get(word)


_LETTERS = pattern(r"[A-Za-z]+")
SOMEBODY = (
    r"(?:(?-i:[A-Z][A-Za-z]+)|him|her|them|(?:every|some)(?:one|body)"
    r"|(?:my|our|his|her|the) (?:\w+ ){0,2}?(?:boss|team|people|guys|colleagues?|mother|father|mum|mom|dad"
    r"|wife|husband|sister|brother|landlord|neighbou?rs?|teacher|doctor|lawyer|customers?|clients?|supplier|tenants?"
    r"|manager|staff|family|parents?|group))\b"
)
"""Somebody who can be written to."""

_CELL: Final = pattern(r"\b[A-Z]{1,3}\d{1,5}\b")
_ISSUE_KEY: Final = pattern(r"\b[A-Z]{2,10}-\d+\b")
_HOUR: Final = spoken(
    r"\b(?:\d{1,2} ?[ap]m|\d{1,2}:\d\d|half past|quarter (?:to|past)|\d{1,2} o['’]?clock|noon)\b"
)
_CHANNEL: Final = pattern(r"(?<!\S)#[a-z][\w-]+")
_VALUES: Final = ((_CELL, "cell"), (_ISSUE_KEY, "issue"), (_HOUR, "hour"), (_CHANNEL, "channel"))
"""Values that are the object of a verb, with the words that stand for them in `_BY_OBJECT`."""

_MADE_OTHER: Final = spoken(
    r"make(?= (?:it|them|this|these|those|the|my|our|all|every|each)\b.{0,80}? (?:\w{2,}er|more|less|public"
    r"|private|visible|invisible|hidden|black|white|red|blue|green|yellow|grey|gray|orange|purple|pink|look"
    r"|stay|louder|empty|available|active|inactive|read-only|mandatory|optional)\b)",
    "make",
)
"""Orders to change something: "make the header blue"."""

_WITH_OTHER_WORDS: Final = (
    (
        spoken(
            rf"(?:write to|tell|inform|notify|text)(?= {SOMEBODY}(?:,|:|$| (?:that|about|how|why|when|where"
            rf"|what|we|I|I'm|I'll|the|our|my|it|it's)\b))(?!.{{0,200}} (?:in|as|with|by) an? )",
            "write|tell|inform|notify|text",
        ),
        "send message to",
    ),
    (
        spoken(
            r"(?:save|put|dump|store)(?= (?:this|that|it|them|these|everything|all(?: of (?:it|this))?)"
            rf" (?:in|into|to|as|under|at) \S*[\w-]\.(?:{'|'.join(sorted(PLAIN_TEXT))})\b)",
            "save|put|dump|store",
        ),
        "write",
    ),
    (spoken(rf"(?:bill|invoice)(?= {SOMEBODY})", "bill|invoice"), "create invoice for"),
    (_MADE_OTHER, "change"),
    (spoken(r"throw(?= .{1,60}? (?:out of|off|from) )", "throw"), "remove"),
)
"""Orders to write to somebody, or to change something, with the words that tools have for them."""

_BY_OBJECT: Final = tuple(
    (meant, frozenset(verbs.split()), frozenset(objects.split()))
    for meant, words in (line.split(" = ") for line in TABLES["verbs by object"])
    for verbs, objects in [words.split(" / ")]
)
"""Verbs that mean something else with some objects: people give a ticket to somebody, tools assign it."""

OBJECT_WORDS: Final = 7
"""Words after a verb among which its object is looked for."""

FIRST_OF_ORDER = 80
"""Characters of an order in which a value is looked for that is its object."""


def reworded(order: str) -> tuple[int, str] | None:
    """Return how many characters of an order name no tool, and their meaning; None for most orders.

    The order begins with its opening word.
    """
    beginning = order[: LONGEST_PHRASE + 1].lower()
    if beginning.startswith(LONGEST_FIRST):
        for phrase in LONGEST_FIRST:
            after = beginning[len(phrase) : len(phrase) + 1]
            if beginning.startswith(phrase) and not (after.isalnum() or after == "_"):
                return len(phrase), PHRASES[phrase]
    verb, *following = (match.group().lower() for match in islice(_LETTERS.finditer(order), OBJECT_WORDS + 1))
    if meanings := [(meant, named) for meant, verbs, named in _BY_OBJECT if verb in verbs]:
        objects = {*following, *(word for value, word in _VALUES if value.search(order, 0, FIRST_OF_ORDER))}
        for meant, named in meanings:
            if not named.isdisjoint(objects):
                return len(verb), meant
    for form, meant in _WITH_OTHER_WORDS:
        if (said := form.match(order)) is not None:
            return said.end(), meant
    return None


SHORTEST = 4
"""Letters of the shortest word that is corrected: a shorter one has too many neighbours."""

LONGEST = 24
"""Letters of the longest word that is corrected."""

TWO_ERRORS_FROM = 7
"""Letters from which on a word may have two errors."""

WORDS_COMPARED = 50_000
"""Words of a list that are compared: a comparison of so many takes some 5 ms. The names of 1,000 tools have
about 900 words."""

CANDIDATES = 500
"""Words whose errors are counted for one that is misspelled, 0.05 ms each; a hostile list could have more."""

VOWELS = frozenset("aeiouy")

SHORT = 4
"""Letters up to which a word is only corrected by a swap or a missing letter: others are rather short for
something ("proj", "incl")."""

WORDS = Path(__file__).with_name("words.txt")
"""Words that a misspelled word may have meant, the most likely first: words of tools, then frequent English
ones. ``scripts/build_words.py`` writes them."""

LIKELY = 11_000
"""Words of the file that may be meant by another: "forex" is rather a new word than the rare "fore"."""


class WordList:
    """Words, the most likely first, among which the nearest to a misspelled one is found."""

    def __init__(self, words: Iterable[str]) -> None:
        """Keep the words that are plain letters and of a length that is compared."""
        plain = (word for word in words if word.isascii() and word.isalpha() and word.islower())
        self._words = [word for word in plain if SHORTEST - 1 <= len(word) <= LONGEST + 2][:WORDS_COMPARED]
        self._lengths = np.array([len(word) for word in self._words], np.int16)
        self._letters = _letter_counts(self._words)

    def __contains__(self, word: str) -> bool:
        return word in self._words

    def nearest(self, word: str) -> tuple[str, int] | None:
        """Return the nearest word within one or two errors, with their number; of equals the first."""
        if not self._words:
            return None
        allowed = 2 if len(word) >= TWO_ERRORS_FROM else 1
        # An error changes the counts of letters by two at most (a substitution), so one comparison of arrays
        # leaves out most words.
        away = np.abs(self._letters - _letter_counts([word])).sum(axis=1, dtype=np.int16)
        near = (away <= 2 * allowed) & (np.abs(self._lengths - len(word)) <= allowed)
        found: tuple[str, int] | None = None
        for at in np.flatnonzero(near)[:CANDIDATES].tolist():
            candidate = self._words[at]
            # People rarely miss the first letter; a word that differs in it is mostly another word.
            begins_otherwise = candidate[0] != word[0] and word[:2] != candidate[1::-1]
            if begins_otherwise and word != candidate[1:]:
                continue
            if len(word) <= SHORT and len(candidate) <= len(word) and sorted(candidate) != sorted(word):
                continue
            distance = errors(word, candidate)
            if distance <= allowed and (found is None or distance < found[1]):
                found = candidate, distance
        return found


def correction(word: str, catalog: Callable[[], WordList]) -> str | None:
    """Return the word that a misspelled word was probably meant to be; None for a right or a strange one.

    Words of the catalog go before others that are as near. Of the packaged ones only the likely are meant.
    Letters without a vowel ("smth") are short for something.

    Args:
        word: In lower case; none that the catalog has or that is known otherwise (`text.is_known`).
        catalog: Returns the words of its names.
    """
    is_plain = word.isascii() and word.isalpha() and not VOWELS.isdisjoint(word)
    if not (is_plain and SHORTEST <= len(word) <= LONGEST):
        return None
    found = (catalog().nearest(word), likely().nearest(word))
    nearest = [one for one in found if one is not None]
    return min(nearest, key=lambda one: one[1])[0] if nearest else None


def errors(first: str, second: str) -> int:
    """Return the distance of two words by optimal string alignment, with swaps around one letter."""
    above, before, row = list[int](), list[int](), list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        third, above, before, row = above, before, row, [i]
        for j, b in enumerate(second, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and b == first[i - 2]:
                cost = min(cost, above[j - 2] + 1)
            if i > 2 and j > 2 and (a, first[i - 2], first[i - 3]) == (second[j - 3], second[j - 2], b):
                cost = min(cost, third[j - 3] + 1)
            row.append(cost)
    return row[-1]


@cache
def packaged() -> KeysView[str]:
    return dict.fromkeys(packaged_text(WORDS).split()).keys()


@cache
def likely() -> WordList:
    """Return those of `WORDS` that people mean when they err."""
    return WordList(islice(packaged(), LIKELY))


def _letter_counts(words: Sequence[str]) -> NDArray[np.int8]:
    """Return [words, letters]: how often each has each letter."""
    counts = np.zeros((len(words), 26), np.int8)
    if words:
        letters = np.frombuffer("".join(words).encode(), np.uint8) - ord("a")
        np.add.at(counts, (np.repeat(np.arange(len(words)), [len(word) for word in words]), letters), 1)
    return counts
