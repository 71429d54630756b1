"""Reads one item for search: its texts, its labels, and its action, which orders want as well.

A tool is told by the first verb of its name, an order by the word with which it opens: ``actions.txt`` says
for some 400 words how much better or worse a tool of each action serves such an order. The numbers were
learned from 17,000 written requests by comparing the right tool with the others of its server, which have the
same subject and differ in what they do (``scripts/build_actions.py``).

Nobody has checked the definitions of tools: schemas are walked without recursion, up to fixed limits, and
references are never followed. Configured categories and tags come first; others are derived from the item's
name, server and annotations, always in the same way. Annotations are hints that a server gives about itself.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct, field

from mcp_context_proxy.items import JSON, SEARCHED_CHARACTERS, Item, Tool, ToolClass
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.retrieval.text import (
    CHUNK_LIMIT,
    STOP_WORDS,
    chunks,
    encodable,
    identifier_words,
    name_key,
    stem,
    terms,
    topics,
)
from mcp_context_proxy.system.later import np, pattern

if TYPE_CHECKING:
    from numpy.typing import NDArray


_VERBS: Final = {
    "read": "get list read fetch show describe view retrieve inspect check count",
    "search": "search find query lookup browse",
    "create": "create add insert new make generate",
    "update": "update edit set write modify change rename move patch replace append put save",
    "delete": "delete remove drop clear purge destroy wipe",
    "send": "send post publish notify reply forward share",
    "run": "run execute start stop call invoke trigger",
    "compute": "compute calculate evaluate convert transform format translate parse encode decode",
    "transfer": "upload download import export sync",
}
VERBS: Final[Mapping[str, str]] = {verb: tag for tag, verbs in _VERBS.items() for verb in verbs.split()}
"""Actions by verb; the first verb in a tool's name decides."""

ACTIONS: Final = ("", *_VERBS)
"""Actions of tools, as the columns of ``actions.txt``; the first is that of a tool whose name has no verb."""

DELETE: Final = ACTIONS.index("delete")

READING: Final = frozenset({ACTIONS.index("read"), ACTIONS.index("search")})

CHANGE: Final = len(ACTIONS)
"""Position of tools that change something by a verb which is not among these ("assign"). They gain what tools
without a verb do, and lose what changing ones do."""

EFFECTS: Final = len(ACTIONS) + 1
"""Number of what a tool may do: one of `ACTIONS`, or `CHANGE`."""

CHANGES: Final = [*(ACTIONS.index(action) for action in ("create", "update", "send")), CHANGE]

MOST_ADDED: Final = 0.04
"""Highest amount that is added to a score for its action, or taken from it but for deleting."""

UNIT: Final = 0.0001
"""Worth in score of one point in ``actions.txt``."""

CERTAIN_NOT_TO_DELETE: Final = -0.004
"""Addition for deleting tools from which down an order is known not to want any, as one with "show" is."""

TAKEN_FROM_DELETING: Final = 0.1
"""Amount that is then taken from a deleting tool, so that one is only first where nothing else is near."""

ASKING_FOR_FACTS: Final = frozenset({"who", "what", "which", "when", "where", "why"})
"""Words with which a question about facts begins: no tool that creates, changes or sends answers it."""

_OTHER_CHANGES = """
apply approve archive assign block cancel checkout cleanup close commit complete convert copy deploy disable
duplicate enable erase fork grant install invite kill label lock logout mark merge move mute patch pause pin
play promote protect pull push rebase reject reopen reset resolve restart restore resume retry revert revoke
rollback rollout rotate scale schedule stash submit subscribe switch tag take transfer transition unapprove
unarchive uninstall unlock unprotect unstage unsubscribe upgrade
"""
OTHER_CHANGES: Final = frozenset(_OTHER_CHANGES.split())
"""Verbs of such tools."""

TAKEN_FROM_CHANGING: Final = 0.12
"""Amount that is then taken from such a tool."""

WEIGHTS: Final = Path(__file__).with_name("actions.txt")

QUESTIONS: Final = frozenset(
    {"what", "which", "who", "whom", "whose", "how", "when", "where", "why", "whether"}
)
"""Words with which a question begins."""

ASKED_FOR_ALL: Final = pattern(
    r"^(\W*(?:what|how|where|which|when|why) )(?:do|can|could|should|shall|would|must) (?:i|we)\b",
    re.IGNORECASE,
)
"""Beginnings of questions in which the caller stands for anybody: "what shall I cook"."""

_MORE_ORDERS = """
book schedule cancel email message ask remind open close navigate click give turn play plot compare merge
commit push clone checkout review assign label summarize summarise explain answer order buy pay charge
refund invite pin unpin mark star record note store remember forget print scan deploy build test restart
scale install uninstall upgrade enable disable connect disconnect subscribe unsubscribe follow unfollow mute
block report tag attach approve reject watch crop resize zip unzip extract sort filter group split join sum
file reserve apply archive arrange correct crawl dump duplicate empty enter erase finish fix grab hide
highlight hit hold hover jot lock unlock measure migrate pack unpack pause pick accept adjust alter analyse
analyze annotate begin capture carry choose clean collect comment complete confirm copy cut define display
draft halt include kill launch leave link load locate paste recover refresh relocate respond restore return
revoke stage transfer trash undo unlink use visit withdraw prepare press raise react register reopen rerun
reset resolve resume retry revert rewrite roll rotate say scrape scroll select shut stash submit swap switch
toggle unstage wait warn
"""

_BEFORE_ORDERS = """
want need like help let lets try just hey hi hello quickly now first wanna gotta pls plz kindly thanks ok okay
so gonna must may might using ahead actually again
"""
_COURTESIES: Final = frozenset(_BEFORE_ORDERS.split())
"""Words before an order that say nothing about it, beside stop words."""

BEFORE_NOUNS: Final = frozenset(
    ("the", "my", "our", "your", "his", "her", "their", "its", "this", "that", "these", "those", "any", "no")
)
"""Words after which a verb is a noun: "the build is red" and "any new mail" order nothing."""

_AS_SUBJECT: Final = pattern(
    r"(?!(?:check|see|show|tell|find|look|ask|watch) )\w+ (?:is|are|was|were|has|keeps?|fail(?:s|ed)"
    r"|crashe[sd]|should|must|(?:is|are|was|do|does|did|wo)n['’]?t)\b",
    re.IGNORECASE,
)
"""A verb that is a noun for the verb after it: "deploy is broken"."""

_TELLING: Final = frozenset(("i", "we", "he", "she", "they", "it"))
"""Words after which a verb tells what somebody does: "we start on Monday"."""

_AUXILIARIES = """
can could shall should may might would will do does did must is are was were let lets
"""
_ASKING_WHETHER: Final = frozenset(_AUXILIARIES.split())
"""Words with which such a statement is a question: "could we start it"."""

_ASKED_INSIDE: Final = pattern(
    r"(?:know|wonder\w*|idea|clue|sure|unsure|curious|understand|remember|forgot) "
    r"(?=(?:what|which|who|whom|whose|how|when|where|why|whether)\b)",
    re.IGNORECASE,
)
"""Words before a question within a statement: "I don't know how many members we have"."""

OPENING_CHARACTERS: Final = 40
"""Characters of a statement in which such a question is looked for."""

_PHRASES = """
delete = get rid of; throw away; throw out; chuck out; take down
search for = look up; look through; dig up; track down; hunt down
create = put together; come up with; draw up
archive = put away
copy = make a copy of; make the same; make another copy of
restore = bring back; put back
start = kick off; fire up
cancel = call off
complete = tick off; cross off; check off
assign = hand over
approve = sign off on; sign off
show = pull up; bring up
fill in = fill out
fill in login form = log in; login; sign in
monitor = keep an eye on
get current user = who am i logged in as; who am i signed in as; who am i connected as; who am i
monitor and notify when = tell me when; notify me when; alert me when
monitor and notify if = notify me if; alert me if
"""
_WHOLE: Final = {
    phrase.strip(): meant.strip()
    for meant, _, phrases in (line.partition("=") for line in _PHRASES.strip().splitlines())
    for phrase in phrases.split(";")
}
_AROUND = pattern(r"(?P<verb>\w+) (?P<rest>up|off|out|away|down|over)")
PHRASES: Final[Mapping[str, str]] = _WHOLE | {
    f"{divided['verb']} {object_} {divided['rest']}": f"{meant.removesuffix(' for')} {object_}"
    for phrase, meant in _WHOLE.items()
    if (divided := _AROUND.fullmatch(phrase)) is not None
    for object_ in ("it", "them", "this", "that")
}
"""Phrases with which an order opens, each with the words that tools have for it, as "call off" and "call it
off". Those that tools have as well, such as "turn on" or "set up", are not among them."""

ORDERS: Final = frozenset({*VERBS, *_MORE_ORDERS.split(), *(phrase.split()[0] for phrase in PHRASES)})
"""Verbs with which an order begins."""

_WORD = pattern(r"[A-Za-z]+")
_ASKS_FOR_FACTS = pattern(
    r"\W*(?:(?:is|are|was|were|does|did|has|am|any|do (?:i|we|they)|have (?:i|we|they))\s"
    r"(?!(?:you|it)\b|(?:there )?(?:a|any|some) (?:way|chance|possibility)\b)"
    r"|how (?:come|many|much|long|old|far|big|large|high|often|recent\w*)\b)",
    re.IGNORECASE,
)
"""Beginnings of questions that are answered by yes or no, or by a number. "Is it possible to" and "are you
able to" order something."""

_ATTRIBUTE = pattern(
    r"\W*(?:(?:the|current|latest|last|exact|full|total) )*(?:status|state|size|length|number"
    r"|names?|title|urls?|address|owners?|authors?|date|time|price|cost|version|details|contents?|body|values?|location|type"
    r"|age|height|progress|members?) of "
    r"(?!.{0,200} (?:is|are|was|were|should|will|must)\b)",
    re.IGNORECASE,
)
"""Beginnings of orders that only name what is asked for: "status of the build"."""


def action_of(name: str) -> int:
    """Return the action of a tool by its name, as a position in `ACTIONS`."""
    verb = next((word for word in identifier_words(name).split() if word in VERBS), None)
    return 0 if verb is None else ACTIONS.index(VERBS[verb])


def effect_of(name: str) -> int:
    """Return the action of a tool by its name, or `CHANGE`."""
    action = action_of(name)
    return action or (0 if OTHER_CHANGES.isdisjoint(identifier_words(name).split()) else CHANGE)


def opening(order: str) -> str:
    """Return the word with which an order opens, stemmed unless it asks; empty without one."""
    match = opening_match(order)
    word = "" if match is None else match.group().lower()
    return word if word in QUESTIONS else stem(word)


def opening_match(order: str) -> re.Match[str] | None:
    """Return where the word is with which an order opens: after courtesies and words that say nothing.

    A statement has none, but for a question within it.
    """
    before, told = "", False
    for match in _WORD.finditer(order):
        word = match.group().lower()
        if word in QUESTIONS and not told:
            return match
        if len(word) > 1 and word not in STOP_WORDS and word not in _COURTESIES:
            is_noun = before in BEFORE_NOUNS or _AS_SUBJECT.match(order, match.start()) is not None
            told = told or before in _TELLING or (is_noun and word in ORDERS)
            if (asked := _ASKED_INSIDE.match(order, match.start())) is not None:
                return _WORD.match(order, asked.end())
            if not told:
                return match
            if match.start() > OPENING_CHARACTERS:
                return None
        before = "" if before in _ASKING_WHETHER and word in _TELLING else word
    return None


def wanted(order: str) -> NDArray[np.float32]:
    """Return the amount that is added to the score of a tool for its effect, by position."""
    found = _additions().get("which" if _ATTRIBUTE.match(order) else opening(order))
    added = np.zeros(EFFECTS, np.float32) if found is None else found
    if _ASKS_FOR_FACTS.match(order) is not None:
        added = added.copy()
        added[CHANGES], added[DELETE] = -TAKEN_FROM_CHANGING, -TAKEN_FROM_DELETING
    return added


@cache
def _additions() -> Mapping[str, NDArray[np.float32]]:
    """Return the additions of each opening word."""
    additions = {}
    for line in WEIGHTS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            word, *points = line.split()
            added = np.array([*map(int, points)], np.float32) * np.float32(UNIT)
            additions[word] = np.clip(np.append(added, added[0]), -MOST_ADDED, MOST_ADDED)
            if added[DELETE] <= CERTAIN_NOT_TO_DELETE:
                additions[word][DELETE] = -TAKEN_FROM_DELETING
            if word in ASKING_FOR_FACTS:
                additions[word][CHANGES] = -TAKEN_FROM_CHANGING
    return additions


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

_COMBINERS = ("anyOf", "oneOf", "allOf")
_NESTING = frozenset({"properties", "items", *_COMBINERS})
"""Keys of a schema that contains others: most parameters have none."""


class Fields(Struct, frozen=True):
    """The texts of an item that lexical search weights differently, as `bm25.WEIGHTS` says."""

    name: str
    description: str
    parameters: str
    parameter_descriptions: str
    server: str
    text: str
    title: str = ""
    """Title of a tool; empty where it says the same as its name."""
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
        title=encodable(title_of(item)),
        values=encodable(" ".join(parameters.values)),
        labels=encodable(" ".join((*item.tags, item.category or ""))),
        use_cases=encodable("\n".join(item.use_cases)),
    )
    if not several_servers:
        return fields, (*_headed_chunks(words, description), *_further_chunks(words, fields, item))
    names = encodable(", ".join(identifier_words(parameter) for parameter in parameters.top))
    body = f"{description} Parameters: {names}" if names else description
    head = f"{fields.server} {words}"
    return fields, (*_headed_chunks(head, body), *_further_chunks(head, fields, item))


def _further_chunks(head: str, fields: Fields, tool: Tool) -> Iterator[str]:
    """Yield chunks for what name and description do not say, which a request is compared with one by one.

    The instructions of the server are none of it: with them, a poisoner's five servers took three points of
    recall@5 from others, and people's requests gained nothing.
    """
    for case in tool.use_cases:
        yield from _headed_chunks(head, encodable(case))
    says_little = len(fields.description) < SHORT_DESCRIPTION
    further = [fields.title, fields.labels.strip(), fields.values if says_little else ""]
    if not any(further):
        return
    said = {*terms(f"{fields.name} {fields.description}")}
    title, labels, values = (
        text[:NAME_LIMIT] if text and not said.issuperset(terms(text)) else "" for text in further
    )
    for text in (title, labels, values and f"{fields.description} {values}"):
        if text:
            yield from _headed_chunks(head, text)


def title_of(tool: Tool) -> str:
    """Return the title of a tool, its own or that among its annotations, unless it repeats the name."""
    if b'"title"' not in tool.definition:
        return ""
    try:
        title = envelope.text(envelope.members(tool.definition).get("title"))
    except (msgspec.DecodeError, RecursionError):
        return ""
    title = title or _hints(tool.definition).get("title")
    if not isinstance(title, str) or name_key(title[:NAME_LIMIT]) == name_key(tool.name):
        return ""
    return title[:NAME_LIMIT]


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


def read_parameters(definition: bytes) -> Parameters:
    """Return the parameters in a tool's definition; none for a definition that cannot be read."""
    found = Parameters()
    try:
        decoded = msgspec.json.decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return found
    for depth, name, node in _walk(decoded.get("inputSchema") if isinstance(decoded, dict) else None):
        if len(found.top) + len(found.nested) >= MAX_PARAMETERS:
            break
        (found.top if depth == 0 else found.nested).append(name[:MAX_NAME])
        description = node.get("description") if isinstance(node, dict) else None
        if isinstance(description, str) and description:
            found.descriptions.append(description[:MAX_DESCRIPTION])
        if isinstance(node, dict):
            room = MAX_VALUES - len(found.values)
            found.values.extend(islice(_values(node), room))
    return found


def _values(node: Mapping[str, JSON]) -> Iterator[str]:
    """Yield the texts that a parameter may be, or that are given as examples."""
    for key in ("enum", "examples"):
        values = node.get(key)
        if isinstance(values, list):
            yield from (
                value for value in values[:MAX_VALUES] if isinstance(value, str) and len(value) <= MAX_NAME
            )


def _walk(schema: JSON) -> Iterator[tuple[int, str, JSON]]:
    """Yield every property with its depth, breadth first, so that limits cut the innermost."""
    queue: deque[tuple[int, JSON]] = deque([(0, schema)])
    for _ in range(MAX_NODES):
        if not queue:
            return
        depth, node = queue.popleft()
        if not isinstance(node, dict):
            continue
        properties = node.get("properties")
        if isinstance(properties, dict):
            for name, child in list(properties.items())[:MAX_PARAMETERS]:
                yield depth, name, child
                if isinstance(child, dict) and not _NESTING.isdisjoint(child):
                    queue.append((depth + 1, child))
        queue.append((depth, node.get("items")))
        for key in _COMBINERS:
            options = node.get(key)
            if isinstance(options, list):
                queue.extend((depth, option) for option in options[:MAX_PARAMETERS])


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
        """Configured and derived tags."""
        return frozenset((*self.tags, *self.derived_tags))

    def labels(self) -> Iterator[str]:
        """Yield category, tags and hints, each as one text that filters compare."""
        yield category_label(self.category)
        yield from map(tag_label, (*self.tags, *self.derived_tags))
        yield from (READ_ONLY,) if self.read_only else ()
        yield from (DESTRUCTIVE,) if self.destructive else ()
        yield from (OPEN_WORLD,) if self.open_world else ()


def category_label(category: str) -> str:
    """Return the label of a category, for `Filters`."""
    return f"category:{category}"


def tag_label(tag: str) -> str:
    """Return the label of a tag, for `Filters`."""
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
