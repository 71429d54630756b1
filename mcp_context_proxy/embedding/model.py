"""Sentence vectors from a model on disk, on the CPU: offline, deterministic, small in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mcp_context_proxy.config import EmbeddingConfig
from mcp_context_proxy.embedding.embedder import NORM_TOLERANCE, Matrix, unit_rows
from mcp_context_proxy.embedding.folder import PACKAGED_MODEL, REINSTALL, ModelFolder, read_folder
from mcp_context_proxy.embedding.runtime import INPUTS, feed, inputs_of, open_session, open_tokenizer
from mcp_context_proxy.errors import ModelError

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
