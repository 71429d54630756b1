"""The client of one request, as the server sees it through any front."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.catalog.names import name_within
from mcp_context_proxy.config.host_profiles import name_room
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream.link import Ask, Notify
from mcp_context_proxy.items import Tool
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.trust.tokens import THE_USER, Principal


class ConnectedHost(Struct, frozen=True, kw_only=True):
    """A host with a connection of its own, as it and its bridge introduced themselves."""

    name: str
    version: str
    since: float
    """Seconds since 1970."""
    pid: int | None = None
    """Process that the host has started."""
    folder: str | None = None
    """Working folder of that process."""
    host_session: str | None = None
    """The host's own id of its session, which its hooks are told as well."""
    session: Session | None = None
    """Its session here; None in the modern era."""
    rights: Principal = THE_USER
    """Its rights."""


class Caller(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The client that made one request: its capabilities, and the ways to notify and ask it meanwhile."""

    era: Era
    session: Session | None
    """The session in the handshake era; None in the modern era, which has none."""
    capabilities: Raw | None
    """The capabilities that the client declared; None if it declared nothing."""
    client_info: Raw | None
    principal: str | None
    """The identity that the front knows, if any; nothing created by one principal is usable by another."""
    rights: Principal = THE_USER
    """Its rights."""
    notify: Notify
    """Sends a notification that belongs to this request."""
    ask: Ask
    """Makes a request of the client; a modern client cannot be asked so."""
    meta: Members | None = None
    """The ``_meta`` of the request, if the front has decoded it."""
    release: Callable[[], None]
    """Gives back the room of the request at the front: the limits of its server count it from now on."""

    @property
    def name_room(self) -> int:
        """The length of the longest name that the client has room for, by the host that it says it is."""
        try:
            said = envelope.members(self.client_info).get("name") if self.client_info is not None else None
        except msgspec.DecodeError:
            said = None
        return name_room(envelope.text(said) or "")

    def name_of(self, tool: Tool) -> str:
        """Return the name under which the client gets a tool: the longest that it has room for."""
        return name_within(tool, self.name_room) if tool.wider_names else tool.exposed_name

    @property
    def owner(self) -> str:
        """The key of things kept for the caller alone: of its session, or of its principal without one."""
        return f"principal {self.principal}" if self.session is None else self.session.id
