"""Trust: approvals, danger classes, rights, and the record of everything that was done.

Here is the principal: the name behind a request, its rights, and the profile of its client, which limits it
further. The part of everything that a principal may reach is decided in one place, the catalog (`ACTING`). A
profile is the part that one kind of client gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from msgspec import Struct

from mcp_context_proxy.config.tables import Allow, ClientConfig, matches
from mcp_context_proxy.items import Document, Tool, ToolClass

MARK: Final = "profile:"
"""Begins the name of a principal's profile in records; no token's name can have a colon."""


class Profile(Struct, frozen=True):
    """Part of everything that one kind of client gets."""

    name: str
    settings: ClientConfig = ClientConfig()

    def reaches(self, server: str) -> bool:
        return _matches(self.settings.servers, server)

    def has(self, tool: Tool) -> bool:
        allowed = self._allow(tool) != "never"
        full_name = f"{tool.server}__{tool.name}"
        return allowed and self.reaches(tool.server) and _matches(self.settings.tools, full_name)

    def sees(self, document: Document) -> bool:
        """Return whether its clients get a rule or reference."""
        if document.server:
            return self.reaches(document.server)
        return any(_matches(self.settings.documents, one) for one in names_of(document))

    def asked_by(self, tool: Tool) -> str:
        """Return the setting by which a person is asked before a call; empty if none demands it."""
        asks = self._allow(tool) == "ask"
        return f"clients.{self.name}.classes.{tool.tool_class}" if asks else ""

    def _allow(self, tool: Tool) -> Allow:
        allow: Allow = getattr(self.settings.classes, tool.tool_class)
        return allow


def profile_in(principal: str | None) -> str | None:
    before, mark, name = (principal or "").rpartition(MARK)
    return name if mark and (not before or before.endswith(" ")) else None


def person_in(principal: str | None) -> str | None:
    """Return the name of a principal without that of a profile; see `Principal.person`."""
    return (principal or "").partition(MARK)[0].rstrip() or None


PERSONS_SHARE: Final = 2
"""Divisor of a common bound for the share of one person: somebody else always finds the rest free."""


def names_of(document: Document) -> Iterable[str]:
    return filter(None, (document.name, document.full_name))


def _matches(globs: tuple[str, ...] | None, name: str) -> bool:
    return globs is None or any(matches(glob, name) for glob in globs)


class Role(IntEnum):
    """Extent of the rights of a principal over the proxy; each role includes those before it.

    It says nothing about the servers and tools that may be reached, and shows none beyond these.
    """

    METRICS = 0
    """Reads the metrics, and reaches nothing else."""
    USE = 1
    """Calls and searches, and sees what is its own."""
    VIEW = 2
    """Sees everybody's at the servers within reach: requests, statistics, logs, the audit, what waits for
    approval."""
    OPERATE = 3
    """Restarts servers, turns servers and tools on and off, approves definitions."""
    ADMIN = 4
    """Everything."""


class Reach(Struct, frozen=True):
    """Servers, and the classes of their tools, that may be reached."""

    servers: frozenset[str] | None = None
    """None for all."""
    classes: frozenset[ToolClass] | None = None
    """None for all."""

    def has(self, server: str) -> bool:
        return self.servers is None or server in self.servers

    def allows(self, tool: Tool) -> bool:
        return self.has(tool.server) and (self.classes is None or tool.tool_class in self.classes)


EVERYTHING: Final = (Reach(),)
NOTHING: Final = (Reach(frozenset()),)


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who makes requests, with their rights."""

    name: str | None
    """Name of the token, or hash of a person's issuer and subject; None for the host over standard streams,
    and where no token is required."""
    role: Role = Role.ADMIN
    reach: tuple[Reach, ...] = EVERYTHING
    """They may reach the servers and tools of each of these."""
    label: str | None = None
    """Who that is in words of the issuer, for the audit."""
    profile: Profile | None = None
    """Profile of their client, which limits them further."""
    projects: tuple[str, ...] | None = None
    """Those of the folders that documents are bound to which their client has open; None for all."""
    launched: str | None = field(default=None, compare=False)
    """Folder in which their host has started the proxy."""
    presets: tuple[str, ...] = field(default=(), compare=False)
    """Presets that their sessions begin with, after those of the profile."""

    limited: bool = field(init=False, compare=False)
    """True if there is anything that they may not reach. Fields, as the next: every call asks for them."""
    sees_all: bool = field(init=False, compare=False)
    """True if they may see everybody's words about any server: they have the role, and reach all servers."""
    is_admin: bool = field(init=False, compare=False)
    """True if they have every right over the proxy."""
    owner: str = field(init=False, compare=False)
    """Owner of their words, calls, pairs and counts: administrators share one, empty."""
    teaches: bool = field(init=False, compare=False)
    """True if their calls teach the ranking that all share."""
    all_presets: tuple[str, ...] = field(init=False, compare=False)
    """Presets that their sessions begin with, those of the profile first."""

    def __post_init__(self) -> None:
        profile, admin = self.profile, self.role >= Role.ADMIN
        whole = Reach() in self.reach and profile is None and self.projects is None
        object.__setattr__(self, "limited", not whole)
        object.__setattr__(self, "sees_all", self.role >= Role.VIEW and Reach() in self.reach)
        object.__setattr__(self, "is_admin", admin)
        object.__setattr__(self, "owner", "" if admin else self.name or "unnamed")
        object.__setattr__(self, "teaches", admin or (profile is not None and profile.settings.learn))
        own = () if profile is None else profile.settings.presets
        object.__setattr__(self, "all_presets", (*own, *self.presets))

    @property
    def person(self) -> str | None:
        """The name without that of a profile: whoever has clients of several is one person."""
        if self.profile is None or self.name is None:
            return self.name
        return self.name.removesuffix(MARK + self.profile.name).rstrip() or None

    def share(self, whole: int) -> int:
        """Return their share of a common bound; administrators may take all of it."""
        return whole if self.is_admin else max(whole // PERSONS_SHARE, 1)

    def may(self, role: Role) -> bool:
        return self.role >= role

    def reaches(self, server: str) -> bool:
        if not self.limited:
            return True
        reached = any(one.has(server) for one in self.reach)
        return reached and (self.profile is None or self.profile.reaches(server))

    def may_call(self, tool: Tool) -> bool:
        if not self.limited:
            return True
        allowed = any(one.allows(tool) for one in self.reach)
        return allowed and (self.profile is None or self.profile.has(tool))

    def sees(self, document: Document) -> bool:
        """Return whether they get a rule or reference: their profile has it, and it is for their project."""
        if document.server and not self.reaches(document.server):
            return False
        elsewhere = self.projects is not None and set(self.projects).isdisjoint(document.roots)
        if document.roots and elsewhere:
            return False
        return self.profile is None or self.profile.sees(document)

    def within(self, profile: Profile) -> Principal:
        """Return them as a client of a profile: their traces are apart from those of other profiles."""
        name = MARK + profile.name if self.name is None else f"{self.name} {MARK}{profile.name}"
        return replace(self, name=name, role=Role.USE, profile=profile)


THE_USER: Final = Principal(None)
"""The person whose proxy this is, through a host on the same machine."""

ACTING: Final[ContextVar[Principal]] = ContextVar("principal", default=THE_USER)
"""The principal for whom something is done; the proxy's own tasks see everything."""


def reaches(server: str) -> bool:
    """Return whether the principal for whom this is done may reach a server."""
    return ACTING.get().reaches(server)
