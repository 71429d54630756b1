"""Reads one item for search: its texts, its labels, and its action.

A tool's action is told by the first verb of its name; orders want one as well (`additions`).

Nobody has checked the definitions of tools: schemas are walked without recursion, up to fixed limits, and
references are never followed. Configured categories and tags come first; others are derived from the item's
name, server and annotations, always in the same way. Annotations are hints that a server gives about itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct, field

from mcp_context_proxy.catalog.document_reading import with_titles
from mcp_context_proxy.items import JSON, SEARCHED_CHARACTERS, Item, Tool, ToolClass
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.retrieval.text import (
    CHUNK_LIMIT,
    PARAGRAPH,
    STOP_WORDS,
    chunks,
    encodable,
    identifier_words,
    is_translated,
    listed,
    may_be_translated,
    meanings,
    name_key,
    spoken,
    stem,
    terms,
    translated,
)
from mcp_context_proxy.system.later import NDArray, np, packaged_text, pattern

VERBS: Final[Mapping[str, str]] = meanings("verbs of tools")
"""Actions by verb; the first verb in a tool's name decides."""

ACTIONS: Final = ("", *dict.fromkeys(VERBS.values()))
"""Actions of tools, as the columns of ``actions.txt``; the first is that of a tool whose name has no verb."""

DELETE: Final = ACTIONS.index("delete")

READING: Final = frozenset({ACTIONS.index("read"), ACTIONS.index("search")})

CHANGE: Final = len(ACTIONS)
"""Position of tools that change something by a verb which is not among these ("assign"). They gain what tools
without a verb do, and lose what changing ones do."""

EFFECTS: Final = len(ACTIONS) + 1
"""Number of what a tool may do: one of `ACTIONS`, or `CHANGE`."""

OTHER_CHANGES: Final = listed("other changes")
"""Verbs of such tools."""

_AROUND = pattern(r"(?P<verb>\w+) (?P<rest>up|off|out|away|down|over)")
_PHRASES: Final = meanings("phrases")
PHRASES: Final[Mapping[str, str]] = _PHRASES | {
    f"{divided['verb']} {object_} {divided['rest']}": f"{meant.removesuffix(' for')} {object_}"
    for phrase, meant in _PHRASES.items()
    if (divided := _AROUND.fullmatch(phrase)) is not None
    for object_ in ("it", "them", "this", "that")
}
"""Phrases with which an order opens, each with the words that tools have for it, and the same with an object
within them: "call it off"."""

LONGEST_FIRST: Final = tuple(sorted(PHRASES, key=len, reverse=True))
LONGEST_PHRASE: Final = len(LONGEST_FIRST[0])

ORDERS: Final = frozenset({*VERBS, *listed("orders"), *(phrase.split()[0] for phrase in PHRASES)})
"""Verbs with which an order begins."""


def action_of(name: str) -> int:
    """Return the action of a tool by its name, as a position in `ACTIONS`."""
    verb = next((word for word in identifier_words(name).split() if word in VERBS), None)
    return 0 if verb is None else ACTIONS.index(VERBS[verb])


def effect_of(name: str) -> int:
    """Return the action of a tool by its name, or `CHANGE`."""
    action = action_of(name)
    return action or (0 if OTHER_CHANGES.isdisjoint(identifier_words(name).split()) else CHANGE)


WEIGHTS: Final = Path(__file__).with_name("actions.txt")
"""Points for the action of a tool, by the word with which an order opens."""

MOST_ADDED: Final = 0.04
"""Highest amount that is added to a score for its action, or taken from it but for deleting."""

UNIT: Final = 0.0001
"""Worth in score of one point in ``actions.txt``."""

CERTAIN_NOT_TO_DELETE: Final = -0.004
"""Addition for deleting tools from which down an order is known not to want any, as one with "show" is."""

TAKEN_FROM_CHANGING: Final = 0.12
"""Amount that is taken from a tool that creates, changes or sends where a query asks for facts, and from one
that does what it says is not to be done."""

TAKEN_FROM_DELETING: Final = 0.1
"""Amount that is then taken from a deleting tool, so that one is only first where nothing else is near."""

ASKING_FOR_FACTS: Final = frozenset({"who", "what", "which", "when", "where", "why"})
"""Words with which a question about facts begins: no tool that creates, changes or sends answers it."""

_MAKES: Final = [ACTIONS.index(action) for action in ("create", "send")]
CHANGES: Final = [*_MAKES, ACTIONS.index("update"), CHANGE]
"""Positions of the tools that create, change or send something."""

_DELETE: Final = frozenset(map(stem, ("delete", "erase", "purge", "destroy", "wipe")))
"""Stems of orders that no tool serves which creates or sends something."""


@cache
def additions(asks_for_facts: bool) -> Mapping[str, NDArray[np.float32]]:
    """Return the amount that is added for each effect of a tool, by opening word; by "" for any other one."""
    additions = {"": np.zeros(EFFECTS, np.float32)}
    for line in packaged_text(WEIGHTS).splitlines():
        if not line.startswith("#"):
            word, *points = line.split()
            added = np.array([*map(int, points)], np.float32) * np.float32(UNIT)
            additions[word] = np.clip(np.append(added, added[0]), -MOST_ADDED, MOST_ADDED)
            if added[DELETE] <= CERTAIN_NOT_TO_DELETE:
                additions[word][DELETE] = -TAKEN_FROM_DELETING
            if word in ASKING_FOR_FACTS:
                additions[word][CHANGES] = -TAKEN_FROM_CHANGING
            elif word in _DELETE:
                additions[word][_MAKES] = -TAKEN_FROM_CHANGING
    if asks_for_facts:
        for added in additions.values():
            added[CHANGES], added[DELETE] = -TAKEN_FROM_CHANGING, -TAKEN_FROM_DELETING
    return additions


ASKS_FOR_FACTS: Final = spoken(
    r"\W*(?:(?:is|are|was|were|does|did|has|am|any|do (?:i|we|they)|have (?:i|we|they))\s"
    r"(?!(?:you|it)\b|(?:there )?(?:a|any|some) (?:way|chance|possibility)\b)"
    r"|how (?:come|many|much|long|old|far|big|large|high|often|recent\w*)\b"
    r"|(?:(?:the|current|latest|last|exact|full|total) )*(?:status|state|size|length|number|names?|title"
    r"|urls?|address|owners?|authors?|date|time|price|cost|version|details|contents?|body|values?|location|type"
    r"|age|height|progress|members?) of (?!.{0,200} (?:is|are|was|were|should|will|must)\b))"
)
"""Beginnings of questions that are answered by yes or no, or by a number, and of what only names a property:
"status of the build". "Is it possible to" and "are you able to" order something."""

CHANGING: Final = frozenset(
    stem(verb)
    for verb in (*OTHER_CHANGES, *VERBS, "touch", "alter")
    if VERBS.get(verb) not in ("read", "search", "compute")
)
"""Stems of verbs that change something."""

MAKES_OR_DELETES: Final = {
    action: frozenset(stem(verb) for verb, does in VERBS.items() if does == action)
    for action in ("create", "delete")
}
"""Stems of the verbs of two actions."""

TAKEN_FROM_WHOLE: Final = 0.25
"""Amount that is taken from a tool that would create or delete the container of the thing that is meant."""

SERVED_CHARACTERS: Final = 300
"""Characters of a description that are looked at for the thing, or for its container."""

_PLACED: Final = frozenset(("to", "from", "in", "into", "on"))


class Contained(Struct, frozen=True):
    """A thing that an order creates or deletes, with its container: "delete the note of document 17"."""

    action: str
    """One of `MAKES_OR_DELETES`."""
    whole: str
    """The stem of the word for its container."""
    part: frozenset[str]
    """The stems of the words for the thing itself."""

    def mistaken(self, tools: Mapping[int, Tool]) -> list[int]:
        """Return the keys of tools that would create or delete the container.

        None are returned where no other tool does so to something that has to do with either: there "delete
        the account of a user" is for the tool that deletes users, and not for one that deletes contacts.
        """
        verbs = MAKES_OR_DELETES[self.action]
        found, is_served = list[int](), False
        for key, tool in tools.items():
            name = [*map(stem, identifier_words(tool.name).split())]
            nouns = [word for word in name if word not in verbs]
            is_whole = nouns[-1:] == [self.whole] and self.part.isdisjoint(name) and _PLACED.isdisjoint(name)
            if len(nouns) == len(name):
                continue
            if is_whole:
                found.append(key)
            elif not is_served:
                about = {*name, *terms(tool.description[:SERVED_CHARACTERS])}
                is_served = self.whole in about or not self.part.isdisjoint(about)
        return found if is_served else []


NAME_LIMIT = 256
"""Characters of a name that are indexed; hosts refuse names over 64."""

HEAD_LIMIT = 100
"""Characters of a chunk that the item's name may take; a longer one would leave no room."""

DESCRIPTION_LIMIT = 8_192
"""Characters of a description that are indexed."""

SHORT_DESCRIPTION = 60
"""Characters of a description that says little: what the parameters may be is then embedded as well."""

MAX_PARAMETERS = 64
"""Names read from one schema; real tools have fewer than 40, and a flood would only drown the description."""

MAX_NAME = 128
"""Characters read of one parameter's name."""

MAX_VALUES = 64
"""Values read from one schema: lists of all countries or currencies say no more about a tool than some."""

MAX_NODES = 2_000
"""Schema nodes visited; bounds the work on a schema that is nothing but nesting."""

MAX_DESCRIPTION = 1_000
"""Characters read of one parameter's description."""

_WORDS: Final = pattern(r"\w+")

_COMBINERS = ("anyOf", "oneOf", "allOf")

ACTION_NAMES: Final = frozenset(("action", "command", "method", "mode", "op", "operation"))
"""Names of parameters that choose what a tool does."""

FEWEST_DONE, MOST_DONE = 4, 32
"""Choices from which on each of them is embedded by itself, but for a mere verb, and how many at most. Of 62
requests for one thing that such tools do, .89 have their tool among two, .73 by its description alone; with
verbs, or with the choices of any required parameter, requests for other tools lose as many."""


class Fields(Struct, frozen=True):
    """The texts of an item that lexical search weights differently, as `bm25.WEIGHTS` says."""

    name: str
    description: str
    parameters: str
    parameter_descriptions: str
    server: str
    text: str
    title: str = ""
    """Title of a tool, unless it says the same as its name, and the English for words of another language."""
    values: str = ""
    """Values that parameters may have, and examples of them."""
    labels: str = ""
    """Configured tags and category."""
    use_cases: str = ""
    """Configured use cases."""


def item_text(item: Item, several_servers: bool) -> tuple[Fields, tuple[str, ...]]:
    """Return the indexed text of an item in a catalog of one or of several servers, and its chunks.

    Chunks are the texts that are embedded; there is at least one. Their form was chosen by measurement: with
    several servers their names and the parameter names help, with a single one they only dilute the
    description.
    """
    description, name = encodable(item.description[:DESCRIPTION_LIMIT]), encodable(item.name[:NAME_LIMIT])
    if not isinstance(item, Tool):
        body = encodable(item.text[:SEARCHED_CHARACTERS])
        fields = Fields(name, description, "", "", "", body)
        return fields, _headed_chunks(name, body, partial(topics, lead=description))
    parameters, words = read_parameters(item.definition), identifier_words(name)
    fields = Fields(
        name=name,
        description=description,
        parameters=encodable(" ".join(parameters.top + parameters.nested)),
        parameter_descriptions=encodable("\n".join(parameters.descriptions)),
        server=encodable(item.server),
        text="",
        title=encodable(f"{title_of(item)} {in_english(f'{words}. {description}')}".strip()),
        values=encodable(" ".join(parameters.values)),
        labels=encodable(" ".join((*item.tags, item.category or ""))),
        use_cases=encodable("\n".join(item.use_cases)),
    )
    head, body = words, description
    if several_servers:
        names = encodable(", ".join(identifier_words(parameter) for parameter in parameters.top))
        head, body = (
            f"{fields.server} {words}",
            f"{description} Parameters: {names}" if names else description,
        )
    return fields, (*_headed_chunks(head, body), *_further_chunks(head, fields, item, parameters.does))


def _further_chunks(head: str, fields: Fields, tool: Tool, does: Sequence[str]) -> Iterator[str]:
    """Yield chunks for what name and description do not say, which a request is compared with one by one.

    The instructions of the server are none of it: with them, a poisoner's five servers took three points of
    recall@5 from others, and people's requests gained nothing.
    """
    done = dict.fromkeys(map(identifier_words, does[:MOST_DONE]))
    telling = [one for one in done if one not in VERBS] if len(done) >= FEWEST_DONE else ()
    for case in (*tool.use_cases, *telling):
        yield from _headed_chunks(head, encodable(case))
    values = fields.values if len(fields.description) < SHORT_DESCRIPTION else ""
    if not (fields.title or fields.labels.strip() or values):
        return
    said = {*terms(f"{fields.name} {fields.description}")}
    for before, text in (("", fields.title), ("", fields.labels.strip()), (f"{fields.description} ", values)):
        if text and not said.issuperset(terms(text)):
            yield from _headed_chunks(head, before + text[:NAME_LIMIT])


def in_english(text: str) -> str:
    """Return the first words of a text with the English for those that are known of another language."""
    first = text[:NAME_LIMIT]
    if not may_be_translated(first) or not is_translated(first):
        return ""
    said = (translated(word, is_first=True) or word for word in _WORDS.findall(first))
    return " ".join(said)[:NAME_LIMIT]


def title_of(tool: Tool) -> str:
    """Return the title of a tool, its own or that among its annotations, unless it repeats the name."""
    if b'"title"' not in tool.definition:
        return ""
    try:
        title = envelope.value(envelope.members(tool.definition).get("title", b'""'))
    except (msgspec.DecodeError, RecursionError):
        return ""
    title = title or _hints(tool.definition).get("title")
    if not isinstance(title, str) or name_key(title[:NAME_LIMIT]) == name_key(tool.name):
        return ""
    return title[:NAME_LIMIT]


TOPICS_CHARACTERS: Final = 20_000
"""Characters of a document up to which each paragraph is a chunk: some 40 chunks become 100."""

SHORTEST_TOPIC: Final = 60
"""Characters below which a paragraph is joined with the next one."""

HEADED: Final = CHUNK_LIMIT // 3
"""Characters of a heading that stand before each chunk of its section."""

_SHORT_LINE = pattern(r"[^\n]{1,80}:|\*\*[^\n]{1,80}\*\*")


def topics(text: str, limit: int = CHUNK_LIMIT, lead: str = "") -> tuple[str, ...]:
    """Divide a document into chunks of one paragraph each, all of them with the heading of their section.

    The ``lead`` is put before the first. Two topics in one chunk are far from a query about either. In a text
    beyond `TOPICS_CHARACTERS` the paragraphs of a section are put together as `chunks` does, and sections
    below half a chunk with the next: it would have several times as many.
    """
    divide, least = (chunks, limit // 2) if len(text) > TOPICS_CHARACTERS else (_paragraphs, 0)
    found, lines, heading = list[str](), list[str](), ""
    for line, level, _ in chain(with_titles(text), [("", 1, "")]):
        if not level:
            lines.append(line)
            continue
        body, lines = "\n".join(lines).strip(), []
        own = len(heading) + len(body)
        if body and own >= SHORTEST_TOPIC and len(lead) + own >= least:
            before = heading[:HEADED]
            first, *others = divide(body, limit - len(before) - 2)
            found += chunks(_joined(lead, heading, first), limit)
            found += (_joined(before, other) for other in others)
            lead = ""
        else:
            lead = _joined(lead, heading, body)
        heading = line
    return (*found, *(chunks(lead, limit) if lead or not found else ()))


def _joined(*paragraphs: str) -> str:
    return "\n\n".join(filter(None, paragraphs))


def _paragraphs(text: str, limit: int) -> tuple[str, ...]:
    """Divide a text into its paragraphs, each with a short line before it."""
    found, opened = list[str](), ""
    for paragraph in PARAGRAPH.split(text):
        opened = _joined(opened, paragraph.strip())
        if len(opened) >= SHORTEST_TOPIC and not _SHORT_LINE.fullmatch(paragraph.strip()):
            found += chunks(opened, limit)
            opened = ""
    if opened and found and len(found[-1]) + len(opened) + 2 <= limit:
        found[-1] = f"{found[-1]}\n\n{opened}"
    elif opened:
        found += chunks(opened, limit)
    return tuple(found)


Divide: TypeAlias = Callable[[str, int], tuple[str, ...]]
"""Divides a text into chunks of at most so many characters."""


def _headed_chunks(head: str, body: str, divide: Divide = chunks) -> tuple[str, ...]:
    """Divide ``head: body``; every chunk begins with the head, because it is embedded without the others."""
    head = f"{head[:HEAD_LIMIT]}: "
    return tuple((head + chunk).strip() for chunk in divide(body, CHUNK_LIMIT - len(head)))


class Parameters(Struct, frozen=True):
    """The parameters in the schema of a tool, outer ones first."""

    top: list[str] = field(default_factory=list)
    """Names of the arguments themselves."""
    nested: list[str] = field(default_factory=list)
    """Names within them."""
    descriptions: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    """Texts among the values that they may have, and examples."""
    does: list[str] = field(default_factory=list)
    """Values of parameters that choose what the tool does; a sentence is none of them."""


def read_parameters(definition: bytes) -> Parameters:
    """Return the parameters in a tool's definition; none for a definition that cannot be read."""
    found = Parameters()
    try:
        decoded = msgspec.json.decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return found
    for depth, name, is_new, node in _walk(decoded.get("inputSchema") if isinstance(decoded, dict) else None):
        if is_new:
            if len(found.top) + len(found.nested) >= MAX_PARAMETERS:
                break
            (found.top if depth == 0 else found.nested).append(name[:MAX_NAME])
            if isinstance(description := node.get("description"), str) and description:
                found.descriptions.append(description[:MAX_DESCRIPTION])
        values = [*_texts(node.get("enum")), *_texts([node.get("const")])]
        if name in ACTION_NAMES and depth <= 1:
            found.does.extend(value for value in values if " " not in value)
        values += _texts(node.get("examples"))
        found.values.extend(values[: MAX_VALUES - len(found.values)])
    return found


def _texts(values: JSON) -> Iterator[str]:
    """Yield the texts among the values that a parameter may have."""
    for value in values[:MAX_VALUES] if isinstance(values, list) else ():
        if isinstance(value, str) and len(value) <= MAX_NAME:
            yield value


def _walk(schema: JSON) -> Iterator[tuple[int, str, bool, Mapping[str, JSON]]]:
    """Yield every property with its depth, breadth first, so that limits cut the innermost.

    After a property come the forms that it may have, as those of its items, under the same name. A reference
    is followed once.
    """
    queue: deque[tuple[int, str, bool, JSON]] = deque([(-1, "", False, schema)])
    followed = set[str]()
    for _ in range(MAX_NODES):
        if not queue:
            return
        depth, name, is_new, node = queue.popleft()
        if not isinstance(node, dict):
            node = {}
        yield depth, name, is_new, node
        properties = node.get("properties")
        if isinstance(properties, dict):
            some = list(properties.items())[:MAX_PARAMETERS]
            queue.extend((depth + 1, key, True, child) for key, child in some)
        forms = [node.get("items")]
        if isinstance(reference := node.get("$ref"), str) and reference not in followed:
            followed.add(reference)
            forms.append(envelope.referred(reference, schema))
        for key in _COMBINERS:
            if isinstance(options := node.get(key), list):
                forms += options[:MAX_PARAMETERS]
        queue.extend((depth, name, False, form) for form in forms if form)


_LANGUAGES: Final = (
    "bash csharp css golang html java javascript julia kotlin lua perl php python ruby rust scala sql swift "
    "typescript"
)
LANGUAGES: Final = frozenset(_LANGUAGES.split())
"""Programming languages in names that become tags; without those that are English words or letters."""

_CLASS_TAGS: Final = {ToolClass.READ: "read-only", ToolClass.DESTRUCTIVE: "destructive"}
"""Tags for danger classes; most tools write."""

_HINT_TAGS: Final = {"idempotentHint": "idempotent", "openWorldHint": "open-world"}
"""Tags for annotations that a server gives explicitly; defaults give no tag."""

_NO_TAGS: Final = STOP_WORDS | {"mcp", "server"}

READ_ONLY, DESTRUCTIVE, OPEN_WORLD = "hint:read-only", "hint:destructive", "hint:open-world"


class ItemMetadata(Struct, frozen=True):
    """Category, tags and hints of one item."""

    category: str
    tags: tuple[str, ...]
    """The configured ones."""
    derived_tags: tuple[str, ...]
    """Derived ones that are not configured too."""
    read_only: bool
    """True for tools of the danger class ``read``."""
    destructive: bool
    """True where a call may undo or overwrite something: by its danger class, or because a tool that writes
    does not say that it only adds."""
    open_world: bool
    """True where it reaches beyond its server, for example to the web."""

    @property
    def all_tags(self) -> frozenset[str]:
        return frozenset((*self.tags, *self.derived_tags))

    def labels(self) -> Iterator[str]:
        """Yield category, tags and hints, each as one text that filters compare."""
        yield category_label(self.category)
        yield from map(tag_label, (*self.tags, *self.derived_tags))
        yield from (READ_ONLY,) if self.read_only else ()
        yield from (DESTRUCTIVE,) if self.destructive else ()
        yield from (OPEN_WORLD,) if self.open_world else ()


def category_label(category: str) -> str:
    return f"category:{category}"


def tag_label(tag: str) -> str:
    return f"tag:{tag}"


def folded(word: str) -> str:
    """Return a category or tag in the form in which it is compared."""
    return word.strip().casefold()


def metadata_of(item: Item) -> ItemMetadata:
    """Return the metadata of an item.

    Hints that make a tool look more harmless than its danger class do not count, and the protocol's defaults
    hold for those that are missing.
    """
    tags = tuple(dict.fromkeys(map(folded, item.tags)))
    if not isinstance(item, Tool):
        # A document is read and never called, and nothing of the world comes in through it.
        return ItemMetadata(item.kind.value, tags, (), True, False, False)
    hints = _hints(item.definition)
    may_destroy = item.tool_class is ToolClass.WRITE and hints.get("destructiveHint") is not False
    derived = (tag for tag in dict.fromkeys(_derived_tags(item, hints)) if tag not in tags)
    return ItemMetadata(
        category=folded(item.category or item.server),
        tags=tags,
        derived_tags=tuple(derived),
        read_only=item.tool_class is ToolClass.READ,
        destructive=item.tool_class is ToolClass.DESTRUCTIVE or may_destroy,
        open_world=hints.get("openWorldHint") is not False,
    )


def _hints(definition: bytes) -> Mapping[str, Any]:
    """Return the annotations of a definition; none where they are malformed."""
    if b'"annotations"' not in definition:
        return {}
    try:
        hints = envelope.value(envelope.members(definition).get("annotations", b"{}"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return hints if isinstance(hints, dict) else {}


def _derived_tags(tool: Tool, hints: Mapping[str, Any]) -> Iterator[str]:
    yield folded(tool.server)
    server_words = identifier_words(tool.server).split()
    yield from (word for word in server_words if not word.isdigit() and word not in _NO_TAGS)
    name_words = identifier_words(tool.name[:NAME_LIMIT]).split()
    yield from [VERBS[word] for word in name_words if word in VERBS][:1]
    yield from (word for word in name_words if word in LANGUAGES)
    if (of_class := _CLASS_TAGS.get(tool.tool_class)) is not None:
        yield of_class
    yield from (tag for hint, tag in _HINT_TAGS.items() if hints.get(hint) is True)
