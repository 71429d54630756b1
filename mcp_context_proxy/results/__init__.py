"""Results of calls: how each ended; large ones shortened for a model, kept for a while, read in parts."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from mcp_context_proxy.protocol import envelope

MOST_DECODED: Final = 1024 * 1024
"""Size of a result up to which it is decoded; a larger one counts as a success."""


class Outcome(Enum):
    """Ways in which a call ends."""

    SUCCEEDED = auto()
    FAILED = auto()
    """The result says so, or cannot be read."""
    ASKS = auto()
    """The result requires input; the call ends when the client has given it."""


SUCCEEDED: Final = Outcome.SUCCEEDED
FAILED: Final = Outcome.FAILED
ASKS: Final = Outcome.ASKS


_ABSENT: Final = Raw()
_COMPLETE: Final = b'"complete"'
"""The type of nearly all results of the modern era."""


class _Ending(Struct):
    """The members of a call's result that tell how it ended, and what is in it."""

    is_error: Raw = field(name="isError", default=_ABSENT)
    result_type: Raw = field(name="resultType", default=_ABSENT)
    structured: Raw = field(name="structuredContent", default=_ABSENT)


_ending = msgspec.json.Decoder(_Ending).decode


def ending_of(result: bytes) -> tuple[Outcome, bool]:
    """Return how a call with this result ended, and whether it may have structured content."""
    # Passing over a result takes less time than two searches in it, but megabytes take too long.
    if len(result) > MOST_DECODED:
        return SUCCEEDED, True
    try:
        ending = _ending(result)
    except (msgspec.DecodeError, RecursionError):
        return FAILED, True
    named = bytes(ending.result_type)
    if named and named != _COMPLETE and envelope.text(named) == "input_required":
        outcome = ASKS
    elif ending.is_error is not _ABSENT and bytes(ending.is_error) == b"true":
        outcome = FAILED
    else:
        outcome = SUCCEEDED
    return outcome, ending.structured is not _ABSENT


def outcome_of(result: bytes) -> Outcome:
    return ending_of(result)[0]
