"""Search over the catalog: BM25F and sentence embeddings, fused into one score.

Here are the options and results of a search, and the seam to learned tools: search knows which tools were
used for queries like this one (`Learned`), not how that is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite, isinf
from typing import Final, Literal, Protocol, TypeAlias, get_args

from msgspec import Struct, field

from mcp_context_proxy.items import Item, Tool, ToolKey
from mcp_context_proxy.retrieval.item_metadata import item_text
from mcp_context_proxy.retrieval.keyword_stuffing import Suspicion
from mcp_context_proxy.system.later import NDArray, np

Method: TypeAlias = Literal["hybrid", "dense", "lexical", "rrf"]
"""Scoring method. The proxy uses ``hybrid``, and ``lexical`` where there is no model; the others are
baselines for measurements: the cosine alone, and reciprocal rank fusion of both rankings."""

METHODS: tuple[Method, ...] = get_args(Method)


class SearchOptions(Struct, frozen=True):
    """Method and size of a search result.

    Candidates are the items of the ``top_k`` best chunks, the ``top_k`` best items lexically, and items whose
    name the query is. Of these, in order of score, the first ``top_n`` are selected, and after them every one
    whose cosine is ``include_score`` or more, up to ``top_k`` items in all. With ``share_of_best`` the number
    follows the scores instead of ``top_n``.
    """

    top_k: int = 20
    top_n: int = 5
    include_score: float = 0.7
    """The cosine counts and not the score: words in common have no upper bound, and a long query would bring
    in everything that shares many."""
    share_of_best: float | None = None
    """Select items that score at least this share of the best score, ``at_least`` to ``at_most`` items."""
    share_step: float = 0.0
    """Amount by which the share grows with each rank: the more is shown already, the nearer to the best an
    item has to be."""
    leeway: float = 0.0
    """Amount that an item may score less than its share: where even the best scores low, more is in doubt."""
    at_least: int = 3
    at_most: int = 12
    method: Method = "hybrid"
    explore: bool = False
    """Adds a little to the score of new tools that were not used yet."""
    learned: bool = True
    """False to leave out the support of earlier uses."""
    depth: int = 0
    """Length of the whole ranking: items after the selected ones come as `Ranking.others`."""

    @property
    def most(self) -> int:
        """Number of items that may be selected."""
        if self.share_of_best is not None:
            return self.at_most
        return self.top_n if isinf(self.include_score) else self.top_k


FITTING = SearchOptions(
    share_of_best=0.62, share_step=0.03, leeway=0.03, at_least=1, at_most=10, include_score=inf
)
"""Selects what fits: one tool where one stands out, more for a vague query or one of several needs.

A second tool needs 0.65 of the best score less 0.03, a fifth 0.74, and a tenth 0.89.
Of 4.1 tools that it shows on average, nearly as many are needed as of the best five. benchmarks/retrieval.md
has the number, recall and precision of each public set, also with the share chosen without that set."""


class Support(Struct, frozen=True):
    """Past use that speaks for a tool."""

    cosine: float
    """The tool counts as if its cosine were this, where its own is lower."""
    query: str | None
    """The past query that is nearest, for the owner alone; None where queries are not kept."""
    uses: int
    confirmed: bool = False
    """True if the tool was used at another time, too: in another session, or for another query like this."""
    most_added: float = inf
    """Share of the tool's own cosine that may be added to it; finite where the use says little about this
    query."""

    @property
    def is_weak(self) -> bool:
        """Return whether it raises only a tool that is near by itself."""
        return isfinite(self.most_added)

    @property
    def narrows(self) -> bool:
        """Return whether other tools may be left out for it; one use alone says too little for that."""
        return self.confirmed and not self.is_weak


class Learned(Protocol):
    """Tools that were used for earlier queries. Blocking and thread-safe."""

    def supported(self, query: NDArray[np.float32], written: str | None = None) -> Mapping[ToolKey, Support]:
        """Return the support of tools, by server and own name, for a query.

        Queries are learned as they were written. A misspelled or foreign one may be understood otherwise, so
        the nearer of the two counts.

        Args:
            query: The vector of the query as it is understood, [dimensions], of norm 1.
            written: The query as it was written, where it is understood otherwise.
        """

    def confidence(self, query: NDArray[np.float32], written: str | None = None) -> float | None:
        """Return how much is known of requests like this, 0 to 1; None where too little was learned."""

    def generation(self) -> object:
        """Return a value that changes when anything is learned or forgotten."""


class Result(Struct, frozen=True):
    """An item that was found, with its scores and reasons."""

    item: Item
    score: float
    """``cosine + learned + novelty + 0.02 * lexical + action + instructions +
    need``, or the score of another method. It
    orders the results, after an exact name."""
    cosine: float | None
    """Cosine of the best chunk with the query or one of its sentences; None in a lexical search."""
    lexical: float
    """BM25F; the sum of ``terms``."""
    need: float
    """Amount added for matching a sentence of the query better than anything above it."""
    excerpt: str
    """The text of the best chunk; empty for a tool that was searched, of which `chunk` makes it."""
    terms: tuple[tuple[str, str, float], ...]
    """The lexical score by field and word, one of the query or a synonym."""
    why: str
    """One short sentence for a person."""
    matched: str | None = None
    """Part of the query that is nearest to that chunk: all of it or a sentence; None in a lexical search."""
    serves: str | None = None
    """The sentence of the query that ``need`` was added for; None where nothing was."""
    learned: float = 0.0
    """Amount added to the cosine because the tool was used for queries like this one."""
    support: Support | None = None
    """The use that speaks for it most."""
    action: float = 0.0
    """Amount added because the tool does what the query wants done, or serves its general purpose; below 0
    where it does something else."""
    instructions: float = 0.0
    """Amount added because the instructions of its server have words of the query; negative where the query
    names another server."""
    novelty: float = 0.0
    """Amount added because the tool is new and was not used yet."""
    exact: bool = False
    """True if the query is its name."""
    twins: tuple[Tool, ...] = ()
    """The same tool of other servers, by all that these say of it. They are not results themselves."""
    nearest: int = 0
    """Number of the best chunk."""
    several_servers: bool = False
    """True if the chunks were made for a catalog of several servers."""

    @property
    def proven(self) -> float:
        """The score with which others are compared: without ``need``, and past use only if confirmed."""
        unproven = self.learned if self.support is not None and not self.support.narrows else 0.0
        return self.score - unproven - self.need

    @property
    def chunk(self) -> str:
        """The text of the best chunk."""
        return self.excerpt or item_text(self.item, self.several_servers)[1][self.nearest]


class Ranking(Struct, frozen=True):
    """The answer to a query."""

    query: str
    results: tuple[Result, ...]
    """The selected items, best first; empty when nothing fits."""
    considered: int
    """Number of items that pass the filters."""
    method: Method
    """The method used: ``lexical`` where there are no vectors."""
    note: str | None
    """A limitation that the person should know, such as a model that could not be loaded."""
    fits: bool
    """False if nothing in the catalog seems to be meant at all."""
    near_misses: tuple[Result, ...]
    """The items that would have been selected, best first, if nothing fits; otherwise empty."""
    seconds: float
    """Duration of the search, embedding included."""
    read_as: str | None = None
    """The query with its words corrected and written out, for a person; None where nothing was changed."""
    others: tuple[Result, ...] = ()
    """Items after the selected ones, or after the near misses, down to `SearchOptions.depth`."""
    best_cosine: float | None = None
    """Highest cosine of the whole query with any item; None in a lexical search."""
    evidence: float | None = None
    """Evidence that something is meant, which decides ``fits`` (`scoring.evidence`); None where it cannot be
    told."""
    unaided: float = 0.0
    """Evidence that a prompt needs beyond a search, because a model may do it unaided."""
    suspected: Mapping[str, Suspicion] = field(default_factory=dict)
    """Servers whose tools come after those of others (`keyword_stuffing`), with the reason."""
    indexed: tuple[int, int] | None = None
    """While indexing is under way: how many of the items considered have their vectors, and of how many. The
    others were searched by words. None when all is indexed."""
    likely: int = 0
    """While indexing is under way: how many items, the likeliest ones, were embedded for this search, so that
    it finds what it will find when all is indexed. 0 where that was not done."""


_HELD_BACK = "held back where tools of others fit, because"

USED_BEFORE: Final = "used before for a similar request"
"""The reason for what use has taught. Models read it, so it never quotes a query of another session."""

SUSPECTED: Mapping[Suspicion, str] = {
    "requests": f"{_HELD_BACK} the descriptions of its server read like requests",
    "names": f"{_HELD_BACK} its server's names have nothing to do with their descriptions",
}
"""Explanations of a suspicion for a person."""
