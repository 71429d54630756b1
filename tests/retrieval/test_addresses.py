"""Servers that a query names, and what it wants of them."""

import pytest
from msgspec.structs import replace
from support.catalogs import snapshot, tool
from support.tables import each

from mcp_context_proxy.items import Kind
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.needs import Address, address_of, called

SERVERS = [
    "rules",
    "github",
    "slack",
    "google-maps",
    "google-calendar",
    "memory",
    "my-first-helper",
    "notion-mcp",
]


def address(query: str) -> Address | None:
    return address_of(query, called(SERVERS, [name != "rules" for name in SERVERS]))


@each(
    ("query", "wanted", "servers"),
    [
        ("github: list the open issues", "list the open issues", ["github"]),
        ("GitHub - list the open issues", "list the open issues", ["github"]),
        ("github list the open issues", "list the open issues", ["github"]),
        ("github tools for reviewing", "reviewing", ["github"]),
        ("github: issues", "issues", ["github"]),
        ("use the github server to list open issues", "list open issues", ["github"]),
        ("Using Slack, send a message", "send a message", ["slack"]),
        ("in notion create a page", "create a page", ["notion-mcp"]),
        ("list the open issues in github", "list the open issues", ["github"]),
        ("list the open issues (GitHub)?", "list the open issues", ["github"]),
        ("plan a route to Rome with the google maps tools", "plan a route to Rome", ["google-maps"]),
        ("Google: plan a route", "plan a route", ["google-maps", "google-calendar"]),
    ],
)
def test_the_name_of_a_server_is_told_from_what_is_wanted(
    query: str, wanted: str, servers: list[str]
) -> None:
    found = address(query)

    assert found is not None
    assert (found.wanted, [SERVERS[at] for at in found.servers]) == (wanted, servers)


@each(
    "query",
    [
        "list the open issues",
        "the github issue of yesterday",
        "save this in memory",
        "rules for commit messages",
        "plan the route with google",
        "create an issue for the crash and post a message in Slack",
        "memory of my phone",
        "first list the open files",
        "copy the open issues from github to slack",
        "list issues in github and send them to slack",
        "github",
        "tools for github",
    ],
)
def test_a_name_that_may_be_a_part_of_what_is_wanted_or_one_of_several_is_left_in_it(query: str) -> None:
    assert address(query) is None


def test_a_name_is_left_in_the_query_where_there_is_one_server() -> None:
    assert address_of("github: list the open issues", called(["github"], [True])) is None


def test_reading_an_address_takes_no_longer_for_a_hostile_query() -> None:
    for query in (
        "github " * 1_000,
        " " * 8_000 + "github",
        "github" + " " * 8_000 + "x",
        "(" * 8_000 + "github",
    ):
        address(query)


@pytest.fixture(scope="module")
def hosting() -> object:
    return snapshot(
        tool("search_repositories", "Search for GitHub repositories on GitHub.", server="github"),
        tool("create_review", "Create a review on a pull request.", server="github"),
        tool("create_review", "Write a review of a book that was read.", server="library"),
        tool("list_books", "Lists the books of the library.", server="library"),
    )


@pytest.mark.parametrize(
    "query", ["github tools for reviewing pull requests", "review a pull request on github"]
)
def test_a_tool_is_no_nearer_for_having_the_name_of_its_server_in_its_text(engine, hosting, query) -> None:
    best = engine.search(query, hosting).results[0]

    assert (best.item.server, best.item.name) == ("github", "create_review")


def test_a_server_that_is_named_and_may_not_be_searched_changes_nothing_for_the_others(
    engine, hosting
) -> None:
    filters = Filters(servers=frozenset({"library"}))
    named = engine.search("list all the books on github", hosting, filters).results

    assert (named[0].item.name, {one.instructions for one in named}) == ("list_books", {0.0})


def test_a_server_of_which_somebody_sees_nothing_is_no_name(engine) -> None:
    books = tool("list_books", "Lists the books of the library.", server="library")
    whole = snapshot(books, tool("search_code", "Search for code.", server="github"))
    part = replace(whole, hidden=frozenset({(Kind.TOOL, "github__search_code")}))
    seen, unseen = (engine.search("list all the books on GitHub", one) for one in (whole, part))

    assert (seen.read_as, unseen.read_as) == ("list all the books", None)


def test_an_exact_name_behind_that_of_its_server_stays_first(engine, hosting) -> None:
    assert engine.search("github create review", hosting).results[0].exact
