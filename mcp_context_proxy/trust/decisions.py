"""Decisions of a person: what waits for one, and how it is approved or rejected.

A person approves by a hash of what they have looked at, so that nothing else is approved if it changes again
in between. What had to be approved begins anew: nothing that was learned about the tool before speaks for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, get_args

import msgspec

from mcp_context_proxy.config.settings import ApprovalMode
from mcp_context_proxy.errors import ContextProxyError
from mcp_context_proxy.store import DAY, Additions, ApprovalRecord, ApprovalRow, Store
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.trust.approval import Name
from mcp_context_proxy.trust.changes import changed_lines, shortened
from mcp_context_proxy.trust.fingerprints import Approvable
from mcp_context_proxy.trust.states import TAKEN, Event, State

HASH_DIGITS: Final = 16
"""Hexadecimal digits of the hash by which a person approves: nobody finds another definition with it in the
time between looking and approving."""


class ApprovalError(ContextProxyError):
    """A person's decision cannot be made; the text says why and what to do."""


def latest(rows: Iterable[ApprovalRow]) -> list[ApprovalRow]:
    """Return the definition of each name that its server listed last."""
    found: dict[Name, ApprovalRow] = {}
    for row in rows:
        found[row.kind, row.name] = row
    return list(found.values())


def pending(rows: Iterable[ApprovalRow]) -> list[ApprovalRow]:
    """Return the definitions of a server that wait for a person: the latest of each name, if it is held."""
    return [row for row in latest(rows) if row.state in (State.HELD, State.RESTRAINED)]


def hash_of(rows: Iterable[ApprovalRow]) -> str:
    """Return the hash of definitions, whatever their order."""
    parts = sorted(f"{row.kind}\0{row.name}\0".encode() + row.seen + row.rest for row in rows)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:HASH_DIGITS]


@dataclass(frozen=True, slots=True)
class Change:
    """A definition that waits for a person, or that was taken lately without one."""

    row: ApprovalRow
    lines: tuple[str, ...]
    """Differences from the definition that was served before it."""
    is_whole: bool
    """True if these are all: then a person who has read them has seen what there is to approve."""

    @property
    def waits(self) -> bool:
        """True if it waits for a person."""
        return self.row.state in (State.HELD, State.RESTRAINED)

    @property
    def taken_by_mode(self) -> bool:
        """True if it was taken although nobody has looked at it."""
        return self.row.state in TAKEN and self.row.decided in get_args(ApprovalMode)

    @property
    def standing(self) -> str:
        """The state and how it came about, in words."""
        row = self.row
        if row.state == State.RESTRAINED:
            return "taken, but its new hints wait for approval"
        if row.state == State.REJECTED:
            return "rejected"
        what = WORDS[Event(row.event)] + (f": {row.reason}" if row.reason else "")
        return f"withheld ({what})" if row.state == State.HELD else f"taken ({what})"


WORDS: Final = {
    Event.FIRST: "seen for the first time",
    Event.SUSPECT: "suspect",
    Event.CHANGED: "changed without a new version",
    Event.UPDATED: "changed with a new version",
    Event.NEW: "new",
    Event.LOOSENED: "promises less harm than before",
    Event.REST: "changed where no model sees it",
}
"""Events as a person reads them."""


def changes(
    store: Store,
    server: str,
    *,
    days: float,
    whole: bool = False,
    most: int | None = None,
    clock: Callable[[], float] = time_of_day,
) -> list[Change]:
    """Return the definitions of a server that wait, then those that changed in the last days. Blocking.

    Long differences are shortened unless they are to be `whole`; `most` is the number of definitions.

    Raises:
        StoreError: the store cannot be read.
    """
    rows = store.approvals.record(server).rows
    since = clock() - days * DAY
    found: list[tuple[ApprovalRow, ApprovalRow | None]] = []
    for row in latest(rows):
        if row.state != State.APPROVED or (row.event != Event.FIRST and row.time >= since):
            of_name = [one for one in rows if (one.kind, one.name) == (row.kind, row.name)]
            served = [one for one in of_name if one is not row and one.state in TAKEN]
            found.append((row, served[-1] if served else None))
    found.sort(key=lambda pair: (pair[0].state == State.APPROVED, pair[0].kind, pair[0].name))
    if most is not None:
        del found[most:]
    keys = {one.key for pair in found for one in pair if one is not None}
    definitions = store.approvals.definitions(keys)
    return [
        _change(row, changed_lines(_of(base, definitions), definitions.get(row.key, b"{}")), whole)
        for row, base in found
    ]


def _change(row: ApprovalRow, lines: list[str], whole: bool) -> Change:
    shown = lines if whole else shortened(lines)
    return Change(row, tuple(shown), shown == lines)


def _of(row: ApprovalRow | None, definitions: Mapping[bytes, bytes]) -> bytes | None:
    return None if row is None else definitions.get(row.key)


def decide(
    store: Store,
    server: str,
    names: Collection[str],
    state: State,
    *,
    by: str,
    expected: str | None = None,
    clock: Callable[[], float] = time_of_day,
) -> list[ApprovalRow]:
    """Approve or reject definitions of a server; return their new rows. Blocking.

    Args:
        store: The store.
        server: Name of the server.
        names: Own names; none stands for everything that waits.
        state: `State.APPROVED` or `State.REJECTED`.
        by: The way in which the person decided.
        expected: Hash of what the person has seen; needed to approve.
        clock: Time of day.

    Raises:
        ApprovalError: there is nothing to decide, or it is not what the person has seen.
        StoreError: nothing was written.
    """
    decided: list[ApprovalRow] = []
    changed: list[tuple[str, str]] = []

    def add(kept: ApprovalRecord) -> Additions:
        among = pending(kept.rows) if state is State.APPROVED or not names else latest(kept.rows)
        chosen = [row for row in among if not names or row.name in names]
        # A tool and a prompt may have one name; the hash says which of them the person has seen.
        if len(names) == 1:
            chosen = next(([row] for row in chosen if hash_of([row]) == expected), chosen)
        if missing := sorted(set(names) - {row.name for row in chosen}):
            told = ", ".join(map(repr, missing))
            raise ApprovalError(f"server {server!r} has no definition {told} to decide about")
        if not chosen:
            raise ApprovalError(f"nothing of server {server!r} waits for approval")
        if state is State.APPROVED and hash_of(chosen) != (expected or "").lower():
            raise ApprovalError(
                f"this is not the hash of what waits at server {server!r} now: look again "
                f"(mcp-context-proxy changes {server})"
            )
        now = clock()
        held = (row.name for row in chosen if row.kind == Approvable.TOOL and row.state == State.HELD)
        changed[:] = [(server, name) for name in held]
        decided[:] = [msgspec.structs.replace(row, state=state, decided=by, time=now) for row in chosen]
        return Additions(tuple(decided))

    store.approvals.decide(server, add)
    if state is State.APPROVED and changed:
        store.learned.forget_tools(changed)
        store.tool_sessions.forget(changed)
        store.statistics.settle(changed)
    return decided
