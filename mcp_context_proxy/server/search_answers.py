"""Answers to searches as a text for models, within a budget of tokens. `rendering` has them as data.

A model reads each tool as a signature, such as ``create_issue(title: string, ... 3 optional)``, and the
sentences that tell it from its siblings. If that is too much, items are told in fewer words, the last ones
first, and in the end by their names alone; none is left out. A tool that is asked for by its exact name is
told whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import cache, partial
from typing import Final

from msgspec import Struct

from mcp_context_proxy.catalog.model_schemas import plain_schema
from mcp_context_proxy.catalog.names import COMPARED, EXPOSED, parted
from mcp_context_proxy.context import SESSION_MODES, ContextItem, Delivery, RequestContext
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.search import Found, Scope, server_asked_for
from mcp_context_proxy.context.selection import SearchAnswer
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import Fleet, error_line
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.errors import AwaitedServersError, UnknownFilterError, UnknownItemError, some_of
from mcp_context_proxy.items import (
    Document,
    IncludeMode,
    Kind,
    NameOf,
    SearchFilters,
    Snapshot,
    Tool,
    ToolClass,
    key_of,
)
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.strangers import bounded, one_line
from mcp_context_proxy.results import failure
from mcp_context_proxy.retrieval import Result
from mcp_context_proxy.retrieval.text import identifier_words
from mcp_context_proxy.server.meta_definitions import (
    CALL,
    CALL_READ_ONLY,
    READ_DOCUMENT,
    READ_MARK,
    SEARCH,
    no_servers,
)
from mcp_context_proxy.server.signatures import Detail, ToldTool, query_terms
from mcp_context_proxy.trust import reaches
from mcp_context_proxy.trust.fingerprints import sign_in, withheld

NAMED_OF_ONE: Final = 40
"""Further tools that are named where a query asks for those of one server."""

HOW_TO_CALL: Final = f"Call one through {CALL}."
HOW_TO_CALL_MARKED: Final = (
    f"Call one through {CALL_READ_ONLY} if it is marked {READ_MARK}, else through {CALL}."
)
"""Said where a tool of the answer is marked."""
HOW_TO_SEE_ALL: Final = "Search for its exact name to see all about it."
FOR_SESSION: Final = "For the whole session:"
HOW_TO_READ: Final = f"Read on with {READ_DOCUMENT}: by name, and section if one is enough."
HOW_TO_READ_FILES: Final = (
    f"Read a file of a skill with {READ_DOCUMENT}: its URI, a slash and the file is the name."
)
HOW_ALL_THE_SAME: Final = "Tools among them can be called by their names all the same."
HOW_TO_GO_ON: Final = "Call one only if it does exactly this; else search in other words or do without."
WHICH_ONE: Final = "Of the same tool at several servers, take the one that is meant; if that is open, ask."
"""Said where such a tool changes something: to call it at the wrong server may do harm."""
IN_ENGLISH: Final = "If none of these does it, search again in English."
"""Said where a query in another script has no word in common with any item: models know little of it."""
AGAIN: Final = "Not everything could be searched yet: search again in some seconds."

ANSWER_TOKENS: Final = 400
"""Budget of an answer. Only what a model cannot do without may exceed it, up to `MOST_TOKENS`."""

MOST_TOKENS: Final = 700
"""Size from which even the best items are told by their names alone."""

WHOLE_CHARACTERS: Final = 150_000
"""Characters of a tool that is told whole: one of a thousand real tools has a tenth of it."""

SCHEMAS_CHARACTERS: Final = 6_000
"""Characters of several: with the signatures of the others, hosts show a model all of such an answer."""

NOTHING_FITS_TOKENS: Final = 80
"""Budget of an answer that nothing fits."""

UNKNOWN_TOKENS: Final = 200
"""Budget of the tools that are told where a model calls one that does not exist."""

TOKENS_EACH: Final = 80
"""Budget for each item where a caller asks for a number of them."""

CHARACTERS_PER_TOKEN: Final = 4
"""A token is counted for as many characters where the tokenizer finds fewer."""

SIGNED: Final = 3
"""Number of best items that keep their required parameters as long as there is room for them."""

NEAREST: Final = 3
"""Items that are named if nothing fits."""

REMEDY_CHARACTERS: Final = 300
"""Length of a cause with its remedy, of a server that a query names."""

CAUSE_CHARACTERS: Final = 80
"""Length to which a note cuts the reason why a server has no connection."""

READ_AS_CHARACTERS = 200
"""Length of the query as it was read that an answer says if nothing fits."""

NOTED: Final = 5
"""Names in a note; the others are counted."""

BRIEFLY_NOTED: Final = 2
"""Names in the brief form of a note."""

LAST_LATIN: Final = "\u024f"
"""Last of the letters of European languages in Latin script."""

UNFINISHED: Final = "Indexing goes on."
"""Brief form of the note that not everything is indexed."""

DETAILS: Final = (
    Detail(240, 6, 2, notes=True),
    Detail(240, 6, 2),
    Detail(110, 4, 1),
    Detail(110, 0, 1),
    Detail(0, 0, 1),
)
"""Details from the most to the least; after the last one there is the name alone."""

LATER: Final = 2
"""Index of the most that is told about an item after the best ones, of which one is nearly always called."""

NAME_ALONE: Final = len(DETAILS)


def answer_tokens(top_n: int | None) -> int:
    """Return the budget of an answer to a caller who asked for `top_n` items, or for no number."""
    return ANSWER_TOKENS if top_n is None else max(ANSWER_TOKENS, top_n * TOKENS_EACH)


UNREAD: Final = "Rules and references are still being read, and were not searched."
NOT_SEARCHED: Final = "Not searched"
NOT_CONNECTED: Final = "Searched as last known, because not connected yet"
NOT_LISTED: Final = "Searched as last known, because their lists cannot be had"
"""Notes about servers, each followed by their names."""


class Note(Struct, frozen=True):
    """A sentence about an answer, such as a limit that it has."""

    text: str
    brief: str = ""
    """It in fewer words, where nothing fits and room is short; empty to leave it out there."""


SEARCH_FAILED: Final = "The search failed; tell the user, who finds the reason with mcp-context-proxy logs."
WITHHELD: Final = "Withheld"
"""Key of the servers whose withheld tools earlier answers have told."""


def search_notes(
    answer: SearchAnswer,
    fleet: Fleet,
    noted: dict[str, frozenset[str]] | None = None,
    name_of: NameOf = EXPOSED,
) -> list[Note]:
    """Return the limits of an answer: items over budget and servers that were not searched, by name.

    `noted` has what notes of earlier answers said, and is kept up to date. It is not said again that indexing
    goes on, where the likeliest were compared. Servers are not named again, except those not searched where
    what is looked for may be theirs: nothing fits well, or the query names them. If it asks for one server
    alone, nothing is said about others.
    """
    found, only = answer.found, answer.found.wanted.server
    noted, notes = {} if noted is None else noted, list[Note]()
    if found.tools.note and not (found.tools.likely and UNFINISHED in noted):
        notes.append(Note(found.tools.note, UNFINISHED if not answer.context.failure else SEARCH_FAILED))
        if found.tools.likely:
            noted[UNFINISHED] = frozenset()
    if found.snapshot.unread:
        notes.append(Note(UNREAD, UNREAD))
    if answer.context.dropped:
        notes.append(Note(f"{over_budget(answer.context, found.snapshot, name_of)}."))
    away = found.snapshot.unlisted or fleet.off or fleet.unlisted or fleet.remembered or fleet.stale
    query = f"{answer.context.query} {only or ''}" if away else ""
    asked = set(identifier_words(query.casefold()).split())
    fits = bool(found.results) and not found.near_misses
    for note, servers in _servers_away(fleet, found.snapshot, asked).items():
        known = noted.get(note, frozenset())
        if note == NOT_SEARCHED:
            known = frozenset(name for name in known if fits and not _is_named(name, asked))
        if told := {name: why for name, why in servers.items() if name not in known and only in (None, name)}:
            notes.append(_note_of_servers(note, told, asked))
        # One that was well in between is named again.
        noted[note] = frozenset(name for name in servers if name in told or name in noted.get(note, ()))
    known = noted.get(WITHHELD, frozenset()) if fits else frozenset()
    reasons: dict[str, list[str]] = {}
    for tool in found.snapshot.withheld.values():
        reasons.setdefault(tool.server, []).append(tool.reason)
    new = {name: why for name, why in reasons.items() if name not in known and only in (None, name)}
    changed = [withheld(name, Kind.TOOL, why) for name, why in new.items()]
    notes += [Note(f"{sentence}.") for sentence in changed[:NOTED]]
    noted[WITHHELD] = frozenset(name for name in reasons if name in new or name in noted.get(WITHHELD, ()))
    if not found.results and not any(map(reaches, found.snapshot.servers)):
        notes.append(Note(no_servers(), brief=no_servers()))
    return notes


def _servers_away(fleet: Fleet, snapshot: Snapshot, asked: Set[str]) -> dict[str, dict[str, str]]:
    """Return by note the servers that were not searched as they are now, each with the reason if any."""
    # Of these, one that is connected has listed so much that the catalog does not have it yet.
    missing = dict.fromkeys(snapshot.unlisted, "its list is still being read")
    missing |= {name: f"off: {one_line(off.reason, CAUSE_CHARACTERS)}" for name, off in fleet.off.items()}
    missing |= {one.name: _standing(one, whole=_is_named(one.name, asked)) for one in fleet.unlisted}
    waiting = {one.name: _standing(one) if one.cause else "" for one in fleet.remembered}
    stale = dict.fromkeys(fleet.stale, "")
    away = {NOT_SEARCHED: missing, NOT_CONNECTED: waiting, NOT_LISTED: stale}
    return {note: {name: why for name, why in of.items() if reaches(name)} for note, of in away.items()}


def _note_of_servers(note: str, told: Mapping[str, str], asked: Set[str]) -> Note:
    with_reasons = {name: f"{name} ({why})" if why else name for name, why in told.items()}
    # Where nothing fits, what became of a server that the query means is the answer.
    meant = [name for name in told if _is_named(name, asked)]
    in_brief = [*(with_reasons[name] for name in meant), *(name for name in told if name not in meant)]
    brief = f"{note}: {some_of(in_brief, BRIEFLY_NOTED)}." if note == NOT_SEARCHED else ""
    return Note(f"{note}: {some_of([*with_reasons.values()])}.", brief)


def _is_named(server: str, asked: Set[str]) -> bool:
    """Return whether a query, by its words, names a server."""
    return asked >= set(identifier_words(server.casefold()).split())


def _standing(client: DownstreamClient, *, whole: bool = False) -> str:
    """Return the state of a server that is not connected, with the reason; if `whole`, with its remedy.

    Where no remedy is known, the server's own error stands there instead; no reason with a sign of an attack.
    """
    if not client.cause:
        return client.standing
    again = " again; before that" if client.state is ServerState.STARTING else ""
    # After the first clause there is advice for a person, who may ask what became of a server.
    cause = client.cause.partition("; ")[0]
    if whole:
        said = "" if client.remedy else error_line(client)
        cause = ": ".join(filter(None, ("; ".join(filter(None, (client.cause, client.remedy))), said)))
    if sign_in(cause) is not None:
        return client.standing
    return f"{client.standing}{again}: {one_line(cause, REMEDY_CHARACTERS if whole else CAUSE_CHARACTERS)}"


def over_budget(context: RequestContext, snapshot: Snapshot, name_of: NameOf = EXPOSED) -> str:
    """Name the items that were selected but do not fit into the budget."""
    named = [f"{current_name(one, snapshot, name_of)} ({one.tokens:,} tokens)" for one in context.dropped]
    own = sum(one.tokens for one in context.items if one.include_mode in SESSION_MODES)
    taken = f", of which the session's own items take {own:,}" if own else ""
    room = f"{context.options.max_tokens:,} tokens{taken}"
    return f"Left out, because they do not fit into {room}: {', '.join(named)}"


def search_text(
    answer: SearchAnswer,
    notes: Sequence[Note] = (),
    *,
    count: Callable[[str], int],
    whole: bool = False,
    tokens: int = ANSWER_TOKENS,
    name_of: NameOf = EXPOSED,
    about: Callable[[Tool], str] | None = None,
    searched: tuple[int, int] | None = None,
) -> str:
    """Return the answer to a search as a model reads it. Blocks for some tenths of a millisecond.

    With `whole` the best tools are told whole, with a line from `about`, as far as there is room; `tokens` is
    the budget of the others, but for documents. `searched` is the number of tools and documents that were
    searched for an answer of former times, in which no further tools of a server are named.
    """
    found = answer.found
    more = _others_of_server(answer, name_of) if searched is None else []
    searched = searched or (len(found.snapshot.tools), len(found.snapshot.documents))
    results, known = found.results, _count_text(*searched)
    if not results:
        text = _nothing_fits(found, known, notes, count, name_of)
        if answer.context.dropped:
            text = f"{over_budget(answer.context, found.snapshot, name_of)}.\n{HOW_ALL_THE_SAME}"
        return "\n\n".join([text, *_documents(answer, titled=True), *more])
    head = [f"Note: {note.text}" for note in notes]
    if found.near_misses:
        names = some_of([item_name(one, name_of) for one in found.near_misses[:NEAREST]])
        head.append(f"No tool fits. Nearest: {names}. {HOW_TO_GO_ON}\n\nBut {_all_the_same(found.results)}:")
    else:
        best = "The best match" if len(results) == 1 else f"The {len(results)} best matches"
        head.append(f"{best} of {known}:")
        if _is_in_other_script(answer.context.query) and not any(map(_has_a_word, results)):
            head.insert(0, f"Note: {IN_ENGLISH}")
    # Those in the texts of documents are told there, within a budget of their own.
    told_there = {key_of(one.document) for one in answer.told}
    results = tuple(result for result in results if key_of(result.item) not in told_there)
    named = [result for result in results if result.exact]
    # Several servers may have a tool of that name: then which one is meant is still to be chosen.
    is_one = len(named) == 1
    call = how_to_call(result.item for result in results)
    if any(one.twins and isinstance(one.item, Tool) and not read_mark(one.item) for one in results):
        call = f"{call} {WHICH_ONE}"
    told, rest, tail = list[str](), list[Result](), [call] if call else []
    left = WHOLE_CHARACTERS
    for result in results:
        text = _whole(result, name_of, about) if whole or (is_one and result.exact) else ""
        if not 0 < len(text) <= left:
            rest.append(result)
            continue
        told.append(text)
        left = min(left, SCHEMAS_CHARACTERS) - len(text)
    if is_one and not whole and told:
        told += further([item_name(result, name_of) for result in rest])
    elif rest:
        tail = [f"{call} {HOW_TO_SEE_ALL}"] if call else []
        fitting = Fitting(rest, found.snapshot, count, name_of, query=answer.context.query)
        told += fitting.fit([*head, *tail], tokens)
    # Without tools they are what the first line announces.
    return "\n\n".join([*head, *told, *tail, *_documents(answer, titled=bool(told)), *more])


def _others_of_server(answer: SearchAnswer, name_of: NameOf) -> list[str]:
    """Return a line that names the other tools of a server if a query asks for all that it has."""
    found = answer.found
    server = server_asked_for(answer.context.query, found.snapshot.servers)
    told = {result.item.key for result in found.results if isinstance(result.item, Tool)}
    tools = () if server is None else found.snapshot.tools.values()
    others = (one for one in tools if one.server == server and one.include is not IncludeMode.MANUAL)
    names = [shown_name(one, name_of) for one in others if one.key not in told]
    return [f"{len(names)} more of {server}: {some_of(names, NAMED_OF_ONE)}"] if names else []


def _documents(answer: SearchAnswer, *, titled: bool) -> list[str]:
    """Return the texts of the rules and references that an answer tells, some under a title."""
    texts = [one.text for one in answer.told if one.is_found]
    texts = ["Rules and references:", *texts] if texts and titled else texts
    if standing := [one.text for one in answer.told if not one.is_found]:
        texts += [FOR_SESSION, *standing]
    named = Delivery.WHOLE, Delivery.OUTLINE
    if any(one.document.folder is not None and one.delivery in named for one in answer.told):
        texts.append(HOW_TO_READ_FILES)
    if any(one.delivery in (None, Delivery.OUTLINE) for one in answer.told):
        texts.append(HOW_TO_READ)
    return texts


def _all_the_same(results: Collection[Result]) -> str:
    """Return what there is where no tool fits: documents that do, and tools that something has brought."""
    tools = sum(isinstance(one.item, Tool) for one in results)
    some = "one tool" if tools == 1 else f"{tools} tools"
    if (documents := len(results) - tools) == 0:
        return f"{some} may go with a rule in force, or with what was done"
    fit, them = ("one document fits", "it") if documents == 1 else (f"{documents} documents fit", "them")
    return f"{fit}, and {some} may go with {them}" if tools else fit


def _nothing_fits(
    found: Found, known: str, notes: Sequence[Note], count: Callable[[str], int], name_of: NameOf
) -> str:
    """Return that nothing fits, with the nearest names; in fewer words if that is over its budget."""
    full = [f"Note: {note.text}" for note in notes]
    full += [found.excluded_note] if found.nearest and found.excluded_note else []
    brief = [f"Note: {note.brief}" for note in notes if note.brief]
    read = f"Read as: {one_line(found.read_as, READ_AS_CHARACTERS)}\n" if found.read_as is not None else ""
    text = ""
    brief_forms = ((brief, "", most) for most in range(NEAREST, 0, -1))
    for head, read_as, most in ((full, read, NEAREST), *brief_forms):
        text = "\n\n".join([*head, read_as + _nearest(found, known, most, name_of)])
        if max(count(text), -(-len(text) // CHARACTERS_PER_TOKEN)) <= NOTHING_FITS_TOKENS:
            break
    return text


def _nearest(found: Found, known: str, most: int, name_of: NameOf) -> str:
    if not found.near_misses:
        return found.filter_note or f"Nothing was found among {known}."
    how = AGAIN if found.tools.indexed and not found.tools.likely else HOW_TO_GO_ON
    if found.excluded and not found.nearest:
        return f"{found.filter_note}\n{how}"
    why = found.leaves_note or f"None of {known} fits."
    names = "\n".join(f"- {item_name(result, name_of)}" for result in found.near_misses[:most])
    return f"{why} Nearest:\n{names}\n{how}"


def _has_a_word(result: Result) -> bool:
    return any(not term.isdigit() for _, term, _ in result.terms)


def _is_in_other_script(query: str) -> bool:
    letters = [one for one in query if one.isalpha()] if not query.isascii() else []
    return 2 * sum(one > LAST_LATIN for one in letters) > len(letters)


async def unknown(
    error: UnknownItemError, name: str, contexts: ContextEngine, snapshot: Snapshot, name_of: NameOf
) -> bytes:
    """Return the result for an unknown tool, with those found by its name: the model has a task for one."""
    text, (server, own) = bounded(str(error)), parted(name, [*filter(reaches, snapshot.servers)])
    leads_nowhere = isinstance(error, AwaitedServersError) and not error.known
    if not (leads_nowhere or type(error) is UnknownItemError) or server in snapshot.unlisted:
        return failure(text)
    scope = Scope(frozenset({Kind.TOOL}), SearchFilters(server=server))
    written = partial(search_text, count=contexts.costs.count, tokens=UNKNOWN_TOKENS, name_of=name_of)
    try:
        words = identifier_words(own[:COMPARED])
        answer = await contexts.select(words, scope=scope, remember=False, write=written, within=0)
    except UnknownFilterError:  # the server was removed a moment ago
        return failure(text)
    fits = answer.found.results and not answer.found.near_misses
    # Where a name was misspelled, nothing fits the words of it.
    said = answer.text if fits or not error.nearest else None
    return failure(f"{text}\n\n{said or f'{SEARCH} finds tools by what they do.'}")


def read_mark(tool: Tool) -> str:
    """Return the mark after the signature of a tool that says it is read-only; empty for any other."""
    return f" {READ_MARK}" if tool.tool_class is ToolClass.READ else ""


def how_to_call(items: Iterable[Tool | Document]) -> str:
    """Return a sentence on how to call these tools; empty if there are none among the items."""
    classes = {item.tool_class for item in items if isinstance(item, Tool)}
    return (HOW_TO_CALL_MARKED if ToolClass.READ in classes else HOW_TO_CALL) if classes else ""


class Fitting:
    """Texts of found items, each in the detail that there is room for."""

    def __init__(
        self,
        results: Sequence[Result],
        snapshot: Snapshot,
        count: Callable[[str], int],
        name_of: NameOf,
        *,
        query: str = "",
    ) -> None:
        """Take the items, the best first, and the query that they were found for."""
        self._results, self._name_of = results, name_of
        self._count = cache(count)
        """Counts each line once, though several levels have it."""
        asked = query_terms(query)
        tools = ((at, one.item) for at, one in enumerate(results) if isinstance(one.item, Tool))
        self._tools = {at: ToldTool(tool, snapshot, asked) for at, tool in tools}
        self._made: dict[tuple[int, int], tuple[str, int]] = {}
        self._levels = [0 if place < SIGNED else LATER for place in range(len(results))]
        self._texts = [("", 0)] * len(results)
        """The text of each item at its level, and its tokens."""
        self._tokens = self._characters = 0
        """Size of the whole answer."""

    def fit(self, around: Sequence[str], tokens: int, more: Sequence[str] = ()) -> list[str]:
        """Return the texts that fit into a budget beside those `around`, with the names of `more` items.

        Notes are left out first, then descriptions are shortened, then optional parameters are only counted,
        then all but the names are left out; at each step the last items come first. Room that is left after
        that goes to the best.
        """
        most = max(tokens, MOST_TOKENS)
        last = len(DETAILS) - 1
        around = [*around, *further(more)]
        self._tokens = sum(map(self._count, around))
        self._characters = sum(map(len, around)) + 2 * len(self._results)
        for place, level in enumerate(self._levels):
            self._tell(place, level)
        for level in range(1, NAME_ALONE + 1):
            limit = most if level == NAME_ALONE else tokens
            for place in reversed(range(len(self._results))):
                if self._size() <= limit:
                    break
                lower = level if level < last or place < SIGNED else NAME_ALONE
                self._tell(place, max(self._levels[place], lower))
        for place in range(min(SIGNED, len(self._results))):
            self._raise(place, tokens)
        texts = zip(self._texts, self._levels, strict=True)
        levels = zip(self._results, self._levels, strict=True)
        alone = [item_name(result, self._name_of) for result, level in levels if level == NAME_ALONE]
        return [*(text for (text, _), level in texts if level < NAME_ALONE), *further([*alone, *more])]

    def _raise(self, place: int, tokens: int) -> None:
        """Tell as much more about an item as there is room for."""
        lowered = self._levels[place]
        for level in range(lowered + 1):
            self._tell(place, level)
            if self._size() <= tokens:
                return

    def _size(self) -> int:
        """Return the tokens of the whole answer, by the tokenizer or by characters, whichever are more."""
        return max(self._tokens, -(-self._characters // CHARACTERS_PER_TOKEN))

    def _tell(self, place: int, level: int) -> None:
        """Tell an item at a level."""
        text, tokens = self._made.get((place, level)) or self._make(place, level)
        former, cost = self._texts[place]
        self._tokens += tokens - cost
        self._characters += len(text) - len(former)
        self._texts[place], self._levels[place] = (text, tokens), level

    def _make(self, place: int, level: int) -> tuple[str, int]:
        """Return the text of an item at a level, and its tokens."""
        if level == NAME_ALONE:
            lines = [f"{item_name(self._results[place], self._name_of)}, "]
        else:
            lines = self._lines(place, DETAILS[level])
        # No token goes beyond a line, so the tokens of lines are those of the text.
        made = self._made[place, level] = "\n  ".join(lines), sum(map(self._count, lines))
        return made

    def _lines(self, place: int, detail: Detail) -> list[str]:
        result = self._results[place]
        item = result.item
        if isinstance(item, Document):
            told = _passage(item, result.chunk, 2 * detail.characters) if detail.characters else ""
            return [f"{item.uri} ({item.kind})", *told.splitlines()]
        tool = self._tools[place]
        told = tool.description(detail.characters) if detail.characters else ""
        name = shown_name(item, self._name_of)
        lines = [name + tool.parameters(detail) + read_mark(item)]
        lines += [_also(result, self._name_of)] if result.twins else []
        lines += [told] if told else []
        return [*lines, *self._notes(place)] if detail.notes else lines

    def _notes(self, place: int) -> list[str]:
        """Return the notes about the parameters of a tool that no better one has, too."""
        *before, own = (one.notes for at, one in self._tools.items() if at <= place)
        return [note for note in own if not any(note in notes for notes in before)]


def _passage(document: Document, chunk: str, most: int) -> str:
    """Return a document that is short enough whole, with its lines, and else the place that was found."""
    text = document.text.strip()
    return text if len(text) <= most else one_line(chunk.removeprefix(f"{document.name}: "), most)


def shown_name(tool: Tool, name_of: NameOf) -> str:
    """Return the name under which a caller gets a tool; nearly every tool has one name for all."""
    return name_of(tool) if tool.wider_names else tool.exposed_name


def current_name(item: ContextItem, snapshot: Snapshot, name_of: NameOf) -> str:
    """Return the name under which a caller gets an item of a record."""
    tool = snapshot.tools.get(item.name) if item.type is Kind.TOOL else None
    return item.name if tool is None else shown_name(tool, name_of)


def item_name(result: Result, name_of: NameOf) -> str:
    """Return the name by which an item is called or read."""
    item = result.item
    return item.uri if isinstance(item, Document) else shown_name(item, name_of)


def _also(result: Result, name_of: NameOf) -> str:
    """Return a sentence that names the same tool of other servers."""
    return f"The same at another server: {some_of([shown_name(twin, name_of) for twin in result.twins])}."


def further(names: Sequence[str]) -> list[str]:
    """Return a line that names further items; nothing if there are none."""
    return [f"{len(names)} more: {', '.join(names)}"] if names else []


def _count_text(tools: int, documents: int) -> str:
    alone = "1 tool" if tools == 1 else f"{tools:,} tools"
    return f"{tools + documents:,} tools and documents" if documents else alone


def _whole(result: Result, name_of: NameOf, about: Callable[[Tool], str] | None) -> str:
    """Return a tool with its whole description and schema; of a document, the piece that was found."""
    item = result.item
    if isinstance(item, Document):
        return f"{item.uri} ({item.kind})\n  {one_line(result.chunk)}"
    # Each line is indented, so that no description can pass for another tool.
    lines = [_also(result, name_of)] if result.twins else []
    lines += [] if about is None else [about(item)]
    lines += [line.strip() for line in item.description.splitlines()]
    schema = envelope.encode(plain_schema(envelope.schema_of(item.definition))).decode()
    name = shown_name(item, name_of) + read_mark(item)
    return "\n  ".join([name, *filter(None, lines), f"Input schema: {schema}"])
