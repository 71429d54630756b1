"""Keeps a server's secrets out of its failures and notifications. Other results pass as they came."""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from mcp_context_proxy.config.redaction import Redactor
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallInterruptedError,
    DownstreamError,
    RemoteError,
    ServerUnavailableError,
)
from mcp_context_proxy.threads import in_thread
from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import Members

LARGE_BYTES: Final = 256 * 1024
"""That are not looked through on the event loop: each secret has some forty forms."""


def redacted(error: DownstreamError, redact: Redactor) -> DownstreamError:
    """The same error without the secrets that the server's own words may hold."""
    match error:
        case RemoteError():
            data = Raw(redact.json(bytes(error.data))) if isinstance(error.data, Raw) else error.data
            return RemoteError(error.server, error.code, redact(error.remote_message), data)
        case BadAnswerError():
            return BadAnswerError(error.server, redact(error.what), error.http_status)
        case CallInterruptedError():
            return CallInterruptedError(error.server, error.subject, redact(error.cause))
        case ServerUnavailableError():
            return ServerUnavailableError(error.server, error.state, redact(error.cause), error.stderr)
    return error


async def redacted_result(result: bytes, redact: Redactor) -> bytes:
    """The same result; without secrets if it tells of a failure, as a URL with its key would.

    Any other is the server's to say: a proxy that edits data is wrong about it sooner or later.
    """
    if b'"isError"' not in result or bytes(envelope.members(result).get("isError", b"")) != b"true":
        return result
    if len(result) < LARGE_BYTES:
        return redact.json(result)
    return await in_thread(redact.json, result)


def redacted_params(params: Members, redact: Redactor) -> Members:
    """What a notification says: a log message or the progress of a call is for people and for logs."""
    return {name: Raw(redact.json(bytes(raw))) for name, raw in params.items()}
