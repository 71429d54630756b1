"""Quality of search on a public set of tools and needs, with the packaged model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.catalogs import snapshot, tool

from mcp_context_proxy.retrieval import Ranking, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine

DATA = Path(__file__).parent / "data" / "mcpproxy_golden"
FIVE = SearchOptions(top_n=5, include_score=9)


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def search(engine: Engine) -> Callable[[str], Ranking]:
    items = [
        tool(row["name"], row["description"], server=row["server"], schema=row.get("input_schema"))
        for row in lines("corpus.jsonl")
    ]
    catalog = snapshot(*items)
    return lambda query: engine.search(query, catalog, options=FIVE)


def test_95_of_100_needed_tools_are_among_the_first_five(search: Callable[[str], Ranking]) -> None:
    shares = []
    for row in lines("queries.jsonl"):
        ranking = search(row["query"])
        found = {(result.item.server, result.item.name) for result in ranking.results}
        shares.append(sum((server, name) in found for server, name in row["relevant"]) / len(row["relevant"]))

    assert len(shares) == 47
    assert sum(shares) / len(shares) >= 0.95


@pytest.mark.parametrize(
    "query",
    ["Which vaccine do I need before travelling to Peru?", "Recommend a red wine for grilled lamb"],
)
def test_queries_that_no_server_can_serve_fit_nothing(search: Callable[[str], Ranking], query: str) -> None:
    assert not search(query).fits
