"""People's requests to catalogs of every size: what they mean is found, and what nothing can do is refused.

    python benchmarks/people.py [--half "looked at"] [--tools N ...] [--failures] [--output FILE]
    python benchmarks/people.py --unembedded
    python benchmarks/people.py --peer NAME TOOL COMMAND

The second puts them to all 1,035 tools while none is embedded: by words alone, with what a search embeds of
the likeliest tools, and when all are.

The third puts them to another search as well (benchmarks/leaderboard.py tells what a peer is), and compares
the answers that a model reads.

``several_needs.jsonl`` has 538 requests that need two to four tools, each put to the servers that it names.

``unseen.jsonl`` has 262 requests to eleven servers that nobody here had searched before (``unseen/``), and
``least_asked.jsonl`` 122 for the recorded lists, most of them for those that the other sets ask least of.

``people.jsonl`` has 663 requests in the words of many kinds of callers, written before any answer to one of
them was seen, each with the tools of the 33 recorded lists that can serve it. Three parts were looked at
while search was improved, the others were measured afterwards. Each is put to a catalog of each size, drawn
from the lists, with one tool that can serve it; for a quarter of most parts, nothing there can, and servers
that could are left out.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import anyio
import numpy as np
from answers import Lists
from baselines import Ranked
from catalogs import LISTS, lists_in
from leaderboard import Peer
from people_answers import (
    FIRST,
    HALVES,
    LEAST_ASKED,
    MANY,
    SEVERAL_NEEDS,
    SHOWN,
    SIZES,
    STORIES,
    UNSEEN,
    UNSEEN_LISTS,
    WHOLE,
    WHOLLY,
    Answered,
    OfServers,
    SeveralNeeds,
    all_but,
    answer,
    met,
    of_servers,
    reading_engine,
    requests,
    several_needs,
    stories,
    undivided,
)

from mcp_context_proxy.config.host_profiles import NAME_LENGTHS
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel
from mcp_context_proxy.retrieval import queries
from mcp_context_proxy.store.opening import Store, open_store

STATES: Mapping[str, Mapping[str, Any]] = {
    "by words": {"wait": False},
    "with the likeliest": {"wait": False, "ahead": math.inf},
    "all embedded": WHOLLY,
}
"""What is embedded when a request is put, and how the engine is asked then."""


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
    f"262 requests (`{UNSEEN.name}`) to eleven servers of npm and PyPI with 218 tools (`unseen/`), which",
    "no other set has: spoken ones, situations, those that models type, several needs, and some that",
    "nothing there serves, half of these written for two servers that are not there. They were written",
    "before the lists were searched; the tools that serve each were named from the definitions alone,",
    "before any answer was seen. A hash of the name of a server decides to which half its requests",
    "belong; of the half held out no answer was looked at. 45 in other languages (`language`) were written",
    "later, after two thirds of the words by which these are read had been; a hash of each decides to which",
    "half it belongs. The other words were written with the answers of the half looked at in view.",
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
    return _table(head, rows)


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
        *_table(head, rows),
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
        *_table(head, rows),
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
        *_table(head, rows),
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
        *_table(head, rows),
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


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows]]


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
