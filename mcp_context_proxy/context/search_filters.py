"""Filters of a search, as the index takes them, and the errors about names that do not exist.

An item that does not meet the filters is not found, however well it fits the query. Filters on latency and
success rate let tools through that were hardly ever called, unless the search is strict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.config import ServerConfig, ToolConfig
from mcp_context_proxy.errors import UnknownFilterError, nearest_names
from mcp_context_proxy.items import Document, SearchFilters, Snapshot, Tool
from mcp_context_proxy.retrieval import Result
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.item_metadata import (
    DESTRUCTIVE,
    LANGUAGES,
    OPEN_WORLD,
    READ_ONLY,
    category_label,
    folded,
    metadata_of,
    tag_label,
)
from mcp_context_proxy.retrieval.text import identifier_words, terms
from mcp_context_proxy.statistics import ToolFigures

Figures: TypeAlias = Mapping[tuple[str, str], ToolFigures]
"""How earlier calls went, by server and the tool's own name."""


def engine_filters(wanted: SearchFilters, figures: Figures) -> Filters:
    """Translate search filters into those of the engine."""
    tags = (*wanted.tags, *(() if wanted.language is None else (wanted.language,)))
    labels = [tag_label(folded(tag)) for tag in tags]
    if wanted.category is not None:
        labels.append(category_label(folded(wanted.category)))
    if wanted.read_only:
        labels.append(READ_ONLY)
    if wanted.open_world:
        labels.append(OPEN_WORLD)
    forbidden = [DESTRUCTIVE] if wanted.exclude_destructive else []
    if wanted.open_world is False:
        forbidden.append(OPEN_WORLD)
    unfit, proven = frozenset[tuple[str, str]](), None
    if wanted.needs_figures:
        verdicts = {tool: _meets(wanted, known) for tool, known in figures.items()}
        if wanted.strict:
            proven = frozenset(tool for tool, verdict in verdicts.items() if verdict)
        else:
            unfit = frozenset(tool for tool, verdict in verdicts.items() if verdict is False)
    return Filters(
        servers=None if wanted.server is None else frozenset({wanted.server}),
        labels=frozenset(labels),
        any_labels=frozenset(tag_label(folded(tag)) for tag in wanted.any_tags),
        no_labels=frozenset(forbidden),
        unfit=unfit,
        proven=proven,
    )


def _meets(wanted: SearchFilters, figures: ToolFigures) -> bool | None:
    """Return whether a tool's earlier calls went well enough; None with too few calls to tell."""
    if wanted.max_latency_ms is not None and figures.p95_ms > wanted.max_latency_ms:
        return False
    if wanted.min_success_rate is None:
        return True
    if figures.calls < wanted.min_calls:
        return None
    return figures.success_rate >= wanted.min_success_rate


def filter_text(value: object) -> str:
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


EXCLUDED_NAMED = 3
"""Items named in the note about those that the filters left out."""


class Excluded(Struct, frozen=True):
    """An item that only the filters keep out of the results."""

    result: Result
    failed: tuple[str, ...]
    """Names of the filters that it does not meet."""

    @property
    def text(self) -> str:
        item = self.result.item
        name = item.uri if isinstance(item, Document) else item.exposed_name
        return f"{name} (by {', '.join(self.failed)})"


def excluded(results: Iterable[Result], wanted: SearchFilters, figures: Figures) -> tuple[Excluded, ...]:
    """Return the best of the results that filters leave out."""
    each = [(name, engine_filters(one, figures)) for name, one in wanted.each()]
    failed = ((one, tuple(name for name, filters in each if not filters.allow(one.item))) for one in results)
    return tuple(islice((Excluded(one, names) for one, names in failed if names), EXCLUDED_NAMED))


NAME_CHARACTERS: Final = 100
"""Length to which an unknown value is cut in the error about it."""


def check(
    wanted: SearchFilters,
    snapshot: Snapshot,
    servers: Mapping[str, ServerConfig],
    off: Collection[str],
    has_label: Callable[[str], bool],
) -> SearchFilters:
    """Return the filters, with the server as it is configured, once every name in them exists.

    A typing mistake must not look like an empty catalog. The settings of ``servers`` count even while they
    are not connected, and a note says why those that are ``off`` were not searched. ``has_label`` tells
    quickly whether an indexed item has a label; all items are read only if none has.

    Raises:
        UnknownFilterError: a server, category or tag does not exist; names the nearest ones.
    """
    if wanted.server is not None and wanted.server not in servers:
        with_tools = (one.key for one in snapshot.sources if one.items and isinstance(one.items[0], Tool))
        known = dict.fromkeys([*servers, *off, *with_tools])
        if wanted.server not in known:
            same = [name for name in known if folded(name) == folded(wanted.server)]
            if len(same) != 1:
                raise _unknown("server", wanted.server, known)
            wanted = replace(wanted, server=same[0])
    if wanted.category is not None and not has_label(category_label(folded(wanted.category))):
        categories = {folded(one.category) for one in _settings(servers) if one.category is not None}
        categories |= {metadata_of(item).category for source in snapshot.sources for item in source.items}
        if folded(wanted.category) not in categories:
            raise _unknown("category", wanted.category, sorted(categories))
    named = [("tag", tag) for tag in (*wanted.tags, *wanted.any_tags)]
    if wanted.language is not None:
        named.append(("language", wanted.language))
    missing = [(kind, tag) for kind, tag in named if not has_label(tag_label(folded(tag)))]
    if not missing:
        return wanted
    tags = {folded(tag) for one in _settings(servers) for tag in one.tags}
    for source in snapshot.sources:
        for item in source.items:
            tags |= set(metadata_of(item).all_tags)
    for kind, tag in missing:
        if folded(tag) not in tags:
            raise _unknown(kind, tag, sorted(tags & LANGUAGES if kind == "language" else tags))
    return wanted


def _unknown(kind: str, value: str, known: Iterable[str]) -> UnknownFilterError:
    value, known = value[:NAME_CHARACTERS], list(known)
    return UnknownFilterError(kind, value, nearest_names(folded(value), known), known)


def _settings(servers: Mapping[str, ServerConfig]) -> Iterator[ServerConfig | ToolConfig]:
    for server in servers.values():
        yield server
        yield from server.tools.values()


OFF_LOOKED_AT: Final = 1_000
"""Tools that are turned off whose names a search looks at, which takes a millisecond."""


def servers_with_off(query: str, snapshot: Snapshot, server: str | None) -> list[str]:
    """Return the servers with a tool that is off and whose name has two words, and none but those of a query.

    With a ``server``, only that one counts.
    """
    asked = frozenset(terms(query))
    some = islice(snapshot.turned_off.values(), OFF_LOOKED_AT)
    named = ((one.server, _terms_of(one.name)) for one in some if server in (None, one.server))
    return [*dict.fromkeys(owner for owner, words in named if len(words) > 1 and words <= asked)]


@lru_cache(OFF_LOOKED_AT)
def _terms_of(name: str) -> frozenset[str]:
    return frozenset(terms(identifier_words(name)))
