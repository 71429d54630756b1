"""REST operation on the audit: what was called, refused, asked and changed, for administrators alone."""

from __future__ import annotations

import time
from collections import deque
from http import HTTPStatus
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from mcp_context_proxy.statistics import figures
from mcp_context_proxy.statistics.figures import seconds_of
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust.audit import KINDS, AuditLog, selecting, summary
from mcp_context_proxy.trust.audit_file import AuditFile
from mcp_context_proxy.trust.tokens import Role
from mcp_context_proxy.web.api import LISTED_MOST, Api, BadRequestError, Given, Name, Operation

Period = Annotated[str, Meta(pattern=figures.PATTERN, description="Hours or days, such as 24h or 30d.")]
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

    @Operation(
        "GET",
        "/audit",
        "The latest entries of the audit, newest first.",
        query=AuditWanted,
        answer=AuditAnswer,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
        role=Role.VIEW,
    )
    async def _list_audit(self, given: Given) -> AuditAnswer:
        wanted: AuditWanted = given.query
        if self._file is None:
            return AuditAnswer(False, [])
        await self._log.flush()
        try:
            return AuditAnswer(True, await in_thread(_latest, self._file, wanted, abandon_on_cancel=True))
        except OSError as error:
            detail = f"The audit cannot be read: {error.strerror or error}."
            raise BadRequestError(HTTPStatus.SERVICE_UNAVAILABLE, detail) from None


FACTS: Final = frozenset({"time", "kind"})


def _latest(file: AuditFile, wanted: AuditWanted) -> list[AuditEntry]:
    selected = selecting(time.time() - seconds_of(wanted.since), wanted.server, wanted.tool, wanted.kind)
    latest = deque(filter(selected, file.entries()), maxlen=wanted.limit)
    return [
        AuditEntry(
            time=float(entry["time"]),
            kind=entry["kind"],
            summary=summary(entry),
            facts={key: fact for key, fact in entry.items() if key not in FACTS},
        )
        for entry in reversed(latest)
    ]
