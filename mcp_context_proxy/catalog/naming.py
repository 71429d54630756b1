"""Names that hosts see: ``<server>__<tool>``, valid everywhere, unique, and the same on every start.

A name depends on its own server and tool alone, never on what else is in the catalog, so it stays when
other servers come and go. Whatever could make two pairs meet in one name (a character that had to be
replaced, a cut, an underscore beside the separator) brings a short hash of the original pair with it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

SEPARATOR = "__"
HASH_LENGTH = 6
"""Hexadecimal digits of the hash in a name: 1 in 16 million that two altered names of one shape meet."""

_VALID = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*")
_INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")


def exposed_name(server: str, name: str, max_length: int) -> str:
    """The exposed name of a tool or prompt.

    Args:
        server: Key of the server; holds no separator.
        name: As the server itself names it; any text.
        max_length: Longest name allowed, in characters.
    """
    plain = f"{server}{SEPARATOR}{name}"
    ambiguous = server.endswith("_") or name.startswith("_")
    if _VALID.fullmatch(plain) and len(plain) <= max_length and not ambiguous:
        return plain
    cleaned = _INVALID_CHARACTER.sub("_", plain)
    if not _VALID.match(cleaned):
        cleaned = "_" + cleaned
    return _with_hash(cleaned, f"{server}\0{name}", max_length)


def _with_hash(text: str, original: str, max_length: int) -> str:
    """`text` with a hash of `original` in it, cut in the middle so that both ends stay readable."""
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_LENGTH]
    room = max_length - len(digest) - 1
    if len(text) <= room:
        return f"{text}_{digest}"
    room -= 1
    head = room - room // 3
    return f"{text[:head]}_{digest}_{text[len(text) - (room - head) :]}"


def bare_names(
    pairs: Sequence[tuple[str, str]], reserved: Iterable[str], max_length: int
) -> dict[tuple[str, str], str]:
    """Names without prefix where these are valid and unique; the prefixed name elsewhere.

    Args:
        pairs: Server and own name of everything in the catalog.
        reserved: Names that are taken by the proxy itself.
        max_length: Longest name allowed, in characters.
    """
    count = Counter(name for _, name in pairs)
    prefixed = {(server, name): exposed_name(server, name, max_length) for server, name in pairs}
    # A tool may be named like another server's tool with its prefix.
    taken = {*reserved, *prefixed.values()}
    return {
        (server, name): name
        if count[name] == 1 and name not in taken and len(name) <= max_length and _VALID.fullmatch(name)
        else prefixed[server, name]
        for server, name in pairs
    }
