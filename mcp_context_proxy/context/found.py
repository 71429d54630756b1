"""What a search found, in both domains, and what its constraints kept it from finding."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_context_proxy.context.constraints import NO_CONSTRAINTS, Constraints
from mcp_context_proxy.items import Document, Item, Snapshot
from mcp_context_proxy.retrieval.filters import Filters
from mcp_context_proxy.retrieval.ranking import Ranking, Result

EVERYTHING = Filters()


@dataclass(frozen=True, slots=True)
class Excluded:
    """Something that would have been found without the constraints."""

    result: Result
    failed: tuple[str, ...]
    """Names of the constraints that it does not meet."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found in both domains."""

    tools: Ranking
    documents: Ranking | None
    """None when no documents were searched."""
    snapshot: Snapshot
    """What was searched."""
    brought: tuple[Result, ...] = ()
    """What was not found itself, and comes with what was."""
    constraints: Constraints = NO_CONSTRAINTS
    filters: Filters = EVERYTHING
    """What the constraints came to."""
    excluded: tuple[Excluded, ...] = ()
    """Where they leave nothing that fits: what would have, best first."""

    @property
    def known(self) -> int:
        """Items there are to search."""
        return len(self.snapshot.tools) + len(self.snapshot.documents)

    @property
    def considered(self) -> int:
        """Items that met the constraints."""
        return self.tools.considered + (self.documents.considered if self.documents else 0)

    @property
    def results(self) -> tuple[Result, ...]:
        """What was selected: tools, best first, then documents, then what comes with them."""
        return self.tools.results + (self.documents.results if self.documents else ()) + self.brought

    @property
    def near_misses(self) -> tuple[Result, ...]:
        """Where no tool fits: what comes nearest, tools, then documents if they do not fit either."""
        if self.tools.results:
            return ()
        documents = self.documents.near_misses if self.documents else ()
        return self.tools.near_misses + documents

    @property
    def note(self) -> str | None:
        """What a person should know about how this was found."""
        return self.tools.note or (self.documents.note if self.documents else None)

    @property
    def filter_note(self) -> str | None:
        """What the constraints left out, for who reads the answer; None where they left what fits."""
        if not self.constraints or self.results:
            return None
        asked = ", ".join(f"{name} {said(value)}" for name, value in self.constraints.applied().items())
        if self.considered:
            items = "1 item" if self.considered == 1 else f"{self.considered:,} items"
            note = f"Nothing fits among the {items} that the filters leave ({asked})."
        else:
            note = f"No item meets the filters ({asked})."
        if not self.excluded:
            return note
        named = (f"{_name(one.result.item)} (by {', '.join(one.failed)})" for one in self.excluded)
        return f"{note} Left out by them: {'; '.join(named)}."


def said(value: object) -> str:
    """The value of a filter, for a person."""
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name(item: Item) -> str:
    return item.uri if isinstance(item, Document) else item.exposed_name
