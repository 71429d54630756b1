"""Cuts lists into pages, where that is configured. By default a list has one page: many hosts read no more.

A cursor is good for the list that it was given for, as it was: same entries, same query. When that has
changed in between, the next page would repeat or leave out entries, so the cursor is refused as stale.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

import msgspec
from msgspec import Raw

from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import INVALID_PARAMS, Members, RequestError

DIGEST_BYTES = 12
"""Enough to tell lists apart; nothing is protected by it."""

_entries = msgspec.json.Decoder(list[Raw]).decode


def without_cursor(params: Members) -> Members:
    """The params that ask for the whole list."""
    return {key: raw for key, raw in params.items() if key != "cursor"}


def page(result: bytes, member: str, cursor: str | None, size: int) -> bytes:
    """One page of a list result.

    Args:
        result: With the whole list.
        member: Of the result: where the entries are.
        cursor: That the client sent; None for the first page.
        size: Entries on a page.

    Raises:
        RequestError: the cursor is none of ours, or the list is no longer the one it was given for.
    """
    parts = envelope.members(result)
    entries = _entries(parts[member])
    digest = hashlib.sha256(bytes(parts[member])).digest()[:DIGEST_BYTES]
    start = 0 if cursor is None else _offset(cursor, digest)
    parts[member] = envelope.raw(entries[start : start + size])
    if start + size < len(entries):
        following = base64.urlsafe_b64encode(digest + (start + size).to_bytes(4, "big"))
        parts["nextCursor"] = envelope.raw(following.decode())
    return envelope.encode(parts)


def _offset(cursor: str, digest: bytes) -> int:
    try:
        data = base64.b64decode(cursor, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != DIGEST_BYTES + 4:
        raise RequestError(INVALID_PARAMS, "invalid cursor: it was not given by this list")
    if data[:DIGEST_BYTES] != digest:
        raise RequestError(INVALID_PARAMS, "stale cursor: the list has changed; list again from its start")
    return int.from_bytes(data[DIGEST_BYTES:], "big")
