"""Keeps a context within what it may cost: what does not fit is named, never dropped in silence.

What the session has stays, because somebody wanted it; of the rest the best comes first, and what is too dear
makes room for what is cheaper.
"""

from __future__ import annotations

from mcp_context_proxy.context.request import SESSION_MODES, ContextItem, Draft


def keep(draft: Draft) -> None:
    """Move what does not fit into `ContextOptions.max_tokens` from the items to those dropped."""
    if draft.options.max_tokens is None:
        return
    left = draft.options.max_tokens
    left -= sum(item.tokens for item in draft.items.values() if item.include_mode in SESSION_MODES)
    selected = [item for item in draft.items.values() if item.include_mode not in SESSION_MODES]
    dropped: list[ContextItem] = []
    for item in sorted(selected, key=lambda item: -(item.score or 0.0)):
        if item.tokens <= left:
            left -= item.tokens
        else:
            dropped.append(item)
            del draft.items[item.type, item.name]
    draft.dropped = tuple(dropped)
