"""REST operations on interactions: post, find, delete. They are refused if nothing is remembered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import anyio
import msgspec
from msgspec import Meta, Struct

from mcp_context_proxy.context.session import QUERY_CHARACTERS
from mcp_context_proxy.interactions.memory import MESSAGE, Method, agent_named
from mcp_context_proxy.interactions.recorder import PATIENCE_SECONDS, InteractionRecorder
from mcp_context_proxy.server.rendering import recall_data
from mcp_context_proxy.store import DAY, Interaction, InteractionScope
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust.tokens import Role
from mcp_context_proxy.web.api import (
    Api,
    BadRequestError,
    Count,
    Given,
    Name,
    Operation,
    Words,
    answer_form,
)

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
"""``score`` is ``(cosine + 0.025 * BM25F) * boost * time_decay_factor ** days``; null in a list of the
latest. ``times`` is the number of interactions of this type with the same text."""

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

_PROBLEMS: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE)


class InteractionsApi(Api):
    """Operations on interactions."""

    def __init__(
        self, recorder: InteractionRecorder | None, clock: Callable[[], float] = time_of_day
    ) -> None:
        """Connect the parts; without a recorder every operation is refused."""
        self._recorder, self._clock = recorder, clock

    @Operation(
        "POST",
        "/interactions",
        "Remember something that was said or done.",
        body=InteractionPosted,
        answer=InteractionAnswer,
        problems=_PROBLEMS,
        role=Role.ADMIN,
        own_of_profile=True,
        names_agent=True,
    )
    async def _post_interaction(self, given: Given) -> dict[str, Any]:
        posted: InteractionPosted = given.body
        interaction = Interaction(
            agent_name=agent_named(posted.agent_name or given.agent),
            interaction_type=posted.interaction_type,
            content=posted.content,
            time=self._clock() if posted.time is None else posted.time,
            owner=given.principal.owner,
        )
        kept: dict[str, Any] = msgspec.to_builtins(await self._remembering().post(interaction))
        del kept["owner"]
        return kept

    @Operation(
        "GET",
        "/interactions",
        "Interactions that a query means, those long past counting less; or the latest.",
        query=InteractionsWanted,
        answer=InteractionsAnswer,
        problems=_PROBLEMS,
        role=Role.VIEW,
        own_of_profile=True,
    )
    async def _recall_interactions(self, given: Given) -> dict[str, Any]:
        wanted: InteractionsWanted = given.query
        owner = None if given.principal.may(Role.VIEW) else given.principal.owner
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

    @Operation(
        "DELETE",
        "/interactions",
        "Forget interactions for good.",
        query=InteractionsUnwanted,
        answer=Forgotten,
        problems=_PROBLEMS,
        role=Role.ADMIN,
    )
    async def _forget_interactions(self, given: Given) -> Forgotten:
        unwanted: InteractionsUnwanted = given.query
        agent = None if unwanted.agent_name is None else agent_named(unwanted.agent_name)
        days = unwanted.older_than_days
        before = self._clock() - days * DAY if days else None
        scope = InteractionScope(agent, unwanted.interaction_type, before)
        # Interactions of a moment ago may still wait to be written: they are forgotten as well.
        with anyio.move_on_after(PATIENCE_SECONDS):
            await self._remembering().drain()
        forget = self._remembering().memory.forget
        return Forgotten(await in_thread(forget, scope, abandon_on_cancel=True))

    @Operation(
        "DELETE",
        "/interactions/{interaction}",
        "Forget one interaction for good.",
        answer=Forgotten,
        problems=(*_PROBLEMS, HTTPStatus.NOT_FOUND),
        role=Role.ADMIN,
    )
    async def _forget_interaction(self, given: Given) -> Forgotten:
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
