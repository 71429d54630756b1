"""Embeddings for interactions that have none: batch by batch, resumable, with errors counted."""

import numpy as np
import pytest

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.interactions import GIVEN_UP_AFTER, Backfilled, InteractionMemory, backfill

from .conftest import QUERY, Words, remembered, said

GONE = ModelError("words", "it is gone", "bring it back")


def test_interactions_without_an_embedding_are_embedded_in_batches(
    memory: InteractionMemory, words: Words
) -> None:
    remembered(memory, said("0.99"))
    memory.add([said(f"0.{n}") for n in range(10, 35)])
    words.asked.clear()
    told: list[tuple[int, int]] = []
    done = backfill(memory, 10, lambda tried, total: told.append((tried, total)))

    assert done == Backfilled(embedded=25, failed=0, left=0, error=None)
    assert [len(texts) for texts in words.asked] == [10, 10, 5]
    assert told == [(0, 25), (10, 25), (20, 25), (25, 25)]
    assert memory.semantic_search_interactions(QUERY).without_embedding == 0


def test_a_backfill_without_work_does_nothing(memory: InteractionMemory, words: Words) -> None:
    assert backfill(memory) == Backfilled(0, 0, 0, None)
    assert words.asked == []


def test_a_text_that_cannot_be_embedded_affects_no_other(memory: InteractionMemory, words: Words) -> None:
    memory.add([said(f"0.{n}") for n in range(10, 30)])
    words.unusable = {"0.12", "0.25"}
    done = backfill(memory, 10)

    assert (done.embedded, done.failed, done.left) == (18, 2, 0)
    assert done.error is not None
    assert "no vector for that" in done.error
    words.unusable = set()
    assert backfill(memory, 10) == Backfilled(2, 0, 0, None), "another run does what is left"


def test_a_backfill_gives_up_on_a_model_that_keeps_failing(memory: InteractionMemory, words: Words) -> None:
    memory.add([said(f"0.{n}") for n in range(10, 50)])
    words.unusable = {f"0.{n}" for n in range(20, 50)}
    done = backfill(memory, 10)

    assert (done.embedded, done.failed, done.left) == (10, GIVEN_UP_AFTER, 30 - GIVEN_UP_AFTER)
    assert len(words.asked) == 2 + GIVEN_UP_AFTER


def test_without_a_model_nothing_is_tried(memory: InteractionMemory, words: Words) -> None:
    memory.add([said("0.5")])
    words.error = GONE

    with pytest.raises(ModelError, match="it is gone"):
        backfill(memory)


def test_embeddings_made_before_an_interruption_are_kept(memory: InteractionMemory, words: Words) -> None:
    memory.add([said(f"0.{n}") for n in range(10, 40)])

    def interrupted(tried: int, total: int) -> None:
        if tried == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill(memory, 10, interrupted)
    words.asked.clear()

    assert backfill(memory, 10).embedded == 10
    assert sum(map(len, words.asked)) == 10


def test_backfilled_embeddings_equal_those_made_at_once(memory: InteractionMemory, words: Words) -> None:
    remembered(memory, said("what was said at once"))
    memory.add([said("what was said later")])
    backfill(memory)
    found = memory.semantic_search_interactions("what was said later", time_decay_factor=1.0)

    assert found.results[0].interaction.content == "what was said later"
    assert found.results[0].cosine == pytest.approx(1, abs=5e-5)
    expected = float(np.dot(words.one("what was said at once"), words.one("what was said later")))
    assert found.results[1].cosine == pytest.approx(expected, abs=5e-5)
