"""Trust: approvals, danger classes, rights, and the record of everything that was done.

The danger class of a tool says what harm a call may do. Three witnesses are heard, and the strictest counts:
the configuration, the tool's own hints, and the verb in its name. Nothing loosens what another one says, so a
server that calls ``delete_everything`` read-only gains nothing by it. A tool without hints may write. The
class is decided once, where the catalog is made, and is a field of the tool from then on.

Here is the principal: the name behind a request, its rights, and the profile of its client, which limits it
further. The part of everything that a principal may reach is decided in one place, the catalog (`ACTING`). A
profile is the part that one kind of client gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from msgspec import Struct

from mcp_context_proxy.config.tables import Allow, ClientConfig, matches
from mcp_context_proxy.items import Document, Tool, ToolClass
from mcp_context_proxy.protocol.strangers import in_plain_letters
from mcp_context_proxy.system.later import pattern

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


ORDER: Final = (ToolClass.READ, ToolClass.WRITE, ToolClass.DESTRUCTIVE)
"""The classes, from the least harm to the most."""

_WORDS: Final[Mapping[ToolClass, str]] = {
    ToolClass.READ: """
        analyze browse calculate check compare convert count describe diff discover estimate evaluate explain
        extract fetch filter find forecast geocode get inspect is list load lookup navigate parse peek ping
        plan preview query read recall recommend render report resolve retrieve review scan scrape screenshot
        search select show snapshot status suggest summarize tail test tree validate verify view watch whoami
    """,
    ToolClass.WRITE: """
        add append apply approve archive assign attach cancel close commit copy create deploy disable edit
        enable fill fork grant import insert install invite lock mark merge mkdir modify move patch pay post
        publish push put rename reopen reply restart resume save schedule send set share start stop submit
        subscribe tag transfer transition type unarchive unassign unlock unsubscribe update upload upsert
        write
    """,
    ToolClass.DESTRUCTIVE: """
        clean cleanup clear del delete destroy discard drop erase evict kill overwrite prune purge remove
        reset revoke rm rmdir terminate truncate uninstall unlink wipe
    """,
}

VERBS: Final[Mapping[str, ToolClass]] = {
    verb: tool_class for tool_class, verbs in _WORDS.items() for verb in verbs.split()
}
"""Verbs in names of tools, each with its class. Those that read are there because they end the search for
another: ``get_delete_status`` deletes nothing. Verbs that say nothing, such as ``run``, are left out."""

NAME_CHARACTERS: Final = 256
"""Longest name that is read; no honest one is longer."""

_WORD: Final = pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]++|[^A-Za-z0-9_ -]++")
"""A word, or what stands between two names, such as a dot."""

_JOINS: Final = frozenset({"and", "or", "then"})
"""Words after which another verb counts as well, as in ``find_and_delete``."""


class Danger(Struct, frozen=True):
    """The class of a tool, and why it is that."""

    tool_class: ToolClass
    reason: str
    """End of a sentence that begins with the class, such as ``its name says 'delete'``."""


def danger_of(name: str, hinted: ToolClass | None, configured: ToolClass | None, place: str) -> Danger:
    """Return the strictest class that the witnesses give.

    Args:
        name: The server's own name for the tool.
        hinted: Class that its hints state; None if they state none.
        configured: Class in the configuration; None if it has none.
        place: Key, file and line of that setting.
    """
    if hinted is None:
        strictest = Danger(ToolClass.WRITE, "it does not say that it is read-only")
    else:
        hint = "readOnlyHint" if hinted is ToolClass.READ else "destructiveHint"
        strictest = Danger(hinted, f"it says so itself ({hint})")
    if len(name) > NAME_CHARACTERS:
        return Danger(ToolClass.DESTRUCTIVE, "its name is too long to be read")
    verb = verb_of(name)
    if verb is not None and is_stricter(VERBS[verb], strictest.tool_class):
        strictest = Danger(VERBS[verb], f"its name says {verb!r}")
    if configured is not None and is_stricter(configured, strictest.tool_class):
        strictest = Danger(configured, f"by {place}")
    return strictest


def is_stricter(one: ToolClass, other: ToolClass) -> bool:
    """Return whether a class stands for more harm than another."""
    return ORDER.index(one) > ORDER.index(other)


def verb_of(name: str) -> str | None:
    """Return the verb that a name begins with, or a stricter one that is joined to it; None without one.

    Words before the first verb are those of a product: ``jira_delete_issue``. An "and" or a sign such as a
    dot joins another: ``find_and_delete``, ``list.delete``. Letters count as they are drawn.
    """
    words = [_base(word.lower()) for word in _WORD.findall(in_plain_letters(name[:NAME_CHARACTERS]))]
    first = next((at for at, word in enumerate(words) if word in VERBS), None)
    if first is None:
        return None
    joined = (
        words[at]
        for at in range(first + 2, len(words))
        if words[at - 1] in _JOINS or not words[at - 1].isalpha()
    )
    verbs = [words[first], *(word for word in joined if word in VERBS)]
    strictness: dict[str, int] = {verb: ORDER.index(VERBS[verb]) for verb in verbs}
    return max(strictness, key=strictness.__getitem__)


def _base(word: str) -> str:
    """Return the verb that a word says of a tool, as in ``deletes_file``; other words as they are.

    Only of what destroys: ``lists`` and ``posts`` are things.
    """
    base = word.removesuffix("s")
    return base if VERBS.get(base) is ToolClass.DESTRUCTIVE else word


class Hints(Struct, frozen=True, gc=False):
    """Statements of a definition about its effects, which hosts decide by."""

    tool_class: ToolClass = ToolClass.WRITE
    interactive: bool = False
    """True if the user must be asked before each call."""

    def loosens(self, other: Hints) -> bool:
        """Return whether these promise less harm than the others, or ask less."""
        return is_stricter(other.tool_class, self.tool_class) or (other.interactive and not self.interactive)

    def __str__(self) -> str:
        return f"{self.tool_class} asks" if self.interactive else str(self.tool_class)

    @classmethod
    def read(cls, text: str) -> Hints:
        """Return the hints that a text from `str` stands for; raises `ValueError` if it stands for none."""
        name, _, asks = text.partition(" ")
        return cls(ToolClass(name), bool(asks))


NO_HINTS: Final = Hints()
