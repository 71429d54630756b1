"""Links from texts to tools, which a rule or reference names or plainly describes, and to files.

A name counts wherever it is written like one, and not where the text forbids the tool. A description is
compared sentence by sentence with all tools, as a query is, and the evidence for each tool is weighed against
its neighbours here and tools of other catalogs, so that a near twin is no link. Blocks.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct, field

from mcp_context_proxy.items import Document, Item, Tool
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.scoring import LEXICAL_FACTOR, RIVALS, Background
from mcp_context_proxy.retrieval.text import identifier_words, meanings, name_key, sentences, terms
from mcp_context_proxy.retrieval.vectors import best
from mcp_context_proxy.system.later import NDArray, np, pattern

UNITS: Final = 24
"""Sentences and clauses of a text that are compared: twice as many as 500 characters have."""

CANDIDATES: Final = 60
"""Tools whose evidence is weighed, the nearest: those that a text describes are among its first thirty."""

LINKS: Final = 6
"""Tools that one text leads to; the documents of the set need four at most."""

TWIN_COSINE: Final = 0.85
"""Cosine of two tools from which only the better one is a link."""

NAMED: Final = 1.0
"""Evidence for a tool that is named, which is as much as there can be."""

TEXTS_KEPT: Final = 4096
"""Texts whose links are remembered, some 1 kB each."""

OF_MARGIN, OF_GAP, OF_NAME, OF_WHOLE, WITHOUT = 13.5, 10.7, 5.1, 3.4, -4.8
"""Weights of the evidence that a text describes a tool, and the evidence of no likeness at all. They were
fitted by logistic regression to documents written for 33 real servers (benchmarks/contexts.md)."""

OF_PLAIN_WORD: Final = -2.2
"""Evidence that a name of one plain word needs beside: ``count`` in a rule may be any count."""

ABOUT: Final = -0.7
"""Evidence from which a text is about the same thing as a tool, without describing its use: a rule of how
emails end is about the tool that sends them."""

_NAME = pattern(r"[A-Za-z][A-Za-z0-9]*(?:(?:__|[._:/-])[A-Za-z0-9]+)*")
_CODE = pattern(r"`([^`\n]{1,120})`")
_COMPOUND = pattern(r"[A-Za-z0-9][_:/.-]+[A-Za-z0-9]|[a-z][A-Z]")
_SAID = pattern(r"\b(?:use|using|call|calling|run|via|with)\s+(?:the\s+)?$", re.IGNORECASE)
_SAID_AFTER = pattern(r"\s+(?:tool|server)\b", re.IGNORECASE)
_FORBIDDEN = pattern(
    r"(?:\b(?:never|not|cannot|avoid|instead of|rather than|without|no longer|no one|nobody|refrain"
    r"|no circumstances|stop(?= \w+ing\b)|(?:forbidden|banned|prohibited)(?=:| to\b| tools\b))\b"
    r"|n['’]t\b|\bno(?=\W*$))"
    # A comma ends it, but for those of a list or around something that stands between.
    r"(?!\s(?:forget|hesitate|only)\b)(?:,[^,.;:!?\n]{1,40},)?(?:[^,.;:!?\n]|,(?=[^.;:!?\n]*\bn?or\b)){0,40}"
    r"(?:$|(?<=ever|call| not| use| run|void|hese|wing|ools|dden|nned|ited):?[\s`*+-]*$)",
    re.IGNORECASE,
)
_FORBIDDEN_AFTER = pattern(
    r"(?:[`*\"']*(?:,|\s(?:and|or))\s[`*]*[\w./:-]+){0,20}[`*\"']*(?:\s+tools?)?(?:\s+(?:is|are)|:)?\s+"
    r"(?:forbidden|banned|prohibited|deprecated|off[ -]limits|(?:do not|don't|never) (?:use|call)\b|not "
    r"(?:allowed|to be used)|(?:(?:must|may|should|can)(?: not| never|n't)|cannot) be (?:used|called|run)\b)",
    re.IGNORECASE,
)
_NEXT_NAME = pattern(
    r"(?:[`*\"']*(?:,?\s*(?:and|or|nor)\s+|,?\s*)|[^\n]*\n\s*[-*+]\s+)[`*\"']*$", re.IGNORECASE
)
_DEMANDED = pattern(r"\s(?:before|until|unless|without)\s", re.IGNORECASE)
"""Between a prohibition and the name of a tool, without which something must not be done."""
_ONLY_FIRST = pattern(r"[^.;!?\n]{0,60}\b(?:before|until|unless|without|first)\b", re.IGNORECASE)
_PROHIBITS = pattern(
    r"(?:\A|:\s+)\W*(?:please\s+)?(?:never|do not|don't|avoid|(?:you|we) (?:must not|may not|cannot|never))\b"
    r"(?!.*\b(?:before|until|unless|without|first|but|instead|only)\b)",
    re.IGNORECASE | re.DOTALL,
)
_CLAUSE = pattern(r",\s+(?:and|then|but|or)\s+(?:then\s+)?|:\s+|\s+and then\s+|,\s+")

PATTERN_CHARACTERS: Final = 200
PATTERNS_TRIED: Final = 100
"""Alternatives in the patterns of one document."""

COMPARED: Final = 1_000
"""Names and folders that are compared with the patterns of one document, for one request: a cloned repository
may have thousands of documents, each with a hundred patterns that may begin anywhere."""

_BRACES = pattern(r"\{([^{}]*)\}")

SHORTEST_FOLDER: Final = 3
"""Characters of a folder's name that a query names; ``de`` is a language, and a word of others."""

_LANGUAGES: Final = meanings("files")
"""The languages and programs of files with these endings."""

BEGINNING: Final = 200
"""Characters of a description that say what a document is about; later ones say what it is not for."""

Matrix: TypeAlias = "NDArray[np.float32]"

Embed: TypeAlias = Callable[[Sequence[str]], "Matrix | None"]
"""Returns the vectors of texts; None where there is no model."""


class ToolLink(Struct, frozen=True):
    """A tool that a text leads to."""

    item: int
    """Position in the index."""
    evidence: float
    """Evidence above that which is needed; `NAMED` where the text names it."""
    named: bool = False


class TextLinks(Struct, frozen=True):
    """The tools that a text leads to, and those that it forbids."""

    tools: tuple[ToolLink, ...] = ()
    """The named ones first, then by evidence."""
    forbidden: frozenset[int] = frozenset()
    """Positions in the index."""
    subjects: frozenset[int] = frozenset()
    """Tools that the text is about, though it may be about others as well (`ABOUT`)."""


class Mention(Struct, frozen=True):
    """A word of a text that may be the name of a tool."""

    word: str
    forbidden: bool
    """True where the text says not to use it."""
    plain: bool
    """True for a single word that only its place makes a name."""


def mentions(text: str) -> list[Mention]:
    """Return the words of a text that are written like names of tools."""
    spans = _CODE.finditer(text)
    code_from = code_to = last = 0
    found, prohibited = list[Mention](), None
    for match in _NAME.finditer(text):
        start, end = match.span()
        compound = _COMPOUND.search(match[0]) is not None
        if not compound:
            while code_to < end and (span := next(spans, None)) is not None:
                code_from, code_to = span.span(1)
            marked = code_from <= start and end <= code_to
            said = _SAID.search(text, max(0, start - 16), start) or _SAID_AFTER.match(text, end)
            if not (marked or said):
                continue
        # A list of names is forbidden as a whole; one of lines, by the line before it.
        listed = prohibited and ("\n" in prohibited[0] or "\n" not in text[last:start])
        if not (listed and _NEXT_NAME.match(text, last, start)):
            prohibited = _FORBIDDEN.search(text[max(0, start - 60) : start])
            prohibited = None if prohibited and _DEMANDED.search(prohibited[0]) else prohibited
        last = end
        forbidden = prohibited or _FORBIDDEN_AFTER.match(text, end)
        found.append(Mention(match[0], bool(forbidden and not _ONLY_FIRST.match(text, end)), not compound))
    return found


def file_for(patterns: Iterable[str], files: Iterable[str]) -> str | None:
    """Return the first of some files, as `files_named` has them, that fits patterns; None where none does.

    A file fits if it fits the last of the patterns that is about it. A pattern with a folder may begin at any
    folder of the path: a request names a file from anywhere. One that ends in a slash stands for everything
    below, and one after a ``!`` for files that do not fit.
    """
    alternatives = (
        (not written.startswith("!"), [part for part in one.split("/") if part not in ("", ".")])
        for written in patterns
        for one in _alternatives(written[:PATTERN_CHARACTERS].casefold().removeprefix("!"))
    )
    tried, left = list(islice(alternatives, PATTERNS_TRIED)), COMPARED
    for file in files:
        parts, fits = file.split("/"), False
        for counts, wanted in tried:
            # The name first, which few patterns fit; then folder by folder, from each where it may begin.
            left -= 1
            if wanted[-1:] != ["**"] and not fnmatchcase(parts[-1], "".join(wanted[-1:])):
                continue
            reached = {len(parts) - 1} if len(wanted) == 1 and wanted != ["**"] else {*range(len(parts))}
            for one in wanted:
                left -= len(reached)
                if left < 0:
                    return None
                if one == "**":
                    reached = {*range(min(reached, default=len(parts) + 1), len(parts) + 1)}
                else:
                    reached = {at + 1 for at in reached if at < len(parts) and fnmatchcase(parts[at], one)}
            if len(parts) in reached:
                fits = counts
        if fits:
            return file
    return None


def is_about_files(item: Item, files: Collection[str]) -> bool:
    """Return whether an item has patterns of files, or says that it is about such a language or path."""
    if isinstance(item, Document) and item.patterns:
        return True
    endings = (file.rpartition(".")[2] for file in files)
    paths = terms(" ".join((*files, *(_LANGUAGES.get(ending, "") for ending in endings))))
    return not frozenset(paths).isdisjoint(terms(f"{item.name} {item.description[:BEGINNING]}"))


def namesakes(documents: Iterable[Document], query: str) -> set[str]:
    """Return the URIs of documents that have the name of one whose folder a query names, and another folder.

    Each package of a repository may have a section ``Tests``: its folder alone tells which one is meant.
    """
    words, alike = frozenset(terms(query)), dict[str, dict[str, set[str]]]()
    for one in documents:
        *folders, own = (one.full_name or one.name).split("/")
        alike.setdefault(own, {})[one.uri] = {name for name in folders if len(name) >= SHORTEST_FOLDER}
    others = set[str]()
    for folders_of in alike.values():
        shared = set[str].intersection(*folders_of.values())
        told = (name for names in folders_of.values() for name in names - shared)
        said = {name for name in told if (parts := terms(name)) and words.issuperset(parts)}
        if said:
            others |= {uri for uri, names in folders_of.items() if said.isdisjoint(names)}
    return others


def _alternatives(written: str) -> list[str]:
    """Return a pattern once for each of the alternatives in its braces."""
    found = [written]
    while len(found) < PATTERNS_TRIED and (braces := _BRACES.search(found[0])) is not None:
        first = found.pop(0)
        found += [first[: braces.start()] + one + first[braces.end() :] for one in braces[1].split(",")]
    return [f"{one}**" if one.endswith("/") else one for one in found]


def units_of(text: str) -> list[str]:
    """Return the sentences of a text, and the clauses of each."""
    found: dict[str, None] = {}
    for sentence in sentences(text):
        found[sentence] = None
        # With single spaces, because the clauses of a heap of them take time by its square.
        clauses = _CLAUSE.split(" ".join(sentence.split()))
        found |= dict.fromkeys(part for part in clauses if len(part.split()) > 1)
    return list(found)[:UNITS] or [text]


def allowing(text: str) -> str:
    """Return a text without the sentences that only forbid something: whoever reads them calls nothing."""
    parts = sentences(text)
    # What stands before, such as a heading, stays.
    kept = [part if (found := _PROHIBITS.search(part)) is None else part[: found.start()] for part in parts]
    return text if kept == parts else " ".join(filter(None, kept))


class Likeness(Struct, frozen=True, eq=False):
    """Numbers that say how a text is like some tools."""

    items: NDArray[np.intp]
    """Positions of the tools in the index."""
    features: NDArray[np.float64]
    """[tools, 4]: margin over tools of other catalogs, distance from the best tool for the same sentence,
    share of its name that the text has, distance from the best tool for the text as a whole."""

    def evidence(self) -> NDArray[np.float64]:
        """Return the evidence that the text describes each tool; 0 is enough."""
        found: NDArray[np.float64] = (
            self.features @ np.array([OF_MARGIN, OF_GAP, OF_NAME, OF_WHOLE]) + WITHOUT
        )
        return found


class Links(Struct, eq=False, dict=True):
    """Links from texts to the tools of one index. Threads may share it: two that compute the same agree."""

    index: Index
    embed: Embed
    background: Background | None
    """Tools of other catalogs; None where links are names alone."""
    _known: OrderedDict[str, TextLinks] = field(default_factory=OrderedDict)
    _rarity: dict[str, float] = field(default_factory=dict)

    def of(self, text: str) -> TextLinks:
        """Return the links of a text of at most some hundred characters."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._linked(text)
            if len(self._known) > TEXTS_KEPT:
                self._known.pop(next(iter(self._known)), None)
        return known

    def likeness(self, text: str) -> Likeness:
        """Return how the nearest tools are like a text."""
        dense = self.index.dense
        units = [text, *units_of(text)]
        vectors = None if dense is None or self.background is None else self.embed(units)
        if dense is None or self.background is None or vectors is None:
            return Likeness(np.zeros(0, np.intp), np.zeros((0, 4)))
        words = [self.index.lexical.score(dict.fromkeys(terms(unit), 1.0)).scores for unit in units]
        near = dense.candidates(vectors, LEXICAL_FACTOR * np.max(words, axis=0))
        compared = dense.of(near)
        cosines = compared.by_item(compared.cosines(vectors))
        is_tool = np.array([isinstance(self.index.items[int(at)], Tool) for at in near], bool)
        near, cosines = near[is_tool], cosines[:, is_tool]
        if not near.size:
            return Likeness(near, np.zeros((0, 4)))
        fused = cosines + LEXICAL_FACTOR * np.stack([scores[near] for scores in words])
        others = np.partition(vectors @ self.background.elsewhere.T, -RIVALS, axis=1)[:, -RIVALS]
        parts = fused[1:]
        chosen = best(parts.max(axis=0) + 0.1 * fused[0], CANDIDATES)
        margin = (cosines[1:] - others[1:, None]).max(axis=0)[chosen]
        gap = (parts - parts.max(axis=1, keepdims=True)).max(axis=0)[chosen]
        whole = (fused[0] - fused[0].max())[chosen]
        own = set(terms(text))
        named = [self.share_of_name(self.tool(int(at)), own) for at in near[chosen]]
        return Likeness(
            near[chosen], np.stack([margin, gap, np.array(named), whole], axis=1).astype(np.float64)
        )

    def tool(self, at: int) -> Tool:
        tool = self.index.items[at]
        assert isinstance(tool, Tool)
        return tool

    def share_of_name(self, tool: Tool, words: set[str]) -> float:
        """Return the share of a tool's name that a text has, by the rarity of its words in names."""
        rarity = self._rarities()
        own = {term: rarity.get(term, 1.0) for term in set(terms(identifier_words(tool.name)))}
        total = sum(own.values())
        return sum(weight for term, weight in own.items() if term in words) / total if total else 0.0

    def _rarities(self) -> Mapping[str, float]:
        if not self._rarity:
            names = [terms(identifier_words(one.name)) for one in self.index.items if isinstance(one, Tool)]
            counts = Counter(term for name in names for term in set(name))
            self._rarity = {term: float(np.log1p(len(names) / count)) for term, count in counts.items()}
        return self._rarity

    def _linked(self, text: str) -> TextLinks:
        evidence = self._evidence(text)
        named, forbidden = self._named(text, evidence)
        allowed = allowing(text)
        described = evidence
        if allowed != text:
            also = self._evidence(allowed) if allowed else {}
            described = {at: min(weight, also.get(at, -np.inf)) for at, weight in evidence.items()}
        found = [ToolLink(at, NAMED, named=True) for at in named]
        taken = {name_key(self.tool(at).name) for at in named}
        for at, weight in sorted(described.items(), key=lambda one: (-one[1], one[0])):
            if weight < 0 or len(found) >= LINKS:
                break
            key = name_key(self.tool(at).name)
            if at in forbidden or key in taken or self._is_twin(at, [link.item for link in found]):
                continue
            taken.add(key)
            found.append(ToolLink(at, weight))
        about = {at for at, weight in evidence.items() if weight >= ABOUT}
        return TextLinks(tuple(found), frozenset(forbidden), frozenset(about | set(named) | forbidden))

    def _evidence(self, text: str) -> dict[int, float]:
        likeness = self.likeness(text)
        return dict(zip(likeness.items.tolist(), likeness.evidence().tolist(), strict=True))

    def _named(self, text: str, evidence: Mapping[int, float]) -> tuple[list[int], set[int]]:
        """Return the tools that a text names, of each name the likeliest, and those that it forbids."""
        said = mentions(text)
        keys = {name_key(mention.word): mention for mention in reversed(said)}
        by_key: dict[str, list[int]] = {}
        for key in keys:
            if found := [at for at in self.index.meant(key) if isinstance(self.index.items[at], Tool)]:
                by_key[key] = found
        forbidden = {at for key, items in by_key.items() if keys[key].forbidden for at in items}
        named: list[int] = []
        for key, items in by_key.items():
            likeliest = max(items, key=lambda at: (evidence.get(at, -np.inf), -at))
            needed = OF_PLAIN_WORD if keys[key].plain and evidence else -np.inf
            if likeliest not in forbidden and evidence.get(likeliest, -np.inf) >= needed:
                named.append(likeliest)
        order = {name_key(mention.word): place for place, mention in reversed(list(enumerate(said)))}
        places = {at: min(order[key] for key, items in by_key.items() if at in items) for at in named}
        return sorted(dict.fromkeys(named), key=places.__getitem__), forbidden

    def _is_twin(self, at: int, chosen: Iterable[int]) -> bool:
        dense = self.index.dense
        assert dense is not None
        own = dense.vectors_of(at)[0]
        return any(float(own @ dense.vectors_of(other)[0]) >= TWIN_COSINE for other in chosen)


FILES_NAMED: Final = 20
"""Files that a request names and that are looked at; a pasted list of more says nothing about any of them."""

FILE_CHARACTERS: Final = 300

_AROUND_FILES = "@\"'`()<>,;:!?*"

_FILE = pattern(
    r"(?:\w:)?(?:\.{0,2}[/\\])*((?:[\w@.+()\[\]-]{1,100}[/\\])*[\w@.+()\[\]-]{1,100}?)(?:(?::|[#(]L?)\d[\d,L-]*)*"
)

_LIBRARY = pattern(
    r"(?:node|next|nuxt|vue|react|three|d3|angular|ember|backbone|express|chart|discord|socket|alpine|p5)\.js",
    re.IGNORECASE,
)
"""A library that is called like a file."""

_MAIL = pattern(r"[^/\\@]+@(?!\dx\.)[\w-]+(?:\.[\w-]+)+")
"""An address of mail; ``icon@2x.png`` is a picture for a finer screen."""


def files_named(text: str) -> list[str]:
    """Return the paths and names of files in a text, with ``/`` between folders, in lower case."""
    return list(dict.fromkeys(filter(None, map(_file, text.split()))))[:FILES_NAMED]


def without_files(text: str) -> str:
    """Return a text without the files that it names; nothing where the rest has no word that is searched."""
    rest = " ".join(word for word in text.split() if _file(word) is None)
    return rest if terms(rest) else ""


def _file(word: str) -> str | None:
    """Return the path that a word of a text is."""
    word = word.removeprefix("file://")
    if len(word) > FILE_CHARACTERS or "://" in word or not ("." in word or "/" in word or "\\" in word):
        return None
    match = _FILE.fullmatch(word.lstrip(_AROUND_FILES).rstrip(f"{_AROUND_FILES}."))
    if match is None or _LIBRARY.fullmatch(match[1]) or _MAIL.fullmatch(match[1]):
        return None
    file = match[1].replace("\\", "/").casefold()
    bare, dot, suffix = file.rpartition("/")[2].rpartition(".")
    has_suffix = bool(dot) and suffix[:1].isalpha() and len(bare + suffix) > 2
    return file if has_suffix or file.count("/") > 1 else None
