"""A request tells what it is for: the web, a memory, a history, a service by name."""

from support.catalogs import read, snapshot, tool
from support.tables import each

from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.purposes import (
    FACTS_OF_A_PERSON,
    HISTORY,
    MEMORY,
    QUERIES_OF_DATA,
    WEB_SEARCH,
    WRITTEN_DOWN,
    purpose_of,
    service_of,
)
from mcp_context_proxy.retrieval.queries import (
    CARRIED_SHARE,
)
from mcp_context_proxy.retrieval.text import stem


@each(
    ("query", "is_for_the_web"),
    [("look up the capital of Mongolia", True), ("look up my notes", False), ("look at the file", False)],
)
def test_to_look_something_up_may_be_a_search_of_the_web(query: str, is_for_the_web: bool) -> None:
    assert (read(query).purpose is WEB_SEARCH) is is_for_the_web


@each(
    "request_",
    [
        "what's my sister's birthday",
        "What was the name of my dentist?",
        "my phone number has changed, it is 555 now",
        "I'm allergic to peanuts",
        "I prefer tabs over spaces",
        "where does Tom live according to what I told you",
    ],
)
def test_facts_about_the_caller_are_for_a_memory(request_: str) -> None:
    assert purpose_of(request_) is FACTS_OF_A_PERSON


@each(
    "request_",
    ["find my notes about the garden", "search our wiki for the rota", "where are my tax papers"],
)
def test_what_the_caller_owns_is_not_looked_for_on_the_web(request_: str) -> None:
    assert purpose_of(request_) is None


@each(
    "request_",
    [
        "find a hotel near my office",
        "search the web for my company",
        "find my pizza place nearby",
        "I live stream games, mute the microphone",
        "my laptop is slow",
        "what is my next meeting",
    ],
)
def test_speaking_of_oneself_alone_is_no_fact_for_a_memory(request_: str) -> None:
    assert purpose_of(request_) is not FACTS_OF_A_PERSON


@each(
    "question",
    [
        "how many customers do we have",
    ],
)
def test_questions_for_what_a_database_keeps_are_for_one(question: str) -> None:
    assert purpose_of(question) is QUERIES_OF_DATA


@each("question", ["which vacuum cleaner should I get", "which users guide is the best"])
def test_other_questions_for_one_of_some_things_are_for_no_database(question: str) -> None:
    assert purpose_of(question) is not QUERIES_OF_DATA


@each(
    "question",
    [
        "who was the last person to edit parser.py",
        "whose change was the last one in utils.ts",
        "by whom was the migration written",
        "which commit broke the tests",
        "what happened to the file server.go over the last month",
        "find out when the readme was last touched",
        "has anyone edited the makefile recently",
    ],
)
def test_questions_for_who_changed_something_are_for_its_history(question: str) -> None:
    assert purpose_of(question) is HISTORY


@each(
    "question",
    [
        "who can change the settings",
        "who changed the recipe of the soup",
        "when does the file expire",
        "which file",
    ],
)
def test_other_questions_are_not(question: str) -> None:
    assert purpose_of(question) is not HISTORY


def test_who_changed_something_is_in_its_history() -> None:
    assert read("who changed this file last").read_as == "show history log of who changed this file last"
    assert read("who is this file from").read_as is None


@each(
    ("request_", "service"),
    [
        ("upload this to s3", "s3"),
        ("what's in my gmail inbox", "gmail"),
        ("post the photo on Instagram", "instagram"),
        ("open youtube in the browser", None),
        ("search the web for the founders of airbnb", None),
        ("rename the file s3_notes.txt", None),
        ("get the wiki of vercel/ai", None),
    ],
)
def test_a_request_may_be_for_a_service_by_name(request_: str, service: str | None) -> None:
    assert service_of(request_) == service


def test_what_is_for_a_service_that_no_tool_names_fits_nothing(engine: Engine) -> None:
    attach = tool("upload_attachment", "Upload a file as an attachment of a page.", server="wiki")
    put = tool("put_object", "Upload a file to a bucket of S3.", server="storage")
    read = tool("read_sections", "Read a page, such as the naming rules of an S3 bucket.", server="docs")

    assert not engine.search("upload this to s3", snapshot(attach)).fits
    assert not engine.search("upload this to s3", snapshot(attach, read)).fits
    assert engine.search("read the naming rules of s3", snapshot(attach, read)).fits
    assert engine.search("upload this to s3", snapshot(attach, put)).results[0].item.name == "put_object"
    assert engine.search("upload this to the page", snapshot(attach)).fits
    keep = tool("remember", "Keep a fact in the memory for later.", server="memory")
    assert engine.search("remember that we upload the backups to S3", snapshot(keep)).fits


@each(
    ("query", "read_as"),
    [
        ("remember that I prefer tabs", "add to memory that I prefer tabs"),
        ("please keep in mind I live in Oslo", "please add to memory I live in Oslo"),
        ("don't forget that Tom is vegan", "add to memory that Tom is vegan"),
        ("what do you know about Tom", "search memory for Tom"),
        ("forget what I said about Tom", "delete from memory what I said about Tom"),
        ("what did I write to Bob", None),
        ("don't forget to buy bread", None),
        ("remember to call home", None),
        ("do you remember the name of the file", None),
        ("who is the mayor of Rome", None),
        ("jot down that Tom is vegan", "add a note to memory that Tom is vegan"),
        ("write down my locker number is 14", "add a note to memory my locker number is 14"),
        ("write down the page that is missing", None),
        (
            "can you note this down: it is locked",
            "can you add a note to memory: it is locked",
        ),
        ("stash this away for later, the code is 8841", "add a note to memory, the code is 8841"),
        ("put it on record that Tom agreed", "add a note to memory that Tom agreed"),
        ("log the fact that trams are free", "add a note to memory the fact that trams are free"),
        ("make sure you remember that Tom is vegan", "make sure you add to memory that Tom is vegan"),
        ("which colour did I say our brand has", "search memory for our brand has"),
        ("tell me everything you know about Tom", "search memory for Tom"),
        ("stop remembering my old car", "delete from memory my old car"),
        ("log that I spent 3 hours on the report", None),
        ("leave a note on the merge request that it fails", None),
        ("save that file", None),
        ("save it, commit and push", None),
        ("record the results in the results table", None),
        ("write a note", None),
    ],
)
def test_what_is_to_be_remembered_or_recalled_is_read_in_the_words_of_tools(
    query: str, read_as: str | None
) -> None:
    assert read(query).read_as == read_as


def test_what_is_to_be_remembered_counts_little() -> None:
    query = read("remember that I prefer tabs")

    assert query.weights[stem("memory")] > query.weights[stem("tabs")] == CARRIED_SHARE


def test_each_of_several_needs_has_its_own_purpose() -> None:
    query = read(
        "how many orders came in today, and write the number to a file. Keep in mind that I like tea."
    )

    assert query.purpose is None
    assert query.purposes == (QUERIES_OF_DATA, None, MEMORY)


@each(
    ("request_", "whole"),
    [
        ("note down the plan in the file todo.md", "write the plan in the file todo.md (md file)"),
        ("please jot down the plan in a new Word document", "please write the plan in a new Word document"),
    ],
)
def test_what_is_written_down_in_a_file_is_written_and_no_note(request_: str, whole: str) -> None:
    assert read(request_).texts[0] == whole
    assert read(request_).purpose is None


def test_what_is_written_down_nowhere_is_for_notes() -> None:
    assert read("write down the steps of this recipe").purpose is WRITTEN_DOWN
    assert read("write down the steps of this recipe").texts[0] == "write down the steps of this recipe"


@each("request_", ["show me the commit history", "get the git log of main"])
def test_a_history_that_is_named_is_one(request_: str) -> None:
    assert read(request_).purpose is HISTORY
