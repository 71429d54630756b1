"""Sentence vectors from all-MiniLM-L6-v2 on the CPU: offline, deterministic, small in memory.

The runtime and the tokenizer are imported when a model is loaded and not before, so that a proxy that never
searches never pays for them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mcp_context_proxy.embedding.embedder import Matrix
from mcp_context_proxy.embedding.manifest import GRAPH, TOKENIZER, Manifest, verified_manifest
from mcp_context_proxy.errors import ModelError

PACKAGED_MODEL = Path(__file__).parent / "files"
"""The model that comes with the package; its origin is told in PROVENANCE.md beside it."""

BULK_THREADS = 2
"""Texts embedded at the same time. Two runs of one thread each do half as much again as one run of two
(650 against 420 short texts a second on two cores); more would take the cores of the servers behind us."""
MAX_CHARACTERS = 16_384
"""A text is cut here before it is tokenised. The model reads 256 word pieces, some 1,000 characters; the
tokenizer would go through all of a text of megabytes before it cuts."""
NORM_TOLERANCE = 1e-3
"""How far a unit vector's length may be from 1."""
NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""The environment variable that keeps onnxruntime from recording what it is used for."""
ERRORS_ONLY = 3
"""onnxruntime's severity; its warnings are about hardware the proxy does not use."""


class MiniLM:
    """A loaded sentence-embedding model. Blocking and thread-safe."""

    def __init__(self, manifest: Manifest, session: Any, tokenizer: Any) -> None:
        self._manifest, self._session, self._tokenizer = manifest, session, tokenizer

    @property
    def model_id(self) -> str:
        """Name and content hash of the model."""
        return self._manifest.model_id

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._manifest.dimensions

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One unit vector per text. Only the first 256 word pieces of a text count."""
        if len(texts) <= 1:
            rows = [self._embed_one(text) for text in texts]
        else:
            with ThreadPoolExecutor(BULK_THREADS, "embedding") as pool:
                rows = list(pool.map(self._embed_one, texts))
        return np.concatenate(rows) if rows else np.empty((0, self.dimensions), np.float32)

    def _embed_one(self, text: str) -> Matrix:
        # JSON can carry half a surrogate pair; the tokenizer takes Unicode only.
        unicode = text[:MAX_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
        ids = np.array([self._tokenizer.encode(unicode).ids], np.int64)
        (vector,) = self._session.run(["embedding"], {"input_ids": ids})
        return np.asarray(vector, np.float32)


def load_model(directory: Path | None = None) -> MiniLM:
    """Load the packaged model, or one that scripts/build_model.py wrote to ``directory``. Blocking.

    Raises:
        ModelError: a file is missing or damaged, or the runtime cannot use it.
    """
    packaged = directory is None or directory == PACKAGED_MODEL
    remedy = (
        "reinstall mcp-context-proxy"
        if packaged
        else "build it again with scripts/build_model.py, or remove the setting to use the packaged model"
    )
    directory = PACKAGED_MODEL if directory is None else directory
    manifest = verified_manifest(directory, remedy)
    try:
        model = MiniLM(manifest, _open_session(directory / GRAPH), _open_tokenizer(directory, manifest))
        probe = model.embed([""])
    except Exception as e:  # boundary: both libraries raise a class of their own for every fault
        raise ModelError(directory, f"the runtime refuses it: {e}", remedy) from e
    if probe.shape != (1, manifest.dimensions) or not abs(np.linalg.norm(probe) - 1) <= NORM_TOLERANCE:
        raise ModelError(directory, f"it does not give unit vectors of {manifest.dimensions} numbers", remedy)
    return model


def _open_session(path: Path) -> Any:
    # Read when the library is loaded: later, it has already left a device id in the user's cache folder.
    os.environ[NO_TELEMETRY] = "1"
    import onnxruntime  # noqa: PLC0415 - see the module docstring

    onnxruntime.set_default_logger_severity(ERRORS_ONLY)
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    # Concurrency comes from the caller's threads; a pool per session would spin between runs.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # From the path and not from bytes: those would stay in memory a second time.
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _open_tokenizer(directory: Path, manifest: Manifest) -> Any:
    from tokenizers import Tokenizer  # noqa: PLC0415 - see the module docstring

    tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
    tokenizer.enable_truncation(manifest.max_tokens)
    tokenizer.no_padding()
    return tokenizer
