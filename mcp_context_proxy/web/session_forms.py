"""What the API takes and answers about sessions: the forms, named as in the context layer."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mcp_context_proxy.context.options import Overrides
from mcp_context_proxy.items import Kind
from mcp_context_proxy.web.bounds import SELECTED_MOST, Name
from mcp_context_proxy.web.context_forms import Item, OptionChanges


class ItemName(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool by its exposed name, or by its own with its server; a rule or reference by its name."""

    type: Kind
    name: Name
    server: Name | None = None


class SessionChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """What is changed in a session: all of it, or nothing where a name is unknown."""

    add: Annotated[list[ItemName], Meta(max_length=SELECTED_MOST)] = []
    remove: Annotated[list[ItemName], Meta(max_length=SELECTED_MOST)] = []
    options: OptionChanges | None = None
    """Replaces what the session has changed so far."""


class RemovedItem(Struct, frozen=True):
    """What was removed from a session by hand."""

    type: Kind
    name: str


class SessionAnswer(Struct, frozen=True):
    """A session's context."""

    id: str
    kind: str
    created: float
    query: str | None
    items: list[Item]
    removed: list[RemovedItem]
    options: Overrides
    latest_request: str | None


class SessionsAnswer(Struct, frozen=True):
    """All sessions, oldest first."""

    sessions: list[SessionAnswer]
