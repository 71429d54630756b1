"""Keeps secrets out of what people and models read: logs, error texts, a server's last words.

Known values are replaced wherever they stand, by the name of the variable they came from.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from mcp_context_proxy.config.settings import ServerConfig

SHORTEST = 6
"""Characters a value must have to be looked for: shorter ones occur in innocent text."""

_TELLING = re.compile(r"token|secret|key|passw|credential|auth|cookie", re.IGNORECASE)
"""Names of variables and headers whose literal values in a configuration are secrets too."""

_SCHEME = re.compile(r"^(?:bearer|basic|token)\s+", re.IGNORECASE)


class Redactor:
    """Replaces known secrets in text."""

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        """Know `secrets`: pairs of a name, which may be shown, and a value, which may not."""
        self._secrets = sorted(
            {(name, value) for name, value in secrets if len(value) >= SHORTEST},
            key=lambda pair: -len(pair[1]),
        )

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        for name, value in self._secrets:
            if value in text:
                text = text.replace(value, f"[redacted {name}]")
        return text


def secrets_of(server: ServerConfig) -> Iterable[tuple[str, str]]:
    """What of a server's configuration is secret."""
    yield from server.secrets
    for name, value in (*server.env.items(), *server.headers.items()):
        if _TELLING.search(name):
            yield name, value
            yield name, _SCHEME.sub("", value)


class RedactingFilter(logging.Filter):
    """Redacts every message that is logged."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: set[tuple[str, str]] = set()
        self._redact = Redactor(())

    def learn(self, secrets: Iterable[tuple[str, str]]) -> None:
        """Redact these, too; none is ever forgotten, since what it was used for may still speak of it."""
        self._secrets.update(secrets)
        self._redact = Redactor(self._secrets)

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the message by its redacted form; always log it."""
        message = record.getMessage()
        redacted = self._redact(message)
        if redacted != message:
            record.msg, record.args = redacted, ()
        return True
