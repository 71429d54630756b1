"""Ablations: the quality of search without each of its parts, by set.

    python benchmarks/ablations.py FOLDER [--sets NAME ...] [--every N] [--store FILE] [--output FILE]

FOLDER is the one that benchmarks/retrieval.py reads; the requests for servers that the model was not trained
on and those for the recorded lists are two more sets. A part is taken out by replacing what it rests on; the
rest is the product as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
from leaderboard import own_sets
from people_answers import undivided
from retrieval import PublicSet, Remembering, Rows, WithoutTellingWords, folders, read_set, table

from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel
from mcp_context_proxy.evaluation import Estimate, evaluate, macro_estimate, measured, tools_of
from mcp_context_proxy.retrieval import FITTING, item_metadata, queries, query_scores, scoring
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store.opening import open_store

DEPTH = 10
WHOLE = "everything"
MEASURES = ("recall@1", "recall@5", "ndcg@10")
NO_ACTIONS = np.zeros(item_metadata.EFFECTS, np.float32)

Replaced = Sequence[AbstractContextManager[object]]
PARTS: Mapping[str, Callable[[], Replaced]] = {
    WHOLE: lambda: (),
    "words (BM25F)": lambda: (
        patch.object(scoring, "LEXICAL_FACTOR", np.float32(0)),
        patch.object(query_scores, "LEXICAL_FACTOR", np.float32(0)),
    ),
    "instructions of servers": lambda: (patch.object(query_scores, "INSTRUCTIONS", np.float32(0)),),
    "named servers": lambda: (patch.object(query_scores, "ADDRESSED", np.float32(0)),),
    "purposes": lambda: (patch.object(queries, "purpose_of", lambda _request: None),),
    "orders in statements": lambda: (patch.object(queries, "ordered", lambda query: query),),
    "phrases and verbs by object": lambda: (patch.object(queries, "reworded", lambda _order: None),),
    "synonyms": lambda: (patch.object(queries, "SYNONYM_SHARE", 0.0),),
    "needs": lambda: (patch.object(queries, "needs_of", undivided),),
    "actions": lambda: (patch.object(queries, "wanted", lambda _order: NO_ACTIONS),),
    "typing errors": lambda: (patch.object(queries, "correction", lambda *_: None),),
    "short forms and commands": lambda: (
        patch.object(queries, "written_out", lambda _token: None),
        patch.object(queries, "shell_meaning", lambda _word, _query: None),
    ),
    "kinds of values": lambda: (
        patch.object(queries, "value_kind", lambda _token: None),
        patch.object(queries, "long_values", lambda _query, _needs: []),
    ),
    "carried text": lambda: (patch.object(queries, "_carried", lambda _query, _needs, _after: []),),
    "a vector of the telling words": lambda: (),
}
"""What is taken out, with what replaces it; the last one is replaced by another embedder."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", help="only these")
    parser.add_argument("--every", type=int, default=1, help="only each such query")
    parser.add_argument("--store", type=Path, help="keeps vectors between runs; not the store of a proxy")
    parser.add_argument("--output", type=Path, help="a file instead of the standard output")
    arguments = parser.parse_args()
    sets = [read_set(path) for path in folders(arguments.folder, arguments.sets)]
    sets += [one for one in own_sets() if not arguments.sets or one.name in arguments.sets]
    with open_store(arguments.store or "memory") as store:
        catalog = CachedEmbedder(LazyModel(), store.vectors)
        found = {one.name: by_part(one, catalog, arguments.every) for one in sets}
    text = "\n".join(page(found, arguments.every)) + "\n"
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")


def by_part(one: PublicSet, catalog: CachedEmbedder, every: int) -> dict[str, Rows]:
    """The measures of each query of a set without each part."""
    print(one.name, file=sys.stderr)
    remembering, chosen, found = Remembering(catalog), one.queries[::every], {}
    for part, replaced in PARTS.items():
        embedder = remembering if replaced() or part == WHOLE else WithoutTellingWords(remembering)
        with ExitStack() as stack:
            for each in replaced():
                stack.enter_context(each)
            engine = Engine(catalog, embedder, calibration=packaged_background())
            answers = evaluate(engine, one.snapshot, chosen, FITTING, DEPTH).answers
        found[part] = measured(chosen, answers, tools_of(one.snapshot), DEPTH)
    return found


def page(found: Mapping[str, Mapping[str, Rows]], every: int) -> list[str]:
    lines = [
        "# Ablations",
        "",
        "Written by `python benchmarks/ablations.py FOLDER`" + (f" `--every {every}`." if every > 1 else "."),
        "What is lost without each part, in points of recall@1 / recall@5 / nDCG@10; below 0, it helps.",
        "The last column is the mean over the sets, with 95 % bootstrap intervals for nDCG@10.",
        "The formula was chosen while looking at the public sets of benchmarks/retrieval.md.",
        "",
    ]
    rows = [
        [WHOLE, *("/".join(f"{100 * mean(of[WHOLE], m):.1f}" for m in MEASURES) for of in found.values()), ""]
    ]
    for part in list(PARTS)[1:]:
        lost = [[[b - a for a, b in pairs_of(of, part, m)] for m in MEASURES] for of in found.values()]
        macro = macro_estimate([own[-1] for own in lost])
        cells = ["/".join(f"{100 * float(np.mean(values)):+.1f}" for values in own) for own in lost]
        rows.append([f"without {part}", *cells, spoken(macro)])
    return [*lines, *table(["", *found, "nDCG@10"], rows)]


def pairs_of(of: Mapping[str, Rows], part: str, measure: str) -> list[tuple[float, float]]:
    """A measure of each query with everything, and without a part."""
    both = zip(of[WHOLE], of[part], strict=True)
    return [(whole[measure], without[measure]) for whole, without in both if measure in whole]


def mean(rows: Rows, measure: str) -> float:
    return float(np.mean([row[measure] for row in rows if measure in row]))


def spoken(of: Estimate) -> str:
    return f"{100 * of.mean:+.2f} [{100 * of.low:+.2f}, {100 * of.high:+.2f}]"


if __name__ == "__main__":
    main()
