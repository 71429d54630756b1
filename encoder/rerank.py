"""A small cross-encoder that reads a request and a tool together: mining, training, building, measuring.

    python encoder/rerank.py mine base NEGATIVES
    python encoder/rerank.py mine packaged DEV --split dev
    python encoder/rerank.py train BASE NEGATIVES DEV TRAINED [--minutes 60] [--layers 2] [--seed 0]
    python encoder/rerank.py build TRAINED RERANKER
    python encoder/rerank.py parity BASE TRAINED RERANKER DEV
    python encoder/rerank.py evaluate packaged RERANKER --sets EVALUATION_SETS [--only SET ...]

``mine`` puts requests to the product's search and keeps the best tools with their scores: those of training
over the servers of their batch by the published model, which does not know these requests, and those of dev
over all dev servers by the packaged one. ``train`` learns what is to be added to the scores (a second
opinion, not a judge): the lowest layers of the published weights, their mean over the tokens, and one number.
It ends after a given time, so that its rate can fall to the end on a machine that others use, too.
``build`` writes ``reranker.onnx`` and ``reranker.json`` into RERANKER, a folder with the ``tokenizer.json``
and the ``words.bin`` of an encoder: word vectors exist once. ``parity`` compares bytes with floats.
``evaluate`` orders the best ten of the product's search for several weights; choose by own_dev alone.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pairs
import safetensors.torch
import soup
import torch
from minilm import WIDTH, MiniLM, load, save
from msgspec.structs import replace
from onnx import TensorProto, helper
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from mcp_context_proxy.embedding import BASE_MODEL, PACKAGED_MODEL
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, load_model
from mcp_context_proxy.evaluation import TOOLS, Need, estimate, macro_estimate, ndcg, recall
from mcp_context_proxy.items import Snapshot, Tool, ToolKey
from mcp_context_proxy.retrieval import FITTING, Ranking, Result
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.reranker import candidates, reason_to_skip, reordered
from mcp_context_proxy.retrieval.reranker_models import MANIFEST, SecondOpinionModel, document, joined
from mcp_context_proxy.retrieval.scoring import Background
from mcp_context_proxy.store import open_store

CANDIDATES = 10
"""Tools that are ordered."""
SHOWN = 6
"""Tools that a request is trained with: the right one and the best wrong ones."""
REQUESTS_A_BATCH = 12
REQUEST_TOKENS, TOOL_TOKENS = 32, 44
SCORE_FACTOR = 12.0
"""Worth of a score of the search in logits. The scores alone have their least cross-entropy over the mined
examples there (1.39; 1.59 with 25, 1.79 without scores). With more, the model is paid for contradicting
them."""
HEAD_RATE = 10.0
"""Learning rate of the new head, in those of the layers."""
SCORE_LEFT_OUT = 0.3
"""Share of the batches that are trained without the scores, so that the logit has a meaning by itself."""
TWIN = 0.03
"""Scores within this of the right tool's, with the same words in the name at another server: left out."""
WEIGHTS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.06)
MOST = 0.08
"""Most that the second opinion adds to a score or takes away: an exact name and a far lead stay ahead."""
MEASURES = ("recall@1", "recall@5", "nDCG@10")
NAME, GRAPH = "tools-reranker-L2", "reranker.onnx"


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers of a training run."""

    minutes: float
    rate: float
    look_every: float
    """Seconds between two looks at dev."""


@dataclass(frozen=True, slots=True)
class Example:
    """A request with its best tools: their texts, scores, and which of them serve it."""

    text: str
    tools: list[str]
    scores: list[float]
    right: list[bool]


def examples_of(path: Path) -> list[Example]:
    """Mined examples."""
    return [Example(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


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
        """Ids and types, as the product joins them."""
        return joined(self._ids(request), self._ids(tool), REQUEST_TOKENS, TOOL_TOKENS)

    def _ids(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text[:2_000]).ids
        return self._known[text]


class Search:
    """The product's search with scores."""

    def __init__(self, snapshot: Snapshot, cache: CachedEmbedder, background: Background) -> None:
        self._engine, self._snapshot = Engine(cache, calibration=background), snapshot

    def ranking(self, text: str) -> Ranking:
        """The answer of the search, `CANDIDATES` deep."""
        return self._engine.search(text, self._snapshot, TOOLS, replace(FITTING, depth=CANDIDATES))

    def best(self, text: str) -> list[tuple[Tool, float]]:
        """The best tools and their scores."""
        return [(one.item, one.score) for one in best_of(self.ranking(text)) if isinstance(one.item, Tool)]


def best_of(ranking: Ranking) -> list[Result]:
    """The best results, whether or not anything fits."""
    return [*(ranking.results or ranking.near_misses), *ranking.others][:CANDIDATES]


def mine(model: Path, out: Path, split: str, most: int) -> None:
    """Write the best tools of requests, within the servers of their batch, or among all servers of dev."""
    tools = pairs.read_tools()
    requests, _ = pairs.read_requests(tools)
    by_batch = collections.defaultdict(list)
    for one in pairs.of_split(split, requests, tools):
        by_batch[(one.writer, one.batch) if split == "train" else (split, "")].append(one)
    own_servers = {key[0] for key, tool in tools.items() if tool.split == split}
    embedder = LazyModel(lambda: load_model(model))
    background = evaluate.background_by(model)
    out.parent.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    with open_store(out.with_suffix(".db")) as store, out.open("w", encoding="utf-8") as file:
        cache = CachedEmbedder(embedder, store.vectors)
        for (writer, batch), own in sorted(by_batch.items()):
            servers = {key[0] for one in own for key in one.right} if split == "train" else own_servers
            snapshot = pairs.catalog(key for key, tool in tools.items() if key[0] in servers)
            search = Search(snapshot, cache, background)
            began, drawn = time.monotonic(), chance.sample(own, min(most, len(own)))
            for one in drawn:
                file.write(json.dumps(_example(one, search.best(one.text)), ensure_ascii=False) + "\n")
            seconds = f"{time.monotonic() - began:.0f} s"
            print(writer, batch, len(drawn), "requests of", len(servers), "servers", seconds, flush=True)


def _example(one: pairs.Request, found: list[tuple[Tool, float]]) -> dict[str, Any]:
    """The candidates of a request. None of them is right where the search does not find the right one."""
    right_scores = [score for tool, score in found if tool.key in one.right]
    names = {name for _, name in one.right}
    kept = [
        (tool, score)
        for tool, score in found
        if tool.key in one.right
        or not (right_scores and tool.name in names and abs(score - max(right_scores)) < TWIN)
    ]
    return {
        "text": one.text,
        "tools": [document(tool) for tool, _ in kept],
        "scores": [round(score, 4) for _, score in kept],
        "right": [tool.key in one.right for tool, _ in kept],
    }


class Trainer:
    """Training on mined examples for a given time."""

    def __init__(self, base: Path, layers: int, seed: int, begun: Path | None) -> None:
        self._random = random.Random(seed)
        torch.manual_seed(seed)
        self.model = CrossEncoder(load(base, layers))
        if begun is not None:
            self.model.load_state_dict(safetensors.torch.load_file(begun / "model.safetensors"))
        # Words stay as the encoder's, which the built graph reads them from; all else moves.
        self.model.body.embeddings.word_embeddings.requires_grad_(False)
        self._pieces = Pieces(base)
        self._read: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def run(self, examples: list[Example], dev: Path, settings: Settings, out: Path) -> None:
        """Train, print how it goes, and write the weights."""
        body = [one for one in self.model.body.parameters() if one.requires_grad]
        groups = [
            {"params": body, "share": 1.0},
            {"params": list(self.model.head.parameters()), "share": HEAD_RATE},
        ]
        optimizer = torch.optim.AdamW(groups, lr=settings.rate, weight_decay=0.01)
        seconds, started, looked, smooth = 60 * settings.minutes, time.monotonic(), 0.0, 0.0
        order: list[Example] = []
        pairs_seen = step = 0
        while (passed := time.monotonic() - started) < seconds:
            self.model.train()
            step += 1
            if len(order) < REQUESTS_A_BATCH:
                order += self._random.sample(examples, len(examples))
            batch, order = order[:REQUESTS_A_BATCH], order[REQUESTS_A_BATCH:]
            for group in optimizer.param_groups:
                share = min(1, step / 20) * max(0.03, 1 - passed / seconds)
                group["lr"] = settings.rate * group["share"] * share
            loss = self._loss(batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            pairs_seen += sum(min(SHOWN, len(one.tools)) for one in batch)
            smooth = loss.item() if step == 1 else 0.95 * smooth + 0.05 * loss.item()
            if step % 10 == 0:
                print(step, pairs_seen, round(smooth, 3), f"{passed:.0f} s", flush=True)
            if passed - looked > settings.look_every:
                looked = passed
                save(self.model, out)
                self._look(examples_of(dev)[::4], step, pairs_seen)
        save(self.model, out)
        self._look(examples_of(dev), step, pairs_seen)
        print(f"{time.process_time():.0f} s of processor time", flush=True)

    def _look(self, dev: Sequence[Example], step: int, pairs_seen: int) -> None:
        """Print the recall at one on dev by weight."""
        self.model.eval()
        firsts: dict[float, list[bool]] = collections.defaultdict(list)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for one in dev:
                logits = (
                    logits_of(self.model, [self._pair(one.text, tool) for tool in one.tools]).float().numpy()
                )
                for weight in (*WEIGHTS, 9.0):
                    first = int(np.argmax(np.array(one.scores) + weight * logits))
                    firsts[weight].append(one.right[first])
        means = " ".join(f"{weight}: {100 * np.mean(row):.1f}" for weight, row in firsts.items())
        print("dev", step, pairs_seen, "recall@1 by weight", means, flush=True)

    def _pair(self, request: str, tool: str) -> tuple[list[int], list[int]]:
        known = self._read.get((request, tool))
        if known is None:
            known = self._read[request, tool] = self._pieces.pair(request, tool)
        return known

    def _loss(self, batch: Sequence[Example]) -> Tensor:
        read, shown = [], []
        for one in batch:
            wrong = [at for at, right in enumerate(one.right) if not right]
            right = [at for at, right in enumerate(one.right) if right]
            places = [self._random.choice(right), *wrong[: SHOWN - 1]]
            shown.append([one.scores[at] for at in places])
            read += [self._pair(one.text, one.tools[at]) for at in places]
        with torch.autocast("cpu", torch.bfloat16):
            logits = logits_of(self.model, read).float()
        factor = 0.0 if self._random.random() < SCORE_LEFT_OUT else SCORE_FACTOR
        losses, at = [], 0
        for scores in shown:
            total = logits[at : at + len(scores)] + factor * torch.tensor(scores)
            losses.append(functional.cross_entropy(total[None], torch.zeros(1, dtype=torch.long)))
            at += len(scores)
        return torch.stack(losses).mean()


def logits_of(model: CrossEncoder, read: Sequence[tuple[list[int], list[int]]], bucket: int = 24) -> Tensor:
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


def build(trained: Path, encoder: Path, weight_of_logit: float) -> None:
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
    (encoder / GRAPH).write_bytes(model.SerializeToString(deterministic=True))
    files = (GRAPH, "tokenizer.json", script.WORDS)
    facts = {
        "model": NAME,
        "graph": GRAPH,
        "weight": weight_of_logit,
        "most": MOST,
        "candidates": CANDIDATES,
        "request_tokens": REQUEST_TOKENS,
        "tool_tokens": TOOL_TOKENS,
        "sha256": {name: hashlib.sha256((encoder / name).read_bytes()).hexdigest() for name in files},
        "source_sha256": hashlib.sha256((trained / "model.safetensors").read_bytes()).hexdigest(),
    }
    (encoder / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    print(f"{(encoder / GRAPH).stat().st_size:,} bytes,", count, "layers")


def parity(base: Path, trained: Path, reranker: Path, dev: Path) -> None:
    """Print how far the built bytes are from the floats, and the time of an order of ten."""
    source = hashlib.sha256((trained / "model.safetensors").read_bytes()).hexdigest()
    if json.loads((reranker / MANIFEST).read_text("utf-8"))["source_sha256"] != source:
        raise SystemExit(f"{reranker} was built from other weights than those in {trained}")
    stored = safetensors.torch.load_file(trained / "model.safetensors")
    layers = len({name.split(".")[3] for name in stored if ".layer." in name})
    floats = CrossEncoder(load(base, layers))
    floats.load_state_dict(stored)
    floats.eval()
    built, pieces = SecondOpinionModel(reranker), Pieces(base)
    exact, bytes_, wall, processor, tokens = [], [], [], [], []
    for one in examples_of(dev)[::10]:
        began, spent = time.perf_counter(), time.process_time()
        bytes_ += built.logits(one.text, one.tools)
        if len(one.tools) == CANDIDATES:
            wall.append(1e3 * (time.perf_counter() - began))
            processor.append(1e3 * (time.process_time() - spent))
        read = [pieces.pair(one.text, tool) for tool in one.tools]
        tokens += [len(ids) for ids, _ in read]
        with torch.no_grad():
            exact += logits_of(floats, read).tolist()
    error = np.abs(np.subtract(exact, bytes_))
    print(f"{len(exact)} pairs of {np.mean(tokens):.0f} word pieces: correlation", end=" ")
    print(
        f"{np.corrcoef(exact, bytes_)[0, 1]:.4f}, mean error {error.mean():.3f}, most {error.max():.3f}",
        end=" ",
    )
    print(f"where the floats vary by {np.std(exact):.2f}")
    print(f"ten tools: p50 {np.median(wall):.1f} ms, {np.median(processor):.1f} ms of processor time")


def measure(encoder: Path, reranker: Path, sets: Path, only: Sequence[str], most: int) -> None:
    """Print recall@1, recall@5 and nDCG@10 by set and weight, differences, and the time of an order."""
    model = SecondOpinionModel(reranker)
    seconds: list[float] = []
    changes: dict[float, dict[str, list[tuple[float, ...]]]] = collections.defaultdict(dict)
    background, asked_of = evaluate.background_by(encoder), 0
    with open_store(reranker / "vectors.db") as store:
        cache = CachedEmbedder(LazyModel(lambda: load_model(encoder)), store.vectors)
        for name, (snapshot, queries) in evaluate.read_sets(sets, only).items():
            search, rows = Search(snapshot, cache, background), collections.defaultdict(list)
            for query in queries[:: max(1, len(queries) // most)]:
                ranking = search.ranking(query.text)
                asked = candidates(ranking, CANDIDATES)
                doubtful = reason_to_skip(ranking, asked, "auto", model.reach) is None
                if doubtful:
                    texts = [document(one.item) for one in asked]
                    began = time.perf_counter()
                    logits = np.array(model.logits(query.text, texts))
                    seconds.append(time.perf_counter() - began)
                asked_of += 1
                for weight in WEIGHTS:
                    ordered = ranking
                    if doubtful:
                        scores = np.array([one.score for one in asked])
                        totals = scores + np.clip(weight * logits, -MOST, MOST)
                        ordered = reordered(ranking, asked, np.argsort(-totals, kind="stable").tolist())
                    keys = [one.item.key for one in best_of(ordered) if isinstance(one.item, Tool)]
                    rows[weight].append(_measures(query.needs, keys))
            print(name, len(rows[0.0]), "queries", flush=True)
            for weight in WEIGHTS:
                means = " ".join(f"{100 * one:5.1f}" for one in np.mean(rows[weight], axis=0))
                pairs_of_rows = zip(rows[weight], rows[0.0], strict=True)
                changed = [tuple(np.subtract(new, old)) for new, old in pairs_of_rows]
                changes[weight][name] = changed
                said = [
                    evaluate.spoken(estimate([one[at] for one in changed]), True)
                    for at in range(len(MEASURES))
                ]
                print(f"  {weight:4.2f}  {means}  ", "  ".join(said), flush=True)
    public = [name for name in changes[0.0] if not name.startswith("own_")]
    for weight in WEIGHTS[1:] if public else ():
        for at, measure_name in enumerate(MEASURES):
            groups = [[one[at] for one in changes[weight][name]] for name in public]
            print(f"macro, weight {weight}, {measure_name}: {evaluate.spoken(macro_estimate(groups), True)}")
    milliseconds = 1e3 * np.array(seconds)
    p50, p95 = np.percentile(milliseconds, [50, 95])
    print(f"milliseconds of an order: p50 {p50:.1f}, p95 {p95:.1f}")
    print(f"in doubt {len(seconds)} of {asked_of}")


def _measures(needs: Sequence[Need], ranking: Sequence[ToolKey]) -> tuple[float, ...]:
    return recall(needs, ranking[:1]), recall(needs, ranking[:5]), ndcg(needs, ranking, 10)


def main() -> None:
    """Run one of the steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    one = steps.add_parser("mine")
    one.add_argument("model")
    one.add_argument("negatives", type=Path)
    one.add_argument("--split", choices=("train", "dev"), default="train")
    one.add_argument("--most", type=int, default=1_000, help="requests of a batch")
    one = steps.add_parser("train")
    for name in ("base", "negatives", "dev", "out"):
        one.add_argument(name, type=Path)
    one.add_argument("--layers", type=int, default=2)
    one.add_argument("--minutes", type=float, default=60)
    one.add_argument("--rate", type=float, default=2e-4)
    one.add_argument("--look-every", type=float, default=200, help="seconds between two looks at dev")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--begun", type=Path, help="go on from these weights; the optimizer begins anew")
    one = steps.add_parser("build")
    one.add_argument("out", type=Path)
    one.add_argument("encoder", type=Path)
    one.add_argument("--weight", type=float, default=0.03, help="worth of a logit in points of the score")
    one = steps.add_parser("parity")
    for name in ("base", "trained", "reranker", "dev"):
        one.add_argument(name, type=Path)
    one = steps.add_parser("evaluate")
    one.add_argument("encoder")
    one.add_argument("reranker", type=Path, help="the folder that build wrote to")
    one.add_argument("--sets", type=Path, required=True)
    one.add_argument("--only", nargs="+", default=[])
    one.add_argument("--most", type=int, default=300, help="queries of a set")
    arguments = parser.parse_args()
    packaged = {"packaged": PACKAGED_MODEL, "base": BASE_MODEL}
    if arguments.step == "mine":
        model = packaged.get(arguments.model, Path(arguments.model))
        mine(model, arguments.negatives, arguments.split, arguments.most)
    elif arguments.step == "train":
        torch.set_num_threads(1)
        examples = examples_of(arguments.negatives)
        examples = [one for one in examples if any(one.right) and not all(one.right)]
        print(len(examples), "requests", flush=True)
        settings = Settings(arguments.minutes, arguments.rate, arguments.look_every)
        trainer = Trainer(arguments.base, arguments.layers, arguments.seed, arguments.begun)
        trainer.run(examples, arguments.dev, settings, arguments.out)
    elif arguments.step == "build":
        build(arguments.out, arguments.encoder, arguments.weight)
    elif arguments.step == "parity":
        parity(arguments.base, arguments.trained, arguments.reranker, arguments.dev)
    else:
        encoder = packaged.get(arguments.encoder, Path(arguments.encoder))
        measure(encoder, arguments.reranker, arguments.sets, arguments.only, arguments.most)


if __name__ == "__main__":
    main()
