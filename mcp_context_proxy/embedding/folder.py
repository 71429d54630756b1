"""What is in the folder of a model, and so how its graph becomes a sentence's vector. Loads nothing.

Two kinds of folder are known: with a ``manifest.json``, as scripts/build_model.py writes it, and as
sentence-transformers and optimum export it, where several small files say what a graph does not.

A model folder is what its manifest says: nothing in it is loaded before its SHA-256 is right.
"""

from __future__ import annotations

import errno
import hashlib
import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mcp_context_proxy.config import EmbeddingConfig
from mcp_context_proxy.errors import ModelError

MANIFEST, GRAPH, TOKENIZER = "manifest.json", "model.onnx", "tokenizer.json"
"""The files of a model folder, as scripts/build_model.py writes them."""

BLOCK = 8 * 1024 * 1024
"""Bytes hashed at a time. After each block the thread waits for the interpreter, up to 5 ms where another
reads words meanwhile: with the 256 KiB of `hashlib.file_digest` 120 ms in all instead of 25."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in a model folder."""

    model: str
    dimensions: int
    max_tokens: int
    """Longer texts are cut there, [CLS] and [SEP] included."""
    sha256: Mapping[str, str]
    """By file name."""

    @property
    def model_id(self) -> str:
        """Name and content: changes with the graph and with the tokenizer, as the vectors do."""
        content = "".join(self.sha256[name] for name in (GRAPH, TOKENIZER))
        return f"{self.model}@{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def verified_manifest(directory: Path, remedy: str) -> Manifest:
    """Read the manifest and check the files it names.

    Raises:
        ModelError: a file is missing, cannot be read, or is not what the manifest says.
    """
    manifest = _read_manifest(directory / MANIFEST, remedy)
    for name in (GRAPH, TOKENIZER):
        _verify(directory / name, manifest.sha256[name], remedy)
    return manifest


def _read_manifest(path: Path, remedy: str) -> Manifest:
    try:
        facts = json.loads(text_of(path))
        return Manifest(
            model=str(facts["model"]),
            dimensions=int(facts["dimensions"]),
            max_tokens=int(facts["max_tokens"]),
            sha256={name: str(facts["sha256"][name]) for name in (GRAPH, TOKENIZER)},
        )
    except OSError as e:
        raise ModelError(path, cause(e), remedy) from e
    except (ValueError, KeyError, TypeError) as e:
        raise ModelError(path, "the file is damaged: it is not a manifest", remedy) from e


def _verify(path: Path, expected: str, remedy: str) -> None:
    try:
        actual = digest(path)
    except OSError as e:
        raise ModelError(path, cause(e), remedy) from e
    if actual != expected:
        raise ModelError(
            path, f"the file is damaged: sha256 {actual[:12]}..., expected {expected[:12]}...", remedy
        )


def text_of(path: Path) -> str:
    """A file of a model folder; raises `OSError` or `ValueError`."""
    _must_be_regular(path)
    return path.read_text(encoding="utf-8")


def _must_be_regular(path: Path) -> None:
    """Opening a pipe would wait for a writer, and a device may have no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits. Raises `OSError`."""
    _must_be_regular(path)
    hashed, block = hashlib.sha256(), bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            hashed.update(memoryview(block)[:size])
    return hashed.hexdigest()


def cause(e: OSError) -> str:
    """Why a file cannot be used, for a person."""
    return "the file is missing" if isinstance(e, FileNotFoundError) else f"cannot be read: {e.strerror or e}"


Pooling: TypeAlias = Literal["mean", "cls"]
"""How the vectors of a text's tokens become one: their mean, or that of the first token."""

GRAPHS = ("model.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx", "model_quantized.onnx")
"""Where exporters write the graph; the first that is there is used."""

DEFAULT_TOKENS = 512
"""Of a text, where no file says how much the model reads."""

MOST_TOKENS = 32_768
"""Larger numbers are how a tokenizer says that it knows no bound."""

RESERVED_POSITIONS = 2
"""Of ``max_position_embeddings``, which models of the RoBERTa family do not use for tokens."""

PACKAGED_MODEL = Path(__file__).parent / "files"
"""The model that comes with the package; its origin is told in PROVENANCE.md beside it."""

REINSTALL = "reinstall mcp-context-proxy"
REMEDY = "export it as ONNX with its tokenizer.json (docs/models.md tells how), or name another folder"
REBUILD = "build it again with scripts/build_model.py, or remove the setting to use the packaged model"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk: where its files are, and how they are to be used."""

    model_id: str
    """Name and content; changes with whatever changes the vectors of the catalog's texts."""
    graph: Path
    tokenizer: Path
    dimensions: int | None
    """None where only the graph knows."""
    max_tokens: int
    """Longer texts are cut there, special tokens included."""
    pooling: Pooling
    """For graphs that give a vector per token."""
    is_whole: bool
    """Whether pooling is the only step after the graph."""
    query_prefix: str
    passage_prefix: str
    optimised: bool = False
    """Whether its graph leaves the runtime nothing to optimise, as those of scripts/build_model.py."""


def read_folder(directory: Path, settings: EmbeddingConfig) -> ModelFolder:
    """Read what a model folder holds; ``settings`` beat what its files say. Blocking.

    Raises:
        ModelError: a file is missing or damaged, or asks for what is not supported.
    """
    if directory == PACKAGED_MODEL:
        return _of_manifest(directory, settings, REINSTALL)
    if (directory / MANIFEST).exists():
        return _of_manifest(directory, settings, REBUILD)
    return _of_export(directory, settings)


def _of_manifest(directory: Path, settings: EmbeddingConfig, remedy: str) -> ModelFolder:
    manifest = verified_manifest(directory, remedy)
    max_tokens = settings.max_tokens or manifest.max_tokens
    passage_prefix = settings.passage_prefix or ""
    changed = (max_tokens, passage_prefix) != (manifest.max_tokens, "")
    return ModelFolder(
        model_id=_marked(manifest.model_id, max_tokens, passage_prefix) if changed else manifest.model_id,
        graph=directory / GRAPH,
        tokenizer=directory / TOKENIZER,
        dimensions=manifest.dimensions,
        max_tokens=max_tokens,
        pooling="mean",
        is_whole=True,
        query_prefix=settings.query_prefix or "",
        passage_prefix=passage_prefix,
        optimised=True,
    )


def _of_export(directory: Path, settings: EmbeddingConfig) -> ModelFolder:
    graph, tokenizer = graph_of(directory), directory / TOKENIZER
    prompts = _object(directory / "config_sentence_transformers.json").get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}
    max_tokens = settings.max_tokens or max_tokens_of(directory)
    pooling = settings.pooling or _pooling(directory)
    passage_prefix = _first(settings.passage_prefix, prompts.get("passage"), prompts.get("document"))
    content = "".join(_digest(file) for file in _content(graph, tokenizer))
    name = f"{directory.resolve().name}@{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    return ModelFolder(
        model_id=_marked(name, max_tokens, pooling, passage_prefix),
        graph=graph,
        tokenizer=tokenizer,
        dimensions=None,
        max_tokens=max_tokens,
        pooling=pooling,
        is_whole=not _has_dense_layer(directory),
        query_prefix=_first(settings.query_prefix, prompts.get("query")),
        passage_prefix=passage_prefix,
    )


def _marked(name: str, *how: object) -> str:
    return f"{name}/{hashlib.sha256(repr(how).encode('utf-8', 'replace')).hexdigest()[:8]}"


def graph_of(directory: Path) -> Path:
    """The graph in a folder, wherever its exporter put it.

    Raises:
        ModelError: there is none.
    """
    if not directory.is_dir():
        raise ModelError(directory, "there is no such folder", REMEDY)
    found = next((directory / name for name in GRAPHS if (directory / name).is_file()), None)
    if found is None:
        raise ModelError(directory, f"it has neither {MANIFEST} nor {' nor '.join(GRAPHS[:2])}", REMEDY)
    return found


def _content(graph: Path, tokenizer: Path) -> Iterator[Path]:
    yield tokenizer
    yield graph
    # Weights over 2 GB lie beside the graph, as model.onnx_data or model.onnx.data.
    yield from sorted(graph.parent.glob(graph.name + "[_.]data*"))


def _digest(path: Path) -> str:
    try:
        return digest(path)
    except OSError as e:
        raise ModelError(path, cause(e), REMEDY) from e


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    try:
        value = json.loads(text_of(path))
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise ModelError(path, cause(e), REMEDY) from e
    except ValueError as e:
        raise ModelError(path, "the file is damaged: it is not JSON", REMEDY) from e
    return value if isinstance(value, dict) else {}


def max_tokens_of(directory: Path) -> int:
    """How much of a text a model reads, as the files beside it say."""
    positions = _object(directory / "config.json").get("max_position_embeddings")
    candidates = [
        _object(directory / "sentence_bert_config.json").get("max_seq_length"),
        _object(directory / "tokenizer_config.json").get("model_max_length"),
        positions - RESERVED_POSITIONS if isinstance(positions, int) else None,
    ]
    plausible = [n for n in candidates if isinstance(n, int) and 0 < n <= MOST_TOKENS]
    return min(plausible, default=DEFAULT_TOKENS)


def _pooling(directory: Path) -> Pooling:
    path = directory / "1_Pooling" / "config.json"
    facts = _object(path)
    modes = [key.removeprefix("pooling_mode_") for key, on in facts.items() if on is True]
    named = facts.get("pooling_mode")
    modes += [named] if isinstance(named, str) else []
    if not modes or modes in (["mean_tokens"], ["mean"]):
        return "mean"
    if modes in (["cls_token"], ["cls"]):
        return "cls"
    told = f"its pooling ({' and '.join(modes)}) is not supported"
    raise ModelError(path, told, "use a model with mean or cls pooling, or an endpoint that serves this one")


def _has_dense_layer(directory: Path) -> bool:
    path = directory / "modules.json"
    if not path.exists():
        return False
    try:
        modules = json.loads(text_of(path))
    except (OSError, ValueError) as e:
        raise ModelError(path, "the file is damaged: it is not JSON", REMEDY) from e
    entries = modules if isinstance(modules, list) else []
    return any(str(entry.get("type", "")).endswith(".Dense") for entry in entries if isinstance(entry, dict))


def _first(*texts: object) -> str:
    return next((text for text in texts if isinstance(text, str)), "")
