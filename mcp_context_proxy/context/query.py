"""Where the query of a list request comes from. The only module that knows.

In order: the request's own ``_meta``, a context handle in it, the handshake-era session. A query in the
request is the one form that both eras and every cache along the way allow.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcp_context_proxy.context.session import Handles, Session
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import INVALID_PARAMS, Members, RequestError

QUERY_CHARACTERS = 4000
"""A longer query is cut: the model reads 256 word pieces of each sentence, and a person types fewer."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a list is asked for."""

    text: str
    """To search for; empty when `shown` says it all."""
    shown: tuple[str, ...] = ()
    """Exposed names that were selected before."""
    explicit: bool = True
    """Whether the request itself carries it. A session's query only ever adds to what is listed anyway."""


def query_of(params: Members, session: Session | None, handles: Handles) -> Query | None:
    """The query that a list request is to be filtered by; None for the base list.

    Raises:
        RequestError: the context handle is unknown or was forgotten.
    """
    meta = era.meta_of(params)
    text = envelope.text(meta.get(era.QUERY_KEY))
    if text is not None and text.strip():
        return Query(text[:QUERY_CHARACTERS])
    context_id = envelope.text(meta.get(era.CONTEXT_KEY))
    if context_id is not None:
        handle = handles.get(context_id)
        if handle is None:
            raise RequestError(INVALID_PARAMS, "unknown or expired context; call set_context for a new one")
        return Query("", handle.shown)
    if session is not None and session.shown:
        return Query("", tuple(session.shown), explicit=False)
    return None
