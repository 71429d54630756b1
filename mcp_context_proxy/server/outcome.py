"""What came of a call, told by its result; nothing else of the result is looked at."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import msgspec

from mcp_context_proxy.wire import envelope, era

MOST_BYTES: Final = 1024 * 1024
"""Of a result that is looked into; a larger one is taken for a success."""


class Outcome(Enum):
    """How a call ended."""

    SUCCEEDED = auto()
    FAILED = auto()
    """The tool says so, or what it says cannot be read."""
    ASKS = auto()
    """It asks something in return, and ends when that is answered."""


def outcome_of(result: bytes) -> Outcome:
    """How a call with this result ended."""
    if len(result) > MOST_BYTES:
        return Outcome.SUCCEEDED
    try:
        members = envelope.members(result)
    except (msgspec.DecodeError, RecursionError):
        return Outcome.FAILED
    if era.result_type(members) == "input_required":
        return Outcome.ASKS
    return Outcome.FAILED if bytes(members.get("isError", b"false")) == b"true" else Outcome.SUCCEEDED
