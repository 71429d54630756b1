"""Documents that a query means, and items that come with the selected ones or with the result of a call.

A query means the documents that are as near to it as the best tool, and none for other files than it names.
A document brings the tools that it names or plainly describes (`links`), and a tool in use the documents that
name it. With a threshold of one's own, items are near where their best chunks are, by the same vectors as in
search. Links and neighbours are computed when they are first asked for, and kept as long as their index.
Blocks. Without vectors only names count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.embedding import Embedder
from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import (
    DOCUMENT_KINDS,
    Document,
    IncludeMode,
    Item,
    ItemKey,
    Kind,
    Snapshot,
    Tool,
    key_of,
)
from mcp_context_proxy.retrieval import Ranking, Result, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters, Index
from mcp_context_proxy.retrieval.links import (
    NAMED,
    Links,
    ToolLink,
    file_for,
    files_named,
    is_about_files,
    mentions,
    namesakes,
    without_files,
)
from mcp_context_proxy.retrieval.next_steps import KnownSteps, next_steps
from mcp_context_proxy.retrieval.scoring import LEXICAL_FACTOR, Background
from mcp_context_proxy.retrieval.text import chunks, name_key
from mcp_context_proxy.retrieval.vectors import DenseIndex
from mcp_context_proxy.system.later import NDArray, np

CHUNKS_COMPARED = 5
"""Chunks of an item that are compared; nearly every tool has fewer, a long document has some of anything."""

NEIGHBOURS = 64
"""Neighbours of an item that are kept, the nearest."""

PART_OF_BEST = 0.7
"""Share of the cosine of a long document's best chunk from which another one is about the query as well."""

PART_CHARACTERS = 20_000
"""Characters of a document in which names of tools are looked for."""

DOCUMENTS_READ = 2_000
"""Documents in which names of a called tool are looked for."""

DOCUMENTS_LINKED = 20
"""Documents of a request whose tools come with it, those that it means first: links of one take up to 0.3 s
the first time, and a cloned repository may have thousands that every request has."""

PREPARING_SECONDS = 5.0
"""Time for which links are computed after indexing; the others are when a request finds their document."""

GRAPHS_KEPT = 2
"""As many as there are indexes: the latest snapshot's, and that of requests still using the one before."""

Neighbours: TypeAlias = tuple[tuple[int, float], ...]
"""Items with their cosine, nearest first."""


class ExpansionOptions(Struct, frozen=True):
    """Distance and number of the items to add."""

    depth: int = 1
    """Steps from the selected items; 0 for none."""
    threshold: float | None = None
    """Cosine from which an item is near, whatever its kind; None for the links of documents and tools."""
    top_n: int = 6
    """Items of each step, the nearest."""


class Expanded(Struct, frozen=True):
    """An item that was added."""

    item: Item
    cosine: float
    """For a link its evidence, from 0 to 1."""
    via: Item | None
    """The item that it is near to; None where that was a text."""
    why: str = ""
    """Relation to that item, in a few words; empty for nearness."""


class Expander:
    """Finds items that are near to items and to texts."""

    def __init__(
        self,
        index_of: Callable[[Snapshot], Index],
        embedder: Embedder | None,
        *,
        catalog: Embedder | None = None,
        background: Background | None = None,
    ) -> None:
        """Find neighbours in the indexes of snapshots; without an embedder, only those of items.

        ``catalog`` embeds parts of documents, whose vectors may be stored. Without the ``background`` of the
        model, links are names alone.
        """
        self._index_of, self._embedder = index_of, embedder
        self._catalog, self._background = catalog or embedder, background
        self._graphs: tuple[NeighbourGraph, ...] = ()
        self._links: tuple[Links, ...] = ()
        self._known_steps = KnownSteps(self._embed_parts)
        self._names: dict[str, frozenset[str]] = {}
        """Keys of the names in documents, by fingerprint."""

    def related(self, item: Item, snapshot: Snapshot, threshold: float, limit: int) -> list[Expanded]:
        graph = self._graph(snapshot)
        at = graph.position(item)
        neighbours = () if at is None else graph.of([at])[0]
        found = [(near, cosine) for near, cosine in neighbours if cosine >= threshold]
        return [Expanded(graph.index.items[near], cosine, item) for near, cosine in found[:limit]]

    def expand(
        self,
        selected: Sequence[Item],
        query: str,
        snapshot: Snapshot,
        options: ExpansionOptions,
        allowed: Callable[[Item], bool],
        not_meant: Collection[ItemKey] = frozenset(),
    ) -> list[Expanded]:
        """Return items near to the selected ones, then items near to these, and so on.

        The selected items are never part of the result. The query chooses the chunks that stand for a long
        item. Documents that it does not mean, though every request has them, bring only what they name.
        """
        if options.threshold is None:
            return self._linked(selected, query, snapshot, options, allowed, not_meant)
        return self._near(selected, query, snapshot, options, options.threshold, allowed)

    def _near(
        self,
        selected: Sequence[Item],
        query: str,
        snapshot: Snapshot,
        options: ExpansionOptions,
        threshold: float,
        allowed: Callable[[Item], bool],
    ) -> list[Expanded]:
        graph = self._graph(snapshot)
        frontier = [at for item in selected if (at := graph.position(item)) is not None]
        seen, found = set(frontier), list[Expanded]()
        vectors = self._vectors([query]) if options.depth and frontier else None
        vector = None if vectors is None else vectors[0]
        for _ in range(options.depth):
            # The best cosine of each new item with any item of the step before, and that item.
            best: dict[int, tuple[float, int]] = {}
            for via, neighbours in zip(frontier, graph.of(frontier, vector), strict=True):
                for at, cosine in neighbours:
                    if cosine < threshold:
                        break
                    if at not in seen and cosine > best.get(at, (0.0, 0))[0]:
                        best[at] = (cosine, via)
            frontier = []
            for at, (cosine, via) in sorted(best.items(), key=lambda pair: (-pair[1][0], pair[0])):
                if len(frontier) == options.top_n:
                    break
                if allowed(graph.index.items[at]):
                    found.append(Expanded(graph.index.items[at], cosine, graph.index.items[via]))
                    frontier.append(at)
            seen |= set(frontier)
        return found

    def _linked(
        self,
        selected: Sequence[Item],
        query: str,
        snapshot: Snapshot,
        options: ExpansionOptions,
        allowed: Callable[[Item], bool],
        not_meant: Collection[ItemKey],
    ) -> list[Expanded]:
        frontier: list[Item] = list(selected)
        known, found = {key_of(item) for item in selected}, list[Expanded]()
        for _ in range(options.depth):
            step: dict[tuple[Kind, str], Expanded] = {}
            documents = (one for one in frontier if isinstance(one, Document))
            for source in islice(documents, DOCUMENTS_LINKED):
                least = NAMED if key_of(source) in not_meant else 0.0
                for one in self.tools_of(source, snapshot, query):
                    if one.cosine < least:
                        continue
                    key = key_of(one.item)
                    if key not in known and one.cosine > getattr(step.get(key), "cosine", 0.0):
                        step[key] = one
            nearest = [one for one in step.values() if allowed(one.item)]
            nearest.sort(key=lambda one: -one.cosine)
            found += nearest[: options.top_n]
            known |= {key_of(one.item) for one in nearest[: options.top_n]}
            frontier = [one.item for one in nearest[: options.top_n]]
        return found

    def tools_of(self, document: Document, snapshot: Snapshot, query: str = "") -> list[Expanded]:
        """Return the tools that a document names or plainly describes, the named ones first.

        Of a long document those parts count that the query is about.
        """
        links = self._links_of(snapshot)
        found: dict[int, ToolLink] = {}
        forbidden: set[int] = set()
        for text in self._parts(document, links.index, snapshot, query):
            of_text = links.of(text)
            forbidden |= of_text.forbidden
            for link in of_text.tools:
                if link.item not in found or link.evidence > found[link.item].evidence:
                    found[link.item] = link
        ordered = sorted(found.values(), key=lambda link: (not link.named, -link.evidence))
        return [
            Expanded(
                links.index.items[link.item],
                NAMED if link.named else 1 / (1 + math.exp(-link.evidence)),
                document,
                f"{'named' if link.named else 'described'} in",
            )
            for link in ordered
            if link.item not in forbidden and key_of(links.index.items[link.item]) not in snapshot.hidden
        ]

    def nearest_first(self, documents: list[Document], query: str, snapshot: Snapshot) -> list[Document]:
        """Return documents by the cosine of their best chunk with a query; as they are without vectors."""
        index, graph = self._index_of(snapshot), self._graph(snapshot)
        if index.dense is None or (vectors := self._vectors([query])) is None:
            return documents
        dense, cosines = index.dense, dict[ItemKey, float]()
        for document in documents:
            at = graph.position(document)
            if at is not None and index.ready[at]:
                cosines[key_of(document)] = float((dense.vectors_of(at) @ vectors[0]).max())
        return sorted(documents, key=lambda one: -cosines.get(key_of(one), -1.0))

    def is_about(self, document: Document, tool: Item, snapshot: Snapshot, query: str) -> bool:
        """Return whether a document is about the same thing as a tool."""
        links, graph = self._links_of(snapshot), self._graph(snapshot)
        at = graph.position(tool)
        parts = self._parts(document, links.index, snapshot, query)
        return at is not None and any(at in links.of(text).subjects for text in parts)

    def _parts(self, document: Document, index: Index, snapshot: Snapshot, query: str) -> Sequence[str]:
        """Return the chunks of a document that the query is about; all of a short one."""
        graph = self._graph(snapshot)
        at = graph.position(document)
        if at is None:  # a ``manual`` document, which is not indexed
            texts = chunks(f"{document.description}\n\n{document.text[:PART_CHARACTERS]}")
            return texts[:CHUNKS_COMPARED]
        texts = index.texts_of(at)
        if len(texts) <= CHUNKS_COMPARED:
            return texts
        vectors = self._vectors([query]) if index.dense is not None and index.ready[at] else None
        if vectors is None or index.dense is None:
            return texts[:CHUNKS_COMPARED]
        cosines = index.dense.vectors_of(at) @ vectors[0]
        order = np.argsort(-cosines, kind="stable")[:CHUNKS_COMPARED]
        least = PART_OF_BEST * cosines[order[0]]
        return [texts[int(place)] for place in order if cosines[place] >= least]

    def documents_naming(self, tools: Sequence[Tool], snapshot: Snapshot) -> list[Expanded]:
        """Return the documents that name one of some tools, to use it or to leave it."""
        if not tools or not snapshot.documents:
            return []
        keys = {key: tool for tool in tools for key in (name_key(tool.name), name_key(tool.exposed_name))}
        found = []
        for document in islice(snapshot.documents.values(), DOCUMENTS_READ):
            said = self._names_of(document)
            tool = next((keys[key] for key in said if key in keys), None)
            if tool is not None:
                found.append(Expanded(document, 1.0, tool, "names"))
        return found

    def _names_of(self, document: Document) -> frozenset[str]:
        known = self._names.get(document.fingerprint)
        if known is None:
            said = mentions(document.text[:PART_CHARACTERS])
            known = frozenset(name_key(one.word) for one in said if not one.plain)
            if len(self._names) >= DOCUMENTS_READ:
                self._names.clear()
            self._names[document.fingerprint] = known
        return known

    def prepare(self, snapshot: Snapshot) -> None:
        """Compute the links of documents ahead of the first request that finds them, for some seconds."""
        until = time.monotonic() + PREPARING_SECONDS
        for document in snapshot.documents.values():
            if time.monotonic() >= until:
                return
            if document.include is not IncludeMode.MANUAL:
                self.tools_of(document, snapshot)

    def following(
        self, called: Tool, text: str, snapshot: Snapshot, allowed: Callable[[Item], bool]
    ) -> list[Expanded]:
        """Return the tools that fit after a result of a call."""
        found = next_steps(self._index_of(snapshot), self._vectors, self._known_steps, called, text)
        return [Expanded(step.tool, step.likelihood, None) for step in found if allowed(step.tool)]

    def _links_of(self, snapshot: Snapshot) -> Links:
        index = self._index_of(snapshot)
        links = next((known for known in self._links if known.index is index), None)
        if links is None:
            links = Links(index, self._embed_parts, self._background)
            self._links = (links, *self._links)[:GRAPHS_KEPT]
        return links

    def suggested(
        self, text: str, snapshot: Snapshot, options: ExpansionOptions, allowed: Callable[[Item], bool]
    ) -> list[Expanded]:
        """Return items near to a text, such as the result of a call."""
        graph = self._graph(snapshot)
        vectors = self._vectors(chunks(text))
        if vectors is None:
            return []
        near = [
            Expanded(graph.index.items[at], cosine, None)
            for at, cosine in graph.nearest(vectors)
            if cosine >= (options.threshold or 0.0)
        ]
        return [one for one in near if allowed(one.item)][: options.top_n]

    def _embed_parts(self, texts: Sequence[str]) -> NDArray[np.float32] | None:
        return self._vectors(texts, self._catalog)

    def _vectors(self, texts: Iterable[str], by: Embedder | None = None) -> NDArray[np.float32] | None:
        wanted, embedder = [text for text in texts if text.strip()], by or self._embedder
        if embedder is None or not wanted:
            return None
        try:
            return embedder.embed(wanted)
        except ModelError:
            return None

    def _graph(self, snapshot: Snapshot) -> NeighbourGraph:
        index = self._index_of(snapshot)
        graph = next((known for known in self._graphs if known.index is index), None)
        if graph is None:
            graph = NeighbourGraph(index)
            self._graphs = (graph, *self._graphs)[:GRAPHS_KEPT]
        return graph


class NeighbourGraph:
    """The neighbours of the items of an index. Threads may share it: two that compute the same agree."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._positions: Mapping[tuple[Kind, str], int] | None = None
        self._known: dict[int, Neighbours] = {}

    def position(self, item: Item) -> int | None:
        """Return the position of an item; None where it is not indexed, as ``manual`` items are not."""
        if self._positions is None:
            self._positions = {key_of(one): at for at, one in enumerate(self.index.items)}
        return self._positions.get(key_of(item))

    def of(self, items: Sequence[int], query: NDArray[np.float32] | None = None) -> list[Neighbours]:
        """Return the neighbours of items.

        Args:
            items: Positions in the index.
            query: A vector that chooses the chunks of an item that has too many; without one its first ones.
        """
        dense, found = self.index.dense, dict[int, Neighbours]()
        new = [item for item in items if item not in self._known and self.index.ready[item]]
        if dense is not None and new:
            chosen = [dense.vectors_of(item) for item in new]
            if query is not None:
                chosen = [own[np.argsort(-(own @ query), kind="stable")] for own in chosen]
            chosen = [own[:CHUNKS_COMPARED] for own in chosen]
            near, cosines = self._cosines(dense, np.concatenate(chosen))
            row = 0
            for item, vectors in zip(new, chosen, strict=True):
                found[item] = _nearest(near, cosines[row : row + len(vectors)].max(axis=0), item)
                row += len(vectors)
                # An item with few chunks has the same neighbours for every query.
                if dense.sizes[item] <= CHUNKS_COMPARED:
                    self._known[item] = found[item]
        return [found[item] if item in found else self._known.get(item, ()) for item in items]

    def nearest(self, vectors: NDArray[np.float32]) -> Neighbours:
        """Return the items nearest to any of some vectors."""
        if self.index.dense is None or not len(vectors):
            return ()
        items, cosines = self._cosines(self.index.dense, vectors)
        return _nearest(items, cosines.max(axis=0))

    def _cosines(
        self, dense: DenseIndex, vectors: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Return items near to any of some vectors, and [vectors, items]: cosines with their best chunks."""
        items = dense.candidates(vectors, np.zeros(len(self.index.items), np.float32))
        compared = dense.of(items)
        return items, compared.by_item(compared.cosines(vectors))


def _nearest(items: NDArray[np.intp], cosines: NDArray[np.float32], without: int = -1) -> Neighbours:
    cosines = np.where(items == without, np.float32(-np.inf), cosines)
    count = min(NEIGHBOURS, cosines.size)
    best = np.argpartition(-cosines, count - 1)[:count] if count else np.zeros(0, np.intp)
    ordered = best[np.lexsort((best, -cosines[best]))]
    return tuple((int(items[at]), float(cosines[at])) for at in ordered if cosines[at] > 0)


DOCUMENT_SHARE = 0.65
"""Share of the best score that a document needs to be shown."""

BEHIND_TOOL = 0.16
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

DocumentJudge: TypeAlias = Callable[[Result], str | None]
"""Tells why a request does not mean a document; None for one that it means."""


class DocumentsMeant:
    """Decides which documents a request means."""

    def __init__(self, engine: Engine, expander: Expander | None) -> None:
        self._engine, self._expander = engine, expander

    def meant(self, query: str, snapshot: Snapshot, documents: Ranking, tools: Ranking) -> Ranking:
        """Return the documents that a request means, rather than a tool; the others are near misses."""
        if (against := self.judge(query, snapshot, documents, tools)) is None:
            return documents
        candidates = documents.results or documents.near_misses
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
            if files and one.item.patterns and file_for(one.item.patterns, files) is None:
                return "it is for other files than those named"
            if one.item.uri in others:
                return "it is of another folder than the one that is named, which has one of this name"
            if key_of(one.item) in by_name:
                return "only the name of a file brings it near, and it is not about such files"
            if one.score < share:
                return f"its score is {one.score:.2f}, and beside the best document {share:.2f} are needed"
            score = _plain_score(one)
            if score >= least - BEHIND_TOOL:
                return None
            rival = "a tool of other catalogs" if best is None or elsewhere > here else key_of(best.item)[1]
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
        led = {key_of(one.item): _plain_score(one) for one in found if not is_about_files(one.item, files)}
        if led and (rest := without_files(query)):
            documents, many = Filters(kinds=DOCUMENT_KINDS), SearchOptions(depth=COMPARED)
            ranked = self._engine.search(rest, snapshot, documents, many, wait=False)
            for one in (*ranked.results, *ranked.near_misses, *ranked.others):
                if _plain_score(one) >= led.get(key_of(one.item), math.inf):
                    del led[key_of(one.item)]
        return set(led)


def _plain_score(result: Result) -> float:
    return (result.cosine or 0.0) + float(LEXICAL_FACTOR) * result.lexical
