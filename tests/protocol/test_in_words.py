"""Why a value does not have the form that it should have, in words for the person or model who wrote it."""

import re
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta
from support.tables import each

from mcp_context_proxy.protocol.strangers import in_words


class Filters(msgspec.Struct, forbid_unknown_fields=True):
    tags: tuple[str, ...] = ()
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Order(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=2000)]
    number: Annotated[int, Meta(ge=1, le=50)] | None = None
    kinds: tuple[Literal["rule", "tool"], ...] | None = None
    filters: Filters = msgspec.field(default_factory=Filters)
    pairs: dict[str, int] = msgspec.field(default_factory=dict)
    nothing: Nothing | None = None


@each(
    ("given", "told"),
    [
        ({}, "name is missing"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "x" * 2001}, "name must have at most 2,000 characters"),
        ({"name": 5}, "name must be text, not a whole number"),
        ({"name": "x", "number": 0}, "number must be at least 1"),
        ({"name": "x", "number": 51}, "number must be at most 50"),
        ({"name": "x", "number": "3"}, "number must be a whole number, not text"),
        ({"name": "x", "number": 2.5}, "number must be a whole number, not a fraction"),
        ({"name": "x", "kinds": ["rle"]}, "kinds[0] must be one of rule, tool, not 'rle'"),
        ({"name": "x", "filters": {"share": 0}}, "filters.share must be more than 0"),
        ({"name": "x", "filters": {"tags": "a"}}, "filters.tags must be a list, not text"),
        ({"name": "x", "filters": {"tag": ["a"]}}, "filters.tag is not known; did you mean tags?"),
        ({"name": "x", "why": 1}, "why is not known; known are name, number, kinds, filters, pairs, nothing"),
        ({"name": "x", "nothing": {"why": 1}}, "nothing.why is not known; known are none"),
        ({"name": "x", "pairs": {"a": "b"}}, "pairs must be a whole number, not text"),
        ([], "the order must be an object, not a list"),
    ],
)
def test_a_value_of_another_form_is_told_in_words(given: Any, told: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(msgspec.json.encode(given), type=Order)

    assert in_words(error.value, Order, "the order") == told


def test_what_a_stranger_wrote_is_repeated_only_in_part() -> None:
    for given in ({"name": "x", "y" * 10_000: 1}, {"name": "x", "kinds": ["z\n" * 10_000]}):
        with pytest.raises(msgspec.ValidationError) as error:
            msgspec.json.decode(msgspec.json.encode(given), type=Order)
        told = in_words(error.value, Order)
        assert len(told) < 200
        assert told.isprintable()


def test_text_that_is_no_json_is_called_so() -> None:
    with pytest.raises(msgspec.DecodeError) as error:
        msgspec.json.decode(b'{"name": ', type=Order)

    assert re.match("the line: not valid JSON", in_words(error.value, Order, "the line"))
