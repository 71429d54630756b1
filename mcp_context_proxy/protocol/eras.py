"""Fits messages to a protocol era: pure functions on undecoded objects.

Two eras exist. `handshake` (revisions up to 2025-11-25) opens with ``initialize`` and keeps a session;
`modern` (2026-07-28) has none: each request carries its version and the client's capabilities in ``_meta``,
each result says its type, and cacheable results say for how long.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Raw

from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members

MODERN_VERSION = "2026-07-28"
HANDSHAKE_VERSION = "2025-11-25"
"""Offered in ``initialize``; a server may answer with an older one."""
HANDSHAKE_VERSIONS = frozenset({HANDSHAKE_VERSION, "2025-06-18", "2025-03-26", "2024-11-05", "2024-10-07"})
"""All there are of that era. Who answers with another is left, as the protocol asks."""

META_PREFIX = "io.modelcontextprotocol/"
VERSION_KEY = META_PREFIX + "protocolVersion"
CLIENT_INFO_KEY = META_PREFIX + "clientInfo"
CLIENT_CAPABILITIES_KEY = META_PREFIX + "clientCapabilities"
LOG_LEVEL_KEY = META_PREFIX + "logLevel"
SERVER_INFO_KEY = META_PREFIX + "serverInfo"
SUBSCRIPTION_KEY = META_PREFIX + "subscriptionId"
"""In what a modern server announces: the id of the request that subscribed to it."""

OWN_PREFIX = "io.github.mcp-context-proxy/"
"""Prefix of the ``_meta`` keys this proxy understands; they never reach a downstream server."""
QUERY_KEY = OWN_PREFIX + "query"
CONTEXT_KEY = OWN_PREFIX + "context"

PER_CONNECTION_KEYS = frozenset(
    {VERSION_KEY, CLIENT_INFO_KEY, CLIENT_CAPABILITIES_KEY, LOG_LEVEL_KEY, "progressToken"}
)
"""``_meta`` keys that belong to one hop and are written anew on the next."""

CACHEABLE = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)
"""Methods whose modern results must carry ``ttlMs`` and ``cacheScope``."""

LONGEST_TTL_MS = 3_600_000
"""For which a client may keep a result. A server that says more would have clients keep its mistake for as
long; an hour saves as many requests."""

RETRY_KEYS = ("inputResponses", "requestState")
"""Params by which a modern client goes on with a call that asked it something."""

ELICITATION_ID = "elicitationId"
"""By which the handshake era refers to a question that was asked by a URL; the modern one has dropped it."""

TASK_KEY = "task"
"""The param by which a client of 2025-11-25 asks for a task. Tasks are not relayed, so this proxy declares
none; who declares none ignores what asks for one, and the call is an ordinary one."""
TASKS_CAPABILITY, TASKS_EXTENSION = "tasks", META_PREFIX + "tasks"
"""By which a client says that it knows tasks, before the modern era and in it. A server that heard of it
could answer with a task, and nobody could ask for its result."""

MODERN_ONLY_RESULT_KEYS = ("resultType", "ttlMs", "cacheScope")


RESOURCE_NOT_FOUND = -32002
"""Before the modern era; there it is an invalid parameter."""
URL_ELICITATION_REQUIRED = -32042
"""Before the modern era, where a server asks by its result."""
MISSING_CAPABILITY = -32021
"""Of the modern era: the server needs what the client did not declare."""


class Era(StrEnum):
    """How a peer speaks."""

    HANDSHAKE = "handshake"
    MODERN = "modern"


_CODES: Mapping[Era, Mapping[int, int]] = {
    Era.HANDSHAKE: {MISSING_CAPABILITY: envelope.INVALID_REQUEST},
    Era.MODERN: {
        RESOURCE_NOT_FOUND: envelope.INVALID_PARAMS,
        URL_ELICITATION_REQUIRED: envelope.INTERNAL_ERROR,
    },
}


def meta_of(params: Members) -> Members:
    """The ``_meta`` of a request; empty when absent or not an object."""
    raw = params.get("_meta")
    if raw is None:
        return {}
    try:
        return envelope.members(raw)
    except msgspec.DecodeError:
        return {}


def is_modern(meta: Members) -> bool:
    """Whether a request's ``_meta`` is the complete envelope of the modern era."""
    version, capabilities = meta.get(VERSION_KEY), meta.get(CLIENT_CAPABILITIES_KEY)
    return (
        version is not None
        and envelope.text(version) == MODERN_VERSION
        and capabilities is not None
        and envelope.starts_with(capabilities, b"{")
    )


def fit_params_to_server(
    params: Members,
    era: Era,
    *,
    capabilities: Mapping[str, Any] | Raw | None = None,
    client_info: Mapping[str, Any] | Raw | None = None,
    log_level: Raw | None = None,
    progress_token: int | None = None,
) -> Members:
    """Params for the next hop: foreign ``_meta`` is kept, ours is stripped, each hop's own is written anew.

    Args:
        params: As the client sent them.
        era: Of the downstream server.
        capabilities: Of the client that calls; what it can be asked in the modern era.
        client_info: Who calls, in the modern era.
        log_level: The client's opt-in to log messages of this request, in the modern era.
        progress_token: Asks the server to report progress under this token.
    """
    meta = {
        key: raw
        for key, raw in meta_of(params).items()
        if key not in PER_CONNECTION_KEYS and not key.startswith(OWN_PREFIX)
    }
    if era is Era.MODERN:
        meta[VERSION_KEY] = envelope.raw(MODERN_VERSION)
        meta[CLIENT_CAPABILITIES_KEY] = envelope.raw(without_tasks(capabilities or {}))
        if client_info is not None:
            meta[CLIENT_INFO_KEY] = envelope.raw(client_info)
        if log_level is not None:
            meta[LOG_LEVEL_KEY] = log_level
    if progress_token is not None:
        meta["progressToken"] = envelope.raw(progress_token)
    out = {key: raw for key, raw in params.items() if key not in ("_meta", TASK_KEY)}
    if era is Era.HANDSHAKE:
        for key in RETRY_KEYS:
            out.pop(key, None)
    if meta:
        out["_meta"] = envelope.raw(meta)
    return out


def without_tasks(capabilities: Mapping[str, Any] | Raw) -> Mapping[str, Any] | Raw:
    """The capabilities of a client as far as this proxy relays what they allow; unchanged but for tasks."""
    if isinstance(capabilities, Raw):
        if TASKS_CAPABILITY.encode() not in bytes(capabilities):
            return capabilities
        declared = envelope.members(capabilities)
    else:
        declared = {name: envelope.raw(value) for name, value in capabilities.items()}
    kept = {name: value for name, value in declared.items() if name != TASKS_CAPABILITY}
    if envelope.starts_with(kept.get("extensions", b""), b"{"):
        extensions = envelope.members(kept["extensions"])
        if extensions.pop(TASKS_EXTENSION, None) is not None:
            kept["extensions"] = envelope.raw(extensions)
    return kept


def error_code(code: int, era: Era) -> int:
    """The code of an error as an era has it: each has some that the other must not see."""
    return _CODES[era].get(code, code)


def without_subscription(params: Members) -> Members:
    """Params of a notification without the subscription that it came by: the next hop has its own."""
    meta = meta_of(params)
    if meta.pop(SUBSCRIPTION_KEY, None) is None:
        return params
    rest = {key: raw for key, raw in params.items() if key != "_meta"}
    return {**rest, "_meta": envelope.raw(meta)} if meta else rest


def result_type(result: Members) -> str:
    """``complete`` unless the result says otherwise; absent means complete, as from an older server."""
    return envelope.text(result.get("resultType")) or "complete"


def fit_result_to_client(method: str, result: bytes, era: Era, server_info: Raw) -> bytes:
    """Fit a downstream result to the era of the client, changing nothing else.

    Args:
        method: That the client called.
        result: As it came.
        era: Of the client.
        server_info: Of this proxy: what modern results name as their server.
    """
    parts = envelope.members(result)
    if era is Era.HANDSHAKE:
        return _to_handshake(method, parts, result)
    if "resultType" not in parts:
        parts["resultType"] = Raw(b'"complete"')
    if method in CACHEABLE and result_type(parts) == "complete":
        parts["ttlMs"] = _bounded_ttl(parts.get("ttlMs"))
        parts.setdefault("cacheScope", Raw(b'"private"'))
    meta = meta_of(parts)
    meta[SERVER_INFO_KEY] = server_info
    parts["_meta"] = envelope.raw(meta)
    return envelope.encode(parts)


def _bounded_ttl(raw: Raw | None) -> Raw:
    """For how long a result may be kept, as far as it is a time that is no longer than any should be."""
    said = b"" if raw is None else bytes(raw)
    if not said.isdigit():
        return Raw(b"0")
    # By its length first: a number may have more digits than Python reads.
    longer = len(said) > len(str(LONGEST_TTL_MS)) or int(said) > LONGEST_TTL_MS
    return envelope.raw(LONGEST_TTL_MS) if longer else Raw(said)


def _to_handshake(method: str, parts: Members, result: bytes) -> bytes:
    meta = meta_of(parts)
    structured = parts.get("structuredContent")
    wrap = method == "tools/call" and structured is not None and not envelope.starts_with(structured, b"{")
    if not wrap and SERVER_INFO_KEY not in meta and not any(key in parts for key in MODERN_ONLY_RESULT_KEYS):
        return result
    for key in MODERN_ONLY_RESULT_KEYS:
        parts.pop(key, None)
    if wrap:
        # The handshake era allows only objects here.
        parts["content"] = _with_text(parts.get("content"), parts.pop("structuredContent"))
    if meta.pop(SERVER_INFO_KEY, None) is not None:
        if meta:
            parts["_meta"] = envelope.raw(meta)
        else:
            del parts["_meta"]
    return envelope.encode(parts)


def _with_text(content: Raw | None, structured: Raw) -> Raw:
    """The content of a result, with what is structured as text where there is no text for it."""
    came = Raw(b"[]") if content is None else content
    try:
        entries = envelope.value(came)
        text = envelope.encode({"type": "text", "text": bytes(structured).decode()})
    except ValueError:
        return came
    if not isinstance(entries, list) or bytes(structured) == b"null":
        return came
    if any(isinstance(entry, dict) and entry.get("type") == "text" for entry in entries):
        return came
    # Spliced in, so that what came stays the bytes that it was.
    return Raw(bytes(came).strip()[:-1] + (b"," if entries else b"") + text + b"]")
