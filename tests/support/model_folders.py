"""Folders as exporters write them, around a graph of one lookup: small, real, and computable by hand."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "query:",
    "passage:",
    "wetter",
    "weather",
    "issue",
    "create",
    "send",
    "mail",
]
WIDTH = 8

_INT64, _FLOAT = 7, 1


def table(alike: Mapping[str, str] | None = None) -> np.ndarray:
    """The vector of each word; some words have that of another."""
    rows = np.random.default_rng(5).standard_normal((len(WORDS), WIDTH)).astype(np.float32)
    for word, other in (alike or {}).items():
        rows[WORDS.index(word)] = rows[WORDS.index(other)]
    return rows


def ids_of(text: str) -> list[int]:
    """The token ids, as the tokenizer gives them."""
    words = [WORDS.index(word) if word in WORDS else 0 for word in text.lower().split()]
    return [WORDS.index("[CLS]"), *words, WORDS.index("[SEP]")]


def write_export(
    folder: Path,
    *,
    graph: str = "onnx/model.onnx",
    output: str = "last_hidden_state",
    inputs: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids"),
    files: dict[str, Any] | None = None,
    alike: Mapping[str, str] | None = None,
) -> Path:
    """Write a sentence-transformers folder.

    Args:
        folder: To make.
        graph: Where the graph is.
        output: Of the graph; ``sentence_embedding`` makes it give one vector, the mean, by itself, and
            ``logits`` or ``logit`` one number, the mean of that, as a cross-encoder does.
        inputs: Of the graph.
        files: Further JSON files, by name.
        alike: Words that mean the same as others, as a model of several languages has them.
    """
    (folder / graph).parent.mkdir(parents=True, exist_ok=True)
    (folder / graph).write_bytes(_model(output, inputs, table(alike)))
    _tokenizer().save(str(folder / "tokenizer.json"))
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import WordLevel
    from tokenizers.processors import TemplateProcessing

    vocabulary = {word: at for at, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    # As published files have it: fixed padding, which would spoil a mean.
    tokenizer.enable_padding(length=128)
    tokenizer.enable_truncation(128)
    return tokenizer


def _model(output: str, inputs: tuple[str, ...], rows: np.ndarray) -> bytes:
    """An ONNX file, written by hand: onnx itself would be a large dependency for three nodes."""
    nodes = [_node("Gather", ["table", "input_ids"], "last_hidden_state")]
    if output == "sentence_embedding":
        nodes.append(_node("ReduceMean", ["last_hidden_state", "axes"], output, keepdims=0))
    elif output in {"logits", "logit"}:
        nodes.append(_node("ReduceMean", ["last_hidden_state", "axes"], "vector", keepdims=0))
        nodes.append(_node("ReduceMean", ["vector", "axes"], output, keepdims=0))
    elif output != "last_hidden_state":
        nodes.append(_node("Identity", ["last_hidden_state"], output))
    graph = b"".join(
        [
            *(_field(1, node) for node in nodes),
            _field(2, b"lookup"),
            _field(5, _tensor("table", rows)),
            _field(5, _tensor("axes", np.array([1], np.int64))),
            *(_field(11, _value(name, _INT64, ["one", "tokens"])) for name in inputs),
            _field(12, _value(output, _FLOAT, None)),
        ]
    )
    return _number(1, 9) + _field(8, _field(1, b"") + _number(2, 18)) + _field(7, graph)


def _node(kind: str, inputs: list[str], output: str, **integers: int) -> bytes:
    attributes = [
        _field(5, _field(1, name.encode()) + _number(3, value) + _number(20, 2))
        for name, value in integers.items()
    ]
    names = [_field(1, name.encode()) for name in inputs]
    return b"".join([*names, _field(2, output.encode()), _field(4, kind.encode()), *attributes])


def _tensor(name: str, values: np.ndarray) -> bytes:
    kind = _INT64 if values.dtype == np.int64 else _FLOAT
    dims = b"".join(_number(1, size) for size in values.shape)
    return dims + _number(2, kind) + _field(8, name.encode()) + _field(9, values.tobytes())


def _value(name: str, kind: int, dims: list[str] | None) -> bytes:
    shape = b"" if dims is None else _field(2, b"".join(_field(1, _field(2, dim.encode())) for dim in dims))
    return _field(1, name.encode()) + _field(2, _field(1, _number(1, kind) + shape))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return b"".join(struct.pack("B", part) for part in [*parts, value])
