"""Each text is embedded once per model, whatever happens in between."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mcp_context_proxy.embedding import Matrix
from mcp_context_proxy.embedding.embeddings import BATCH, CachedEmbedder, LazyModel, OnnxModel
from mcp_context_proxy.errors import EmbeddingCancelledError
from mcp_context_proxy.store.opening import Store, open_store


class CountingEmbedder:
    """Gives every text a unit vector of its own and remembers the texts it was asked for."""

    dimensions = 8

    def __init__(self, model_id: str = "counting") -> None:
        self.model_id = model_id
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> Matrix:
        self.embedded += texts
        rows = [np.random.default_rng(list(t.encode("utf-8", "replace"))).normal(size=8) for t in texts]
        return np.array([row / np.linalg.norm(row) for row in rows], np.float32)


def cached(model: CountingEmbedder, store: Store) -> CachedEmbedder:
    return CachedEmbedder(LazyModel(lambda: model), store.vectors)


TEXTS = [f"text {number}" for number in range(3 * BATCH + 5)]


def test_after_a_restart_nothing_is_embedded_again(path: Path) -> None:
    with open_store(path) as store:
        first = cached(CountingEmbedder(), store).embed(TEXTS)
    model = CountingEmbedder()
    with open_store(path) as store:
        second = cached(model, store).embed(TEXTS)

    assert model.embedded == []
    np.testing.assert_array_equal(first, second)


def test_vectors_of_the_real_model_survive_the_store_byte_for_byte(path: Path, model: OnnxModel) -> None:
    texts = ["create an issue", "", "half a pair \ud83d", "create an issue"]
    with open_store(path) as store:
        cold = CachedEmbedder(LazyModel(lambda: model), store.vectors).embed(texts)
    with open_store(path) as store:
        warm = CachedEmbedder(LazyModel(lambda: model), store.vectors).embed(texts)

    np.testing.assert_array_equal(cold, model.embed(texts))
    np.testing.assert_array_equal(warm, cold)


def test_equal_texts_share_a_vector_and_order_is_kept() -> None:
    model = CountingEmbedder()
    with open_store("memory") as store:
        vectors = cached(model, store).embed(["a", "b", "a", "c", "b"])

    assert model.embedded == ["a", "b", "c"]
    np.testing.assert_array_equal(vectors, model.embed(["a", "b", "a", "c", "b"]))


def test_no_texts_need_no_model_run() -> None:
    with open_store("memory") as store:
        assert cached(CountingEmbedder(), store).embed([]).shape == (0, 8)


def test_vectors_of_two_models_never_mix(path: Path) -> None:
    with open_store(path) as store:
        cached(CountingEmbedder("one"), store).embed(TEXTS)
        other = CountingEmbedder("two")
        cached(other, store).embed(TEXTS)

    assert other.embedded == TEXTS


def test_progress_starts_with_stored_texts_and_ends_with_all_texts() -> None:
    reports: list[tuple[int, int]] = []
    with open_store("memory") as store:
        embedder = cached(CountingEmbedder(), store)
        embedder.embed(TEXTS[:10])
        embedder.embed(TEXTS, on_progress=lambda done, total: reports.append((done, total)))

    assert reports[0] == (10, len(TEXTS))
    assert reports[-1] == (len(TEXTS), len(TEXTS))
    assert reports == sorted(reports)
    assert len(reports) == 1 + -(-(len(TEXTS) - 10) // BATCH)


def test_a_cancelled_indexing_keeps_its_vectors() -> None:
    reports: list[int] = []
    model = CountingEmbedder()
    with open_store("memory") as store:
        embedder = cached(model, store)
        with pytest.raises(EmbeddingCancelledError) as caught:
            embedder.embed(
                TEXTS, on_progress=lambda done, _: reports.append(done), cancelled=lambda: len(reports) == 3
            )
        embedder.embed(TEXTS)

    assert (caught.value.done, caught.value.total) == (2 * BATCH, len(TEXTS))
    assert model.embedded == TEXTS


@pytest.mark.parametrize(
    "blob",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"abc", id="not an array"),
        pytest.param(np.ones(4, "<f4").tobytes(), id="another dimension"),
        pytest.param(np.ones(8, "<f4").tobytes(), id="norm not 1"),
        pytest.param(np.zeros(8, "<f4").tobytes(), id="zero"),
        pytest.param(np.full(8, np.nan, "<f4").tobytes(), id="not a number"),
        pytest.param(np.full(8, 3e38, "<f4").tobytes(), id="overflow"),
        pytest.param("text", id="another type"),
        pytest.param(np.eye(8, dtype="<f4")[0].tobytes(), id="could be one, and is not"),
    ],
)
def test_a_damaged_vector_is_computed_and_stored_again(path: Path, blob: object) -> None:
    with open_store(path) as store:
        right = cached(CountingEmbedder(), store).embed(["a"])
    overwrite_all_vectors(path, blob)

    with open_store(path) as store:
        repaired = cached(CountingEmbedder(), store).embed(["a"])
    model = CountingEmbedder()
    with open_store(path) as store:
        cached(model, store).embed(["a"])

    np.testing.assert_array_equal(repaired, right)
    assert model.embedded == []


def test_swapped_vectors_are_computed_again(path: Path) -> None:
    with open_store(path) as store:
        right = cached(CountingEmbedder(), store).embed(["a", "b"])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE vectors SET (vector, checksum) = "
            "(SELECT vector, checksum FROM vectors AS other WHERE other.key <> vectors.key)"
        )

    with open_store(path) as store:
        repaired = cached(CountingEmbedder(), store).embed(["a", "b"])

    np.testing.assert_array_equal(repaired, right)


def test_a_failing_store_costs_time_but_no_vector(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, model = tmp_path / "store.db", CountingEmbedder()
    with open_store(path) as store:
        path.unlink()
        path.mkdir()
        vectors = cached(model, store).embed(TEXTS)

    np.testing.assert_array_equal(vectors, CountingEmbedder().embed(TEXTS))
    assert len(caplog.records) == 1
    assert "waits in memory" in caplog.text


def overwrite_all_vectors(path: Path, blob: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE vectors SET vector = ?", (blob,))
    connection.close()
