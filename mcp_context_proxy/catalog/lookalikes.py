"""Names that a person takes for one another: they differ in case, a hyphen, or letters of another script."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

_LETTERS: Final = dict(
    zip(
        # Cyrillic, then Greek, in small letters.
        "аеорсухіјѕһԁԛԝкмтв" + "αορνικτυχγ",
        "aeopcyxijshdqwkmtb" + "aopviktuxy",
        strict=True,
    )
)
"""Those that are drawn like Latin ones."""

_SEPARATORS: Final = dict.fromkeys("-./ ", "_")
_DIGITS: Final = {"0": "o", "1": "l"}

NAMED: Final = 5
"""Of a group; more say nothing new."""

_TABLE: Final = str.maketrans({**_LETTERS, **_SEPARATORS, **_DIGITS})


def lookalikes(names: Iterable[str]) -> Iterator[str]:
    """What is to be said of each group of tools whose names look alike."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[_seen(name)].append(name)
    for group in groups.values():
        if len(group) > 1:
            more = ", ..." if len(group) > NAMED else ""
            yield f"tools whose names look alike: {', '.join(map(repr, group[:NAMED]))}{more}"


def _seen(name: str) -> str:
    """What is left of a name for somebody who reads it in passing."""
    folded = name.lower() if name.isascii() else unicodedata.normalize("NFKC", name).casefold()
    return folded.translate(_TABLE)
