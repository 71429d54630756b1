"""JSON-RPC envelopes whose payload stays bytes: only the members that route a message are decoded.

Nothing here validates a payload. `params`, `result` and the members of an object are `msgspec.Raw` and leave
the proxy byte for byte as they came: no field of a peer is lost, and a large result costs almost nothing.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

Members: TypeAlias = dict[str, Raw]
"""A JSON object with decoded keys and raw values."""

RequestId: TypeAlias = int | str

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

NO_PARAMS: Members = {}


class Error(msgspec.Struct):
    """The ``error`` member of a reply."""

    code: int = INTERNAL_ERROR
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
    """Bytes that are not a JSON-RPC message; `code` is the JSON-RPC error code for the sender."""

    def __init__(self, why: str, code: int = PARSE_ERROR) -> None:
        self.code = code
        super().__init__(why)


class RequestError(Exception):
    """A JSON-RPC error that refuses a request: its code, message and data."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.code, self.message, self.data = code, message, data
        super().__init__(message)


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_members = msgspec.json.Decoder(Members).decode
_decode_error = msgspec.json.Decoder(Error).decode
_encode = msgspec.json.Encoder().encode


def decode(frame: bytes) -> Envelope:
    """Decode one message.

    Raises:
        MalformedError: it is not JSON, not UTF-8, nested too deeply, or not a JSON-RPC message.
    """
    # The payload stays undecoded, so a later check would come only in the client.
    if not is_utf8(frame):
        raise MalformedError("it is not UTF-8")
    try:
        return _decode_envelope(frame)
    except (msgspec.DecodeError, RecursionError) as error:
        # Text that was cut in the middle of an emoji holds half a character: it becomes U+FFFD.
        mended = _ESCAPE.sub(lambda match: match[1] or rb"\ufffd", frame)
        if mended != frame:
            return decode(mended)
        known = isinstance(error, msgspec.ValidationError)
        raise MalformedError(str(error), INVALID_REQUEST if known else PARSE_ERROR) from None


def decode_from_client(frame: bytes) -> Envelope:
    """Decode one message of a client, with the checks that JSON-RPC asks of a server.

    Raises:
        MalformedError: see `decode`; also if the message can be read but is no valid request or response.
    """
    message = decode(frame)
    if message.method is UNSET:
        if message.result is UNSET and message.error is UNSET:
            raise MalformedError("it has neither a method nor a result nor an error", INVALID_REQUEST)
        return message
    if message.jsonrpc is UNSET or text(message.jsonrpc) != "2.0":
        raise MalformedError('its jsonrpc must be "2.0"', INVALID_REQUEST)
    if message.id is None or isinstance(message.id, float):
        raise MalformedError("its id must be a string or an integer", INVALID_REQUEST)
    if isinstance(message.params, Raw) and not starts_with(message.params, b"{"):
        raise MalformedError("its params must be an object", INVALID_REQUEST)
    return message


_ESCAPE = re.compile(
    rb"(\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|\\[^u]|\\u(?![dD][89a-fA-F]))"
    rb"|\\u[dD][89a-fA-F][\da-fA-F]{2}"
)
"""Any escape in JSON; outside the group, half of a surrogate pair."""


def decode_error(raw: Raw) -> Error:
    """Decode an ``error`` member; a malformed one becomes an internal error that says so."""
    try:
        return _decode_error(raw)
    except msgspec.DecodeError:
        return Error(INTERNAL_ERROR, "malformed error object")


def members(raw: bytes | Raw) -> Members:
    """Decode the keys of a JSON object; its values stay raw.

    Raises:
        msgspec.DecodeError: it is not an object.
    """
    return _decode_members(raw)


def value(raw: bytes | Raw) -> Any:
    """Decode JSON to Python values.

    Raises:
        msgspec.DecodeError: it is not JSON.
    """
    return msgspec.json.decode(raw)


def starts_with(raw: bytes | Raw, *kinds: bytes) -> bool:
    """Return whether JSON without leading space starts with one of these characters, which tell its kind."""
    # A view, because `bytes(raw)` would copy the whole payload.
    return bytes(memoryview(raw)[:1]) in kinds


def text(raw: bytes | Raw | None) -> str | None:
    """Decode a JSON string; None if it is absent or of another kind."""
    if raw is None:
        return None
    decoded = _lenient(raw)
    return decoded if isinstance(decoded, str) else None


def number(raw: bytes | Raw | None) -> float | None:
    """Decode a JSON number; None if it is absent or of another kind."""
    decoded = None if raw is None else _lenient(raw)
    return decoded if isinstance(decoded, int | float) and not isinstance(decoded, bool) else None


def _lenient(raw: bytes | Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None


def raw(obj: Any) -> Raw:
    """Encode Python values to `Raw`; `Raw` parts inside are copied byte for byte."""
    return Raw(_encode(obj))


def encode(obj: Any) -> bytes:
    """Encode Python values to bytes; `Raw` parts inside are copied byte for byte."""
    return _encode(obj)


def request(request_id: RequestId, method: str, params: Mapping[str, Any] | None) -> bytes:
    """Encode a request, without a line end."""
    return _encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}})


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """Encode a notification, without a line end."""
    if not params:
        return _encode({"jsonrpc": "2.0", "method": method})
    return _encode({"jsonrpc": "2.0", "method": method, "params": params})


def reply(request_id: RequestId, result: bytes | Raw) -> bytes:
    """Encode a successful reply around an already encoded result, without a line end."""
    # One join copies a large result once.
    return b"".join((b'{"jsonrpc":"2.0","id":', _encode(request_id), b',"result":', result, b"}"))


def error_reply(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """Encode an error reply, without a line end."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error})


_ID = re.compile(rb'"id"\s*:\s*(-?\d{1,18}(?=\s*[,}])|"[^"\\]{1,128}")')
_SCAN_BYTES = 256


def salvage_id(head: bytes, tail: bytes) -> RequestId | None:
    """Find the ``id`` of a message that cannot be decoded in its first and last bytes; None if not found.

    Serializers write the members of the envelope before or after the payload. So the first match at the
    start, or else the last match at the end, belongs to the envelope.
    """
    match = _ID.search(head[:_SCAN_BYTES])
    if match is None:
        matches = _ID.findall(tail[-_SCAN_BYTES:])
        found = matches[-1] if matches else None
    else:
        found = match.group(1)
    return None if found is None else msgspec.json.decode(found)


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
