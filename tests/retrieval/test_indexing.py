"""Indexing: which texts are embedded and kept, and how search works without a model."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.catalogs import WordVectors, snapshot, tool

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.indexing import TEXTS_A_STEP

MISSING = ModelError(Path("model.onnx"), "the file is missing", "install the package again")


@pytest.fixture
def two() -> Snapshot:
    return snapshot(tool("read_file", "Reads a file."), tool("send_mail", "Sends a mail."))


def test_the_first_search_embeds_everything_in_one_pass(two: Snapshot) -> None:
    vectors, progress = WordVectors(), []
    Engine(vectors).search("a file", two, on_progress=lambda done, total: progress.append((done, total)))

    assert vectors.calls == [["read file: Reads a file.", "send mail: Sends a mail."], ["a file"]]
    assert progress == [(2, 2)]


def test_progress_begins_with_nothing_and_never_stands_still() -> None:
    """A search that waits knows from the first batch on how long the others will take."""

    class Batches(WordVectors):
        def embed(
            self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None
        ) -> np.ndarray:
            assert on_progress is not None
            for done in range(0, len(texts), 32):
                on_progress(done, len(texts))
            on_progress(len(texts), len(texts))
            return super().embed(texts)

    tools = [tool(f"tool_{number}", f"Does number {number}.") for number in range(TEXTS_A_STEP + 1)]
    progress: list[tuple[int, int]] = []
    Engine(Batches()).index(snapshot(*tools), on_progress=lambda *told: progress.append(told))

    total = progress[-1][1]
    assert total > TEXTS_A_STEP
    assert progress[:2] == [(0, total), (32, total)]
    assert progress[-1] == (total, total)
    assert progress == sorted(set(progress))


def test_a_long_description_has_several_chunks() -> None:
    vectors = WordVectors()
    long = " ".join(f"Sentence {n} is about something." for n in range(60))
    Engine(vectors).index(snapshot(tool("long", long)))

    assert [len(texts) for texts in vectors.calls] == [4]


def test_searching_again_embeds_the_query_only(two: Snapshot) -> None:
    vectors = WordVectors()
    engine = Engine(vectors)
    engine.index(two)
    engine.search("a file", two)
    engine.search("a mail", two)

    assert vectors.calls[1:] == [["a file"], ["a mail"]]


def test_a_changed_definition_is_embedded_again(two: Snapshot) -> None:
    vectors = WordVectors()
    engine = Engine(vectors)
    engine.index(two)
    changed = tool("send_mail", "Sends a parcel.")
    after = snapshot(two.sources[0].items[0], changed, generation=2)
    engine.index(after)

    assert vectors.calls[1:] == [["send mail: Sends a parcel."]]
    assert engine.search("a parcel", after).results[0].item is changed


def test_a_removed_item_is_forgotten(two: Snapshot) -> None:
    engine = Engine(WordVectors())
    engine.index(two)
    after = snapshot(two.sources[0].items[0], generation=2)
    ranking = engine.search("send_mail", after)

    assert ranking.considered == 1


def test_with_a_second_server_the_server_name_becomes_part_of_the_texts(two: Snapshot) -> None:
    vectors = WordVectors()
    engine = Engine(vectors)
    engine.index(two)
    engine.index(snapshot(*two.sources[0].items, tool("sum", server="math"), generation=2))

    assert "srv read file: Reads a file." in vectors.calls[1]


def test_equal_texts_are_embedded_once() -> None:
    vectors = WordVectors()
    Engine(vectors).index(snapshot(tool("doIt", "The same."), tool("do_it", "The same.")))

    assert vectors.texts == ["do it: The same."]


def test_a_request_keeps_its_snapshot_after_the_catalog_changed(two: Snapshot) -> None:
    engine = Engine(WordVectors())
    before = engine.search("send a mail", two)
    after = snapshot(two.sources[0].items[0], generation=2)
    engine.index(after)

    assert engine.search("send a mail", two).results == before.results


def test_an_old_snapshot_indexed_late_does_not_bring_back_what_was_removed(two: Snapshot) -> None:
    engine = Engine(WordVectors())
    after = snapshot(two.sources[0].items[0], generation=2)
    engine.index(after)

    assert engine.search("send_mail", two).results[0].item.name == "send_mail"
    assert engine.search("send_mail", after).considered == 1


def test_concurrent_searches_share_one_indexing(two: Snapshot) -> None:
    vectors, found = WordVectors(), []
    engine = Engine(vectors)
    together = threading.Barrier(8)

    def search() -> None:
        together.wait(timeout=5)
        found.append(engine.search("a file", two).results)

    threads = [threading.Thread(target=search) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=5)

    assert sum("read file: Reads a file." in call for call in vectors.calls) == 1
    assert len(found) == 8
    assert all(results == found[0] for results in found)


def test_without_a_model_search_is_lexical(two: Snapshot) -> None:
    ranking = Engine(WordVectors(MISSING)).search("read a file", two)

    assert ranking.method == "lexical"
    assert ranking.note == (
        "Searched by words only: embedding model model.onnx: the file is missing; install the package again."
    )
    assert [result.item.name for result in ranking.results] == ["read_file"]
    assert ranking.results[0].cosine is None
    assert ranking.results[0].chunk == "read file: Reads a file."


def test_lexical_search_by_choice_is_reported_as_such(two: Snapshot) -> None:
    ranking = Engine(None).search("read a file", two)

    assert (ranking.method, ranking.fits) == ("lexical", True)
    assert ranking.note == "No embedding model is configured; searched by words only."


def test_without_a_model_unknown_words_fit_nothing(two: Snapshot) -> None:
    assert not Engine(None).search("weather", two).fits


def test_without_a_model_a_synonym_alone_fits_nothing_and_is_named_as_near(two: Snapshot) -> None:
    ranking = Engine(None).search("retrieve the weather", two)

    assert not ranking.fits
    assert [result.item.name for result in ranking.near_misses] == ["read_file"]


def test_a_missing_model_is_tried_once_per_snapshot(two: Snapshot) -> None:
    vectors = WordVectors(MISSING)
    engine = Engine(vectors)
    for _ in range(3):
        engine.search("a file", two)
    assert len(vectors.calls) == 1

    engine.search("a file", snapshot(*two.sources[0].items, generation=2))
    assert len(vectors.calls) == 2


def test_a_model_that_fails_is_tried_again_when_the_catalog_changes(two: Snapshot) -> None:
    vectors = WordVectors()
    engine = Engine(vectors)
    engine.index(two)
    vectors.error = MISSING
    rankings = [engine.search("read a file", two) for _ in range(3)]
    assert {ranking.method for ranking in rankings} == {"lexical"}
    assert all(ranking.note and "missing" in ranking.note for ranking in rankings)
    assert len(vectors.calls) == 2

    vectors.error = None
    again = snapshot(*two.sources[0].items, generation=2)
    assert engine.search("read a file", again).method == "hybrid"


def test_an_interrupted_indexing_can_be_repeated(two: Snapshot) -> None:
    engine = Engine(WordVectors())

    def interrupt(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        engine.index(two, on_progress=interrupt)
    assert engine.search("read a file", two).method == "hybrid"
