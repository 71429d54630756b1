"""The protocol in its two eras, and conversions between them, on raw JSON objects.

The `handshake` era (revisions up to 2025-11-25) opens with ``initialize`` and keeps a session. The `modern`
era (2026-07-28) has no session: each request carries the version and the client's capabilities in ``_meta``,
each result names its type, and cacheable results say for how long they may be kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy import __version__
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members

MODERN_VERSION = "2026-07-28"
HANDSHAKE_VERSION = "2025-11-25"
"""The version offered in ``initialize``; a server may answer with an older one."""
HANDSHAKE_VERSIONS = frozenset({HANDSHAKE_VERSION, "2025-06-18", "2025-03-26", "2024-11-05", "2024-10-07"})
"""All versions of that era. A server that answers with another is disconnected, as the protocol asks."""

BATCH_VERSION = "2025-03-26"
"""The only version that has batches."""

META_PREFIX = "io.modelcontextprotocol/"
VERSION_KEY = META_PREFIX + "protocolVersion"
CLIENT_INFO_KEY = META_PREFIX + "clientInfo"
CLIENT_CAPABILITIES_KEY = META_PREFIX + "clientCapabilities"
LOG_LEVEL_KEY = META_PREFIX + "logLevel"
SERVER_INFO_KEY = META_PREFIX + "serverInfo"
SERVER_INFO = envelope.raw(
    {"name": "mcp-context-proxy", "title": "MCP Context Proxy", "version": __version__}
)
_OUR_META = envelope.raw({SERVER_INFO_KEY: SERVER_INFO})
SUBSCRIPTION_KEY = META_PREFIX + "subscriptionId"
"""``_meta`` key in notifications of a modern server: the id of the request that subscribed."""

OWN_PREFIX = "io.github.mcp-context-proxy/"
"""Prefix of the ``_meta`` keys that this proxy reads itself; they never reach a downstream server."""
QUERY_KEY = OWN_PREFIX + "query"
CONTEXT_KEY = OWN_PREFIX + "context"
FORMAT_KEY = OWN_PREFIX + "format"
"""``_meta`` key of a call of the proxy's own tools: ``json`` for data instead of text."""
REQUEST_KEY = OWN_PREFIX + "request_id"
SERVER_KEY = OWN_PREFIX + "server"
"""``_meta`` key with the name of a server: that of a listed resource, or that which asks a client."""

META_BYTES = envelope.TAKEN_APART_BYTES
"""Largest ``_meta`` of a request; it is looked at several times on the way. A larger one of a result is
passed on as it came, and nothing in it is changed."""

USUAL_META_BYTES = 512
"""Size of a ``_meta`` that is remembered: most peers send the same with each request, or each result."""

PER_CONNECTION_KEYS = frozenset(
    {VERSION_KEY, CLIENT_INFO_KEY, CLIENT_CAPABILITIES_KEY, LOG_LEVEL_KEY, "progressToken"}
)
"""``_meta`` keys that belong to one hop; the next hop gets its own."""

CACHEABLE = frozenset(
    {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"}
    | {"resources/read", "skills/list", "skills/get"}
)
"""Methods whose modern results must carry ``ttlMs`` and ``cacheScope``."""

MAX_TTL_MS = 3_600_000
"""Longest time for which a client may cache a result. With more, clients would keep a server's mistake for as
long; an hour saves nearly as many requests."""

RETRY_KEYS = ("inputResponses", "requestState")
"""Params with which a modern client continues a call that asked for input."""

ELICITATION_ID = "elicitationId"
"""Key by which the handshake era refers to a URL elicitation; the modern era has dropped it."""

TASK_KEY = "task"
"""The param with which a client of 2025-11-25 asks for a task. The proxy declares no support in that era, so
it is ignored, as the protocol asks, and the call is an ordinary one."""
_HOP_KEYS = frozenset({"_meta", TASK_KEY, *RETRY_KEYS})  # which no server of the handshake era gets so
TASKS_CAPABILITY, TASKS_EXTENSION = "tasks", META_PREFIX + "tasks"
"""The capabilities that declare tasks, in the handshake era and in the modern one. Of a client of the former
both are removed: a server that saw them could answer with a task, and no client could ask for its result."""

SKILLS_EXTENSION = META_PREFIX + "skills"
"""The extension by which a server declares that it serves skills."""

APPS_EXTENSION = META_PREFIX + "ui"
"""The extension of MCP Apps: a host declares that it shows pages, and a server that its tools have some."""
APPS: Mapping[str, Any] = {APPS_EXTENSION: {"mimeTypes": ["text/html;profile=mcp-app"]}}

CAPABILITY_OF = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
"""Requests that a server may make of a client, and the capability that the client must have declared."""

MODERN_ONLY_RESULT_KEYS = ("resultType", "ttlMs", "cacheScope")

RESOURCE_NOT_FOUND = -32002
"""A code of the handshake era; the modern one has an invalid parameter instead."""
URL_ELICITATION_REQUIRED = -32042
"""A code of the handshake era; a modern server asks by its result."""
MISSING_CAPABILITY = -32021
"""A code of the modern era: the server needs a capability that the client did not declare."""
UNSUPPORTED_VERSION = -32022
"""A code of the modern era: the server does not speak that version; the data of the error names its own."""


class Era(StrEnum):
    """An era of the protocol, as a peer speaks it."""

    HANDSHAKE = "handshake"
    MODERN = "modern"


# Where every call passes: Python 3.11 looks a member of an enum up thirty times as slowly as a name.
HANDSHAKE: Final = Era.HANDSHAKE
MODERN: Final = Era.MODERN


class Hello(Struct, frozen=True):
    """The terms on which a session of the handshake era was opened: all of them that count later."""

    version: str
    """The version that both have agreed on."""
    capabilities: Raw
    """The client's, as it declared them."""
    client_info: Raw


_MODERN_VERSION_JSON = envelope.encode(MODERN_VERSION)

_COMPLETE = Raw(b'"complete"')

_CODES: Mapping[Era, Mapping[int, int]] = {
    HANDSHAKE: {MISSING_CAPABILITY: envelope.INVALID_REQUEST},
    MODERN: {
        RESOURCE_NOT_FOUND: envelope.INVALID_PARAMS,
        URL_ELICITATION_REQUIRED: envelope.INTERNAL_ERROR,
    },
}


class Meta(dict[str, Raw]):
    """A decoded ``_meta``. Messages with the same one share it, so it is not to be changed."""

    @cached_property
    def is_modern(self) -> bool:
        """True if it is a complete envelope of the modern era."""
        version, capabilities = self.get(VERSION_KEY), self.get(CLIENT_CAPABILITIES_KEY)
        if version is None or capabilities is None or not envelope.starts_with(capabilities, b"{"):
            return False
        return bytes(version) == _MODERN_VERSION_JSON or envelope.text(version) == MODERN_VERSION

    @cached_property
    def fault(self) -> str | None:
        """The fault in it, for the sender of a request; None if it is right."""
        token = self.get("progressToken")
        if token is not None and type(envelope.value_or_none(token)) not in (int, str):
            return "progressToken must be a string or an integer"
        return None

    @cached_property
    def modern_fault(self) -> str | None:
        """The same for a request of the modern era."""
        if self.fault is not None:
            return self.fault
        if not envelope.starts_with(self.get(CLIENT_CAPABILITIES_KEY, b""), b"{"):
            return f"{CLIENT_CAPABILITIES_KEY} must be an object"
        level = self.get(LOG_LEVEL_KEY)
        if level is not None and envelope.text(level) not in LOG_LEVELS:
            return f"{LOG_LEVEL_KEY} must be one of {', '.join(LOG_LEVELS)}"
        return None

    @cached_property
    def for_modern_server(self) -> Raw:
        """The ``_meta`` for a modern server of a request whose client introduces itself in this one."""
        sent: dict[str, Any] = {**self.passed_on, VERSION_KEY: MODERN_VERSION}
        sent[CLIENT_CAPABILITIES_KEY] = self.get(CLIENT_CAPABILITIES_KEY, _NOTHING)
        sent |= {key: self[key] for key in (CLIENT_INFO_KEY, LOG_LEVEL_KEY) if key in self}
        return envelope.raw(sent)

    @cached_property
    def passed_on(self) -> Mapping[str, Raw]:
        """The part of it that goes on to a server: neither this proxy's own nor what belongs to one hop."""
        return {
            key: raw
            for key, raw in self.items()
            if key not in PER_CONNECTION_KEYS and not key.startswith(OWN_PREFIX)
        }


NO_META: Final = Meta()


def meta_of(params: Members) -> Meta:
    """Return the ``_meta`` of a request or a result; empty if it is absent, no object, or too large."""
    raw = params.get("_meta")
    if raw is None or len(raw) > META_BYTES:
        return NO_META
    return _known_meta(bytes(raw)) if len(raw) <= USUAL_META_BYTES else _read_meta(raw)


def _read_meta(raw: bytes | Raw) -> Meta:
    return Meta(envelope.members_of(raw))


_known_meta = lru_cache(maxsize=64)(_read_meta)


def name_of(client_info: bytes | Raw | None) -> str | None:
    """Return the name by which a client introduces itself; None if it gives none."""
    return envelope.text(envelope.members_of(client_info).get("name")) or None


def client_capabilities(declared: Raw | None) -> Mapping[str, Any]:
    """Return those of a client's capabilities that let servers make requests of it, by name."""
    if declared is None or len(declared) <= len(b"{}"):
        return {}
    small = len(declared) <= USUAL_META_BYTES
    return _known_capabilities(bytes(declared)) if small else _capabilities(declared)


def _capabilities(declared: bytes | Raw) -> Mapping[str, Any]:
    known = envelope.object_of(declared)
    return {name: known[name] for name in CAPABILITY_OF.values() if isinstance(known.get(name), dict)}


_known_capabilities = lru_cache(maxsize=64)(_capabilities)


def shows_apps(declared: Raw | None) -> bool:
    """Return whether a client declares that it shows the pages of MCP Apps."""
    return has_extension(declared, APPS_EXTENSION)


def has_extension(declared: Raw | None, name: str) -> bool:
    """Return whether the capabilities of a client have an extension."""
    if declared is None or name.encode() not in bytes(declared):
        return False
    extensions = envelope.object_of(declared).get("extensions")
    return isinstance(extensions, dict) and isinstance(extensions.get(name), dict)


class Sender:
    """The client of a request, as a modern server is told with each of them."""

    capabilities: Mapping[str, Any] | Raw | None = None
    client_info: Mapping[str, Any] | Raw | None = None
    log_level: Raw | None = None
    """Its opt-in to log messages about this request."""
    meta: Meta | None = None
    """The ``_meta`` of the params as the client sent it; None if it is not decoded."""
    is_modern = False
    """True if all of this is just what that ``_meta`` says."""
    as_task = False
    """True if a server is to run the request as a task, and be asked for its result."""


def fit_params_to_server(
    params: Members, era: Era, sender: Sender, progress_token: int | None = None
) -> Members:
    """Convert the params of a client's request for a downstream server of an era.

    ``_meta`` of others is kept. Keys of this proxy are removed, and keys that belong to one hop are replaced.
    Capabilities, name and version of the client, and its log level are sent to modern servers only.
    """
    if era is HANDSHAKE and progress_token is None and _HOP_KEYS.isdisjoint(params) and not sender.as_task:
        return params
    out, meta = dict(params), sender.meta
    out.pop(TASK_KEY, None)
    if era is MODERN and sender.is_modern and progress_token is None and meta and "_meta" in out:
        out["_meta"] = meta.for_modern_server
        return out
    sent: dict[str, Any] = {}
    if out.pop("_meta", None) is not None:
        sent.update((meta_of(params) if meta is None else meta).passed_on)
    if era is MODERN:
        sent[VERSION_KEY] = MODERN_VERSION
        declared = sender.capabilities or _NOTHING
        if sender.as_task:
            declared = with_tasks(declared)
        elif meta is None or not meta.is_modern:
            declared = without_tasks(declared)
        sent[CLIENT_CAPABILITIES_KEY] = declared
        if sender.client_info is not None:
            sent[CLIENT_INFO_KEY] = sender.client_info
        if sender.log_level is not None:
            sent[LOG_LEVEL_KEY] = sender.log_level
    else:
        for key in RETRY_KEYS:
            out.pop(key, None)
        if sender.as_task:
            out[TASK_KEY] = _NOTHING
    if progress_token is not None:
        sent["progressToken"] = progress_token
    if sent:
        out["_meta"] = envelope.raw(sent)
    return out


_NOTHING, _TASKS_WORD = Raw(b"{}"), TASKS_CAPABILITY.encode()


def without_tasks(capabilities: Mapping[str, Any] | Raw) -> Mapping[str, Any] | Raw:
    """Remove tasks from the capabilities of a client that cannot ask for their results."""
    if isinstance(capabilities, Raw):
        if len(capabilities) <= len(_NOTHING) or _TASKS_WORD not in bytes(capabilities):
            return capabilities
        declared = envelope.members(capabilities)
    else:
        declared = {name: envelope.raw(value) for name, value in capabilities.items()}
    kept = {name: value for name, value in declared.items() if name != TASKS_CAPABILITY}
    return without_extension(kept, TASKS_EXTENSION)


def with_tasks(capabilities: Mapping[str, Any] | Raw) -> Raw:
    """Add tasks to the capabilities of a client, for which the proxy asks for their results."""
    declared = envelope.object_of(envelope.raw(capabilities))
    extensions = declared.get("extensions")
    known = extensions if isinstance(extensions, dict) else {}
    return envelope.raw({**declared, "extensions": {**known, TASKS_EXTENSION: {}}})


def without_extension(capabilities: Members, name: str) -> Members:
    """Remove an extension from capabilities."""
    if not envelope.starts_with(capabilities.get("extensions", b""), b"{"):
        return capabilities
    extensions = envelope.members(capabilities["extensions"])
    if extensions.pop(name, None) is None:
        return capabilities
    return {**capabilities, "extensions": envelope.raw(extensions)}


def error_code(code: int, era: Era) -> int:
    """Convert an error code to an era: each era has codes that the other does not know."""
    return _CODES[era].get(code, code)


Value = TypeVar("Value")


def own_words(meta: Mapping[str, Value]) -> dict[str, Value]:
    """Return the ``_meta`` of a notification or a question of a server as it may go on.

    Keys of the protocol belong to one hop: to a client the server's own would mean something else. Those of
    this proxy are never a server's.
    """
    return {
        key: value
        for key, value in meta.items()
        if key != "progressToken" and not key.startswith((OWN_PREFIX, META_PREFIX))
    }


def result_type(result: Members) -> str:
    """Return the type of a result; ``complete`` if it names none, as results of older servers do."""
    return envelope.text(result.get("resultType")) or "complete"


def may_require_input(result: bytes) -> bool:
    """Return whether a result may be one that requires input; False for nearly all, without parsing them."""
    # The word cannot be written in any other way than with such an escape.
    return result.find(b"input_required") >= 0 or result.find(b"\\u") >= 0


def fit_result_to_client(method: str, result: bytes, era: Era) -> bytes:
    """Convert a server's result to the era of the client, and change nothing else.

    A modern client also learns the name and version of this proxy.
    """
    parts = envelope.members(result)
    if era is HANDSHAKE:
        return _to_handshake(method, parts, result)
    return _to_modern(method, parts)


def fit_own_to_client(method: str, parts: Members, era: Era) -> bytes:
    """Encode a result of this proxy for the era of the client, without reading its members."""
    if era is MODERN:
        return _to_modern(method, parts)
    return envelope.encode({key: raw for key, raw in parts.items() if key not in MODERN_ONLY_RESULT_KEYS})


def _to_modern(method: str, parts: Members) -> bytes:
    parts.setdefault("resultType", _COMPLETE)
    if method in CACHEABLE and result_type(parts) == "complete":
        parts["ttlMs"] = _bounded_ttl(parts.get("ttlMs"))
        # A server calls public what all its users get alike; ours reach different servers.
        parts["cacheScope"] = Raw(b'"private"')
    meta = parts.get("_meta")
    if meta is None:
        parts["_meta"] = _OUR_META
    elif len(meta) <= USUAL_META_BYTES:
        parts["_meta"] = _with_our_name(bytes(meta))
    elif len(meta) <= META_BYTES:
        parts["_meta"] = envelope.raw({**meta_of(parts), SERVER_INFO_KEY: SERVER_INFO})
    return envelope.encode(parts)


@lru_cache(maxsize=64)
def _with_our_name(meta: bytes) -> Raw:
    """Return the ``_meta`` of a result with this proxy in the place of the server."""
    return envelope.raw({**meta_of({"_meta": Raw(meta)}), SERVER_INFO_KEY: SERVER_INFO})


def _bounded_ttl(raw: Raw | None) -> Raw:
    """Limit the ``ttlMs`` of a server to `MAX_TTL_MS`; 0 if it is no number of milliseconds."""
    digits = b"" if raw is None else bytes(raw)
    if not digits.isdigit():
        return Raw(b"0")
    # The length is compared first: a number may have more digits than Python reads.
    longer = len(digits) > len(str(MAX_TTL_MS)) or int(digits) > MAX_TTL_MS
    return envelope.raw(MAX_TTL_MS) if longer else Raw(digits)


def _to_handshake(method: str, parts: Members, result: bytes) -> bytes:
    meta = dict(meta_of(parts))
    structured = parts.get("structuredContent")
    wrap = method == "tools/call" and structured is not None and not envelope.starts_with(structured, b"{")
    if not wrap and SERVER_INFO_KEY not in meta and not any(key in parts for key in MODERN_ONLY_RESULT_KEYS):
        return result
    for key in MODERN_ONLY_RESULT_KEYS:
        parts.pop(key, None)
    if wrap:
        # The handshake era allows only objects as structured content.
        parts["content"] = _with_text(parts.get("content"), parts.pop("structuredContent"))
    if meta.pop(SERVER_INFO_KEY, None) is not None:
        if meta:
            parts["_meta"] = envelope.raw(meta)
        else:
            del parts["_meta"]
    return envelope.encode(parts)


class _Block(msgspec.Struct):
    """An entry of the content of a result."""

    type: Any = None


_blocks = msgspec.json.Decoder(list[_Block]).decode


def _with_text(content: Raw | None, structured: Raw) -> Raw:
    """Add structured content as text to the content of a result, unless there is text already."""
    came = Raw(b"[]") if content is None else content
    try:
        blocks = _blocks(came)
        text = envelope.encode({"type": "text", "text": bytes(structured).decode()})
    except ValueError:
        return came
    if bytes(structured) == b"null" or any(block.type == "text" for block in blocks):
        return came
    # Spliced in as bytes, so that the rest of the content stays as it came.
    return Raw(bytes(came).strip()[:-1] + (b"," if blocks else b"") + text + b"]")


LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Least severe first."""


def reaches(level: str | None, least: str | None) -> bool:
    """Return whether a log message is at or above the level `least`; an unknown level always is."""
    if least not in LOG_LEVELS:
        return False
    return level not in LOG_LEVELS or LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)


def most_verbose(levels: Iterable[str | None]) -> str | None:
    """Return the least severe of the levels; None if there is none."""
    known = [level for level in levels if level in LOG_LEVELS]
    return min(known, key=LOG_LEVELS.index, default=None)


URI_CHARACTERS = 4096
"""Longest URI of a subscription or an update; a longer one is refused, or not passed on."""

URI_LEVELS = 64
"""Parents of a URI that are looked for among the subscriptions."""


def covers(subscribed: Collection[str], uri: str) -> bool:
    """Return whether a resource, or one that contains it, is among those subscribed to."""
    return bool(subscribed) and any(each in subscribed for each in containing(uri))


def containing(uri: str) -> Iterator[str]:
    """Yield the URI of a resource, then of those that contain it, without and with a slash."""
    yield uri
    end = len(uri) if len(uri) <= URI_CHARACTERS else 0
    for _ in range(URI_LEVELS):
        end = uri.rfind("/", 0, end)
        if end < 0:
            return
        yield uri[:end]
        yield uri[: end + 1]
