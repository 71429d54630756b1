"""REST operations that search for tools, and that index the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import Meta, Raw, Struct

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.reload import Reloader
from mcp_context_proxy.config.settings import RerankMode
from mcp_context_proxy.context import DomainOverrides, Overrides
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.indexing import Indexed
from mcp_context_proxy.context.search import (
    TOOL_ONLY,
    Found,
    Scope,
    asks_for_all,
    asks_which_work,
    overviewed,
)
from mcp_context_proxy.context.search_filters import Figures
from mcp_context_proxy.context.selection import SearchAnswer
from mcp_context_proxy.context.session import QUERY_CHARACTERS
from mcp_context_proxy.downstream.fleet import Fleet, failure
from mcp_context_proxy.items import Item, Kind, SearchFilters, Tool, ToolClass
from mcp_context_proxy.learning import WorkingSet
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.retrieval import Result
from mcp_context_proxy.retrieval.item_metadata import metadata_of, title_of
from mcp_context_proxy.server import ConnectedHost, rendering, search_answers
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.server.rendering import PastRequests
from mcp_context_proxy.server.tools_call import InteractionLog
from mcp_context_proxy.server.tools_list import ToolList
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import THE_USER, Principal, Role
from mcp_context_proxy.trust.audit import AuditLog, KeptLogs
from mcp_context_proxy.web import Api, Count, Given, Operation, Words, answer_form


class Served(Protocol):
    """The parts of a running proxy that the operations work on."""

    config: Config
    fleet: Fleet
    catalog: Catalog
    contexts: ContextEngine
    changes: ChangeNotifier
    tool_list: ToolList
    gateway: Gateway
    audit: AuditLog
    store: Store
    logs: KeptLogs
    reloader: Reloader | None
    started: float
    """Seconds since 1970."""
    shared: bool
    stop: Callable[[], None] | None

    @property
    def hosts(self) -> Callable[[], list[ConnectedHost]]:
        """Returns the hosts that share the proxy."""

    @property
    def usage(self) -> UsageRecorder | None:
        """Counts of calls; None if nothing is counted."""

    @property
    def working_set(self) -> WorkingSet:
        """Tools that use has put into the default list."""

    @property
    def past_requests(self) -> PastRequests:
        """Renders and replays recorded requests."""

    async def reindex(self, rebuild: bool) -> Indexed:
        """Index new items in the background, or everything anew; return the progress."""

    def health(self) -> dict[str, Any]:
        """Return the body of ``/healthz``."""


class SearchWanted(SearchFilters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a search for tools."""

    query: Words
    top_k: Count = 10
    """Number of tools."""
    use_llm: bool | None = None
    """Let another model put the best of them in order; by default as configured."""


_KIND: Final = "|".join(Kind)

Kinds = Annotated[
    str,
    Meta(
        pattern=f"^(({_KIND})(,({_KIND}))*)?$",
        description=f"Only items of these kinds, separated by commas: {', '.join(Kind)}. By default all.",
    ),
]


class LookWanted(SearchFilters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a look at the results that a model would get."""

    query: Words
    kinds: Kinds = ""
    top: Count | None = None
    """Number of results; by default as configured."""
    rerank: bool | None = None
    """Let another model put the best tools in order, or not; by default as configured."""
    explain: bool = False
    """True: with the parts of each score."""


LookResponse: Final = answer_form(
    "LookAnswer",
    "Items for a query as a model finds them; nothing is recorded.",
    query=str,
    read_as=str | None,
    fits=bool,
    results=list[dict[str, Any]],
    near_misses=list[dict[str, Any]],
    method=str,
    note=str | None,
    filter_note=str | None,
    over_budget=str | None,
    filters=dict[str, bool | float | str | list[str]],
    rerank=dict[str, bool | float | str] | None,
    known=int,
    failed=list[dict[str, str]],
    text=str,
)
"""``text`` is the answer that a model reads."""


class Label(Struct, frozen=True):
    """A category or a tag, and whether somebody gave it or it follows from the tool itself."""

    name: str
    origin: Literal["configured", "derived"]


class ToolFound(Struct, frozen=True):
    """One tool that a search found."""

    name: str
    title: str | None
    """Name for people; null if its server gives none."""
    server: str
    description: str
    score: float
    why: str
    tokens: int
    category: Label
    tags: list[Label]
    danger: ToolClass
    """Harm that a call may do."""
    danger_reason: str
    input_schema: Raw
    """JSON, as the server gave it."""
    calls: int = 0
    """Counted calls, of which the following figures are."""
    success_rate: float | None = None
    """Share of the calls that did not fail; null without any."""
    avg_latency_ms: float | None = None
    p95_latency_ms: float | None = None


class SearchFacts(Struct, frozen=True):
    """Facts about a search: time, method, number of items searched."""

    result_count: int
    used_llm_rerank: bool
    """True if another model decided the order."""
    rerank: str | None
    """Name of that model, or why there was none; null if reranking is off."""
    filters_applied: dict[str, bool | float | str | list[str]]
    latency_ms: float
    request_id: str
    note: str | None
    """Note for a person about how this was found, or why nothing was."""
    read_as: str | None = None
    """The query with its words corrected and written out; null where nothing was changed."""
    fits: bool = True
    """False if nothing fits; then the results are the nearest of the few that the filters leave, or none."""


SearchResponse: Final = answer_form(
    "SearchAnswer",
    "Tools for a query, best first; if nothing fits, the nearest of the few that filters leave, or none.",
    query=str,
    results=list[ToolFound],
    metadata=SearchFacts,
)


class ReindexWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of indexing again."""

    rebuild: bool = False
    """True: everything; false: only new items."""


ReindexResponse: Final = answer_form(
    "ReindexAnswer", "How far indexing is; it goes on in the background.", Indexed
)

_RERANK: Final[Mapping[bool | None, RerankMode | None]] = {None: None, True: "always", False: "never"}


class SearchApi(Api):
    """Search and indexing."""

    def __init__(self, proxy: Served, log: InteractionLog | None) -> None:
        """Search in a proxy that serves; without ``log`` no query is remembered."""
        self._contexts, self._fleet, self._usage = proxy.contexts, proxy.fleet, proxy.usage
        self._reindexed, self._log = proxy.reindex, log

    @Operation("GET", "/search", answer=LookResponse, problems=(HTTPStatus.NOT_FOUND,))
    async def _look(self, given: Given, wanted: LookWanted) -> dict[str, Any]:
        """Tools, rules and references as a model finds them, and why; nothing is recorded."""
        return await look(self._contexts, self._fleet, self._usage, wanted, given.principal)

    @Operation(
        "GET", "/tools/search", answer=SearchResponse, problems=(HTTPStatus.NOT_FOUND,), names_agent=True
    )
    async def _search_tools(self, given: Given, wanted: SearchWanted) -> Struct:
        """Tools for a query, best first."""
        answer = await self._contexts.select(
            wanted.query[:QUERY_CHARACTERS],
            overrides=Overrides(tools=DomainOverrides(top_n=wanted.top_k)),
            origin="search",
            scope=Scope(TOOL_ONLY, msgspec.convert(wanted, SearchFilters, from_attributes=True)),
            rerank=_RERANK[wanted.use_llm],
            owner=given.principal.name,
        )
        if self._log is not None:
            self._log.searched(answer.context.query, given.agent, given.principal.owner)
        return await in_thread(_search_response, wanted.query, answer, _figures(self._usage, given.principal))

    @Operation(
        "POST",
        "/reindex",
        answer=ReindexResponse,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
        role=Role.OPERATE,
    )
    async def _reindex(self, given: Given, wanted: ReindexWanted) -> Indexed:
        """Read the documents again and index what is new, or everything."""
        return await self._reindexed(wanted.rebuild)


async def look(
    contexts: ContextEngine,
    fleet: Fleet,
    usage: UsageRecorder | None,
    wanted: LookWanted,
    asked_by: Principal = THE_USER,
) -> dict[str, Any]:
    """Search as a model does, and return the answer that it reads, with all facts.

    Without the role to see what others do, it says that something was used before for a similar request, and
    not for which: that may be another's.

    Raises:
        UnknownFilterError: a server, category or tag of the filters does not exist.
    """
    filters = msgspec.convert(wanted, SearchFilters, from_attributes=True)
    if filters.needs_figures and usage is not None:
        await usage.refresh()
    number = DomainOverrides(top_n=wanted.top)
    scope = Scope(frozenset(map(Kind, filter(None, wanted.kinds.split(",")))) or None, filters)
    answer = await contexts.select(
        wanted.query[:QUERY_CHARACTERS],
        overrides=Overrides(number, number),
        origin="search",
        scope=scope,
        remember=False,
        deliver="answer",
        rerank=contexts.rerank_mode if wanted.rerank is None else _RERANK[wanted.rerank],
    )
    notes = search_answers.search_notes(answer, fleet)
    context, found, rerank = answer.context, answer.found, answer.context.rerank
    figures, quoting = _figures(usage, asked_by), asked_by.may(Role.VIEW)
    count, budget = contexts.costs.count, search_answers.answer_tokens(wanted.top)
    written = partial(search_answers.search_text, answer, notes, count=count, tokens=budget)
    of_all = partial(asks_for_all, context.query, found.snapshot.servers, fleet.failed)
    if of_all() and await in_thread(of_all, found.snapshot.tools.values()):
        scope = overviewed(scope, context.query, found.snapshot.servers, fleet.failed)
        written = partial(rendering.overview_text, found.snapshot, scope, figures, notes, count)
        written = partial(written, of_state=asks_which_work(context.query))
    text = await in_thread(written)
    return {
        "query": context.query,
        "read_as": found.read_as,
        "fits": bool(found.results),
        "results": [_item_data(one, found, figures, wanted.explain, quoting) for one in found.results],
        "near_misses": [
            _item_data(one, found, figures, wanted.explain, quoting) for one in found.near_misses
        ],
        "method": found.tools.method,
        "note": found.tools.note or None,
        "filter_note": found.filter_note,
        "over_budget": search_answers.over_budget(context, found.snapshot) if context.dropped else None,
        "filters": context.filters,
        "rerank": None
        if rerank is None
        else {"used": rerank.used, "reason": rerank.reason, "seconds": round(rerank.seconds, 3)},
        "known": found.known,
        "failed": [
            {"server": client.name, "cause": why} for client in fleet.serving() if (why := failure(client))
        ],
        "text": text,
    }


_EXPLAINED: Final = (
    *("learned", "novelty", "cosine", "lexical", "action", "instructions"),
    *("need", "serves", "chunk", "matched"),
)
"""Parts of a result that an explanation has as they are."""


def _item_data(
    result: Result, found: Found, figures: Figures, explain: bool, quoting: bool
) -> dict[str, Any]:
    data = dict(rendering.item_data(result, figures=figures)) | described(result.item)
    if explain:
        data |= {name: getattr(result, name) for name in _EXPLAINED} | {
            "brought": result in found.brought,
            "used_before_for": result.support.query if quoting and result.support is not None else None,
            "terms": terms_data(result.terms),
        }
    return data


def terms_data(terms: Iterable[tuple[str, str, float]]) -> list[dict[str, Any]]:
    """Return the terms of a score for JSON: each with its field, and the number that it has added."""
    return [{"field": field, "term": term, "added": added} for field, term, added in terms]


def _figures(usage: UsageRecorder | None, asked_by: Principal) -> Figures:
    """Return the figures of all calls; none for principals who may not see the calls of others."""
    return usage.figures if usage is not None and asked_by.may(Role.VIEW) else rendering.NO_FIGURES


def _search_response(query: str, answer: SearchAnswer, figures: Figures) -> Struct:
    context, found = answer.context, answer.found
    tokens = {item.name: item.tokens for item in (*context.near_misses, *context.of(Kind.TOOL))}
    results = []
    for result in found.tools.results or found.nearest:
        tool = result.item
        assert isinstance(tool, Tool)
        labels: dict[str, Any] = described(tool)
        counted = figures.get(tool.key)
        results.append(
            ToolFound(
                name=tool.exposed_name,
                title=title_of(tool) or None,
                server=tool.server,
                description=tool.description,
                score=round(result.score, 4),
                why=result.why,
                tokens=tokens.get(tool.exposed_name, 0),
                category=labels["category"],
                tags=labels["tags"],
                danger=tool.tool_class,
                danger_reason=tool.class_reason,
                input_schema=envelope.members(tool.definition)["inputSchema"],
                **({} if counted is None else counted.as_data()),
            )
        )
    facts = SearchFacts(
        result_count=len(results),
        used_llm_rerank=context.rerank is not None and context.rerank.used,
        rerank=None if context.rerank is None else context.rerank.reason,
        filters_applied=context.filters,
        latency_ms=round(context.seconds * 1000, 3),
        request_id=context.id,
        note=" ".join(note for note in (found.note, found.filter_note) if note) or None,
        read_as=found.read_as,
        fits=bool(found.tools.results),
    )
    return SearchResponse(query=query, results=results, metadata=facts)


def danger_data(tool: Tool) -> dict[str, str]:
    return {"danger": str(tool.tool_class), "danger_reason": tool.class_reason}


def described(item: Item) -> dict[str, Any]:
    """Return category and tags of an item, each with its origin, and the danger class of a tool."""
    metadata = metadata_of(item)
    configured = isinstance(item, Tool) and item.category is not None
    return {
        "category": {"name": metadata.category, "origin": "configured" if configured else "derived"},
        "tags": [
            *({"name": tag, "origin": "configured"} for tag in metadata.tags),
            *({"name": tag, "origin": "derived"} for tag in metadata.derived_tags),
        ],
    } | (danger_data(item) if isinstance(item, Tool) else {})
