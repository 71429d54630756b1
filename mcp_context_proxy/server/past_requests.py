"""Past requests: rendered again as a model read them, and answered again from today's catalog.

A record of a request has no text: a definition that has changed since comes from the record of approvals, for
those who see everybody's requests; the former text of a document is gone. An item that cannot be rendered as
it was is named, never replaced by its form of today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog import definitions
from mcp_context_proxy.context.delivery import ToldDocument, text_given, told_again
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.records import SESSION_MODES, ContextItem, Delivery, Mode, RequestContext
from mcp_context_proxy.context.search import Found
from mcp_context_proxy.context.selection import SAME_TOOL, SearchAnswer
from mcp_context_proxy.context.session import ItemKey, item_by
from mcp_context_proxy.items import DOCUMENT_KINDS, Document, Item, Kind, SearchFilters, Snapshot, Tool
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.retrieval.results import Ranking, Result
from mcp_context_proxy.retrieval.text import name_key
from mcp_context_proxy.server.rendering import context_text
from mcp_context_proxy.server.search_answers import Note, answer_tokens, over_budget, search_text
from mcp_context_proxy.store import ApprovalStore
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust.fingerprints import Fingerprint
from mcp_context_proxy.trust.tokens import ACTING, Role

NOT_RANKED: Final = frozenset({Mode.RETAINED, Mode.UNCERTAIN, Mode.EXPANSION})
"""Modes of items that no search has found."""

Change: TypeAlias = Literal["same", "moved", "new", "gone"]
"""Whether both answers have an item at the same place, at two places, or only one answer has it."""

DefinitionChange: TypeAlias = Literal["same", "changed", "removed", "unknown"]
"""Whether a definition or text is the same today; ``unknown`` for records of earlier versions."""


class RenderedRequest(Struct, frozen=True):
    """A past request as a model read it."""

    text: str
    missing: tuple[str, ...]
    """Items whose definition or text of then is no longer known; they are left out."""


class ComparedItem(Struct, frozen=True):
    """One item in an answer of then and in today's."""

    type: Kind
    name: str
    change: Change
    definition: DefinitionChange
    then: int | None
    """Place in the answer of then, from 1; None if it was not in it."""
    now: int | None
    score_then: float | None
    score_now: float | None


class ReplayedRequest(Struct, frozen=True):
    """A past request, today's answer to it, and the difference."""

    then: RequestContext
    now: RequestContext
    items: tuple[ComparedItem, ...]
    """Those of today in their order, then those that are gone."""


class PastRequests:
    """Renders and replays recorded requests."""

    def __init__(
        self, contexts: ContextEngine, snapshot: Callable[[], Snapshot], approvals: ApprovalStore
    ) -> None:
        """Connect the parts; ``snapshot`` returns the catalog of the moment."""
        self._contexts, self._snapshot, self._approvals = contexts, snapshot, approvals

    async def rendered(self, context: RequestContext) -> RenderedRequest:
        """Return a request as its model read it, by the definitions that it had then."""
        return await in_thread(self._rendered, context)

    async def replayed(self, context: RequestContext) -> ReplayedRequest:
        """Answer a request again, with the options and filters that it had; nothing is recorded.

        It is asked outside of its session: items that the session had for every request are not compared.
        """
        now = await self._contexts.replay(context, msgspec.convert(context.filters, SearchFilters))
        return ReplayedRequest(context, now, tuple(_compared(context, now, self._snapshot())))

    def _rendered(self, context: RequestContext) -> RenderedRequest:
        then, missing = self._as_it_was(context)
        results = partial(_results, context, then)
        if context.origin == "list":
            tools = [then[item.type, item.name] for item in context.items if (item.type, item.name) in then]
            listed = [definitions.tool_definition(tool) for tool in tools if isinstance(tool, Tool)]
            return RenderedRequest("\n".join(bytes(one).decode() for one in listed), missing)
        snapshot = replace(
            self._snapshot(),
            tools={name: item for (_, name), item in then.items() if isinstance(item, Tool)},
            documents={item.uri: item for item in then.values() if isinstance(item, Document)},
        )
        if context.origin == "context":
            return RenderedRequest(context_text(context, snapshot), missing)
        found = Found(
            tools=_ranking(context, [*results(context.items, {Kind.TOOL})], context.near_misses, then),
            documents=_ranking(context, [*results(context.items, DOCUMENT_KINDS)], (), then),
            # Sentences that tell a tool from its siblings need all of these.
            snapshot=replace(self._snapshot(), tools={**self._snapshot().tools, **snapshot.tools}),
            brought=tuple(
                _result(item, one)
                for one in context.items
                if one.include_mode is Mode.EXPANSION and (item := then.get((one.type, one.name))) is not None
            ),
        )
        told = tuple(_told(context, then))
        by_number = not context.options.tools.by_fit and context.options.calibrated
        text = search_text(
            SearchAnswer(context, found, told),
            [*_notes(context, self._snapshot())],
            self._contexts.count_tokens,
            tokens=answer_tokens(context.options.tools.top_n if by_number else None),
            searched=context.searched,
        )
        return RenderedRequest(text, missing)

    def _as_it_was(self, context: RequestContext) -> tuple[dict[ItemKey, Item], tuple[str, ...]]:
        """Return the items of a request by their definitions of then, and the names of those not known."""
        snapshot = self._snapshot()
        found: dict[ItemKey, Item] = {}
        missing: list[str] = []
        for one in (*context.items, *context.dropped, *context.near_misses):
            today = item_by(snapshot, (one.type, one.name))
            was: Item | None = today
            if one.fingerprint is not None and (today is None or today.fingerprint != one.fingerprint):
                # One that changed may wait for a person, or be beyond the reach of its principal by now.
                known = one.type is Kind.TOOL and ACTING.get().may(Role.VIEW)
                was = self._former(one, today) if known else None
            if was is None:
                missing.append(one.name)
            else:
                found[one.type, one.name] = was
        return found, tuple(missing)

    def _former(self, one: ContextItem, today: Item | None) -> Tool | None:
        """Return a tool by its former definition; None if that is not kept."""
        server = one.server or ""
        for row in self._approvals.record(server).rows:
            if Fingerprint(row.seen, row.rest).of(server) != one.fingerprint:
                continue
            definition = self._approvals.definitions([row.key]).get(row.key)
            if definition is None:
                return None
            described = envelope.text(envelope.members(definition).get("description")) or ""
            tool = today if isinstance(today, Tool) else Tool(server, row.name, one.name, "", b"", "")
            return replace(
                tool,
                description=described,
                definition=definition,
                fingerprint=one.fingerprint,
                tool_class=definitions.class_of(row.name, definition),
            )
        return None


def _results(
    context: RequestContext, then: Mapping[ItemKey, Item], items: Iterable[ContextItem], kinds: Iterable[Kind]
) -> Iterator[Result]:
    """Yield the results of the search of some kinds, in its order."""
    wanted = frozenset(kinds)
    twins: dict[str, list[Tool]] = {}
    scored = [one for one in items if one.type in wanted and one.score is not None]
    if context.rerank is None or not context.rerank.used:
        scored.sort(key=lambda one: -(one.score or 0.0))
    for one in scored:
        of, item = one.why.partition(SAME_TOOL)[2], then.get((one.type, one.name))
        if of and isinstance(item, Tool):
            twins.setdefault(of, []).append(item)
    asked = name_key(context.query)
    for one in scored:
        item = then.get((one.type, one.name))
        if item is None or one.include_mode in NOT_RANKED or one.why.startswith(SAME_TOOL):
            continue
        names = {item.name, one.name} if isinstance(item, Tool) else {item.name}
        exact = asked in {name_key(name) for name in names}
        yield replace(_result(item, one), exact=exact, twins=tuple(twins.get(one.name, ())))


def _result(item: Item, one: ContextItem) -> Result:
    return Result(item, one.score or 0.0, None, 0.0, 0.0, item.description, (), one.why)


def _ranking(
    context: RequestContext,
    results: list[Result],
    near: Iterable[ContextItem],
    then: Mapping[ItemKey, Item],
) -> Ranking:
    misses = ((then.get((one.type, one.name)), one) for one in near)
    return Ranking(
        query=context.query,
        results=tuple(results),
        considered=sum(context.searched or ()),
        method="hybrid",
        note=None,
        fits=bool(results),
        near_misses=tuple(_result(item, one) for item, one in misses if item is not None),
        seconds=context.seconds,
        read_as=context.read_as,
    )


def _notes(context: RequestContext, snapshot: Snapshot) -> Iterator[Note]:
    if context.note:
        yield Note(context.note)
    if context.dropped:
        yield Note(f"{over_budget(context, snapshot)}.")


def _told(context: RequestContext, then: Mapping[ItemKey, Item]) -> Iterator[ToldDocument]:
    documents = [(one, then.get((one.type, one.name))) for one in context.of(*DOCUMENT_KINDS)]
    given = {
        text_given(document): document.uri
        for one, document in documents
        if isinstance(document, Document) and one.delivered is Delivery.WHOLE
    }
    for one, document in documents:
        found = one.include_mode not in SESSION_MODES
        if isinstance(document, Document) and (found or one.delivered is not None):
            yield told_again(document, one, found, given)


def _compared(then: RequestContext, now: RequestContext, snapshot: Snapshot) -> Iterator[ComparedItem]:
    standing = {(one.type, one.name) for one in then.items if one.include_mode in SESSION_MODES}
    before, after = _places(then, standing), _places(now, standing)
    for key in dict.fromkeys((*after, *before)):
        was, place = before.get(key, (None, None))
        here, today = after.get(key, (None, None))
        change: Change = "same" if place == today else "moved"
        if was is None or here is None:
            change = "new" if was is None else "gone"
        yield ComparedItem(
            type=key[0],
            name=key[1],
            change=change,
            definition=_definition_change(was or here, snapshot),
            then=place,
            now=today,
            score_then=None if was is None else was.score,
            score_now=None if here is None else here.score,
        )


def _places(context: RequestContext, without: Set[ItemKey]) -> dict[ItemKey, tuple[ContextItem, int]]:
    """Return the items that the query selected, each with its place among them, from 1."""
    selected = [
        item
        for item in context.items
        if item.include_mode not in SESSION_MODES and (item.type, item.name) not in without
    ]
    return {(one.type, one.name): (one, place) for place, one in enumerate(selected, 1)}


def _definition_change(one: ContextItem | None, snapshot: Snapshot) -> DefinitionChange:
    assert one is not None
    today = item_by(snapshot, (one.type, one.name))
    if today is None:
        # One that waits for approval is there, with another definition.
        return "changed" if one.name in snapshot.withheld else "removed"
    if one.fingerprint is None:
        return "unknown"
    return "same" if today.fingerprint == one.fingerprint else "changed"
