"""Why an item is in the context of a query or not: its rank, each part of its score, its mode, the budget."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_context_proxy.context.options import DomainOptions
from mcp_context_proxy.context.records import ContextItem, Mode, RequestContext
from mcp_context_proxy.context.session import key_of
from mcp_context_proxy.items import IncludeMode, Item, Kind, Tool
from mcp_context_proxy.retrieval.results import SUSPECTED, Ranking, Result


@dataclass(frozen=True, slots=True)
class Score:
    """How a score came about; see `Result`."""

    total: float
    cosine: float | None
    lexical: float
    need: float
    terms: tuple[tuple[str, str, float], ...]
    """The lexical score by field and word."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What decided about one item."""

    query: str
    type: Kind
    name: str
    server: str | None
    include: IncludeMode
    """As configured."""
    selected: Mode | None
    """How it came into the context; None when it did not."""
    reason: str
    """One sentence for a person."""
    rank: int | None
    """Among all items of its domain; None where it has no part in the ranking."""
    ranked: int
    """Items that have."""
    score: Score | None
    tokens: int
    options: DomainOptions
    max_tokens: int | None
    rerank: str | None = None
    """What became of asking another model for the order of the best tools; ``rank`` is the one before."""


def explain(item: Item, context: RequestContext, ranking: Ranking, tokens: int) -> Explanation:
    """Explain an item.

    Args:
        item: Of the catalog.
        context: Built for the query.
        ranking: Of the item's whole domain for the query.
        tokens: What the item costs.
    """
    kind, name = key_of(item)
    ordered = (*ranking.results, *ranking.near_misses, *ranking.others)
    place = next((at for at, result in enumerate(ordered) if key_of(result.item) == (kind, name)), None)
    result = None if place is None else ordered[place]
    here = next((one for one in context.items if (one.type, one.name) == (kind, name)), None)
    options = context.options.tools if kind is Kind.TOOL else context.options.documents
    return Explanation(
        query=context.query,
        type=kind,
        name=name,
        server=item.server if isinstance(item, Tool) else None,
        include=item.include,
        selected=None if here is None else here.include_mode,
        reason=_reason(item, context, ranking, place, here),
        rank=None if place is None else place + 1,
        ranked=len(ordered),
        score=None if result is None else _score(result),
        tokens=tokens,
        options=options,
        max_tokens=context.options.max_tokens,
        rerank=None if context.rerank is None or kind is not Kind.TOOL else context.rerank.reason,
    )


def _score(result: Result) -> Score:
    return Score(result.score, result.cosine, result.lexical, result.need, result.terms)


def _reason(
    item: Item, context: RequestContext, ranking: Ranking, place: int | None, here: ContextItem | None
) -> str:
    """Why the item is in the context or not; and where its server is suspected, that."""
    reason = _why_not(item, context, ranking, place) if here is None else here.why
    suspicion = ranking.suspected.get(item.server) if isinstance(item, Tool) else None
    told = "" if suspicion is None else SUSPECTED[suspicion]
    return f"{reason}; {told}" if told not in reason else reason


def _why_not(item: Item, context: RequestContext, ranking: Ranking, place: int | None) -> str:
    kind, name = key_of(item)
    if context.failure is not None:
        return f"the search failed: {context.failure}"
    if item.include is IncludeMode.MANUAL:
        return "it is manual: no search finds it, it must be added to a session by hand"
    if any((one.type, one.name) == (kind, name) for one in context.dropped):
        return f"it was selected, but does not fit into {context.options.max_tokens:,} tokens"
    if not ranking.fits:
        return "nothing fits the query well enough"
    if place is None:
        return "it has nothing in common with the query"
    last = ranking.results[-1].score if ranking.results else 0.0
    higher = "another ranks" if len(ranking.results) == 1 else f"{len(ranking.results)} others rank"
    return f"{higher} higher; the last one that was chosen scores {last:.2f}"
