"""The answer of the meta tool ``recall``: interactions for a model, as text and as data."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from mcp_context_proxy.interactions.interaction import Recall, Recollection
from mcp_context_proxy.interactions.recorder import InteractionRecorder
from mcp_context_proxy.server.meta_arguments import RecallArguments
from mcp_context_proxy.threads import in_thread
from mcp_context_proxy.wire import envelope

SHOWN_CHARACTERS: Final = 500
"""Of one interaction in the text; the data has all of it."""


async def recalled(recorder: InteractionRecorder, wanted: RecallArguments) -> bytes:
    """The result of a call of ``recall``.

    Raises:
        StoreError: the store cannot be read.
    """
    await recorder.caught_up()
    search = partial(
        recorder.memory.semantic_search_interactions,
        wanted.query,
        wanted.agent_name,
        wanted.top_k,
        wanted.time_decay_factor,
        wanted.interaction_type,
    )
    found = await in_thread(search, abandon_on_cancel=True)
    data = {"query": wanted.query, **as_data(found)}
    return envelope.encode({"content": [{"type": "text", "text": _text(found)}], "structuredContent": data})


def as_data(found: Recall) -> dict[str, Any]:
    """As JSON has it, in all places where it is told."""
    return {
        "method": found.method,
        "results": [_item(one) for one in found.results],
        "known": found.known,
        "without_embedding": found.without_embedding,
        "note": found.note,
    }


def _item(one: Recollection) -> dict[str, Any]:
    interaction = one.interaction
    return {
        "id": interaction.id,
        "agent_name": interaction.agent_name,
        "interaction_type": interaction.interaction_type,
        "content": interaction.content,
        "time": interaction.time,
        "score": None if one.score is None else round(one.score, 4),
        "cosine": None if one.cosine is None else round(one.cosine, 4),
    }


def _text(found: Recall) -> str:
    lines = [found.note] if found.note else []
    for one in found.results:
        interaction = one.interaction
        when = datetime.fromtimestamp(interaction.time, UTC).strftime("%Y-%m-%d %H:%M UTC")
        score = "" if one.score is None else f", score {one.score:.2f}"
        said = interaction.content[:SHOWN_CHARACTERS]
        lines.append(f"- {when}, {interaction.interaction_type} of {interaction.agent_name}{score}: {said}")
    return "\n".join(lines) or "Nothing like that is remembered."
