"""Facts that a prompt hook gives: the share of requests whose tool is in its text, and the tokens of it.

    python benchmarks/hooks.py FOLDER [--sets NAME ...] [--tokens 400]

FOLDER has one folder per set with corpus.jsonl and queries.jsonl, as `mcp-context-proxy eval` reads them. The
text is the one that the proxy writes for a hook, of the tools that it would select for it. Only requests that
one tool answers count as single-step.

The second table is that of a scripted client, with the hook and without. It plays a model that knows the
right tool when it sees it, and nothing else: it searches in the words of the request, asks for ten tools
if the right one is not in the first answer, and then says that it cannot. It calls a tool whose
signature it has seen, and searches for the exact name of one that was only named. Each search, each call
and giving up is a turn. Read are the texts of the proxy, by a model that reads all of them again in each
turn; the list of tools, which is the same for both, and the rest of the conversation are not counted.

The last table has prompts to an assistant that writes code (`PROMPTS`): most of them need no tool, and the
hook should say nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import fmean, median

from catalogs import LISTS, lists_in, published

from mcp_context_proxy.config import DomainOptions
from mcp_context_proxy.context import ContextOptions
from mcp_context_proxy.context.search import Found
from mcp_context_proxy.context.selection import SearchAnswer, Selection
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, TokenCounter
from mcp_context_proxy.evaluation import TOOLS, EvalQuery, read_corpus, read_queries
from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval import FITTING, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.retrieval.text import content_words
from mcp_context_proxy.server.search_answers import answer_tokens, search_text
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.web.running import (
    FURTHER,
    LEAST_WORDS,
    PROMPT_TOOLS,
    fits_a_prompt,
    near_the_best,
    prompt_text,
)

Count = Callable[[str], int]
"""Counts the tokens of a text."""

SETS = ("livemcp_steps", "livemcp", "metatool_single")
PROMPTS = Path(__file__).with_name("prompts.jsonl")
"""Prompts as people type them to an assistant, each with the servers that can serve it, most with none. They
were written before any answer was seen; a hash decides which half was looked at."""

CONNECTED = ("filesystem", "git"), ("filesystem", "git", "playwright")
"""Recorded lists that are connected meanwhile."""

MOST_QUERIES = 400
"""Queries of one set, the first ones."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--tokens", type=int, default=400)
    given = parser.parse_args()
    model, played = LazyModel(), list[str]()
    with open_store("memory") as store:
        embedder = CachedEmbedder(model, store.vectors)
        print("| set | requests | in the text | with its signature | nothing given | tokens, mean | most |")
        print("|---|---|---|---|---|---|---|")
        for name in given.sets:
            corpus, queries = (_file(given.folder / name, part) for part in ("corpus", "queries"))
            snapshot = read_corpus(corpus)
            row, turns = _row(name, _engine(embedder), snapshot, read_queries(queries), given.tokens)
            print(row)
            played += turns
            sys.stdout.flush()
        head = "| set | client | finds its tool | turns, mean | in one turn | tokens of texts | tokens read |"
        print(f"\n{head}")
        print("|---|---|---|---|---|---|---|")
        print("\n".join(played))
        print("\n| servers | half | need no tool | nothing given | served | something given |")
        print("|---|---|---:|---:|---:|---:|")
        print("\n".join(_silence(embedder)))


def _engine(embedder: CachedEmbedder) -> Engine:
    """Return an engine that says where nothing fits, as that of a proxy does."""
    return Engine(embedder, embedder, calibration=packaged_background())


def _silence(embedder: CachedEmbedder) -> Iterator[str]:
    """Yield the rows of the last table."""
    prompts = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    for servers in CONNECTED:
        snapshot = published({name: tools for name, tools in lists_in(LISTS).items() if name in servers})
        engine = _engine(embedder)
        for half in ("looked at", "held out"):
            given = dict[bool, list[bool]]({True: [], False: []})
            for one in prompts:
                if one["half"] == half and set(servers).issuperset(one["servers"]):
                    is_searched = len(content_words(one["query"]).split()) >= LEAST_WORDS
                    ranking = engine.search(one["query"], snapshot, TOOLS)
                    given[bool(one["servers"])].append(is_searched and fits_a_prompt(ranking))
            none, some = given[False], given[True]
            cells = (len(none), f"{1 - fmean(none):.1%}", len(some), f"{fmean(some):.1%}")
            yield f"| {', '.join(servers)} | {half} | {' | '.join(map(str, cells))} |"


@dataclass
class Scripted:
    """A client on one request: its turns, and what it has read of the proxy."""

    needed: list[Tool]
    texts: list[str] = field(default_factory=list)
    turns: int = 0
    read: int = 0
    """Tokens of all texts so far, once for each turn that reads them."""
    found: bool = False

    def turn(self, count: Count, answer: str | None = None) -> None:
        """Take a turn after reading everything so far; the proxy answers with a text, or a call ends it."""
        self.turns += 1
        self.read += sum(map(count, self.texts))
        if answer is not None:
            self.texts.append(answer)

    def named(self) -> Tool | None:
        """Return the right tool, if a text names it."""
        told = "\n".join(self.texts)
        return next(
            (one for one in self.needed if re.search(rf"\b{re.escape(one.exposed_name)}\b", told)), None
        )

    def signed(self) -> bool:
        """Return whether a text has its signature, or its whole definition."""
        told = "\n".join(self.texts)
        shown = (rf"(^|\n){re.escape(one.exposed_name)}(\(|( \[r\])?\n)" for one in self.needed)
        return any(re.search(pattern, told) for pattern in shown)


def _scripted(
    query: EvalQuery, snapshot: Snapshot, search: Callable[[str, int | None], str], hook: str, count: Count
) -> Scripted:
    """Play the client on one request; with an empty ``hook`` it was given nothing beside the prompt."""
    needed = [tool for tool in snapshot.tools.values() if tool.key in query.needs[0]]
    client = Scripted(needed, [hook] if hook else [])
    for top_n in (None, 10):
        if client.named() is None:
            client.turn(count, search(query.text, top_n))
    tool = client.named()
    if tool is None:
        client.turn(count)
        return client
    if not client.signed():
        client.turn(count, search(tool.exposed_name, None))
    client.turn(count)
    client.found = True
    return client


def _searching(engine: Engine, snapshot: Snapshot, count: Count) -> Callable[[str, int | None], str]:
    """Return a function of a query and a number of tools that answers as the proxy's search does."""

    def search(text: str, top_n: int | None) -> str:
        wanted = FITTING if top_n is None else SearchOptions(top_n=top_n, include_score=inf)
        ranking = engine.search(text, snapshot, TOOLS, wanted)
        number = DomainOptions(20, top_n or 5, None, by_fit=top_n is None)
        selection = Selection(query=text, origin="search", options=ContextOptions(number, number))
        answer = SearchAnswer(selection.context(), Found(ranking, None, snapshot))
        return search_text(answer, count=count, tokens=answer_tokens(top_n))

    return search


def _file(folder: Path, name: str) -> Path:
    return next(path for path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz") if path.exists())


def _row(
    name: str, engine: Engine, snapshot: Snapshot, queries: list[EvalQuery], tokens: int
) -> tuple[str, list[str]]:
    engine.index(snapshot)
    count = TokenCounter().count
    whole, signed, empty, sizes = [], [], 0, []
    search, clients = (
        _searching(engine, snapshot, count),
        {"without": list[Scripted](), "with": list[Scripted]()},
    )
    for query in [one for one in queries if len(one.needs) == 1][:MOST_QUERIES]:
        ranking = engine.search(query.text, snapshot, TOOLS, SearchOptions(top_n=PROMPT_TOOLS + FURTHER))
        tools = near_the_best(ranking.results) if fits_a_prompt(ranking) else []
        text = prompt_text(tools, (), snapshot, count, tokens)
        items = [one.item for one in tools if isinstance(one.item, Tool)]
        needed = [tool for tool in items if tool.key in query.needs[0]]
        whole.append(any(re.search(rf"\b{re.escape(tool.exposed_name)}\b", text) for tool in needed))
        signed.append(any(f"\n{tool.exposed_name}(" in text for tool in needed))
        empty += not text
        clients["without"].append(_scripted(query, snapshot, search, "", count))
        clients["with"].append(_scripted(query, snapshot, search, text, count))
        if text:
            sizes.append(count(text))
    cells = (f"{fmean(whole):.1%}", f"{fmean(signed):.1%}", f"{empty / len(whole):.1%}")
    tokens_said = f"{fmean(sizes):.0f} (median {median(sizes):.0f}) | {max(sizes)}"
    row = f"| {name} | {len(whole)} | {' | '.join(cells)} | {tokens_said} |"
    return row, [_told(name, way, played, count) for way, played in clients.items()]


def _told(name: str, way: str, clients: list[Scripted], count: Count) -> str:
    facts = (
        f"{fmean(one.found for one in clients):.1%}",
        f"{fmean(one.turns for one in clients):.2f}",
        f"{fmean(one.found and one.turns == 1 for one in clients):.1%}",
        f"{fmean(sum(map(count, one.texts)) for one in clients):.0f}",
        f"{fmean(one.read for one in clients):.0f}",
    )
    return f"| {name} | {way} hook | {' | '.join(facts)} |"


if __name__ == "__main__":
    main()
