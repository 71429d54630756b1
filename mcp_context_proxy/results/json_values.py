"""Takes large JSON apart without decoding it whole: its shape, a smaller copy of it, and parts by a path.

Values stay as they are written, each on one line: without the white space between their parts, but with the
numbers and the order of members of the server. Each step goes through the JSON once, and takes apart no more
than a bounded number of entries.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from math import fsum
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system.later import pattern

ENTRIES: Final = 100_000
"""Entries of an object or array, and values of an answer, that are taken apart: some 10 MB."""

SHAPE_DEPTH: Final = 4
SHAPE_MEMBERS: Final = 30
SHAPE_SAMPLES: Final = 20
"""Levels, members of an object, and elements of an array that a shape is made of."""

KEY_CHARACTERS: Final = 60
"""Characters of a member's name that a shape shows."""

LONG_TEXT: Final = 2_000
"""Bytes from which a shape tells the size of a text."""

COPY_DEPTH: Final = 20
"""Levels that a smaller copy goes into: each gets a part of the room of the one above."""

LEAST_BYTES: Final = 40
"""Room for a value under which nothing of it is worth showing."""

PATH_CHARACTERS: Final = 1_000
PATH_STEPS: Final = 32
"""Longest path and most steps in it; no honest one has as many."""

LEAST_ROWS: Final = 3
"""Lines from which a text may be a table, without the line under the names."""

CELLS: Final = 2_000_000
COLUMN_BYTES: Final = 16
"""Cells of a table, which are read in a second, and bytes for the name of its column beside each of them."""

WALKED_BYTES: Final = 128 * 1024 * 1024
"""Bytes that the steps of a path go through together: the largest result eight times, which is a second."""

LOOKED_AT: Final = 10 * ENTRIES
"""Members that the conditions of a step look at together, which is one or two seconds."""

_TOO_MANY: Final = "it has too many steps or conditions for a result of this size; read it by page or pattern"

_INDEX: Final = pattern(r"-?\d{1,9}", re.ASCII)
_SLICE: Final = pattern(r"(-?\d{1,9})? ?: ?(-?\d{1,9})?", re.ASCII)

_STEP: Final = pattern(r"""\[((?:[^]'"]|'[^']*'|"[^"]*")*)\]|\.?([^.\[]+)|\.(?=\[)""")
"""A bracket, in which a quoted name may have any characters but its own quote; or a name after a dot."""

_NO_ROW: Final = pattern(r"\s*|[ \r|:+-]+")
"""An empty line of a table, or that under the names."""

_COLUMN: Final = pattern(r"[^\W\d][^:=<>{}]{0,59}")
"""A name of a column: no time and no sentence of a log, which a table's first line would else be."""

_NUMBER: Final = pattern(r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,18})?", re.ASCII)

_NAME: Final = pattern(r"""\s*(?:(['"])(.*?)\1[^,]*|([^,]+))""", re.DOTALL)
"""A name between brackets, with or without quotes."""

_EMPTY_STEP: Final = 'it has an empty step; write it as items[*].title, or ["a name"] for odd names'

_TEST: Final = pattern(
    r"""[(\s]*(?:@\.?)?([\w.-]+)\s*(==?|!=|[<>]=?)\s*(?:'([^']*)'|"([^"]*)"|([^\s'"()|&]+))[)\s]*"""
)
"""A comparison of a member with a value, such as ``@.size > 3`` or ``user.login == 'ann'``."""

WHOLE_DIGITS: Final = 40
"""Characters of a whole number up to which it is compared and summed digit by digit."""

_COMPARED: Final = {"=": eq, "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}

_JOINT: Final = pattern(r"(?:&&|(\|\|)|and\b|(or)\b)", re.IGNORECASE)

_CONDITION: Final = (
    "a condition compares members with values, such as items[?size > 3 && state == 'open'], and has no "
    "brackets between && and ||; a pattern beside the path finds values by words"
)

_NAME_SHOWN: Final = pattern(r"[A-Za-z_][\w-]{0,23}")
"""A name that can stand in an example: it needs no quotes, and has no room for a sentence."""

_any = msgspec.json.Decoder(Raw).decode


class PathError(Exception):
    """A path that cannot be followed; the text tells a model why, and names the members that exist."""


class NoSmallerCopyError(Exception):
    """JSON of which no copy is small enough and still has the members and types that it had."""


def parsed(text: bytes) -> Raw | None:
    """Return the object or array that a text is, without white space; None if it is something else."""
    stripped = text.strip()
    if stripped[:1] not in (b"{", b"["):
        return None
    try:
        return _any(msgspec.json.format(stripped, indent=-1))
    except (msgspec.DecodeError, RecursionError):
        return None


def parsed_rows(text: bytes) -> Raw | None:
    """Return the rows of a text as an array of objects; None if it is no table, or one that is too large.

    It is one if it is JSON lines, or if its first line names the columns of all others, which commas,
    semicolons, tabs or the bars of markdown divide. A number among the cells is a number.
    """
    if text.count(b"\n") > 2 * ENTRIES:
        return None
    # Some programs begin a file with a byte order mark.
    lines = [line for line in text.decode("utf-8-sig").split("\n") if not _NO_ROW.fullmatch(line)]
    barred = [line.strip().removeprefix("|").removesuffix("|") for line in lines if line.startswith("|")]
    if 2 * len(barred) > len(lines):  # others may stand around the table
        lines = barred
    if not LEAST_ROWS <= len(lines) <= ENTRIES:
        return None
    if lines[0].startswith("{"):
        return parsed(f"[{','.join(lines)}]".encode())
    mark = next((mark for mark in "|\t;," if mark in lines[0]), ",")
    # Each row is taken apart as a whole, and may have millions of cells.
    cells = sum(line.count(mark) for line in lines)
    if max(cells, len(lines[0].encode()) // COLUMN_BYTES * len(lines)) > CELLS:
        return None
    # With those two nobody writes quotes around a cell, and a single one would take in all that follows.
    rows: Iterator[list[str]] = (line.split(mark) for line in lines)
    if mark in ";,":
        ended = (f"{line}\n" for line in lines)
        rows = csv.reader(ended, delimiter=mark, skipinitialspace=True, strict=True)
    try:
        names = [name.strip() for name in next(rows)]
        if not 1 < len(set(names)) == len(names) or not all(map(_COLUMN.fullmatch, names)):
            return None
        # One by one, as texts: all cells together would take several times as much.
        return envelope.raw([envelope.raw(dict(zip(names, map(_cell, row), strict=True))) for row in rows])
    except (csv.Error, ValueError):  # a row has fewer cells, or more
        return None


def _cell(text: str) -> Raw | str:
    text = text.strip()
    return Raw(text.encode()) if _NUMBER.fullmatch(text) else text


def members_of(value: bytes | Raw) -> Members | None:
    """Return the members of an object; None of anything else, and of one that has too many."""
    if not envelope.starts_with(value, b"{") or envelope.holds_a_flood(value, ENTRIES):
        return None
    return envelope.members(value)


def elements_of(value: bytes | Raw) -> list[Raw] | None:
    """Return the elements of an array; None of anything else, and of one that has too many."""
    if not envelope.starts_with(value, b"[") or envelope.holds_a_flood(value, ENTRIES):
        return None
    return envelope.elements(value)


def shape(value: bytes | Raw, depth: int = SHAPE_DEPTH) -> str:
    """Return the shape of JSON: names of members, types, and numbers of elements."""
    first = bytes(memoryview(value)[:1])
    if first == b'"':
        return "string" if len(value) < LONG_TEXT else f"string of {len(value):,} bytes"
    if first not in (b"{", b"["):
        return {b"t": "boolean", b"f": "boolean", b"n": "null"}.get(first, "number")
    if first == b"[":
        elements = elements_of(value)
        if elements is None:
            return f"array of more than {ENTRIES:,}"
        inside = _shape_of_elements(elements[:SHAPE_SAMPLES], depth - 1)
        return f"array of {len(elements):,}" + (f" {inside}" if inside else "")
    members = members_of(value)
    if members is None:
        return f"object of more than {ENTRIES:,} members"
    return _shape_of_members(members, depth)


def _shape_of_members(members: Members, depth: int) -> str:
    if depth <= 0:
        return "object"
    named = [
        f"{one_line(name, KEY_CHARACTERS)}: {shape(value, depth - 1)}"
        for name, value in list(members.items())[:SHAPE_MEMBERS]
    ]
    more = [f"... {len(members) - SHAPE_MEMBERS:,} more"] if len(members) > SHAPE_MEMBERS else []
    return "{" + ", ".join([*named, *more]) + "}"


def _shape_of_elements(samples: list[Raw], depth: int) -> str:
    """Return the common shape of elements: objects are told as one, with all their members."""
    merged: Members = {}
    for sample in samples:
        for name, value in (members_of(sample) or {}).items():
            if name not in merged or bytes(memoryview(merged[name])[:1]) == b"n":
                merged[name] = value
    if merged:
        return _shape_of_members(merged, depth)
    return shape(samples[0], depth) if samples and depth > 0 else ""


def smaller(value: bytes | Raw, most: int, *, same_types: bool, depth: int = 0) -> bytes:
    """Return a copy of JSON in about `most` bytes: the first elements of arrays, the beginning of texts.

    Each omission is told in its place. With `same_types` every object keeps its members and every value its
    type, so that a schema that fits the whole fits the copy, and only cut texts tell of it. Raises
    `NoSmallerCopyError` if with `same_types` there is no such copy.
    """
    if len(value) <= most:
        return bytes(value)
    first = bytes(memoryview(value)[:1])
    if first == b'"':
        return _shorter_string(value, most)
    copied = None
    if depth < COPY_DEPTH and most >= LEAST_BYTES:
        if first == b"[" and (elements := elements_of(value)) is not None:
            copied = _fewer_elements(elements, most, same_types, depth)
        elif first == b"{" and (members := members_of(value)) is not None:
            copied = _smaller_members(members, most, same_types, depth)
    if copied is None and same_types:
        raise NoSmallerCopyError
    return envelope.encode(f"... {len(value):,} bytes") if copied is None else copied


def _shorter_string(value: bytes | Raw, most: int) -> bytes:
    text = (envelope.text(value) or "").encode()
    # Of a text with many escapes less fits.
    room = max(0, most - LEAST_BYTES) * len(text) // max(1, len(value))
    end = cut(text, 0, room) if room > LEAST_BYTES else 0
    return envelope.encode(text[:end].decode() + f"... [{len(text) - end:,} more bytes]")


def _fewer_elements(elements: list[Raw], most: int, same_types: bool, depth: int) -> bytes:
    room, kept = most - LEAST_BYTES, list[bytes]()
    for element in elements:
        room -= len(element) + 1
        if room < 0:
            break
        kept.append(bytes(element))
    if not kept:
        kept.append(smaller(elements[0], most - LEAST_BYTES, same_types=same_types, depth=depth + 1))
    if not same_types and len(kept) < len(elements):
        kept.append(envelope.encode(f"... {len(elements) - len(kept):,} more elements"))
    return b"[" + b",".join(kept) + b"]"


def _smaller_members(members: Members, most: int, same_types: bool, depth: int) -> bytes | None:
    names = {name: envelope.encode(name) for name in members}
    least = sum(len(names[name]) + 2 + min(len(value), LEAST_BYTES) for name, value in members.items())
    left_out = 0
    if least > most:
        if same_types:
            return None
        members, left_out = _first_members(members, names, most - LEAST_BYTES)
        most -= LEAST_BYTES
    # The small ones take what they need, the large ones share the rest.
    room = most - 2 - sum(len(names[name]) + 2 for name in members)
    shares: dict[str, int] = {}
    for left, name in enumerate(sorted(members, key=lambda name: len(members[name]))):
        shares[name] = min(len(members[name]), max(LEAST_BYTES, room // (len(members) - left)))
        room -= shares[name]
    copied = [
        names[name] + b":" + smaller(value, shares[name], same_types=same_types, depth=depth + 1)
        for name, value in members.items()
    ]
    if left_out:
        copied.append(b'"...":' + envelope.encode(f"{left_out:,} more members"))
    return b"{" + b",".join(copied) + b"}"


def _first_members(members: Members, names: dict[str, bytes], most: int) -> tuple[Members, int]:
    first: Members = {}
    for name, value in members.items():
        most -= len(names[name]) + 2 + min(len(value), LEAST_BYTES)
        if most < 0:
            break
        first[name] = value
    return first, len(members) - len(first)


class _MemberName(Struct, frozen=True):
    name: str


class _Fields(Struct, frozen=True):
    names: tuple[str, ...]


class _Test(Struct, frozen=True):
    """A comparison of a member with a value: as numbers, if both are, and else as texts."""

    names: Sequence[str]
    holds: Callable[[Any, Any], Any]
    wanted: str

    def met_by(self, value: Raw | None) -> bool:
        for name in self.names:
            value = None if value is None else (members_of(value) or {}).get(name)
        if value is None:
            return self.holds is ne
        text = envelope.text(value)
        own = bytes(value).decode() if text is None else text
        try:
            # Equal texts are equal, also if they are "nan".
            return bool(
                self.holds(own, self.wanted)
                if own == self.wanted
                else self.holds(_number(own), _number(self.wanted))
            )
        except ValueError:
            return bool(self.holds(own, self.wanted))


def _number(text: str) -> int | float:
    """Return a number as exactly as it can be: those of ids that differ in a digit are equal as floats."""
    try:
        return int(text) if len(text) <= WHOLE_DIGITS else float(text)
    except ValueError:
        return float(text)


class _Elements(Struct, frozen=True):
    """A slice of an array, or one element if `single`."""

    which: slice
    single: bool = False
    tests: Sequence[Sequence[_Test]] = ()
    """Conditions, if any: each of them meets all of one group."""

    @property
    def looks(self) -> int:
        """Members that the conditions look at in an element, at most."""
        return sum(len(test.names) for group in self.tests for test in group)

    def takes(self, value: Raw) -> bool:
        return any(all(test.met_by(value) for test in group) for group in self.tests)


_Step: TypeAlias = _MemberName | _Fields | _Elements


def project(value: Raw, path: str) -> tuple[bytes, list[Raw]]:
    """Return the part of JSON that a path leads to, and the values if it leads to several, one a line.

    A path is a simple JSON path: ``items[0].title``, ``$.items[*].user.login``, ``items[10:20]``, and fields
    of objects as ``items[*][id,title]``, or ``id,title`` alone. A condition stands for the elements that meet
    it: ``items[?size > 3 && state == 'open' || late == true]``, and ``[0:3]`` after it for the first three. A
    member of an array is that of each of its elements, and a number is the element, as in ``items.0.title``.
    A text alone is given as it is, without quotes. Raises `PathError` if the path cannot be read or leads
    nowhere.
    """
    steps = _steps(path)
    values, several, walked = [value], False, 0
    for asked in steps:
        step, times = asked, asked.looks if isinstance(asked, _Elements) else 0
        walked += sum(map(len, values)) * (1 + times)
        if walked > WALKED_BYTES:
            raise PathError(_TOO_MANY)
        in_array = any(envelope.starts_with(each, b"[") for each in values)
        if in_array and isinstance(step, _MemberName) and _INDEX.fullmatch(step.name):
            step = _bracket(step.name)
        if isinstance(step, _Elements):
            several = several or not step.single
        elif in_array:
            values, several = _all_elements(values, _Elements(slice(None))), True
        before = values
        if not isinstance(step, _Elements):
            values = _members(values, step)
        elif several and values and not in_array and not step.tests:
            values = values[step.which]  # some of those found: the first that meet a condition
        else:
            values = _all_elements(values, step)
        if not values and before and not (several and isinstance(step, _Elements)):
            raise PathError(_nowhere(step, before))
    if several:
        return b"\n".join(map(bytes, values)), values
    (only,) = values
    if envelope.starts_with(only, b'"'):
        return (envelope.text(only) or "").encode(), []
    return bytes(only), []


def summed(values: list[Raw]) -> str:
    """Return sum, least and greatest of values that are numbers; empty if any is none."""
    if len(values) < 2 or not all(envelope.starts_with(each, b"-0123456789") for each in values):
        return ""
    numbers = [_number(bytes(each).decode()) for each in values]
    try:
        total = sum(numbers) if all(isinstance(each, int) for each in numbers) else fsum(numbers)
    except (OverflowError, ValueError):  # no float is as large, or two are infinite
        return ""
    told = {"sum": total, "least": min(numbers), "greatest": max(numbers)}
    shown = (f"{name} {of if isinstance(of, int) else f'{of:.15g}'}" for name, of in told.items())
    return f"{len(values):,} numbers: " + ", ".join(shown)


def _all_elements(values: list[Raw], step: _Elements) -> list[Raw]:
    found: list[Raw] = []
    looked_at: list[Raw] = []
    left, asked = LOOKED_AT, {test.names[0] for group in step.tests for test in group}
    for value in values:
        elements = elements_of(value)
        if elements is None and envelope.starts_with(value, b"["):
            raise PathError(f"an array has more than {ENTRIES:,} elements; read it by page or pattern")
        chosen = (elements or [])[step.which]
        if (left := left - len(chosen) * step.looks) < 0:
            raise PathError(_TOO_MANY)
        looked_at += chosen if asked else ()
        found += filter(step.takes, chosen) if asked else chosen
        if len(found) > ENTRIES:
            raise PathError(f"it leads to more than {ENTRIES:,} values; take a part, such as [0:1000]")
    if looked_at and not found and not any(asked & (members_of(each) or {}).keys() for each in looked_at):
        raise PathError(_nowhere(_Fields(tuple(sorted(asked))), looked_at))
    return found


def _members(values: list[Raw], step: _MemberName | _Fields) -> list[Raw]:
    found: list[Raw] = []
    places = {name: at for at, name in enumerate(step.names)} if isinstance(step, _Fields) else {}
    for value in values:
        members = members_of(value)
        if members is None:
            continue
        if isinstance(step, _Fields):
            # The smaller of both is gone through: a path may ask for hundreds of fields of many objects.
            if there := members.keys() & places.keys():
                found.append(
                    envelope.raw({name: members[name] for name in sorted(there, key=places.__getitem__)})
                )
        elif step.name in members:
            found.append(members[step.name])
    return found


def _nowhere(step: _Step, values: list[Raw]) -> str:
    """Return why a step leads nowhere, with the members that exist."""
    there = shape(values[0], 2) if values else "nothing"
    if isinstance(step, _Elements):
        wanted = "elements" if not step.single else f"element {step.which.start}"
    else:
        wanted = "member " + " or ".join(map(repr, step.names if isinstance(step, _Fields) else [step.name]))
    return f"there is no {wanted}; what there is: {one_line(there, LONG_TEXT // 2)}"


def _steps(path: str) -> list[_Step]:
    """Read a path; raises `PathError` if it is none."""
    text = path.strip().removeprefix("$")
    if len(text) > PATH_CHARACTERS:
        raise PathError(f"a path has at most {PATH_CHARACTERS:,} characters")
    if "," in text and not set(text) & set(".["):
        text = f"[{text}]"
    steps = list(_read_steps(text))
    if len(steps) > PATH_STEPS:
        raise PathError(f"a path has at most {PATH_STEPS} steps")
    return steps


def _read_steps(text: str) -> Iterator[_Step]:
    at = 0
    while at < len(text):
        if (found := _STEP.match(text, at)) is None:
            raise PathError("a bracket in it is not closed" if text[at] == "[" else _EMPTY_STEP)
        inside, name = found.groups()
        if inside is not None:
            yield _bracket(inside.strip())
        elif name is not None:
            if not (name := name.strip()):
                raise PathError(_EMPTY_STEP)
            yield _Elements(slice(None)) if name == "*" else _MemberName(name)
        at = found.end()


def _bracket(inside: str) -> _Step:
    if inside in ("*", ""):
        return _Elements(slice(None))
    if _INDEX.fullmatch(inside):
        index = int(inside)
        return _Elements(slice(index, index + 1 or None), single=True)
    if bounds := _SLICE.fullmatch(inside):
        return _Elements(slice(*(int(bound) if bound else None for bound in bounds.groups())))
    if inside.startswith("?"):
        return _Elements(slice(None), tests=_tests(inside[1:]))
    found = (quoted or plain.strip() for _, quoted, plain in _NAME.findall(inside))
    names = tuple(dict.fromkeys(filter(None, found)))
    return _MemberName(names[0]) if len(names) == 1 else _Fields(names)


def _tests(text: str) -> list[list[_Test]]:
    """Read conditions that ``&&`` joins to groups, and ``||`` the groups."""
    groups, at, joints = [list[_Test]()], 0, set[bool]()
    while (found := _TEST.match(text, at)) is not None:
        name, sign, *values = found.groups()
        wanted = next(each for each in values if each is not None)
        groups[-1].append(_Test(name.split("."), _COMPARED[sign], wanted))
        at = found.end()
        if at == len(text):
            # Brackets may join others first than are joined here.
            if len(joints) > 1 and "(" in text:
                break
            return groups
        if (joint := _JOINT.match(text, at)) is None:
            break
        joints.add(is_or := any(joint.groups()))
        groups += [[]] if is_or else []
        at = joint.end()
    raise PathError(_CONDITION)


def example_paths(value: Raw) -> str:
    """Return paths that lead into JSON, as examples: to the elements of its first array, if there is one."""
    todo, path = [("", value)], ""
    while todo:
        path, one = todo.pop(0)
        if elements := elements_of(one):
            fields = _shown_names(elements[0])[:2]
            some = [f'"{path}[0:20]"', *([f'"{path}[*][{",".join(fields)}]"'] if len(fields) > 1 else [])]
            return " or ".join([*some, *(f'"{path}[?{fields[0]}=x].{field}"' for field in fields[1:])])
        if len(todo) < SHAPE_MEMBERS and path.count(".") < SHAPE_DEPTH:
            members = members_of(one) or {}
            todo += [(f"{path}.{name}".removeprefix("."), members[name]) for name in _shown_names(one)]
    return f'"{path or "[0]"}"'


def _shown_names(value: Raw) -> list[str]:
    return [name for name in members_of(value) or {} if _NAME_SHOWN.fullmatch(name)][:SHAPE_MEMBERS]


_PARAGRAPH: Final = b"\n\n"
_BREAKS: Final = (b"\n", b"},", b"],", b">", b", ", b",", b" ")
"""Ends of a line, an element of JSON or markup, and a word; the first that is found near the end counts."""


def cut(text: bytes, start: int, most: int) -> int:
    """Return where a piece of at most `most` bytes that begins at `start` ends best."""
    end = start + most
    if end >= len(text):
        return len(text)
    at = text.rfind(_PARAGRAPH, end - most // 4, end)
    if at >= 0:
        return at + len(_PARAGRAPH)
    for mark in _BREAKS:
        at = text.rfind(mark, end - most // 2, end)
        if at >= 0:
            return at + len(mark)
    return character_start(text, end)


def character_start(text: bytes, at: int) -> int:
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at
