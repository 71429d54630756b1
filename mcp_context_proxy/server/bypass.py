"""Leads the payload of a request around the SDK, which would parse and copy it while everybody waits.

What the SDK is shown of a request is what it decides by; where it writes the answer, a stand-in of a few
bytes takes the place of the result. Both payloads pass as the bytes that they are.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import Members, RequestId
from mcp_context_proxy.wire.events import on_one_line

SCOPE_KEY = "mcp-context-proxy/bypass"
"""Of an ASGI scope, under which a request keeps its `Bypass`."""

ROUTED_BY = ("name", "uri")
"""Params that the SDK compares with headers."""

_SECRET = secrets.token_hex(16)
"""Known to nobody, so that nothing that is relayed can look like the stand-in."""

_STAND_IN = envelope.encode({_SECRET: 0})


class Bypass:
    """The payloads of one request."""

    __slots__ = ("_payload", "params")

    def __init__(self, params: Members) -> None:
        self.params = params
        """As the client sent them."""
        self._payload: bytes | None = None

    def leave(self, payload: bytes) -> dict[str, Any]:
        """Keep an encoded payload for `put_back`; what the SDK is to write meanwhile."""
        self._payload = payload
        return {_SECRET: 0}

    def put_back(self, written: bytes) -> bytes:
        """What the SDK wrote, with the payload that was left, on one line, where the stand-in is."""
        if self._payload is None or (at := written.find(_STAND_IN)) < 0:
            return written
        payload, self._payload = self._payload, None
        return b"".join((written[:at], on_one_line(payload), written[at + len(_STAND_IN) :]))


def shown(request_id: RequestId, method: str, params: Members) -> bytes:
    """Of a request that the gateway answers, what the SDK decides by: era, names, and nothing large."""
    kept: dict[str, Any] = {key: _short(params[key]) for key in ROUTED_BY if key in params}
    if "_meta" in params:
        kept["_meta"] = _meta(params["_meta"])
    return envelope.request(request_id, method, kept)


def _meta(raw: Raw) -> Mapping[str, Any] | None:
    if not envelope.starts_with(raw, b"{"):
        return None
    meta = era.meta_of({"_meta": raw})
    kept: dict[str, Any] = {}
    if era.VERSION_KEY in meta:
        kept[era.VERSION_KEY] = _short(meta[era.VERSION_KEY])
    if era.CLIENT_CAPABILITIES_KEY in meta:
        kept[era.CLIENT_CAPABILITIES_KEY] = {}
    return kept


def _short(raw: Raw) -> Raw | int:
    """A string, or nothing, as it is; of anything else only that it is neither."""
    return raw if envelope.starts_with(raw, b'"', b"n") else 0
