"""The text of an interaction as it is kept: without secrets and what nobody sees, and of a bounded length."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.text import clean

ARGUMENTS_BYTES: Final = 64 * 1024
"""Arguments of a call that are looked into: what is longer is a file, and would be cut to nothing telling."""

LEVELS: Final = 32
"""Of arguments that are looked into; deeper ones are left out."""

LEFT_OUT: Final = "..."

_SECRET_NAME: Final = re.compile(
    r"passw|passphrase|secret|token|api_?-?key|private_?-?key|credential|authorization|cookie", re.IGNORECASE
)
"""Arguments with such names are not kept."""

Redact = Callable[[str], str]


def plain(text: str, redact: Redact, most: int) -> str:
    """Anybody's text as it is kept."""
    # A secret that was cut in two would not be known any more.
    return clean(redact(clean(text)))[:most].strip()


def call(name: str, arguments: bytes, goal: str | None) -> str:
    """What a call says: its goal, the tool, its arguments."""
    said = f"{name} {_arguments(arguments)}".rstrip()
    return f"{goal}\n{said}" if goal else said


def _arguments(encoded: bytes) -> str:
    if len(encoded) > ARGUMENTS_BYTES:
        return LEFT_OUT
    try:
        value = envelope.value(encoded)
        if isinstance(value, str):  # as some models send them
            value = envelope.value(value.encode("utf-8", "replace")) if value.strip() else None
        return envelope.encode(_without_secrets(value, LEVELS)).decode() if value else ""
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return LEFT_OUT


def _without_secrets(value: Any, levels: int) -> Any:
    if isinstance(value, dict | list) and levels == 0:
        return LEFT_OUT
    if isinstance(value, dict):
        return {
            key: "[redacted]"
            if isinstance(member, str) and _SECRET_NAME.search(key)
            else _without_secrets(member, levels - 1)
            for key, member in value.items()
        }
    if isinstance(value, list):
        return [_without_secrets(member, levels - 1) for member in value]
    return value
