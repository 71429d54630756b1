"""Filters are met before anything is cut off, and change nothing else."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.catalogs import WordVectors, snapshot, tool

from mcp_context_proxy.items import IncludeMode, Kind, Snapshot, Tool
from mcp_context_proxy.retrieval import Result, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.item_metadata import category_label, metadata_of, tag_label

WORDS = ["read", "write", "send", "file", "mail", "note", "calendar", "delete"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
HINTS = st.fixed_dictionaries(
    {},
    optional={
        "readOnlyHint": st.booleans(),
        "destructiveHint": st.booleans(),
        "openWorldHint": st.booleans(),
    },
)
LABELS = [
    *(category_label(name) for name in ("ant", "bee", "office")),
    *(tag_label(name) for name in ("ant", "read", "send", "delete", "x", "y", "nowhere")),
    "hint:read-only",
    "hint:destructive",
    "hint:open-world",
]


@st.composite
def tools(draw: st.DrawFn) -> list[Tool]:
    """Up to 40 tools of three servers, some of them configured."""
    made = []
    for number in range(draw(st.integers(1, 40))):
        server = draw(st.sampled_from(["ant", "bee", "cat"]))
        name = f"{draw(st.sampled_from(WORDS))}_{draw(st.sampled_from(WORDS))}_{number}"
        definition = {"description": draw(TEXTS), "inputSchema": {}, "annotations": draw(HINTS)}
        made.append(
            Tool(
                server,
                name,
                f"{server}__{name}",
                json.dumps(definition).encode(),
                f"{server}{name}",
                draw(st.sampled_from([IncludeMode.AGENT, IncludeMode.AGENT, IncludeMode.MANUAL])),
                tuple(draw(st.lists(st.sampled_from(["x", "y"]), max_size=2))),
                draw(st.sampled_from([None, None, "Office"])),
            )
        )
    return made


@st.composite
def filters(draw: st.DrawFn, catalog: list[Tool]) -> Filters:
    """Any of the constraints, together."""
    some = st.frozensets(st.sampled_from(catalog), max_size=5)

    def keys(chosen: frozenset[Tool]) -> frozenset[tuple[str, str]]:
        return frozenset((tool.server, tool.name) for tool in chosen)

    return Filters(
        servers=draw(st.none() | st.frozensets(st.sampled_from(["ant", "bee", "nobody"]))),
        kinds=draw(st.none() | st.just(frozenset({Kind.TOOL}))),
        without=frozenset((Kind.TOOL, tool.exposed_name) for tool in draw(some)),
        labels=draw(st.frozensets(st.sampled_from(LABELS), max_size=2)),
        any_labels=draw(st.frozensets(st.sampled_from(LABELS), max_size=3)),
        no_labels=draw(st.frozensets(st.sampled_from(LABELS), max_size=1)),
        unfit=keys(draw(some)),
        proven=draw(st.none() | some.map(keys)),
    )


def ranked(
    engine: Engine, query: str, catalog: Snapshot, chosen: Filters, options: SearchOptions
) -> list[tuple[str, str, float, float | None, float]]:
    """All ranked items, whether they fit the query or not."""
    ranking = engine.search(query, catalog, chosen, options)
    found: tuple[Result, ...] = ranking.results or ranking.near_misses
    return [(r.item.server, r.item.name, r.score, r.cosine, r.lexical) for r in found]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), catalog=tools(), query=TEXTS, top_n=st.integers(1, 8))
def test_a_filtered_search_is_the_unfiltered_ranking_without_the_excluded_items(
    data: st.DataObject, catalog: list[Tool], query: str, top_n: int
) -> None:
    chosen, there = data.draw(filters(catalog)), snapshot(*catalog)
    engine = Engine(WordVectors())
    everything = ranked(engine, query, there, Filters(), SearchOptions(top_k=100, top_n=100))
    by_name = {(tool.server, tool.name): tool for tool in catalog}
    meeting = [entry for entry in everything if chosen.allow(by_name[entry[0], entry[1]])]
    options = SearchOptions(top_k=top_n, top_n=top_n, include_score=9)

    assert ranked(engine, query, there, chosen, options) == meeting[:top_n]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), catalog=tools())
def test_an_item_passes_a_filter_exactly_if_its_own_metadata_match(
    data: st.DataObject, catalog: list[Tool]
) -> None:
    """The expected number follows from the plain facts, one constraint after the other."""
    chosen = data.draw(filters(catalog))
    engine = Engine(None)
    considered = engine.search("note", snapshot(*catalog), chosen).considered

    def meets(tool: Tool) -> bool:
        metadata, own = metadata_of(tool), (tool.server, tool.name)
        facts = {category_label(metadata.category), *map(tag_label, metadata.all_tags)}
        facts |= {"hint:read-only"} if metadata.read_only else set()
        facts |= {"hint:destructive"} if metadata.destructive else set()
        facts |= {"hint:open-world"} if metadata.open_world else set()
        return (
            tool.include is not IncludeMode.MANUAL
            and (chosen.servers is None or tool.server in chosen.servers)
            and (Kind.TOOL, tool.exposed_name) not in chosen.without
            and all(label in facts for label in chosen.labels)
            and (not chosen.any_labels or any(label in facts for label in chosen.any_labels))
            and not any(label in facts for label in chosen.no_labels)
            and own not in chosen.unfit
            and (chosen.proven is None or own in chosen.proven)
        )

    assert considered == sum(map(meets, catalog))


def test_a_filtered_search_returns_as_many_results_as_requested() -> None:
    """Long ones, whose chunks take all the places of the best."""
    long = [tool(f"mail_{n}", "send mail to the team " * 400, server="post") for n in range(6)]
    catalog = snapshot(*long, *(tool(f"other_{n}", "mail", server="ant") for n in range(50)))
    options = SearchOptions(top_k=5, top_n=5, include_score=9)

    found = Engine(WordVectors()).search("team", catalog, Filters(servers=frozenset({"post"})), options)

    assert len(found.results) == 5
