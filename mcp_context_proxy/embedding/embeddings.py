"""The embedding model: computed on the CPU, opened at its first use, shared by all threads, with caches.

`OnnxModel` computes sentence vectors with a model on disk: offline, deterministic, small in memory. The
runtime is imported when a graph is opened, and the tokenizer library when a tokenizer is: a proxy that never
searches never pays for them. The runtime uses one thread per run and records nothing about its use.
`TokenCounter` estimates with the tokenizer of the packaged model how many tokens a text costs a chat model,
and `Costs` remembers those of tools and documents.

`LazyModel` opens the configured model at its first use and leaves a failing one alone for a while.
`CachedEmbedder` embeds texts of the catalog and keeps their vectors in the store. `QueryEmbedder` embeds
queries and keeps the latest ones in memory only: the store must not reveal queries.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec import Raw, Struct

from mcp_context_proxy.config import Config, EmbeddingConfig
from mcp_context_proxy.embedding import (
    BASE_MODEL,
    NORM_TOLERANCE,
    PACKAGED_MODEL,
    REINSTALL,
    TOKENIZER,
    EmbeddingModel,
    Matrix,
    ModelFolder,
    are_unit,
    model_of,
    read_folder,
    shipped_sketcher,
    shipped_vectors,
    unit_rows,
)
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError, StoreError
from mcp_context_proxy.items import Document, Item, Snapshot, Tool, Vector
from mcp_context_proxy.store.tables import VectorStore
from mcp_context_proxy.system.later import np, pattern
from mcp_context_proxy.system.threads import Threads, keep_latest

logger = logging.getLogger(__name__)

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
FEW = 8
"""Texts after which the runtime keeps the memory that they took: no more than a request has."""
INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
"""The inputs of a graph that are supported."""
REFUSED = "use a sentence-transformers model of the encoder kind, exported as ONNX"

NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""The environment variable that keeps onnxruntime from recording its use."""
ERRORS_ONLY = 3
"""onnxruntime's severity; its warnings are about hardware the proxy does not use."""
UNSIGNED_WEIGHTS = "session.x64quantprecision"
"""onnxruntime's option that makes signed weights unsigned on x86 without VNNI, where products saturate."""
EXACT_PRODUCTS = ("amx_int8", "avx512_vnni", "avx_vnni")
"""Features of processors that multiply signed weights exactly, and two (VNNI) or three times (AMX) as fast as
unsigned ones: there the option would only slow a run down. The vectors are the same bytes."""

_loaded: WeakValueDictionary[ModelFolder, OnnxModel] = WeakValueDictionary()
"""Models that are in use. Several proxies of one process have each in memory once: 23 MB, 0.1 s to open."""


def load_model(directory: Path | None = None, settings: EmbeddingConfig | None = None) -> OnnxModel:
    """Load the configured model, by default the packaged one, or the one in ``directory``. Blocking.

    A model that is in use is shared, if its files and settings are still the same. Raises `ModelError` if a
    file is missing or damaged, or the runtime cannot use it.
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
        self._passages = Threads(BULK_THREADS, "embedding")
        self._queries = Threads(BULK_THREADS, "embedding-queries")
        self.model_id = folder.model_id
        self._shortest = feed(self._inputs, ids := tokenizer.encode("").ids, [0] * len(ids))
        """The inputs of an empty text."""
        self.dimensions = folder.dimensions or self._embed_one("").shape[1]

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per text. Only the first word pieces count, as many as the model reads."""
        vectors = self._embed_all(texts, self._folder.passage_prefix, self._passages)
        if len(texts) > FEW:
            self._session.run([self._output], self._shortest, _giving_back())
        return vectors

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        return self._embed_all(texts, self._folder.query_prefix, self._queries)

    def close(self) -> None:
        """Do nothing: a run takes milliseconds; memory and idle threads go with the object."""

    def _embed_all(self, texts: Sequence[str], prefix: str, pool: Threads) -> Matrix:
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
    # The runtime imports a part of numpy. Where another thread is still importing numpy, that fails, and
    # then none of them has it any more: so this thread waits here until the whole is there.
    import numpy  # noqa: F401, PLC0415
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
    if not any(feature in processor for feature in EXACT_PRODUCTS):
        # The optimiser applies this option, so it must run.
        options.add_session_config_entry(UNSIGNED_WEIGHTS, "1")
    elif optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # From the path: bytes would stay in memory a second time.
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@cache
def _giving_back() -> Any:
    """Return options of a run that ends with the return of free memory to the system.

    By itself the runtime keeps what its longest texts have needed: 10 MB more after a catalog was embedded.
    Without that memory each run of a long text takes half as much time again.
    """
    import onnxruntime  # noqa: PLC0415 - see the module docstring

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


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

_WORD = pattern(rf"\w{{1,{WORD_CHARACTERS}}}|[^\w\s]+")

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


@cache
def whole_tokenizer() -> Any:
    """Return the packaged tokenizer, which neither cuts texts nor adds special tokens.

    The vocabulary is shared with a tokenizer opened from the same file: reading it takes 25 ms, during which
    no other thread runs.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - see the module docstring

    file = PACKAGED_MODEL / TOKENIZER
    known = _opened.get(file) or Tokenizer.from_file(str(file))
    tokenizer = Tokenizer(known.model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = known.normalizer, known.pre_tokenizer
    return tokenizer


COUNTED_CHARACTERS = 400
COUNTS_KEPT = 4_096
"""Texts up to that length whose counts are kept, in 1 MB: answers have the lines of the same tools again."""


class TokenCounter:
    """Estimates the tokens of texts. Blocking and thread-safe; the vocabulary is read at the first text.

    The tokenizer is WordPiece with the vocabulary of BERT (uncased). The models that hosts use have other
    tokenizers, most of them unpublished. Punctuation is counted in runs: their tokenizers take ``":{"`` as
    one token or two, BERT's as four.
    """

    def __init__(self) -> None:
        self._count_word = lru_cache(WORDS_KEPT)(self._pieces)
        self._count_line = lru_cache(COUNTS_KEPT)(self._sum)

    def count(self, text: str) -> int:
        return self._count_line(text) if len(text) <= COUNTED_CHARACTERS else self._sum(text)

    def _sum(self, text: str) -> int:
        return sum(map(self._count_word, _WORD.findall(text)))

    def _pieces(self, word: str) -> int:
        if not (word[0].isalnum() or word[0] == "_"):
            return -(-len(word) // PUNCTUATION)
        return len(whole_tokenizer().encode(word, add_special_tokens=False).ids)


T = TypeVar("T")

RETRY_SECONDS = 30.0
"""Pause after a failure of the model. A search may wait for a dead endpoint once in this time."""

BATCH = 32
"""Texts between two writes, two reports of progress and two checks for cancellation: about a tenth of a
second of work with the packaged model, the most that an interrupted indexing can lose."""

SKETCHED_CHARACTERS = 200
"""Characters of a text that its sketch is made of: the name and the first sentence. More add nothing."""

REMEMBERED_QUERIES = 1000
"""The texts of a hundred requests with all their sentences: 1.5 MB."""


def open_model(config: Config) -> EmbeddingModel:
    """Open the configured model. Blocking for a model on disk; an endpoint is asked at its first use."""
    settings = config.embedding
    if settings.endpoint is not None:
        # Imported here: the HTTP client takes long to import, and only endpoints need it this early.
        from mcp_context_proxy.embedding.endpoint import EndpointModel  # noqa: PLC0415

        return EndpointModel(settings, config.limits)
    return load_model(settings=settings)


def check_model_files(config: Config) -> None:
    """Read the files of the configured model without opening it, or raise a `ModelError`. Blocking."""
    settings = config.embedding
    if settings.endpoint is None:
        read_folder(model_of(settings), settings)


class LazyModel:
    """A model shared by all threads, opened at its first use.

    A model that could not be opened is not tried again. After a failure in use, callers get the same error
    for `RETRY_SECONDS` without waiting for the model. Each failure is logged once.
    """

    def __init__(
        self,
        load: Callable[[], EmbeddingModel] = load_model,
        *,
        clock: Callable[[], float] = time.monotonic,
        check: Callable[[], None] = lambda: None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Open nothing yet; ``check`` raises `ModelError` if the files show that ``load`` would fail."""
        self._load, self._clock, self._check = load, clock, check
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._model: EmbeddingModel | None = None
        self.error: ModelError | None = None
        """The latest failure; None before the first use, and while the model works."""
        self._retry_at = 0.0

    @property
    def loaded(self) -> bool:
        """True once `get` answers at once."""
        return self._model is not None

    def check(self) -> None:
        """Find out early whether the model can be opened, and log it if not. Blocks for a moment."""
        with self._lock:
            if self._model is None and self.error is None:
                try:
                    self._check()
                except ModelError as error:
                    self._failed(error)

    def get(self) -> EmbeddingModel:
        """Return the model, even while it fails; blocks while it is opened for the first time.

        Raises `ModelError` if it could not be opened, now or at the first attempt.
        """
        with self._lock:
            if self._model is None and self.error is None:
                try:
                    self._model = self._load()
                except ModelError as error:
                    self._failed(error)
            if self._model is not None:
                return self._model
            assert self.error is not None
            raise self.error.with_traceback(None)

    def run(self, use: Callable[[EmbeddingModel], T]) -> T:
        """Call ``use`` with the model and return its result.

        Raises `ModelError` if the model cannot be opened, or it failed in use, now or a short while ago.
        """
        model = self.get()
        if (error := self.error) is not None and self._clock() < self._retry_at:
            raise error.with_traceback(None)
        try:
            result = use(model)
        except ModelError as failure:
            self._failed(failure)
            raise
        if self.error is not None:
            self.error = None
            logger.warning("The embedding model works again: search uses words and meaning again.")
        return result

    def close(self) -> None:
        """Release the model; waiting callers get an error at once. Does not block."""
        if self._model is not None:
            self._model.close()

    def _failed(self, error: ModelError) -> None:
        if self.error is None:
            logger.error("%s. Until then search uses words alone.", error)
        self.error, self._retry_at = error, self._clock() + self._retry_seconds


class CachedEmbedder:
    """Embeds texts of the catalog, each once per model: later its vector comes from the store.

    A text is found by its hash. A stored vector is used only if the model can have made it (length, finite,
    norm 1). For anything else, and for anything that the store fails to give, the package may have the vector
    (`shipped_vectors`); what it lacks is computed.
    """

    def __init__(self, model: LazyModel, store: VectorStore) -> None:
        self._model, self._store = model, store

    def embed(
        self,
        texts: Sequence[str],
        on_progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Matrix:
        """Return one unit vector per text, in order.

        ``on_progress(done, total)`` counts distinct texts: first those from the store, then after each batch.
        Raises `ModelError` if there is no model or it failed, and `EmbeddingCancelledError` if
        ``cancelled()`` became true; the vectors made until then are stored.
        """
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        distinct = dict(zip(keys, texts, strict=True))
        report = on_progress or (lambda _done, _total: None)

        def embed(model: EmbeddingModel) -> Matrix:
            try:
                found = self._store.get(model.model_id, list(distinct))
            except StoreError:
                found = {}
            usable = are_unit(list(found.values()), model.dimensions)
            vectors = {key: vector for (key, vector), ok in zip(found.items(), usable, strict=True) if ok}
            missing = [key for key in distinct if key not in vectors]
            if missing and (shipped := shipped_vectors(model.model_id)) is not None:
                vectors |= shipped.get(missing)
                missing = [key for key in missing if key not in vectors]
            report(len(vectors), len(distinct))
            for start in range(0, len(missing), BATCH):
                if cancelled():
                    raise EmbeddingCancelledError(len(vectors), len(distinct))
                batch = missing[start : start + BATCH]
                fresh = dict(zip(batch, model.embed([distinct[key] for key in batch]), strict=True))
                # A vector that cannot be stored is computed again at the next start.
                with contextlib.suppress(StoreError):
                    self._store.put(model.model_id, fresh)
                vectors |= fresh
                report(len(vectors), len(distinct))
            return np.array([vectors[key] for key in keys], np.float32).reshape(len(keys), model.dimensions)

        return self._model.run(embed)

    def sketches(self, texts: Sequence[str]) -> Matrix | None:
        """Return guesses of the vectors of texts (`Sketcher`), in order; None without a map for the model.

        Raises `ModelError` if the model cannot be opened.
        """
        if (sketcher := shipped_sketcher(self._model.get().model_id)) is None:
            return None
        tokenizer = whole_tokenizer()
        cut = (text[:SKETCHED_CHARACTERS].encode("utf-8", "replace").decode("utf-8") for text in texts)
        return sketcher.of([tokenizer.encode(text, add_special_tokens=False).ids or [0] for text in cut])


class Lookups(Struct):
    """Counts the hits and misses of a cache."""

    hits: int = 0
    misses: int = 0


class QueryEmbedder:
    """Embeds queries and remembers the latest ones in memory. Blocking and thread-safe.

    One request embeds the same texts several times: for tools, for documents, for related items, and for
    learning.
    """

    def __init__(self, model: LazyModel, remembered: int = REMEMBERED_QUERIES) -> None:
        self._model, self._remembered = model, remembered
        self._lock = threading.Lock()
        self._latest: OrderedDict[str, Vector] = OrderedDict()
        self._model_id = ""
        self.lookups = Lookups()

    def embed(self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> Matrix:
        """Return one unit vector per text, in order; reports no progress."""
        del on_progress
        return self.vectors(texts)[1]

    def vectors(self, texts: Sequence[str]) -> tuple[str, Matrix]:
        """Return the model's id, and one unit vector per text, in order."""
        distinct = list(dict.fromkeys(texts))
        with self._lock:
            known = {text: self._latest[text] for text in distinct if text in self._latest}
            for text in known:
                self._latest.move_to_end(text)
            self.lookups.hits += len(known)
            self.lookups.misses += len(distinct) - len(known)
        missing = [text for text in distinct if text not in known]
        # Without texts the model is asked too: its id and its dimensions are the answer.
        if missing or not texts:
            self._model_id, rows = self._model.run(lambda one: (one.model_id, one.embed_queries(missing)))
            if not texts:
                return self._model_id, rows
            fresh = dict(zip(missing, rows, strict=True))
            known |= fresh
            with self._lock:
                self._latest.update(fresh)
                while len(self._latest) > self._remembered:
                    self._latest.popitem(last=False)
        return self._model_id, np.stack([known[text] for text in texts])


ITEMS_KEPT = 20_000
"""Items whose costs are cached, in some 3 MB."""


class Costs:
    """Estimates the tokens that a model needs to read items, once for each version of an item.

    A tool costs its definition as listed, a document its text. Blocks for about 0.2 ms for a new item.
    Thread-safe.
    """

    def __init__(self, counter: TokenCounter, definition: Callable[[Tool], Raw]) -> None:
        self.count = counter.count
        """Returns the tokens of a text, which are not remembered."""
        self._definition = definition
        self._known: OrderedDict[str, int] = OrderedDict()
        self._counting, self._keeping = threading.Lock(), threading.Lock()

    def of(self, item: Item) -> int:
        known = self._known.get(item.fingerprint)
        if known is None:
            if isinstance(item, Document):
                text = item.text
            else:
                text = bytes(self._definition(item)).decode("utf-8", "replace")
            known = self.count(text)
            with self._keeping:
                keep_latest(self._known, item.fingerprint, known, ITEMS_KEPT)
        return known

    def know(self, tokens: Mapping[str, int]) -> None:
        """Take the counts of an earlier run, by fingerprint, as far as there is room."""
        for fingerprint, count in islice(tokens.items(), max(0, ITEMS_KEPT - len(self._known))):
            self._known.setdefault(fingerprint, count)

    def behind(self, snapshot: Snapshot) -> int | None:
        """Return the tokens of a whole snapshot, which a model would read without the proxy.

        None while another thread counts them: the first count of a large catalog takes seconds.
        """
        if not self._counting.acquire(blocking=False):
            return None
        try:
            tools, documents = snapshot.tools.values(), snapshot.documents.values()
            return sum(map(self.of, tools)) + sum(map(self.of, documents))
        finally:
            self._counting.release()
