"""Quality of "nothing fits": queries that a catalog can answer are told from those that it cannot.

Answerable are the queries of a set in its own catalog, and in a part of it that has all they need. Impossible
are queries of other sets that were read one by one with the tools that came nearest (`JUDGED`): many that
were meant for other tools can be answered all the same, in a catalog of thousands nearly all. What is
impossible in a catalog is so in each part of it. Only for mcpproxy_golden, where none of 20 that were read
can be answered, the queries of other sets were taken unread, without those that need a near twin.

The servers that the model was not trained on (``encoder/data``) are put together in catalogs as their writer
got them, each with the requests that none of its servers can serve, as readers judged; and each server alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from catalogs import LISTS, lists_in, snapshot
from msgspec.structs import replace

from mcp_context_proxy.embedding import Embedder
from mcp_context_proxy.evaluation import TOOLS, EvalQuery
from mcp_context_proxy.items import Snapshot, Source, Tool
from mcp_context_proxy.retrieval import SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import needed_evidence, packaged_background
from mcp_context_proxy.retrieval.text import chunks

sys.path.insert(0, str(Path(__file__).parent.parent / "encoder"))

import pairs

JUDGED = Path(__file__).with_name("judged.jsonl")
"""Queries of other sets, each with a catalog and whether something there can answer it. Doubtful ones, such
as what a general search of the web might find, are in neither class and were left out."""

SAMPLE = 150
"""Queries of each set put to its own catalog, or to one that needs no reading, at equal distances."""

KEPT = 0.97
"""Of the answerable queries: at most 3 % may be refused."""

TWIN = 0.6
"""Cosine of two tools' names and descriptions from which one may do the other's work."""

UNREAD = "mcpproxy_golden"
LISTED = "lists"
"""The real lists as one catalog; nobody wrote queries for it."""

PARTS = {"livemcp": 6, "metatool_single": 4, LISTED: 4}
"""Of how many servers (of tools, where every tool is a server) each catalog is also taken in parts: people
have some ten servers rather than seventy."""

FAMILIES = {"livemcp_steps": "livemcp", "metatool_multi": "metatool_single"}
"""Sets over the catalog of another."""

HEAD = (
    "catalog (tools)",
    "answerable",
    "fit",
    "impossible",
    "refused",
    "AUROC",
    "AUROC of the cosine alone",
    "refused by the cosine",
    "threshold from other catalogs: fit",
    "refused",
)

ACCIDENTS = "by accident"

Named = tuple[str, Snapshot, list[EvalQuery]]
Put = tuple[Snapshot, Sequence[str]]
"""A catalog and the texts of the queries put to it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The queries of one kind that were put to one catalog or to its parts."""

    catalog: str
    part: bool
    tools: int
    """On average."""
    answerable: bool
    margin: np.ndarray
    """Evidence beyond what is needed_evidence, of each query."""
    cosine: np.ndarray
    """The best of each query."""
    fits: np.ndarray
    """What was answered."""


def calibration(sets: Sequence[Named], embedder: Embedder, query_embedder: Embedder) -> list[str]:
    """The section of the page."""
    *every, accidents = ask_all(sets, embedder, query_embedder)
    chosen = [one for one in every if one.fits.size]
    rows = []
    for part in (False, True):
        here = [one for one in chosen if one.part is part]
        for catalog in dict.fromkeys(one.catalog for one in here):
            rows.append(_row(catalog, [one for one in here if one.catalog == catalog], chosen))
        rows.append(_row(f"**mean, {'parts' if part else 'whole'}**", here, chosen))
    return [
        '## "Nothing fits"',
        "",
        "Answerable: queries of each set, in its own catalog or in a part that has all the tools they need.",
        "Impossible: queries of other sets, judged one by one with the nearest tools in view",
        f"(`{JUDGED.name}`). For {UNREAD}, none of 20 judged queries can be answered, so the others were",
        f"taken without judging, except those that need a tool with a similar one there (cosine {TWIN:g}).",
        "For seal_tools there are none: 16 of 20 judged queries can be answered with its 4,076 tools.",
        "Catalogs of servers by name: those that the model was not trained on, with requests of a writer who",
        "wrote for no others, and requests that none of the servers can serve, as readers judged.",
        "Parts: every sixth server of livemcp, every fourth tool of metatool, every fourth real list.",
        "Refused by the cosine: with the best cosine threshold, the same for all catalogs,",
        f"that keeps {KEPT:.0%} of the answerable queries of the whole catalogs.",
        "Last two columns: with the threshold that keeps the same share in the other catalogs.",
        "",
        *(f"| {' | '.join(line)} |" for line in [HEAD, ["---"] * len(HEAD), *rows]),
        "",
        _told(accidents),
    ]


def ask_all(sets: Sequence[Named], embedder: Embedder, query_embedder: Embedder) -> Iterator[Asked]:
    """Everything that is measured; last the queries that were not meant for a catalog and can be answered."""
    judged = [json.loads(line) for line in JUDGED.read_text(encoding="utf-8").splitlines()]
    ask = partial(_ask, embedder, query_embedder)
    accidents: list[Put] = []
    for name, catalog in _catalogs(sets).items():
        own = [queries for one, _, queries in sets if FAMILIES.get(one, one) == name]
        here = [line for line in judged if line["catalog"] == name]
        impossible = [line["query"] for line in here if not line["answerable"]]
        if name == UNREAD:
            impossible = list(_unread(sets, catalog, embedder))
        accidents.append((catalog, [line["query"] for line in here if line["answerable"]]))
        parts = [_part(catalog, at, PARTS[name]) for at in range(PARTS.get(name, 0))]
        for several, is_part in (([catalog], False), (parts, True)):
            yield ask(name, is_part, True, [(tools, _answerable(own, tools)) for tools in several])
            yield ask(name, is_part, False, [(tools, impossible) for tools in several])
    for put in _written():
        first = ", ".join(source.key for source in put.catalog.sources[:2]) + ", ..."
        yield ask(first, False, True, [(put.catalog, put.answerable)])
        yield ask(first, False, False, [(put.catalog, put.impossible)])
    alone = [one for put in _written() for one in put.alone()]
    yield ask("each of these servers", True, True, [(one.catalog, one.answerable) for one in alone])
    yield ask("each of these servers", True, False, [(one.catalog, one.impossible) for one in alone])
    yield ask(ACCIDENTS, False, True, accidents)


@dataclass(frozen=True, slots=True)
class Written:
    """Some servers that the model was not trained on, with what was written for them."""

    catalog: Snapshot
    requests: Sequence[pairs.Request]
    impossible: Sequence[str]

    @property
    def answerable(self) -> list[str]:
        """A sample of the requests that its tools can serve."""
        here = {tool.key for tool in self.catalog.tools.values()}
        own = [
            one
            for one in self.requests
            if (here.issuperset(one.right) if one.needs_all else here.intersection(one.right))
        ]
        return [one.text for one in own[:: max(1, len(own) // SAMPLE)][:SAMPLE]]

    def alone(self) -> Iterator[Written]:
        """Yield each server as a catalog."""
        for source in self.catalog.sources:
            yield Written(catalog_of((replace(source),)), self.requests, self.impossible)


def _written() -> Iterator[Written]:
    tools = pairs.read_tools()
    requests, unfitting = pairs.read_requests(tools)
    held_out = {key[0] for key, tool in tools.items() if tool.split != "train"}
    texts = dict[tuple[str, ...], list[str]]()
    for one in unfitting:
        if held_out.issuperset(one.servers):
            texts.setdefault(one.servers, []).append(one.text)
    for servers, impossible in texts.items():
        catalog = pairs.catalog(key for key in tools if key[0] in servers)
        yield Written(catalog, requests, impossible)


def _ask(
    embedder: Embedder,
    query_embedder: Embedder,
    catalog: str,
    part: bool,
    answerable: bool,
    put: Sequence[Put],
) -> Asked:
    margin, cosine, fits = [], [], []
    for tools, texts in put:
        engine = Engine(embedder, query_embedder, calibration=packaged_background())
        least = needed_evidence(len(tools.tools))
        found = [engine.search(text, tools, TOOLS, SearchOptions(top_n=1)) for text in texts]
        margin += [(ranking.evidence or 0.0) - least for ranking in found]
        cosine += [ranking.best_cosine or 0.0 for ranking in found]
        fits += [ranking.fits for ranking in found]
    size = round(float(np.mean([len(tools.tools) for tools, _ in put]))) if put else 0
    return Asked(catalog, part, size, answerable, np.array(margin), np.array(cosine), np.array(fits, bool))


def _catalogs(sets: Sequence[Named]) -> dict[str, Snapshot]:
    """Each once, by the first set over it; and the real lists."""
    found = {name: catalog for name, catalog, _ in sets if name not in FAMILIES}
    lists = lists_in(LISTS)
    return found | {LISTED: catalog_of(snapshot(sum(map(len, lists.values())), lists).sources)}


def auroc(positive: np.ndarray, negative: np.ndarray) -> float:
    """The chance that an answerable query has the higher value (Mann and Whitney); ties count half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.mean() / 2 / negative.size)


def threshold(asked: Sequence[Asked], values: Callable[[Asked], np.ndarray]) -> float:
    """The score that enough of the answerable queries reach, every catalog weighing the same."""
    own = [values(one) for one in asked if one.answerable and not one.part]
    steps = np.unique(np.concatenate(own))
    kept = np.mean([[(value >= step).mean() for step in steps] for value in own], axis=0)
    return float(steps[kept >= KEPT].max())


def _row(name: str, here: Sequence[Asked], every: Sequence[Asked]) -> list[str]:
    """One catalog, or the mean of several."""
    names = {one.catalog for one in here}
    elsewhere = [one for one in every if len(names) > 1 or one.catalog not in names] or every
    spared = threshold(elsewhere, lambda one: one.margin)
    near = threshold(every, lambda one: one.cosine)
    own, foreign = ([one for one in here if one.answerable is answerable] for answerable in (True, False))
    pairs = [(x, y) for x in own for y in foreign if x.catalog == y.catalog]
    size = "" if len(names) > 1 else f" ({here[0].tools})"
    return [
        name + size,
        str(sum(one.fits.size for one in own)),
        _mean([one.fits.mean() for one in own]),
        str(sum(one.fits.size for one in foreign)),
        _mean([1 - one.fits.mean() for one in foreign]),
        _mean([auroc(x.margin, y.margin) for x, y in pairs]),
        _mean([auroc(x.cosine, y.cosine) for x, y in pairs]),
        _mean([(one.cosine < near).mean() for one in foreign]),
        _mean([(one.margin >= spared).mean() for one in own]),
        _mean([(one.margin < spared).mean() for one in foreign]),
    ]


def _mean(values: Sequence[float]) -> str:
    return f"{float(np.mean(values)):.3f}" if values else ""


def _told(accidents: Asked) -> str:
    return (
        f"Of the {accidents.fits.size} judged queries that can be answered although they were written for "
        f"other tools, {accidents.fits.mean():.0%} fit."
    )


def _answerable(own: Sequence[Sequence[EvalQuery]], catalog: Snapshot) -> list[str]:
    """The queries all of whose needs a catalog, or a part of it, can serve; a sample of each set."""
    there = {(tool.server, tool.name) for tool in catalog.tools.values()}
    served = [[query for query in queries if all(need & there for need in query.needs)] for queries in own]
    return [query.text for queries in served for query in _sample(queries)]


def _sample(queries: Sequence[EvalQuery]) -> Sequence[EvalQuery]:
    return queries[:: max(1, len(queries) // SAMPLE)][:SAMPLE]


def _part(catalog: Snapshot, at: int, of: int) -> Snapshot:
    """Every so-manieth server, or tool where each tool is a server of its own or all are of one."""
    servers = sorted(source.key for source in catalog.sources)
    keep = set(servers[at::of])
    if len(servers) == 1:
        tools = sorted(catalog.tools.values(), key=lambda tool: tool.name)[at::of]
        return catalog_of((replace(catalog.sources[0], items=tuple(tools)),))
    return catalog_of(tuple(source for source in catalog.sources if source.key in keep))


def catalog_of(sources: tuple[Source, ...]) -> Snapshot:
    tools = [item for source in sources for item in source.items if isinstance(item, Tool)]
    return Snapshot(1, sources, {f"{tool.server}__{tool.name}": tool for tool in tools})


def _unread(sets: Sequence[Named], catalog: Snapshot, embedder: Embedder) -> Iterator[str]:
    """The queries of other sets that need no tool with a twin in the catalog."""
    theirs = embedder.embed([_text(tool) for tool in catalog.tools.values()])
    for name, other, queries in sets:
        if name == UNREAD:
            continue
        tools = list(other.tools.values())
        near = (embedder.embed([_text(tool) for tool in tools]) @ theirs.T).max(axis=1) >= TWIN
        twins = {(tool.server, tool.name) for tool, has in zip(tools, near, strict=True) if has}
        yield from (q.text for q in _sample(queries) if twins.isdisjoint(frozenset().union(*q.needs)))


def _text(tool: Tool) -> str:
    return chunks(f"{tool.name}: {tool.description}")[0]
