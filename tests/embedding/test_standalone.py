"""Embeddings for programs without a proxy: shapes, units, order."""

from collections.abc import Iterator

import numpy as np
import pytest

from mcp_context_proxy import Config, Embeddings


@pytest.fixture(scope="module")
def embeddings() -> Iterator[Embeddings]:
    with Embeddings() as opened:
        yield opened


def test_vectors_have_norm_1_and_the_dimension_of_the_model(embeddings: Embeddings) -> None:
    one, many = embeddings.embed("send a mail"), embeddings.embed_many(["send a mail", "read a file"])

    assert embeddings.dimension == 384
    assert (one.shape, many.shape, many.dtype) == ((384,), (2, 384), np.float32)
    assert np.linalg.norm(many, axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert many[0] == pytest.approx(one, abs=1e-5)
    assert embeddings.embed_many([]).shape == (0, 384)


def test_the_cosine_of_a_text_with_itself_is_1_and_lower_with_others(embeddings: Embeddings) -> None:
    assert embeddings.cosine("send a mail", "send a mail") == pytest.approx(1, abs=1e-5)
    assert embeddings.cosine("send a mail", "write an email") > embeddings.cosine(
        "send a mail", "boil an egg"
    )


def test_the_most_similar_texts_come_first_with_their_positions(embeddings: Embeddings) -> None:
    texts = ["boil an egg", "write an email", "read a file"]
    found = embeddings.most_similar("send a mail", texts, top_k=2)

    assert found[0][0] == 1
    assert found[0][1] == pytest.approx(embeddings.cosine("send a mail", texts[1]), abs=1e-5)
    assert len(found) == 2
    assert embeddings.most_similar("send a mail", []) == []
    with pytest.raises(ValueError, match="at least 1"):
        embeddings.most_similar("send a mail", texts, top_k=0)


def test_a_text_in_place_of_a_list_is_refused_and_so_is_what_is_no_text(embeddings: Embeddings) -> None:
    with pytest.raises(TypeError, match="embed_many takes a list"):
        embeddings.embed_many("abc")
    with pytest.raises(TypeError, match="a text is of type int"):
        embeddings.embed_many(["a", 3])  # type: ignore[list-item]


def test_another_model_is_taken_from_a_configuration() -> None:
    config = Config.of({"embedding": {"model": "all-MiniLM-L6-v2"}})
    with Embeddings(config) as other, Embeddings() as packaged:
        assert not np.allclose(other.embed("send a mail"), packaged.embed("send a mail"))
