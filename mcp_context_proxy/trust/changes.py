"""Differences between two definitions, for a person: new sentences first, then words, then the structure.

Servers write both definitions, so each step takes time in proportion to the texts. Usually the lines are
shortened, and whoever approves what was shortened has to ask for all of it first. Characters that a person
does not see are written out as code points.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

from mcp_context_proxy.protocol.text import clean

SHOWN_CHARACTERS: Final = 1_000
"""Characters of a line that are shown unless all of it is asked for."""
COMPARED_WORDS: Final = 300
"""Words of a text that are compared one by one, in time that may be the square of their number."""
COMPARISONS: Final = 2 * COMPARED_WORDS**2
"""Comparisons of words for one definition, which may have a thousand texts; further ones are shown whole."""
LINES: Final = 60
"""Lines about one definition."""

_SENTENCE: Final = re.compile(r"[^.!?\n]+[.!?]*")
_WORDS: Final = re.compile(r"\s+|[^\s]+")


def changed_lines(before: bytes | None, after: bytes) -> list[str]:
    """Return all lines that tell a person how a definition differs from the one before it.

    Args:
        before: The definition that was served; None if there was none.
        after: The one that a server lists now.
    """
    old, new = ({} if before is None else _decoded(before)), _decoded(after)
    lines = [*_new_sentences(old, new)]
    return [*lines, *_differences("", old, new, [COMPARISONS])]


def shortened(lines: Sequence[str]) -> list[str]:
    """Return lines without the ends of long ones, and without those that are too many."""
    shown = [
        line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}... ({len(line):,} characters)"
        for line in lines[:LINES]
    ]
    more = len(lines) - LINES
    return shown if more <= 0 else [*shown, f"... and {more:,} more differences"]


def visible(text: str) -> str:
    """Return a text on one line, with the characters that a person does not see as code points."""
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character == "\n":
        return "\\n"
    if character.isascii() and character.isprintable():
        return character
    if character.isprintable() and clean(character) == character:
        return character
    return f"<U+{ord(character):04X}>"


def _decoded(definition: bytes) -> Any:
    try:
        return json.loads(definition)
    except (ValueError, RecursionError):
        return {"": definition.decode("utf-8", "replace")}


def _new_sentences(old: Any, new: Any) -> Iterator[str]:
    known = {sentence for _, text in _texts("", old) for sentence in _sentences(text)}
    for place, text in _texts("", new):
        for sentence in _sentences(text):
            if sentence not in known:
                known.add(sentence)
                yield f"new in {place or 'it'}: {visible(sentence)}"


def _sentences(text: str) -> Iterable[str]:
    return (found[0].strip() for found in _SENTENCE.finditer(text) if found[0].strip())


def _texts(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts that are read, with their places; names and values that are no sentences are none."""
    if isinstance(value, str):
        if " " in value or not value.isascii():
            yield place, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(f"{place}[{number}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(_below(place, key), item)


def _below(place: str, key: str) -> str:
    shown = visible(key)
    return f"{place}.{shown}" if place else shown


def _differences(place: str, old: Any, new: Any, left: list[int]) -> Iterator[str]:
    """Yield what was added, removed or changed in a structure, each with its place.

    `left` has the number of comparisons that are left.
    """
    if old == new and type(old) is type(new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*new, *old)):
            at = _below(place, key)
            if key not in old:
                yield f"+ {at}: {_value(new[key])}"
            elif key not in new:
                yield f"- {at}: {_value(old[key])}"
            else:
                yield from _differences(at, old[key], new[key], left)
    elif isinstance(old, list) and isinstance(new, list) and max(len(old), len(new)) <= COMPARED_WORDS:
        known = [json.dumps(item, sort_keys=True) for item in old]
        now = [json.dumps(item, sort_keys=True) for item in new]
        yield from (
            f"+ {place}: {_value(item)}" for item, text in zip(new, now, strict=True) if text not in known
        )
        yield from (
            f"- {place}: {_value(item)}" for item, text in zip(old, known, strict=True) if text not in now
        )
        if sorted(known) == sorted(now):
            yield f"~ {place}: another order"
    elif isinstance(old, str) and isinstance(new, str):
        yield f"~ {place}: {word_difference(old, new, left)}"
    else:
        yield f"~ {place}: {_value(old)} -> {_value(new)}"


def _value(value: Any) -> str:
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def word_difference(old: str, new: str, left: list[int]) -> str:
    """Return a text with the words that were removed in ``[-...-]`` and the added ones in ``{+...+}``."""
    before, after = _WORDS.findall(old), _WORDS.findall(new)
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    gone, come = before[start : len(before) - end], after[start : len(after) - end]
    left[0] -= len(gone) * len(come)
    if max(len(gone), len(come)) > COMPARED_WORDS or left[0] < 0:
        middle = _marked("".join(gone), "".join(come))
    else:
        matcher = SequenceMatcher(a=gone, b=come, autojunk=False)
        middle = "".join(
            visible("".join(gone[i:j]))
            if kind == "equal"
            else _marked("".join(gone[i:j]), "".join(come[k:m]))
            for kind, i, j, k, m in matcher.get_opcodes()
        )
    head, tail = "".join(before[:start]), "".join(before[len(before) - end :])
    head = f"...{head[-80:]}" if len(head) > 80 else head
    tail = f"{tail[:80]}..." if len(tail) > 80 else tail
    return f"{visible(head)}{middle}{visible(tail)}"


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of words with which both begin."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _marked(gone: str, come: str) -> str:
    return (f"[-{visible(gone)}-]" if gone else "") + (f"{{+{visible(come)}+}}" if come else "")
