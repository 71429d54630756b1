"""What of a changed configuration a running proxy can take over, and at what price.

A server is restarted only for what its connection depends on. A key is taken to be such a one unless it is
listed here, and a table to need a restart of the proxy: what is new is never half applied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec
from pydantic import BaseModel

from mcp_context_proxy.config.servers import ServerConfig
from mcp_context_proxy.config.settings import Config

_APPLIED_TO_RUNNING: Final = frozenset(
    {
        "include",
        "tools",
        "tags",
        "category",
        "connect_timeout",
        "call_timeout",
        "start",
        "idle_timeout",
        "spotlight",
        "enabled",
        "secrets",
    }
)
"""Keys of a server that say nothing of its connection. What is secret shows in the keys it was put into."""

_APPLIED: Final = frozenset({"expose", "search", "context", "documents", "servers", "limits", "path"})
"""Tables that a running proxy takes over."""

_READ_ONCE: Final = frozenset(
    {
        "context.keep_requests",
        "limits.embedding_seconds",
        "limits.embedding_query_seconds",
        "limits.rerank_seconds",
        "expose.page_size",
        "limits.http_body_bytes",
        "limits.http_header_seconds",
        "limits.http_body_seconds",
        "limits.http_idle_seconds",
        "limits.http_connections",
        "limits.sessions",
        "limits.session_idle_seconds",
        "limits.requests_kept",
        "limits.requests_age_seconds",
        "limits.statistics_hours_seconds",
        "limits.statistics_days_seconds",
        "limits.statistics_rows",
        "limits.searches_kept",
        "limits.searches_age_seconds",
        "limits.in_flight",
        "limits.starts_at_once",
        "limits.ask_seconds",
        "limits.parked_calls",
    }
)
"""Keys of those tables with which parts are built that live as long as the proxy."""


def connection_key(server: ServerConfig) -> str:
    """A digest of all that a server's connection depends on; the same for the same program and place."""
    facts = server.model_dump(mode="json", exclude=set(_APPLIED_TO_RUNNING))
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()


def same_connection(one: ServerConfig, other: ServerConfig) -> bool:
    """Whether a running server need not be started again to follow the other configuration."""
    return connection_key(one) == connection_key(other)


def needs_restart(started: Config, now: Config) -> tuple[str, ...]:
    """The dotted keys that differ and are read only when the proxy starts."""
    return tuple(_differing(started, now))


def _differing(started: Config, now: Config) -> Iterator[str]:
    for table in Config.model_fields:
        old, new = getattr(started, table), getattr(now, table)
        for key in type(new).model_fields if old != new and isinstance(new, BaseModel) else ():
            dotted = f"{table}.{key}"
            if getattr(old, key) != getattr(new, key) and (table not in _APPLIED or dotted in _READ_ONCE):
                yield dotted
