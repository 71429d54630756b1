"""A catalog that changes is indexed by its changes, and searched as if all of it were indexed anew."""

import gc
import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.catalogs import WordVectors, snapshot, tool

from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval.bm25 import Flat, Group, LexicalIndex, count_terms, grouped
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters, Index
from mcp_context_proxy.retrieval.indexing import embedded, read
from mcp_context_proxy.retrieval.item_metadata import Fields, tag_label
from mcp_context_proxy.retrieval.vectors import EXACT_CHUNKS, UNIT

WORDS = ["read", "write", "send", "file", "mail", "note", "calendar", "delete"]
DESCRIPTIONS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
CATALOGS = st.dictionaries(
    st.tuples(st.sampled_from(["ant", "bee", "cat"]), st.sampled_from(["one", "two", "three"])),
    DESCRIPTIONS,
    min_size=1,
)
COUNTS = st.lists(
    st.lists(st.builds(Fields, DESCRIPTIONS, DESCRIPTIONS, *[st.just("")] * 4), max_size=3), max_size=6
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(versions=st.lists(CATALOGS, min_size=2, max_size=4), query=DESCRIPTIONS)
def test_after_any_changes_every_result_is_that_of_a_new_index(
    versions: list[dict[tuple[str, str], str]], query: str
) -> None:
    engine, current = Engine(WordVectors()), None
    for generation, version in enumerate(versions):
        tools = [tool(name, text, server=server) for (server, name), text in version.items()]
        current = snapshot(*tools, generation=generation)
        engine.index(current)
    assert current is not None
    anew = snapshot(*(item for source in current.sources for item in source.items))

    assert engine.search(query, current).results == Engine(WordVectors()).search(query, anew).results


@given(COUNTS, COUNTS)
def test_scores_do_not_depend_on_what_was_indexed_before(
    first: list[list[Fields]], second: list[list[Fields]]
) -> None:
    before = [count_terms(part) for part in first]
    changed = [*before[1:], *(count_terms(part) for part in second)]
    grown = LexicalIndex.build(changed, LexicalIndex.build(before)).score(dict.fromkeys(WORDS, 1.0))
    anew = LexicalIndex.build(changed).score(dict.fromkeys(WORDS, 1.0))

    assert grown.scores.tolist() == anew.scores.tolist()
    assert grown.idf == anew.idf


@given(
    sizes=st.lists(st.integers(0, 6), max_size=30),
    taken=st.integers(0, 30),
    enough=st.integers(1, 10),
)
def test_groups_keep_all_members_in_order_after_any_change(sizes: list[int], taken: int, enough: int) -> None:
    members = [(np.full(size, at), size) for at, size in enumerate(sizes)]
    before = grouped(members[:taken] + members[taken + 1 :], enough, np.concatenate)
    groups = grouped(members, enough, np.concatenate, before)

    assert [id(m) for group in groups for m in group.members] == [id(member) for member, _ in members]
    assert all(group.size == len(group.whole) for group in groups)
    assert sum(group.size < enough for group in groups) <= 2 + len(groups) // 2


@given(st.lists(st.lists(st.integers(), max_size=3).map(tuple), max_size=6))
def test_joined_groups_have_the_elements_of_all(pieces: list[tuple[int, ...]]) -> None:
    flat, elements = Flat(pieces), [element for piece in pieces for element in piece]

    assert list(flat) == [flat[at] for at in range(len(flat))] == elements


def test_a_changed_member_rebuilds_only_its_group() -> None:
    members = [(np.zeros(2), 2) for _ in range(30)]
    joined: list[int] = []

    def join(parts: Any) -> np.ndarray:
        joined.append(len(parts))
        return np.concatenate(parts)

    before = grouped(members, 10, join)
    joined.clear()
    members[12] = (np.ones(2), 2)
    after = grouped(members, 10, join, before)

    assert joined == [5]
    assert sum(isinstance(group, Group) and group in before for group in after) == 5


def test_a_changed_tool_is_the_only_one_that_is_read_and_embedded_again() -> None:
    vectors = WordVectors()
    engine = Engine(vectors)
    tools = [tool(f"tool_{n}", f"Does thing {n}.") for n in range(20)]
    before = snapshot(*tools)
    engine.index(before)
    tools[7] = tool("tool_7", "Bakes a cake.")
    after = snapshot(*tools, generation=2)
    engine.index(after)

    assert vectors.calls[1:] == [["tool 7: Bakes a cake."]]
    assert engine.search("bake a cake", after).results[0].item is tools[7]


def test_changed_tags_and_names_are_filtered_by_without_reindexing() -> None:
    engine = Engine(WordVectors())
    tools = [replace(tool(f"tool_{n}", f"Does thing {n}."), tags=("old",)) for n in range(3)]
    before = snapshot(*tools)
    engine.index(before)
    tools[1] = replace(tools[1], tags=("new",), exposed_name="renamed")
    after = snapshot(*tools, generation=2)

    for tag, found in (("old", {"tool_0", "tool_2"}), ("new", {"tool_1"})):
        ranking = engine.search("does thing", after, Filters(labels=frozenset({tag_label(tag)})))
        assert {result.item.name for result in ranking.results} == found
    assert [result.exact for result in engine.search("renamed", after).results][:1] == [True]


def test_indexes_of_earlier_snapshots_are_dropped() -> None:
    gc.collect()
    before = sum(isinstance(one, Index) for one in gc.get_objects())
    engine = Engine(WordVectors())
    for generation in range(8):
        engine.search("a step", snapshot(tool("step", f"Step {generation}."), generation=generation))
    gc.collect()

    assert sum(isinstance(one, Index) for one in gc.get_objects()) - before == 2


def test_unused_vectors_are_dropped() -> None:
    tools, index, sizes = [tool("stays", "Stays as it is.")], None, []
    for generation in range(8):
        changing = [tool(f"tool_{n}", f"Step {generation}.") for n in range(1_000)]
        catalog = snapshot(*tools, *changing, generation=generation)
        begun = read(catalog, True, index, seconds=60.0)
        (index,) = embedded(begun, WordVectors(), None, lambda: False, pace=1e9)
        sizes.append(index.pool.vectors.size)

    assert max(sizes) < 7_000
    assert any(after < before for before, after in itertools.pairwise(sizes))
    assert index.dense is not None
    (at,) = index.named(["stays"])
    (stored,) = index.dense.vectors_of(at)
    (vector,) = WordVectors().embed(["stays: Stays as it is."])
    assert np.abs(stored - vector).max() < 0.51 / UNIT


@pytest.mark.slow
def test_an_incrementally_updated_large_index_equals_a_new_one() -> None:
    def build(changed: int, generation: int) -> Snapshot:
        texts = [f"{WORDS[n % 8]} {WORDS[n // 8 % 8]} {n % 97}" for n in range(EXACT_CHUNKS + 500)]
        texts[changed] = "bake a cake"
        items = (tool(f"tool_{n}", text, server=f"s{n % 50}") for n, text in enumerate(texts))
        return snapshot(*items, generation=generation)

    engine = Engine(AnyVectors())
    engine.index(build(EXACT_CHUNKS, 1))
    current = build(5_000, 9)
    engine.index(current)
    anew, alike = Engine(AnyVectors()), build(5_000, 9)

    for query in ("bake a cake", "read mail. delete a note", "tool_17"):
        found, other = engine.search(query, current), anew.search(query, alike)
        assert [(r.item.exposed_name, r.score, r.terms) for r in found.results or found.near_misses] == [
            (r.item.exposed_name, r.score, r.terms) for r in other.results or other.near_misses
        ]


@pytest.mark.slow
def test_tools_that_serve_whatever_is_asked_are_found_among_very_many() -> None:
    class Far:
        def embed(self, texts: Sequence[str], on_progress: object = None) -> np.ndarray:
            near = [0.0 if "nodes" in one else zlib.crc32(one.encode()) % 997 / 9_970 for one in texts]
            return np.array([[one, np.sqrt(1 - one * one)] for one in near], np.float32)

    class Query:
        def embed(self, texts: Sequence[str], on_progress: object = None) -> np.ndarray:
            return np.array([[1.0, 0.0]] * len(texts), np.float32)

    others = (tool(f"tool_{n}", "Does it", server=f"s{n % 50}") for n in range(EXACT_CHUNKS + 500))
    memory = tool("open_nodes", "Opens nodes in the knowledge graph", server="memory")

    found = Engine(Far(), Query()).search("my favourite colour is green", snapshot(*others, memory))

    assert found.results[0].item == memory


class AnyVectors:
    """A direction for each text, that costs little."""

    def embed(self, texts: Sequence[str], on_progress: object = None) -> np.ndarray:
        rows = np.array([np.random.default_rng(zlib.crc32(t.encode())).standard_normal(64) for t in texts])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("several", [False, True])
def test_thousands_of_servers_share_a_few_arrays(several: bool) -> None:
    servers = 300 if several else 1
    catalog = snapshot(*(tool(f"tool_{n}", "Does it.", server=f"s{n % servers}") for n in range(300)))
    (index,) = embedded(read(catalog, True, None, seconds=60.0), WordVectors(), None, lambda: False, pace=1e9)

    assert (len(index.pool.vectors.slabs), len(index.lexical.groups)) == (1, 1)
