"""Quality of "nothing fits" in small catalogs: everyday requests by catalog, and catalogs drawn at random.

    python benchmarks/small_catalogs.py

The servers of random catalogs are among those that the model was not trained on. What a random catalog cannot
serve is drawn from the everyday requests that the catalogs written for them cannot serve, unread.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from catalogs import LISTS, lists_in, published
from nothing_fits import catalog_of, pairs

from mcp_context_proxy.embedding import Embedder
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel
from mcp_context_proxy.evaluation import TOOLS
from mcp_context_proxy.examples import functions
from mcp_context_proxy.items import Snapshot, Source
from mcp_context_proxy.retrieval import SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store.opening import open_store

EVERYDAY = Path(__file__).with_name("everyday.jsonl")
"""Requests in plain words for small catalogs, half of which nothing there can serve. They were written before
anything was measured with them."""

PIPELINES = ("pipeline", "job")
"""Parts of the names of the tools that make the catalog ``pipelines``, of a server that has 200 in all."""

SIZES = (6, 10, 15, 20, 30, 40, 60)
"""Tools of random catalogs."""

DRAWN = 40
"""Random catalogs of each size."""

SERVED, NOT_SERVED = 25, 10
"""Requests put to each of them, at most."""

Small = tuple[str, Snapshot, list[str], list[str]]
"""A name, a catalog, the requests that it can serve, and those that it cannot."""


def main() -> None:
    with open_store("memory") as store:
        embedder = CachedEmbedder(LazyModel(), store.vectors)
        sys.stdout.write("\n".join(page(embedder, embedder)) + "\n")


def page(embedder: Embedder, query_embedder: Embedder) -> list[str]:
    """The section of the page."""
    by_size = dict[str, list[Small]]()
    for one in drawn():
        by_size.setdefault(one[0], []).append(one)
    rows = [
        *(_row([one], embedder, query_embedder) for one in everyday()),
        *(_row(ones, embedder, query_embedder) for ones in by_size.values()),
    ]
    head = ("catalog (tools)", "answerable", "fit", "impossible", "refused")
    return [
        '## "Nothing fits" in small catalogs',
        "",
        f"Written by `python benchmarks/small_catalogs.py`. First everyday requests (`{EVERYDAY.name}`),",
        "written before anything was measured with them, then seen twice while the forms of requests for",
        "memories, databases, ways, places and files were added. Then catalogs drawn at random from servers",
        f"that the model was not trained on, {DRAWN} of each size; the threshold was chosen while looking at",
        "these.",
        "",
        *(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows]),
        "",
    ]


def everyday() -> Iterator[Small]:
    """Yield each small catalog with the requests that it can serve, and those that it cannot."""
    lines = [json.loads(line) for line in EVERYDAY.read_text(encoding="utf-8").splitlines()]
    lists, tools = lists_in(LISTS), pairs.read_tools()
    for name in dict.fromkeys(line["catalog"] for line in lines):
        sources = list[Source]()
        for server in name.split(", "):
            if server == "pipelines":
                own = [tool for tool in lists["zereight-gitlab"] if any(map(tool["name"].count, PIPELINES))]
                sources += published({server: own}).sources
            elif server in lists:
                sources += published({server: lists[server]}).sources
            elif any(key[0] == server for key in tools):
                sources += pairs.catalog(key for key in tools if key[0] == server).sources
            else:
                declared = functions.server(server).tools()
                sources += published({server: declared}).sources
        here = [line for line in lines if line["catalog"] == name]
        served, not_served = (
            [line["query"] for line in here if line["answerable"] is answerable]
            for answerable in (True, False)
        )
        yield name, catalog_of(tuple(sources)), served, not_served


def drawn() -> Iterator[Small]:
    """Yield random catalogs of some servers, with requests written for their tools."""
    tools = pairs.read_tools()
    requests, _ = pairs.read_requests(tools)
    held_out = sorted({key[0] for key, tool in tools.items() if tool.split != "train"})
    impossible = [text for _, _, _, texts in everyday() for text in texts]
    rng = random.Random(5)
    for size in SIZES:
        for _ in range(DRAWN):
            keys = list[tuple[str, str]]()
            for server in rng.sample(held_out, len(held_out)):
                own = [key for key in tools if key[0] == server]
                keys += rng.sample(own, min(len(own), max(3, size // 3)))
            here = set(keys[:size])
            served = [
                one.text
                for one in requests
                if (here.issuperset(one.right) if one.needs_all else here.intersection(one.right))
            ]
            catalog = catalog_of(pairs.catalog(here).sources)
            some = rng.sample(served, min(len(served), SERVED))
            yield f"random, {size}", catalog, some, rng.sample(impossible, NOT_SERVED)


def _row(ones: Sequence[Small], embedder: Embedder, query_embedder: Embedder) -> list[str]:
    fit, refused = list[bool](), list[bool]()
    for _, catalog, served, not_served in ones:
        engine = Engine(embedder, query_embedder, calibration=packaged_background())
        options = SearchOptions(top_n=1)
        fit += [engine.search(text, catalog, TOOLS, options).fits for text in served]
        refused += [not engine.search(text, catalog, TOOLS, options).fits for text in not_served]
    name = ones[0][0] if len(ones) > 1 else f"{ones[0][0]} ({len(ones[0][1].tools)})"
    return [name, str(len(fit)), f"{np.mean(fit):.3f}", str(len(refused)), f"{np.mean(refused):.3f}"]


if __name__ == "__main__":
    main()
