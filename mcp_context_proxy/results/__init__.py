"""Results of calls: how each ended and what it links to; large ones shortened, kept, and read in parts."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.system import keep_latest

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


LINKS_KEPT: Final = 128
"""Links that are remembered for one owner: two pages of files that a server has found."""

LINK_CHARACTERS: Final = 2048
"""Length of a URI up to which a link is remembered."""

OWNERS_KEPT: Final = 200
"""Sessions, and principals without one, whose links are remembered: 50 MB at most, if all are full."""

_LINK: Final = "resource_link"
_LINK_BYTES: Final = _LINK.encode()


class _Content(Struct):
    type: str = ""
    uri: str = ""


class _Linking(Struct):
    """The member of a call's result that may have links to resources."""

    content: list[_Content] = []


_linking = msgspec.json.Decoder(_Linking).decode


def links_in(result: bytes) -> list[str]:
    """Return the URIs of the resources that a call's result links to, but for very long ones."""
    if _LINK_BYTES not in result or len(result) > MOST_DECODED:
        return []
    try:
        content = _linking(result).content
    except (msgspec.DecodeError, RecursionError):
        return []
    return [one.uri for one in content if one.type == _LINK and len(one.uri) <= LINK_CHARACTERS]


class ResourceLinks:
    """The servers whose results have linked to resources, for those who got the links.

    A server may link to a resource that it does not list, such as a file that the call has made. Nobody else
    is led to that server by the URI. An owner is a session, or a principal without one.
    """

    def __init__(self) -> None:
        self._servers: dict[str, dict[str, str]] = {}

    def note(self, owner: str, server: str, uris: Iterable[str]) -> None:
        """Remember the links in the result of a call; of two servers with one URI, the latest counts."""
        known = keep_latest(self._servers, owner, self._servers.get(owner, {}), OWNERS_KEPT)
        for uri in uris:
            keep_latest(known, uri, server, LINKS_KEPT)

    def server_of(self, uri: str, owner: str) -> str | None:
        """Return the name of the server that has linked to this resource."""
        return self._servers.get(owner, {}).get(uri)

    def forget(self, owner: str) -> None:
        self._servers.pop(owner, None)
