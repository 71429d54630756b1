"""What comes into a context with what was found: tools used a moment ago, rules of expansion, what is near.

Each says what brought it. Nothing that is ``manual`` or was removed by hand comes this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcp_context_proxy.context.options import ContextOptions
from mcp_context_proxy.context.records import Mode
from mcp_context_proxy.context.session import SessionView, key_of
from mcp_context_proxy.items import IncludeMode, Item, Snapshot, Tool
from mcp_context_proxy.retrieval.expansion import Expanded, Expander, ExpansionOptions
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.results import Result

RELATED_COSINE = 0.5
"""From which items are called related: they speak of the same thing, or do the same to another."""

RULE_SCORE = 1.0
"""Of what a rule of expansion brings: somebody has said that it belongs there."""


@dataclass(frozen=True, slots=True)
class Companion:
    """An item that comes with others."""

    item: Item
    mode: Mode
    score: float | None
    why: str

    def result(self) -> Result:
        """As a search would give it."""
        score = self.score or 0.0
        return Result(self.item, score, self.score, 0.0, 0.0, self.item.description, (), self.why)


class ContextExpander:
    """Finds them."""

    def __init__(self, expander: Expander, rules: Mapping[str, Sequence[str]]) -> None:
        """Prepare.

        Args:
            expander: Knows what is near to what.
            rules: Names of items, each with the names of those that come with it.
        """
        self._expander, self._rules = expander, rules

    def configure(self, rules: Mapping[str, Sequence[str]]) -> None:
        """Follow these rules from now on."""
        self._rules = rules

    def related(self, item: Item, snapshot: Snapshot, limit: int) -> list[Companion]:
        """What is near to an item, nearest first."""
        return [_near(one) for one in self._expander.related(item, snapshot, RELATED_COSINE, limit)]

    def of(
        self,
        found: Sequence[Item],
        query: str,
        snapshot: Snapshot,
        options: ContextOptions,
        session: SessionView,
        filters: Filters,
    ) -> list[Companion]:
        """What comes with the items found: each once, and none of those."""
        allowed = _allowed(session, filters)
        expansion = ExpansionOptions(
            options.expansion_depth, options.expansion_threshold, options.expansion_top_n
        )
        companions = [*_retained(snapshot, session), *self._by_rule(found, snapshot)]
        if expansion.depth:
            near = self._expander.expand(found, query, snapshot, expansion, allowed)
            companions += [_near(expanded) for expanded in near]
        if options.expand_results and session.answer is not None:
            companions += self._suggested(session.answer, snapshot, expansion, allowed)
        known = {key_of(item) for item in found}
        once = {key_of(one.item): one for one in reversed(companions) if allowed(one.item)}
        first = dict.fromkeys(key_of(one.item) for one in companions)
        return [once[key] for key in first if key in once and key not in known]

    def _by_rule(self, found: Iterable[Item], snapshot: Snapshot) -> Iterator[Companion]:
        if not self._rules:
            return
        for item in found:
            for name in self._rules.get(key_of(item)[1], self._rules.get(item.name, ())):
                for target in _named(name, item, snapshot):
                    why = f"comes with {key_of(item)[1]}"
                    yield Companion(target, Mode.EXPANSION, RULE_SCORE, why)

    def _suggested(
        self,
        answer: tuple[str, str],
        snapshot: Snapshot,
        options: ExpansionOptions,
        allowed: Callable[[Item], bool],
    ) -> Iterator[Companion]:
        tool, text = answer
        for one in self._expander.suggested(text, snapshot, options, allowed):
            why = f"the answer of {tool} is about it: {one.cosine:.2f}"
            yield Companion(one.item, Mode.EXPANSION, round(one.cosine, 4), why)


def _retained(snapshot: Snapshot, session: SessionView) -> Iterator[Companion]:
    for name in session.used:
        tool = snapshot.tools.get(name)
        if tool is not None:
            yield Companion(tool, Mode.RETAINED, None, "called a moment ago")


def _near(expanded: Expanded) -> Companion:
    via = "" if expanded.via is None else f"near to {key_of(expanded.via)[1]}: "
    return Companion(expanded.item, Mode.EXPANSION, round(expanded.cosine, 4), f"{via}{expanded.cosine:.2f}")


def _named(name: str, beside: Item, snapshot: Snapshot) -> Iterator[Item]:
    """What a rule names: by exposed name, as a document, or by its own name, of the same server first."""
    if (exact := snapshot.tools.get(name)) is not None:
        yield exact
        return
    own = [tool for tool in snapshot.tools.values() if tool.name == name]
    if isinstance(beside, Tool) and (same := [tool for tool in own if tool.server == beside.server]):
        own = same
    yield from own
    yield from (document for document in snapshot.documents.values() if document.name == name)


def _allowed(session: SessionView, filters: Filters) -> Callable[[Item], bool]:
    def allowed(item: Item) -> bool:
        if item.include is IncludeMode.MANUAL or key_of(item) in session.removed:
            return False
        return filters.allow(item)

    return allowed
