"""Where messages go: to stderr, never to stdout, which is the protocol's."""

from __future__ import annotations

import logging
import re
import sys

import click

from mcp_context_proxy.config.notices import NOTICE
from mcp_context_proxy.downstream.rate import Bucket

LEVELS = ("debug", "info", "warning", "error")
SILENT = "critical"
"""The level of commands that show what happened themselves."""


COMPLAINTS_PER_SECOND, COMPLAINTS = 1.0, 20

SESSION_ID = re.compile(r"\b[0-9a-f]{8}(-?)(?:[0-9a-f]{4}\1){3}[0-9a-f]{12}\b")
"""As the SDK makes them, and names them in what it logs. Who knows one, and the token, has the session."""


class _Visible(logging.Formatter):
    """Shows what a terminal would obey or hide: servers and clients have words of theirs in messages."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == NOTICE else f"{record.levelname}: "
        text = f"mcp-context-proxy: {level}{super().format(record)}"
        if record.name == "root" or record.name.startswith("mcp."):
            text = SESSION_ID.sub("[session]", text)
        return text if text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()


class _Departures(logging.Filter):
    """Passes over what the SDK says of clients that end their session while they ask: nothing has failed."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return error is None or not _is_departure(error)


class _Complaints(logging.Filter):
    """Passes some of what the HTTP server says of bad requests: whoever can connect can send any number."""

    def __init__(self) -> None:
        super().__init__()
        self._bucket = Bucket(COMPLAINTS_PER_SECOND, COMPLAINTS)

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING or self._bucket.take()


def _is_departure(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_departure, error.exceptions))
    # By name: what has no front need not import what it comes from.
    return type(error).__name__ in {"ClosedResourceError", "BrokenResourceError"}


def configure_logging(level: str) -> None:
    """Log to stderr from `level` up.

    Raises:
        click.BadParameter: there is no such level.
    """
    if level.lower() not in (*LEVELS, SILENT):
        raise click.BadParameter(f"{level!r} is not one of {', '.join(LEVELS)}", param_hint="--log-level")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Visible())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # What goes wrong in a login is told as a sentence; the SDK logs it as a traceback besides.
    logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)
    # What these say in detail is whole messages, with arguments and results.
    for name in ("mcp", "sse_starlette"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").addFilter(_Complaints())
    if level.lower() != "debug":
        logging.getLogger("mcp.server.streamable_http").addFilter(_Departures())
        # The libraries' own chatter explains nothing to a user.
        for name in ("mcp", "httpx2", "httpcore2", "asyncio", "watchfiles"):
            logging.getLogger(name).setLevel(logging.ERROR)
