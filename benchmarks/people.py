"""People's requests to catalogs of every size: what they mean is found, and what nothing can do is refused.

    python benchmarks/people.py [--half "looked at"] [--tools N ...] [--failures] [--output FILE]
    python benchmarks/people.py --unembedded
    python benchmarks/people.py --peer NAME TOOL COMMAND

The second puts them to all 1,035 tools while none is embedded: by words alone, with what a search embeds of
the likeliest tools, and when all are.

The third puts them to another search as well (benchmarks/leaderboard.py tells what a peer is), and compares
the answers that a model reads.

``several_needs.jsonl`` has 538 requests that need two to four tools, each put to the servers that it names.

``unseen.jsonl`` has 217 requests to eleven servers that nobody here had searched before (``unseen/``), and
``least_asked.jsonl`` 122 for the recorded lists, most of them for those that the other sets ask least of.

``people.jsonl`` has 663 requests in the words of many kinds of callers, written before any answer to one of
them was seen, each with the tools of the 33 recorded lists that can serve it. Three parts were looked at
while search was improved, the others were measured afterwards. Each is put to a catalog of each size, drawn
from the lists, with one tool that can serve it; for a quarter of most parts, nothing there can, and servers
that could are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import anyio
import numpy as np
from answers import Lists
from baselines import Ranked
from catalogs import LISTS, lists_in, published
from leaderboard import Peer
from msgspec.structs import replace as with_
from nothing_fits import catalog_of, pairs

from mcp_context_proxy.config.host_profiles import NAME_LENGTHS
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel
from mcp_context_proxy.errors import EmbeddingCancelledError
from mcp_context_proxy.evaluation import TOOLS
from mcp_context_proxy.items import Item, Snapshot, Source, Tool
from mcp_context_proxy.retrieval import FITTING, queries
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store import Store, open_store

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=HALVES, help="only this one")
    parser.add_argument("--tools", type=int, nargs="+", choices=SIZES, default=SIZES, help="only these sizes")
    parser.add_argument("--failures", action="store_true", help="names each request that failed")
    parser.add_argument("--unembedded", action="store_true", help="what is found before all is embedded")
    parser.add_argument("--peer", nargs=3, action="append", default=[], metavar=("NAME", "TOOL", "COMMAND"))
    parser.add_argument("--output", type=Path, help="a file instead of the standard output")
    parser.add_argument("--store", type=Path, help="keeps vectors between runs; not the store of a proxy")
    arguments = parser.parse_args()
    halves = [arguments.half] if arguments.half else HALVES
    chosen = [one for one in requests() if one.half in halves and one.tools in arguments.tools]
    with open_store(arguments.store or "memory") as store:
        embedder = CachedEmbedder(LazyModel(), store.vectors)
        if arguments.unembedded:
            sys.stdout.writelines(f"{line}\n" for line in unembedded(embedder, halves))
            return
        answered = [answer(one, embedder) for one in chosen]
        several = [one for one in several_needs(embedder) if one.half in halves]
        told = [
            (looked_at, answer(story, embedder), answer(plain, embedder))
            for story, plain, looked_at in stories()
            if plain.half in halves
        ]
        once = [answer(one, embedder) for one in met()]
        strange = [one for one in of_servers(embedder, UNSEEN, UNSEEN_LISTS) if one.half in halves]
        seldom = [one for one in of_servers(embedder, LEAST_ASKED, LISTS) if one.half in halves]
        with patch.object(queries, "needs_of", undivided):
            whole = [one for one in several_needs(embedder) if one.half in halves]
        compared = [*page_of_peers(store, arguments.peer)] if arguments.peer else []
    if arguments.failures:
        sys.stdout.write("".join(f"{line}\n" for line in failures(answered, several)))
    if arguments.failures:
        sys.stdout.write("".join(f"{line}\n" for line in failures_of_servers([*strange, *seldom])))
    sections = [
        *ABOUT_UNSEEN,
        *table_of_servers(strange),
        *ABOUT_LEAST_ASKED,
        *table_of_servers(seldom),
        *page_of_stories(told),
        *page_of_met(once),
        *page_of_several(several, whole),
        *compared,
    ]
    text = "\n".join([*page(answered), *sections, ""])
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")


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

STATES: Mapping[str, Mapping[str, Any]] = {
    "by words": {"wait": False},
    "with the likeliest": {"wait": False, "ahead": math.inf},
    "all embedded": WHOLLY,
}
"""What is embedded when a request is put, and how the engine is asked then."""


def unembedded(embedder: CachedEmbedder, halves: Collection[str]) -> Iterator[str]:
    """Yield a table of what is found in each state: vectors that are known take no part in the choice."""
    whole = [one for one in requests() if one.half in halves and one.tools == WHOLE]
    head = ("state", "requests", "right at once", f"among {SHOWN}", "refused", "several needs", "all met")
    yield from (f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head)))
    for state, asked in STATES.items():
        put = cache(lambda without: reading_engine(embedder, all_but(without)))
        answered = [answer(one, embedder, put(one.without), asked) for one in whole]
        several = [one for one in several_needs(embedder, asked) if one.half in halves]
        served = [one for one in answered if one.request.right]
        found = [_share([one.fits and (one.place or 99) <= most for one in served]) for most in (1, SHOWN)]
        refused = _share([not one.fits for one in answered if not one.request.right])
        met = _share([one.met(MANY) == 1 for one in several])
        yield f"| {' | '.join((state, str(len(served)), *found, refused, str(len(several)), met))} |"


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


def failures_of_servers(answered: Sequence[OfServers]) -> Iterator[str]:
    """Yield a line for each request of the half looked at whose answer is wrong."""
    for one in answered:
        right = one.meets(1 if len(one.needs) == 1 else MANY) if one.needs else not one.fits
        if one.half == HALVES[0] and not right:
            wanted = " & ".join("|".join(sorted(need)) for need in one.needs) or "nothing"
            said = "fits" if one.fits else "nothing fits"
            yield f"{one.query!r} ({wanted}) {said}: {', '.join(one.order)}"


ABOUT_UNSEEN: Final = (
    "",
    "## Servers that nobody here had seen",
    "",
    f"217 requests (`{UNSEEN.name}`) to eleven servers of npm and PyPI with 218 tools (`unseen/`), which",
    "no other set has: spoken ones, situations, those that models type, several needs, and some that",
    "nothing there serves, half of these written for two servers that are not there. They were written",
    "before the lists were searched; the tools that serve each were named from the definitions alone,",
    "before any answer was seen. A hash of the name of a server decides to which half its requests",
    "belong; of the half held out no answer was looked at.",
    "",
)
ABOUT_LEAST_ASKED: Final = (
    "",
    "## Tools that are seldom asked for",
    "",
    f"122 requests (`{LEAST_ASKED.name}`) for 21 of the recorded lists, most of them for tools of those that",
    "the other sets ask least of, with typing mistakes, short forms, situations, other languages,",
    "negations, and text after the order; 30 that nothing there serves. They were put to all lists",
    "together. They were written and their tools named before any answer was seen. A hash of each decides",
    "to which half it belongs; of the half held out no answer was looked at.",
    "",
)


def table_of_servers(answered: Sequence[OfServers]) -> list[str]:
    """Return the table of requests to the servers of some lists."""
    head = ("requests", "number", "right at once", f"among {FIRST}", f"among {SHOWN}", "refused")
    rows = []
    for half in HALVES[:2]:
        here = [one for one in answered if one.half == half]
        several = [one for one in here if len(one.needs) > 1]
        parts = {
            f"**{half}**": [one for one in here if not one.alone],
            "its server alone": [one for one in here if one.alone],
            **{
                persona: [one for one in here if one.persona == persona and not one.alone]
                for persona in dict.fromkeys(one.persona for one in here if one not in several)
            },
        }
        for name, of_part in parts.items():
            served = [one for one in of_part if len(one.needs) == 1]
            shares = (_share([one.meets(places) for one in served]) for places in (1, FIRST, SHOWN))
            refused = _share([not one.fits for one in of_part if not one.needs])
            rows.append([name, str(len(served)), *shares, refused])
        whole = [one for one in several if not one.alone]
        rows.append(
            [
                f"several needs, all among {MANY}",
                str(len(whole)),
                "",
                "",
                _share([o.meets(MANY) for o in whole]),
                "",
            ]
        )
    return [f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows]]


def page(answered: Sequence[Answered]) -> list[str]:
    """Return the page: a table by half, size of catalog and kind of caller."""
    head = ("requests", "number", f"among {FIRST}", f"among {SHOWN}", "fit", "nothing fits", "refused")
    rows = list[Sequence[str]]()
    for half in HALVES:
        here = [one for one in answered if one.request.half == half]
        if not here:
            continue
        rows.append(_row(f"**{half}**", here))
        sizes = sorted({one.request.tools for one in here})
        rows += (_row(f"{size:,} tools", [o for o in here if o.request.tools == size]) for size in sizes)
        personas = dict.fromkeys(one.request.persona for one in here)
        rows += (_row(name, [one for one in here if one.request.persona == name]) for name in personas)
    return [
        "# What people ask",
        "",
        "Written by `python benchmarks/people.py --output benchmarks/people.md`.",
        "",
        "663 requests (`people.jsonl`). 240 are in the words of six kinds of callers: a developer in a",
        "hurry, an office person, a speaker of another language, a model, an analyst, and a person at home.",
        "They were written before any answer to one of them was seen, each with the tools of the 33 recorded",
        "lists (tests/data/tools) that can serve it. The first half was looked at, by kinds of failures,",
        "while search was improved. The second was measured when that was done, and again after a change for",
        "speed and after later work. None of its answers was looked at, and no request and no right tool",
        "was changed. Another 146 were written later, to be harder: vague, indirect, misspelled, as",
        "questions, and at home. 130 more, of thirteen kinds, have negations, passives, payloads, shell",
        "words, other languages and what hooks send. The last 147 (fourth) are commands of two words, long",
        "stories, follow-ups, complaints and denials, and requests that nothing serves. A hash decides to",
        "which part it belongs; of these, only answers of parts called looked at were looked at.",
        "",
        "Each request is put to a catalog of each size: parts of servers drawn at random, with one tool that",
        "can serve it, and all lists together. For a quarter of the requests nothing there can; servers that",
        "could are left out. A request for which nothing is said to fit counts as not found.",
        "",
        *(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows]),
    ]


def page_of_stories(told: Sequence[tuple[bool, Answered, Answered]]) -> list[str]:
    """Return the section on requests in a story."""
    head = (
        "stories",
        "number",
        f"among {FIRST}",
        f"among {SHOWN}",
        "fit",
        f"without it: among {FIRST}",
        "fit",
    )
    rows = []
    for looked_at in (True, False):
        here = [(story, plain) for looked, story, plain in told if looked is looked_at]
        if here:
            in_story, alone = _row("", [one for one, _ in here]), _row("", [one for _, one in here])
            name = "looked at" if looked_at else "held out"
            rows.append([name, *in_story[1:5], alone[2], alone[4]])
    return [
        "",
        "## Stories",
        "",
        f"People tell what happened before they ask, as hooks pass it on. {len(STORIES)} stories are put",
        "around the requests above, each with the story that its hash tells, and put to all lists together.",
        "Of six of the stories no answer was looked at.",
        "",
        *(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows]),
    ]


def page_of_met(answered: Sequence[Answered]) -> list[str]:
    """Return the section on requests that users were answered wrong."""
    rows = []
    for one in answered:
        served = bool(one.request.right)
        right = one.fits and (one.place or MANY) <= FIRST if served else not one.fits
        first = ", ".join(one.shown[:3]) if one.fits else "nothing fits"
        rows.append([one.request.query, "right" if right else "**wrong**", first])
    head = ("request", "answer", "first tools")
    return [
        "",
        "## Requests that users were answered wrong",
        "",
        "To all lists together: right if a tool that can serve the request is among the first two, or if",
        "nothing is said to fit where nothing does. Of several needs, the one that was missed counts.",
        "",
        *(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows]),
    ]


def page_of_several(several: Sequence[SeveralNeeds], whole: Sequence[SeveralNeeds]) -> list[str]:
    """Return the section on requests with several needs."""
    head = ("requests", "number", f"all needs among {MANY}", "among 5", "among those shown", "needs", "shown")
    rows = [
        [
            f"{half}{named}",
            str(len(here)),
            *(_share([one.met(places) == 1 for one in here]) for places in (MANY, SHOWN)),
            _share([one.met(one.shown) == 1 for one in here]),
            _share([one.met(one.shown) for one in here]),
            f"{np.mean([one.shown for one in here]):.2f}",
        ]
        for half in HALVES
        for named, every in (("", several), (", as one need", whole))
        if (here := [one for one in every if one.half == half])
    ]
    return [
        "",
        "## Several needs",
        "",
        f"538 requests (`{SEVERAL_NEEDS.name}`) that need two to four tools of the servers that each names:",
        "recorded lists and servers that the model was not trained on, 40 to 320 tools, ten times all",
        "1,035. They were written before any answer was seen. The writer of the first 336 then read the",
        "right tools of all of them again, beside an unordered list of what search finds, and looked at the",
        "order of the first half alone. The other 160 (third) were written in many styles by one who had",
        "read how queries are divided: plans, numbered lists, a need in a subordinate clause, questions",
        "joined. 42 (fourth) came last. A hash of each decides to which part it belongs. The answers of the",
        "parts looked at were read while the places were shared anew and more was divided; those held out",
        "were measured when that was done. All needs: the share of requests of which each need has a tool.",
        "Needs: the share of needs that a tool shown meets. As one need: the query is not divided at all.",
        "Until this page had the third part, the line to compare with was worse than that, because its tools",
        "were embedded wrongly: of the gain that the page then gave (11.9 points looked at, 5.4 held out),",
        "7.3 and 2.7 were real.",
        "",
        *(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows]),
    ]


def page_of_peers(store: Store, peers: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the section on the answers of this proxy and of others to requests that one of the lists serves.

    An answer is what a model reads: its tools are those that it names, in the order in which it names them.
    """
    asked = [one for one in requests() if one.tools == WHOLE and one.right and not one.without]
    yield from ("", "## Beside other searches", "")
    yield from (
        f"{len(asked)} requests above that a tool of the lists can serve, to all lists together. An answer",
        "is the text that a model reads, its tools are those that the text names, in this order.",
        'Written with `--peer FastMCP search_tools "PYTHON benchmarks/fastmcp_search.py {corpus}"`, the BM25',
        "search of FastMCP with ten results.",
        "",
    )
    lists, whole = Lists(lists_in(LISTS), LazyModel(), store.vectors), all_but(())
    answers = dict[str, Callable[[str], tuple[Ranked, str]]]()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        for name, tool, command in peers:
            peer = Peer(tool, command, whole, Path(folder))
            started.callback(peer.close)
            answers[name] = peer.answer

        def ours(query: str) -> tuple[Ranked, str]:
            text = anyio.run(lists.answers, query)[NAME_LENGTHS[0]].text
            return [] if text.startswith("Nothing") else peer.named(text), text

        answers["this proxy"] = ours
        head = ("answer", "right at once", f"among {FIRST}", f"among {SHOWN}", "tokens")
        yield from (f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head)))
        for name, answered in answers.items():
            places, tokens = list[int](), list[int]()
            for one in asked:
                named, text = answered(one.query)
                tools = (f"{server}/{tool}" for server, tool, _ in named)
                places.append(next((at for at, tool in enumerate(tools, 1) if one.is_served(tool)), MANY))
                tokens.append(lists.tokens(text))
            shares = [_share([place <= most for place in places]) for most in (1, FIRST, SHOWN)]
            yield f"| {' | '.join((name, *shares, f'{np.mean(tokens):.0f}'))} |"


def _row(name: str, here: Sequence[Answered]) -> list[str]:
    served = [one for one in here if one.request.right]
    others = [one for one in here if not one.request.right]
    return [
        name,
        str(len(served)),
        *(_share([one.fits and (one.place or 99) <= most for one in served]) for most in (FIRST, SHOWN)),
        _share([one.fits for one in served]),
        str(len(others)),
        _share([not one.fits for one in others]),
    ]


def _share(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f}" if values else "-"


def failures(answered: Sequence[Answered], several: Sequence[SeveralNeeds]) -> Iterator[str]:
    """Yield a line for each request whose right tool is not among the first, or that is kept or refused."""
    for many in several:
        if many.half.endswith("looked at") and many.met(MANY) < 1:
            yield f"{many.query!r} {', '.join(many.order)}"
    for one in answered:
        request = one.request
        if not request.half.endswith("looked at"):
            continue
        if bool(request.right) != one.fits or (request.right and (one.place or 99) > FIRST):
            fits = "fits" if one.fits else "nothing fits"
            found = f"{fits} ({one.evidence:.2f}), place {one.place}: {', '.join(one.shown)}"
            yield f"{request.tools:5} {request.query!r} {found}"


if __name__ == "__main__":
    main()
