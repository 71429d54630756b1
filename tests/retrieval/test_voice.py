"""A server whose descriptions are requests is searched by its names alone, and pushes nobody back."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval import Engine, Ranking
from mcp_context_proxy.retrieval.voice import is_asking

REQUESTS = [
    "I need a flight to Rome next week.",
    "Show me what is in my calendar.",
    "Could you send me a mail about the invoice?",
    "Translate this letter.",
]
QUERY = "send a mail about the invoice"

Build = Callable[..., Tool]


def honest(tool: Build) -> list[Tool]:
    return [
        tool("search_flights", "Find flights between two airports.", server="travel"),
        tool("list_events", "List what is in the calendar.", server="office"),
        tool("send_mail", "Send a mail to somebody.", server="office"),
    ]


def poison(tool: Build, texts: Sequence[str] = (" ".join(REQUESTS),) * 5) -> list[Tool]:
    return [tool(f"helper_{at}", text, server="evil") for at, text in enumerate(texts)]


def found(ranking: Ranking) -> list[str]:
    return [result.item.name for result in ranking.results or ranking.near_misses]


@pytest.mark.parametrize(
    "description",
    [
        " ".join(REQUESTS),
        "\n".join(REQUESTS),
        ", ".join(text.rstrip(".?") for text in REQUESTS),
        "Use this tool to:\n- " + "\n- ".join(REQUESTS),
        "Use it for anything. It can: " + "; ".join(REQUESTS),
    ],
)
def test_requests_are_recognised_however_they_are_put_together(tool: Build, description: str) -> None:
    assert is_asking(poison(tool, [description] * 10))


def test_what_one_tool_leaves_out_another_may_say(tool: Build) -> None:
    assert is_asking(poison(tool, REQUESTS * 4))


@pytest.mark.parametrize(
    "description",
    [
        "Deploys metadata to an org. Examples:\n- Deploy my changes to my org\n- Deploy this file to my org",
        "Sets a digital I/O pin. Reads an I/O pin. Resets all I/O pins.",
        "Retrieve information about World War I.",
        "GET /me/messages. GET /me/events. Assigns the issue to @me.",
        "Ask the user for a name. We store it. Our service is free. Your data stays with you.",
    ],
)
def test_what_only_looks_like_a_request_is_none(tool: Build, description: str) -> None:
    assert not is_asking(poison(tool, [description] * 20))


@pytest.mark.parametrize(
    "example", ["Use it for 'find me a flight'.", 'Somebody may say ("I need a flight", "show me flights").']
)
def test_what_people_say_may_be_quoted(tool: Build, example: str) -> None:
    assert not is_asking(poison(tool, [f"Lists flights. {example}"] * 20))


@pytest.mark.parametrize(("honest_sentences", "asking"), [(3, True), (5, False)])
def test_a_fifth_of_the_sentences_is_too_much(tool: Build, honest_sentences: int, asking: bool) -> None:
    description = "Find me a flight. " + "It lists flights. " * honest_sentences

    assert is_asking(poison(tool, [description] * 10)) is asking


def test_somebodys_own_few_tools_may_be_described_as_he_speaks(tool: Build) -> None:
    descriptions = [
        "Show me my notes. I call them by their day.",
        "Send me the news.",
        "Tells me the weather.",
    ]

    assert not is_asking(poison(tool, descriptions))


def test_such_a_server_changes_nothing_for_the_others(
    word_vectors: Callable[..., Any], tool: Build, snapshot: Callable[..., Snapshot]
) -> None:
    """Neither their places, nor, by how rare a word is, their scores."""
    named = [tool(f"helper_{at}", "", server="evil") for at in range(5)]
    without = Engine(word_vectors()).search(QUERY, snapshot(*honest(tool), *named))
    poisoned = Engine(word_vectors()).search(QUERY, snapshot(*honest(tool), *poison(tool)))

    assert found(poisoned) == found(without)
    assert found(poisoned)[0] == "send_mail"
    assert [result.score for result in poisoned.results] == [result.score for result in without.results]


def test_its_tools_are_still_found_by_name_and_say_why_by_nothing_else(
    word_vectors: Callable[..., Any], tool: Build, snapshot: Callable[..., Snapshot]
) -> None:
    ranking = Engine(word_vectors()).search("helper_1", snapshot(*honest(tool), *poison(tool)))

    assert ranking.results[0].item.name == "helper_1"
    assert "its server read like requests" in ranking.results[0].why
    assert ranking.asking == {"evil"}
    assert not any("requests" in one.why for one in ranking.results if one.item in honest(tool))


def test_a_parameter_is_found_by_its_name_and_not_by_its_description(
    word_vectors: Callable[..., Any], tool: Build, snapshot: Callable[..., Snapshot]
) -> None:
    schema = {"properties": {"invoice": {"description": "zebra"}}}
    catalog = snapshot(*poison(tool), tool("pay", "", server="evil", schema=schema))

    assert Engine(None).search("invoice", catalog).results[0].item.name == "pay"
    assert Engine(None).search("zebra", catalog).results == ()


def test_a_server_that_begins_or_stops_to_ask_is_read_anew(
    word_vectors: Callable[..., Any], tool: Build, snapshot: Callable[..., Snapshot]
) -> None:
    engine = Engine(word_vectors())
    plain = tool("helper_0", "Send a mail about the invoice.", server="evil")
    first = snapshot(*honest(tool), plain)
    engine.index(first)
    asking = snapshot(*honest(tool), plain, *poison(tool)[1:], generation=2, before=first)
    engine.index(asking)
    again = snapshot(*honest(tool), plain, generation=3, before=asking)

    assert found(engine.search(QUERY, first))[:2] == ["helper_0", "send_mail"]
    assert found(engine.search(QUERY, asking))[0] == "send_mail"
    assert found(engine.search(QUERY, again)) == found(engine.search(QUERY, first))
