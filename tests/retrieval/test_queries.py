"""Queries are read as people write them: short forms, values, several orders, carried text."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.catalogs import read, snapshot, tool
from support.growth import costs_more
from support.servers import real_lists
from support.tables import each

from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.forms import WordList
from mcp_context_proxy.retrieval.needs import needs_of
from mcp_context_proxy.retrieval.queries import (
    CARRIED_SHARE,
    QUERY_LIMIT,
    QUERY_NEEDS,
    VALUE_SHARE,
    WRITTEN_OUT_SHARE,
    read_query,
)
from mcp_context_proxy.retrieval.text import SYNONYM_SHARE, stem, without_pasted


def weight(query: str, word: str) -> float:
    return read(query).weights[stem(word)]


def test_a_query_is_searched_whole_and_by_sentence() -> None:
    assert read(" Read the file. Then mail it! ").texts == (
        "Read the file. Then mail it!",
        "Read the file.",
        "Then mail it!",
    )


def test_a_query_of_one_sentence_is_searched_once() -> None:
    assert read("Read the file.").texts == ("Read the file.",)


def test_an_empty_query_has_no_texts() -> None:
    assert read(" \n ").texts == ()
    assert read("").read_as is None


def test_a_query_without_anything_to_change_is_read_as_it_is() -> None:
    query = read("creating issues, create an issue")

    assert query.read_as is None
    assert dict(query.asked) == {"creat": "creating", "issu": "issues"}
    assert {query.weights[term] for term in query.asked} == {1}


def test_a_long_query_is_cut_and_its_needs_are_few() -> None:
    query = read("Find the note about cats and dogs. " * 1_000 + "Zebra.")
    many = read(" ".join(f"Find the note number{n} of day{n}." for n in range(100)))

    assert len(query.written) <= QUERY_LIMIT
    assert "zebra" not in query.weights
    assert len(many.texts) == 1 + QUERY_NEEDS == 1 + len(many.needs)


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    query = read(text)

    assert set(query.weights) == {*query.asked, *query.added}
    assert not set(query.asked) & set(query.added)
    assert all(0 < one <= 1 for one in query.weights.values())
    assert len(query.needs) == max(0, len(query.texts) - 1)
    assert all(need.items() <= query.weights.items() for need in query.needs)
    assert all(one.encode() for one in (*query.texts, *query.beside))


@each(
    ("query", "read_as"),
    [
        ("review my PR", "review my pull request"),
        ("list k8s pods", "list kubernetes pods"),
        ("send a DM to Anna", "send a direct message to Anna"),
        ("open MRs, please", "open merge requests, please"),
        ("look at the (db) config.", "look at the (database) configuration."),
        ("whats staged rn", "what is staged right now"),
        ("gimme the params", "give me the parameters"),
    ],
)
def test_short_forms_are_written_out(query: str, read_as: str) -> None:
    assert read(query).read_as == read_as


@pytest.mark.parametrize("query", ["send Mrs Miller the invoice", "Mr Smith wants a refund"])
def test_the_title_of_a_person_is_no_short_form(query: str) -> None:
    assert read(query).read_as is None


def test_a_short_form_counts_itself_and_less_for_what_it_stands_for() -> None:
    query = read("review my PR")

    assert query.weights["pr"] == 1
    assert query.weights["pull"] == query.weights["request"] == WRITTEN_OUT_SHARE
    assert query.added["pull"] == "pull"


@each(
    ("query", "read_as"),
    [
        ("ls", "list files in directory"),
        ("rm", "delete file"),
        ("grep TODO", "search text in files TODO"),
        ("mkdir reports", "create directory reports"),
        ("cat notes.txt", "read file contents notes.txt (txt file)"),
        ("tail -f", "read end of file -f"),
        ("kill 4242", "stop process 4242"),
        ("cat", "read file contents"),
        ("df -h", "show disk usage -h"),
        ("docker ps", "list running containers"),
    ],
)
def test_a_command_of_a_shell_that_comes_first_is_written_out(query: str, read_as: str) -> None:
    assert read(query).read_as == read_as


@each("query", ["cat pictures", "kill the lights", "touch of grey", "find the cat", "how does ls work"])
def test_words_that_are_no_commands_stay(query: str) -> None:
    assert read(query).read_as is None


def test_configured_words_stand_for_theirs_and_go_before_packaged_ones() -> None:
    query = read("Who is ONCALL for the PR?", {"oncall": "on-call schedule", "pr": "press release"})

    assert query.read_as == "Who is on-call schedule for the press release?"
    assert query.weights["schedul"] == WRITTEN_OUT_SHARE
    assert "pull" not in query.asked


def test_a_value_counts_little_and_the_ending_of_a_file_as_a_word() -> None:
    query = read("summarize the figures in quarterly.csv")

    assert query.weights["quarter"] == VALUE_SHARE
    assert query.weights["csv"] == 1
    assert query.weights[stem("file")] == VALUE_SHARE
    assert query.weights[stem("summarize")] == 1


def test_a_value_that_is_all_an_order_is_about_has_the_words_of_its_kind() -> None:
    assert read("close #42").weights[stem("issue")] == 1
    assert read("close #42 in the tracker of the shop").weights[stem("issue")] == VALUE_SHARE


def test_to_book_a_meeting_is_to_schedule_it_and_to_book_a_flight_is_not() -> None:
    assert read("book a meeting with Anna").read_as == "schedule a meeting with Anna"
    assert read("book me a quick call tomorrow").read_as == "schedule me a quick call tomorrow"
    assert read("book a flight to Rome").read_as is None


@each(
    ("query", "needs"),
    [
        ("find the note and then mail it to Anna", ["find the note", "mail it to Anna"]),
        ("find the note, then send the summary", ["find the note", "send the summary"]),
        ("find the note; send the summary", ["find the note", "send the summary"]),
        ("book a flight, also reserve a hotel room", ["book a flight", "reserve a hotel room"]),
        ("merge the branch and delete the tag v2", ["merge the branch", "delete the tag v2"]),
        (
            "show my calendar, create an event for lunch, and email Bob the details",
            ["show my calendar", "create an event for lunch", "email Bob the details"],
        ),
        ("check the weather and what trains run today", ["check the weather", "what trains run today"]),
        ("fill in the form, submit it, wait a day", ["fill in the form", "submit it", "wait a day"]),
        ("which train is it and what gate", ["which train is it", "what gate"]),
        ("lock the door and hand the keys to Sven", ["lock the door", "hand the keys to Sven"]),
        ("get the page about rates and copy the figures", ["get the page about rates", "copy the figures"]),
        ("find the note. Mail the summary after that, close the task", None),
        ("1. Read the page. 2. Write it down.", ["Read the page.", "Write it down."]),
        ("- read the page - write it down", ["read the page", "write it down"]),
        ("find the page & open an issue", ["find the page", "open an issue"]),
        ("count the orders so that I can post the number", ["count the orders", "post the number"]),
        ("what changed today, and is there an issue", ["what changed today", "is there an issue"]),
        ("close the issue and let the team know", ["close the issue", "let the team know"]),
    ],
)  # fmt: skip
def test_several_orders_are_divided(query: str, needs: list[str] | None) -> None:
    if needs is None:
        needs = ["find the note.", "Mail the summary", "close the task"]
    assert [query[start:end] for start, end in needs_of(query)] == needs
    assert len(read(query).texts) == 1 + len(needs)


def test_needs_that_open_with_a_verb_or_a_question_ask_for_something() -> None:
    query = read("The car is at the garage. Ask when it is ready. Where is the invoice?")

    assert query.texts[1:] == ("The car is at the garage.", "Ask when it is ready.", "Where is the invoice?")
    assert query.orders == (False, True, True)


@each(
    "query",
    [
        "read and write files",
        "terms and conditions",
        "find papers, books and articles",
        "search, filter and sort",
        "find what is lost, then found",
        "translate 'read the mail and write a note' to French",
        'post "find the note, then mail the summary" to the channel',
        "what happened then",
        "compare cats and dogs of the neighbours",
        "create a repository with a readme and a license",
        "list a note and a picture",
        "update the start date and the end date",
        "read the file as well as the folder",
        "the first name, and the last",
        "find hotels in Rome, including the price of a room",
        "find a flat in Bonn, within a mile of the lake",
    ],
)
def test_one_need_stays_whole(query: str) -> None:
    assert [query[start:end] for start, end in needs_of(query)] == [query]


@each(
    ("query", "order", "carried"),
    [
        ("send Anna a note: the merge is done", "note", "merge"),
        ("send Anna a message saying the merge is done", "message", "merge"),
        ("create a task: delete the old branch", "task", "branch"),
        ('post "the build is broken" to the channel', "channel", "build"),
        ("translate “good morning” to French", "French", "morning"),
        ("remind the whole team about the payment", "team", "payment"),
    ],
)
def test_what_an_order_carries_counts_less_than_the_order(query: str, order: str, carried: str) -> None:
    assert weight(query, order.lower()) == 1
    assert weight(query, carried) == CARRIED_SHARE
    assert any(carried not in text and order in text for text in read(query).beside)


@each(
    ("query", "word"),
    [
        ("find papers about whales", "whales"),
        ("show the issues that Anna closed", "closed"),
        ("post about whales", "whales"),
        ("it's Anna's and Bob's list", "bob"),
    ],
)
def test_what_a_question_is_about_counts_whole(query: str, word: str) -> None:
    assert weight(query, word) == 1


def test_to_file_something_is_to_create_it() -> None:
    assert read("file a complaint").read_as == "create a complaint"
    assert read("file list of the folder").read_as is None


def test_to_open_a_ticket_is_to_create_it_and_to_open_a_file_is_not() -> None:
    query = read("open a ticket that search is slow")

    assert query.read_as == "create a ticket that search is slow"
    assert query.weights["search"] == CARRIED_SHARE
    assert read("open a new pull request").read_as == "create a new pull request"
    assert read("open a file").read_as is None
    assert read("open the ticket").read_as is None


def test_a_word_that_is_said_twice_has_its_higher_weight() -> None:
    assert weight("delete the note: delete it", "delete") == 1


def test_synonyms_count_a_fifth() -> None:
    assert read("open a ticket").weights["creat"] == SYNONYM_SHARE


SERVERS = {"github", "excel", "linear", "filesystem", "gitlab", "notion", "atlassian"}


@pytest.fixture(scope="module")
def real(engine: Engine) -> Callable[[str], list[str]]:
    """Names of the tools of real lists for a query, best first."""
    catalog = snapshot(
        *(
            tool(one["name"], one.get("description", ""), server=server, schema=one.get("inputSchema"))
            for server, tools in real_lists().items()
            if server in SERVERS
            for one in tools
        ),
    )
    return lambda query: [one.item.name for one in engine.search(query, catalog).results]


def test_a_bug_about_deleting_creates_an_issue_before_it_deletes(real: Callable[[str], list[str]]) -> None:
    names = real("file a bug that deleting a note does not work")

    assert "create_issue" in names
    assert not any("delete" in name.lower() for name in names[: names.index("create_issue")])


def test_two_orders_of_one_sentence_find_the_tools_of_both(real: Callable[[str], list[str]]) -> None:
    names = real("delete the old note of the sheet and create a pull request for the branch")

    assert {"delete_note", "create_pull_request"} <= set(names)


def test_a_misspelled_request_finds_what_the_right_one_finds(real: Callable[[str], list[str]]) -> None:
    assert real("creat a pull reqest")[0] == real("create a pull request")[0]


@each(
    ("query", "whole"),
    [
        ("please file a bug", "please create a bug"),
        ("log a bug in jira", "create a bug in jira"),
        ("book a meeting with Anna", "schedule a meeting with Anna"),
    ],
)
def test_a_noun_that_opens_an_order_as_a_verb_counts_little_as_a_word(query: str, whole: str) -> None:
    read_one = read(query)
    noun = next(word for word in ("file", "log", "book") if word in query)

    assert read_one.texts[0] == whole
    assert read_one.weights[stem(noun)] == VALUE_SHARE


@each("query", ["file report.pdf under finance", "address book of Anna", "the log file"])
def test_the_same_noun_counts_fully_elsewhere(query: str) -> None:
    noun = next(word for word in ("log", "book", "file") if word in query)

    assert weight(query, noun) == 1


@each(
    "query",
    [
        "zeige mir die offenen Meldungen",
        "borra el archivo",
        "lösche die datei",
        "montre les récents fichiers",
    ],
)
def test_a_query_in_another_language_is_not_corrected_and_its_unknown_words_are_no_evidence(
    query: str,
) -> None:
    words = WordList(["offered", "archive", "date"])
    read_one = read_query(query, lambda _term: False, lambda: words, {}, translates=False)

    assert read_one.read_as is None
    assert read_one.foreign


@pytest.mark.parametrize(
    "query", ["serch for isues abuot login", "find flights from Los Angeles to Las Vegas"]
)
def test_a_query_in_english_is_not_taken_for_another_language(query: str) -> None:
    assert not read(query).foreign


@each(
    ("request_", "unwanted"),
    [
        ("don't delete anything, just list the old branches", "delete"),
        ("without changing anything tell me what is in the stash", "changing"),
        ("rename the file instead of deleting it", "deleting"),
        ("I don't want to close the ticket, only move it to the next sprint", "close"),
        ("read the cells but do not edit them", "edit"),
        ("delete nothing, just list the branches", "delete"),
        ("show me the open requests but merge none of them", "merge"),
    ],
)
def test_what_is_not_to_be_done_counts_little(request_: str, unwanted: str) -> None:
    assert weight(request_, unwanted) == CARRIED_SHARE


@each(
    "request_",
    [
        "don't delete it",
        "never delete my notes without asking",
        "list the issues that are not assigned",
        "the button does not delete the note",
        "assigned to nothing so far",
        "don't forget to send the mail to Anna",
    ],
)
def test_a_negation_that_is_all_of_a_request_or_part_of_a_description_counts(request_: str) -> None:
    verb = next(word for word in ("delete", "assigned", "send") if word in request_)

    assert weight(request_, verb) == 1


@each(
    ("request_", "whole"),
    [
        ("save this to src/parse.py", "write this to src/parse.py (py file)"),
        ("put it into notes.md", "write it into notes.md (md file)"),
        ("save it as slides.pptx", "save it as slides.pptx (pptx file)"),
        ("run INSERT INTO b VALUES (1)", "run INSERT INTO b VALUES (1) (SQL query)"),
        ("unlock the report", "unprotect the report"),
        ("ack the incident", "acknowledge the incident"),
    ],
)
def test_orders_by_what_they_are_for_are_read_in_the_words_of_tools(request_: str, whole: str) -> None:
    assert read(request_).texts[0] == whole


@each(
    ("request_", "said"),
    [
        ("ok good, and now list the pods", "list the pods"),
        ("hi there, what is in the stash", "what is in the stash"),
        ("no, the other one", "the other one"),
        ("wait for the page to load", "wait for the page to load"),
        ("no changes please, list the pods", "no changes please, list the pods"),
        ("ok", "ok"),
    ],
)
def test_words_that_only_go_on_with_a_conversation_are_left_out(request_: str, said: str) -> None:
    assert read(request_).texts[0] == said
    assert read(request_).read_as is None


@pytest.mark.parametrize(
    "story",
    [
        "There was a long discussion in the meeting and nobody agreed on anything. {}",
        "The client called twice today and he was not amused. {}",
        "{} I have been waiting for that the whole day.",
    ],
)
def test_a_story_around_a_request_hides_no_tool(story: str, real: Callable[[str], list[str]]) -> None:
    request_ = "which pull requests are still open?"

    assert real(story.format(request_))[0] == real(request_)[0] == "list_pull_requests"


def test_a_question_after_a_colon_is_what_is_asked() -> None:
    assert weight("just look at it: which branches are merged", "branches") == 1
    assert weight("comment on issue 12: which branches are merged", "branches") == CARRIED_SHARE


@each(
    ("request_", "meant"),
    [
        ("who am I logged in as", "get current user"),
        ("what time is it in Tokyo", "get current time in Tokyo"),
        ("stop the job 12", "cancel the job 12"),
        ("make the heading bold", "format the heading bold"),
        ("lock the report", "protect the report"),
    ],
)
def test_an_order_in_the_words_of_people_is_read_in_those_of_tools(request_: str, meant: str) -> None:
    assert read(request_).read_as == meant


@each("words", ["then a, ", "and the, then it ", "a, ", "it should. ", "do not, and "])
def test_a_query_of_nothing_but_places_to_divide_is_read_in_the_time_of_its_length(words: str) -> None:
    query = (words * 8_000)[:8_000]

    assert not costs_more(16, needs_of, query, query[:2_000])


LOG = """
2026-11-01 10:11:03,221 ERROR [worker-1] com.acme.Billing - Failed to create order 88
\tat com.acme.Billing.create(Billing.java:61)
Caused by: java.sql.SQLException: request timed out
Traceback (most recent call last):
  File "app.py", line 3, in delete
    remove(row)
ValueError: cannot send
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("please open an issue for this:", "", "please open an issue for this:"),
        ("", "show me the logs of the billing pod", "show me the logs of the billing pod"),
    ],
)
def test_a_log_that_is_pasted_into_a_request_is_not_searched_for(before: str, after: str, said: str) -> None:
    query = read(f"{before}\n{LOG}\n{after}".strip())

    assert query.texts == read(said).texts
    assert query.weights == read(said).weights


def test_code_that_is_pasted_without_marks_is_not_searched_for() -> None:
    code = "def parse(text):\n    return [int(x) for x in text]\n\nif __name__ == '__main__':\n    run()\n"

    assert read(f"{code}\nsave this to src/parse.py").texts == read("save this to src/parse.py").texts
    listed = "do these:\n  - add a note (short)\n  - close the ticket"
    assert stem("note") in read(listed).weights


def test_a_pasted_log_does_not_take_the_place_of_the_request_after_it() -> None:
    assert "slack" in read(f"{LOG * 60}\npost this to the slack channel").weights


def test_code_and_a_log_alone_are_searched_for() -> None:
    assert "billing" in read(LOG.strip()).written.lower()
    assert "select" in read("run this:\n```sql\nSELECT name FROM users\n```").weights


@pytest.mark.parametrize(
    "piece", ["```\n", "[( ", "\n", "a.", "  at ", "npm ERR", "Jan  1 ", "  ", "if a(", " a(", "{ "]
)
def test_a_long_message_of_nearly_a_log_is_read_in_linear_time(piece: str) -> None:
    text = piece * (60_000 // len(piece)) + "\nend"

    assert not costs_more(40, without_pasted, text, text[:6_000] + "\nend")
