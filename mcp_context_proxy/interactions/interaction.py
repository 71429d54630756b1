"""What an interaction is, and what a search through them answers. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from mcp_context_proxy.store import InteractionRow as Interaction
from mcp_context_proxy.wire.text import clean

__all__ = ["CALL", "MESSAGE", "SEARCH", "Interaction", "Method", "Recall", "Recollection", "agent_named"]

SEARCH: Final = "search"
CALL: Final = "call"
MESSAGE: Final = "message"
"""Types that the proxy itself knows; clients may post others."""

AGENT_CHARACTERS: Final = 100
"""Of an agent's name: what a line shows."""

UNNAMED: Final = "unknown"
"""The agent that did not say who it is."""

Method: TypeAlias = Literal["semantic", "recent"]
"""How interactions were found: by meaning and age; or, where no embedding can be had, the latest."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """An interaction that was found."""

    interaction: Interaction
    score: float | None
    """``cosine * time_decay_factor ** days``; None where nothing could be compared."""
    cosine: float | None


@dataclass(frozen=True, slots=True)
class Recall:
    """What a search through interactions found."""

    results: tuple[Recollection, ...]
    """Best first."""
    method: Method
    known: int
    """Interactions there are, of the agent and type that were asked for."""
    without_embedding: int
    """How many of them have none, so that they were left out of a search by meaning."""
    note: str | None = None
    """What whoever asked should know about how this was found."""


def agent_named(name: str | None) -> str:
    """The name of an agent as it is kept: on one line, without what nobody sees."""
    return " ".join(clean(name or "").split())[:AGENT_CHARACTERS].strip() or UNNAMED
