"""States of definitions, the events that lead to them, and the table of decisions.

What was approved once stays approved, so a server may go back to it. Everything else is an event, and
`DECISIONS` says what each mode makes of it: the definition is taken, or it is held until a person approves
it. A change under a version in which the server was seen before is never taken: honest programs change with
their version. After a person has rejected a definition of a name, no other one of that name is taken until a
person approves it, also if the server goes back to an approved definition in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, get_args

from msgspec import Struct

from mcp_context_proxy.config.settings import ApprovalMode
from mcp_context_proxy.store import ApprovalRow
from mcp_context_proxy.trust.fingerprints import NO_HINTS, Candidate, Hints


class State(StrEnum):
    """State of a definition."""

    APPROVED = "approved"
    RESTRAINED = "restrained"
    """Taken, but with the hints that were approved before: the new ones promise less harm."""
    HELD = "held"
    REJECTED = "rejected"


TAKEN: Final = frozenset({State.APPROVED, State.RESTRAINED})


class Event(StrEnum):
    """The way in which a definition that nobody has approved came."""

    FIRST = "first sight"
    """The server was never seen before."""
    SUSPECT = "suspect"
    """It has a sign of an attack, however it came."""
    CHANGED = "changed"
    """It changed while the server runs, or over a restart of the same version."""
    UPDATED = "updated"
    """It changed with a new version."""
    NEW = "new"
    """A known server lists a new one."""
    LOOSENED = "loosened"
    """It changed with a new version, and promises less harm than before."""
    REST = "rest"
    """It changed in parts that no model sees."""


_HELD: Final[Mapping[ApprovalMode, State]] = dict.fromkeys(("notice", "changed", "all"), State.HELD)

DECISIONS: Final[Mapping[Event, Mapping[ApprovalMode, State]]] = {
    Event.FIRST: {**_HELD, "notice": State.APPROVED},
    Event.SUSPECT: _HELD,
    Event.CHANGED: _HELD,
    Event.UPDATED: {**_HELD, "notice": State.APPROVED},
    Event.NEW: {**_HELD, "notice": State.APPROVED},
    Event.LOOSENED: {**_HELD, "notice": State.RESTRAINED},
    Event.REST: {**_HELD, "notice": State.APPROVED, "changed": State.APPROVED},
}
"""State of a definition by the event and the mode."""

TOLD: Final = {Event.UPDATED: "changed with a new version", Event.NEW: "new", Event.LOOSENED: "loosened"}
"""Events of which a person is told once although the definition is taken."""

_WHY: Final = {
    Event.FIRST: "it has not been approved yet",
    Event.NEW: "it is new",
    **dict.fromkeys(
        (Event.CHANGED, Event.UPDATED, Event.LOOSENED, Event.REST, Event.SUSPECT), "its definition changed"
    ),
}

REJECTED: Final = "a person has rejected it"

_WHY_SEVERAL: Final = {
    "it has not been approved yet": "they have not been approved yet",
    "it is new": "they are new",
    "its definition changed": "their definitions changed",
    REJECTED: "a person has rejected them",
}


class Ruling(Struct, frozen=True):
    """A decision about one definition of a server."""

    state: State
    why: str = ""
    """Reason why it is withheld, as the end of "is withheld: ..."; empty if it is taken."""
    hints: Hints | None = None
    """Hints that stay until a person approves the definition's own."""
    replaces: bool = False
    """True if a definition of the name was served before."""

    @property
    def taken(self) -> bool:
        """True if it is served."""
        # Not by the set, whose hashes cost as much as the rest of a first list.
        return self.state is State.APPROVED or self.state is State.RESTRAINED


APPROVED: Final = Ruling(State.APPROVED)


def event_of(
    candidate: Candidate, rows: Sequence[ApprovalRow], *, first: bool, version_seen: bool, suspect: bool
) -> Event:
    """Return the way in which a definition came that has no row of its own.

    Args:
        candidate: The definition.
        rows: The definitions of its name, the oldest decision first.
        first: True if nothing of the server was seen before.
        version_seen: True if the server was seen in this version before.
        suspect: True if it has a sign of an attack.
    """
    if suspect:
        return Event.SUSPECT
    if not rows:
        return Event.FIRST if first else Event.NEW
    decided = [row for row in rows if row.decided not in get_args(ApprovalMode)]
    if decided and max(decided, key=lambda row: row.time).state == State.REJECTED:
        return Event.CHANGED
    taken = [row for row in rows if row.state in TAKEN]
    if not taken:
        unseen = rows[-1].event in (Event.FIRST, Event.NEW)
        return Event(rows[-1].event) if unseen else Event.CHANGED
    only_rest = any(row.seen == candidate.fingerprint.seen for row in taken)
    loosened = candidate.hints.loosens(approved_hints(rows))
    if version_seen and not (only_rest and not loosened):
        return Event.CHANGED
    if loosened:
        return Event.LOOSENED
    return Event.REST if only_rest else Event.UPDATED


def approved_hints(rows: Iterable[ApprovalRow]) -> Hints:
    """Return the hints of the definition of a name that was approved last."""
    approved = [row for row in rows if row.state == State.APPROVED]
    try:
        return Hints.read(approved[-1].hints) if approved else NO_HINTS
    except ValueError:
        return NO_HINTS


def ruling_of(row: ApprovalRow, of_name: Sequence[ApprovalRow]) -> Ruling:
    """Return the decision that a row stands for, among the rows of its name."""
    state = State(row.state)
    if state is State.APPROVED:
        return APPROVED
    if state is State.RESTRAINED:
        return Ruling(state, hints=approved_hints(of_name))
    replaces = any(one.state in TAKEN for one in of_name)
    why = REJECTED if state is State.REJECTED else row.reason or _WHY[Event(row.event)]
    return Ruling(state, why, replaces=replaces)


def withheld(server: str, kind: str, reasons: Sequence[str]) -> str:
    """Return the sentence about withheld definitions of one server, for a model or a person."""
    count, (why, _) = len(reasons), Counter(reasons).most_common(1)[0]
    subject = f"1 {kind} of {server} is" if count == 1 else f"{count:,} {kind}s of {server} are"
    if count > 1:
        why = _WHY_SEVERAL.get(why, "their definitions look like an attack")
    return f"{subject} withheld: {why}; a person has to look (mcp-context-proxy changes {server})"
