"""Texts that are indexed of an item, and their division into chunks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.catalogs import rule, tool
from support.tables import each

from mcp_context_proxy.retrieval.item_metadata import MAX_PARAMETERS, item_text, read_parameters
from mcp_context_proxy.retrieval.text import CHUNK_LIMIT, chunks

PROSE = st.text(alphabet=st.sampled_from("ab .\n。é"), max_size=3_000)


def without_space(text: str) -> str:
    return "".join(text.split())


@given(PROSE, st.integers(20, CHUNK_LIMIT))
def test_chunking_loses_nothing_but_white_space(text: str, limit: int) -> None:
    assert without_space("".join(chunks(text, limit))) == without_space(text)


@given(PROSE, st.integers(20, CHUNK_LIMIT))
def test_no_chunk_is_over_the_limit(text: str, limit: int) -> None:
    assert all(len(chunk) <= limit for chunk in chunks(text, limit))


@given(st.text(max_size=CHUNK_LIMIT))
def test_a_short_text_is_one_chunk(text: str) -> None:
    assert chunks(text) == (text.strip(),)


def test_paragraphs_stay_whole_while_they_fit() -> None:
    first, second, third = "a" * 30, "b" * 30, "c" * 30

    assert chunks(f"{first}\n\n{second}\n\n{third}", 70) == (f"{first}\n\n{second}", third)


def test_a_long_paragraph_is_divided_at_its_sentences() -> None:
    assert chunks("One two three. Four five six. Seven.", 20) == (
        "One two three.",
        "Four five six.",
        "Seven.",
    )


def test_a_long_sentence_is_divided_at_its_words() -> None:
    assert chunks("one two three four", 9) == ("one two", "three", "four")


def test_a_word_over_the_limit_is_divided_anywhere() -> None:
    assert chunks("x" * 25, 10) == ("x" * 10, "x" * 10, "x" * 5)


@each("flood", [" ", "\n", ". ", "a ", "A", "\n \n"])
def test_a_huge_text_is_chunked_in_linear_time(flood: str) -> None:
    """A pattern that backtracks would not come back from this one."""
    assert all(len(chunk) <= CHUNK_LIMIT for chunk in chunks(flood * 200_000))


def test_with_one_server_a_tool_is_its_name_and_description() -> None:
    schema = {"properties": {"repoName": {}}}
    _, texts = item_text(tool("createIssue", "Opens an issue.", schema=schema), several_servers=False)

    assert texts == ("create issue: Opens an issue.",)


def test_with_several_servers_the_server_and_the_parameters_are_part_of_it() -> None:
    schema = {"properties": {"repoName": {}, "title": {}}}
    _, texts = item_text(
        tool("createIssue", "Opens one.", server="github", schema=schema), several_servers=True
    )

    assert texts == ("github create issue: Opens one. Parameters: repo name, title",)


def test_every_chunk_names_its_item() -> None:
    _, texts = item_text(tool("createIssue", "A sentence of it. " * 100), several_servers=False)

    assert len(texts) > 3
    assert all(chunk.startswith("create issue: ") and len(chunk) <= CHUNK_LIMIT for chunk in texts)


def test_a_document_is_its_name_description_and_text() -> None:
    _, texts = item_text(rule("commits", "How to commit.", "# Commits\n\nSay why."), several_servers=True)

    assert texts == ("commits: How to commit.\n\n# Commits\n\nSay why.",)


def test_only_the_first_8_kib_of_a_description_are_indexed() -> None:
    fields, texts = item_text(tool("t", "a " * 4_096 + "zebra"), several_servers=False)

    assert "zebra" not in fields.description
    assert not any("zebra" in chunk for chunk in texts)


def test_lone_surrogates_do_not_reach_the_model() -> None:
    _, texts = item_text(tool("broken\ud83d", "half \ud83d"), several_servers=True)

    assert all(chunk.encode() for chunk in texts)


def test_nested_parameters_are_read() -> None:
    schema = {
        "properties": {
            "filter": {"description": "What to keep.", "properties": {"label": {"description": "A label."}}},
            "files": {"items": {"anyOf": [{"properties": {"path": {}}}]}},
        }
    }
    read = read_parameters(json.dumps({"inputSchema": schema}).encode())

    assert read.top == ["filter", "files"]
    assert read.nested == ["label", "path"]
    assert read.descriptions == ["What to keep.", "A label."]


@each(
    "schema",
    [
        "null",
        "true",
        "[]",
        '"text"',
        "7",
        '{"properties": []}',
        '{"properties": {"a": null}}',
        '{"allOf": 3}',
    ],
)
def test_a_schema_of_any_shape_is_read_without_an_error(schema: str) -> None:
    read = read_parameters(f'{{"inputSchema": {schema}}}'.encode())

    assert read.descriptions == []


@each("definition", [b"", b"{", b"[]", b"null", b"\xff", b'{"inputSchema": "\xff"}'])
def test_a_definition_that_is_not_json_has_no_parameters(definition: bytes) -> None:
    assert read_parameters(definition).top == []


@pytest.mark.parametrize("depth", [500, 100_000])
def test_endless_nesting_is_cut(depth: int) -> None:
    schema = '{"properties": {"a": ' * depth + "null" + "}}" * depth
    read = read_parameters(b'{"inputSchema": ' + schema.encode() + b"}")

    assert len(read.top) + len(read.nested) <= MAX_PARAMETERS


def test_very_many_parameters_are_cut() -> None:
    schema = {"properties": {f"p{i}": {"description": "x" * 5_000} for i in range(10_000)}}
    read = read_parameters(json.dumps({"inputSchema": schema}).encode())

    assert len(read.top) == MAX_PARAMETERS
    assert max(map(len, read.descriptions)) == 1_000


def test_a_reference_is_followed_once() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"secret": {"$ref": "#/$defs/a"}}}}}

    found = read_parameters(json.dumps({"inputSchema": schema}).encode())
    assert (found.top, found.nested) == (["secret"], [])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["properties", "items", "anyOf", "description", "x"]), inner)
        ),
        max_leaves=30,
    )
)
def test_no_schema_crashes_the_reading(schema: object) -> None:
    read_parameters(json.dumps({"inputSchema": schema}).encode())
