"""Lists of tools, resources, templates, prompts and skills of one server: fetched, kept current, and cached.

Entries stay bytes, and one odd entry never costs the rest of its list. The last listing stays while the
connection is down, so that the death of a server empties no list.
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

import anyio
import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.reload import connection_key
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream import HeaderMap, Link, Outgoing
from mcp_context_proxy.downstream.connections import CLIENT_INFO, Connected, Introduction
from mcp_context_proxy.errors import DownstreamError, RemoteError, StoreError
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import SKILLS_EXTENSION
from mcp_context_proxy.protocol.strangers import LINE_CHARACTERS, one_line, quoted, stranger_text
from mcp_context_proxy.results.result_store import nameless_file
from mcp_context_proxy.store.tables import ListingStore
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread, in_thread_if

if TYPE_CHECKING:
    from mcp_context_proxy.items import Encoded
else:
    # A stored listing is decoded as this.
    Encoded = bytes

logger = logging.getLogger(__name__)

REFRESH_SECONDS, ENTRIES_PER_SECOND = 1.0, 1_000
"""Least time between two fetches after change notices; longer with more entries, which take more work."""

SETTLE_SECONDS = 0.05
"""Time that a change notice waits for the others that usually come with it."""

RELISTED_SECONDS = 0.5
"""Time that a search waits for a list after its server has said that it changed: a model that has a server
offer more tools looks for them at once."""

CALLED_SECONDS = 2.0
"""The same for a call of a tool that is not known, also where the list is fetched after `REFRESH_SECONDS`."""

LOOKED_SECONDS = 10.0
"""Least time between two fetches of a list of which nobody has said that it changed."""

RETRY_SECONDS, LONGEST_SECONDS = 2.0, 60.0
"""Wait before a list whose fetch failed is fetched again; it doubles each time, up to the second value."""

OTHERS_SECONDS = 5.0
"""Time for the lists beside the first of a new connection, and for each later page of the first: nobody waits
longer for the tools."""

FAR_TOO_MANY = 4
"""Multiple of the entries that are taken from which on a page is not read; with fewer, its first ones are."""

CURSOR_BYTES = 8 * 1024
"""Largest cursor of a page. Those of a list are kept until all of it is fetched, and sent back."""

STALE = "stale"
"""Key among the findings of a listing that could not be fetched again after a change."""

UNVERIFIED = "unverified"
"""Key among the findings of a listing for files of skills that are not what their manifest says."""

UNVERIFIED_KEPT = 20
"""Such files that are named, until the server lists other manifests."""

STALE_SECONDS = 24 * 3600.0
"""Age from which a cached listing is fetched again in the background: programs are updated unseen."""

LONG_LIST = 500
"""Tools from which on a new list is read ahead. Fewer take less than a tenth of a second."""

FILED_BYTES = 256 * 1024
"""Size of a list of tools, some 170 of them, from which on it is in a file: each is one more that is open."""

SAVED_SECONDS = 3600.0
"""Age up to which an equal cached listing is not written again."""


class Listed(Struct, frozen=True):
    """One kind of list that servers offer."""

    method: str
    member: str
    """Member of the result that holds the entries."""
    capability: str
    """The capability that the server declares; it also names the notification of changes."""
    extension: str | None = None
    """The extension that it must declare as well."""

    def offered_by(self, introduction: Introduction) -> bool:
        """Return whether a server declared everything that this list needs."""
        declared = self.extension is None or introduction.extension(self.extension) is not None
        return declared and introduction.offers(self.capability)


LISTS = {
    "tools": Listed("tools/list", "tools", "tools"),
    "resources": Listed("resources/list", "resources", "resources"),
    "templates": Listed("resources/templates/list", "resourceTemplates", "resources"),
    "prompts": Listed("prompts/list", "prompts", "prompts"),
    "skills": Listed("skills/list", "skills", "resources", SKILLS_EXTENSION),
}

_CHANGED_BY = {
    f"notifications/{kind.capability}/list_changed": [
        name for name, other in LISTS.items() if other.capability == kind.capability
    ]
    for kind in LISTS.values()
}
"""Lists to be fetched again, by the notification that says so."""


class FiledTexts:
    """Texts in a file without a name, which only this process reads, and which the system deletes with it."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        """Write them; raises `OSError` if there is no room for them, or no folder for temporary files."""
        self._file = nameless_file(None, b"".join(texts))
        weakref.finalize(self, self._file.close)
        self._ends = array("Q", itertools.accumulate(map(len, texts), initial=0))
        self.hashes = array("q", map(hash, texts))
        self._digests = b"".join(map(_digest, texts))
        self._turn = threading.Lock()

    def read(self, at: int) -> bytes:
        """Read one of them, which takes some microseconds."""
        with self._turn:
            self._file.seek(self._ends[at])
            return self._file.read(self.size(at))

    def size(self, at: int) -> int:
        return self._ends[at + 1] - self._ends[at]

    def digest(self, at: int) -> bytes:
        """Return the digest by which one is compared with another."""
        return self._digests[DIGEST_BYTES * at : DIGEST_BYTES * (at + 1)]


class FiledText(Struct, frozen=True, eq=False, gc=False):
    """One of the texts in a file; equal to any text that says the same."""

    file: FiledTexts
    at: int

    def __bytes__(self) -> bytes:
        return self.file.read(self.at)

    def __len__(self) -> int:
        return self.file.size(self.at)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FiledText):
            return self.file.digest(self.at) == other.file.digest(other.at)
        return isinstance(other, bytes) and self.file.digest(self.at) == _digest(other)

    def __hash__(self) -> int:
        return self.file.hashes[self.at]


DIGEST_BYTES = 16


def _digest(text: bytes) -> bytes:
    return sha256(text).digest()[:DIGEST_BYTES]


def filed(texts: tuple[Encoded, ...]) -> tuple[Encoded, ...]:
    """Return the same texts, in a file where they are large and it can be written. Blocks."""
    if sum(map(len, texts)) < FILED_BYTES or isinstance(texts[0], FiledText):
        return texts
    try:
        file = FiledTexts([*map(bytes, texts)])
    except OSError as error:
        logger.debug("a list of %d tools stays in memory: %s", len(texts), error)
        return texts
    return tuple(FiledText(file, at) for at in range(len(texts)))


class ServerListing(Struct, frozen=True):
    """Everything one server listed: undecoded entries, in the order of the server."""

    tools: tuple[Encoded, ...] = ()
    resources: tuple[bytes, ...] = ()
    templates: tuple[bytes, ...] = ()
    prompts: tuple[bytes, ...] = ()
    skills: tuple[bytes, ...] = ()
    findings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Reasons why parts of a list are missing, by list, for a person."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version of the server's package that listed it, by list; without those that are not known."""

    @property
    def remarks(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self.findings.values())


class Lists:
    """The current listing of one server; fetched on connecting, and again when the server says it changed."""

    def __init__(
        self,
        server: str,
        limits: Limits,
        redact: Redactor,
        *,
        on_change: Callable[[], None],
        read_ahead: Callable[[tuple[Encoded, ...]], None],
        changed: set[Lists],
    ) -> None:
        """Start with an empty listing; `on_change` is called when one that differs is published.

        `read_ahead` takes a long list of tools apart, in a thread, before it counts. `changed` has those of
        all servers of which a list has changed and is not fetched yet.
        """
        self.current = self._published = ServerListing()
        self.limits = limits
        self._server, self._redact, self._on_change = server, redact, on_change
        self._stale: set[str] = set()
        """Lists to fetch again."""
        self._missing: set[str] = set()
        """Lists that this connection has not delivered at all."""
        self._partial: set[str] = set()
        """Lists of which a later page could not be fetched."""
        self._notice, self._read_ahead = anyio.Event(), read_ahead
        self._changed, self._changed_at, self._fetched_again = changed, 0.0, anyio.Event()
        self._looked_at = -LOOKED_SECONDS
        self._rests: bool | None = None
        """True while the next fetch is put off; None without a connection, when nobody waits for lists."""

    def publish(self) -> bool:
        """Report the listing if it differs from the last one reported; return whether it does."""
        if self.current is self._published:
            return False
        self._published = self.current
        self._on_change()
        return True

    async def fetch_first(self, connected: Connected) -> None:
        """Fetch all lists of a new connection.

        Only the first page of the first list must succeed; the rest is retried later. Nothing of the listing
        shows before all is done, so every tool that is listed can be called. Raises `DownstreamError` if the
        first page cannot be fetched, or the connection is lost.
        """
        names = [name for name, kind in LISTS.items() if kind.offered_by(connected.introduction)]
        found = self.current
        for name in names[:1]:
            found = await self._fetched(connected, name, found, OTHERS_SECONDS)
        self._missing = set(names[1:])
        causes = dict.fromkeys(names, f"not within {OTHERS_SECONDS:g} s")
        with anyio.move_on_after(OTHERS_SECONDS):
            for name in names[1:]:
                try:
                    found = await self._fetched(connected, name, found)
                except DownstreamError as error:
                    if connected.loss.happened.is_set():
                        raise
                    causes[name] = one_line(stranger_text(str(error), self._redact, LINE_CHARACTERS))
        for name in self._missing:
            message = f"{LISTS[name].method} cannot be fetched: {causes[name]}"
            logger.warning("server %s: %s", self._server, message)
            found = _with_finding(found, name, message)
        self._replace(found)
        if again := self._missing | self._partial:
            self.mark_stale(again)

    def take_change_notice(self, method: str) -> bool:
        """Note that a list has changed; return False if `method` is no such notification."""
        if (changed := _CHANGED_BY.get(method)) is not None:
            self.mark_stale(changed)
        return changed is not None

    def mark_stale(self, names: Iterable[str] = LISTS) -> None:
        """Fetch these lists again; all of them where a change may have gone unnoticed."""
        self._stale.update(names)
        self._notice.set()
        if self._rests is not None and self not in self._changed:
            self._changed.add(self)
            self._changed_at, self._fetched_again = anyio.current_time(), anyio.Event()

    def look_again(self) -> bool:
        """Fetch tools again that may have changed without a word; return False if that was done lately."""
        now = anyio.current_time()
        if self._rests is None or now - self._looked_at < LOOKED_SECONDS:
            return False
        self._looked_at = now
        self.mark_stale({"tools"})
        return True

    async def wait_fetched(self, *, called: bool) -> bool:
        """Wait for a moment until a list that has changed is fetched; return whether it is.

        Only a call of a tool that is not known waits for a fetch that is put off because the last one was a
        moment ago: a server may say again and again that it changes.
        """
        if called or not self._rests:
            seconds = CALLED_SECONDS if called else RELISTED_SECONDS
            with anyio.CancelScope(deadline=self._changed_at + seconds):
                await self._fetched_again.wait()
        return self._fetched_again.is_set()

    def _end_change(self) -> None:
        self._changed.discard(self)
        self._fetched_again.set()

    def note_unverified(self, message: str) -> None:
        """Note a file of a skill that does not match its manifest, and fetch the manifests again."""
        noted = self.current.findings.get(UNVERIFIED, ())
        if message not in noted and len(noted) < UNVERIFIED_KEPT:
            logger.warning("server %s: %s", self._server, message)
            self._replace(
                replace(self.current, findings={**self.current.findings, UNVERIFIED: (*noted, message)})
            )
            self.publish()
        self.mark_stale({"skills"})

    async def refresh(self, connected: Connected, on_fetched: Callable[[], Awaitable[None]]) -> None:
        """Fetch stale lists again, with pauses, until cancelled; retry failures with longer waits."""
        self._rests = False
        try:
            if self._notice.is_set():
                self.mark_stale(())
            await self._refresh(connected, on_fetched)
        finally:
            self._rests = None
            self._end_change()

    async def _refresh(self, connected: Connected, on_fetched: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            retry_seconds = min(RETRY_SECONDS * 2.0 ** (failures - 1), LONGEST_SECONDS)
            with anyio.move_on_after(retry_seconds if failures else float("inf")):
                await self._notice.wait()
            await anyio.sleep(SETTLE_SECONDS)
            self._notice, names, failed = anyio.Event(), set(self._stale), set[str]()
            for name in sorted(names, key=list(LISTS).index):
                try:
                    self._replace(await self._fetched(connected, name, self.current))
                except DownstreamError as error:
                    failed.add(name)
                    if name not in self._missing:
                        self._mark_outdated(error)
            failed |= names & self._partial
            self._stale |= failed
            failures = failures + 1 if failed else 0
            self.publish()
            if not self._notice.is_set():
                self._end_change()
            if failed != names:
                await on_fetched()
            self._rests = True
            entries = sum(len(getattr(self.current, name)) for name in names)
            await anyio.sleep(max(REFRESH_SECONDS, entries / ENTRIES_PER_SECOND))
            self._rests = False

    async def _fetched(
        self, connected: Connected, name: str, known: ServerListing, page_seconds: float = float("inf")
    ) -> ServerListing:
        """Fetch a list if the server offers it; return the known listing with this one replaced.

        Of a list with a later page that fails, the first pages are taken, unless more entries are known.
        """
        self._stale.discard(name)
        self._partial.discard(name)
        listing = known
        if LISTS[name].offered_by(connected.introduction):
            pages = _Pages(connected.link, LISTS[name], self.limits, page_seconds)
            try:
                cuts, kept = await pages.fetch(), False
            except DownstreamError as error:
                if not pages.entries or connected.loss.happened.is_set():
                    raise
                kept = len(pages.entries) < len(getattr(known, name))
                cuts = (self._partly(name, len(pages.entries), len(getattr(known, name)), error),)
            listing = replace(known, findings={**known.findings, name: cuts})
            if not kept:
                versions = {key: version for key, version in known.versions.items() if key != name}
                if connected.version:
                    versions[name] = connected.version
                listing = replace(listing, **{name: tuple(pages.entries)}, versions=versions)
        self._missing.discard(name)
        outdated = {STALE} if listing.skills == known.skills else {STALE, UNVERIFIED}
        findings = {name: found for name, found in listing.findings.items() if name not in outdated}
        listing = await _fit_headers(replace(listing, findings=findings), connected.link)
        if len(listing.tools) < LONG_LIST:
            return listing
        listing = replace(listing, tools=await in_thread(filed, listing.tools))
        if listing.tools != known.tools:
            # Once it counts, the next snapshot waits for it, and with it the lists of all other servers.
            await in_thread(self._read_ahead, listing.tools)
        return listing

    def _partly(self, name: str, fetched: int, known: int, cause: DownstreamError) -> str:
        """Note that a later page of a list failed; return the finding about it."""
        reason = one_line(stranger_text(str(cause), self._redact, LINE_CHARACTERS))
        kept = f"the last known {known:,} stay" if fetched < known else "the others are missing"
        message = f"{LISTS[name].method}: no more than {fetched:,} entries can be fetched, {kept}: {reason}"
        if self.current.findings.get(name) != (message,):
            logger.warning("server %s: %s", self._server, message)
        self._partial.add(name)
        return message

    def _mark_outdated(self, cause: DownstreamError) -> None:
        """Note in the listing that it is kept although it has changed."""
        reason = one_line(stranger_text(str(cause), self._redact, LINE_CHARACTERS))
        message = f"its changed list cannot be fetched, the old one stays: {reason}"
        if self.current.findings.get(STALE) != (message,):
            logger.warning("server %s: %s", self._server, message)
            self._replace(_with_finding(self.current, STALE, message))

    def _replace(self, listing: ServerListing) -> None:
        # What is equal stays the same object, a list of a listing that differs elsewhere too, so that nothing
        # that was derived from it is made again.
        if listing != self.current:
            known = {name: getattr(self.current, name) for name in LISTS}
            kept = {name: entries for name, entries in known.items() if entries == getattr(listing, name)}
            self.current = replace(listing, **kept)


def _with_finding(known: ServerListing, name: str, message: str) -> ServerListing:
    return replace(known, findings={**known.findings, name: (message,)})


async def _fit_headers(listing: ServerListing, link: Link) -> ServerListing:
    """Give the link the header map of each tool, and withhold the tools whose maps are invalid."""
    maps = link.header_maps
    if maps is None:
        return listing
    # In a thread: a list of the largest size is a second's work.
    found, usable, problems = await in_thread(_header_maps, listing.tools)
    maps.clear()
    maps |= found
    findings = (*listing.findings.get("tools", ()), *problems)
    return replace(listing, tools=usable, findings={**listing.findings, "tools": findings})


def _header_maps(
    tools: Iterable[Encoded],
) -> tuple[dict[str, HeaderMap], tuple[Encoded, ...], tuple[str, ...]]:
    """Return the header maps by tool, the tools whose maps are valid, and why the others are withheld."""
    from mcp_context_proxy.downstream.http_client import header_map  # noqa: PLC0415 - imports the HTTP client

    maps, usable, problems = dict[str, HeaderMap](), list[Encoded](), list[str]()
    for definition in tools:
        name, mapping, problem = header_map(bytes(definition))
        if problem is None:
            usable.append(definition)
            maps[name] = mapping
        else:
            problems.append(f"tool {quoted(name)} is withheld: {one_line(problem)}")
    return maps, tuple(usable), tuple(problems)


class _Pages:
    """A list that is fetched page by page; ``entries`` are those of the pages so far."""

    def __init__(self, link: Link, listed: Listed, limits: Limits, page_seconds: float) -> None:
        """Fetch nothing yet; each page after the first must come within ``page_seconds``."""
        self.entries: Sequence[bytes] = []
        self._link, self._listed, self._limits, self._page_seconds = link, listed, limits, page_seconds

    async def fetch(self) -> tuple[str, ...]:
        """Fetch the list; return the reason if some entries are missing.

        Raises `DownstreamError` if a page cannot be fetched.
        """
        listed, limits = self._listed, self._limits
        client_info = envelope.raw(CLIENT_INFO)
        give_up_at = anyio.current_time() + limits.list_seconds
        self.entries = entries = list[bytes]()
        seen, size = set[bytes](), 0
        params: Members = {}
        for _ in range(limits.pages):
            left = max(0.0, give_up_at - anyio.current_time())
            try:
                seconds = min(left, self._page_seconds) if seen else left
                outgoing = Outgoing(listed.method, seconds, client_info=client_info)
                result = await self._link.request(listed.method, params, outgoing)
            except RemoteError as error:
                if error.code == envelope.METHOD_NOT_FOUND and not entries:
                    # Declared the capability but not this list: templates are often missing.
                    return ()
                raise
            try:
                taken = result, listed.member, limits.tools_per_server
                page, found = await in_thread_if(len(result) > envelope.TAKEN_APART_BYTES, _page, *taken)
            except (msgspec.DecodeError, RecursionError):
                return (f"{listed.method}: stopped, a result has no list of {listed.member}",)
            if found is None:
                return (f"{listed.method}: stopped, a page has far too many entries",)
            for entry in found:
                size += len(entry)
                if size > limits.listing_bytes or len(entries) >= limits.tools_per_server:
                    return (f"{listed.method}: cut after {len(entries)} entries, {size:,} bytes",)
                entries.append(entry)
            cursor = page.get("nextCursor")
            if cursor is None or bytes(cursor) == b"null":
                return ()
            if len(cursor) > CURSOR_BYTES:
                return (f"{listed.method}: stopped, a cursor is over {CURSOR_BYTES:,} bytes",)
            if bytes(cursor) in seen:
                shown = quoted(bytes(cursor).decode("utf-8", "replace"))
                return (f"{listed.method}: stopped, the server repeats the cursor {shown}",)
            seen.add(bytes(cursor))
            params = {"cursor": cursor}
        return (f"{listed.method}: stopped after {limits.pages} pages",)


def _page(result: bytes, member: str, most: int) -> tuple[Members, list[bytes] | None]:
    """Return the members of a page, and the entries of its list; None instead if there are too many."""
    if envelope.holds_a_flood(result):
        return {}, None
    page = envelope.members(result)
    listed = bytes(page.get(member, b""))
    # Measured before it is taken apart: millions of tiny entries would take seconds and gigabytes.
    if envelope.holds_a_flood(listed, max(envelope.MOST_ENTRIES, FAR_TOO_MANY * most)):
        return page, None
    return page, [bytes(entry) for entry in envelope.elements(listed)]


class CachedListing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Introduction and listing of a server from its latest connection."""

    introduction: Introduction
    listing: ServerListing
    stale: bool = False
    """True if it is old enough to be fetched again."""
    started: bool = True
    """False if the server has not been started with these settings yet: others listed the same version."""


class ListingCache:
    """Cache of the listing of one server, in the store. All methods block.

    The key is a digest of the connection settings, so a server that is configured differently is another
    one. An entry that cannot be read counts as missing.
    """

    def __init__(
        self, config: ServerConfig, store: ListingStore, clock: Callable[[], float] = time_of_day
    ) -> None:
        self._config, self._store, self._clock = config, store, clock
        self._saved: tuple[float, bytes] | None = None
        """Time and digest of the latest writing."""

    @cached_property
    def _key(self) -> str:
        return connection_key(self._config)

    def load(self) -> CachedListing | None:
        try:
            found = self._store.get(self._key)
            if found is None:
                found = self._store.get(connection_key(self._config, of_0_1_0=True))
            if found is None:
                return None
            cached = msgspec.msgpack.decode(found[1], type=CachedListing)
        except (StoreError, msgspec.DecodeError) as error:
            logger.debug("server %s: nothing is cached: %s", self._config.name, error)
            return None
        age = self._clock() - found[0]
        # A clock that was set back makes no listing fresh.
        listing = replace(cached.listing, tools=filed(cached.listing.tools))
        return replace(cached, listing=listing, stale=not 0 <= age < STALE_SECONDS)

    def save(self, introduction: Introduction, listing: ServerListing, *, started: bool = True) -> None:
        """Cache the listing; if that fails, it is fetched again next time.

        A server that dies and comes back mostly lists the same: an entry that was written lately stays.
        """
        whole = replace(listing, tools=tuple(map(bytes, listing.tools)))
        cached = CachedListing(introduction, whole, started=started)
        now, encoded = self._clock(), msgspec.msgpack.encode(cached)
        digest = sha256(encoded).digest()
        if self._saved is not None and self._saved[1] == digest and 0 <= now - self._saved[0] < SAVED_SECONDS:
            return
        try:
            self._store.put(self._key, now, encoded)
            self._saved = now, digest
        except StoreError as error:
            logger.debug("server %s is not cached: %s", self._config.name, error)
