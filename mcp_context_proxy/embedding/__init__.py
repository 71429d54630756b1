"""Turns texts into vectors; importing it loads neither a model nor its runtime.

Here are the interfaces of a model, the folder that one is read from, and the vectors that come with the
package. Two kinds of folder are supported: with a ``manifest.json``, as encoder/soup.py writes it, and as
sentence-transformers and optimum export it, where several small files complete the graph. Nothing named in a
manifest is loaded before its SHA-256 is verified. This module reads and hashes files; it opens no model.

The package has two models in one folder, each with a manifest and a graph of its own. They share the
tokenizer and the vectors of words, which are half of a model.

Half of the tools that people connect are the same as everybody's. Embedding them takes seconds at the first
search of each installation; reading their vectors from a file takes milliseconds, and memory only for those
that are used. A vector is found by the hash of the whole text that is embedded, the server's name included,
so a text of another version, under another name or in another form is embedded as before. One model's vectors
are of no use to another: the file names its model, by the id that changes with its files and settings.

``scripts/build_shipped_vectors.py`` writes the files; PROVENANCE.md beside them says of which tools.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from mcp_context_proxy.config import PACKAGED_MODELS, EmbeddingConfig
from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import Vector
from mcp_context_proxy.system.later import NDArray, np

logger = logging.getLogger(__name__)

Matrix: TypeAlias = "NDArray[np.float32]"
"""Shape [texts, dimensions], every row with L2 norm 1."""

NORM_TOLERANCE = 1e-3
"""Largest distance of a unit vector's length from 1."""


class Embedder(Protocol):
    """Turns texts into unit vectors of one model. Blocking and thread-safe; called in worker threads."""

    def embed(self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> Matrix:
        """Return one unit vector per text, in order; ``on_progress(done, total)`` is called meanwhile.

        Raises `ModelError` if there is no model, or it failed.
        """


class EmbeddingModel(Protocol):
    """One embedding model, on disk or behind an endpoint. Blocking and thread-safe."""

    @property
    def model_id(self) -> str:
        """Identity of the model: vectors may be compared and stored together if and only if it is equal."""

    @property
    def dimensions(self) -> int:
        """Length of every vector."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per text of the catalog, in order; a text's neighbours do not change it."""

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Do the same for queries: some models tell the two apart, and a caller is waiting."""

    def close(self) -> None:
        """Release the model; waiting callers get an `EmbeddingCancelledError` at once."""


def is_unit(vector: Vector, dimensions: int) -> bool:
    """Return whether a stored array is a possible vector of a model with so many dimensions."""
    return are_unit([vector], dimensions)[0]


def are_unit(vectors: Sequence[Vector], dimensions: int) -> list[bool]:
    """Return, for each stored array, whether it is a possible vector of a model."""
    fitting = [vector.shape == (dimensions,) for vector in vectors]
    some = [vector for vector, fits in zip(vectors, fitting, strict=True) if fits]
    # In float64: a damaged exponent must not overflow.
    norms = np.linalg.norm(np.array(some, np.float64).reshape(-1, dimensions), axis=1)
    near = iter((abs(norms - 1) <= NORM_TOLERANCE).tolist())
    return [fits and next(near) for fits in fitting]


def unit_rows(rows: NDArray[np.float32]) -> Matrix:
    """Scale each row to norm 1; raises `ValueError` if a row is zero or not finite."""
    # In float64: large components must not overflow.
    wide = rows.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    if not (np.isfinite(norms).all() and (norms > 0).all()):
        raise ValueError("a vector is zero or not finite")
    unit: Matrix = (wide / norms).astype(np.float32)
    return unit


PACKAGED_MODEL = Path(__file__).parent / "files"
"""The model that comes with the package; its origin is described in PROVENANCE.md beside it."""

BASE_MODEL = PACKAGED_MODEL / f"{PACKAGED_MODELS[1]}.json"
"""Manifest of the published model that it was trained from."""

MANIFEST, GRAPH, TOKENIZER = "manifest.json", "model.onnx", "tokenizer.json"
"""The files of a model folder. The manifest may name another graph, and files that the graph reads."""

GRAPHS = ("model.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx", "model_quantized.onnx")
"""Paths of the graph in exported folders; the first that exists is used."""

BLOCK = 1024 * 1024
"""Bytes hashed at a time. After each block the thread waits for the interpreter, half a millisecond where
another reads words meanwhile: with the 256 KiB of `hashlib.file_digest` four times as often. With 8 MiB, a
proxy that had just started was larger by as much."""

DEFAULT_TOKENS = 512
"""Tokens that a model reads of a text, if no file says it."""

MOST_TOKENS = 32_768
"""Larger numbers are how a tokenizer says that it knows no bound."""

RESERVED_POSITIONS = 2
"""Positions of ``max_position_embeddings`` that models of the RoBERTa family do not use for tokens."""

REINSTALL = "reinstall mcp-context-proxy"
EXPORT = "export it as ONNX with its tokenizer.json (docs/models.md tells how), or name another folder"
REBUILD = "build it again, or remove the setting to use the packaged model"

Pooling: TypeAlias = Literal["mean", "cls"]
"""Combination of the vectors of a text's tokens: their mean, or the first token's vector."""


class ModelFolder(Struct, frozen=True):
    """The files of a model on disk, and how to use them."""

    model_id: str
    """Name and content; changes with everything that changes the vectors of the catalog's texts."""
    graph: Path
    tokenizer: Path
    dimensions: int | None
    """None where only the graph knows."""
    max_tokens: int
    """Longer texts are cut there, special tokens included."""
    pooling: Pooling
    """For graphs that give a vector per token."""
    is_whole: bool
    """True if pooling is the only step after the graph."""
    query_prefix: str
    passage_prefix: str
    optimised: bool = False
    """True if its graph leaves the runtime nothing to optimise, as those of scripts/build_model.py."""


def model_of(settings: EmbeddingConfig) -> Path:
    """Return the folder of the configured model, or `BASE_MODEL`."""
    if settings.packaged is None:
        return Path(settings.model or "")
    return PACKAGED_MODEL if settings.packaged == PACKAGED_MODELS[0] else BASE_MODEL


def read_folder(directory: Path, settings: EmbeddingConfig) -> ModelFolder:
    """Read the description of a model; ``settings`` override the files. Blocking.

    ``directory`` may be `BASE_MODEL`. Raises `ModelError` if a file is missing or damaged, or needs something
    that is not supported.
    """
    if directory in (PACKAGED_MODEL, BASE_MODEL):
        manifest = directory / MANIFEST if directory == PACKAGED_MODEL else directory
        return _read_built(manifest, settings, REINSTALL)
    with _readable(directory):
        is_built = (directory / MANIFEST).exists()
    if is_built:
        return _read_built(directory / MANIFEST, settings, REBUILD)
    return _read_exported(directory, settings)


def _read_built(path: Path, settings: EmbeddingConfig, remedy: str) -> ModelFolder:
    directory = path.parent
    try:
        with _readable(path, remedy):
            facts = json.loads(_text(path))
        name, dimensions = str(facts["model"]), int(facts["dimensions"])
        built_tokens, graph = int(facts["max_tokens"]), str(facts.get("graph", GRAPH))
        sha256 = {file: str(facts["sha256"][file]) for file in (graph, TOKENIZER, *sorted(facts["sha256"]))}
    except (ValueError, KeyError, TypeError) as e:
        raise ModelError(path, "the file is damaged: it is not a manifest", remedy) from e
    for file, expected in sha256.items():
        with _readable(directory / file, remedy):
            actual = digest(directory / file)
        if actual != expected:
            reason = f"the file is damaged: sha256 {actual[:12]}..., expected {expected[:12]}..."
            raise ModelError(directory / file, reason, remedy)
    model_id = f"{name}@{hashlib.sha256(''.join(sha256.values()).encode()).hexdigest()[:16]}"
    max_tokens, passage_prefix = settings.max_tokens or built_tokens, settings.passage_prefix or ""
    if (max_tokens, passage_prefix) != (built_tokens, ""):
        model_id = _with_settings(model_id, max_tokens, passage_prefix)
    return ModelFolder(
        model_id=model_id,
        graph=directory / graph,
        tokenizer=directory / TOKENIZER,
        dimensions=dimensions,
        max_tokens=max_tokens,
        pooling="mean",
        is_whole=True,
        query_prefix=settings.query_prefix or "",
        passage_prefix=passage_prefix,
        optimised=True,
    )


def _read_exported(directory: Path, settings: EmbeddingConfig) -> ModelFolder:
    graph, tokenizer = graph_of(directory), directory / TOKENIZER
    prompts = _object(directory / "config_sentence_transformers.json").get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}
    max_tokens = settings.max_tokens or max_tokens_of(directory)
    pooling = settings.pooling or _pooling(directory)
    passage_prefix = _first_text(settings.passage_prefix, prompts.get("passage"), prompts.get("document"))
    modules = _json(directory / "modules.json")
    entries = modules if isinstance(modules, list) else []
    has_dense_layer = any(
        str(entry.get("type", "")).endswith(".Dense") for entry in entries if isinstance(entry, dict)
    )
    content = ""
    # Weights over 2 GB lie beside the graph, as model.onnx_data or model.onnx.data.
    for file in (tokenizer, graph, *sorted(graph.parent.glob(graph.name + "[_.]data*"))):
        with _readable(file):
            content += digest(file)
    name = f"{directory.resolve().name}@{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    return ModelFolder(
        model_id=_with_settings(name, max_tokens, pooling, passage_prefix),
        graph=graph,
        tokenizer=tokenizer,
        dimensions=None,
        max_tokens=max_tokens,
        pooling=pooling,
        is_whole=not has_dense_layer,
        query_prefix=_first_text(settings.query_prefix, prompts.get("query")),
        passage_prefix=passage_prefix,
    )


def graph_of(directory: Path) -> Path:
    """Find the graph in an exported folder; raises `ModelError` if there is none."""
    with _readable(directory):
        exists = directory.is_dir()
        found = next((directory / name for name in GRAPHS if (directory / name).is_file()), None)
    if not exists:
        raise ModelError(directory, "there is no such folder", EXPORT)
    if found is None:
        raise ModelError(directory, f"it has neither {MANIFEST} nor {' nor '.join(GRAPHS[:2])}", EXPORT)
    return found


def max_tokens_of(directory: Path) -> int:
    """Read from the files beside a graph how many tokens of a text the model reads."""
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
    reason = f"its pooling ({' and '.join(modes)}) is not supported"
    raise ModelError(
        path, reason, "use a model with mean or cls pooling, or an endpoint that serves this one"
    )


def _with_settings(name: str, *settings: object) -> str:
    return f"{name}/{hashlib.sha256(repr(settings).encode('utf-8', 'replace')).hexdigest()[:8]}"


def _first_text(*texts: object) -> str:
    return next((text for text in texts if isinstance(text, str)), "")


def _object(path: Path) -> dict[str, Any]:
    value = _json(path)
    return value if isinstance(value, dict) else {}


def _json(path: Path) -> Any:
    """Read an optional file; None if it is missing."""
    try:
        with _readable(path):
            return json.loads(_text(path)) if path.exists() else None
    except ValueError as e:
        raise ModelError(path, "the file is damaged: it is not JSON", EXPORT) from e


@contextmanager
def _readable(path: Path, remedy: str = EXPORT) -> Iterator[None]:
    """Turn an `OSError` into a `ModelError`."""
    try:
        yield
    except OSError as e:
        missing = isinstance(e, FileNotFoundError)
        reason = "the file is missing" if missing else f"cannot be read: {e.strerror or e}"
        raise ModelError(path, reason, remedy) from e


def _text(path: Path) -> str:
    _require_regular_file(path)
    return path.read_text(encoding="utf-8")


def digest(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal digits; raises `OSError`."""
    _require_regular_file(path)
    hashed, block = hashlib.sha256(), bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            hashed.update(memoryview(block)[:size])
    return hashed.hexdigest()


def _require_regular_file(path: Path) -> None:
    # Opening a pipe would wait for a writer, and a device may have no end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


SHIPPED = Path(__file__).parent / "shipped"
SHIPPED_MANIFEST, KEYS, VECTORS, SKETCHING = "manifest.json", "keys.npy", "vectors.npy", "sketching.npy"

WORD_VECTORS = "words.bin"
"""File of the packaged models with the vectors of word pieces: those in bytes, then the scale of each."""

KEY_BYTES: Final = 16
"""First bytes of a hash that are kept: too many for anybody to make a text with the key of another."""

STORED: Final = "<f2"
"""Half precision: a cosine moves by at most 0.00005. Bytes would move it by 0.001."""


class ShippedVectors(Struct, frozen=True, eq=False):
    """The vectors of one model, by the hash of their texts; mapped, so that only those used take memory."""

    keys: NDArray[np.uint64]
    """[2, vectors]: the two halves of each key, ordered by the first."""
    vectors: NDArray[np.float16]
    """[vectors, dimensions], of norm 1."""

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors that are there of some texts, given by their SHA-256."""
        if not keys:
            return {}
        wanted = halves(keys)
        places = np.searchsorted(self.keys[0], wanted[0]).clip(max=self.keys.shape[1] - 1)
        found = np.flatnonzero((self.keys[:, places] == wanted).all(axis=0))
        rows = unit_rows(self.vectors[places[found]].astype(np.float32))
        return dict(zip((keys[at] for at in found.tolist()), rows, strict=True))


def halves(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return [2, keys]: the first bytes of each hash, as two numbers."""
    kept = b"".join(key[:KEY_BYTES] for key in keys)
    return np.frombuffer(kept, "<u8").reshape(-1, 2).T.astype(np.uint64)


@cache
def shipped_vectors(model_id: str, folder: Path = SHIPPED) -> ShippedVectors | None:
    """Open the packaged vectors of a model; None if they are another's, or, with a warning, if damaged."""

    def opened() -> ShippedVectors:
        # Keys are read: each search of them looks at all. Of the vectors only some rows are.
        keys = np.load(folder / KEYS, allow_pickle=False).astype(np.uint64)
        return ShippedVectors(keys, np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False))

    return _shipped(model_id, folder, (KEYS, VECTORS), opened)


class Sketcher(Struct, frozen=True, eq=False):
    """Guesses the vectors of texts from those of their word pieces: in a hundredth of the model's time.

    The mean of the pieces is moved to where the model would put the text by a linear map, which was fitted on
    the tools that the model was trained on. A guess is too rough to rank by; but of the five tools that are
    best in the end, 94 of 100 are among the 32 best by guesses and the 32 best by words.
    """

    pieces: NDArray[np.int8]
    """[pieces, dimensions]; mapped, so that only those used take memory."""
    scales: NDArray[np.float32]
    """What 1 of each piece stands for."""
    sketching: NDArray[np.float32]
    """[dimensions + 1, dimensions]: the map; its last row is added."""

    def of(self, texts: Sequence[Sequence[int]]) -> Matrix:
        """Return the guess for each text, given by its word pieces, at least one."""
        pieces = np.fromiter((piece for text in texts for piece in text), np.int64)
        sizes = np.array([len(text) for text in texts], np.int64)
        rows = self.pieces[pieces] * self.scales[pieces, None]
        means = np.add.reduceat(rows, np.cumsum(sizes) - sizes) / sizes[:, None]
        return unit_rows((means @ self.sketching[:-1] + self.sketching[-1]).astype(np.float32))


@cache
def shipped_sketcher(model_id: str, folder: Path = SHIPPED) -> Sketcher | None:
    """Open the map of a packaged model; None if it is another's, or, with a warning, if damaged."""

    def opened() -> Sketcher:
        sketching = np.load(folder / SKETCHING, allow_pickle=False).astype(np.float32)
        return Sketcher(*word_vectors(sketching.shape[1]), sketching)

    return _shipped(model_id, folder, (SKETCHING,), opened)


def word_vectors(dimensions: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Map the vectors of word pieces that the packaged models read, and read the scale of each."""
    content = np.memmap(PACKAGED_MODEL / WORD_VECTORS, np.int8, "r")
    size = np.dtype(np.float32).itemsize
    pieces = content.size // (dimensions + size)
    return content[: pieces * dimensions].reshape(pieces, dimensions), np.frombuffer(
        content[pieces * dimensions :].tobytes(), "<f4"
    ).astype(np.float32)


Shipped = TypeVar("Shipped")


def _shipped(
    model_id: str, folder: Path, names: Iterable[str], opened: Callable[[], Shipped]
) -> Shipped | None:
    try:
        facts = json.loads((folder / SHIPPED_MANIFEST).read_text(encoding="utf-8"))
        if facts["model_id"] != model_id:
            return None
        for name in names:
            if digest(folder / name) != facts["sha256"][name]:
                raise ValueError(f"{name} has another hash than {SHIPPED_MANIFEST} says")
        return opened()
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("The packaged vectors in %s cannot be used: %s. Reinstall the package.", folder, error)
        return None
