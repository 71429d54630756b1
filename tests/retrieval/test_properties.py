"""Properties of search that hold for any catalog."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.catalogs import WordVectors, snapshot, tool

from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval import Result, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.text import name_key

WORDS = ["read", "write", "send", "file", "mail", "note", "calendar", "delete"]
SERVERS = ["ant", "bee", "cat"]
LENGTH = 4
DESCRIPTIONS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
EQUALLY_LONG = st.lists(st.sampled_from(WORDS), min_size=LENGTH, max_size=LENGTH).map(" ".join)
NAMES = st.lists(st.sampled_from(WORDS), min_size=2, max_size=2, unique=True).map("_".join)
KEYS = st.tuples(st.sampled_from(SERVERS), NAMES)
EVERYTHING = Filters()
ALL = SearchOptions(top_k=100, top_n=100)

any_catalog = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def ranked(
    engine: Engine, query: str, catalog: Snapshot, filters: Filters = EVERYTHING
) -> tuple[Result, ...]:
    """Everything there is, whether or not it fits."""
    ranking = engine.search(query, catalog, filters, ALL)
    return ranking.results or ranking.near_misses


def scores(results: tuple[Result, ...]) -> list[tuple[str, str, float, float | None, float]]:
    return [(r.item.server, r.item.name, r.score, r.cosine, r.lexical) for r in results]


@any_catalog
@given(
    catalog=st.dictionaries(KEYS, DESCRIPTIONS, min_size=1, max_size=12), query=DESCRIPTIONS, data=st.data()
)
def test_the_order_of_a_catalog_changes_nothing(
    catalog: dict[tuple[str, str], str], query: str, data: st.DataObject
) -> None:
    tools = [tool(name, text, server=server) for (server, name), text in catalog.items()]
    found = ranked(Engine(WordVectors()), query, snapshot(*tools))
    other = ranked(Engine(WordVectors()), query, snapshot(*data.draw(st.permutations(tools))))

    assert scores(other) == scores(found)


@any_catalog
@given(
    catalog=st.dictionaries(KEYS, EQUALLY_LONG, min_size=2, max_size=12),
    added=EQUALLY_LONG,
    query=DESCRIPTIONS,
)
def test_another_tool_changes_scores_only_through_word_rarity(
    catalog: dict[tuple[str, str], str], added: str, query: str
) -> None:
    """All fields are equally long, because their average length is the other thing BM25F goes by."""
    tools = [tool(name, text, server=server) for (server, name), text in catalog.items()]
    tools += [tool("visit_city", "read write send file", server=server) for server in SERVERS]
    more = [*tools, tool("bake_cake", added, server="ant")]
    before = {r.item: r for r in ranked(Engine(WordVectors()), query, snapshot(*tools))}
    after = {r.item: r for r in ranked(Engine(WordVectors()), query, snapshot(*more))}
    shared = before.keys() & after.keys()
    rarity: dict[str, float] = {}

    assert len(shared) == len(tools)
    for item in shared:
        assert after[item].cosine == before[item].cosine
        for (*where, was), (*place, now) in zip(before[item].terms, after[item].terms, strict=True):
            assert place == where
            assert now / was == pytest.approx(rarity.setdefault(where[1], now / was), rel=1e-4)


@any_catalog
@given(
    catalog=st.dictionaries(KEYS, DESCRIPTIONS, min_size=1, max_size=12),
    data=st.data(),
    exposed=st.booleans(),
)
def test_a_query_that_is_a_tool_name_finds_it_first(
    catalog: dict[tuple[str, str], str], data: st.DataObject, exposed: bool
) -> None:
    tools = [tool(name, text, server=server) for (server, name), text in catalog.items()]
    wanted = data.draw(st.sampled_from(tools))
    query = wanted.exposed_name if exposed else wanted.name
    first = Engine(WordVectors()).search(query, snapshot(*tools)).results[0].item

    assert name_key(query) in {name_key(first.exposed_name), name_key(first.name)}
    assert "exact name" in Engine(WordVectors()).search(query, snapshot(*tools)).results[0].why


@any_catalog
@given(catalog=st.dictionaries(KEYS, DESCRIPTIONS, min_size=1, max_size=12), query=DESCRIPTIONS)
def test_a_filter_removes_items_without_changing_scores_of_others(
    catalog: dict[tuple[str, str], str], query: str
) -> None:
    tools = [tool(name, text, server=server) for (server, name), text in catalog.items()]
    engine, one = Engine(WordVectors()), tools[0].server
    everything = ranked(engine, query, snapshot(*tools))
    filtered = ranked(engine, query, snapshot(*tools), Filters(servers=frozenset({one})))

    expected = [entry for entry in scores(everything) if entry[0] == one]
    assert scores(filtered) == expected
