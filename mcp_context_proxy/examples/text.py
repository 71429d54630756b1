"""Text in, text out: compare, search, count, reshape, encode. Stores nothing."""

import base64
import binascii
import difflib
import hashlib
import json
import re
import textwrap
import unicodedata
from typing import Annotated, Literal, TypedDict
from urllib.parse import quote, unquote

from mcp_context_proxy.examples.functions import Between, Server, ToolError

EMAIL = re.compile(r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}")
LINK = re.compile(r"https?://[^\s<>\"'`\])}]+")
WORD = re.compile(r"\w+(?:['’-]\w+)*")
SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")
WORDS_PER_MINUTE = 230
"""Silent reading of English prose by adults: Brysbaert 2019 gives 238, other estimates a little less."""


class Counts(TypedDict):
    characters: int
    words: int
    sentences: int
    lines: int
    reading_minutes: float


class WordCount(TypedDict):
    word: str
    count: int


class PatternMatch(TypedDict):
    text: str
    start: int
    end: int
    groups: list[str | None]


server = Server("text", "Works on text given in the call: compare, search, count, reshape, encode, hash.")

Text = Annotated[str, "The text to work on"]


@server.tool(read_only=True)
def compare_texts(
    old: Annotated[str, "The earlier text"],
    new: Annotated[str, "The later text"],
    context_lines: Annotated[int, "Unchanged lines around each change", Between(0, 20)] = 3,
) -> str:
    """Show the differences between two texts line by line as a unified diff."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "old", "new", "", "", context_lines, "")
    return "\n".join(lines) or "The texts have the same lines."


@server.tool(read_only=True)
def text_similarity(first: Annotated[str, "One text"], second: Annotated[str, "The other text"]) -> float:
    """Measure how alike two short texts are, from 0 (nothing in common) to 1 (equal)."""
    if len(first) + len(second) > 20_000:
        raise ToolError("both texts together may have 20000 characters")
    return round(difflib.SequenceMatcher(None, first, second, autojunk=False).ratio(), 4)


@server.tool(read_only=True)
def find_pattern(
    text: Text,
    pattern: Annotated[str, "Regular expression in Python syntax"],
    ignore_case: Annotated[bool, "Treat upper and lower case as equal"] = False,
    limit: Annotated[int, "How many matches at most", Between(1, 1000)] = 100,
) -> list[PatternMatch]:
    """Find all matches of a regular expression in a text, with their positions and groups."""
    found: list[PatternMatch] = []
    for match in _compiled(pattern, ignore_case).finditer(text):
        groups = list(match.groups())
        found.append({"text": match[0], "start": match.start(), "end": match.end(), "groups": groups})
        if len(found) == limit:
            break
    return found


@server.tool(read_only=True)
def replace_pattern(
    text: Text,
    pattern: Annotated[str, "Regular expression in Python syntax"],
    replacement: Annotated[str, "What to put instead; \\1 stands for the first group"],
    ignore_case: Annotated[bool, "Treat upper and lower case as equal"] = False,
) -> str:
    """Replace every match of a regular expression in a text."""
    try:
        return _compiled(pattern, ignore_case).sub(replacement, text)
    except (re.error, IndexError) as e:
        raise ToolError(f"replacement does not fit the pattern: {e}") from e


@server.tool(read_only=True)
def count_words(text: Text) -> Counts:
    """Count characters, words, sentences and lines of a text, and estimate its reading time."""
    words = len(WORD.findall(text))
    return {
        "characters": len(text),
        "words": words,
        "sentences": len(SENTENCE_END.findall(text)),
        "lines": len(text.splitlines()),
        "reading_minutes": round(words / WORDS_PER_MINUTE, 1),
    }


@server.tool(read_only=True)
def frequent_words(
    text: Text,
    limit: Annotated[int, "How many words", Between(1, 500)] = 10,
    min_length: Annotated[int, "Ignore words shorter than this", Between(1, 50)] = 4,
) -> list[WordCount]:
    """List the words that occur most often in a text."""
    counts: dict[str, int] = {}
    for word in WORD.findall(text.lower()):
        if len(word) >= min_length:
            counts[word] = counts.get(word, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"word": word, "count": count} for word, count in ordered[:limit]]


@server.tool(read_only=True)
def make_slug(text: Annotated[str, "A title or name"]) -> str:
    """Turn a title into a slug for web addresses and file names: lower case, words joined by hyphens."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    slug = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    if not slug:
        raise ToolError("nothing is left of this text as a slug; it needs some Latin letters or digits")
    return slug


@server.tool(read_only=True)
def change_case(
    text: Text,
    style: Annotated[
        Literal["upper", "lower", "title", "sentence", "snake", "kebab", "camel", "pascal"],
        "The wanted form; snake, kebab, camel and pascal make one identifier of the words",
    ],
) -> str:
    """Change upper and lower case of a text, or turn words into a snake_case or camelCase identifier."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+", text)]
    camel = "".join(word.capitalize() for word in words)
    forms = {
        "upper": text.upper(),
        "lower": text.lower(),
        "title": re.sub(r"\S+", lambda match: match[0][:1].upper() + match[0][1:].lower(), text),
        "sentence": text[:1].upper() + text[1:].lower(),
        "snake": "_".join(words),
        "kebab": "-".join(words),
        "camel": camel[:1].lower() + camel[1:],
        "pascal": camel,
    }
    return forms[style]


@server.tool(read_only=True)
def wrap_text(
    text: Text,
    width: Annotated[int, "Longest line in characters", Between(10, 1000)] = 80,
    prefix: Annotated[str, "Put before every line, such as '> '"] = "",
) -> str:
    """Break long lines of prose at word boundaries; paragraphs separated by an empty line stay apart."""
    if len(prefix) >= width:
        raise ToolError(f"prefix must be shorter than width ({width})")
    paragraphs = re.split(r"\n\s*\n", text.strip())
    wrapped = [textwrap.fill(" ".join(part.split()), width - len(prefix)) for part in paragraphs]
    return textwrap.indent("\n\n".join(wrapped), prefix, lambda _line: True)


@server.tool(read_only=True)
def sort_lines(
    text: Text,
    descending: Annotated[bool, "Last first"] = False,
    unique: Annotated[bool, "Keep each line once"] = False,
    numeric: Annotated[bool, "Order by the first number in each line"] = False,
) -> str:
    """Sort the lines of a text by alphabet or by number, and drop duplicate lines if wanted."""
    lines = list(dict.fromkeys(text.splitlines())) if unique else text.splitlines()
    lines.sort(key=_first_number if numeric else lambda line: (0.0, line.casefold()), reverse=descending)
    return "\n".join(lines)


@server.tool(read_only=True)
def extract_links(text: Text) -> list[str]:
    """Collect the web addresses (URLs) in a text, each once, in order."""
    return list(dict.fromkeys(link.rstrip(".,;:!?") for link in LINK.findall(text)))


@server.tool(read_only=True)
def extract_email_addresses(text: Text) -> list[str]:
    """Collect the e-mail addresses in a text, each once, in order."""
    return list(dict.fromkeys(EMAIL.findall(text)))


@server.tool(read_only=True)
def encode_text(
    text: Text, encoding: Annotated[Literal["base64", "hex", "url", "json"], "How to encode"]
) -> str:
    """Encode a text as Base64, hexadecimal, percent-encoded URL part or JSON string."""
    data = text.encode()
    if encoding == "base64":
        return base64.b64encode(data).decode("ascii")
    if encoding == "hex":
        return data.hex()
    return quote(text, safe="") if encoding == "url" else json.dumps(text)


@server.tool(read_only=True)
def decode_text(
    text: Annotated[str, "The encoded text"],
    encoding: Annotated[Literal["base64", "hex", "url", "json"], "How it is encoded"],
) -> str:
    """Decode Base64, hexadecimal, a percent-encoded URL part or a JSON string back to plain text."""
    try:
        if encoding == "base64":
            return base64.b64decode(text, validate=True).decode()
        if encoding == "hex":
            return bytes.fromhex(text).decode()
        return unquote(text, errors="strict") if encoding == "url" else _json_string(text)
    except (binascii.Error, ValueError) as e:
        raise ToolError(f"text is not valid {encoding}: {e}") from e


@server.tool(read_only=True)
def hash_text(
    text: Text, algorithm: Annotated[Literal["sha256", "sha512", "blake2b", "md5"], "Which one"] = "sha256"
) -> str:
    """Compute the checksum (hash, digest) of a text in hexadecimal."""
    return hashlib.new(algorithm, text.encode(), usedforsecurity=False).hexdigest()


def _compiled(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as e:
        raise ToolError(f"pattern is not a regular expression: {e}") from e


def _first_number(line: str) -> tuple[float, str]:
    match = re.search(r"-?\d+(?:\.\d+)?", line)
    return (float(match[0]) if match else float("inf"), line)


def _json_string(text: str) -> str:
    value = json.loads(text)
    if not isinstance(value, str):
        raise ToolError("text is JSON, but not a JSON string")
    return value


if __name__ == "__main__":
    server.run()
