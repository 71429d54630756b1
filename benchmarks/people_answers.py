"""People's requests, put to their catalogs: the answers that benchmarks/people.py counts."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from catalogs import LISTS, lists_in, published
from msgspec.structs import replace as with_
from nothing_fits import catalog_of, pairs

from mcp_context_proxy.embedding.embeddings import CachedEmbedder
from mcp_context_proxy.errors import EmbeddingCancelledError
from mcp_context_proxy.evaluation import TOOLS
from mcp_context_proxy.items import Item, Snapshot, Source, Tool
from mcp_context_proxy.retrieval import FITTING
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import packaged_background

REQUESTS = Path(__file__).with_name("people.jsonl")
HALVES = (
    "looked at",
    "held out",
    "second looked at",
    "second held out",
    "third looked at",
    "third held out",
    "fourth looked at",
    "fourth held out",
)

SIZES = (6, 20, 60, 300, 1_035)
"""Tools of the catalogs; the largest is all lists together, or all but those that are left out."""

WHOLE = SIZES[-1]

FIRST, SHOWN = 2, 5
"""Places among which the right tool is looked for."""

SEVERAL_NEEDS = Path(__file__).with_name("several_needs.jsonl")

MANY = 8
"""Places among which the tools for all needs of a request are looked for."""


UNSEEN, UNSEEN_LISTS = Path(__file__).with_name("unseen.jsonl"), Path(__file__).with_name("unseen")
LEAST_ASKED = Path(__file__).with_name("least_asked.jsonl")

STORIES = (
    "We've been at this since Monday and my boss is getting impatient. {q}",
    "I'm in a train with bad wifi, so only short answers. {q}",
    "hey, hope you had a nice weekend. {q}",
    "My colleague usually does this but she is on holiday, so {q}",
    "Ok so here is the thing. The client called twice today and he was not amused. {q}",
    "Sorry if I asked this before, my memory is terrible these days. {q}",
    "There was a long discussion in the meeting this morning and nobody agreed on anything. In the "
    "end it was decided that I take care of it. {q}",
    "I tried it by hand and gave up after half an hour because everything looks different since the "
    "update. {q}",
    "{q} I'd do it myself but I don't have the time today.",
    "You did a great job with the last one, the team was really happy. {q}",
    "our intern set all this up last summer and left no notes whatsoever, which is why I'm lost. {q}",
    "it's almost six and I want to go home, {q}",
    "The release is on Thursday and half of the people are ill. {q}",
    "I just came back from vacation and there are three hundred mails waiting for me. {q}",
    "{q} Thanks, you're saving my day, the auditors arrive tomorrow.",
    "ok thanks, that worked. Next thing on my list, which somebody should have done a year ago: {q}",
    "Jan from accounting keeps bugging me about it, and I promised him it would be done by noon. {q}",
    "not urgent, I'm only curious because of what you said earlier. {q}",
)
"""What people say around a request. The first twelve were looked at."""

STORIES_LOOKED_AT = 12

MET = """
serch for isues about login = */search_issues linear/linear_searchIssues atlassian/jira_search
comit my chnages = git/git_commit git-cyanheads/git_commit
make a PR = */create_pull_request */create_merge_request
go to example.com = */*navigate*
add a row to the customers table = sqlite/write_query
what meetings do I have tomorrow =
book a meeting with Anna =
file a bug about the login page and tell Anna about it in a note = */create_issue */*createIssue
look at the open issues, read parser.py, and create a pull request that fixes it = */create_pull_request
remember that I prefer tabs over spaces = memory/*
run the tests =
upload this to s3 =
news about the elections in Norway = */*search*
translate this to French =
delete nothing, just list the branches = */git_branch */list_branches
who am I logged in as = */whoami linear/linear_getViewer notion/API-get-self */*user-details */get_username
is anyone assigned to PAY-231 = atlassian/jira_get_issue
start the 5th =
note down the meeting notes in the file todo.md = filesystem/write_file filesystem/edit_file
"""
"""Requests that users of earlier versions were answered wrong, with the tools that can serve them. All were
looked at."""

OWN_FORM = frozenset({"small model", "command", "hurried", "shell", "language", "followup", "nothing"})
"""Callers who tell no stories."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request with the size of the catalog that it is put to."""

    tools: int
    persona: str
    half: str
    query: str
    right: tuple[str, ...]
    """Patterns of the tools that can serve it, as ``server/tool``; none where nothing can."""
    without: tuple[str, ...]
    """Servers that could, and are not in its catalog."""

    def is_served_by(self, item: Item) -> bool:
        """Return whether a tool can serve it."""
        return isinstance(item, Tool) and self.is_served(f"{item.server}/{item.name}")

    def is_served(self, tool: str) -> bool:
        """Return whether a tool, as ``server/tool``, can serve it."""
        return any(fnmatchcase(tool, pattern) for pattern in self.right)


@dataclass(frozen=True, slots=True)
class Answered:
    """A request with its answer."""

    request: Request
    fits: bool
    place: int | None
    """Place of the first tool that can serve it, from 1."""
    shown: tuple[str, ...]
    evidence: float


@dataclass(frozen=True, slots=True)
class SeveralNeeds:
    """A request that needs several tools, with its answer."""

    half: str
    query: str
    needs: tuple[frozenset[str], ...]
    """Tools that serve each need, as ``server/tool``."""
    order: tuple[str, ...]
    shown: int

    def met(self, places: int) -> float:
        """Return the share of its needs that the first tools meet."""
        first = frozenset(self.order[:places])
        return float(np.mean([not first.isdisjoint(need) for need in self.needs]))


@dataclass(frozen=True, slots=True)
class OfServers:
    """A request to servers that were not searched before, with its answer."""

    half: str
    persona: str
    query: str
    alone: bool
    """Whether only the server that it is for is there."""
    needs: tuple[frozenset[str], ...]
    fits: bool
    order: tuple[str, ...]

    def meets(self, places: int) -> bool:
        """Return whether the first tools meet all of its needs."""
        return self.fits and not any(need.isdisjoint(self.order[:places]) for need in self.needs)


def requests() -> Iterator[Request]:
    """Yield every request with every size of catalog."""
    for line in REQUESTS.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        right, without = (tuple(one.get(key, ())) for key in ("right", "without"))
        for size in SIZES:
            yield Request(size, one["persona"], one["half"], one["query"], right, without)


@cache
def sources() -> Mapping[str, Source]:
    """The recorded lists as sources."""
    return {source.key: source for source in published(lists_in(LISTS)).sources}


@cache
def all_but(without: tuple[str, ...]) -> Snapshot:
    """Return all recorded lists but some as one catalog."""
    return catalog_of(tuple(source for key, source in sources().items() if key not in without))


def catalog(request: Request) -> Snapshot:
    """Return the catalog that a request is put to: parts of servers, a third of it of one at most."""
    rng = random.Random(f"{request.tools} {request.query}")
    servers = [source for key, source in sources().items() if key not in request.without]
    if request.tools == WHOLE:
        return all_but(request.without)
    rng.shuffle(servers)
    serving = [(source, item) for source in servers for item in source.items if request.is_served_by(item)]
    target = rng.choice(serving) if serving else None
    if target is not None:
        servers.sort(key=lambda source: source is not target[0])
    left, chosen = request.tools, list[Source]()
    for source in servers:
        most = min(len(source.items), left, max(3, request.tools // 3))
        own = rng.sample(source.items, most)
        if target is not None and source is target[0] and target[1] not in own:
            own[0] = target[1]
        if own:
            chosen.append(with_(source, items=tuple(own)))
        left -= len(own)
    return catalog_of(tuple(chosen))


@cache
def engine(embedder: CachedEmbedder, without: tuple[str, ...]) -> Engine:
    """Return an engine for all lists but some."""
    return Engine(embedder, embedder, calibration=packaged_background())


WHOLLY: Mapping[str, Any] = {}


def reading_engine(embedder: CachedEmbedder, catalog: Snapshot) -> Engine:
    """Return an engine that has read the words of a catalog, and embedded nothing of it."""
    reading = Engine(embedder, embedder, calibration=packaged_background(), sketch=embedder.sketches)
    with suppress(EmbeddingCancelledError):
        reading.index(catalog, cancelled=lambda: not reading.index_of(catalog).unread)
    return reading


def answer(
    request: Request, embedder: CachedEmbedder, put: Engine | None = None, asked: Mapping[str, Any] = WHOLLY
) -> Answered:
    """Put a request to its catalog."""
    if put is None and request.tools == WHOLE:
        put = engine(embedder, request.without)
    elif put is None:
        put = Engine(embedder, embedder, calibration=packaged_background())
    ranking = put.search(request.query, catalog(request), TOOLS, with_(FITTING, depth=SHOWN), **asked)
    order = [*(ranking.results or ranking.near_misses), *ranking.others]
    place = next((at for at, one in enumerate(order, 1) if request.is_served_by(one.item)), None)
    shown = tuple(f"{one.item.server}/{one.item.name}" for one in order if isinstance(one.item, Tool))
    return Answered(request, ranking.fits, place, shown, ranking.evidence or 0.0)


def stories() -> Iterator[tuple[Request, Request, bool]]:
    """Yield requests to all lists in a story and without it, and whether the story was looked at."""
    for one in requests():
        if one.tools == WHOLE and one.right and one.persona not in OWN_FORM:
            at = int(hashlib.sha256(one.query.encode()).hexdigest(), 16) % len(STORIES)
            story, query = STORIES[at], one.query
            if story.endswith((", {q}", ": {q}", "so {q}")) and not query[:2].isupper():
                query = query[0].lower() + query[1:]
            yield replace(one, query=story.replace("{q}", query)), one, at < STORIES_LOOKED_AT


def met() -> Iterator[Request]:
    """Yield requests that users were answered wrong."""
    for line in MET.strip().splitlines():
        query, _, right = line.partition(" =")
        yield Request(WHOLE, "", HALVES[0], query, tuple(right.split()), ())


def undivided(query: str) -> list[tuple[int, int]]:
    """Return a query as one need."""
    return [(0, len(query))]


def several_needs(embedder: CachedEmbedder, asked: Mapping[str, Any] = WHOLLY) -> Iterator[SeveralNeeds]:
    """Put each request with several needs to the servers that it names."""
    tools = pairs.read_tools()
    put = dict[tuple[str, ...], tuple[Engine, Snapshot]]()
    for line in SEVERAL_NEEDS.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        servers = tuple(one["servers"])
        if servers not in put:
            others = pairs.catalog(key for key in tools if key[0] in servers and key[0] not in sources())
            recorded = tuple(sources()[name] for name in servers if name in sources())
            all_of_them = catalog_of((*recorded, *others.sources))
            put[servers] = reading_engine(embedder, all_of_them), all_of_them
        searched, catalog = put[servers]
        ranking = searched.search(one["query"], catalog, TOOLS, with_(FITTING, depth=MANY), **asked)
        order = [*(ranking.results or ranking.near_misses), *ranking.others]
        yield SeveralNeeds(
            one["half"],
            one["query"],
            tuple(frozenset(need) for need in one["needs"]),
            tuple(
                f"{found.item.server}/{found.item.name}" for found in order if isinstance(found.item, Tool)
            ),
            len(ranking.results),
        )


def of_servers(embedder: CachedEmbedder, asked: Path, lists: Path) -> Iterator[OfServers]:
    """Put each request to all servers of some lists, and to its own alone if it is for one."""
    sources = published(lists_in(lists)).sources
    catalogs: dict[str | None, Snapshot] = {one.key: catalog_of((one,)) for one in sources}
    catalogs[None] = catalog_of(tuple(sources))
    put = {key: reading_engine(embedder, catalog) for key, catalog in catalogs.items()}
    for line in asked.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        needs = tuple(map(frozenset, one["needs"]))
        own = {tools[0].partition("/")[0] for tools in one["needs"]}
        for key in (None, *own) if len(own) == 1 else (None,):
            options = with_(FITTING, depth=MANY)
            ranking = put[key].search(one["query"], catalogs[key], TOOLS, options)
            order = [*(ranking.results or ranking.near_misses), *ranking.others]
            found = tuple(f"{o.item.server}/{o.item.name}" for o in order if isinstance(o.item, Tool))
            yield OfServers(
                one["half"], one["persona"], one["query"], key is not None, needs, ranking.fits, found
            )
