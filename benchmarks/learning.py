"""The effect of learning from use, on public sets replayed as logs: the learned tier on against off.

    python benchmarks/learning.py FOLDER --output benchmarks/learning.md

`--asides 2` adds two calls to each session that have nothing to do with its query, and `--repeated` measures
the queries that were used instead of later ones.

FOLDER has one folder per set, with ``corpus.jsonl`` and ``queries.jsonl``, gzipped or not. The sets have no
order of time, so each is shuffled, always the same way.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, QueryEmbedder
from mcp_context_proxy.evaluation import (
    MEASURES,
    MeasureDifference,
    ReplayStage,
    in_random_order,
    read_corpus,
    read_queries,
    replay,
)
from mcp_context_proxy.retrieval import FITTING
from mcp_context_proxy.store.opening import open_store

DEPTH = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", help="only these")
    parser.add_argument("--asides", type=int, default=0, help="further calls in each session, of any tools")
    parser.add_argument("--repeated", action="store_true", help="measure the queries that were used")
    parser.add_argument("--store", type=Path, help="keeps vectors between runs; not the store of a proxy")
    parser.add_argument("--output", type=Path, help="a file instead of the standard output")
    arguments = parser.parse_args()
    found = sorted(path for path in arguments.folder.iterdir() if file_of(path, "queries").exists())
    wanted = [path for path in found if not arguments.sets or path.name in arguments.sets]
    text = "\n".join(page([row for path in wanted for row in rows(path, arguments)])) + "\n"
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")


def file_of(folder: Path, name: str) -> Path:
    packed = folder / f"{name}.jsonl.gz"
    return packed if packed.exists() else folder / f"{name}.jsonl"


def rows(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """One set, a row for each share of its log that was used."""
    print(folder.name, file=sys.stderr)
    model, log = LazyModel(), in_random_order(read_queries(file_of(folder, "queries")))
    with open_store(arguments.store or "memory") as opened:
        stages = replay(
            CachedEmbedder(model, opened.vectors),
            QueryEmbedder(model, remembered=len(log)),
            read_corpus(file_of(folder, "corpus")),
            log,
            FITTING,
            DEPTH,
            asides=arguments.asides,
            repeated=arguments.repeated,
        )
    return [row(folder.name, stage) for stage in stages]


def row(name: str, stage: ReplayStage) -> str:
    measured = stage.measures[MEASURES[0]].difference.queries
    figures = " | ".join(spoken(stage.measures[measure]) for measure in MEASURES)
    return f"| {name} | {measured:,} | {stage.revealed:.0%} ({stage.used:,}) | {stage.pairs:,} | {figures} |"


def spoken(one: MeasureDifference) -> str:
    gain = one.difference
    points = f"{100 * gain.mean:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
    return f"{one.first:.3f} | {one.second:.3f} | {points}"


def page(found: list[str]) -> list[str]:
    return [
        "# Learning on public sets",
        "",
        "Written by `python benchmarks/learning.py FOLDER --output benchmarks/learning.md`.",
        "One set: `mcp-context-proxy eval --learning --shuffle CORPUS QUERIES`.",
        "",
        "Each set is replayed as a log. Its first tenth, then 30 %, is searched and used as a model would,",
        "with a session for each query, spread over 30 days.",
        "Each time, the same later queries (of the last 70 %) are measured with the learned tier off and on.",
        "Differences are in percentage points, paired by query, with 95 % bootstrap intervals.",
        "The constants of the learned tier were chosen using these sets.",
        "",
        "| set | queries | used | pairs | R@5 off | on | points | nDCG@10 off | on | points "
        "| shown right off | on | points |",
        "|---" * 13 + "|",
        *found,
    ]


if __name__ == "__main__":
    main()
