"""Fetches the lists a server offers, page by page and entry by entry, within bounds.

Entries stay bytes. One odd entry never costs the rest of the list.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import anyio
import msgspec
from msgspec import Raw

from mcp_context_proxy.config import Limits
from mcp_context_proxy.downstream.link import Link, Outgoing
from mcp_context_proxy.downstream.negotiation import CLIENT_INFO, Introduction
from mcp_context_proxy.errors import RemoteError
from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import Members

logger = logging.getLogger(__name__)

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
class Listing:
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
    link: Link, introduction: Introduction, limits: Limits, old: Listing, names: set[str]
) -> Listing:
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
