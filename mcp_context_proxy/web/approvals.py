"""REST operations on the approval of definitions and on the audit, for administrators alone.

A model must get neither the text of a definition that waits nor a way to approve it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from mcp_context_proxy.statistics import seconds_of
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import Principal, Role, reaches
from mcp_context_proxy.trust.approval import Approvals
from mcp_context_proxy.trust.audit import KINDS, AuditLog
from mcp_context_proxy.trust.audit_file import AuditFile, selecting, summary
from mcp_context_proxy.trust.decisions import ApprovalError, changes, decide, hash_of
from mcp_context_proxy.trust.fingerprints import State
from mcp_context_proxy.web import (
    LISTED_MOST,
    Api,
    BadRequestError,
    Given,
    Name,
    Operation,
    Order,
    Period,
    note_order,
)

SHOWN_DAYS: Final = 30.0
"""Days for which a change that was taken is shown."""

SHOWN: Final = 500
"""Definitions of all servers in one answer, those that wait first."""

NAMES: Final = 1_000
"""Definitions that are decided about at once."""

BY: Final = "page"
"""The way in which these operations decide, as it is recorded."""


class ChangedDefinition(Struct, frozen=True):
    """A definition that waits for a person, or that was taken lately without one."""

    server: str
    kind: str
    name: str
    state: str
    standing: str
    """The state and how it came about, in words."""
    waits: bool
    version: str
    """Version of the server's package; empty where it is not known."""
    time: float
    hash: str
    """The hash with which to approve it; empty if the differences are shortened."""
    differences: list[str]
    """Lines for a person: new sentences first."""


class ApprovalsAnswer(Struct, frozen=True):
    """Definitions that wait for a person, then those that changed lately."""

    definitions: list[ChangedDefinition]


class ToReject(Struct, forbid_unknown_fields=True, frozen=True):
    """Definitions to reject."""

    names: Annotated[list[Name], Meta(min_length=1, max_length=NAMES)]


class ToApprove(ToReject, forbid_unknown_fields=True, frozen=True):
    """Definitions to approve, with the hash of the text that was shown."""

    hash: Annotated[str, Meta(min_length=1, max_length=64)]


class Decided(Struct, frozen=True):
    """Number of definitions that were decided about."""

    decided: int


class ApprovalsApi(Api):
    """Operations on the approval of definitions."""

    def __init__(
        self,
        store: Store,
        approvals: Approvals,
        on_decided: Callable[[], None],
        audit: AuditLog | None = None,
    ) -> None:
        """Connect the parts; ``on_decided`` has the catalog follow."""
        self._store, self._approvals, self._on_decided = store, approvals, on_decided
        self._audit = audit

    @Operation(
        "GET",
        "/approvals",
        role=Role.VIEW,
        decides=True,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
    )
    async def _list_approvals(self, given: Given) -> ApprovalsAnswer:
        """Definitions that wait for a person, and those that changed lately."""
        return ApprovalsAnswer(await in_thread(self._changed))

    @Order(
        "/approvals/{server}/approve",
        problems=(HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE),
    )
    async def _approve(self, given: Given, body: ToApprove) -> Decided:
        """Approve definitions of a server as they were shown."""
        return await self._decide(given, body.names, State.APPROVED, expected=body.hash)

    @Order(
        "/approvals/{server}/reject",
        problems=(HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE),
    )
    async def _reject(self, given: Given, body: ToReject) -> Decided:
        """Withhold the present definitions of a server until they are approved."""
        return await self._decide(given, body.names, State.REJECTED)

    def _changed(self) -> list[ChangedDefinition]:
        found = [
            (server, change)
            for server in filter(reaches, self._store.approvals.servers())
            for change in changes(self._store, server, days=SHOWN_DAYS, most=SHOWN)
        ]
        found.sort(key=lambda pair: not pair[1].waits)
        return [
            ChangedDefinition(
                server=server,
                kind=change.row.kind,
                name=change.row.name,
                state=change.row.state,
                standing=change.standing,
                waits=change.waits,
                version=change.row.version,
                time=change.row.time,
                hash=hash_of([change.row]) if change.is_whole else "",
                differences=list(change.lines),
            )
            for server, change in found[:SHOWN]
        ]

    async def _decide(self, given: Given, names: list[str], state: State, **more: Any) -> Decided:
        server = given.path["server"]
        decision = partial(decide, self._store, server, names, state, by=BY, **more)
        try:
            rows = await in_thread(self._approvals.take, decision)
        except ApprovalError as error:
            raise BadRequestError(HTTPStatus.CONFLICT, f"{error}.") from None
        self._on_decided()
        if self._audit is not None:
            order = "approve" if state is State.APPROVED else "reject"
            named = rows[0].name if len(rows) == 1 else None
            note_order(self._audit, given, order, server=server, tool=named, definitions=str(len(rows)))
        return Decided(len(rows))


EntryKind = Annotated[str, Meta(pattern=f"^({'|'.join(KINDS)})$", description=f"One of {', '.join(KINDS)}.")]


class AuditWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Filters for entries of the audit."""

    since: Period = "1d"
    server: Name | None = None
    tool: Name | None = None
    kind: EntryKind | None = None
    limit: Annotated[int, Meta(ge=1, le=LISTED_MOST)] = 100


class AuditEntry(Struct, frozen=True):
    """One entry."""

    time: float
    """Seconds since 1970."""
    kind: str
    summary: str
    """The entry on one line for a person."""
    facts: dict[str, Any]
    """Everything else; docs/audit.md has the names."""


class AuditAnswer(Struct, frozen=True):
    """The latest entries of the audit, newest first."""

    enabled: bool
    entries: list[AuditEntry]


class AuditApi(Api):
    """Reading of the audit."""

    def __init__(self, log: AuditLog, file: AuditFile | None) -> None:
        """Read a file; without one, nothing is recorded."""
        self._log, self._file = log, file

    @Operation("GET", "/audit", problems=(HTTPStatus.SERVICE_UNAVAILABLE,), role=Role.VIEW)
    async def _list_audit(self, given: Given, wanted: AuditWanted) -> AuditAnswer:
        """The latest entries of the audit, newest first."""
        if self._file is None:
            return AuditAnswer(False, [])
        await self._log.flush()
        try:
            read = partial(_latest, self._file, wanted, given.principal)
            return AuditAnswer(True, await in_thread(read, abandon_on_cancel=True))
        except OSError as error:
            detail = f"The audit cannot be read: {error.strerror or error}."
            raise BadRequestError(HTTPStatus.SERVICE_UNAVAILABLE, detail) from None


FACTS: Final = frozenset({"time", "kind"})


def _latest(file: AuditFile, wanted: AuditWanted, reader: Principal) -> list[AuditEntry]:
    selected = selecting(time.time() - seconds_of(wanted.since), wanted.server, wanted.tool, wanted.kind)
    whole = reader.sees_all
    entries = (
        one for one in file.entries() if selected(one) and (whole or reader.reaches(one.get("server", "")))
    )
    latest = deque(entries, maxlen=wanted.limit)
    return [
        AuditEntry(
            time=float(entry["time"]),
            kind=entry["kind"],
            summary=summary(entry),
            facts={key: fact for key, fact in entry.items() if key not in FACTS},
        )
        for entry in reversed(latest)
    ]
