"""Decisions of a person: definitions that wait for one, how they differ, how they are approved or rejected.

A person approves by a hash of what they have looked at, so that nothing else is approved if it changes again
in between. What had to be approved begins anew: nothing that was learned about the tool before speaks for it.

Differences between two definitions are shown with new sentences first, then words, then the structure.
Servers write both definitions, so each step takes time in proportion to the texts. Usually the lines are
shortened, and whoever approves what was shortened has to ask for all of it first. Characters that a person
does not see are written out as code points.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from mcp_context_proxy.config.settings import ApprovalMode
from mcp_context_proxy.errors import ContextProxyError
from mcp_context_proxy.protocol.strangers import clean
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.store.statistics import DAY
from mcp_context_proxy.store.tables import Additions, ApprovalRecord, ApprovalRow
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.trust.approval import Name
from mcp_context_proxy.trust.fingerprints import TAKEN, UNDECIDED, Approvable, Event, State

SHOWN_CHARACTERS: Final = 1_000
"""Characters of a line that are shown unless all of it is asked for."""
COMPARED_WORDS: Final = 300
"""Words of a text that are compared one by one, in time that may be the square of their number."""
COMPARISONS: Final = 2 * COMPARED_WORDS**2
"""Comparisons of words for one definition, which may have a thousand texts; further ones are shown whole."""
LINES: Final = 60
"""Lines about one definition."""

_SENTENCE_END: Final = pattern(r"(?<=[.!?])\s|(?<=[。！？])|\n")
_WORDS: Final = pattern(r"\s+|[^\s]+")


def changed_lines(before: bytes | None, after: bytes) -> list[str]:
    """Return all lines that tell a person how a definition differs from the one before it.

    ``before`` was served, None if there was nothing; ``after`` is what the server lists now.
    """
    old, new = ({} if before is None else _decoded(before)), _decoded(after)
    # What is new as a whole needs no list of its sentences before it.
    sentences = () if before is None else _new_sentences(old, new)
    return [*sentences, *_differences("", old, new, [COMPARISONS])]


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
    known = {sentence.rstrip(".") for _, text in _texts("", old) for sentence in _sentences(text)}
    for place, text in _texts("", new):
        for sentence in _sentences(text):
            if sentence.rstrip(".") not in known:
                known.add(sentence.rstrip("."))
                yield f"new in {place or 'it'}: {visible(sentence)}"


def _sentences(text: str) -> Iterable[str]:
    return filter(None, map(str.strip, _SENTENCE_END.split(text)))


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
    """Yield the additions, removals and changes in a structure, each with its place.

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
        from difflib import SequenceMatcher  # noqa: PLC0415 - a person compares, seldom

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


HASH_DIGITS: Final = 40
"""Hexadecimal digits of the hash by which a person approves. A server has all the time to look for two
definitions of its own with one hash, of which it shows one and has the other approved: with as many digits it
would have to try 2^80, and with 16 some billions, which a graphics card does in a second."""


class ApprovalError(ContextProxyError):
    """A person's decision cannot be made; the text says why, and names a remedy."""


def latest(rows: Iterable[ApprovalRow]) -> list[ApprovalRow]:
    """Return the definition of each name that its server listed last."""
    found: dict[Name, ApprovalRow] = {}
    for row in rows:
        found[row.kind, row.name] = row
    return list(found.values())


def pending(rows: Iterable[ApprovalRow]) -> list[ApprovalRow]:
    """Return the definitions of a server that wait for a person: the latest of each name, if it is held."""
    return [row for row in latest(rows) if row.state in UNDECIDED]


def hash_of(rows: Iterable[ApprovalRow]) -> str:
    """Return the hash of definitions, whatever their order."""
    parts = sorted(f"{row.kind}\0{row.name}\0".encode() + row.seen + row.rest for row in rows)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:HASH_DIGITS]


class Change(Struct, frozen=True):
    """A definition that waits for a person, or that was taken lately without one."""

    row: ApprovalRow
    lines: tuple[str, ...]
    """Differences from the definition that was served before it."""
    is_whole: bool
    """True if these are all: then a person who has read them has seen what there is to approve."""

    @property
    def waits(self) -> bool:
        return self.row.state in UNDECIDED

    @property
    def taken_by_mode(self) -> bool:
        """True if it was taken although nobody has looked at it."""
        return self.row.state in TAKEN and self.row.decided in get_args(ApprovalMode)

    @property
    def standing(self) -> str:
        """The state and how it came about, in words."""
        row = self.row
        if row.state == State.RESTRAINED:
            return "taken, but its new hints wait for approval"
        if row.state == State.REJECTED:
            return "rejected"
        what = WORDS[Event(row.event)] + (f": {row.reason}" if row.reason else "")
        return f"withheld ({what})" if row.state == State.HELD else f"taken ({what})"


WORDS: Final = {
    Event.FIRST: "seen for the first time",
    Event.SUSPECT: "suspect",
    Event.CHANGED: "changed without a new version",
    Event.UPDATED: "changed with a new version",
    Event.NEW: "new",
    Event.LOOSENED: "promises less harm than before",
    Event.REST: "changed where no model sees it",
}
"""Events as a person reads them."""


def changes(
    store: Store,
    server: str,
    *,
    days: float,
    whole: bool = False,
    most: int | None = None,
) -> list[Change]:
    """Return the definitions of a server that wait, then those that changed in the last days. Blocking.

    Long differences are shortened unless they are to be `whole`; `most` is the number of definitions. Raises
    `StoreError` if the store cannot be read.
    """
    rows = store.approvals.record(server).rows
    since = time_of_day() - days * DAY
    found: list[tuple[ApprovalRow, ApprovalRow | None]] = []
    for row in latest(rows):
        if row.state != State.APPROVED or (row.event != Event.FIRST and row.time >= since):
            of_name = [one for one in rows if (one.kind, one.name) == (row.kind, row.name)]
            served = [one for one in of_name if one is not row and one.state in TAKEN]
            found.append((row, served[-1] if served else None))
    found.sort(key=lambda pair: (pair[0].state == State.APPROVED, pair[0].kind, pair[0].name))
    if most is not None:
        del found[most:]
    keys = {one.key for pair in found for one in pair if one is not None}
    definitions = store.approvals.definitions(keys)
    told: list[Change] = []
    for row, base in found:
        before = None if base is None else definitions.get(base.key)
        lines = changed_lines(before, definitions.get(row.key, b"{}"))
        shown = lines if whole else shortened(lines)
        told.append(Change(row, tuple(shown), shown == lines))
    return told


def decide(
    store: Store,
    server: str,
    names: Collection[str],
    state: State,
    *,
    by: str,
    expected: str | None = None,
) -> list[ApprovalRow]:
    """Approve or reject definitions of a server; return their new rows. Blocking.

    Args:
        store: The store.
        server: Name of the server.
        names: Own names; none stands for everything that waits.
        state: `State.APPROVED` or `State.REJECTED`.
        by: The way in which the person decided.
        expected: Hash of what the person has seen; needed to approve.

    Raises:
        ApprovalError: there is nothing to decide, or it is not what the person has seen.
        StoreError: nothing was written.
    """
    decided: list[ApprovalRow] = []
    changed: list[tuple[str, str]] = []

    def add(kept: ApprovalRecord) -> Additions:
        among = pending(kept.rows) if state is State.APPROVED or not names else latest(kept.rows)
        chosen = [row for row in among if not names or row.name in names]
        # A tool and a prompt may have one name; the hash says which of them the person has seen.
        if len(names) == 1:
            chosen = next(([row] for row in chosen if hash_of([row]) == expected), chosen)
        if missing := sorted(set(names) - {row.name for row in chosen}):
            told = ", ".join(map(repr, missing))
            raise ApprovalError(f"server {server!r} has no definition {told} to decide about")
        if not chosen:
            raise ApprovalError(f"nothing of server {server!r} waits for approval")
        if state is State.APPROVED and hash_of(chosen) != (expected or "").lower():
            raise ApprovalError(
                f"this is not the hash of what waits at server {server!r} now: look again "
                f"(mcp-context-proxy changes {server})"
            )
        now = time_of_day()
        held = (row.name for row in chosen if row.kind == Approvable.TOOL and row.state == State.HELD)
        changed[:] = [(server, name) for name in held]
        decided[:] = [msgspec.structs.replace(row, state=state, decided=by, time=now) for row in chosen]
        return Additions(tuple(decided))

    store.approvals.decide(server, add)
    if state is State.APPROVED and changed:
        store.learned.forget_tools(changed)
        store.tool_sessions.forget(changed)
        store.statistics.settle(changed)
    return decided
