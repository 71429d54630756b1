"""Counts of the work of this replica for the others, and theirs for it, since it began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from mcp_context_proxy.cluster.relay import RelayEnd


class Reason(StrEnum):
    """Reasons for a relay."""

    SESSION = "session"
    """A request of a session."""
    REPLY = "reply"
    """The client's reply to a question that was asked within a session."""
    CALL = "call"
    """The answer that a parked call waits for."""


@dataclass(slots=True, eq=False)
class ClusterCounts:
    """Counts for metrics; the event loop writes them."""

    relays: Counter[tuple[Reason, RelayEnd]] = field(default_factory=Counter)
    """Relays that this replica has sent."""
    relays_refused: int = 0
    """Relays to this replica that were not signed for it."""
    adoptions: int = 0
    """Sessions that this replica has taken over."""
    sessions_lost: int = 0
    """Sessions of this replica that another one has taken over."""
    replicas_lost: int = 0
    """Replicas that were there and gave no sign of life, or could not be reached."""
    stale: int = 0
    """Contexts that another replica had changed since they were last read here."""
    sessions: Callable[[], int] = int
    """Returns the number of sessions that are at home here."""
    replicas: Callable[[], int] = int
    """Returns the number of replicas that are there, this one among them."""
    does_upkeep: Callable[[], bool] = bool
    """Returns whether this replica deletes old rows and sums up statistics."""
    store_up: Callable[[], bool] = bool
    """Returns whether the store can be used."""
