"""Profiles: the part of everything that one kind of client gets, as a limit of its principal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from mcp_context_proxy.config.tables import STRICTNESS, Allow, ClientConfig, ExposeMode, matches
from mcp_context_proxy.items import Document, Tool, ToolClass

MARK: Final = "profile:"
"""Begins the name of a principal's profile in records; no token's name can have a colon."""


class Profile(Struct, frozen=True):
    """Part of everything that one kind of client gets; None leaves everything in."""

    name: str
    servers: tuple[str, ...] | None = None
    """Globs of servers."""
    tools: tuple[str, ...] | None = None
    """Globs of tools, as ``SERVER__TOOL``."""
    documents: tuple[str, ...] | None = None
    """Globs of the names of the user's own rules and references."""
    expose: ExposeMode | None = None
    presets: tuple[str, ...] = ()
    learns: bool = False
    allow: tuple[tuple[ToolClass, Allow], ...] = ()
    """Calls that are not simply made, by danger class."""

    def reaches(self, server: str) -> bool:
        """Return whether its clients get a server."""
        return _matches(self.servers, server)

    def has(self, tool: Tool) -> bool:
        """Return whether its clients get a tool."""
        allowed = self._allow(tool) != "never"
        return allowed and self.reaches(tool.server) and _matches(self.tools, f"{tool.server}__{tool.name}")

    def sees(self, document: Document) -> bool:
        """Return whether its clients get a rule or reference."""
        if document.server:
            return self.reaches(document.server)
        return self.documents is None or any(_matches(self.documents, one) for one in names_of(document))

    def asked_by(self, tool: Tool) -> str:
        """Return the setting by which a person is asked before a call; empty if none demands it."""
        asks = self._allow(tool) == "ask"
        return f"clients.{self.name}.classes.{tool.tool_class}" if asks else ""

    def _allow(self, tool: Tool) -> Allow:
        return next((allow for one, allow in self.allow if one is tool.tool_class), "always")


def profile_of(name: str, settings: ClientConfig) -> Profile:
    """Return the profile of a table of the configuration."""
    classes: Mapping[ToolClass, Allow] = {one: getattr(settings.classes, one) for one in ToolClass}
    return Profile(
        name,
        servers=settings.servers,
        tools=settings.tools,
        documents=settings.documents,
        expose=settings.expose,
        presets=settings.presets,
        learns=settings.learn,
        allow=tuple((one, allow) for one, allow in classes.items() if STRICTNESS[allow]),
    )


def profile_in(principal: str | None) -> str | None:
    """Return the profile in the name of a principal; None if it has none."""
    before, mark, name = (principal or "").rpartition(MARK)
    return name if mark and (not before or before.endswith(" ")) else None


def names_of(document: Document) -> Iterable[str]:
    """Return the names by which a profile can name a document."""
    return filter(None, (document.name, document.full_name))


def _matches(globs: tuple[str, ...] | None, name: str) -> bool:
    return globs is None or any(matches(glob, name) for glob in globs)
