"""Tools in few words: signatures, first sentences of descriptions, and notes about parameters.

A signature has what a call needs: ``create_issue(title: string, labels?: string[], ... 3 optional)``.
Optional parameters that a query speaks of come first, and a note is given where the description of a
parameter says more than its name, such as the format of a time.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, TypeAlias
from weakref import ref

from msgspec import Struct, field

from mcp_context_proxy.items import Snapshot, Source, Tool, ToolKey
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.retrieval.text import identifier_words, terms
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import keep_latest

COUNTED_NAMES: Final = 40
"""Required parameters that a signature names; the others are counted. No real tool has as many."""

ENUM_VALUES: Final = 40
"""Values of an enumeration that a required parameter spells out."""

OPTIONAL_ENUM_VALUES: Final = 6
"""Most values of an optional parameter that are all spelled out."""

FIRST_VALUES: Final = 3
"""Values of a longer enumeration that an optional parameter spells out; the others are counted."""

OPTIONS: Final = 8
"""Alternative types that a signature spells out."""

NESTED: Final = 4
"""Lists and alternatives within each other that a signature follows."""

LOOKS: Final = 2_000
"""Members, values and nested parameters that a signature looks at, ten times those of any real tool. A
stranger's schema may lead to the same thousands of parameters again and again."""

ALWAYS_NAMED: Final = 3
"""Optional parameters that a signature names in any detail where a query speaks of them."""

LITERAL_CHARACTERS: Final = 60
TYPE_CHARACTERS: Final = 400
NAME_CHARACTERS: Final = 60
FORMAT_CHARACTERS: Final = 20

NOTES: Final = 6
"""Parameters of a tool that are noted."""

NOTE_CHARACTERS: Final = 90
"""Length to which a note is cut."""

NEW_TERMS: Final = 3
"""Words that a note needs beyond those of the tool and the parameter, unless it has an example."""

NOTHING_NEW: Final = frozenset(
    terms("array given identifier input list name number object optional required specific string")
)
"""Terms of notes that say what every parameter is."""

EXAMPLES: Final = frozenset("'\"`<(0123456789")
"""Characters of notes that have an example."""

DESCRIBED_CHARACTERS: Final = 300
"""Characters of a parameter's description in which words of a query are looked for."""

PLAIN_FORMATS: Final = frozenset({"uri", "url", "string"})
"""Formats of texts that the names of parameters say."""

SENTENCES_FROM: Final = 2000
"""Characters of a description in which its sentences are looked for."""

WRAPPED_FROM: Final = 50
"""Length from which a line without an end of a sentence is taken to go on in the next line."""

SIBLINGS: Final = 8
"""Tools of the same server on either side, in order of their names, that a sentence is looked for in."""

SHARED_BY: Final = 2
"""Siblings that have a sentence, too, from which on it tells nothing about a tool."""

SENTENCES_KEPT: Final = 240
"""Characters of a tool's sentences: the most that an answer tells of a tool."""

TOOLS_KEPT: Final = 1_000
"""Latest tools whose lines are kept, in some 2 MB."""

KEPT_BYTES: Final = 8_192
"""Size of a definition up to which they are; one of a thousand real tools is larger."""

LINES_KEPT: Final = 32
"""Lines of a tool that are kept: notes, and a few for each detail."""

LINE_CHARACTERS: Final = 1_000
"""Length up to which they are; a schema may branch into fifty times as much."""


class Detail(Struct, frozen=True):
    """Amount that an answer tells about an item."""

    characters: int
    """Length of the description, or half of that of a document's excerpt."""
    optional: int
    """Optional parameters that are named; the others are counted."""
    depth: int
    """Levels of nested objects that are spelled out; deeper ones read ``object``."""
    notes: bool = False
    """True to note what parameters mean."""


Named: TypeAlias = tuple[tuple[str, bool], ...]
"""Optional parameters that a signature names, each with whether its values are spelled out."""


class Lines(Struct, frozen=True, eq=False):
    """Text about one tool that does not depend on a query; many answers tell the same tools."""

    tool: Tool
    source: ref[Source]
    """Where the tool and its siblings are from, as long as that is listed."""
    sentences: list[str]
    required: list[str]
    """Required parameters that may be noted."""
    optional: list[tuple[str, str, str]]
    """Optional parameters, each with the words of its name and values, and of its description."""
    own: frozenset[str]
    """Terms of the names of tool and server, in the form of `query_terms`: these tell no parameter."""
    made: dict[tuple[object, ...], str] = field(default_factory=dict)
    """Lines that an answer has made, by all that they depend on."""


_latest: OrderedDict[ToolKey, Lines] = OrderedDict()
"""The lines of the latest tools."""

_keeping = threading.Lock()


def query_terms(query: str) -> list[str]:
    """Return the terms of a query by which parameters are looked for, each after a blank."""
    return [f" {term}" for term in terms(query) if len(term) > 2]


class ToldTool:
    """One tool as the answer to a query tells it."""

    def __init__(self, tool: Tool, snapshot: Snapshot, asked: Sequence[str]) -> None:
        """Take a tool, and the terms of the query that it was found for; see `query_terms`."""
        self.tool = tool
        source, known = _sources(snapshot).get(tool.server) or Source("", ()), _latest.get(tool.key)
        if known is None or known.tool is not tool or known.source() is not source:
            own = frozenset(query_terms(identifier_words(f"{tool.name} {tool.server}")))
            sentences = telling_sentences(tool, source, SENTENCES_KEPT)
            known = Lines(tool, ref(source), sentences, *self._signature.names(), own)
        if len(tool.written) <= KEPT_BYTES:
            with _keeping:
                keep_latest(_latest, tool.key, known, TOOLS_KEPT)
        self._lines = known
        self._spoken_of = self._found_in(asked) if known.optional and asked else {}
        self._by_name = [one for one, strength in self._spoken_of.items() if strength == 2][:ALWAYS_NAMED]

    @cached_property
    def _signature(self) -> ToolSignature:
        """The schema is decoded only where a line is made anew."""
        return ToolSignature(self.tool)

    def _found_in(self, asked: Sequence[str]) -> dict[str, int]:
        """Return the optional parameters that the query speaks of: 2 by name or value, 1 by description."""
        others = [term for term in asked if term not in self._lines.own]
        found: dict[str, int] = {}
        for name, named, described in self._lines.optional if others else ():
            if strength := 2 if _speaks_of(others, named) else int(_speaks_of(others, described)):
                found[name] = strength
        return found

    def parameters(self, detail: Detail) -> str:
        """Return the parameters in brackets, as they stand after the name."""
        spoken_of, first = self._spoken_of, None
        if spoken_of:
            names = [name for name, *_ in self._lines.optional]
            names.sort(key=lambda name: -spoken_of.get(name, 0))
            named = _named(names, max(detail.optional, len(self._by_name)))
            first = tuple((name, spoken_of.get(name) == 2) for name in named)
        # Within objects, as many are named as in any signature of this detail.
        key = detail.optional, detail.depth, first
        return self._line(key, lambda: self._signature.text("", detail, first))

    def description(self, characters: int) -> str:
        """Return as many sentences as there is room for."""
        return self._line((characters,), lambda: cut_to_sentences(self._lines.sentences, characters))

    @cached_property
    def notes(self) -> list[str]:
        """A line for each parameter whose description says more than its name, the required ones first."""
        named = [*self._lines.required, *self._by_name][:NOTES]
        made = (self._line(("note", name), partial(self._noted, name)) for name in named)
        return [note for note in made if note]

    def _noted(self, name: str) -> str:
        return self._signature.note(name)

    def _line(self, key: tuple[object, ...], make: Callable[[], str]) -> str:
        made = self._lines.made
        if (known := made.get(key)) is None:
            if len(made) >= LINES_KEPT:
                made.clear()
            known = make()
            if len(known) <= LINE_CHARACTERS:
                made[key] = known
        return known


class ToolSignature:
    """The parameters of one tool as text, in any detail."""

    def __init__(self, tool: Tool) -> None:
        self._tool, self.root = tool, envelope.schema_of(tool.definition)
        self._nested, self.looks = 0, 0
        self.properties, self.needed, self._options = self.members(self.root)
        self._first: Named | None = None
        self._optional_named = 0

    def text(self, name: str, detail: Detail, first: Named | None = None) -> str:
        """Return a signature; `first` has the optional parameters that it names, else the first are."""
        # A schema that leaves open whether there are any parameters; the protocol demands at least its type.
        if not isinstance(self.root, dict) or not self.root.keys() - {"$schema", "title", "description"}:
            return f"{name}(parameters not told by its server)"
        self._first, self._optional_named, self.looks = first, detail.optional, 0
        return f"{name}({', '.join(self._parameters(self.root, detail.depth))})"

    def names(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Return the required and the optional parameters, as `Lines` has them."""
        required, optional = list[str](), list[tuple[str, str, str]]()
        for name, schema in self.properties.items():
            if name in self.needed:
                required.append(name)
                continue
            values = [value.lower() for value in as_list(schema, "enum") if isinstance(value, str)]
            described = as_dict(schema).get("description")
            told = described[:DESCRIBED_CHARACTERS].lower() if isinstance(described, str) else ""
            optional.append((name, " ".join([identifier_words(name), *values]), told))
        return required[:NOTES], optional

    def note(self, name: str) -> str:
        """Return a line about a parameter whose description says more than its name; empty for another."""
        schema = self.properties[name]
        note = self._note(name, {**as_dict(self._resolved(schema)), **as_dict(schema)})
        return note and f"{as_word(name)}: {note}"

    def _note(self, name: str, schema: Mapping[str, Any]) -> str:
        """Return the part of a parameter's description that goes beyond its name; empty if none does."""
        described, form = schema.get("description"), schema.get("pattern")
        text = one_line(_first_sentence(described)) if isinstance(described, str) else ""
        if len(text) > NOTE_CHARACTERS:
            text = f"{text[: NOTE_CHARACTERS - 4].rpartition(' ')[0]} ..."
        if not EXAMPLES.isdisjoint(text):
            return text
        new = {*terms(text)} - self._known - NOTHING_NEW
        if len(new) >= NEW_TERMS and len(new.difference(terms(identifier_words(name)))) >= NEW_TERMS:
            return text
        is_short = isinstance(form, str) and len(form) <= LITERAL_CHARACTERS
        return f"matches {one_line(form)}" if is_short and isinstance(form, str) else ""

    @cached_property
    def _known(self) -> set[str]:
        """Terms of the name and the first sentence of the tool."""
        return {*terms(identifier_words(self._tool.name)), *terms(_first_sentence(self._tool.description))}

    def _parameters(self, schema: Any, depth: int) -> Iterator[str]:
        """Yield the required parameters of an object with their types, then optional ones, then choices."""
        properties, needed, options = self.properties, self.needed, self._options
        if schema is not self.root:
            properties, needed, options = self.members(schema)
        for name in (required := [name for name in properties if name in needed])[:COUNTED_NAMES]:
            default = _default(properties[name])
            yield f"{as_word(name)}: {self._type(properties[name], depth, True)}{default}"
        if (more := len(required) - COUNTED_NAMES) > 0:
            yield f"... {more} more"
        optional = [name for name in properties if name not in needed]
        first = self._first if schema is self.root else None
        if first is None:
            first = tuple((name, False) for name in _named(optional, self._optional_named))
        for name, spelled in first:
            given = _without_null(self._resolved(properties[name]))
            yield f"{as_word(name)}?: {self._type(given, depth, spelled)}"
        if (more := len(optional) - len(first)) > 0:
            yield f"... {more} optional"
        if depth > 0 and self.looks < LOOKS:
            told = (", ".join(self._parameters(option, depth - 1)) for option in options)
            if choices := dict.fromkeys(f"{{{one}}}" for one in told if one):
                yield " | ".join(choices)

    def members(self, schema: Any) -> tuple[dict[str, Any], set[str], list[Any]]:
        """Return the properties of an object, the required ones, and the objects of which it is one."""
        whole = self._resolved(schema)
        parts = [whole, *map(self._resolved, as_list(whole, "allOf")[:OPTIONS])]
        properties: dict[str, Any] = {}
        for part in map(as_dict, parts):
            given = as_dict(part.get("properties"))
            self.looks += len(given) + len(as_list(part, "required"))
            properties |= {name: given[name] for name in given if name not in properties}
        needed = {name for part in parts for name in as_list(part, "required") if isinstance(name, str)}
        options = [one for part in parts for key in ("anyOf", "oneOf") for one in as_list(part, key)]
        return properties, needed, self._fewer(options)[:OPTIONS]

    def _fewer(self, options: list[Any]) -> list[Any]:
        """Return alternatives, or a single one that has all of them if a word tells many of them apart.

        A tool that does a dozen things has an object for each, whose action is a constant.
        """
        if len(options) <= OPTIONS:
            return options
        resolved = [as_dict(self._resolved(one)) for one in options[:ENUM_VALUES]]
        parts = [as_dict(one.get("properties")) for one in resolved]
        self.looks += len(resolved) + sum(map(len, parts))
        rest = options[ENUM_VALUES:]  # which are only counted
        if all("const" in one for one in resolved):
            return [{"enum": [*(one["const"] for one in resolved), *rest]}]
        for name in parts[0]:
            values = [as_dict(part.get(name)).get("const") for part in parts]
            if None not in values:
                together = {key: one for part in parts for key, one in part.items()}
                properties = {**together, name: {"enum": [*values, *rest]}}
                return [{"type": "object", "properties": properties, "required": [name]}]
        return options

    def _type(self, schema: Any, depth: int, spelled: bool) -> str:
        text = self._any_type(self._resolved(schema), depth, spelled)
        return text if len(text) <= TYPE_CHARACTERS else text[: TYPE_CHARACTERS - 4] + " ..."

    def _resolved(self, schema: Any) -> Any:
        """Return the definition that a schema refers to, where it is in the same document."""
        for _ in range(OPTIONS):
            if not isinstance(schema, dict):
                break
            found, parts = envelope.referred(schema.get("$ref"), self.root), schema.get("allOf")
            if found is not None:
                schema = found
            elif isinstance(parts, list) and len(parts) == 1 and not schema.keys() & {"type", "properties"}:
                schema = parts[0]
            else:
                break
        return schema

    def plain(self, schema: Any) -> dict[str, Any]:
        """Return the schema of a parameter without the null that says that it is optional."""
        schema = _without_null(self._resolved(schema))
        self.looks += 1 + len(as_dict(schema))
        options = as_list(schema, "anyOf") or as_list(schema, "oneOf") or [schema]
        plain = as_dict(self._resolved(options[0])) if len(options) == 1 else {}
        kinds = as_list(plain, "type")
        return {**plain, "type": kinds[0]} if len(kinds) == 1 else plain

    def _any_type(self, schema: Any, depth: int, spelled: bool) -> str:
        if not isinstance(schema, dict):
            return "any"
        self.looks += 1 + len(schema)
        values = [schema["const"]] if "const" in schema else []
        if (values := as_list(schema, "enum") or values) and self.looks < LOOKS:
            return self._values(values, spelled)
        kind = schema.get("type")
        if kind == "object" and depth > 0 and spelled and self.looks < LOOKS:
            nested, self._nested = self._nested, 0
            fields = ", ".join(self._parameters(schema, depth - 1))
            self._nested = nested
            return f"{{{fields}}}" if fields and not fields.startswith("...") else "object"
        options = as_list(schema, "anyOf") or as_list(schema, "oneOf")
        options = options or [{**schema, "type": one} for one in as_list(schema, "type")[:OPTIONS]]
        if options or kind == "array":
            if self._nested >= NESTED or self.looks >= LOOKS:
                return "any"
            self._nested += 1
            told = self._one_of(options, depth, spelled) if options else self._list_of(schema, depth, spelled)
            self._nested -= 1
            return told
        form = schema.get("format")
        if kind == "string" and isinstance(form, str) and form not in PLAIN_FORMATS:
            return f"string({one_line(form, FORMAT_CHARACTERS)})"
        return as_word(kind) if isinstance(kind, str) else "any"

    def _values(self, values: list[Any], spelled: bool) -> str:
        most = ENUM_VALUES if spelled else OPTIONAL_ENUM_VALUES
        first = values if len(values) <= most else values[: most if spelled else FIRST_VALUES]
        self.looks += len(first)
        more = [f"... {len(values) - len(first)} more"] if len(values) > len(first) else []
        return " | ".join([*map(as_literal, first), *more])

    def _list_of(self, schema: Mapping[str, Any], depth: int, spelled: bool) -> str:
        inner = self._type(schema.get("items"), depth, spelled)
        return f"({inner})[]" if _is_choice(inner) else f"{inner}[]"

    def _one_of(self, options: list[Any], depth: int, spelled: bool) -> str:
        options = self._fewer(options)
        told = dict.fromkeys(self._type(option, depth, spelled) for option in options[:OPTIONS])
        more = [f"... {len(options) - OPTIONS} more"] if len(options) > OPTIONS else []
        return " | ".join([*told, *more]) or "any"


def _named(optional: Sequence[str], most: int) -> Sequence[str]:
    """Return the optional parameters that a signature names; to count a single one costs as much."""
    return optional[: most + (most > 0 and len(optional) == most + 1)]


def _is_choice(kind: str) -> bool:
    """Return whether the text of a type is one of alternatives, and not only has one inside."""
    open_ones = 0
    for character, following in pairwise(kind):
        open_ones += (character in "{(") - (character in "})")
        if open_ones == 0 and following == "|":
            return True
    return False


def _speaks_of(asked: Sequence[str], text: str) -> bool:
    """Return whether a word of a text begins with one of some terms, each after a blank."""
    text = f" {text}"
    return any(map(text.__contains__, asked))


def _without_null(schema: Any) -> Any:
    """Return the schema of an optional parameter without the type null, which says that it is optional."""
    if not isinstance(schema, dict):
        return schema
    kinds = {key: found for key in ("anyOf", "oneOf", "type") if (found := as_list(schema, key)[:LOOKS])}
    null = "null", {"type": "null"}
    return {**schema, **{key: [kind for kind in kinds[key] if kind not in null] for key in kinds}}


def _default(schema: Any) -> str:
    """Return the default of a required parameter, which is nearly always meant."""
    value = schema.get("default") if isinstance(schema, dict) else None
    is_plain = isinstance(value, str | int | float) and len(str(value)) <= FORMAT_CHARACTERS
    return f" = {as_literal(value)}" if is_plain and value != "" else ""


def telling_sentences(tool: Tool, source: Source, characters: int) -> list[str]:
    """Return the first sentences that tell a tool from its siblings, until they have so many characters."""
    # Those that stand next to it in the list of its server.
    place = bisect_left(source.items, tool.exposed_name, key=attrgetter("exposed_name"))
    near = source.items[max(0, place - SIBLINGS) : place + SIBLINGS + 1]
    others = (one for one in near if isinstance(one, Tool) and one.name != tool.name)
    siblings = [one.description[:SENTENCES_FROM] for one in others]
    told, shared, length = list[str](), "", 0
    for sentence, line in _sentences(tool.description):
        if sum([line in sibling for sibling in siblings]) >= SHARED_BY:
            shared = shared or sentence
            continue
        told.append(sentence)
        length += len(sentence) + 1
        if length > characters:
            break
    return told or [shared]


def cut_to_sentences(sentences: Sequence[str], characters: int) -> str:
    """Return as many sentences as there is room for; the first one is cut if it is too long."""
    told = [sentences[0]]
    for sentence in sentences[1:]:
        if len(" ".join([*told, sentence])) > characters:
            break
        told.append(sentence)
    # One that announces a list says nothing without it.
    while len(told) > 1 and told[-1].endswith(":"):
        told.pop()
    text = " ".join(told)
    if len(text) <= characters:
        return text
    cut = text[: characters - 4]
    return f"{cut.rpartition(' ')[0] or cut} ..."


def _first_sentence(description: str) -> str:
    return next(_sentences(description), ("", ""))[0]


_BULLET: Final = pattern(r"(?:[-*+>=|•–]|\d{1,2}[.)])\s")
_TAG: Final = pattern(r"</?[A-Za-z][\w-]*>")
_MARKS: Final = "#*->=_~ \t"
"""Characters of markdown at the beginning of a line."""

_SENTENCE_END: Final = pattern(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[ \n](?![a-z])")


def _sentences(description: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence, and the longest part of it that stands on one line."""
    for paragraph in _paragraphs(description[:SENTENCES_FROM]):
        for sentence in _SENTENCE_END.split(paragraph):
            line = max(sentence.split("\n"), key=len)
            yield sentence.replace("\n", " ").replace("**", "").lstrip("*"), line


def _paragraphs(description: str) -> Iterator[str]:
    """Yield the paragraphs of a description, each with the lines that it was wrapped into."""
    held = list[str]()
    for line in description.splitlines():
        text = " ".join(line.split())
        goes_on = held and text and _goes_on(held[-1], text)
        if held and not goes_on:
            yield "\n".join(held)
            held = []
        # A heading or a tag names a part of the description; what it says is below it.
        is_told = not text.startswith(("#", "```")) and not _TAG.fullmatch(text)
        if is_told and (text := text if goes_on else text.lstrip(_MARKS)):
            held.append(text)
    if held:
        yield "\n".join(held)


def _goes_on(line: str, following: str) -> bool:
    """Return whether a line was cut only because it was full, so that its sentence goes on."""
    if line.endswith((".", "!", "?", ":", ";")) or following.startswith(("#", "```")):
        return False
    if _TAG.fullmatch(following) or _BULLET.match(following):
        return False
    return following[0].islower() or len(line) >= WRAPPED_FROM


@lru_cache(2)
def _sources(snapshot: Snapshot) -> dict[str, Source]:
    """Return the sources with tools, by server; of thousands, each answer would look through all."""
    return {one.key: one for one in snapshot.sources if one.items and isinstance(one.items[0], Tool)}


def as_dict(schema: Any) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {}


def as_list(schema: Any, key: str) -> list[Any]:
    value = schema.get(key) if isinstance(schema, dict) else None
    return value if isinstance(value, list) else []


def as_literal(value: Any) -> str:
    if isinstance(value, dict | list):
        return "[...]" if isinstance(value, list) else "{...}"
    text = json.dumps(value[:LITERAL_CHARACTERS] if isinstance(value, str) else value, ensure_ascii=False)
    return text if len(text) <= LITERAL_CHARACTERS else text[: LITERAL_CHARACTERS - 3] + "..."


def as_word(name: str) -> str:
    """Return the name of a parameter or type, in quotes if it is not one word."""
    is_word = len(name) <= NAME_CHARACTERS and name.replace("-", "_").isidentifier()
    return name if is_word else as_literal(name)
