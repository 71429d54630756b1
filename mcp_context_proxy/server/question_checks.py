"""Questions that no person may be asked: to open an unsafe URL, or to write a secret into a form.

A form reaches the server through the client and the model's context, where secrets must not be. The words
that give such a form away are a short list, looked for however they are spelled. It stops the plain attempt
and the honest mistake; a person who is asked for "the usual string" still has to think.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from mcp_context_proxy.catalog.definitions import LETTERS
from mcp_context_proxy.protocol.strangers import normalized, quoted

URL_CHARACTERS = 8192
"""Longest URL that a person may be sent to; browsers and servers take no longer ones."""

_PLAIN_URL: Final = re.compile(r"https?://[!-\[\]-~]+", re.IGNORECASE)
"""Scheme, two slashes, and visible ASCII but for the backslash, which browsers take for a slash."""


def url_refusal(url: str) -> str:
    """Return why a person must not be sent to a URL; empty if it is safe to show and to open.

    The shown address must be the one it leads to, and it must lead to a page of a server.
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
    if parts.scheme == "http" and not _is_loopback(host):
        return "it must begin with https://, unless its host is this machine"
    return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_NO_SECRET: Final = (
    r"(?! (?:names?|ids?|identifiers?|types?|kinds?|length|limits?|counts?|budget|usage|polic(?:y|ies)|"
    r"expiry|managers?|rotation|symbol|address)\b)"
)
"""Words after which the words before them mean no secret: ``secret name``, ``token limit``."""

_SECRETS: Final = (
    r"pass ?words?|pass ?wd|pass ?phrases?|pass ?codes?|pwd|passwort|kennwort|contrasena|mot de passe|senha"
    r"|secrets?|credentials?"
    r"|(?:api|access|secret|private|ssh|signing|encryption|deploy|service account) ?keys?"
    r"|(?:api|access|auth|authentication|authorization|bearer|refresh|session|security|login|bot|oauth|id) ?"
    r"tokens"
    r"|(?<!max )(?<!page )(?<!next )(?<!cursor )(?<!continuation )(?<!per )token|jwt"
    r"|[th]?otp|(?:2fa|mfa|one time|verification|security|recovery|backup|authenticator) ?codes?"
    r"|(?:seed|recovery|mnemonic) (?:phrases?|words)"
    r"|(?:credit|debit|bank|payment) ?cards?|card ?(?:number|no|num|details)|cvv2?|cvc2?"
)
_SECRET: Final = re.compile(rf"\b(?:{_SECRETS})\b{_NO_SECRET}|парол|密码|密碼|パスワード|비밀번호")
_SECRET_LABEL: Final = re.compile(rf"\b(?:{_SECRETS}|pin|pin (?:code|number)|cookies?|pass)\b{_NO_SECRET}")
"""Short words that are harmless in a sentence: ``pin the issue``."""

_DEMAND: Final = re.compile(
    r"\b(?:enter|type|paste|provide|give|supply|send|share|input|insert|submit|tell|need|needs|requires?|"
    rf"confirm your|what is|whats|fill in)\b(?: \w+){{0,6}}? (?:{_SECRETS})\b{_NO_SECRET}"
)
"""A sentence that asks for a secret. Without the verb it may speak of one: ``reset the password of ada?``."""

_WORD_STARTS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPELLED: Final = re.compile(r"\b(\w) (?=\w\b)")
_NO_WORD: Final = re.compile(r"[\W_]+")
_DRAWN_LIKE: Final = str.maketrans({**LETTERS, "0": "o", "1": "i", "3": "e", "4": "a", "5": "s", "$": "s"})


def secret_field(schema: Any, message: str) -> str:
    """Return the field of a form that asks for a secret, or the message that does; empty if none does."""
    fields = [(name, field) for name, field in _fields(schema) if not _is_choice(field)]
    for name, field in fields:
        described = field if isinstance(field, dict) else {}
        labels = [name, described.get("title")]
        if (
            described.get("format") == "password"
            or any(_SECRET_LABEL.search(text) or _SECRET.search(text) for text in _spellings(*labels))
            or any(_SECRET.search(text) for text in _spellings(described.get("description")))
        ):
            return f"the field {quoted(name)}"
    if fields and any(_DEMAND.search(text) for text in _spellings(message)):
        return "its message"
    return ""


def names_secret(label: str) -> bool:
    """Return whether a label, such as the name of an argument, says that its value is a secret."""
    return any(_SECRET_LABEL.search(text) or _SECRET.search(text) for text in _spellings(label))


def _fields(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and schema of each field, at any depth."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if isinstance(value.get("properties"), dict):
                yield from value["properties"].items()
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)


def _is_choice(field: Any) -> bool:
    """Return whether a person can only choose: then the server knows all that the answer can hold."""
    if not isinstance(field, dict):
        return False
    if field.get("type") == "boolean" or "const" in field:
        return True
    if field.get("type") == "array":
        return _is_choice(field.get("items"))
    for key in ("oneOf", "anyOf"):
        choices = field.get(key)
        if isinstance(choices, list) and choices:
            return all(isinstance(each, dict) and "const" in each for each in choices)
    return isinstance(field.get("enum"), list) and bool(field["enum"])


def _spellings(*texts: Any) -> Iterator[str]:
    """Yield each text in small words without accents: as it is written, and as it is drawn."""
    for text in texts:
        if isinstance(text, str):
            split = _WORD_STARTS.sub(" ", normalized("NFKD", text))
            plain = "".join(char for char in split if not unicodedata.combining(char)).casefold()
            for spelling in {plain, plain.translate(_DRAWN_LIKE)}:
                yield _SPELLED.sub(r"\1", _NO_WORD.sub(" ", spelling).strip())
