"""Computes sentence vectors with an ONNX model on disk: offline, on the CPU, deterministic, small in memory.

The runtime is imported when a graph is opened, and the tokenizer library when a tokenizer is: a proxy that
never searches never pays for them. The runtime uses one thread per run and records nothing about its use.

The tokenizer of the packaged model also estimates how many tokens a text costs a chat model (`TokenCounter`).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from mcp_context_proxy.config import EmbeddingConfig
from mcp_context_proxy.embedding.embedder import NORM_TOLERANCE, Matrix, unit_rows
from mcp_context_proxy.embedding.folder import (
    BASE_MODEL,
    PACKAGED_MODEL,
    REINSTALL,
    TOKENIZER,
    ModelFolder,
    model_of,
    read_folder,
)
from mcp_context_proxy.errors import ModelError

BULK_THREADS = 2
"""Texts embedded at the same time. Two runs of one thread each do half as much again as one run of two
(650 against 420 short texts a second on two cores); more would take the cores of the servers behind us."""

MAX_CHARACTERS = 16_384
"""A text is cut here before it is tokenised. A model reads some hundred word pieces, 2,000 characters; the
tokenizer would go through all of a text of megabytes before it cuts."""

UNIT_OUTPUT = "embedding"
"""The output of graphs made by scripts/build_model.py: it has norm 1 already."""
WHOLE_OUTPUTS = (UNIT_OUTPUT, "sentence_embedding")
"""Outputs that are a text's vector; any other first output has a vector per token."""
INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
"""The inputs of a graph that are supported."""
REFUSED = "use a sentence-transformers model of the encoder kind, exported as ONNX"

NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""The environment variable that keeps onnxruntime from recording its use."""
ERRORS_ONLY = 3
"""onnxruntime's severity; its warnings are about hardware the proxy does not use."""
UNSIGNED_WEIGHTS = "session.x64quantprecision"
"""onnxruntime's option that makes signed weights unsigned on x86 without VNNI, where products saturate."""
MATRIX_TILES = "amx_int8"
"""A processor with these multiplies signed weights exactly, three times as fast as unsigned ones; there the
option would only slow it down (seen with onnxruntime 1.31)."""


_loaded: WeakValueDictionary[ModelFolder, OnnxModel] = WeakValueDictionary()
"""Models that are in use. Several proxies of one process have each in memory once: 23 MB, 0.1 s to open."""


def load_model(directory: Path | None = None, settings: EmbeddingConfig | None = None) -> OnnxModel:
    """Load the configured model, by default the packaged one, or the one in ``directory``. Blocking.

    A model that is in use is shared, if its files and settings are still the same.

    Raises:
        ModelError: a file is missing or damaged, or the runtime cannot use it.
    """
    settings = settings or EmbeddingConfig()
    directory = model_of(settings) if directory is None else directory
    folder = read_folder(directory, settings)
    if (shared := _loaded.get(folder)) is not None:
        return shared
    remedy = REINSTALL if directory in (PACKAGED_MODEL, BASE_MODEL) else REFUSED
    try:
        session = open_session(folder.graph, folder.optimised)
        tokenizer = open_tokenizer(folder.tokenizer, folder.max_tokens)
        outputs = {output.name for output in session.get_outputs()}
        if unknown := unknown_inputs(session):
            raise ModelError(folder.graph, unknown, REFUSED)
        if not folder.is_whole and outputs.isdisjoint(WHOLE_OUTPUTS):
            reason = "its modules.json has a Dense layer that its graph lacks"
            raise ModelError(
                folder.graph, reason, "export it so that the graph has the output sentence_embedding"
            )
        model = OnnxModel(folder, session, tokenizer)
        probe = model.embed([""])
    except ModelError:
        raise
    except Exception as e:  # boundary: both libraries raise a class of their own for every fault
        raise ModelError(directory, f"the runtime refuses it: {e}", remedy) from e
    if probe.shape != (1, model.dimensions) or not abs(np.linalg.norm(probe) - 1) <= NORM_TOLERANCE:
        raise ModelError(directory, f"it does not give unit vectors of {model.dimensions} numbers", remedy)
    _loaded[folder] = model
    return model


class OnnxModel:
    """A loaded sentence-embedding model. Blocking and thread-safe."""

    def __init__(self, folder: ModelFolder, session: Any, tokenizer: Any) -> None:
        self._folder, self._session, self._tokenizer = folder, session, tokenizer
        outputs = [output.name for output in session.get_outputs()]
        self._output = next((name for name in WHOLE_OUTPUTS if name in outputs), outputs[0])
        self._inputs = inputs_of(session)
        # Two pools, so that a query does not wait for a catalog that is being indexed.
        self._passages = ThreadPoolExecutor(BULK_THREADS, "embedding")
        self._queries = ThreadPoolExecutor(BULK_THREADS, "embedding-queries")
        self.model_id = folder.model_id
        self.dimensions = folder.dimensions or self._embed_one("").shape[1]

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per text. Only the first word pieces count, as many as the model reads."""
        return self._embed_all(texts, self._folder.passage_prefix, self._passages)

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per query."""
        return self._embed_all(texts, self._folder.query_prefix, self._queries)

    def close(self) -> None:
        """Do nothing: a run takes milliseconds; memory and idle threads go with the object."""

    def _embed_all(self, texts: Sequence[str], prefix: str, pool: ThreadPoolExecutor) -> Matrix:
        cut = [prefix + text[:MAX_CHARACTERS] for text in texts]
        if not cut:
            return np.empty((0, self.dimensions), np.float32)
        others: Iterator[Matrix]
        try:
            futures = [pool.submit(self._embed_one, text) for text in cut[1:]]
            others = (future.result() for future in futures)
        except RuntimeError:  # the system gives no more threads
            others = map(self._embed_one, cut[1:])
        # This thread does its share: two texts, as most queries have, wait for one other thread.
        return np.concatenate([self._embed_one(cut[0]), *others])

    def _embed_one(self, text: str) -> Matrix:
        # JSON can carry half a surrogate pair; the tokenizer takes Unicode only.
        unicode = text.encode("utf-8", "replace").decode("utf-8")
        ids = self._tokenizer.encode(unicode).ids
        (output,) = self._session.run([self._output], feed(self._inputs, ids, [0] * len(ids)))
        vector = np.asarray(output, np.float32)
        if vector.ndim == 3:
            vector = vector[:, 0] if self._folder.pooling == "cls" else vector.mean(axis=1)
        return vector if self._output == UNIT_OUTPUT else unit_rows(vector)


def open_session(path: Path, optimised: bool = False) -> Any:
    """Open a graph, ready to run; raises whatever the runtime raises.

    An ``optimised`` graph is run unchanged, if the processor allows it: it opens in half the time and gives
    the same vectors.
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
    try:
        processor = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        processor = ""  # not Linux
    if MATRIX_TILES not in processor:
        # The optimiser applies this option, so it must run.
        options.add_session_config_entry(UNSIGNED_WEIGHTS, "1")
    elif optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # From the path: bytes would stay in memory a second time.
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs_of(session: Any) -> dict[str, Any]:
    """Return the type of each input of a graph, by name."""
    return {one.name: np.int32 if "int32" in one.type else np.int64 for one in session.get_inputs()}


def unknown_inputs(session: Any) -> str:
    """Return why a graph cannot be fed; empty if it can."""
    unknown = [one.name for one in session.get_inputs() if one.name not in INPUTS]
    return f"its graph needs the unsupported input {', '.join(unknown)}" if unknown else ""


def feed(inputs: dict[str, Any], ids: Sequence[int], types: Sequence[int]) -> dict[str, Any]:
    """Return the inputs of a run with one text: no padding, and a mask of ones."""
    values = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": types}
    return {name: np.array([values[name]], kind) for name, kind in inputs.items()}


PUNCTUATION = 4
"""Characters of punctuation per token. Over 1,035 real definitions the estimate is then 5 % above Claude's
last published tokenizer, 11 % above cl100k, 8 % above o200k; over markdown 2 to 4 %. With 3: 8 % more."""

WORDS_KEPT = 32_768
"""Words with a known count, in about 4 MB: definitions share nearly all of their words."""

WORD_CHARACTERS = 64
"""A longer run of letters and digits is counted in parts."""

_WORD = re.compile(rf"\w{{1,{WORD_CHARACTERS}}}|[^\w\s]+")

_opened: dict[Path, Any] = {}
"""The tokenizers opened, by file."""


def open_tokenizer(path: Path, max_tokens: int) -> Any:
    """Open a tokenizer that cuts a text, or a pair of texts, after ``max_tokens``.

    Raises whatever the library raises.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - see the module docstring

    tokenizer = _opened[path] = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(max_tokens)
    tokenizer.no_padding()
    return tokenizer


class TokenCounter:
    """Estimates the tokens of texts. Blocking and thread-safe; the vocabulary is read at the first text.

    The tokenizer is WordPiece with the vocabulary of BERT (uncased). The models that hosts use have other
    tokenizers, most of them unpublished. Punctuation is counted in runs: their tokenizers take ``":{"`` as
    one token or two, BERT's as four.
    """

    def __init__(self, directory: Path = PACKAGED_MODEL) -> None:
        self._file = directory / TOKENIZER
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._count_word = lru_cache(WORDS_KEPT)(self._pieces)

    def count(self, text: str) -> int:
        """Return the estimated number of tokens of a text."""
        return sum(map(self._count_word, _WORD.findall(text)))

    def _pieces(self, word: str) -> int:
        if not (word[0].isalnum() or word[0] == "_"):
            return -(-len(word) // PUNCTUATION)
        with self._lock:
            if self._tokenizer is None:
                from tokenizers import Tokenizer  # noqa: PLC0415 - see the module docstring

                # The vocabulary is shared with a tokenizer opened from the same file: reading it takes 25 ms,
                # during which no other thread runs. This one neither cuts texts nor adds special tokens.
                known = _opened.get(self._file) or Tokenizer.from_file(str(self._file))
                tokenizer = self._tokenizer = Tokenizer(known.model)
                tokenizer.normalizer, tokenizer.pre_tokenizer = known.normalizer, known.pre_tokenizer
        return len(self._tokenizer.encode(word, add_special_tokens=False).ids)
