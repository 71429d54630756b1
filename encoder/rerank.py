"""A small cross-encoder that reads a request and a tool together: mining, training, building, measuring.

    python encoder/rerank.py mine MODEL NEGATIVES
    python encoder/rerank.py train BASE NEGATIVES OUT [--layers 3] [--steps 400] [--seed 0]
    python encoder/rerank.py build OUT ENCODER
    python encoder/rerank.py evaluate ENCODER --sets EVALUATION_SETS [--only SET ...]

``mine`` puts every training request to the product's search over the servers of its batch and keeps the best
tools with their scores. Take the packaged model for it: the trained encoder knows these requests, and its
scores for them are better than those for others will be. ``train`` learns what is to be added to these
scores (a second opinion, not a judge): the lowest layers of the published weights, their mean over the
tokens, and one number. ``build`` writes ``reranker.onnx`` into the folder of the ENCODER; word vectors exist
once, in the ``words.bin`` beside it. ``evaluate`` orders the best ten of the product's search by ``score +
weight * logit`` for several weights; choose by own_dev alone.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import onnxruntime
import pairs
import safetensors.torch
import soup
import torch
from mcp_context_proxy.evaluation.metrics import macro_estimate, ndcg, recall
from minilm import WIDTH, MiniLM, load, save
from onnx import TensorProto, helper
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from mcp_context_proxy.embedding import CachedEmbedder, LazyModel, load_model
from mcp_context_proxy.embedding.folder import PACKAGED_MODEL
from mcp_context_proxy.evaluation.data import Need
from mcp_context_proxy.evaluation.run import TOOLS
from mcp_context_proxy.items import Item, Snapshot, Tool, ToolKey
from mcp_context_proxy.retrieval import Engine, SearchOptions
from mcp_context_proxy.retrieval.item_metadata import item_text
from mcp_context_proxy.store import open_store

CANDIDATES = 10
"""Tools that are ordered."""
SHOWN = 8
"""Tools that a request is trained with: the right one and the best wrong ones."""
REQUESTS_A_BATCH = 16
REQUEST_TOKENS, TOOL_TOKENS = 40, 72
SCORE_FACTOR = 25.0
"""Worth of a score of the search in logits: 0.04 of a score for one point, as first measured."""
SCORE_LEFT_OUT = 0.3
"""Share of the batches that are trained without the scores, so that the logit has a meaning by itself."""
TWIN = 0.03
"""Scores within this of the right tool's, with the same words in the name at another server: left out."""
WEIGHTS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.06)
AHEAD = 0.15
"""Lead over the second tool with which the first keeps its place and nothing is read: an exact name, or what
was learned from use."""


@dataclass(frozen=True, slots=True)
class Example:
    """A request with its best tools: their texts, scores, and which of them serve it."""

    text: str
    tools: list[str]
    scores: list[float]
    right: list[bool]


class CrossEncoder(nn.Module):
    """One number for a request and a tool that are read together."""

    def __init__(self, body: MiniLM) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(WIDTH, 1)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Tensor, lengths: Tensor, types: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.body(ids, lengths, types))
        return logits[:, 0]


class Pieces:
    """Word pieces of a request and a tool, as one sequence."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._known: dict[str, list[int]] = {}

    def pair(self, request: str, tool: str) -> tuple[list[int], list[int]]:
        """Ids and types: the request with [CLS] and [SEP], then the tool with [SEP]."""
        first, second = self._ids(request), self._ids(tool)
        end = first[-1]
        first, second = [*first[:-1][: REQUEST_TOKENS - 1], end], [*second[1:-1][: TOOL_TOKENS - 1], end]
        return first + second, [0] * len(first) + [1] * len(second)

    def _ids(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text[:2_000]).ids
        return self._known[text]


def document(item: Item) -> str:
    """A tool as the reranker reads it: with its server and parameters."""
    return item_text(item, True)[1][0]


class Search:
    """The product's search with scores."""

    def __init__(self, model: Path, snapshot: Snapshot, cache: CachedEmbedder) -> None:
        self._engine = Engine(cache, calibration=evaluate.background_by(model))
        self._snapshot = snapshot

    def best(self, text: str) -> list[tuple[Tool, float]]:
        """The best tools and their scores."""
        found = self._engine.search(text, self._snapshot, TOOLS, SearchOptions(depth=CANDIDATES))
        results = (*(found.results or found.near_misses), *found.others)[:CANDIDATES]
        return [(one.item, one.score) for one in results if isinstance(one.item, Tool)]


def mine(model: Path, out: Path, most: int) -> None:
    """Write the best tools of every training request, within the servers of its batch."""
    tools = pairs.read_tools()
    requests, _ = pairs.read_requests(tools)
    by_batch = collections.defaultdict(list)
    for one in pairs.of_split("train", requests, tools):
        by_batch[one.writer, one.batch].append(one)
    embedder = LazyModel(lambda: load_model(model))
    out.parent.mkdir(parents=True, exist_ok=True)
    with open_store(out.with_suffix(".db")) as store, out.open("w", encoding="utf-8") as file:
        cache = CachedEmbedder(embedder, store.vectors)
        for (writer, batch), own in sorted(by_batch.items()):
            servers = {key[0] for one in own for key in one.right}
            search = Search(model, pairs.catalog(key for key in tools if key[0] in servers), cache)
            for one in own[:most]:
                found = search.best(one.text)
                example = _example(one, found)
                if example is not None:
                    file.write(json.dumps(example, ensure_ascii=False) + "\n")
            print(writer, batch, len(own), "requests of", len(servers), "servers", flush=True)


def _example(one: pairs.Request, found: list[tuple[Tool, float]]) -> dict[str, Any] | None:
    """The candidates of a request; None where the search does not find the right one among them."""
    right_scores = [score for tool, score in found if tool.key in one.right]
    if not right_scores:
        return None
    names = {name for _, name in one.right}
    kept = [
        (tool, score)
        for tool, score in found
        if tool.key in one.right or not (tool.name in names and abs(score - max(right_scores)) < TWIN)
    ]
    return {
        "text": one.text,
        "tools": [document(tool) for tool, _ in kept],
        "scores": [round(score, 4) for _, score in kept],
        "right": [tool.key in one.right for tool, _ in kept],
    }


class Trainer:
    """Training on mined examples."""

    def __init__(self, base: Path, layers: int, seed: int) -> None:
        self._random = random.Random(seed)
        torch.manual_seed(seed)
        self.model = CrossEncoder(load(base, layers))
        # Words stay as the encoder's, which the built graph reads them from; all else moves.
        self.model.body.embeddings.word_embeddings.requires_grad_(False)
        self._pieces = Pieces(base)

    def run(self, examples: list[Example], steps: int, rate: float, out: Path) -> None:
        """Train, print how it goes, and write the weights."""
        parameters = [one for one in self.model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
        started, smooth = time.monotonic(), 0.0
        self.model.train()
        for step in range(1, steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1, step / 30) * max(0.03, 1 - step / steps)
            loss = self._loss(self._random.sample(examples, REQUESTS_A_BATCH))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            smooth = loss.item() if step == 1 else 0.95 * smooth + 0.05 * loss.item()
            if step % 10 == 0 or step == 1:
                print(step, round(smooth, 3), f"{time.monotonic() - started:.0f} s", flush=True)
            if step % 100 == 0 or step == steps:
                save(self.model, out)

    def _loss(self, batch: Sequence[Example]) -> Tensor:
        read, shown = [], []
        for one in batch:
            wrong = [at for at, right in enumerate(one.right) if not right]
            right = [at for at, right in enumerate(one.right) if right]
            places = [self._random.choice(right), *wrong[: SHOWN - 1]]
            shown.append([one.scores[at] for at in places])
            text = one.text.lower() if self._random.random() < 0.3 else one.text
            read += [self._pieces.pair(text, one.tools[at]) for at in places]
        logits = logits_of(self.model, read)
        factor = 0.0 if self._random.random() < SCORE_LEFT_OUT else SCORE_FACTOR
        losses, at = [], 0
        for scores in shown:
            total = logits[at : at + len(scores)] + factor * torch.tensor(scores)
            losses.append(functional.cross_entropy(total[None], torch.zeros(1, dtype=torch.long)))
            at += len(scores)
        return torch.stack(losses).mean()


def logits_of(model: CrossEncoder, read: Sequence[tuple[list[int], list[int]]], bucket: int = 32) -> Tensor:
    """Logits of pairs in the order given, computed in buckets of similar length."""
    order = sorted(range(len(read)), key=lambda at: len(read[at][0]))
    parts = []
    for at in range(0, len(order), bucket):
        own = [read[place] for place in order[at : at + bucket]]
        lengths = torch.tensor([len(ids) for ids, _ in own])
        ids = torch.zeros(len(own), int(lengths.max()), dtype=torch.long)
        types = torch.zeros_like(ids)
        for row, (one, kinds) in enumerate(own):
            ids[row, : len(one)], types[row, : len(one)] = torch.tensor(one), torch.tensor(kinds)
        parts.append(model(ids, lengths, types))
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return torch.cat(parts)[back]


def build(trained: Path, encoder: Path) -> None:
    """Write ``reranker.onnx`` beside the encoder's graph, in bytes like it, with its word vectors."""
    script = soup.build_model_script()
    stored = safetensors.torch.load_file(trained / "model.safetensors")
    weights = {name.removeprefix("body."): value.numpy() for name, value in stored.items()}
    graph = script.Graph()
    layers = script.IntegerLayers(graph)
    words = layers.lookup("words", weights["embeddings.word_embeddings.weight"])
    types = graph.apply(
        "Gather",
        graph.constant("types", weights["embeddings.token_type_embeddings.weight"]),
        "types_ids",
        axis=0,
    )
    positions = weights["embeddings.position_embeddings.weight"][: REQUEST_TOKENS + TOOL_TOKENS]
    zero, one, two = (graph.constant(f"index_{n}", np.array([n], np.int64)) for n in range(3))
    length = graph.apply("Slice", graph.apply("Shape", "input_ids"), one, two)
    here = graph.apply("Slice", graph.constant("positions", positions), zero, length, zero)
    x = graph.apply("Add", graph.apply("Add", words, types), here)
    norm = [
        graph.constant(f"norm.{part}", weights[f"embeddings.LayerNorm.{part}"]) for part in ("weight", "bias")
    ]
    x = graph.apply("LayerNormalization", x, *norm, axis=-1, epsilon=script.EPSILON)
    count = len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})
    for layer in range(count):
        x = script._encoder_layer(graph, layers, weights, f"encoder.layer.{layer}", x)
    mean = graph.apply("ReduceMean", x, axes=[1], keepdims=0)
    weight = graph.constant("head.weight", weights["head.weight"].T)
    product = graph.apply("MatMul", mean, weight)
    graph.nodes.append(
        helper.make_node(
            "Add", [product, graph.constant("head.bias", weights["head.bias"])], ["logit"], "logit"
        )
    )
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [1, "tokens"])
        for name in ("input_ids", "types_ids")
    ]
    outputs = [helper.make_tensor_value_info("logit", TensorProto.FLOAT, [1, 1])]
    body = helper.make_graph(graph.nodes, "reranker", inputs, outputs, list(graph.constants.values()))
    model = helper.make_model(body, opset_imports=script.OPSETS, ir_version=script.IR_VERSION)
    if script.separate_words(model) != (encoder / script.WORDS).read_bytes():
        raise SystemExit(f"{encoder} has other word vectors: train the encoder with frozen embeddings")
    (encoder / "reranker.onnx").write_bytes(model.SerializeToString(deterministic=True))
    print(f"{(encoder / 'reranker.onnx').stat().st_size:,} bytes,", count, "layers")


class Reranker:
    """The built graph; one pair a run, as the encoder reads one text a run."""

    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.x64quantprecision", "1")
        self._session = onnxruntime.InferenceSession(str(folder / "reranker.onnx"), options)
        self._pieces = Pieces(folder)

    def logits(self, request: str, tools: Sequence[str]) -> list[float]:
        """One number a tool."""
        found = []
        for tool in tools:
            ids, types = (np.array([values], np.int64) for values in self._pieces.pair(request, tool))
            (logit,) = self._session.run(["logit"], {"input_ids": ids, "types_ids": types})
            found.append(float(logit[0, 0]))
        return found


def measure(folder: Path, sets: Path, only: Sequence[str], most: int) -> None:
    """Print recall@1, recall@5 and nDCG@10 by set and weight, and the time of an order."""
    reranker = Reranker(folder)
    seconds: list[float] = []
    gains: dict[float, list[list[float]]] = collections.defaultdict(list)
    with open_store(folder / "vectors.db") as store:
        cache = CachedEmbedder(LazyModel(lambda: load_model(folder)), store.vectors)
        for name, (snapshot, queries) in evaluate.read_sets(sets, only).items():
            search = Search(folder, snapshot, cache)
            rows: dict[float, list[tuple[float, ...]]] = collections.defaultdict(list)
            for query in queries[:: max(1, len(queries) // most)]:
                found = search.best(query.text)
                keys, scores = [tool.key for tool, _ in found], np.array([score for _, score in found])
                doubtful = len(found) > 1 and scores[0] - scores[1] < AHEAD
                logits = np.zeros(len(found))
                if doubtful:
                    began = time.perf_counter()
                    logits = np.array(reranker.logits(query.text, [document(tool) for tool, _ in found]))
                    seconds.append(time.perf_counter() - began)
                for weight in WEIGHTS:
                    order = np.argsort(-(scores + weight * logits), kind="stable")
                    rows[weight].append(_measures(query.needs, [keys[at] for at in order]))
            for weight in WEIGHTS:
                means = np.mean(rows[weight], axis=0)
                print(f"{name:18} {weight:4.2f} ", " ".join(f"{100 * one:5.1f}" for one in means), flush=True)
                gains[weight].append(
                    [new[0] - old[0] for new, old in zip(rows[weight], rows[0.0], strict=True)]
                )
    for weight in WEIGHTS[1:]:
        print(f"macro recall@1, weight {weight}: {evaluate.spoken(macro_estimate(gains[weight]), True)}")
    print(f"milliseconds of an order: median {1e3 * float(np.median(seconds)):.1f}, in doubt {len(seconds)}")


def _measures(needs: Sequence[Need], ranking: Sequence[ToolKey]) -> tuple[float, ...]:
    return recall(needs, ranking[:1]), recall(needs, ranking[:5]), ndcg(needs, ranking, 10)


def main() -> None:
    """Run one of the four steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    one = steps.add_parser("mine")
    one.add_argument("model")
    one.add_argument("negatives", type=Path)
    one.add_argument("--most", type=int, default=1_000, help="requests of a batch; for a trial")
    one = steps.add_parser("train")
    for name in ("base", "negatives", "out"):
        one.add_argument(name, type=Path)
    one.add_argument("--layers", type=int, default=3)
    one.add_argument("--steps", type=int, default=400)
    one.add_argument("--rate", type=float, default=1e-4)
    one.add_argument("--seed", type=int, default=0)
    one = steps.add_parser("build")
    one.add_argument("out", type=Path)
    one.add_argument("encoder", type=Path)
    one = steps.add_parser("evaluate")
    one.add_argument("encoder", type=Path)
    one.add_argument("--sets", type=Path, required=True)
    one.add_argument("--only", nargs="+", default=[])
    one.add_argument("--most", type=int, default=300, help="queries of a set")
    arguments = parser.parse_args()
    if arguments.step == "mine":
        model = PACKAGED_MODEL if arguments.model == "packaged" else Path(arguments.model)
        mine(model, arguments.negatives, arguments.most)
    elif arguments.step == "train":
        torch.set_num_threads(1)
        lines = map(json.loads, arguments.negatives.read_text("utf-8").splitlines())
        examples = [Example(**line) for line in lines if not all(line["right"])]
        trainer = Trainer(arguments.base, arguments.layers, arguments.seed)
        trainer.run(examples, arguments.steps, arguments.rate, arguments.out)
    elif arguments.step == "build":
        build(arguments.out, arguments.encoder)
    else:
        measure(arguments.encoder, arguments.sets, arguments.only, arguments.most)


if __name__ == "__main__":
    main()
