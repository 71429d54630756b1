"""Ways to say something are found in every text that says it."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_context_proxy.retrieval import forms, needs, purposes
from mcp_context_proxy.retrieval.text import Spoken, spoken


def every(values: object) -> Iterator[Spoken]:
    if isinstance(values, Spoken):
        yield values
    elif isinstance(values, tuple):
        for value in values:
            yield from every(value)


ALL = [one for module in (forms, needs, purposes) for value in vars(module).values() for one in every(value)]


def test_a_form_is_only_looked_for_beside_its_words() -> None:
    form = spoken(r"\bkeep (?:it|them)\b", "keep")
    assert form.search("please KEEP it") is not None
    assert [one.group() for one in form.finditer("keep it, keep them")] == ["keep it", "keep them"]
    assert form.sub("drop it", "keep it") == "drop it"
    assert form.match("hold it") is None
    assert form.sub("drop it", "hold it") == "hold it"


@pytest.mark.parametrize("form", ALL, ids=range(len(ALL)))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_says_it_has_one_of_the_words(form: Spoken, data: st.DataObject) -> None:
    alphabet = st.characters(codec="ascii")
    text = data.draw(st.from_regex(re.compile(form.form.pattern, form.form.flags), alphabet=alphabet))
    assert (form.search(text) is None) == (form.form.search(text) is None)
