"""Keeps secrets out of what people and models read: logs, error texts, a server's last words.

Known values are replaced wherever they stand, also encoded, by the name of the variable they came from; what
merely looks like a credential is replaced too.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections import deque
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from mcp_context_proxy.config.servers import ServerConfig
from mcp_context_proxy.config.settings import Config

SHORTEST = 6
"""Characters a value must have to be looked for: shorter ones occur in innocent text."""

LEARNED = 32
"""Values that are learned while the proxy runs, such as tokens, which others follow: the latest are kept."""

_TELLING = re.compile(r"token|secret|key|passw|credential|auth|cookie", re.IGNORECASE)
"""Names of variables and headers whose literal values in a configuration are secrets too."""

_SCHEME = re.compile(r"^(?:bearer|basic|token)\s+", re.IGNORECASE)


_LOOKS_SECRET = re.compile(
    r"\b(?:gh[opsur]_\w{20,}|github_pat_\w{20,}|sk-[\w-]{20,}|xox[abeoprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
    r"|(?<=Bearer )[\w.~+/=-]{16,}",
)
"""Tokens of well-known services, JSON web tokens, bearer tokens."""


class Redactor:
    """Replaces secrets in text."""

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        """Know `secrets`: pairs of a name, which may be shown, and a value, which may not."""
        self._secrets = tuple(secrets)
        self._learned: deque[tuple[str, str]] = deque(maxlen=LEARNED)
        self._prepare()

    def learn(self, secrets: Iterable[tuple[str, str]]) -> None:
        """Know these, too, here and in what is logged; of those that were learned, only the latest."""
        new = [secret for secret in secrets if secret not in self._learned]
        if new:
            self._learned.extend(new)
            self._prepare()
            for known in _log_filters():
                known.learn(new)

    def _prepare(self) -> None:
        forms = {
            (form, f"[redacted {name}]")
            for name, value in (*self._secrets, *self._learned)
            for form in _forms(value)
            if len(form) >= SHORTEST
        }
        self._forms = sorted(forms, key=lambda pair: (-len(pair[0]), pair))
        self._encoded = [
            (form.encode("utf-8", "surrogatepass"), json.dumps(shown)[1:-1].encode())
            for form, shown in self._forms
        ]

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        for form, shown in self._forms:
            if form in text:
                text = text.replace(form, shown)
        return _LOOKS_SECRET.sub("[redacted]", text)

    def json(self, data: bytes) -> bytes:
        """Encoded JSON without the known secrets."""
        for form, shown in self._encoded:
            if form in data:
                data = data.replace(form, shown)
        return data


def _forms(value: str) -> Iterator[str]:
    """How a value may stand in a text: as it is, quoted, encoded, and by the line where it has several."""
    lines = [line for line in value.splitlines() if line.strip() != value.strip()]
    for plain in (value, *lines):
        yield plain
        yield quote(plain)
        yield quote(plain, safe="")
        yield quote_plus(plain)
        for quoted in (json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]):
            yield quoted
            yield json.dumps(quoted)[1:-1]
        yield repr(plain)[1:-1]
    data = value.encode("utf-8", "surrogateescape")
    yield data.hex()
    yield data.hex().upper()
    yield from _base64_forms(data)


def _base64_forms(data: bytes) -> Iterator[str]:
    """By itself, and as a part of something: ``user:password`` in basic authentication, say."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).decode().rstrip("=")
        for before in range(3):
            whole = encode(bytes(before) + data).decode().rstrip("=")
            # Without the characters that also depend on what stands before and after.
            first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
            yield whole[first:last]


def secrets_of(server: ServerConfig) -> Iterable[tuple[str, str]]:
    """What of a server's configuration is secret."""
    yield from server.secrets
    if server.oauth is not None and server.oauth.client_secret is not None:
        yield "oauth.client_secret", server.oauth.client_secret
    for name, value in (*server.env.items(), *server.headers.items()):
        if _TELLING.search(name):
            yield name, value
            yield name, _SCHEME.sub("", value)


class RedactingFilter(logging.Filter):
    """Redacts every message that is logged."""

    def __init__(self) -> None:
        super().__init__()
        self._configured: set[tuple[str, str]] = set()
        self._learned: deque[tuple[str, str]] = deque(maxlen=4 * LEARNED)
        self._redact = Redactor(())

    def configure(self, secrets: Iterable[tuple[str, str]]) -> None:
        """Redact these, too; none is ever forgotten, since what it was used for may still speak of it."""
        self._configured.update(secrets)
        self._redact = Redactor((*self._configured, *self._learned))

    def learn(self, secrets: Iterable[tuple[str, str]]) -> None:
        """Redact these, too, until many others have followed."""
        self._learned.extend(secrets)
        self._redact = Redactor((*self._configured, *self._learned))

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the message by its redacted form; always log it."""
        message = record.getMessage()
        redacted = self._redact(message)
        if redacted != message:
            record.msg, record.args = redacted, ()
        if record.exc_info and not record.exc_text:
            # A formatter takes the text where there is one, and would render the exception itself otherwise.
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._redact(record.exc_text)
        return True


def all_secrets_of(config: Config) -> list[tuple[str, str]]:
    """What of a whole configuration is secret."""
    secrets = [secret for server in config.servers.values() for secret in secrets_of(server)]
    if config.embedding.api_key is not None:
        secrets.append(("embedding.api_key", config.embedding.api_key))
    if config.rerank.api_key is not None:
        secrets.append(("rerank.api_key", config.rerank.api_key))
    return secrets


def redact_logs(config: Config) -> None:
    """Keep the secrets of a configuration out of everything that is logged from now on."""
    secrets = all_secrets_of(config)
    for handler in logging.getLogger().handlers:
        if not any(isinstance(known, RedactingFilter) for known in handler.filters):
            handler.addFilter(RedactingFilter())
    for known in _log_filters():
        known.configure(secrets)


def _log_filters() -> list[RedactingFilter]:
    handlers = logging.getLogger().handlers
    return [known for handler in handlers for known in handler.filters if isinstance(known, RedactingFilter)]
