"""Facts that a prompt hook gives: the share of requests whose tool is in its text, and the tokens of it.

    python benchmarks/hooks.py FOLDER [--sets NAME ...] [--tokens 400]

FOLDER has one folder per set with corpus.jsonl and queries.jsonl, as `mcp-context-proxy eval` reads them. The
text is the one that the proxy writes for a hook, of the tools that it would select for it. Only requests that
one tool answers count as single-step.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from statistics import fmean, median

from mcp_context_proxy.embedding import CachedEmbedder, LazyModel
from mcp_context_proxy.embedding.embeddings import TokenCounter
from mcp_context_proxy.evaluation.data import EvalQuery, read_corpus, read_queries
from mcp_context_proxy.evaluation.run import TOOLS
from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval import Engine
from mcp_context_proxy.retrieval.results import SearchOptions
from mcp_context_proxy.store import open_store
from mcp_context_proxy.web.prompts import FURTHER, PROMPT_TOOLS, prompt_text

SETS = ("livemcp_steps", "livemcp", "metatool_single")
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
    model = LazyModel()
    with open_store("memory") as store:
        embedder = CachedEmbedder(model, store.vectors)
        print("| set | requests | in the text | with its signature | nothing given | tokens, mean | most |")
        print("|---|---|---|---|---|---|---|")
        for name in given.sets:
            corpus, queries = (_file(given.folder / name, part) for part in ("corpus", "queries"))
            snapshot = read_corpus(corpus)
            print(_row(name, Engine(embedder, embedder), snapshot, read_queries(queries), given.tokens))
            sys.stdout.flush()


def _file(folder: Path, name: str) -> Path:
    return next(path for path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz") if path.exists())


def _row(name: str, engine: Engine, snapshot: Snapshot, queries: list[EvalQuery], tokens: int) -> str:
    engine.index(snapshot)
    count = TokenCounter().count
    whole, signed, empty, sizes = [], [], 0, []
    for query in [one for one in queries if len(one.needs) == 1][:MOST_QUERIES]:
        ranking = engine.search(query.text, snapshot, TOOLS, SearchOptions(top_n=PROMPT_TOOLS + FURTHER))
        tools = ranking.results if ranking.fits else ()
        text = prompt_text(tools, (), snapshot, count, tokens)
        items = [one.item for one in tools if isinstance(one.item, Tool)]
        needed = [tool for tool in items if tool.key in query.needs[0]]
        whole.append(any(re.search(rf"\b{re.escape(tool.exposed_name)}\b", text) for tool in needed))
        signed.append(any(f"\n{tool.exposed_name}(" in text for tool in needed))
        empty += not text
        if text:
            sizes.append(count(text))
    cells = (f"{fmean(whole):.1%}", f"{fmean(signed):.1%}", f"{empty / len(whole):.1%}")
    tokens_said = f"{fmean(sizes):.0f} (median {median(sizes):.0f}) | {max(sizes)}"
    return f"| {name} | {len(whole)} | {' | '.join(cells)} | {tokens_said} |"


if __name__ == "__main__":
    main()
