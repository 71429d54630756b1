"""The latest queries are embedded once, whoever asks for them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mcp_context_proxy.embedding.embeddings import REMEMBERED_QUERIES, LazyModel, QueryEmbedder


class Counting:
    """Embeds a text as its length, and keeps the texts it was asked for."""

    model_id, dimensions = "counting", 1

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed_queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.asked += texts
        return np.array([len(text) for text in texts], np.float32).reshape(len(texts), 1)


def test_a_text_is_embedded_once_and_rows_are_in_the_order_asked_for() -> None:
    model = Counting()
    queries = QueryEmbedder(LazyModel(lambda: model))

    first = queries.embed(["a", "bb"])
    second = queries.embed(["ccc", "bb", "a", "ccc"])

    assert model.asked == ["a", "bb", "ccc"]
    assert (first[:, 0].tolist(), second[:, 0].tolist()) == ([1, 2], [3, 2, 1, 3])
    assert (queries.lookups.hits, queries.lookups.misses) == (2, 3)


def test_only_the_latest_queries_are_remembered() -> None:
    model = Counting()
    queries = QueryEmbedder(LazyModel(lambda: model))
    for number in range(REMEMBERED_QUERIES + 1):
        queries.embed([f"query {number}"])

    queries.embed(["query 0", f"query {REMEMBERED_QUERIES}"])

    assert model.asked[-1] == "query 0"


def test_the_model_is_named_with_the_vectors_even_if_there_are_none() -> None:
    queries = QueryEmbedder(LazyModel(Counting))

    assert [queries.vectors(texts)[0] for texts in ([], ["a"], ["a"])] == ["counting"] * 3
    assert queries.vectors([])[1].shape == (0, 1)
