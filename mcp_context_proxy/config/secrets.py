"""Redacts secrets in logs, errors and the output of servers, and finds the secrets of a configuration.

A known value is replaced wherever it stands, also encoded, by the name of the variable that it came from.
Text that only looks like a credential is replaced, too.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import AnyStr, Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from mcp_context_proxy.config.settings import Config, ServerConfig
from mcp_context_proxy.system.later import html, pattern

SHORTEST: Final = 6
"""Shortest value that is redacted; shorter ones occur in innocent text."""

LEARNED: Final = 32
"""Number of secrets learned at run time, such as tokens, that are kept; new ones replace the oldest."""

_SPARED_IN_URLS: Final = ("", "/", "!'()*", ";,/?:@&=+$#!'()*")
"""Characters that Python's and JavaScript's functions for URL encoding leave unchanged."""
_INVALID_IN_NAME: Final = pattern(r"[^a-zA-Z0-9_-]")
_PERCENT: Final = pattern("%[0-9A-F]{2}")

_LOOKS_SECRET: Final = pattern(
    r"\b(?:gh[opsur]_\w{20,}|github_pat_\w{20,}|sk-[\w-]{20,}|xox[abeoprs]-[\w-]{10,}|AKIA[0-9A-Z]{16})"
    r"|(?<=Bearer )[\w.~+/=-]{16,}",
)
"""Tokens of well-known services, bearer tokens."""
_JSON_WEB_TOKEN: Final = pattern(
    r"(?<![\w-])(?=[\w-]++\.[\w-]{10,}+\.[\w-])((?:(?!\beyJ[\w-]{10})[\w-])*+)eyJ[\w-]++\.[\w-]++\.[\w-]++"
)
"""A token, with what stands before it in the same run of characters as the group. Each run is read once, from
its beginning: from each ``eyJ`` in it, it would take time in the square of its length."""

Secret = tuple[str, str]
"""A name, which may be shown, and a secret value."""


class Redactor:
    """Replaces secrets in text."""

    def __init__(self, secrets: Iterable[Secret], learned: int = LEARNED) -> None:
        """Redact `secrets`, and the latest `learned` ones of those given to `learn`."""
        self.on_learned: Callable[[Iterable[Secret]], None] | None = None
        """Takes each secret that is learned, where somebody else needs to know it as well."""
        self._secrets = dict.fromkeys(secrets)
        self._learned: deque[Secret] = deque(maxlen=learned)
        self._forms: list[Secret] | None = None
        self._forms_in_json: list[tuple[bytes, bytes]] | None = None

    def know(self, secrets: Iterable[Secret]) -> None:
        """Add secrets to this redactor for good."""
        self._secrets |= dict.fromkeys(secrets)
        self._forms = self._forms_in_json = None

    def learn(self, secrets: Iterable[Secret]) -> None:
        """Add secrets of limited life to this redactor and to the logs; see `LEARNED`."""
        new = [secret for secret in secrets if secret not in self._learned]
        if new:
            self.remember(new)
            if self.on_learned is not None:
                self.on_learned(new)
            for known in _log_filters():
                known.redact.remember(new)

    def remember(self, secrets: Iterable[Secret]) -> None:
        """Add secrets of limited life to this redactor only."""
        self._learned.extend(secrets)
        self._forms = self._forms_in_json = None

    def __call__(self, text: str) -> str:
        """Return the text with its secrets replaced."""
        for form, shown in self._replacements():
            if form in text:
                text = text.replace(form, shown)
        return _LOOKS_SECRET.sub("[redacted]", _JSON_WEB_TOKEN.sub(r"\1[redacted]", text))

    def json(self, data: bytes) -> bytes:
        """Return encoded JSON with the known secrets replaced."""
        for form, shown in self._replacements_in_json():
            if form in data:
                data = data.replace(form, shown)
        return data

    def _replacements(self) -> list[Secret]:
        """Return each form of a secret with its replacement, longest first; computed at first use."""
        if self._forms is None:
            found = {
                (form, f"[redacted {name}]")
                for name, value in (*self._secrets, *self._learned)
                for form in _forms(value)
                if len(form) >= SHORTEST
            }
            self._forms = _longest_first(found)
        return self._forms

    def _replacements_in_json(self) -> list[tuple[bytes, bytes]]:
        """Return the forms within the strings of encoded JSON."""
        if self._forms_in_json is None:
            found = {
                (_bytes(written), json.dumps(shown).encode()[1:-1])
                for form, shown in self._replacements()
                for written in (form, *in_json(form))
            }
            self._forms_in_json = _longest_first(found)
        return self._forms_in_json


def _longest_first(found: Iterable[tuple[AnyStr, AnyStr]]) -> list[tuple[AnyStr, AnyStr]]:
    return sorted(found, key=lambda pair: (-len(pair[0]), pair))


def _forms(value: str) -> Iterator[str]:
    """Yield the ways a value can stand in a text: plain, quoted, encoded, or line by line."""
    lines = [line for line in value.splitlines() if line.strip() != value.strip()]
    for plain in (value, *lines):
        yield plain
        # A tool that is named like a secret gets a name of valid characters.
        yield _INVALID_IN_NAME.sub("_", plain)
        # Invisible characters are removed from many texts before their secrets are.
        yield "".join(filter(str.isprintable, plain))
        yield from in_urls(plain)
        for quoted in in_json(plain):
            yield quoted
            yield from in_json(quoted)
        for literal in (repr(plain), ascii(plain), repr(_bytes(plain))[1:]):
            yield literal[1:-1]
        yield from (
            html.escape(plain),
            html.escape(plain, quote=False),
            html.escape(plain).replace("x27", "39"),
        )
    data = _bytes(value)
    yield data.hex()
    yield data.hex().upper()
    yield from in_base64(data)


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character, as JSON can write one
        return text.encode("utf-8", "surrogatepass")


def in_urls(plain: str) -> Iterator[str]:
    """Yield a value as the usual functions encode it for URLs."""
    for quoted in (quote_plus(_bytes(plain)), *(quote(_bytes(plain), safe) for safe in _SPARED_IN_URLS)):
        yield quoted
        yield _PERCENT.sub(lambda found: found[0].lower(), quoted)


def in_json(plain: str) -> tuple[str, str]:
    """Return a value as it stands in the strings of JSON, in ASCII or not."""
    return json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]


def in_base64(data: bytes) -> Iterator[str]:
    """Yield a value in base64 by itself and as a part, such as the password in basic authentication."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).decode().rstrip("=")
        for before in range(3):
            whole = encode(bytes(before) + data).decode().rstrip("=")
            # Drop the characters that also depend on the bytes before and after the value.
            first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
            yield whole[first:last]


class RedactingFilter(logging.Filter):
    """Redacts every log message."""

    def __init__(self) -> None:
        super().__init__()
        self.redact = Redactor((), 4 * LEARNED)

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the message and its traceback; every record passes."""
        message = record.getMessage()
        redacted = self.redact(message)
        if redacted != message:
            record.msg, record.args = redacted, ()
        if record.exc_info and not record.exc_text:
            # A formatter uses this text; otherwise it would render the exception unredacted.
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self.redact(record.exc_text)
        return True


def redact_logs(secrets: Iterable[Secret]) -> None:
    """Redact secrets in all logs for good, because a later message may repeat them."""
    known = tuple(secrets)
    for handler in logging.getLogger().handlers:
        if not any(isinstance(one, RedactingFilter) for one in handler.filters):
            handler.addFilter(RedactingFilter())
    for one in _log_filters():
        one.redact.know(known)


def _log_filters() -> list[RedactingFilter]:
    handlers = logging.getLogger().handlers
    return [known for handler in handlers for known in handler.filters if isinstance(known, RedactingFilter)]


_TELLING: Final = pattern(r"token|secret|key|passw|pwd|credential|auth|cookie", re.IGNORECASE)
"""Names of variables, headers and parameters of URLs whose literal values are secrets."""

_SECRET_WORD: Final = r"[\w-]*(?:token|secret|passw|pwd|credential|auth|api[-_]?key|access[-_]?key)[\w-]*"
"""Names of secret arguments; ``--key`` alone is as often the key of an entry."""
_FLAG: Final = pattern(rf"--?{_SECRET_WORD}", re.IGNORECASE)
_FLAG_AND_VALUE: Final = pattern(rf"((?:--?)?{_SECRET_WORD})[=:]\s*(.+)", re.IGNORECASE | re.DOTALL)

_SCHEME: Final = pattern(r"^(?:bearer|basic|token)\s+", re.IGNORECASE)
_USER_INFO: Final = pattern(r"(?<=://)([^/?#\s@:]*)(?::([^/?#\s]*))?@")
_PARAMETER: Final = pattern(r"[?&]([^=&#\s]+)=([^&#\s]+)")


def all_secrets_of(config: Config) -> list[tuple[str, str]]:
    """Return name and value of every secret in a configuration."""
    return [
        *(secret for server in config.servers.values() for secret in secrets_of(server)),
        *own_secrets_of(config),
    ]


def own_secrets_of(config: Config) -> list[tuple[str, str]]:
    """Return name and value of every secret of the proxy itself, which is that of no server."""
    secrets = list[tuple[str, str]]()
    if config.embedding.api_key is not None:
        secrets.append(("embedding.api_key", config.embedding.api_key))
    if config.rerank.api_key is not None:
        secrets.append(("rerank.api_key", config.rerank.api_key))
    if config.cluster.key is not None:
        secrets.append(("cluster.key", config.cluster.key))
    secrets += [("cluster.other_keys", key) for key in config.cluster.other_keys]
    for url in (config.store.url or "", config.store.listen_url or ""):
        # The user of a database is no secret, and often has the same name as the database.
        user = url.partition("://")[2].partition("@")[0].partition(":")[0]
        secrets += [each for each in secrets_in_url(url) if each[1] not in (user, unquote(user))]
    return secrets


def secrets_of(server: ServerConfig) -> Iterable[tuple[str, str]]:
    """Yield name and value of every secret in a server's configuration."""
    yield from server.secrets
    if server.oauth is not None and server.oauth.client_secret is not None:
        yield "oauth.client_secret", server.oauth.client_secret
    for name, value in (*server.env.items(), *server.headers.items()):
        if names_secret(name):
            yield name, value
            yield name, _SCHEME.sub("", value)
    for position, name, value in secret_arguments(server.args):
        del position
        yield name, value
    for text in (server.url or "", *server.args, *server.env.values()):
        yield from secrets_in_url(text)


def secret_arguments(arguments: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield position, name and value of each argument that has a secret name, or follows one."""
    before = ""
    for position, argument in enumerate(arguments):
        if found := _FLAG_AND_VALUE.fullmatch(argument):
            yield position, found[1], found[2]
        elif _FLAG.fullmatch(before) and not argument.startswith("-"):
            yield position, before, argument
        before = argument


def names_secret(name: str) -> bool:
    """Return whether the value of a variable, header or parameter of this name is a secret."""
    return _TELLING.search(name) is not None


def secrets_in_url(text: str) -> Iterator[Secret]:
    """Yield passwords and secret parameters of a URL, as written and decoded."""
    for user, password in _USER_INFO.findall(text):
        # A user without a password is a token of some services.
        yield "password", password or user
        yield "password", unquote(password or user)
    for name, value in _PARAMETER.findall(text) if "://" in text else ():
        if names_secret(name):
            yield name, value
            yield name, unquote_plus(value)
