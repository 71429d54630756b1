"""Guard of known secrets: what a server may not be told.

The values are known exactly, those of the configuration and of logins, so they are looked for as they are, in
everything that a client sends to a server: arguments of tools and prompts, URIs, completions, answers to
questions. Encodings that a model writes by itself count as well: escapes of JSON, percent-encoding, base64,
hexadecimal digits, also over several lines, and escapes around these. Nothing is guessed from its look.

A value that occurs in innocent text is left out (`is_secret`), as are the variables that the configuration
calls public.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Final, TypeAlias
from urllib.parse import unquote

from msgspec import Raw, Struct, field

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.secrets import (
    LatestSecrets,
    Redactor,
    Secret,
    cached_forms,
    has_run,
    in_base64,
    in_json,
    in_urls,
    named_secrets_of,
    names_secret,
    own_secrets_of,
)
from mcp_context_proxy.system.later import html, pattern
from mcp_context_proxy.trust import reaches

SHORTEST: Final = 8
"""Shortest value that counts, in characters; shorter ones occur in innocent text."""

PHRASE_CHARACTERS: Final = 16
"""Length from which plain words count if their name says that they are a secret: a pass phrase."""

_PATH: Final = pattern(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\]([^/\\]*)[\w.@ /\\-]*", re.ASCII)
"""A path; the group is the first folder in it."""
_SEPARATORS: Final = pattern(r"[\W_]+")
_AUTHOR: Final = pattern(r"author(?!i)", re.IGNORECASE)
_EXACT: Final = ("keyring:", "cmd:")
"""Beginnings of the names of values that come from a place for secrets."""

_SLASH: Final = pattern(r"(\\[^/])|\\/")
"""An escape in JSON; the group is one of anything but a slash."""

_ESCAPE: Final = pattern(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
"""An escape in a text that may be JSON or a program: a code in four or two digits, or a character."""
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}

_LINE_ENDS: Final = ("\\\\r", "\\\\n", "\\r", "\\n", "\r", "\n")
"""Ends of lines: escaped twice, once, and as they are."""

ENCODINGS: Final = 4
"""Encodings around each other that are taken off: JSON in JSON in a link is three."""

Params: TypeAlias = Mapping[str, Raw]


class KnownSecret(Struct, frozen=True):
    """A secret that a server was not given: its name, and one that was."""

    name: str
    owner: str | None
    """None for a secret of the proxy itself."""

    def __str__(self) -> str:
        if self.owner is not None and not reaches(self.owner):
            return "a secret that is not for it"
        whose = "the proxy itself" if self.owner is None else f"server {self.owner!r}"
        return f"{self.name}, which is a secret of {whose}"


class KnownSecrets:
    """The secrets of all servers and of the proxy, and the servers that were given each."""

    def __init__(self, config: Config | None = None) -> None:
        """Know the secrets of a configuration; without one, none."""
        self.config = config or Config()
        """The present configuration; secrets learned since the start stay known when it is replaced."""
        self._own: dict[Secret, None] = {}
        self._learned = LatestSecrets()
        self._forget_forms()
        self.redactors: list[Redactor] = []
        """Redactors of what is kept, which learn each secret that comes up while the proxy runs."""

    def _forget_forms(self) -> None:
        # Another thread may still fill the former one, by secrets that are no longer all.
        self._forms = _Made(self.config)

    def _made(self) -> _Made:
        if self._forms.of is not self.config:
            self._forget_forms()
        return self._forms

    @property
    def redacts_results(self) -> bool:
        """True if known secrets are removed from results, too."""
        return self.config.guards.results == "redact"

    def know_own(self, secret: Secret) -> None:
        """Add a secret of the proxy itself, which no server is given."""
        self._own[secret] = None
        for redact in self.redactors:
            redact.know([secret])
        self._forget_forms()

    def learn(self, server: str, secrets: Iterable[Secret]) -> None:
        """Add all secrets that a server was given while the proxy runs; see `LatestSecrets`."""
        latest = list(secrets)
        for redact in self.redactors:
            redact.remember(server, latest)
        if self._learned.add(server, latest):
            self._forget_forms()

    def in_params(self, server: str, params: Params) -> KnownSecret | None:
        """Return a secret in the params of a request to a server that was not given it; None without one."""
        made = self._made()
        forms = made.foreign.get(server)
        if forms is None:
            forms = made.foreign[server] = self._forms_for(server, made)
        if forms.shortest == inf:
            return None
        for name, raw in params.items():
            for part in (raw, name):
                if len(part) >= forms.shortest and (found := forms.first_in(part)) is not None:
                    return found
        return None

    def redacted(self, result: bytes) -> tuple[bytes, bool]:
        """Return a result without any known secret, and whether it had one."""
        redacted = self._redact().json(result)
        return redacted, redacted != result

    def without(self, text: str) -> str:
        """Return a text without any known secret, such as a URI for an error."""
        return self._redact()(text)

    def _redact(self) -> Redactor:
        made = self._made()
        if made.redactor is None:
            made.redactor = Redactor(secret for _, secret in self._all(made))
        return made.redactor

    def _all(self, made: _Made) -> list[tuple[str | None, Secret]]:
        if made.known is None:
            made.known = list(self._counting())
        return made.known

    def _counting(self) -> Iterator[tuple[str | None, Secret]]:
        # Not what only looks like a key: that may be an id, about which several servers are asked.
        servers = self.config.servers.items()
        configured = [(name, secret) for name, one in servers for secret in named_secrets_of(one)]
        own = ((None, secret) for secret in (*own_secrets_of(self.config), *self._own))
        for server, (name, value) in (*configured, *self._learned, *own):
            if name not in self.config.guards.public and is_secret(name, value):
                yield server, (name, value.strip())

    def _forms_for(self, server: str, made: _Made) -> Forms:
        if not self.config.guards.secrets:
            return Forms({})
        known = self._all(made)
        given = {value for owner, (_, value) in known if owner == server}
        forms: dict[str, KnownSecret] = {}
        for owner, (name, value) in known:
            if value not in given:
                for form in encoded_forms(value):
                    forms.setdefault(form, KnownSecret(name, owner))
        return Forms(forms)


class _Made(Struct, eq=False):
    """Everything made of the secrets of a configuration and of the present ones, each when it is needed."""

    of: Config
    known: list[tuple[str | None, Secret]] | None = None
    """Each secret that counts, with a server that has it."""
    redactor: Redactor | None = None
    foreign: dict[str, Forms] = field(default_factory=dict)
    """Forms of the secrets that each server was not given."""


class Forms:
    """Forms of secrets, each with its secret, and a quick search for all of them.

    Nearly every form has a long run of characters without a space, and few arguments have one. So one
    search for any such run spares those for the forms, however many secrets there are.
    """

    def __init__(self, forms: Mapping[str, KnownSecret]) -> None:
        self.shortest: float = min(map(len, forms), default=inf)
        """Length of the shortest form; shorter params need no search."""
        self._long = tuple((form, secret) for form, secret in forms.items() if has_run(form))
        self._others = tuple((form, secret) for form, secret in forms.items() if not has_run(form))

    def first_in(self, written: Raw | str) -> KnownSecret | None:
        """Return the secret of the first form that is in encoded JSON or a name, however it is written."""
        text = written if isinstance(written, str) else bytes(written).decode("utf-8", "replace")
        found = self._in_text(text) or self._over_lines(text)
        if found is None and ("\\u" in text or "\\/" in text) and isinstance(written, Raw):
            text = unescaped(text)
            found = self._in_text(text) or self._over_lines(text)
        for _ in range(ENCODINGS):
            if found is not None or (plain := decoded(text)) == text:
                break
            text = plain
            found = self._in_text(text) or self._over_lines(text)
        return found

    def _over_lines(self, text: str) -> KnownSecret | None:
        """Return a secret that is broken into lines, as base64 often is."""
        if not self._long or not ("\n" in text or "\\n" in text):
            return None
        for end in _LINE_ENDS:
            text = text.replace(end, "")
        return self._in_text(text)

    def _in_text(self, text: str) -> KnownSecret | None:
        for form, secret in self._others:
            if form in text:
                return secret
        if self._long and has_run(text):
            for form, secret in self._long:
                if form in text:
                    return secret
        return None


def unescaped(text: str) -> str:
    """Return encoded JSON with the escapes in its strings replaced by their characters."""
    if "\\/" in text:
        text = _SLASH.sub(lambda found: found[1] or "/", text)
    # The codec reads ASCII only, and takes each half of a surrogate pair for a character of its own.
    halves = text.encode("ascii", "backslashreplace").decode("unicode_escape")
    return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def decoded(text: str) -> str:
    """Return a text without one layer of escapes and of percent-encoding, wherever it has them."""
    if "\\u" in text or "\\x" in text or "\\/" in text:
        text = _ESCAPE.sub(_unescaped, text)
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return unquote(text) if "%" in text else text


def _unescaped(found: re.Match[str]) -> str:
    digits = found[1] or found[2]
    return chr(int(digits, 16)) if digits else _CONTROLS.get(found[3], found[3])


@cached_forms
def encoded_forms(value: str) -> tuple[str, ...]:
    """Return the ways in which a model would write a value: plain, in JSON, and encoded.

    A form that has another one in it is left out, since the other one is found in it.
    """
    data = value.encode("utf-8", "surrogateescape")
    in_hex = data.hex()
    written = {value, *in_json(value), *in_urls(value), *in_base64(data), in_hex, in_hex.upper()}
    written |= {html.escape(value), html.escape(value, quote=False)}
    long = sorted((one for one in written if len(one) >= SHORTEST), key=lambda one: (len(one), one))
    return tuple(one for at, one in enumerate(long) if not any(shorter in one for shorter in long[:at]))


def is_secret(name: str, value: str) -> bool:
    """Return whether a value is one that occurs nowhere by chance, and nowhere as an ordinary word.

    Short values, paths and URLs never count; the password in a URL is a value of its own. Words and numbers,
    such as the name of a team, count only if the name says that they are a secret and they are long.
    """
    text = value.strip()
    path = _PATH.fullmatch(text)
    # The first folder tells a path from a key that begins with a slash.
    if len(text) < SHORTEST or "://" in text or (path is not None and _is_plain(path[1])):
        return False
    if not all(map(_is_plain, _SEPARATORS.split(text))):
        return True
    told = names_secret(_AUTHOR.sub("", name)) or name.startswith(_EXACT)
    return told and len(text) >= PHRASE_CHARACTERS


def _is_plain(word: str) -> bool:
    """Return whether this looks like a word or a number and not like a part of a key."""
    if word.isalpha():
        return word.islower() or word.isupper() or word.istitle() or not word.isascii()
    return not word or word.isdecimal()
