"""Relevance: a query fits by comparison with general requests, and near misses are still named."""

import numpy as np
import pytest
from msgspec.structs import replace
from support.catalogs import WordVectors, snapshot, tool
from support.general_requests import GENERAL_REQUESTS, UNAIDED
from support.servers import real_lists

from mcp_context_proxy.embedding.embeddings import load_model
from mcp_context_proxy.examples.functions import server
from mcp_context_proxy.items import key_of
from mcp_context_proxy.retrieval import FITTING, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.scoring import (
    ADDRESSED,
    AGAINST_ALONE,
    AGAINST_FAR,
    COMPANY,
    EVIDENCE_OF_ADDRESS,
    EVIDENCE_OF_COSINE,
    EVIDENCE_OF_COUNTERPARTS,
    EVIDENCE_OF_DEVIATION,
    EVIDENCE_OF_MARGIN,
    EVIDENCE_OF_RANK,
    FAR,
    FEWEST_ITEMS,
    MOST_ITEMS,
    NEARER_UNAIDED,
    RIVALS,
    evidence,
    needed_evidence,
    packaged_background,
)
from mcp_context_proxy.web.running import fits_a_prompt


@pytest.fixture(scope="module")
def five():
    return snapshot(
        tool("create_issue", "Open a new ticket in a repository."),
        tool("list_pull_requests", "List open pull requests of a repository."),
        tool("merge_pull_request", "Merge a pull request."),
        tool("get_file_contents", "Read a file of a repository."),
        tool("search_code", "Find code in repositories."),
    )


def test_the_packaged_background_vectors_belong_to_the_packaged_model():
    anew = load_model().embed(GENERAL_REQUESTS)

    assert packaged_background().requests.shape == anew.shape
    # int8 arithmetic differs a little between processors.
    assert (packaged_background().requests * anew).sum(axis=1).min() > 0.99
    assert np.linalg.norm(packaged_background().elsewhere, axis=1) == pytest.approx(1, abs=0.02)
    assert np.linalg.norm(packaged_background().unaided, axis=1) == pytest.approx(1, abs=0.02)
    assert packaged_background().unaided.shape == (len(UNAIDED), anew.shape[1])


GENERAL = np.array([0.6, 0.8] * COMPANY, np.float32)


def told(cosines, rivals=1.0, coverage=0.0, likeness=0.0, unaided=0.0):
    """Evidence of some cosines of items; what is nearest elsewhere is so near, and so like the catalog.

    The coverage is that of each item, or of all of them.
    """
    return evidence(
        cosines=np.array(cosines, np.float32),
        general=GENERAL,
        rivals=np.full(RIVALS, rivals),
        counterparts=np.full(RIVALS, likeness, np.float32),
        unaided=unaided,
        coverage=np.broadcast_to(np.array(coverage, np.float64), len(cosines)),
    )[0]


def test_evidence_is_the_nearness_of_the_meaning_or_the_coverage_of_the_words():
    def meaning(cosine):
        near = EVIDENCE_OF_COSINE * cosine + EVIDENCE_OF_MARGIN * (cosine - 1)
        near += EVIDENCE_OF_DEVIATION * (cosine - 0.7) / 0.1
        return near - AGAINST_FAR * max(1 - cosine - FAR, 0)

    def rank(cosine):
        return EVIDENCE_OF_RANK * (cosine - 0.8)

    assert told([0.8]) == pytest.approx(meaning(0.8), abs=1e-3)
    assert told([0.8], coverage=0.5) == pytest.approx(0.5 + meaning(0.8) / 2, abs=1e-3)
    assert told([0.8], coverage=1.0) == pytest.approx(1)
    assert meaning(0.5) < 0
    assert told([0.5], coverage=0.9) == pytest.approx(1 - (1 - meaning(0.5)) * 0.1 + rank(0.5), abs=1e-3)
    assert told([-0.5], coverage=0.25) == 0


def test_the_word_of_one_item_and_the_meaning_of_another_do_not_add_up():
    assert told([0.8, 0.1], coverage=[0.5, 0.0]) > told([0.8, 0.1])
    assert told([0.8, 0.1], coverage=[0.0, 0.5]) == told([0.8, 0.1])


def test_a_request_that_is_much_nearer_to_tools_of_other_catalogs_has_less_evidence():
    assert told([0.7], rivals=1.0) < told([0.7], rivals=0.6)


def test_a_request_has_more_evidence_where_the_catalog_has_the_like_of_what_is_nearest_elsewhere():
    gained = told([0.8], likeness=0.9) - told([0.8], likeness=0.4)

    assert gained == pytest.approx(0.5 * EVIDENCE_OF_COUNTERPARTS, abs=1e-3)


def test_what_a_model_does_unaided_speaks_against_all_items_where_it_is_nearer_than_general_requests():
    as_near = told([0.8], coverage=0.5, unaided=0.8 + NEARER_UNAIDED)

    assert as_near == pytest.approx(told([0.8], coverage=0.5), abs=1e-3)
    assert told([0.8], coverage=0.5, unaided=0.9 + NEARER_UNAIDED) == pytest.approx(as_near - 0.1, abs=1e-3)


def test_an_item_that_is_alone_has_less_evidence_than_one_in_company():
    alone, in_company = [0.8, *[0.1] * COMPANY], [0.8, *[0.7] * COMPANY]

    assert told(in_company) - told(alone) == pytest.approx(0.6 * AGAINST_ALONE, abs=1e-3)


def test_a_larger_catalog_needs_more_evidence_within_what_was_measured():
    sizes = [FEWEST_ITEMS, 100, 1_000, MOST_ITEMS]

    assert sorted({needed_evidence(size) for size in sizes}) == [needed_evidence(size) for size in sizes]
    assert needed_evidence(1) == needed_evidence(FEWEST_ITEMS) > 0
    assert needed_evidence(100_000) == needed_evidence(MOST_ITEMS) < 1


@pytest.mark.parametrize(
    "query",
    [
        "please open a ticket about the crash we saw yesterday",
        "which pull requests are waiting for me?",
        "show me what is in the file setup.py",
        "create_issue",
        "pull request",
    ],
)
def test_queries_that_five_tools_can_serve_fit(engine, five, query):
    ranking = engine.search(query, five)

    assert ranking.fits
    assert ranking.results
    assert ranking.near_misses == ()


@pytest.mark.parametrize(
    "query",
    [
        "Will it rain in Lisbon tomorrow?",
        "I'd like to book a table for four on Friday evening, somewhere with a terrace.",
        "recommend a red wine for grilled lamb",
        "What is the exchange rate of the Swiss franc?",
        "turn off the lights in the kitchen",
    ],
)
def test_queries_that_five_tools_cannot_serve_fit_nothing_and_name_the_nearest(engine, five, query):
    ranking = engine.search(query, five)

    assert not ranking.fits
    assert ranking.results == ()
    assert ranking.evidence is not None
    assert ranking.evidence < needed_evidence(5)
    assert {result.item.server for result in ranking.near_misses} == {"srv"}


@pytest.fixture(scope="module")
def assistant():
    """A catalog such as one has beside an assistant that writes code."""
    return snapshot(
        tool("edit_file", "Make line-based edits to a text file."),
        tool("search_files", "Search for files and directories that match a pattern."),
        tool("list_directory", "List the files and directories in a path."),
        tool("browser_click", "Perform click on a web page"),
        tool("browser_type", "Type text into editable element"),
        tool("browser_resize", "Resize the browser window"),
        tool("git_diff", "Shows differences between branches or commits"),
        tool("git_commit", "Records changes to the repository"),
        tool("create_event", "Create a new calendar event."),
        tool("add_tasks", "Add one or more tasks to a project."),
    )


def test_what_a_model_does_unaided_fits_no_tool_though_some_have_its_words(engine, assistant):
    """Most prompts of an assistant are about the code or the text of the conversation."""
    unaided = ["make the heading green", "reword the last paragraph", "and the third one as well"]
    for_tools = ["make the window narrower", "press the save button", "what differs between the two branches"]

    assert not [query for query in unaided if engine.search(query, assistant).fits]
    assert not [query for query in for_tools if not engine.search(query, assistant).fits]
    assert set(UNAIDED).isdisjoint([*unaided, *for_tools])


@pytest.mark.parametrize("query", ["asdf qwer zxcv", "blorp", "xyzzy frobnitz"])
def test_words_that_nobody_knows_fit_no_tool_even_of_the_smallest_catalog(engine, query):
    alone = snapshot(tool("echo", "Echoes back the input."))

    assert not engine.search(query, alone).fits
    assert engine.search("echo hello", alone).fits


@pytest.fixture(scope="module")
def small():
    """The 16 tools of two example servers."""
    servers = {name: server(name) for name in ("notes", "calculator")}
    return snapshot(
        *(
            tool(one["name"], one["description"], server=name, schema=one["inputSchema"])
            for name, server in servers.items()
            for one in server.tools()
        )
    )


@pytest.mark.parametrize(
    "query",
    [
        "translate this to French",
        "recommend a red wine for fish",
        "my horoscope for Leo",
        "when should I prune an apple tree",
        "what's the weather in Paris",
        "book a table for two",
        "thanks",
        "never mind",
        "are you a real person",
        "dim the bedroom lamp",
    ],
)
def test_what_no_tool_anywhere_is_near_to_does_not_fit_the_least_bad_one(engine, small, query):
    assert not engine.search(query, small).fits


def test_a_word_that_nearly_every_tool_has_says_little_even_in_a_small_catalog(engine):
    tools = [
        tool("crop", "Crop a picture to a rectangle, and return its name.", server="pictures"),
        tool("rotate", "Turn a picture by 90 degrees.", server="pictures"),
        tool("blur", "Make a picture less sharp.", server="pictures"),
        tool("play", "Play a song.", server="music"),
        tool("pause", "Stop the song for a while.", server="music"),
    ]
    common, rare = (
        engine.search(f"{word} convention for hedgehogs", snapshot(*tools)) for word in ("name", "crop")
    )

    assert common.evidence < rare.evidence
    assert not common.fits


@pytest.mark.parametrize(
    "query",
    [
        "make a note that the car needs oil",
        "what did I write about Rome",
        "20 % of 340",
        "how many miles are 5 km",
    ],
)
def test_colloquial_requests_of_a_small_catalog_still_fit(engine, small, query):
    assert engine.search(query, small).fits


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ("who won the world cup in 1998", True),
        ("find the best espresso machine", True),
        ("news about the elections in Norway", True),
        ("what shall I cook with leeks", True),
        ("what shall I do with my day", False),
        ("where did I put my keys", False),
        ("turn off the lights", False),
    ],
)
def test_a_question_about_the_world_is_for_a_tool_that_searches_the_web(engine, query, fits):
    tools = (
        tool("create_issue", "Open a new ticket in a repository.", server="code"),
        tool("merge_pull_request", "Merge a pull request.", server="code"),
    )
    web = tool("lookup", "Search the web and return the first ten pages.", server="web")

    assert not engine.search(query, snapshot(*tools)).fits
    ranking = engine.search(query, snapshot(*tools, web))
    assert ranking.fits is fits
    assert not fits or ranking.results[0].item.name == "lookup"


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("what is the name of the highest mountain", ["search_places", "lookup"]),
        ("which city has most streets", ["search_places"]),
    ],
)
def test_a_search_of_the_web_is_shown_where_all_others_are_far_from_a_question(engine, query, shown):
    about = "Search for places: cities, streets, countries and what is the name of their capital."
    catalog = snapshot(
        tool("search_places", about, server="maps"),
        tool("lookup", "Search the web and return the first ten pages.", server="web"),
        tool("open_issue", "Open an issue.", server="code"),
        tool("close_issue", "Close an issue.", server="code"),
    )

    ranking = engine.search(query, catalog, options=FITTING)

    assert [one.item.name for one in ranking.results] == shown


@pytest.fixture(scope="module")
def tracker():
    """A real tracker of issues, whose tools call nothing a ticket."""
    return snapshot(
        *(
            tool(one["name"], one["description"], schema=one["inputSchema"], server="linear")
            for one in real_lists()["linear"]
        )
    )


@pytest.mark.parametrize(
    ("query", "read_as"),
    [
        ("list the tickets due this week", "list the issues due this week"),
        ("who has the tickets", "who has the issues"),
    ],
)
def test_a_request_that_nothing_fits_is_read_with_the_names_of_the_catalog(engine, tracker, query, read_as):
    ranking = engine.search(query, tracker, options=FITTING)

    assert ranking.fits
    assert (ranking.query, ranking.read_as) == (query, read_as)
    assert "linear_getIssues" in [one.item.name for one in ranking.results]


@pytest.mark.parametrize("query", ["get me tickets for the Metallica gig", "buy plane tickets to Rome"])
def test_a_request_for_other_things_of_that_name_still_fits_nothing(engine, tracker, query):
    assert not engine.search(query, tracker, options=FITTING).fits


def test_names_of_hidden_tools_are_not_read(engine, tracker):
    """A hidden tool for tickets would keep them from being read as the issues that are there."""
    hidden = tool("close_ticket", "Closes a ticket of the help desk.", server="desk")
    catalog = snapshot(*tracker.sources[0].items, hidden)
    query = "list the tickets due this week"

    found = [
        engine.search(query, replace(catalog, hidden=frozenset(keys)), options=FITTING).read_as
        for keys in ((), [key_of(hidden)])
    ]

    assert found == [None, "list the issues due this week"]


@pytest.fixture(scope="module")
def containers():
    """A memory and a database, which say nothing of what they hold, and a tool beside them."""
    return snapshot(
        tool("add_facts", "Add facts to entities in the knowledge graph.", server="memory"),
        tool("find_entities", "Search entities in the knowledge graph.", server="memory"),
        tool("read_query", "Execute a SELECT query on the database.", server="sqlite"),
        tool("crop", "Crop a picture to a rectangle.", server="pictures"),
    )


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("remember that I like tea", "add_facts"),
        ("keep in mind that my sister lives in Oslo", "add_facts"),
        ("write this down: my sister lives in Oslo", "add_facts"),
        ("what was the name of the plumber again", "find_entities"),
        ("what do you know about my boss", "find_entities"),
        ("call the plumber, don't forget", None),
        ("total of all invoices of 2025", "read_query"),
        ("remember to feed the cat", None),
        ("how many hours do cats sleep", None),
        ("turn off the lights", None),
    ],
)
def test_a_tool_that_may_hold_anything_fits_by_the_form_of_a_request(engine, containers, query, best):
    ranking = engine.search(query, containers)

    assert (ranking.results[0].item.name if ranking.fits else None) == best


@pytest.fixture(scope="module")
def travels():
    """Tools that say what they are for, and none of what they are asked about."""
    return snapshot(
        tool("directions", "Directions between two points, with steps.", server="maps"),
        tool("place_details", "Details of a place: hours, ratings.", server="maps"),
        tool("search_preprints", "Search preprints of papers.", server="papers"),
        tool("search_files", "Search for files by a pattern.", server="files"),
        tool("post_message", "Post a message to a channel.", server="chat"),
        tool("send_to_queue", "Send a message to a queue.", server="jobs"),
        tool("create_issue", "Open a new ticket in a repository.", server="code"),
    )


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("how can I get from Porto to Lisbon by train", "directions"),
        ("how far is it from Lyon to Nice", "directions"),
        ("is the bakery on Hill Street open right now", "place_details"),
        ("when does the town hall close", "place_details"),
        ("find scientific articles about malaria", "search_preprints"),
        ("how do we get to the castle without a car", "directions"),
        ("where did I put the contract", "search_files"),
        ("send a message to Anna", "post_message"),
        ("@anna: lunch at noon?", "post_message"),
        ("tell Anna on Telegram that lunch is at noon", None),
        ("how do I get to the settings page", None),
        ("where did I leave my wallet", None),
    ],
)
def test_ways_places_papers_and_files_are_known_by_the_form_of_a_request(engine, travels, query, best):
    ranking = engine.search(query, travels)

    assert (ranking.results[0].item.name if ranking.fits else None) == best


@pytest.fixture(scope="module")
def offices():
    """Servers with much the same tools, as people have them in one company."""
    return snapshot(
        *(
            tool(f"{action}_users", f"{action.title()} users of the workspace.", server=server)
            for server in ("slack", "notion", "jira-cloud")
            for action in ("list", "find")
        )
    )


@pytest.mark.parametrize(
    ("query", "server"),
    [
        ("list everybody in our Notion workspace", "notion"),
        ("list the users on slack", "slack"),
        ("list the Jira users", "jira-cloud"),
        ("list users of the slack workspace", "slack"),
    ],
)
def test_the_tools_of_a_server_that_a_request_names_come_first(engine, offices, query, server):
    ranking = engine.search(query, offices, options=SearchOptions(depth=6))
    best, *rest = (*ranking.results, *ranking.others)
    others = [one.instructions for one in rest if one.item.server != server]

    assert (best.item.server, best.instructions, len(others)) == (server, 0, 4)
    assert max(others) <= -ADDRESSED + 1e-6


@pytest.mark.parametrize("said", ["in prod", "of the production database", "on the production server"])
def test_a_server_that_is_called_shortly_is_named_in_full_as_well(engine, said):
    tools = [tool("list_tables", "List tables.", server=key) for key in ("staging-db", "dev-db", "prod-db")]

    assert engine.search(f"list tables {said}", snapshot(*tools)).results[0].item.server == "prod-db"


def test_a_request_that_names_a_server_of_the_catalog_fits_sooner(engine):
    tools = [tool(f"run_{n}", "Runs a saved report.", server="salesforce") for n in range(6)]
    query = "get me all opportunities over 50k from"

    named, other = (
        engine.search(f"{query} {server}", snapshot(*tools)).evidence for server in ("salesforce", "hubspot")
    )
    assert named - other >= EVIDENCE_OF_ADDRESS


@pytest.fixture(scope="module")
def tables():
    """A database, and tools with the words of tables that have none."""
    return snapshot(
        tool("read_query", "Execute a SELECT query on the database.", server="sqlite"),
        tool("write_query", "Execute an INSERT, UPDATE or DELETE query.", server="sqlite"),
        tool("sort_rows", "Sort the rows of a sheet.", server="sheets"),
        tool("update_price", "Update the price tag on the shelf.", server="shop"),
        tool("search_table", "Search the rows of a table in the documentation.", server="docs"),
    )


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("how many rows does orders have", "read_query"),
        ("average basket by month from the sales db", "read_query"),
        ("delete the records from the visits table", "write_query"),
        ("sort the rows of my sheet", "sort_rows"),
    ],
)
def test_a_request_about_rows_is_for_a_tool_that_runs_sql(engine, tables, query, best):
    assert engine.search(query, tables).results[0].item.name == best


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("jot down that Anna likes tea", "create_note"),
        ("take this down: the shed is locked", "create_note"),
        ("make a note about the leaking tap", "create_note"),
        ("remember that Anna likes tea", "create_note"),
        ("what did I write down about the tap", "search_notes"),
    ],
)
def test_what_is_written_down_is_kept_in_notes_where_there_is_no_memory(engine, query, best):
    notes = (
        tool("create_note", "Create a note with a title and a text.", server="notes"),
        tool("search_notes", "Search notes by their text.", server="notes"),
    )
    others = (
        tool("git_add", "Add file contents to the staging area.", server="git"),
        tool("crop", "Crop a picture to a rectangle.", server="pictures"),
    )

    assert engine.search(query, snapshot(*notes, *others)).results[0].item.name == best
    assert not engine.search(query, snapshot(*others)).fits


def test_what_is_to_be_remembered_fits_nothing_without_a_memory(engine):
    tools = (
        tool("crop", "Crop a picture to a rectangle.", server="pictures"),
        tool("save_page", "Save a page as PDF.", server="browser"),
    )

    assert not engine.search("remember that I like tea", snapshot(*tools)).fits


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        ("replace the spinner with a skeleton loader", False),
        ("explain what this regex matches", False),
        ("write down a new note about the heading", True),
        ("when am I free tomorrow", True),
        ("delete_note", True),
    ],
)
def test_a_prompt_needs_more_than_a_search_where_a_model_may_do_it_unaided(engine, said, fits):
    declared = [
        tool(one["name"], one["description"], server=name)
        for name in ("notes", "calendar")
        for one in server(name).tools()
    ]
    ranking = engine.search(said, snapshot(*declared))

    assert ranking.fits
    assert fits_a_prompt(ranking) is fits


def test_where_it_is_in_doubt_what_a_message_asks_for_decides_and_not_what_it_tells(engine):
    names = "filesystem", "slack", "github", "git", "notion", "kubernetes", "linear", "time"
    listed = [(name, one) for name in names for one in real_lists()[name]]
    tools = snapshot(*(tool(one["name"], one.get("description", ""), server=name) for name, one in listed))

    asked = engine.search("My father turns 80 and everybody comes from far away. Who works on PAY-7?", tools)
    assert asked.fits and asked.read_as.startswith("Who works on PAY-7")
    for told in (
        "I was reading my files all day. Order a large pizza.",
        "Buy two concert tickets. I was reading my files all day.",
        "We had a long call about the project. Buy two concert tickets.",
        "The team has been debugging since noon. Print the boarding pass.",
    ):
        assert not engine.search(told, tools).fits


def test_relevance_is_judged_after_filtering(engine):
    both = snapshot(
        tool("get_weather", "Weather forecast for a city.", server="weather"),
        tool("create_issue", "Open a new ticket in a repository.", server="code"),
        tool("merge", "Merge a pull request.", server="code"),
    )
    query = "Will it rain in Lisbon tomorrow? I want the weather forecast."

    assert engine.search(query, both).fits
    assert not engine.search(query, both, Filters(servers=frozenset({"code"}))).fits


def test_a_configured_cosine_replaces_the_relevance_model():
    catalog = snapshot(tool("send_mail", "Sends a mail."), tool("read_file", "Reads a file."))
    query = "quagga okapi mail"

    assert Engine(WordVectors(), calibration=0.1).search(query, catalog).fits
    assert not Engine(WordVectors(), calibration=0.99).search(query, catalog).fits
    assert Engine(WordVectors(), calibration="anything").search("quagga okapi", catalog).fits
