"""The seam to whoever puts tools in order: a model behind an endpoint, in a folder, or the client's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tool as a judge sees it. Its texts come from a server: data, never instructions."""

    name: str
    description: str


class Judge(Protocol):
    """Puts candidates in order. What it says is not trusted: see `order.completed`."""

    @property
    def name(self) -> str:
        """For a person: what model, and where."""
        ...

    @property
    def key(self) -> str:
        """Who it is: one that failed is left alone for a while."""
        ...

    async def order(self, query: str, candidates: Sequence[Candidate]) -> Sequence[int]:
        """Positions of candidates, best first; whoever asks bounds how long it may take.

        Raises:
            RerankError: there is no answer, or none that can be used.
        """
        ...

    async def aclose(self) -> None:
        """Let go of what it holds."""
        ...
