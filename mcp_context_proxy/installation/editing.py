"""Edits the servers in a host's settings in place: JSON with comments, TOML or YAML.

Such a file belongs to its person. Comments, order, indentation, line ends and unknown keys stay as they are;
only the entries that leave or come are touched. Whatever the edit does, its result is read again and compared
with what was meant: a file is never changed otherwise. A form that cannot be edited this way, such as a TOML
table on one line, is refused in words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from datetime import date, time
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from mcp_context_proxy.config.hosts import name_in_list
from mcp_context_proxy.config.source import read_toml
from mcp_context_proxy.config.texts import (
    ROW,
    parts_of,
    plain_json,
    read_json,
    read_yaml,
    toml_statements,
    without_comments,
)
from mcp_context_proxy.errors import ContextProxyError
from mcp_context_proxy.system.later import yaml

Form: TypeAlias = Literal["json", "toml", "yaml"]
FORMS: Final[Mapping[str, Form]] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
"""Forms of files by their suffixes; all others are JSON."""
Place: TypeAlias = tuple[str, ...]
"""Keys that lead to the servers: ``("mcp", "servers")``."""

_BOM: Final = "\ufeff"
_DECODER: Final = json.JSONDecoder(strict=False)
_SPACE: Final = re.compile(r"\s*")
_REST_OF_LINE: Final = re.compile(r"[ \t]*(?://[^\n]*|/\*[^\n]*?\*/[ \t]*)?(?=\r?\n)")
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9.]+(?:[eE][-+]?[0-9]+)?|0o[0-7]+)$")
_INDENT: Final = re.compile(r"^([ \t]+)\S", re.MULTILINE)

_REMEDIES: Final[Mapping[Form, str]] = {
    "json": "",
    "toml": "; write each as a table of its own, such as [mcp_servers.NAME]",
    "yaml": "; write each on lines of its own",
}


class EditError(ContextProxyError):
    """The text cannot be edited; the message says why, and ends without a full stop."""


def entries(form: Form, text: str, place: Place) -> dict[str, Any]:
    """Return the servers in a text by name; an empty one has none.

    Raises `EditError` if the text cannot be read, or something else stands at the place.
    """
    found: Any = _parsed(form, text)
    for key in place:
        found = found.get(key) if isinstance(found, dict) else None
    if found is None:
        return {}
    if isinstance(found, list):
        names = [name_in_list(one, at) for at, one in enumerate(found)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise EditError(f"two servers there are called {twice}; rename one of them first")
        return dict(zip(names, found, strict=True))
    if not isinstance(found, dict):
        raise EditError(f"{'.'.join(place)} is not an object")
    if (odd := next((name for name in found if not isinstance(name, str)), None)) is not None:
        raise EditError(f"the name {odd!r} there is not a text; put it into quotes")
    return found


def edited(
    form: Form,
    text: str,
    place: Place,
    remove: Collection[str],
    insert: Mapping[str, Any],
    *,
    listed: bool = False,
) -> str:
    """Return a text without some servers at a place, and with others before those that stay.

    In a list of servers, as in YAML files of Continue, the name of an inserted one is added to its entry.
    With `listed`, the first servers of a file become such a list. Raises `EditError` if the text cannot be
    read, or the edit would change something else.
    """
    body, as_it_was = unified(text)
    if not body.strip() and form == "json":
        body = "{}\n"
    wanted = _expected(_parsed(form, body), place, remove, insert, listed=listed)
    changes: dict[str, Callable[[str, Place, Collection[str], Mapping[str, Any]], str]]
    changes = {"json": _edit_json, "toml": _edit_toml, "yaml": partial(_edit_yaml, listed=listed)}
    got, result = None, None
    # A form that was not thought of is refused, whatever it does to the edit.
    with suppress(ValueError, IndexError):
        result = changes[form](body, place, remove, insert)
    with suppress(EditError):
        got = None if result is None else _parsed(form, result)
    if result is None or (got != wanted and (form != "toml" or got != _without_empty(wanted, place))):
        raise EditError(f"its servers are written in a form that cannot be edited in place{_REMEDIES[form]}")
    return as_it_was(result)


def unified(text: str) -> tuple[str, Callable[[str], str]]:
    """Return a text without the mark of its encoding and with line ends of Unix, and the way back.

    Where both kinds of line ends stand, none is changed.
    """
    bom, body = (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)
    crlf = 0 < body.count("\n") == body.count("\r\n")
    if not crlf:
        return body, lambda result: bom + result
    return body.replace("\r\n", "\n"), lambda result: bom + result.replace("\n", "\r\n")


def _parsed(form: Form, text: str) -> Any:
    text = text.removeprefix(_BOM)
    try:
        if form == "toml":
            return read_toml(text.replace("\r\n", "\n"))
        if form == "yaml":
            found = read_yaml(text)
            found = {} if found is None else found
        else:
            found = read_json(text, strict=False) if text.strip() else {}
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise EditError(f"it is not valid JSON: {error.msg[:1].lower()}{error.msg[1:]} ({where})") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            raise EditError(f"it is not valid YAML: {error.problem} (line {mark.line + 1})") from None  # type: ignore[union-attr]
        raise EditError(f"it is not valid {form.upper()}: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise EditError(f"it is not valid: the {form.upper()} must hold an object")
    return found


def _expected(
    before: Any, place: Place, remove: Collection[str], insert: Mapping[str, Any], *, listed: bool
) -> Any:
    """Return the data that the edited text must have."""
    holder = after = dict(before)
    for key in place[:-1]:
        inner = {} if holder.get(key) is None else holder[key]
        if not isinstance(inner, dict):
            raise EditError(f"{'.'.join(place)} is not an object")
        holder[key] = dict(inner)
        holder = holder[key]
    servers = holder.get(place[-1])
    if listed and insert and servers is None:
        servers = []
    if isinstance(servers, list):
        kept: Any = [one for one in servers if not (isinstance(one, dict) and str(one.get("name")) in remove)]
        holder[place[-1]] = [*({"name": name, **entry} for name, entry in insert.items()), *kept]
    elif servers is None or isinstance(servers, dict):
        kept = {name: one for name, one in (servers or {}).items() if str(name) not in remove}
        if servers is not None or insert:
            holder[place[-1]] = kept | {
                name: dict(entry) if isinstance(entry, Mapping) else entry for name, entry in insert.items()
            }
    else:
        raise EditError(f"{'.'.join(place)} is not an object")
    return after


def _without_empty(data: Any, place: Place) -> Any:
    """Remove the tables that lead to no server: TOML has no header for them."""
    if not place or not isinstance(data, dict) or place[0] not in data:
        return data
    inner = _without_empty(data[place[0]], place[1:])
    rest = {key: value for key, value in data.items() if key != place[0]}
    return rest if inner == {} else {**rest, place[0]: inner}


# JSON with comments. Positions are those of the text with comments and trailing commas blanked, which are the
# same as in the text itself.


class _Member(Struct):
    """One member of an object, with the comments above it and beside it."""

    key: str
    begin: int
    value: int
    value_end: int
    comma: int | None
    """Position of the comma after it, also of one that the object could do without."""
    end: int


def _edit_json(text: str, place: Place, remove: Collection[str], insert: Mapping[str, Any]) -> str:
    plain = plain_json(text)
    at, rest = _SPACE.match(plain, 0).end(), list(place)  # type: ignore[union-attr]
    while rest:
        # The last one counts where a key is given twice, as in every JSON parser.
        inner = {one.key: one.value for one in _members(text, plain, at)}.get(rest[0])
        if inner is None or plain[inner] != "{":
            break
        at = inner
        rest.pop(0)
    if rest:
        new: Any = insert
        for key in reversed(rest[inner is not None :]):
            new = {key: new}
        if inner is None:
            return _with_members(text, plain, at, new) if insert else text
        if not plain.startswith("null", inner):
            raise EditError(f"{'.'.join(place)} is not an object")
        unit = found[1] if (found := _INDENT.search(text)) else "  "
        shown = _json(new, _indent_at(text, _skip(plain, at + 1)), unit)
        return text[:inner] + shown + text[inner + 4 :] if insert else text
    members = _members(text, plain, at)
    leaving = [one for one in members if one.key in remove or one.key in insert]
    staying = [one for one in members if one not in leaving]
    spans = [(one.begin, one.end) for one in leaving]
    if staying and leaving and members[-1] in leaving and members[-1].comma is None:
        comma = staying[-1].comma
        if comma is not None:
            spans.append((comma, comma + 1))
    for begin, end in sorted(spans, reverse=True):
        # What follows on its last line would end up in the comment of the line before.
        goes_on = text[begin : begin + 1] == "\n" and not _REST_OF_LINE.match(text, end)
        text = text[:begin] + ("\n" if goes_on else "") + text[end:]
    return _with_members(text, plain_json(text), at, insert) if insert else text


def _members(text: str, plain: str, at: int) -> list[_Member]:
    bare = text if plain == text else without_comments(text)
    found: list[_Member] = []
    begin = at + 1
    at = _skip(plain, begin)
    while plain[at] != "}":
        key, key_end = _DECODER.raw_decode(plain, at)
        value = _skip(plain, _skip(plain, key_end) + 1)
        _, value_end = _DECODER.raw_decode(plain, value)
        after = _skip(bare, value_end)
        comma = after if bare[after] == "," else None
        end = value_end if comma is None else comma + 1
        beside = _REST_OF_LINE.match(text, end)
        end = beside.end() if beside else end
        found.append(_Member(key, begin, value, value_end, comma, end))
        begin = end
        at = _skip(plain, value_end)
        at = _skip(plain, at + 1) if plain[at] == "," else at
    return found


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _with_members(text: str, plain: str, at: int, new: Mapping[str, Any]) -> str:
    members = _members(text, plain, at)
    close = _skip(plain, members[-1].value_end if members else at + 1)
    on_one_line = bool(members) and "\n" not in text[at:close]
    unit = found[1] if (found := _INDENT.search(text)) else "  "
    outer = _indent_at(text, at)
    inner = _indent_at(text, _skip(plain, at + 1)) if members and not on_one_line else outer + unit
    lines = []
    for key, value in new.items():
        shown = json.dumps(value, ensure_ascii=False) if on_one_line else _json(value, inner, unit)
        lines.append(f"{json.dumps(key, ensure_ascii=False)}: {shown}")
    if on_one_line:
        return text[: at + 1] + ", ".join(lines) + ", " + text[at + 1 :].lstrip(" ")
    body = ",".join(f"\n{inner}{line}" for line in lines)
    if members:
        return text[: at + 1] + body + "," + text[at + 1 :]
    between = text[at + 1 : close].rstrip()
    return text[: at + 1] + between + body + f"\n{outer}" + text[close:]


def _json(value: Any, indent: str, unit: str) -> str:
    """Return JSON as people write it: each member of an object on a line, a list on one."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = indent + unit
    rows = [f"{json.dumps(key, ensure_ascii=False)}: {_json(one, inner, unit)}" for key, one in value.items()]
    return "{\n" + ",\n".join(inner + row for row in rows) + f"\n{indent}}}"


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


# TOML: the rows from the header of a table to its last value leave, with the comment directly above them.


def _edit_toml(text: str, place: Place, remove: Collection[str], insert: Mapping[str, Any]) -> str:
    rows = ROW.findall(text)
    runs: list[tuple[int, int]] = []
    goes_on = False
    for one in toml_statements(text):
        if not one.opens and not one.value:
            continue  # a comment, or nothing
        paths = [one.table] if one.opens else [(*one.table, *path) for path, _ in parts_of(one.value)]
        below = [path[len(place)] for path in paths if path[: len(place)] == place != path]
        leaves = bool(below) and all(name in remove for name in below)
        if leaves and goes_on:
            runs[-1] = (runs[-1][0], one.end)
        elif leaves:
            first = one.begin
            while first and rows[first - 1].lstrip().startswith("#"):
                first -= 1
            # One of the empty rows around it leaves, too.
            first -= first > 0 and not rows[first - 1].strip()
            runs.append((first, one.end))
        goes_on = leaves
    leaving = {row for begin, end in runs for row in range(begin, end)}
    result = "".join(row for number, row in enumerate(rows) if number not in leaving)
    for name, entry in insert.items():
        result = result.rstrip("\n") + ("\n\n" if result.strip() else "") + toml_table((*place, name), entry)
    return result


def toml_table(path: Place, entry: Mapping[str, Any]) -> str:
    """Return a TOML table with its header, each value on a line of its own."""
    rows = [f"{_toml_key(key)} = {_toml(value)}\n" for key, value in entry.items() if value is not None]
    return f"[{'.'.join(map(_toml_key, path))}]\n" + "".join(rows)


def with_value(text: str, path: Place, key: str, value: bool | float) -> str:
    """Return a TOML text with a value in the table at a path; in an unusual form it has something else."""
    rows, statements = ROW.findall(text), [*toml_statements(text)]
    found = next((one for one in statements if one.table == path and key in one.value), None)
    header = next((one for one in statements if one.opens and one.table == path), None)
    if found is not None:
        begin = re.compile(rf"^(\s*{key}\s*=\s*)[\w.]+")
        rows[found.begin] = begin.sub(lambda match: match[1] + _toml(value), rows[found.begin])
    elif header is not None:
        rows[header.begin] = rows[header.begin].rstrip("\n") + f"\n{key} = {_toml(value)}\n"
    else:
        return text.rstrip("\n") + "\n\n" + toml_table(path, {key: value})
    return "".join(rows)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, str):
        # A basic string of TOML is a JSON string, but for the character DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml_key(key)} = {_toml(one)}" for key, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, date | time):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else json.dumps(value)


# YAML: the parser says where each entry stands, and whole lines leave and come.


def _edit_yaml(
    text: str, place: Place, remove: Collection[str], insert: Mapping[str, Any], *, listed: bool
) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    node: Any = root
    named: Any = None
    for key in place:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        # The last one counts where a key is given twice, as for the host.
        same = [(name, value) for name, value in pairs if name.value == key]
        named, node = same[-1] if same else (None, None)
    if node is None:
        if len(place) != 1:
            raise EditError(f"{'.'.join(place)} is missing; write that key first")
        text += "" if not text or text.endswith("\n") else "\n"
        return text + f"{place[0]}:\n{_yaml_lines(insert, '  ', in_list=listed)}" if insert else text
    in_list = isinstance(node, yaml.SequenceNode) or (listed and isinstance(node, yaml.ScalarNode))
    if not node.value:  # {}, [] or nothing
        start, end = node.start_mark.index, node.end_mark.index
        lines = _yaml_lines(insert, "  ", in_list=in_list)
        return f"{text[:start].rstrip(' ')}\n{lines}{text[end:].lstrip(chr(10))}" if insert else text
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        raise EditError(f"its servers are written on one line{_REMEDIES['yaml']}")
    starts = list(_yaml_starts(text, node, in_list))
    first = min(begin for _, begin, _ in starts)
    spans = [(begin, _yaml_end(text, begin, end)) for name, begin, end in starts if name in remove]
    if len(spans) == len(starts) and not insert:
        # Without any entry, the key would have no value.
        colon = text.index(":", named.end_mark.index) + 1
        spans.append((colon, colon))
    indent = _indent_at(text, first + len(text[first:]) - len(text[first:].lstrip(" ")))
    for begin, end in sorted(spans, reverse=True):
        text = text[:begin] + (f" {'[]' if in_list else '{}'}" if begin == end else "") + text[end:]
    return text[:first] + _yaml_lines(insert, indent, in_list=in_list) + text[first:] if insert else text


def _yaml_starts(text: str, node: Any, in_list: bool) -> Iterator[tuple[str, int, int]]:
    """Yield each entry with the beginning of its first line, and the end that the parser knows."""
    for one in node.value:
        key, value = (one, one) if in_list else one
        begin = text.rfind("\n", 0, key.start_mark.index) + 1
        name = key.value
        if in_list:
            pairs = one.value if isinstance(one, yaml.MappingNode) else []
            name = next((str(inner.value) for key, inner in pairs if key.value == "name"), "")
        yield str(name), begin, value.end_mark.index


def _yaml_end(text: str, begin: int, end: int) -> int:
    """Return the end of the last line of an entry; empty lines and comments after it are not its own."""
    rows = ROW.findall(text[begin:end])
    while rows and (not rows[-1].strip() or rows[-1].lstrip().startswith("#")):
        rows.pop()
    end = begin + sum(map(len, rows))
    return end if text[end - 1 : end] == "\n" else (text.find("\n", end) + 1 or len(text))


def _yaml_lines(insert: Mapping[str, Any], indent: str, *, in_list: bool) -> str:
    data: Any = {name: dict(entry) for name, entry in insert.items()}
    if in_list:
        data = [{"name": name, **entry} for name, entry in insert.items()]
    if not data:
        return ""

    class Dumper(yaml.SafeDumper):
        """Puts a text into quotes that a reader of YAML 1.2 would take for a number."""

    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("0123456789+-."))
    shown = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return "".join(indent + row for row in ROW.findall(shown))
