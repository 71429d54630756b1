"""Words of strangers as a model, a person or a terminal may get them: clean, bounded, and under their name.

Strangers are servers, authorization servers, model services and other sessions. Everything that they say
passes here on its way to a reader, except the results of calls, which pass byte for byte.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Final

from mcp_context_proxy.errors import NOTICE
from mcp_context_proxy.protocol.text import clean

SAID_CHARACTERS: Final = 10_000
"""Characters of an error or a log message that pass: more than anybody reads of one."""

LINE_CHARACTERS: Final = 1_000
"""Characters of a line that pass to a terminal or a log."""

NAME_CHARACTERS: Final = 200
"""Characters of the name or the version that a server gives itself."""

DATA_BYTES: Final = 64 * 1024
"""Bytes of the data of an error, a log message or a progress notification that pass."""

BLANK_LINES: Final = 4
"""Line ends in a row that stay: more push the text after them out of sight."""

BLANKS: Final = 60
"""Other spaces in a row that stay: the indentation of any example."""

_SPACE: Final = re.compile(rf"\s{{{BLANK_LINES + 1},}}")

_MARK: Final = re.compile(
    r"[\[\uff3b\u3010\u3014]\s*server(?=\s*['\"`\u2018\u2019\u201c\u201d])", re.IGNORECASE
)
"""Beginning of a mark by which words stand under the name of a server (`named`), as strangers forge it."""

_SUSPECT: Final = re.compile(rb"[^ -~\t\r\n]|\\[ubfr]|(?:\\[nt]| ){%d}" % (BLANK_LINES + 1))
"""Bytes that JSON of plain words has none of. A result of a call is never searched for them."""

_MAY_MARK: Final = re.compile(rb"server|\\\\u", re.IGNORECASE)
"""Bytes without which JSON has no such mark, in letters or in escapes."""

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def compact(text: str) -> str:
    """Return a clean text without long runs of empty lines or spaces, which push the rest out of sight."""
    return _SPACE.sub(_shorter, clean(text))


def _shorter(run: re.Match[str]) -> str:
    space, lines = run[0], run[0].count("\n")
    if lines <= BLANK_LINES and len(space) <= BLANKS:
        return space
    if not lines:
        return space[:BLANKS]
    return "\n" * min(lines, BLANK_LINES) + space[space.rindex("\n") + 1 :][:BLANKS]


def bounded(text: str, most: int = SAID_CHARACTERS) -> str:
    """Return what a stranger said: clean, compact, and cut where it is too long, which it then says."""
    text = unmarked(compact(text))
    return text if len(text) <= most else f"{text[:most]} … [cut here: {most:,} of {len(text):,} characters]"


def one_line(text: str, most: int | None = None) -> str:
    """Return what a stranger said on one line, for a terminal or a table; `most` bounds its length."""
    line = " ".join(clean(text).split())
    return line if most is None or len(line) <= most else f"{line[:most].rstrip()} …"


def unmarked(text: str) -> str:
    """Return a text in which no words pass for those of another server: ``[server 'x'`` opens with ``(``."""
    return _MARK.sub(lambda mark: f"({mark[0][1:]}", text)


def named(server: str, text: str, verb: str = "says") -> str:
    """Return words that would otherwise stand alone under the name of the server whose they are."""
    return f"[server {server!r} {verb}] {unmarked(text)}"


def quoted(text: str) -> str:
    """Return a name or a value of a stranger in quotation marks, as part of a message of ours.

    It is cut where nobody reads on, and not earlier: whoever shows the message removes secrets from it, and
    recognizes only those that are whole.
    """
    return repr(unmarked(text[:LINE_CHARACTERS]))


def said(text: str, redact: Callable[[str], str], most: int = SAID_CHARACTERS) -> str:
    """Return what a stranger said as it may be shown: `bounded`, and without secrets (`redact`)."""
    # A secret is found only where nothing hides in it, and where it is whole.
    # Of megabytes no more is looked at than ten times what is shown.
    return bounded(redact(clean(text[: 10 * most])), most)


def said_json(data: bytes, redact: Callable[[bytes], bytes]) -> bytes:
    """Return JSON of a stranger that is no result, such as the data of an error, as it may be shown.

    Every string in it is `said`, the names of members as well. If there is too much, it says that instead.
    """
    shown = stranger_json(data, redact) if len(data) <= 2 * DATA_BYTES else data
    if len(shown) > DATA_BYTES:
        return json.dumps(f"[left out: {len(data):,} bytes, over {DATA_BYTES:,}]").encode()
    return shown if len(shown) <= SAID_CHARACTERS else _STRING.sub(_bounded_string, shown)


def stranger_json(data: bytes, redact: Callable[[bytes], bytes]) -> bytes:
    """Return JSON of one stranger, such as a failed result, as it may be shown.

    Its strings, and the names of members, are clean and without secrets and marks of servers (`unmarked`).
    """
    shown = shown_json(data, redact)
    return shown if _MAY_MARK.search(shown) is None else _STRING.sub(_unmarked_string, shown)


def _unmarked_string(found: re.Match[bytes]) -> bytes:
    string = found[0]
    if _MAY_MARK.search(string) is None:
        return string
    text = json.loads(string, strict=False)
    shown = unmarked(text)
    return string if shown == text else json.dumps(shown, ensure_ascii=False).encode()


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
    return data if _SUSPECT.search(data) is None else _STRING.sub(_clean_string, data)


def _clean_string(found: re.Match[bytes]) -> bytes:
    string = found[0]
    if _SUSPECT.search(string) is None:
        return string
    text = json.loads(string, strict=False)
    shown = compact(text)
    return string if shown == text else json.dumps(shown, ensure_ascii=False).encode()


def _bounded_string(found: re.Match[bytes]) -> bytes:
    string = found[0]
    if len(string) <= SAID_CHARACTERS:
        return string
    return json.dumps(bounded(json.loads(string, strict=False)), ensure_ascii=False).encode()


SESSION_ID: Final = re.compile(r"\b[0-9a-f]{8}(-?)(?:[0-9a-f]{4}\1){3}[0-9a-f]{12}\b")
"""The SDK's session ids, which it logs. Together with the token, an id gives access to the session."""


class LogFormatter(logging.Formatter):
    """Escapes control characters in log messages: a terminal would obey those of servers and clients."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of one message, without the ids of sessions."""
        level = "" if record.levelno == NOTICE else f"{record.levelname}: "
        text = f"mcp-context-proxy: {level}{super().format(record)}"
        if record.name == "root" or record.name.startswith("mcp."):
            text = SESSION_ID.sub("[session]", text)
        return text if text.isascii() and text.isprintable() else clean("".join(map(_printable, text)))


def _printable(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
