"""The latest queries are embedded once, whoever asks for them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mcp_context_proxy.embedding.embeddings import TEXTS, RememberedQueries


class Counting:
    """Embeds a text as its length, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str], on_progress: object = None) -> npt.NDArray[np.float32]:
        self.asked += texts
        return np.array([[len(text)] for text in texts], np.float32)


def test_a_text_is_embedded_once_and_rows_are_in_the_order_asked_for() -> None:
    embedder = Counting()
    remembered = RememberedQueries(embedder)

    first = remembered.embed(["a", "bb"])
    second = remembered.embed(["ccc", "bb", "a", "ccc"])

    assert embedder.asked == ["a", "bb", "ccc"]
    assert (first[:, 0].tolist(), second[:, 0].tolist()) == ([1, 2], [3, 2, 1, 3])


def test_only_the_latest_are_remembered() -> None:
    embedder = Counting()
    remembered = RememberedQueries(embedder)
    for number in range(TEXTS + 1):
        remembered.embed([f"query {number}"])

    remembered.embed(["query 0", f"query {TEXTS}"])

    assert embedder.asked[-1] == "query 0"
