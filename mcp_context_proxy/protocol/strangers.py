"""Words of strangers: clean, bounded and under their name; and plain words about what they wrote wrong.

Strangers are servers, authorization servers, model services and other sessions. Everything that they say
passes here on its way to a reader, except the results of calls, which pass byte for byte.

`clean` removes characters that a person cannot see from text that a model or a person will read. Characters
are removed, never replaced, so that nothing is added and lines keep their numbers. Joiners and variation
selectors stay where a script or an emoji needs them, because people write with them. It takes time in
proportion to the text, whatever the text is.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from mcp_context_proxy.errors import NOTICE, nearest_names
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.system.later import inspect, pattern

SAID_CHARACTERS: Final = 10_000
"""Characters of an error or a log message that pass: more than anybody reads of one."""

LINE_CHARACTERS: Final = 1_000
"""Characters of a line that pass to a terminal or a log."""

NAME_CHARACTERS: Final = 200
"""Characters of the name or the version that a server gives itself."""

DATA_BYTES: Final = 64 * 1024
"""Bytes of the data of an error, a log message or a progress notification that pass."""

DATA_LEVELS: Final = 100
"""Levels of such data, and of the terms of a session. Hosts written in Rust read 127 of a message."""

BLANK_LINES: Final = 4
"""Line ends in a row that stay: more push the text after them out of sight."""

BLANKS: Final = 60
"""Other spaces in a row that stay: the indentation of any example."""

_SPACE: Final = pattern(rf"\s{{{BLANK_LINES + 1},}}")

_ALIKE: Final = {
    "A": "ΑАᎪᗅꓮ𖽀𐊠", "B": "ΒВᏴᗷꓐꞴ𐊂𐊡𐌁", "C": "СϹᏟꓚⲤ𑣲𑣩𐊢𐌂𐐕𐔜Ҫ", "D": "ᎠᗞꓓÐᗪƉ", "E": "ΕЕᎬⴹꓰⲈ℮𑢦𑢮𐊆",
    "F": "Ϝᖴꓝ𑣂𑢢𐊇𐊥𐔥", "G": "ԌᏀꓖᏳ", "H": "ΗНᎻᕼꓧⲎ𐋏ҢӉӇ", "I": "ΙІⲒӀᏆꓲ𐌠𞣇ߊⵏᛁ𖼨𐊊𐌉", "J": "ЈͿᎫꓙᒍ", "K": "ΚКᏦꓗⲔᛕ𐔘ҚҞ",
    "L": "ᏞᒪꓡⳐ𖼖𑢣𑢲𐐛𐔦", "M": "ΜМϺᎷᗰꓟⲘᛖ𐊰𐌑Ӎ", "N": "ΝꓠⲚ𐔓", "O": "ΟОՕꓳⲞ߀০୦〇𑓐𑣠ⵔዐଠ𐓂𑢵𐊒𐊫𐐄𐔖", "P": "ΡРᏢᑭꓑⲢ𐊕",
    "Q": "ԚⵕႳ", "R": "ᎡᏒᖇꓣƦ𐒴𖼵", "S": "ЅՏᏕᏚꓢ𖼺𐊖𐐠", "T": "ΤТᎢꓔⲦ𖼊𑢼𐊗𐊱𐌕Ҭ", "U": "Սሀᑌꓴ∪⋃𐓎𖽂𑢸ɄᏌ", "V": "ѴᏙᐯꓦⴸꛟ𖼈𑢠𐔝",
    "W": "ԜᎳᏔꓪ𑣯𑣦", "X": "ΧХ᙭ꓫⲬꞳ𐌢𑣬ⵝᚷ𐊐𐊴𐌗𐔧Ҳ", "Y": "ΥҮУᎩᎽꓬⲨ𖽃𑢤𐊲Ұ", "Z": "ΖᏃꓜ𐋵𑣥𑢩", "a": "аαɑꭺ",
    "b": "ЬьƄᏏᑲᖯᑳБҍҌѣѢ", "c": "сϲⲥꮯ𐐽ҫ", "d": "ԁᏧᑯꓒð", "e": "еҽεєɛꭼⲉҿ", "f": "ꬵẝք", "g": "ցԍƍ",
    "h": "һհᏂнꮋꚕᏲћ", "i": "іιɩꙇᎥꭵ𑣃ᵻᵼ", "j": "јϳ", "k": "кκ", "l": "ӏƖǀꮮ", "m": "мꮇ𑣣𑜀", "n": "ոռη",
    "o": "оοօσⲟဝჿ०੦૦௦౦೦൦๐໐၀ᴑഠ𐓪𑣈𑣗𐐬ɵөѳꮎꮻꭴ", "p": "рρⲣꮲ", "q": "ԛգզ", "r": "гᴦⲅꭇꭈꮁꮢꝛғ", "s": "ѕƽꮪ𑣁𐑈",
    "t": "тτ", "u": "υսʋꞟ𐓶𑣘ᵾꮜ", "v": "νѵꮩ∨⋁𑜆𑣀", "w": "ԝѡաɯꮃ𑜊𑜎𑜏ѽ𑓅ꝡ", "x": "хχᕁᕽ", "y": "уүγɣყᶌ𑣜ұ", "z": "ꮓ𑣄",
    "[": "［【〔〖〘〚⟦⟬⁅❲⦋⦍⦏⦗﹝﹇⌈⌊⎡⎣⸢⸤「『｢", "]": "］】〕〗〙〛⟧⟭⁆❳⦌⦎⦐⦘﹞﹈⌉⌋⎤⎦⸣⸥」』｣",
    "'": "`´΄՚՝׳ߴߵ᾽᾿`´῾Ꞌꞌʹʺʻʼʽʾʿˈˉˊˋ‘’‛“”‟′″‴‵‶‷‹›«»❛❜❝❞＂＇｀‚„〃״˝˶ˮ",
}  # fmt: skip
"""Characters of all scripts that are drawn like each of ASCII, but for those of `_STYLED`."""

_STYLED: Final = (
    *(range(0xC0, 0x2E5), range(0x1D00, 0x1DC0), range(0x1E00, 0x1F00), range(0x2C60, 0x2C80)),
    *(range(0x2100, 0x2185), range(0x249C, 0x24EA), range(0xFF21, 0xFF5B), range(0x1D400, 0x1D800)),
    *(range(0xA720, 0xA800), range(0xAB30, 0xAB70), range(0x1F110, 0x1F18A), range(0x1F1E6, 0x1F200)),
)
"""Blocks of letters in other styles, which Unicode takes for the plain ones or names after them."""

_STYLE: Final = pattern(
    r"\b(?:LATIN (CAPITAL )?(?:SMALL )?|SYMBOL )LETTER (?:SMALL CAPITAL |[A-Z]{6,} )?([A-Z])(?: WITH|$)"
)

_ON_LETTERS: Final = (
    *(range(0x300, 0x370), range(0x483, 0x48A), range(0x1AB0, 0x1B00), range(0x1DC0, 0x1E00)),
    *(range(0x20D0, 0x2100), range(0xFE00, 0xFE10), range(0xFE20, 0xFE30), range(0xE0100, 0xE01F0)),
)
"""Blocks of marks and selectors, which only change the look of the character before them."""


@lru_cache(maxsize=1)
def _drawn() -> dict[int, str]:
    """Return the character of ASCII that each other one is drawn like, and NUL for those on letters."""
    table = {ord(other): plain for plain, others in _ALIKE.items() for other in others}
    for code in chain(*_STYLED):
        plain = unicodedata.normalize("NFKD", chr(code)).strip("()")[:1].translate(table)
        if found := _STYLE.search(unicodedata.name(chr(code), "")):
            plain = found[2] if found[1] else found[2].lower()
        if plain.isascii() and plain.isalpha():
            table.setdefault(code, plain)
    return table | dict.fromkeys(chain(*_ON_LETTERS), "\0")


def _beginning() -> str:
    """Return a regular expression of a bracket and an "s", as few texts that are no mark have them."""
    letters, marks = (
        "".join(chr(code) for code, plain in _drawn().items() if plain in wanted) for wanted in ("sS", "\0")
    )
    return rf"[\[{_ALIKE['[']}][\s{marks}]*+[sS{letters}]"


_BEGINNING: Final = pattern(_beginning)
_MARK: Final = pattern(
    r"\[[\s\0]*+" + r"\0*+".join("server") + r"\0*+(?=[\s:\0]*+['\"`]"
    r"|(?![\w-])(?:[^\[\]\n]|\[[^\[\]\n]{0,100}\]){1,100}\b(?:s\0*a\0*y|a\0*s\0*k)\0*s\b)"
    r"(?:[^\[\]\n]{1,200}(\]))?",
    re.IGNORECASE,
)
"""Beginning of a mark by which words stand under the name of a server (`named`), as strangers forge it, in
the characters that it is drawn like."""

_HIDING: Final = pattern(rb"\\[^nt\"/]")
"""Escapes of JSON that cannot be replaced outside of its strings: any character, or another backslash."""

_STRING: Final = pattern(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def compact(text: str) -> str:
    """Return a clean text without long runs of empty lines or spaces, which push the rest out of sight."""
    return _SPACE.sub(_shorter, clean(text))


def _shorter(run: re.Match[str]) -> str:
    space, lines = run[0], run[0].count("\n")
    if lines <= BLANK_LINES and len(space) <= BLANKS:
        return space
    return "\n" * min(lines, BLANK_LINES) + space[space.rfind("\n") + 1 :][:BLANKS]


def bounded(text: str, most: int = SAID_CHARACTERS) -> str:
    """Return what a stranger said: clean, compact, and cut where it is too long, which it then says."""
    text = unmarked(compact(text))
    return text if len(text) <= most else f"{text[:most]} … [cut here: {most:,} of {len(text):,} characters]"


def one_line(text: str, most: int | None = None) -> str:
    """Return what a stranger said on one line, for a terminal or a table; `most` bounds its length."""
    line = " ".join(clean(text).split())
    return line if most is None or len(line) <= most else f"{line[:most].rstrip()} …"


def unmarked(text: str) -> str:
    """Return a text in which no words pass for those of another server: ``[server 'x' says]`` gets ``()``."""
    if _BEGINNING.search(text) is None:
        return text
    # Each character has one in its place, so that a mark is where it was found.
    drawn = text if text.isascii() else text.translate(_drawn())
    parts, end = list[str](), 0
    for mark in _MARK.finditer(drawn):
        closed = mark[1] is not None
        parts += text[end : mark.start()], "(", text[mark.start() + 1 : mark.end() - closed], ")" * closed
        end = mark.end()
    return "".join((*parts, text[end:]))


def named(server: str, text: str, verb: str = "says") -> str:
    """Return words that would otherwise stand alone under the name of the server whose they are."""
    return f"[server {server!r} {verb}] {unmarked(text)}"


def quoted(text: str) -> str:
    """Return a name or a value of a stranger in quotation marks, as part of a message of ours.

    It is cut where nobody reads on, and not earlier: whoever shows the message removes secrets from it, and
    recognizes only those that are whole.
    """
    return repr(unmarked(text[:LINE_CHARACTERS]))


def stranger_text(text: str, redact: Callable[[str], str], most: int = SAID_CHARACTERS) -> str:
    """Return the text of a stranger as it may be shown: `bounded`, and without secrets (`redact`)."""
    # A secret is found only where nothing hides in it, and where it is whole.
    # Of megabytes no more is looked at than ten times what is shown.
    return bounded(redact(clean(text[: 10 * most])), most)


def stranger_data(data: bytes, redact: Callable[[bytes], bytes]) -> bytes:
    """Return JSON of a stranger that is no result, such as the data of an error, as it may be shown.

    Every string in it, the names of members as well, is as `stranger_text` returns it. If there is too much,
    it says that instead.
    """
    shown = stranger_json(data, redact) if len(data) <= 2 * DATA_BYTES else data
    if len(shown) > DATA_BYTES:
        return json.dumps(f"[left out: {len(data):,} bytes, over {DATA_BYTES:,}]").encode()
    if envelope.unreadable(shown, DATA_LEVELS) is not None:
        return b'"[left out: it has a number that is too large, or too many levels]"'
    return shown if len(shown) <= SAID_CHARACTERS else _STRING.sub(_bounded_string, shown)


def stranger_json(data: bytes, redact: Callable[[bytes], bytes]) -> bytes:
    """Return JSON of one stranger, such as a failed result, as it may be shown.

    Its strings, and the names of members, are clean and without secrets and marks of servers (`unmarked`).
    """
    return _in_strings(unmarked, shown_json(data, redact))


def _in_strings(change: Callable[[str], str], data: bytes) -> bytes:
    """Return JSON with `change` made to each string in it, the names of members as well.

    Where nothing would be changed in all of it, nothing would be in any string, and no string is looked at.
    """
    if _HIDING.search(data) is None:
        text = data.decode("utf-8", "surrogatepass")
        for escape, character in _PLAIN_ESCAPES:
            text = text.replace(escape, character)
        if change(text) == text:
            return data

    def changed(found: re.Match[bytes]) -> bytes:
        text = _decode(found[0].decode("utf-8", "surrogatepass"))
        shown = change(text)
        return found[0] if shown == text else _encode(shown).encode()

    return _STRING.sub(changed, data)


_PLAIN_ESCAPES: Final = (r"\n", "\n"), (r"\t", "\t"), (r"\"", '"'), (r"\/", "/")
_decode: Final = json.JSONDecoder(strict=False).decode
_encode: Final = json.JSONEncoder(ensure_ascii=False).encode


def shown_json(data: bytes, redact: Callable[[bytes], bytes]) -> bytes:
    """Return encoded JSON with clean strings, and without the secrets in them that `redact` removes."""
    cleaned = clean_json(data)
    if redact(cleaned) == cleaned:
        return cleaned
    # A secret of digits may stand in a number as well, which has to stay one.
    return _STRING.sub(lambda found: redact(found[0]), cleaned)


def clean_json(data: bytes) -> bytes:
    """Return encoded JSON with every string in it clean and compact, the names of members as well.

    Nothing else is changed, and nothing at all where no string is suspect.
    """
    return _in_strings(compact, data)


def _bounded_string(found: re.Match[bytes]) -> bytes:
    string = found[0]
    if len(string) <= SAID_CHARACTERS:
        return string
    return json.dumps(bounded(json.loads(string, strict=False)), ensure_ascii=False).encode()


URL_CHARACTERS: Final = 8192
"""Longest URL that a person may be sent to; browsers and servers take no longer ones."""

_PLAIN_URL: Final = pattern(r"https?://[!-\[\]-~]+", re.IGNORECASE)
"""Scheme, two slashes, and visible ASCII but for the backslash, which browsers take for a slash."""

_PLAIN_HOST: Final = pattern(
    r"(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.IGNORECASE
)
"""A name or an address, and a port. In anything else, such as an escape, browsers find another host."""

_SITES: Final = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".test")
"""Ends of names that only this machine or its own network knows."""


def url_refusal(url: str, sender: str | None = None) -> str:
    """Return why a person must not be sent to a URL; empty if it is safe to show and to open.

    The shown address must be the one it leads to, and it must lead to a page of a server. `sender` is the URL
    of the server that sends the person there: one on the internet has no page on this machine.
    """
    if len(url) > URL_CHARACTERS:
        return f"it has more than {URL_CHARACTERS:,} characters"
    if not _PLAIN_URL.fullmatch(url):
        return "it must be https://HOST/..., in ASCII, without spaces, backslashes and control characters"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "it cannot be parsed"
    if "@" in parts.netloc:
        return "it must hold no user and no password"
    if not host:
        return "it names no host"
    if not _PLAIN_HOST.fullmatch(parts.netloc) or not _is_as_written(host):
        return "its host must be a name, or an address in its usual form"
    if parts.scheme == "http" and not (is_loopback(host) or host.endswith(".localhost")):
        return "it must begin with https://, unless its host is this machine"
    if sender is not None and _is_here(host) and _is_of_the_internet(urlsplit(sender).hostname or ""):
        return "it leads to this machine, and the server that sends people there is on the internet"
    return ""


def _is_here(host: str) -> bool:
    """Return whether browsers take a host for this machine, or for one that is joined to it directly."""
    name = host.rstrip(".").lower()
    # The names of this machine that the files of systems have, and what browsers take for it.
    if re.fullmatch(
        r"(?:localhost[46]?|ip6-(?:localhost|loopback))(?:\.localdomain[46]?)?|.*\.localhost", name
    ):
        return True
    with suppress(ValueError):
        address = ipaddress.ip_address(name)
        address = getattr(address, "ipv4_mapped", None) or address
        return address.is_loopback or address.is_unspecified or address.is_link_local
    return False


def _is_of_the_internet(host: str) -> bool:
    """Return whether a host is neither this machine nor one of its own network, as far as its name tells."""
    name = host.rstrip(".").lower()
    with suppress(ValueError):
        return ipaddress.ip_address(name).is_global
    return "." in name and not name.endswith(_SITES)


def _is_as_written(host: str) -> bool:
    """Return whether a host is no address in disguise: browsers take 0x7f.1 for 127.0.0.1."""
    if not host.rstrip(".").rpartition(".")[2][:1].isdigit():
        return True
    try:
        return ipaddress.ip_address(host) is not None
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone, whatever resolves names."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class LogFormatter(logging.Formatter):
    """Escapes control characters in log messages: a terminal would obey those of servers and clients."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of one message."""
        level = "" if record.levelno == NOTICE else f"{record.levelname}: "
        text = f"mcp-context-proxy: {level}{super().format(record)}"
        return text if text.isascii() and text.isprintable() else clean("".join(map(_printable, text)))


def _printable(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()


_CONTROLS: Final = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
"""C0 and C1 but for tab and newline."""

_BLANKS: Final = frozenset(
    "\u034f"  # combining grapheme joiner
    "\u17b4\u17b5"  # inherent vowels of Khmer
    "\u2800"  # braille without dots
    "\u3164\uffa0"  # Hangul fillers outside of syllables
    "\ufffc"  # the place of an object that is not there
    "\U00013441\U00013442"  # blanks between hieroglyphs
    "\U0001d159"  # a note without a head
)
"""Letters, marks and symbols, by their category, of which nothing is drawn."""

_VISIBLE_FORMATS: Final = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
"""Signs drawn around the digits or letters after them, although their category is that of controls."""

_RESERVED: Final = (range(0x1F000, 0x1FB00), range(0x20000, 0x323B0))
"""Code points kept for pictographs and ideographs: a person may use one that is younger than this Python."""

_MONGOLIAN: Final = r"\u1820-\u18aa"
_JOINING_SCRIPTS: Final = (
    r"\u0620-\u06ff\u0700-\u074f\u0750-\u077f\u07ca-\u07ff\u0840-\u085f\u0860-\u08ff"  # Arabic and kin
    r"\ufb50-\ufdff\ufe70-\ufefc"  # Arabic presentation forms
    r"\u0900-\u0dff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1b00-\u1b7f\ua840-\uabff"  # Indic and kin
    r"\U00010a00-\U00010aff\U00011000-\U00011fff\U0001e900-\U0001e95f" + _MONGOLIAN
)
_PICTOGRAPHS: Final = r"\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_IDEOGRAPHS: Final = r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_VARIED: Final = (
    r"#*0-9\u00a9\u00ae\u1000-\u109f\u2010-\u2027\u2030-\u205f\u2070-\u33ff\ua840-\ua87f\uaa60-\uaa7f"
    r"\U00010000-\U0001ffff" + _IDEOGRAPHS
)

_SELECTED: Final = (
    pattern(rf"[{_VARIED}][\ufe00-\ufe0f]"),
    pattern(rf"[{_IDEOGRAPHS}][\U000e0100-\U000e01ef]"),
    pattern(rf"[{_MONGOLIAN}][\u180b-\u180d\u180f]"),
)
"""A character of which there are variants, and a selector of one."""

_JOINED: Final = (
    # Scripts in which a joiner changes the shape of the letter before it, also at the end of a word.
    pattern(rf"[{_JOINING_SCRIPTS}][\u200c\u200d]"),
    pattern(rf"[{_PICTOGRAPHS}]\u200d[{_PICTOGRAPHS}]"),
    pattern(rf"[{_MONGOLIAN}]\u180e"),
    pattern("[\U00018b00-\U00018cff]\U00016fe4"),  # Khitan
)
"""A character, a joiner, and the character after it where that matters."""

_ATTACHED: Final = pattern("[\u200c\u200d\u180b-\u180f\ufe00-\ufe0f\U00016fe4\U000e0100-\U000e01ef]+")
"""Joiners and variation selectors, which are drawn only by their effect on the character before them."""

LONGEST_RUN: Final = 8
"""Characters of such a run that are looked at: people write two at most."""

_FILLERS: Final = pattern("[\u115f\u1160]+")
"""Fillers for a missing consonant or vowel in a syllable of conjoining Hangul letters."""

_CONJOINING: Final = pattern("[\u1100-\u115e\u1161-\u11ff]")

_ESCAPE_SEQUENCE: Final = pattern(
    rf"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor
    rf"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\n{_CONTROLS}]*(?:\x07|\x1b\\|\x9c)"  # titles, hyperlinks
    rf"|\x1b[ -/]*[0-~]"  # two-character escapes
)
"""ECMA-48. No part can run over a control character, so matching stays linear in the text."""

MARKS_KEPT: Final = 30
_CROWD: Final = pattern("((?:[^\\w\x00-\x7f]|[\uff9e\uff9f]){30})(?:[^\\w\x00-\x7f]|[\uff9e\uff9f])+")
"""More marks than any letter has, by Unicode's Stream-Safe Text Format, or a line drawn with characters.
Normalization sorts the marks of a letter in time that is the square of their number."""

_UNUSUAL: Final = pattern(r"[^\t\n -~]")


def clean(text: str) -> str:
    """Remove control characters, terminal escapes, bidi controls and invisible characters.

    Private and unassigned characters are removed as well: no font draws them, and a model may read them.
    Newlines and tabs stay, and joiners where a script or an emoji needs them. A clean text is returned as is.
    """
    if _UNUSUAL.search(text) is None:
        return text
    found = set(text)
    if "\x1b" in found or "\x9b" in found or not found.isdisjoint("\x90\x98\x9d\x9e\x9f"):
        text = _ESCAPE_SEQUENCE.sub("", text)
    if unseen := {ord(character): None for character in found if _is_unseen(character)}:
        text = text.translate(unseen)
    # Each sees only neighbours that stay, so that cleaning a clean text changes nothing.
    text = _ATTACHED.sub(_effective, text)
    return _FILLERS.sub(_filling, text)


def in_plain_letters(text: str) -> str:
    """Return a text in the Latin letters that it is drawn with, without marks on them; it is not shown."""
    if text.isascii():
        return text
    return normalized("NFKD", text).translate(_drawn()).replace("\0", "")


def normalized(form: Literal["NFC", "NFKD"], text: str) -> str:
    """Return a text in a normalization form of Unicode, without crowds of marks on one letter."""
    if text.isascii():
        return text
    # Each character of a crowd has a second byte, and most texts have no more than a dash or two.
    if len(text.encode("utf-8", "surrogatepass")) - len(text) > MARKS_KEPT:
        text = _CROWD.sub(r"\1", text)
    return unicodedata.normalize(form, text)


def _is_unseen(character: str) -> bool:
    """Return whether nothing is ever drawn for a character, wherever it stands."""
    if character.isprintable():
        return character in _BLANKS
    if character in "\t\n" or character in _VISIBLE_FORMATS or _ATTACHED.match(character):
        return False
    if unicodedata.category(character) == "Cn":
        code = ord(character)
        return code & 0xFFFE == 0xFFFE or not any(code in block for block in _RESERVED)
    return unicodedata.category(character) != "Zs"


def _effective(run: re.Match[str]) -> str:
    """Return the characters of a run that have an effect: one selector at its beginning, and one joiner."""
    text, (start, end) = run.string, run.span()
    return _effective_part(text[start - 1 : start], run[0][:LONGEST_RUN], text[end : end + 1])


@lru_cache(maxsize=4096)
def _effective_part(before: str, attached: str, after: str) -> str:
    kept = attached[0] if any(one.match(before + attached[0]) for one in _SELECTED) else ""
    for character in attached[len(kept) :]:
        if any(one.match(before + character + after) for one in _JOINED):
            return kept + character
    return kept


def _filling(run: re.Match[str]) -> str:
    """Return the fillers of a run that fill a syllable: next to a letter of it."""
    text, (start, end), fillers = run.string, run.span(), run[0]
    begins = _CONJOINING.match(text[start - 1 : start]) is not None
    ends = _CONJOINING.match(text, end) is not None
    if len(fillers) <= 2 and (begins or ends):
        return fillers
    return fillers[: int(begins)] + fillers[len(fillers) - int(ends) :]


SHOWN_CHARACTERS: Final = 60
"""Length to which a value or a name of a stranger is repeated in an error."""

_FORMS: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_PLACE: Final = pattern(r" - at `(?:key in )?\$\.?([^`]*)`$")
_NAMED: Final = pattern(r"Object (missing required|contains unknown) field `(.*)`$", re.DOTALL)
_OTHER_FORM: Final = pattern(r"Expected `([^`]*)`, got `([^`]*)`$")
_BEYOND: Final = pattern(r"Expected `(\w+)` (of length )?(>=|<=|>|<) ([\d.e+-]+)$")
_NOT_LISTED: Final = pattern(r"Invalid enum value (.*)$", re.DOTALL)
_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def in_words(
    error: Exception,
    form: type,
    whole: str = "it",
    named: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return why a value does not have a form, for the person or model who wrote it.

    The words of msgspec are those of a programmer. ``whole`` names the value where it has a fault as a whole;
    ``named`` are the members that an error about an unknown one names, by the path of their object: by
    default all.
    """
    if isinstance(error, RecursionError):
        return f"{whole}: nested too deeply"
    said = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"{whole}: not valid JSON ({one_line(said, SHOWN_CHARACTERS)})"
    place = _PLACE.search(said)
    path = "" if place is None else place[1].replace("[...]", "")
    said = said if place is None else said[: place.start()]
    if found := _NAMED.match(said):
        name = ".".join(filter(None, (path, one_line(found[2], SHOWN_CHARACTERS))))
        if found[1] == "missing required":
            return f"{name} is missing"
        return f"{name} is not known; {_known_names(form, path, found[2], (named or {}).get(path))}"
    subject = path or whole
    if found := _OTHER_FORM.match(said):
        wanted = " or ".join(_FORMS.get(one, one) for one in found[1].split(" | ") if one != "null")
        fraction = found[2] == "float" and wanted == _FORMS["int"]
        return (
            f"{subject} must be {wanted}, not {'a fraction' if fraction else _FORMS.get(found[2], found[2])}"
        )
    if found := _BEYOND.match(said):
        bound, number = _BOUNDS[found[3]], float(found[4])
        if not found[2]:
            return f"{subject} must be {bound} {number:,g}"
        if (found[3], number) == (">=", 1):
            return f"{subject} must not be empty"
        return f"{subject} must have {bound} {number:,g} {'characters' if found[1] == 'str' else 'elements'}"
    if found := _NOT_LISTED.match(said):
        values = ", ".join(map(str, _values(form, path)))
        return f"{subject} must be one of {values}, not {one_line(found[1], SHOWN_CHARACTERS)}"
    return f"{subject}: {one_line(said)}"


def _known_names(form: type, path: str, name: str, named: Sequence[str] | None) -> str:
    found = _form_at(form, path)
    names = [field.encode_name for field in found.fields] if isinstance(found, inspect.StructType) else []
    near = nearest_names(name, names, 1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(named or names) or 'none'}"


def _values(form: type, path: str) -> Iterable[object]:
    found = _form_at(form, path)
    return found.values if isinstance(found, inspect.LiteralType) else ()


def _form_at(form: type, path: str) -> object:
    """Return the demand of a type at a path such as ``filters.tags[0]``."""
    found: object = _bare(inspect.type_info(form))
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(found, inspect.StructType):
            found = next((field.type for field in found.fields if field.encode_name == part), None)
        else:
            found = getattr(found, "item_type", None)
        found = _bare(found)
    return found


def _bare(form: object) -> object:
    """Return a form without its description, and without null beside it."""
    while True:
        if isinstance(form, inspect.Metadata):
            form = form.type
        elif isinstance(form, inspect.UnionType):
            form = next((one for one in form.types if not isinstance(one, inspect.NoneType)), None)
        else:
            return form
