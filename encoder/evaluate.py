"""Quality of encoders with the product's whole formula, on public sets and on the held-out servers.

    python encoder/evaluate.py MODEL [MODEL ...] --sets EVALUATION_SETS --results FOLDER [--only SET ...]

MODEL is a folder as encoder/soup.py writes it, or ``packaged``. The first one is what the others are compared
with, query by query: differences with 95 % bootstrap intervals, and the macro mean over the sets. What is
known of a model is kept in RESULTS by the hash of its graph: only new models take time. The vectors of the
general requests, by which "nothing fits" is told, are those of the model itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pairs

from mcp_context_proxy.embedding import PACKAGED_MODEL
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, load_model
from mcp_context_proxy.evaluation import (
    Estimate,
    EvalQuery,
    estimate,
    evaluate,
    macro_estimate,
    measured,
    read_corpus,
    read_queries,
    tools_of,
)
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval import FITTING
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import Background
from mcp_context_proxy.store.opening import open_store

LISTS = Path(__file__).parent.parent / "scripts"
GENERAL_REQUESTS, UNAIDED = LISTS / "general_requests.txt", LISTS / "unaided.txt"
LEFT_OUT = {"metatool_full"}
"""It contains another set and takes ten times as long as all the rest."""
DEPTH = 10
SHOWN = ("recall@1", "recall@5", "ndcg@10", "complete@5", "selected", "selected_recall", "kept")

Rows = list[dict[str, float]]


def held_out(split: str) -> tuple[Snapshot, list[EvalQuery]]:
    """The catalog of the servers of a split, and the requests written for them."""
    tools = pairs.read_tools()
    requests, _ = pairs.read_requests(tools)
    snapshot = pairs.catalog(key for key, tool in tools.items() if tool.split == split)
    queries = []
    for one in pairs.of_split(split, requests, tools):
        needs = [frozenset({key}) for key in one.right] if one.needs_all else [frozenset(one.right)]
        queries.append(EvalQuery(one.text, tuple(needs)))
    return snapshot, queries


def read_sets(folder: Path, only: Sequence[str]) -> dict[str, tuple[Snapshot, list[EvalQuery]]]:
    """Public sets by name, then the held-out ones."""
    found = {}
    for path in sorted(one for one in folder.iterdir() if (one / "queries.jsonl.gz").exists()):
        if path.name in only or (not only and path.name not in LEFT_OUT):
            found[path.name] = read_corpus(path / "corpus.jsonl.gz"), read_queries(path / "queries.jsonl.gz")
    return found | {
        f"own_{split}": held_out(split) for split in ("dev", "test") if not only or f"own_{split}" in only
    }


def rows_of(model: Path, name: str, snapshot: Snapshot, queries: list[EvalQuery], results: Path) -> Rows:
    """Measures of each query; computed once for a model and the queries of a set."""
    graph = hashlib.sha256((model / "model.onnx").read_bytes()).hexdigest()
    texts = json.dumps([[one.text, sorted(map(sorted, one.needs))] for one in queries])
    path = results / f"{graph[:16]}-{name}-{hashlib.sha256(texts.encode()).hexdigest()[:8]}.json"
    if path.exists():
        rows: Rows = json.loads(path.read_text("utf-8"))
        return rows
    background = background_by(model)
    results.mkdir(parents=True, exist_ok=True)
    with open_store(results / f"{graph[:16]}.db") as store:
        embedder = CachedEmbedder(LazyModel(lambda: load_model(model)), store.vectors)
        engine = Engine(embedder, calibration=background)
        found = evaluate(engine, snapshot, queries, FITTING, DEPTH)
    rows = measured(queries, found.answers, tools_of(snapshot), DEPTH)
    path.write_text(json.dumps(rows), "utf-8")
    return rows


def background_by(model: Path) -> Background:
    """What "nothing fits" is told by, with the vectors of a model."""
    encoder = load_model(model)
    tools = [one.among_others for one in pairs.read_tools().values() if one.split == "train"][::4]
    general = GENERAL_REQUESTS.read_text("utf-8").splitlines()
    unaided = UNAIDED.read_text("utf-8").splitlines()
    return Background(*(np.asarray(encoder.embed(texts), np.float32) for texts in (general, tools, unaided)))


def column(rows: Rows, measure: str) -> list[float]:
    """One measure of the queries that have it."""
    return [row[measure] for row in rows if measure in row]


def spoken(found: Estimate, sign: bool) -> str:
    """A mean and its interval in points."""
    form = "{:+.1f} [{:+.1f}, {:+.1f}]" if sign else "{:.1f} [{:.1f}, {:.1f}]"
    return form.format(100 * found.mean, 100 * found.low, 100 * found.high)


def compare(first: dict[str, Rows], second: dict[str, Rows], name: str) -> None:
    """Print differences by set, and over the public and all sets."""
    print(f"\n{name}")
    for measure in SHOWN[:4]:
        differences = {}
        for one, rows in second.items():
            pairs_of_rows = zip(first[one], rows, strict=True)
            differences[one] = [b[measure] - a[measure] for a, b in pairs_of_rows if measure in a]
        print(f"  {measure}")
        for one, values in differences.items():
            mean = np.mean(column(second[one], measure))
            print(f"    {one:18} {100 * mean:5.1f}  {spoken(estimate(values), True)}")
        public = [values for one, values in differences.items() if not one.startswith("own_")]
        for title, group in (("macro, public", public), ("macro, all", list(differences.values()))):
            if group:
                print(f"    {title:18}        {spoken(macro_estimate(group), True)}")


def main() -> None:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[])
    arguments = parser.parse_args()
    sets = read_sets(arguments.sets, arguments.only)
    measured_by: dict[str, dict[str, Rows]] = {}
    for name in arguments.models:
        model = PACKAGED_MODEL if name == "packaged" else Path(name)
        measured_by[name] = {}
        for one, (snapshot, queries) in sets.items():
            print(name, one, len(queries), flush=True)
            measured_by[name][one] = rows_of(model, one, snapshot, queries, arguments.results)
    base = arguments.models[0]
    print(f"\n{base}")
    for measure in SHOWN:
        print(f"  {measure:16}", end="")
        for one, rows in measured_by[base].items():
            if values := column(rows, measure):
                print(f"  {one} {np.mean(values):.3f}", end="")
        print()
    for name in arguments.models[1:]:
        compare(measured_by[base], measured_by[name], name)


if __name__ == "__main__":
    main()
