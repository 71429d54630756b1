"""Statements that mean an order, complaints that mean a question, and statements that mean neither."""

from support.catalogs import snapshot, tool
from support.tables import each

from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.forms import WordList
from mcp_context_proxy.retrieval.queries import ReadQuery, read_query


def read(query: str) -> ReadQuery:
    return read_query(query, lambda _term: False, lambda: WordList([]), {})


@each(
    ("statement", "order"),
    [
        ("there should be a page about the offsite", "create a page about the offsite"),
        ("we don't have a label for bugs yet", "create label for bugs"),
        ("the old staging server isn't needed any more", "delete the old staging server"),
        ("the beta flag is no longer used", "delete the beta flag"),
        ("we don't use that webhook any more", "delete that webhook"),
        ("it would be nice to have last week's numbers in front of me", "show last week's numbers"),
        ("the document must be shared with Ana", "share the document with Ana"),
        ("the ticket needs to be closed", "close the ticket"),
        ("the due date should be Friday", "change the due date to Friday"),
        ("the backup should run at 4 instead of 2", "change the backup to run at 4 instead of 2"),
        ("somebody has to restart the worker", "restart the worker"),
    ],
)
def test_a_statement_is_read_as_the_order_that_it_means(statement: str, order: str) -> None:
    assert read(statement).read_as == order


@each(
    ("complaint", "order"),
    [
        ("the build is red", "show why the build is red"),
        ("deploy is broken again", "show why deploy is broken again"),
        ("the pods keep crashing, have a look", "show why the pods keep crashing"),
        ("my upload failed and nobody knows why", "show why my upload failed and nobody knows why"),
        ("our api doesn't respond, what happened?", "show why our api doesn't respond"),
    ],
)
def test_who_says_that_something_does_not_work_wants_to_know_why(complaint: str, order: str) -> None:
    assert read(complaint).read_as == order


@each(
    "query",
    [
        "The build is red. Who is on duty?",
        "the job is stuck, stop it",
        "the worker hangs and somebody should give it a kick",
        "if the site is down, restart it",
        "is the site down",
        "what should be done about the leak",
        "report that the label should be removed",
        "I think we are late",
        "the meeting was great",
        "rerun failed tasks",
        "retry failed payments of last week",
    ],
)
def test_what_asks_or_only_tells_is_read_as_it_is(query: str) -> None:
    assert read(query).texts[0] == query


def test_an_exact_name_is_compared_with_what_was_written() -> None:
    assert read("the build is red").written == "the build is red"


@each(
    ("order", "read_as"),
    [
        ("write to Dana that the demo is off", "send message to Dana that the demo is off"),
        ("let Dana know that the demo is off", "send message to Dana that the demo is off"),
        ("bill the customer for the repair", "create invoice for the customer for the repair"),
        ("put the new printer on the inventory", "add the new printer on the inventory"),
        (
            "put the short version in #releases",
            "post message to channel the short version in #releases (channel)",
        ),
        ("make the header row bigger", "change the header row bigger"),
        ("move the dentist to half past four", "update event the dentist to half past four"),
    ],
)
def test_an_order_by_its_object_is_read_in_the_words_of_tools(order: str, read_as: str) -> None:
    assert read(order).read_as == read_as


@each(
    "order",
    [
        "write to the file log.txt",
        "write to S3",
        "invoice numbers of May",
        "make the report",
        "tell me about Dana",
    ],
)
def test_the_same_verbs_with_other_objects_stay(order: str) -> None:
    assert order in read(order).texts[0]


def test_to_keep_a_thing_is_not_to_delete_it(engine: Engine) -> None:
    tools = snapshot(
        tool("delete_note", "Delete a note from the notebook.", server="notes"),
        tool("untag_note", "Take a tag off a note in the notebook.", server="notes"),
        tool("list_notes", "List the notes.", server="notes"),
    )

    results = engine.search("take the tag off the note but keep the note", tools).results
    assert results[0].item.name == "untag_note"
    assert read("take the tag off the note but keep the note").refused


def test_a_question_for_an_issue_by_its_key_finds_what_gets_the_issue(engine: Engine) -> None:
    tools = snapshot(
        tool("assign_issue", "Assign an issue to a user.", server="tracker"),
        tool("get_issue_watchers", "Get the watchers of an issue.", server="tracker"),
        tool("get_issue", "Get details of a specific issue by its key.", server="tracker"),
        tool("search_assignable_users", "Search users who can be assigned to issues.", server="tracker"),
    )

    for query in ("who has OPS-77", "is anyone working on OPS-77", "status of OPS-77"):
        assert engine.search(query, tools).results[0].item.name == "get_issue"
    assert engine.search("who watches OPS-77", tools).results[0].item.name == "get_issue_watchers"
