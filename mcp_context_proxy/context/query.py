"""Where the query of a list request, and the session of any, come from. The only module that knows.

In order: the request's own ``_meta``, a context handle in it, the handshake-era session. A query in the
request is the one form that both eras and every cache along the way allow.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcp_context_proxy.context.handles import Handle, Handles
from mcp_context_proxy.context.session import Session, SessionContext
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import INVALID_PARAMS, Members, RequestError

QUERY_CHARACTERS = 4000
"""A longer query is cut: the model reads 256 word pieces of each sentence, and a person types fewer."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a list is asked for."""

    text: str = ""
    """To search for; empty when what the session was shown before says it all."""
    session: SessionContext | None = None
    """Whose items are listed too."""
    explicit: bool = True
    """Whether the request itself carries it. A session's query only ever adds to what is listed anyway."""


def query_of(
    params: Members, session: Session | None, handles: Handles, principal: str | None = None
) -> Query | None:
    """The query that a list request is to be filtered by; None for the base list.

    Raises:
        RequestError: the context handle is unknown or was forgotten.
    """
    text = envelope.text(era.meta_of(params).get(era.QUERY_KEY))
    handle = handle_of(params, handles, principal)
    if text is not None and text.strip():
        return Query(text[:QUERY_CHARACTERS], handle or session)
    if handle is not None:
        return Query("", handle)
    if session is not None and session.changed:
        return Query("", session, explicit=False)
    return None


def handle_of(params: Members, handles: Handles, principal: str | None = None) -> Handle | None:
    """The context that a request names in its ``_meta``; None when it names none.

    Raises:
        RequestError: it is unknown, was forgotten, or is somebody else's.
    """
    wanted = envelope.text(era.meta_of(params).get(era.CONTEXT_KEY))
    if wanted is None:
        return None
    handle = handles.get(wanted, principal)
    if handle is None:
        raise RequestError(INVALID_PARAMS, "unknown or expired context; call set_context for a new one")
    return handle
