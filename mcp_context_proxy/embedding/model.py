"""Sentence vectors from a model on disk, on the CPU: offline, deterministic, small in memory.

Opens graphs and tokenizers: offline, on the CPU, one thread a run, nothing recorded about their use.

Both libraries are imported when something is opened and not before, so that a proxy that never searches never
pays for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mcp_context_proxy.config import EmbeddingConfig
from mcp_context_proxy.embedding.embedder import NORM_TOLERANCE, Matrix, unit_rows
from mcp_context_proxy.embedding.folder import PACKAGED_MODEL, REINSTALL, ModelFolder, read_folder
from mcp_context_proxy.errors import ModelError

NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""The environment variable that keeps onnxruntime from recording what it is used for."""
ERRORS_ONLY = 3
"""onnxruntime's severity; its warnings are about hardware the proxy does not use."""

UNSIGNED_WEIGHTS = "session.x64quantprecision"
"""onnxruntime's option that makes signed weights unsigned on x86 without VNNI, where products saturate."""
MATRIX_TILES = "amx_int8"
"""A processor with these multiplies signed weights exactly, three times as fast as unsigned ones; there the
option would only slow it down (seen with onnxruntime 1.31)."""

INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
"""What a graph may ask for."""

_read: dict[Path, Any] = {}
"""The tokenizers opened, by file."""


def open_session(path: Path, optimised: bool = False) -> Any:
    """A graph, ready to run; raises whatever the runtime does.

    One that is ``optimised`` is run as it is, where the processor allows it: it opens in half the time, and
    its vectors are the same.
    """
    # Read when the library is loaded: later, it has already left a device id in the user's cache folder.
    os.environ[NO_TELEMETRY] = "1"
    import onnxruntime  # noqa: PLC0415 - see the module docstring

    onnxruntime.set_default_logger_severity(ERRORS_ONLY)
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    # Concurrency comes from the caller's threads; a pool per session would spin between runs.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if MATRIX_TILES not in _processor():
        # A step of the optimiser, which is needed for it.
        options.add_session_config_entry(UNSIGNED_WEIGHTS, "1")
    elif optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # From the path and not from bytes: those would stay in memory a second time.
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _processor() -> str:
    """What Linux says of the processors; nothing elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def open_tokenizer(path: Path, max_tokens: int) -> Any:
    """A tokenizer that cuts a text, or a pair of them, after so many tokens; raises what the library does."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - see the module docstring

    tokenizer = _read[path] = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(max_tokens)
    tokenizer.no_padding()
    return tokenizer


def open_vocabulary(path: Path) -> Any:
    """A tokenizer of words alone, which cuts nothing and adds nothing; raises what the library does.

    Shares the vocabulary of the last one opened from the same file: reading it takes 25 ms, in which no other
    thread runs.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - see the module docstring

    known = _read.get(path) or Tokenizer.from_file(str(path))
    words = Tokenizer(known.model)
    words.normalizer, words.pre_tokenizer = known.normalizer, known.pre_tokenizer
    return words


def inputs_of(session: Any) -> dict[str, Any]:
    """What a graph asks for, each with its type."""
    return {one.name: np.int32 if "int32" in one.type else np.int64 for one in session.get_inputs()}


def feed(inputs: dict[str, Any], ids: Sequence[int], types: Sequence[int]) -> dict[str, Any]:
    """One text a run, so no padding and a mask of ones."""
    values = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": types}
    return {name: np.array([values[name]], kind) for name, kind in inputs.items()}


BULK_THREADS = 2
"""Texts embedded at the same time. Two runs of one thread each do half as much again as one run of two
(650 against 420 short texts a second on two cores); more would take the cores of the servers behind us."""
MAX_CHARACTERS = 16_384
"""A text is cut here before it is tokenised. A model reads some hundred word pieces, 2,000 characters; the
tokenizer would go through all of a text of megabytes before it cuts."""
UNIT_OUTPUT = "embedding"
"""What scripts/build_model.py calls the output of its graphs: it has norm 1 already."""
WHOLE_OUTPUTS = (UNIT_OUTPUT, "sentence_embedding")
"""Outputs that are a text's vector; any other first output has a vector per token."""
REFUSED = "use a sentence-transformers model of the encoder kind, exported as ONNX"


class OnnxModel:
    """A loaded sentence-embedding model. Blocking and thread-safe."""

    def __init__(self, folder: ModelFolder, session: Any, tokenizer: Any) -> None:
        self._folder, self._session, self._tokenizer = folder, session, tokenizer
        outputs = [output.name for output in session.get_outputs()]
        self._output = next((name for name in WHOLE_OUTPUTS if name in outputs), outputs[0])
        self._inputs = inputs_of(session)
        # Apart, so that a query does not wait for a catalog that is being indexed.
        self._passages = ThreadPoolExecutor(BULK_THREADS, "embedding")
        self._queries = ThreadPoolExecutor(BULK_THREADS, "embedding-queries")
        self.dimensions = folder.dimensions or self._embed_one("").shape[1]
        """Length of every vector."""

    @property
    def model_id(self) -> str:
        """Name and content hash of the model."""
        return self._folder.model_id

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One unit vector per text. Only the first word pieces count, as many as the model reads."""
        return self._embed_all(texts, self._folder.passage_prefix, self._passages)

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """The same for queries."""
        return self._embed_all(texts, self._folder.query_prefix, self._queries)

    def close(self) -> None:
        """Nothing to do: a run takes milliseconds; memory and idle threads go with the object."""

    def _embed_all(self, texts: Sequence[str], prefix: str, pool: ThreadPoolExecutor) -> Matrix:
        cut = [prefix + text[:MAX_CHARACTERS] for text in texts]
        if not cut:
            return np.empty((0, self.dimensions), np.float32)
        others = self._begun(cut[1:], pool)
        # This thread does its share: two texts, as most queries have, wait for one other thread.
        return np.concatenate([self._embed_one(cut[0]), *others])

    def _begun(self, texts: Sequence[str], pool: ThreadPoolExecutor) -> Iterator[Matrix]:
        """Their vectors, from other threads where the system gives any."""
        try:
            futures = [pool.submit(self._embed_one, text) for text in texts]
        except RuntimeError:  # no thread to be had
            return map(self._embed_one, texts)
        return (future.result() for future in futures)

    def _embed_one(self, text: str) -> Matrix:
        # JSON can carry half a surrogate pair; the tokenizer takes Unicode only.
        unicode = text.encode("utf-8", "replace").decode("utf-8")
        ids = self._tokenizer.encode(unicode).ids
        (output,) = self._session.run([self._output], feed(self._inputs, ids, [0] * len(ids)))
        vector = np.asarray(output, np.float32)
        if vector.ndim == 3:
            vector = vector[:, 0] if self._folder.pooling == "cls" else vector.mean(axis=1)
        return vector if self._output == UNIT_OUTPUT else unit_rows(vector)


def load_model(directory: Path | None = None, settings: EmbeddingConfig | None = None) -> OnnxModel:
    """Load the packaged model, or the one in ``directory``. Blocking.

    Raises:
        ModelError: a file is missing or damaged, or the runtime cannot use it.
    """
    directory = PACKAGED_MODEL if directory is None else directory
    folder = read_folder(directory, settings or EmbeddingConfig())
    remedy = REINSTALL if directory == PACKAGED_MODEL else REFUSED
    try:
        session = open_session(folder.graph, folder.optimised)
        tokenizer = open_tokenizer(folder.tokenizer, folder.max_tokens)
        _check_graph(folder, session)
        model = OnnxModel(folder, session, tokenizer)
        probe = model.embed([""])
    except ModelError:
        raise
    except Exception as e:  # boundary: both libraries raise a class of their own for every fault
        raise ModelError(directory, f"the runtime refuses it: {e}", remedy) from e
    if probe.shape != (1, model.dimensions) or not abs(np.linalg.norm(probe) - 1) <= NORM_TOLERANCE:
        told = f"it does not give unit vectors of {model.dimensions} numbers"
        raise ModelError(directory, told, remedy)
    return model


def _check_graph(folder: ModelFolder, session: Any) -> None:
    if unknown := [one.name for one in session.get_inputs() if one.name not in INPUTS]:
        raise ModelError(
            folder.graph, f"its graph wants {', '.join(unknown)}, which is not known here", REFUSED
        )
    outputs = {output.name for output in session.get_outputs()}
    if not folder.is_whole and outputs.isdisjoint(WHOLE_OUTPUTS):
        told = "its modules.json has a Dense layer that its graph has not"
        raise ModelError(folder.graph, told, "export it so that the graph has the output sentence_embedding")
