"""What a search is asked to keep to, in the words of who asks, and the filters that this comes to.

Hard constraints: what does not meet them is not found, however well it fits. What is not known of a tool,
because it was hardly called, speaks against it only where the search is strict.

Whether there can be what a search is narrowed to: a typing mistake must not look like an empty catalog.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeAlias

from mcp_context_proxy.config import ServerConfig, ToolConfig
from mcp_context_proxy.errors import UnknownFilterError
from mcp_context_proxy.items import JSON, Item, Snapshot, Tool, ToolKey
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
from mcp_context_proxy.statistics.figures import ToolFigures

MIN_CALLS: Final = 5
"""Calls from which on a success rate says something: one failure in four is still a bad day."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """Those of one search; the defaults allow everything."""

    server: str | None = None
    """Only tools of this server."""
    category: str | None = None
    tags: tuple[str, ...] = ()
    """All of them are needed."""
    any_tags: tuple[str, ...] = ()
    """One of them is needed; empty for none."""
    language: str | None = None
    """A tag that is needed, too."""
    read_only: bool = False
    """Only what says that it changes nothing."""
    exclude_destructive: bool = False
    """Only what says that it undoes and overwrites nothing."""
    open_world: bool | None = None
    """Only what reaches beyond its server, or only what says that it does not; None for both."""
    max_latency_ms: float | None = None
    """Of 95 % of a tool's calls."""
    min_success_rate: float | None = None
    min_calls: int = MIN_CALLS
    """Fewer say nothing of the success rate."""
    strict: bool = False
    """Whether a tool of whose calls too little is known is left out."""

    def __bool__(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.applied())

    def applied(self) -> dict[str, JSON]:
        """What is asked for, by name; without what says nothing by itself."""
        asked: dict[str, JSON] = {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        if not self.of_calls:
            asked.pop("strict", None)
        if self.min_success_rate is None:
            asked.pop("min_calls", None)
        return asked

    @property
    def of_calls(self) -> bool:
        """Whether it matters how calls went."""
        return self.max_latency_ms is not None or self.min_success_rate is not None

    @property
    def wanted_tags(self) -> tuple[str, ...]:
        """Tags that are all needed, as they are compared."""
        language = () if self.language is None else (self.language,)
        return tuple(map(folded, (*self.tags, *language)))

    def parts(self) -> Iterator[tuple[str, Constraints]]:
        """Each constraint alone, with its name."""
        none = Constraints(min_calls=self.min_calls, strict=self.strict)
        for name in [name for name in self.applied() if name not in ("min_calls", "strict")]:
            alone: dict[str, Any] = {name: getattr(self, name)}
            yield name, replace(none, **alone)


NO_CONSTRAINTS = Constraints()


Figures: TypeAlias = Mapping[ToolKey, ToolFigures]
"""What is known of tools from their calls, by server and own name."""


def filters_of(wanted: Constraints, figures: Figures) -> Filters:
    """What the engine is told."""
    category = () if wanted.category is None else (category_label(folded(wanted.category)),)
    tags = map(tag_label, wanted.wanted_tags)
    hints = ((READ_ONLY,) if wanted.read_only else ()) + ((OPEN_WORLD,) if wanted.open_world else ())
    excluded = (DESTRUCTIVE,) if wanted.exclude_destructive else ()
    closed = (OPEN_WORLD,) if wanted.open_world is False else ()
    verdicts = {tool: _verdict(wanted, known) for tool, known in figures.items()} if wanted.of_calls else {}
    proven = frozenset(tool for tool, verdict in verdicts.items() if verdict)
    unfit = frozenset(tool for tool, verdict in verdicts.items() if verdict is False)
    return Filters(
        servers=None if wanted.server is None else frozenset({wanted.server}),
        labels=frozenset((*category, *tags, *hints)),
        any_labels=frozenset(tag_label(folded(tag)) for tag in wanted.any_tags),
        no_labels=frozenset((*excluded, *closed)),
        unfit=frozenset() if wanted.strict else unfit,
        proven=proven if wanted.strict and wanted.of_calls else None,
    )


def failed_by(item: Item, wanted: Constraints, figures: Figures) -> list[str]:
    """The names of the constraints that an item does not meet."""
    return [name for name, one in wanted.parts() if not filters_of(one, figures).allow(item)]


def _verdict(wanted: Constraints, figures: ToolFigures) -> bool | None:
    """Whether a tool's calls went as well as is asked for; None where too little is known."""
    if wanted.max_latency_ms is not None and figures.p95_ms > wanted.max_latency_ms:
        return False
    if wanted.min_success_rate is None:
        return True
    if figures.calls < wanted.min_calls:
        return None
    return figures.success_rate >= wanted.min_success_rate


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
    yield from (metadata_of(item).category for source in snapshot.sources for item in source.items)


def _tags(snapshot: Snapshot, servers: Mapping[str, ServerConfig]) -> Iterator[str]:
    yield from (folded(tag) for one in _settings(servers) for tag in one.tags)
    for source in snapshot.sources:
        for item in source.items:
            yield from metadata_of(item).all_tags


def _settings(servers: Mapping[str, ServerConfig]) -> Iterator[ServerConfig | ToolConfig]:
    for server in servers.values():
        yield server
        yield from server.tools.values()
