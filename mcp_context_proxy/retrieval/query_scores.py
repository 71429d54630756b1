"""Scores of one query against one index: all items, the candidates among them, their results with reasons.

An immutable value between the arrays of the index and the answer; nothing here waits or remembers.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.items import Item, Kind, Tool
from mcp_context_proxy.retrieval import SUSPECTED, USED_BEFORE, Method, Result, SearchOptions, Support
from mcp_context_proxy.retrieval.bm25 import K1, lexical_reasons
from mcp_context_proxy.retrieval.index import KINDS, Index, QueryWords
from mcp_context_proxy.retrieval.item_metadata import READING, TAKEN_FROM_WHOLE, Contained
from mcp_context_proxy.retrieval.scoring import (
    EVIDENCE_OF_ADDRESS,
    INSTRUCTIONS,
    LEXICAL_FACTOR,
    MOST_PASSAGES,
    ORDINARY_TOOLS,
    PASSAGES_WANTED,
    STRONG_COVERAGE,
    Background,
    Calibration,
    Passage,
    Rivals,
    add_novelty,
    best_passage,
    count_selected,
    evidence,
    fill_missing_cosines,
    fuse,
    in_context,
    learned_additions,
    needed_evidence,
    ordinary_terms,
    share_places,
)
from mcp_context_proxy.retrieval.text import SYNONYM_SHARE
from mcp_context_proxy.retrieval.vectors import DECIMALS, DenseIndex, best, dots
from mcp_context_proxy.system.later import NDArray, np

if TYPE_CHECKING:
    from mcp_context_proxy.retrieval.purposes import Purpose
    from mcp_context_proxy.retrieval.queries import ReadQuery

OF_UNREADABLE = 8.0
"""Factor of the words of a query in letters that the packaged models cannot read: its vector says little."""

PROVEN_BY_USE = 0.5
"""Cosine of a support from which on past use alone shows that something fits: the past query had a cosine of
0.6 to 0.7 with this one."""

TWINS_NAMED = 3
"""Servers with the same tool that the reasons name; the others are counted."""

COPIES_LOOKED_FOR = 40
"""Best places of a search in which copies are looked for; an answer has at most as many."""

COPY_COSINE = 0.88
"""Cosine from which two descriptions say the same, each with the name of its server."""

COPY_MARGIN = 0.15
"""Advantage in score that does not put a copy before its original: some words more."""

YOUNGER_SECONDS = 3600.0
"""Time by which a server is younger than another; servers set up in one sitting are of one age."""

TERMS_OF_A_NEED = 3
"""Index terms from which on a query says what is needed. One of fewer names a topic, for which calls of all
sorts follow: a single one makes its tool no nearer than the nearest is by itself."""

DOUBT_OF_DOCUMENTS = 0.06
"""Evidence that a document needs beyond a tool: the general requests and other tools that it is compared with
are unlike documents, so that a rule would seem to be meant by anything."""

DOUBT_OF_PURPOSE = 0.08
"""Evidence beyond what is needed below which a request of a general purpose may be one for such a tool: a
question about the world for a web search."""

FAR_FROM_MEANT = 0.45
"""Score of the best item below which the same holds: "what is the capital of Peru" is near to no tool, and
has words of those that search for places. Of 96 answers to questions about the world, four more show a web
search then, for 0.04 tools each."""

DOUBT_OF_SERVICE, NAMING_LOOKED_FOR = 1.1, 5
"""Evidence beyond the usual that is needed where a request names a service, and none of the nearest does."""

SERVES_NEED = 0.15
"""Amount that is added for one of several needs to the scores of tools that serve its general purpose."""

TWINS_LOOKED_FOR, TWINS_KEPT = 8, 8_192
"""Tools of one name among which equal ones are looked for: nobody chooses among more accounts by name. And
tools whose equal ones the index keeps: to compare definitions was a tenth of a search."""

CONTAINERS_LOOKED_FOR = 40
"""Tools among which those are looked for that create or delete what a thing is in."""

T = TypeVar("T")


class PreparedQuery(Struct, frozen=True, eq=False):
    """A query with everything that is computed of it once for all items of an index."""

    read: ReadQuery
    index: Index
    words: QueryWords
    vectors: NDArray[np.float32] | None
    """The vectors of its texts, None in a search by words only."""
    rivals: Rivals | None
    """What is nearest to it elsewhere, None where that is not known."""
    method: Method
    supports: Mapping[int, Support]
    """Past use, by position in the index, as are the additions for new items."""
    novel: Mapping[int, float]


class QueryScores:
    """Scores of the items that can be among the best, by place: their position among these, in catalog order.

    These are all items that pass the filters; in a large catalog those of them that are near by estimate.
    """

    def __init__(self, query: PreparedQuery, allowed: NDArray[np.bool_]) -> None:
        """Score the items of the index that are marked as allowed; without vectors by words only."""
        index = query.index
        self.query, self.allowed = query, int(np.count_nonzero(allowed))
        purposes = {one for one in (query.read.purpose, *query.read.purposes) if one is not None}
        self.serves = {one: index.serving(one, allowed) for one in purposes}
        """Items that serve each general purpose of the query, chosen among all: no estimate takes part."""
        self.dense: DenseIndex | None = None
        """The chunks of these items; None in a lexical search, as are the cosines."""
        self.by_chunk: NDArray[np.float32] | None = None
        """[texts, chunks]: the cosine of each text of the query with each chunk."""
        self.cosine: NDArray[np.float32] | None = None
        """Highest cosine of any text of the query with any chunk of each item."""
        self.counterparts: NDArray[np.float32] | None = None
        """[rivals]: the highest cosine of any item with what is nearest to the query elsewhere."""
        cosines = near = of_needs = None
        if index.dense is None or query.vectors is None:
            self.items = np.flatnonzero(allowed)
        else:
            words = fuse(None, query.words.lexical.scores)
            if query.method == "dense":
                words.fill(0)
            words[~allowed] = -np.inf
            certain = {*query.words.named, *query.supports, *chain.from_iterable(self.serves.values())}
            self.items = index.dense.candidates(query.vectors, words, certain)
            self.dense = index.dense.of(self.items)
            compared, texts = query.vectors, len(query.vectors)
            if query.rivals is not None:
                compared = np.concatenate([compared, query.rivals.vectors])
            by_chunk = self.dense.cosines(compared)
            self.by_chunk = by_chunk[:texts]
            if by_chunk.size:
                self.counterparts = by_chunk[texts:].max(axis=1)
            cosines = self.dense.by_item(self.by_chunk)
            self.cosine = near = cosines.max(axis=0)
            if query.read.has_several_needs:
                of_needs = self.dense.by_item(in_context(self.by_chunk, query.vectors))
        self.lexical = query.words.lexical.scores[self.items]
        self.passages = self._passages()
        """Passages of the best documents of several chunks, by place."""
        for place, passage in self.passages.items():
            self.lexical[place] = passage.lexical
            if near is not None:
                near[place] = passage.cosine
        self.exact = frozenset(_by_place(dict.fromkeys(query.words.named), self.items))
        self.supports = _by_place(query.supports, self.items)
        self.novel = _by_place(query.novel, self.items)
        self.learned = np.zeros(self.items.size, np.float32)
        """[items]: what past use adds."""
        if near is not None:
            if not index.complete:
                near = fill_missing_cosines(near, self.lexical, index.ready[self.items])
            is_topic = len(query.read.asked) < TERMS_OF_A_NEED
            nearest = float(near.max(initial=-np.inf)) if is_topic else math.inf
            self.learned = learned_additions(near, self.supports, nearest)
            near = near + self.learned
        self.acting: NDArray[np.float32] | None = None
        """[texts, items]: what is added for the action of each item, for the whole also that for a general
        purpose; None where another method is used."""
        self.instructed: NDArray[np.float32] | None = None
        """[items]: what is added for the instructions of their servers; None where they say nothing of it."""
        factor = OF_UNREADABLE if query.read.is_unreadable and query.method == "hybrid" else 1.0
        fused = fuse(near, np.float32(factor) * self.lexical, query.method)
        if near is not None and query.method == "hybrid":
            self.acting = query.read.actions[:, index.actions[self.items]]
            sole = None if query.read.has_several_needs else query.read.purpose
            if sole is not None and sole.added:
                self.acting[0, self._serving(sole)] += np.float32(sole.added)
            from mcp_context_proxy.retrieval.purposes import WEB_SEARCH  # noqa: PLC0415 - for searches only

            for at, purpose in enumerate(query.read.purposes, 1):
                if purpose is not None and purpose is not WEB_SEARCH:
                    self.acting[at, self._serving(purpose)] += np.float32(SERVES_NEED)
            if (inside := query.read.inside) is not None:
                taken = self._containers(inside, fused + self.acting[0])
                self.acting[:, taken] -= np.float32(TAKEN_FROM_WHOLE)
            fused = np.round(fused + self.acting[0], DECIMALS)
            if query.words.instructed is not None or query.words.addressed:
                of_source = np.zeros(len(index.keys), np.float32)
                if query.words.instructed is not None:
                    of_source += INSTRUCTIONS * query.words.instructed
                preferred = np.zeros(len(index.keys), np.float32)
                for at, amount in query.words.addressed.items():
                    preferred[at] = amount
                sources = index.sources[self.items]
                self.instructed = of_source[sources] + preferred[sources] - preferred[sources].max(initial=0)
                fused = np.round(fused + self.instructed, DECIMALS)
        self.plain = add_novelty(fused, self.novel)
        """Scores before `share_places`."""
        self.fused = self.plain
        """Scores that order the items."""
        self.boosted_by = dict[int, int]()
        """For each place that was raised, the need that it is likeliest for."""
        self.near_whole = None if cosines is None or not self.items.size else cosines[0]
        """[items]: their cosines with the query as a whole."""
        self.whole = None if self.near_whole is None else float(self.near_whole.max())
        """Highest cosine of the query as a whole with any item."""
        if of_needs is not None and self.acting is not None and self.items.size and not self.exact:
            words = np.stack([query.words.lexical.of(need)[self.items] for need in query.read.needs])
            of_needs += LEXICAL_FACTOR * words + self.acting[1:]
            sources = index.sources[self.items]
            self.fused, self.boosted_by = share_places(self.plain, of_needs, query.read.orders, sources)

    def _containers(self, inside: Contained, scores: NDArray[np.float32]) -> list[int]:
        """Return the places of the best tools that would create or delete what a thing is in."""
        changing = dict[int, Tool]()
        for place in best(scores, CONTAINERS_LOOKED_FOR).tolist():
            position = int(self.items[place])
            item = self.query.index.items[position]
            if isinstance(item, Tool) and self.query.index.actions[position] not in READING:
                changing[place] = item
        return inside.mistaken(changing)

    def _passages(self) -> dict[int, Passage]:
        """Return the passages of the best documents of several chunks.

        All words of a document give an upper bound of its score. So once enough passages score as much as the
        next bound, no other document comes before them.
        """
        index, is_tool = self.query.index, KINDS.index(Kind.TOOL)
        if self.query.method not in ("hybrid", "lexical") or not index.snapshot.documents:
            return {}
        places = np.flatnonzero((index.kinds[self.items] != is_tool) & (self.lexical > 0))
        places = places[index.sizes[self.items[places]] > 1]
        bounds = LEXICAL_FACTOR * self.lexical[places]
        if self.cosine is not None:
            bounds = bounds + self.cosine[places]
        found = dict[int, Passage]()
        scores = list[float]()
        for at in np.argsort(-bounds, kind="stable")[:MOST_PASSAGES].tolist():
            if len(scores) >= PASSAGES_WANTED and scores[-PASSAGES_WANTED] >= bounds[at]:
                break
            place = int(places[at])
            item = int(self.items[place])
            (parts,) = index.lexical.parts([item], self.query.words.lexical.idf)
            found[place] = best_passage(index.texts_of(item), self._of_chunks(place), parts)
            insort(scores, found[place].score)
        return found

    def _of_chunks(self, place: int) -> NDArray[np.float32] | None:
        """Return the cosine of each chunk of the item at a place with its nearest text of the query."""
        if self.dense is None or self.by_chunk is None:
            return None
        own = slice(start := int(self.dense.starts[place]), start + int(self.dense.sizes[place]))
        nearest: NDArray[np.float32] = self.by_chunk[:, own].max(axis=0)
        return nearest

    def ranked(self, options: SearchOptions) -> tuple[list[Result], list[Result]]:
        """Return the selected items and those that follow them down to the depth asked for, best first."""
        if self.cosine is None and options.share_step:
            # Scores of words alone fall too steeply: the best tool may only have the longest description.
            options = replace(options, share_of_best=None)
        ordered, twins = self._without_twins(self._ordered(options.top_k, options.top_n))
        proven = self.plain[ordered]
        for at, place in enumerate(ordered.tolist()):
            if place in self.supports and not self.supports[place].narrows:
                proven[at] -= self.learned[place]
        count = count_selected(self.fused[ordered], options, float(proven.max(initial=-np.inf)))
        more = [
            place
            for place in ordered[count:]
            if self.cosine is not None and self.cosine[place] >= options.include_score
        ]
        selected = [int(place) for place in (*ordered[:count], *more[: max(0, options.top_k - count)])]
        following: list[int] = []
        if (missing := options.depth - len(selected)) > 0:
            ordered = self._ordered(max(options.top_k, options.depth), options.depth)
            following = [int(place) for place in ordered[~np.isin(ordered, selected)][:missing]]
        return self._results(selected, twins), self._results(following)

    def evidence(self, calibration: Calibration) -> tuple[float | None, float]:
        """Return the evidence that something is meant, None if it cannot be told, and `Ranking.unaided`."""
        query = self.query
        if self.near_whole is None or query.vectors is None or not query.index.complete:
            return None, 0.0
        if not isinstance(calibration, Background) or query.rivals is None or self.counterparts is None:
            return None, 0.0
        if query.read.is_gibberish:
            return 0.0, 0.0
        scores, idf = query.words.lexical.among(ORDINARY_TOOLS, ordinary_terms())
        highest = (K1 + 1) * math.fsum(idf[term] for term in query.read.asked.keys() - query.read.foreign)
        told, unaided = evidence(
            cosines=self.near_whole,
            general=dots(calibration.requests, query.vectors[0]),
            rivals=query.rivals.cosines,
            counterparts=self.counterparts,
            unaided=float(dots(calibration.unaided, query.vectors[0]).max()),
            coverage=np.minimum(scores[self.items] / (highest or 1.0), 1.0),
        )
        return told + (EVIDENCE_OF_ADDRESS if query.words.addressed else 0.0), unaided

    def fits(self, calibration: Calibration, evidence: float | None) -> bool:
        """Return whether anything seems to be meant: near in meaning, an exact name, or most of the words.

        Without vectors, or while some are missing, one telling word in common will do: there is nothing else
        to go by. A synonym will not: "translate this" has one in common with every tool that converts a unit.
        """
        if self.exact or any(support.cosine >= PROVEN_BY_USE for support in self._firm_supports()):
            return True
        if self.whole is None:
            return self._has_a_word()
        if isinstance(calibration, Background):
            if evidence is None:
                return self._has_a_word()
            is_tool = isinstance(self.query.index.items[int(self.items[self.fused.argmax()])], Tool)
            doubt = max(0 if is_tool else DOUBT_OF_DOCUMENTS, self._doubt_of_others())
            return evidence >= needed_evidence(self.allowed) + doubt
        if calibration == "anything" or self.whole >= calibration:
            return True
        return self._coverage() >= STRONG_COVERAGE if self.query.index.complete else self._has_a_word()

    def _doubt_of_others(self) -> float:
        """Return the evidence that tools need for a purpose or service that none of them serves."""
        purpose, service = self.query.read.purpose, self.query.read.service
        if self.query.read.has_several_needs:
            return 0.0
        if service is not None:
            naming = self.query.index.lexical.score({service: 1.0}).scores[self.items]
            if self.acting is not None:
                reads = np.isin(self.query.index.actions[self.items], [*READING])
                naming[reads & (self.acting[0] < 0)] = 0  # what reads about S3 uploads nothing to it
            if not naming[best(self.fused, NAMING_LOOKED_FOR)].any():
                return DOUBT_OF_SERVICE
        served = purpose is None or not purpose.doubt or self._serving(purpose)
        return 0.0 if served or purpose is None else purpose.doubt

    def _firm_supports(self) -> list[Support]:
        return [support for support in self.supports.values() if not support.is_weak]

    def is_certain(self, evidence: float | None) -> bool:
        """Return whether something is meant beyond the doubt that a general purpose leaves."""
        return (
            self.query.read.purpose is None
            or bool(self.exact or self._firm_supports())
            or evidence is None
            or (
                evidence >= needed_evidence(self.allowed) + DOUBT_OF_PURPOSE
                and self.fused.max(initial=-np.inf) >= FAR_FROM_MEANT
            )
        )

    def serving(self) -> list[Result]:
        """Return the tools that serve the general purpose of the query, best first."""
        if (purpose := self.query.read.purpose) is None:
            return []
        found = sorted(self._serving(purpose), key=lambda place: -self.fused[place])
        return self._results(found[: purpose.shown])

    def _serving(self, purpose: Purpose) -> list[int]:
        """Return the places of the tools that serve a general purpose of the query."""
        return [*_by_place(dict.fromkeys(self.serves[purpose]), self.items)]

    def _ordered(self, top_k: int, wanted: int) -> NDArray[np.intp]:
        """Return the candidates' places: exact names first, then by score, then in catalog order.

        Candidates are the items of the best chunks, the best items lexically, the best by score as many as
        are wanted, and all items with an exact name, a boost or a support.
        """
        chosen = np.zeros(self.items.size, bool)
        worded = np.flatnonzero(self.lexical > 0)  # without the ties of all others
        chosen[worded[best(self.lexical[worded], top_k)]] = True
        chosen[list(self.exact)] = True
        if self.dense is not None and self.by_chunk is not None:
            chunks = best(self.by_chunk.max(axis=0), top_k)
            chosen[np.searchsorted(self.dense.starts, chunks, side="right") - 1] = True
            # The best chunks may all be of a few long items, and the best item by score be best in neither.
            chosen[best(self.fused, min(wanted, top_k))] = True
        chosen |= self.fused > self.plain
        chosen[list(self.supports)] = True
        candidates = np.flatnonzero(chosen)
        ordered: NDArray[np.intp] = candidates[np.argsort(-self.fused[candidates], kind="stable")]
        if self.exact:
            ordered = ordered[np.argsort(~np.isin(ordered, list(self.exact)), kind="stable")]
        return self._older_first(ordered)

    def _older_first(self, ordered: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the places with no tool just before one of an older server that it is a copy of.

        A server that is added later must not take calls of another one by describing its tools with a few
        more words. Names of tools and servers that the query states, and past use, count as they are.
        """
        index, head = self.query.index, ordered[:COPIES_LOOKED_FOR]
        servers = {index.keys[at] for at in index.sources[self.items[head]].tolist()}
        seen = [index.snapshot.first_seen.get((server, ""), 0.0) for server in servers]
        if not seen or max(seen) - min(seen) < YOUNGER_SECONDS:
            return ordered
        items = [index.items[item] for item in self.items[head].tolist()]
        ages = ages_of(items, index)
        passing = younger(ages, ages)
        if not passing.any():
            return ordered
        names = np.array([one.name for one in items])
        alike = names[:, None] == names[None, :]
        if self.dense is not None:
            vectors = self.dense.first_of(head)
            alike |= vectors @ vectors.T >= COPY_COSINE
        passing &= alike & (np.subtract.outer(self.fused[head], self.fused[head]) <= COPY_MARGIN)
        if self.query.words.addressed:
            parts = index.lexical.parts(self.items[head].tolist(), self.query.words.lexical.idf)
            stated = np.array([1 + sum(by for field, _, by in one if field == "server") for one in parts])
            stated *= np.isin(index.sources[self.items[head]], [*self.query.words.addressed])
            passing &= np.less_equal.outer(stated, stated)
        exact = np.isin(head, [*self.exact])
        passing &= np.less_equal.outer(exact, exact)
        passing[np.isin(head, [*self.supports])] = False
        order = [*range(len(head))]
        for later in range(len(head)):
            if before := [at for at in order[: order.index(later)] if passing[at, later]]:
                order.remove(later)
                order.insert(order.index(before[0]), later)
        return np.concatenate([head[order], ordered[len(head) :]])

    def _without_twins(
        self, ordered: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], dict[int, tuple[Tool, ...]]]:
        """Return the places without tools that an earlier one has of another server, and these by place.

        Two accounts of one service, or two folders of one file server: a model needs to read the tool once.
        Only equal definitions count. With nearly equal ones a server could hide the tools of another one
        behind its own by repeating them with a word more.
        """
        index, shared = self.query.index, self.query.index.shared_names
        items, names = self.items[ordered].tolist(), index.names[self.items[ordered], 0].tolist()
        # Nearly every tool has a name of its own, which the hashes of the names tell at once.
        if shared.keys().isdisjoint(names):
            return ordered, {}
        kept, twins = dict[int, None](), dict[int, tuple[Tool, ...]]()
        passed, shown = set[tuple[str, object]](), set[str]()
        for place, item, name in zip(ordered.tolist(), items, names, strict=True):
            first = place
            if name in shared and isinstance(found := index.items[item], Tool):
                if (definition := (found.name, found.written)) in passed:
                    continue
                passed.add(definition)
                same = {place: found, **_by_place(_twins(index, found, item), self.items)}
                if len(same) > 1:
                    # The one at the server of an earlier one: a task stays where it began.
                    first = next((at for at, tool in same.items() if tool.server in shown), place)
                    shown.add(same[first].server)
                    twins[first] = tuple(tool for at, tool in same.items() if at != first)
            kept[first] = None
        return np.array([*kept], np.intp), twins

    def _coverage(self) -> float:
        """Return the share of the query's idf that the lexically best item has."""
        if not self.lexical.any():
            return 0.0
        best_item = int(self.items[self.lexical.argmax()])
        (parts,) = self.query.index.lexical.parts([best_item], self.query.words.lexical.idf)
        matched = {term for _, term, _ in parts}
        idf, asked = self.query.words.lexical.idf, self.query.read.asked.keys() - self.query.read.foreign
        return math.fsum(idf[term] for term in matched) / math.fsum(idf[term] for term in asked)

    def _has_a_word(self) -> bool:
        """Return whether any item has a telling word of the query."""
        lexical, weights = self.query.index.lexical, self.query.read.weights
        telling = {term: weight for term, weight in weights.items() if weight > SYNONYM_SHARE}
        return bool(telling) and bool(lexical.score(telling).scores[self.items].any())

    def _results(self, places: Sequence[int], twins: Mapping[int, tuple[Tool, ...]] = {}) -> list[Result]:
        """Return the items at some places with their scores and reasons."""
        worded = [place for place in places if self.lexical[place]]
        found = self.query.index.lexical.parts(self.items[worded].tolist(), self.query.words.lexical.idf)
        parts = dict(zip(worded, found, strict=True))
        return [self._result(place, parts.get(place, []), twins.get(place, ())) for place in places]

    def _result(self, place: int, parts: list[tuple[str, str, float]], twins: tuple[Tool, ...]) -> Result:
        """Return the item at a place with its reasons; ``parts`` is its score by field and term."""
        index, item, read = self.query.index, int(self.items[place]), self.query.read
        cosine = float(self.cosine[place]) if self.cosine is not None and index.ready[item] else None
        passage = self.passages.get(place)
        if passage is not None:
            parts = list(passage.terms)
        found, text, nearest = index.items[item], None, 0 if passage is None else passage.chunk
        if self.dense is not None and self.by_chunk is not None:
            start = int(self.dense.starts[place])
            own = self.by_chunk[:, start : start + int(index.sizes[item])]
            nearest = int(own.max(axis=0).argmax()) if passage is None else passage.chunk
            text = read.texts[int(own[:, nearest].argmax())]
        boosted_by, support = self.boosted_by.get(place), self.supports.get(place)
        return Result(
            item=found,
            score=float(self.fused[place]),
            cosine=cosine,
            lexical=float(self.lexical[place]),
            need=float(self.fused[place] - self.plain[place]),
            excerpt="" if isinstance(found, Tool) else index.texts_of(item)[nearest],
            nearest=nearest,
            several_servers=index.several_servers,
            matched=None if cosine is None else text,
            serves=None if boosted_by is None else read.texts[1 + boosted_by],
            learned=float(self.learned[place]),
            action=0.0 if self.acting is None else float(self.acting[0, place]),
            instructions=0.0 if self.instructed is None else float(self.instructed[place]),
            support=support,
            exact=place in self.exact,
            novelty=self.novel.get(place, 0.0),
            terms=tuple((field, read.asked.get(term) or read.added[term], by) for field, term, by in parts),
            why=self._why(place, cosine, parts, twins),
            twins=twins,
        )

    def _why(
        self,
        place: int,
        cosine: float | None,
        parts: Sequence[tuple[str, str, float]],
        twins: Sequence[Tool],
    ) -> str:
        """Return the reasons for one result as a short sentence; ``parts`` is its score by field and term."""
        reasons = (
            ["exact name"]
            if place in self.exact
            else lexical_reasons(parts, self.query.read.asked, self.query.read.added)
        )
        if cosine is not None:
            reasons.append(f"meaning {cosine:.2f}")
        if place in self.supports:
            reasons.append(USED_BEFORE)
        if place in self.novel:
            reasons.append("new here")
        if (suspicion := self.query.index.suspicion(int(self.items[place]))) is not None:
            reasons.append(SUSPECTED[suspicion])
        if twins:
            more = f" and {len(twins) - TWINS_NAMED} more" if len(twins) > TWINS_NAMED else ""
            reasons.append(f"also at {', '.join(twin.server for twin in twins[:TWINS_NAMED])}{more}")
        return "; ".join(reasons)


def _by_place(by_item: Mapping[int, T], items: NDArray[np.intp]) -> dict[int, T]:
    """Return values by position in the index as values by place among ``items``; others are left out."""
    if not by_item:
        return {}
    places = np.searchsorted(items, np.fromiter(by_item, np.intp, len(by_item))).tolist()
    return {
        place: value
        for place, (item, value) in zip(places, by_item.items(), strict=True)
        if place < items.size and items[place] == item
    }


def _twins(index: Index, tool: Tool, item: int) -> dict[int, Tool]:
    """Return the tools with the name and definition of the one at a position, by position."""
    if (known := index.twins.get(item)) is None:
        of_name = index.shared_names[int(index.names[item, 0])][:TWINS_LOOKED_FOR]
        others = ((at, index.items[at]) for at in of_name if at != item)
        alike = ((at, one) for at, one in others if isinstance(one, Tool) and one.name == tool.name)
        known = {at: one for at, one in alike if one.written == tool.written}
        if len(index.twins) < TWINS_KEPT:
            index.twins[item] = known
    return known


def ages_of(items: Sequence[Item], index: Index) -> NDArray[np.float64]:
    """[items, 2]: when the server of each tool was first seen, and when the tool; documents are no copies."""
    seen = index.snapshot.first_seen
    keys = ([(one.server, ""), (one.server, one.name)] if isinstance(one, Tool) else [] for one in items)
    return np.array([[seen.get(key, 0.0) for key in both] or [np.nan] * 2 for both in keys]).reshape(-1, 2)


def younger(ages: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[tools, others]: whether each is of a younger server than the other, and was not there before it.

    A server that came first may later list what it has read in the tools of another.
    """
    server, tool = (ages[:, None] - others[None]).transpose(2, 0, 1)
    passed: NDArray[np.bool_] = (server >= YOUNGER_SECONDS) & (tool > -YOUNGER_SECONDS)
    return passed
