"""Keeps what one server offers current: lists it on connecting, and again when the server says it changed.

What was listed last stays while the connection is down, so that a server that died empties no list.

Fetches the lists a server offers, page by page and entry by entry, within bounds.

Entries stay bytes. One odd entry never costs the rest of the list.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import anyio
import msgspec
from msgspec import Raw

from mcp_context_proxy.config import Limits
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.connect import Connected
from mcp_context_proxy.downstream.era_negotiation import CLIENT_INFO, Introduction
from mcp_context_proxy.downstream.link import Link, Outgoing
from mcp_context_proxy.errors import DownstreamError, RemoteError
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.text import clean

_entries = msgspec.json.Decoder(list[Raw]).decode


@dataclass(frozen=True, slots=True)
class Listed:
    """One list that servers offer."""

    method: str
    member: str
    """Of the result: where the entries are."""
    capability: str
    changed: str
    """The notification that says it changed."""


LISTS = {
    "tools": Listed("tools/list", "tools", "tools", "notifications/tools/list_changed"),
    "resources": Listed("resources/list", "resources", "resources", "notifications/resources/list_changed"),
    "templates": Listed(
        "resources/templates/list", "resourceTemplates", "resources", "notifications/resources/list_changed"
    ),
    "prompts": Listed("prompts/list", "prompts", "prompts", "notifications/prompts/list_changed"),
}


@dataclass(frozen=True, slots=True)
class ServerListing:
    """Everything one server listed: entries as they came, in its order."""

    tools: tuple[bytes, ...] = ()
    resources: tuple[bytes, ...] = ()
    templates: tuple[bytes, ...] = ()
    prompts: tuple[bytes, ...] = ()
    findings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What was left out of each list and why, for a person."""

    @property
    def remarks(self) -> Iterator[str]:
        """All of these."""
        return itertools.chain.from_iterable(self.findings.values())


async def fetch(
    link: Link, introduction: Introduction, limits: Limits, old: ServerListing, names: set[str]
) -> ServerListing:
    """Fetch the lists in `names` that the server offers; keep the rest of `old`.

    Raises:
        DownstreamError: a list cannot be had, or not all its pages in time.
    """
    listing = old
    for name in sorted(names, key=list(LISTS).index):
        if introduction.offers(LISTS[name].capability):
            entries, findings = await _fetch_all(link, LISTS[name], limits)
            listing = replace(listing, **{name: entries}, findings={**listing.findings, name: findings})
    return listing


async def _fetch_all(link: Link, listed: Listed, limits: Limits) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    outgoing = Outgoing(
        subject=listed.method, client_info=envelope.raw(CLIENT_INFO), capabilities=envelope.raw({})
    )
    give_up_at = anyio.current_time() + limits.list_seconds
    entries: list[bytes] = []
    seen: set[bytes] = set()
    size = 0
    params: Members = {}
    for _ in range(limits.pages):
        left = replace(outgoing, timeout=max(0.0, give_up_at - anyio.current_time()))
        try:
            page = envelope.members(await link.request(listed.method, params, left))
        except RemoteError as error:
            if error.code == envelope.METHOD_NOT_FOUND and not entries:
                # Declared the capability but not this list: templates are often missing.
                return (), ()
            raise
        found = _page_entries(page, listed.member)
        if found is None:
            return tuple(entries), (f"{listed.method}: stopped, a result has no list of {listed.member}",)
        for entry in found:
            size += len(entry)
            if size > limits.listing_bytes or len(entries) >= limits.tools_per_server:
                return tuple(entries), (f"{listed.method}: cut after {len(entries)} entries, {size:,} bytes",)
            entries.append(entry)
        cursor = page.get("nextCursor")
        if cursor is None or bytes(cursor) == b"null":
            return tuple(entries), ()
        if bytes(cursor) in seen:
            return tuple(entries), (
                f"{listed.method}: stopped, the server repeats the cursor {bytes(cursor)!r}",
            )
        seen.add(bytes(cursor))
        params = {"cursor": cursor}
    return tuple(entries), (f"{listed.method}: stopped after {limits.pages} pages",)


def _page_entries(page: Members, member: str) -> list[bytes] | None:
    """The entries of a page; None where it is none."""
    raw = page.get(member)
    if raw is None:
        return None
    try:
        return [bytes(entry) for entry in _entries(raw)]
    except msgspec.DecodeError:
        return None


logger = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""Change notices within this time lead to one new listing: a flapping server costs at most one a second."""

SETTLE_SECONDS = 0.05
"""How long a change notice waits for the others that usually come with it."""

RETRY_SECONDS, LONGEST_SECONDS = 2.0, 60.0
"""Before a list that could not be had is asked for again, twice as long each time."""

OTHERS_SECONDS = 5.0
"""For the lists beside the first of a server that was just connected: nobody waits longer for its tools."""

STALE = "stale"
"""Where the findings of a listing say that it is the last known one."""

_NOTICES = {kind.changed for kind in LISTS.values()}


class Lists:
    """The lists of one server."""

    def __init__(self, server: str, limits: Limits, redact: Redactor, on_change: Callable[[], None]) -> None:
        """Hold empty lists.

        Args:
            server: Its name, for messages.
            limits: Bounds on size and time.
            redact: Takes secrets out of what the server says of a list that it does not give.
            on_change: Called, without blocking, when a list was fetched anew.
        """
        self.current = ServerListing()
        self._server, self._limits, self._on_change = server, limits, on_change
        self._redact = redact
        self._stale: set[str] = set()
        self._missing: set[str] = set()
        """Lists that this connection never gave."""
        self._notice = anyio.Event()

    def configure(self, limits: Limits) -> None:
        """Fetch within other bounds from now on."""
        self._limits = limits

    def recall(self, listing: ServerListing) -> None:
        """Begin with what was listed another time."""
        self.current = listing

    def resume(self, connected: Connected) -> None:
        """Serve from what is known, and fetch everything anew in the background."""
        self.current = _with_header_maps(self.current, connected)
        self._mark_stale(set(LISTS))

    async def begin(self, connected: Connected) -> None:
        """Fetch all lists. One that cannot be had beside the first is missing, and asked for again later.

        Nothing of it shows before all is done: what is listed can be called.

        Raises:
            DownstreamError: the first list that the server offers cannot be had, or it is lost.
        """
        names = [name for name, kind in LISTS.items() if connected.introduction.offers(kind.capability)]
        found = await self._fetched(connected, set(names[:1]), self.current)
        self._missing = set(names[1:])
        causes = dict.fromkeys(names, f"not within {OTHERS_SECONDS:g} s")
        with anyio.move_on_after(OTHERS_SECONDS):
            for name in names[1:]:
                try:
                    found = await self._fetched(connected, {name}, found)
                except DownstreamError as error:
                    if connected.loss.happened.is_set():
                        raise
                    causes[name] = self._told(error)
        for name in self._missing:
            told = f"{LISTS[name].method} cannot be had: {causes[name]}"
            logger.warning("server %s: %s", self._server, told)
            found = _with_finding(found, name, told)
        self.current = found
        if self._missing:
            self._mark_stale(self._missing)

    async def _fetched(self, connected: Connected, names: set[str], known: ServerListing) -> ServerListing:
        """What is known, with some lists as they are now."""
        self._stale -= names
        fetched = await fetch(connected.link, connected.introduction, self._limits, known, names)
        self._missing -= names
        findings = {name: found for name, found in fetched.findings.items() if name != STALE}
        return _with_header_maps(replace(fetched, findings=findings), connected)

    def take_notice(self, method: str) -> bool:
        """Note that a list has changed; whether `method` is a notification that says so."""
        if method not in _NOTICES:
            return False
        self._mark_stale({name for name, kind in LISTS.items() if kind.changed == method})
        return True

    async def refresh(
        self, connected: Connected, on_fetched: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Fetch anew what has changed, at most once a second, until cancelled; what fails is tried again."""
        failures = 0
        while True:
            with anyio.move_on_after(_retry_seconds(failures)):
                await self._notice.wait()
            await anyio.sleep(SETTLE_SECONDS)
            self._notice, names = anyio.Event(), set(self._stale)
            failed = await self._fetch_each(connected, names)
            failures = failures + 1 if failed else 0
            if failed != names:
                self._on_change()
                if on_fetched is not None:
                    await on_fetched()
            await anyio.sleep(REFRESH_SECONDS)

    async def _fetch_each(self, connected: Connected, names: set[str]) -> set[str]:
        """Fetch lists anew; those that cannot be had are stale still."""
        failed = set()
        for name in sorted(names, key=list(LISTS).index):
            try:
                self.current = await self._fetched(connected, {name}, self.current)
            except DownstreamError as error:
                failed.add(name)
                if name not in self._missing:
                    self._mark_old(error)
        self._stale |= failed
        return failed

    def _mark_old(self, cause: DownstreamError) -> None:
        """What is known stays, and says that it is not what there is now."""
        told = f"its changed list cannot be had, the old one stays: {self._told(cause)}"
        if self.current.findings.get(STALE) != (clean(told),):
            logger.warning("server %s: %s", self._server, told)
            self.current = _with_finding(self.current, STALE, told)
            self._on_change()

    def _told(self, error: DownstreamError) -> str:
        return self._redact(str(error))

    def suspect_all(self) -> None:
        """Fetch all anew: something may have changed unseen."""
        self._mark_stale(set(LISTS))

    def _mark_stale(self, names: set[str]) -> None:
        self._stale |= names
        self._notice.set()


def _retry_seconds(failures: int) -> float:
    return min(RETRY_SECONDS * 2.0 ** (failures - 1), LONGEST_SECONDS) if failures else float("inf")


def _with_finding(known: ServerListing, name: str, told: str) -> ServerListing:
    """Of what is hidden in it the log tells; who looks at the server's state has no use for it."""
    return replace(known, findings={**known.findings, name: (clean(told),)})


def _with_header_maps(fetched: ServerListing, connected: Connected) -> ServerListing:
    """Tell a link that repeats arguments in headers which; withhold the tools whose headers are invalid."""
    maps = getattr(connected.link, "header_maps", None)
    if maps is None:
        return fetched
    from mcp_context_proxy.downstream.http_modern import header_map  # noqa: PLC0415 - imports the SDK

    maps.clear()
    usable, findings = [], list(fetched.findings.get("tools", ()))
    for definition in fetched.tools:
        name, mapping, problem = header_map(definition)
        if problem is None:
            usable.append(definition)
            maps[name] = mapping
        else:
            findings.append(f"tool {name!r} is withheld: {problem}")
    return replace(fetched, tools=tuple(usable), findings={**fetched.findings, "tools": tuple(findings)})
