"""The index of pairs is the same whether it was built step by step or at once."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given
from msgspec.structs import replace

from mcp_context_proxy.learning import PairIndex, query_key
from mcp_context_proxy.store.memory import Pair


def build_pair(query: int, tool: int, confidence: float = 0.5) -> Pair:
    vector = np.random.default_rng([query, 7]).standard_normal(8)
    unit = (vector / np.linalg.norm(vector)).astype(np.float32)
    return Pair(query_key(f"q{query}"), ("s", f"t{tool}"), f"q{query}", unit, "m", confidence, 1, 0.0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=25))
def test_adding_pairs_one_by_one_equals_adding_all_at_once(steps):
    state = PairIndex.of([])
    pairs: dict[tuple[bytes, tuple[str, str]], Pair] = {}
    for number, (query, tool) in enumerate(steps):
        fresh = build_pair(query, tool)
        known = pairs.get((fresh.key, fresh.tool))
        pair = fresh if known is None else replace(known, uses=number)
        pairs[pair.key, pair.tool] = pair
        state = state.with_pairs([pair])
    whole = PairIndex.of(pairs.values())

    assert state.pairs == whole.pairs
    assert state.at == whole.at
    np.testing.assert_array_equal(state.matrix, whole.matrix)
    assert {tool: topic.general for tool, topic in state.topics.items()} == {
        tool: topic.general for tool, topic in whole.topics.items()
    }


def test_an_older_state_is_not_changed_by_a_newer_one():
    first = PairIndex.of([build_pair(1, 1)])
    first.with_pairs([build_pair(2, 1)])

    assert (len(first.pairs), len(first.matrix), first.topics["s", "t1"].count) == (1, 1, 1)


def test_a_pair_with_a_new_vector_replaces_the_old_one():
    state = PairIndex.of([build_pair(1, 1), build_pair(2, 1)])
    other = replace(build_pair(1, 1), vector=build_pair(9, 1).vector)
    followed = state.with_pairs([other])

    assert len(followed.pairs) == 2
    np.testing.assert_array_equal(followed.matrix[0], other.vector)
