"""JSON-RPC envelopes whose payload stays bytes: only the members that route a message are decoded.

Nothing here validates a payload. `params`, `result` and the members of an object are `msgspec.Raw` and leave
the proxy byte for byte as they came: no field of a peer is lost, and a large result costs almost nothing.
"""

from __future__ import annotations

import math
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcp_context_proxy.protocol import (
    MESSAGE_VALUES,
    PART_BYTES,
    deepest,
    has_more_entries,
    holds_too_much,
    may_have_entries,
    without_depths,
)
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import in_thread

Members: TypeAlias = dict[str, Raw]
"""A JSON object with decoded keys and raw values."""

RequestId: TypeAlias = int | str
ID_TYPES: Final = (int, str)
"""The same for every message: a union is made anew each time that it is written."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

NO_PARAMS: Members = {}

T = TypeVar("T", bound=msgspec.Struct)

DECIDED_BY: Final = frozenset(
    {"name", "arguments", "uri", "ref", "argument", "cursor", "level", "requestState", "inputResponses"}
    | {"title", "description", "inputSchema", "outputSchema", "annotations", "icons", "execution"}
    | {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint", "uriTemplate", "mimeType"}
    | {"message", "mode", "url", "elicitationId", "requestedSchema", "elicitations", "properties"}
    | {"messages", "systemPrompt", "includeContext", "maxTokens", "tools", "toolChoice"}
    | {"resultType", "inputRequests", "logger", "data", "progressToken", "progress", "total", "requestId"}
)
"""Names of the protocol by which we decide something, or under which a person or a model reads something."""


def letters_of(name: str) -> str:
    """Return a name as careless readers compare it: in small letters, without anything but letters."""
    # To capitals first, as some do: a small letter without its dot becomes one with.
    return "".join(filter(str.isalnum, name.upper().casefold()))


DECIDED_BY_OF_TASKS: Final = frozenset({"status", "inputRequests", "result", "error", "taskId", "resultType"})
"""The same in the state of a task: words that other objects may have in any spelling."""

_BY_LETTERS: Final = {letters_of(name): name for name in DECIDED_BY | DECIDED_BY_OF_TASKS}
_KNOWN: Final = DECIDED_BY | DECIDED_BY_OF_TASKS | {"_meta"}  # which most have, and is like none of them


def misread(names: Collection[str], known: Collection[str] = DECIDED_BY) -> tuple[str, str] | None:
    """Return a name of a member, and the name that some readers take it for; None if there is none.

    Go reads names in any case, also with a long s or the sign of Kelvin in them, and some of its libraries
    with a null at their end; the SDK for Python reads ``requested_schema`` as well. Of two that are one for
    them, they may take the other one than that by which we have decided.
    """
    for name in () if _KNOWN.issuperset(names) else names:
        if name not in _KNOWN and (meant := _BY_LETTERS.get(letters_of(name))) in known:
            return name, meant or ""
    return None


class Error(msgspec.Struct):
    """The ``error`` member of a reply."""

    code: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = INTERNAL_ERROR  # as many read it
    message: str = ""
    data: Raw | UnsetType = UNSET


class Envelope(msgspec.Struct):
    """Any JSON-RPC message; the members that are set tell its kind."""

    jsonrpc: Raw | UnsetType = UNSET
    """Required of clients only: a message of a server without it is accepted."""
    id: int | str | float | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class MalformedError(ValueError):
    """Bytes that are not a JSON-RPC message; `code` is the JSON-RPC error code for the sender.

    `too_deep` is true if they could not be read to the end because of their depth.
    """

    def __init__(self, why: str, code: int = PARSE_ERROR, *, too_deep: bool = False) -> None:
        self.code, self.too_deep = code, too_deep
        super().__init__(why)


class RequestError(Exception):
    """A JSON-RPC error that refuses a request: its code, message and data."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.code, self.message, self.data = code, message, data
        super().__init__(message)


TOO_DEEP = "it nests too deeply to be read"
"""Said of a message whose parts are nested so deeply that they can be passed over, and not read: where they
are read, the interpreter has fewer levels left."""

ID_CHARACTERS = 1000
"""Longest id of a request. Ids are kept while requests are under way, beside what is counted."""

ID_FORM: Final = "its id must be a string or an integer"

_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_error = msgspec.json.Decoder(Error).decode
_decode_text = msgspec.json.Decoder(str).decode

members, elements = msgspec.json.Decoder(Members).decode, msgspec.json.Decoder(list[Raw]).decode
"""Decode a JSON object or array, whose values stay raw. Raise `msgspec.DecodeError` if it is none."""

value = msgspec.json.Decoder().decode
"""Decodes JSON to Python values. Raises `msgspec.DecodeError` if it is no JSON."""

encode = msgspec.json.Encoder().encode
"""Encodes Python values to bytes; `Raw` parts inside are copied byte for byte."""


def decode(frame: bytes) -> Envelope:
    """Decode one message.

    Raises `MalformedError` if it is not JSON, not UTF-8, nested too deeply, or not a JSON-RPC message, or its
    id is too long.
    """
    # The payload stays undecoded, so a later check would come only in the client.
    if not (frame.isascii() or is_utf8(frame)):
        raise MalformedError("it is not UTF-8")
    try:
        message = _decode_envelope(frame)
        if isinstance(message.id, str) and len(message.id) > ID_CHARACTERS:
            raise MalformedError(f"its id has more than {ID_CHARACTERS:,} characters", INVALID_REQUEST)
        return message
    except (msgspec.DecodeError, RecursionError) as error:
        # Not the error itself: it and this frame would keep each other until a search for garbage.
        kind, why = type(error), str(error)
    if (mended := _mended(frame)) is not None:
        try:
            return _decode_envelope(mended)
        except (msgspec.DecodeError, RecursionError) as error:
            kind, why = type(error), str(error)
    code = INVALID_REQUEST if issubclass(kind, msgspec.ValidationError) else PARSE_ERROR
    if code == INVALID_REQUEST and starts_with(frame, b"["):
        why = "it is a batch, which is not served here; send each message by itself"
    elif code == INVALID_REQUEST and why.endswith("`$.id`"):
        why = ID_FORM
    raise MalformedError(why, code, too_deep=issubclass(kind, RecursionError))


def decode_from_server(frame: bytes) -> Envelope:
    """Decode one message of a server as `decode` does; a response may nest deeper than can be read.

    Its values far beyond any limit are left out, so that a list loses only the entry that has them: what is
    left of that is still too deep for a definition or a result.
    """
    try:
        return decode(frame)
    except MalformedError as error:
        if not error.too_deep:
            raise
        if (readable := without_depths(frame)) is None:
            raise
        message = decode(readable)
        if message.method is not UNSET:
            raise
        return message


_VERSION: Final = b'"2.0"'


def decode_from_client(frame: bytes) -> Envelope:
    """Decode one message of a client, with the checks that JSON-RPC asks of a server.

    Raises `MalformedError` as `decode` does, and if it can be read but is no valid request or response.
    """
    message = decode(frame)
    if message.method is UNSET:
        if message.result is UNSET and message.error is UNSET:
            raise MalformedError("it has neither a method nor a result nor an error", INVALID_REQUEST)
        return message
    if message.jsonrpc is UNSET or (bytes(message.jsonrpc) != _VERSION and text(message.jsonrpc) != "2.0"):
        raise MalformedError('its jsonrpc must be "2.0"', INVALID_REQUEST)
    if message.id is None or isinstance(message.id, float):
        raise MalformedError(ID_FORM, INVALID_REQUEST)
    if isinstance(message.params, Raw) and holds_a_flood(message.params):
        raise MalformedError(f"its params have more than {MOST_ENTRIES:,} members", INVALID_REQUEST)
    return message


MOST_ENTRIES = 10_000
"""Members of an object, or entries of an array, that are taken apart: each costs a microsecond, for which
nobody else is served."""

TAKEN_APART_BYTES = 64 * 1024
"""Size up to which the members of an object are looked at while everybody else waits; see `holds_a_flood`."""

COPIED_BYTES = 512
"""Size below which a copy of a payload takes less time than a view of it."""

LARGE_MESSAGE_BYTES = 1 << 18
"""Size from which a message is decoded in a worker thread (`decode_large`): the worst one of four times this
size would hold the event loop for 20 ms."""


def is_large(frame: object) -> bool:
    """Return whether a message must be decoded by `decode_large`, in a worker thread.

    The first one that numpy counts the entries of is, too: to import it takes longer than others should wait.
    """
    if not isinstance(frame, bytes) or len(frame) <= TAKEN_APART_BYTES:
        return False
    return len(frame) > LARGE_MESSAGE_BYTES or (
        "numpy" not in sys.modules and may_have_entries(frame, MOST_ENTRIES)
    )


BATCH_MESSAGES = 1000
"""Most messages of a batch that is served, which are taken in one step."""


def batched(frame: bytes) -> list[bytes]:
    """Return the messages of a batch; none if the frame is no batch, too large, or has batches in it."""
    if len(frame) > LARGE_MESSAGE_BYTES:
        return []
    try:
        messages = [bytes(each) for each in elements(frame)]
    except (msgspec.DecodeError, RecursionError):
        return []
    nested = any(starts_with(each, b"[") for each in messages)
    return [] if nested or len(messages) > BATCH_MESSAGES else messages


def decode_large(frame: bytes, decode: Callable[[bytes], Envelope]) -> Envelope:
    """Decode one large message by `decode`, in a worker thread."""
    if may_have_entries(frame, MOST_ENTRIES):
        import numpy  # noqa: F401, PLC0415 - here, where nobody waits
    if holds_too_much(frame):
        raise MalformedError(f"it has more than {MESSAGE_VALUES:,} values", INVALID_REQUEST)
    return decode(frame)


async def decode_any(frame: bytes, decode: Callable[[bytes], Envelope]) -> Envelope:
    """Decode one message of any size by `decode`; a large one in a worker thread.

    Raises `MalformedError` as `decode` does, and if it has too many values.
    """
    return await in_thread(decode_large, frame, decode) if is_large(frame) else decode(frame)


def holds_a_flood(raw: bytes | Raw, most: int = MOST_ENTRIES) -> bool:
    """Return whether a large object or array has more than `most` entries of its own."""
    return len(raw) >= TAKEN_APART_BYTES and has_more_entries(bytes(raw), most)


_HALVES = pattern(rb"\\u[dD](?:[89abAB][\da-fA-F]{2}(\\u[dD][c-fC-F][\da-fA-F]{2})?|[c-fC-F][\da-fA-F]{2})")
"""A surrogate pair in JSON, with its second half as the group, or half of one."""

ESCAPES_MENDED = 10_000
"""Escapes of surrogates that are looked at in one message. A cut text has one half,
and every escaped emoji is looked at; megabytes of them would keep everybody waiting."""


def _mended(frame: bytes) -> bytes | None:
    """Return the message with U+FFFD for half characters, as text cut in an emoji has; None if it has none.

    The positions are searched, not matched: an expression would take seconds for megabytes of other escapes.
    """
    parts: list[bytes] = []
    begin = looked_at = 0
    for at in sorted([*_positions(frame, b"\\ud"), *_positions(frame, b"\\uD")])[:ESCAPES_MENDED]:
        before = frame[looked_at:at]
        escaped = (len(before) - len(before.rstrip(b"\\"))) % 2
        match = None if at < looked_at or escaped else _HALVES.match(frame, at)
        if match is None:
            looked_at = max(looked_at, at + len(b"\\ud"))
            continue
        looked_at = match.end()
        if match[1] is None:
            parts += frame[begin:at], b"\\ufffd"
            begin = looked_at
    return b"".join((*parts, frame[begin:])) if parts else None


def _positions(frame: bytes, part: bytes) -> Iterator[int]:
    at = frame.find(part)
    for _ in range(ESCAPES_MENDED):
        if at < 0:
            return
        yield at
        at = frame.find(part, at + len(part))


def decode_error(raw: Raw) -> Error:
    """Decode an ``error`` member; a malformed one becomes an internal error that says so."""
    try:
        return _decode_error(raw)
    except (msgspec.DecodeError, RecursionError):
        return Error(INTERNAL_ERROR, "malformed error object")


def starts_with(raw: bytes | Raw, kinds: bytes) -> bool:
    """Return whether JSON without leading space starts with one of these characters, which tell its kind."""
    start = bytes(raw) if len(raw) < COPIED_BYTES else memoryview(raw)
    return len(start) > 0 and start[0] in kinds


def text(raw: bytes | Raw | None) -> str | None:
    """Decode a JSON string; None if it is absent or of another kind."""
    try:
        return None if raw is None else _decode_text(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def number(raw: bytes | Raw | None) -> float | None:
    """Decode a JSON number; None if it is absent or of another kind."""
    decoded = None if raw is None else value_or_none(raw)
    return decoded if isinstance(decoded, int | float) and not isinstance(decoded, bool) else None


def value_or_none(raw: bytes | Raw) -> Any:
    """Decode JSON of a peer; None if it has a number that is too large to be read, or nests too deeply.

    Raw parts of a message are valid JSON, and still may be neither of these.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, strict=False)  # models send numbers as texts


def decoded(raw: Raw, kind: type[T], otherwise: Callable[[Raw], Raw | None]) -> T:
    """Decode JSON to a struct, or the form that `otherwise` returns of it. Raises `msgspec.DecodeError`."""
    decoder: msgspec.json.Decoder[T] = _decoder(kind)
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:
        if (meant := otherwise(raw)) is None:
            raise
    return decoded(meant, kind, otherwise)


def members_of(raw: bytes | Raw | None) -> Members:
    """Decode the members of a JSON object of a peer; none if it is absent, no object, or cannot be read."""
    try:
        return {} if raw is None else members(raw)
    except (msgspec.DecodeError, RecursionError):
        return {}


def object_of(raw: bytes | Raw | None) -> dict[str, Any]:
    """Decode a JSON object of a peer; empty if it is absent, no object, or cannot be read."""
    decoded = None if raw is None else value_or_none(raw)
    return decoded if isinstance(decoded, dict) else {}


def schema_of(definition: bytes) -> Any:
    """Return the input schema of a tool's definition, decoded; empty if it cannot be."""
    return value_or_none(members_of(definition).get("inputSchema", b"{}")) or {}


REFERENCE_CHARACTERS: Final = 500
"""Length of the references in a schema that are followed; none of any real tool comes near it."""


def referred(reference: Any, root: Any) -> Any:
    """Return the place in a schema that a reference names; None for one that is elsewhere or too long."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    if len(reference) > REFERENCE_CHARACTERS:
        return None
    found = root
    for key in reference[2:].split("/"):
        found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def raw(obj: Any) -> Raw:
    """Encode Python values to `Raw`; `Raw` parts inside are copied byte for byte."""
    return Raw(encode(obj))


def request(request_id: RequestId, method: str, params: Mapping[str, Any] | None) -> bytes:
    """Encode a request, without a line end."""
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}})


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """Encode a notification, without a line end."""
    if not params:
        return encode({"jsonrpc": "2.0", "method": method})
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def reply(request_id: RequestId, result: bytes | Raw) -> bytes:
    """Encode a successful reply around an already encoded result, without a line end."""
    # One join copies a large result once.
    return b"".join(reply_parts(request_id, result))


def reply_parts(request_id: RequestId, result: bytes | Raw) -> tuple[bytes | Raw, ...]:
    """Return the parts of a successful reply, of which the result is not copied."""
    return b'{"jsonrpc":"2.0","id":%b,"result":' % encode(request_id), result, b"}"


def error_reply(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """Encode an error reply, without a line end."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return encode({"jsonrpc": "2.0", "id": request_id, "error": error})


_ID = pattern(rb'"id"\s*:\s*(-?\d{1,18}(?=\s*[,}])|"[^"\\\x00-\x1f]{1,128}")')
_SCAN_BYTES = 256


def salvage_id(head: bytes, tail: bytes) -> RequestId | None:
    """Find the ``id`` of a message that cannot be decoded in its first and last bytes; None if not found.

    Serializers write the members of the envelope before or after the payload. So the first match at the
    start, or else the last match at the end, belongs to the envelope.
    """
    match = _ID.search(head[:_SCAN_BYTES])
    found = [match[1]] if match is not None else _ID.findall(tail[-_SCAN_BYTES:])
    return msgspec.json.decode(found[-1]) if found and is_utf8(found[-1]) else None


PIECE_BYTES = 256 << 10
"""Bytes decoded at a time. One emoji makes every character of a decoded piece take four bytes."""

_Decoder = getincrementaldecoder("utf-8")


def is_utf8(data: bytes) -> bool:
    """Return whether the bytes are valid UTF-8, with little memory beside them."""
    if data.isascii():
        return True
    try:
        if len(data) <= PIECE_BYTES:
            str(data, "utf-8")
            return True
        decode = _Decoder().decode
        for start in range(0, len(data), PIECE_BYTES):
            end = start + PIECE_BYTES
            decode(data[start:end], final=end >= len(data))
    except UnicodeDecodeError:
        return False
    return True


def nests_deeper(encoded: bytes, limit: int, part_bytes: int = PART_BYTES) -> bool:
    """Return whether objects and arrays nest deeper than `limit` levels. The input must be valid JSON."""
    # A level has a beginning and an end: most messages are too short to be looked through.
    if len(encoded) <= 2 * limit or encoded.count(b"{") + encoded.count(b"[") <= limit:
        return False
    return any(depth > limit for depth in deepest(encoded, part_bytes))


_DIGITS: Final = bytes.maketrans(b"123456789E+", b"000000000e0")
_LONG_NUMBER: Final = b"0" * 210
"""The fewest digits with which an exponent below 100 goes beyond all that most readers can represent."""
_NUMBER_OR_STRING: Final = pattern(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|(-?\d++(?:\.\d++)?(?:[eE][+-]?\d++)?)', re.DOTALL
)


def overflows(encoded: bytes) -> bool:
    """Return whether JSON has a number like 1e999, over which some programs end the whole connection."""
    plain = encoded.translate(_DIGITS)
    # Not by `in`, which takes bytes for a number first, and makes an error of that: every call looks so.
    if plain.find(b"e000") < 0 and (len(plain) < len(_LONG_NUMBER) or plain.find(_LONG_NUMBER) < 0):
        return False
    return any(found[1] and math.isinf(float(found[1])) for found in _NUMBER_OR_STRING.finditer(encoded))


def unreadable(encoded: bytes, levels: int) -> str | None:
    """Return why some programs end over JSON that they are sent; None if all can read it."""
    if nests_deeper(encoded, levels):
        return f"it nests deeper than {levels} levels"
    return "it has a number too large to be read" if overflows(encoded) else None
