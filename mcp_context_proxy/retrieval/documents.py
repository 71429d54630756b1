"""Documents that a query means: those for the files that it names, and those as near to it as the best tool.

A rule or reference may have patterns of files, for which alone it is meant. Blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from msgspec.structs import replace

from mcp_context_proxy.items import DOCUMENT_KINDS, Document, Item, ItemKey, Snapshot, item_key
from mcp_context_proxy.retrieval import Ranking, Result, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.scoring import LEXICAL_FACTOR
from mcp_context_proxy.retrieval.text import meanings, terms
from mcp_context_proxy.system.later import pattern

DOCUMENT_SHARE = 0.65
"""Share of the best score that a document needs to be shown."""

BEHIND_TOOL = 0.18
"""Distance in score behind the best tool up to which a document is meant: a request for a tool is nearer to
it than to any document, a question about a rule is not. benchmarks/contexts.md has both for other numbers."""

FOR_TOOL = 0.1
"""Distance by which a document may be further behind that leads to the best tool: it says how to use it."""

REPEATED = 0.75
"""Score that the best tool counts as at most for such a document: a request that repeats a tool's description
is nearer to it than any short rule can be."""

WORDS_ELSEWHERE = 0.08
"""Score that the words of a request would add to the nearest tool of other catalogs, with which a document is
compared where no tool here is as near."""

FEW_PASSAGES = 75
"""Chunks of documents up to which the best is not near by chance: those of fifty short rules."""

NEARER_BY_PASSAGES = 0.04
"""Distance that a document has to be nearer where there are e times as many chunks; its share of the best
document as well. benchmarks/contexts.md has figures for the long documents of this project."""

TOOLS_COMPARED = 3
"""Best tools whose scores are looked at."""

COMPARED = 50
"""Documents whose scores without the files of a query are compared with those with them."""

PATTERN_CHARACTERS: Final = 200
PATTERNS_TRIED: Final = 64
"""Alternatives in the braces of one pattern."""

_BRACES = pattern(r"\{([^{}]*)\}")

SHORTEST_FOLDER: Final = 3
"""Characters of a folder's name that a query names; ``de`` is a language, and a word of others."""

_LANGUAGES: Final = meanings("files")
"""The languages and programs of files with these endings."""

BEGINNING: Final = 200
"""Characters of a description that say what a document is about; later ones say what it is not for."""

FILES_NAMED: Final = 20
"""Files that a request names and that are looked at; a pasted list of more says nothing about any of them."""

FILE_CHARACTERS: Final = 300

_AROUND_FILES = "@\"'`()<>,;:!?*"

_FILE = pattern(r"(?:\w:)?(?:\.{0,2}[/\\])*((?:[\w@.+()\[\]-]{1,100}[/\\])*[\w@.+()\[\]-]{1,100})(?::\d+)*")

_LIBRARY = pattern(
    r"(?:node|next|nuxt|vue|react|three|d3|angular|ember|backbone|express|chart|discord|socket|alpine|p5)\.js",
    re.IGNORECASE,
)
"""A library that is called like a file."""

_MAIL = pattern(r"[^/\\@]+@(?!\dx\.)[\w-]+(?:\.[\w-]+)+")
"""An address of mail; ``icon@2x.png`` is a picture for a finer screen."""

DocumentJudge: TypeAlias = Callable[[Result], str | None]
"""Tells why a request does not mean a document; None for one that it means."""


def files_named(text: str) -> list[str]:
    """Return the paths and names of files in a text, with ``/`` between folders, in lower case."""
    return list(dict.fromkeys(filter(None, map(_file, text.split()))))[:FILES_NAMED]


def without_files(text: str) -> str:
    """Return a text without the files that it names; nothing where the rest has no word that is searched."""
    rest = " ".join(word for word in text.split() if _file(word) is None)
    return rest if terms(rest) else ""


def _file(word: str) -> str | None:
    """Return the path that a word of a text is."""
    if len(word) > FILE_CHARACTERS or "://" in word or not ("." in word or "/" in word or "\\" in word):
        return None
    match = _FILE.fullmatch(word.lstrip(_AROUND_FILES).rstrip(f"{_AROUND_FILES}."))
    if match is None or _LIBRARY.fullmatch(match[1]) or _MAIL.fullmatch(match[1]):
        return None
    file = match[1].replace("\\", "/").casefold()
    bare, dot, suffix = file.rpartition("/")[2].rpartition(".")
    has_suffix = bool(dot) and suffix[:1].isalpha() and len(bare + suffix) > 2
    return file if has_suffix or file.count("/") > 1 else None


def is_for(patterns: Iterable[str], file: str) -> bool:
    """Return whether a file, as `files_named` has it, fits the last of some patterns that is about it.

    A pattern with a folder may begin at any folder of the path: a request names a file from anywhere. One
    that ends in a slash stands for everything below, and one after a ``!`` for files that do not fit.
    """
    parts, fits = file.split("/"), False
    for written in patterns:
        for one in _alternatives(written[:PATTERN_CHARACTERS].casefold().removeprefix("!")):
            wanted = f"{one}**".split("/") if one.endswith("/") else one.split("/")
            wanted = [part for part in wanted if part not in ("", ".")]
            starts = (len(parts) - 1,) if len(wanted) == 1 and wanted != ["**"] else range(len(parts))
            if any(_fits(wanted, parts[start:]) for start in starts):
                fits = not written.startswith("!")
    return fits


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
    return found


def _fits(wanted: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether a path fits a pattern, folder by folder; ``**`` stands for any number of them."""
    reached = {0}
    for one in wanted:
        if one == "**":
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and fnmatchcase(parts[at], one)}
        if not reached:
            return False
    return len(parts) in reached


class DocumentsMeant:
    """Decides which documents a request means."""

    def __init__(self, engine: Engine, expander: Expander | None) -> None:
        self._engine, self._expander = engine, expander

    def meant(self, query: str, snapshot: Snapshot, documents: Ranking, tools: Ranking) -> Ranking:
        """Return the documents that a request means, rather than a tool; the others are near misses."""
        candidates = documents.results or documents.near_misses
        against = self.judge(query, snapshot, documents, tools)
        if against is None:
            return documents
        results = tuple(one for one in candidates if against(one) is None)
        return replace(
            documents, results=results, fits=bool(results), near_misses=() if results else candidates
        )

    def judge(
        self, query: str, snapshot: Snapshot, documents: Ranking, tools: Ranking
    ) -> DocumentJudge | None:
        """Return what tells why a request does not mean a document, or None where it does. Blocks.

        A document must be as near to the request as the best tool, or not far behind. Where it leads to that
        tool itself, it may be further behind. The nearest tools of other catalogs count as well, so that a
        request for something else finds no document where there are few tools. Nobody judges where nothing
        is meant at all.
        """
        candidates = documents.results or documents.near_misses
        rivals = (*tools.results, *tools.near_misses)[:TOOLS_COMPARED]
        by_words = any(one.considered and one.indexed and not one.likely for one in (documents, tools))
        if documents.best_cosine is None or by_words:
            most = max((one.lexical for one in rivals), default=0.0)
            return lambda one: (
                None
                if documents.fits and (one.exact or one.lexical >= most)
                else "by words, which alone are compared now, tools fit better"
            )
        if not candidates or documents.evidence is None or not (documents.fits or tools.fits):
            return None
        best = max(rivals, key=_plain_score, default=None)
        here = -math.inf if best is None else _plain_score(best)
        nearest = self._engine.elsewhere(query, snapshot)
        elsewhere = -math.inf if nearest is None else nearest + WORDS_ELSEWHERE
        nearer = NEARER_BY_PASSAGES * math.log(max(self._engine.passages(snapshot) / FEW_PASSAGES, 1.0))
        least, about = max(here, elsewhere) + nearer, max(min(here, REPEATED), elsewhere) + nearer
        files = files_named(query)
        by_name = self._near_by_name(files, query, snapshot, candidates) if files else set[ItemKey]()
        share = (DOCUMENT_SHARE + nearer) * max(one.score for one in candidates)
        others = namesakes((one.item for one in candidates if isinstance(one.item, Document)), query)

        def against(one: Result) -> str | None:
            assert isinstance(one.item, Document)
            if one.exact:
                return None
            if files and one.item.patterns and not any(is_for(one.item.patterns, file) for file in files):
                return "it is for other files than those named"
            if one.item.uri in others:
                return "it is of another folder than the one that is named, which has one of this name"
            if item_key(one.item) in by_name:
                return "only the name of a file brings it near, and it is not about such files"
            if one.score < share:
                return f"its score is {one.score:.2f}, and beside the best document {share:.2f} are needed"
            score = _plain_score(one)
            if score >= least - BEHIND_TOOL:
                return None
            rival = "a tool of other catalogs" if best is None or elsewhere > here else item_key(best.item)[1]
            too_far = (
                f"{rival} is nearer to the query: its own score, {score:.2f}, is more than {BEHIND_TOOL} "
                f"below {least:.2f}, so that a tool is meant"
            )
            if score < about - BEHIND_TOOL - FOR_TOOL or best is None or self._expander is None:
                return too_far
            return None if self._expander.is_about(one.item, best.item, snapshot, query) else too_far

        return against

    def _near_by_name(
        self, files: list[str], query: str, snapshot: Snapshot, found: Iterable[Result]
    ) -> set[ItemKey]:
        """Return the documents that a query would be less near to without its files."""
        led = {item_key(one.item): _plain_score(one) for one in found if not is_about_files(one.item, files)}
        if led and (rest := without_files(query)):
            documents, many = Filters(kinds=DOCUMENT_KINDS), SearchOptions(depth=COMPARED)
            ranked = self._engine.search(rest, snapshot, documents, many, wait=False)
            for one in (*ranked.results, *ranked.near_misses, *ranked.others):
                if _plain_score(one) >= led.get(item_key(one.item), math.inf):
                    del led[item_key(one.item)]
        return set(led)


def _plain_score(result: Result) -> float:
    return (result.cosine or 0.0) + float(LEXICAL_FACTOR) * result.lexical
