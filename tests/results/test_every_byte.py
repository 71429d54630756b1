"""Whatever a result is, it stays readable: every byte that was left out can be read again."""

import json
from itertools import count
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcp_context_proxy.results.result_store import read
from mcp_context_proxy.results.shortening import MOST_EXCERPT_BYTES, Shortened, shorten, with_note

LIMIT = 4_000

LINES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TEXTS = st.builds(
    lambda parts, times, end: "".join(parts) * times + end,
    st.lists(
        st.one_of(LINES, st.sampled_from(["\n", "\n\n", " ", "\U0001f600", '"', "\\", "é"])), min_size=1
    ),
    st.integers(1, 600),
    LINES,
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), LINES
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(LINES, inner, max_size=6)),
    max_leaves=30,
)
IMAGE = {"type": "image", "data": "QUJD" * 3000, "mimeType": "image/png"}


def pages(whole: bytes) -> bytes:
    """Everything that page after page gives."""
    joined = b""
    for number in count(1):
        reading = read(whole, number, None, None, LIMIT)
        assert len(reading.text) + len(reading.note) <= LIMIT
        joined += reading.text
        if "The next is" not in reading.note:
            return joined
    raise AssertionError


def shortened(result: dict[str, Any], schema: dict[str, Any] | None = None) -> Shortened | None:
    raw = None if schema is None else Raw(json.dumps(schema).encode())
    return shorten(msgspec.json.encode(result), LIMIT, raw)


@given(
    st.lists(st.one_of(TEXTS.map(lambda text: {"type": "text", "text": text}), st.just(IMAGE)), max_size=4)
)
def test_the_pages_of_a_shortened_text_joined_are_the_text(blocks: list[dict[str, Any]]) -> None:
    short = shortened({"content": blocks, "isError": True, "_meta": {"k": 1}})
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    if short is None:
        assert sum(len(text.encode()) for text in texts) <= LIMIT
        return
    ((_, whole),) = short.texts
    result = json.loads(with_note(short.result, short.note))

    assert pages(whole) == whole
    if whole[:1] != b"[" or len(texts) == 1:
        assert whole.decode() == "\n".join(texts)
    assert (result["isError"], result["_meta"]) == (True, {"k": 1})
    assert [block for block in result["content"] if block == IMAGE] == [b for b in blocks if b == IMAGE]
    shown = sum(len(block.get("text", "").encode()) for block in result["content"])
    assert shown <= MOST_EXCERPT_BYTES


@given(st.lists(VALUES, min_size=1, max_size=40), st.integers(1, 200))
def test_the_pages_of_shortened_json_joined_are_the_json_and_what_is_shown_is_json(
    values: list[Any], times: int
) -> None:
    data = {"items": values * times}
    short = shortened({"content": [], "structuredContent": data})
    if short is None:
        assert len(msgspec.json.encode(data)) <= LIMIT
        return
    ((_, whole),) = short.texts
    (block,) = json.loads(short.result)["content"]

    assert pages(whole) == whole == msgspec.json.encode(data)
    assert isinstance(json.loads(block["text"].partition("\n\nShape of the whole: ")[0]), dict)


@given(st.lists(VALUES, min_size=1, max_size=40), st.integers(1, 200))
def test_shortened_structured_content_has_the_members_and_types_that_it_had(
    values: list[Any], times: int
) -> None:
    data = {"items": values * times, "total": len(values), "page": {"next": "x" * 3000, "last": None}}
    schema = {"type": "object", "properties": {"items": {"type": "array"}}}
    short = shortened({"content": [], "structuredContent": data}, schema)
    if short is None:
        return
    structured = json.loads(short.result)["structuredContent"]

    assert structured.pop("shortened") == short.note
    assert same_kind(structured, json.loads(msgspec.json.encode(data)))


def test_a_shorter_copy_has_the_beginning_of_each_long_text_and_of_the_first_element() -> None:
    data = {"note": "begin " * 2000, "items": [{"text": "first " * 2000}, {"text": "other"}]}
    for schema in ({"type": "object"}, None):
        short = shortened({"content": [], "structuredContent": data}, schema)
        assert short is not None
        result = json.loads(short.result)
        shown = (
            result["content"][0]["text"].partition("\n\nShape of the whole: ")[0] if result["content"] else ""
        )
        copy = result["structuredContent"] if schema else json.loads(shown)

        assert copy["note"].startswith("begin begin")
        assert copy["note"].endswith("more bytes]")
        assert copy["items"][0]["text"].startswith("first first")
        assert copy["items"][1:] == ([] if schema else ["... 1 more elements"])


def test_an_object_with_a_schema_stays_whole_where_a_shorter_copy_would_lack_members() -> None:
    data = {f"member {number}": number for number in range(5_000)}

    assert shortened({"content": [], "structuredContent": data}, {"type": "object"}) is None
    assert shortened({"content": [], "structuredContent": data}) is not None


def same_kind(part: Any, whole: Any) -> bool:
    if isinstance(whole, dict):
        return part.keys() == whole.keys() and all(same_kind(part[key], whole[key]) for key in whole)
    if isinstance(whole, list):
        return len(part) <= len(whole) and all(map(same_kind, part, whole))
    return part == whole or (isinstance(part, str) and isinstance(whole, str) and "more bytes]" in part)


@given(st.lists(VALUES, min_size=3, max_size=40), st.data())
def test_a_path_leads_to_the_element_that_python_finds(values: list[Any], data: st.DataObject) -> None:
    encoded = msgspec.json.encode({"items": values})
    index = data.draw(st.integers(-len(values), len(values) - 1))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    one = read(encoded, 1, f"items[{index}]", None, 1_000_000).text
    several = read(encoded, 1, f"$.items[{start}:{stop}]", None, 1_000_000).text

    found = values[index]
    assert one == (found.encode() if isinstance(found, str) else msgspec.json.encode(found))
    assert several == b"\n".join(map(msgspec.json.encode, values[start:stop]))
