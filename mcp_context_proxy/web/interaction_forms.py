"""What the API takes and answers of interactions: the forms."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mcp_context_proxy.interactions.decay import DECAY_PER_DAY
from mcp_context_proxy.interactions.interaction import MESSAGE, Method
from mcp_context_proxy.interactions.memory import TOP_K
from mcp_context_proxy.web.bounds import Count, Name, Words

InteractionType = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Decay = Annotated[float, Meta(gt=0, le=1)]
Moment = Annotated[float, Meta(ge=0)]
"""Seconds since 1970."""


class InteractionPosted(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that was said or done."""

    content: Words
    agent_name: Name | None = None
    """By default that of the header ``X-Agent-Name``."""
    interaction_type: InteractionType = MESSAGE
    time: Moment | None = None
    """When it happened; by default now."""


class InteractionsWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Which interactions are wanted."""

    query: Words | None = None
    """None for the latest."""
    agent_name: Name | None = None
    interaction_type: InteractionType | None = None
    top_k: Count = TOP_K
    time_decay_factor: Decay = DECAY_PER_DAY


class InteractionsUnwanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Which interactions are to be forgotten."""

    older_than_days: Annotated[float, Meta(ge=0)]
    """0 for all."""
    agent_name: Name | None = None
    interaction_type: InteractionType | None = None


class InteractionAnswer(Struct, frozen=True):
    """An interaction as it is kept."""

    id: int
    agent_name: str
    interaction_type: str
    content: str
    """Without secrets, cut to what is kept of one."""
    time: float


class InteractionFound(InteractionAnswer, frozen=True):
    """An interaction that was found."""

    score: float | None
    """``cosine * time_decay_factor ** days``; null where the latest are listed."""
    cosine: float | None


class InteractionsAnswer(Struct, frozen=True):
    """Interactions, best first; without a query, or where it has no embedding, the latest first."""

    query: str | None
    method: Method
    results: list[InteractionFound]
    known: int
    """Interactions there are, of that agent and type."""
    without_embedding: int
    """How many of them could not be compared with the query."""
    note: str | None


class Forgotten(Struct, frozen=True):
    """How many were forgotten."""

    forgotten: int
