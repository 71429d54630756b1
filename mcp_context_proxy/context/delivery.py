"""Delivery: the rules and references that reach a model, in which form, and when.

The instructions with which a session begins have the ``always`` rules that fit there. The answer to a search
has the documents that it found, and the ``always`` and hand-added ones that the session was not given yet:
whole as long as the budget lasts, or as an outline that `read_document` goes on from. Nothing is given twice
in a session. A record calls delivered exactly the text written here. What items cost is estimated here, too.
Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.catalog.document_reading import files_line, headings, outline, sections_with
from mcp_context_proxy.context import SESSION_MODES, ContextItem, Delivery, Mode, RequestContext
from mcp_context_proxy.context.search import Found
from mcp_context_proxy.context.session import Delivered
from mcp_context_proxy.items import (
    DOCUMENT_KINDS,
    Document,
    IncludeMode,
    ItemKey,
    Kind,
    Snapshot,
    item_by,
    key_of,
)
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.retrieval.text import terms

Deliver: TypeAlias = Literal["nothing", "answer", "prompt"]
"""Amount that a request gives to a model of the documents in its context: nothing but names; the text of an
answer, within its budget; or that of a prompt, which has most of them whole (`as_prompt`)."""

EXCERPT_CHARACTERS: Final = 240
"""Length of the piece that was found, where a document is not given whole."""

SECTION_TOKENS: Final = 500
"""Size beyond which a reference is given by the section that was found: a handbook has many others."""

NAMED: Final = 5
"""Documents of the session that are only named because the budget is used up; others wait in silence."""

GIVEN: Final = frozenset({Delivery.WHOLE, Delivery.INSTRUCTIONS})
"""Forms after which a model knows the whole text."""


class ToldDocument(Struct, frozen=True):
    """A document as an answer tells it."""

    document: Document
    delivery: Delivery | None
    """None if the answer only names it."""
    text: str
    is_found: bool
    """False if it is there for the session and not for the query."""


def deliver(
    context: RequestContext,
    found: Found,
    delivered: Mapping[ItemKey, Delivered] | None,
    count: Callable[[str], int],
) -> tuple[RequestContext, tuple[ToldDocument, ...]]:
    """Return a context with the form in which an answer tells each document, and the texts in their order.

    ``delivered`` are the documents that the model was given before; None where that is not known, and only
    what was found is given: the rules of every session would be in every answer.
    """
    chunks = {key_of(one.item): one.chunk for one in found.results if isinstance(one.item, Document)}
    known = _known_texts(delivered or {}, found.snapshot)
    writing = _Writing(context.query, context.options.document_tokens, delivered or {}, count, known)
    modes = () if delivered is None else (Mode.ALWAYS, Mode.MANUAL)
    standing = [item for item in _documents(context) if item.include_mode in modes]
    for item in sorted(standing, key=lambda item: item.type is not Kind.RULE):
        if isinstance(document := item_by(found.snapshot, (item.type, item.name)), Document):
            chunk = chunks.pop((item.type, item.name), None)
            writing.add(document, item.tokens, chunk or "", is_found=chunk is not None, is_standing=True)
    tokens = {(item.type, item.name): item.tokens for item in _documents(context)}
    for key, chunk in chunks.items():
        if isinstance(document := item_by(found.snapshot, key), Document):
            writing.add(document, tokens.get(key, 0), chunk, is_found=True, is_standing=False)
    return _with_forms(context, writing.forms), tuple(writing.told)


def _with_forms(context: RequestContext, forms: Mapping[ItemKey, Delivery | None]) -> RequestContext:
    items = (
        replace(item, delivered=forms[key]) if (key := (item.type, item.name)) in forms else item
        for item in context.items
    )
    return replace(context, items=tuple(items))


def _known_texts(delivered: Mapping[ItemKey, Delivered], snapshot: Snapshot) -> dict[str, Delivery]:
    """Return the texts that a session was given whole, with the form in which it was."""
    texts: dict[str, Delivery] = {}
    for key, (fingerprint, form) in delivered.items():
        document = item_by(snapshot, key) if form in GIVEN else None
        if isinstance(document, Document) and document.fingerprint == fingerprint:
            texts[text_given(document)] = form
    return texts


def told_again(
    document: Document, item: ContextItem, is_found: bool, given: Mapping[str, str]
) -> ToldDocument:
    """Return a document in the form in which the answer of a record told it.

    An outline comes without the place that was found, which no record has. ``given`` are the texts that the
    answer gave whole, each with the URI of its document.
    """
    form, text = item.delivered, f"{document.uri} ({document.kind}, {item.tokens:,} tokens)"
    if form is Delivery.WHOLE:
        text = _whole(document)
    elif form is Delivery.OUTLINE:
        text = _outlined(document, item.tokens, "", is_known=False)
    elif form is Delivery.EARLIER and (same := given.get(text_given(document))) is not None:
        text = _same(document, same)
    elif form is not None:
        text = _given_before(document, form)
    return ToldDocument(document, form, text, is_found)


WHOLE_TOKENS: Final = 10_000
"""Budget of a prompt's text for documents that its query found: a few pages of a handbook fill a context."""


def as_prompt(
    context: RequestContext, found: Found, count: Callable[[str], int]
) -> tuple[RequestContext, tuple[ToldDocument, ...]]:
    """Return a context with the form in which a prompt's text tells each document, and those not told whole.

    The documents of the session are told whole, and so are those that were found, the best first, as far as
    they fit into `WHOLE_TOKENS` together. Of the others it has an outline, with the place that was found, and
    of a long reference the section, as an answer has.
    """
    chunks = {key_of(one.item): one.chunk for one in found.results if isinstance(one.item, Document)}
    left, told, forms = WHOLE_TOKENS, list[ToldDocument](), dict[ItemKey, Delivery]()
    for item in sorted(_documents(context), key=lambda one: -(one.score or 0.0)):
        key = item.type, item.name
        document = item_by(found.snapshot, key)
        is_standing = item.include_mode in SESSION_MODES
        if is_standing or not isinstance(document, Document):
            forms[key] = Delivery.WHOLE
            continue
        chunk = chunks.get(key, "")
        section = _section(document, item.tokens, chunk, context.query, count, WHOLE_TOKENS)
        if item.tokens <= left and not section:
            left -= item.tokens
            forms[key] = Delivery.WHOLE
        else:
            place = section or _excerpt(chunk)
            text = _outlined(document, item.tokens, place, is_known=False)
            left -= count(text)
            forms[key] = Delivery.OUTLINE
            told.append(ToldDocument(document, Delivery.OUTLINE, text, is_found=True))
    return _with_forms(context, forms), tuple(told)


def given_now(context: RequestContext, snapshot: Snapshot) -> Iterator[tuple[ItemKey, Delivered]]:
    """Yield the documents that the answer with this context gives, for the session to remember."""
    for item in _documents(context):
        document = item_by(snapshot, (item.type, item.name))
        if document is not None and item.delivered in (Delivery.WHOLE, Delivery.OUTLINE):
            yield (item.type, item.name), (document.fingerprint, item.delivered)


def _documents(context: RequestContext) -> tuple[ContextItem, ...]:
    return context.of(*DOCUMENT_KINDS)


class _Writing(Struct):
    """The documents of one answer while they are written, and the budget that is left."""

    query: str
    budget: int
    delivered: Mapping[ItemKey, Delivered]
    count: Callable[[str], int]
    known: Mapping[str, Delivery]
    """Texts that the session was given before: projects have copies of their rules."""
    given: dict[str, str] = field(default_factory=dict)
    """Texts that this answer gives whole, each with the URI of its document."""
    told: list[ToldDocument] = field(default_factory=list)
    forms: dict[ItemKey, Delivery | None] = field(default_factory=dict)
    left: int = 0
    named: int = 0

    def __post_init__(self) -> None:
        self.left = self.budget

    def add(self, document: Document, tokens: int, chunk: str, *, is_found: bool, is_standing: bool) -> None:
        """Write a document in the best form that there is room for.

        One of the session that would fit into a budget of its own waits for the next answer.
        """
        key, text = key_of(document), text_given(document)
        fingerprint, before = self.delivered.get(key, ("", Delivery.EARLIER))
        if (form := self.known.get(text)) is not None:
            fingerprint, before = document.fingerprint, form
        if fingerprint == document.fingerprint and (before in GIVEN or not is_found):
            form = before if before is Delivery.INSTRUCTIONS else Delivery.EARLIER
            self.forms[key] = form
            if is_found:
                self.told.append(ToldDocument(document, form, _given_before(document, form), True))
            return
        if (same := self.given.get(text)) is not None:
            self.forms[key] = Delivery.EARLIER
            if is_found:
                self.told.append(ToldDocument(document, Delivery.EARLIER, _same(document, same), True))
            return
        section = (
            "" if is_standing else _section(document, tokens, chunk, self.query, self.count, self.budget)
        )
        whole = tokens <= self.left and not section
        if whole and self._tell(document, Delivery.WHOLE, _whole(document), is_found):
            self.given[text] = document.uri
            return
        waits = is_standing and not is_found and tokens < self.budget
        known = (fingerprint, before) == (document.fingerprint, Delivery.OUTLINE)
        place = section or _excerpt(chunk)
        outlined = _outlined(document, tokens, place, is_known=known)
        if not waits and self._tell(document, Delivery.OUTLINE, outlined, is_found):
            return
        self.forms[key] = None
        if is_found or self.named < NAMED:
            self.named += not is_found
            text = f"{document.uri} ({document.kind}, {tokens:,} tokens)"
            self.told.append(ToldDocument(document, None, text, is_found))

    def _tell(self, document: Document, form: Delivery, text: str, is_found: bool) -> bool:
        cost = self.count(text)
        if cost > self.left:
            return False
        self.left -= cost
        self.forms[key_of(document)] = form
        self.told.append(ToldDocument(document, form, text, is_found))
        return True


def _section(
    document: Document, tokens: int, chunk: str, query: str, count: Callable[[str], int], budget: int
) -> str:
    """Return the section that was found, where a model needs no more of a long reference; else nothing.

    A rule holds as a whole, and so do the steps of a skill.
    """
    if document.kind is Kind.RULE or document.folder is not None or tokens <= SECTION_TOKENS:
        return ""
    section = section_meant(document.text.strip(), chunk, query)
    # Others that fit have to have room as well.
    most = min(tokens // 2, budget // 4)
    if count(section) > most and len(known := headings(section)) > 1:
        section = section[: known[1].start].strip()
    return section if "\n" in section and count(section) <= most else ""


def section_meant(text: str, chunk: str, query: str) -> str:
    """Return the section of a text that a query means; empty if none is known, or it is all of the text.

    Of several short sections in the chunk that was found, it is that with most words of the query, or else
    the last.
    """
    asked, sections = frozenset(terms(query)), sections_with(text, chunk)[::-1]
    return max(sections, key=lambda one: len(asked.intersection(terms(one))), default="")


def _excerpt(chunk: str) -> str:
    return f"... {one_line(chunk, EXCERPT_CHARACTERS)}" if chunk else ""


def _given_before(document: Document, form: Delivery) -> str:
    where = "in the instructions" if form is Delivery.INSTRUCTIONS else "earlier in this session"
    return f"{document.uri} ({document.kind}): given {where}"


def _same(document: Document, other: str) -> str:
    return f"{document.uri} ({document.kind}): the same text as {other}"


def text_given(document: Document) -> str:
    """Return all that an answer gives of a document, with the folder of a skill."""
    return f"{document.folder or ''}\n{document.text.strip()}"


def _whole(document: Document) -> str:
    folder = "" if document.folder is None else f"\n\n{_indented(files_line(document.folder))}"
    return f"{document.uri} ({document.kind}):\n{_indented(document.text.strip())}{folder}"


def _outlined(document: Document, tokens: int, place: str, *, is_known: bool) -> str:
    """Return the headings of a document, unless they are known, and the place in it that was found."""
    lines = [] if is_known else outline(document.text.strip(), tokens)
    if place:
        # A section has lines of its own, and an outline begins like a list.
        lines = [place, *([""] if lines and "\n" in place else []), *lines]
    if document.folder is not None and not is_known:
        lines.append(files_line(document.folder))
    form = "the section that was found, and the outline" if "\n" in place else "outline"
    head = f"{document.uri} ({document.kind}, {tokens:,} tokens), {form}"
    head = f"{head} given earlier in this session" if is_known else head
    told = _indented("\n".join(lines))
    return f"{head}:\n{told}" if lines else head


def _indented(text: str) -> str:
    """Indent a text, so that nothing in it can pass for another part of the answer."""
    return "\n".join(f"  {line}" if line.strip() else "" for line in text.split("\n"))


class SessionIntroduction(Struct, frozen=True):
    """The instructions with which sessions begin, and the items in them."""

    text: str = ""
    given: Mapping[ItemKey, Delivered] = field(default_factory=dict)
    """The rules that it has whole."""
    servers: frozenset[str] = frozenset()
    """Servers whose own instructions it has."""


RULES_INTRODUCED: Final = "Rules in force, written by the user:"


def introduction(snapshot: Snapshot, most_bytes: int, removed: Set[ItemKey]) -> SessionIntroduction:
    """Return the ``always`` rules that fit into so many bytes, by priority, with the names of others.

    Those that the session begins without are `removed`.
    """
    rules = [
        one
        for one in snapshot.documents.values()
        if one.kind is Kind.RULE and one.include is IncludeMode.ALWAYS and key_of(one) not in removed
    ]
    rules.sort(key=lambda rule: rule.priority)
    rules = list({text_given(rule): rule for rule in reversed(rules)}.values())[::-1]
    texts: list[str] = []
    given: dict[ItemKey, Delivered] = {}
    left: list[Document] = []
    room = most_bytes - len(f"\n\n{RULES_INTRODUCED}")
    for rule in rules:
        text = f"\n\nRule {rule.name}:\n{_indented(rule.text.strip())}"
        # Room is kept for the names of those that come after.
        if len(text.encode()) <= room - NAMES_BYTES:
            room -= len(text.encode())
            texts.append(text)
            given[key_of(rule)] = (rule.fingerprint, Delivery.INSTRUCTIONS)
        else:
            left.append(rule)
    if left and (names := _names(left, room)):
        texts.append(names)
    return SessionIntroduction(f"\n\n{RULES_INTRODUCED}{''.join(texts)}" if texts else "", given)


NAMES_BYTES: Final = 200
"""Room for the names of rules that the instructions have no room for."""


def _names(rules: list[Document], room: int) -> str:
    """Return the names of rules and the way to read them, as many as there is room for."""
    for number in range(min(len(rules), NAMED), -1, -1):
        named = ", ".join(rule.uri for rule in rules[:number])
        more = len(rules) - number
        rest = f" and {more} more" if named and more else f"{more} more, which a search shows" if more else ""
        text = f"\n\nRead these with read_document before you begin: {named}{rest}."
        if len(text.encode()) <= room:
            return text
    return ""
