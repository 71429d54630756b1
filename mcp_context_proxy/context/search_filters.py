"""Filters of a search: those that it has, and those that its query implies, such as "all tools of git".

An item that does not meet the filters is not found, however well it fits the query. Filters on latency and
success rate let tools through that were hardly ever called, unless the search is strict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.config import ServerConfig, ToolConfig
from mcp_context_proxy.errors import UnknownFilterError, nearest_names
from mcp_context_proxy.items import Document, Item, SearchFilters, Snapshot, Tool
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
from mcp_context_proxy.retrieval.text import content_words, identifier_words, stem
from mcp_context_proxy.statistics import ToolFigures
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.trust import reaches

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


def failed_by(item: Item, wanted: SearchFilters, figures: Figures) -> list[str]:
    """Return the names of the filters that an item does not meet."""
    return [name for name, one in wanted.each() if not engine_filters(one, figures).allow(item)]


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
    failed = ((result, failed_by(result.item, wanted, figures)) for result in results)
    return tuple(
        islice((Excluded(result, tuple(names)) for result, names in failed if names), EXCLUDED_NAMED)
    )


def may_have_documents(snapshot: Snapshot, filters: Filters) -> bool:
    """Return whether documents may meet a filter by server: only the skills of that server do."""
    servers = filters.servers
    return servers is None or any(skill.owner in servers for skill in snapshot.skills.values())


NAME_CHARACTERS: Final = 100
"""Length to which an unknown value is cut in the error about it."""


def check(
    wanted: SearchFilters,
    snapshot: Snapshot,
    servers: Mapping[str, ServerConfig],
    off: Collection[str],
    has_label: Callable[[str], bool],
) -> None:
    """Check that every name in the filters exists: a typing mistake must not look like an empty catalog.

    The settings of ``servers`` count even while they are not connected, and a note says why those that are
    ``off`` were not searched. ``has_label`` tells quickly whether an indexed item has a label; all items are
    read only if none has.

    Raises:
        UnknownFilterError: a server, category or tag does not exist; names the nearest ones.
    """
    if wanted.server is not None and wanted.server not in servers:
        with_tools = (one.key for one in snapshot.sources if one.items and isinstance(one.items[0], Tool))
        known = dict.fromkeys([*servers, *off, *with_tools])
        if wanted.server not in known:
            raise _unknown("server", wanted.server, known)
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
        return
    tags = {folded(tag) for one in _settings(servers) for tag in one.tags}
    for source in snapshot.sources:
        for item in source.items:
            tags |= set(metadata_of(item).all_tags)
    for kind, tag in missing:
        if folded(tag) not in tags:
            raise _unknown(kind, tag, sorted(tags & LANGUAGES if kind == "language" else tags))


def _unknown(kind: str, value: str, known: Iterable[str]) -> UnknownFilterError:
    value, known = value[:NAME_CHARACTERS], list(known)
    return UnknownFilterError(kind, value, nearest_names(folded(value), known), known)


def _settings(servers: Mapping[str, ServerConfig]) -> Iterator[ServerConfig | ToolConfig]:
    for server in servers.values():
        yield server
        yield from server.tools.values()


_OF_ALL: Final = frozenset(("tool", "tools", "everything", "all", "capabilities", "help", "mcp", "*"))
"""Words of which a query for the whole catalog has at least one."""

_OF_NO_NEED = """
a about accessible an any are available by call can connected could display do does each enumerate every exist
existing for from get give has have here how i in is know like list many me my name names of offer offers on
please possible provide provides re s see server servers show tell the there to us use view we what which with
would you your
"""
_GENERAL: Final = _OF_ALL | frozenset(_OF_NO_NEED.split())
"""Words that say nothing about a need."""

_OF_SERVERS: Final = frozenset(("servers", "mcp"))
_STATE_WORDS = """
active broken configured disconnected down failed failing healthy installed not off offline online running
status unavailable up why work working
"""
_STATES: Final = frozenset(_STATE_WORDS.split())
_ABOUT_SERVERS: Final = _GENERAL | _STATES
"""Words of a question about the servers, which has one of `_OF_SERVERS`."""

_WHAT_CAN_YOU_DO: Final = frozenset(("what", "can", "do"))
LEAST_LETTERS: Final = 3
"""Letters of a word by which a query may mean a server."""

_WORD: Final = pattern(r"[^\W_]+")


def asks_for_all(
    query: str, servers: Iterable[str], failed: Iterable[str], tools: Iterable[Tool] = ()
) -> bool:
    """Return whether a query, such as "list all tools" or "which servers work", asks for the whole catalog.

    So does one for the state of a server ("is the git server up"), and the name of one that failed. A query
    asks for a tool instead if it spells the name of one, such as ``list_all``, or if a tool is there for
    other servers, such as machines of a cloud.
    """
    asked = _query_words(query)
    of_state = "server" in asked and not asked.isdisjoint(_STATES)
    of_servers = of_state or not asked.isdisjoint(_OF_SERVERS)
    if not of_state and narrowed(SearchFilters(), query, filter(reaches, failed)).server is not None:
        return False  # it is answered for that server alone
    known = servers if of_state else failed
    if server_asked_for(query, filter(reaches, known), _ABOUT_SERVERS) is None:
        of_all = not asked or asked & _OF_ALL or of_servers or asked >= _WHAT_CAN_YOU_DO
        if not (of_all and asked <= (_ABOUT_SERVERS if of_servers else _GENERAL)):
            return False
    of_any = of_state or "servers" in asked

    def is_meant(tool: Tool) -> bool:
        name = set(identifier_words(tool.name).split())
        about = of_any and ("server" in name or "servers" in tool.description.casefold())
        return about or (name <= asked and (len(name) > 1 or name == asked))

    return not any(map(is_meant, tools))


def server_asked_for(query: str, servers: Iterable[str], beside: Set[str] = _GENERAL) -> str | None:
    """Return the server whose tools a query such as "all tools of git" asks for; None if it does not."""
    asked = _query_words(query)
    telling = next(iter(asked - beside), "")  # by which most of many servers need no look
    for server in (server for server in servers if telling in server.casefold()):
        name = _query_words(server)
        if name == asked or (name <= asked and asked - name <= beside and not name <= beside):
            return server
    return None


def narrowed(wanted: SearchFilters, query: str, servers: Iterable[str]) -> SearchFilters:
    """Return the filters of a search, for one server alone if the query asks for "all tools of git"."""
    asked = _query_words(query)
    if wanted.server is not None or not (asked & _OF_ALL or asked >= _WHAT_CAN_YOU_DO):
        return wanted
    server = server_asked_for(query, servers)
    return wanted if server is None else replace(wanted, server=server)


def may_mean(query: str, servers: str) -> bool:
    """Return whether names and addresses of servers have a word of a query, as "github" has "git"."""
    said, known = map(stem, content_words(query.casefold()).split()), servers.casefold()
    return any(len(word) >= LEAST_LETTERS and word in known for word in said)


def _query_words(query: str) -> set[str]:
    # A first search begins here, on the event loop, where the expressions of `identifier_words` take 50 ms.
    return set(_WORD.findall(query.casefold()) or query.split())
