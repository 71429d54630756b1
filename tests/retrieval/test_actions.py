"""Actions of tools, and the actions that orders want."""

import numpy as np
import pytest
from support.catalogs import read, snapshot, tool
from support.tables import each

from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval import FITTING
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.forms import WordList
from mcp_context_proxy.retrieval.item_metadata import (
    ACTIONS,
    CHANGE,
    CHANGES,
    DELETE,
    EFFECTS,
    MOST_ADDED,
    TAKEN_FROM_CHANGING,
    WEIGHTS,
    action_of,
    effect_of,
)
from mcp_context_proxy.retrieval.needs import opening, wanted
from mcp_context_proxy.retrieval.queries import read_query


def notes() -> Snapshot:
    return snapshot(
        tool("delete_note", "Delete a note from the notebook.", server="notes"),
        tool("create_note", "Create a note in the notebook.", server="notes"),
        tool("get_note", "Get a note from the notebook.", server="notes"),
        tool("update_note", "Update a note in the notebook.", server="notes"),
    )


@each(
    ("name", "action"),
    [("jira_get_user", "read"), ("deleteNote", "delete"), ("find_and_delete", "search"), ("clock", "")],
)
def test_the_first_verb_of_a_name_is_what_a_tool_does(name: str, action: str) -> None:
    assert ACTIONS[action_of(name)] == action


@each(
    ("name", "changes"),
    [("jira_assign_issue", True), ("kubectl_scale", True), ("get_merge_request", False), ("clock", False)],
)
def test_a_tool_may_change_something_by_a_verb_of_no_class(name: str, changes: bool) -> None:
    assert (effect_of(name) == CHANGE) is changes


@each(
    ("order", "word"),
    [
        ("could you please delete the note", "delet"),
        ("could we list the notes", "list"),
        ("which notes are there", "which"),
        ("hey, let's erase it", "eras"),
        ("the is it", ""),
        ("", ""),
    ],
)
def test_an_order_opens_after_courtesies_and_stop_words(order: str, word: str) -> None:
    assert opening(order) == word


@each(
    ("order", "action"),
    [
        ("erase the old note", "delete"),
        ("bin the old note", "delete"),
        ("new note about the trip", "create"),
        ("what is in the note", "read"),
        ("rename the note", "update"),
        ("where is the note about the trip", "search"),
    ],
)
def test_tools_that_do_what_the_order_wants_gain_most(order: str, action: str) -> None:
    assert ACTIONS[int(wanted(order).argmax())] == action


def test_an_order_that_tells_nothing_adds_nothing() -> None:
    assert not wanted("xylophone of the note").any()
    assert not wanted("").any()


def test_to_get_something_is_not_to_get_rid_of_it() -> None:
    assert wanted("get the unread articles")[DELETE] < 0
    assert read("get rid of the old articles").actions[0, DELETE] > 0


@pytest.mark.parametrize("order", ["delete the entity", "erase the last line", "please wipe the disk"])
def test_an_order_to_delete_is_served_by_no_tool_that_creates_or_sends(order: str) -> None:
    added = wanted(order)

    assert {added[ACTIONS.index(does)] for does in ("create", "send")} == {np.float32(-TAKEN_FROM_CHANGING)}
    assert added[DELETE] > 0


@each(
    "question",
    [
        "who works on the bug",
        "when is the meeting",
        "which note is new",
        "is there a branch for the redesign",
        "do we have a note about cats",
        "why is the note gone",
        "how many notes are shared",
        "how come the note is empty",
        "status of PAY-12",
        "the current owner of the note",
    ],
)
def test_a_question_about_facts_asks_for_no_tool_that_changes_anything(question: str) -> None:
    assert set(wanted(question)[CHANGES]) == {np.float32(-TAKEN_FROM_CHANGING)}


@each(
    "order", ["are you able to create a note", "is it possible to add a note", "is there a way to rename it"]
)
def test_a_question_for_the_possibility_of_something_orders_it(order: str) -> None:
    assert not (wanted(order)[CHANGES] == np.float32(-TAKEN_FROM_CHANGING)).any()


def test_no_addition_is_above_its_bound() -> None:
    words = [line.split()[0] for line in WEIGHTS.read_text("utf-8").splitlines() if not line.startswith("#")]

    assert len(words) > 300
    assert max(float(wanted(word).max()) for word in words) == pytest.approx(MOST_ADDED)
    assert min(float(wanted(word).min()) for word in words) == pytest.approx(-TAKEN_FROM_CHANGING)
    assert {wanted(word).size for word in words} == {EFFECTS}


def test_each_need_has_its_own_action_and_the_whole_has_the_highest() -> None:
    query = read_query(
        "Delete the old note. Then show me the new one.", lambda _term: True, lambda: WordList([]), {}
    )

    assert [ACTIONS[int(row.argmax())] for row in query.actions[1:]] == ["delete", "read"]
    assert np.array_equal(query.actions[0], query.actions[1:].max(axis=0))


def test_what_an_order_carries_does_not_say_what_it_wants() -> None:
    query = read_query("file a bug that deleting fails", lambda _term: True, lambda: WordList([]), {})

    assert query.texts[0] == "create a bug that deleting fails"
    assert query.actions[0, ACTIONS.index("create")] > 0 > query.actions[0, DELETE]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("erase the note", "delete_note"),
        ("please get rid of the note", "delete_note"),
        ("make a note", "create_note"),
        ("what does the note say", "get_note"),
        ("correct the note", "update_note"),
        ("remind me to delete the note", "create_note"),
    ],
)
def test_of_tools_for_the_same_thing_the_one_that_does_what_is_wanted_is_first(
    engine: Engine, query: str, first: str
) -> None:
    ranking = engine.search(query, notes(), options=FITTING)

    assert ranking.results[0].item.name == first


def test_the_addition_is_part_of_the_score(engine: Engine) -> None:
    ranking = engine.search("show the note", notes(), options=FITTING)

    for one in ranking.results:
        assert one.cosine is not None
        assert one.score == pytest.approx(one.cosine + 0.02 * one.lexical + one.action + one.need, abs=1e-5)
    assert ranking.results[0].action > 0


def test_an_exact_name_comes_first_whatever_it_does(engine: Engine) -> None:
    assert engine.search("delete_note", notes()).results[0].item.name == "delete_note"


def test_a_deleting_tool_is_not_first_where_nothing_is_to_be_deleted(engine: Engine) -> None:
    tools = snapshot(
        tool("delete_old_notes", "Delete the old notes of the trip to Rome.", server="notes"),
        tool("list_notes", "List the notes of a trip.", server="notes"),
    )

    assert engine.search("show the old notes of the trip", tools).results[0].item.name == "list_notes"
    assert engine.search("throw away the old notes", tools).results[0].item.name == "delete_old_notes"


@each(
    ("query", "read_as"),
    [
        ("get rid of the old branch", "delete the old branch"),
        ("please throw away my draft", "please delete my draft"),
        ("read the draft and throw it away", "read the draft and delete it"),
        ("look up how to descale a kettle", "search for how to descale a kettle"),
        ("kick off a build of main", "start a build of main"),
        ("call off the review with Tom", "cancel the review with Tom"),
        ("keep an eye on the price", "monitor the price"),
        ("could you remind me to mail the lease", "could you create reminder task mail the lease"),
        ("alert me if the page changes", "monitor and notify if the page changes"),
        ("give the ticket to Maria", "assign the ticket to Maria"),
        ("go to the homepage of the library", "navigate to the homepage of the library"),
        ("write in the field Name the word Ivan", "type in the field Name the word Ivan"),
        ("put 340 into cell B7", "write 340 into cell B7"),
        ("bump the replicas of web to 4", "scale the replicas of web to 4"),
        ("issue an invoice to Hansen", "create an invoice to Hansen"),
        ("make a copy of the board", "copy the board"),
        ("put it away", "archive it"),
        ("bring back the file of yesterday", "restore the file of yesterday"),
        ("push my meeting to four", "update event my meeting to four"),
        ("write to the team that we are late", "send message to the team that we are late"),
        ("close the tab and tell the whole team", "close the tab and post message to the whole team"),
    ],
)
def test_an_order_is_read_in_the_words_that_tools_have(query: str, read_as: str) -> None:
    assert read_query(query, lambda _term: False, lambda: WordList([]), {}).read_as == read_as


@each(
    "query",
    [
        "give me the weather",
        "turn on the lights",
        "set up a deal",
        "go to Berlin by train",
        "write a file",
        "put the note in the archive",
        "tell me a joke",
        "how do I get rid of moss",
    ],
)
def test_an_order_in_words_that_tools_may_have_stays(query: str) -> None:
    assert read_query(query, lambda _term: False, lambda: WordList([]), {}).read_as is None


def test_the_words_that_name_no_tool_count_little_and_those_of_tools_more() -> None:
    query = read_query("give the ticket to Maria", lambda _term: False, lambda: WordList([]), {})

    assert query.weights["giv"] < query.weights["assign"] < query.weights["ticket"]


def test_a_phrase_finds_the_tool_that_does_it(engine: Engine) -> None:
    tracker = snapshot(
        tool("assign_task", "Assign a task to a person.", server="tracker"),
        tool("get_task", "Get a task.", server="tracker"),
        tool("update_person", "Update a person.", server="tracker"),
        tool("cancel_task", "Cancel a task.", server="tracker"),
    )

    assert [
        engine.search(query, tracker).results[0].item.name
        for query in ("give the task about the roof to Maria", "call off the task about the roof")
    ] == ["assign_task", "cancel_task"]


@pytest.fixture
def desk() -> Snapshot:
    return snapshot(
        tool("approve-timesheet", "Approve a payroll timesheet by its ID.", server="payroll"),
        tool("revert-timesheet", "Revert a payroll timesheet to draft by its ID.", server="payroll"),
        tool("delete-event", "Delete an event of the calendar.", server="calendar"),
        tool("update-event", "Update an event of the calendar, or its time.", server="calendar"),
        tool("delete_branch", "Delete a branch of the repository.", server="git"),
        tool("list_branches", "List the branches of the repository.", server="git"),
        tool("delete_tag", "Delete a tag of the repository.", server="git"),
        tool("stop_container", "Stop a running container.", server="docker"),
        tool("remove_container", "Remove a container and its volumes.", server="docker"),
    )


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("don't approve the timesheet, set it back to draft", "revert-timesheet"),
        ("I don't want it approved, set the timesheet back", "revert-timesheet"),
        ("move the event to Monday without deleting it", "update-event"),
        ("do not remove the container, only stop it", "stop_container"),
        ("list the branches instead of deleting one", "list_branches"),
    ],
)
def test_a_tool_that_does_what_a_request_refuses_comes_after_what_it_asks_for(
    engine: Engine, desk: Snapshot, query: str, best: str
) -> None:
    assert engine.search(query, desk).results[0].item.name == best


def test_what_a_request_asks_for_as_well_is_not_refused(engine: Engine, desk: Snapshot) -> None:
    found = engine.search("do not delete the branch, delete the tag", desk, options=FITTING)

    assert found.results[0].item.name == "delete_tag"
    assert found.results[0].action > 0


HOLDERS = {
    "drop_collection": "Removes a collection from the database, with any indexes of it.",
    "delete_many": "Removes all documents that match the filter from a collection",
    "delete_environment": "Delete an environment",
    "delete_schedule_variable": "Delete a variable from a pipeline schedule",
    "delete_group": "Delete a group",
    "remove_participant": "Remove a user from a group or channel",
    "create_table": "Create a new table",
    "add_column": "Add a column to a table",
    "delete_contact": "Delete a contact from the address book",
    "remove_from_cart": "Remove a product from the cart",
    "delete_cart": "Delete a cart",
}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("drop the documents in the collection", "delete_many"),
        ("delete the variable in the environment", "delete_schedule_variable"),
        ("delete the environment's variable", "delete_schedule_variable"),
        ("remove Max from the group", "remove_participant"),
        ("throw Max out of the group", "remove_participant"),
        ("create a field in the table", "add_column"),
        ("delete the group", "delete_group"),
        ("delete a couple of groups", "delete_group"),
        ("remove Tom from my contacts", "delete_contact"),
        ("remove the shoes from the cart", "remove_from_cart"),
    ],
)
def test_what_a_thing_is_in_is_not_deleted_or_created_with_it(
    engine: Engine, query: str, expected: str
) -> None:
    tools = [tool(name, text, server="office") for name, text in HOLDERS.items()]

    assert engine.search(query, snapshot(*tools)).results[0].item.name == expected


@pytest.mark.parametrize("query", ["remove the record of the customer", "delete the customer's login"])
def test_a_tool_for_the_whole_stays_first_where_none_is_for_a_part(engine: Engine, query: str) -> None:
    """The tools for other things would be first instead."""
    names = ("customer", "user", "contact", "file")
    tools = [tool(f"delete_{name}", f"Delete a {name}", server="office") for name in names]
    tools.append(tool("create_order", "Create an order of a customer", server="office"))

    assert engine.search(query, snapshot(*tools)).results[0].item.name == "delete_customer"
