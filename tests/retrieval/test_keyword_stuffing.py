"""Detection of servers whose descriptions are written to be found."""

import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from support.catalogs import tool
from support.tables import each

from mcp_context_proxy.items import Tool
from mcp_context_proxy.retrieval.keyword_stuffing import suspected, suspicion
from tests.support.servers import real_lists

REQUESTS = [
    "I need a flight to Rome next week.",
    "Show me what is in my calendar.",
    "Could you send me a mail about the invoice?",
    "Translate this letter.",
]


def poison(texts: Sequence[str] = (" ".join(REQUESTS),) * 5) -> list[Tool]:
    return [tool(f"helper_{at}", text, server="evil") for at, text in enumerate(texts)]


def named(described: dict[str, str]) -> list[Tool]:
    return [tool(name, text, server="odd") for name, text in described.items()]


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
def test_descriptions_made_of_user_requests_are_recognised(description: str) -> None:
    assert suspicion(poison([description] * 10)) == "requests"


def test_titles_made_of_user_requests_are_recognised() -> None:
    tools = [
        replace(one, written=json.dumps({"name": one.name, "title": REQUESTS[at % 4]}).encode())
        for at, one in enumerate(poison(["Helps with a thing."] * 20))
    ]

    assert suspicion(tools) == "requests"
    assert suspicion(poison(["Helps with a thing."] * 20)) != "requests"


def test_requests_spread_over_several_tools_are_recognised() -> None:
    assert suspicion(poison(REQUESTS * 4)) == "requests"


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
def test_imperative_descriptions_are_not_taken_for_requests(description: str) -> None:
    assert suspicion(poison([description] * 20)) != "requests"


@pytest.mark.parametrize(
    "example", ["Use it for 'find me a flight'.", 'Somebody may say ("I need a flight", "show me flights").']
)
def test_quoted_example_requests_are_allowed(example: str) -> None:
    assert suspicion(poison([f"Lists flights. {example}"] * 20)) != "requests"


@pytest.mark.parametrize(("honest_sentences", "asking"), [(3, True), (5, False)])
def test_requests_in_a_fifth_of_the_sentences_are_suspicious(honest_sentences: int, asking: bool) -> None:
    description = "Find me a flight. " + "It lists flights. " * honest_sentences

    assert (suspicion(poison([description] * 10)) == "requests") is asking


def test_a_few_informally_described_tools_are_not_suspected() -> None:
    descriptions = [
        "Show me my notes. I call them by their day.",
        "Send me the news.",
        "Tells me the weather.",
    ]

    assert suspicion(poison(descriptions)) != "requests"


OPAQUE = {
    "helper_1": "Book a table and tell the guests.",
    "helper_2": "Translate this letter into French.",
    "helper_3": "Find a flight from Rome to Oslo.",
    "helper_4": "What is the weather in Paris this week?",
    "helper_5": "Resize the pictures of the last holiday.",
    "helper_6": "Sum up the news about the election.",
}


def test_names_that_have_nothing_to_do_with_descriptions_are_suspected() -> None:
    assert suspicion(named(OPAQUE)) == "names"


def test_a_word_shared_by_most_names_does_not_count_as_support() -> None:
    assert suspicion(named({name: f"This helper can: {text}" for name, text in OPAQUE.items()})) == "names"


def test_a_server_is_trusted_if_a_quarter_of_its_names_match_their_descriptions() -> None:
    assert suspicion(named(OPAQUE | {"booking": OPAQUE["helper_1"]})) == "names"
    assert (
        suspicion(named(OPAQUE | {"booking": "Books a table.", "translator": "Translates a letter."})) is None
    )


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("createIssue", "Creating of issues, with labels."),
        ("get_users", "Retrieves a user from the directory."),
        ("XMLExport", "Exports the table to XML."),
    ],
)
def test_names_are_matched_by_parts_and_word_forms(name: str, description: str) -> None:
    texts = [
        f"{description} Part {at} of the {word}."
        for at, word in enumerate(["red", "blue", "green", "grey", "black"])
    ]

    assert suspicion([tool(f"{name}{at}", text) for at, text in enumerate(texts)]) == "names"
    assert suspicion([tool(name, description), *named(dict(list(OPAQUE.items())[:3]))]) is None


@pytest.mark.parametrize("count", [0, 4])
def test_servers_with_few_tools_are_not_judged(count: int) -> None:
    assert suspicion(named(dict(list(OPAQUE.items())[:count]))) is None


@pytest.mark.parametrize("description", ["Switches relay {}.", "Switches one of the relays of the board."])
def test_tools_that_differ_in_their_number_alone_count_as_one(description: str) -> None:
    relays = named({f"switch_relay_{at}": description.format(at) for at in range(30)})

    assert suspicion(relays) is None
    assert suspicion([*relays, *named(OPAQUE)]) == "names"


def test_tools_without_descriptions_are_not_counted() -> None:
    assert suspicion(named({f"do_{at}": "" for at in range(20)} | dict(list(OPAQUE.items())[:4]))) is None


@pytest.mark.parametrize(
    "descriptions",
    [
        [
            "根据城市名称查询天气",
            "搜索附近的地点",
            "把地址转换为坐标",
            "计算两点之间的距离",
            "规划驾车路线",
            "查询火车票",
        ],
        [
            "Ruft das Wetter für eine Stadt ab.",
            "Sucht Orte in der Nähe.",
            "Wandelt eine Adresse in Koordinaten um.",
            "Berechnet den Abstand von zwei Punkten.",
            "Plant einen Weg mit dem Auto.",
        ],
        [
            "Obtiene el tiempo de una ciudad.",
            "Busca lugares cercanos.",
            "Convierte una dirección en coordenadas.",
            "Calcula la distancia entre dos puntos.",
            "Planifica una ruta en coche.",
        ],
        ["Returns JSON", "Max 30 items", "Deprecated", "Beta", "Requires OAuth", "Paid plans only"],
    ],
)
def test_names_are_not_compared_with_descriptions_in_other_languages(descriptions: list[str]) -> None:
    names = ("get_weather", "nearby", "geocode", "measure", "driving", "trains")

    assert suspicion([tool(name, text) for name, text in zip(names, descriptions, strict=False)]) is None


def test_servers_are_suspected_only_beside_unsuspected_ones() -> None:
    assert suspected({"a": "names"}) == {}
    assert suspected({"a": "names", "b": "requests"}) == {}
    assert suspected({"a": "names", "b": None}) == {"a": "names"}


@each("server", sorted(real_lists()))
def test_no_real_server_is_suspected(server: str) -> None:
    tools = [tool(one["name"], one.get("description") or "", server=server) for one in real_lists()[server]]

    assert suspicion(tools) is None


def test_of_names_with_short_words_alone_nothing_is_told() -> None:
    described = {
        "ls": "Lists what a folder has.",
        "cp": "Copies files to another folder.",
        "mv": "Moves files to another folder.",
        "rm": "Deletes files for good.",
        "ps": "Shows the running programs.",
        "df": "Shows the free space of each disk.",
    }

    assert suspicion(named(described)) is None


def test_a_server_that_the_configuration_trusts_is_never_suspected() -> None:
    evil = poison([" ".join(REQUESTS)] * 10)

    assert suspicion(evil) is not None
    assert suspicion([replace(one, trusted=True) for one in evil]) is None
