"""What the two eras of MCP ask of a server's messages; no I/O, no knowledge of any tool.

A request whose ``_meta`` names a protocol version is modern and stands alone; any other belongs to the
handshake era. One process serves both, request by request.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

JSON: TypeAlias = Any
"""Decoded JSON whose shape the caller decides."""

HANDSHAKE_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first: the first one is the counter-offer to a client that asks for another."""

MODERN_VERSIONS = ("2026-07-28",)
"""Newest first, as `server/discover` lists them."""

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_VERSION = -32022
RESOURCE_NOT_FOUND = -32002
"""Handshake era only; the modern one forbids it and says `INVALID_PARAMS`."""

FIXED = (300_000, "public")
"""Lifetime in milliseconds and scope of what cannot change while the process lives."""

LIVE = (0, "private")
"""The same for what any tool call may change."""

CACHING = {
    "server/discover": FIXED,
    "tools/list": FIXED,
    "prompts/list": FIXED,
    "resources/templates/list": FIXED,
    "resources/list": LIVE,
    "resources/read": LIVE,
}
"""The results that must carry caching hints in the modern era."""


class RpcError(Exception):
    """A request that cannot be answered; becomes a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: JSON = None) -> None:
        self.code, self.data = code, data
        super().__init__(message)

    def to_json(self) -> JSON:
        """The ``error`` member of the answer."""
        body = {"code": self.code, "message": str(self)}
        return body if self.data is None else body | {"data": self.data}


@dataclass(frozen=True, slots=True)
class Request:
    """One request, its envelope already judged."""

    id: int | str
    method: str
    params: dict[str, JSON]
    modern: bool

    @property
    def meta(self) -> dict[str, JSON]:
        """The request's ``_meta``, empty when there is none."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


def parse_request(message: dict[str, JSON]) -> Request:
    """The request in ``message``.

    Raises:
        RpcError: It is malformed, or asks for a protocol version this server does not speak.
    """
    request_id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if isinstance(request_id, bool) or not isinstance(request_id, int | str):
        raise RpcError(INVALID_REQUEST, "a request needs an id that is a string or an integer")
    if message.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, 'a request needs "jsonrpc": "2.0" and a method')
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "params must be an object")
    modern = Request(request_id, method, params, modern=False).meta.get(VERSION_KEY) is not None
    request = Request(request_id, method, params, modern)
    if modern:
        _check_envelope(request)
    return request


def _check_envelope(request: Request) -> None:
    version = request.meta[VERSION_KEY]
    if version not in MODERN_VERSIONS:
        supported = [*MODERN_VERSIONS, *HANDSHAKE_VERSIONS]
        data = {"supported": supported, "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, f"unsupported protocol version {version!r}", data)
    if not isinstance(request.meta.get(CAPABILITIES_KEY), dict):
        raise RpcError(INVALID_PARAMS, f"_meta lacks {CAPABILITIES_KEY}")


def stamp(request: Request, result: dict[str, JSON], server_info: dict[str, str]) -> dict[str, JSON]:
    """The result with the members its era demands."""
    if not request.modern:
        return result
    stamped = {"resultType": "complete", **result, "_meta": {SERVER_INFO_KEY: server_info}}
    if request.method in CACHING:
        stamped["ttlMs"], stamped["cacheScope"] = CACHING[request.method]
    return stamped
