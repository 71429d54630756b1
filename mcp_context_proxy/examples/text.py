"""Text in, text out: compare, search, count, reshape, hash. Stores nothing."""

import difflib
import hashlib
import re
import unicodedata
from collections import Counter
from typing import Annotated, Literal

from mcp_context_proxy.examples.functions import Between, Server, ToolError

EMAIL = re.compile(r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}")
LINK = re.compile(r"https?://[^\s<>\"'`\])}]+")
WORD = re.compile(r"\w+(?:['’-]\w+)*")


server = Server("text", "Works on text given in the call: compare, search, count, reshape, hash.")

Text = Annotated[str, "The text to work on"]
Pattern = Annotated[str, "Regular expression in Python syntax; (?i) at its start ignores case"]


@server.tool(read_only=True)
def compare_texts(old: Annotated[str, "The earlier text"], new: Annotated[str, "The later text"]) -> str:
    """Show the differences between two texts line by line as a unified diff."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "old", "new", lineterm="")
    return "\n".join(lines) or "The texts have the same lines."


@server.tool(read_only=True)
def text_similarity(first: Annotated[str, "One text"], second: Annotated[str, "The other text"]) -> float:
    """Measure how alike two short texts are, from 0 (nothing in common) to 1 (equal)."""
    if len(first) + len(second) > 20_000:
        raise ToolError("both texts together may have 20000 characters")
    return round(difflib.SequenceMatcher(None, first, second, autojunk=False).ratio(), 4)


@server.tool(read_only=True)
def find_pattern(text: Text, pattern: Pattern) -> list[str]:
    """Find all matches of a regular expression in a text."""
    return [match[0] for match in _compiled(pattern).finditer(text)]


@server.tool(read_only=True)
def replace_pattern(
    text: Text,
    pattern: Pattern,
    replacement: Annotated[str, "What to put instead; \\1 stands for the first group"],
) -> str:
    """Replace every match of a regular expression in a text."""
    try:
        return _compiled(pattern).sub(replacement, text)
    except (re.error, IndexError) as e:
        raise ToolError(f"replacement does not fit the pattern: {e}") from e


@server.tool(read_only=True)
def frequent_words(
    text: Text, limit: Annotated[int, "How many words", Between(1, 500)] = 10
) -> dict[str, int]:
    """Count how often each word occurs in a text, and list the words that occur most often."""
    return dict(Counter(WORD.findall(text.lower())).most_common(limit))


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
    style: Annotated[Literal["upper", "lower", "title", "snake", "kebab", "camel"], "The wanted form"],
) -> str:
    """Change upper and lower case of a text, or turn words into a snake_case or camelCase identifier."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+", text)]
    camel = "".join(word.capitalize() for word in words)
    forms = {
        "upper": text.upper(),
        "lower": text.lower(),
        "title": re.sub(r"\S+", lambda match: match[0].capitalize(), text),
        "snake": "_".join(words),
        "kebab": "-".join(words),
        "camel": camel[:1].lower() + camel[1:],
    }
    return forms[style]


@server.tool(read_only=True)
def extract_links(text: Text) -> list[str]:
    """Collect the web addresses (URLs) in a text, each once, in order."""
    return list(dict.fromkeys(link.rstrip(".,;:!?") for link in LINK.findall(text)))


@server.tool(read_only=True)
def extract_email_addresses(text: Text) -> list[str]:
    """Collect the e-mail addresses in a text, each once, in order."""
    return list(dict.fromkeys(EMAIL.findall(text)))


@server.tool(read_only=True)
def hash_text(
    text: Text, algorithm: Annotated[Literal["sha256", "sha512", "blake2b", "md5"], "Which one"] = "sha256"
) -> str:
    """Compute the checksum (hash, digest) of a text in hexadecimal."""
    return hashlib.new(algorithm, text.encode(), usedforsecurity=False).hexdigest()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as e:
        raise ToolError(f"pattern is not a regular expression: {e}") from e


if __name__ == "__main__":
    server.run()
