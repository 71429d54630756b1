"""Recollection: what the agents of one owner said and did before, as part of a context for a query.

The record of a request names the interactions; their text is in the answer alone, one line each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import anyio
from msgspec.structs import replace

from mcp_context_proxy.context.records import RecalledInteraction
from mcp_context_proxy.context.selection import SearchAnswer
from mcp_context_proxy.errors import ContextProxyError
from mcp_context_proxy.interactions.memory import MOST_FOUND, InteractionMemory, Recollection
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

SECONDS: Final = 1.0
"""Time for it: a context does not wait for a model to be opened, or a large memory to be read first."""

CHARACTERS: Final = 300
"""Length to which one interaction is cut."""

SPARE: Final = 5
"""Interactions that are looked for beside those wanted: some say the same as the query."""

_STEPS: Final = ((86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"))


class Recollector:
    """Adds interactions to contexts."""

    def __init__(self, memory: InteractionMemory, count_tokens: Callable[[str], int]) -> None:
        """Look into a memory; ``count_tokens`` estimates the tokens of a text, and blocks."""
        self._memory, self._count = memory, count_tokens

    async def complete(self, answer: SearchAnswer, owner: str) -> SearchAnswer:
        """Return an answer with the interactions of an owner that its query means, within its budget.

        Without them if they cannot be found in time: no request fails for its memory.
        """
        with anyio.move_on_after(SECONDS):
            try:
                return await in_thread(partial(self._complete, answer, owner), abandon_on_cancel=True)
            except ContextProxyError as error:
                logger.debug("no interactions in a context: %s", error)
        return answer

    def _complete(self, answer: SearchAnswer, owner: str) -> SearchAnswer:
        context = answer.context
        options, now = context.options, time_of_day()
        wanted = min(options.interactions_top_n + SPARE, MOST_FOUND)
        found = self._memory.semantic_search_interactions(context.query, top_k=wanted, owner=owner)
        if found.method == "recent":
            return answer  # nothing was compared with the query
        left = options.interaction_tokens
        if options.max_tokens is not None:
            left = min(left, options.max_tokens - context.tokens)
        chosen, lines = list[RecalledInteraction](), list[str]()
        for one in self._telling(found.results, context.query):
            line = _line(one, now)
            tokens = self._count(line)
            if len(chosen) < options.interactions_top_n and tokens <= left:
                left -= tokens
                chosen.append(_record(one, tokens))
                lines.append(line)
        return replace(answer, context=replace(context, interactions=tuple(chosen)), recalled=tuple(lines))

    def _telling(self, found: tuple[Recollection, ...], query: str) -> Iterator[Recollection]:
        """Yield those that tell more than the query itself, such as when it was searched for before."""
        asked = _words(query)
        return (one for one in found if _words(one.interaction.content) != asked)


def _words(text: str) -> str:
    return " ".join(text.casefold().split())


def _record(one: Recollection, tokens: int) -> RecalledInteraction:
    said = one.interaction
    score = 0.0 if one.score is None else round(one.score, 4)
    return RecalledInteraction(said.id, said.agent_name, said.interaction_type, said.time, score, tokens)


def _line(one: Recollection, now: float) -> str:
    """Return an interaction on one line, so that no content can pass for another one."""
    said = one.interaction
    times = "" if one.times == 1 else f", {one.times:,} times"
    content = one_line(said.content, CHARACTERS)
    return f"- {age(said.time, now)}, {said.interaction_type} of {said.agent_name}{times}: {content}"


def age(time: float, now: float) -> str:
    """Return how long ago a time was, as in ``3 days ago``."""
    for seconds, unit in _STEPS:
        number = int((now - time) / seconds)
        if number:
            return f"{number:,} {unit}{'' if number == 1 else 's'} ago"
    return "just now"
