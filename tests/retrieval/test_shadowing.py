"""A description does not rise by repeating the names of other tools."""

from collections.abc import Callable

import pytest
from support.catalogs import WordVectors, snapshot, tool

from mcp_context_proxy.retrieval import SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.item_metadata import DESCRIPTION_LIMIT

TOOLS = {
    "gmail_create_email": "Write a new mail to somebody.",
    "calendar_list_events": "List what is in the calendar.",
    "maps_find_route": "Find the way between two places.",
    "drive_upload_file": "Upload a file to a folder.",
    "weather_get_forecast": "Forecast for the next days.",
    "bank_send_money": "Send money to an account.",
}
QUERIES = [
    "create an email",
    "list events",
    "find the route",
    "upload a file",
    "get the forecast",
    "send money",
]
NAMES = " ".join(TOOLS)

Rank = Callable[[str, str], int]


@pytest.fixture(params=["words", "words and meaning"])
def rank(request: pytest.FixtureRequest) -> Rank:
    """The place at which a query finds a tool of that description among the honest ones; 1 is the first."""
    embedder = None if request.param == "words" else WordVectors()
    honest = [tool(name, text, server="honest") for name, text in TOOLS.items()]

    def place(query: str, description: str) -> int:
        catalog = snapshot(*honest, tool("helper", description, server="other"))
        ranking = Engine(embedder).search(query, catalog, options=SearchOptions(top_k=50, top_n=1, depth=50))
        found = [one.item.name for one in (*ranking.results, *ranking.near_misses, *ranking.others)]
        return found.index("helper") + 1 if "helper" in found else len(TOOLS) + 1

    return place


@pytest.mark.parametrize("query", QUERIES)
def test_repetitions_beyond_the_indexed_length_gain_nothing(rank: Rank, query: str) -> None:
    repeated = f"{NAMES} " * 1000

    assert rank(query, repeated) >= rank(query, repeated[:DESCRIPTION_LIMIT])


@pytest.mark.parametrize("query", QUERIES)
def test_a_tool_that_repeats_another_tools_name_does_not_outrank_it(rank: Rank, query: str) -> None:
    assert rank(query, f"{NAMES} " * 1000) > 1
