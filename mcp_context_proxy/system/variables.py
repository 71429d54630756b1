"""Environment variables that every server inherits.

Standard library only: the bridge reads it, too.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

_SYSTEM: Final = (
    (
        *("APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT"),
        *(
            "PROCESSOR_ARCHITECTURE",
            "PROGRAMDATA",
            "PROGRAMFILES",
            "SYSTEMDRIVE",
            "SYSTEMROOT",
            "TEMP",
            "TMP",
        ),
        *("USERNAME", "USERPROFILE", "WINDIR"),
    )
    if sys.platform == "win32"
    else ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "XDG_*")
)
"""The user, the programs, and the folders for temporary and other files."""
_LANGUAGE: Final = ("LANG", "LANGUAGE", "LC_*", "TZ")
_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE")
"""Certificates to trust, such as those of a company's network. Without them, every request of a server fails
there, and so does its download."""
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""The way out of such a network. The URL of a proxy may have a password: see `inherited_secrets`."""

INHERITED: Final = (
    *_SYSTEM,
    *_LANGUAGE,
    *_CERTIFICATES,
    *_PROXIES,
    *(name.lower() for name in _PROXIES),
)
"""Names and patterns of the variables that every server inherits."""


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name of a variable is one of some names and patterns."""
    names, globs = _sorted_out(tuple(patterns))
    name = _folded(name)
    return name in names or any(fnmatchcase(name, one) for one in globs)


@lru_cache(maxsize=64)
def _sorted_out(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names and the patterns apart: each of some hundred variables is compared with them."""
    folded = [*map(_folded, patterns)]
    return frozenset(folded), tuple(one for one in folded if "*" in one)


def _folded(name: str) -> str:
    """Return a name as it is compared: on Windows, its case does not count."""
    return name.upper() if sys.platform == "win32" else name
