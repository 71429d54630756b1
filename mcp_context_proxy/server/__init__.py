"""The one MCP server that hosts see: lists, meta tools, forwarding, for both protocol eras.

Here is the caller of a request: its client, and the profile that it has, with the folders of its open
projects. A client chooses the name by which it introduces itself, so a profile found by that name is a
convenience; a profile that a token is bound to is a protection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import anyio
import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.catalog.names import name_within
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.host_profiles import name_room
from mcp_context_proxy.config.tables import ClientConfig, matches
from mcp_context_proxy.context.session import Given, Session
from mcp_context_proxy.downstream import Ask, Notify
from mcp_context_proxy.items import Tool
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_REQUEST, RequestError
from mcp_context_proxy.protocol.eras import Era, client_capabilities
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system.threads import keep_latest
from mcp_context_proxy.trust import ACTING, THE_USER, Principal, Profile

logger = logging.getLogger(__name__)


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
    meta: eras.Meta = eras.NO_META
    """The ``_meta`` of the request."""
    given: Given | None = None
    """Documents that a connection without a session was given; None where its requests have no connection."""
    release: Callable[[], None] | None = None
    """Gives back the room of the request at the front: the limits of its server count it from now on."""

    @property
    def name_room(self) -> int:
        """The length of the longest name that the client has room for, by the host that it says it is."""
        return name_room(eras.name_of(self.client_info) or "")

    def name_of(self, tool: Tool) -> str:
        """Return the name under which the client gets a tool: the longest that it has room for."""
        return name_within(tool, self.name_room) if tool.wider_names else tool.exposed_name

    def without_page(self) -> Caller:
        """Return a caller that shows no pages, as its host shows none for a call of this kind.

        A server that believes in a page may leave the work to it, and only tell the model that it is shown.
        """
        declared = eras.without_extension(envelope.members(self.capabilities or b"{}"), eras.APPS_EXTENSION)
        return msgspec.structs.replace(self, capabilities=envelope.raw(declared))

    @property
    def owner(self) -> str:
        """The key of things kept for the caller alone: of its session, or of its principal without one."""
        return f"principal {self.principal}" if self.session is None else self.session.id


ROOTS: Final = "roots/list"

ROOTS_SECONDS: Final = 3.0
"""Time for a client to name its roots; then the folder counts in which it has started the proxy."""

MOST_ROOTS: Final = 50
"""Roots of one client that count."""

NAMES_KNOWN: Final = 200
"""Clients whose profile is remembered; finding it anew takes some microseconds."""

NAME_CHARACTERS: Final = 200
"""Characters of a name that is remembered so, or shown; honest ones have some dozens."""

FILES: Final = "file"


class UnknownProfileError(Exception):
    """There is no profile of a name, or a client may not have it; the message is for a person."""


class Profiles:
    """The profiles of a configuration, and the clients that have them."""

    def __init__(self, config: Config) -> None:
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Follow a changed configuration, from the next request of each client on."""
        self._tables: Mapping[str, ClientConfig] = config.clients
        self._profiles = {name: Profile(name, table) for name, table in config.clients.items()}
        self._bound = {token: name for name, table in config.clients.items() for token in table.tokens}
        self.roots = tuple(dict.fromkeys(root for folder in config.documents for root in folder.roots))
        """Folders of projects that documents are bound to."""
        self._found: dict[tuple[object, ...], Principal] = {}
        self.active = bool(self._profiles or self.roots)
        """Whether clients differ at all."""

    def named(self, principal: Principal, name: str) -> Principal:
        """Return a principal as a client of a profile; also of one that does not exist, which has nothing.

        Its requests are then refused with a sentence, rather than served without the limits it counts on.
        """
        known = self._profiles.get(name)
        if known is None:
            logger.warning("%s", _unknown(name))
        return principal.within(known or _nothing(name))

    def again(self, name: str | None) -> Principal:
        """Return who acts now, as a client of the profile that a past request had; None for none."""
        acting = ACTING.get()
        return acting if name is None or acting.profile is not None else self.named(acting, name)

    def started(self, profile: str | None, presets: tuple[str, ...], folder: str | None) -> Principal:
        """Return the principal of a host that has started the proxy, or its bridge, with such options."""
        if profile is None and not presets and folder is None:
            return THE_USER
        principal = replace(THE_USER, presets=presets, launched=folder)
        return principal if profile is None else self.named(principal, profile)

    def of_request(self, principal: Principal, wanted: str | None, agent: str | None) -> Principal:
        """Return the principal of an HTTP request, by its token, its address, or its agent.

        Raises `UnknownProfileError` if there is no such profile, or its token is bound to another.
        """
        bound = None if principal.name is None else self._bound.get(principal.name)
        if wanted is not None and wanted not in self._profiles:
            raise UnknownProfileError(_unknown(wanted))
        if bound is not None and wanted not in (None, bound):
            raise UnknownProfileError(f"this token is bound to the profile {bound!r}")
        name = bound or wanted or self._matching("agent", agent)
        return principal if name is None else principal.within(self._profiles[name])

    def of_client(self, principal: Principal, client_info: Raw | None) -> Principal:
        """Return the principal of a client, by the name under which it introduces itself."""
        if not self.active:
            return principal
        said = eras.name_of(client_info) or ""
        if len(said) > NAME_CHARACTERS:
            return self._of(principal, said)
        key = principal, principal.launched, principal.presets, said
        known = self._found.get(key)
        if known is None:
            known = keep_latest(self._found, key, self._of(principal, said), NAMES_KNOWN)
        return known

    async def admit(self, caller: Caller) -> Caller:
        """Return a caller with the limits of its profile and of its projects; its session keeps them.

        Raises `RequestError` if its profile does not exist.
        """
        rights = self.of_client(caller.rights, caller.client_info)
        if rights.profile is not None and rights.profile.name not in self._profiles:
            raise RequestError(INVALID_REQUEST, _unknown(rights.profile.name))
        session = caller.session
        if self.roots and session is not None:
            if session.folders is None:
                session.folders = await _roots(caller)
            if session.folders:
                rights = replace(rights, projects=self._projects(session.folders))
        if session is not None and session.rights != rights:
            session.rights = rights
            session.principal = rights.name if rights.profile is not None else session.principal
        if rights == caller.rights:
            return caller
        principal = caller.principal if rights.profile is None else rights.name
        return msgspec.structs.replace(caller, rights=rights, principal=principal)

    def of_prompt(self, host: str | None, folder: str | None) -> Principal:
        """Return the principal of a prompt in a host that is not connected, by the name of the host."""
        info = None if host is None else envelope.raw({"name": host})
        return self.of_client(replace(THE_USER, launched=folder), info)

    def in_folder(self, principal: Principal, folder: str) -> Principal:
        """Return a principal with the documents of the projects around a folder, of those that it has."""
        if not self.roots:
            return principal
        around = self._projects((folder,))
        if principal.projects is not None:
            around = tuple(one for one in around if one in principal.projects)
        return replace(principal, projects=around)

    def _of(self, principal: Principal, said: str) -> Principal:
        if principal.profile is not None:
            name = principal.profile.name
            principal = replace(principal, profile=self._profiles.get(name) or _nothing(name))
        elif (matching := self._matching("client", said)) is not None:
            principal = principal.within(self._profiles[matching])
        if self.roots:
            folders = () if principal.launched is None else (principal.launched,)
            principal = replace(principal, projects=self._projects(folders))
        return principal

    def _projects(self, folders: Iterable[str]) -> tuple[str, ...]:
        """Return those of the folders that documents are bound to which are, or contain, some folders."""
        return tuple(
            str(root) for root in self.roots if any(Path(one).is_relative_to(root) for one in folders)
        )

    def _matching(self, key: str, name: str | None) -> str | None:
        """Return the first profile with a glob that matches a name, in upper or lower case."""
        if not name:
            return None
        folded = name.casefold()
        for profile, table in self._tables.items():
            if any(matches(glob.casefold(), folded) for glob in getattr(table, key)):
                return profile
        return None


def _nothing(name: str) -> Profile:
    """Return a profile whose clients get nothing."""
    return Profile(name, ClientConfig(servers=(), tools=(), documents=()))


def _unknown(name: str) -> str:
    shown = one_line(name, NAME_CHARACTERS)
    return f"there is no profile {shown!r}: a table [clients.{shown}] in the configuration would define it"


async def _roots(caller: Caller) -> tuple[str, ...]:
    """Return the folders that a client says it has open; none if it does not say, or has none."""
    if caller.era is not Era.HANDSHAKE or "roots" not in client_capabilities(caller.capabilities):
        return ()
    answer = b"{}"
    with anyio.move_on_after(ROOTS_SECONDS):
        try:
            answer = await caller.ask(ROOTS, {})
        except RequestError as error:
            logger.debug("a client did not name its roots: %s", error)
    return tuple(_folders(answer))


def _folders(answer: bytes) -> Iterator[str]:
    try:
        roots = envelope.value(answer).get("roots", [])
        uris = [root["uri"] for root in roots[:MOST_ROOTS]]
    except (AttributeError, KeyError, TypeError, ValueError):
        return
    for uri in uris:
        try:
            parts = urlsplit(uri) if isinstance(uri, str) else None
        except ValueError:
            continue
        if parts is not None and parts.scheme == FILES:
            yield unquote(parts.path)
