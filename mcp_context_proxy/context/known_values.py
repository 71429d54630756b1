"""Whether there can be what a search is narrowed to: a typing mistake must not look like an empty catalog."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from mcp_context_proxy.config import ServerConfig, ToolConfig
from mcp_context_proxy.context.constraints import Constraints
from mcp_context_proxy.errors import UnknownFilterError
from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval.traits import LANGUAGES, category_label, folded, tag_label, traits_of

NEAREST: Final = 3
"""Known values that are named where one is not known."""

NAME_CHARACTERS: Final = 100
"""Of a value that is not known, in what is said of it."""


def check(
    wanted: Constraints,
    snapshot: Snapshot,
    servers: Mapping[str, ServerConfig],
    has_label: Callable[[str], bool],
) -> None:
    """See that there can be what is asked for.

    Args:
        wanted: What a search keeps to.
        snapshot: What there is.
        servers: Those configured: what is set for one that is not connected is known all the same.
        has_label: Whether any item that is indexed has a label; only where none has, all are looked at.

    Raises:
        UnknownFilterError: a server, category or tag is not known; names the nearest.
    """
    if wanted.server is not None and wanted.server not in servers:
        known = dict.fromkeys([*servers, *_with_tools(snapshot)])
        if wanted.server not in known:
            raise _unknown("server", wanted.server, known)
    if wanted.category is not None and not has_label(category_label(folded(wanted.category))):
        known_categories = set(_categories(snapshot, servers))
        if folded(wanted.category) not in known_categories:
            raise _unknown("category", wanted.category, sorted(known_categories))
    named = [("tag", tag) for tag in (*wanted.tags, *wanted.any_tags)]
    named += [("language", wanted.language)] if wanted.language is not None else []
    missing = [(kind, tag) for kind, tag in named if not has_label(tag_label(folded(tag)))]
    known_tags = set(_tags(snapshot, servers)) if missing else set()
    for kind, tag in missing:
        if folded(tag) not in known_tags:
            raise _unknown(kind, tag, sorted(known_tags & LANGUAGES if kind == "language" else known_tags))


def _unknown(kind: str, value: str, known: Iterable[str]) -> UnknownFilterError:
    value, known = value[:NAME_CHARACTERS], list(known)
    return UnknownFilterError(kind, value, difflib.get_close_matches(folded(value), known, n=NEAREST), known)


def _with_tools(snapshot: Snapshot) -> Iterator[str]:
    return (source.key for source in snapshot.sources if source.items and isinstance(source.items[0], Tool))


def _categories(snapshot: Snapshot, servers: Mapping[str, ServerConfig]) -> Iterator[str]:
    yield from (folded(one.category) for one in _settings(servers) if one.category is not None)
    yield from (traits_of(item).category for source in snapshot.sources for item in source.items)


def _tags(snapshot: Snapshot, servers: Mapping[str, ServerConfig]) -> Iterator[str]:
    yield from (folded(tag) for one in _settings(servers) for tag in one.tags)
    for source in snapshot.sources:
        for item in source.items:
            yield from traits_of(item).all_tags


def _settings(servers: Mapping[str, ServerConfig]) -> Iterator[ServerConfig | ToolConfig]:
    for server in servers.values():
        yield server
        yield from server.tools.values()
