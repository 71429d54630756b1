"""The vectors of well-known tools come with the package, and are those that the model would give."""

import gzip
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from licences import ALLOWED, embedded

from mcp_context_proxy.catalog.definitions import parse_tools
from mcp_context_proxy.config import EmbeddingConfig, Limits, ServerConfig
from mcp_context_proxy.embedding import (
    MANIFEST,
    PACKAGED_MODEL,
    SHIPPED,
    SKETCHING,
    VECTORS,
    Matrix,
    read_folder,
    shipped_vectors,
    unit_rows,
)
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, OnnxModel, load_model
from mcp_context_proxy.retrieval.item_metadata import item_text
from mcp_context_proxy.store.opening import IN_MEMORY, Store, open_store

LISTS = Path(__file__).parents[1] / "data" / "tools"
MODEL_ID = read_folder(PACKAGED_MODEL, EmbeddingConfig()).model_id
FOUR_DIGITS = 0.00005
REBUILD = "run scripts/build_shipped_vectors.py"


class Lent:
    """The packaged model, which notes the texts that it is asked for."""

    def __init__(self, model: OnnxModel, model_id: str = MODEL_ID) -> None:
        self._model, self.model_id, self.dimensions = model, model_id, model.dimensions
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> Matrix:
        self.embedded += texts
        return self._model.embed(texts)


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(IN_MEMORY) as opened:
        yield opened


def texts_of(path: Path, several_servers: bool) -> list[str]:
    facts = json.loads(gzip.decompress(path.read_bytes()))
    definitions = [json.dumps(tool).encode() for tool in facts["tools"]]
    config = ServerConfig(name=path.name.split(".")[0])
    tools = parse_tools(config, definitions, iter, (41,), Limits()).tools
    return [text for tool in tools for text in item_text(tool, several_servers)[1]]


def keys_of(texts: Sequence[str]) -> list[bytes]:
    return [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]


def github() -> list[str]:
    return texts_of(LISTS / "github.json.gz", several_servers=True)


@pytest.mark.parametrize("several_servers", [False, True], ids=["one server", "several servers"])
def test_every_tool_of_the_recorded_servers_has_its_vector(several_servers: bool) -> None:
    """Fails where model, lists or the texts that are embedded have changed since the vectors were made."""
    shipped = shipped_vectors(MODEL_ID)
    assert shipped is not None, REBUILD
    texts = [text for path in sorted(LISTS.glob("*.gz")) for text in texts_of(path, several_servers)]

    assert len(shipped.get(keys_of(texts))) == len(set(texts)) > 1_400, REBUILD


def test_they_take_at_most_6_mb() -> None:
    files = [path for path in SHIPPED.glob("*[ny]") if path.name != SKETCHING]

    assert sum(path.stat().st_size for path in files) <= 6_000_000
    assert (SHIPPED / SKETCHING).stat().st_size <= 300_000


def test_they_are_those_that_the_model_gives(model: OnnxModel) -> None:
    """Another kind of processor moves single texts by up to 0.002 (PROVENANCE.md of the model)."""
    shipped, texts = shipped_vectors(MODEL_ID), github()[::2]
    assert shipped is not None
    found = shipped.get(keys_of(texts))

    assert (np.stack(list(found.values())) * model.embed(texts)).sum(axis=1).min() >= 0.998


def test_half_precision_moves_no_score_in_four_digits(model: OnnxModel) -> None:
    fresh = model.embed(github()[::2])
    queries = model.embed_queries(["open a bug report", "who reviewed this?", "delete the branch"])
    kept = unit_rows(fresh.astype(np.float16).astype(np.float32))

    assert np.abs(kept @ queries.T - fresh @ queries.T).max() < FOUR_DIGITS


def test_known_tools_are_not_embedded_and_unknown_ones_are(model: OnnxModel, store: Store) -> None:
    lent, texts = Lent(model), github()[:5]
    CachedEmbedder(LazyModel(lambda: lent), store.vectors).embed([*texts, "github frobnicate: Unheard of."])

    assert lent.embedded == ["github frobnicate: Unheard of."]


def test_a_stored_vector_comes_before_the_packaged_one(model: OnnxModel, store: Store) -> None:
    (text,), own = github()[:1], np.eye(1, model.dimensions, dtype=np.float32)
    store.vectors.put(MODEL_ID, dict(zip(keys_of([text]), own, strict=True)))

    found = CachedEmbedder(LazyModel(lambda: Lent(model)), store.vectors).embed([text])

    np.testing.assert_array_equal(found, own)


def test_another_model_and_changed_settings_never_use_shipped_vectors(model: OnnxModel, store: Store) -> None:
    shorter = read_folder(PACKAGED_MODEL, EmbeddingConfig(max_tokens=64)).model_id
    lent, texts = Lent(model, shorter), github()[:2]
    CachedEmbedder(LazyModel(lambda: lent), store.vectors).embed(texts)

    assert lent.embedded == texts
    assert shipped_vectors("another model") is None


def test_a_text_that_differs_in_one_character_has_no_vector() -> None:
    shipped = shipped_vectors(MODEL_ID)
    assert shipped is not None
    assert shipped.get(keys_of([github()[0] + " "])) == {}


def test_damaged_files_are_left_alone_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(shutil.copytree(SHIPPED, tmp_path / "shipped"))
    (folder / VECTORS).write_bytes((folder / VECTORS).read_bytes()[:-1] + b"?")

    with caplog.at_level(logging.WARNING):
        assert shipped_vectors(MODEL_ID, folder) is None
    assert f"{VECTORS} has another hash" in caplog.text


def test_every_list_is_under_a_licence_that_allows_it() -> None:
    found = embedded(SHIPPED / MANIFEST)

    assert len(found) > 190
    assert all(licences and licences <= ALLOWED for licences in found.values())


def test_sketches_are_near_the_vectors_of_tools_that_the_map_was_not_fitted_on(
    model: OnnxModel, store: Store
) -> None:
    texts = github()[:60]
    sketches = CachedEmbedder(LazyModel(lambda: model), store.vectors).sketches(texts)
    assert sketches is not None
    vectors = model.embed(texts)

    assert np.allclose(np.linalg.norm(sketches, axis=1), 1)
    assert (sketches * vectors).sum(axis=1).mean() > 0.75
    # Each is nearer to its own text than to most others.
    places = (-(sketches @ vectors.T)).argsort(axis=1).argsort(axis=1).diagonal()
    assert np.median(places) <= 3


def test_a_model_that_reads_fewer_tokens_changes_no_sketch(model: OnnxModel, store: Store) -> None:
    texts, embedder = github()[:5], CachedEmbedder(LazyModel(lambda: model), store.vectors)
    before = embedder.sketches(texts)
    shorter = load_model(settings=EmbeddingConfig(max_tokens=8))

    after = embedder.sketches(texts)

    assert before is not None and after is not None
    np.testing.assert_array_equal(before, after, err_msg=shorter.model_id)


def test_a_text_without_words_has_a_sketch(model: OnnxModel, store: Store) -> None:
    sketches = CachedEmbedder(LazyModel(lambda: model), store.vectors).sketches(["", "\ud800", "a" * 100_000])

    assert sketches is not None and np.isfinite(sketches).all()


def test_another_model_has_no_sketches(model: OnnxModel, store: Store) -> None:
    other = LazyModel(lambda: Lent(model, "another@0123456789abcdef"))  # type: ignore[arg-type, return-value]

    assert CachedEmbedder(other, store.vectors).sketches(["text"]) is None
