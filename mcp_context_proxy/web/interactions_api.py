"""The operations on interactions: posted, found again, forgotten. Where they are not remembered, refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar

import anyio
import msgspec

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.context.query import QUERY_CHARACTERS
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.interactions.decay import SECONDS_A_DAY
from mcp_context_proxy.interactions.interaction import Interaction, agent_named
from mcp_context_proxy.interactions.recorder import PATIENCE_SECONDS, InteractionRecorder
from mcp_context_proxy.server import recall
from mcp_context_proxy.store import InteractionScope
from mcp_context_proxy.threads import in_thread
from mcp_context_proxy.web import interaction_forms as forms
from mcp_context_proxy.web.operation import WITH_BODY, Given, Operation, RefusedError

T = TypeVar("T")

LARGEST_ID: Final = 2**63 - 1
"""That SQLite can give."""

_OFF: Final = "Interactions are not remembered; enabled = true under [interactions] switches that on."

_PROBLEMS: Final = (
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.SERVICE_UNAVAILABLE,
)


class InteractionsApi:
    """What the operations do."""

    def __init__(
        self, recorder: InteractionRecorder | None, clock: Callable[[], float] = time_of_day
    ) -> None:
        """Prepare to answer.

        Args:
            recorder: Takes interactions in; None where they are not remembered.
            clock: Seconds since 1970.
        """
        self._recorder, self._clock = recorder, clock

    def operations(self) -> tuple[Operation, ...]:
        """Everything that can be asked."""
        return (
            Operation(
                method="POST",
                path="/interactions",
                name="postInteraction",
                summary="Remember something that was said or done.",
                handler=self._post,
                body=forms.InteractionPosted,
                answer=forms.InteractionAnswer,
                names_agent=True,
                problems=(*_PROBLEMS, *WITH_BODY),
            ),
            Operation(
                method="GET",
                path="/interactions",
                name="recallInteractions",
                summary="Interactions that are like a query, those long past counting less; or the latest.",
                handler=self._recall,
                query=forms.InteractionsWanted,
                answer=forms.InteractionsAnswer,
                problems=_PROBLEMS,
            ),
            Operation(
                method="DELETE",
                path="/interactions",
                name="forgetInteractions",
                summary="Forget interactions for good.",
                handler=self._forget,
                query=forms.InteractionsUnwanted,
                answer=forms.Forgotten,
                problems=_PROBLEMS,
            ),
            Operation(
                method="DELETE",
                path="/interactions/{interaction}",
                name="forgetInteraction",
                summary="Forget one interaction for good.",
                handler=self._forget_one,
                answer=forms.Forgotten,
                problems=(*_PROBLEMS, HTTPStatus.NOT_FOUND),
            ),
        )

    async def _post(self, given: Given) -> forms.InteractionAnswer:
        posted: forms.InteractionPosted = given.body
        interaction = Interaction(
            agent_name=agent_named(posted.agent_name or given.agent),
            interaction_type=posted.interaction_type,
            content=posted.content,
            time=self._clock() if posted.time is None else posted.time,
        )
        try:
            kept = await self._remembering().post(interaction)
        except StoreError as error:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"It was not kept: {error}.") from None
        return msgspec.convert(kept, forms.InteractionAnswer, from_attributes=True)

    async def _recall(self, given: Given) -> forms.InteractionsAnswer:
        wanted: forms.InteractionsWanted = given.query
        memory = self._remembering().memory
        await self._remembering().caught_up()
        if wanted.query is None:
            search = partial(memory.recent, wanted.agent_name, wanted.top_k, wanted.interaction_type)
        else:
            search = partial(
                memory.semantic_search_interactions,
                wanted.query[:QUERY_CHARACTERS],
                wanted.agent_name,
                wanted.top_k,
                wanted.time_decay_factor,
                wanted.interaction_type,
            )
        found = recall.as_data(await _in_thread(search))
        return msgspec.convert({"query": wanted.query, **found}, forms.InteractionsAnswer)

    async def _forget(self, given: Given) -> forms.Forgotten:
        unwanted: forms.InteractionsUnwanted = given.query
        agent = None if unwanted.agent_name is None else agent_named(unwanted.agent_name)
        days = unwanted.older_than_days
        before = self._clock() - days * SECONDS_A_DAY if days else None
        scope = InteractionScope(agent, unwanted.interaction_type, before)
        # What was searched a moment ago may still wait to be written: it is to be forgotten as well.
        with anyio.move_on_after(PATIENCE_SECONDS):
            await self._remembering().settled()
        return forms.Forgotten(await _in_thread(partial(self._remembering().memory.forget, scope)))

    async def _forget_one(self, given: Given) -> forms.Forgotten:
        name, memory = given.path["interaction"], self._remembering().memory
        known = name.isascii() and name.isdecimal() and int(name) <= LARGEST_ID
        if not known or not await _in_thread(partial(memory.forget_one, int(name))):
            raise RefusedError(HTTPStatus.NOT_FOUND, f"There is no interaction {name!r}, or not any more.")
        return forms.Forgotten(1)

    def _remembering(self) -> InteractionRecorder:
        if self._recorder is None:
            raise RefusedError(HTTPStatus.FORBIDDEN, _OFF)
        return self._recorder


async def _in_thread(function: Callable[[], T]) -> T:
    try:
        return await in_thread(function, abandon_on_cancel=True)
    except StoreError as error:
        raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"The store cannot be used: {error}.") from None
