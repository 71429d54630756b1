"""REST operations on the records of what agents did: remembered interactions, and the audit."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import anyio
import msgspec
from msgspec import Meta, Struct

from mcp_context_proxy.context.session import QUERY_CHARACTERS
from mcp_context_proxy.interactions import MESSAGE, PATIENCE_SECONDS, InteractionRecorder, Method, agent_named
from mcp_context_proxy.server.rendering import recall_data
from mcp_context_proxy.statistics import seconds_of
from mcp_context_proxy.store.memory import Interaction, InteractionScope
from mcp_context_proxy.store.statistics import DAY
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import Principal, Role
from mcp_context_proxy.trust.audit import KINDS, AuditLog
from mcp_context_proxy.trust.audit_file import AuditFile, selecting, summary
from mcp_context_proxy.web import (
    LISTED_MOST,
    Api,
    BadRequestError,
    Count,
    Given,
    Name,
    Operation,
    Period,
    Words,
    answer_form,
)

InteractionType = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="At most 64 letters, digits, '_', '.' and '-'.",
    ),
]
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
    """Filters for a search of interactions."""

    query: Words | None = None
    """Text to search for; None for the latest interactions."""
    agent_name: Name | None = None
    interaction_type: InteractionType | None = None
    top_k: Count | None = None
    """By default ``interactions.top_k``: 10."""
    time_decay_factor: Decay | None = None
    """By default ``interactions.time_decay_factor``: 0.95, or that of each type."""


class InteractionsUnwanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Filters for interactions to forget."""

    older_than_days: Annotated[float, Meta(ge=0)]
    """0 for all."""
    agent_name: Name | None = None
    interaction_type: InteractionType | None = None


InteractionAnswer: Final = answer_form(
    "InteractionAnswer", "An interaction as it is kept.", Interaction, without={"owner"}
)

InteractionFound: Final = answer_form(
    "InteractionFound",
    "An interaction that was found.",
    Interaction,
    without={"owner"},
    score=float | None,
    cosine=float | None,
    times=int,
)
"""``score`` is as in `Recollection`; null in a list of the latest. ``times`` is the number of interactions of
this type with the same text."""

InteractionsAnswer: Final = answer_form(
    "InteractionsAnswer",
    "Interactions, best first; without a query, or where it has no embedding, the latest first.",
    query=str | None,
    method=Method,
    results=list[InteractionFound],  # type: ignore[valid-type]
    known=int,
    without_embedding=int,
    note=str | None,
)
"""``known`` is the number of interactions of that agent and type, ``without_embedding`` the number of those
among them that could be compared with the query by words only."""


class Forgotten(Struct, frozen=True):
    """Number of interactions that were forgotten."""

    forgotten: int


LARGEST_ID: Final = 2**63 - 1
"""Largest id of SQLite."""

_OF_INTERACTIONS: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE)


class InteractionsApi(Api):
    """Operations on interactions."""

    def __init__(self, recorder: InteractionRecorder | None) -> None:
        """Connect the parts; without a recorder every operation is refused."""
        self._recorder = recorder

    @Operation(
        "POST",
        "/interactions",
        answer=InteractionAnswer,
        problems=_OF_INTERACTIONS,
        role=Role.ADMIN,
        own_of_profile=True,
        names_agent=True,
    )
    async def _post_interaction(self, given: Given, body: InteractionPosted) -> dict[str, Any]:
        """Remember something that was said or done."""
        interaction = Interaction(
            agent_name=agent_named(body.agent_name or given.agent),
            interaction_type=body.interaction_type,
            content=body.content,
            time=time_of_day() if body.time is None else body.time,
            owner=given.principal.owner,
        )
        kept: dict[str, Any] = msgspec.to_builtins(await self._remembering().post(interaction))
        del kept["owner"]
        return kept

    @Operation(
        "GET",
        "/interactions",
        answer=InteractionsAnswer,
        problems=_OF_INTERACTIONS,
        role=Role.VIEW,
        own_of_profile=True,
    )
    async def _recall_interactions(self, given: Given, wanted: InteractionsWanted) -> dict[str, Any]:
        """Interactions that a query means, those long past counting less; or the latest."""
        owner = None if given.principal.sees_all else given.principal.owner
        memory = self._remembering().memory
        await self._remembering().wait_for_recent()
        if wanted.query is None:
            search = partial(memory.recent, wanted.agent_name, wanted.top_k, wanted.interaction_type, owner)
        else:
            search = partial(
                memory.semantic_search_interactions,
                wanted.query[:QUERY_CHARACTERS],
                wanted.agent_name,
                wanted.top_k,
                wanted.time_decay_factor,
                wanted.interaction_type,
                owner,
            )
        return {"query": wanted.query, **recall_data(await in_thread(search, abandon_on_cancel=True))}

    @Operation("DELETE", "/interactions", problems=_OF_INTERACTIONS, role=Role.ADMIN)
    async def _forget_interactions(self, given: Given, wanted: InteractionsUnwanted) -> Forgotten:
        """Forget interactions for good."""
        agent = None if wanted.agent_name is None else agent_named(wanted.agent_name)
        days = wanted.older_than_days
        before = time_of_day() - days * DAY if days else None
        scope = InteractionScope(agent, wanted.interaction_type, before)
        # Interactions of a moment ago may still wait to be written: they are forgotten as well.
        with anyio.move_on_after(PATIENCE_SECONDS):
            await self._remembering().drain()
        forget = self._remembering().memory.forget
        return Forgotten(await in_thread(forget, scope, abandon_on_cancel=True))

    @Operation(
        "DELETE",
        "/interactions/{interaction}",
        problems=(*_OF_INTERACTIONS, HTTPStatus.NOT_FOUND),
        role=Role.ADMIN,
    )
    async def _forget_interaction(self, given: Given) -> Forgotten:
        """Forget one interaction for good."""
        name, memory = given.path["interaction"], self._remembering().memory
        known = name.isascii() and name.isdecimal() and int(name) <= LARGEST_ID
        if not known or not await in_thread(memory.forget_one, int(name), abandon_on_cancel=True):
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"There is no interaction {name!r}, or not any more.")
        return Forgotten(1)

    def _remembering(self) -> InteractionRecorder:
        if self._recorder is None:
            off = "Interactions are not remembered; enabled = true under [interactions] switches that on."
            raise BadRequestError(HTTPStatus.FORBIDDEN, off)
        return self._recorder


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
