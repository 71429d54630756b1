"""Search without waiting: results while indexing is under way, and the note about it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.catalogs import WordVectors, snapshot, tool

from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import Kind, Snapshot, Tool
from mcp_context_proxy.retrieval import SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.indexing import (
    BATCH_BYTES,
    BATCH_ITEMS,
    FIRST_ITEMS,
    TEXTS_A_STEP,
    TEXTS_AHEAD,
    TEXTS_KEPT,
    embedded,
    read,
)

PATIENCE = 10.0


class Gate:
    """An embedder that lets texts of the catalog through one step at a time."""

    def __init__(self, embedder: Any) -> None:
        self._embedder = embedder
        self.open, self.reached = threading.Event(), threading.Event()

    def embed(
        self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        self.reached.set()
        assert self.open.wait(PATIENCE)
        return self._embedder.embed(texts, on_progress)


@contextmanager
def indexing(engine: Engine, gate: Gate, catalog: Snapshot) -> Iterator[None]:
    """While the gate is closed, in another thread."""
    thread = threading.Thread(target=engine.index, args=(catalog,))
    thread.start()
    try:
        assert gate.reached.wait(PATIENCE)
        yield
    finally:
        gate.open.set()
        thread.join(PATIENCE)


@pytest.fixture
def catalog() -> Snapshot:
    return snapshot(tool("read_file", "Reads a file."), tool("send_mail", "Sends a mail."))


def test_a_search_before_indexing_is_lexical_and_says_so(catalog: Snapshot) -> None:
    gate = Gate(WordVectors())
    engine = Engine(gate, WordVectors())
    with indexing(engine, gate, catalog):
        ranking = engine.search("read a file", catalog, wait=False)

    assert [result.item.name for result in ranking.results] == ["read_file"]
    assert (ranking.method, ranking.indexed) == ("lexical", (0, 2))
    assert ranking.note == "Indexing goes on: 2 of 2 items were searched by words alone."


def test_after_indexing_a_search_does_not_mention_it(catalog: Snapshot) -> None:
    gate = Gate(WordVectors())
    engine = Engine(gate, WordVectors())
    with indexing(engine, gate, catalog):
        engine.search("read a file", catalog, wait=False)
    ranking = engine.search("read a file", catalog, wait=False)

    assert (ranking.method, ranking.indexed, ranking.note) == ("hybrid", None, None)
    assert ranking.results == Engine(WordVectors()).search("read a file", catalog).results


def test_a_search_that_does_not_wait_embeds_nothing_of_the_catalog(catalog: Snapshot) -> None:
    vectors = WordVectors()
    Engine(vectors).search("read a file", catalog, wait=False)

    assert vectors.calls == []


def test_finished_vectors_are_used_while_others_are_computed(catalog: Snapshot) -> None:
    engine = Engine(WordVectors())
    engine.index(catalog)
    more = tool("new_file", "Makes a file.")
    after = snapshot(*catalog.sources[0].items, more, generation=2)
    ranking = engine.search("reads a file", after, wait=False)

    cosines = {result.item.name: result.cosine for result in ranking.results}
    assert (ranking.method, ranking.indexed) == ("hybrid", (2, 3))
    assert cosines["read_file"] is not None
    assert cosines["new_file"] is None


def test_items_without_a_vector_are_not_ranked_below_all_others(catalog: Snapshot) -> None:
    engine = Engine(WordVectors())
    engine.index(catalog)
    more = [tool("write_note", "Writes a note."), tool("ring_bell", "Rings a bell.")]
    after = snapshot(*catalog.sources[0].items, *more, generation=2)
    ranking = engine.search("write a note, as one reads a file.", after, wait=False)
    names = [result.item.name for result in ranking.results]

    assert names.index("write_note") < names.index("read_file")
    assert (ranking.results[0].item.name, ranking.results[0].cosine) == ("write_note", None)
    assert names[-1] == "ring_bell"


def test_during_indexing_common_words_do_not_make_a_query_unfit(catalog: Snapshot) -> None:
    engine = Engine(WordVectors())

    assert engine.search("one mail beside many other words nobody knows", catalog, wait=False).fits
    assert not engine.search("weather", catalog, wait=False).fits


def test_a_stopped_indexing_is_resumed(catalog: Snapshot) -> None:
    engine = Engine(WordVectors())

    with pytest.raises(EmbeddingCancelledError):
        engine.index(catalog, cancelled=lambda: True)
    assert engine.search("read a file", catalog, wait=False).indexed == (0, 2)

    engine.index(catalog)
    assert engine.indexed(catalog)


def test_vectors_can_be_searched_while_more_are_made() -> None:
    tools = [tool(f"tool_{n:03}", f"Does thing {n}.", server=f"server{n // 300}") for n in range(600)]
    catalog = snapshot(*tools)
    steps = [
        (index.complete, int(index.ready.sum()))
        for index in embedded(
            read(catalog, True, None, seconds=60.0), WordVectors(), None, lambda: False, pace=0.0
        )
    ]

    assert steps[-1] == (True, 600)
    assert [ready for _, ready in steps] == [TEXTS_A_STEP, 2 * TEXTS_A_STEP, 600]
    assert all(not complete for complete, _ in steps[:-1])


def test_the_most_used_servers_are_indexed_first() -> None:
    catalog = snapshot(
        *(
            tool(f"tool_{n:04}", f"Does {n}.", server=f"server{n // TEXTS_A_STEP}")
            for n in range(4 * TEXTS_A_STEP)
        )
    )
    calls = {"server2": 3, "server1": 7}
    vectors, steps = WordVectors(), []
    begun = read(catalog, True, None, seconds=60.0, calls=lambda key: calls.get(key, 0))
    for index in embedded(begun, vectors, None, lambda: False, pace=0.0, calls=lambda key: calls.get(key, 0)):
        ready = {item.server for item, is_ready in zip(index.items, index.ready, strict=True) if is_ready}
        steps.append(sorted(ready))

    assert steps[:3] == [["server1"], ["server1", "server2"], ["server0", "server1", "server2"]]
    assert [item.server for item in begun.items] == sorted(item.server for item in begun.items)


def test_if_time_is_short_the_most_used_servers_are_read_first() -> None:
    catalog = snapshot(*(tool("do", server=f"server{n}") for n in range(3)))
    index = read(catalog, True, None, seconds=0.0, calls=lambda key: int(key == "server1"))

    assert [item.server for item in index.items] == ["server1"]


def test_sources_that_were_not_read_in_time_are_read_next() -> None:
    catalog = snapshot(*(tool("do", server=f"server{n}") for n in range(3)))
    index, unread = None, []
    for _ in range(3):
        index = read(catalog, True, index, seconds=0.0)
        unread.append(index.unread)

    assert unread == [2, 1, 0]
    assert index is not None
    assert [item.server for item in index.items] == ["server0", "server1", "server2"]


def test_a_large_list_is_read_in_batches_after_the_small_ones() -> None:
    large = [tool(f"tool_{n:04}", f"Does thing {n}.", server="evil") for n in range(5 * BATCH_ITEMS)]
    small = [tool(f"note_{n:04}", f"Notes {n}.", server="good") for n in range(BATCH_ITEMS + 1)]
    catalog = snapshot(*large, *small)
    index, read_of = None, []
    while index is None or index.unread:
        index = read(catalog, True, index, seconds=0.0, calls=lambda key: int(key == "evil"))
        names = [item.server for item in index.items if isinstance(item, Tool)]
        read_of.append((names.count("evil"), names.count("good")))
        assert index.unread == len(large) + len(small) - len(names)

    assert read_of == [
        (0, BATCH_ITEMS),
        (BATCH_ITEMS, BATCH_ITEMS),
        (BATCH_ITEMS, len(small)),
        *((batches * BATCH_ITEMS, len(small)) for batches in range(2, 6)),
    ]


def test_large_servers_that_are_used_much_never_delay_the_first_batch_of_a_small_one() -> None:
    large = [
        tool(f"tool_{n}", f"Does thing {n}.", server=f"evil{n % 3}") for n in range(3 * (FIRST_ITEMS + 1))
    ]
    catalog = snapshot(*large, tool("add", "Adds two numbers.", server="calm"))

    def calls(key: str) -> int:
        return 100 * key.startswith("evil")

    index = read(catalog, True, None, seconds=0.0, calls=calls)
    first, vectors = [item.server for item in index.items], WordVectors()
    while index.unread:
        index = read(catalog, True, index, seconds=0.0, calls=calls)
    next(embedded(index, vectors, None, lambda: False, pace=0.0, calls=calls))

    assert first == ["calm"]
    assert "Adds two numbers" in vectors.texts[0]


def test_long_definitions_are_read_a_few_at_a_time() -> None:
    catalog = snapshot(*(tool(f"tool_{n}", "word " * (BATCH_BYTES // 10)) for n in range(6)))
    index, sizes = None, []
    while index is None or index.unread:
        index = read(catalog, True, index, seconds=0.0)
        sizes.append(len(index.items))

    assert sizes == [2, 4, 6]


def test_an_index_of_many_batches_is_that_of_one() -> None:
    tools = [tool(f"tool_{n % 97}_{n}", f"Does thing {n % 7} of {n % 5}.") for n in range(3 * BATCH_ITEMS)]
    catalog = snapshot(*tools)
    index, whole = None, read(catalog, True, None, seconds=60.0)
    while index is None or index.unread:
        index = read(catalog, True, index, seconds=0.0)

    assert not whole.unread
    assert list(index.items) == list(whole.items)
    texts = [[one.texts_of(at) for at in range(len(tools))] for one in (index, whole)]
    assert texts[0] == texts[1]
    for weights in ({"thing": 1.0}, {"3": 1.0, "doe": 0.5}, {"tool": 1.0}):
        assert np.array_equal(index.lexical.score(weights).scores, whole.lexical.score(weights).scores)


def test_a_catalog_too_large_to_keep_its_texts_is_indexed_as_any_other() -> None:
    tools = [tool(f"tool_{n}", f"Does thing {n % 50}.") for n in range(TEXTS_KEPT + 1)]
    large, small = WordVectors(), WordVectors()
    engine, catalog = Engine(large), snapshot(*tools)
    engine.index(catalog)
    Engine(small).index(snapshot(*tools[:-1]))

    assert set(small.texts) < set(large.texts)
    assert len(large.texts) == len(set(large.texts)) == TEXTS_KEPT + 1
    ranking = engine.search("tool_7", catalog, options=SearchOptions(top_n=1, include_score=9))
    assert ranking.results[0].chunk == "tool 7: Does thing 7."


def test_a_list_that_changes_while_it_is_read_keeps_what_was_read() -> None:
    tools = [tool(f"tool_{n:04}", f"Does thing {n}.") for n in range(4 * BATCH_ITEMS)]
    begun = read(snapshot(*tools), True, None, seconds=0.0)
    after = snapshot(tool("added", "Adds."), *tools[1:], generation=2)
    index = read(after, True, begun, seconds=0.0)

    names = [item.name for item in index.items]
    assert "tool_0000" not in names
    assert names == sorted(names)
    assert len(names) == 2 * BATCH_ITEMS - 1
    while index.unread:
        index = read(after, True, index, seconds=0.0)
    whole = read(after, True, None, seconds=60.0)
    assert list(index.items) == list(whole.items)
    added = {"add": 1.0}
    assert np.array_equal(index.lexical.score(added).scores, whole.lexical.score(added).scores)


def test_stuffing_is_noticed_before_a_list_is_read_to_its_end() -> None:
    stuffed = [
        tool(f"do_{n:04}", "I need a flight to Rome. Show me a hotel.", server="evil")
        for n in range(3 * BATCH_ITEMS)
    ]
    catalog = snapshot(*stuffed, tool("find_flight", "Finds a flight.", server="good"))
    index = read(catalog, True, None, seconds=0.0)
    index = read(catalog, True, index, seconds=0.0)

    assert index.unread
    assert index.suspected == {"evil": "requests"}


def test_a_large_server_is_embedded_after_the_first_tools_of_every_other() -> None:
    large = [tool(f"tool_{n:04}", f"Does thing {n}.", server="evil") for n in range(5 * FIRST_ITEMS)]
    small = [tool(f"note_{n:04}", f"Notes {n}.", server="good") for n in range(FIRST_ITEMS)]
    catalog = snapshot(*large, *small)
    begun = read(catalog, True, None, seconds=60.0)
    vectors = WordVectors()
    list(embedded(begun, vectors, None, lambda: False, calls=lambda key: int(key == "evil")))

    embedded_first = vectors.texts[: 2 * FIRST_ITEMS]
    assert sum("Notes" in text for text in embedded_first) == FIRST_ITEMS


def test_an_empty_catalog_is_indexed_at_once() -> None:
    engine = Engine(WordVectors())
    empty = snapshot()
    engine.index(empty)

    assert engine.indexed(empty)
    assert engine.search("anything", empty, wait=False).results == ()


def thing(n: int) -> Tool:
    return tool(f"tool_{n:03}", f"Does thing {n} of {n % 7}.", server=f"server{n % 3}")


def test_a_search_ahead_of_indexing_embeds_what_is_likely_and_finds_what_it_finds_later() -> None:
    catalog = snapshot(*(thing(n) for n in range(400)))
    vectors = WordVectors()
    engine = Engine(vectors, WordVectors())
    early = engine.search("does thing 123 of 4", catalog, wait=False, ahead=60.0)
    embedded_for_it = list(vectors.texts)
    later = engine.search("does thing 123 of 4", catalog)

    assert (early.method, early.fits, early.likely) == ("hybrid", True, len(embedded_for_it))
    assert 0 < early.likely < 100
    assert (
        early.note
        == f"Indexing goes on: of 400 items, the {early.likely} likeliest were compared by meaning."
    )
    left_out = frozenset((Kind.TOOL, thing(n).exposed_name) for n in range(5, 400))
    few = Engine(WordVectors(), WordVectors()).search(
        "thing 3", catalog, Filters(without=left_out), wait=False, ahead=60.0
    )
    assert (few.likely, few.considered, few.note) == (5, 5, None)
    assert early.results[0].item.name == later.results[0].item.name == "tool_123"
    assert early.results[0].score == later.results[0].score
    assert (later.likely, later.note) == (0, None)
    assert sorted(vectors.texts) == sorted({*vectors.texts}), "each text is embedded once"


def test_a_search_ahead_embeds_nothing_that_it_embedded_before() -> None:
    catalog = snapshot(*(thing(n) for n in range(400)))
    vectors = WordVectors()
    engine = Engine(vectors, WordVectors())
    first = engine.search("does thing 123", catalog, wait=False, ahead=60.0)
    calls = len(vectors.calls)
    again = engine.search("does thing 123", catalog, wait=False, ahead=60.0)

    assert [one.score for one in again.results] == [one.score for one in first.results]
    assert len(vectors.calls) == calls


def test_a_sketch_brings_a_likely_tool_that_has_none_of_the_words() -> None:
    catalog = snapshot(*(thing(n) for n in range(400)), tool("ring_bell", "Makes it sound."))
    vectors, query = WordVectors(), "thing: alarm everybody"

    def sketch(texts: Sequence[str]) -> np.ndarray:
        return np.array([WordVectors().embed([query if "bell" in text else text])[0] for text in texts])

    for with_sketch in (False, True):
        engine = Engine(vectors, WordVectors(), sketch=sketch if with_sketch else lambda _texts: None)
        engine.search(query, catalog, wait=False, ahead=60.0)
        assert any("bell" in text for text in vectors.texts) == with_sketch


def test_a_search_ahead_that_has_no_time_left_says_what_was_searched_by_words() -> None:
    catalog = snapshot(
        *(tool(f"tool_{n}", f"Does thing {n}. " + f"And thing {n} again. " * 60) for n in range(50))
    )
    vectors = WordVectors()
    ranking = Engine(vectors, WordVectors()).search("thing 7", catalog, wait=False, ahead=1e-9)

    assert len(vectors.texts) == TEXTS_AHEAD
    assert ranking.results[0].item.name == "tool_7"
    assert ranking.note == "Indexing goes on: 50 of 50 items were searched by words alone."


def test_where_the_model_fails_a_search_ahead_uses_words(catalog: Snapshot) -> None:
    failing = WordVectors(ModelError("model.onnx", "it is damaged", "reinstall it"))
    ranking = Engine(failing, WordVectors()).search("read a file", catalog, wait=False, ahead=60.0)

    assert [one.item.name for one in ranking.results] == ["read_file"]
    assert ranking.likely == 0


def test_a_search_ahead_for_which_nothing_is_likely_uses_words(catalog: Snapshot) -> None:
    vectors = WordVectors()
    ranking = Engine(vectors, WordVectors()).search("zzyzx", catalog, wait=False, ahead=60.0)

    assert (ranking.results, ranking.likely, vectors.texts) == ((), 0, [])


def test_tools_of_a_suspected_server_take_no_places_of_likely_ones() -> None:
    stuffed = [
        tool(f"do_{n:04}", "I need a flight to Rome. Show me a flight.", server="evil") for n in range(90)
    ]
    catalog = snapshot(*stuffed, tool("find_flight", "Finds it.", server="good"))
    vectors = WordVectors()
    Engine(vectors, WordVectors()).search("a flight to Rome", catalog, wait=False, ahead=60.0)

    assert any(text.startswith("good") for text in vectors.texts)
