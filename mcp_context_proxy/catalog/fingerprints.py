"""What a definition says, in whichever order and with whichever spaces it says it.

A server may write the members of an object in another order each time; that is no change. Everything else
is, also what no parser shows: a definition that names a member twice goes by its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from mcp_context_proxy.items import Prompt, Resource, Tool

Defined = TypeVar("Defined", bound=Tool | Resource | Prompt)

_ESCAPED_COLONS: Final = (b"\\u003a", b"\\u003A")

_encode = msgspec.json.Encoder(order="deterministic").encode


def fingerprint(server: str, definition: bytes) -> str:
    """SHA-256 (hex) over the server and all members of a definition. Some 15 µs for 1.5 KB."""
    return hashlib.sha256(server.encode() + b"\0" + canonical(definition)).hexdigest()


def canonical(definition: bytes) -> bytes:
    """JSON without spaces, its members sorted; the bytes themselves where that would say less."""
    try:
        encoded = _encode(msgspec.json.decode(definition))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return definition
    # One colon for each member, and those in texts, unless they are escaped: fewer, and a member is gone.
    whole = encoded.count(b":") == definition.count(b":")
    return encoded if whole and not any(each in definition for each in _ESCAPED_COLONS) else definition


def steady(before: Mapping[str, Defined], now: Mapping[str, Defined]) -> dict[str, Defined]:
    """What there is now; each is the object that it was before where it says the same.

    So nothing is made, announced or refused anew because a server wrote it down in another order.
    """
    return {key: _steady(before.get(key), item) for key, item in now.items()}


def _steady(known: Defined | None, item: Defined) -> Defined:
    if known is None or known is item or known == item:
        return item
    if replace(known, definition=item.definition) != item:
        return item
    # A tool's fingerprint, which is the same, has said it already.
    same = isinstance(item, Tool) or canonical(known.definition) == canonical(item.definition)
    return known if same else item
