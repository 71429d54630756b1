"""A shortened result says how much of it there is, and how the rest is read."""

import json
from typing import Any

from support.tables import each

from mcp_context_proxy.results import LINK_CHARACTERS, links_in
from mcp_context_proxy.results.shortening import Shortened, shorten


def shortened(*texts: str) -> Shortened:
    result = {"content": [{"type": "text", "text": text} for text in texts]}
    found = shorten(json.dumps(result).encode(), 8_000, None, lambda: "id")
    assert found is not None
    return found


def shown(result: Shortened) -> list[str]:
    return [block["text"] for block in json.loads(result.result)["content"]]


def test_of_many_texts_the_first_are_shown_and_counted() -> None:
    result = shortened(*(f"{number}" + "x" * 3_000 for number in range(10)))

    assert 0 < len(shown(result)) < 10
    assert [text[0] for text in shown(result)] == [str(at) for at in range(len(shown(result)))]
    assert f"these are the first {len(shown(result))} of 10 texts of the result" in result.note


def test_elements_and_members_that_are_left_out_are_counted() -> None:
    elements, _, shape = shown(shortened(json.dumps([*range(9_000)])))[0].partition("\n\n")
    *first, more = json.loads(elements)
    assert first == [*range(len(first))] != []
    assert more == f"... {9_000 - len(first):,} more elements"
    assert shape == "Shape of the whole: array of 9,000 number"

    members, _, shape = shown(shortened(json.dumps({f"m{n}": n for n in range(9_000)})))[0].partition("\n\n")
    given: dict[str, Any] = json.loads(members)
    more = given.pop("...")
    assert given == {f"m{n}": n for n in range(len(given))} != {}
    assert more == f"{9_000 - len(given):,} more members"
    assert shape.endswith("m29: number, ... 8,970 more}")


def test_json_is_shown_without_its_white_space() -> None:
    rows = [{"id": number, "name": "x"} for number in range(9_000)]
    (apart, wide), (_, dense) = (
        [json.dumps(rows, indent=at), shortened(json.dumps(rows, indent=at))] for at in (8, None)
    )

    assert shown(wide)[0].startswith('[{"id":0,"name":"x"},{"id":1,')
    assert shown(wide) == shown(dense)
    assert dict(wide.texts)["id"].decode() == apart


FLOOD = {f"a{at}": 0 for at in range(100_001)}
BLOCK = {"type": "text", "text": "x"}


@each(
    "result",
    [
        {"content": [BLOCK] * 100_001},
        {"content": [BLOCK | FLOOD]},
        {"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "x"} | FLOOD}]},
        {"content": [BLOCK], "isError": True} | FLOOD,
        {"content": "x" * 9_000},
        {"content": ["x" * 9_000]},
        {"content": [{"type": "resource_link", "uri": "a:b", "name": "n", "description": "x" * 9_000}]},
        {"content": [{"type": "text", "Text": "x" * 9_000}]},
        {"content": [{"type": "text", "text": "x", "Text": "x" * 9_000}]},
        {"content": [{"type": "resource_link", "uri": "a:b", "data": "", "description": "x" * 9_000}]},
        {"content": [{"type": "resource", "resource": {"uri": "a:" + "b" * 9_000, "text": "x"}}]},
        {"content": [{"type": "resource", "resource": {"uri": "a:" + "b" * 9_000, "blob": "AA=="}}]},
        {"content": [{"type": "resource_link", "uri": "a:b", "name": "x" * 900}] * 20},
        {"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "x"}}] * 400},
        {"content": [{"type": "resource", "resource": {"uri": "a:b", "blob": "AA=="}}] * 400},
    ],
)
def test_no_number_of_blocks_or_members_keeps_a_result_from_being_shortened(result: dict[str, Any]) -> None:
    found = shorten(json.dumps(result).encode(), 8_000, None, lambda: "id")

    assert found is not None
    assert len(found.result) < 10_000
    assert json.loads(found.result).get("isError") == result.get("isError")
    assert found.texts[0][1].decode() in (json.dumps(result), json.dumps(result["content"]), "x" * 9_000) or (
        json.loads(found.texts[0][1]) in (result["content"], result["content"][0])
    )


def test_the_note_names_the_ways_that_lead_to_the_rest() -> None:
    rows = [{"id": number, "odd name": 1, "state": "x" * 9_000} for number in range(2)]
    values = [0] * 9_000, {"a": "x" * 9_000}, {"page": 1, "odd name": [1], "data": {"rows": rows}}
    listed, record, nested, plain = (
        shortened(text).note for text in (*map(json.dumps, values), "x\n" * 9_000)
    )

    both = 'pattern="words", both: the values of the path with these words.'
    assert f'one of: page=1, a path such as "[0:20]", {both}' in listed
    assert f'one of: page=1, a path such as "a", {both}' in record
    assert '"data.rows[0:20]" or "data.rows[*][id,state]" or "data.rows[?id=x].state", pattern=' in nested
    assert 'one of: page=1, pattern="words".' in plain
    assert "about 4,500 tokens (18,000 bytes in 9,000 lines)" in plain


def test_links_are_remembered_but_for_very_long_ones() -> None:
    uris = ["a:" + "b" * (length - 2) for length in (3, LINK_CHARACTERS, LINK_CHARACTERS + 1)]
    content = [{"type": "resource_link", "uri": uri, "name": "n"} for uri in uris]

    assert links_in(json.dumps({"content": content}).encode()) == uris[:2]
