"""Statements that mean an order, complaints that mean a question, and stories around them."""

from support.catalogs import WordVectors, read, snapshot, tool
from support.tables import each

from mcp_context_proxy.retrieval.engine import Engine


@each(
    ("statement", "order"),
    [
        ("there should be a page about the offsite", "create a page about the offsite"),
        ("we don't have a label for bugs yet", "create label for bugs"),
    ],
)
def test_a_statement_is_read_as_the_order_that_it_means(statement: str, order: str) -> None:
    assert read(statement).read_as == order


@each(
    ("complaint", "order"),
    [
        ("the build is red", "show why the build is red"),
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
        "Generate a password. The password should be 15 characters long.",
        "Find a hotel for me, please. It should be booked with breakfast.",
        "the soup should be ready at seven",
        "the meeting was great",
        "the light is off",
        "the event log is off",
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


@each(
    ("request_", "core"),
    [
        (
            "We are at this since Monday and my boss is angry. Who made the last commit?",
            "Who made the last commit?",
        ),
        ("it was a long day and everybody is tired, list the pods of staging", "list the pods of staging"),
        ("read what Dr. Paulsen commented. I have no time for it today", "read what Dr. Paulsen commented."),
    ],
)
def test_a_story_around_a_request_may_be_left_out(request_: str, core: str) -> None:
    assert core in read(request_).cores


@each(
    "request_",
    [
        "my notes on the onboarding are in notion somewhere",
        "I'm planning a trip to Oslo. Find a hotel",
        "I need the text of the page",
        "list the pods and show the logs of the first one",
        "I met Anna. Add her as a customer and tell the team",
    ],
)
def test_a_request_that_is_no_story_or_has_several_needs_is_read_as_a_whole(request_: str) -> None:
    assert read(request_).cores == ()


def test_a_request_that_needs_what_was_told_before_stays_whole() -> None:
    assert read("the job has been hanging for an hour and it is late, stop it").cores == ()


def test_the_request_of_a_long_story_is_found_among_its_sentences(engine: Engine) -> None:
    story = (
        "My predecessor moved to Lyon and left me a handover of forty pages. Thirty of them are about the "
        "history of the department. I've settled in and found the printer, the canteen and a parking space. "
        "On the last page there is one item for me. {} My mentor is ill, so nobody can show me."
    )
    tools = snapshot(
        tool("scale_deployment", "Set the number of replicas of a deployment.", server="cluster"),
        tool("list_reviewers", "List the people who reviewed a merge request.", server="forge"),
        tool("list_parking_spaces", "List free parking spaces of a building.", server="office"),
        tool("summarize_history", "Summarize the history of a document, page by page.", server="wiki"),
    )

    for request, name in (
        ("Set the checkout deployment to four replicas.", "scale_deployment"),
        ("Any chance to see who reviewed the merge request?", "list_reviewers"),
    ):
        found = engine.search(story.format(request), tools)
        assert found.fits
        assert found.results[0].item.name == name
        assert found.read_as == request


@each(
    "request_",
    [
        "Create the asset. Its name is Cobalt, it is made in Turin. After that, check the stock. It is low.",
        "List the pods. Show the logs of the first. Delete it. Tell the team. It was the one that hung.",
    ],
)
def test_several_requests_with_what_they_are_about_are_no_story(request_: str) -> None:
    assert read(request_).cores == ()


def test_two_requests_apart_in_a_long_story_are_both_found(engine: Engine) -> None:
    story = (
        "Last week we were all in Berlin, and it was exhausting. Customers complained about us meanwhile. "
        "Open an issue about the broken login page. My neighbour told me about her cat on Friday. "
        "{} The office was quiet, and nobody knew anything about it."
    )
    tools = snapshot(
        tool("create_issue", "Create a new issue in a repository.", server="forge"),
        tool("send_message", "Send a message to a channel.", server="chat"),
        tool("list_cats", "List the cats of a shelter.", server="shelter"),
        tool("book_trip", "Book a trip to a city.", server="travel"),
    )

    for also in ("Send a message to the support channel.", "Could you tell the support channel of it?"):
        found = engine.search(story.format(also), tools)
        assert {one.item.name for one in found.results[:2]} == {"create_issue", "send_message"}


def test_all_that_a_story_may_ask_for_is_embedded_at_once() -> None:
    vectors, tools = WordVectors(), snapshot(tool("list_deals", "List the open deals."))
    engine = Engine(vectors)
    engine.index(tools)
    vectors.calls.clear()
    story = (
        "It was a long day. My train was late. {} He told me so. {} I was told to be quick. They were ill."
    )
    engine.search(story.format("List the open deals.", "Who has signed the last contract?"), tools)

    assert len(vectors.calls) == 1
    assert {"List the open deals.", "Who has signed the last contract?"} <= {*vectors.texts}


@each(
    ("request_", "meant"),
    [
        ("Delete the tag old. Actually no, rename it to new.", "rename it to new (the tag old)."),
        ("Merge the branch. Hold on, just show me its files first.", "show me its files first (the branch)."),
        ("Close the window, scratch that, open the settings page", "open the settings page"),
        ("find the invoice - no, list the unpaid orders", "list the unpaid orders"),
        ("Read the page. Create a card. Sorry, I meant archive it", "Read the page. archive it (a card)"),
        ("export the list and print... no, mail it to Tom", "export the list and mail it to Tom"),
        ("weekly sales report. Never mind. low stock products", "low stock products"),
        (
            "Can you close the card? No, archive it, then read the page",
            "archive it (the card), then read the page",
        ),
    ],
)
def test_of_an_order_that_is_taken_back_only_the_object_counts(request_: str, meant: str) -> None:
    assert read(request_).read_as == meant


@each(
    "request_",
    [
        "Send the letter on Monday. No wait, Tuesday is better.",
        "open the page, wait, click the button",
        "Start the job. Wait until it is done. Show its output.",
        "Close the card. Actually, also delete the list.",
        "create a draft rather than send the letter",
        "Is there a card about it? No rush, list the cards.",
        "Is there a card about it? No. Create the card then.",
        'Send Tom the message "I can come. Actually no, list the others".',
        "Add a comment to the card: the page is late. Actually, open the draft.",
        "Close the card. Actually, could you delete the list as well?",
        "open the card, no. 5, and read it",
    ],
)
def test_what_takes_back_no_order_is_read_as_it_is(request_: str) -> None:
    assert read(request_).read_as is None


def test_a_tool_for_what_is_taken_back_comes_after_the_one_that_is_meant(engine: Engine) -> None:
    tools = snapshot(
        tool("delete_tag", "Delete the tag of a note.", server="notes"),
        tool("rename_tag", "Rename the tag of a note.", server="notes"),
    )

    found = engine.search("Delete the tag old. Actually no, rename it to new.", tools)
    assert found.results[0].item.name == "rename_tag"
